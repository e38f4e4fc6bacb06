//! Headgate core.

pub mod rebuild;
