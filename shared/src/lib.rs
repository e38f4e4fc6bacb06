//! The core of Headgate: every decision, every stored shape and every adapter of the five functions.
//!
//! Rules that hold in every module (each has an enforcer, named in ARCHITECTURE.md):
//! 1. `decide` is pure and total; `model.rs` and `decide.rs` know no clock, environment, runtime or SDK.
//! 2. An action carries all it needs; the adapter makes no decision.
//! 3. Intent is saved under a condition before it is acted on, and every action can be repeated.
//! 4. Only [`time`] reads the clock, only [`config`] reads the environment, only files named `aws.rs`
//!    name an SDK crate.
//! 5. Stored, observed and view types are different types; unknown stored fields survive a write.
//!
//! Without features the crate builds with no SDK: that is the decisions, and what the command line needs.

#[cfg(feature = "aws")]
pub mod boot;
pub mod caller;
pub mod config;
pub mod domains;
pub mod error;
#[cfg(any(test, feature = "fakes"))]
pub mod explore;
pub mod http;
pub mod links;
pub mod rebuild;
pub mod release;
pub mod release_check;
pub mod status;
pub mod store;
pub mod telemetry;
pub mod time;
pub mod trigger;
pub mod updates;
