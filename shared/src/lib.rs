//! Headgate core.
