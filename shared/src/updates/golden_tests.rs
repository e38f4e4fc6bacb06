//! Stored rows as they lie in the table (`shared/tests/golden`, DynamoDB JSON): read, written back through the real
//! shell, and compared attribute by attribute. The files stand for what other versions of Headgate wrote; a change
//! that needs one of them changed breaks the rows of an install (spec/updates.md 1.1, contract 5).

use super::decide::Purpose;
use super::fake::{FakeWorld, PK, STACK, STACK_ARN, now_or_never, set_arn};
use super::model::*;
use super::run::{self, Call};
use super::{store, view};
use crate::store::{Attr, Item, Key, Versioned};
use crate::time::Timestamp;
use base64::Engine;
use serde_json::Value;
use std::collections::BTreeSet;
use uuid::Uuid;

const UPDATE: &str = include_str!("../../tests/golden/update.json");
const UPDATE_OLD: &str = include_str!("../../tests/golden/update_old.json");
const HEAD: &str = include_str!("../../tests/golden/head.json");
const ID: &str = "0192f000-0000-7000-8000-000000000002";

fn now() -> Timestamp {
    "2026-11-30T10:30:00Z".parse().unwrap()
}

fn attr(v: &Value) -> Attr {
    let (kind, v) = v.as_object().unwrap().iter().next().unwrap();
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    let texts = || -> BTreeSet<String> { v.as_array().unwrap().iter().map(text).collect() };
    match kind.as_str() {
        "S" => Attr::S(text(v)),
        "N" => Attr::N(text(v)),
        "BOOL" => Attr::Bool(v.as_bool().unwrap()),
        "NULL" => Attr::Null,
        "L" => Attr::L(v.as_array().unwrap().iter().map(attr).collect()),
        "M" => Attr::M(
            v.as_object()
                .unwrap()
                .iter()
                .map(|(k, v)| (k.clone(), attr(v)))
                .collect(),
        ),
        "SS" => Attr::Ss(texts()),
        "NS" => Attr::Ns(texts()),
        "B" => Attr::B(base64::engine::general_purpose::STANDARD.decode(text(v)).unwrap()),
        other => panic!("{other} is no kind of attribute"),
    }
}

fn golden(json: &str) -> Item {
    let v: Value = serde_json::from_str(json).unwrap();
    v.as_object()
        .unwrap()
        .iter()
        .map(|(k, v)| (k.clone(), attr(v)))
        .collect()
}

fn update_key() -> Key {
    store::update_key(PK, 2)
}

/// A world with these two rows, the set of the update as CloudFormation has it.
fn world(head: Item, row: Item, status: &str, execution: &str) -> FakeWorld {
    let w = FakeWorld::new(now());
    w.table.borrow_mut().seed(head);
    w.table.borrow_mut().seed(row);
    w.cloud.borrow_mut().put_set(
        &format!("upd-{ID}"),
        "2.4.0",
        status,
        execution,
        "2026-11-30T10:20:00Z".parse().unwrap(),
    );
    w
}

fn call() -> Call<'static> {
    Call {
        pk: PK,
        stack: STACK,
        role_arn: None,
        now: now(),
        request_id: "r",
        actor: "ana",
        seed: Uuid::from_u128(0x0193_0000_0000_7000_8000_0000_0000_0000),
    }
}

fn look(w: &FakeWorld) -> run::Reconciled {
    now_or_never(run::reconcile(w, &call(), Purpose { full: true })).unwrap()
}

/// Attributes whose value is another one now, or that came or went.
fn changed(before: &Item, after: &Item) -> Vec<String> {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    names
        .into_iter()
        .filter(|n| before.get(*n) != after.get(*n))
        .cloned()
        .collect()
}

#[test]
fn the_update_row_is_read_in_full() {
    let v = Versioned::<Update>::read(golden(UPDATE)).unwrap();
    let u = v.row;
    assert_eq!(u.id, ID);
    assert_eq!((u.seq, u.rev), (2, 4));
    assert_eq!(u.status, State::Applying);
    assert_eq!(u.from_release.as_deref(), Some("2.3.0"));
    assert_eq!(u.to_release, "2.4.0");
    assert_eq!(u.change_set_id, Some(set_arn(&format!("upd-{ID}"))));
    assert_eq!(u.change_set_created_at, "2026-11-30T10:20:00Z".parse().ok());
    assert_eq!(u.started_by, "ana@example.org");
    assert_eq!(u.applied_by.as_deref(), Some("bob@example.org"));
    assert_eq!(u.applied_at, "2026-11-30T10:29:00Z".parse().ok());
    let summary = u.summary.unwrap();
    assert_eq!((summary.add, summary.modify), (1, 2));
    assert_eq!(summary.replacements, ["Table"]);
    assert_eq!(u.model_check.unwrap()["state"], "passed");
    assert_eq!(u.change_set_cleanup, Cleanup::None);
    let h = Versioned::<Head>::read(golden(HEAD)).unwrap().row;
    assert_eq!(h.pending.as_deref(), Some(ID));
    assert_eq!((h.next_seq, h.rev), (3, 7));
    assert_eq!(h.stack_arn.as_deref(), Some(STACK_ARN));
}

#[test]
fn rows_read_and_written_back_unchanged_are_the_same() {
    let v = Versioned::<Update>::read(golden(UPDATE)).unwrap();
    assert_eq!(changed(&v.raw, &v.item_for(&v.row)), Vec::<String>::new());
    let v = Versioned::<Head>::read(golden(HEAD)).unwrap();
    assert_eq!(changed(&v.raw, &v.item_for(&v.row)), Vec::<String>::new());
}

/// Every write of the life of an update keeps what this build does not know, nested and of every kind.
#[test]
fn unknown_attributes_survive_every_write_of_a_run() {
    let w = world(golden(HEAD), golden(UPDATE), "CREATE_COMPLETE", "AVAILABLE");
    let token = format!("apply-{ID}-1");
    let at = "2026-11-30T10:29:01Z".parse().unwrap();
    w.cloud
        .borrow_mut()
        .start_run(&set_arn(&format!("upd-{ID}")), &token, at)
        .unwrap();
    look(&w);
    let row = w.table.borrow().get(&update_key()).unwrap();
    assert_eq!(
        changed(&golden(UPDATE), &row),
        ["last_write_id", "observed_at", "progress", "rev"]
    );
    w.cloud
        .borrow_mut()
        .succeed("2026-11-30T10:29:50Z".parse().unwrap());
    look(&w);
    let row = w.table.borrow().get(&update_key()).unwrap();
    assert_eq!(
        changed(&golden(UPDATE), &row),
        [
            "finished_at",
            "last_write_id",
            "observed_at",
            "progress",
            "rev",
            "status",
            "ttl"
        ]
    );
    assert_eq!(row["status"], Attr::s("updated"));
    assert_eq!(row["rev"], Attr::n(6));
    for name in [
        "approved_in",
        "tags",
        "evidence",
        "exact_number",
        "summary",
        "model_check",
    ] {
        assert_eq!(row[name], golden(UPDATE)[name], "{name}");
    }
    let head = w.table.borrow().get(&store::head_key(PK)).unwrap();
    assert_eq!(changed(&golden(HEAD), &head), ["last_write_id", "pending", "rev"]);
    assert_eq!(head["rev"], Attr::n(8));
}

#[test]
fn unknown_attributes_of_the_head_survive_begin_and_discard() {
    let mut row = golden(UPDATE);
    row.insert("status".into(), Attr::s("prepared"));
    let w = world(golden(HEAD), row, "CREATE_COMPLETE", "AVAILABLE");
    now_or_never(run::begin(&w, &call(), "2.5.0")).unwrap();
    let head = w.table.borrow().get(&store::head_key(PK)).unwrap();
    for name in ["paused_until", "owners", "stack_arn", "work"] {
        assert_eq!(head[name], golden(HEAD)[name], "{name}");
    }
    assert!(!head.contains_key("reserving") && !head.contains_key("reserve_until"));
    let id = w.head().pending.unwrap();
    now_or_never(run::discard(&w, &call(), &id)).unwrap();
    let head = w.table.borrow().get(&store::head_key(PK)).unwrap();
    assert_eq!(head["owners"], golden(HEAD)["owners"]);
    let old = w.table.borrow().get(&update_key()).unwrap();
    assert_eq!(old["status"], Attr::s("superseded"));
    assert_eq!(old["tags"], golden(UPDATE)["tags"]);
}

#[test]
fn a_row_and_a_head_of_an_old_version_without_rev_and_schema() {
    let mut head = golden(HEAD);
    head.remove("rev");
    head.remove("schema");
    head.remove("next_seq");
    let w = world(head, golden(UPDATE_OLD), "CREATE_COMPLETE", "AVAILABLE");
    let r = look(&w);
    assert!(!r.lost, "a row without rev counts as rev 0");
    let row = w.row(2).unwrap();
    assert_eq!((row.status, row.rev), (State::Prepared, 1));
    let item = w.table.borrow().get(&update_key()).unwrap();
    assert_eq!(item["legacy_phase"], Attr::s("waiting"));
    assert_eq!(item["schema"], Attr::n(1));
    assert_eq!(look(&w).wrote, 0);
    // A head without a counter does not give a number twice.
    now_or_never(run::begin(&w, &call(), "2.5.0")).unwrap();
    assert_eq!(w.row(3).unwrap().to_release, "2.5.0");
    assert_eq!(w.head().next_seq, 4);
}

#[test]
fn a_row_of_a_newer_schema_is_shown_and_never_rewritten() {
    for (status, execution) in [
        ("CREATE_COMPLETE", "EXECUTE_COMPLETE"),
        ("CREATE_COMPLETE", "AVAILABLE"),
    ] {
        let mut row = golden(UPDATE);
        row.insert("schema".into(), Attr::n(2));
        row.insert("status".into(), Attr::s("prepared"));
        let w = world(golden(HEAD), row.clone(), status, execution);
        let r = look(&w);
        assert_eq!(r.wrote, 0);
        let v = view::version(&r, STACK, now());
        assert_eq!(v["update"]["id"], ID);
        assert_eq!(v["status"]["source"], "stored");
        for done in [
            now_or_never(run::begin(&w, &call(), "2.5.0")).map(|_| ()),
            now_or_never(run::apply(&w, &call(), ID)).map(|_| ()),
            now_or_never(run::discard(&w, &call(), ID)).map(|_| ()),
        ] {
            assert!(matches!(done, Err(run::Refused::Conflict { .. })), "{done:?}");
        }
        assert_eq!(w.table.borrow().get(&update_key()), Some(row));
        assert_eq!(w.table.borrow().get(&store::head_key(PK)), Some(golden(HEAD)));
        assert_eq!(w.count("act"), 0);
    }
}

#[test]
fn a_head_of_a_newer_schema_is_never_rewritten() {
    let mut head = golden(HEAD);
    head.insert("schema".into(), Attr::n(2));
    let mut row = golden(UPDATE);
    row.insert("status".into(), Attr::s("prepared"));
    let w = world(head.clone(), row.clone(), "CREATE_COMPLETE", "AVAILABLE");
    assert_eq!(look(&w).wrote, 0);
    let begun = now_or_never(run::begin(&w, &call(), "2.5.0")).map(|_| ());
    assert!(matches!(begun, Err(run::Refused::Conflict { .. })), "{begun:?}");
    for done in [
        now_or_never(run::apply(&w, &call(), ID)).map(|_| ()),
        now_or_never(run::discard(&w, &call(), ID)).map(|_| ()),
    ] {
        assert!(done.is_err(), "{done:?}");
    }
    assert_eq!(w.table.borrow().get(&store::head_key(PK)), Some(head));
    assert_eq!(w.table.borrow().get(&update_key()), Some(row));
}

#[test]
fn a_state_word_of_another_version_is_kept_and_shown() {
    let mut row = golden(UPDATE);
    row.insert("status".into(), Attr::s("paused"));
    let w = world(golden(HEAD), row.clone(), "CREATE_COMPLETE", "EXECUTE_COMPLETE");
    let r = look(&w);
    assert_eq!(r.wrote, 0);
    let v = view::version(&r, STACK, now());
    assert_eq!(v["update"]["state"], "paused");
    let flags = v["status"]["flags"].as_array().unwrap();
    assert!(
        flags
            .iter()
            .any(|f| f["code"] == "unrecognised" && f["raw"] == "paused"),
        "{flags:?}"
    );
    assert!(now_or_never(run::begin(&w, &call(), "2.5.0")).is_err());
    assert!(now_or_never(run::apply(&w, &call(), ID)).is_err());
    assert!(now_or_never(run::discard(&w, &call(), ID)).is_err());
    assert_eq!(w.table.borrow().get(&update_key()), Some(row));
    assert_eq!(w.table.borrow().get(&store::head_key(PK)), Some(golden(HEAD)));
}
