//! CloudFormation with a will of its own: the model of [`Cloud`], a clock, what may happen next without
//! Headgate (by itself or by the hand of an admin in the console), and reads that are behind.

use crate::error::{CallError, Class};
use crate::time::{Timestamp, plus_seconds};
use crate::updates::fake::{Cloud, FakeSet, STACK_ARN};
use crate::updates::model::{Act, Fact, Look, Seen, SetRead, StackRead};
use std::rc::Rc;

/// The life of a change set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Life {
    Making,
    Ready,
    /// Without any change, or it could not be made.
    Bad,
    Obsolete,
    Running,
    Ran,
    RanBadly,
    Deleted,
}

impl Life {
    pub(super) fn of(s: &FakeSet) -> Self {
        match (s.set.execution.as_str(), s.set.status.as_str()) {
            _ if s.deleted => Life::Deleted,
            ("EXECUTE_IN_PROGRESS", _) => Life::Running,
            ("EXECUTE_COMPLETE", _) => Life::Ran,
            ("EXECUTE_FAILED", _) => Life::RanBadly,
            (_, "FAILED") => Life::Bad,
            ("OBSOLETE", _) => Life::Obsolete,
            ("AVAILABLE", _) => Life::Ready,
            _ => Life::Making,
        }
    }

    /// Has CloudFormation ever begun to run it?
    pub(super) fn has_run(self) -> bool {
        matches!(self, Life::Running | Life::Ran | Life::RanBadly)
    }
}

/// Everything CloudFormation knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Cfn {
    pub(super) now: Timestamp,
    pub(super) cloud: Cloud,
    /// The state before the last change, which a read may still show until the clock jumps.
    before: Option<Rc<Cloud>>,
}

/// What happens without Headgate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Happens {
    /// The set with this index becomes ready.
    Made(usize),
    /// It has no changes.
    FoundEmpty(usize),
    /// It can not be made.
    CouldNotMake(usize),
    /// An admin runs it in the console.
    ConsoleRuns(usize),
    /// An admin deletes it in the console.
    ConsoleDeletes(usize),
    /// Someone updates the stack without a change set.
    Foreign,
    /// The run ends well.
    Ends,
    /// The run fails, rollback begins.
    RollsBack,
    /// The rollback ends.
    RolledBack,
    /// The rollback fails.
    RollbackFails,
    /// An admin continues the rollback, with success.
    Continued,
    /// So many seconds pass.
    Pass(i64),
}

impl Cfn {
    /// A stack that runs `version`, with nothing under way.
    pub(super) fn quiet(version: &str, now: Timestamp) -> Self {
        Self {
            now,
            cloud: Cloud::quiet(version),
            before: None,
        }
    }

    pub(super) fn life(&self, name_or_arn: &str) -> Option<Life> {
        let set = self
            .cloud
            .sets
            .iter()
            .rev()
            .find(|s| s.set.arn == name_or_arn || s.set.name == name_or_arn);
        set.map(Life::of)
    }

    pub(super) fn status(&self) -> &str {
        self.cloud.stack.as_ref().map_or("-", |s| s.status.as_str())
    }

    /// A changed copy that remembers what was before. The clock moves when an operation or a set begins: those
    /// are the times that are compared. Everything else may happen in the same second, which keeps worlds alike.
    fn change<T>(&self, begins: bool, f: impl FnOnce(&mut Cloud, Timestamp) -> T) -> (Self, T) {
        let now = plus_seconds(self.now, i64::from(begins));
        let mut cloud = self.cloud.clone();
        let answer = f(&mut cloud, now);
        if cloud == self.cloud {
            return (self.clone(), answer);
        }
        (
            Self {
                now,
                cloud,
                before: Some(Rc::new(self.cloud.clone())),
            },
            answer,
        )
    }

    /// One such update after another would make no difference.
    fn last_was_foreign(&self) -> bool {
        let by = self.cloud.stack.as_ref().and_then(|s| s.change_set_id.as_deref());
        by.is_some_and(|id| id.ends_with("/foreign"))
    }

    /// Everything that may happen now, `console` and `foreign` acts of others included or not.
    pub(super) fn may_happen(&self, console: bool, foreign: bool) -> Vec<Happens> {
        let mut out = Vec::new();
        let settled = matches!(self.status(), "UPDATE_COMPLETE" | "UPDATE_ROLLBACK_COMPLETE");
        for (i, s) in self.cloud.sets.iter().enumerate() {
            match Life::of(s) {
                Life::Making => {
                    out.extend([Happens::Made(i), Happens::FoundEmpty(i), Happens::CouldNotMake(i)]);
                }
                Life::Ready => {
                    if console && settled {
                        out.push(Happens::ConsoleRuns(i));
                    }
                    if console {
                        out.push(Happens::ConsoleDeletes(i));
                    }
                }
                _ => {}
            }
        }
        match self.status() {
            "UPDATE_IN_PROGRESS" => out.extend([Happens::Ends, Happens::RollsBack]),
            "UPDATE_ROLLBACK_IN_PROGRESS" => out.extend([Happens::RolledBack, Happens::RollbackFails]),
            "UPDATE_ROLLBACK_FAILED" if console => out.push(Happens::Continued),
            _ if foreign && settled && !self.last_was_foreign() => out.push(Happens::Foreign),
            _ => {}
        }
        out
    }

    /// The state after it.
    pub(super) fn happen(&self, what: Happens) -> Self {
        let name = |c: &Cloud, i: usize| c.sets[i].set.arn.clone();
        let begins = matches!(
            what,
            Happens::ConsoleRuns(_) | Happens::Foreign | Happens::Continued
        );
        let (next, ()) = self.change(begins, |c, now| match what {
            Happens::Made(i) => c.make(&name(c, i)),
            Happens::FoundEmpty(i) => {
                c.fail_to_make(&name(c, i), "The submitted information didn't contain changes.")
            }
            Happens::CouldNotMake(i) => c.fail_to_make(&name(c, i), "Transform failed"),
            Happens::ConsoleDeletes(i) => c.console_delete(&name(c, i)),
            Happens::ConsoleRuns(i) => {
                c.start_run(&name(c, i), "Console-ExecuteChangeSet-0000", now)
                    .unwrap();
            }
            Happens::Foreign => c.foreign_update(now),
            Happens::Ends => c.succeed(now),
            Happens::RollsBack => c.fail_run(now, "Function", "it does not start"),
            Happens::RolledBack => c.finish_rollback(now),
            Happens::RollbackFails => c.fail_rollback(now),
            Happens::Continued => {
                c.root_event(now, "UPDATE_ROLLBACK_IN_PROGRESS", Some("User Initiated"), None);
                c.finish_rollback(now);
            }
            Happens::Pass(_) => {}
        });
        match what {
            Happens::Pass(seconds) => Self {
                now: plus_seconds(self.now, seconds),
                before: None,
                ..next
            },
            _ => next,
        }
    }

    /// What a read brings if it is behind, where that is something else.
    pub(super) fn look_behind(&self, look: &Look) -> Option<Seen> {
        let old = self.before.as_ref()?;
        if !matches!(look, Look::Stack(_) | Look::SetByArn(_) | Look::SetByName { .. }) {
            return None;
        }
        let seen = old.look(look);
        (seen != self.cloud.look(look)).then_some(seen)
    }

    /// What a read of the stack, a set or events brings if it fails.
    pub(super) fn look_failing(look: &Look) -> Option<Seen> {
        let e = |action: &str| CallError::new(Class::Throttled, action, "Throttling", "Rate exceeded");
        match look {
            Look::Stack(_) => Some(Seen::Stack(StackRead::Failed(e("cloudformation:DescribeStacks")))),
            Look::SetByArn(_) | Look::SetByName { .. } => {
                Some(Seen::Set(SetRead::Failed(e("cloudformation:DescribeChangeSet"))))
            }
            Look::Events { .. } => Some(Seen::Events(Err(e("cloudformation:DescribeStackEvents")))),
            _ => None,
        }
    }

    /// Does what was asked, and answers.
    pub(super) fn act(&self, act: &Act) -> (Self, Result<Fact, CallError>) {
        let begins = matches!(act, Act::Create(_) | Act::Execute { .. });
        self.change(begins, |c, now| c.act(act, now))
    }
}

/// A call that was not answered, done or not.
pub(super) fn no_answer() -> CallError {
    CallError::new(
        Class::TimedOut,
        "cloudformation:Act",
        "Timeout",
        "no answer in time",
    )
}

/// A call that was one too many; nothing happened.
pub(super) fn throttled() -> CallError {
    CallError::new(
        Class::Throttled,
        "cloudformation:Act",
        "Throttling",
        "Rate exceeded",
    )
}

/// The stack, as it stands in stories.
pub(super) fn plain(text: &str) -> String {
    text.replace(STACK_ARN, "the stack")
}
