//! Guards removed one at a time. Each is removed in the world that the shell talks to, so that no production
//! file knows about it: a condition is dropped on its way to the table, a read answers less than it knows, a
//! call is said to have worked, the caller's clock is ahead.

use super::{Outside, Program};
use crate::error::CallError;
use crate::store::Write;
use crate::updates::model::{Act, Fact, Look, Seen};

/// The guard that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mistake {}

pub(super) fn clock(_m: Option<Mistake>, p: &Program) -> crate::time::Timestamp {
    p.now
}

pub(super) fn writes(_m: Option<Mistake>, writes: &[Write]) -> Vec<Write> {
    writes.to_vec()
}

pub(super) fn seen(_m: Option<Mistake>, _w: &Outside, _looks: &[Look], seen: Vec<Seen>) -> Vec<Seen> {
    seen
}

pub(super) fn act(_m: Option<Mistake>, _w: &Outside, _act: &Act) -> Option<Result<Fact, CallError>> {
    None
}
