//! The crash table C0 to C20 (spec/domains.md 2.8): the process is stopped after the named point, then the
//! row and the host must be as the table says, and every way on must converge.

use super::cases::{claimed, ensure, ensure_as, insert, now, product_row, row, row_of, sweep, up, ups};
use crate::domains::decide::SWEEP_GRACE;
use crate::domains::fake::{Mem, Point, Trouble, cell, claim, domain, drive};
use crate::domains::model::{CommandStatus, Generation, Outcome, Port, ProvisionError, RetireReason, State};
use crate::domains::run::{Retired, Supervisor};

/// Stops the process of a create at the `nth` request at a point.
fn stopped(m: &Mem, at: Point, nth: u32, what: Trouble) {
    m.trouble(at, nth, what);
    let c = cell();
    let me = claim("e", "dead", now(m));
    let end = drive(Supervisor::new(m, &c).ensure_provisioned(&domain("a.com"), &me));
    assert!(end.is_none(), "not stopped at {at:?}: {end:?}");
    assert!(m.troubles.borrow().is_empty(), "not reached: {at:?}");
}

fn sick_now(m: &Mem) {
    m.sim
        .borrow_mut()
        .sick
        .insert("a-com".into(), "crash_loop".into());
}

/// Row state and generation, is a command in the row, does the unit run.
fn standing(m: &Mem) -> Option<(State, u64, bool, bool)> {
    row_of(m, "a.com").map(|r| (r.state, r.generation.0, r.command_id.is_some(), up(m, "a-com")))
}

/// Everything queued reaches the host, leases end, and the host is well again.
fn settle(m: &Mem) {
    m.pass(130_000 + SWEEP_GRACE);
    m.sim.borrow_mut().sick.clear();
}

/// Every command ever sent reaches the host, perhaps once more.
fn deliver_all(m: &Mem) {
    let mut sim = m.sim.borrow_mut();
    for i in 0..sim.commands.len() {
        sim.deliver(i);
    }
}

/// One slug and port for ever, and a host that agrees with the row.
fn clean(m: &Mem, what: &str) {
    let r = row(m);
    assert_eq!((r.slug.as_str(), r.port), ("a-com", Port(20_000)), "{what}");
    let sim = m.sim.borrow();
    let tombstones = sim
        .table
        .items
        .keys()
        .filter(|k| k.pk.starts_with("SLUG#") || k.pk.starts_with("PORTS#"));
    assert_eq!(tombstones.count(), 2, "{what}");
    let i = sim.host.get("a-com").cloned().unwrap_or_default();
    match r.state {
        State::Active => assert!(i.up, "{what}"),
        State::Retiring | State::Retired => assert!(!i.up && !i.residue && r.owner.is_none(), "{what}"),
        State::Allocating | State::Starting => panic!("{what}: not at rest: {r:?}"),
    }
}

/// A world for each way on: create again, only the sweep, create by another execution; each at once and
/// after everything has settled.
fn every_way_on(make: &dyn Fn() -> Mem, after_sweep: &[State]) {
    for (settled, who) in [(false, "e"), (true, "e"), (true, "other")] {
        let what = format!("settled {settled}, by {who}");
        let m = make();
        if settled {
            settle(&m);
        } else {
            m.sim.borrow_mut().sick.clear();
        }
        let p = ensure(&m, who).unwrap_or_else(|e| panic!("{what}: {e:?}"));
        insert(&m, who, p.generation).unwrap();
        clean(&m, &what);
        assert_eq!(row(&m).state, State::Active, "{what}");
        // Whatever is still under way reaches the host now, twice.
        for _ in 0..2 {
            deliver_all(&m);
        }
        clean(&m, &what);
    }
    let m = make();
    settle(&m);
    sweep(&m, &cell());
    m.pass(200_000);
    sweep(&m, &cell());
    if let Some(r) = row_of(&m, "a.com") {
        clean(&m, "sweep");
        assert!(after_sweep.contains(&r.state), "{:?}", r.state);
    } else {
        assert!(after_sweep.is_empty());
    }
    ensure(&m, "third").unwrap();
    clean(&m, "create after the sweep");
}

fn case(make: impl Fn() -> Mem, stands: Option<(State, u64, bool, bool)>, after_sweep: &[State]) {
    assert_eq!(standing(&make()), stands);
    every_way_on(&make, after_sweep);
}

fn after(at: Point, nth: u32, what: Trouble) -> impl Fn() -> Mem {
    move || {
        let m = Mem::new();
        stopped(&m, at, nth, what.clone());
        m
    }
}

/// The same with an instance that does not come up.
fn after_failure(at: Point, nth: u32, what: Trouble) -> impl Fn() -> Mem {
    move || {
        let m = Mem::new();
        sick_now(&m);
        stopped(&m, at, nth, what.clone());
        m
    }
}

#[test]
fn c0_after_the_read() {
    case(after(Point::Read, 1, Trouble::CrashAfter), None, &[]);
}

#[test]
fn c1_allocation_sent() {
    case(after(Point::Allocate, 1, Trouble::CrashBefore), None, &[]);
    case(
        after(Point::Allocate, 1, Trouble::CrashAfter),
        Some((State::Allocating, 1, false, false)),
        &[State::Retiring],
    );
}

#[test]
fn c2_allocated() {
    let make = after(Point::Start, 1, Trouble::CrashBefore);
    case(
        &make,
        Some((State::Allocating, 1, false, false)),
        &[State::Retiring],
    );
    let m = make();
    assert_eq!(ensure(&m, "e").unwrap().generation, Generation(2));
}

#[test]
fn c3_starting_and_nothing_sent() {
    let make = after(Point::Start, 1, Trouble::CrashAfter);
    case(
        &make,
        Some((State::Starting, 1, false, false)),
        &[State::Retiring],
    );
    let m = make();
    assert_eq!(ensure(&m, "e").unwrap().generation, Generation(2));
    case(
        after(Point::SendUp, 1, Trouble::CrashBefore),
        Some((State::Starting, 1, false, false)),
        &[State::Retiring],
    );
}

#[test]
fn c4_sent_and_not_recorded() {
    let make = after(Point::SendUp, 1, Trouble::CrashAfter);
    case(
        &make,
        Some((State::Starting, 1, false, false)),
        &[State::Retiring],
    );
    // The same execution finds the comment: no second command.
    let m = make();
    assert_eq!((ensure(&m, "e").unwrap().generation, ups(&m)), (Generation(1), 1));
    // Another one asks again, at the next generation, and nothing restarts.
    let m = make();
    settle(&m);
    assert_eq!((ensure(&m, "f").unwrap().generation, ups(&m)), (Generation(2), 2));
    assert_eq!(m.sim.borrow().host["a-com"].starts, 1);
}

#[test]
fn c5_recorded() {
    let make = after(Point::Sent, 1, Trouble::CrashAfter);
    case(&make, Some((State::Starting, 1, true, false)), &[State::Retiring]);
    let m = make();
    assert_eq!((ensure(&m, "e").unwrap().generation, ups(&m)), (Generation(1), 1));
}

#[test]
fn c6_success_read() {
    let make = after(Point::Activate, 1, Trouble::CrashBefore);
    case(&make, Some((State::Starting, 1, true, true)), &[State::Retiring]);
    let m = make();
    assert_eq!((ensure(&m, "e").unwrap().generation, ups(&m)), (Generation(1), 1));
}

#[test]
fn c7_c8_marked_active() {
    let make = after(Point::Activate, 1, Trouble::CrashAfter);
    case(&make, Some((State::Active, 1, false, true)), &[State::Active]);
    let m = make();
    assert_eq!(ensure(&m, "f").unwrap().outcome, Outcome::Reused);
}

#[test]
fn c9_before_the_insert() {
    let make = || {
        let m = Mem::new();
        ensure(&m, "e").unwrap();
        m
    };
    case(make, Some((State::Active, 1, false, true)), &[State::Active]);
    let m = make();
    let p = ensure(&m, "e").unwrap();
    insert(&m, "e", p.generation).unwrap();
    assert!(claimed(&m) && ups(&m) == 1);
}

#[test]
fn c10_rollback_recorded() {
    let make = after_failure(Point::Fail, 1, Trouble::CrashAfter);
    case(
        &make,
        Some((State::Retiring, 2, false, false)),
        &[State::Retiring],
    );
    // The sweep takes it to the next generation; a create would too.
    for sweeps in [true, false] {
        let m = make();
        settle(&m);
        if sweeps {
            sweep(&m, &cell());
        } else {
            ensure(&m, "f").unwrap();
        }
        assert_eq!(row(&m).generation, Generation(3));
    }
    // Before it: the same execution reads the same result again and rolls back; others start afresh.
    let make = after_failure(Point::Fail, 1, Trouble::CrashBefore);
    assert_eq!(standing(&make()), Some((State::Starting, 1, true, false)));
    for who in ["e", "f"] {
        let m = make();
        settle(&m);
        match ensure(&m, who) {
            Ok(p) => assert_eq!((who, p.generation), ("f", Generation(2))),
            Err(e) => assert!(
                who == "e" && matches!(e, ProvisionError::ActivationFailed { .. }),
                "{e:?}"
            ),
        }
        clean(&m, who);
        ensure(&m, "g").unwrap();
        clean(&m, who);
    }
}

#[test]
fn c11_down_sent() {
    let make = after_failure(Point::SendDown, 1, Trouble::CrashAfter);
    case(
        &make,
        Some((State::Retiring, 2, false, false)),
        &[State::Retiring],
    );
    // The late `down` is fenced by the generation that took over.
    let m = make();
    m.sim.borrow_mut().sick.clear();
    m.held.set(true);
    m.pass(130_000);
    m.sim.borrow_mut().commands[1].status = CommandStatus::TimedOut;
    m.held.set(false);
    assert_eq!(ensure(&m, "f").unwrap().generation, Generation(3));
    m.sim.borrow_mut().deliver(1);
    clean(&m, "late down");
    assert_eq!(row(&m).state, State::Active);
}

#[test]
fn c12_down_done() {
    case(
        after_failure(Point::Free, 1, Trouble::CrashBefore),
        Some((State::Retiring, 2, false, false)),
        &[State::Retiring],
    );
}

#[test]
fn c13_rolled_back_and_free() {
    let make = after_failure(Point::Free, 1, Trouble::CrashAfter);
    case(
        &make,
        Some((State::Retiring, 2, false, false)),
        &[State::Retiring],
    );
    let m = make();
    m.sim.borrow_mut().sick.clear();
    assert_eq!(ensure(&m, "f").unwrap().port, Port(20_000));
}

/// An active, claimed domain whose retire is stopped at a point.
fn retire_stopped(at: Point, what: Trouble) -> Mem {
    let m = Mem::new();
    let p = ensure(&m, "e").unwrap();
    insert(&m, "e", p.generation).unwrap();
    m.trouble(at, 1, what);
    let c = cell();
    let me = claim("http", "r", now(&m));
    let until = me.rollback_until();
    assert!(drive(Supervisor::new(&m, &c).retire(&domain("a.com"), &me, until)).is_none());
    m
}

fn retire_converges(make: &dyn Fn() -> Mem) {
    let m = make();
    assert_eq!(row(&m).retire_reason, Some(RetireReason::Requested));
    assert!(!claimed(&m));
    settle(&m);
    assert_eq!(sweep(&m, &cell()).retired, ["a.com"]);
    clean(&m, "retire and sweep");
    assert_eq!(row(&m).state, State::Retired);
    // A create instead of the sweep.
    let m = make();
    settle(&m);
    let p = ensure(&m, "f").unwrap();
    insert(&m, "f", p.generation).unwrap();
    deliver_all(&m);
    clean(&m, "retire and create");
    assert_eq!(row(&m).state, State::Active);
    // A second delete.
    let m = make();
    settle(&m);
    let c = cell();
    let me = claim("http2", "r", now(&m));
    let end = drive(Supervisor::new(&m, &c).retire(&domain("a.com"), &me, me.rollback_until()));
    assert_eq!(end.unwrap().unwrap(), Retired::Done);
    clean(&m, "retire again");
}

#[test]
fn c14_retire_recorded() {
    let make = || retire_stopped(Point::Retire, Trouble::CrashAfter);
    assert_eq!(standing(&make()), Some((State::Retiring, 2, false, true)));
    retire_converges(&make);
    // Before it, nothing has happened.
    let m = retire_stopped(Point::Retire, Trouble::CrashBefore);
    assert!(claimed(&m) && standing(&m) == Some((State::Active, 1, false, true)));
    retire_converges(&|| retire_stopped(Point::SendDown, Trouble::CrashAfter));
}

#[test]
fn c15_retire_down_done() {
    let make = || retire_stopped(Point::Retired, Trouble::CrashBefore);
    assert_eq!(standing(&make()), Some((State::Retiring, 2, false, false)));
    retire_converges(&make);
    let m = retire_stopped(Point::Retired, Trouble::CrashAfter);
    clean(&m, "retired");
}

#[test]
fn c16_insert_sent() {
    for (what, there) in [(Trouble::CrashAfter, true), (Trouble::CrashBefore, false)] {
        let m = Mem::new();
        let p = ensure(&m, "e").unwrap();
        m.trouble(Point::Insert, 1, what);
        let c = cell();
        let product = product_row("e", p.generation, now(&m));
        assert!(drive(Supervisor::new(&m, &c).insert(&product)).is_none());
        assert_eq!(claimed(&m), there);
        // The workflow tries the task again.
        insert(&m, "e", p.generation).unwrap();
        assert!(claimed(&m));
        clean(&m, "insert");
    }
}

/// The host dies in the middle of the first `up`.
fn host_dies(started: bool) -> Mem {
    let m = Mem::new();
    m.before(Point::Look, move |sim| sim.die_in(0, started));
    m
}

#[test]
fn c17_c18_the_host_dies_in_up() {
    for started in [false, true] {
        // Nobody knows how far it came: settled by the fenced `down`, reported as the first cause.
        let m = host_dies(started);
        let e = ensure(&m, "e").unwrap_err();
        assert!(
            matches!(&e, ProvisionError::ActivationFailed { code, .. } if code == "host_timed_out"),
            "{e:?}"
        );
        clean(&m, "host died");
        assert_eq!(ensure(&m, "f").unwrap().port, Port(20_000));
        clean(&m, "host died, then create");
        // The same with our process gone as well.
        let make = || {
            let m = host_dies(started);
            stopped(&m, Point::Look, 1, Trouble::CrashAfter);
            m
        };
        let m = make();
        settle(&m);
        ensure(&m, "f").unwrap();
        clean(&m, "both died, then create by another");
        let m = make();
        settle(&m);
        sweep(&m, &cell());
        clean(&m, "both died, then sweep");
    }
}

#[test]
fn c19_caddy_refuses_the_config() {
    let m = Mem::new();
    ensure_as(&m, &cell(), "b.com", &claim("e", "b", now(&m))).unwrap();
    m.sim
        .borrow_mut()
        .sick
        .insert("a-com".into(), "caddy_refused".into());
    let e = ensure(&m, "e").unwrap_err();
    assert!(
        matches!(&e, ProvisionError::ActivationFailed { code, .. } if code == "caddy_refused"),
        "{e:?}"
    );
    assert_eq!(standing(&m), Some((State::Retiring, 2, false, false)));
    assert!(up(&m, "b-com"));
}

#[test]
fn c20_reboot_while_active() {
    let m = Mem::new();
    ensure(&m, "e").unwrap();
    m.sim.borrow_mut().host.get_mut("a-com").unwrap().up = false;
    // The saga does not repair it: the enabled unit comes back by itself. The sweep says so meanwhile.
    assert_eq!(ensure(&m, "f").unwrap().outcome, Outcome::Reused);
    assert_eq!((ups(&m), sweep(&m, &cell()).alarms.len()), (1, 1));
}

#[test]
fn every_point_of_a_create_can_be_the_last_one_twice() {
    use Point::{Activate, Adopt, Allocate, Fail, Free, Look, Read, SendDown, SendUp, Sent, Start, Take};
    for ill in [false, true] {
        for first in [
            Read, Allocate, Start, SendUp, Sent, Look, Activate, Fail, SendDown, Free,
        ] {
            for second in [
                Read, Take, Adopt, Start, SendUp, Sent, Look, Activate, Fail, SendDown, Free,
            ] {
                for what in [Trouble::CrashBefore, Trouble::CrashAfter, Trouble::LoseAnswer] {
                    let m = Mem::new();
                    if ill {
                        sick_now(&m);
                    }
                    let c = cell();
                    m.trouble(first, 1, what.clone());
                    let me = claim("e", "1", now(&m));
                    let _ = drive(Supervisor::new(&m, &c).ensure_provisioned(&domain("a.com"), &me));
                    m.troubles.borrow_mut().clear();
                    m.trouble(second, 1, what.clone());
                    let me = claim("e", "2", now(&m));
                    let _ = drive(Supervisor::new(&m, &c).ensure_provisioned(&domain("a.com"), &me));
                    m.troubles.borrow_mut().clear();
                    settle(&m);
                    sweep(&m, &c);
                    let text = format!("{ill} {first:?} {second:?} {what:?}");
                    if row_of(&m, "a.com").is_some() {
                        clean(&m, &text);
                    }
                    ensure(&m, "f").unwrap_or_else(|e| panic!("{text}: {e:?}"));
                    clean(&m, &text);
                }
            }
        }
    }
}
