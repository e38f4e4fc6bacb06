//! What must hold, at every step and at rest.

use super::cfn::{Cfn, Happens, Life};
use super::{Ask, Outside, Program, Updates, What, number, short, text};
use crate::explore::Act as Did;
use crate::explore::{self, Part, Step};
use crate::store::memory::MemoryTable;
use crate::store::{Attr, Item};
use crate::updates::model::Act;
use crate::updates::store::HEAD_SK;

/// A row of the table, by its raw attributes: the checks must not share the reader that is under test.
pub(super) struct Row<'a> {
    pub(super) id: &'a str,
    pub(super) status: &'a str,
    item: &'a Item,
}

impl<'a> Row<'a> {
    fn of(item: &'a Item) -> Self {
        Self {
            id: text(item, "id"),
            status: text(item, "status"),
            item,
        }
    }

    pub(super) fn open(&self) -> bool {
        matches!(self.status, "preparing" | "prepared" | "applying")
    }

    pub(super) fn has_set(&self) -> bool {
        self.item.contains_key("change_set_id")
    }

    fn reason(&self) -> &'a str {
        match self.item.get("reason") {
            Some(Attr::M(m)) => m.get("code").and_then(Attr::as_str).unwrap_or("-"),
            _ => "-",
        }
    }

    fn life(&self, cfn: &Cfn) -> Option<Life> {
        cfn.life(text(self.item, "change_set_name"))
    }

    fn name(&self) -> String {
        short(self.id)
    }
}

/// All updates, oldest first.
pub(super) fn rows(table: &MemoryTable) -> impl DoubleEndedIterator<Item = Row<'_>> {
    table
        .items
        .iter()
        .filter(|(k, _)| k.sk.starts_with("UPDATE#") && k.sk != HEAD_SK)
        .map(|(_, i)| Row::of(i))
}

/// Does the check of this release stand as passed?
pub(super) fn passed(table: &MemoryTable, release: &str) -> bool {
    let key = crate::updates::store::check_key(crate::updates::fake::PK, release);
    table
        .items
        .get(&key)
        .is_some_and(|i| text(i, "state") == "passed")
}

fn head(table: &MemoryTable) -> Option<&Item> {
    table.items.iter().find(|(k, _)| k.sk == HEAD_SK).map(|(_, i)| i)
}

pub(super) fn step(step: &Step<'_, Updates>) -> Result<(), String> {
    let (before, after) = (step.before, step.after);
    if let Did::Call {
        request: Ask::Act(act),
        program,
        ..
    } = &step.act
    {
        intended(before, program, act)?;
    }
    if before.table != after.table {
        written(&before.table, &after.table, &after.cfn)?;
    }
    if before.table != after.table || before.cfn != after.cfn {
        told(after)?;
    }
    Ok(())
}

/// Nothing is asked of CloudFormation that is not stored as wanted.
fn intended(w: &Outside, program: &Program, act: &Act) -> Result<(), String> {
    match act {
        Act::Create(c) => match rows(&w.table).find(|r| text(r.item, "change_set_name") == c.name) {
            Some(row) if row.status == "preparing" => Ok(()),
            _ => Err(format!("{} is created without a stored intent", short(&c.name))),
        },
        Act::Execute { arn, token } => {
            let row = rows(&w.table).find(|r| text(r.item, "change_set_id") == arn);
            let Some(row) = row else {
                return Err("a set without a row is executed".into());
            };
            // (Closed already when the console was faster and its run has ended: then this is refused.)
            let ran = w.cfn.life(arn).is_some_and(Life::has_run);
            if text(row.item, "apply_token") != token || !(row.status == "applying" || ran) {
                return Err(format!("{} is executed without a stored OK", row.name()));
            }
            if w.sent.contains(token) {
                return Err(format!("{} is executed twice for one OK", row.name()));
            }
            if w.cfn.life(arn).is_some_and(Life::has_run) && w.sent.iter().any(|t| t.contains(row.id)) {
                return Err(format!(
                    "{} is executed again although an earlier OK started it",
                    row.name()
                ));
            }
            if let Some(other) = rows(&w.table).find(|r| r.id != row.id && r.status == "applying") {
                return Err(format!(
                    "{} is executed while {} is applying",
                    row.name(),
                    other.name()
                ));
            }
            Ok(())
        }
        Act::Delete { arn } => {
            let row = rows(&w.table).find(|r| text(r.item, "change_set_id") == arn);
            let Some(row) = row else { return Ok(()) };
            // A user may have given the OK a moment ago: then CloudFormation decides which of the two calls
            // comes first (spec/updates.md 3.3). But there must be somebody who wanted the set away.
            let newer = rows(&w.table).any(|r| number(r.item, "seq") > number(row.item, "seq"));
            if row.open() && !newer && !matches!(program.what, What::Discard(_)) {
                return Err(format!(
                    "the change set of {} is deleted and nobody asked for it",
                    row.name()
                ));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// What one write may do.
fn written(before: &MemoryTable, after: &MemoryTable, cfn: &Cfn) -> Result<(), String> {
    for old in rows(before) {
        let key = text(old.item, "sk");
        let Some(new) = rows(after).find(|r| text(r.item, "sk") == key) else {
            return Err(format!("the row of {} is gone", old.name()));
        };
        if new.item != old.item {
            changed(&old, &new, before, cfn)?;
        }
    }
    let known = rows(before).count();
    if rows(after).count() > known
        && let Some(running) = rows(before).find(|r| r.status == "applying")
    {
        return Err(format!("an update is begun while {} is applying", running.name()));
    }
    let open: Vec<Row<'_>> = rows(after).filter(Row::open).collect();
    if open.iter().filter(|r| !r.has_set()).count() > 1 {
        return Err("two updates are being begun at once".into());
    }
    if open.len() > 2 {
        return Err("three updates are open at once".into());
    }
    if open.iter().filter(|r| r.status == "preparing").count() > 1 {
        return Err("two updates are being prepared at once".into());
    }
    Ok(())
}

fn changed(old: &Row<'_>, new: &Row<'_>, table: &MemoryTable, cfn: &Cfn) -> Result<(), String> {
    let name = old.name();
    if old.id != new.id {
        return Err(format!("the row of {name} is taken by {}", new.name()));
    }
    if !old.open() {
        let refined = old.status == "failed"
            && matches!(old.reason(), "rollback_failed" | "stack_paused")
            && new.status == "rolled_back";
        let late = old.item.get("reason_pending") == Some(&Attr::Bool(true));
        for (field, value) in new.item {
            let kept = match field.as_str() {
                "rev" | "last_write_id" | "change_set_cleanup" | "ttl" | "observed_at" => true,
                "reason" | "reason_pending" | "needs_admin" => late || refined,
                "finished_at" => late || refined,
                "status" => refined,
                _ => false,
            };
            if !kept && old.item.get(field) != Some(value) {
                return Err(format!(
                    "{name} is closed ({}) and its {field} changes",
                    old.status
                ));
            }
        }
        return Ok(());
    }
    let allowed = match (old.status, new.status) {
        (a, b) if a == b => true,
        ("prepared" | "applying", "preparing") => false,
        ("applying", "prepared") => matches!(new.reason(), "execute_not_started" | "execute_refused"),
        _ => true,
    };
    if !allowed {
        return Err(format!("{name} goes back from {} to {}", old.status, new.status));
    }
    // An OK is given for the pending update, on a check that stands.
    if text(old.item, "apply_token") != text(new.item, "apply_token") {
        if head(table).and_then(|h| h.get("pending")).and_then(Attr::as_str) != Some(old.id) {
            return Err(format!("{name} gets its OK and is not the pending one"));
        }
        if !passed(table, text(old.item, "to_release")) {
            return Err(format!("{name} gets its OK and its check does not stand"));
        }
    }
    if old.status == "applying" && new.status == "prepared" && new.life(cfn).is_some_and(Life::has_run) {
        return Err(format!("{name} runs, and its row says that it waits for the OK"));
    }
    Ok(())
}

/// What the rows say is what CloudFormation did.
fn told(w: &Outside) -> Result<(), String> {
    for row in rows(&w.table) {
        let life = row.life(&w.cfn);
        let ran = life.is_some_and(Life::has_run);
        let name = row.name();
        // A set whose ARN nobody heard, run in the console and followed by another operation before anybody
        // looked: CloudFormation finds it by no name, and the stack does not name it any more.
        let untraceable = !row.has_set()
            && w.cfn.cloud.stack.as_ref().is_some_and(|s| {
                !s.change_set_id
                    .as_deref()
                    .unwrap_or("")
                    .contains(text(row.item, "change_set_name"))
            });
        match row.status {
            "superseded" | "discarded" | "expired" if ran => {
                return Err(format!(
                    "the change set of {name} runs or ran, and its row says {}",
                    row.status
                ));
            }
            "failed" if ran && !untraceable && matches!(row.reason(), "prepare_failed" | "prepare_lost") => {
                return Err(format!(
                    "the change set of {name} runs or ran, and its row says {}",
                    row.reason()
                ));
            }
            "updated" if life != Some(Life::Ran) => {
                return Err(format!("{name} says updated, and its change set is {life:?}"));
            }
            "rolled_back" if life != Some(Life::RanBadly) => {
                return Err(format!("{name} says rolled back, and its change set is {life:?}"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn poll(w: &Outside, nth: usize) -> Program {
    Program {
        what: What::Reconcile { full: true },
        by: "checker",
        nth,
        now: w.cfn.now,
    }
}

/// With nobody under way: a second look changes nothing, and everything ends or waits under a bound.
pub(super) fn idle(sys: &Updates, w: &Outside) -> Result<(), String> {
    let (once, _, _) = explore::solo(sys, w, &poll(w, 0));
    told(&once)?;
    let (_, _, trace) = explore::solo(sys, &once, &poll(&once, 1));
    if let Some((ask, _)) = trace
        .iter()
        .find(|(a, _)| matches!(a, Ask::Save(_) | Ask::Act(_)))
    {
        use crate::explore::System;
        return Err(format!("a second look acts again: {}", sys.show_request(ask)));
    }
    // Long waits of the schedule, until one of them changes nothing.
    let mut end = w.clone();
    for nth in 2..8 {
        while let Some(h) = natural(&end.cfn) {
            end.cfn = Part::new(end.cfn.happen(h));
        }
        end.cfn = Part::new(end.cfn.happen(Happens::Pass(16 * 60)));
        let poll = Program {
            what: What::Reconcile { full: false },
            ..poll(&end, nth)
        };
        let (next, _, _) = explore::solo(sys, &end, &poll);
        if next == end {
            return ended(&end);
        }
        end = next;
    }
    Err("it never comes to rest".into())
}

/// What CloudFormation does if nobody interferes and nothing fails.
fn natural(cfn: &Cfn) -> Option<Happens> {
    cfn.may_happen(false, false)
        .into_iter()
        .find(|h| matches!(h, Happens::Made(_) | Happens::Ends | Happens::RolledBack))
}

/// How things stand when all bounds are over.
fn ended(w: &Outside) -> Result<(), String> {
    let open: Vec<Row<'_>> = rows(&w.table).filter(Row::open).collect();
    if open.len() > 1 {
        return Err("after all bounds two updates are still open".into());
    }
    let pending = open.first();
    if let Some(row) = pending
        && !(row.status == "prepared" && row.life(&w.cfn) == Some(Life::Ready))
    {
        return Err(format!(
            "after all bounds {} is still {} ({:?})",
            row.name(),
            row.status,
            row.life(&w.cfn)
        ));
    }
    let Some(head) = head(&w.table) else { return Ok(()) };
    if head.get("pending").and_then(Attr::as_str) != pending.map(|r| r.id) {
        return Err("after all bounds the pointer is not on the open update".into());
    }
    let held = head.get("reserve_until").and_then(Attr::as_u64).unwrap_or(0);
    if i128::from(held) > i128::from(w.cfn.now.as_millisecond()) {
        return Err("after all bounds the turn is still reserved".into());
    }
    if matches!(head.get("work"), Some(Attr::L(l)) if !l.is_empty()) {
        return Err("after all bounds there is still work to do".into());
    }
    for set in &w.cfn.cloud.sets {
        let kept = pending.is_some_and(|r| text(r.item, "change_set_name") == set.set.name);
        let life = Life::of(set);
        if !kept && !life.has_run() && life != Life::Deleted {
            return Err(format!(
                "after all bounds the change set {} is left behind ({life:?})",
                short(&set.set.name)
            ));
        }
    }
    Ok(())
}
