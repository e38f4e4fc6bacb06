//! Guards removed one at a time. Each is removed in the world that the shell talks to, so that no production
//! file knows about it: a condition is dropped on its way to the table, a read answers less than it knows, a
//! call is said to have worked, the caller's clock is ahead. Every one must be found.

use super::Turn::{Apply, Begin, Discard, Poll};
use super::{Hear, Outside, Program, Turn, Updates, What, after, quiet};
use crate::error::CallError;
use crate::explore::{Bounds, explore};
use crate::store::{Attr, Cond, Op, Write};
use crate::time::{Timestamp, plus_seconds};
use crate::updates::fake::Cloud;
use crate::updates::model::{Act, Fact, Look, Seen, SetRead};
use crate::updates::store::HEAD_SK;

/// The guard that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mistake {
    /// TX-1 takes the turn without asking whether somebody else has it.
    ReserveWithoutConditions,
    /// TX-1 does not check that the pending update is still only prepared.
    ReserveWithoutPending,
    /// TX-3 does not check that the row is still prepared, as read.
    ApplyWithoutRow,
    /// TX-3 does not check that the update is still the pending one.
    ApplyWithoutPointer,
    /// TX-3 does not check that the release check still stands.
    ApplyWithoutCheck,
    /// The poll writes whatever the row has become since it was read.
    PollWithoutRevision,
    /// CloudFormation's refusal to delete a set is taken for success.
    RefusedDeleteIsDone,
    /// The set of a superseded update is marked deleted and never deleted.
    DeleteNotSent,
    /// The poll forgets the grace of an execute.
    NoGrace,
    /// The poll gives up an intent that is still in flight.
    NoIntentBound,
    /// The change set is looked up by name although its ARN is known.
    ByName,
    /// The execution status of a set is not looked at.
    ExecutionStatusIgnored,
    /// The head forgets what is left to clean up.
    WorkForgotten,
    /// A row whose execute did not take forgets the token it used.
    OneTokenForAll,
}

fn row_status(w: &Write) -> Option<&str> {
    let Op::Put(item) = &w.op else { return None };
    item.get("status").and_then(Attr::as_str)
}

/// The caller's idea of the time.
pub(super) fn clock(m: Option<Mistake>, p: &Program) -> Timestamp {
    let polls = matches!(p.what, What::Reconcile { .. }) && p.by != "checker";
    let ahead = polls && matches!(m, Some(Mistake::NoGrace | Mistake::NoIntentBound));
    plus_seconds(p.now, if ahead { 121 } else { 0 })
}

/// A transaction on its way to the table.
pub(super) fn writes(m: Option<Mistake>, writes: &[Write]) -> Vec<Write> {
    let Some(m) = m else { return writes.to_vec() };
    let reserves = writes
        .iter()
        .any(|w| w.when == Cond::NotExists && row_status(w) == Some("preparing"));
    let applies = writes
        .iter()
        .any(|w| matches!(w.op, Op::Check) && w.key.sk == HEAD_SK);
    let mut out = writes.to_vec();
    match m {
        Mistake::ReserveWithoutConditions if reserves => out.iter_mut().for_each(|w| w.when = Cond::Always),
        Mistake::ReserveWithoutPending if reserves => out.retain(|w| !matches!(w.op, Op::Check)),
        Mistake::ApplyWithoutRow if applies => {
            out.iter_mut()
                .filter(|w| row_status(w).is_some())
                .for_each(|w| w.when = Cond::Always);
        }
        Mistake::ApplyWithoutPointer if applies => out.retain(|w| w.key.sk != HEAD_SK),
        Mistake::ApplyWithoutCheck if applies => out.retain(|w| !w.key.sk.starts_with("CHECK#")),
        Mistake::PollWithoutRevision if !reserves && !applies => {
            out.iter_mut()
                .filter(|w| row_status(w).is_some())
                .for_each(|w| w.when = Cond::Always);
        }
        Mistake::WorkForgotten => out.iter_mut().for_each(|w| {
            if let (HEAD_SK, Op::Put(item)) = (w.key.sk.as_str(), &mut w.op) {
                item.insert("work".into(), Attr::L(Vec::new()));
            }
        }),
        Mistake::OneTokenForAll => {
            for w in out.iter_mut().filter(|w| row_status(w) == Some("prepared")) {
                if let Op::Put(item) = &mut w.op {
                    item.remove("apply_token");
                }
            }
        }
        _ => {}
    }
    out
}

/// The answer to a read.
pub(super) fn seen(m: Option<Mistake>, w: &Outside, looks: &[Look], mut seen: Vec<Seen>) -> Vec<Seen> {
    for (look, seen) in looks.iter().zip(&mut seen) {
        match (m, look, &mut *seen) {
            (Some(Mistake::ByName), Look::SetByArn(arn), _) => {
                let named = w.cfn.cloud.sets.iter().find(|s| s.set.arn == *arn);
                if let Some(s) = named {
                    let name = s.set.name.clone();
                    *seen = Cloud::look(
                        &w.cfn.cloud,
                        &Look::SetByName {
                            stack: String::new(),
                            name,
                        },
                    );
                }
            }
            (Some(Mistake::ExecutionStatusIgnored), _, Seen::Set(SetRead::Seen(set)))
                if set.execution.starts_with("EXECUTE") =>
            {
                set.execution = "AVAILABLE".into();
            }
            _ => {}
        }
    }
    seen
}

/// A call that does not get through as it should: what the shell hears instead.
pub(super) fn act(m: Option<Mistake>, w: &Outside, act: &Act) -> Option<Result<Fact, CallError>> {
    let Act::Delete { arn } = act else { return None };
    let ran = w.cfn.life(arn).is_some_and(super::Life::has_run);
    match m {
        Some(Mistake::RefusedDeleteIsDone) if ran => Some(Ok(Fact::Done)),
        Some(Mistake::DeleteNotSent) => Some(Ok(Fact::Done)),
        _ => None,
    }
}

/// Explores a cast with the mistake and without it: found with it, with these words; clean without it.
fn found(mistake: Mistake, mut sys: Updates, start: &Outside, bounds: &Bounds, words: &str) {
    let clean = explore(
        &sys,
        start.clone(),
        &Bounds {
            states: 3_000,
            ..*bounds
        },
    );
    clean.assert_clean();
    sys.mistake = Some(mistake);
    let r = explore(&sys, start.clone(), bounds);
    let Some(v) = &r.violation else {
        panic!("{mistake:?} is not found: {r}\n{:?}", r.outcomes)
    };
    println!("{mistake:?} in {} states: {v}\n", r.states);
    assert!(v.reason.contains(words), "{mistake:?} is found as: {v}");
    assert!(v.lines.len() > 2, "{v}");
}

fn bounds(crashes: u8, faults: u8, switches: u8) -> Bounds {
    Bounds {
        crashes,
        faults,
        switches: Some(switches),
        states: 200_000,
        ..Bounds::default()
    }
}

fn one_prepared() -> Outside {
    after(&quiet(), &[Begin("2.4.0"), Poll])
}

fn cast(turns: &[(&'static str, &[Turn])]) -> Updates {
    Updates::new(turns)
}

#[test]
fn m01_reserve_without_conditions() {
    let sys = cast(&[("ana", &[Begin("2.4.0")]), ("ben", &[Begin("2.5.0")])]);
    found(
        Mistake::ReserveWithoutConditions,
        sys,
        &quiet(),
        &bounds(0, 0, 1),
        "is taken by",
    );
}

#[test]
fn m02_reserve_without_the_pending_row() {
    let sys = cast(&[("ana", &[Apply]), ("ben", &[Begin("2.5.0")])]);
    found(
        Mistake::ReserveWithoutPending,
        sys,
        &one_prepared(),
        &bounds(0, 0, 1),
        "begun while",
    );
}

#[test]
fn m03_apply_without_the_row() {
    let sys = cast(&[("ana", &[Apply]), ("ben", &[Apply])]);
    found(
        Mistake::ApplyWithoutRow,
        sys,
        &one_prepared(),
        &bounds(0, 0, 1),
        "twice for one OK",
    );
}

#[test]
fn m04_apply_without_the_pointer() {
    let sys = cast(&[("ana", &[Apply]), ("ben", &[Begin("2.5.0")])]);
    found(
        Mistake::ApplyWithoutPointer,
        sys,
        &one_prepared(),
        &bounds(0, 0, 2),
        "not the pending one",
    );
}

#[test]
fn m05_apply_without_the_check() {
    let mut sys = cast(&[("ana", &[Apply])]);
    sys.withdrawn = true;
    found(
        Mistake::ApplyWithoutCheck,
        sys,
        &one_prepared(),
        &bounds(0, 0, 1),
        "check does not stand",
    );
}

#[test]
fn m06_a_poll_over_a_newer_state() {
    let sys = cast(&[("poll", &[Poll]), ("ana", &[Apply])]);
    let start = after(&quiet(), &[Begin("2.4.0")]);
    found(
        Mistake::PollWithoutRevision,
        sys,
        &start,
        &bounds(0, 0, 1),
        "goes back from applying to prepared",
    );
}

#[test]
fn m07_a_refused_delete_taken_for_done() {
    let mut sys = cast(&[("ana", &[Discard])]);
    sys.console = true;
    found(
        Mistake::RefusedDeleteIsDone,
        sys,
        &one_prepared(),
        &bounds(0, 0, 1),
        "and its row says discarded",
    );
}

#[test]
fn m08_a_delete_that_is_not_sent() {
    let sys = cast(&[("ana", &[Begin("2.5.0")])]);
    found(
        Mistake::DeleteNotSent,
        sys,
        &one_prepared(),
        &bounds(0, 0, 0),
        "is left behind",
    );
}

#[test]
fn m09_no_grace() {
    let sys = cast(&[("ana", &[Apply]), ("poll", &[Poll])]);
    found(
        Mistake::NoGrace,
        sys,
        &one_prepared(),
        &bounds(0, 0, 1),
        "is executed without a stored OK",
    );
}

#[test]
fn m10_no_bound_for_an_intent() {
    let sys = cast(&[("ana", &[Begin("2.4.0")]), ("poll", &[Poll])]);
    found(
        Mistake::NoIntentBound,
        sys,
        &quiet(),
        &bounds(0, 0, 1),
        "is created without a stored intent",
    );
}

#[test]
fn m11_by_name_instead_of_by_arn() {
    let mut sys = cast(&[("poll", &[Poll])]);
    (sys.console, sys.foreign) = (true, true);
    found(
        Mistake::ByName,
        sys,
        &one_prepared(),
        &bounds(0, 0, 0),
        "runs or ran, and its row says expired",
    );
}

#[test]
fn m12_the_execution_status_is_ignored() {
    let mut sys = cast(&[("ana", &[Apply]), ("poll", &[Poll])]);
    sys.passes = vec![121];
    found(
        Mistake::ExecutionStatusIgnored,
        sys,
        &one_prepared(),
        &bounds(0, 0, 0),
        "is still prepared (Some(Ran))",
    );
}

#[test]
fn m13_work_that_is_forgotten() {
    let sys = cast(&[("poll", &[Poll])]);
    let mut start = after(&quiet(), &[]);
    start = super::begun(&start);
    found(
        Mistake::WorkForgotten,
        sys,
        &start,
        &bounds(1, 0, 0),
        "is left behind",
    );
}

#[test]
fn m14_one_token_for_two_oks() {
    let mut sys = cast(&[("ana", &[Apply, Apply]), ("poll", &[Poll])]);
    sys.passes = vec![121];
    found(
        Mistake::OneTokenForAll,
        sys,
        &one_prepared(),
        &bounds(0, 1, 0),
        "twice for one OK",
    );
}

#[test]
fn the_answers_of_a_mistake_are_those_of_the_world_otherwise() {
    let w = one_prepared();
    let looks = [Look::Stack(String::new())];
    let plain: Vec<Seen> = looks.iter().map(|l| w.cfn.cloud.look(l)).collect();
    assert_eq!(
        Hear::Seen(seen(None, &w, &looks, plain.clone())),
        Hear::Seen(plain)
    );
}
