//! The rules of spec/updates.md 1.5, in order, and what to do next. Pure and total: no clock, no calls.
//!
//! [`next`] looks at what is stored and what was observed so far and names the single next step: something
//! to read, one conditional write, one delete, or nothing. The shell does that step, adds what it learned,
//! and asks again. So a crash anywhere is repaired by asking again, and nothing depends on how far the last
//! call got.

use super::cause::{self, Cause, EventsByStack, Operation};
use super::model::*;
use super::plan;
use super::tables::{self, Cell, Class, Column};
use crate::error::{CallError, Class as Failure};
use crate::release;
use crate::status::{Flag, NeedsAdmin, Progress, Reason};
use crate::store::{Versioned, ttl};
use crate::time::{Timestamp, older_than};
use std::collections::{BTreeMap, BTreeSet};

/// How long an execute may take to show, in seconds.
pub const EXECUTE_GRACE_S: i64 = 120;
/// After this, an update that is still being prepared is shown as stalled, in seconds.
pub const PREPARING_BOUND_S: i64 = 15 * 60;
/// How long a request to make a change set may be in flight, in seconds.
pub const INTENT_BOUND_S: i64 = 120;
/// Two misses of the stack must be this far apart to count, in seconds.
pub const SECOND_MISS_S: i64 = 60;
/// How long change set and stack may disagree before the stack is believed, in seconds.
pub const SETTLE_BOUND_S: i64 = 300;
/// How long rows are kept, in days.
pub const KEEP_DAYS: i64 = 400;
/// Clean-ups of closed rows per call.
const CLEANUPS_MAX: usize = 3;
/// Nested stacks whose events are read for one cause.
const CHILDREN_MAX: usize = 12;

/// The two wordings of a change set without changes (spec/updates.md 4.1 item 8). Text is all CloudFormation
/// gives here; both have a test.
const NO_CHANGES: [&str; 2] = [
    "The submitted information didn't contain changes",
    "No updates are to be performed",
];

/// What is stored: the head and the rows, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Head item; fresh when there is none.
    pub head: Versioned<Head>,
    /// Rows, newest first.
    pub rows: Vec<Versioned<Update>>,
}

impl Snapshot {
    /// Open rows, newest first.
    pub fn open(&self) -> impl Iterator<Item = &Update> {
        self.rows
            .iter()
            .filter(|r| r.row.status.is_open() && !r.is_newer())
            .map(|r| &r.row)
    }

    /// A row by id.
    pub fn find(&self, id: &str) -> Option<&Versioned<Update>> {
        self.rows.iter().find(|r| r.row.id == id)
    }

    /// The newest row.
    pub fn newest(&self) -> Option<&Update> {
        self.rows.first().map(|r| &r.row)
    }

    /// A pending row that only a newer version understands: nothing may be decided while it is there.
    pub fn foreign(&self) -> Option<&Update> {
        let pending = self.head.row.pending.as_deref()?;
        let r = self.find(pending)?;
        (r.is_newer() || matches!(r.row.status, State::Unknown(_))).then_some(&r.row)
    }

    /// Is the head one that only a newer version understands?
    pub fn read_only(&self) -> bool {
        self.head.is_newer()
    }

    /// The begin in flight, if its reservation still holds.
    pub fn reservation(&self, now: Timestamp) -> Option<&str> {
        let until = self.head.row.reserve_until?;
        let id = self.head.row.reserving.as_deref()?;
        (now.as_millisecond() < until).then_some(id)
    }
}

/// How a delete of a change set went, in this call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deleted {
    /// Gone.
    Done,
    /// Refused or unknown: only a fresh read tells.
    Ask(CallError),
}

/// What was observed so far in this call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observed {
    /// The stack, by ARN as far as one is stored.
    pub stack: Option<StackRead>,
    /// The stack by name, asked when the stored ARN is of a deleted one.
    pub renamed: Option<StackRead>,
    /// Change sets by row id.
    pub sets: BTreeMap<String, SetRead>,
    /// Rows whose set was looked for by its name, because no ARN was stored then.
    pub by_name: BTreeSet<String>,
    /// Events by stack ARN; None where they could not be read.
    pub events: EventsByStack,
    /// Why events could not be read.
    pub events_error: Option<CallError>,
    /// Findings about a set that could not be made, by row id.
    pub findings: BTreeMap<String, Result<Vec<Finding>, CallError>>,
    /// The release list.
    pub releases: Option<Result<release::ReleaseList, CallError>>,
    /// Deletes tried, by row id.
    pub deletes: BTreeMap<String, Deleted>,
    /// Executes that were definitively refused, by row id: their grace is over.
    pub refused: BTreeMap<String, CallError>,
    /// Rows whose clean-up was tried in this call.
    pub cleaned: BTreeSet<String>,
}

/// How much a call wants to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Purpose {
    /// Read the stack and the release list even when nothing is open (HTTP), or only what is needed (polls).
    pub full: bool,
}

/// The next step.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a step that is not taken changes nothing"]
pub enum Step {
    /// Read these, all at once.
    Look(Vec<(LookFor, Look)>),
    /// Write this row and/or head, under the revisions that were read.
    Write(Box<Change>),
    /// Delete the change set of this row.
    Delete {
        /// Row id.
        id: String,
        /// The call.
        act: Act,
    },
    /// Nothing to do.
    Rest,
}

/// Where the answer of a look goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LookFor {
    /// The stack.
    Stack,
    /// The stack by name.
    Renamed,
    /// The set of this row.
    Set(String),
    /// Events of this stack.
    Events(String),
    /// Findings of this row.
    Findings(String),
    /// The release list.
    Releases,
}

/// A change of one row and/or the head. Revisions and write ids are filled in by `store`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The row as it shall be.
    pub row: Option<Update>,
    /// The head as it shall be.
    pub head: Option<Head>,
}

/// Everything one row is judged by.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The stack.
    pub stack: Option<&'a StackRead>,
    /// The row's change set.
    pub set: Option<&'a SetRead>,
    /// Events read so far.
    pub events: &'a EventsByStack,
    /// Findings about the set.
    pub findings: Option<&'a Result<Vec<Finding>, CallError>>,
    /// Id of a newer open row whose change set exists.
    pub newer_open: Option<&'a str>,
    /// Does another open row's set run, or has it run?
    pub other_ran: bool,
    /// Was the execute of this row definitively refused in this call?
    pub refused: Option<&'a CallError>,
    /// The moment of the call.
    pub now: Timestamp,
}

/// What a row is to become.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Nothing changes.
    Stay,
    /// It becomes this.
    Become(Box<Update>),
    /// This must be read first.
    Need(LookFor, Look),
}

/// How a row is shown beside its stored state.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Shown {
    /// `stalled` or `rolling_back`, when that is shown instead of the stored state.
    pub overlay: Option<&'static str>,
    /// Since when that is so, if the doer said.
    pub since: Option<Timestamp>,
    /// How far it is.
    pub progress: Option<Progress>,
    /// Why, if known before it ends.
    pub reason: Option<Reason>,
    /// What is true beside it.
    pub flags: Vec<Flag>,
    /// Could the doer not be asked?
    pub unread: bool,
    /// How long CloudFormation watches alarms after the last resource, in minutes.
    pub watching_minutes: Option<u64>,
}

/// The judgement on one row.
#[derive(Debug, Clone, PartialEq)]
pub struct Assessment {
    /// What it becomes.
    pub verdict: Verdict,
    /// How it is shown.
    pub shown: Shown,
}

impl Assessment {
    fn stay(shown: Shown) -> Self {
        Self {
            verdict: Verdict::Stay,
            shown,
        }
    }

    fn flagged(mut shown: Shown, flag: Flag) -> Self {
        shown.flags.push(flag);
        Self::stay(shown)
    }
}

pub use crate::status::read_flag;

fn unrecognised(raw: &str) -> Flag {
    let text = "CloudFormation uses a word that this version does not know; nothing is decided on it.";
    let mut f = Flag::new("unrecognised", text);
    f.raw = Some(raw.to_owned());
    f
}

/// Is the stack's status a word that table B does not have?
fn unknown_word(stack: &Stack) -> bool {
    tables::cell(&stack.status, Column::Running) == Cell::Unknown
}

/// Whose is the stack's current state (rule 6)?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Our execution made it.
    Ours,
    /// A later operation than ours made it.
    Later,
    /// It is from before our execution, or it can not be told.
    Earlier,
}

/// Rule 6. Never decides by "the status looks final".
pub fn owner(row: &Update, stack: &Stack, events: Option<&[Event]>) -> Owner {
    let op = events.and_then(|e| cause::operation(e, row.made_at(), row.apply_token.as_deref()));
    let listed = row.operation_id.as_ref().map(|id| stack.operations.contains(id));
    let mine = stack.change_set_id.is_some() && stack.change_set_id == row.change_set_id;
    if mine {
        return match listed {
            Some(false) if !stack.operations.is_empty() => Owner::Later,
            Some(true) => Owner::Ours,
            _ if op.as_ref().is_some_and(|o| o.followed) => Owner::Later,
            _ => Owner::Ours,
        };
    }
    let updated_since = stack.updated_at.is_some_and(|t| t > row.made_at());
    if stack.change_set_id.is_some() {
        return if updated_since {
            Owner::Later
        } else {
            Owner::Earlier
        };
    }
    match (listed, op) {
        (_, Some(o)) if o.followed => Owner::Later,
        (Some(true), _) | (_, Some(_)) => Owner::Ours,
        _ if stack.updated_at.is_some_and(|t| t >= row.made_at()) => Owner::Ours,
        _ => Owner::Earlier,
    }
}

/// Does the stack itself say that it ran this row's set? Stricter than [`owner`], for a set that was not
/// found: there a wrong "ours" would turn somebody else's update into our success.
fn stack_names_us(row: &Update, stack: &Stack, events: Option<&[Event]>) -> bool {
    if stack.change_set_id.is_some() {
        return stack.change_set_id == row.change_set_id;
    }
    if row
        .operation_id
        .as_ref()
        .is_some_and(|id| stack.operations.contains(id))
    {
        return true;
    }
    let Some(token) = row.apply_token.as_deref() else {
        return false;
    };
    events
        .into_iter()
        .flatten()
        .any(|e| e.is_root() && e.token.as_deref() == Some(token))
}

/// Judges one row (rules 1 to 14).
pub fn assess(row: &Update, cx: &Context<'_>) -> Assessment {
    let mut shown = Shown {
        progress: row.progress.clone(),
        ..Shown::default()
    };
    if !row.status.is_open() {
        // Rule 1.
        return Assessment::stay(Shown::default());
    }
    // Rule 3.
    let Some(set) = cx.set else {
        shown.unread = true;
        return Assessment::stay(shown);
    };
    if let SetRead::Failed(e) = set {
        shown.unread = true;
        return Assessment::flagged(shown, read_flag(e));
    }
    // Rule 4.
    match cx.stack {
        Some(StackRead::Missing) => return missing(row, shown, cx.now),
        Some(StackRead::Seen(s)) if s.status == "DELETE_COMPLETE" => {
            return turn(gone(row, cx.now), shown);
        }
        Some(StackRead::Seen(_)) if row.stack_missed_at.is_some() => {
            let mut next = row.clone();
            next.stack_missed_at = None;
            return turn(next, shown);
        }
        Some(StackRead::Failed(e)) => {
            // Half an answer is none: shown as what was last known.
            shown.unread = true;
            shown.flags.push(read_flag(e));
        }
        // Rule 14.
        Some(StackRead::Seen(s)) if unknown_word(s) => shown.flags.push(unrecognised(&s.status)),
        Some(StackRead::Seen(_)) => {}
        None => shown.unread = true,
    }
    if row.change_set_id.is_none() {
        return intent(row, set, cx, shown);
    }
    // Rule 5.
    match set {
        SetRead::Failed(_) => Assessment::stay(shown),
        SetRead::NotFound => match cx.stack {
            Some(StackRead::Seen(s)) if stack_names_us(row, s, events_of(cx, s)) => {
                ran(row, cx, Column::Ran, None, shown)
            }
            _ => vanished(row, cx, shown),
        },
        SetRead::Seen(cs) => match tables::class(&cs.status, &cs.execution) {
            Class::Unknown(raw) => Assessment::flagged(shown, unrecognised(&raw)),
            Class::DeleteFailed => {
                let text = "CloudFormation could not delete the change set; delete it in the console.";
                Assessment::flagged(shown, Flag::new("change_set_delete_failed", text))
            }
            Class::Making => making(row, cx, shown),
            Class::Ready => ready(row, cs, cx, shown),
            Class::Bad => bad(row, cs, cx, shown),
            Class::Obsolete => obsolete(row, cx, shown),
            Class::Gone => vanished(row, cx, shown),
            Class::Running => ran(row, cx, Column::Running, Some(cs), shown),
            Class::Ran => ran(row, cx, Column::Ran, Some(cs), shown),
            Class::RanFailed => ran(row, cx, Column::RanFailed, Some(cs), shown),
        },
    }
}

fn turn(next: Update, shown: Shown) -> Assessment {
    Assessment {
        verdict: Verdict::Become(Box::new(next)),
        shown,
    }
}

fn events_of<'a>(cx: &Context<'a>, stack: &Stack) -> Option<&'a [Event]> {
    cx.events.get(&stack.arn).and_then(|e| e.as_deref())
}

/// Is the grace of an execute still running?
fn in_grace(row: &Update, cx: &Context<'_>) -> bool {
    row.status == State::Applying
        && cx.refused.is_none()
        && row
            .applied_at
            .is_some_and(|at| !older_than(at, EXECUTE_GRACE_S, cx.now))
}

/// Closes a row. The change set of a row that will not run is left to the clean-up.
fn close(row: &Update, to: State, reason: Reason, now: Timestamp) -> Update {
    let mut next = row.clone();
    next.status = to;
    next.reason = Some(reason);
    next.finished_at = Some(now);
    next.progress = None;
    next.settling_since = None;
    next.stack_missed_at = None;
    next.observed_at = Some(now);
    next.ttl = Some(ttl(now, KEEP_DAYS));
    next
}

fn with_cleanup(mut row: Update) -> Update {
    row.change_set_cleanup = Cleanup::Pending;
    row
}

fn missing(row: &Update, mut shown: Shown, now: Timestamp) -> Assessment {
    let text = "CloudFormation does not find the stack. One miss can be a stale read; a second one counts.";
    let mut flag = Flag::new("stack_not_seen", text);
    flag.since = Some(row.stack_missed_at.unwrap_or(now));
    shown.flags.push(flag);
    match row.stack_missed_at {
        None => {
            let mut next = row.clone();
            next.stack_missed_at = Some(now);
            turn(next, shown)
        }
        Some(first) if now.duration_since(first).as_millis() >= i128::from(SECOND_MISS_S) * 1000 => {
            turn(gone(row, now), shown)
        }
        Some(_) => Assessment::stay(shown),
    }
}

/// Rule 4: the stack is gone.
fn gone(row: &Update, now: Timestamp) -> Update {
    let to = if row.status == State::Applying {
        State::Failed
    } else {
        State::Discarded
    };
    let reason = Reason::new(
        "stack_gone",
        "The stack was deleted, so there is nothing to update any more.",
    );
    close(row, to, reason.from_source("cloudformation"), now)
}

/// A row whose CreateChangeSet was not answered (table C, last but one row; spec/updates.md 3.4).
fn intent(row: &Update, set: &SetRead, cx: &Context<'_>, mut shown: Shown) -> Assessment {
    if let SetRead::Seen(cs) = set
        && cs.description.as_deref().is_some_and(|d| d.contains(&row.id))
    {
        let mut next = row.clone();
        next.change_set_id = Some(cs.arn.clone());
        next.change_set_created_at = cs.created_at;
        next.observed_at = Some(cx.now);
        return turn(next, shown);
    }
    // A set that ran is not found by its name any more, but the stack names the set it works on, and the name
    // in that ARN carries our id (found by the explorer: a create whose answer was lost, run in the console).
    if let Some(arn) = cx
        .stack
        .and_then(StackRead::seen)
        .and_then(|s| s.change_set_id.as_ref())
        && arn.contains(&format!("changeSet/{}/", row.change_set_name))
    {
        let mut next = row.clone();
        next.change_set_id = Some(arn.clone());
        next.observed_at = Some(cx.now);
        return turn(next, shown);
    }
    // While the stack can not be read, nothing is closed (table D): it may be running this very set.
    let unseen = !matches!(cx.stack, Some(StackRead::Seen(_)));
    if unseen || !older_than(row.started_at, INTENT_BOUND_S, cx.now) {
        shown.progress = Some(Progress::step("making"));
        return Assessment::stay(shown);
    }
    let text = "The request to make the change set never reached CloudFormation. Begin the update again.";
    let reason = Reason::new("prepare_lost", text).from_source("headgate");
    let lost = close(row, State::Failed, reason, cx.now);
    if matches!(set, SetRead::Seen(_)) {
        // Somebody else's set under our name is left alone.
        return turn(lost, shown);
    }
    // The set may still turn up: the clean-up deletes it by name.
    turn(with_cleanup(lost), shown)
}

fn making(row: &Update, cx: &Context<'_>, mut shown: Shown) -> Assessment {
    if row.status == State::Preparing {
        shown.progress = Some(Progress::step("making"));
        if older_than(row.started_at, PREPARING_BOUND_S, cx.now) {
            let minutes = cx.now.duration_since(row.started_at).as_secs() / 60;
            shown.overlay = Some("stalled");
            shown.since = Some(crate::time::plus_seconds(row.started_at, PREPARING_BOUND_S));
            shown.reason = Some(
                Reason::new(
                    "preparing_too_long",
                    format!(
                        "CloudFormation has been making the change set for {minutes} minutes. Discard it and begin \
                         again, or look at it in the console."
                    ),
                )
                .from_source("cloudformation"),
            );
        }
    }
    Assessment::stay(shown)
}

/// Rule 8.
fn ready(row: &Update, cs: &ChangeSet, cx: &Context<'_>, mut shown: Shown) -> Assessment {
    match row.status {
        State::Preparing => {
            let mut next = row.clone();
            next.status = State::Prepared;
            next.change_set_created_at = cs.created_at.or(row.change_set_created_at);
            next.summary = Some(plan::summarise(&cs.changes));
            next.progress = None;
            next.settling_since = None;
            next.observed_at = Some(cx.now);
            turn(next, shown)
        }
        State::Applying => {
            if in_grace(row, cx) {
                shown.progress = Some(Progress::step("settling"));
                return Assessment::stay(shown);
            }
            match cx.stack {
                Some(StackRead::Seen(s)) => {
                    let ours = owner(row, s, events_of(cx, s)) == Owner::Ours;
                    if ours && unknown_word(s) {
                        // Whether it is busy on our set can not be told (rule 14).
                        return Assessment::stay(shown);
                    }
                    if tables::is_busy(&s.status) && ours {
                        return ran(row, cx, Column::Running, Some(cs), shown);
                    }
                }
                // Whether the stack works on our set can not be told: keep.
                _ => return Assessment::stay(shown),
            }
            let reason = match cx.refused {
                Some(e) => Reason::new(
                    "execute_refused",
                    format!(
                        "CloudFormation refused to run it ({}): {}",
                        e.code,
                        cause::clean(&e.message)
                    ),
                ),
                None => Reason::new(
                    "execute_not_started",
                    "The OK was given, but CloudFormation never started to run it. Give the OK again to retry.",
                ),
            };
            let mut next = row.clone();
            next.status = State::Prepared;
            next.attempted_by = next.applied_by.take();
            next.applied_at = None;
            next.progress = None;
            next.settling_since = None;
            next.needs_admin = cx.refused.filter(|e| e.class == Failure::Denied).map(permission);
            next.reason = Some(reason.from_source("cloudformation"));
            next.observed_at = Some(cx.now);
            turn(next, shown)
        }
        _ => Assessment::stay(shown),
    }
}

/// What the admin must do about a missing permission.
pub fn permission(e: &CallError) -> NeedsAdmin {
    NeedsAdmin::new(
        "grant_permission",
        format!("Grant {} to Headgate's role, then try again.", e.action),
        None,
    )
}

/// Does CloudFormation say that the set has no changes? Status and reason together, never an empty list of
/// changes: a release that changes only an output has none either (item 8).
pub fn says_no_changes(cs: &ChangeSet) -> bool {
    cs.reason
        .as_deref()
        .is_some_and(|r| NO_CHANGES.iter().any(|n| r.trim_start().starts_with(n)))
}

/// Rule 10.
fn bad(row: &Update, cs: &ChangeSet, cx: &Context<'_>, shown: Shown) -> Assessment {
    let now = cx.now;
    if row.status != State::Applying && says_no_changes(cs) {
        let text = format!("Release {} changes nothing in this stack.", row.to_release);
        let reason = Reason::new("no_changes", text).from_source("cloudformation");
        return turn(with_cleanup(close(row, State::Discarded, reason, now)), shown);
    }
    let why = cs
        .reason
        .clone()
        .unwrap_or_else(|| "CloudFormation gave no reason".to_owned());
    let mut reason = Reason::new("prepare_failed", cause::clean(&why)).from_source("cloudformation");
    // Early validation gives its details only through DescribeEvents (spec/updates.md 4.4 item 31).
    if why.contains("AWS::EarlyValidation::") {
        match cx.findings {
            None => {
                let verdict =
                    Verdict::Need(LookFor::Findings(row.id.clone()), Look::Findings(cs.arn.clone()));
                return Assessment { verdict, shown };
            }
            Some(Ok(found)) if !found.is_empty() => {
                let list: Vec<String> = found
                    .iter()
                    .map(|f| match &f.path {
                        Some(p) => format!("{} at {p}: {}", f.resource, f.text),
                        None => format!("{}: {}", f.resource, f.text),
                    })
                    .collect();
                reason.text = cause::clean(&list.join("; "));
                reason.resource = found.first().map(|f| f.resource.clone());
            }
            Some(Ok(_)) => {}
            Some(Err(e)) if e.class == Failure::Denied => reason.notes.push(format!(
                "More could be said with the permission {}; that permission is not the cause.",
                e.action
            )),
            Some(Err(e)) => reason
                .notes
                .push(format!("The details could not be read ({}).", e.code)),
        }
    }
    let mut next = close(row, State::Failed, reason, now);
    next.change_set_created_at = cs.created_at.or(row.change_set_created_at);
    turn(with_cleanup(next), shown)
}

/// Rule 11.
fn obsolete(row: &Update, cx: &Context<'_>, mut shown: Shown) -> Assessment {
    if in_grace(row, cx) {
        shown.progress = Some(Progress::step("settling"));
        return Assessment::stay(shown);
    }
    if cx.stack.and_then(StackRead::seen).is_none() {
        // Table D: without the stack only READY, BAD and MAKE act.
        return Assessment::stay(shown);
    }
    turn(with_cleanup(expired(row, cx.now)), shown)
}

fn expired(row: &Update, now: Timestamp) -> Update {
    let text =
        "The stack was changed after this plan was made, so the plan is no longer valid. Prepare it again.";
    close(
        row,
        State::Expired,
        Reason::new("stack_changed_since", text).from_source("cloudformation"),
        now,
    )
}

/// Marks a row superseded by `newer`.
fn superseded(row: &Update, newer: &str, now: Timestamp) -> Update {
    let reason =
        Reason::new("superseded", "A newer update took its place before it ran.").from_source("headgate");
    let mut next = close(row, State::Superseded, reason, now);
    next.superseded_by = Some(newer.to_owned());
    next.change_set_cleanup = Cleanup::Done;
    next
}

/// Rule 12: gone, or not found and the stack is not ours.
fn vanished(row: &Update, cx: &Context<'_>, mut shown: Shown) -> Assessment {
    if in_grace(row, cx) {
        shown.progress = Some(Progress::step("settling"));
        return Assessment::stay(shown);
    }
    let stack = match cx.stack {
        Some(StackRead::Seen(s)) => s,
        _ => return Assessment::stay(shown),
    };
    if row.status == State::Preparing
        && matches!(cx.set, Some(SetRead::NotFound))
        && !older_than(row.started_at, INTENT_BOUND_S, cx.now)
    {
        // Asked for a moment ago: not being found can be a read from before it was made (found by the explorer:
        // the row was closed and its set stayed behind for the console to run).
        shown.progress = Some(Progress::step("making"));
        return Assessment::stay(shown);
    }
    if let Some(newer) = cx.newer_open {
        return turn(superseded(row, newer, cx.now), shown);
    }
    if cx.other_ran || stack.updated_at.is_some_and(|t| t > row.made_at()) {
        return turn(expired(row, cx.now), shown);
    }
    let reason = Reason::new(
        "change_set_deleted",
        "Someone deleted the change set in AWS before it ran.",
    );
    turn(
        close(
            row,
            State::Discarded,
            reason.from_source("cloudformation"),
            cx.now,
        ),
        shown,
    )
}

/// Rule 7: the set runs or ran.
fn ran(
    row: &Update,
    cx: &Context<'_>,
    column: Column,
    cs: Option<&ChangeSet>,
    mut shown: Shown,
) -> Assessment {
    // The time of the set bounds what belongs to its run: by CloudFormation's clock as soon as it is known.
    let described;
    let row = match cs.and_then(|c| c.created_at) {
        Some(at) if row.change_set_created_at.is_none() => {
            described = Update {
                change_set_created_at: Some(at),
                ..row.clone()
            };
            &described
        }
        _ => row,
    };
    let stack = match cx.stack {
        Some(StackRead::Seen(s)) => s.as_ref(),
        _ => {
            // The change set says that it runs; what came of it only the stack can say. Nothing is closed.
            shown.progress = Some(Progress::step("settling"));
            if row.status == State::Applying {
                return Assessment::stay(shown);
            }
            let next = running(row, cs, cx.now, None, Progress::step("settling"), cx.now);
            return turn(next, shown);
        }
    };
    if unknown_word(stack) {
        // Rule 14: nothing is decided on a word that is not known, whoever's it is.
        return Assessment::stay(shown);
    }
    let Some(read) = cx.events.get(&stack.arn) else {
        let since = row.made_at();
        let need = Verdict::Need(
            LookFor::Events(stack.arn.clone()),
            Look::Events {
                stack: stack.arn.clone(),
                since,
            },
        );
        return Assessment { verdict: need, shown };
    };
    let events = read.as_deref();
    let token = row.apply_token.as_deref();
    let made = cs.and_then(|c| c.created_at).unwrap_or_else(|| row.made_at());
    let op = events.and_then(|e| cause::operation(e, made, token));
    shown.watching_minutes = stack.monitoring_minutes.filter(|m| *m > 0);
    let disagreed_long = row
        .settling_since
        .is_some_and(|t| older_than(t, SETTLE_BOUND_S, cx.now));
    match owner(row, stack, events) {
        Owner::Earlier => {
            let believed = match (column, stack.version()) {
                // The set says that it ran and the stack reports the target: it can only be our run.
                (Column::Ran, Some(v)) if disagreed_long && release::same(v, &row.to_release) => true,
                _ => false,
            };
            if believed {
                return finish_updated(row, cx, stack, cs, op.as_ref(), true, shown);
            }
            settle(row, cx, cs, stack, op.as_ref(), disagreed_long, shown)
        }
        Owner::Later => match column {
            Column::Running => settle(row, cx, cs, stack, op.as_ref(), disagreed_long, shown),
            Column::Ran => finish_updated(row, cx, stack, cs, op.as_ref(), true, shown),
            Column::RanFailed => {
                let ended = op.as_ref().and_then(Operation::end).map(|e| e.status.as_str());
                match ended {
                    Some("UPDATE_FAILED") => {
                        finish_failed(row, cx, stack, cs, op.as_ref(), "execute_failed", shown)
                    }
                    Some("UPDATE_ROLLBACK_FAILED") => {
                        finish_failed(row, cx, stack, cs, op.as_ref(), "execute_failed", shown)
                    }
                    // A later operation could only start on a stack that had settled: the rollback worked.
                    _ => finish_failed_as(
                        row,
                        cx,
                        stack,
                        cs,
                        op.as_ref(),
                        State::RolledBack,
                        "root_cause",
                        shown,
                    ),
                }
            }
        },
        Owner::Ours => {
            let mut cell = tables::cell(&stack.status, column);
            if cell == Cell::Settling && disagreed_long {
                // The stack is believed; only words that contradict each other stay open.
                cell = match stack.status.as_str() {
                    "CREATE_COMPLETE" | "UPDATE_COMPLETE" => Cell::CheckVersion,
                    "UPDATE_ROLLBACK_COMPLETE" => Cell::RolledBack,
                    _ => Cell::Settling,
                };
            }
            match cell {
                Cell::Applying(step) => applying(row, cx, cs, op.as_ref(), step, shown),
                Cell::RollingBack => rolling_back(row, cx, stack, cs, op.as_ref(), shown),
                Cell::CheckVersion => finish_updated(row, cx, stack, cs, op.as_ref(), false, shown),
                Cell::RolledBack => finish_failed_as(
                    row,
                    cx,
                    stack,
                    cs,
                    op.as_ref(),
                    State::RolledBack,
                    "root_cause",
                    shown,
                ),
                Cell::Failed(code) => finish_failed(row, cx, stack, cs, op.as_ref(), code, shown),
                Cell::Gone => turn(gone(row, cx.now), shown),
                Cell::Settling => settle(row, cx, cs, stack, op.as_ref(), disagreed_long, shown),
                // Returned above.
                Cell::Unknown => Assessment::stay(shown),
            }
        }
    }
}

/// The row as applying; fills in who and when for a run that nobody started here.
fn running(
    row: &Update,
    cs: Option<&ChangeSet>,
    fallback_at: Timestamp,
    op: Option<&Operation<'_>>,
    progress: Progress,
    now: Timestamp,
) -> Update {
    let mut next = row.clone();
    next.status = State::Applying;
    next.progress = Some(progress);
    next.change_set_created_at = row.change_set_created_at.or(cs.and_then(|c| c.created_at));
    if let (None, Some(cs)) = (&next.summary, cs) {
        next.summary = Some(plan::summarise(&cs.changes));
    }
    let start = op.and_then(Operation::start);
    if let Some(id) = start.and_then(|e| e.operation_id.clone()) {
        next.operation_id = Some(id);
    }
    if next.applied_by.is_none() {
        let ours = start.is_some_and(|e| e.token.is_some() && e.token == row.apply_token);
        let by = row.attempted_by.clone().filter(|_| ours);
        next.applied_by = Some(by.unwrap_or_else(|| CONSOLE.to_owned()));
    }
    if next.applied_at.is_none() {
        next.applied_at = Some(start.map_or(fallback_at, |e| e.at));
    }
    if matches!(row.reason_code(), Some("execute_not_started" | "execute_refused")) {
        next.reason = None;
        next.needs_admin = None;
    }
    next.observed_at = Some(now);
    next
}

/// Writes the running row only when something a reader can see changed.
fn keep_running(row: &Update, next: Update, shown: Shown) -> Assessment {
    let step = |u: &Update| u.progress.as_ref().map(|p| (p.step.clone(), p.done));
    let same = row.status == next.status
        && step(row) == step(&next)
        && row.settling_since == next.settling_since
        && row.applied_by == next.applied_by
        && row.operation_id == next.operation_id
        && row.reason == next.reason;
    if same {
        Assessment::stay(shown)
    } else {
        turn(next, shown)
    }
}

fn progress_of(row: &Update, step: &str, op: Option<&Operation<'_>>) -> Progress {
    let total = row.summary.as_ref().map(Summary::total);
    match op {
        Some(op) => {
            let (done, in_progress, resource, last_event_at) = op.progress();
            // Resources outside the plan may show events as well (tags spread to all of them): what is being
            // worked on is not done, and never more is done than there is to do.
            let done = total.map_or(done, |t| done.min(t.saturating_sub(in_progress)));
            Progress {
                step: step.into(),
                done: Some(done),
                total,
                resource,
                last_event_at,
            }
        }
        None => {
            let old = row.progress.as_ref();
            Progress {
                step: step.into(),
                done: old.and_then(|p| p.done),
                total,
                resource: old.and_then(|p| p.resource.clone()),
                last_event_at: old.and_then(|p| p.last_event_at),
            }
        }
    }
}

fn applying(
    row: &Update,
    cx: &Context<'_>,
    cs: Option<&ChangeSet>,
    op: Option<&Operation<'_>>,
    step: &'static str,
    mut shown: Shown,
) -> Assessment {
    let at = stack_time(cx).unwrap_or(cx.now);
    let mut next = running(row, cs, at, op, Progress::step(step), cx.now);
    let progress = progress_of(&next, step, op);
    next.progress = Some(progress.clone());
    next.settling_since = None;
    shown.progress = Some(progress);
    keep_running(row, next, shown)
}

fn rolling_back(
    row: &Update,
    cx: &Context<'_>,
    stack: &Stack,
    cs: Option<&ChangeSet>,
    op: Option<&Operation<'_>>,
    mut shown: Shown,
) -> Assessment {
    let reason = match cause_of(row, cx, stack, cs, op) {
        Ok(r) => r,
        Err(need) => return Assessment { verdict: need, shown },
    };
    let at = stack_time(cx).unwrap_or(cx.now);
    let mut next = running(row, cs, at, op, Progress::step("rolling_back"), cx.now);
    next.progress = Some(progress_of(&next, "rolling_back", op));
    next.settling_since = None;
    next.reason = reason.clone().or(next.reason);
    shown.overlay = Some("rolling_back");
    shown.since = op.and_then(Operation::rollback).map(|e| e.at);
    shown.reason = reason;
    shown.progress = next.progress.clone();
    keep_running(row, next, shown)
}

/// Change set and stack disagree: applying, and the bound runs.
fn settle(
    row: &Update,
    cx: &Context<'_>,
    cs: Option<&ChangeSet>,
    stack: &Stack,
    op: Option<&Operation<'_>>,
    long: bool,
    mut shown: Shown,
) -> Assessment {
    let at = stack_time(cx).filter(|t| *t >= row.made_at()).unwrap_or(cx.now);
    let mut next = running(row, cs, at, op, Progress::step("settling"), cx.now);
    next.settling_since = Some(row.settling_since.unwrap_or(cx.now));
    shown.progress = next.progress.clone();
    if long {
        // The bound is over and still nothing to believe: said, not guessed.
        let mut f = unrecognised(&stack.status);
        f.since = row.settling_since;
        shown.flags.push(f);
    }
    keep_running(row, next, shown)
}

fn stack_time(cx: &Context<'_>) -> Option<Timestamp> {
    cx.stack.and_then(StackRead::seen).and_then(|s| s.updated_at)
}

fn ended_at(op: Option<&Operation<'_>>, cx: &Context<'_>) -> Timestamp {
    op.and_then(Operation::end).map_or(cx.now, |e| e.at)
}

/// Version check: success means that the stack says so.
fn finish_updated(
    row: &Update,
    cx: &Context<'_>,
    stack: &Stack,
    cs: Option<&ChangeSet>,
    op: Option<&Operation<'_>>,
    later: bool,
    shown: Shown,
) -> Assessment {
    let base = running(
        row,
        cs,
        stack_time(cx).unwrap_or(cx.now),
        op,
        Progress::step("settling"),
        cx.now,
    );
    let verified = stack.version().is_some_and(|v| release::same(v, &row.to_release));
    if !later && !verified {
        let (code, text) = match stack.version() {
            Some(v) => (
                "version_mismatch",
                format!("the stack reports {v}, expected {}", row.to_release),
            ),
            None => (
                "version_missing",
                format!(
                    "the stack has no Version output, so nothing shows that it runs {}",
                    row.to_release
                ),
            ),
        };
        let reason = Reason::new(code, text).from_source("cloudformation");
        let mut next = close(&base, State::Failed, reason, cx.now);
        next.finished_at = Some(ended_at(op, cx));
        next.needs_admin = Some(NeedsAdmin::new(
            "check_version_output",
            "The update ran, but the stack does not report the release. Ask the vendor, or begin the update again.",
            None,
        ));
        return turn(next, shown);
    }
    let mut next = close(&base, State::Updated, Reason::new("", ""), cx.now);
    next.reason = None;
    next.needs_admin = None;
    next.finished_at = Some(ended_at(op, cx));
    next.warnings = Vec::new();
    if later {
        next.warnings.push(Warning {
            code: "version_unverified".into(),
            text: "A later operation has changed the stack, so its Version output is not about this update."
                .into(),
            resources: vec![],
        });
    }
    let leftovers = op.map(Operation::leftovers).unwrap_or_default();
    let could_not = stack
        .reason
        .as_deref()
        .is_some_and(|r| r.contains("could not be deleted"));
    if !later && (could_not || !leftovers.is_empty()) {
        next.warnings.push(Warning {
            code: "cleanup_incomplete".into(),
            text: "The update worked, but old resources could not be deleted. They may cost money; delete them by hand."
                .into(),
            resources: leftovers,
        });
    }
    if !later && stack.express {
        next.warnings.push(Warning {
            code: "ready_unverified".into(),
            text: "The stack was updated in express mode: resources may still be starting.".into(),
            resources: vec![],
        });
    }
    turn(next, shown)
}

fn finish_failed(
    row: &Update,
    cx: &Context<'_>,
    stack: &Stack,
    cs: Option<&ChangeSet>,
    op: Option<&Operation<'_>>,
    code: &'static str,
    shown: Shown,
) -> Assessment {
    finish_failed_as(row, cx, stack, cs, op, State::Failed, code, shown)
}

#[expect(
    clippy::too_many_arguments,
    reason = "one row with all it is judged by; every caller has them at hand"
)]
fn finish_failed_as(
    row: &Update,
    cx: &Context<'_>,
    stack: &Stack,
    cs: Option<&ChangeSet>,
    op: Option<&Operation<'_>>,
    to: State,
    code: &'static str,
    shown: Shown,
) -> Assessment {
    let found = match cause_of(row, cx, stack, cs, op) {
        Ok(r) => r,
        Err(need) => return Assessment { verdict: need, shown },
    };
    let base = running(
        row,
        cs,
        stack_time(cx).unwrap_or(cx.now),
        op,
        Progress::step("settling"),
        cx.now,
    );
    // The status never waits for the reason (item 46): close now, fill it in later.
    let pending = matches!(cx.events.get(&stack.arn), Some(None));
    let mut reason = found
        .or_else(|| row.reason.clone().filter(|r| r.code == "root_cause"))
        .unwrap_or_else(|| Reason::new(code, "CloudFormation gave no reason.").from_source("cloudformation"));
    if to == State::Failed {
        // The code says what state it is in; the text says why.
        reason.code = code.to_owned();
    }
    let mut next = close(&base, to, reason, cx.now);
    next.finished_at = Some(ended_at(op, cx));
    next.reason_pending = pending;
    next.needs_admin = needs_admin(code);
    turn(next, shown)
}

/// What only the admin can do about a stack in such a state.
pub fn needs_admin(code: &str) -> Option<NeedsAdmin> {
    let (code, text) = match code {
        "rollback_failed" => (
            "continue_update_rollback",
            "Continue the rollback in CloudFormation first. Resources that are skipped no longer match the template, \
             and the next update may then be impossible.",
        ),
        "stack_paused" => (
            "roll_back_or_fix",
            "The stack stopped half-way with rollback off. Roll it back (RollbackStack) or fix the cause and retry in \
             CloudFormation.",
        ),
        "install_failed" => (
            "reinstall",
            "The first install of this stack did not succeed. Delete the stack and install again.",
        ),
        "stack_delete_failed" => (
            "finish_delete",
            "The stack could not be deleted. Finish the deletion in CloudFormation.",
        ),
        _ => return None,
    };
    Some(NeedsAdmin::new(code, text, None))
}

/// The cause of a failed or failing run, or what must be read first.
fn cause_of(
    row: &Update,
    cx: &Context<'_>,
    stack: &Stack,
    cs: Option<&ChangeSet>,
    op: Option<&Operation<'_>>,
) -> Result<Option<Reason>, Verdict> {
    let _ = row;
    let set_reason = cs.and_then(|c| c.reason.as_deref());
    let Some(o) = op else {
        return Ok(cause::fallback(None, stack.reason.as_deref(), set_reason));
    };
    let mut children = cx.events.clone();
    loop {
        match cause::root_cause(o, &stack.arn, &children) {
            Cause::Found(r) => return Ok(Some(*r)),
            Cause::Nothing => return Ok(cause::fallback(op, stack.reason.as_deref(), set_reason)),
            Cause::NeedChild { stack, since } if children.len() <= CHILDREN_MAX => {
                return Err(Verdict::Need(
                    LookFor::Events(stack.clone()),
                    Look::Events { stack, since },
                ));
            }
            // Enough was read; the parent's line has to do.
            Cause::NeedChild { stack, .. } => {
                children.insert(stack, None);
            }
        }
    }
}

/// The class of a row's set, as far as it was read.
pub fn class_of(o: &Observed, id: &str) -> Option<Class> {
    match o.sets.get(id)? {
        SetRead::Seen(cs) => Some(tables::class(&cs.status, &cs.execution)),
        SetRead::NotFound => Some(Class::Gone),
        SetRead::Failed(_) => None,
    }
}

/// Does the row's set run, or has it run, as far as anybody says?
pub fn has_run(row: &Update, o: &Observed) -> bool {
    if class_of(o, &row.id).is_some_and(|c| c.has_run()) {
        return true;
    }
    let Some(StackRead::Seen(s)) = &o.stack else {
        return false;
    };
    matches!(o.sets.get(&row.id), Some(SetRead::NotFound))
        && row.change_set_id.is_some()
        && stack_names_us(row, s, o.events.get(&s.arn).and_then(|e| e.as_deref()))
}

/// Which open row is the pending one: the one that runs, else the newest whose change set exists, else the
/// newest intent (spec/updates.md 1.7 reconcile 2, T07).
pub fn pending<'a>(s: &'a Snapshot, o: &Observed) -> Option<&'a Update> {
    s.open()
        .find(|r| r.status == State::Applying || has_run(r, o))
        .or_else(|| s.open().find(|r| r.change_set_id.is_some()))
        .or_else(|| s.open().next())
}

/// The context a row is judged in.
pub fn context<'a>(s: &'a Snapshot, o: &'a Observed, row: &Update, now: Timestamp) -> Context<'a> {
    Context {
        stack: o.stack.as_ref(),
        set: o.sets.get(&row.id),
        events: &o.events,
        findings: o.findings.get(&row.id),
        newer_open: s
            .open()
            .find(|r| r.seq > row.seq && r.change_set_id.is_some())
            .map(|r| r.id.as_str()),
        other_ran: s
            .open()
            .any(|r| r.id != row.id && (r.status == State::Applying || has_run(r, o)))
            || s.rows.iter().any(|r| {
                r.row.id != row.id
                    && matches!(r.row.status, State::Updated | State::RolledBack)
                    && r.row.applied_at.is_some_and(|t| t > row.made_at())
            }),
        refused: o.refused.get(&row.id),
        now,
    }
}

/// The address under which the stack is read.
pub fn stack_ref<'a>(s: &'a Snapshot, configured: &'a str) -> &'a str {
    s.head.row.stack_arn.as_deref().unwrap_or(configured)
}

/// A failed row whose end may still be refined (spec/updates.md 1.3): the admin can finish the rollback.
pub fn refinable(s: &Snapshot) -> Option<&Update> {
    let newest = s.newest()?;
    let stuck = newest.status == State::Failed
        && matches!(newest.reason_code(), Some("rollback_failed" | "stack_paused"));
    (stuck && s.open().next().is_none() && s.find(&newest.id).is_some_and(|r| !r.is_newer()))
        .then_some(newest)
}

/// How a change set is looked at: by ARN; by name only while no ARN is stored (rule 2).
pub fn look_at_set(s: &Snapshot, row: &Update, configured: &str) -> Look {
    match &row.change_set_id {
        Some(arn) => Look::SetByArn(arn.clone()),
        None => Look::SetByName {
            stack: stack_ref(s, configured).to_owned(),
            name: row.change_set_name.clone(),
        },
    }
}

/// The next step of a reconcile (spec/updates.md 1.7).
pub fn next(s: &Snapshot, o: &Observed, configured: &str, purpose: Purpose, now: Timestamp) -> Step {
    if s.foreign().is_some() || s.read_only() {
        // Another version manages this; look only for the view's sake.
        return match (purpose.full, looks(s, o, configured, purpose, false)) {
            (true, Some(look)) => look,
            _ => Step::Rest,
        };
    }
    let busy = s.open().next().is_some() || !s.head.row.work.is_empty() || refinable(s).is_some();
    let pointer = s.head.row.pending.is_some();
    if !busy && !purpose.full && !pointer {
        return Step::Rest;
    }
    if let Some(look) = looks(s, o, configured, purpose, busy) {
        return look;
    }
    if let Some(step) = adopt(s, o, now) {
        return step;
    }
    let chosen = pending(s, o).map(|r| r.id.clone());
    if let Some(row) = chosen.as_deref().and_then(|id| s.find(id)).map(|r| &r.row)
        && let Some(step) = poll(s, o, row, now)
    {
        return step;
    }
    for row in s.open().filter(|r| Some(&r.id) != chosen.as_ref()) {
        if let Some(step) = other(s, o, row, chosen.as_deref(), now) {
            return step;
        }
    }
    if let Some(step) = pointer_step(s, chosen.as_deref(), now) {
        return step;
    }
    if let Some(step) = leftover_work(s, o, configured, now) {
        return step;
    }
    if let Some(step) = refine(s, o, now) {
        return step;
    }
    identity(s, o).unwrap_or(Step::Rest)
}

/// What has to be read first, all at once.
fn looks(s: &Snapshot, o: &Observed, configured: &str, purpose: Purpose, busy: bool) -> Option<Step> {
    let mut list = Vec::new();
    if o.stack.is_none() && (purpose.full || busy) {
        list.push((LookFor::Stack, Look::Stack(stack_ref(s, configured).to_owned())));
    }
    for row in s.open() {
        // By its name a set that ran is not found, by its ARN it is (spec/updates.md 4.1 item 4).
        let only_by_name = row.change_set_id.is_some()
            && o.by_name.contains(&row.id)
            && o.sets.get(&row.id) == Some(&SetRead::NotFound);
        if only_by_name || !o.sets.contains_key(&row.id) {
            list.push((LookFor::Set(row.id.clone()), look_at_set(s, row, configured)));
        }
        // Progress needs events; read them in the same round trip.
        if let (State::Applying, Some(arn)) = (&row.status, &s.head.row.stack_arn)
            && !o.events.contains_key(arn)
        {
            let look = Look::Events {
                stack: arn.clone(),
                since: row.made_at(),
            };
            list.push((LookFor::Events(arn.clone()), look));
        }
    }
    if purpose.full && o.releases.is_none() {
        list.push((LookFor::Releases, Look::Releases));
    }
    if list.is_empty() && purpose.full && o.renamed.is_none() && s.open().next().is_none() {
        // The stored ARN is of a deleted stack: has a new one been installed under the name?
        let deleted = match &o.stack {
            Some(StackRead::Missing) => true,
            Some(StackRead::Seen(st)) => st.status == "DELETE_COMPLETE",
            _ => false,
        };
        if deleted && s.head.row.stack_arn.is_some() && s.head.row.stack_arn.as_deref() != Some(configured) {
            list.push((LookFor::Renamed, Look::Stack(configured.to_owned())));
        }
    }
    (!list.is_empty()).then_some(Step::Look(list))
}

fn write(row: Option<Update>, head: Option<Head>) -> Step {
    Step::Write(Box::new(Change { row, head }))
}

/// The head after this row closed: no pointer to it, no reservation of it, its leftover work noted.
pub(super) fn head_after_close(head: &Head, row: &Update) -> Option<Head> {
    let mut next = head.clone();
    if next.pending.as_deref() == Some(&row.id) {
        next.pending = None;
    }
    if next.reserving.as_deref() == Some(&row.id) {
        next.reserving = None;
        next.reserve_until = None;
    }
    if row.change_set_cleanup == Cleanup::Pending || row.reason_pending {
        next.work.insert(row.id.clone());
    } else {
        next.work.remove(&row.id);
    }
    (next != *head).then_some(next)
}

/// Intents first: a set that was made although its answer was lost is adopted, one that never was is given up.
fn adopt(s: &Snapshot, o: &Observed, now: Timestamp) -> Option<Step> {
    for row in s.open().filter(|r| r.change_set_id.is_none()) {
        let Verdict::Become(next) = assess(row, &context(s, o, row, now)).verdict else {
            continue;
        };
        let head = if next.status.is_open() {
            let mut head = s.head.row.clone();
            if next.change_set_id.is_some() && head.reserving.as_deref() == Some(&row.id) {
                head.reserving = None;
                head.reserve_until = None;
            }
            (head != s.head.row).then_some(head)
        } else {
            head_after_close(&s.head.row, &next)
        };
        return Some(write(Some(*next), head));
    }
    None
}

/// native_poll: the rules for one row.
fn poll(s: &Snapshot, o: &Observed, row: &Update, now: Timestamp) -> Option<Step> {
    match assess(row, &context(s, o, row, now)).verdict {
        Verdict::Stay => None,
        Verdict::Need(target, look) => Some(Step::Look(vec![(target, look)])),
        Verdict::Become(next) => {
            let head = if next.status.is_open() {
                None
            } else {
                head_after_close(&s.head.row, &next)
            };
            Some(write(Some(*next), head))
        }
    }
}

/// An open row that is not the pending one: resolve it if it ran, else supersede it (reconcile 3). Only a run
/// counts for an older row; a failed plan becomes superseded too (T08).
fn other(s: &Snapshot, o: &Observed, row: &Update, chosen: Option<&str>, now: Timestamp) -> Option<Step> {
    let newer = chosen
        .and_then(|id| s.find(id))
        .map(|r| &r.row)
        .filter(|p| p.seq > row.seq && p.change_set_id.is_some());
    let (Some(newer), Some(_)) = (newer, &row.change_set_id) else {
        // Newer than the one that runs, or only an intent: the ordinary rules.
        return poll(s, o, row, now);
    };
    let stack_gone = match &o.stack {
        Some(StackRead::Missing) => true,
        Some(StackRead::Seen(st)) => st.status == "DELETE_COMPLETE",
        _ => false,
    };
    if has_run(row, o) || row.status == State::Applying || stack_gone {
        return poll(s, o, row, now);
    }
    let class = class_of(o, &row.id)?;
    let deletable = match class {
        Class::Ready | Class::Obsolete | Class::Bad | Class::DeleteFailed => true,
        Class::Gone => false,
        // Still being made, or a word not known: left for the next reconcile.
        Class::Making | Class::Unknown(_) | Class::Running | Class::Ran | Class::RanFailed => return None,
    };
    let done = !deletable || o.deletes.get(&row.id) == Some(&Deleted::Done);
    if done {
        let next = superseded(row, &newer.id, now);
        let head = head_after_close(&s.head.row, &next);
        return Some(write(Some(next), head));
    }
    if o.deletes.contains_key(&row.id) {
        // Asked once, refused, and a fresh read shows no run: left for the next reconcile.
        return None;
    }
    let arn = row.change_set_id.clone()?;
    Some(Step::Delete {
        id: row.id.clone(),
        act: Act::Delete { arn },
    })
}

/// The pointer: repaired when an older updater or a crash left it wrong.
fn pointer_step(s: &Snapshot, chosen: Option<&str>, now: Timestamp) -> Option<Step> {
    let mut head = s.head.row.clone();
    let intent = chosen
        .and_then(|id| s.find(id))
        .is_some_and(|r| r.row.change_set_id.is_none());
    let begin_in_flight = intent && s.reservation(now) == chosen;
    if !begin_in_flight {
        head.pending = chosen.map(str::to_owned);
    } else if let Some(id) = head.pending.clone() {
        // The intent is no candidate yet, but a pointer to a closed or missing row is wrong all the same.
        head.pending = Some(id).filter(|id| s.find(id).is_some_and(|r| r.row.status.is_open()));
    }
    // A reservation whose row is closed or gone holds nobody.
    if let Some(id) = head.reserving.clone() {
        let over = s.reservation(now).is_none();
        let settled = s
            .find(&id)
            .is_some_and(|r| !r.row.status.is_open() || r.row.change_set_id.is_some());
        if settled || (over && s.find(&id).is_none()) {
            head.reserving = None;
            head.reserve_until = None;
        }
    }
    (head != s.head.row).then(|| write(None, Some(head)))
}

/// Closed rows that still need a delete or a reason.
fn leftover_work(s: &Snapshot, o: &Observed, configured: &str, now: Timestamp) -> Option<Step> {
    for id in &s.head.row.work {
        let Some(v) = s.find(id) else {
            // The row is gone (its time to live is over): so is the work.
            let mut head = s.head.row.clone();
            head.work.remove(id);
            return Some(write(None, Some(head)));
        };
        let row = &v.row;
        if !row.status.is_closed() || v.is_newer() {
            continue;
        }
        if row.change_set_cleanup == Cleanup::Pending {
            match o.deletes.get(id) {
                Some(Deleted::Done) => return Some(cleaned(s, row)),
                Some(Deleted::Ask(_)) => match o.sets.get(id) {
                    None => {
                        let look = look_at_set(s, row, configured);
                        return Some(Step::Look(vec![(LookFor::Set(id.clone()), look)]));
                    }
                    Some(SetRead::NotFound) => return Some(cleaned(s, row)),
                    // A set that ran can not and must not be deleted.
                    Some(SetRead::Seen(cs)) if tables::class(&cs.status, &cs.execution).has_run() => {
                        return Some(cleaned(s, row));
                    }
                    Some(_) => {}
                },
                None if o.cleaned.len() < CLEANUPS_MAX && !o.cleaned.contains(id) => {
                    let act = match &row.change_set_id {
                        Some(arn) => Act::Delete { arn: arn.clone() },
                        None => Act::DeleteByName {
                            stack: stack_ref(s, configured).to_owned(),
                            name: row.change_set_name.clone(),
                        },
                    };
                    return Some(Step::Delete { id: id.clone(), act });
                }
                None => {}
            }
        }
        if row.reason_pending
            && let Some(step) = late_reason(s, o, row, now)
        {
            return Some(step);
        }
    }
    None
}

fn cleaned(s: &Snapshot, row: &Update) -> Step {
    let mut next = row.clone();
    next.change_set_cleanup = Cleanup::Done;
    let head = head_after_close(&s.head.row, &next);
    write(Some(next), head)
}

/// Fills in a reason that could not be read when the row was closed. The state stays.
fn late_reason(s: &Snapshot, o: &Observed, row: &Update, now: Timestamp) -> Option<Step> {
    let Some(StackRead::Seen(stack)) = &o.stack else {
        return None;
    };
    let Some(read) = o.events.get(&stack.arn) else {
        let look = Look::Events {
            stack: stack.arn.clone(),
            since: row.made_at(),
        };
        return Some(Step::Look(vec![(LookFor::Events(stack.arn.clone()), look)]));
    };
    let events = read.as_deref()?;
    let op = cause::operation(events, row.made_at(), row.apply_token.as_deref());
    let cx = Context {
        now,
        ..context(s, o, row, now)
    };
    let mut next = row.clone();
    match cause_of(row, &cx, stack, None, op.as_ref()) {
        Err(Verdict::Need(target, look)) => return Some(Step::Look(vec![(target, look)])),
        Ok(Some(mut found)) if op.is_some() => {
            if let (State::Failed, Some(old)) = (&row.status, &row.reason) {
                found.code = old.code.clone();
            }
            next.reason = Some(found);
            if let Some(end) = op.as_ref().and_then(Operation::end) {
                next.finished_at = Some(end.at);
            }
        }
        // The events no longer reach back that far, or say nothing: the question is closed.
        _ => {}
    }
    next.reason_pending = false;
    let head = head_after_close(&s.head.row, &next);
    Some(write(Some(next), head))
}

/// The admin finished the rollback of a failed run: the one way a closed row changes its state.
fn refine(s: &Snapshot, o: &Observed, now: Timestamp) -> Option<Step> {
    let row = refinable(s)?;
    let Some(StackRead::Seen(stack)) = &o.stack else {
        return None;
    };
    if stack.status != "UPDATE_ROLLBACK_COMPLETE" {
        return None;
    }
    let ours = match &stack.change_set_id {
        Some(id) => Some(id) == row.change_set_id.as_ref(),
        // In doubt: from a failed rollback there is no other way to this state.
        None => row.reason_code() == Some("rollback_failed"),
    };
    let listed = row
        .operation_id
        .as_ref()
        .is_none_or(|id| stack.operations.is_empty() || stack.operations.contains(id));
    if !ours || !listed {
        return None;
    }
    let mut next = row.clone();
    next.status = State::RolledBack;
    next.needs_admin = None;
    next.observed_at = Some(now);
    Some(write(Some(next), None))
}

/// The stack's ARN, resolved at the first read and again when the stack was deleted and installed anew.
fn identity(s: &Snapshot, o: &Observed) -> Option<Step> {
    let seen = match (&o.renamed, &o.stack) {
        (Some(StackRead::Seen(new)), _) if new.status != "DELETE_COMPLETE" => new,
        (_, Some(StackRead::Seen(st))) => st,
        _ => return None,
    };
    if s.head.row.stack_arn.as_deref() == Some(seen.arn.as_str()) || seen.arn.is_empty() {
        return None;
    }
    let mut head = s.head.row.clone();
    head.stack_arn = Some(seen.arn.clone());
    Some(write(None, Some(head)))
}
