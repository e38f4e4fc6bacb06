//! Routes and events of the model check (contract 4.4).

use super::model::Report;
use super::run::{self, Known, Started, Taken};
use super::view;
use crate::caller::Scope;
use crate::config;
use crate::error::{CallError, Failure};
use crate::http::{self, Problem, Request, Response};
use crate::release::{self, Release};
use crate::telemetry::{self, Metric};
use crate::trigger::{self, Shape};
use crate::updates::api::{Invocation, call, refused};
use crate::updates::decide::Purpose;
use crate::updates::model::{Look, Seen, SetRead, StackRead};
use crate::updates::run::{Call, Reconciled, World, reconcile};
use crate::updates::view as updates_view;
use serde_json::{Value, json};

/// Answers one invocation, whatever triggered it.
///
/// # Errors
/// An event this function does not take, a report that can never be taken, or a table in trouble: EventBridge
/// then delivers again.
pub async fn handle<W: World>(
    w: &W,
    cfg: &config::ModelCheck,
    inv: &Invocation,
    event: &Value,
) -> Result<Value, Failure> {
    let pk = cfg.install.pk();
    match trigger::shape(event, None)? {
        Shape::Http => {
            let request = match Request::parse(event) {
                Ok(r) => r,
                Err(text) => {
                    return Ok(http::invalid(&[("request", &text)])
                        .finish_unread(event)
                        .to_event());
                }
            };
            let response = match route(w, cfg, inv, &request).await {
                Ok(r) | Err(r) => r,
            };
            Ok(response.finish(&request).to_event())
        }
        Shape::Event {
            source: "headgate.release-check",
            detail_type: "Release Check Reported",
        } => {
            let detail = event.get("detail").unwrap_or(&Value::Null);
            let report = Report::parse(detail, inv.now).map_err(|faults| {
                Failure::new(
                    "ModelCheck.BadReport",
                    format!(
                        "The report of the release check can not be used: {}. Nothing was stored.",
                        faults.join("; ")
                    ),
                )
            })?;
            let c = call(&cfg.install, inv, &pk, "headgate");
            let taken = run::take_report(w, &c, &report)
                .await
                .map_err(|e| unavailable(&e))?;
            tracing::info!(op = "report", release = report.release, attempt = report.attempt, verdict = report.verdict, outcome = ?taken, "release check reported");
            Ok(match taken {
                Taken::Stored(state) => json!({"outcome": "stored", "state": state}),
                Taken::Known => json!({"outcome": "known"}),
                Taken::Ignored => json!({"outcome": "ignored"}),
            })
        }
        Shape::Event {
            source: "aws.codebuild",
            detail_type: "CodeBuild Build State Change",
        } => {
            // A hint to look again, never a state to store. Which release it is about stands in its environment.
            let Some(release) = release_of(event) else {
                return Ok(json!({"outcome": "ignored"}));
            };
            let c = call(&cfg.install, inv, &pk, "headgate");
            let k = run::view(w, &c, &release).await.map_err(|e| unavailable(&e))?;
            log(&release, &k, inv);
            Ok(json!({"state": k.judgement.state, "wrote": k.wrote}))
        }
        Shape::Event { .. } => Err(trigger::unknown("it is another event")),
        Shape::Task => Err(trigger::unknown("it takes no tasks")),
    }
}

fn unavailable(e: &CallError) -> Failure {
    Failure::new(
        "Headgate.Unavailable",
        format!("The check could not be read or stored: {e}. It will be tried again."),
    )
}

/// The release in a build event's environment variables.
fn release_of(event: &Value) -> Option<String> {
    let variables = event
        .pointer("/detail/additional-information/environment/environment-variables")?
        .as_array()?;
    let named = variables
        .iter()
        .find(|v| v.get("name").and_then(Value::as_str) == Some("HEADGATE_RELEASE"))?;
    let release = named.get("value").and_then(Value::as_str)?;
    Release::parse(release).map(|r| r.to_string())
}

async fn route<W: World>(
    w: &W,
    cfg: &config::ModelCheck,
    inv: &Invocation,
    q: &Request,
) -> Result<Response, Response> {
    let caller = q.caller(cfg.install.auth_is_local)?;
    let segments = q.segments();
    let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
    let pk = cfg.install.pk();
    q.check_size()?;
    match (parts.as_slice(), q.method.as_str()) {
        (["model-check"], "GET") => {
            caller.require(Scope::Read)?;
            let release = wanted(q.query.get("release"))?;
            let c = call(&cfg.install, inv, &pk, caller.actor());
            let k = run::view(w, &c, &release).await.map_err(table_trouble)?;
            log(&release, &k, inv);
            Ok(Response::json(200, &view::check(&release, &k, inv.now)))
        }
        (["model-check"], "POST") => {
            caller.require(Scope::Write)?;
            let body = q.json_object()?;
            let release = match body.get("release") {
                Some(Value::String(s)) => wanted(Some(s))?,
                Some(_) => return Err(http::invalid(&[("release", "must be a string")])),
                None => return Err(http::invalid(&[("release", "is missing")])),
            };
            let c = call(&cfg.install, inv, &pk, caller.actor());
            match run::start_verify(w, &c, &release).await.map_err(refused)? {
                Started::Passed(k) => Ok(Response::json(200, &view::check(&release, &k, inv.now))),
                Started::New(k) => {
                    log(&release, &k, inv);
                    Ok(Response::json(202, &view::check(&release, &k, inv.now)))
                }
                Started::Running(k) => Err(running(&release, &k, inv)),
            }
        }
        (["setup-checks"], "GET") => {
            caller.require(Scope::Read)?;
            let c = call(&cfg.install, inv, &pk, caller.actor());
            setup(w, cfg, inv, &c).await
        }
        (["preflight"], "GET") => {
            caller.require(Scope::Read)?;
            let release = wanted(q.query.get("release"))?;
            let c = call(&cfg.install, inv, &pk, caller.actor());
            let r = state(w, &c).await?;
            if let Some(Ok(list)) = &r.observed.releases
                && list.find(&release).is_none()
            {
                return Err(refused(crate::updates::run::Refused::ReleaseUnknown(release)));
            }
            let k = run::view(w, &c, &release).await.map_err(table_trouble)?;
            Ok(Response::json(200, &view::preflight(&release, &r, &k, inv.now)))
        }
        (["model-check"], _) => Err(http::wrong_method("GET, POST")),
        (["setup-checks" | "preflight"], _) => Err(http::wrong_method("GET")),
        _ => Err(http::not_found("such address")),
    }
}

fn table_trouble(e: CallError) -> Response {
    Problem::aws_unavailable(&e, "The check could not be read").into()
}

fn wanted(release: Option<&String>) -> Result<String, Response> {
    match release {
        Some(r) if Release::parse(r).is_some() => Ok(release::canonical(r)),
        Some(_) => Err(http::invalid(&[("release", "must be a version such as 2.4.0")])),
        None => Err(http::invalid(&[("release", "is missing")])),
    }
}

fn running(release: &str, k: &Known, inv: &Invocation) -> Response {
    let status = view::status(release, k, inv.now);
    Problem::new(
        409,
        "check_running",
        "The check is running",
        format!("{} Wait for it, or look again.", status.summary),
    )
    .with("progress", json!(status.progress))
    .with("since", json!(status.since))
    .into()
}

/// Reads of updates, without changing any row: the model check looks, the updater decides.
async fn state<W: World>(w: &W, c: &Call<'_>) -> Result<Reconciled, Response> {
    let mut r = reconcile(&ReadOnly(w), c, Purpose { full: true })
        .await
        .map_err(|e| Response::from(Problem::aws_unavailable(&e, "The updates could not be read")))?;
    // That nothing could be written is what was wanted.
    r.flags.retain(|f| f.action.as_deref() != Some(READ_ONLY));
    Ok(r)
}

async fn setup<W: World>(
    w: &W,
    cfg: &config::ModelCheck,
    inv: &Invocation,
    c: &Call<'_>,
) -> Result<Response, Response> {
    let r = state(w, c).await?;
    let project = match w.look(&[Look::Project]).await.into_iter().next() {
        Some(Seen::Project(p)) => p,
        _ => Ok(false),
    };
    let mut probes: Vec<CallError> = r
        .observed
        .sets
        .values()
        .filter_map(|s| {
            if let SetRead::Failed(e) = s {
                Some(e.clone())
            } else {
                None
            }
        })
        .collect();
    if let Some(StackRead::Failed(e)) = &r.observed.stack {
        probes.push(e.clone());
    }
    if let Some(Err(e)) = &r.observed.releases {
        probes.push(e.clone());
    }
    probes.extend(r.observed.events_error.clone());
    probes.extend(project.as_ref().err().cloned());
    if let Some(Seen::Models(Err(e))) = w.look(&[Look::Models]).await.into_iter().next() {
        probes.push(e);
    }
    let release = release_of_interest(&r);
    let known = match &release {
        Some(release) => Some(run::view(w, c, release).await.map_err(table_trouble)?),
        None => None,
    };
    let pair = release.as_deref().zip(known.as_ref());
    let _ = (cfg, inv);
    Ok(Response::json(200, &view::setup(&r, &project, &probes, pair)))
}

/// The release whose check matters now: the pending update's, else the latest one if it is newer.
fn release_of_interest(r: &Reconciled) -> Option<String> {
    if let Some(u) = updates_view::pending(r) {
        return Some(release::canonical(&u.to_release));
    }
    let current = r
        .observed
        .stack
        .as_ref()
        .and_then(StackRead::seen)
        .and_then(|s| s.version())?;
    let Some(Ok(list)) = &r.observed.releases else {
        return None;
    };
    let latest = list.latest()?;
    updates_view::is_newer(current, &latest.release).then(|| release::canonical(&latest.release))
}

/// A world in which nothing can be changed.
struct ReadOnly<'a, W>(&'a W);

impl<W: World> World for ReadOnly<'_, W> {
    async fn query(&self, q: &crate::store::Query) -> Result<crate::store::Page, CallError> {
        self.0.query(q).await
    }
    async fn get(&self, key: &crate::store::Key) -> Result<Option<crate::store::Item>, CallError> {
        self.0.get(key).await
    }
    async fn save(&self, _: &[crate::store::Write], _: &str) -> Result<(), crate::store::WriteError> {
        Err(read_only().into())
    }
    async fn look(&self, looks: &[Look]) -> Vec<Seen> {
        self.0.look(looks).await
    }
    async fn act(&self, _: &crate::updates::model::Act) -> Result<crate::updates::model::Fact, CallError> {
        Err(read_only())
    }
    fn time_left(&self) -> bool {
        self.0.time_left()
    }
}

const READ_ONLY: &str = "headgate:Write";

fn read_only() -> CallError {
    CallError::new(
        crate::error::Class::Refused,
        READ_ONLY,
        "ReadOnly",
        "this function only looks at updates",
    )
}

fn log(release: &str, k: &Known, inv: &Invocation) {
    tracing::info!(
        op = "check",
        release,
        check.state = k.judgement.state,
        wrote = k.wrote,
        "model check"
    );
    let age = k
        .check
        .as_ref()
        .filter(|_| k.judgement.state == "pending")
        .and_then(|c| c.started_at);
    let mut metrics = Vec::new();
    if let Some(t) = age {
        metrics.push(
            Metric::seconds("StateAgeSeconds", crate::time::seconds_between(t, inv.now))
                .by("of", "model_check"),
        );
    }
    telemetry::emit(&metrics, inv.now);
}
