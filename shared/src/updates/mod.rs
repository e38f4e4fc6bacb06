//! Updates: at most one pending update of the install, and what CloudFormation is doing with it now.
//!
//! `model` what is stored and observed · `tables` the mapping tables of spec/updates.md 1.6 · `decide` the
//! rules, in order · `cause` why a run failed · `plan` what a change set would do · `store` rows and
//! transactions · `run` the shell · `view` what people see · `api` routes and events · `aws` CloudFormation,
//! S3 and the table · `fake` the same in memory.

pub mod api;
#[cfg(feature = "aws-updates")]
pub mod aws;
pub mod cause;
pub mod decide;
#[cfg(any(test, feature = "fakes"))]
pub mod fake;
pub mod model;
pub mod plan;
pub mod run;
pub mod store;
pub mod tables;
pub mod view;

#[cfg(test)]
mod cases_tests;
#[cfg(test)]
mod explorer_tests;
#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod mapping_tests;
#[cfg(test)]
mod odd_tests;
