//! Rows and answers of any kind, whole or nonsense, through the real shell: nothing panics, every call ends within
//! its bounds, ranks only rise but for the two exceptions, there is at most one pending update and it is open, and
//! a second call writes nothing.
//!
//! The rows here need not be reachable. That is the point: an older version, a newer one or a hand may have
//! written them.

use super::decide::Purpose;
use super::fake::{self, FakeWorld, PK, STACK, STACK_ARN, now_or_never, set_arn};
use super::model::*;
use super::run::{self, Call, World};
use super::{store, view};
use crate::error::{CallError, Class};
use crate::status::{Progress, Reason};
use crate::store::{Attr, Item, Key, Op, Page, Query, Versioned, Write, WriteError};
use crate::time::{Timestamp, plus_seconds};
use proptest::prelude::*;
use proptest::sample::select;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use uuid::Uuid;

fn now() -> Timestamp {
    "2026-11-30T10:30:00Z".parse().unwrap()
}

/// The table is real; CloudFormation answers anything, but the same thing every time.
#[derive(Debug)]
struct Odd {
    rows: FakeWorld,
    stack: StackRead,
    sets: BTreeMap<String, SetRead>,
    events: Option<Vec<Event>>,
    findings: bool,
    deletes: bool,
    saves: Cell<usize>,
    wrong: RefCell<Vec<String>>,
}

fn refused() -> CallError {
    CallError::new(
        Class::Refused,
        "cloudformation:Any",
        "InvalidChangeSetStatus",
        "no",
    )
}

impl Odd {
    fn check(&self, w: &Write) {
        let Op::Put(item) = &w.op else { return };
        let old = self.rows.table.borrow().get(&w.key);
        if w.key.sk == store::HEAD_SK {
            return;
        }
        let bad = |what: String| self.wrong.borrow_mut().push(what);
        let Some(old) = old else {
            return bad(format!("a look made the row {}", w.key.sk));
        };
        let (Ok(a), Ok(b)) = (
            Versioned::<Update>::read(old.clone()),
            Versioned::<Update>::read(item.clone()),
        ) else {
            return bad("a row that can not be read".into());
        };
        let (a, b) = (a.row, b.row);
        if b.rev != a.rev + 1 {
            bad(format!("rev {} after {}", b.rev, a.rev));
        }
        let rank = |s: &State| match s {
            State::Preparing => 10,
            State::Prepared => 20,
            State::Applying => 30,
            _ => 40,
        };
        match (&a.status, &b.status) {
            (State::Unknown(word), _) => bad(format!("a row in state {word} was written")),
            (x, y) if x.is_closed() && x != y => {
                let refined = *x == State::Failed
                    && *y == State::RolledBack
                    && matches!(a.reason_code(), Some("rollback_failed" | "stack_paused"));
                if !refined {
                    bad(format!("{x:?} became {y:?}"));
                }
            }
            (State::Applying, State::Prepared) if b.reason_code() == Some("execute_not_started") => {}
            (x, y) if rank(y) < rank(x) => bad(format!("{x:?} fell back to {y:?}")),
            _ => {}
        }
        let mut same = b.clone();
        same.rev = a.rev;
        same.last_write_id = a.last_write_id.clone();
        if same == a {
            bad(format!("{} was written without a change", w.key.sk));
        }
    }
}

impl World for Odd {
    async fn query(&self, q: &Query) -> Result<Page, CallError> {
        self.rows.query(q).await
    }

    async fn get(&self, key: &Key) -> Result<Option<Item>, CallError> {
        self.rows.get(key).await
    }

    async fn save(&self, writes: &[Write], token: &str) -> Result<(), WriteError> {
        self.saves.set(self.saves.get() + 1);
        for w in writes {
            self.check(w);
        }
        let out = self.rows.save(writes, token).await;
        if out.is_err() {
            self.wrong
                .borrow_mut()
                .push("a condition failed with nobody else there".into());
        }
        out
    }

    async fn look(&self, looks: &[Look]) -> Vec<Seen> {
        let set = |id: &str| Seen::Set(self.sets.get(id).cloned().unwrap_or(SetRead::NotFound));
        looks
            .iter()
            .map(|l| match l {
                Look::Stack(_) => Seen::Stack(self.stack.clone()),
                Look::SetByArn(arn) => set(arn),
                Look::SetByName { name, .. } => set(&set_arn(name)),
                Look::Events { .. } => Seen::Events(self.events.clone().ok_or_else(refused)),
                Look::Findings(_) if self.findings => Seen::Findings(Ok(vec![Finding {
                    resource: "R".into(),
                    path: None,
                    text: "t".into(),
                }])),
                Look::Findings(_) => Seen::Findings(Err(refused())),
                other => self.rows.cloud.borrow().look(other),
            })
            .collect()
    }

    async fn act(&self, act: &Act) -> Result<Fact, CallError> {
        match act {
            Act::Delete { .. } | Act::DeleteByName { .. } if self.deletes => Ok(Fact::Done),
            Act::Delete { .. } | Act::DeleteByName { .. } => Err(refused()),
            other => {
                self.wrong.borrow_mut().push(format!("a look does {other:?}"));
                Err(refused())
            }
        }
    }

    fn time_left(&self) -> bool {
        true
    }
}

const STACK_WORDS: [&str; 25] = [
    "CREATE_IN_PROGRESS",
    "CREATE_FAILED",
    "CREATE_COMPLETE",
    "ROLLBACK_IN_PROGRESS",
    "ROLLBACK_FAILED",
    "ROLLBACK_COMPLETE",
    "DELETE_IN_PROGRESS",
    "DELETE_FAILED",
    "DELETE_COMPLETE",
    "UPDATE_IN_PROGRESS",
    "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS",
    "UPDATE_COMPLETE",
    "UPDATE_FAILED",
    "UPDATE_ROLLBACK_IN_PROGRESS",
    "UPDATE_ROLLBACK_FAILED",
    "UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS",
    "UPDATE_ROLLBACK_COMPLETE",
    "REVIEW_IN_PROGRESS",
    "IMPORT_IN_PROGRESS",
    "IMPORT_COMPLETE",
    "IMPORT_ROLLBACK_IN_PROGRESS",
    "IMPORT_ROLLBACK_FAILED",
    "IMPORT_ROLLBACK_COMPLETE",
    "UPDATE_PAUSED_IN_PROGRESS",
    "",
];

/// Seconds around every bound, on both sides of now.
fn ages() -> impl Strategy<Value = i64> {
    prop_oneof![
        select(vec![-5, 0, 59, 60, 61, 119, 120, 121, 300, 301, 900, 901]),
        -100_i64..5_000
    ]
}

fn time() -> impl Strategy<Value = Timestamp> {
    ages().prop_map(|s| plus_seconds(now(), -s))
}

fn maybe_time() -> impl Strategy<Value = Option<Timestamp>> {
    proptest::option::of(time())
}

fn any_row(seq: u64) -> impl Strategy<Value = Update> {
    let state = select(vec![
        "preparing",
        "preparing",
        "prepared",
        "prepared",
        "applying",
        "applying",
        "updated",
        "rolled_back",
        "failed",
        "superseded",
        "discarded",
        "expired",
        "paused",
    ]);
    let codes = select(vec![
        "",
        "root_cause",
        "rollback_failed",
        "stack_paused",
        "execute_not_started",
        "x",
    ]);
    let times = (ages(), maybe_time(), maybe_time(), maybe_time(), maybe_time());
    (
        state,
        any::<bool>(),
        times,
        codes,
        any::<(bool, bool, bool, bool)>(),
    )
        .prop_map(
            move |(
                state,
                arn,
                (age, applied, missed, settling, created),
                code,
                (pending, cleanup, token, op),
            )| {
                let mut u = fake::update(seq, "2.4.0", State::from(state.to_owned()), age, now());
                if !arn {
                    u.change_set_id = None;
                }
                u.change_set_created_at = created;
                u.applied_at = applied;
                u.applied_by = applied.map(|_| "ana".to_owned());
                u.apply_token = token.then(|| format!("apply-{}-1", u.id));
                u.operation_id = op.then(|| "op-1".into());
                u.stack_missed_at = missed;
                u.settling_since = settling;
                u.reason = (!code.is_empty()).then(|| Reason::new(code, "text"));
                u.reason_pending = pending;
                u.change_set_cleanup = if cleanup { Cleanup::Pending } else { Cleanup::None };
                u.progress = token.then(|| Progress::step("updating"));
                u
            },
        )
}

fn any_set(seq: u64) -> impl Strategy<Value = SetRead> {
    let status = select(vec![
        "CREATE_PENDING",
        "CREATE_IN_PROGRESS",
        "CREATE_COMPLETE",
        "CREATE_COMPLETE",
        "DELETE_PENDING",
        "DELETE_IN_PROGRESS",
        "DELETE_COMPLETE",
        "DELETE_FAILED",
        "FAILED",
        "CREATE_PAUSED",
        "",
    ]);
    let execution = select(vec![
        "UNAVAILABLE",
        "AVAILABLE",
        "EXECUTE_IN_PROGRESS",
        "EXECUTE_COMPLETE",
        "EXECUTE_FAILED",
        "OBSOLETE",
        "EXECUTE_QUEUED",
        "",
    ]);
    let reason = select(vec![
        None,
        Some("No updates are to be performed."),
        Some("[AWS::EarlyValidation::X]"),
        Some("é"),
    ]);
    let seen =
        (status, execution, reason, any::<bool>(), maybe_time()).prop_map(move |(s, e, r, ours, at)| {
            let u = fake::update(seq, "2.4.0", State::Preparing, 0, now());
            SetRead::Seen(Box::new(ChangeSet {
                arn: set_arn(&u.change_set_name),
                name: u.change_set_name,
                status: s.into(),
                execution: e.into(),
                reason: r.map(Into::into),
                created_at: at,
                description: ours.then_some(u.id),
                changes: vec![],
            }))
        });
    prop_oneof![6 => seen, 2 => Just(SetRead::NotFound), 1 => Just(SetRead::Failed(refused()))]
}

fn any_stack() -> impl Strategy<Value = StackRead> {
    let whose = select(vec![0_u64, 0, 1, 2, 3, 9]);
    let seen = (
        select(STACK_WORDS.to_vec()),
        whose,
        maybe_time(),
        any::<(bool, bool, bool)>(),
        0_usize..3,
    )
        .prop_map(|(status, whose, at, (version, ops, reason), outputs)| {
            StackRead::Seen(Box::new(Stack {
                arn: STACK_ARN.into(),
                status: status.into(),
                reason: reason.then(|| "because".into()),
                change_set_id: (whose > 0).then(|| {
                    set_arn(&fake::update(whose, "2.4.0", State::Preparing, 0, now()).change_set_name)
                }),
                updated_at: at,
                outputs: (outputs > 0)
                    .then(|| {
                        (
                            "Version".to_owned(),
                            if version { "2.4.0" } else { "2.3.0" }.to_owned(),
                        )
                    })
                    .into_iter()
                    .collect(),
                operations: if ops {
                    vec!["op-1".into()]
                } else {
                    vec!["op-2".into()]
                },
                ..Stack::default()
            }))
        });
    prop_oneof![8 => seen, 1 => Just(StackRead::Missing), 1 => Just(StackRead::Failed(refused()))]
}

fn any_events() -> impl Strategy<Value = Option<Vec<Event>>> {
    let one = (
        select(STACK_WORDS.to_vec()),
        any::<(bool, bool)>(),
        time(),
        0_u64..4,
        any::<bool>(),
    )
        .prop_map(|(status, (root, failed), at, token, op)| Event {
            stack_arn: STACK_ARN.into(),
            logical_id: if root { STACK } else { "Api" }.into(),
            physical_id: Some(if root { STACK_ARN } else { "api-1" }.into()),
            kind: if root {
                "AWS::CloudFormation::Stack"
            } else {
                "AWS::Lambda::Function"
            }
            .into(),
            status: if !root && failed {
                "UPDATE_FAILED".into()
            } else {
                status.into()
            },
            reason: failed.then(|| "Resource handler said no".into()),
            at,
            token: (token > 0).then(|| {
                format!(
                    "apply-{}-1",
                    fake::update(token, "2.4.0", State::Preparing, 0, now()).id
                )
            }),
            operation_id: op.then(|| "op-1".into()),
            hook: None,
        });
    proptest::option::of(proptest::collection::vec(one, 0..6).prop_map(|mut v| {
        v.sort_by_key(|e| std::cmp::Reverse(e.at));
        v
    }))
}

fn any_head() -> impl Strategy<Value = Head> {
    let id = || {
        select(vec![0_u64, 1, 2, 3, 7])
            .prop_map(|n| (n > 0).then(|| fake::update(n, "2.4.0", State::Preparing, 0, now()).id))
    };
    (
        id(),
        id(),
        ages(),
        any::<(bool, bool)>(),
        proptest::collection::vec(id(), 0..3),
    )
        .prop_map(|(pending, reserving, until, (arn, rev), work)| Head {
            pending,
            reserve_until: reserving
                .as_ref()
                .map(|_| plus_seconds(now(), until).as_millisecond()),
            reserving,
            next_seq: 4,
            rev: u64::from(rev),
            stack_arn: arn.then(|| STACK_ARN.into()),
            work: work.into_iter().flatten().collect(),
            last_write_id: None,
        })
}

fn any_world() -> impl Strategy<Value = Odd> {
    let rows = (
        proptest::option::of(any_row(1)),
        proptest::option::of(any_row(2)),
        proptest::option::of(any_row(3)),
    );
    let sets = (any_set(1), any_set(2), any_set(3));
    let rest = (any_head(), any_stack(), any_events(), any::<(bool, bool)>());
    (rows, sets, rest).prop_map(|(rows, sets, (head, stack, events, (findings, deletes)))| {
        let w = FakeWorld::new(now());
        for row in [rows.0, rows.1, rows.2].into_iter().flatten() {
            w.seed(&row);
        }
        w.seed_head(&head);
        let arn = |n| set_arn(&fake::update(n, "2.4.0", State::Preparing, 0, now()).change_set_name);
        Odd {
            rows: w,
            stack,
            sets: [(arn(1), sets.0), (arn(2), sets.1), (arn(3), sets.2)].into(),
            events,
            findings,
            deletes,
            saves: Cell::new(0),
            wrong: RefCell::default(),
        }
    })
}

fn call(request: &str) -> Call<'_> {
    Call {
        pk: PK,
        stack: STACK,
        role_arn: None,
        now: now(),
        request_id: request,
        actor: "ana",
        seed: Uuid::from_u128(0x0193_0000_0000_7000_8000_0000_0000_0000),
    }
}

fn looks_hold(w: &Odd, full: bool) -> Result<(), TestCaseError> {
    let purpose = Purpose { full };
    let r = now_or_never(run::reconcile(w, &call("one"), purpose)).unwrap();
    prop_assert!(w.wrong.borrow().is_empty(), "{:?}", w.wrong.borrow());
    prop_assert!(r.flags.is_empty(), "it did not come to rest: {:?}", r.flags);
    prop_assert!(!r.lost);
    let head = w.rows.head();
    let foreign = r.snapshot.foreign().is_some();
    if let (Some(id), false) = (&head.pending, foreign) {
        let row = r.snapshot.find(id).map(|v| &v.row);
        prop_assert!(
            row.is_some_and(|u| u.status.is_open()),
            "the pointer is on {row:?}"
        );
    }
    if head.pending.is_none() && !foreign {
        // Nothing open is left without a pointer, but for a begin in flight.
        let begun = r.snapshot.reservation(now()).is_some();
        prop_assert!(
            begun || r.snapshot.open().next().is_none(),
            "nobody points to {:?}",
            r.snapshot.open().next()
        );
    }
    let rows: Vec<&Update> = r.snapshot.rows.iter().map(|v| &v.row).collect();
    let shown = view::history(&rows, &head, now());
    let waiting = shown
        .iter()
        .filter(|u| {
            ["preparing", "prepared", "applying"]
                .iter()
                .any(|w| u["state"] == *w)
        })
        .count();
    prop_assert!(waiting <= 1, "history shows {waiting} open updates");
    let told = view::version(&r, STACK, now());
    prop_assert!(told["status"]["state"].is_string());
    // Fixpoint.
    let before = (w.rows.table.borrow().items.clone(), w.saves.get());
    let again = now_or_never(run::reconcile(w, &call("two"), purpose)).unwrap();
    prop_assert_eq!(again.wrote, 0, "a second call writes");
    prop_assert_eq!(w.saves.get(), before.1);
    prop_assert_eq!(&w.rows.table.borrow().items, &before.0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 600,
        rng_seed: proptest::test_runner::RngSeed::Fixed(20_261_130),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_look_at_anything_ends_well(w in any_world(), full: bool) {
        looks_hold(&w, full)?;
    }

    #[test]
    fn begin_apply_and_discard_never_panic_and_never_break_a_row(w in any_world(), seq in 1_u64..4, what in 0..3) {
        let id = fake::update(seq, "2.4.0", State::Preparing, 0, now()).id;
        // These three may write what a look may not; only the rows of others are checked afterwards.
        let before: Vec<Option<Update>> = (1..4).map(|n| w.rows.row(n)).collect();
        let _ = match what {
            0 => now_or_never(run::begin(&w, &call("b"), "2.5.0")).map(|_| ()),
            1 => now_or_never(run::apply(&w, &call("a"), &id)).map(|_| ()),
            _ => now_or_never(run::discard(&w, &call("d"), &id)).map(|_| ()),
        };
        for (n, old) in (1..4).zip(before) {
            let new = w.rows.row(n);
            if let Some(old) = old {
                let new = new.unwrap();
                if old.status.is_closed() && new.status != old.status {
                    prop_assert_eq!((&old.status, &new.status), (&State::Failed, &State::RolledBack));
                }
                if matches!(old.status, State::Unknown(_)) {
                    prop_assert_eq!(&old, &new);
                }
            }
        }
        let pending = w.rows.head().pending;
        prop_assert!(pending.is_none_or(|p| store::seq_of(&p).is_some()));
    }
}

/// Attributes that are not ours and the wrong kind of value: named, not a panic.
#[test]
fn a_row_that_can_not_be_read_is_an_error_and_no_panic() {
    let w = FakeWorld::new(now());
    w.seed(&fake::update(1, "2.4.0", State::Prepared, 60, now()));
    let key = store::update_key(PK, 1);
    let mut item = w.table.borrow().get(&key).unwrap();
    item.insert("started_at".into(), Attr::s("yesterday"));
    w.table.borrow_mut().seed(item);
    let e = now_or_never(run::reconcile(&w, &call("r"), Purpose { full: true })).unwrap_err();
    assert!(e.message.contains("UPDATE#0000000001"), "{e}");
    assert!(!e.message.contains("yesterday"), "no stored value is told: {e}");
}
