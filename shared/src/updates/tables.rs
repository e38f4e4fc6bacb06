//! The mapping tables of spec/updates.md 1.6, as total functions over raw words.

/// Class of a change set (table A).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Class {
    /// MAKE: being made.
    Making,
    /// READY: can be run.
    Ready,
    /// RUN: executing.
    Running,
    /// RAN+: executed.
    Ran,
    /// RAN-: execution failed.
    RanFailed,
    /// BAD: could not be made.
    Bad,
    /// OBS: no longer valid.
    Obsolete,
    /// GONE: being deleted or deleted.
    Gone,
    /// DELF: the delete failed.
    DeleteFailed,
    /// A word this build does not know.
    Unknown(String),
}

impl Class {
    /// Does it say that the set runs or ran?
    pub fn has_run(&self) -> bool {
        matches!(self, Class::Running | Class::Ran | Class::RanFailed)
    }
}

/// Table A. The execution status outranks the status; a word that is not in the table is kept raw (rule 14).
pub fn class(status: &str, execution: &str) -> Class {
    let known = matches!(
        status,
        "CREATE_PENDING"
            | "CREATE_IN_PROGRESS"
            | "CREATE_COMPLETE"
            | "DELETE_PENDING"
            | "DELETE_IN_PROGRESS"
            | "DELETE_COMPLETE"
            | "DELETE_FAILED"
            | "FAILED"
    );
    if !known {
        return Class::Unknown(status.to_owned());
    }
    match (execution, status) {
        ("EXECUTE_IN_PROGRESS", _) => Class::Running,
        ("EXECUTE_COMPLETE", _) => Class::Ran,
        ("EXECUTE_FAILED", _) => Class::RanFailed,
        (
            "UNAVAILABLE" | "AVAILABLE" | "OBSOLETE",
            "DELETE_PENDING" | "DELETE_IN_PROGRESS" | "DELETE_COMPLETE",
        ) => Class::Gone,
        ("UNAVAILABLE" | "AVAILABLE" | "OBSOLETE", "DELETE_FAILED") => Class::DeleteFailed,
        ("UNAVAILABLE" | "AVAILABLE" | "OBSOLETE", "FAILED") => Class::Bad,
        ("OBSOLETE", _) => Class::Obsolete,
        ("AVAILABLE", "CREATE_COMPLETE") => Class::Ready,
        ("UNAVAILABLE" | "AVAILABLE", _) => Class::Making,
        (other, _) => Class::Unknown(other.to_owned()),
    }
}

/// Which column of table B applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Column {
    /// Class RUN.
    Running,
    /// Class RAN+, or the set was not found and the stack is ours.
    Ran,
    /// Class RAN-.
    RanFailed,
}

/// A cell of table B.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cell {
    /// Stays applying, at this step.
    Applying(&'static str),
    /// Shown as rolling back, stored applying.
    RollingBack,
    /// Updated if the Version output is the target, else failed.
    CheckVersion,
    /// Rolled back, with the root cause.
    RolledBack,
    /// Failed, with this reason code.
    Failed(&'static str),
    /// The stack is gone: rule 4.
    Gone,
    /// Change set and stack disagree, or contradict each other: settling.
    Settling,
    /// The word is not in the table.
    Unknown,
}

/// Table B: what the stack's status means when the state belongs to our execution.
pub fn cell(stack_status: &str, column: Column) -> Cell {
    match stack_status {
        "CREATE_IN_PROGRESS" => Cell::Applying("installing"),
        "CREATE_FAILED" | "ROLLBACK_FAILED" | "ROLLBACK_COMPLETE" => Cell::Failed("install_failed"),
        "CREATE_COMPLETE" | "UPDATE_COMPLETE" => match column {
            Column::Running => Cell::Settling,
            Column::Ran => Cell::CheckVersion,
            Column::RanFailed => Cell::Failed("execute_failed"),
        },
        "ROLLBACK_IN_PROGRESS"
        | "UPDATE_ROLLBACK_IN_PROGRESS"
        | "UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS" => Cell::RollingBack,
        "DELETE_IN_PROGRESS" => Cell::Applying("stack_deleting"),
        "DELETE_FAILED" => Cell::Failed("stack_delete_failed"),
        "DELETE_COMPLETE" => Cell::Gone,
        "UPDATE_IN_PROGRESS" => Cell::Applying("updating"),
        "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS" => Cell::Applying("cleaning_up"),
        "UPDATE_FAILED" => Cell::Failed("stack_paused"),
        "UPDATE_ROLLBACK_FAILED" => Cell::Failed("rollback_failed"),
        "UPDATE_ROLLBACK_COMPLETE" => match column {
            Column::Running => Cell::Settling,
            Column::Ran | Column::RanFailed => Cell::RolledBack,
        },
        "REVIEW_IN_PROGRESS"
        | "IMPORT_IN_PROGRESS"
        | "IMPORT_COMPLETE"
        | "IMPORT_ROLLBACK_IN_PROGRESS"
        | "IMPORT_ROLLBACK_FAILED"
        | "IMPORT_ROLLBACK_COMPLETE" => Cell::Settling,
        _ => Cell::Unknown,
    }
}

/// Is an operation running on the stack?
pub fn is_busy(stack_status: &str) -> bool {
    stack_status.ends_with("_IN_PROGRESS") && stack_status != "REVIEW_IN_PROGRESS"
}

/// Table B, first column: the blocker of begin and apply, or None when both may go on. A word that is not in
/// the table blocks as busy: what the stack is doing is not known, so nothing may be started on it.
pub fn gate(stack_status: &str) -> Option<&'static str> {
    match stack_status {
        "CREATE_COMPLETE"
        | "UPDATE_COMPLETE"
        | "UPDATE_ROLLBACK_COMPLETE"
        | "IMPORT_COMPLETE"
        | "IMPORT_ROLLBACK_COMPLETE" => None,
        "CREATE_FAILED" | "ROLLBACK_FAILED" | "ROLLBACK_COMPLETE" => Some("stack_install_failed"),
        "DELETE_IN_PROGRESS" | "DELETE_FAILED" | "DELETE_COMPLETE" => Some("stack_going"),
        "UPDATE_FAILED" => Some("stack_paused"),
        "UPDATE_ROLLBACK_FAILED" => Some("stack_rollback_failed"),
        "REVIEW_IN_PROGRESS" => Some("stack_not_installed"),
        "IMPORT_ROLLBACK_FAILED" => Some("stack_import_rollback_failed"),
        _ => Some("stack_busy"),
    }
}
