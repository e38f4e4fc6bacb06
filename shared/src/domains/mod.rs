//! The domain provisioner: the instance behind a hosted domain (spec/domains.md).

pub mod decide;
#[cfg(any(test, feature = "fakes"))]
pub mod fake;
pub mod model;
pub mod names;
pub mod run;
pub mod store;
#[cfg(test)]
mod tests;
