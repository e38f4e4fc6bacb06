//! What people see: UPDATE and STATUS of contract 4.1 and 4.3. Pure.

use super::decide::{self, Observed, Shown, Snapshot};
use super::model::*;
use super::run::{self, Reconciled};
use super::{plan, tables};
use crate::release;
use crate::status::{Blocker, Flag, Status};
use crate::time::{Timestamp, plus_seconds};
use serde_json::{Map, Value, json};

/// Answers older than this should not be believed any more, in seconds (spec/updates.md, status table).
const STALE_S: i64 = 30 * 60;

/// The status of one update.
pub fn status(u: &Update, shown: &Shown, extra: &[Flag], now: Timestamp) -> Status {
    let word = shown.overlay.unwrap_or(u.status.as_str()).to_owned();
    let open = u.status.is_open();
    let observed_at = if shown.unread || !open {
        u.observed_at
    } else {
        Some(now)
    };
    let since = match word.as_str() {
        "preparing" => Some(u.started_at),
        "stalled" => Some(plus_seconds(u.started_at, decide::PREPARING_BOUND_S)),
        "prepared" => u.change_set_created_at.or(Some(u.started_at)),
        "applying" => u.applied_at,
        "rolling_back" => shown.since.or(u.applied_at),
        _ => u.finished_at,
    };
    let stale_after = match word.as_str() {
        "preparing" => Some(plus_seconds(u.started_at, decide::PREPARING_BOUND_S)),
        _ if open => Some(plus_seconds(observed_at.unwrap_or(u.started_at), STALE_S)),
        _ => None,
    };
    let reason = shown.reason.clone().or_else(|| u.reason.clone());
    let progress = if open {
        shown.progress.clone().or_else(|| u.progress.clone())
    } else {
        None
    };
    let mut flags = shown.flags.clone();
    flags.extend(extra.iter().cloned());
    if matches!(u.status, State::Unknown(_)) {
        let mut f = Flag::new(
            "unrecognised",
            "This update has a state that this version does not know.",
        );
        f.raw = Some(u.status.as_str().to_owned());
        flags.push(f);
    }
    let source = if open && !shown.unread {
        "cloudformation"
    } else {
        "stored"
    };
    let label = match word.as_str() {
        "stalled" => "Stalled".to_owned(),
        "rolling_back" => "Rolling back".to_owned(),
        _ => u.status.label().to_owned(),
    };
    Status {
        summary: summary(
            u,
            &word,
            reason.as_ref().map(|r| r.text.as_str()),
            progress.as_ref(),
            shown.watching_minutes,
        ),
        state: word,
        label,
        reason,
        needs_admin: u.needs_admin.clone(),
        since,
        observed_at,
        stale_after,
        source: source.to_owned(),
        progress,
        flags,
    }
}

fn summary(
    u: &Update,
    word: &str,
    reason: Option<&str>,
    progress: Option<&crate::status::Progress>,
    watching: Option<u64>,
) -> String {
    let to = &u.to_release;
    let why = reason
        .map(|r| format!(": {}", r.trim_end_matches('.')))
        .unwrap_or_default();
    match word {
        "preparing" => format!("Preparing the update to {to}: CloudFormation is making the change set."),
        "stalled" => format!("Preparing the update to {to} takes too long{why}."),
        "prepared" => {
            let plan = u
                .summary
                .as_ref()
                .map_or_else(|| "no summary".to_owned(), plan::in_words);
            match u.reason_code() {
                Some("execute_not_started" | "execute_refused") => {
                    format!("The update to {to} waits for your OK again ({plan}){why}.")
                }
                _ => format!("The update to {to} waits for your OK: {plan}."),
            }
        }
        "applying" => {
            let step = progress.map_or("settling", |p| p.step.as_str());
            let (done, total) = (progress.and_then(|p| p.done), progress.and_then(|p| p.total));
            let count = match (done, total) {
                (Some(d), Some(t)) if t > 0 => format!(" {d} of {t} resources done."),
                _ => String::new(),
            };
            match (step, watching) {
                ("updating", Some(m)) if done.is_some() && done == total => {
                    format!(
                        "Updating to {to}:{count} CloudFormation watches the alarms for {m} minutes before it ends."
                    )
                }
                ("updating", _) => format!(
                    "Updating to {to}:{}",
                    if count.is_empty() {
                        " started.".into()
                    } else {
                        count
                    }
                ),
                ("cleaning_up", _) => {
                    format!("{to} is live; CloudFormation is removing what is no longer needed.")
                }
                ("stack_deleting", _) => "The stack is being deleted.".to_owned(),
                ("installing", _) => format!("Installing {to}:{count}"),
                _ => format!("The update to {to} was started; waiting for CloudFormation to show it."),
            }
        }
        "rolling_back" => format!("The update to {to} failed and is being rolled back{why}."),
        "updated" => format!("Updated to {to}."),
        "rolled_back" => format!("The update to {to} was rolled back{why}."),
        "failed" => format!("The update to {to} failed{why}."),
        "superseded" => format!("The update to {to} was replaced by a newer one before it ran."),
        "discarded" => format!("The update to {to} was discarded{why}."),
        "expired" => format!("The plan for {to} is no longer valid{why}."),
        other => format!("The update to {to} is {other}."),
    }
}

/// How a row is shown, given what was observed.
pub fn shown(s: &Snapshot, o: &Observed, u: &Update, now: Timestamp) -> Shown {
    if s.foreign().is_some() {
        return Shown {
            unread: true,
            ..Shown::default()
        };
    }
    let a = decide::assess(u, &decide::context(s, o, u, now));
    match a.verdict {
        decide::Verdict::Stay => a.shown,
        // What was decided could not be written or was written by somebody else: show what is stored.
        _ => Shown {
            flags: a.shown.flags,
            unread: true,
            progress: u.progress.clone(),
            ..Shown::default()
        },
    }
}

/// The region in an ARN.
fn region(arn: &str) -> Option<&str> {
    arn.split(':').nth(3).filter(|r| !r.is_empty())
}

fn encode(s: &str) -> String {
    use std::fmt::Write;
    s.bytes().fold(String::new(), |mut out, b| {
        if b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(b));
        } else {
            let _ = write!(out, "%{b:02X}");
        }
        out
    })
}

/// Where to see it in the AWS console: the change set while it waits, the stack's events otherwise.
fn console(u: &Update, stack_arn: Option<&str>) -> Option<String> {
    let stack = stack_arn?;
    let region = region(stack)?;
    let base = format!("https://{region}.console.aws.amazon.com/cloudformation/home?region={region}#/stacks");
    let id = encode(stack);
    Some(match (&u.status, &u.change_set_id) {
        (State::Preparing | State::Prepared, Some(set)) => {
            format!(
                "{base}/changesets/changes?stackId={id}&changeSetId={}",
                encode(set)
            )
        }
        _ => format!("{base}/events?stackId={id}"),
    })
}

/// UPDATE (contract 4.3).
pub fn update(u: &Update, status: &Status, stack_arn: Option<&str>) -> Map<String, Value> {
    let set =
        json!({"name": u.change_set_name, "arn": u.change_set_id, "created_at": u.change_set_created_at});
    let v = json!({
        "id": u.id,
        "seq": u.seq,
        "state": u.status.as_str(),
        "status": status,
        "from_release": u.from_release,
        "to_release": u.to_release,
        "started_by": u.started_by,
        "started_at": u.started_at,
        "applied_by": u.applied_by,
        "applied_at": u.applied_at,
        "finished_at": u.finished_at,
        "superseded_by": u.superseded_by,
        "change_set": set,
        "summary": u.summary,
        "model_check": u.model_check,
        "reason": status.reason,
        "needs_admin": status.needs_admin,
        "warnings": u.warnings,
        "links": {"console": console(u, stack_arn)},
    });
    match v {
        Value::Object(m) => m,
        _ => Map::new(),
    }
}

/// UPDATE of one row after a reconcile.
pub fn update_of(r: &Reconciled, u: &Update, now: Timestamp) -> Map<String, Value> {
    let sh = shown(&r.snapshot, &r.observed, u, now);
    let extra: &[Flag] = if u.status.is_open() { &r.flags } else { &[] };
    let mut st = status(u, &sh, extra, now);
    // Progress and the cause come from the events: say why they are missing.
    if let Some(e) = &r.observed.events_error
        && (u.status == State::Applying || u.reason_pending)
    {
        st.flags.push(decide::read_flag(e));
    }
    if let Some(intent) = newer_intent(&r.snapshot, u) {
        let mut f = Flag::new(
            "newer_preparing",
            format!("A newer update, to {}, is being prepared.", intent.to_release),
        );
        f.since = Some(intent.started_at);
        st.flags.push(f);
    }
    update(u, &st, stack_arn(r))
}

fn newer_intent<'a>(s: &'a Snapshot, u: &Update) -> Option<&'a Update> {
    u.status
        .is_open()
        .then(|| s.open().find(|n| n.seq > u.seq && n.change_set_id.is_none()))?
}

/// The stack's ARN as known.
pub fn stack_arn(r: &Reconciled) -> Option<&str> {
    let seen = r
        .observed
        .stack
        .as_ref()
        .and_then(StackRead::seen)
        .map(|s| s.arn.as_str());
    r.snapshot.head.row.stack_arn.as_deref().or(seen)
}

/// `changes` of GET /updates/{id} (contract 4.3.1).
pub fn changes(cs: &ChangeSet) -> Value {
    let list: Vec<Value> = cs
        .changes
        .iter()
        .map(|c| {
            json!({
                "logical_id": c.logical_id, "type": c.kind, "action": c.action, "replacement": c.replacement,
                "policy_action": c.policy_action, "data_bearing": plan::is_data_bearing(&c.kind), "details": c.details,
            })
        })
        .collect();
    Value::Array(list)
}

/// The open update shown as the pending one.
pub fn pending(r: &Reconciled) -> Option<&Update> {
    r.snapshot
        .foreign()
        .or_else(|| decide::pending(&r.snapshot, &r.observed))
}

/// GET /version.
pub fn version(r: &Reconciled, configured: &str, now: Timestamp) -> Value {
    let stack = r.observed.stack.as_ref().and_then(StackRead::seen);
    let open = pending(r);
    let shown_update = open.or_else(|| r.snapshot.newest());
    let update_json = shown_update.map(|u| Value::Object(update_of(r, u, now)));
    let running = open.is_some_and(|u| u.status == State::Applying);
    let mut blockers: Vec<Blocker> = run::stack_blocker(&r.observed, running).into_iter().collect();
    let mut latest = Value::Null;
    match &r.observed.releases {
        Some(Ok(list)) => {
            if let Some(l) = list.latest() {
                latest = serde_json::to_value(l).unwrap_or(Value::Null);
                let b = stack
                    .and_then(Stack::version)
                    .and_then(|v| run::release_blocker(list, v, l));
                blockers.extend(b.filter(|b| b.code != "release_installed"));
            }
        }
        Some(Err(_)) => blockers.push(run::releases_blocker(&r.observed)),
        None => {}
    }
    if let Some(u) = open
        && matches!(u.status, State::Applying | State::Preparing)
    {
        let (code, word) = if running {
            ("update_applying", "being applied")
        } else {
            ("update_preparing", "being prepared")
        };
        blockers.push(Blocker {
            code: code.into(),
            text: format!("The update to {} is {word}.", u.to_release),
            needs_admin: None,
            since: Some(u.applied_at.filter(|_| running).unwrap_or(u.started_at)),
        });
    }
    let status = match (open, r.snapshot.newest()) {
        (Some(u), _) => update_json
            .as_ref()
            .and_then(|v| v.get("status"))
            .cloned()
            .unwrap_or_else(|| json!(idle(r, Some(u), now))),
        (None, Some(u)) if matches!(u.status, State::Updated | State::RolledBack | State::Failed) => {
            let extra: Vec<Flag> = stack_flags(r);
            json!(self::status(u, &Shown::default(), &extra, now))
        }
        (None, newest) => json!(idle(r, newest, now)),
    };
    let arn = stack_arn(r);
    json!({
        "installation": {
            "stack": crate::config::stack_name(configured), "stack_arn": arn, "region": arn.and_then(region),
        },
        "current": {
            "release": stack.and_then(Stack::version),
            "stack_status": stack.map(|s| s.status.clone()),
            "observed_at": stack.map(|_| now),
        },
        "latest": latest,
        "update": update_json,
        "status": status,
        "blockers": blockers,
    })
}

fn stack_flags(r: &Reconciled) -> Vec<Flag> {
    let mut flags = r.flags.clone();
    match &r.observed.stack {
        Some(StackRead::Failed(e)) => flags.push(decide::read_flag(e)),
        Some(StackRead::Missing) => {
            flags.push(Flag::new(
                "stack_not_seen",
                "CloudFormation does not find the stack.",
            ));
        }
        Some(StackRead::Seen(s))
            if tables::cell(&s.status, tables::Column::Running) == tables::Cell::Unknown =>
        {
            let mut f = Flag::new(
                "unrecognised",
                "CloudFormation reports a stack status that this version does not know.",
            );
            f.raw = Some(s.status.clone());
            flags.push(f);
        }
        _ => {}
    }
    flags
}

fn idle(r: &Reconciled, newest: Option<&Update>, now: Timestamp) -> Status {
    let stack = r.observed.stack.as_ref().and_then(StackRead::seen);
    let observed_at = stack.map(|_| now);
    let at = match stack.and_then(Stack::version) {
        Some(v) => format!("No update is pending; release {v} is installed."),
        None => "No update is pending.".to_owned(),
    };
    Status {
        state: "idle".into(),
        label: "Idle".into(),
        summary: at,
        reason: None,
        needs_admin: None,
        since: newest.and_then(|u| u.finished_at),
        observed_at,
        stale_after: observed_at.map(|t| plus_seconds(t, STALE_S)),
        source: if stack.is_some() {
            "cloudformation"
        } else {
            "stored"
        }
        .into(),
        progress: None,
        flags: stack_flags(r),
    }
}

/// history_view: any row still open that is not the pending one is shown as superseded. View only. Which one is
/// pending is told as a reconcile would tell it, so that history never says the opposite of `GET /version`
/// while the pointer waits for its repair (T10, T12).
pub fn history(rows: &[&Update], head: &Head, now: Timestamp) -> Vec<Value> {
    let open = || rows.iter().filter(|u| u.status.is_open());
    let pending = open()
        .find(|u| u.status == State::Applying)
        .or_else(|| open().find(|u| u.change_set_id.is_some()))
        .map(|u| u.id.as_str())
        .or(head.pending.as_deref())
        .or_else(|| open().next().map(|u| u.id.as_str()));
    rows.iter()
        .map(|u| {
            let mut u = (*u).clone();
            if u.status.is_open() && pending.is_some_and(|p| p != u.id) {
                u.superseded_by = pending.map(str::to_owned);
                u.status = State::Superseded;
            }
            let sh = Shown {
                unread: true,
                progress: u.progress.clone(),
                ..Shown::default()
            };
            let st = status(&u, &sh, &[], now);
            Value::Object(update(&u, &st, head.stack_arn.as_deref()))
        })
        .collect()
}

/// What a poll answers: the state of the install and whether it wrote.
pub fn poll(r: &Reconciled) -> Value {
    let state = match (pending(r), r.snapshot.newest()) {
        (Some(u), _) => u.status.as_str().to_owned(),
        (None, Some(u)) if matches!(u.status, State::Updated | State::RolledBack | State::Failed) => {
            u.status.as_str().to_owned()
        }
        _ => "idle".to_owned(),
    };
    json!({"state": state, "wrote": r.wrote > 0})
}

/// Does the release list name a newer release than the one installed?
pub fn is_newer(current: &str, listed: &str) -> bool {
    release::compare(listed, current) == Some(std::cmp::Ordering::Greater)
}
