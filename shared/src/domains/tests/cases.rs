//! Cases 1 to 41 and the reports O1 to O7, as far as they are the core's. The host here is the model of
//! `fake.rs`; the same cases against the real script are the tests of `host/`.

use crate::domains::decide;
use crate::domains::fake::{EPOCH, Mem, Point, Trouble, cell, claim, domain, drive, no_answer, used_port};
use crate::domains::model::{
    Cell, Claim, CommandStatus, Generation, HostOp, Outcome, Port, PortRange, Product, ProvisionError,
    Provisioned, Registry, RetireReason, State, SweepPolicy,
};
use crate::domains::names::Slug;
use crate::domains::run::{Aborted, Retired, Supervisor, Swept};
use crate::domains::store::{product, product_key, registry, registry_key, slug_key};
use crate::error::{CallError, Class};
use crate::store::{Attr, Item, Key};

pub(super) fn ensure_as(m: &Mem, c: &Cell, name: &str, me: &Claim) -> Result<Provisioned, ProvisionError> {
    drive(Supervisor::new(m, c).ensure_provisioned(&domain(name), me)).expect("nothing was to crash")
}

pub(super) fn now(m: &Mem) -> i64 {
    m.sim.borrow().now
}

/// A create by a new invocation of execution `e`.
pub(super) fn ensure(m: &Mem, e: &str) -> Result<Provisioned, ProvisionError> {
    let request = format!("r{}", m.log.borrow().len());
    ensure_as(m, &cell(), "a.com", &claim(e, &request, now(m)))
}

pub(super) fn row_of(m: &Mem, name: &str) -> Option<Registry> {
    m.sim
        .borrow()
        .table
        .get(&registry_key(&domain(name)))
        .map(|i| registry(i).unwrap())
}

pub(super) fn row(m: &Mem) -> Registry {
    row_of(m, "a.com").unwrap()
}

pub(super) fn claimed(m: &Mem) -> bool {
    m.sim.borrow().table.get(&product_key(&domain("a.com"))).is_some()
}

pub(super) fn insert(m: &Mem, execution: &str, generation: Generation) -> Result<(), ProvisionError> {
    let p = product_row(execution, generation, now(m));
    drive(Supervisor::new(m, &cell()).insert(&p)).expect("nothing was to crash")
}

pub(super) fn product_row(execution: &str, generation: Generation, now: i64) -> Product {
    Product {
        domain: domain("a.com"),
        generation,
        execution: execution.into(),
        certificate: None,
        dns_records: Vec::new(),
        dns_checked_at: None,
        created_at: now,
        updated_at: now,
    }
}

pub(super) fn sweep(m: &Mem, c: &Cell) -> Swept {
    let me = claim("sweep", &format!("s{}", m.log.borrow().len()), now(m));
    drive(Supervisor::new(m, c).sweep(&me))
        .expect("nothing was to crash")
        .unwrap()
}

fn retire(m: &Mem) -> Retired {
    let me = claim(&format!("http{}", m.log.borrow().len()), "r", now(m));
    let until = me.rollback_until();
    drive(Supervisor::new(m, &cell()).retire(&domain("a.com"), &me, until))
        .expect("nothing was to crash")
        .unwrap()
}

pub(super) fn up(m: &Mem, slug: &str) -> bool {
    m.sim.borrow().host.get(slug).is_some_and(|i| i.up)
}

fn residue(m: &Mem) -> bool {
    m.sim.borrow().host.values().any(|i| i.residue)
}

fn downs(m: &Mem) -> usize {
    m.sim.borrow().sent(HostOp::Down)
}

pub(super) fn ups(m: &Mem) -> usize {
    m.sim.borrow().sent(HostOp::Up)
}

fn starts(m: &Mem) -> u8 {
    m.sim.borrow().host.get("a-com").map_or(0, |i| i.starts)
}

fn writes(m: &Mem) -> usize {
    m.asked()
        .iter()
        .filter(|a| matches!(a, crate::domains::fake::Ask::Write(_)))
        .count()
}

fn sick(m: &Mem, code: Option<&str>) {
    let mut sim = m.sim.borrow_mut();
    match code {
        Some(c) => sim.sick.insert("a-com".into(), c.into()),
        None => sim.sick.remove("a-com"),
    };
}

fn refused(class: Class, code: &str) -> CallError {
    CallError::new(class, "ssm:SendCommand", code, "no")
}

#[test]
fn c01_activates_on_create() {
    let m = Mem::new();
    let p = ensure(&m, "e").unwrap();
    assert_eq!(
        (
            p.outcome,
            p.port,
            p.generation,
            p.origin.as_str(),
            p.server_did.as_str()
        ),
        (
            Outcome::Created,
            Port(20_000),
            Generation(1),
            "a-com.pds1.example.test",
            "did:web:a-com.pds1.example.test"
        )
    );
    let r = row(&m);
    assert_eq!(
        (r.state, &r.owner, r.lease_until, &r.command_id),
        (State::Active, &None, None, &None)
    );
    assert_eq!(r.handle_domains, [".a.com"]);
    assert!(r.config_digest.is_some() && r.activated_at.is_some());
    assert!(up(&m, "a-com"));
    let sim = m.sim.borrow();
    for key in [slug_key(&r.slug), Key::new("PORTS#pds1.eu", "20000")] {
        assert_eq!(sim.table.get(&key).unwrap()["domain"], Attr::s("a.com"));
    }
}

#[test]
fn c02_reuses_active_without_writing() {
    let m = Mem::new();
    let first = ensure(&m, "e").unwrap();
    m.asked();
    let sent = m.sim.borrow().commands.len();
    let second = ensure(&m, "other").unwrap();
    assert_eq!(
        second,
        Provisioned {
            outcome: Outcome::Reused,
            ..first
        }
    );
    assert_eq!((writes(&m), m.sim.borrow().commands.len()), (0, sent));
}

#[test]
fn c03_reuses_on_retry_after_crash_before_insert() {
    let m = Mem::new();
    ensure(&m, "e").unwrap();
    let p = ensure(&m, "e").unwrap();
    insert(&m, "e", p.generation).unwrap();
    assert!(claimed(&m) && ups(&m) == 1);
}

#[test]
fn c04_later_step_failure_keeps_instance() {
    let m = Mem::new();
    ensure(&m, "e").unwrap();
    let before = row(&m);
    let c = cell();
    let s = Supervisor::new(&m, &c);
    let me = claim("e", "r9", now(&m));
    let d = domain("a.com");
    let text = "x".repeat(600);
    assert!(
        drive(s.record_failure(&d, &me, "certificate", "Provision.Unavailable", &text))
            .unwrap()
            .unwrap()
    );
    let after = row(&m);
    let e = after.saga_error.clone().unwrap();
    assert_eq!((e.step.as_str(), e.message.len()), ("certificate", 512));
    assert_eq!(
        Registry {
            saga_error: None,
            ..after
        },
        before
    );
    assert!(up(&m, "a-com") && downs(&m) == 0);
    // A saga that was overtaken by a newer one says nothing any more.
    let old = claim("older", "r", now(&m));
    assert!(
        !drive(s.record_failure(&d, &old, "dns", "x", "y"))
            .unwrap()
            .unwrap()
    );
    assert_eq!(row(&m).saga_error.unwrap().step, "certificate");
    // An abort of that execution does not touch it either (2.4 rule 3).
    assert!(matches!(
        drive(s.abort(&d, &me)).unwrap().unwrap(),
        Aborted::Nothing(_)
    ));
    // The insert clears the error.
    insert(&m, "e", Generation(1)).unwrap();
    assert_eq!(row(&m).saga_error, None);
}

#[test]
fn c05_activation_failure_rolls_back() {
    let m = Mem::new();
    sick(&m, Some("crash_loop"));
    let e = ensure(&m, "e").unwrap_err();
    assert_eq!(
        e,
        ProvisionError::ActivationFailed {
            code: "crash_loop".into(),
            message: "The instance did not come up: crash_loop.".into()
        }
    );
    assert_eq!(e.to_string(), "The instance did not come up: crash_loop.");
    let r = row(&m);
    assert_eq!(
        (r.state, r.retire_reason, r.generation, r.owner),
        (State::Retiring, Some(RetireReason::Rollback), Generation(2), None)
    );
    let cause = r.last_error.unwrap();
    assert_eq!(
        (cause.code.as_str(), cause.generation),
        ("crash_loop", Generation(1))
    );
    assert!(!residue(&m));
}

#[test]
fn c06_retry_reclaims_same_slug_and_port() {
    let m = Mem::new();
    sick(&m, Some("crash_loop"));
    ensure(&m, "e").unwrap_err();
    let failed = row(&m);
    sick(&m, None);
    let p = ensure(&m, "f").unwrap();
    assert_eq!((p.port, p.generation), (Port(20_000), Generation(3)));
    let r = row(&m);
    assert_eq!(
        (&r.slug, r.port, &r.origin),
        (&failed.slug, failed.port, &failed.origin)
    );
    assert_eq!((r.last_error, r.saga.as_deref()), (None, Some("f")));
}

#[test]
fn c07_empty_suffix_is_lookup_only() {
    let m = Mem::new();
    let lookup = Cell {
        suffix: None,
        ..cell()
    };
    let me = claim("e", "r", EPOCH);
    let e = ensure_as(&m, &lookup, "a.com", &me).unwrap_err();
    assert_eq!(e, ProvisionError::NotConfigured);
    assert!(e.to_string().contains("ORIGIN_SUFFIX"));
    assert!(m.sim.borrow().table.items.is_empty() && writes(&m) == 0);
    let made = ensure(&m, "e").unwrap();
    // The look-up comes first: an active domain works though the configuration is broken.
    let found = ensure_as(&m, &lookup, "a.com", &me).unwrap();
    assert_eq!((found.origin, found.outcome), (made.origin, Outcome::Reused));
    // A row that is not active is not touched.
    sick(&m, Some("unhealthy"));
    let b = claim("e", "r2", now(&m));
    m.sim.borrow_mut().sick.insert("b-com".into(), "unhealthy".into());
    ensure_as(&m, &cell(), "b.com", &b).unwrap_err();
    let before = row_of(&m, "b.com");
    let e = ensure_as(&m, &lookup, "b.com", &claim("e", "r3", now(&m))).unwrap_err();
    assert_eq!((e, row_of(&m, "b.com")), (ProvisionError::NotConfigured, before));
}

#[test]
fn c07_stored_origin_wins_over_a_later_suffix() {
    let m = Mem::new();
    let made = ensure(&m, "e").unwrap();
    let moved = Cell {
        suffix: crate::domains::names::OriginSuffix::parse(".new.example.test").unwrap(),
        ..cell()
    };
    let found = ensure_as(&m, &moved, "a.com", &claim("f", "r", now(&m))).unwrap();
    assert_eq!(found.origin, made.origin);
    assert_eq!(retire(&m), Retired::Done);
    let again = ensure_as(&m, &moved, "a.com", &claim("f", "r2", now(&m))).unwrap();
    assert_eq!((again.origin, again.server_did), (made.origin, made.server_did));
}

#[test]
fn c09_two_spellings_are_one_record() {
    let m = Mem::new();
    for (i, s) in ["A.com", "a.com.", " a.com "].iter().enumerate() {
        ensure_as(&m, &cell(), s, &claim("e", &i.to_string(), now(&m))).unwrap();
    }
    assert_eq!(m.sim.borrow().table.items.len(), 3);
}

#[test]
fn c15_slug_conflict_is_final_and_discreet() {
    let m = Mem::new();
    m.sim.borrow_mut().table.seed(Item::from([
        ("pk".into(), Attr::s("SLUG#a-com")),
        ("sk".into(), Attr::s("-")),
        ("domain".into(), Attr::s("secret-customer.com")),
        ("schema".into(), Attr::n(1)),
    ]));
    let e = ensure(&m, "e").unwrap_err();
    assert_eq!(e, ProvisionError::SlugConflict(Slug::parse("a-com").unwrap()));
    assert!(!e.to_string().contains("secret"));
    assert_eq!(m.sim.borrow().table.items.len(), 1);
}

#[test]
fn c18_o3_port_clash_takes_next() {
    let m = Mem::new();
    // Somebody else takes the port between our reading of the list and our write.
    m.before(Point::Allocate, |sim| {
        sim.table.seed(used_port("pds1.eu", 20_000, "b.com"))
    });
    assert_eq!(ensure(&m, "e").unwrap().port, Port(20_001));
}

#[test]
fn c19_ports_exhausted() {
    let m = Mem::new();
    let small = Cell {
        ports: PortRange {
            low: 20_000,
            high: 20_001,
        },
        ..cell()
    };
    ensure_as(&m, &small, "a.com", &claim("e", "1", now(&m))).unwrap();
    ensure_as(&m, &small, "b.com", &claim("e", "2", now(&m))).unwrap();
    // A retired domain's port stays used.
    assert_eq!(retire(&m), Retired::Done);
    let e = ensure_as(&m, &small, "c.com", &claim("e", "3", now(&m))).unwrap_err();
    assert!(
        matches!(&e, ProvisionError::PortsExhausted { count: 2, .. }),
        "{e:?}"
    );
    assert!(e.to_string().contains("PORT_RANGE"));
    assert_eq!(row_of(&m, "c.com"), None);
    let s = sweep(&m, &small);
    assert_eq!(s.ports_used_percent, Some(100));
}

#[test]
fn a_nearly_full_range_allocates_in_six_requests() {
    let m = Mem::new();
    for p in 20_000..29_999u16 {
        // The longest names there are, so that the pages are as full as they get.
        let name = format!("{}.com", "a".repeat(249));
        m.sim.borrow_mut().table.seed(used_port("pds1.eu", p, &name));
    }
    assert_eq!(ensure(&m, "e").unwrap().port, Port(29_999));
    let asked = m.asked();
    let until = asked
        .iter()
        .position(|a| crate::domains::fake::point(a) == Point::Allocate)
        .unwrap();
    assert!(until < 6, "{} requests up to the allocation", until + 1);
}

#[test]
fn lowest_free_port_is_taken_also_from_a_gap() {
    let m = Mem::new();
    for p in [19_999, 20_000, 20_001, 20_003, 29_999] {
        m.sim.borrow_mut().table.seed(used_port("pds1.eu", p, "x.com"));
    }
    assert_eq!(ensure(&m, "e").unwrap().port, Port(20_002));
}

#[test]
fn c20_o1_lost_allocation_reply_is_recognised() {
    let m = Mem::new();
    m.trouble(Point::Allocate, 1, Trouble::LoseAnswer);
    let p = ensure(&m, "e").unwrap();
    assert_eq!((p.port, p.generation), (Port(20_000), Generation(1)));
    assert_eq!(m.sim.borrow().table.items.len(), 3);
}

#[test]
fn o1_lost_reply_and_a_failed_reread_never_take_a_second_port() {
    let m = Mem::new();
    m.trouble(Point::Allocate, 1, Trouble::LoseAnswer);
    // Reads: the row, the ports, and then the one after the lost answer.
    m.trouble(Point::Read, 3, Trouble::Fail(no_answer()));
    assert!(matches!(
        ensure(&m, "e").unwrap_err(),
        ProvisionError::Unavailable(_)
    ));
    assert_eq!(row(&m).state, State::Allocating);
    assert_eq!(ensure(&m, "e").unwrap().port, Port(20_000));
    assert_eq!(m.sim.borrow().table.items.len(), 3);
}

#[test]
fn an_allocation_whose_answer_and_effect_are_lost_is_tried_again() {
    let m = Mem::new();
    m.trouble(Point::Allocate, 1, Trouble::Fail(no_answer()));
    assert_eq!(ensure(&m, "e").unwrap().port, Port(20_000));
}

/// A row that `execution` left `starting` at generation 1 without a command, its lease still on.
fn left_starting(m: &Mem, execution: &str) {
    m.trouble(Point::Start, 1, Trouble::CrashAfter);
    let c = cell();
    let me = claim(execution, "dead", now(m));
    assert!(drive(Supervisor::new(m, &c).ensure_provisioned(&domain("a.com"), &me)).is_none());
    assert_eq!(
        (row(m).state, row(m).generation),
        (State::Starting, Generation(1))
    );
}

#[test]
fn c21_live_lease_is_busy() {
    let m = Mem::new();
    left_starting(&m, "e");
    let before = row(&m);
    m.asked();
    let e = ensure(&m, "f").unwrap_err();
    assert_eq!(e, ProvisionError::Busy { retry_after: 125 });
    assert_eq!((writes(&m), row(&m)), (0, before));
}

#[test]
fn c22_o5_expired_lease_is_reclaimed() {
    let m = Mem::new();
    left_starting(&m, "e");
    m.pass(124_999);
    ensure(&m, "f").unwrap_err();
    m.pass(1);
    let p = ensure(&m, "f").unwrap();
    assert_eq!((p.generation, p.port), (Generation(2), Port(20_000)));
}

#[test]
fn c23_stale_owner_cannot_mark_active() {
    let m = Mem::new();
    // B takes the row over at the moment A is about to mark it active.
    m.before(Point::Activate, |sim| {
        let b = claim("b", "rb", sim.now);
        let r = registry(sim.table.get(&registry_key(&domain("a.com"))).unwrap()).unwrap();
        let next = decide::take(&r, &b, sim.now).unwrap();
        sim.table
            .write(&[crate::domains::store::change(&r, &next)])
            .unwrap();
    });
    assert_eq!(ensure(&m, "a").unwrap_err(), ProvisionError::LostLease);
    let r = row(&m);
    assert_eq!(
        (r.state, r.generation, r.owner.unwrap().execution()),
        (State::Allocating, Generation(2), "b")
    );
}

#[test]
fn c26_c40_an_adopted_or_repeated_up_starts_one_process() {
    let m = Mem::new();
    ensure(&m, "e").unwrap();
    m.sim.borrow_mut().deliver(0);
    assert!(up(&m, "a-com") && starts(&m) == 1);
}

#[test]
fn c27_o4_invocation_not_visible_at_first() {
    let m = Mem::new();
    m.hidden_for.set(3_000);
    assert_eq!(ensure(&m, "e").unwrap().outcome, Outcome::Created);
    assert_eq!(m.sim.borrow().commands.len(), 1);
}

#[test]
fn a_command_that_stays_invisible_is_unknown_and_settled_by_a_down() {
    let m = Mem::new();
    m.hidden_for.set(1_000_000);
    let e = ensure(&m, "e").unwrap_err();
    assert!(
        matches!(&e, ProvisionError::ActivationFailedDirty { code, .. } if code == "host_answer_unknown"),
        "{e:?}"
    );
    assert_eq!(downs(&m), 1);
}

#[test]
fn c28_adopts_running_command() {
    let m = Mem::new();
    m.trouble(Point::Sent, 1, Trouble::CrashAfter);
    let c = cell();
    let me = claim("e", "dead", now(&m));
    assert!(drive(Supervisor::new(&m, &c).ensure_provisioned(&domain("a.com"), &me)).is_none());
    let p = ensure(&m, "e").unwrap();
    assert_eq!((p.generation, ups(&m), starts(&m)), (Generation(1), 1, 1));
}

#[test]
fn after_three_adoptions_it_is_rolled_back() {
    let m = Mem::new();
    m.held.set(true);
    for _ in 0..4 {
        let e = ensure(&m, "e").unwrap_err();
        assert!(matches!(e, ProvisionError::InProgress(_)), "{e:?}");
    }
    assert_eq!((row(&m).adoptions, ups(&m)), (Some(3), 1));
    let e = ensure(&m, "e").unwrap_err();
    assert!(
        matches!(&e, ProvisionError::ActivationFailedDirty { code, .. } if code == "start_timeout"),
        "{e:?}"
    );
    assert_eq!(
        (row(&m).state, row(&m).generation, downs(&m)),
        (State::Retiring, Generation(2), 1)
    );
}

#[test]
fn c29_budget_stops_before_side_effects() {
    let m = Mem::new();
    let late = Claim {
        deadline: EPOCH + 10_000,
        ..claim("e", "r", EPOCH)
    };
    assert!(matches!(
        ensure_as(&m, &cell(), "a.com", &late).unwrap_err(),
        ProvisionError::InProgress(_)
    ));
    assert!(m.sim.borrow().table.items.is_empty() && m.sim.borrow().commands.is_empty());
    left_starting(&m, "e");
    let before = row(&m);
    assert!(matches!(
        ensure_as(&m, &cell(), "a.com", &late).unwrap_err(),
        ProvisionError::InProgress(_)
    ));
    assert_eq!(row(&m), before);
    // Time that runs out between the allocation and S3 counts too.
    let m = Mem::new();
    m.before(Point::Allocate, |sim| sim.now += 80_000);
    assert!(matches!(
        ensure(&m, "e").unwrap_err(),
        ProvisionError::InProgress(_)
    ));
    assert!(row(&m).state == State::Allocating && m.sim.borrow().commands.is_empty());
}

#[test]
fn c30_budget_reached_while_polling() {
    let m = Mem::new();
    m.host_takes.set(100_000);
    let me = claim("e", "r1", now(&m));
    assert!(matches!(
        ensure_as(&m, &cell(), "a.com", &me).unwrap_err(),
        ProvisionError::InProgress(_)
    ));
    assert!(now(&m) <= me.deadline - 3_000);
    let r = row(&m);
    assert_eq!(
        (r.state, r.owner, r.command_id.as_deref()),
        (State::Starting, Some(me.owner()), Some("c1"))
    );
    assert_eq!(ensure(&m, "e").unwrap().generation, Generation(1));
    assert_eq!((ups(&m), downs(&m)), (1, 0));
}

#[test]
fn c31_o7_rollback_has_its_own_time() {
    let m = Mem::new();
    sick(&m, Some("unhealthy"));
    // The host reports the failure in the last seconds of the work; the `down` takes as long as it may.
    m.host_takes.set(90_500);
    m.down_takes.set(20_000);
    let me = claim("e", "r1", now(&m));
    let e = ensure_as(&m, &cell(), "a.com", &me).unwrap_err();
    assert_eq!(e.to_string(), "The instance did not come up: unhealthy.");
    assert_eq!(
        (downs(&m), row(&m).state, row(&m).owner),
        (1, State::Retiring, None)
    );
    assert!(now(&m) > me.work_until() - 2_000 && now(&m) <= me.deadline - 3_000);
}

#[test]
fn c32_rollback_error_does_not_mask() {
    let m = Mem::new();
    sick(&m, Some("crash_loop"));
    m.trouble(
        Point::SendDown,
        1,
        Trouble::Fail(refused(Class::Denied, "AccessDeniedException")),
    );
    let e = ensure(&m, "e").unwrap_err();
    let ProvisionError::ActivationFailedDirty { code, message, note } = &e else {
        panic!("{e:?}")
    };
    assert_eq!(
        (code.as_str(), message.as_str()),
        ("crash_loop", e.to_string().as_str())
    );
    assert!(note.contains("AccessDenied"));
    let r = row(&m);
    assert_eq!((r.state, r.generation), (State::Retiring, Generation(2)));
    assert_eq!(r.last_error.unwrap().code, "crash_loop");
    // The abort of the same execution finishes it, at a newer generation, and keeps the first cause.
    let c = cell();
    let s = Supervisor::new(&m, &c);
    let me = claim("e", "abort", now(&m));
    assert_eq!(
        drive(s.abort(&domain("a.com"), &me)).unwrap().unwrap(),
        Aborted::Stopped
    );
    let r = row(&m);
    assert_eq!(
        (r.generation, r.owner, r.last_error.unwrap().code.as_str()),
        (Generation(3), None, "crash_loop")
    );
    assert!(!residue(&m));
    assert!(matches!(
        drive(s.abort(&domain("a.com"), &me)).unwrap().unwrap(),
        Aborted::Nothing(_)
    ));
}

#[test]
fn an_abort_leaves_other_executions_work_alone() {
    let m = Mem::new();
    left_starting(&m, "e");
    let before = row(&m);
    let c = cell();
    let s = Supervisor::new(&m, &c);
    let other = claim("f", "abort", now(&m));
    assert!(matches!(
        drive(s.abort(&domain("a.com"), &other)).unwrap().unwrap(),
        Aborted::Nothing(_)
    ));
    assert_eq!((row(&m), m.sim.borrow().commands.len()), (before, 0));
    // Its own it ends: the Lambda behind it was declared dead.
    let own = claim("e", "abort", now(&m));
    assert_eq!(
        drive(s.abort(&domain("a.com"), &own)).unwrap().unwrap(),
        Aborted::Stopped
    );
    assert_eq!(row(&m).last_error.unwrap().code, "interrupted");
    assert!(matches!(
        drive(s.abort(&domain("b.com"), &own)).unwrap().unwrap(),
        Aborted::Nothing(_)
    ));
}

#[test]
fn c33_health_compares_did() {
    let m = Mem::new();
    m.sim.borrow_mut().taken_ports.insert(20_000);
    let e = ensure(&m, "e").unwrap_err();
    assert!(
        matches!(&e, ProvisionError::ActivationFailed { code, .. } if code == "port_taken"),
        "{e:?}"
    );
    // The port stays with the domain (1.6).
    assert_eq!(row(&m).port, Port(20_000));
    // A host that says ok for another DID is not believed.
    let r = row(&m);
    for did in [None, Some("did:web:other.pds1.example.test")] {
        let line = serde_json::json!({"op": "up", "slug": "a-com", "generation": r.generation, "result": "ok", "did": did});
        let seen = crate::domains::model::Invocation {
            status: CommandStatus::Success,
            details: "Success".into(),
            stdout: line.to_string(),
        };
        let v = decide::judge(&seen, &r, HostOp::Up);
        assert!(
            matches!(&v, decide::Verdict::Failed { code, .. } if code == "did_mismatch"),
            "{v:?}"
        );
    }
}

#[test]
fn only_the_line_for_this_very_command_is_believed() {
    let m = Mem::new();
    ensure(&m, "e").unwrap();
    let r = row(&m);
    let line = |op: &str, slug: &str, g: u64, result: &str| {
        serde_json::json!({"op": op, "slug": slug, "generation": g, "result": result, "did": r.server_did})
            .to_string()
    };
    let judge = |status, stdout: &str| {
        let seen = crate::domains::model::Invocation {
            status,
            details: "x".into(),
            stdout: stdout.into(),
        };
        decide::judge(&seen, &r, HostOp::Up)
    };
    use decide::Verdict;
    let good = line("up", "a-com", 1, "ok");
    assert_eq!(judge(CommandStatus::Success, &format!("{good}\n")), Verdict::Done);
    assert_eq!(
        judge(CommandStatus::Failed, &line("up", "a-com", 1, "fenced")),
        Verdict::Fenced
    );
    assert_eq!(judge(CommandStatus::Waiting, &good), Verdict::Waiting);
    assert_eq!(judge(CommandStatus::NotVisible, &good), Verdict::NotVisible);
    for (status, out) in [
        (CommandStatus::Success, String::new()),
        (CommandStatus::Success, "ok".into()),
        (CommandStatus::Success, "{\"op\":\"up\"".into()),
        (CommandStatus::Success, line("down", "a-com", 1, "ok")),
        (CommandStatus::Success, line("up", "b-com", 1, "ok")),
        (CommandStatus::Success, line("up", "a-com", 2, "ok")),
        (CommandStatus::Success, line("up", "a-com", 1, "splendid")),
        (CommandStatus::Failed, "Segmentation fault".into()),
        (CommandStatus::TimedOut, String::new()),
        (CommandStatus::Cancelled, String::new()),
    ] {
        assert!(
            matches!(judge(status, &out), Verdict::Unknown { .. }),
            "{status:?} {out}"
        );
    }
    // The agent may have failed to report what our script did say.
    assert_eq!(judge(CommandStatus::TimedOut, &good), Verdict::Done);
}

#[test]
fn c37_retire_then_create_reclaims() {
    let m = Mem::new();
    let first = ensure(&m, "e").unwrap();
    insert(&m, "e", first.generation).unwrap();
    assert_eq!(retire(&m), Retired::Done);
    let r = row(&m);
    assert_eq!((r.state, r.generation), (State::Retired, Generation(2)));
    assert!(r.retired_at.is_some() && !claimed(&m) && !residue(&m));
    assert_eq!(retire(&m), Retired::Already);
    let again = ensure(&m, "f").unwrap();
    assert_eq!((again.port, again.generation), (first.port, Generation(3)));
    assert_eq!(again.origin, first.origin);
    assert!(up(&m, "a-com") && row(&m).retired_at.is_none());
}

#[test]
fn retire_of_an_unknown_domain() {
    assert_eq!(retire(&Mem::new()), Retired::Unknown);
}

#[test]
fn retire_waits_for_nobody_and_takes_over_the_dead() {
    let m = Mem::new();
    left_starting(&m, "e");
    assert_eq!(retire(&m), Retired::Busy(125));
    m.pass(125_000);
    assert_eq!(retire(&m), Retired::Done);
    assert_eq!(
        (row(&m).state, row(&m).generation),
        (State::Retired, Generation(2))
    );
}

#[test]
fn a_take_over_leaves_no_command_behind_that_was_recorded_meanwhile() {
    let m = Mem::new();
    left_starting(&m, "e");
    m.pass(125_000);
    // The old owner is only slow: it records its command between the retire's read and its write.
    m.before(Point::Retire, |sim| {
        let r = registry(sim.table.get(&registry_key(&domain("a.com"))).unwrap()).unwrap();
        let next = decide::sent(&r, "c9", sim.now);
        sim.table
            .write(&[crate::domains::store::change(&r, &next)])
            .unwrap();
    });
    assert_eq!(retire(&m), Retired::Done);
    assert_eq!(
        (row(&m).state, row(&m).command_id, row(&m).command_op),
        (State::Retired, None, None)
    );
}

#[test]
fn c38_create_during_retire() {
    let m = Mem::new();
    ensure(&m, "e").unwrap();
    m.held.set(true);
    assert_eq!(retire(&m), Retired::Underway);
    assert_eq!(retire(&m), Retired::Underway);
    assert!(matches!(
        ensure(&m, "f").unwrap_err(),
        ProvisionError::Busy { .. }
    ));
    let down = m
        .sim
        .borrow()
        .commands
        .iter()
        .position(|c| c.command.op == HostOp::Down)
        .unwrap();
    m.pass(200_000);
    m.held.set(false);
    // The create gets its `up` through before the late `down`.
    m.sim.borrow_mut().commands[down].status = CommandStatus::TimedOut;
    assert_eq!(ensure(&m, "f").unwrap().generation, Generation(3));
    m.sim.borrow_mut().deliver(down);
    assert!(up(&m, "a-com") && row(&m).state == State::Active);
}

#[test]
fn c38_retire_says_superseded() {
    let m = Mem::new();
    ensure(&m, "e").unwrap();
    // While the retire waits for the host, its lease ends and a create takes over.
    m.before(Point::Retired, |sim| {
        let b = claim("b", "rb", sim.now);
        let r = registry(sim.table.get(&registry_key(&domain("a.com"))).unwrap()).unwrap();
        let next = decide::take(&r, &b, sim.now).unwrap();
        sim.table
            .write(&[crate::domains::store::change(&r, &next)])
            .unwrap();
    });
    assert_eq!(retire(&m), Retired::Superseded);
    assert_eq!(
        (row(&m).state, row(&m).generation),
        (State::Allocating, Generation(3))
    );
}

#[test]
fn c39_sweep_finishes_dead_rollback() {
    let m = Mem::new();
    sick(&m, Some("crash_loop"));
    m.trouble(Point::Fail, 1, Trouble::CrashAfter);
    let c = cell();
    let me = claim("e", "dead", now(&m));
    assert!(drive(Supervisor::new(&m, &c).ensure_provisioned(&domain("a.com"), &me)).is_none());
    assert!(residue(&m));
    m.pass(130_000);
    let s = sweep(&m, &c);
    assert_eq!(s.rolled_back, ["a.com"]);
    let r = row(&m);
    assert_eq!(
        (r.state, r.generation, r.owner),
        (State::Retiring, Generation(3), None)
    );
    assert_eq!(r.last_error.unwrap().code, "crash_loop");
    assert!(!residue(&m) && s.oldest_unfinished_seconds > 100);
    assert_eq!(sweep(&m, &c).rolled_back, [""; 0]);
}

#[test]
fn c40_sweep_leaves_fresh_work_alone() {
    let m = Mem::new();
    left_starting(&m, "e");
    let before = row(&m);
    sweep(&m, &cell());
    // Also within the grace after the lease.
    m.sim.borrow_mut().now = EPOCH + 125_000 + 59_999;
    let s = sweep(&m, &cell());
    assert_eq!((row(&m), s.rolled_back.len(), downs(&m)), (before, 0, 0));
    m.sim.borrow_mut().now = EPOCH + 125_000 + 60_000;
    assert_eq!(sweep(&m, &cell()).rolled_back, ["a.com"]);
    assert_eq!(row(&m).last_error.unwrap().code, "interrupted");
}

#[test]
fn the_sweep_retires_only_old_unclaimed_ones_and_only_when_told() {
    let week = decide::SAGA_MAX + 1;
    let strict = Cell {
        sweep: SweepPolicy::Retire,
        ..cell()
    };
    let m = Mem::new();
    ensure(&m, "e").unwrap();
    assert_eq!(sweep(&m, &strict).reported.len(), 1);
    m.pass(week);
    assert_eq!(sweep(&m, &cell()).reported.len(), 1);
    m.sim.borrow_mut().running.insert("e".into());
    assert_eq!(sweep(&m, &strict).retired.len(), 0);
    assert!(up(&m, "a-com") && downs(&m) == 0);
    m.sim.borrow_mut().running.clear();
    // Claimed at the last moment: the transaction's check sees it (F9).
    m.before(Point::Retire, |sim| {
        let p = product_row("e", Generation(1), sim.now);
        sim.table.write(&crate::domains::store::insertion(&p)).unwrap();
    });
    assert_eq!(sweep(&m, &strict).retired.len(), 0);
    assert_eq!(sweep(&m, &strict).reported.len(), 0);
    assert!(up(&m, "a-com") && row(&m).state == State::Active);
    let m = Mem::new();
    ensure(&m, "e").unwrap();
    m.pass(week);
    assert_eq!(sweep(&m, &strict).retired, ["a.com"]);
    assert!(!residue(&m) && row(&m).state == State::Retired);
}

#[test]
fn f8_a_sweep_that_read_starting_does_not_retire_what_became_active() {
    let m = Mem::new();
    left_starting(&m, "e");
    m.pass(200_000);
    // The owner was only slow: it marks the row active between the sweep's read and its write. (The
    // generation is the same; only the state tells.)
    m.before(Point::Fail, |sim| {
        let r = registry(sim.table.get(&registry_key(&domain("a.com"))).unwrap()).unwrap();
        let next = decide::activate(&r, sim.now).unwrap();
        sim.table
            .write(&[crate::domains::store::change(&r, &next)])
            .unwrap();
    });
    let s = sweep(&m, &cell());
    assert_eq!(
        (s.rolled_back.len(), row(&m).state, downs(&m)),
        (0, State::Active, 0)
    );
}

#[test]
fn the_sweep_reports_what_only_the_host_knows_and_alarms_about_what_it_lacks() {
    let m = Mem::new();
    ensure(&m, "e").unwrap();
    insert(&m, "e", Generation(1)).unwrap();
    {
        let mut sim = m.sim.borrow_mut();
        let i = sim.host.entry("stray".into()).or_default();
        i.residue = true;
        sim.host.get_mut("a-com").unwrap().up = false;
    }
    let s = sweep(&m, &cell());
    assert_eq!(
        s.reported.iter().map(|f| f.about.as_str()).collect::<Vec<_>>(),
        ["stray"]
    );
    assert_eq!(
        s.alarms.iter().map(|f| f.about.as_str()).collect::<Vec<_>>(),
        ["a.com"]
    );
    assert_eq!(row(&m).state, State::Active);
}

#[test]
fn the_sweep_goes_through_a_long_list_page_by_page() {
    let m = Mem::new();
    for i in 0..120u16 {
        let name = format!("d{i}.com");
        ensure_as(&m, &cell(), &name, &claim("e", &i.to_string(), now(&m))).unwrap();
    }
    let seen: Vec<_> = (0..4)
        .map(|_| sweep(&m, &cell()))
        .map(|s| (s.reported.len(), s.ports_used_percent, s.alarms.len()))
        .collect();
    assert_eq!(
        seen,
        [(100, Some(1), 0), (20, None, 0), (100, Some(1), 0), (20, None, 0)]
    );
}

#[test]
fn c41_insert_checks_instance() {
    let m = Mem::new();
    let p = ensure(&m, "e").unwrap();
    assert_eq!(retire(&m), Retired::Done);
    assert_eq!(
        insert(&m, "e", p.generation).unwrap_err(),
        ProvisionError::InstanceMoved
    );
    assert!(!claimed(&m));
    let again = ensure(&m, "e").unwrap();
    insert(&m, "e", again.generation).unwrap();
    assert!(claimed(&m));
    // The older generation is not inserted over it.
    assert_eq!(
        insert(&m, "e", p.generation).unwrap_err(),
        ProvisionError::InstanceMoved
    );
    // Another execution's insert of the same instance is success, and the row stays.
    insert(&m, "other", again.generation).unwrap();
    let item = m.sim.borrow().table.get(&product_key(&domain("a.com"))).unwrap();
    assert_eq!(product(item).unwrap().execution, "e");
}

#[test]
fn c16_a_lost_insert_reply_is_recognised() {
    let m = Mem::new();
    let p = ensure(&m, "e").unwrap();
    m.trouble(Point::Insert, 1, Trouble::LoseAnswer);
    insert(&m, "e", p.generation).unwrap();
    m.trouble(Point::Insert, 1, Trouble::Fail(no_answer()));
    insert(&m, "e", p.generation).unwrap();
    assert!(claimed(&m));
}

#[test]
fn o2_an_active_domain_is_never_stopped_by_a_failing_create() {
    let m = Mem::new();
    ensure(&m, "e").unwrap();
    sick(&m, Some("crash_loop"));
    m.trouble(
        Point::SendUp,
        1,
        Trouble::Fail(refused(Class::Refused, "InvalidParameters")),
    );
    assert_eq!(ensure(&m, "f").unwrap().outcome, Outcome::Reused);
    assert_eq!((downs(&m), ups(&m)), (0, 1));
}

#[test]
fn a_lost_send_reply_is_settled_by_the_comment() {
    let m = Mem::new();
    m.trouble(Point::SendUp, 1, Trouble::LoseAnswer);
    ensure(&m, "e").unwrap();
    assert_eq!((ups(&m), starts(&m)), (1, 1));
    // Neither sent nor seen: sent again.
    let m = Mem::new();
    m.trouble(Point::SendUp, 1, Trouble::Fail(no_answer()));
    ensure(&m, "e").unwrap();
    assert_eq!(ups(&m), 1);
}

#[test]
fn a_throttled_send_is_tried_again_and_then_left_for_the_next_attempt() {
    let throttled = || Trouble::Fail(refused(Class::Throttled, "ThrottlingException"));
    let m = Mem::new();
    m.trouble(Point::SendUp, 1, throttled());
    ensure(&m, "e").unwrap();
    let m = Mem::new();
    for n in 1..=3 {
        m.trouble(Point::SendUp, n, throttled());
    }
    assert!(matches!(
        ensure(&m, "e").unwrap_err(),
        ProvisionError::Throttled(_)
    ));
    assert_eq!((row(&m).state, downs(&m)), (State::Starting, 0));
    assert_eq!(ensure(&m, "e").unwrap().generation, Generation(2));
}

#[test]
fn a_busy_host_is_asked_again_and_nothing_is_rolled_back() {
    let m = Mem::new();
    m.sim.borrow_mut().busy.insert("a-com".into());
    ensure(&m, "e").unwrap();
    assert_eq!((ups(&m), downs(&m), starts(&m)), (2, 0, 1));
    m.sim.borrow_mut().busy.insert("a-com".into());
    assert_eq!((retire(&m), downs(&m)), (Retired::Done, 2));
}

#[test]
fn a_refused_send_is_rolled_back() {
    let m = Mem::new();
    m.trouble(
        Point::SendUp,
        1,
        Trouble::Fail(refused(Class::Refused, "InvalidParameters")),
    );
    let e = ensure(&m, "e").unwrap_err();
    assert!(
        matches!(&e, ProvisionError::ActivationFailed { code, .. } if code == "host_refused"),
        "{e:?}"
    );
    assert_eq!(downs(&m), 1);
}

#[test]
fn looks_that_fail_say_nothing_about_the_command() {
    let m = Mem::new();
    for n in 1..=3 {
        m.trouble(Point::Look, n, Trouble::Fail(no_answer()));
    }
    ensure(&m, "e").unwrap();
    let m = Mem::new();
    m.trouble(
        Point::Look,
        1,
        Trouble::Fail(refused(Class::Denied, "AccessDenied")),
    );
    assert!(matches!(
        ensure(&m, "e").unwrap_err(),
        ProvisionError::Unavailable(_)
    ));
    assert_eq!((row(&m).state, downs(&m)), (State::Starting, 0));
    assert_eq!(ensure(&m, "e").unwrap().generation, Generation(1));
}

#[test]
fn every_write_with_a_lost_answer_is_recognised_as_ours() {
    for at in [Point::Allocate, Point::Start, Point::Sent, Point::Activate] {
        for what in [Trouble::LoseAnswer, Trouble::Fail(no_answer())] {
            let m = Mem::new();
            m.trouble(at, 1, what);
            let p = ensure(&m, "e").unwrap();
            assert_eq!((p.generation, ups(&m)), (Generation(1), 1), "{at:?}");
        }
    }
    for at in [Point::Fail, Point::Free] {
        let m = Mem::new();
        sick(&m, Some("crash_loop"));
        m.trouble(at, 1, Trouble::LoseAnswer);
        let e = ensure(&m, "e").unwrap_err();
        assert!(
            matches!(e, ProvisionError::ActivationFailed { .. }),
            "{at:?} {e:?}"
        );
        assert_eq!((row(&m).generation, row(&m).owner), (Generation(2), None));
    }
    for at in [Point::Retire, Point::Retired] {
        let m = Mem::new();
        ensure(&m, "e").unwrap();
        m.trouble(at, 1, Trouble::LoseAnswer);
        assert_eq!(retire(&m), Retired::Done, "{at:?}");
    }
}

#[test]
fn throttling_is_told_apart_from_trouble() {
    let m = Mem::new();
    let t = CallError::new(
        Class::Throttled,
        "dynamodb:GetItem",
        "ThrottlingException",
        "slow down",
    );
    m.trouble(Point::Read, 1, Trouble::Fail(t));
    assert!(matches!(
        ensure(&m, "e").unwrap_err(),
        ProvisionError::Throttled(_)
    ));
    m.trouble(Point::Read, 1, Trouble::Fail(no_answer()));
    assert!(matches!(
        ensure(&m, "e").unwrap_err(),
        ProvisionError::Unavailable(_)
    ));
}

#[test]
fn unknown_attributes_survive_and_newer_rows_are_left_alone() {
    let m = Mem::new();
    left_starting(&m, "e");
    let key = registry_key(&domain("a.com"));
    m.sim
        .borrow_mut()
        .table
        .items
        .get_mut(&key)
        .unwrap()
        .insert("future".into(), Attr::B(vec![7]));
    ensure(&m, "e").unwrap();
    assert_eq!(
        m.sim.borrow().table.get(&key).unwrap()["future"],
        Attr::B(vec![7])
    );
    m.sim
        .borrow_mut()
        .table
        .items
        .get_mut(&key)
        .unwrap()
        .insert("schema".into(), Attr::n(2));
    let before = m.sim.borrow().table.clone();
    assert!(matches!(
        ensure(&m, "f").unwrap_err(),
        ProvisionError::Unavailable(_)
    ));
    assert_eq!(m.sim.borrow().table, before);
    // Also when it became newer between read and write.
    let m = Mem::new();
    left_starting(&m, "e");
    let k = key.clone();
    m.before(Point::Take, move |sim| {
        sim.table
            .items
            .get_mut(&k)
            .unwrap()
            .insert("schema".into(), Attr::n(2));
    });
    assert!(ensure(&m, "e").is_err());
    assert_eq!(m.sim.borrow().table.get(&key).unwrap()["generation"], Attr::n(1));
}

#[test]
fn fields_are_all_named() {
    let m = Mem::new();
    ensure(&m, "e").unwrap();
    let full = Registry {
        retire_reason: Some(RetireReason::Rollback),
        owner: Some(claim("e", "r", 0).owner()),
        lease_until: Some(1),
        command_id: Some("c".into()),
        command_op: Some(HostOp::Up),
        adoptions: Some(1),
        last_error: Some(decide::interrupted(&row(&m), 1)),
        saga_error: Some(crate::domains::model::SagaError {
            step: "s".into(),
            code: "c".into(),
            message: "m".into(),
            at: 1,
        }),
        certificate: Some(crate::domains::model::Certificate {
            arn: "a".into(),
            name: "n".into(),
            status: "s".into(),
            validation: Vec::new(),
        }),
        retired_at: Some(1),
        ..row(&m)
    };
    let names: Vec<String> = serde_json::to_value(&full)
        .unwrap()
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    assert_eq!(names, <Registry as crate::store::Row>::FIELDS);
}
