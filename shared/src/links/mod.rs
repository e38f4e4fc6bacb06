//! A private link's details in its row as soon as the endpoint exists, under a generation guard
//! (spec/links.md).
//!
//! * `event`: the stage event, read key by key; nothing outside the allow-list of 3.1 is looked at.
//! * `model`: ids, stages, tokens, statuses, outcomes, the row.
//! * `decide`: pure; which observation each pinned link gets (3.2), and what a failed condition means (3.5).
//! * `store`: the guard (3.4), the updates (3.6) and the editor's transactions as data.
//! * `edit`: pure; what a link's configuration must have, and when it really changed (contract 4.5).
//! * `view`: pure; what a reader is told (3.10).
//! * `api`: the HTTP routes.
//! * `handle`: one invocation, told apart by shape; logs and metrics.
//! * `run`: the shell of the writer, over [`crate::store::Table`] and [`run::Outputs`].
//!
//! The writer never changes `config` or `generation`, never puts an item, and never logs a body.

pub mod api;
#[cfg(feature = "aws-links")]
pub mod aws;
#[cfg(any(test, feature = "fakes"))]
pub mod cases;
pub mod decide;
pub mod edit;
pub mod event;
#[cfg(any(test, feature = "fakes"))]
pub mod fake;
pub mod handle;
pub mod model;
pub mod run;
pub mod store;
pub mod view;

#[cfg(test)]
mod properties;
