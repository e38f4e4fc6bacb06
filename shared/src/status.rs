//! The `status` object of every answer (contract 4.1), and the small shapes inside it.

use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Why something is as it is: a stable word for programs and a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reason {
    /// Stable code.
    #[serde(default)]
    pub code: String,
    /// One or two plain sentences.
    #[serde(default)]
    pub text: String,
    /// Path of the resource it is about, root first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Type of that resource.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `HandlerErrorCode` of the resource handler, where CloudFormation gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler_error_code: Option<String>,
    /// When it happened, by the clock of the system that did the work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// Who said so: `cloudformation`, `codebuild`, `headgate`, `user`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Further notes, e.g. a permission that would have told more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Reason {
    /// A reason with code and text only.
    pub fn new(code: &str, text: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            text: text.into(),
            resource: None,
            kind: None,
            handler_error_code: None,
            at: None,
            source: None,
            notes: Vec::new(),
        }
    }

    /// The same, with who said so.
    #[must_use]
    pub fn from_source(mut self, source: &str) -> Self {
        self.source = Some(source.into());
        self
    }
}

/// What only the admin can do about it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NeedsAdmin {
    /// Stable code; docs/operations.md has one entry for each.
    pub code: String,
    /// What to do, in one or two sentences.
    pub text: String,
    /// Where to do it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
}

impl NeedsAdmin {
    /// A task for the admin.
    pub fn new(code: &str, text: impl Into<String>, link: Option<String>) -> Self {
        Self {
            code: code.into(),
            text: text.into(),
            link,
        }
    }
}

/// Something that is true beside the primary status.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Flag {
    /// Stable code, e.g. `stale_read`.
    pub code: String,
    /// One plain sentence.
    pub text: String,
    /// The permission that is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// The raw word that was not understood.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<String>,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

impl Flag {
    /// A flag with code and text only.
    pub fn new(code: &str, text: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            text: text.into(),
            action: None,
            raw: None,
            since: None,
        }
    }
}

/// The flag of a read that failed: a missing permission is named, anything else is a stale read.
pub fn read_flag(e: &crate::error::CallError) -> Flag {
    let (code, text) = if e.class == crate::error::Class::Denied {
        (
            "needs_permission",
            format!("Headgate may not call {}; grant it to see more.", e.action),
        )
    } else {
        (
            "stale_read",
            format!("{} answered {}; this is what was last known.", e.action, e.code),
        )
    };
    let mut f = Flag::new(code, text);
    f.action = Some(e.action.clone());
    f
}

/// How far something is. `step` is one of the words of contract 4.1 (updates) or a build phase.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Progress {
    /// What is being done now.
    pub step: String,
    /// How many are done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<u64>,
    /// Out of how many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// The one being worked on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Time of the last event seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_event_at: Option<Timestamp>,
}

impl Progress {
    /// Only the step.
    pub fn step(step: &str) -> Self {
        Self {
            step: step.into(),
            done: None,
            total: None,
            resource: None,
            last_event_at: None,
        }
    }
}

/// Why something can not be started now.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Blocker {
    /// Stable code; the same word is the problem code of the refused call.
    pub code: String,
    /// What and why, in one or two sentences.
    pub text: String,
    /// What only the admin can do.
    pub needs_admin: Option<NeedsAdmin>,
    /// Since when, if known.
    pub since: Option<Timestamp>,
}

/// The status object (contract 4.1): one primary state, why, how far, what only the admin can do, how fresh.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Status {
    /// Primary state.
    pub state: String,
    /// The same for people.
    pub label: String,
    /// One sentence with numbers.
    pub summary: String,
    /// Why.
    pub reason: Option<Reason>,
    /// What only the admin can do.
    pub needs_admin: Option<NeedsAdmin>,
    /// Since when it is so.
    pub since: Option<Timestamp>,
    /// When the doer was last asked with success.
    pub observed_at: Option<Timestamp>,
    /// From when on nobody should believe it any more; null when final.
    pub stale_after: Option<Timestamp>,
    /// Who was asked: `cloudformation`, `codebuild`, `stored`, …
    pub source: String,
    /// How far it is.
    pub progress: Option<Progress>,
    /// What is true beside it.
    pub flags: Vec<Flag>,
}
