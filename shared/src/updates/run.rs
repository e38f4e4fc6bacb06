//! The shell: load, look, decide, save, act. No rule lives here; every rule is in `decide`.
//!
//! Written as plain `async fn`s over [`World`]. The compiler makes each of them the explicit step machine that
//! spec/style.md 2.3 asks for: every `.await` on the world hands out one request and takes one answer, so tokio
//! drives it in production and the explorer drives the very same code request by request in the tests.

use super::decide::{self, Deleted, LookFor, Observed, Purpose, Snapshot, Step};
use super::model::*;
use super::{store, tables};
use crate::error::{CallError, Class};
use crate::release::{self, Listed, Obstacle, ReleaseList};
use crate::release_check;
use crate::status::{Blocker, Flag, NeedsAdmin};
use crate::store::{Attr, Item, Key, Page, Query, Versioned, Write, WriteError};
use crate::time::Timestamp;
use serde_json::Value;
use std::collections::BTreeSet;
use uuid::Uuid;

/// Rows read with the head; open rows beyond them are found as long as the page is full of open ones.
const PAGE: u32 = 20;
/// Steps of one call. A reconcile of two updates needs about ten.
const STEPS_MAX: usize = 60;

/// The world of updates: the table, CloudFormation and the release list.
#[expect(
    async_fn_in_trait,
    reason = "used with generics on one thread; no Send bound is wanted"
)]
pub trait World {
    /// A page of rows, strongly consistent.
    async fn query(&self, q: &Query) -> Result<Page, CallError>;
    /// One row, strongly consistent.
    async fn get(&self, key: &Key) -> Result<Option<Item>, CallError>;
    /// One transaction.
    async fn save(&self, writes: &[Write], token: &str) -> Result<(), WriteError>;
    /// Reads, all at once, answered in order.
    async fn look(&self, looks: &[Look]) -> Vec<Seen>;
    /// One change in CloudFormation.
    async fn act(&self, act: &Act) -> Result<Fact, CallError>;
    /// Is there time for another round trip (spec/updates.md 1.7: the whole route 8 s)?
    fn time_left(&self) -> bool;
}

/// What a call brings with it.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    /// Partition of the install.
    pub pk: &'a str,
    /// Configured stack name or ARN.
    pub stack: &'a str,
    /// Role CloudFormation uses.
    pub role_arn: Option<&'a str>,
    /// The moment of the call.
    pub now: Timestamp,
    /// Id of the request: write ids and transaction tokens derive from it.
    pub request_id: &'a str,
    /// Who calls.
    pub actor: &'a str,
    /// Seed of a new update's id.
    pub seed: Uuid,
}

/// What a reconcile left: the rows, what was observed, and what went wrong.
#[derive(Debug, Clone)]
pub struct Reconciled {
    /// Rows as stored now.
    pub snapshot: Snapshot,
    /// What was observed.
    pub observed: Observed,
    /// Did a write lose against another writer? Then the rows were read again and nothing else was done.
    pub lost: bool,
    /// Flags about the call itself: out of time, table not writable.
    pub flags: Vec<Flag>,
    /// Why the last write was not answered, if it was not: then what is stored is not known, and nobody may
    /// act on it in this call.
    pub unsaved: Option<CallError>,
    /// How many writes were made.
    pub wrote: usize,
}

/// Why a call was refused or failed.
#[derive(Debug, Clone, PartialEq)]
pub enum Refused {
    /// 404 for a release that is not listed.
    ReleaseUnknown(String),
    /// 404 for an update that is not there.
    NoSuchUpdate(String),
    /// 409: a stable code and a text, with named extras.
    Conflict {
        /// Code and text.
        blocker: Blocker,
        /// Named extras.
        extras: Vec<(&'static str, Value)>,
    },
    /// 422: CloudFormation definitively refused.
    ChangeSet {
        /// Its text.
        text: String,
        /// What only the admin can do.
        needs_admin: Option<NeedsAdmin>,
        /// The row that failed, if one was made.
        update: Option<String>,
    },
    /// 503: AWS is in trouble.
    Aws {
        /// The call.
        error: CallError,
        /// What was not done.
        what: &'static str,
    },
}

impl From<CallError> for Refused {
    fn from(error: CallError) -> Self {
        Refused::Aws {
            error,
            what: "the rows could not be read",
        }
    }
}

fn conflict(code: &str, text: impl Into<String>) -> Refused {
    Refused::Conflict {
        blocker: Blocker {
            code: code.into(),
            text: text.into(),
            needs_admin: None,
            since: None,
        },
        extras: vec![],
    }
}

fn unreadable(text: String) -> CallError {
    CallError::new(Class::Refused, "dynamodb:Query", "MalformedRow", &text)
}

/// Reads head and rows: one request, more only where something old is still referred to.
///
/// # Errors
/// The table can not be read, or holds a row this build can not read.
pub async fn load<W: World>(w: &W, pk: &str) -> Result<Snapshot, CallError> {
    let mut s = store::empty();
    let mut after = None;
    loop {
        let page = w.query(&store::newest(pk, PAGE, after)).await?;
        let all_open = page
            .items
            .iter()
            .filter_map(|i| i.get("status").and_then(Attr::as_str))
            .all(|st| State::from(st.to_owned()).is_open());
        store::take(page.items, &mut s).map_err(unreadable)?;
        match page.next {
            Some(next) if all_open => after = Some(next),
            _ => break,
        }
    }
    let head = &s.head.row;
    let mut wanted: BTreeSet<String> = head.work.clone();
    wanted.extend(head.pending.clone());
    wanted.extend(head.reserving.clone());
    for id in wanted {
        if s.find(&id).is_none() {
            fetch(w, pk, &id, &mut s).await?;
        }
    }
    Ok(s)
}

/// Reads one row by its id into the snapshot.
async fn fetch<W: World>(w: &W, pk: &str, id: &str, s: &mut Snapshot) -> Result<(), CallError> {
    if let Some(seq) = store::seq_of(id)
        && let Some(item) = w.get(&store::update_key(pk, seq)).await?
        && item.get("id").and_then(Attr::as_str) == Some(id)
    {
        return store::take(vec![item], s).map_err(unreadable);
    }
    // An id of another form, from another version: look through the history.
    let mut after = None;
    loop {
        let page = w.query(&store::newest(pk, 100, after)).await?;
        let found = page
            .items
            .into_iter()
            .find(|i| i.get("id").and_then(Attr::as_str) == Some(id));
        if let Some(item) = found {
            return store::take(vec![item], s).map_err(unreadable);
        }
        match page.next {
            Some(n) => after = Some(n),
            None => return Ok(()),
        }
    }
}

/// Write ids and transaction tokens: unique per write, derived from the request, at most 36 characters.
pub(crate) fn write_id(call: &Call<'_>, n: impl std::fmt::Display) -> String {
    use sha2::{Digest, Sha256};
    let d = Sha256::digest(format!("{}/{}/{n}", call.request_id, call.seed).as_bytes());
    crate::http::hex(d.get(..16).unwrap_or_default())
}

/// reconcile: brings the rows up to date with CloudFormation. Idempotent: again, it writes nothing.
///
/// # Errors
/// The rows can not be read. Everything else is in the answer.
pub async fn reconcile<W: World>(w: &W, call: &Call<'_>, purpose: Purpose) -> Result<Reconciled, CallError> {
    let snapshot = load(w, call.pk).await?;
    resume(w, call, purpose, snapshot, Observed::default(), 0).await
}

/// A reconcile for a call that wants to act: a write lost to somebody else starts it anew, because acting needs
/// a state that is known to be whole. Bounded; then the caller is told who is there.
async fn settled<W: World>(w: &W, call: &Call<'_>) -> Result<Reconciled, CallError> {
    let mut r = reconcile(w, call, Purpose { full: true }).await?;
    for _ in 0..2 {
        if !r.lost {
            break;
        }
        r = reconcile(w, call, Purpose { full: true }).await?;
    }
    Ok(r)
}

async fn resume<W: World>(
    w: &W,
    call: &Call<'_>,
    purpose: Purpose,
    snapshot: Snapshot,
    observed: Observed,
    wrote: usize,
) -> Result<Reconciled, CallError> {
    let mut r = Reconciled {
        snapshot,
        observed,
        lost: false,
        flags: Vec::new(),
        unsaved: None,
        wrote,
    };
    for _ in 0..STEPS_MAX {
        let step = decide::next(&r.snapshot, &r.observed, call.stack, purpose, call.now);
        if step != Step::Rest && !w.time_left() {
            r.flags.push(Flag::new(
                "stale_read",
                "There was no time to ask CloudFormation everything; ask again.",
            ));
            return Ok(r);
        }
        match step {
            Step::Rest => return Ok(r),
            Step::Look(list) => {
                let looks: Vec<Look> = list.iter().map(|(_, l)| l.clone()).collect();
                let seen = w.look(&looks).await;
                for ((target, look), seen) in list.into_iter().zip(seen) {
                    note(&mut r.observed, target, &look, seen);
                }
            }
            Step::Delete { id, act } => {
                let outcome = w.act(&act).await;
                r.observed.cleaned.insert(id.clone());
                let deleted = match outcome {
                    Ok(_) => Deleted::Done,
                    Err(e) if e.class == Class::NotFound => Deleted::Done,
                    Err(e) => {
                        // Only a fresh read tells what happened.
                        r.observed.sets.remove(&id);
                        Deleted::Ask(e)
                    }
                };
                r.observed.deletes.insert(id, deleted);
            }
            Step::Write(change) => {
                let commit = store::change(call.pk, &r.snapshot, &change, &write_id(call, r.wrote));
                match w.save(&commit.writes, &write_id(call, r.wrote)).await {
                    Ok(()) => {
                        r.snapshot = commit.after;
                        r.wrote += 1;
                    }
                    Err(WriteError::Conflict(_)) => {
                        // Rule 15: re-read once, show what is there, do not retry the decision.
                        r.snapshot = load(w, call.pk).await?;
                        r.lost = true;
                        return Ok(r);
                    }
                    Err(WriteError::Call(e)) => {
                        r.flags.push(decide::read_flag(&e));
                        r.unsaved = Some(e);
                        return Ok(r);
                    }
                }
            }
        }
    }
    r.flags.push(Flag::new(
        "stale_read",
        "There was more to do than one call may do; ask again.",
    ));
    Ok(r)
}

fn note(o: &mut Observed, target: LookFor, look: &Look, seen: Seen) {
    match (target, seen) {
        (LookFor::Stack, Seen::Stack(s)) => o.stack = Some(s),
        (LookFor::Renamed, Seen::Stack(s)) => o.renamed = Some(s),
        (LookFor::Set(id), Seen::Set(s)) => {
            match look {
                Look::SetByName { .. } => o.by_name.insert(id.clone()),
                _ => o.by_name.remove(&id),
            };
            o.sets.insert(id, s);
        }
        (LookFor::Events(arn), Seen::Events(e)) => {
            if let Err(e) = &e {
                o.events_error = Some(e.clone());
            }
            o.events.insert(arn, e.ok());
        }
        (LookFor::Findings(id), Seen::Findings(f)) => {
            o.findings.insert(id, f);
        }
        (LookFor::Releases, Seen::Releases(r)) => o.releases = Some(r.and_then(read_list)),
        // An answer to another question can only be a bug of the adapter; then the question stays open.
        _ => {}
    }
}

/// The release list out of its bytes; a malformed one is a failed read.
pub(crate) fn read_list(bytes: Vec<u8>) -> Result<ReleaseList, CallError> {
    ReleaseList::parse(&bytes)
        .map_err(|text| CallError::new(Class::Refused, "s3:GetObject", "MalformedList", &text))
}

/// What begin brought.
#[derive(Debug, Clone)]
pub struct Begun {
    /// The row.
    pub id: String,
    /// Was it there already (200), or made now (201)?
    pub existing: bool,
    /// State of everything.
    pub state: Reconciled,
}

/// begin: prepares a change set for a release (spec/updates.md 1.7).
///
/// # Errors
/// A refusal that names why, or AWS in trouble. Nothing is left half-written: an intent without a change set
/// is settled by the next reconcile.
pub async fn begin<W: World>(w: &W, call: &Call<'_>, release: &str) -> Result<Begun, Refused> {
    let r = settled(w, call).await?;
    let list = match &r.observed.releases {
        Some(Ok(list)) => list,
        Some(Err(e)) if e.passing() => {
            return Err(Refused::Aws {
                error: e.clone(),
                what: "the release list could not be read",
            });
        }
        _ => {
            return Err(Refused::Conflict {
                blocker: releases_blocker(&r.observed),
                extras: vec![],
            });
        }
    };
    let Some(target) = list.find(release).cloned() else {
        return Err(Refused::ReleaseUnknown(release.to_owned()));
    };
    let stack = match &r.observed.stack {
        Some(StackRead::Seen(s)) => s.as_ref().clone(),
        Some(StackRead::Failed(e)) => {
            return Err(Refused::Aws {
                error: e.clone(),
                what: "the stack could not be read",
            });
        }
        _ => {
            return Err(Refused::Conflict {
                blocker: stack_blocker(&r.observed, false).unwrap_or_else(no_stack),
                extras: vec![],
            });
        }
    };
    if let Some(b) = stack.version().and_then(|v| release_blocker(list, v, &target)) {
        return Err(Refused::Conflict {
            blocker: b,
            extras: vec![],
        });
    }
    if let Some(b) = update_blocker(&r, call.now) {
        return Err(b);
    }
    let open = decide::pending(&r.snapshot, &r.observed);
    if let Some(p) = open
        && p.status == State::Prepared
        && release::same(&p.to_release, &target.release)
        && p.template_sha256.as_deref() == Some(target.template_sha256.as_str())
        && decide::class_of(&r.observed, &p.id) == Some(tables::Class::Ready)
    {
        return Ok(Begun {
            id: p.id.clone(),
            existing: true,
            state: r,
        });
    }
    if let Some(b) = stack_blocker(&r.observed, false) {
        return Err(Refused::Conflict {
            blocker: b,
            extras: vec![],
        });
    }
    if r.lost || r.unsaved.is_some() || r.flags.iter().any(|f| f.code == "stale_read") {
        let text = "The updates were being changed by somebody else; begin again.";
        return Err(Refused::Conflict {
            blocker: Blocker {
                code: "update_preparing".into(),
                text: text.into(),
                needs_admin: None,
                since: None,
            },
            extras: vec![],
        });
    }
    make(w, call, r, &stack, &target).await
}

fn no_stack() -> Blocker {
    Blocker {
        code: "stack_not_installed".into(),
        text: "CloudFormation does not find the stack, so nothing can be updated.".into(),
        needs_admin: Some(NeedsAdmin::new(
            "install_stack",
            "Install the software first, or correct STACK_NAME.",
            None,
        )),
        since: None,
    }
}

/// TX-1, CreateChangeSet, TX-2, supersede_open.
async fn make<W: World>(
    w: &W,
    call: &Call<'_>,
    r: Reconciled,
    stack: &Stack,
    target: &Listed,
) -> Result<Begun, Refused> {
    // What the new template declares decides which parameters are sent. If it can not be told, all that the
    // stack has are sent and CloudFormation decides.
    let declared = match w
        .look(&[Look::Template(target.template_url.clone())])
        .await
        .into_iter()
        .next()
    {
        Some(Seen::Template(Ok(t))) => Some(t),
        _ => None,
    };
    let newest = r.snapshot.newest().map_or(0, |u| u.seq);
    let seq = r.snapshot.head.row.next_seq.max(newest + 1).max(1);
    let id = store::id_for(call.seed, seq);
    let row = new_row(call, &id, seq, stack, target);
    let commit = store::reserve(call.pk, &r.snapshot, &row, call.now, &write_id(call, r.wrote));
    match w.save(&commit.writes, &write_id(call, r.wrote)).await {
        Ok(()) => {}
        Err(WriteError::Conflict(_)) => {
            let s = load(w, call.pk).await?;
            let r = Reconciled {
                snapshot: s,
                lost: true,
                ..r
            };
            return Err(update_blocker(&r, call.now).unwrap_or_else(|| {
                conflict(
                    "update_preparing",
                    "Somebody else began or changed an update at this moment; look again.",
                )
            }));
        }
        Err(WriteError::Call(error)) => {
            return Err(Refused::Aws {
                error,
                what: "the update could not be recorded",
            });
        }
    }
    let mut s = commit.after;
    let mut wrote = r.wrote + 1;
    let act = Act::Create(Box::new(create_set(call, &id, stack, target, declared.as_ref())));
    let made = match w.act(&act).await {
        Ok(Fact::Exists(text)) => adopt(w, call, &s, &id, &text).await,
        other => other,
    };
    let stored = s.find(&id).map(|v| v.row.clone()).unwrap_or(row);
    match made {
        Ok(Fact::Made(arn)) => {
            let commit = store::publish(call.pk, &s, &stored, &arn, &write_id(call, wrote));
            match w.save(&commit.writes, &write_id(call, wrote)).await {
                Ok(()) => {
                    s = commit.after;
                    wrote += 1;
                }
                Err(WriteError::Conflict(_)) => return published_by_other(w, call, &id, &arn).await,
                // The set exists; the next reconcile finds it by name and adopts it.
                Err(WriteError::Call(_)) => {}
            }
            let mut observed = Observed {
                deletes: Default::default(),
                cleaned: Default::default(),
                ..r.observed
            };
            observed
                .sets
                .insert(id.clone(), SetRead::Seen(Box::new(fresh_set(&arn, &stored))));
            let state = resume(w, call, Purpose { full: true }, s, observed, wrote).await?;
            Ok(Begun {
                id,
                existing: false,
                state,
            })
        }
        // Whether the set was made can not be told: the row waits, and the next reconcile settles it.
        Ok(_) => Ok(Begun {
            id,
            existing: false,
            state: Reconciled {
                snapshot: s,
                wrote,
                ..r
            },
        }),
        Err(e) if e.effect_unknown() => Ok(Begun {
            id,
            existing: false,
            state: Reconciled {
                snapshot: s,
                wrote,
                ..r
            },
        }),
        Err(e) => {
            let throttled = e.class == Class::Throttled;
            let code = if throttled {
                "prepare_lost"
            } else {
                "prepare_failed"
            };
            let mut failed = stored;
            failed.status = State::Failed;
            failed.reason = Some(store::create_failed(code, &e.message));
            failed.finished_at = Some(call.now);
            failed.needs_admin = create_needs_admin(&e);
            failed.ttl = Some(crate::store::ttl(call.now, decide::KEEP_DAYS));
            if throttled {
                // An earlier try of the SDK may have got through: the set is deleted by name.
                failed.change_set_cleanup = Cleanup::Pending;
            }
            let change = decide::Change {
                head: decide::head_after_close(&s.head.row, &failed),
                row: Some(failed.clone()),
            };
            let commit = store::change(call.pk, &s, &change, &write_id(call, wrote));
            // A lost condition means that a reconcile has settled the row already; a lost write that it will.
            let _ = w.save(&commit.writes, &write_id(call, wrote)).await;
            if throttled {
                return Err(Refused::Aws {
                    error: e,
                    what: "CloudFormation was asked too often to make the change set",
                });
            }
            Err(Refused::ChangeSet {
                text: super::cause::clean(&e.message),
                needs_admin: failed.needs_admin,
                update: Some(id),
            })
        }
    }
}

fn new_row(call: &Call<'_>, id: &str, seq: u64, stack: &Stack, target: &Listed) -> Update {
    Update {
        id: id.to_owned(),
        seq,
        rev: 0,
        status: State::Preparing,
        from_release: stack.version().map(str::to_owned),
        to_release: target.release.clone(),
        template_url: Some(target.template_url.clone()),
        template_sha256: Some(target.template_sha256.clone()),
        parameters: Some("previous".into()),
        change_set_name: format!("upd-{id}"),
        change_set_id: None,
        change_set_created_at: None,
        started_by: call.actor.to_owned(),
        started_at: call.now,
        applied_by: None,
        applied_at: None,
        attempted_by: None,
        apply_token: None,
        operation_id: None,
        model_check: None,
        summary: None,
        reason: None,
        needs_admin: None,
        warnings: vec![],
        superseded_by: None,
        progress: None,
        finished_at: None,
        change_set_cleanup: Cleanup::None,
        observed_at: None,
        last_write_id: None,
        stack_missed_at: None,
        settling_since: None,
        reason_pending: false,
        ttl: None,
    }
}

/// What is sent to make the set (spec/updates.md 4.2): parameters only with UsePreviousValue, those the new
/// template no longer has left out.
fn create_set(
    call: &Call<'_>,
    id: &str,
    stack: &Stack,
    target: &Listed,
    t: Option<&TemplateSummary>,
) -> CreateSet {
    let parameters = match t {
        Some(t) => stack.parameters.intersection(&t.parameters).cloned().collect(),
        None => stack.parameters.clone(),
    };
    let mut capabilities = stack.capabilities.clone();
    capabilities.extend(t.map(|t| t.capabilities.clone()).unwrap_or_default());
    if t.is_none() {
        capabilities.extend(["CAPABILITY_IAM".to_owned(), "CAPABILITY_NAMED_IAM".to_owned()]);
    }
    CreateSet {
        stack: if stack.arn.is_empty() {
            call.stack.to_owned()
        } else {
            stack.arn.clone()
        },
        name: format!("upd-{id}"),
        token: id.to_owned(),
        description: format!("Headgate update {id} to release {}", target.release),
        template_url: target.template_url.clone(),
        parameters,
        capabilities,
        role_arn: call.role_arn.map(str::to_owned),
    }
}

fn fresh_set(arn: &str, row: &Update) -> ChangeSet {
    ChangeSet {
        arn: arn.to_owned(),
        name: row.change_set_name.clone(),
        status: "CREATE_PENDING".into(),
        execution: "UNAVAILABLE".into(),
        ..ChangeSet::default()
    }
}

/// AlreadyExists: the set of that name is ours if its description carries our id.
async fn adopt<W: World>(
    w: &W,
    call: &Call<'_>,
    s: &Snapshot,
    id: &str,
    text: &str,
) -> Result<Fact, CallError> {
    let Some(v) = s.find(id) else {
        return Ok(Fact::Done);
    };
    let look = decide::look_at_set(s, &v.row, call.stack);
    match w.look(&[look]).await.into_iter().next() {
        Some(Seen::Set(SetRead::Seen(cs))) if cs.description.as_deref().is_some_and(|d| d.contains(id)) => {
            Ok(Fact::Made(cs.arn))
        }
        Some(Seen::Set(SetRead::Seen(_))) => Err(CallError::new(
            Class::Refused,
            "cloudformation:CreateChangeSet",
            "AlreadyExistsException",
            text,
        )),
        // Not there or not readable: the next reconcile settles it.
        _ => Ok(Fact::Done),
    }
}

/// TX-2 lost: either a reconcile has adopted our set, or the row was given up; then the set is deleted.
async fn published_by_other<W: World>(w: &W, call: &Call<'_>, id: &str, arn: &str) -> Result<Begun, Refused> {
    let s = load(w, call.pk).await?;
    let row = s.find(id).map(|v| v.row.clone());
    let adopted = row
        .as_ref()
        .is_some_and(|u| u.change_set_id.as_deref() == Some(arn));
    if adopted {
        let state = resume(w, call, Purpose { full: true }, s, Observed::default(), 0).await?;
        return Ok(Begun {
            id: id.to_owned(),
            existing: false,
            state,
        });
    }
    let _ = w.act(&Act::Delete { arn: arn.to_owned() }).await;
    if let Some(u) = row.filter(|u| u.status.is_open()) {
        let mut failed = u.clone();
        failed.status = State::Failed;
        failed.reason = Some(store::create_failed(
            "prepare_lost",
            "Somebody else took the turn of this update.",
        ));
        failed.finished_at = Some(call.now);
        failed.change_set_cleanup = Cleanup::Pending;
        failed.ttl = Some(crate::store::ttl(call.now, decide::KEEP_DAYS));
        let change = decide::Change {
            head: decide::head_after_close(&s.head.row, &failed),
            row: Some(failed),
        };
        let commit = store::change(call.pk, &s, &change, &write_id(call, 900));
        let _ = w.save(&commit.writes, &write_id(call, 900)).await;
    }
    let r = Reconciled {
        snapshot: s,
        observed: Observed::default(),
        lost: true,
        flags: vec![],
        unsaved: None,
        wrote: 0,
    };
    Err(update_blocker(&r, call.now).unwrap_or_else(|| {
        conflict(
            "update_preparing",
            "Somebody else began an update at the same time; look again.",
        )
    }))
}

fn create_needs_admin(e: &CallError) -> Option<NeedsAdmin> {
    if e.class == Class::Denied {
        return Some(decide::permission(e));
    }
    (e.code == "LimitExceededException").then(|| {
        NeedsAdmin::new(
            "delete_change_sets",
            "Delete change sets of this stack that you do not need, then try again.",
            None,
        )
    })
}

/// Why no update may be begun now because of another one.
fn update_blocker(r: &Reconciled, now: Timestamp) -> Option<Refused> {
    let s = &r.snapshot;
    if let Some(u) = s.foreign() {
        let text = format!(
            "The update to {} is managed by a newer version of Headgate (its state is {:?}).",
            u.to_release,
            u.status.as_str()
        );
        return Some(conflict("update_applying", text));
    }
    if s.read_only() {
        return Some(conflict(
            "update_applying",
            "The updates are managed by a newer version of Headgate.",
        ));
    }
    if let Some(p) = decide::pending(s, &r.observed) {
        let since = |t: Timestamp| t.strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
        match p.status {
            State::Applying => {
                let by = p.applied_by.as_deref().unwrap_or(CONSOLE);
                let at = p.applied_at.unwrap_or(p.started_at);
                let text = format!(
                    "The update to {} is being applied: {by} started it, since {}. Wait until it has ended.",
                    p.to_release,
                    since(at)
                );
                return Some(named(conflict("update_applying", text), p));
            }
            State::Preparing => {
                let text = format!(
                    "The update to {} is still being prepared: {} began it, since {}. Wait for it or discard it.",
                    p.to_release,
                    p.started_by,
                    since(p.started_at)
                );
                return Some(named(conflict("update_preparing", text), p));
            }
            _ => {}
        }
    }
    // An intent that is no candidate for the pointer blocks begin all the same.
    let intent = s.open().find(|u| u.change_set_id.is_none());
    let reserved = s.reservation(now).map(str::to_owned);
    if intent.is_none() && reserved.is_none() {
        return None;
    }
    let text = match intent {
        Some(u) => format!(
            "The update to {} is being prepared: {} began it, since {}.",
            u.to_release,
            u.started_by,
            u.started_at.strftime("%Y-%m-%d %H:%M:%S UTC")
        ),
        None => "Another update is being begun at this moment.".to_owned(),
    };
    Some(conflict("update_preparing", text))
}

fn named(r: Refused, u: &Update) -> Refused {
    match r {
        Refused::Conflict {
            mut blocker,
            mut extras,
        } => {
            blocker.since = Some(if u.status == State::Applying {
                u.applied_at.unwrap_or(u.started_at)
            } else {
                u.started_at
            });
            extras.push(("pending", Value::String(u.id.clone())));
            Refused::Conflict { blocker, extras }
        }
        other => other,
    }
}

/// The blocker of a release that may not be begun from what is installed.
pub fn release_blocker(list: &ReleaseList, current: &str, target: &Listed) -> Option<Blocker> {
    let (code, text) = match list.obstacle(current, target)? {
        Obstacle::Installed => (
            "release_installed",
            format!("Release {} is installed already.", target.release),
        ),
        Obstacle::Older => (
            "release_older",
            format!(
                "Release {} is older than the installed {current}; a downgrade is not possible.",
                target.release
            ),
        ),
        Obstacle::TooFar { stop } => (
            "release_too_far",
            format!(
                "Release {} can not be installed from {current} directly. Install {stop} first.",
                target.release
            ),
        ),
    };
    Some(Blocker {
        code: code.into(),
        text,
        needs_admin: None,
        since: None,
    })
}

/// The blocker of a release list that can not be read.
pub fn releases_blocker(o: &Observed) -> Blocker {
    match &o.releases {
        Some(Err(e)) => releases_unreadable(e),
        _ => releases_unreadable(&CallError::new(
            Class::Unavailable,
            "s3:GetObject",
            "NotRead",
            "it was not read",
        )),
    }
}

/// The same, from the failed read.
pub fn releases_unreadable(e: &CallError) -> Blocker {
    let (text, needs_admin) = if e.class == Class::Denied {
        (
            "Headgate may not read the release list.".to_owned(),
            Some(decide::permission(e)),
        )
    } else if e.code == "MalformedList" {
        (format!("The release list can not be used: {}.", e.message), None)
    } else {
        (
            format!(
                "The release list can not be read ({} answered {}).",
                e.action, e.code
            ),
            None,
        )
    };
    Blocker {
        code: "releases_unreadable".into(),
        text,
        needs_admin,
        since: None,
    }
}

/// The stack gate (table B, first column). `running` is true while one of our updates runs: then the busy stack
/// is the same fact and is not said twice.
pub fn stack_blocker(o: &Observed, running: bool) -> Option<Blocker> {
    let stack = match o.stack.as_ref()? {
        StackRead::Seen(s) => s,
        StackRead::Missing => return Some(no_stack()),
        StackRead::Failed(e) => {
            let needs_admin = (e.class == Class::Denied).then(|| decide::permission(e));
            return Some(Blocker {
                code: "stack_unreadable".into(),
                text: format!(
                    "The stack can not be read now ({} answered {}).",
                    e.action, e.code
                ),
                needs_admin,
                since: None,
            });
        }
    };
    let code = tables::gate(&stack.status)?;
    if running && code == "stack_busy" {
        return None;
    }
    let (text, admin) = match code {
        "stack_busy" => (
            "CloudFormation is changing this stack; not started here.".to_owned(),
            None,
        ),
        "stack_paused" => (
            "The last update stopped half-way with rollback off.".to_owned(),
            decide::needs_admin("stack_paused"),
        ),
        "stack_rollback_failed" => (
            "The last rollback failed; continue the rollback in CloudFormation first.".to_owned(),
            decide::needs_admin("rollback_failed"),
        ),
        "stack_install_failed" => (
            "The first install of this stack did not succeed.".to_owned(),
            decide::needs_admin("install_failed"),
        ),
        "stack_not_installed" => (
            "The stack was never installed.".to_owned(),
            no_stack().needs_admin,
        ),
        "stack_going" => ("The stack is being deleted, or is gone.".to_owned(), None),
        _ => (
            "The last import into this stack failed to roll back; repair it in CloudFormation first."
                .to_owned(),
            Some(NeedsAdmin::new(
                "repair_import",
                "Repair the failed import in CloudFormation.",
                None,
            )),
        ),
    };
    let text = if tables::cell(&stack.status, tables::Column::Running) == tables::Cell::Unknown {
        format!(
            "CloudFormation reports {}, which this version does not know; nothing is started on it.",
            stack.status
        )
    } else {
        text
    };
    Some(Blocker {
        code: code.into(),
        text,
        needs_admin: admin,
        since: stack.updated_at,
    })
}

/// apply (update_now): the OK. At most one execute per OK, always with a token.
///
/// # Errors
/// A refusal that names why, or AWS in trouble.
pub async fn apply<W: World>(w: &W, call: &Call<'_>, id: &str) -> Result<Reconciled, Refused> {
    let mut r = settled(w, call).await?;
    let row = own_row(w, call, id, &mut r).await?;
    if let Some(refusal) = apply_refusal(&r, &row) {
        return Err(refusal);
    }
    let item = w.get(&store::check_key(call.pk, &row.to_release)).await?;
    let check = match check_verdict(item.as_ref(), &row, call.now) {
        Check::Passed(record) => record,
        other => return Err(check_refusal(&other, &row)),
    };
    let ok = store::Ok {
        by: call.actor.to_owned(),
        check,
    };
    let commit = store::apply(
        call.pk,
        &r.snapshot,
        &row,
        &ok,
        call.now,
        &write_id(call, r.wrote),
    );
    match w.save(&commit.writes, &write_id(call, r.wrote)).await {
        Ok(()) => {
            r.snapshot = commit.after;
            r.wrote += 1;
        }
        Err(WriteError::Conflict(_)) => {
            r.snapshot = load(w, call.pk).await?;
            let now_there = r.snapshot.find(id).map(|v| v.row.clone()).unwrap_or(row);
            if let Some(refusal) = apply_refusal(&r, &now_there) {
                return Err(refusal);
            }
            // The row is as it was, so it was the check that changed.
            let item = w.get(&store::check_key(call.pk, &now_there.to_release)).await?;
            return Err(match check_verdict(item.as_ref(), &now_there, call.now) {
                Check::Passed(_) => conflict(
                    "not_pending",
                    "The update or its check changed at this moment; look again and repeat the OK.",
                ),
                other => check_refusal(&other, &now_there),
            });
        }
        Err(WriteError::Call(error)) => {
            return Err(Refused::Aws {
                error,
                what: "the OK could not be recorded, so nothing was started",
            });
        }
    }
    let applying = r.snapshot.find(id).map(|v| v.row.clone()).unwrap_or(row);
    let (Some(arn), Some(token)) = (applying.change_set_id.clone(), applying.apply_token.clone()) else {
        return Ok(r);
    };
    match w.act(&Act::Execute { arn, token }).await {
        Ok(_) => Ok(r),
        // It may run: the poll sees.
        Err(e) if e.effect_unknown() || e.class == Class::Throttled => Ok(r),
        Err(e) => {
            // Definitively refused: the grace is over at once and the row is resolved again.
            // Rows are read anew: a newer update may have taken its place in between (spec/updates.md 3.3).
            let mut observed = Observed::default();
            observed.refused.insert(id.to_owned(), e.clone());
            let snapshot = load(w, call.pk).await?;
            let after = resume(w, call, Purpose { full: true }, snapshot, observed, r.wrote).await?;
            let row = after.snapshot.find(id).map(|v| v.row.clone()).unwrap_or(applying);
            match row.status {
                State::Applying | State::Updated | State::RolledBack => Ok(after),
                State::Prepared => Err(Refused::ChangeSet {
                    text: super::cause::clean(&e.message),
                    needs_admin: (e.class == Class::Denied).then(|| decide::permission(&e)),
                    update: Some(id.to_owned()),
                }),
                _ => Err(apply_refusal(&after, &row)
                    .unwrap_or_else(|| conflict("not_pending", "The update has ended."))),
            }
        }
    }
}

/// The row of this id, read if it is not among the newest.
async fn own_row<W: World>(w: &W, call: &Call<'_>, id: &str, r: &mut Reconciled) -> Result<Update, Refused> {
    if r.snapshot.find(id).is_none() {
        fetch(w, call.pk, id, &mut r.snapshot).await?;
    }
    r.snapshot
        .find(id)
        .map(|v| v.row.clone())
        .ok_or_else(|| Refused::NoSuchUpdate(id.to_owned()))
}

/// Finds one update by id, for a view.
///
/// # Errors
/// The table can not be read.
pub async fn find<W: World>(
    w: &W,
    call: &Call<'_>,
    id: &str,
    r: &mut Reconciled,
) -> Result<Option<Update>, CallError> {
    if r.snapshot.find(id).is_none() {
        fetch(w, call.pk, id, &mut r.snapshot).await?;
    }
    Ok(r.snapshot.find(id).map(|v| v.row.clone()))
}

/// What only a newer version of Headgate understands is not acted on: the pending row, this row, or the head.
fn newer_version(s: &Snapshot, row: &Update) -> Option<Refused> {
    let this = s.find(&row.id).is_some_and(Versioned::is_newer);
    if let Some(u) = s.foreign().or(this.then_some(row)) {
        let text = format!(
            "The update to {} is managed by a newer version of Headgate.",
            u.to_release
        );
        return Some(conflict("update_applying", text));
    }
    s.read_only().then(|| {
        conflict(
            "update_applying",
            "The updates are managed by a newer version of Headgate.",
        )
    })
}

fn apply_refusal(r: &Reconciled, row: &Update) -> Option<Refused> {
    let pending = r.snapshot.head.row.pending.clone();
    let with_pending = |refused: Refused| match refused {
        Refused::Conflict { blocker, mut extras } => {
            extras.push(("pending", pending.clone().map_or(Value::Null, Value::String)));
            if let Some(by) = &row.superseded_by {
                extras.push(("superseded_by", Value::String(by.clone())));
            }
            Refused::Conflict { blocker, extras }
        }
        other => other,
    };
    if let Some(refusal) = newer_version(&r.snapshot, row) {
        return Some(with_pending(refusal));
    }
    match &row.status {
        State::Applying => {
            let by = row.applied_by.as_deref().unwrap_or(CONSOLE);
            return Some(with_pending(conflict(
                "update_applying",
                format!(
                    "The update to {} is being applied already; {by} started it.",
                    row.to_release
                ),
            )));
        }
        State::Expired => {
            let text = "The stack changed after this plan was made, so the plan is no longer valid. Prepare it again.";
            return Some(with_pending(conflict("plan_expired", text)));
        }
        State::Prepared | State::Preparing => {}
        other => {
            let text = format!(
                "This update is {} and can not be applied.",
                other.label().to_lowercase()
            );
            return Some(with_pending(conflict("not_pending", text)));
        }
    }
    if let Some(running) = r
        .snapshot
        .open()
        .find(|u| u.id != row.id && u.status == State::Applying)
    {
        let text = format!(
            "The update to {} is being applied; wait until it has ended.",
            running.to_release
        );
        return Some(with_pending(conflict("update_applying", text)));
    }
    if pending.as_deref() != Some(row.id.as_str()) && row.change_set_id.is_some() {
        return Some(with_pending(conflict(
            "not_pending",
            "Another update is the pending one; look again.",
        )));
    }
    if row.status == State::Preparing {
        let text = format!(
            "The update to {} is still being prepared; wait until it waits for your OK.",
            row.to_release
        );
        return Some(with_pending(conflict("not_prepared", text)));
    }
    match (
        r.observed.sets.get(&row.id),
        decide::class_of(&r.observed, &row.id),
    ) {
        (_, Some(tables::Class::Ready)) => {}
        (Some(SetRead::Failed(e)), _) => {
            return Some(Refused::Aws {
                error: e.clone(),
                what: "the change set could not be read, so nothing was started",
            });
        }
        (_, Some(tables::Class::Obsolete | tables::Class::Gone)) => {
            return Some(with_pending(conflict(
                "plan_expired",
                "The plan is no longer valid; prepare it again.",
            )));
        }
        _ => {
            let text = "CloudFormation does not show the change set as ready to run; look again.";
            return Some(with_pending(conflict("not_prepared", text)));
        }
    }
    if let Some(StackRead::Failed(e)) = &r.observed.stack {
        return Some(Refused::Aws {
            error: e.clone(),
            what: "the stack could not be read, so nothing was started",
        });
    }
    if let Some(error) = &r.unsaved {
        return Some(Refused::Aws {
            error: error.clone(),
            what: "what CloudFormation says could not be recorded, so nothing was started",
        });
    }
    if r.lost {
        return Some(with_pending(conflict(
            "not_pending",
            "The update changed at this moment; look again.",
        )));
    }
    stack_blocker(&r.observed, false).map(|b| {
        with_pending(Refused::Conflict {
            blocker: b,
            extras: vec![],
        })
    })
}

/// The verdict on a release check from its stored record. A pass counts only for the digest that was prepared,
/// and a pending check that is older than its bound is stalled, whether or not somebody has looked at it since.
pub fn check_verdict(item: Option<&Item>, row: &Update, now: Timestamp) -> Check {
    let Some(item) = item else {
        return Check::NotStarted;
    };
    let check = match Versioned::<release_check::model::Check>::read(item.clone()) {
        Ok(v) => v.row,
        Err(_) => return Check::Stalled(Some("its record can not be read".into())),
    };
    let judged = release_check::decide::judge(&release_check::decide::Context {
        check: Some(&check),
        report: None,
        build: None,
        listed: None,
        models: None,
        now,
    });
    let known = judged.next.as_ref().unwrap_or(&check);
    let reason = known.reason.as_ref().map(|r| r.text.clone());
    match judged.state {
        "passed" => {
            let (passed, wanted) = (check.template_sha256.as_deref(), row.template_sha256.as_deref());
            if passed.is_none() || passed != wanted {
                return Check::Failed(Some("the check that passed was of another template".into()));
            }
            let internal = ["pk", "sk", "rev", "schema", "ttl", "last_write_id"];
            let record = item.iter().filter(|(k, _)| !internal.contains(&k.as_str()));
            Check::Passed(record.map(|(k, v)| (k.clone(), v.to_json())).collect())
        }
        "pending" => Check::Pending(check.step.map(|s| format!("it is in {s}"))),
        "failed" => Check::Failed(reason),
        "stalled" => Check::Stalled(reason),
        _ => Check::NotStarted,
    }
}

fn check_refusal(check: &Check, row: &Update) -> Refused {
    let with = |text: String, reason: &Option<String>| match reason {
        Some(r) => format!("{text}: {r}."),
        None => format!("{text}."),
    };
    let (code, text) = match check {
        Check::NotStarted | Check::Passed(_) => (
            "model_check_not_started",
            format!("No release check has run for {}; start it first.", row.to_release),
        ),
        Check::Pending(r) => (
            "model_check_pending",
            with(
                format!("The release check of {} is still running", row.to_release),
                r,
            ),
        ),
        Check::Failed(r) => (
            "model_check_failed",
            with(format!("The model check of {} said no", row.to_release), r),
        ),
        Check::Stalled(r) => (
            "model_check_stalled",
            with(
                format!(
                    "The release check of {} has stalled; start it again",
                    row.to_release
                ),
                r,
            ),
        ),
    };
    conflict(code, text)
}

/// discard: throws a preparing or prepared update away, after a fresh read.
///
/// # Errors
/// 409 when it runs or is closed; 503 when CloudFormation could not be asked.
pub async fn discard<W: World>(w: &W, call: &Call<'_>, id: &str) -> Result<Reconciled, Refused> {
    let mut r = settled(w, call).await?;
    let row = own_row(w, call, id, &mut r).await?;
    if let Some(refusal) = discard_refusal(&r, &row) {
        return Err(refusal);
    }
    let mut answered = true;
    // Asked for even where the set was not found: that may be a read from before it was made, and deleting what
    // is gone succeeds (spec/updates.md 4.1 item 5).
    if let Some(arn) = row.change_set_id.clone() {
        match w.act(&Act::Delete { arn: arn.clone() }).await {
            Ok(_) => {}
            Err(e) if e.class == Class::NotFound => {}
            Err(e) => {
                // Refused or unknown: only fresh reads tell whether it is gone, or started to run.
                let snapshot = load(w, call.pk).await?;
                let there = snapshot.find(id).map(|v| v.row.clone()).unwrap_or(row.clone());
                let looks = [
                    Look::SetByArn(arn),
                    Look::Stack(decide::stack_ref(&snapshot, call.stack).to_owned()),
                ];
                let mut observed = Observed {
                    deletes: Default::default(),
                    ..r.observed.clone()
                };
                let mut seen = w.look(&looks).await.into_iter();
                if let (Some(Seen::Set(set)), Some(Seen::Stack(stack))) = (seen.next(), seen.next()) {
                    observed.sets.insert(id.to_owned(), set);
                    observed.stack = Some(stack);
                }
                let gone = matches!(observed.sets.get(id), Some(SetRead::NotFound));
                if gone && there.rev == row.rev && !decide::has_run(&row, &observed) {
                    // The delete was done and its answer lost: go on as if it had been answered. The clean-up
                    // deletes once more, because this read may have been behind as well.
                    r.snapshot = snapshot;
                    answered = false;
                } else {
                    let after = resume(w, call, Purpose { full: true }, snapshot, observed, r.wrote).await?;
                    let there = after.snapshot.find(id).map(|v| v.row.clone()).unwrap_or(there);
                    if let Some(refusal) = discard_refusal(&after, &there) {
                        return Err(refusal);
                    }
                    if !e.passing() && decide::class_of(&after.observed, id) == Some(tables::Class::Making) {
                        let text = "CloudFormation is still making the change set and does not delete it yet; try again soon.";
                        return Err(conflict("update_preparing", text));
                    }
                    return Err(Refused::Aws {
                        error: e,
                        what: "the change set could not be deleted",
                    });
                }
            }
        }
    }
    let reason = crate::status::Reason::new("discarded_by_user", format!("{} discarded it.", call.actor));
    let mut next = row.clone();
    next.status = State::Discarded;
    next.reason = Some(reason.from_source("user"));
    next.finished_at = Some(call.now);
    next.progress = None;
    next.change_set_cleanup = if answered { Cleanup::Done } else { Cleanup::Pending };
    next.ttl = Some(crate::store::ttl(call.now, decide::KEEP_DAYS));
    let head = decide::head_after_close(&r.snapshot.head.row, &next);
    let commit = store::change(
        call.pk,
        &r.snapshot,
        &decide::Change {
            row: Some(next),
            head,
        },
        &write_id(call, r.wrote),
    );
    match w.save(&commit.writes, &write_id(call, r.wrote)).await {
        Ok(()) => {
            r.snapshot = commit.after;
            r.wrote += 1;
            Ok(r)
        }
        Err(WriteError::Conflict(_)) => {
            r.snapshot = load(w, call.pk).await?;
            let row = r.snapshot.find(id).map(|v| v.row.clone()).unwrap_or(row);
            Err(discard_refusal(&r, &row).unwrap_or_else(|| {
                conflict(
                    "update_preparing",
                    "The update changed at this moment; look again.",
                )
            }))
        }
        Err(WriteError::Call(error)) => Err(Refused::Aws {
            error,
            what: "the change set was deleted but this could not be recorded; the next look will",
        }),
    }
}

fn discard_refusal(r: &Reconciled, row: &Update) -> Option<Refused> {
    if row.status.is_open()
        && let Some(refusal) = newer_version(&r.snapshot, row)
    {
        return Some(refusal);
    }
    match &row.status {
        State::Applying => Some(conflict(
            "update_applying",
            "The update is being applied and can not be discarded.",
        )),
        State::Preparing | State::Prepared => {
            if row.change_set_id.is_none() {
                let text = "The request to make the change set is still in flight; try again in two minutes.";
                return Some(conflict("update_preparing", text));
            }
            if decide::class_of(&r.observed, &row.id).is_some_and(|c| c.has_run()) {
                let text = "CloudFormation runs the update, so it can not be discarded.";
                return Some(conflict("update_applying", text));
            }
            if let Some(error) = &r.unsaved {
                return Some(Refused::Aws {
                    error: error.clone(),
                    what: "what CloudFormation says could not be recorded, so nothing was deleted",
                });
            }
            match r.observed.sets.get(&row.id) {
                Some(SetRead::Failed(e)) => Some(Refused::Aws {
                    error: e.clone(),
                    what: "the change set could not be read, so nothing was deleted",
                }),
                _ if r.lost => Some(conflict(
                    "update_preparing",
                    "The update changed at this moment; look again.",
                )),
                _ => None,
            }
        }
        State::Unknown(_) => Some(conflict(
            "update_applying",
            "A newer version of Headgate manages this update.",
        )),
        _ => Some(conflict(
            "already_closed",
            format!("This update has ended already: {}.", row.status.label()),
        )),
    }
}

/// history_view: rows as they are, newest first. View only, no write (spec/updates.md 1.7).
///
/// # Errors
/// The table can not be read.
pub async fn history<W: World>(
    w: &W,
    pk: &str,
    limit: u32,
    after: Option<String>,
) -> Result<(Vec<Versioned<Update>>, Option<String>, Head), CallError> {
    let first = after.is_none();
    let page = w
        .query(&store::newest(pk, limit + u32::from(first), after))
        .await?;
    let mut s = store::empty();
    let head_on_page = page
        .items
        .iter()
        .any(|i| i.get("sk").and_then(Attr::as_str) == Some(store::HEAD_SK));
    let mut items = page.items;
    let mut next = page.next;
    if !head_on_page {
        if first && items.len() > limit as usize {
            items.truncate(limit as usize);
            next = items.last().and_then(Key::of).map(|k| k.sk);
        }
        if let Some(head) = w.get(&store::head_key(pk)).await? {
            items.push(head);
        }
    }
    store::take(items, &mut s).map_err(unreadable)?;
    Ok((s.rows, next, s.head.row))
}
