//! Rows and transactions of updates (spec/updates.md 3.1, 3.2). Pure: builds writes, reads items.

use super::decide::{Change, Snapshot};
use super::model::{Head, State, Update};
use crate::status::Reason;
use crate::store::{Attr, Cond, Item, Key, Query, Versioned, Write};
use crate::time::{Timestamp, plus_seconds};
use serde_json::{Map, Value};
use uuid::Uuid;

/// How long a begin may be in flight before its reservation is void, in seconds.
pub const RESERVE_S: i64 = 120;

/// Sort key of the head: sorts after every `UPDATE#<seq>`, so one descending query reads head and newest rows.
pub const HEAD_SK: &str = "UPDATE#HEAD";

/// Key of the head.
pub fn head_key(pk: &str) -> Key {
    Key::new(pk, HEAD_SK)
}

/// Key of an update.
pub fn update_key(pk: &str, seq: u64) -> Key {
    Key::new(pk, format!("UPDATE#{seq:010}"))
}

/// Key of the model check of a release.
pub fn check_key(pk: &str, release: &str) -> Key {
    Key::new(pk, format!("CHECK#{}", crate::release::canonical(release)))
}

/// Key of what the release check reported of a release.
pub fn report_key(pk: &str, release: &str) -> Key {
    Key::new(pk, format!("RELEASE#{}", crate::release::canonical(release)))
}

/// The query that reads head and newest rows.
pub fn newest(pk: &str, limit: u32, after: Option<String>) -> Query {
    Query {
        pk: pk.to_owned(),
        sk_prefix: "UPDATE#".to_owned(),
        descending: true,
        limit: Some(limit),
        after,
    }
}

/// An update's id: the given UUIDv7 with the sequence number in its last 32 bits, so that a row is found by
/// its id with one read and no index.
pub fn id_for(seed: Uuid, seq: u64) -> String {
    let mut bytes = *seed.as_bytes();
    let low = u32::try_from(seq).unwrap_or(u32::MAX).to_be_bytes();
    if let Some(tail) = bytes.get_mut(12..16) {
        tail.copy_from_slice(&low);
    }
    Uuid::from_bytes(bytes).to_string()
}

/// The sequence number inside an id, if it has the form of ours. The row found there must carry the id.
pub fn seq_of(id: &str) -> Option<u64> {
    let u = Uuid::try_parse(id).ok()?;
    let b = u.as_bytes().get(12..16)?;
    let b: [u8; 4] = b.try_into().ok()?;
    Some(u64::from(u32::from_be_bytes(b)))
}

/// Sorts a page of items into the snapshot. Items that can not be read are named, not dropped silently.
///
/// # Errors
/// The text names key and field of the first unreadable item.
pub fn take(items: Vec<Item>, snapshot: &mut Snapshot) -> Result<(), String> {
    for item in items {
        let sk = item.get("sk").and_then(Attr::as_str).unwrap_or("").to_owned();
        if sk == HEAD_SK {
            snapshot.head = Versioned::read(item)?;
        } else {
            let row: Versioned<Update> = Versioned::read(item)?;
            if !snapshot.rows.iter().any(|r| r.row.seq == row.row.seq) {
                snapshot.rows.push(row);
            }
        }
    }
    snapshot.rows.sort_by_key(|r| std::cmp::Reverse(r.row.seq));
    Ok(())
}

/// A snapshot of nothing.
pub fn empty() -> Snapshot {
    Snapshot {
        head: Versioned::fresh(Head::default()),
        rows: Vec::new(),
    }
}

fn next_row(row: &Update, rev: u64, write_id: &str) -> Update {
    let mut next = row.clone();
    next.rev = rev + 1;
    next.last_write_id = Some(write_id.to_owned());
    next
}

/// A prepared write together with the snapshot as it is once the write has happened.
#[derive(Debug, Clone)]
pub struct Commit {
    /// The writes, one transaction.
    pub writes: Vec<Write>,
    /// What is stored afterwards.
    pub after: Snapshot,
}

fn put_row(
    pk: &str,
    snapshot: &Snapshot,
    next: &Update,
    extra: Cond,
    write_id: &str,
) -> (Write, Versioned<Update>) {
    let old = snapshot.rows.iter().find(|r| r.row.seq == next.seq);
    let rev = old.map_or(0, |o| o.row.rev);
    let row = next_row(next, rev, write_id);
    let item = match old {
        Some(o) => o.item_for(&row),
        None => Versioned::fresh(row.clone()).item_for(&row),
    };
    let when = match old {
        None => Cond::NotExists,
        Some(_) => match extra {
            Cond::Always => Cond::Rev(rev),
            more => Cond::All(vec![Cond::Rev(rev), more]),
        },
    };
    let write = Write::put(update_key(pk, row.seq), item, when);
    let raw = stored_item(&write);
    (write, Versioned { row, raw })
}

fn put_head(pk: &str, snapshot: &Snapshot, next: &Head, write_id: &str) -> (Write, Versioned<Head>) {
    let old = &snapshot.head;
    let mut head = next.clone();
    head.rev = old.row.rev + 1;
    head.last_write_id = Some(write_id.to_owned());
    let when = if old.raw.is_empty() {
        Cond::NotExists
    } else {
        Cond::Rev(old.row.rev)
    };
    let write = Write::put(head_key(pk), old.item_for(&head), when);
    let raw = stored_item(&write);
    (write, Versioned { row: head, raw })
}

fn stored_item(w: &Write) -> Item {
    if let crate::store::Op::Put(item) = &w.op {
        item.clone()
    } else {
        Item::new()
    }
}

fn replace(snapshot: &mut Snapshot, row: Versioned<Update>) {
    match snapshot.rows.iter_mut().find(|r| r.row.seq == row.row.seq) {
        Some(r) => *r = row,
        None => snapshot.rows.push(row),
    }
    snapshot.rows.sort_by_key(|r| std::cmp::Reverse(r.row.seq));
}

/// The poll write, TX-4 and every pointer repair: row and head under the revisions that were read.
pub fn change(pk: &str, snapshot: &Snapshot, change: &Change, write_id: &str) -> Commit {
    let mut after = snapshot.clone();
    let mut writes = Vec::new();
    if let Some(next) = &change.row {
        let (w, row) = put_row(pk, snapshot, next, Cond::Always, write_id);
        writes.push(w);
        replace(&mut after, row);
    }
    if let Some(next) = &change.head {
        let (w, head) = put_head(pk, snapshot, next, write_id);
        writes.push(w);
        after.head = head;
    }
    Commit { writes, after }
}

/// TX-1: the new row, the reservation, and a check that the pending row is still only prepared.
pub fn reserve(pk: &str, snapshot: &Snapshot, row: &Update, now: Timestamp, write_id: &str) -> Commit {
    let mut head = snapshot.head.row.clone();
    head.next_seq = row.seq + 1;
    head.reserving = Some(row.id.clone());
    head.reserve_until = Some(plus_seconds(now, RESERVE_S).as_millisecond());
    let mut after = snapshot.clone();
    let (row_write, row) = put_row(pk, snapshot, row, Cond::Always, write_id);
    let (head_write, head) = put_head(pk, snapshot, &head, write_id);
    let mut writes = vec![row_write, head_write];
    let pending = snapshot
        .head
        .row
        .pending
        .as_deref()
        .and_then(|id| snapshot.find(id));
    if let Some(p) = pending {
        writes.push(Write::check(
            update_key(pk, p.row.seq),
            Cond::All(vec![
                Cond::Rev(p.row.rev),
                Cond::Eq("status".into(), Attr::s(State::Prepared.as_str())),
            ]),
        ));
    }
    replace(&mut after, row);
    after.head = head;
    Commit { writes, after }
}

/// TX-2: the change set exists; the row gets its ARN, the head points to it, the reservation ends. The head is
/// updated in place under `reserving = id`, so that a pointer repair in between does not make it fail.
pub fn publish(pk: &str, snapshot: &Snapshot, row: &Update, arn: &str, write_id: &str) -> Commit {
    let mut next = row.clone();
    next.change_set_id = Some(arn.to_owned());
    let mut after = snapshot.clone();
    let preparing = Cond::Eq("status".into(), Attr::s(State::Preparing.as_str()));
    let (row_write, row) = put_row(pk, snapshot, &next, preparing, write_id);
    let mut head = snapshot.head.row.clone();
    head.pending = Some(row.row.id.clone());
    head.reserving = None;
    head.reserve_until = None;
    head.rev += 1;
    head.last_write_id = Some(write_id.to_owned());
    let head_write = Write {
        key: head_key(pk),
        op: crate::store::Op::Update {
            set: vec![
                ("pending".into(), Attr::s(&row.row.id)),
                ("last_write_id".into(), Attr::s(write_id)),
            ],
            remove: vec!["reserving".into(), "reserve_until".into()],
            add: vec![("rev".into(), 1)],
        },
        when: Cond::Eq("reserving".into(), Attr::s(&row.row.id)),
    };
    let raw = snapshot.head.item_for(&head);
    after.head = Versioned { row: head, raw };
    replace(&mut after, row);
    Commit {
        writes: vec![row_write, head_write],
        after,
    }
}

/// TX-3: the OK. The row becomes applying with who, when, token and check; the head must still point to it
/// and the check must still be passed, for the digest the update was prepared with.
pub fn apply(pk: &str, snapshot: &Snapshot, row: &Update, ok: &Ok, now: Timestamp, write_id: &str) -> Commit {
    let mut next = row.clone();
    next.status = State::Applying;
    next.applied_by = Some(ok.by.clone());
    next.attempted_by = Some(ok.by.clone());
    next.applied_at = Some(now);
    next.apply_token = Some(next_token(row));
    next.model_check = Some(ok.check.clone());
    next.reason = None;
    next.needs_admin = None;
    next.settling_since = None;
    next.progress = Some(crate::status::Progress::step("settling"));
    let prepared = Cond::Eq("status".into(), Attr::s(State::Prepared.as_str()));
    let (row_write, stored) = put_row(pk, snapshot, &next, prepared, write_id);
    let mut passed = vec![Cond::Eq("state".into(), Attr::s("passed"))];
    if let Some(digest) = ok.check.get("template_sha256").and_then(Value::as_str) {
        passed.push(Cond::Eq("template_sha256".into(), Attr::s(digest)));
    }
    let writes = vec![
        row_write,
        Write::check(head_key(pk), Cond::Eq("pending".into(), Attr::s(&row.id))),
        Write::check(check_key(pk, &row.to_release), Cond::All(passed)),
    ];
    let mut after = snapshot.clone();
    replace(&mut after, stored);
    Commit { writes, after }
}

/// Who gives the OK, on which check.
#[derive(Debug, Clone, PartialEq)]
pub struct Ok {
    /// Actor.
    pub by: String,
    /// The passing check, copied into the row.
    pub check: Map<String, Value>,
}

/// `apply-<id>-<n>`, n one higher than that of the last try: a token is never reused (spec/updates.md 3.4).
pub fn next_token(row: &Update) -> String {
    let n = row
        .apply_token
        .as_deref()
        .and_then(|t| t.rsplit('-').next())
        .and_then(|n| n.parse::<u64>().ok())
        .unwrap_or(0);
    format!("apply-{}-{}", row.id, n + 1)
}

/// The reason of a create that CloudFormation refused or never got.
pub fn create_failed(code: &str, text: &str) -> Reason {
    Reason::new(code, super::cause::clean(text)).from_source("cloudformation")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_tells_its_row_and_stays_a_uuid() {
        let seed = Uuid::from_u128(0x0192_f000_0000_7abc_8def_0123_4567_89ab);
        let id = id_for(seed, 42);
        assert_eq!(seq_of(&id), Some(42));
        assert!(Uuid::try_parse(&id).is_ok());
        assert_eq!(seq_of("not-an-id"), None);
    }

    #[test]
    fn the_head_sorts_after_every_row() {
        assert!(head_key("p").sk > update_key("p", u64::from(u32::MAX)).sk);
    }
}
