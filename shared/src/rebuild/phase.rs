//! The closed sets of a request: phase, use, direction, step (spec/rebuild.md 1.4, 2.3; IN-1).

use std::fmt;

/// One phase of the rebuild. A plan phase judges a plan, a verify phase judges live reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(
    missing_docs,
    reason = "the names are those of the runbook, spec/rebuild.md 1.5"
)]
pub enum Phase {
    VerifyHandoff,
    PreCreate,
    Prepare,
    PrepareAlb,
    CertRequest,
    CertRequested,
    Import,
    Rebuild,
    Created,
    Start,
    Ready,
    DnsBatch,
    Converted,
    Shift,
    Cutover,
    Switch,
    TaskdefOn,
    TaskdefOnLive,
    WorkerOff,
    WorkerOffLive,
    WorkerOn,
    WorkerOnLive,
    LiveRevision,
    TaskdefOff,
    TaskdefOffLive,
    Steady,
    RolledBack,
    RollbackRebuild,
    State,
    Retire,
}

use Phase::*;

/// Every phase, in runbook order.
pub const ALL: &[Phase] = &[
    VerifyHandoff,
    PreCreate,
    Prepare,
    PrepareAlb,
    CertRequest,
    CertRequested,
    Import,
    Rebuild,
    Created,
    Start,
    Ready,
    DnsBatch,
    Converted,
    Shift,
    Cutover,
    Switch,
    TaskdefOn,
    TaskdefOnLive,
    WorkerOff,
    WorkerOffLive,
    WorkerOn,
    WorkerOnLive,
    LiveRevision,
    TaskdefOff,
    TaskdefOffLive,
    Steady,
    RolledBack,
    RollbackRebuild,
    State,
    Retire,
];

/// Phases whose plan is applied afterwards, or must be empty.
pub(crate) const PLANS: &[Phase] = &[
    Prepare,
    PrepareAlb,
    CertRequest,
    Import,
    Rebuild,
    Start,
    Cutover,
    Switch,
    TaskdefOn,
    WorkerOff,
    WorkerOn,
    TaskdefOff,
    Steady,
    RollbackRebuild,
];

/// [`PLANS`] and the hand-off proof, which judges a fresh M5a plan as `steady` (HO-4).
pub(crate) const PLANS_AND_HANDOFF: &[Phase] = &[
    VerifyHandoff,
    Prepare,
    PrepareAlb,
    CertRequest,
    Import,
    Rebuild,
    Start,
    Cutover,
    Switch,
    TaskdefOn,
    WorkerOff,
    WorkerOn,
    TaskdefOff,
    Steady,
    RollbackRebuild,
];

/// [`PLANS_AND_HANDOFF`] and the DNS batch: where a never-rule applies (2.4).
pub(crate) const MUTATIONS: &[Phase] = &[
    VerifyHandoff,
    Prepare,
    PrepareAlb,
    CertRequest,
    Import,
    Rebuild,
    Start,
    DnsBatch,
    Cutover,
    Switch,
    TaskdefOn,
    WorkerOff,
    WorkerOn,
    TaskdefOff,
    Steady,
    RollbackRebuild,
];

impl Phase {
    /// The name in a request.
    pub const fn as_str(self) -> &'static str {
        match self {
            VerifyHandoff => "verify-handoff",
            PreCreate => "pre-create",
            Prepare => "prepare",
            PrepareAlb => "prepare-alb",
            CertRequest => "cert-request",
            CertRequested => "cert-requested",
            Import => "import",
            Rebuild => "rebuild",
            Created => "created",
            Start => "start",
            Ready => "ready",
            DnsBatch => "dns-batch",
            Converted => "converted",
            Shift => "shift",
            Cutover => "cutover",
            Switch => "switch",
            TaskdefOn => "taskdef-on",
            TaskdefOnLive => "taskdef-on-live",
            WorkerOff => "worker-off",
            WorkerOffLive => "worker-off-live",
            WorkerOn => "worker-on",
            WorkerOnLive => "worker-on-live",
            LiveRevision => "live-revision",
            TaskdefOff => "taskdef-off",
            TaskdefOffLive => "taskdef-off-live",
            Steady => "steady",
            RolledBack => "rolled-back",
            RollbackRebuild => "rollback-rebuild",
            State => "state",
            Retire => "retire",
        }
    }

    /// The phase of a name; None when there is no such phase.
    pub fn parse(name: &str) -> Option<Phase> {
        ALL.iter().copied().find(|phase| phase.as_str() == name)
    }

    /// Whether a plan is judged.
    pub fn takes_plan(self) -> bool {
        PLANS_AND_HANDOFF.contains(&self)
    }

    /// The uses of a phase; empty when it has none.
    pub const fn uses(self) -> &'static [&'static str] {
        match self {
            Import => &["2b", "7a", "7a-revert"],
            DnsBatch => &["convert", "revert"],
            Steady => &["m5a", "infra_rebuild"],
            State => &["present", "absent", "2b", "7a", "7a-revert"],
            _ => &[],
        }
    }

    /// Whether a request must name a use.
    pub(crate) const fn needs_use(self) -> bool {
        matches!(self, Import | State)
    }

    /// Whether the phase has a rollback direction (1.6).
    pub(crate) const fn has_rollback(self) -> bool {
        matches!(
            self,
            Prepare
                | DnsBatch
                | Import
                | Cutover
                | Switch
                | Shift
                | WorkerOff
                | WorkerOffLive
                | WorkerOn
                | WorkerOnLive
                | LiveRevision
                | TaskdefOff
                | TaskdefOffLive
                | RolledBack
                | RollbackRebuild
                | State
                | Converted
                | Steady
        )
    }

    /// The runbook step (1 to 12) of the phase (1.5).
    pub const fn runbook_step(self) -> u8 {
        match self {
            VerifyHandoff => 2,
            PreCreate => 3,
            Prepare | PrepareAlb => 4,
            CertRequest | CertRequested => 5,
            Import => 5,
            Rebuild | Created => 6,
            Start | Ready => 7,
            DnsBatch | Converted | Shift | Cutover | Switch | State => 8,
            TaskdefOn | TaskdefOnLive | WorkerOff | WorkerOffLive | WorkerOn | WorkerOnLive
            | LiveRevision | TaskdefOff | TaskdefOffLive => 9,
            Steady => 11,
            RolledBack | RollbackRebuild => 8,
            Retire => 12,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
