//! The only file that reads the clock or mints an id.

pub use jiff::{SignedDuration, Timestamp};

/// The time of the call, in whole milliseconds (what a stored RFC 3339 string and an epoch-ms number can
/// both hold, so a row read back compares equal).
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that reads the clock"
)]
pub fn now() -> Timestamp {
    let t = Timestamp::now();
    Timestamp::from_millisecond(t.as_millisecond()).unwrap_or(t)
}

/// A monotonic reading, for budgets inside one invocation.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that reads the clock"
)]
pub fn instant() -> std::time::Instant {
    std::time::Instant::now()
}

/// A fresh UUIDv7, minted at the edge and handed to the decision, which stays repeatable.
#[expect(clippy::disallowed_methods, reason = "this is the one place that mints ids")]
pub fn new_uuid() -> uuid::Uuid {
    uuid::Uuid::now_v7()
}

/// `t` plus `seconds`, saturating at the end of time instead of failing.
pub fn plus_seconds(t: Timestamp, seconds: i64) -> Timestamp {
    t.checked_add(SignedDuration::from_secs(seconds))
        .unwrap_or(if seconds < 0 {
            Timestamp::MIN
        } else {
            Timestamp::MAX
        })
}

/// Seconds from `from` to `to`, fractions kept, negative when `to` is earlier.
pub fn seconds_between(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}

/// Has more than `seconds` passed since `from`? Exactly `seconds` is still inside.
pub fn older_than(from: Timestamp, seconds: i64, now: Timestamp) -> bool {
    now.duration_since(from) > SignedDuration::from_secs(seconds)
}
