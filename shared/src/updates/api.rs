//! Routes and events of the updater (contract 4.3): what comes in, what the core is asked, what goes out.

use super::decide::{self, Purpose};
use super::model::{Look, Seen, SetRead, StackRead, Update};
use super::run::{self, Call, Reconciled, Refused, World};
use super::view;
use crate::caller::{Caller, Scope};
use crate::config;
use crate::error::Failure;
use crate::http::{self, Problem, Request, Response};
use crate::release::Release;
use crate::status::Flag;
use crate::telemetry::{self, Metric};
use crate::time::Timestamp;
use crate::trigger::{self, Shape};
use serde_json::{Value, json};
use uuid::Uuid;

/// What one invocation brings: the moment, the request id and the seed of a new id.
#[derive(Debug, Clone)]
pub struct Invocation {
    /// The moment of the call.
    pub now: Timestamp,
    /// Id of the invocation.
    pub request_id: String,
    /// Seed of a new update's id.
    pub seed: Uuid,
}

/// Answers one invocation, whatever triggered it.
///
/// # Errors
/// An event this function does not take, or a poll that could not read the table: EventBridge then tries again.
pub async fn handle<W: World>(
    w: &W,
    cfg: &config::Updater,
    inv: &Invocation,
    event: &Value,
) -> Result<Value, Failure> {
    match trigger::shape(event, None)? {
        Shape::Http => Ok(http(w, cfg, inv, event).await.to_event()),
        Shape::Event { source, detail_type } => {
            let stack_event =
                source == "aws.cloudformation" && detail_type == "CloudFormation Stack Status Change";
            if !trigger::is_schedule(source, detail_type) && !stack_event {
                return Err(trigger::unknown("it is another event"));
            }
            let pk = cfg.pk();
            let call = call(cfg, inv, &pk, "headgate");
            let r = run::reconcile(w, &call, Purpose { full: false })
                .await
                .map_err(|e| {
                    Failure::new(
                        "Headgate.Unavailable",
                        format!("The updates could not be read: {e}. The next poll tries again."),
                    )
                })?;
            log(&r, "poll", inv.now);
            Ok(view::poll(&r))
        }
        Shape::Task => Err(trigger::unknown("it takes no tasks")),
    }
}

/// The answer to every HTTP call of a function whose environment is not right.
pub fn misconfigured(e: &config::ConfigError, event: &Value) -> Result<Value, Failure> {
    if event.pointer("/requestContext/http").is_some() {
        let p = Problem::new(
            500,
            "configuration_error",
            "Headgate is not set up correctly",
            e.to_string(),
        );
        return Ok(Response::from(p).finish_unread(event).to_event());
    }
    Err(Failure::new("configuration_error", e.to_string()))
}

/// What the core is given of an invocation.
pub(crate) fn call<'a>(
    cfg: &'a config::Updater,
    inv: &'a Invocation,
    pk: &'a str,
    actor: &'a str,
) -> Call<'a> {
    Call {
        pk,
        stack: &cfg.stack,
        role_arn: cfg.change_set_role.as_deref(),
        now: inv.now,
        request_id: &inv.request_id,
        actor,
        seed: inv.seed,
    }
}

async fn http<W: World>(w: &W, cfg: &config::Updater, inv: &Invocation, event: &Value) -> Response {
    let request = match Request::parse(event) {
        Ok(r) => r,
        Err(text) => return http::invalid(&[("request", &text)]).finish_unread(event),
    };
    let response = match route(w, cfg, inv, &request).await {
        Ok(r) | Err(r) => r,
    };
    response.finish(&request)
}

async fn route<W: World>(
    w: &W,
    cfg: &config::Updater,
    inv: &Invocation,
    q: &Request,
) -> Result<Response, Response> {
    let caller = q.caller(cfg.auth_is_local)?;
    let segments = q.segments();
    let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
    let method = q.method.as_str();
    q.check_size()?;
    match (parts.as_slice(), method) {
        (["version"], "GET") => {
            caller.require(Scope::Read)?;
            let r = look(w, cfg, inv, &caller).await?;
            Ok(Response::json(200, &view::version(&r, &cfg.stack, inv.now)))
        }
        (["updates"], "GET") => {
            caller.require(Scope::Read)?;
            history(w, cfg, inv, q).await
        }
        (["updates"], "POST") => {
            caller.require(Scope::Write)?;
            begin(w, cfg, inv, q, &caller).await
        }
        (["updates", id], "GET") => {
            caller.require(Scope::Read)?;
            one(w, cfg, inv, &caller, id).await
        }
        (["updates", id, "apply"], "POST") => {
            caller.require(Scope::Write)?;
            let pk = cfg.pk();
            let done = run::apply(w, &call(cfg, inv, &pk, caller.actor()), id).await;
            after(done, id, 202, inv)
        }
        (["updates", id, "discard"], "POST") => {
            caller.require(Scope::Write)?;
            let pk = cfg.pk();
            let done = run::discard(w, &call(cfg, inv, &pk, caller.actor()), id).await;
            after(done, id, 200, inv)
        }
        (["version"], _) => Err(http::wrong_method("GET")),
        (["updates"], _) => Err(http::wrong_method("GET, POST")),
        (["updates", _], _) => Err(http::wrong_method("GET")),
        (["updates", _, "apply" | "discard"], _) => Err(http::wrong_method("POST")),
        _ => Err(http::not_found("such address")),
    }
}

async fn look<W: World>(
    w: &W,
    cfg: &config::Updater,
    inv: &Invocation,
    who: &Caller,
) -> Result<Reconciled, Response> {
    let pk = cfg.pk();
    let r = run::reconcile(w, &call(cfg, inv, &pk, who.actor()), Purpose { full: true })
        .await
        .map_err(|e| Response::from(Problem::aws_unavailable(&e, "The updates could not be read")))?;
    log(&r, "version", inv.now);
    Ok(r)
}

async fn history<W: World>(
    w: &W,
    cfg: &config::Updater,
    inv: &Invocation,
    q: &Request,
) -> Result<Response, Response> {
    let (limit, after) = q.paging(20, 100)?;
    if after.as_deref().is_some_and(|a| !a.starts_with("UPDATE#")) {
        return Err(http::invalid(&[(
            "cursor",
            "is not one that this API gave; start again without it",
        )]));
    }
    let (rows, next, head) = run::history(w, &cfg.pk(), limit, after)
        .await
        .map_err(|e| Response::from(Problem::aws_unavailable(&e, "The updates could not be read")))?;
    let list: Vec<&Update> = rows.iter().map(|r| &r.row).collect();
    let updates = view::history(&list, &head, inv.now);
    let cursor = next.map(|sk| http::cursor_encode(&sk));
    Ok(Response::json(
        200,
        &json!({"updates": updates, "next_cursor": cursor}),
    ))
}

async fn begin<W: World>(
    w: &W,
    cfg: &config::Updater,
    inv: &Invocation,
    q: &Request,
    who: &Caller,
) -> Result<Response, Response> {
    let body = q.json_object()?;
    let release = match body.get("release") {
        Some(Value::String(s)) if Release::parse(s).is_some() => s.clone(),
        Some(Value::String(_)) => {
            return Err(http::invalid(&[("release", "must be a version such as 2.4.0")]));
        }
        Some(_) => return Err(http::invalid(&[("release", "must be a string")])),
        None => return Err(http::invalid(&[("release", "is missing")])),
    };
    let pk = cfg.pk();
    let begun = run::begin(w, &call(cfg, inv, &pk, who.actor()), &release)
        .await
        .map_err(refused)?;
    log(&begun.state, "begin", inv.now);
    let row = begun.state.snapshot.find(&begun.id).map(|v| v.row.clone());
    let Some(row) = row else {
        return Err(http::not_found("such update"));
    };
    let body = Value::Object(view::update_of(&begun.state, &row, inv.now));
    if cfg.check_project.is_some() && !begun.existing && row.status.is_open() {
        // Begin starts the check of the release it prepares. It never fails because of it: a check that can not
        // be started is stalled with its reason (spec/updates.md 2.3 item 1).
        let c = call(cfg, inv, &pk, who.actor());
        if let Err(e) = crate::release_check::run::start_verify(w, &c, &row.to_release).await {
            tracing::warn!(op = "begin", release = row.to_release, error = ?e, "the release check was not started");
        }
    }
    let status = if begun.existing { 200 } else { 201 };
    Ok(Response::json(status, &body).header("location", format!("/updates/{}", begun.id)))
}

async fn one<W: World>(
    w: &W,
    cfg: &config::Updater,
    inv: &Invocation,
    who: &Caller,
    id: &str,
) -> Result<Response, Response> {
    let pk = cfg.pk();
    let c = call(cfg, inv, &pk, who.actor());
    let unavailable = |e| Response::from(Problem::aws_unavailable(&e, "The updates could not be read"));
    let mut r = run::reconcile(w, &c, Purpose { full: true })
        .await
        .map_err(unavailable)?;
    let found = run::find(w, &c, id, &mut r).await.map_err(unavailable)?;
    let Some(u) = found else {
        return Err(http::not_found("such update"));
    };
    let mut body = view::update_of(&r, &u, inv.now);
    let set = match (r.observed.sets.get(id), &u.change_set_id) {
        (Some(read), _) => Some(read.clone()),
        (None, Some(arn)) => match w.look(&[Look::SetByArn(arn.clone())]).await.into_iter().next() {
            Some(Seen::Set(read)) => Some(read),
            _ => None,
        },
        (None, None) => None,
    };
    let changes = match set {
        Some(SetRead::Seen(cs)) => view::changes(&cs),
        other => {
            let text = match other {
                Some(SetRead::Failed(e)) => format!(
                    "The change set can not be read now ({} answered {}).",
                    e.action, e.code
                ),
                _ => {
                    "CloudFormation no longer has this change set; the summary is what was stored.".to_owned()
                }
            };
            let flag = serde_json::to_value(Flag::new("changes_unavailable", text)).unwrap_or(Value::Null);
            if let Some(Value::Array(flags)) = body.get_mut("status").and_then(|s| s.get_mut("flags")) {
                flags.push(flag);
            }
            Value::Array(vec![])
        }
    };
    body.insert("changes".into(), changes);
    Ok(Response::json(200, &Value::Object(body)))
}

fn after(
    done: Result<Reconciled, Refused>,
    id: &str,
    status: u16,
    inv: &Invocation,
) -> Result<Response, Response> {
    let r = done.map_err(refused)?;
    log(&r, if status == 202 { "apply" } else { "discard" }, inv.now);
    let Some(u) = r.snapshot.find(id).map(|v| v.row.clone()) else {
        return Err(http::not_found("such update"));
    };
    Ok(Response::json(
        status,
        &Value::Object(view::update_of(&r, &u, inv.now)),
    ))
}

/// The answer to a refusal.
pub(crate) fn refused(r: Refused) -> Response {
    match r {
        Refused::ReleaseUnknown(release) => Problem::new(
            404,
            "release_unknown",
            "No such release",
            format!("The release list does not name {release}. Look at GET /version for the latest one."),
        )
        .into(),
        Refused::NoSuchUpdate(_) => http::not_found("such update"),
        Refused::Conflict { blocker, extras } => {
            let mut p = Problem::blocked(&blocker);
            if let Some(since) = blocker.since {
                p = p.with("since", json!(since));
            }
            for (name, value) in extras {
                p = p.with(name, value);
            }
            p.into()
        }
        Refused::ChangeSet {
            text,
            needs_admin,
            update,
        } => {
            let mut p = Problem::new(422, "change_set_refused", "CloudFormation refused", text);
            if let Some(n) = &needs_admin {
                p = p.needs_admin(n);
            }
            p.with("update", json!(update)).into()
        }
        Refused::Aws { error, what } => {
            let p = Problem::aws_unavailable(&error, &capital(what));
            let denied = error.class == crate::error::Class::Denied;
            if denied {
                p.needs_admin(&decide::permission(&error))
            } else {
                p
            }
            .into()
        }
    }
}

fn capital(text: &str) -> String {
    let mut c = text.chars();
    c.next()
        .map(|f| f.to_uppercase().chain(c).collect())
        .unwrap_or_default()
}

/// One log line and the metrics of a decision (contract 6).
fn log(r: &Reconciled, what: &str, now: Timestamp) {
    let open = view::pending(r);
    let state = open.map_or("idle", |u| u.status.as_str());
    // How long nobody could read what CloudFormation does with the pending update: 0 when this call could.
    let age = open.map_or(0.0, |u| {
        let unread = view::shown(&r.snapshot, &r.observed, u, now).unread;
        if unread {
            crate::time::seconds_between(u.observed_at.unwrap_or(u.started_at), now)
        } else {
            0.0
        }
    });
    tracing::info!(
        op = what,
        update.id = open.map_or("-", |u| u.id.as_str()),
        update.state = state,
        wrote = r.wrote,
        lost = r.lost,
        stack.status = r
            .observed
            .stack
            .as_ref()
            .and_then(StackRead::seen)
            .map_or("-", |s| s.status.as_str()),
        "reconciled"
    );
    let mut metrics = vec![
        Metric::count("Reconciles", 1.0),
        Metric::seconds("StateAgeSeconds", age),
    ];
    if r.lost {
        metrics.push(Metric::count("Conflicts", 1.0));
    }
    let failed: Vec<&crate::error::CallError> = r
        .observed
        .sets
        .values()
        .filter_map(|s| if let SetRead::Failed(e) = s { Some(e) } else { None })
        .chain(match &r.observed.stack {
            Some(StackRead::Failed(e)) => Some(e),
            _ => None,
        })
        .chain(r.observed.events_error.as_ref())
        .collect();
    if !failed.is_empty() {
        metrics.push(Metric::count("StaleReads", 1.0));
    }
    for e in failed {
        let service = e.action.split(':').next().unwrap_or("aws");
        metrics.push(
            Metric::count("AwsErrors", 1.0)
                .by("service", service)
                .by("class", e.class.as_str()),
        );
    }
    telemetry::emit(&metrics, now);
}
