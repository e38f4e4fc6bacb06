//! Rebuild gates: PASS, or exactly why not (spec/rebuild.md).
//!
//! An operator moves production traffic on the word of a gate, so everything here fails closed: what is missing,
//! unknown, stale or unreadable is a finding, never "fine". [`judge`] is the whole core: request, inputs and time in,
//! verdict out. Rules are small functions that carry the id of the specification, one file per phase family in
//! `rules/`; the table of all of them is `docs/rebuild-rules.md`.

pub mod codes;
mod decide;
mod inputs;
mod json;
mod live;
mod names;
mod phase;
mod plan;
pub mod report;
mod rules;
mod verdict;
mod yaml;

pub use decide::{BadInput, Files, Input, Inputs, Judgement, Request, judge, sha256_hex};
pub use phase::{ALL as PHASES, Phase};
pub use plan::Action;
pub use verdict::{Finding, InputRef, LeftBehind, MustKeep, Verdict, Word};

/// The inputs that a phase can't do without (IN-6), by their names under `inputs`.
pub fn needed_inputs(phase: Phase, use_: Option<&str>, rollback: bool) -> &'static [&'static str] {
    use Phase::*;
    match (phase, use_) {
        (VerifyHandoff, _) => &["plan", "state_m5a"],
        (
            Prepare | PrepareAlb | Start | Cutover | Switch | Steady | TaskdefOn | WorkerOff | CertRequest,
            _,
        ) => &["plan"],
        (Import, Some("2b")) => &["plan", "cert_requested"],
        (Import, _) => &["plan"],
        (CertRequested, _) => &["state_m5a", "state_rebuild"],
        (Rebuild, _) => &["plan", "state_rebuild", "cert_requested"],
        (Created | Ready | Shift | TaskdefOnLive | TaskdefOffLive | LiveRevision, _) => &["state_rebuild"],
        (DnsBatch, _) => &["dns_batch"],
        (WorkerOn, _) if !rollback => &["plan", "taskdef_on"],
        (WorkerOn, _) => &["plan"],
        (WorkerOnLive, _) if !rollback => &["state_rebuild", "taskdef_on"],
        (WorkerOnLive, _) => &["state_rebuild"],
        (TaskdefOff, _) => &["plan", "live_revision"],
        (RollbackRebuild, _) => &["plan", "state_rebuild"],
        (RolledBack, _) => &["state_rebuild"],
        (PreCreate | Converted | WorkerOffLive | State | Retire, _) => &[],
    }
}

#[cfg(test)]
mod tests;
