//! What is stored and what is observed of an update (spec/updates.md 1.2, 1.3). No logic beyond reading words.

use crate::error::CallError;
use crate::status::{NeedsAdmin, Progress, Reason};
use crate::store::Row;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The name recorded for a run that nobody started here (spec/updates.md 1.2, fixed text).
pub const CONSOLE: &str = "someone in the AWS console";

/// The stored state of an update.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum State {
    /// CloudFormation is making the change set, or our request to make it is in flight.
    Preparing,
    /// Change set ready, not run: waiting for the OK.
    Prepared,
    /// We asked CloudFormation to run it, or it says that it runs.
    Applying,
    /// Our run ended UPDATE_COMPLETE and the Version output is the target.
    Updated,
    /// CloudFormation restored the previous state.
    RolledBack,
    /// Could not be prepared, or needs the admin, or the stack ended with another release.
    Failed,
    /// A newer update took its place before it ran.
    Superseded,
    /// Thrown away here or in AWS, or had no changes, or the stack is gone.
    Discarded,
    /// The plan is no longer valid: the stack changed since.
    Expired,
    /// A word of another version, kept as it is. Nothing is decided about such a row.
    Unknown(String),
}

impl State {
    /// The stored word.
    pub fn as_str(&self) -> &str {
        match self {
            State::Preparing => "preparing",
            State::Prepared => "prepared",
            State::Applying => "applying",
            State::Updated => "updated",
            State::RolledBack => "rolled_back",
            State::Failed => "failed",
            State::Superseded => "superseded",
            State::Discarded => "discarded",
            State::Expired => "expired",
            State::Unknown(w) => w,
        }
    }

    /// The shown text (spec/updates.md 1.3).
    pub fn label(&self) -> &str {
        match self {
            State::Preparing => "Preparing",
            State::Prepared => "Waiting for your OK",
            State::Applying => "Applying",
            State::Updated => "Updated",
            State::RolledBack => "Rolled back",
            State::Failed => "Failed",
            State::Superseded => "Superseded",
            State::Discarded => "Discarded",
            State::Expired => "Expired",
            State::Unknown(w) => w,
        }
    }

    /// Is it one of the three open states?
    pub fn is_open(&self) -> bool {
        matches!(self, State::Preparing | State::Prepared | State::Applying)
    }

    /// Is it one of the six closed states?
    pub fn is_closed(&self) -> bool {
        !self.is_open() && !matches!(self, State::Unknown(_))
    }
}

impl From<String> for State {
    fn from(w: String) -> Self {
        match w.as_str() {
            "preparing" => State::Preparing,
            "prepared" => State::Prepared,
            "applying" => State::Applying,
            "updated" => State::Updated,
            "rolled_back" => State::RolledBack,
            "failed" => State::Failed,
            "superseded" => State::Superseded,
            "discarded" => State::Discarded,
            "expired" => State::Expired,
            _ => State::Unknown(w),
        }
    }
}

impl From<State> for String {
    fn from(s: State) -> Self {
        s.as_str().to_owned()
    }
}

/// What is left to do with the change set of a closed row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cleanup {
    /// Nothing.
    #[default]
    None,
    /// It must be deleted: sets that will not run count to CloudFormation's limit (spec/updates.md 4.1 item 2).
    Pending,
    /// It was deleted.
    Done,
}

/// What a change set would do, counted (contract 4.3).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Resources added.
    pub add: u64,
    /// Resources modified.
    pub modify: u64,
    /// Resources removed.
    pub remove: u64,
    /// Resources imported.
    pub import: u64,
    /// Resources whose action CloudFormation can not tell yet.
    pub dynamic: u64,
    /// Logical ids that will or may be replaced.
    #[serde(default)]
    pub replacements: Vec<String>,
    /// Logical ids whose data would be lost.
    #[serde(default)]
    pub data_loss: Vec<String>,
}

impl Summary {
    /// How many resources it touches.
    pub fn total(&self) -> u64 {
        self.add + self.modify + self.remove + self.import + self.dynamic
    }
}

/// Something that is not quite right about a finished update.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Warning {
    /// `cleanup_incomplete`, `ready_unverified`, `version_unverified`.
    pub code: String,
    /// One plain sentence.
    pub text: String,
    /// Resources concerned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
}

/// One update: one row per attempt (spec/updates.md 1.2).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Update {
    /// UUID; also gives the change-set name and the tokens.
    pub id: String,
    /// From the head's counter. "Newest" means highest, never the wall clock.
    pub seq: u64,
    /// Optimistic version, +1 per write; a row without it counts as 0.
    #[serde(default)]
    pub rev: u64,
    /// Stored state.
    pub status: State,
    /// `Version` output at begin.
    #[serde(default)]
    pub from_release: Option<String>,
    /// Target.
    pub to_release: String,
    /// Template that was asked for.
    #[serde(default)]
    pub template_url: Option<String>,
    /// Its digest in the release list.
    #[serde(default)]
    pub template_sha256: Option<String>,
    /// How parameters were sent: `previous`.
    #[serde(default)]
    pub parameters: Option<String>,
    /// `upd-<id>`.
    pub change_set_name: String,
    /// ARN; all later reads use it.
    #[serde(default)]
    pub change_set_id: Option<String>,
    /// CreationTime by CloudFormation's clock.
    #[serde(default)]
    pub change_set_created_at: Option<Timestamp>,
    /// Who asked for it.
    pub started_by: String,
    /// When.
    pub started_at: Timestamp,
    /// Who ran it.
    #[serde(default)]
    pub applied_by: Option<String>,
    /// When.
    #[serde(default)]
    pub applied_at: Option<Timestamp>,
    /// Who gave an OK that never took; becomes `applied_by` should that run show up after all.
    #[serde(default)]
    pub attempted_by: Option<String>,
    /// ClientRequestToken of ExecuteChangeSet: `apply-<id>-<n>`.
    #[serde(default)]
    pub apply_token: Option<String>,
    /// Id of our operation, where CloudFormation gave one.
    #[serde(default)]
    pub operation_id: Option<String>,
    /// The check that passed, copied at apply.
    #[serde(default)]
    pub model_check: Option<Map<String, Value>>,
    /// What the change set would do.
    #[serde(default)]
    pub summary: Option<Summary>,
    /// Why it ended, or why it waits.
    #[serde(default)]
    pub reason: Option<Reason>,
    /// What only the admin can do.
    #[serde(default)]
    pub needs_admin: Option<NeedsAdmin>,
    /// What is not quite right about it.
    #[serde(default)]
    pub warnings: Vec<Warning>,
    /// Id of the newer update that took its place.
    #[serde(default)]
    pub superseded_by: Option<String>,
    /// How far it is.
    #[serde(default)]
    pub progress: Option<Progress>,
    /// Time of the CloudFormation event that ended it.
    #[serde(default)]
    pub finished_at: Option<Timestamp>,
    /// What is left to do with its change set.
    #[serde(default)]
    pub change_set_cleanup: Cleanup,
    /// Last good read that was written.
    #[serde(default)]
    pub observed_at: Option<Timestamp>,
    /// Id of the last writer's request.
    #[serde(default)]
    pub last_write_id: Option<String>,
    /// First time the stack was not found; cleared by a good read.
    #[serde(default)]
    pub stack_missed_at: Option<Timestamp>,
    /// First time change set and stack disagreed; cleared when they agree.
    #[serde(default)]
    pub settling_since: Option<Timestamp>,
    /// The cause is still to be read.
    #[serde(default)]
    pub reason_pending: bool,
    /// Epoch seconds after which the table may drop the row.
    #[serde(default)]
    pub ttl: Option<i64>,
}

impl Row for Update {
    const SCHEMA: u64 = 1;
    const FIELDS: &'static [&'static str] = &[
        "id",
        "seq",
        "rev",
        "status",
        "from_release",
        "to_release",
        "template_url",
        "template_sha256",
        "parameters",
        "change_set_name",
        "change_set_id",
        "change_set_created_at",
        "started_by",
        "started_at",
        "applied_by",
        "applied_at",
        "attempted_by",
        "apply_token",
        "operation_id",
        "model_check",
        "summary",
        "reason",
        "needs_admin",
        "warnings",
        "superseded_by",
        "progress",
        "finished_at",
        "change_set_cleanup",
        "observed_at",
        "last_write_id",
        "stack_missed_at",
        "settling_since",
        "reason_pending",
        "ttl",
    ];
}

impl Update {
    /// When the set was made, by CloudFormation's clock, or else when it was asked for.
    pub fn made_at(&self) -> Timestamp {
        self.change_set_created_at.unwrap_or(self.started_at)
    }

    /// Has it run or is it running, as far as the row knows?
    pub fn reason_code(&self) -> Option<&str> {
        self.reason.as_ref().map(|r| r.code.as_str())
    }
}

/// The head item of an install: the pointer, the reservation, the counter (spec/updates.md 1.2).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Head {
    /// Id of the pending update.
    #[serde(default)]
    pub pending: Option<String>,
    /// Id of the update whose begin is in flight.
    #[serde(default)]
    pub reserving: Option<String>,
    /// Until when that reservation holds, epoch milliseconds.
    #[serde(default)]
    pub reserve_until: Option<i64>,
    /// Next sequence number; a head without it counts as 1.
    #[serde(default)]
    pub next_seq: u64,
    /// Optimistic version.
    #[serde(default)]
    pub rev: u64,
    /// ARN of the stack, resolved at the first read.
    #[serde(default)]
    pub stack_arn: Option<String>,
    /// Ids of closed rows that still need a change-set clean-up or a reason.
    #[serde(default)]
    pub work: BTreeSet<String>,
    /// Id of the last writer's request.
    #[serde(default)]
    pub last_write_id: Option<String>,
}

impl Row for Head {
    const SCHEMA: u64 = 1;
    const FIELDS: &'static [&'static str] = &[
        "pending",
        "reserving",
        "reserve_until",
        "next_seq",
        "rev",
        "stack_arn",
        "work",
        "last_write_id",
    ];
}

/// A change set as CloudFormation describes it. Words are kept raw.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ChangeSet {
    /// ARN.
    pub arn: String,
    /// Name.
    pub name: String,
    /// Raw `Status`.
    pub status: String,
    /// Raw `ExecutionStatus`.
    pub execution: String,
    /// `StatusReason`.
    pub reason: Option<String>,
    /// `CreationTime`.
    pub created_at: Option<Timestamp>,
    /// `Description`: our row id and release, so that a set can be matched after a crash.
    pub description: Option<String>,
    /// All changes, every page.
    pub changes: Vec<PlannedChange>,
}

/// One resource change of a change set. No property values.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize)]
pub struct PlannedChange {
    /// Logical id.
    pub logical_id: String,
    /// Resource type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Raw `Action`.
    pub action: String,
    /// Raw `Replacement`.
    pub replacement: Option<String>,
    /// Raw `PolicyAction`.
    pub policy_action: Option<String>,
    /// What makes it change: attribute and property names.
    pub details: Vec<String>,
}

/// What a read of a change set brought.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SetRead {
    /// It is there.
    Seen(Box<ChangeSet>),
    /// ChangeSetNotFound.
    NotFound,
    /// It could not be read.
    Failed(CallError),
}

/// The stack as CloudFormation describes it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Stack {
    /// ARN.
    pub arn: String,
    /// Raw `StackStatus`.
    pub status: String,
    /// `StackStatusReason`.
    pub reason: Option<String>,
    /// `ChangeSetId`: the set that made the current state, if CloudFormation says so.
    pub change_set_id: Option<String>,
    /// `LastUpdatedTime`.
    pub updated_at: Option<Timestamp>,
    /// Outputs, by key.
    pub outputs: BTreeMap<String, String>,
    /// Names of the parameters it has. Values are never read (spec/updates.md 4.2 item 15).
    pub parameters: BTreeSet<String>,
    /// Capabilities it was made with.
    pub capabilities: BTreeSet<String>,
    /// `RollbackConfiguration.MonitoringTimeInMinutes`.
    pub monitoring_minutes: Option<u64>,
    /// `LastOperations`: ids of the latest operations.
    pub operations: Vec<String>,
    /// Was it last deployed in express mode (spec/updates.md 4.4 item 29)?
    pub express: bool,
}

impl Stack {
    /// The release it says it runs.
    pub fn version(&self) -> Option<&str> {
        self.outputs
            .get("Version")
            .map(|v| v.trim())
            .filter(|v| !v.is_empty())
    }
}

/// What a read of the stack brought.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StackRead {
    /// It is there (DELETE_COMPLETE included).
    Seen(Box<Stack>),
    /// "does not exist".
    Missing,
    /// It could not be read.
    Failed(CallError),
}

impl StackRead {
    /// The stack, if it was seen.
    pub fn seen(&self) -> Option<&Stack> {
        if let StackRead::Seen(s) = self {
            Some(s)
        } else {
            None
        }
    }
}

/// One stack event. Newest first in every list, as CloudFormation gives them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Event {
    /// Stack it belongs to.
    pub stack_arn: String,
    /// Logical id.
    pub logical_id: String,
    /// Physical id; for a nested stack its ARN.
    pub physical_id: Option<String>,
    /// Resource type.
    pub kind: String,
    /// Raw `ResourceStatus`.
    pub status: String,
    /// `ResourceStatusReason`.
    pub reason: Option<String>,
    /// When, by CloudFormation's clock.
    pub at: Timestamp,
    /// `ClientRequestToken`.
    pub token: Option<String>,
    /// `OperationId`.
    pub operation_id: Option<String>,
    /// Hook type, status and reason, on hook events.
    pub hook: Option<Hook>,
}

impl Event {
    /// Is it about the stack itself?
    pub fn is_root(&self) -> bool {
        self.kind == "AWS::CloudFormation::Stack"
            && self.physical_id.as_deref() == Some(self.stack_arn.as_str())
    }
}

/// The hook part of an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hook {
    /// `HookType`.
    pub kind: String,
    /// Raw `HookStatus`.
    pub status: String,
    /// `HookStatusReason`.
    pub reason: Option<String>,
}

/// One finding of DescribeEvents about a change set that could not be made.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Finding {
    /// Logical id.
    pub resource: String,
    /// Where in it.
    pub path: Option<String>,
    /// What is wrong.
    pub text: String,
}

/// What a new template declares (GetTemplateSummary).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct TemplateSummary {
    /// Its parameters.
    pub parameters: BTreeSet<String>,
    /// Capabilities it needs.
    pub capabilities: BTreeSet<String>,
}

/// A request to read something of AWS.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Look {
    /// The stack, by ARN, or by name while no ARN is stored.
    Stack(String),
    /// A change set by ARN.
    SetByArn(String),
    /// A change set by name on a stack: only while no ARN is stored.
    SetByName {
        /// Stack name or ARN.
        stack: String,
        /// Change-set name.
        name: String,
    },
    /// Events of a stack since a time.
    Events {
        /// Stack ARN.
        stack: String,
        /// Not older than this.
        since: Timestamp,
    },
    /// Why a change set could not be made (DescribeEvents with failed events only).
    Findings(String),
    /// The release list.
    Releases,
    /// What a template declares.
    Template(String),
    /// A build of the release check, by id.
    Build(String),
    /// The build of this attempt, when its id was lost (ListBuildsForProject).
    FindBuild {
        /// Release.
        release: String,
        /// Attempt.
        attempt: u64,
    },
    /// The models this install has configured.
    Models,
    /// The CodeBuild project of the release check.
    Project,
}

/// The answer to a [`Look`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Seen {
    /// To `Stack`.
    Stack(StackRead),
    /// To `SetByArn` and `SetByName`.
    Set(SetRead),
    /// To `Events`.
    Events(Result<Vec<Event>, CallError>),
    /// To `Findings`.
    Findings(Result<Vec<Finding>, CallError>),
    /// To `Releases`.
    Releases(Result<Vec<u8>, CallError>),
    /// To `Template`.
    Template(Result<TemplateSummary, CallError>),
    /// To `Build` and `FindBuild`.
    Build(BuildRead),
    /// To `Models`; empty when none are configured.
    Models(Result<Vec<String>, CallError>),
    /// To `Project`: is it there?
    Project(Result<bool, CallError>),
}

/// A build as CodeBuild describes it. Words are kept raw.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Build {
    /// `project:uuid`.
    pub id: String,
    /// Raw `buildStatus`.
    pub status: String,
    /// Raw `currentPhase`.
    pub phase: String,
    /// `buildComplete`.
    pub complete: bool,
    /// Text of the phase that failed.
    pub message: Option<String>,
}

/// What a read of a build brought.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum BuildRead {
    /// It is there.
    Seen(Box<Build>),
    /// CodeBuild does not know it.
    NotFound,
    /// It could not be read.
    Failed(CallError),
}

/// A request to change something in CloudFormation. Carries all that is needed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Act {
    /// CreateChangeSet.
    Create(Box<CreateSet>),
    /// ExecuteChangeSet, rollback on.
    Execute {
        /// Change-set ARN.
        arn: String,
        /// ClientRequestToken.
        token: String,
    },
    /// DeleteChangeSet by ARN.
    Delete {
        /// Change-set ARN.
        arn: String,
    },
    /// DeleteChangeSet by name, for a set whose ARN was never learned.
    DeleteByName {
        /// Stack name or ARN.
        stack: String,
        /// Change-set name.
        name: String,
    },
    /// StartBuild of the release check.
    StartBuild(Box<StartBuild>),
    /// StopBuild.
    StopBuild(String),
}

/// What StartBuild is sent (spec/updates.md 2.4).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StartBuild {
    /// Release to check.
    pub release: String,
    /// Attempt; the report carries it back.
    pub attempt: u64,
    /// Template to check.
    pub template_url: String,
    /// Its digest in the release list.
    pub template_sha256: String,
    /// Models the release names; the report carries them back.
    pub models: Vec<String>,
    /// idempotencyToken: release and attempt.
    pub token: String,
}

/// What CreateChangeSet is sent (spec/updates.md 4.2).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CreateSet {
    /// Stack name or ARN.
    pub stack: String,
    /// Change-set name.
    pub name: String,
    /// ClientToken: the row id.
    pub token: String,
    /// Row id and release.
    pub description: String,
    /// Template.
    pub template_url: String,
    /// Parameters to send with UsePreviousValue.
    pub parameters: BTreeSet<String>,
    /// Capabilities.
    pub capabilities: BTreeSet<String>,
    /// Role CloudFormation uses.
    pub role_arn: Option<String>,
}

/// What an [`Act`] brought.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Fact {
    /// CreateChangeSet answered with this ARN.
    Made(String),
    /// A set of that name exists already (AlreadyExistsException).
    Exists(String),
    /// StartBuild answered with this build id.
    Started(String),
    /// Done, or already so.
    Done,
}

/// The verdict on the release check of a release: the seam to the model check (spec/updates.md 2).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Check {
    /// No check for this release.
    NotStarted,
    /// It runs.
    Pending(Option<String>),
    /// It passed; the record is copied into the update.
    Passed(Map<String, Value>),
    /// It said no.
    Failed(Option<String>),
    /// There is no verdict and none is coming.
    Stalled(Option<String>),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Update {
        let reason = Reason::new("c", "t");
        Update {
            id: "i".into(),
            seq: 1,
            rev: 1,
            status: State::Preparing,
            from_release: Some("1".into()),
            to_release: "2".into(),
            template_url: Some("u".into()),
            template_sha256: Some("s".into()),
            parameters: Some("previous".into()),
            change_set_name: "n".into(),
            change_set_id: Some("a".into()),
            change_set_created_at: Some(Timestamp::UNIX_EPOCH),
            started_by: "b".into(),
            started_at: Timestamp::UNIX_EPOCH,
            applied_by: Some("b".into()),
            applied_at: Some(Timestamp::UNIX_EPOCH),
            attempted_by: Some("b".into()),
            apply_token: Some("t".into()),
            operation_id: Some("o".into()),
            model_check: Some(Map::new()),
            summary: Some(Summary::default()),
            reason: Some(reason),
            needs_admin: Some(NeedsAdmin::new("c", "t", None)),
            warnings: vec![],
            superseded_by: Some("x".into()),
            progress: Some(Progress::step("updating")),
            finished_at: Some(Timestamp::UNIX_EPOCH),
            change_set_cleanup: Cleanup::Pending,
            observed_at: Some(Timestamp::UNIX_EPOCH),
            last_write_id: Some("w".into()),
            stack_missed_at: Some(Timestamp::UNIX_EPOCH),
            settling_since: Some(Timestamp::UNIX_EPOCH),
            reason_pending: true,
            ttl: Some(1),
        }
    }

    fn keys<T: Serialize>(v: &T) -> Vec<String> {
        serde_json::to_value(v)
            .unwrap()
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect()
    }

    #[test]
    fn the_field_lists_are_complete() {
        assert_eq!(keys(&full()), Update::FIELDS);
        assert_eq!(keys(&Head::default()), Head::FIELDS);
    }

    #[test]
    fn an_unknown_state_word_is_kept_and_neither_open_nor_closed() {
        let s = State::from("paused".to_owned());
        assert_eq!(s, State::Unknown("paused".into()));
        assert!(!s.is_open() && !s.is_closed());
        assert_eq!(String::from(s), "paused");
    }
}
