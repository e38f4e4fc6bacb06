//! Task actions, routes and the schedule of the domain provisioner (contract 4.7): what comes in, what the
//! core is asked, what goes out.

use super::dns;
use super::later::{self, CertificateStep, Later, Started, VERIFY_PER_PASS};
use super::model::{Certificate, Claim, Generation, Millis, ProvisionError, Registry, State};
use super::names::{BadDomain, Domain, Origin, Slug, execution_name};
use super::run::{Aborted, Retired, Supervisor, Swept, World, listed_domain};
use super::{store, view};
use crate::caller::Scope;
use crate::config::{ConfigError, DomainProvisioner};
use crate::error::Failure;
use crate::http::{self, Problem, Request, Response};
use crate::status::NeedsAdmin;
use crate::telemetry::{self, Metric};
use crate::time::Timestamp;
use crate::trigger::{self, Shape};
use serde_json::{Value, json};

/// How long a `DELETE` waits for the host, in milliseconds; the gateway gives up at 29 s.
const RETIRE_WAIT: Millis = 15_000;
/// Polls of a certificate that are quick, and the two waits, in seconds (spec/domains.md 2.10: a Standard
/// execution has 25,000 history events).
const QUICK_POLLS: u64 = 20;
const QUICK_WAIT: u64 = 30;
const SLOW_WAIT: u64 = 300;
/// Looks at the DNS in one saga: 72 hours, every five minutes. After that the sweep goes on.
const DNS_POLLS: u64 = 864;

/// What one invocation brings.
#[derive(Debug, Clone)]
pub struct Invocation {
    /// The moment of the call.
    pub now: Timestamp,
    /// Id of the invocation.
    pub request_id: String,
    /// When Lambda ends it.
    pub deadline: Timestamp,
    /// Seed of a random idempotency key.
    pub seed: uuid::Uuid,
}

impl Invocation {
    fn claim(&self, execution: &str) -> Claim {
        Claim {
            execution: execution.to_owned(),
            request: self.request_id.clone(),
            deadline: self.deadline.as_millisecond(),
        }
    }

    fn millis(&self) -> Millis {
        self.now.as_millisecond()
    }
}

/// Answers one invocation, whatever triggered it.
///
/// # Errors
/// A task or sweep that failed, with the error types of spec/domains.md 2.1, or an event this function does
/// not take.
pub async fn handle<W: World + Later>(
    w: &W,
    cfg: &DomainProvisioner,
    inv: &Invocation,
    event: &Value,
) -> Result<Value, Failure> {
    match trigger::shape(event, Some("action"))? {
        Shape::Http => Ok(serve(w, cfg, inv, event).await.to_event()),
        Shape::Event { source, detail_type } if trigger::is_schedule(source, detail_type) => {
            sweep(w, cfg, inv).await
        }
        Shape::Event { .. } => Err(trigger::unknown("it is another event")),
        Shape::Task => {
            let action = event.get("action").and_then(Value::as_str).unwrap_or("");
            let answer = task(w, cfg, inv, action, event).await;
            let outcome = match &answer {
                Ok(v) => v
                    .get("outcome")
                    .and_then(Value::as_str)
                    .unwrap_or("ok")
                    .to_owned(),
                Err(f) => f.error_type.clone(),
            };
            let domain = text(event, "/domain");
            tracing::info!(op = action, outcome, domain, "task");
            if action == "ensure_provisioned" {
                telemetry::emit(
                    &[Metric::count("ProvisionOutcomes", 1.0).by("outcome", &outcome)],
                    inv.now,
                );
            }
            answer
        }
    }
}

/// The answer to every call of a function whose environment is not right.
///
/// # Errors
/// For anything but HTTP: the workflow's retries do not help, its last branch tells the person.
pub fn misconfigured(e: &ConfigError, event: &Value) -> Result<Value, Failure> {
    if event.pointer("/requestContext/http").is_some() {
        let p = Problem::new(
            500,
            "configuration_error",
            "Headgate is not set up correctly",
            e.to_string(),
        );
        return Ok(Response::from(p).finish_unread(event).to_event());
    }
    let kind = if event.get("action").is_some() {
        "Provision.NotConfigured"
    } else {
        "configuration_error"
    };
    Err(Failure::new(kind, e.to_string()))
}

// ---------------------------------------------------------------- tasks

fn text<'a>(event: &'a Value, pointer: &str) -> Option<&'a str> {
    event.pointer(pointer).and_then(Value::as_str)
}

fn bad_input(what: &str) -> Failure {
    Failure::new(
        "Provision.InvalidInput",
        format!(
            "The task's input is not as expected: {what}. Compare the state machine with this version of the function."
        ),
    )
}

fn parse(cfg: &DomainProvisioner, name: &str) -> Result<Domain, ProvisionError> {
    Domain::parse(name, &cfg.cell.names).map_err(|e| ProvisionError::InvalidDomain(e.to_string()))
}

async fn task<W: World + Later>(
    w: &W,
    cfg: &DomainProvisioner,
    inv: &Invocation,
    action: &str,
    event: &Value,
) -> Result<Value, Failure> {
    let name = text(event, "/domain").ok_or_else(|| bad_input("domain is missing"))?;
    let domain = parse(cfg, name)?;
    let s = Supervisor::new(w, &cfg.cell);
    let execution = || text(event, "/execution").ok_or_else(|| bad_input("execution is missing"));
    match action {
        "validate" => Ok(json!({"domain": domain, "slug": Slug::of(&domain)})),
        "ensure_provisioned" => {
            let p = s.ensure_provisioned(&domain, &inv.claim(execution()?)).await?;
            Ok(serde_json::to_value(p).unwrap_or(Value::Null))
        }
        "abort" => Ok(match s.abort(&domain, &inv.claim(execution()?)).await? {
            Aborted::Stopped => json!({"outcome": "stopped"}),
            Aborted::Nothing(why) => json!({"outcome": "nothing_to_do", "why": why}),
        }),
        "request_certificate" => match &cfg.cell.names.certificate_for {
            None => Ok(json!({"skipped": true})),
            Some(prefix) => {
                let c = later::request_certificate(w, prefix, &domain).await?;
                s.note_certificate(&domain, &c).await?;
                Ok(
                    json!({"skipped": false, "status": "PENDING", "polls": 0, "wait": QUICK_WAIT, "certificate": c}),
                )
            }
        },
        "poll_certificate" => {
            let known = certificate(event)?.ok_or_else(|| bad_input("certificate is missing"))?;
            let polls = event.get("polls").and_then(Value::as_u64).unwrap_or(0) + 1;
            let (c, step) = later::poll_certificate(w, &known).await?;
            if c != known {
                s.note_certificate(&domain, &c).await?;
            }
            let status = if step == CertificateStep::Issued {
                "ISSUED"
            } else {
                "PENDING"
            };
            let wait = if polls <= QUICK_POLLS {
                QUICK_WAIT
            } else {
                SLOW_WAIT
            };
            Ok(json!({"skipped": false, "status": status, "polls": polls, "wait": wait, "certificate": c}))
        }
        "insert" => {
            let origin: Origin = member(event, "/instance/origin")?;
            let generation: Generation = member(event, "/instance/generation")?;
            let c = certificate(event)?;
            let p = later::product(&domain, &origin, generation, execution()?, c, inv.millis());
            s.insert(&p).await?;
            Ok(json!({"outcome": "inserted", "generation": generation}))
        }
        "publish_dns" => publish(&s, w, cfg, &domain, event).await,
        "verify_dns" => {
            let polls = event.get("polls").and_then(Value::as_u64).unwrap_or(0) + 1;
            let product = s.verify_dns(&domain).await?;
            let complete = product.as_ref().is_some_and(super::model::Product::dns_complete);
            // Retired meanwhile, or waited for long enough: nothing to look for here any more.
            let again = !complete && product.is_some() && polls < DNS_POLLS;
            Ok(json!({"complete": complete, "again": again, "polls": polls, "wait": SLOW_WAIT}))
        }
        "record_failure" => {
            let step = text(event, "/step").unwrap_or("unknown");
            let code = text(event, "/error/Error").unwrap_or("unknown");
            let message = first_cause(text(event, "/error/Cause").unwrap_or(""));
            let me = inv.claim(execution()?);
            let noted = s.record_failure(&domain, &me, step, code, &message).await?;
            Ok(
                json!({"outcome": if noted { "recorded" } else { "overtaken" }, "step": step, "error": code, "cause": message}),
            )
        }
        _ => Err(bad_input("action is none of those this function knows")),
    }
}

fn member<T: serde::de::DeserializeOwned>(event: &Value, pointer: &str) -> Result<T, Failure> {
    let v = event.pointer(pointer).cloned().unwrap_or(Value::Null);
    serde_json::from_value(v).map_err(|_| bad_input(&format!("{pointer} is missing or malformed")))
}

fn certificate(event: &Value) -> Result<Option<Certificate>, Failure> {
    match event.get("certificate") {
        None | Some(Value::Null) => Ok(None),
        Some(v) => serde_json::from_value(v.clone())
            .map(Some)
            .map_err(|_| bad_input("certificate is malformed")),
    }
}

/// Lambda's failure reaches the workflow as JSON text; its message is the first cause.
fn first_cause(cause: &str) -> String {
    let json: Option<Value> = serde_json::from_str(cause).ok();
    let inner = json
        .as_ref()
        .and_then(|v| v.get("errorMessage"))
        .and_then(Value::as_str);
    inner.unwrap_or(cause).to_owned()
}

async fn publish<W: World + Later>(
    s: &Supervisor<'_, W>,
    w: &W,
    cfg: &DomainProvisioner,
    domain: &Domain,
    event: &Value,
) -> Result<Value, Failure> {
    let zone = cfg.zone.as_deref();
    let slug = Slug::of(domain);
    if let Some(c) = certificate(event)? {
        if zone.is_none() || c.validation.is_empty() {
            return Ok(json!({"published": false}));
        }
        let name = dns::certificate_stack_name(&slug);
        let (_, published) = later::publish(w, zone, domain, &name, &c.validation).await?;
        return Ok(json!({"published": published}));
    }
    let (row, product) = s.both(domain).await?;
    let (Some(row), Some(product)) = (row, product) else {
        return Ok(json!({"published": false}));
    };
    let records = later::records_of(&row, Some(&product));
    let (records, published) = later::publish(w, zone, domain, &dns::stack_name(&row.slug), &records).await?;
    s.keep_records(&product, records).await?;
    Ok(json!({"published": published}))
}

// ---------------------------------------------------------------- schedule

async fn sweep<W: World + Later>(w: &W, cfg: &DomainProvisioner, inv: &Invocation) -> Result<Value, Failure> {
    let s = Supervisor::new(w, &cfg.cell);
    let me = inv.claim("sweep");
    let swept = s.sweep(&me).await?;
    verify_waiting(&s, cfg, &me).await;
    let age = f64::from(u32::try_from(swept.oldest_unfinished_seconds).unwrap_or(u32::MAX));
    let mut metrics = vec![
        Metric::seconds("OldestUnfinishedSeconds", age).by("cell", &cfg.cell.name),
        Metric::count(
            "SweepAlarms",
            f64::from(u32::try_from(swept.alarms.len()).unwrap_or(u32::MAX)),
        ),
    ];
    if let Some(percent) = swept.ports_used_percent {
        metrics.push(Metric::count("PortsUsedPercent", f64::from(percent)).by("cell", &cfg.cell.name));
    }
    telemetry::emit(&metrics, inv.now);
    log_sweep(&swept);
    Ok(serde_json::to_value(swept).unwrap_or(Value::Null))
}

fn log_sweep(s: &Swept) {
    for a in &s.alarms {
        tracing::error!(op = "sweep", about = a.about, "{}", a.text);
    }
    for r in &s.reported {
        tracing::warn!(op = "sweep", about = r.about, "{}", r.text);
    }
    tracing::info!(op = "sweep", rolled_back = ?s.rolled_back, retired = ?s.retired, "swept");
}

/// Claimed domains whose records are not all found: a few per pass, those first that were not looked at for
/// longest among the cell's first hundred.
async fn verify_waiting<W: World + Later>(s: &Supervisor<'_, W>, cfg: &DomainProvisioner, me: &Claim) {
    let page = s
        .world()
        .query(&store::ports_query(&cfg.cell.name, None, Some(100)))
        .await;
    let mut waiting = Vec::new();
    for domain in page.iter().flat_map(|p| &p.items).filter_map(listed_domain) {
        if !me.may_begin(s.now()) {
            return;
        }
        if let Ok((Some(row), Some(p))) = s.both(&domain).await
            && row.state == State::Active
            && !(p.dns_complete() && p.dns_checked_at.is_some())
        {
            waiting.push((p.dns_checked_at, domain));
        }
    }
    waiting.sort();
    for (_, domain) in waiting.into_iter().take(VERIFY_PER_PASS) {
        if let Err(e) = s.verify_dns(&domain).await {
            tracing::warn!(op = "verify_dns", domain = domain.as_str(), "{e}");
        }
    }
}

// ---------------------------------------------------------------- routes

async fn serve<W: World + Later>(
    w: &W,
    cfg: &DomainProvisioner,
    inv: &Invocation,
    event: &Value,
) -> Response {
    let request = match Request::parse(event) {
        Ok(r) => r,
        Err(text) => return http::invalid(&[("request", &text)]).finish_unread(event),
    };
    let response = match route(w, cfg, inv, &request).await {
        Ok(r) | Err(r) => r,
    };
    response.finish(&request)
}

async fn route<W: World + Later>(
    w: &W,
    cfg: &DomainProvisioner,
    inv: &Invocation,
    q: &Request,
) -> Result<Response, Response> {
    let caller = q.caller(cfg.auth_is_local)?;
    let segments = q.segments();
    let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
    q.check_size()?;
    let s = Supervisor::new(w, &cfg.cell);
    match (parts.as_slice(), q.method.as_str()) {
        (["domains"], "GET") => {
            caller.require(Scope::Read)?;
            list(&s, cfg, inv, q).await
        }
        (["domains"], "POST") => {
            caller.require(Scope::Write)?;
            create(&s, w, cfg, inv, q).await
        }
        (["domains", name], "GET") => {
            caller.require(Scope::Read)?;
            let domain = named(cfg, name)?;
            let (row, product) = s.both(&domain).await.map_err(|e| refused(&e))?;
            let Some(row) = row else {
                return Err(http::not_found("such domain"));
            };
            let runs = saga_runs(w, &row, product.is_some()).await;
            Ok(Response::json(
                200,
                &view::domain(&row, product.as_ref(), runs, inv.millis()),
            ))
        }
        (["domains", name], "DELETE") => {
            caller.require(Scope::Write)?;
            retire(&s, cfg, inv, name).await
        }
        (["domains"], _) => Err(http::wrong_method("GET, POST")),
        (["domains", _], _) => Err(http::wrong_method("GET, DELETE")),
        _ => Err(http::not_found("such address")),
    }
}

fn named(cfg: &DomainProvisioner, name: &str) -> Result<Domain, Response> {
    Domain::parse(name, &cfg.cell.names).map_err(|e| bad_domain(&e))
}

fn bad_domain(e: &BadDomain) -> Response {
    let errors: Vec<Value> =
        e.0.iter()
            .map(|t| json!({"field": "domain", "text": t}))
            .collect();
    Problem::new(
        400,
        "domain_invalid",
        "This domain can not be hosted",
        format!("{e} Nothing was changed."),
    )
    .with("errors", json!(errors))
    .into()
}

/// A problem answer for an error of the core.
fn refused(e: &ProvisionError) -> Response {
    match e {
        ProvisionError::InvalidDomain(text) => {
            Problem::new(400, "domain_invalid", "This domain can not be hosted", text).into()
        }
        ProvisionError::NotConfigured => {
            let admin = NeedsAdmin::new(
                "set_origin_suffix",
                "Set ORIGIN_SUFFIX (SAM parameter OriginSuffix).",
                None,
            );
            Problem::new(
                422,
                "not_configured",
                "This cell creates no instances",
                e.to_string(),
            )
            .with("variable", json!("ORIGIN_SUFFIX"))
            .needs_admin(&admin)
            .into()
        }
        ProvisionError::SlugConflict(_) => {
            let admin = NeedsAdmin::new("slug_conflict", "Look into who has the label.", None);
            Problem::new(409, "slug_conflict", "The domain's label is taken", e.to_string())
                .needs_admin(&admin)
                .into()
        }
        ProvisionError::Busy { retry_after } => busy(*retry_after),
        ProvisionError::LostLease | ProvisionError::InProgress(_) => busy(5),
        _ => Problem::new(
            503,
            "aws_unavailable",
            "AWS did not do what was asked",
            e.to_string(),
        )
        .retry_after("5")
        .into(),
    }
}

fn busy(seconds: u64) -> Response {
    let text =
        format!("Somebody else is at work on this domain. Nothing was changed; try again in {seconds} s.");
    Problem::new(409, "domain_busy", "The domain is being worked on", text)
        .retry_after(&seconds.to_string())
        .into()
}

/// Does the row's saga run? Asked only where the answer shows.
async fn saga_runs<W: World>(w: &W, row: &Registry, claimed: bool) -> Option<bool> {
    if row.state != State::Active || claimed {
        return None;
    }
    match &row.saga {
        Some(execution) => w.running(execution).await.ok(),
        None => Some(false),
    }
}

async fn list<W: World + Later>(
    s: &Supervisor<'_, W>,
    cfg: &DomainProvisioner,
    inv: &Invocation,
    q: &Request,
) -> Result<Response, Response> {
    let (limit, after) = q.paging(20, 100)?;
    if after
        .as_deref()
        .is_some_and(|a| a.len() != 5 || !a.bytes().all(|b| b.is_ascii_digit()))
    {
        return Err(http::invalid(&[(
            "cursor",
            "is not one that this API gave; start again without it",
        )]));
    }
    // The cell's ports list every domain it ever had, in the order of their first creation.
    let query = store::ports_query(&cfg.cell.name, after, Some(limit));
    let page = s.world().query(&query).await.map_err(|e| refused(&e.into()))?;
    let mut domains = Vec::new();
    for domain in page.items.iter().filter_map(listed_domain) {
        let (Some(row), product) = s.both(&domain).await.map_err(|e| refused(&e))? else {
            continue;
        };
        let runs = saga_runs(s.world(), &row, product.is_some()).await;
        let mut v = view::domain(&row, product.as_ref(), runs, inv.millis());
        if let Some(o) = v.as_object_mut() {
            o.remove("dns_records");
        }
        domains.push(v);
    }
    let cursor = page.next.map(|sk| http::cursor_encode(&sk));
    Ok(Response::json(
        200,
        &json!({"domains": domains, "next_cursor": cursor}),
    ))
}

async fn create<W: World + Later>(
    s: &Supervisor<'_, W>,
    w: &W,
    cfg: &DomainProvisioner,
    inv: &Invocation,
    q: &Request,
) -> Result<Response, Response> {
    let body = q.json_object()?;
    let mut faults = Vec::new();
    let name = match body.get("domain") {
        Some(Value::String(s)) => s.as_str(),
        Some(_) => {
            faults.push(("domain", "must be a string"));
            ""
        }
        None => {
            faults.push(("domain", "is missing"));
            ""
        }
    };
    let key = q.headers.get("idempotency-key");
    if key.is_some_and(|k| !(1..=255).contains(&k.len()) || k.chars().any(char::is_control)) {
        faults.push(("idempotency-key", "must be 1 to 255 printable characters"));
    }
    if !faults.is_empty() {
        return Err(http::invalid(&faults));
    }
    let domain = named(cfg, name)?;
    let now = inv.millis();
    let (row, product) = s.both(&domain).await.map_err(|e| refused(&e))?;
    if let Some(row) = &row {
        let v = view::domain(row, product.as_ref(), None, now);
        if v.pointer("/status/state").and_then(Value::as_str) == Some("live") {
            return Ok(Response::json(200, &v));
        }
    }
    if cfg.cell.suffix.is_none() && row.as_ref().is_none_or(|r| r.state != State::Active) {
        return Err(refused(&ProvisionError::NotConfigured));
    }
    if row.is_none() {
        let slug = Slug::of(&domain);
        let taken = s
            .world()
            .get(&store::slug_key(&slug))
            .await
            .map_err(|e| refused(&e.into()))?;
        if taken.is_some_and(|t| store::owner_of(&t) != Some(domain.as_str())) {
            return Err(refused(&ProvisionError::SlugConflict(slug)));
        }
    }
    let execution = started(w, &domain, row.as_ref(), key, inv)
        .await
        .map_err(|e| refused(&e))?;
    let status = match &row {
        Some(row) => {
            let _ = s.note_saga(&domain, &execution).await.map_err(|e| refused(&e))?;
            view::status(row, product.as_ref(), Some(true), now)
        }
        None => view::starting(now),
    };
    let body = json!({"domain": domain, "operation": execution, "status": status});
    Ok(Response::json(202, &body).header("location", format!("/domains/{domain}")))
}

/// The saga for this call: the one that runs, or the one of this idempotency key, or a new one
/// (spec/domains.md 2.10).
async fn started<W: World + Later>(
    w: &W,
    domain: &Domain,
    row: Option<&Registry>,
    key: Option<&String>,
    inv: &Invocation,
) -> Result<String, ProvisionError> {
    if key.is_none()
        && let Some(saga) = row.and_then(|r| r.saga.as_ref())
        && w.running(saga).await?
    {
        return Ok(saga.clone());
    }
    let key = key.cloned().unwrap_or_else(|| inv.seed.to_string());
    let name = execution_name(&Slug::of(domain), &format!("{domain}\n{key}"));
    match w.start(&name, &json!({"domain": domain})).await? {
        Started::Now(arn) | Started::Before(arn) => Ok(arn),
    }
}

async fn retire<W: World + Later>(
    s: &Supervisor<'_, W>,
    cfg: &DomainProvisioner,
    inv: &Invocation,
    name: &str,
) -> Result<Response, Response> {
    let domain = named(cfg, name)?;
    let me = inv.claim(&format!("http:{}", inv.request_id));
    let until = me.rollback_until().min(inv.millis().saturating_add(RETIRE_WAIT));
    let done = s.retire(&domain, &me, until).await.map_err(|e| refused(&e))?;
    telemetry::emit(
        &[Metric::count("DomainsRetired", 1.0).by("answer", &format!("{done:?}"))],
        inv.now,
    );
    match done {
        Retired::Unknown => Err(http::not_found("such domain")),
        Retired::Already => {
            let text = "The domain is retired already. Create it again to bring it back at the same address.";
            Err(Problem::new(410, "already_retired", "The domain is retired", text).into())
        }
        Retired::Busy(seconds) => Err(busy(seconds)),
        Retired::Underway | Retired::Done | Retired::Superseded => {
            let (row, product) = s.both(&domain).await.map_err(|e| refused(&e))?;
            let view = row.map(|r| view::domain(&r, product.as_ref(), None, inv.millis()));
            let mut body = view.unwrap_or_else(|| json!({"domain": domain}));
            if let Some(o) = body.as_object_mut() {
                o.insert("superseded".into(), json!(done == Retired::Superseded));
            }
            Ok(Response::json(202, &body).header("location", format!("/domains/{domain}")))
        }
    }
}
