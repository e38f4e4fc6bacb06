//! The triggers of the function: a Step Functions task and the routes of contract 4.6.

use serde_json::{Map, Value, json};

use super::phase::Phase;
use super::run::{self, Answered, Call, GateError, Objects, World};
use super::store::{self, Run};
use crate::caller::{Caller, Scope};
use crate::config::{ConfigError, RebuildGate, S3Uri};
use crate::error::Failure;
use crate::http::{Problem, Request, Response, invalid, not_found, wrong_method};
use crate::status::{NeedsAdmin, Progress, Reason, Status};
use crate::store::Table;
use crate::telemetry::{self, Metric};
use crate::time::Timestamp;
use crate::trigger::{self, Shape};

/// Answers an invocation.
///
/// # Errors
/// The task's error types `Gate.BadInput` and `Gate.Unavailable`, or `Headgate.UnknownEvent`.
pub async fn handle<T: Table, O: Objects>(
    world: &World<'_, T, O>,
    cfg: &RebuildGate,
    now: Timestamp,
    event: &Value,
) -> Result<Value, Failure> {
    match trigger::shape(event, Some("phase"))? {
        Shape::Http => Ok(respond(world, cfg, now, event).await.to_event()),
        Shape::Task => {
            let body = event.as_object().cloned().unwrap_or_default();
            let call = Call::read(&body, world.bucket).map_err(|e| e.failure())?;
            let verdict = run::gate(world, &call, "step-functions", now)
                .await
                .map_err(|e| e.failure())?;
            log(&verdict);
            serde_json::to_value(&verdict).map_err(|e| Failure::new("Gate.Unavailable", e.to_string()))
        }
        Shape::Event { .. } => Err(trigger::unknown("it takes no events from the bus")),
    }
}

/// Answers every invocation when a variable is missing or malformed.
///
/// # Errors
/// For a task: `Gate.Unavailable` with the text.
pub fn misconfigured(error: &ConfigError, event: &Value) -> Result<Value, Failure> {
    if let Ok(Shape::Http) = trigger::shape(event, Some("phase")) {
        let detail = format!("{error} Nothing was done; an admin must correct the function's environment.");
        let problem = Problem::new(500, "configuration_error", "Headgate is not configured", detail);
        return Ok(Response::from(problem).finish_unread(event).to_event());
    }
    Err(Failure::new(
        "Gate.Unavailable",
        format!("configuration_error: {error}"),
    ))
}

fn log(verdict: &super::Verdict) {
    let metric = Metric::count("GateVerdicts", 1.0)
        .by("phase", &verdict.phase)
        .by("verdict", verdict.verdict.as_str());
    telemetry::emit(&[metric], verdict.checked_at);
    let codes: Vec<&str> = verdict.failures.iter().map(|f| f.code).collect();
    tracing::info!(
        run = verdict.run_id.as_deref(),
        phase = verdict.phase,
        direction = verdict.direction,
        verdict = verdict.verdict.as_str(),
        codes = codes.join(","),
        "gate"
    );
}

async fn respond<T: Table, O: Objects>(
    world: &World<'_, T, O>,
    cfg: &RebuildGate,
    now: Timestamp,
    event: &Value,
) -> Response {
    let request = match Request::parse(event) {
        Ok(request) => request,
        Err(text) => return invalid(&[("request", &text)]).finish_unread(event),
    };
    let answer = match request.caller(cfg.auth_is_local) {
        Err(refused) => refused,
        Ok(caller) => route(world, &request, &caller, now).await,
    };
    answer.finish(&request)
}

async fn route<T: Table, O: Objects>(
    world: &World<'_, T, O>,
    request: &Request,
    caller: &Caller,
    now: Timestamp,
) -> Response {
    let segments = request.segments();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let scope = if request.method == "GET" {
        Scope::Read
    } else {
        Scope::Write
    };
    if let Err(refused) = caller.require(scope) {
        return refused.into();
    }
    match (segments.as_slice(), request.method.as_str()) {
        (["rebuilds", run, ..], _) if !run::is_run_id(run) => not_found("rebuild of that id"),
        (["rebuilds", run, "gates", phase], "POST") => gate(world, request, caller, (run, phase), now).await,
        (["rebuilds", _, "gates", _], _) => wrong_method("POST"),
        (["rebuilds", run], "GET") => timeline(world, run, now).await,
        (["rebuilds", _], _) => wrong_method("GET"),
        (["rebuilds", run, "report"], "GET") => report(world, run).await,
        (["rebuilds", _, "report"], _) => wrong_method("GET"),
        (["rebuilds", run, "answers"], "POST") => answers(world, request, caller, run, now).await,
        (["rebuilds", _, "answers"], _) => wrong_method("POST"),
        _ => not_found("route"),
    }
}

fn refusal(error: &GateError) -> Response {
    match error {
        GateError::BadInput(faults) => {
            let faults: Vec<(&str, &str)> = faults.iter().map(|(f, t)| (f.as_str(), t.as_str())).collect();
            invalid(&faults)
        }
        GateError::Unavailable(e) => Problem::aws_unavailable(e, "The gate could not be judged").into(),
    }
}

async fn gate<T: Table, O: Objects>(
    world: &World<'_, T, O>,
    request: &Request,
    caller: &Caller,
    (run_id, phase): (&str, &str),
    now: Timestamp,
) -> Response {
    let mut body: Map<String, Value> = match request.json_object() {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    // The path says run and phase; a body that says others was meant for another address.
    for (key, value) in [("run_id", run_id), ("phase", phase)] {
        match body.get(key).and_then(Value::as_str) {
            Some(given) if given != value => return invalid(&[(key, "differs from the one in the path")]),
            _ => {
                body.insert(key.to_owned(), json!(value));
            }
        }
    }
    let judged = match Call::read(&body, world.bucket) {
        Ok(call) => run::gate(world, &call, caller.actor(), now).await,
        Err(error) => Err(error),
    };
    match judged {
        Ok(verdict) => {
            log(&verdict);
            Response::json(200, &serde_json::to_value(&verdict).unwrap_or(Value::Null))
        }
        Err(error) => refusal(&error),
    }
}

async fn answers<T: Table, O: Objects>(
    world: &World<'_, T, O>,
    request: &Request,
    caller: &Caller,
    run_id: &str,
    now: Timestamp,
) -> Response {
    let body = match request.json_object() {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    match run::answer(world, run_id, &body, caller.actor(), now).await {
        Ok(Answered::Recorded(answer)) => Response::json(201, &answer),
        Ok(Answered::NoRun) => not_found("rebuild of that id"),
        Ok(Answered::NothingShown) => Problem::new(
            409,
            "nothing_shown",
            "There is nothing to answer yet",
            "The request count has not been shown in this run. Ask the gate rolled-back first, then answer.",
        )
        .into(),
        Ok(Answered::Stale(shown)) => Problem::new(
            409,
            "answer_stale",
            "The figures have changed",
            "The count you saw is not the last one shown. Look at the current figures and answer again.",
        )
        .with("shown", shown)
        .into(),
        Err(error) => refusal(&error),
    }
}

async fn report<T: Table, O: Objects>(world: &World<'_, T, O>, run_id: &str) -> Response {
    let found = match store::load(world.table, run_id).await {
        Ok(found) => found,
        Err(e) => return Problem::aws_unavailable(&e, "The report could not be read").into(),
    };
    let last = found.and_then(|run| {
        let key = run.row.transition.clone()?;
        run.row
            .verdicts
            .get(&key)?
            .get("report")?
            .as_str()
            .and_then(S3Uri::parse)
    });
    let Some(at) = last else {
        return not_found("report of that rebuild");
    };
    match world.objects.get(&at, None).await {
        Ok(Some(bytes)) => {
            let mut response =
                Response::json(200, &Value::Null).header("content-type", "text/markdown; charset=utf-8");
            response.body = String::from_utf8_lossy(&bytes).into_owned();
            response
        }
        Ok(None) => not_found("report of that rebuild"),
        Err(e) => Problem::aws_unavailable(&e, "The report could not be read").into(),
    }
}

async fn timeline<T: Table, O: Objects>(world: &World<'_, T, O>, run_id: &str, now: Timestamp) -> Response {
    let found = async {
        let run = store::load(world.table, run_id).await?;
        let gates = store::gates(world.table, run_id).await?;
        Ok::<_, crate::error::CallError>((run, gates))
    };
    match found.await {
        Ok((Some(run), gates)) => Response::json(200, &view(&run.row, &gates, now)),
        Ok((None, _)) => not_found("rebuild of that id"),
        Err(e) => Problem::aws_unavailable(&e, "The run could not be read").into(),
    }
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value.get(key).and_then(Value::as_str).unwrap_or("")
}

/// The phases between which a conversion is open (ORD-6).
fn open_step(run: &Run) -> Option<&'static str> {
    let at = |key: &str| {
        run.verdicts
            .get(key)
            .filter(|v| text(v, "verdict") == "PASS")
            .map(|v| text(v, "checked_at").to_owned())
    };
    for (batch, import, next) in [
        ("dns-batch:convert", "import:7a", "import 7a"),
        (
            "dns-batch:revert rollback",
            "import:7a-revert",
            "import 7a-revert",
        ),
    ] {
        if let Some(opened) = at(batch)
            && at(import).is_none_or(|closed| closed < opened)
        {
            return Some(next);
        }
    }
    None
}

/// The answer of `GET /rebuilds/{run}`.
pub(crate) fn view(run: &Run, gates: &[Value], now: Timestamp) -> Value {
    json!({
        "run_id": run.run_id, "account": run.account, "region": run.region, "host": run.host, "new_host": run.new_host,
        "manifest_sha256": run.manifest_sha256, "transition": run.transition, "open": open_step(run),
        "certificate": {"arn": run.certificate_arn, "window_closes_at": run.window_closes_at}, "started_at": run.started_at,
        "gates": run.verdicts, "answers": run.answers, "status": status(run, gates, now),
    })
}

/// The status of a run, by its last gate.
pub(crate) fn status(run: &Run, gates: &[Value], now: Timestamp) -> Status {
    let key = run.transition.as_deref().unwrap_or("");
    let last = run.verdicts.get(key).cloned().unwrap_or(Value::Null);
    let word = text(&last, "verdict").to_owned();
    let name = key.split([':', ' ']).next().unwrap_or("");
    let phase = Phase::parse(name);
    let codes = last
        .get("codes")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let first = codes.first().and_then(Value::as_str).unwrap_or("");
    let recovery = super::codes::recovery(first);
    let back =
        key.ends_with(" rollback") || matches!(phase, Some(Phase::RolledBack | Phase::RollbackRebuild));
    let destroyed = gates
        .iter()
        .position(|g| text(g, "phase") == "rollback-rebuild" && text(g, "verdict") == "PASS");
    let emptied = destroyed.is_some_and(|at| {
        gates
            .iter()
            .skip(at + 1)
            .any(|g| g.get("facts").and_then(|f| f.get("infra_rebuild_empty")) == Some(&json!(true)))
    });
    let state = if emptied {
        "rolled_back"
    } else if phase == Some(Phase::Steady) && word == "PASS" && !key.ends_with("m5a") {
        "done"
    } else if back {
        "rolling_back"
    } else {
        match word.as_str() {
            "PASS" => "ready",
            "FAIL" => "blocked",
            "WAIT" => "waiting",
            "NEEDS_ANSWER" => "needs_answer",
            _ => "unknown",
        }
    };
    let next = if word == "PASS" {
        format!("{key} passed: take the step it allows.")
    } else {
        format!("{key}: {word}.")
    };
    let reason = (word != "PASS" && !first.is_empty()).then(|| Reason::new(first, recovery));
    let needs_admin = match state {
        "ready" => Some(NeedsAdmin::new("next_step", next.clone(), None)),
        "needs_answer" => Some(NeedsAdmin::new("answer", recovery, None)),
        "rolling_back" if word == "NEEDS_ANSWER" => Some(NeedsAdmin::new("answer", recovery, None)),
        "unknown" => Some(NeedsAdmin::new(first, recovery, None)),
        _ => None,
    };
    let time = |key: &str| text(&last, key).parse::<Timestamp>().ok();
    let finished = matches!(state, "done" | "rolled_back");
    let mut progress = Progress::step(key);
    progress.done = phase.map(|p| u64::from(p.runbook_step().saturating_sub(u8::from(word != "PASS"))));
    progress.total = Some(12);
    let _ = now;
    Status {
        state: state.into(),
        label: label(state).into(),
        summary: next,
        reason,
        needs_admin,
        since: time("since"),
        observed_at: time("checked_at"),
        stale_after: if finished { None } else { time("expires_at") },
        source: "stored".into(),
        progress: Some(progress),
        flags: Vec::new(),
    }
}

fn label(state: &str) -> &'static str {
    match state {
        "ready" => "Ready",
        "blocked" => "Blocked",
        "waiting" => "Waiting",
        "needs_answer" => "Needs an answer",
        "rolling_back" => "Rolling back",
        "done" => "Done",
        "rolled_back" => "Rolled back",
        _ => "Unknown",
    }
}
