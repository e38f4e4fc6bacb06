//! Headgate core.

#[cfg(any(test, feature = "fakes"))]
pub mod explore;
