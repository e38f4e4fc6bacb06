//! The Supervisor: the only way to the registry and the host, for the saga, the API and the sweep alike
//! (spec/domains.md 2).
//!
//! # Why it is safe
//! In one process a mutex would make "check, then act" one step. Here three layers stand in for it:
//! * a **lease** on the row keeps others from wasted work; its end is a time in the row, so nobody waits for
//!   the dead longer than that;
//! * every write has a **condition** on generation, state and owner as read, so a stale actor can not change
//!   the row;
//! * the host has a **fence**: it refuses a lower generation, and an `up` at the generation whose last
//!   command was `down`, so a stale actor's command can not change the host.
//!
//! Without the fence the lease would be an optimisation only: a command may be delivered late, twice or out
//! of order, and nobody can take it back.
//!
//! # Time
//! Nothing here is ever cancelled. Work looks at the clock between calls, each of which is bounded by the
//! adapter (3 s, the safety margin), and stops at [`Claim::work_until`]; the rollback then has its own time
//! up to [`Claim::rollback_until`]. So no compensation can sit inside a future that is dropped (O7), and no
//! call is left half way with an outcome nobody reads.
//!
//! # What a crash leaves
//! The table in spec/domains.md 2.8; each line of it is a test (`tests/crashes.rs`), and `tests/explore.rs` runs
//! this file in every order against others, and shows that no guard can be left out.

use super::decide::{self, Abort, Inserted, Plan, Retire, Sweep, Verdict};
use super::model::{
    Cell, Claim, CommandStatus, Fault, Generation, HostCommand, HostInstance, HostLine, HostOp, Invocation,
    Millis, Outcome, Port, Product, ProvisionError, Provisioned, Registry, SagaError, State, cut,
};
use super::names::{Domain, Slug};
use super::store;
use crate::error::{CallError, Class};
use crate::store::{Item, Table, Write, WriteError};
use std::collections::{BTreeMap, BTreeSet};

/// Looks again after a write that met another one, at most this often.
const ROUNDS: usize = 4;
/// Sends of one command in one invocation, when answers are lost.
const SENDS: usize = 3;
/// Pages of the host's inventory read in one pass of the sweep.
const SHOW_PAGES: usize = 10;
/// Domains looked at in one pass of the sweep.
const SWEEP_PAGE: u32 = 100;

/// The host of the cell, behind SSM. Every method may be repeated.
#[expect(
    async_fn_in_trait,
    reason = "used with generics on one thread; no Send bound is wanted"
)]
pub trait Host {
    /// Sends a command and answers its id. There is no client token: after an answer that never came the
    /// command may be there or not, and the host must take it twice.
    async fn send(&self, command: &HostCommand) -> Result<String, CallError>;
    /// What SSM says about a command. Not to know it is an answer, not an error.
    async fn look(&self, command_id: &str) -> Result<Invocation, CallError>;
    /// The newest command with this comment, if any.
    async fn find(&self, comment: &str) -> Result<Option<String>, CallError>;
}

/// The workflow's executions.
#[expect(
    async_fn_in_trait,
    reason = "used with generics on one thread; no Send bound is wanted"
)]
pub trait Sagas {
    /// Is the execution running? One that is not known is not.
    async fn running(&self, execution: &str) -> Result<bool, CallError>;
}

/// The time of this invocation.
#[expect(
    async_fn_in_trait,
    reason = "used with generics on one thread; no Send bound is wanted"
)]
pub trait Clock {
    /// Now, in epoch milliseconds.
    fn now(&self) -> Millis;
    /// Waits between two looks at a command.
    async fn pause(&self, millis: Millis);
}

/// Everything the Supervisor needs.
pub trait World: Table + Host + Sagas + Clock {}
impl<W: Table + Host + Sagas + Clock> World for W {}

/// See the module's documentation.
#[derive(Debug, Clone, Copy)]
pub struct Supervisor<'a, W> {
    world: &'a W,
    cell: &'a Cell,
}

/// How the work of an activation ended.
enum Work {
    /// Active.
    Active(Provisioned),
    /// It definitively failed or is unknown: roll back.
    RollBack(Box<Registry>, Fault),
    /// Leave everything as it is and answer this.
    Leave(ProvisionError),
}

/// How an attempt to stop an instance ended.
enum Stop {
    /// The host said that it is down.
    Down,
    /// Not known, and why.
    NotKnown(String),
}

/// The rows that a pass of the sweep has read.
type Known = BTreeMap<Slug, Registry>;

/// Answer of a retire.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Retired {
    /// There is no such domain.
    Unknown,
    /// It was retired before: 410.
    Already,
    /// The retire is recorded; somebody, at the latest the sweep, finishes it: 202.
    Underway,
    /// Done: 202.
    Done,
    /// Recorded, and then a create took the domain over: 202.
    Superseded,
    /// Somebody else works on it: 409 with these seconds.
    Busy(u64),
}

/// Answer of an abort.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Aborted {
    /// There was nothing to do, and why.
    Nothing(&'static str),
    /// The host is stopped.
    Stopped,
}

/// Answer of one pass of the sweep (contract 4.7).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, serde::Serialize)]
pub struct Swept {
    /// Domains whose dead activation or rollback was stopped.
    pub rolled_back: Vec<String>,
    /// Domains whose retire was finished or begun.
    pub retired: Vec<String>,
    /// What was found and left alone.
    pub reported: Vec<Finding>,
    /// What needs a person.
    pub alarms: Vec<Finding>,
    /// Age of the oldest row that is not at rest, in seconds.
    pub oldest_unfinished_seconds: u64,
    /// Ports used, tombstones included, of the cell's range, in percent; counted once for each round through
    /// the list. An alarm rings at 80 (spec/domains.md 1.6).
    pub ports_used_percent: Option<u32>,
}

/// One thing the sweep noticed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Finding {
    /// Domain or slug.
    pub about: String,
    /// What and why.
    pub text: String,
}

impl<'a, W: World> Supervisor<'a, W> {
    /// A supervisor for one cell.
    pub fn new(world: &'a W, cell: &'a Cell) -> Self {
        Self { world, cell }
    }

    /// What it works on.
    pub(super) fn world(&self) -> &'a W {
        self.world
    }

    /// The time of this invocation.
    pub(super) fn now(&self) -> Millis {
        self.world.now()
    }

    // ------------------------------------------------------------ reading and writing

    /// The registry record of a domain.
    ///
    /// # Errors
    /// The table could not be read, or the row must not be judged by this version.
    pub async fn registry(&self, domain: &Domain) -> Result<Option<Registry>, ProvisionError> {
        match self.world.get(&store::registry_key(domain)).await? {
            Some(item) => Ok(Some(store::registry(item)?)),
            None => Ok(None),
        }
    }

    /// Registry record and product row of a domain, read together.
    ///
    /// # Errors
    /// As for [`Supervisor::registry`].
    pub async fn both(&self, domain: &Domain) -> Result<(Option<Registry>, Option<Product>), ProvisionError> {
        let page = self.world.query(&store::domain_query(domain)).await?;
        let (mut row, mut product) = (None, None);
        for item in page.items {
            match item.get("sk").and_then(crate::store::Attr::as_str) {
                Some(store::REG) => row = Some(store::registry(item)?),
                Some(store::PRODUCT) => product = Some(store::product(item)?),
                _ => {}
            }
        }
        Ok((row, product))
    }

    /// Writes a decided change of a row, with what belongs into the same transaction. An answer that never
    /// came is settled by reading: what is there is what was meant, or what was read, or somebody else's.
    async fn save(
        &self,
        before: &Registry,
        next: Registry,
        with: Vec<Write>,
    ) -> Result<Registry, ProvisionError> {
        let mut writes = vec![store::change(before, &next)];
        writes.extend(with);
        let token = store::token(&[
            next.domain.as_str(),
            next.owner
                .as_ref()
                .or(before.owner.as_ref())
                .map_or("-", |o| &o.0),
            &next.generation.to_string(),
            next.state.as_str(),
            next.command_id.as_deref().unwrap_or("-"),
        ]);
        for _ in 0..2 {
            match self.world.write(&writes, &token).await {
                Ok(()) => return Ok(next),
                Err(WriteError::Conflict(_)) => {
                    // The SDK may have tried twice, with our own first try as the one that won.
                    let found = self.registry(&before.domain).await?;
                    return match found {
                        Some(f) if decide::committed(&next, &f) => Ok(f),
                        _ => Err(ProvisionError::LostLease),
                    };
                }
                Err(WriteError::Call(e)) if e.effect_unknown() => {
                    match self.registry(&before.domain).await? {
                        Some(f) if decide::committed(&next, &f) => return Ok(f),
                        Some(f) if decide::unmoved(before, &f) => {}
                        _ => return Err(ProvisionError::LostLease),
                    }
                }
                Err(WriteError::Call(e)) => return Err(e.into()),
            }
        }
        Err(ProvisionError::Unavailable(
            "The table did not say whether it stored the change.".into(),
        ))
    }

    // ------------------------------------------------------------ create

    /// Makes sure that the domain has its active instance, and answers it (spec/domains.md 2.1, 2.2).
    ///
    /// # Errors
    /// See [`ProvisionError`].
    pub async fn ensure_provisioned(
        &self,
        domain: &Domain,
        me: &Claim,
    ) -> Result<Provisioned, ProvisionError> {
        for _ in 0..ROUNDS {
            let stored = self.registry(domain).await?;
            let planned = decide::plan(stored.as_ref(), me, self.cell, self.world.now());
            let work = match (planned, stored) {
                (Plan::Reuse(p), _) => return Ok(p),
                (Plan::Refuse(e), _) => return Err(e),
                (Plan::Allocate, _) => match self.allocate(domain, me).await? {
                    Some(row) => self.activate(row, me).await,
                    None => continue,
                },
                (_, None) => continue,
                (Plan::Reclaim(next), Some(row)) => match self.save(&row, *next, Vec::new()).await {
                    Ok(row) => self.activate(row, me).await,
                    // Somebody else was first: look at what they made of it.
                    Err(ProvisionError::LostLease) => continue,
                    Err(e) => return Err(e),
                },
                (Plan::Adopt(next), Some(row)) => match self.save(&row, *next, Vec::new()).await {
                    Ok(row) => self.follow(row, me).await,
                    Err(ProvisionError::LostLease) => continue,
                    Err(e) => return Err(e),
                },
                (Plan::Seek, Some(row)) => {
                    let next = match self.world.find(&row.command(HostOp::Up).comment()).await? {
                        Some(id) => decide::adopt(&row, Some(&id), me, self.world.now()),
                        None => decide::take(&row, me, self.world.now()).map_err(decide::illegal)?,
                    };
                    let adopted = next.command_id.is_some();
                    match self.save(&row, next, Vec::new()).await {
                        Ok(row) if adopted => self.follow(row, me).await,
                        Ok(row) => self.activate(row, me).await,
                        Err(ProvisionError::LostLease) => continue,
                        Err(e) => return Err(e),
                    }
                }
                (Plan::GiveUp(cause), Some(row)) => Work::RollBack(Box::new(row), cause),
            };
            return match work {
                Work::Active(p) => Ok(p),
                Work::Leave(e) => Err(e),
                // Outside of the work, with time of its own.
                Work::RollBack(row, cause) => Err(self.roll_back(&row, cause, me).await),
            };
        }
        Err(ProvisionError::Busy { retry_after: 1 })
    }

    /// S2a: claims a slug and the lowest free port. None means: look again.
    async fn allocate(&self, domain: &Domain, me: &Claim) -> Result<Option<Registry>, ProvisionError> {
        let range = self.cell.ports;
        let used = self.used_ports().await?;
        let exhausted = || ProvisionError::PortsExhausted {
            cell: self.cell.name.clone(),
            count: range.len(),
            range: range.to_string(),
        };
        let mut free = decide::free_ports(range, &used).peekable();
        if free.peek().is_none() {
            return Err(exhausted());
        }
        for port in free.take(decide::PORT_TRIES) {
            let row = decide::fresh(domain, port, me, self.cell, self.world.now())
                .ok_or(ProvisionError::NotConfigured)?;
            let token = store::token(&["allocate", domain.as_str(), &me.owner().0, &port.to_string()]);
            match self.world.write(&store::allocation(&row), &token).await {
                Ok(()) => return Ok(Some(row)),
                Err(WriteError::Conflict(failed)) => {
                    let at = |index| failed.iter().find(|c| c.index == index);
                    if at(store::AT_ROW).is_some() {
                        // Ours, when an answer was lost on the way; else somebody else's: look again.
                        return self.ours(domain, me).await;
                    }
                    if at(store::AT_SLUG).is_some() {
                        return Err(ProvisionError::SlugConflict(row.slug));
                    }
                    // Only the port: somebody else was first. The next free one.
                }
                Err(WriteError::Call(e)) if e.effect_unknown() => {
                    // Never another port before it is known what became of this one (O1).
                    return self.ours(domain, me).await;
                }
                Err(WriteError::Call(e)) => return Err(e.into()),
            }
        }
        Err(ProvisionError::Throttled(
            "Many domains are being created on this cell at once; the next attempt finds a free port.".into(),
        ))
    }

    /// Is there a row, and is it the one this invocation has allocated?
    async fn ours(&self, domain: &Domain, me: &Claim) -> Result<Option<Registry>, ProvisionError> {
        Ok(self.registry(domain).await?.filter(|r| {
            r.owner == Some(me.owner()) && r.generation == Generation::FIRST && r.state == State::Allocating
        }))
    }

    /// Ports with a tombstone, up to the first page in which one is free: with the port items kept small,
    /// even a full range of 10,000 is four pages at most.
    async fn used_ports(&self) -> Result<BTreeSet<u16>, ProvisionError> {
        let range = self.cell.ports;
        let mut used = BTreeSet::new();
        let mut after = Some(store::port_sk(range.low.saturating_sub(1)));
        loop {
            let page = self
                .world
                .query(&store::ports_query(&self.cell.name, after, None))
                .await?;
            let seen: Vec<u16> = page.items.iter().filter_map(store::port_of).collect();
            let last = seen.iter().copied().max();
            used.extend(seen);
            let (Some(next), Some(last)) = (page.next, last) else {
                return Ok(used);
            };
            // Lowest free first: what lies behind a gap does not matter, unless creators crowd into it.
            let free = decide::free_ports(range, &used)
                .take_while(|p| p.0 < last)
                .count();
            if free >= decide::PORT_TRIES || last >= range.high {
                return Ok(used);
            }
            after = Some(next);
        }
    }

    /// Every port of the range that has a tombstone.
    async fn all_used_ports(&self) -> Result<BTreeSet<u16>, ProvisionError> {
        let range = self.cell.ports;
        let mut used = BTreeSet::new();
        let mut after = Some(store::port_sk(range.low.saturating_sub(1)));
        while after.is_some() {
            let page = self
                .world
                .query(&store::ports_query(&self.cell.name, after, None))
                .await?;
            used.extend(
                page.items
                    .iter()
                    .filter_map(store::port_of)
                    .filter(|p| *p <= range.high),
            );
            after = page.next;
        }
        Ok(used)
    }

    /// S3 to S8 for a row that is `allocating` and ours.
    async fn activate(&self, row: Registry, me: &Claim) -> Work {
        // Looked at once more: the writes so far may have taken long.
        if !me.may_begin(self.world.now()) {
            return Work::Leave(decide::no_time());
        }
        let started = match decide::start(&row, self.world.now()) {
            Ok(next) => self.save(&row, next, Vec::new()).await,
            Err(e) => Err(decide::illegal(e)),
        };
        let row = match started {
            Ok(row) => row,
            Err(e) => return Work::Leave(e),
        };
        match self.order(row, me).await {
            Ok(row) => self.follow(row, me).await,
            Err(work) => work,
        }
    }

    /// S4 and S5: sends `up` and records the command.
    async fn order(&self, row: Registry, me: &Claim) -> Result<Registry, Work> {
        let command = match self.send(&row.command(HostOp::Up), me.work_until()).await {
            Ok(id) => id,
            Err(e) => return Err(self.not_sent(row, e)),
        };
        let next = decide::sent(&row, &command, self.world.now());
        self.save(&row, next, Vec::new()).await.map_err(Work::Leave)
    }

    fn not_sent(&self, row: Registry, e: CallError) -> Work {
        match e.class {
            Class::Throttled | Class::Unavailable | Class::TimedOut => Work::Leave(e.into()),
            // Refused for good. An earlier generation's command may still be about: undone like any failure.
            Class::Denied | Class::NotFound | Class::Refused => {
                let cause = Fault {
                    code: "host_refused".into(),
                    message: cut(&e.to_string()),
                    at: self.world.now(),
                    generation: row.generation,
                };
                Work::RollBack(Box::new(row), cause)
            }
        }
    }

    /// S6 to S8 for a row that is `starting` and ours, with its command.
    async fn follow(&self, mut row: Registry, me: &Claim) -> Work {
        for _ in 0..SENDS {
            let Some(command) = row.command_id.clone() else {
                return Work::Leave(ProvisionError::LostLease);
            };
            let verdict = match self.wait(&command, &row, HostOp::Up, me.work_until()).await {
                Ok(verdict) => verdict,
                Err(e) => return Work::Leave(e.into()),
            };
            let now = self.world.now();
            match verdict {
                Verdict::Done => {
                    let done = match decide::activate(&row, now) {
                        Ok(next) => self.save(&row, next, Vec::new()).await,
                        Err(e) => Err(decide::illegal(e)),
                    };
                    return match done {
                        Ok(row) => Work::Active(row.provisioned(Outcome::Created)),
                        Err(e) => Work::Leave(e),
                    };
                }
                Verdict::Again if now.saturating_add(decide::LOOK_EVERY) < me.work_until() => {
                    self.world.pause(decide::LOOK_EVERY).await;
                    row = match self.order(row, me).await {
                        Ok(row) => row,
                        Err(work) => return work,
                    };
                }
                Verdict::Again | Verdict::Waiting => break,
                verdict => {
                    return match decide::cause(verdict, &row, now) {
                        Some(cause) => Work::RollBack(Box::new(row), cause),
                        None => Work::Leave(ProvisionError::LostLease),
                    };
                }
            }
        }
        Work::Leave(ProvisionError::InProgress(
            "The instance is still starting; the next attempt goes on with the same command.".into(),
        ))
    }

    /// Sends a command so that it is known to be sent, or is not sent.
    async fn send(&self, command: &HostCommand, until: Millis) -> Result<String, CallError> {
        let mut last = None;
        for _ in 0..SENDS {
            let e = match self.world.send(command).await {
                Ok(id) => return Ok(id),
                Err(e) => e,
            };
            if e.effect_unknown() {
                // Taken as sent; only if SSM shows nothing of it, again. Twice does no harm at the host.
                if let Some(id) = self.world.find(&command.comment()).await? {
                    return Ok(id);
                }
            } else if e.class != Class::Throttled {
                return Err(e);
            }
            last = Some(e);
            if self.world.now().saturating_add(decide::LOOK_EVERY) >= until {
                break;
            }
            self.world.pause(decide::LOOK_EVERY).await;
        }
        Err(last.unwrap_or_else(|| {
            CallError::new(
                Class::Unavailable,
                "ssm:SendCommand",
                "Unknown",
                "no attempt made",
            )
        }))
    }

    /// Looks at a command until it is at its end, or until the time is over (then it is `Waiting`).
    async fn wait(
        &self,
        command: &str,
        row: &Registry,
        op: HostOp,
        until: Millis,
    ) -> Result<Verdict, CallError> {
        let began = self.world.now();
        let mut failed = 0u32;
        loop {
            let verdict = match self.world.look(command).await {
                Ok(seen) => decide::judge(&seen, row, op),
                // A look that fails says nothing about the command.
                Err(e) if e.passing() && failed < 10 => {
                    failed += 1;
                    Verdict::Waiting
                }
                Err(e) => return Err(e),
            };
            let now = self.world.now();
            match verdict {
                Verdict::NotVisible if now.saturating_sub(began) < decide::INVISIBLE_MAX => {}
                Verdict::Waiting => {}
                end => return Ok(end),
            }
            if now.saturating_add(decide::LOOK_EVERY) >= until {
                return Ok(Verdict::Waiting);
            }
            self.world.pause(decide::LOOK_EVERY).await;
        }
    }

    // ------------------------------------------------------------ undo

    /// R1 to R5. Answers the first cause; trouble with the rollback is attached to it, never in its place.
    async fn roll_back(&self, row: &Registry, cause: Fault, me: &Claim) -> ProvisionError {
        let (code, message) = (cause.code.clone(), cause.message.clone());
        let dirty = |note: String| ProvisionError::ActivationFailedDirty {
            code: code.clone(),
            message: message.clone(),
            note,
        };
        let row = match decide::fail(row, cause, me, self.world.now()) {
            Ok(next) => match self.save(row, next, Vec::new()).await {
                Ok(row) => row,
                // Somebody else has the row, and with it the duty.
                Err(ProvisionError::LostLease) => return ProvisionError::LostLease,
                Err(e) => return dirty(e.to_string()),
            },
            Err(e) => return dirty(e.to_string()),
        };
        match self.stop(&row, me.rollback_until()).await {
            Stop::Down => {
                // The host is clean, whatever becomes of this write: a lease that stays ends by itself.
                let _ = self.stopped(&row).await;
                ProvisionError::ActivationFailed { code, message }
            }
            Stop::NotKnown(note) => dirty(note),
        }
    }

    /// Sends `down` at the row's generation and waits for its end.
    async fn stop(&self, row: &Registry, until: Millis) -> Stop {
        for _ in 0..SENDS {
            let id = match self.send(&row.command(HostOp::Down), until).await {
                Ok(id) => id,
                Err(e) => return Stop::NotKnown(e.to_string()),
            };
            let verdict = match self.wait(&id, row, HostOp::Down, until).await {
                Ok(verdict) => verdict,
                Err(e) => return Stop::NotKnown(e.to_string()),
            };
            let why = match verdict {
                Verdict::Done => return Stop::Down,
                Verdict::Again if self.world.now().saturating_add(decide::LOOK_EVERY) < until => {
                    self.world.pause(decide::LOOK_EVERY).await;
                    continue;
                }
                Verdict::Again => "The host was busy.".into(),
                Verdict::Waiting => "The host has not stopped it in time.".into(),
                Verdict::NotVisible => "SSM does not know the command that it accepted.".into(),
                Verdict::Fenced => "The host has seen a newer generation.".into(),
                Verdict::Failed { message, .. } | Verdict::Unknown { message, .. } => message,
            };
            return Stop::NotKnown(why);
        }
        Stop::NotKnown("The host was busy.".into())
    }

    /// R4, or the end of a retire.
    async fn stopped(&self, row: &Registry) -> Result<Registry, ProvisionError> {
        let next = decide::down(row, self.world.now()).map_err(decide::illegal)?;
        self.save(row, next, Vec::new()).await
    }

    /// Finishes what a failed activation of this execution may have left: R1 to R5 again, in a new
    /// invocation. Does nothing to an active row or to somebody else's work.
    ///
    /// # Errors
    /// The host is not known to be stopped; worth a retry.
    pub async fn abort(&self, domain: &Domain, me: &Claim) -> Result<Aborted, ProvisionError> {
        for _ in 0..ROUNDS {
            let stored = self.registry(domain).await?;
            let (next, row) = match (decide::abort(stored.as_ref(), me, self.world.now()), stored) {
                (Abort::Stop(next), Some(row)) => (*next, row),
                (Abort::Stop(_), None) => continue,
                (Abort::Nothing(why), _) => return Ok(Aborted::Nothing(why)),
            };
            let row = match self.save(&row, next, Vec::new()).await {
                Ok(row) => row,
                Err(ProvisionError::LostLease) => continue,
                Err(e) => return Err(e),
            };
            return match self.stop(&row, me.rollback_until()).await {
                Stop::Down => {
                    let _ = self.stopped(&row).await;
                    Ok(Aborted::Stopped)
                }
                Stop::NotKnown(note) => Err(ProvisionError::InProgress(format!(
                    "The instance is not known to be stopped: {note}"
                ))),
            };
        }
        Err(ProvisionError::Busy { retry_after: 1 })
    }

    // ------------------------------------------------------------ retire

    /// Retires a domain: the row and the claim in one transaction, then the host. Waits for the host until
    /// `until` at the longest; what is not finished then, the sweep finishes.
    ///
    /// # Errors
    /// Nothing was recorded.
    pub async fn retire(
        &self,
        domain: &Domain,
        me: &Claim,
        until: Millis,
    ) -> Result<Retired, ProvisionError> {
        for _ in 0..ROUNDS {
            let (stored, product) = self.both(domain).await?;
            let (next, row) = match (decide::retire_plan(stored.as_ref(), me, self.world.now()), stored) {
                (Retire::Take(next), Some(row)) => (*next, row),
                (Retire::Take(_), None) | (Retire::Unknown, _) => return Ok(Retired::Unknown),
                (Retire::Already, _) => return Ok(Retired::Already),
                (Retire::Underway, _) => return Ok(Retired::Underway),
                (Retire::Busy(seconds), _) => return Ok(Retired::Busy(seconds)),
            };
            let claim = store::unclaim(domain, product.as_ref());
            match self.save(&row, next, vec![claim]).await {
                Ok(row) => return Ok(self.finish_retire(&row, until).await),
                Err(ProvisionError::LostLease) => {}
                Err(e) => return Err(e),
            }
        }
        Err(ProvisionError::Busy { retry_after: 1 })
    }

    async fn finish_retire(&self, row: &Registry, until: Millis) -> Retired {
        match self.stop(row, until).await {
            Stop::NotKnown(_) => Retired::Underway,
            Stop::Down => match self.stopped(row).await {
                Ok(_) => Retired::Done,
                Err(ProvisionError::LostLease) => Retired::Superseded,
                Err(_) => Retired::Underway,
            },
        }
    }

    // ------------------------------------------------------------ later steps

    /// Inserts the product row, together with the check that the instance is still the one that was
    /// provisioned (F9). A row that another execution inserted for the same instance is success too.
    ///
    /// # Errors
    /// [`ProvisionError::InstanceMoved`]: provision again.
    pub async fn insert(&self, product: &Product) -> Result<(), ProvisionError> {
        let writes = store::insertion(product);
        let token = store::token(&[
            "insert",
            product.domain.as_str(),
            &product.execution,
            &product.generation.to_string(),
        ]);
        for _ in 0..2 {
            match self.world.write(&writes, &token).await {
                Ok(()) => return Ok(()),
                Err(WriteError::Call(e)) if !e.effect_unknown() => return Err(e.into()),
                Err(WriteError::Conflict(_) | WriteError::Call(_)) => {
                    let (row, found) = self.both(&product.domain).await?;
                    match decide::insert_found(row.as_ref(), found.as_ref(), product.generation) {
                        Inserted::Done => return Ok(()),
                        Inserted::Moved => return Err(ProvisionError::InstanceMoved),
                        Inserted::Again => {}
                    }
                }
            }
        }
        Err(ProvisionError::Unavailable(
            "The table did not say whether it stored the domain.".into(),
        ))
    }

    /// Records that a later step failed. The instance, its state and its generation stay as they are.
    ///
    /// # Errors
    /// The table could not be read or written.
    pub async fn record_failure(
        &self,
        domain: &Domain,
        me: &Claim,
        step: &str,
        code: &str,
        message: &str,
    ) -> Result<bool, ProvisionError> {
        for _ in 0..ROUNDS {
            let Some(row) = self.registry(domain).await? else {
                return Ok(false);
            };
            // A newer saga has asked since: its story is the one to tell.
            if row.saga.as_ref().is_some_and(|s| *s != me.execution) {
                return Ok(false);
            }
            let next = Registry {
                saga_error: Some(SagaError {
                    step: cut(step),
                    code: cut(code),
                    message: cut(message),
                    at: self.world.now(),
                }),
                ..row.clone()
            };
            if self.note(&row, &next).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Notes the saga that was started for a row that is there, and clears the error of the one before
    /// (spec/domains.md 2.10). Without a row there is nothing to note: the allocation does it.
    ///
    /// # Errors
    /// The table could not be read or written.
    pub async fn note_saga(&self, domain: &Domain, execution: &str) -> Result<bool, ProvisionError> {
        for _ in 0..ROUNDS {
            let Some(row) = self.registry(domain).await? else {
                return Ok(false);
            };
            let next = Registry {
                saga: Some(execution.to_owned()),
                saga_error: None,
                ..row.clone()
            };
            if next == row || self.note(&row, &next).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Notes the certificate that the saga waits for; nothing else of the row changes.
    ///
    /// # Errors
    /// The table could not be read or written.
    pub async fn note_certificate(
        &self,
        domain: &Domain,
        certificate: &super::model::Certificate,
    ) -> Result<(), ProvisionError> {
        for _ in 0..ROUNDS {
            let Some(row) = self.registry(domain).await? else {
                return Ok(());
            };
            let next = Registry {
                certificate: Some(certificate.clone()),
                ..row.clone()
            };
            if next == row || self.note(&row, &next).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn note(&self, row: &Registry, next: &Registry) -> Result<bool, ProvisionError> {
        let token = store::token(&[
            "note",
            row.domain.as_str(),
            &row.generation.to_string(),
            next.saga.as_deref().unwrap_or("-"),
            next.saga_error.as_ref().map_or("-", |e| &e.message),
            next.certificate.as_ref().map_or("-", |c| &c.status),
        ]);
        match self.world.write(&[store::note(row, next)], &token).await {
            Ok(()) => Ok(true),
            Err(WriteError::Conflict(_)) => Ok(false),
            Err(WriteError::Call(e)) => Err(e.into()),
        }
    }

    // ------------------------------------------------------------ sweep

    /// One pass of the orphan sweep (spec/domains.md 2.12): a page of the cell's list, in order, then the
    /// host's inventory when the pass saw the whole list. Every row is taken under the same lease and the
    /// same conditions as by a create.
    ///
    /// # Errors
    /// The list could not be read. Trouble with one row is an alarm, not an error.
    pub async fn sweep(&self, me: &Claim) -> Result<Swept, ProvisionError> {
        let mut out = Swept::default();
        let cell = &self.cell.name;
        let place = self.world.get(&store::cursor_key(cell)).await?;
        let before = place
            .as_ref()
            .and_then(|i| i.get("after")?.as_str().map(str::to_owned));
        let start = before.clone().filter(|b| !b.is_empty());
        let whole = start.is_none();
        let page = self
            .world
            .query(&store::ports_query(cell, start, Some(SWEEP_PAGE)))
            .await?;
        let mut known = BTreeMap::new();
        let mut reached = None;
        for item in &page.items {
            if !me.may_begin(self.world.now()) {
                break;
            }
            let Some(domain) = listed_domain(item) else {
                continue;
            };
            if let Err(e) = self.sweep_domain(&domain, me, &mut out, &mut known).await {
                out.alarms.push(Finding {
                    about: domain.to_string(),
                    text: e.to_string(),
                });
            }
            reached = item
                .get("sk")
                .and_then(crate::store::Attr::as_str)
                .map(str::to_owned);
        }
        let done = reached
            == page
                .items
                .last()
                .and_then(|i| i.get("sk")?.as_str().map(str::to_owned));
        let after = if done {
            page.next
        } else {
            reached.or(before.clone())
        }
        .unwrap_or_default();
        if before.as_deref().unwrap_or_default() != after {
            let token = store::token(&["cursor", cell, &me.owner().0]);
            // Lost: the next pass looks at the same page again.
            let _ = self
                .world
                .write(&[store::cursor(cell, before.as_deref(), &after)], &token)
                .await;
        }
        if whole {
            let used = u32::try_from(self.all_used_ports().await?.len()).unwrap_or(u32::MAX);
            out.ports_used_percent = Some(used.saturating_mul(100) / self.cell.ports.len());
        }
        self.sweep_host(me, &known, &mut out).await;
        Ok(out)
    }

    async fn sweep_domain(
        &self,
        domain: &Domain,
        me: &Claim,
        out: &mut Swept,
        known: &mut Known,
    ) -> Result<(), ProvisionError> {
        let (Some(row), product) = self.both(domain).await? else {
            return Ok(());
        };
        known.insert(row.slug.clone(), row.clone());
        let now = self.world.now();
        if decide::unfinished(&row) {
            let age = u64::try_from(now.saturating_sub(row.updated_at) / 1000).unwrap_or(0);
            out.oldest_unfinished_seconds = out.oldest_unfinished_seconds.max(age);
        }
        let claimed = product.is_some();
        let mut step = decide::sweep(&row, claimed, None, self.cell.sweep, me, now);
        if let Sweep::AskSaga(saga) = &step {
            let runs = self.world.running(saga).await?;
            step = decide::sweep(&row, claimed, Some(runs), self.cell.sweep, me, now);
        }
        let about = domain.to_string();
        match step {
            Sweep::Leave | Sweep::AskSaga(_) => {}
            Sweep::Report(text) => out.reported.push(Finding {
                about,
                text: text.into(),
            }),
            Sweep::RollBack(next) => {
                if let Some(row) = self.taken(&row, *next, Vec::new()).await? {
                    self.sweep_stop(&row, me, out).await;
                }
            }
            Sweep::Finish(next) => {
                if let Some(row) = self.taken(&row, *next, Vec::new()).await? {
                    self.sweep_stop(&row, me, out).await;
                }
            }
            Sweep::Retire(next) => {
                let check = vec![store::unclaimed(domain)];
                if let Some(row) = self.taken(&row, *next, check).await? {
                    self.sweep_stop(&row, me, out).await;
                }
            }
        }
        Ok(())
    }

    /// Takes a row, or leaves it to whoever was first.
    async fn taken(
        &self,
        row: &Registry,
        next: Registry,
        with: Vec<Write>,
    ) -> Result<Option<Registry>, ProvisionError> {
        match self.save(row, next, with).await {
            Ok(row) => Ok(Some(row)),
            Err(ProvisionError::LostLease) => Ok(None),
            Err(e) => Err(e),
        }
    }

    async fn sweep_stop(&self, row: &Registry, me: &Claim, out: &mut Swept) {
        let about = row.domain.to_string();
        match self.stop(row, me.rollback_until()).await {
            Stop::NotKnown(text) => out.alarms.push(Finding { about, text }),
            Stop::Down => match self.stopped(row).await {
                Ok(r) if r.state == State::Retired => out.retired.push(about),
                Ok(_) => out.rolled_back.push(about),
                // A create took it over: nothing to say.
                Err(ProvisionError::LostLease) => {}
                Err(e) => out.alarms.push(Finding {
                    about,
                    text: e.to_string(),
                }),
            },
        }
    }

    /// What is on the host and in no row, and what is active and not on the host. Reported, not repaired: a
    /// new allocation would only burn another port.
    async fn sweep_host(&self, me: &Claim, known: &Known, out: &mut Swept) {
        if self.cell.suffix.is_none() {
            return;
        }
        let found = match self.inventory(me).await {
            Ok(Some(found)) => found,
            Ok(None) => return,
            Err(e) => {
                out.alarms.push(Finding {
                    about: self.cell.name.clone(),
                    text: format!("The host's inventory could not be read: {e}"),
                });
                return;
            }
        };
        for row in known.values().filter(|r| r.state == State::Active) {
            if found.iter().any(|i| i.slug == row.slug.as_str() && i.unit) {
                continue;
            }
            // The row was read before the host: somebody may have retired it in between.
            let still = self.registry(&row.domain).await.ok().flatten();
            if still.is_some_and(|r| decide::unmoved(row, &r)) {
                out.alarms.push(Finding {
                    about: row.domain.to_string(),
                    text: "The row is active and its unit does not run on the host. Look at its journal."
                        .into(),
                });
            }
        }
        for i in found
            .iter()
            .filter(|i| i.unit || i.env || i.map)
            .take(SWEEP_PAGE as usize)
        {
            let Some(slug) = Slug::parse(&i.slug) else {
                continue;
            };
            if known.contains_key(&slug) || !matches!(self.world.get(&store::slug_key(&slug)).await, Ok(None))
            {
                continue;
            }
            // Not stopped from here: without a row there is no generation to stop it with, and a `down` at the
            // host's own could meet the first `up` of a domain that is being created at this moment.
            out.reported.push(Finding {
                about: cut(&i.slug),
                text: "The host has files or a unit for it, and no row knows it. Stop it on the host.".into(),
            });
        }
    }

    async fn inventory(&self, me: &Claim) -> Result<Option<Vec<HostInstance>>, CallError> {
        let mut found = Vec::new();
        let Some(mut show) = self.show_command() else {
            return Ok(None);
        };
        for _ in 0..SHOW_PAGES {
            let id = self.send(&show, me.work_until()).await?;
            let Some(line) = self.shown(&id, me).await? else {
                return Ok(None);
            };
            found.extend(line.instances);
            match line.next.as_deref().and_then(Slug::parse) {
                Some(next) => show.slug = next,
                None => return Ok(Some(found)),
            }
        }
        // Too long to see the end of it: what is missing must not look as if it were not there.
        Ok(None)
    }

    async fn shown(&self, id: &str, me: &Claim) -> Result<Option<HostLine>, CallError> {
        loop {
            let seen = self.world.look(id).await?;
            if !matches!(seen.status, CommandStatus::NotVisible | CommandStatus::Waiting) {
                let line =
                    decide::host_line(&seen.stdout).filter(|l| l.op == HostOp::Show && l.result == "ok");
                return line.map(Some).ok_or_else(|| {
                    let text = "show answered nothing readable";
                    CallError::new(Class::Unavailable, "ssm:SendCommand", "Malformed", text)
                });
            }
            if self.world.now().saturating_add(decide::LOOK_EVERY) >= me.work_until() {
                return Ok(None);
            }
            self.world.pause(decide::LOOK_EVERY).await;
        }
    }

    /// `show` is about the whole host; the parameters that the document asks for are those of the cell.
    fn show_command(&self) -> Option<HostCommand> {
        let suffix = self.cell.suffix.as_ref()?;
        let slug = Slug::parse("show")?;
        Some(HostCommand {
            op: HostOp::Show,
            port: Port(self.cell.ports.low),
            generation: Generation::FIRST,
            origin: super::names::Origin::of(&slug, suffix),
            handle_domains: vec![suffix.as_str().to_owned()],
            slug,
        })
    }
}

/// The domain of an item of the cell's list.
pub fn listed_domain(item: &Item) -> Option<Domain> {
    serde_json::from_value(serde_json::Value::String(store::owner_of(item)?.to_owned())).ok()
}
