//! The domain provisioner: the instance behind a hosted domain (spec/domains.md).

pub mod names;
