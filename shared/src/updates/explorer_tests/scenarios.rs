//! The casts, each explored to its end.

use super::Turn::{Apply, Begin, Discard, Poll, View};
use super::{Updates, after, assert_seen, quiet};
use crate::explore::{Bounds, Report, explore, walk};

fn bounds(crashes: u8, faults: u8) -> Bounds {
    Bounds {
        crashes,
        faults,
        ..Bounds::default()
    }
}

fn show(r: &Report) {
    println!("{r}\n{:?}\n{:?}\n{:?}", r.labels, r.outcomes, r.events);
}

#[test]
fn apply_while_a_newer_one_is_begun() {
    let sys = Updates::new(&[("ana", &[Apply]), ("ben", &[Begin("2.5.0")])]);
    let r = explore(&sys, after(&quiet(), &[Begin("2.4.0")]), &bounds(0, 0));
    show(&r);
    r.assert_clean();
    assert!(r.complete());
    assert_seen(
        &r,
        &[],
        &["rolled back", "ends well"],
        &["201", "202", "409 not_pending", "409 plan_expired"],
    );
}

fn everyone() -> Updates {
    let mut sys = Updates::new(&[
        ("ana", &[Begin("2.4.0"), Apply, Begin("2.5.0")]),
        ("ben", &[Begin("2.5.0"), Discard, Apply]),
        ("poll", &[Poll, View, Poll]),
        ("event", &[Poll, Poll]),
    ]);
    sys.console = true;
    sys.foreign = true;
    sys.torn = true;
    sys.passes = vec![121, 301, 61];
    sys
}

#[test]
fn walks() {
    let r = walk(&everyone(), quiet(), &bounds(2, 2), 1, 300);
    show(&r);
    r.assert_clean();
}

#[test]
#[ignore = "minutes: more and longer walks than every run of the tests can afford"]
fn long_walks() {
    for seed in 100..110 {
        let r = walk(&everyone(), quiet(), &bounds(3, 3), seed, 2_000);
        show(&r);
        r.assert_clean();
    }
}
