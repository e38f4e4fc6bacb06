//! The domain provisioner: the instance behind a hosted domain (spec/domains.md).

pub mod decide;
pub mod model;
pub mod names;
pub mod run;
pub mod store;
