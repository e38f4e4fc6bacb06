//! The rules of spec/updates.md 2.3 and 2.4, in their order. Pure.

use super::model::{Check, Model, Report, State};
use crate::error::{CallError, Class};
use crate::release::{Listed, same};
use crate::status::{Flag, NeedsAdmin, Reason, read_flag};
use crate::time::{Timestamp, older_than};
use crate::updates::model::{Build, BuildRead};

/// After this a check is stalled, in seconds; exactly 30:00 is still pending. Counted from the check's start,
/// not the build's: a build can wait in QUEUED for hours.
pub const CHECK_BOUND_S: i64 = 30 * 60;
/// How long StartBuild's answer may be on its way, in seconds.
pub const START_BOUND_S: i64 = 120;

/// Everything a check is judged by. Read the build first and the report second (2.3): a build that reports in
/// its last seconds and then ends can then not be mistaken for one that never reported.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The stored check.
    pub check: Option<&'a Check>,
    /// The stored report.
    pub report: Option<&'a Report>,
    /// The build, if it was asked.
    pub build: Option<&'a BuildRead>,
    /// The release's entry in the list; None: the list could not be read or does not name it.
    pub listed: Option<&'a Listed>,
    /// Models this install has configured.
    pub models: Option<&'a Result<Vec<String>, CallError>>,
    /// The moment of the call.
    pub now: Timestamp,
}

/// What is known of a check.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// `not_started` or the state's word.
    pub state: &'static str,
    /// The record as it shall be stored; None: nothing changed.
    pub next: Option<Check>,
    /// What is true beside it.
    pub flags: Vec<Flag>,
    /// Was the build asked with success?
    pub asked: bool,
}

fn word(s: &State) -> &'static str {
    match s {
        State::Pending => "pending",
        State::Passed => "passed",
        State::Failed => "failed",
        State::Stalled => "stalled",
        State::Unknown(_) => "not_started",
    }
}

/// Does this report count for the check? A failure of an older attempt does not; a pass of one does, for the
/// same release and digest (2.4).
pub fn counts(check: &Check, report: &Report, digest: Option<&str>) -> bool {
    if !same(&check.release, &report.release) || report.attempt > check.attempt {
        return false;
    }
    report.attempt == check.attempt
        || (report.verdict == "passed" && digest.is_some() && report.template_sha256.as_deref() == digest)
}

/// model_check_view (2.3).
pub fn judge(cx: &Context<'_>) -> Judgement {
    let mut flags = Vec::new();
    // 1.
    let Some(check) = cx.check else {
        return Judgement {
            state: "not_started",
            next: None,
            flags,
            asked: false,
        };
    };
    let listed_digest = cx.listed.map(|l| l.template_sha256.as_str());
    if let State::Unknown(raw) = &check.state {
        let mut f = Flag::new(
            "unrecognised",
            "This check has a state that this version does not know.",
        );
        f.raw = Some(raw.clone());
        return Judgement {
            state: "not_started",
            next: None,
            flags: vec![f],
            asked: false,
        };
    }
    // 2.
    if matches!(check.state, State::Passed | State::Failed) {
        let other = match (listed_digest, check.template_sha256.as_deref()) {
            (Some(l), Some(c)) => !l.eq_ignore_ascii_case(c),
            _ => false,
        };
        if other {
            // The release was published again with another template: what passed was something else.
            let text = "The template of this release has changed since it was checked; check it again.";
            return Judgement {
                state: "not_started",
                next: None,
                flags: vec![Flag::new("template_changed", text)],
                asked: false,
            };
        }
        return Judgement {
            state: word(&check.state),
            next: None,
            flags,
            asked: false,
        };
    }
    let report = cx.report.filter(|r| counts(check, r, listed_digest));
    if let Some(r) = report {
        match verdict(check, r, cx) {
            // 3 and 4.
            Ok(next) => return changed(check, next, flags, true),
            Err(f) => flags.push(f),
        }
    }
    if check.state == State::Stalled {
        return Judgement {
            state: "stalled",
            next: None,
            flags,
            asked: false,
        };
    }
    let waiting_for_verdict = report.is_some();
    match cx.build {
        Some(BuildRead::Seen(b)) if ended(b) && !waiting_for_verdict => {
            // 5.
            let mut text = format!("the release check build ended ({}) without reporting", b.status);
            if let Some(m) = &b.message {
                text = format!("{text}: {}", crate::updates::cause::clean(m));
            }
            let mut next = stalled(check, "build_ended", text, cx.now);
            next.build_status = Some(b.status.clone());
            next.step = Some(b.phase.clone());
            return changed(check, next, flags, true);
        }
        Some(BuildRead::NotFound) if check.build_id.is_some() && !waiting_for_verdict => {
            // 6.
            let text = "CodeBuild does not know the build of the release check any more".to_owned();
            return changed(
                check,
                stalled(check, "build_not_found", text, cx.now),
                flags,
                true,
            );
        }
        Some(BuildRead::NotFound)
            if check
                .started_at
                .is_none_or(|t| older_than(t, START_BOUND_S, cx.now))
                && !waiting_for_verdict =>
        {
            let text = "the release check was never started; start it again".to_owned();
            return changed(check, stalled(check, "start_lost", text, cx.now), flags, true);
        }
        Some(BuildRead::Failed(e)) => flags.push(read_flag(e)),
        _ => {}
    }
    let seen = match cx.build {
        Some(BuildRead::Seen(b)) => Some(b.as_ref()),
        _ => None,
    };
    // 7.
    if check
        .started_at
        .is_none_or(|t| older_than(t, CHECK_BOUND_S, cx.now))
    {
        let phase = seen
            .map(|b| b.phase.as_str())
            .or(check.step.as_deref())
            .unwrap_or("an unknown phase");
        let status = seen
            .map(|b| b.status.as_str())
            .or(check.build_status.as_deref())
            .unwrap_or("unknown");
        let text =
            format!("the release check has not answered for 30 minutes (last seen in {phase}, {status})");
        return changed(
            check,
            stalled(check, "older_than_30_minutes", text, cx.now),
            flags,
            seen.is_some(),
        );
    }
    // 8.
    let mut next = check.clone();
    if let Some(b) = seen {
        next.build_id = Some(b.id.clone());
        next.build_status = Some(b.status.clone());
        next.step = Some(b.phase.clone());
    }
    changed(check, next, flags, seen.is_some())
}

fn changed(old: &Check, next: Check, flags: Vec<Flag>, asked: bool) -> Judgement {
    let state = word(&next.state);
    Judgement {
        state,
        next: (next != *old).then_some(next),
        flags,
        asked,
    }
}

/// Has the build ended? Every final status of CodeBuild, and the separate flag (2.6).
pub fn ended(b: &Build) -> bool {
    b.complete
        || matches!(
            b.status.as_str(),
            "SUCCEEDED" | "FAILED" | "FAULT" | "TIMED_OUT" | "STOPPED"
        )
}

fn stalled(check: &Check, code: &str, text: String, now: Timestamp) -> Check {
    let mut next = check.clone();
    next.state = State::Stalled;
    next.checked_at = Some(now);
    next.reason = Some(Reason::new(code, text).from_source("codebuild"));
    next
}

/// The model check itself, on a report that counts: digest, then every configured model (2.4, contract 4.4).
fn verdict(check: &Check, r: &Report, cx: &Context<'_>) -> Result<Check, Flag> {
    let mut next = check.clone();
    next.models = r.models.clone();
    next.build_id = r.build_id.clone().or(next.build_id);
    if r.verdict != "passed" {
        let text = r
            .reason
            .as_ref()
            .map_or_else(|| "the release check failed".to_owned(), |x| x.text.clone());
        return Ok(Check {
            models: r.models.clone(),
            ..stalled(check, "release_check_failed", text, cx.now)
        });
    }
    let Some(listed) = cx.listed else {
        return Err(Flag::new(
            "stale_read",
            "The release list can not be read, so the report can not be judged yet.",
        ));
    };
    let models = match cx.models {
        Some(Ok(m)) => m,
        Some(Err(e)) => return Err(read_flag(e)),
        None => {
            return Err(Flag::new(
                "stale_read",
                "The configured models were not read, so the report waits.",
            ));
        }
    };
    next.checked_at = Some(cx.now);
    next.template_sha256 = Some(listed.template_sha256.clone());
    let reported = r.template_sha256.as_deref().unwrap_or("none");
    if !reported.eq_ignore_ascii_case(&listed.template_sha256) {
        let text = format!(
            "the check was of a template with digest {reported}, the release list names {}",
            listed.template_sha256
        );
        next.state = State::Failed;
        next.reason = Some(Reason::new("digest_differs", text).from_source("headgate"));
        return Ok(next);
    }
    let bad = refused_models(models, &r.models);
    if bad.is_empty() {
        next.state = State::Passed;
        next.reason = None;
        next.needs_admin = None;
    } else {
        next.state = State::Failed;
        let text = format!("these configured models do not keep working: {}", bad.join("; "));
        next.reason = Some(Reason::new("models_not_ok", text).from_source("headgate"));
    }
    Ok(next)
}

fn refused_models(configured: &[String], reported: &[Model]) -> Vec<String> {
    configured
        .iter()
        .filter_map(|id| match reported.iter().find(|m| m.id == *id) {
            None => Some(format!("{id} is not in the report")),
            Some(m) if m.ok => None,
            Some(m) => Some(format!("{id}: {}", m.reason.as_deref().unwrap_or("not ok"))),
        })
        .collect()
}

/// What start_verify does (2.4).
#[derive(Debug, Clone, PartialEq)]
pub enum Start {
    /// Passed already: nothing to do.
    Passed,
    /// A build runs and is younger than 30 minutes.
    Running,
    /// A new attempt; first stop the old build, if one may still run.
    New {
        /// The record to store before StartBuild.
        next: Box<Check>,
        /// Build to stop.
        stop: Option<String>,
    },
}

/// Decides on a start, after [`judge`] has brought the record up to date. A check whose verdict is no, or that
/// has stalled, starts a new attempt at once.
pub fn start(
    release: &str,
    check: Option<&Check>,
    j: &Judgement,
    build: Option<&BuildRead>,
    listed: &Listed,
    now: Timestamp,
) -> Start {
    match j.state {
        "passed" => return Start::Passed,
        "pending" => return Start::Running,
        _ => {}
    }
    let alive = match build {
        Some(BuildRead::Seen(b)) => !ended(b),
        // Not known to have ended: stopping an ended build is harmless.
        Some(BuildRead::Failed(_)) => true,
        Some(BuildRead::NotFound) | None => false,
    };
    let stop = check.filter(|_| alive).and_then(|c| c.build_id.clone());
    let attempt = check.map_or(0, |c| c.attempt) + 1;
    let base = check.cloned();
    let next = Check {
        release: release.to_owned(),
        state: State::Pending,
        attempt,
        build_id: None,
        build_status: None,
        step: None,
        started_at: Some(now),
        checked_at: None,
        template_sha256: Some(listed.template_sha256.clone()),
        models: Vec::new(),
        reason: None,
        needs_admin: None,
        rev: base.as_ref().map_or(0, |c| c.rev),
        last_write_id: None,
    };
    Start::New {
        next: Box::new(next),
        stop,
    }
}

/// The record after StartBuild was definitively refused: stalled, with AWS's words (2.3 item 1).
pub fn start_failed(check: &Check, e: &CallError, now: Timestamp) -> Check {
    let text = format!(
        "the release check could not be started ({}): {}",
        e.code,
        crate::updates::cause::clean(&e.message)
    );
    let mut next = stalled(check, "start_failed", text, now);
    if e.class == Class::Denied {
        next.needs_admin = Some(NeedsAdmin::new(
            "grant_permission",
            format!(
                "Grant {} to Headgate's role, then start the check again.",
                e.action
            ),
            None,
        ));
    } else if e.class == Class::NotFound || e.code == "ResourceNotFoundException" {
        next.needs_admin = Some(NeedsAdmin::new(
            "restore_check_project",
            "The CodeBuild project of the release check is missing. Deploy Headgate's stack again.",
            None,
        ));
    }
    next
}
