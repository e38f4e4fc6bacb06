//! What people see of a check: the view of contract 4.4, setup checks, preflight. Pure.

use super::decide::CHECK_BOUND_S;
use super::model::{Check, State};
use super::run::Known;
use crate::error::{CallError, Class};
use crate::status::{Blocker, NeedsAdmin, Progress, Reason, Status};
use crate::time::{Timestamp, plus_seconds};
use crate::updates::decide;
use crate::updates::model::{StackRead, State as UpdateState};
use crate::updates::run::{self, Reconciled};
use crate::updates::view as updates_view;
use serde_json::{Value, json};

/// STATUS of a check.
pub fn status(release: &str, k: &Known, now: Timestamp) -> Status {
    let c = k.check.as_ref();
    let word = k.judgement.state;
    let pending = word == "pending";
    let shown = c.filter(|_| word != "not_started");
    let reason = shown.and_then(|c| c.reason.clone()).filter(|_| !pending);
    let step = shown
        .and_then(|c| c.step.clone())
        .unwrap_or_else(|| "SUBMITTED".into());
    let why = reason
        .as_ref()
        .map(|r| format!(": {}", r.text.trim_end_matches('.')))
        .unwrap_or_default();
    let (label, summary) = match word {
        "pending" => (
            "Checking",
            format!("The release check of {release} is running ({step})."),
        ),
        "passed" => ("Passed", format!("Release {release} may run here.")),
        "failed" => ("Failed", format!("Release {release} may not run here{why}.")),
        "stalled" => (
            "Stalled",
            format!("The release check of {release} has stalled{why}. Start it again."),
        ),
        _ => (
            "Not started",
            format!("No release check of {release} has been started."),
        ),
    };
    Status {
        state: word.to_owned(),
        label: label.to_owned(),
        summary,
        reason,
        needs_admin: shown.and_then(|c| c.needs_admin.clone()).filter(|_| !pending),
        since: shown.and_then(|c| if pending { c.started_at } else { c.checked_at }),
        observed_at: if pending && k.judgement.asked {
            Some(now)
        } else {
            shown.and_then(|c| c.checked_at)
        },
        stale_after: shown
            .filter(|_| pending)
            .and_then(|c| c.started_at)
            .map(|t| plus_seconds(t, CHECK_BOUND_S)),
        source: if pending && k.judgement.asked {
            "codebuild"
        } else {
            "stored"
        }
        .to_owned(),
        progress: pending.then(|| Progress::step(&step)),
        flags: k.judgement.flags.clone(),
    }
}

/// The view of `GET /model-check`.
pub fn check(release: &str, k: &Known, now: Timestamp) -> Value {
    let c = k.check.as_ref();
    json!({
        "release": release,
        "state": k.judgement.state,
        "attempt": c.map_or(0, |c| c.attempt),
        "build_id": c.and_then(|c| c.build_id.clone()),
        "build_status": c.and_then(|c| c.build_status.clone()),
        "started_at": c.and_then(|c| c.started_at),
        "checked_at": c.and_then(|c| c.checked_at),
        "models": c.map(|c| c.models.clone()).unwrap_or_default(),
        "status": status(release, k, now),
    })
}

/// The blocker a check puts before an update, if it holds it.
pub fn blocker(release: &str, k: &Known) -> Option<Blocker> {
    let c = k.check.as_ref();
    let reason = c
        .and_then(|c| c.reason.as_ref())
        .map(|r| r.text.as_str())
        .unwrap_or("no reason is known");
    let (code, text, since) = match k.judgement.state {
        "passed" => return None,
        "pending" => (
            "model_check_pending",
            format!("The release check of {release} is still running."),
            c.and_then(|c| c.started_at),
        ),
        "failed" => (
            "model_check_failed",
            format!("The model check of {release} said no: {reason}."),
            c.and_then(|c| c.checked_at),
        ),
        "stalled" => (
            "model_check_stalled",
            format!("The release check of {release} has stalled: {reason}. Start it again."),
            c.and_then(|c| c.checked_at),
        ),
        _ => (
            "model_check_not_started",
            format!("No release check of {release} has been started."),
            None,
        ),
    };
    let needs_admin = c
        .and_then(|c| c.needs_admin.clone())
        .filter(|_| k.judgement.state == "stalled");
    Some(Blocker {
        code: code.into(),
        text,
        needs_admin,
        since,
    })
}

/// One line of the setup page.
fn line(
    id: &str,
    level: &str,
    summary: String,
    reason: Option<Reason>,
    needs_admin: Option<NeedsAdmin>,
) -> Value {
    json!({"id": id, "level": level, "summary": summary, "reason": reason, "needs_admin": needs_admin})
}

fn failed_line(id: &str, e: &CallError, what: &str) -> Value {
    let needs_admin = (e.class == Class::Denied).then(|| decide::permission(e));
    let reason = Reason::new(&e.code, crate::updates::cause::clean(&e.message));
    line(
        id,
        if e.passing() { "warning" } else { "error" },
        format!("{what} ({} answered {}).", e.action, e.code),
        Some(reason),
        needs_admin,
    )
}

/// `GET /setup-checks`: a plain list a person can act on.
pub fn setup(
    r: &Reconciled,
    project: &Result<bool, CallError>,
    probes: &[CallError],
    check: Option<(&str, &Known)>,
) -> Value {
    let stack = match &r.observed.stack {
        Some(StackRead::Seen(s)) => match run::stack_blocker(
            &r.observed,
            updates_view::pending(r).is_some_and(|u| u.status == UpdateState::Applying),
        ) {
            None => line("stack", "ok", format!("The stack is {}.", s.status), None, None),
            Some(b) => {
                let level = if b.code == "stack_busy" {
                    "warning"
                } else {
                    "error"
                };
                line(
                    "stack",
                    level,
                    b.text.clone(),
                    Some(Reason::new(&b.code, b.text)),
                    b.needs_admin,
                )
            }
        },
        Some(StackRead::Failed(e)) => failed_line("stack", e, "The stack can not be read"),
        _ => match run::stack_blocker(&r.observed, false) {
            Some(b) => line(
                "stack",
                "error",
                b.text.clone(),
                Some(Reason::new(&b.code, b.text)),
                b.needs_admin,
            ),
            None => line("stack", "error", "The stack was not read.".into(), None, None),
        },
    };
    let mut denied: Vec<String> = probes
        .iter()
        .filter(|e| e.class == Class::Denied)
        .map(|e| e.action.clone())
        .collect();
    denied.sort();
    denied.dedup();
    let permissions = match denied.as_slice() {
        [] => line(
            "permissions",
            "ok",
            "Every call that was tried is allowed.".into(),
            None,
            None,
        ),
        list => {
            let text = format!("Headgate may not call {}.", list.join(", "));
            let admin = NeedsAdmin::new(
                "grant_permission",
                format!("Grant {} to Headgate's roles.", list.join(", ")),
                None,
            );
            line(
                "permissions",
                "error",
                text.clone(),
                Some(Reason::new("access_denied", text)),
                Some(admin),
            )
        }
    };
    let releases = match &r.observed.releases {
        Some(Ok(list)) => line(
            "releases",
            "ok",
            format!("{} releases are listed.", list.releases.len()),
            None,
            None,
        ),
        Some(Err(e)) => {
            let b = run::releases_unreadable(e);
            line(
                "releases",
                "error",
                b.text.clone(),
                Some(Reason::new(&b.code, b.text)),
                b.needs_admin,
            )
        }
        None => line(
            "releases",
            "warning",
            "The release list was not read.".into(),
            None,
            None,
        ),
    };
    let project = match project {
        Ok(true) => line(
            "release_check_project",
            "ok",
            "The CodeBuild project is there.".into(),
            None,
            None,
        ),
        Ok(false) => {
            let admin = NeedsAdmin::new("restore_check_project", "Deploy Headgate's stack again.", None);
            let text = "The CodeBuild project of the release check is missing.".to_owned();
            line(
                "release_check_project",
                "error",
                text.clone(),
                Some(Reason::new("project_missing", text)),
                Some(admin),
            )
        }
        Err(e) => failed_line(
            "release_check_project",
            e,
            "The CodeBuild project can not be read",
        ),
    };
    let model = match check {
        None => line(
            "model_check",
            "ok",
            "No newer release needs a check.".into(),
            None,
            None,
        ),
        Some((release, k)) => {
            let c = k.check.as_ref();
            let reason = c.and_then(|c| c.reason.clone());
            let summary = match k.judgement.state {
                "passed" => format!("Release {release} passed its check."),
                "pending" => format!("The release check of {release} is running."),
                "failed" => format!("The model check of {release} said no."),
                "stalled" => format!("The release check of {release} has stalled; start it again."),
                _ => format!("The release check of {release} was not started yet."),
            };
            // A stalled check is a warning in setup and a blocker in the preflight (2.5).
            let level = if matches!(k.judgement.state, "stalled" | "failed") {
                "warning"
            } else {
                "ok"
            };
            let reason = reason.filter(|_| level == "warning");
            line(
                "model_check",
                level,
                summary,
                reason,
                c.and_then(|c| c.needs_admin.clone()),
            )
        }
    };
    json!({"checks": [stack, permissions, releases, project, model]})
}

/// `GET /preflight`: everything that holds an update to this release, and nothing else.
pub fn preflight(release: &str, r: &Reconciled, k: &Known, now: Timestamp) -> Value {
    let mut blockers: Vec<Blocker> = Vec::new();
    let mut warnings: Vec<Value> = Vec::new();
    let open = updates_view::pending(r);
    let running = open.is_some_and(|u| u.status == UpdateState::Applying);
    blockers.extend(run::stack_blocker(&r.observed, running));
    if let Some(u) = open {
        let (code, word) = match u.status {
            UpdateState::Applying => ("update_applying", "is being applied"),
            UpdateState::Preparing => ("update_preparing", "is still being prepared"),
            _ => ("", ""),
        };
        // Its own preparation is no obstacle to the release that is being prepared.
        let own = crate::release::same(&u.to_release, release) && code == "update_preparing";
        if !code.is_empty() && !own {
            blockers.push(Blocker {
                code: code.into(),
                text: format!("The update to {} {word}.", u.to_release),
                needs_admin: None,
                since: Some(u.applied_at.filter(|_| running).unwrap_or(u.started_at)),
            });
        }
        if let Some(s) = u
            .summary
            .as_ref()
            .filter(|s| !s.data_loss.is_empty() && crate::release::same(&u.to_release, release))
        {
            let text = format!("The update would delete the data of {}.", s.data_loss.join(", "));
            warnings.push(json!({"code": "data_loss", "text": text}));
        }
    }
    let current = r
        .observed
        .stack
        .as_ref()
        .and_then(StackRead::seen)
        .and_then(|s| s.version());
    match &r.observed.releases {
        Some(Ok(list)) => {
            if let (Some(v), Some(l)) = (current, list.find(release)) {
                blockers.extend(run::release_blocker(list, v, l));
            }
        }
        Some(Err(e)) => blockers.push(run::releases_unreadable(e)),
        None => {}
    }
    blockers.extend(blocker(release, k));
    for f in k.judgement.flags.iter().chain(r.flags.iter()) {
        warnings.push(json!({"code": f.code, "text": f.text}));
    }
    let _ = now;
    json!({"release": release, "ready": blockers.is_empty(), "blockers": blockers, "warnings": warnings})
}

/// The state word of a stored record, for a log line.
pub fn word(c: Option<&Check>) -> &str {
    c.map_or("not_started", |c| match &c.state {
        State::Unknown(w) => w,
        known => known.as_str(),
    })
}
