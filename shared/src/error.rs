//! Errors of calls to other systems, and how a failed invocation is reported to Lambda.

use serde::{Deserialize, Serialize};

/// What kind of failure a call to AWS was, decided once, in the adapter, from the typed error or its code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Asked too often; nothing happened. Codes `Throttling`, `ThrottlingException`, `RequestLimitExceeded`, …
    Throttled,
    /// The function may not make the call; nothing happened.
    Denied,
    /// The thing asked for is not there. Often an observation rather than an error.
    NotFound,
    /// 5xx, connection trouble, or an answer that can not be read: the call may have had its effect.
    Unavailable,
    /// No answer in time: the call may have had its effect.
    TimedOut,
    /// The service definitively refused what was asked; nothing happened.
    Refused,
}

impl Class {
    /// The word used in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Throttled => "throttled",
            Class::Denied => "denied",
            Class::NotFound => "not_found",
            Class::Unavailable => "unavailable",
            Class::TimedOut => "timed_out",
            Class::Refused => "refused",
        }
    }
}

/// A call to AWS that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
#[error("{action} answered {code}: {message}")]
pub struct CallError {
    /// Kind of failure; decides what may be done next.
    pub class: Class,
    /// IAM action of the call, e.g. `cloudformation:DescribeStacks`.
    pub action: String,
    /// The service's code, or `Timeout`, `Dispatch`, `Malformed` when there was no answer to read.
    pub code: String,
    /// The service's text.
    pub message: String,
}

impl CallError {
    /// A failure with all parts given.
    pub fn new(class: Class, action: &str, code: &str, message: &str) -> Self {
        Self {
            class,
            action: action.into(),
            code: code.into(),
            message: message.into(),
        }
    }

    /// May the call have had its effect although it failed? Then only a fresh read tells.
    pub fn effect_unknown(&self) -> bool {
        matches!(self.class, Class::Unavailable | Class::TimedOut)
    }

    /// Is it worth trying the same call again later without any change?
    pub fn passing(&self) -> bool {
        matches!(
            self.class,
            Class::Throttled | Class::Unavailable | Class::TimedOut
        )
    }
}

/// A failed invocation, as Lambda and Step Functions see it: a stable `error_type` and a plain message.
///
/// A boxed error would become `&alloc::boxed::Box<dyn …>`, which Step Functions can not match
/// (spec/local.md), so functions return this.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Stable word, e.g. `Link.Retry`, `Gate.BadInput`.
    pub error_type: String,
    /// One or two plain sentences: what happened, why, what to do.
    pub message: String,
}

impl Failure {
    /// A failure with a stable type and a text for people.
    pub fn new(error_type: &str, message: impl Into<String>) -> Self {
        Self {
            error_type: error_type.into(),
            message: message.into(),
        }
    }
}

#[cfg(feature = "aws")]
impl From<Failure> for lambda_runtime::Diagnostic {
    fn from(f: Failure) -> Self {
        lambda_runtime::Diagnostic {
            error_type: f.error_type,
            error_message: f.message,
        }
    }
}
