//! The harness of Headgate's black-box tests.
//!
//! It runs a *built* function as Lambda would ([`Function`], a fake Runtime API) against AWS endpoints that
//! the test writes itself ([`ScriptedAws`], chosen through `AWS_ENDPOINT_URL`), so the shipped binary needs
//! no test code. [`FakeCloudFormation`] plays the states that the local AWS finishes too quickly to show.
//!
//! Rules of this house: no sleeps and no timing assertions. Whatever waits, waits for an event; the bound
//! [`PATIENCE`] is there only so that a hang becomes a failure that says what did not come.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a panic is how a test harness reports; this crate is linked into tests only"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "the harness plays the outside world: it has the clock and the environment that the code under \
              test must not read"
)]

use std::time::Duration;

#[doc(hidden)]
pub mod harness {
    pub mod cloudformation;
    pub mod codebuild;
    pub mod events;
    pub mod http;
    pub mod ministack;
    pub mod protocol;
    pub mod runtime_api;
    pub mod s3;
    pub mod scripted;
    pub mod source;
}

pub use harness::cloudformation::{ChangeSet, FakeCloudFormation, Parameter, Plan};
pub use harness::codebuild::{Build, FakeCodeBuild};
pub use harness::events::{Caller, HttpCall, HttpReply};
pub use harness::http;
pub use harness::ministack::{Table, ministack};
pub use harness::protocol::{Call, Protocol};
pub use harness::runtime_api::{Function, FunctionBuilder, Invocation, Outcome};
pub use harness::s3::FakeS3;
pub use harness::scripted::{Answer, Gate, Mark, Record, ScriptedAws, Traffic};
pub use harness::source;

/// How long the harness waits for something that must come. Generous, because two busy cores are slow and
/// because nothing is decided by it.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The time so many seconds ago, as rows hold it.
pub fn ago(seconds: i64) -> String {
    format!(
        "{:.3}",
        jiff::Timestamp::now() - jiff::SignedDuration::from_secs(seconds)
    )
}
