//! The decisions of the domain provisioner: from what is stored, what is asked and what the host said to the
//! next row, the next command or the outcome (spec/domains.md 2). Pure and total.

use super::model::{
    Cell, Claim, CommandStatus, Event, Fault, Generation, HostLine, HostOp, IllegalEvent, Invocation, Millis,
    Outcome, OwnerToken, Port, PortRange, Product, ProvisionError, Provisioned, Registry, RetireReason,
    State, SweepPolicy, cut, next_state,
};
use super::names::{Domain, Origin, Slug, config_digest};

/// A command is adopted this often; after that the activation is rolled back (spec/domains.md 2.2).
pub const ADOPTIONS_MAX: u32 = 3;
/// Ports tried in one allocation before the caller is asked to come again (spec/domains.md 1.6).
pub const PORT_TRIES: usize = 16;
/// How long SSM may not know a command that it has accepted, in milliseconds (spec/domains.md 1.13).
pub const INVISIBLE_MAX: Millis = 20_000;
/// Between two looks at a command, in milliseconds.
pub const LOOK_EVERY: Millis = 1_000;
/// The sweep waits this much longer than a lease before it calls an activation dead, in milliseconds.
pub const SWEEP_GRACE: Millis = 60_000;
/// The longest saga, in milliseconds (7 days, spec/domains.md 2.10).
pub const SAGA_MAX: Millis = 7 * 86_400_000;

// ---------------------------------------------------------------- the create

/// What an `ensure_provisioned` does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// The row is active: answer it, write nothing.
    Reuse(Provisioned),
    /// Nothing can be done.
    Refuse(ProvisionError),
    /// There is no row: claim slug and port.
    Allocate,
    /// Take the row over and start afresh at the next generation.
    Reclaim(Box<Registry>),
    /// Go on with the command that an earlier invocation of this execution has sent.
    Adopt(Box<Registry>),
    /// An earlier invocation of this execution may have sent a command without recording it: look for it.
    Seek,
    /// The command was adopted too often: roll back.
    GiveUp(Fault),
}

/// The order is: look up first, then check the configuration, so that an active domain keeps working when
/// the configuration is broken (spec/domains.md 1.7).
pub fn plan(stored: Option<&Registry>, me: &Claim, cell: &Cell, now: Millis) -> Plan {
    if let Some(row) = stored
        && row.state == State::Active
    {
        return Plan::Reuse(row.provisioned(Outcome::Reused));
    }
    if cell.suffix.is_none() {
        return Plan::Refuse(ProvisionError::NotConfigured);
    }
    let Some(row) = stored else {
        return begin(me, now, Plan::Allocate);
    };
    let mine = is_mine(row, me);
    if row.leased(now) && !mine {
        return Plan::Refuse(busy(row, now));
    }
    if mine && row.state == State::Starting {
        if row.command_id.is_none() {
            return begin(me, now, Plan::Seek);
        }
        if row.command_op == Some(HostOp::Up) {
            return match row.adoptions.unwrap_or(0) {
                n if n >= ADOPTIONS_MAX => Plan::GiveUp(Fault {
                    code: "start_timeout".into(),
                    message: format!("The host did not report a result in {} attempts.", n + 1),
                    at: now,
                    generation: row.generation,
                }),
                _ => begin(me, now, Plan::Adopt(Box::new(adopt(row, None, me, now)))),
            };
        }
    }
    match take(row, me, now) {
        Ok(next) => begin(me, now, Plan::Reclaim(Box::new(next))),
        Err(e) => Plan::Refuse(illegal(e)),
    }
}

/// Nothing is begun without time for it and for its undoing (spec/domains.md 2.9).
fn begin(me: &Claim, now: Millis, plan: Plan) -> Plan {
    if me.may_begin(now) {
        plan
    } else {
        Plan::Refuse(no_time())
    }
}

/// Too little time is left to begin.
pub fn no_time() -> ProvisionError {
    ProvisionError::InProgress("Too little time is left in this attempt to begin; the next one does.".into())
}

/// A pair that the state table does not have: a bug, answered as something to look at and not retried blindly
/// into the host.
pub fn illegal(e: IllegalEvent) -> ProvisionError {
    ProvisionError::Unavailable(format!("{e}. This is a bug in Headgate; nothing was changed."))
}

/// Does the row belong to an invocation of the same execution? Such a one may take it over at once.
pub fn is_mine(row: &Registry, me: &Claim) -> bool {
    row.owner.as_ref().is_some_and(|o| o.execution() == me.execution)
}

/// Somebody else's lease, as an error with the seconds until it ends.
pub fn busy(row: &Registry, now: Millis) -> ProvisionError {
    let left = row.lease_until.unwrap_or(now).saturating_sub(now).max(0);
    ProvisionError::Busy {
        retry_after: u64::try_from(left).unwrap_or(0).div_ceil(1000).max(1),
    }
}

/// The first row of a domain.
pub fn fresh(domain: &Domain, port: Port, me: &Claim, cell: &Cell, now: Millis) -> Option<Registry> {
    let slug = Slug::of(domain);
    let origin = Origin::of(&slug, cell.suffix.as_ref()?);
    Some(Registry {
        domain: domain.clone(),
        cell: cell.name.clone(),
        port,
        server_did: origin.server_did(),
        origin,
        slug,
        handle_domains: domain.handle_domains(),
        state: State::Allocating,
        retire_reason: None,
        generation: Generation::FIRST,
        owner: Some(me.owner()),
        lease_until: Some(me.lease_until()),
        command_id: None,
        command_op: None,
        adoptions: None,
        last_error: None,
        saga: Some(me.execution.clone()),
        saga_error: None,
        config_digest: None,
        certificate: None,
        created_at: now,
        updated_at: now,
        activated_at: None,
        retired_at: None,
    })
}

/// The free ports of a range, lowest first, given the used ones in any order.
pub fn free_ports(range: PortRange, used: &std::collections::BTreeSet<u16>) -> impl Iterator<Item = Port> {
    (range.low..=range.high).filter(|p| !used.contains(p)).map(Port)
}

// ---------------------------------------------------------------- the row's transitions

fn moved(row: &Registry, event: Event, now: Millis) -> Result<Registry, IllegalEvent> {
    let (state, retire_reason) = next_state(row.state, row.retire_reason, event)?;
    Ok(Registry {
        state,
        retire_reason,
        updated_at: now,
        ..row.clone()
    })
}

fn owned(row: Registry, me: &Claim) -> Registry {
    Registry {
        owner: Some(me.owner()),
        lease_until: Some(me.lease_until()),
        command_id: None,
        command_op: None,
        adoptions: None,
        ..row
    }
}

/// S2b: a create takes the row over, at the next generation, with the slug and port it has.
///
/// # Errors
/// The row is active.
pub fn take(row: &Registry, me: &Claim, now: Millis) -> Result<Registry, IllegalEvent> {
    let next = owned(moved(row, Event::Take, now)?, me);
    Ok(Registry {
        generation: row.generation.next(),
        saga: Some(me.execution.clone()),
        saga_error: None,
        retired_at: None,
        ..next
    })
}

/// S3: the intent to send `up`.
///
/// # Errors
/// The row is not `allocating`.
pub fn start(row: &Registry, now: Millis) -> Result<Registry, IllegalEvent> {
    let digest = config_digest(&[
        row.slug.as_str(),
        &row.port.to_string(),
        row.origin.as_str(),
        &row.handle_domains.join(","),
    ]);
    Ok(Registry {
        config_digest: Some(digest),
        ..moved(row, Event::Start, now)?
    })
}

/// S5: the command that was sent.
pub fn sent(row: &Registry, command: &str, now: Millis) -> Registry {
    Registry {
        command_id: Some(command.to_owned()),
        command_op: Some(HostOp::Up),
        updated_at: now,
        ..row.clone()
    }
}

/// Another invocation of the same execution goes on with the command. The generation stays: the earlier
/// invocation, if it lives, is shut out by the owner, which differs; and a `down` it might send is preceded
/// by a write that fails (spec/domains.md 2.5).
pub fn adopt(row: &Registry, command: Option<&str>, me: &Claim, now: Millis) -> Registry {
    Registry {
        owner: Some(me.owner()),
        lease_until: Some(me.lease_until()),
        command_id: command.map(str::to_owned).or_else(|| row.command_id.clone()),
        command_op: Some(HostOp::Up),
        adoptions: Some(row.adoptions.unwrap_or(0) + 1),
        updated_at: now,
        ..row.clone()
    }
}

/// S8: the host said that it is up, with the right DID and routed.
///
/// # Errors
/// The row is not `starting`.
pub fn activate(row: &Registry, now: Millis) -> Result<Registry, IllegalEvent> {
    Ok(Registry {
        activated_at: Some(now),
        last_error: None,
        ..free(&moved(row, Event::Up, now)?, now)
    })
}

/// R1: the activation failed, or was found dead. The first cause is kept.
///
/// # Errors
/// The row is neither `allocating` nor `starting`.
pub fn fail(row: &Registry, cause: Fault, me: &Claim, now: Millis) -> Result<Registry, IllegalEvent> {
    Ok(Registry {
        generation: row.generation.next(),
        last_error: Some(cause),
        ..owned(moved(row, Event::Fail, now)?, me)
    })
}

/// Somebody takes over the stopping, at the next generation.
///
/// # Errors
/// The row is not `retiring`.
pub fn stop(row: &Registry, me: &Claim, now: Millis) -> Result<Registry, IllegalEvent> {
    Ok(Registry {
        generation: row.generation.next(),
        ..owned(moved(row, Event::Stop, now)?, me)
    })
}

/// The instance is to go.
///
/// # Errors
/// The row is `retired`.
pub fn retire(row: &Registry, me: &Claim, now: Millis) -> Result<Registry, IllegalEvent> {
    Ok(Registry {
        generation: row.generation.next(),
        ..owned(moved(row, Event::Retire, now)?, me)
    })
}

/// R4, or the end of a retire: the host said that it is down.
///
/// # Errors
/// The row is not `retiring`.
pub fn down(row: &Registry, now: Millis) -> Result<Registry, IllegalEvent> {
    let next = moved(row, Event::Down, now)?;
    let retired_at = if next.state == State::Retired {
        Some(now)
    } else {
        next.retired_at
    };
    Ok(Registry {
        retired_at,
        ..free(&next, now)
    })
}

fn free(row: &Registry, now: Millis) -> Registry {
    Registry {
        owner: None,
        lease_until: None,
        command_id: None,
        command_op: None,
        adoptions: None,
        updated_at: now,
        ..row.clone()
    }
}

/// Is what we find what we meant to write? Owner tokens are unique to an invocation and a generation rises
/// with every take-over, so that the four say it; they do not tell two equal writes apart, and need not.
pub fn committed(meant: &Registry, found: &Registry) -> bool {
    point(meant) == point(found)
}

/// Is the row still where it was read?
pub fn unmoved(read: &Registry, found: &Registry) -> bool {
    point(read) == point(found)
}

type Point<'a> = (
    Generation,
    State,
    Option<RetireReason>,
    Option<&'a OwnerToken>,
    Option<&'a str>,
);

fn point(row: &Registry) -> Point<'_> {
    (
        row.generation,
        row.state,
        row.retire_reason,
        row.owner.as_ref(),
        row.command_id.as_deref(),
    )
}

// ---------------------------------------------------------------- what the host said

/// What an answer of the host means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// SSM does not know the command (yet).
    NotVisible,
    /// Not at its end.
    Waiting,
    /// Our own script said that it is done.
    Done,
    /// Our own script refused it: a newer generation has been there.
    Fenced,
    /// Our own script could not look into it now: ask again. Nothing has changed.
    Again,
    /// Our own script said why it is not done.
    Failed {
        /// The host's code.
        code: String,
        /// The host's text.
        message: String,
    },
    /// It ended without a word from our script: it may have run or not (spec/domains.md 1.13).
    Unknown {
        /// Which end.
        code: &'static str,
        /// For people.
        message: String,
    },
}

/// Reads what SSM shows of a command that was sent for `row`. Only a line of our own script, for this very
/// command, is believed; every other end is unknown, not failed.
pub fn judge(seen: &Invocation, row: &Registry, op: HostOp) -> Verdict {
    let (code, what) = match seen.status {
        CommandStatus::NotVisible => return Verdict::NotVisible,
        CommandStatus::Waiting => return Verdict::Waiting,
        CommandStatus::Success | CommandStatus::Failed => {
            ("host_answer_unknown", "ended without a readable result")
        }
        CommandStatus::TimedOut => ("host_timed_out", "was not delivered or took too long"),
        CommandStatus::Cancelled => ("host_cancelled", "was cancelled"),
    };
    let unknown = || Verdict::Unknown {
        code,
        message: cut(&format!(
            "The host command {} {what} ({}).",
            op.as_str(),
            seen.details
        )),
    };
    let Some(line) = host_line(&seen.stdout) else {
        return unknown();
    };
    let same = line.op == op && line.slug == row.slug.as_str() && line.generation == row.generation.0;
    match line.result.as_str() {
        _ if !same => unknown(),
        "ok" if op == HostOp::Up && line.did.as_deref() != Some(row.server_did.as_str()) => Verdict::Failed {
            code: "did_mismatch".into(),
            message: cut(&format!(
                "The instance on port {} serves {} instead of {}.",
                row.port,
                line.did.as_deref().unwrap_or("no DID"),
                row.server_did
            )),
        },
        "ok" => Verdict::Done,
        "fenced" => Verdict::Fenced,
        "busy" => Verdict::Again,
        "failed" => Verdict::Failed {
            code: cut(line.code.as_deref().unwrap_or("host_failed")),
            message: cut(line.message.as_deref().unwrap_or("The host gave no reason.")),
        },
        _ => unknown(),
    }
}

/// The result line: the first or the last line of the output that reads as one.
pub fn host_line(stdout: &str) -> Option<HostLine> {
    let mut lines = stdout.lines().map(str::trim).filter(|l| l.starts_with('{'));
    let first = lines.next()?;
    let read = |l: &str| serde_json::from_str::<HostLine>(l).ok();
    read(first).or_else(|| lines.next_back().and_then(read))
}

/// What an `up` that did not succeed means for the activation.
pub fn cause(verdict: Verdict, row: &Registry, now: Millis) -> Option<Fault> {
    let (code, message) = match verdict {
        Verdict::Done | Verdict::Waiting | Verdict::Again => return None,
        Verdict::NotVisible => (
            "host_answer_unknown".to_owned(),
            "SSM does not know the command that it accepted.".to_owned(),
        ),
        Verdict::Fenced => (
            "fenced".to_owned(),
            "The host has seen a newer generation of this instance than the registry has.".to_owned(),
        ),
        Verdict::Failed { code, message } => (code, message),
        Verdict::Unknown { code, message } => (code.to_owned(), message),
    };
    Some(Fault {
        code,
        message,
        at: now,
        generation: row.generation,
    })
}

// ---------------------------------------------------------------- abort

/// What `abort` does (spec/domains.md 2.1: R1-R5 of a dirty rollback).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Abort {
    /// Nothing of this execution's is there, or it is active, or somebody newer works on it.
    Nothing(&'static str),
    /// Stop it: the row to write first.
    Stop(Box<Registry>),
}

/// An abort undoes only what its own execution has begun, never an active row (spec/domains.md 2.4).
pub fn abort(stored: Option<&Registry>, me: &Claim, now: Millis) -> Abort {
    let Some(row) = stored else {
        return Abort::Nothing("There is no row.");
    };
    if row.saga.as_deref() != Some(me.execution.as_str()) {
        return Abort::Nothing("A newer execution has the domain.");
    }
    if row.owner.is_some() && !is_mine(row, me) && row.leased(now) {
        return Abort::Nothing("Somebody else is at work on it, and finishes it.");
    }
    let next = match (row.state, row.retire_reason) {
        (State::Active | State::Retired, _) => return Abort::Nothing("The instance is active or retired."),
        (State::Retiring, Some(RetireReason::Requested)) => {
            return Abort::Nothing("It is being retired.");
        }
        (State::Retiring, _) if row.owner.is_none() => return Abort::Nothing("It is rolled back already."),
        (State::Retiring, _) => stop(row, me, now),
        (State::Allocating | State::Starting, _) => fail(row, interrupted(row, now), me, now),
    };
    match next {
        Ok(next) => Abort::Stop(Box::new(next)),
        Err(_) => Abort::Nothing("Its state knows no abort."),
    }
}

/// The cause of an activation that was found dead.
pub fn interrupted(row: &Registry, now: Millis) -> Fault {
    Fault {
        code: "interrupted".into(),
        message: "The run that was starting the instance ended before it had a result.".into(),
        at: now,
        generation: row.generation,
    }
}

// ---------------------------------------------------------------- retire

/// What a `DELETE` does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retire {
    /// There is no such domain.
    Unknown,
    /// It is retired already: 410.
    Already,
    /// Somebody is retiring it: 202.
    Underway,
    /// Somebody else works on it: 409 with these seconds.
    Busy(u64),
    /// Write this row, and delete the product row that was read, if any, in the same transaction.
    Take(Box<Registry>),
}

/// Retire by a person (spec/domains.md 2.3).
pub fn retire_plan(stored: Option<&Registry>, me: &Claim, now: Millis) -> Retire {
    let Some(row) = stored else {
        return Retire::Unknown;
    };
    let requested = row.state == State::Retiring && row.retire_reason == Some(RetireReason::Requested);
    if row.state == State::Retired {
        return Retire::Already;
    }
    if row.state != State::Active && row.leased(now) {
        return match busy(row, now) {
            _ if requested => Retire::Underway,
            ProvisionError::Busy { retry_after } => Retire::Busy(retry_after),
            _ => Retire::Busy(1),
        };
    }
    match retire(row, me, now) {
        Ok(next) => Retire::Take(Box::new(next)),
        Err(_) => Retire::Already,
    }
}

// ---------------------------------------------------------------- insert

/// What an insert that met a product row or a moved instance means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inserted {
    /// Done, by us or by another execution for the same instance.
    Done,
    /// The instance is another one now.
    Moved,
    /// Nothing says what happened: try again.
    Again,
}

/// Decides from what is there after the insert's conditions failed, or after its answer was lost.
pub fn insert_found(row: Option<&Registry>, product: Option<&Product>, generation: Generation) -> Inserted {
    let active = row.is_some_and(|r| r.state == State::Active && r.generation == generation);
    match product {
        _ if !active => Inserted::Moved,
        Some(p) if p.generation == generation => Inserted::Done,
        Some(_) => Inserted::Moved,
        None => Inserted::Again,
    }
}

// ---------------------------------------------------------------- sweep

/// What the sweep does with one row (spec/domains.md 2.12).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sweep {
    /// In order, or fresh work of somebody.
    Leave,
    /// A dead activation: write this row, then stop the host.
    RollBack(Box<Registry>),
    /// A dead rollback or retire: write this row, then stop the host.
    Finish(Box<Registry>),
    /// Active and unclaimed: only say so.
    Report(&'static str),
    /// Active, unclaimed and old: write this row if no product row is there, then stop the host.
    Retire(Box<Registry>),
    /// Whether it may be retired depends on whether this execution still runs.
    AskSaga(String),
}

/// `saga_runs` is known only after the first answer was [`Sweep::AskSaga`].
pub fn sweep(
    row: &Registry,
    claimed: bool,
    saga_runs: Option<bool>,
    policy: SweepPolicy,
    me: &Claim,
    now: Millis,
) -> Sweep {
    let over = |grace: Millis| row.lease_until.is_none_or(|t| t.saturating_add(grace) <= now);
    let next = match row.state {
        State::Allocating | State::Starting if over(SWEEP_GRACE) => {
            return fail(row, interrupted(row, now), me, now)
                .map_or(Sweep::Leave, |r| Sweep::RollBack(Box::new(r)));
        }
        State::Retiring if row.owner.is_some() && over(0) => stop(row, me, now),
        State::Active if claimed => return Sweep::Leave,
        State::Active => {
            let old = row.activated_at.is_some_and(|t| t.saturating_add(SAGA_MAX) < now);
            if policy == SweepPolicy::Report || !old {
                return Sweep::Report("active, and no domain claims it");
            }
            match (&row.saga, saga_runs) {
                (Some(saga), None) => return Sweep::AskSaga(saga.clone()),
                (Some(_), Some(true)) => return Sweep::Report("active and unclaimed; its saga still runs"),
                _ => {
                    return retire(row, me, now).map_or(Sweep::Leave, |r| Sweep::Retire(Box::new(r)));
                }
            }
        }
        State::Allocating | State::Starting | State::Retiring | State::Retired => return Sweep::Leave,
    };
    next.map_or(Sweep::Leave, |r| Sweep::Finish(Box::new(r)))
}

/// Is the row not at rest? Its age is a metric.
pub fn unfinished(row: &Registry) -> bool {
    match row.state {
        State::Allocating | State::Starting => true,
        State::Retiring => row.owner.is_some(),
        State::Active | State::Retired => false,
    }
}
