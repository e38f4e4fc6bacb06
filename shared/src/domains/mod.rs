//! The domain provisioner: the instance behind a hosted domain (spec/domains.md).

pub mod api;
#[cfg(feature = "aws-domains")]
pub mod aws;
pub mod decide;
pub mod dns;
#[cfg(any(test, feature = "fakes"))]
pub mod fake;
pub mod later;
pub mod model;
pub mod names;
pub mod resolve;
pub mod run;
pub mod store;
#[cfg(test)]
mod tests;
pub mod view;
