//! The casts, each explored to its end.

use super::Turn::{Apply, Begin, Discard, Poll, View};
use super::{Turn, Updates, after, assert_seen, quiet};
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
fn two_users_begin() {
    let sys = Updates::new(&[("ana", &[Begin("2.4.0")]), ("ben", &[Begin("2.5.0")])]);
    let r = explore(&sys, quiet(), &bounds(1, 0));
    show(&r);
    r.assert_clean();
}

#[test]
fn two_users_apply_and_a_poll() {
    let sys = Updates::new(&[("ana", &[Apply]), ("ben", &[Apply]), ("poll", &[Poll])]);
    let r = explore(&sys, after(&quiet(), &[Begin("2.4.0")]), &bounds(1, 0));
    show(&r);
    r.assert_clean();
}

#[test]
fn apply_while_a_newer_one_is_begun() {
    let sys = Updates::new(&[("ana", &[Apply]), ("ben", &[Begin("2.5.0")])]);
    let r = explore(&sys, after(&quiet(), &[Begin("2.4.0")]), &bounds(0, 0));
    show(&r);
    r.assert_clean();
}

#[test]
fn console_against_begin() {
    let mut sys = Updates::new(&[("ben", &[Begin("2.5.0")]), ("poll", &[Poll])]);
    sys.console = true;
    let r = explore(&sys, after(&quiet(), &[Begin("2.4.0")]), &bounds(0, 0));
    show(&r);
    r.assert_clean();
}

#[test]
fn console_against_discard() {
    let mut sys = Updates::new(&[("ben", &[Discard]), ("poll", &[Poll])]);
    sys.console = true;
    let r = explore(&sys, after(&quiet(), &[Begin("2.4.0")]), &bounds(1, 1));
    show(&r);
    r.assert_clean();
}

#[test]
fn one_user_with_faults() {
    let mut sys = Updates::new(&[("ana", &[Begin("2.4.0"), Apply]), ("poll", &[Poll])]);
    sys.passes = vec![121];
    let r = explore(&sys, quiet(), &bounds(0, 1));
    show(&r);
    r.assert_clean();
}

#[test]
fn walks() {
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
    let r = walk(&sys, quiet(), &bounds(2, 3), 1, 3000);
    show(&r);
    r.assert_clean();
}
