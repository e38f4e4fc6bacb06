//! The model check: may this release run on this install? (spec/updates.md 2.)
//!
//! Two layers: the life of the CodeBuild build that checks the release, and our verdict on its report. The old
//! bug was a verdict that stayed pending because only the build could end it; here a pending check is one whose
//! build runs now, and everything else has a reason.
//!
//! It shares the world of `updates` (same table, same install), but none of its rules.

pub mod api;
pub mod decide;
pub mod model;
pub mod run;
pub mod view;

#[cfg(test)]
mod cases_tests;
#[cfg(test)]
mod explorer_tests;
