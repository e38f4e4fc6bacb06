//! The registry's table, SSM and the host in memory, for tests: what each may do to a caller, no more.
//!
//! [`Sim`] is a value (clone, hash), so that an explorer can branch on it. [`Mem`] runs shells on it one
//! after another, with a clock, delays, lost answers and crashes at named points.

#![allow(
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests only: a fault in a model must stop the test that holds it"
)]

use super::dns::Answer;
use super::later::{CertificateSeen, Later, Started};
use super::model::{
    Cell, Claim, CommandStatus, HostCommand, HostInstance, HostLine, HostOp, Invocation, Millis, PortRange,
    SweepPolicy,
};
use super::names::{Domain, NameRules, OriginSuffix};
use super::run::{Clock, Host, Sagas};
use super::store::{PRODUCT, REG};
use crate::error::{CallError, Class};
use crate::store::memory::MemoryTable;
use crate::store::{Attr, Cond, Item, Key, Op, Page, Query, Table, Write, WriteError};
use serde_json::Value;
use std::cell::{Cell as Knob, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// What a shell asks of the world.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Ask {
    /// One item.
    Get(Key),
    /// One page.
    Query(Query),
    /// A transaction.
    Write(Vec<Write>),
    /// A command to the host.
    Send(HostCommand),
    /// What became of it.
    Look(String),
    /// Which command has this comment.
    Find(String),
    /// Does this execution run?
    Running(String),
}

/// What it hears.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Told {
    /// To [`Ask::Get`].
    Item(Result<Option<Item>, CallError>),
    /// To [`Ask::Query`].
    Page(Result<Page, CallError>),
    /// To [`Ask::Write`].
    Written(Result<(), WriteError>),
    /// To [`Ask::Send`].
    Sent(Result<String, CallError>),
    /// To [`Ask::Look`].
    Seen(Result<Invocation, CallError>),
    /// To [`Ask::Find`].
    Found(Result<Option<String>, CallError>),
    /// To [`Ask::Running`].
    Runs(Result<bool, CallError>),
}

impl Ask {
    /// The answer of a call that failed with this.
    pub fn failed(&self, e: CallError) -> Told {
        match self {
            Ask::Get(_) => Told::Item(Err(e)),
            Ask::Query(_) => Told::Page(Err(e)),
            Ask::Write(_) => Told::Written(Err(e.into())),
            Ask::Send(_) => Told::Sent(Err(e)),
            Ask::Look(_) => Told::Seen(Err(e)),
            Ask::Find(_) => Told::Found(Err(e)),
            Ask::Running(_) => Told::Runs(Err(e)),
        }
    }

    /// May it change the world?
    pub fn acts(&self) -> bool {
        matches!(self, Ask::Write(_) | Ask::Send(_))
    }
}

/// An answer that did not come.
pub fn no_answer() -> CallError {
    CallError::new(Class::TimedOut, "aws:Call", "Timeout", "no answer in time")
}

/// A command as SSM has it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SimCommand {
    /// What it is.
    pub command: HostCommand,
    /// When it was sent.
    pub sent_at: Millis,
    /// Where SSM says it stands.
    pub status: CommandStatus,
    /// What it printed.
    pub stdout: String,
    /// How often the host has run it.
    pub runs: u8,
}

/// An instance on the host.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct SimInstance {
    /// Last accepted generation.
    pub generation: u64,
    /// Was the last accepted command a `down`?
    pub last_down: bool,
    /// Does its unit run, right and routed?
    pub up: bool,
    /// Is anything of it there: env file, a unit that does not come up, a map?
    pub residue: bool,
    /// Its port.
    pub port: u16,
    /// How often its unit was started.
    pub starts: u8,
}

/// A guard taken away, to see that the checks notice (spec/domains.md 2.13).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mistake {
    /// The host takes every command.
    NoFence,
    /// `up` restarts what runs.
    UpRestarts,
    /// S8 without a condition.
    ActivateBlindly,
    /// The port's tombstone without a condition.
    PortBlindly,
    /// The slug's tombstone without a condition.
    SlugBlindly,
    /// The row's put without a condition.
    RowBlindly,
    /// The insert without the registry's check.
    InsertBlindly,
    /// The sweep's retire without the check of the product row.
    SweepUnclaimedBlindly,
    /// The sweep compares the generation only (F8).
    SweepGenerationOnly,
    /// S2b without a condition.
    TakeBlindly,
    /// S3 without a condition.
    StartBlindly,
    /// S5 without a condition.
    SentBlindly,
    /// The adoption without a condition.
    AdoptBlindly,
    /// R1 without a condition.
    FailBlindly,
    /// R4 and the end of a retire without a condition.
    DownBlindly,
    /// A person's retire without a condition on the row.
    RetireBlindly,
    /// A person's retire leaves the product row.
    RetireKeepsClaim,
    /// The sweep's take-over of a dead rollback or retire without a condition.
    StopBlindly,
}

/// Table, SSM and host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sim {
    /// Now, in epoch milliseconds.
    pub now: Millis,
    /// The table.
    pub table: MemoryTable,
    /// Every command ever sent, in order.
    pub commands: Vec<SimCommand>,
    /// The host's instances by slug.
    pub host: BTreeMap<String, SimInstance>,
    /// Running executions.
    pub running: BTreeSet<String>,
    /// Slugs whose instance does not come up, with the host's code.
    pub sick: BTreeMap<String, String>,
    /// Slugs whose next command finds the host busy.
    pub busy: BTreeSet<String>,
    /// Ports that something else on the host has.
    pub taken_ports: BTreeSet<u16>,
    /// The guard that is missing.
    pub mistake: Option<Mistake>,
}

/// Start of time in tests.
pub const EPOCH: Millis = 1_700_000_000_000;

impl Default for Sim {
    fn default() -> Self {
        Self {
            now: EPOCH,
            table: MemoryTable::default(),
            commands: Vec::new(),
            host: BTreeMap::new(),
            running: BTreeSet::new(),
            sick: BTreeMap::new(),
            busy: BTreeSet::new(),
            taken_ports: BTreeSet::new(),
            mistake: None,
        }
    }
}

impl Sim {
    /// Answers plainly.
    pub fn answer(&mut self, ask: &Ask) -> Told {
        match ask {
            Ask::Write(writes) => match self.mistake {
                None => Told::Written(self.table.write(writes)),
                Some(m) => Told::Written(self.table.write(&sabotage(writes, m))),
            },
            Ask::Send(c) => {
                self.commands.push(SimCommand {
                    command: c.clone(),
                    sent_at: self.now,
                    status: CommandStatus::Waiting,
                    stdout: String::new(),
                    runs: 0,
                });
                Told::Sent(Ok(format!("c{}", self.commands.len())))
            }
            Ask::Get(_) | Ask::Query(_) | Ask::Look(_) | Ask::Find(_) | Ask::Running(_) => self.read(ask),
        }
    }

    /// Answers a request that changes nothing.
    ///
    /// # Panics
    /// It is one that may.
    pub fn read(&self, ask: &Ask) -> Told {
        match ask {
            Ask::Get(key) => Told::Item(Ok(self.table.get(key))),
            Ask::Query(q) => Told::Page(Ok(self.page(q))),
            Ask::Look(id) => Told::Seen(Ok(self.look(id))),
            Ask::Find(comment) => {
                let at = self
                    .commands
                    .iter()
                    .rposition(|c| c.command.comment() == *comment);
                Told::Found(Ok(at.map(|i| format!("c{}", i + 1))))
            }
            Ask::Running(e) => Told::Runs(Ok(self.running.contains(e))),
            Ask::Write(_) | Ask::Send(_) => panic!("{ask:?} is no read"),
        }
    }

    /// A page of at most 1 MiB, as DynamoDB cuts it (API reference, Query).
    fn page(&self, q: &Query) -> Page {
        let mut page = self.table.query(q);
        let mut size = 0;
        let fits = page
            .items
            .iter()
            .take_while(|i| {
                size += i
                    .iter()
                    .map(|(k, v)| k.len() + v.as_str().map_or(21, str::len))
                    .sum::<usize>();
                size <= 1024 * 1024
            })
            .count();
        if fits < page.items.len() {
            page.items.truncate(fits);
            page.next = page.items.last().and_then(Key::of).map(|k| k.sk);
        }
        page
    }

    fn look(&self, id: &str) -> Invocation {
        let at = id.strip_prefix('c').and_then(|n| n.parse::<usize>().ok());
        match at.and_then(|n| self.commands.get(n.checked_sub(1)?)) {
            None => Invocation {
                status: CommandStatus::NotVisible,
                details: "InvocationDoesNotExist".into(),
                stdout: String::new(),
            },
            Some(c) => Invocation {
                status: c.status,
                details: format!("{:?}", c.status),
                stdout: c.stdout.clone(),
            },
        }
    }

    /// The host gets a command, for the first time or again. Only the first end is what SSM shows.
    pub fn deliver(&mut self, at: usize) {
        let command = self.commands[at].command.clone();
        let line = self.run(&command);
        let c = &mut self.commands[at];
        c.runs += 1;
        if c.status == CommandStatus::Waiting {
            c.status = if line.result == "ok" {
                CommandStatus::Success
            } else {
                CommandStatus::Failed
            };
            c.stdout = serde_json::to_string(&line).unwrap_or_default() + "\n";
        }
    }

    /// SSM gives up on a command. The host may get it all the same, later.
    pub fn time_out(&mut self, at: usize) {
        self.commands[at].status = CommandStatus::TimedOut;
    }

    /// The host dies in the middle of an `up`: the env file is there (C17), or the unit runs and no map is
    /// there (C18). Nobody hears of it.
    pub fn die_in(&mut self, at: usize, started: bool) {
        let c = self.commands[at].command.clone();
        let i = self.host.entry(c.slug.to_string()).or_default();
        i.generation = c.generation.0;
        i.last_down = false;
        i.residue = true;
        i.port = c.port.0;
        if started {
            i.starts += 1;
        }
        self.commands[at].status = CommandStatus::TimedOut;
        self.commands[at].runs += 1;
    }

    /// What `host/zds-host` does, as far as callers can tell (spec/domains.md 2.2).
    fn run(&mut self, c: &HostCommand) -> HostLine {
        let mut line = HostLine {
            op: c.op,
            slug: c.slug.to_string(),
            generation: c.generation.0,
            result: "ok".into(),
            did: None,
            code: None,
            message: None,
            instances: Vec::new(),
            next: None,
        };
        if self.busy.remove(c.slug.as_str()) {
            line.result = "busy".into();
            return line;
        }
        if c.op == HostOp::Show {
            line.instances = self
                .host
                .iter()
                .filter(|(_, i)| i.up || i.residue)
                .map(|(slug, i)| HostInstance {
                    slug: slug.clone(),
                    generation: i.generation,
                    unit: i.up,
                    env: true,
                    map: i.up,
                })
                .collect();
            return line;
        }
        let other = self
            .host
            .iter()
            .any(|(s, i)| i.up && i.port == c.port.0 && s != c.slug.as_str())
            || self.taken_ports.contains(&c.port.0);
        let sick = self.sick.get(c.slug.as_str()).cloned();
        let i = self.host.entry(c.slug.to_string()).or_default();
        let g = c.generation.0;
        let stale = g < i.generation || (g == i.generation && i.last_down && c.op == HostOp::Up);
        if stale && self.mistake != Some(Mistake::NoFence) {
            line.result = "fenced".into();
            return line;
        }
        i.generation = i.generation.max(g);
        i.last_down = c.op == HostOp::Down;
        if c.op == HostOp::Down {
            i.up = false;
            i.residue = false;
            return line;
        }
        i.port = c.port.0;
        line.did = Some(c.origin.server_did());
        if i.up && self.mistake != Some(Mistake::UpRestarts) {
            return line;
        }
        let code = if other {
            Some("port_taken".to_owned())
        } else {
            sick
        };
        if let Some(code) = code {
            i.residue = true;
            i.up = false;
            line.result = "failed".into();
            line.did = None;
            line.message = Some(format!("The instance did not come up: {code}."));
            line.code = Some(code);
            return line;
        }
        i.residue = true;
        i.up = true;
        i.starts = i.starts.saturating_add(1);
        line
    }

    /// Commands that the host has not got yet and SSM has not given up.
    pub fn queued(&self) -> impl Iterator<Item = usize> + '_ {
        self.commands
            .iter()
            .enumerate()
            .filter(|(_, c)| c.runs == 0)
            .map(|(i, _)| i)
    }

    /// Commands of this kind.
    pub fn sent(&self, op: HostOp) -> usize {
        self.commands.iter().filter(|c| c.command.op == op).count()
    }
}

fn set_value<'a>(w: &'a Write, name: &str) -> Option<&'a str> {
    match &w.op {
        Op::Update { set, .. } => set.iter().find(|(n, _)| n == name)?.1.as_str(),
        _ => None,
    }
}

fn sets(w: &Write, name: &str) -> bool {
    matches!(&w.op, Op::Update { set, .. } if set.iter().any(|(n, _)| n == name))
}

/// Which write of the registry it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Point {
    /// S1 and every other read.
    Read,
    /// S2a.
    Allocate,
    /// S2b.
    Take,
    /// S3.
    Start,
    /// S4.
    SendUp,
    /// S5.
    Sent,
    /// S6.
    Look,
    /// S8.
    Activate,
    /// Adoption.
    Adopt,
    /// R1.
    Fail,
    /// R2.
    SendDown,
    /// R4.
    Free,
    /// Retire: the transaction.
    Retire,
    /// Retire: its end.
    Retired,
    /// The sweep takes a dead rollback or retire over.
    Stop,
    /// The product row.
    Insert,
    /// `show`.
    SendShow,
    /// Anything else.
    Other,
}

/// Where in the saga a request stands.
pub fn point(ask: &Ask) -> Point {
    match ask {
        Ask::Get(_) | Ask::Query(_) | Ask::Find(_) | Ask::Running(_) => Point::Read,
        Ask::Look(_) => Point::Look,
        Ask::Send(c) => match c.op {
            HostOp::Up => Point::SendUp,
            HostOp::Down => Point::SendDown,
            HostOp::Show => Point::SendShow,
        },
        Ask::Write(w)
            if w.iter()
                .any(|w| w.key.sk == PRODUCT && matches!(w.op, Op::Put(_))) =>
        {
            Point::Insert
        }
        Ask::Write(w) => w.iter().find(|w| w.key.sk == REG).map_or(Point::Other, row_point),
    }
}

fn row_point(w: &Write) -> Point {
    if matches!(w.op, Op::Put(_)) {
        return Point::Allocate;
    }
    match (set_value(w, "state"), set_value(w, "retire_reason")) {
        (Some("allocating"), _) => Point::Take,
        (Some("starting"), _) => Point::Start,
        (Some("active"), _) => Point::Activate,
        (Some("retired"), _) => Point::Retired,
        (_, Some("requested")) => Point::Retire,
        (Some("retiring"), _) => Point::Fail,
        _ if sets(w, "generation") => Point::Stop,
        _ if sets(w, "adoptions") => Point::Adopt,
        _ if sets(w, "command_id") => Point::Sent,
        _ if matches!(&w.op, Op::Update { remove, .. } if remove.iter().any(|r| r == "owner")) => Point::Free,
        _ => Point::Other,
    }
}

/// The writes as they would be with the guard missing.
pub fn sabotage(writes: &[Write], mistake: Mistake) -> Vec<Write> {
    let by_sweep = writes
        .iter()
        .any(|w| set_value(w, "owner").is_some_and(|o| o.starts_with("sweep")));
    let blind = |w: &Write| Write {
        when: Cond::Always,
        ..w.clone()
    };
    let at = point(&Ask::Write(writes.to_vec()));
    let on_row = |p: &[Point]| p.contains(&at);
    writes
        .iter()
        .filter_map(|w| {
            let row = w.key.sk == REG;
            let product = w.key.sk == PRODUCT;
            let hit = match mistake {
                Mistake::NoFence | Mistake::UpRestarts => false,
                Mistake::ActivateBlindly => row && on_row(&[Point::Activate]),
                Mistake::PortBlindly => w.key.pk.starts_with("PORTS#"),
                Mistake::SlugBlindly => w.key.pk.starts_with("SLUG#"),
                Mistake::RowBlindly => row && on_row(&[Point::Allocate]),
                Mistake::InsertBlindly => row && on_row(&[Point::Insert]),
                Mistake::TakeBlindly => row && on_row(&[Point::Take]),
                Mistake::StartBlindly => row && on_row(&[Point::Start]),
                Mistake::SentBlindly => row && on_row(&[Point::Sent]),
                Mistake::AdoptBlindly => row && on_row(&[Point::Adopt]),
                Mistake::FailBlindly => row && on_row(&[Point::Fail]),
                Mistake::DownBlindly => row && on_row(&[Point::Free, Point::Retired]),
                Mistake::RetireBlindly => row && on_row(&[Point::Retire]) && !by_sweep,
                Mistake::StopBlindly => row && on_row(&[Point::Stop]),
                Mistake::RetireKeepsClaim => {
                    if product && on_row(&[Point::Retire]) && !by_sweep {
                        return None;
                    }
                    false
                }
                Mistake::SweepUnclaimedBlindly => {
                    if product && by_sweep {
                        return None;
                    }
                    false
                }
                Mistake::SweepGenerationOnly => {
                    if let (true, true, Cond::All(c)) = (row, by_sweep, &w.when) {
                        return Some(Write {
                            when: Cond::All(c.iter().take(1).cloned().collect()),
                            ..w.clone()
                        });
                    }
                    false
                }
            };
            Some(if hit { blind(w) } else { w.clone() })
        })
        .collect()
}

// ---------------------------------------------------------------- one shell at a time

/// Something that goes wrong at a point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// The process ends before the call.
    CrashBefore,
    /// The call happens, and the process ends.
    CrashAfter,
    /// The call happens, and its answer is lost.
    LoseAnswer,
    /// The call does not happen.
    Fail(CallError),
}

/// Runs shells one after another.
#[derive(Debug, Default)]
pub struct Mem {
    /// The world.
    pub sim: RefCell<Sim>,
    /// What goes wrong: at which point, at its which occurrence from now (1 is the next).
    pub troubles: RefCell<Vec<(Point, u32, Trouble)>>,
    /// Everything that was asked.
    pub log: RefCell<Vec<Ask>>,
    /// How long the host takes for a command.
    pub host_takes: Knob<Millis>,
    /// The same for a `down`.
    pub down_takes: Knob<Millis>,
    /// How long SSM does not know a command.
    pub hidden_for: Knob<Millis>,
    /// The host gets nothing.
    pub held: Knob<bool>,
    /// What the later steps meet.
    pub cloud: RefCell<SimCloud>,
    /// Something to happen right before the next request at a point.
    interference: RefCell<Option<(Point, Interference)>>,
}

/// Step Functions, ACM, CloudFormation, Route 53 and public DNS.
#[derive(Debug, Clone, Default)]
pub struct SimCloud {
    /// Executions started, with their input.
    pub started: BTreeMap<String, Value>,
    /// Certificates by ARN, with the token they were asked with.
    pub certificates: BTreeMap<String, (String, CertificateSeen)>,
    /// Public DNS by type and name; what is not here does not exist.
    pub dns: BTreeMap<(String, String), Vec<String>>,
    /// No query is answered.
    pub dns_down: bool,
    /// Name of the hosted zone.
    pub zone: String,
    /// Stacks by name.
    pub stacks: BTreeMap<String, (String, Value)>,
}

impl SimCloud {
    /// Stacks under creation are finished, and their records are in the DNS.
    pub fn settle(&mut self) {
        for (status, template) in self.stacks.values_mut() {
            if status != "CREATE_IN_PROGRESS" {
                continue;
            }
            *status = "CREATE_COMPLETE".into();
            for r in template["Resources"]
                .as_object()
                .into_iter()
                .flat_map(|o| o.values())
            {
                let p = &r["Properties"];
                let text = |v: &Value| v.as_str().unwrap_or("").trim_end_matches('.').to_owned();
                let value = text(&p["ResourceRecords"][0]).trim_matches('"').to_owned();
                self.dns.insert((text(&p["Type"]), text(&p["Name"])), vec![value]);
            }
        }
    }
}

struct Interference(Box<dyn FnOnce(&mut Sim)>);

impl std::fmt::Debug for Interference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Interference")
    }
}

impl Mem {
    /// A world in which the host takes two seconds.
    pub fn new() -> Self {
        let m = Self::default();
        m.host_takes.set(2_000);
        m.down_takes.set(2_000);
        m
    }

    /// Lets something go wrong at the `nth` next request at a point.
    pub fn trouble(&self, at: Point, nth: u32, what: Trouble) {
        self.troubles.borrow_mut().push((at, nth, what));
    }

    /// Lets somebody else act right before the next request at a point.
    pub fn before(&self, at: Point, act: impl FnOnce(&mut Sim) + 'static) {
        *self.interference.borrow_mut() = Some((at, Interference(Box::new(act))));
    }

    /// Lets time pass, and the host work.
    pub fn pass(&self, millis: Millis) {
        let mut sim = self.sim.borrow_mut();
        sim.now += millis;
        if self.held.get() {
            return;
        }
        let due: Vec<usize> = sim
            .queued()
            .filter(|i| {
                let c = &sim.commands[*i];
                let down = c.command.op == HostOp::Down;
                let takes = if down {
                    self.down_takes.get()
                } else {
                    self.host_takes.get()
                };
                c.sent_at + takes <= sim.now && c.status == CommandStatus::Waiting
            })
            .collect();
        for i in due {
            sim.deliver(i);
        }
    }

    /// Requests since the last call of this.
    pub fn asked(&self) -> Vec<Ask> {
        std::mem::take(&mut self.log.borrow_mut())
    }

    async fn ask(&self, ask: Ask) -> Told {
        let at = point(&ask);
        let here = self.interference.borrow_mut().take_if(|(p, _)| *p == at);
        if let Some((_, i)) = here {
            (i.0)(&mut self.sim.borrow_mut());
        }
        self.log.borrow_mut().push(ask.clone());
        let trouble = {
            let mut t = self.troubles.borrow_mut();
            for (p, n, _) in t.iter_mut() {
                if *p == at {
                    *n = n.saturating_sub(1);
                }
            }
            let hit = t.iter().position(|(p, n, _)| *p == at && *n == 0);
            hit.map(|i| t.remove(i).2)
        };
        if trouble == Some(Trouble::CrashBefore) {
            std::future::pending::<()>().await;
        }
        if let Some(Trouble::Fail(e)) = trouble {
            return ask.failed(e);
        }
        let mut told = self.sim.borrow_mut().answer(&ask);
        if let (Ask::Look(id), Told::Seen(Ok(seen))) = (&ask, &mut told) {
            let sim = self.sim.borrow();
            let n = id
                .strip_prefix('c')
                .and_then(|n| n.parse::<usize>().ok())
                .unwrap_or(0);
            let sent = sim.commands.get(n.wrapping_sub(1)).map_or(sim.now, |c| c.sent_at);
            if sim.now < sent + self.hidden_for.get() {
                seen.status = CommandStatus::NotVisible;
                seen.stdout.clear();
            }
        }
        match trouble {
            Some(Trouble::CrashAfter) => std::future::pending().await,
            Some(Trouble::LoseAnswer) => ask.failed(no_answer()),
            _ => told,
        }
    }
}

/// Runs a shell to its end; none when the process was stopped in between.
pub fn drive<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(v) => Some(v),
        Poll::Pending => None,
    }
}

macro_rules! told {
    ($told:expr, $kind:ident) => {
        match $told {
            Told::$kind(v) => v,
            other => panic!("the world answered something else: {other:?}"),
        }
    };
}

#[cfg(test)]
pub(super) use told;

impl Table for Mem {
    async fn get(&self, key: &Key) -> Result<Option<Item>, CallError> {
        told!(self.ask(Ask::Get(key.clone())).await, Item)
    }

    async fn query(&self, query: &Query) -> Result<Page, CallError> {
        told!(self.ask(Ask::Query(query.clone())).await, Page)
    }

    async fn write(&self, writes: &[Write], _token: &str) -> Result<(), WriteError> {
        told!(self.ask(Ask::Write(writes.to_vec())).await, Written)
    }
}

impl Host for Mem {
    async fn send(&self, command: &HostCommand) -> Result<String, CallError> {
        told!(self.ask(Ask::Send(command.clone())).await, Sent)
    }

    async fn look(&self, command_id: &str) -> Result<Invocation, CallError> {
        told!(self.ask(Ask::Look(command_id.to_owned())).await, Seen)
    }

    async fn find(&self, comment: &str) -> Result<Option<String>, CallError> {
        told!(self.ask(Ask::Find(comment.to_owned())).await, Found)
    }
}

impl Sagas for Mem {
    async fn running(&self, execution: &str) -> Result<bool, CallError> {
        told!(self.ask(Ask::Running(execution.to_owned())).await, Runs)
    }
}

impl Clock for Mem {
    fn now(&self) -> Millis {
        self.sim.borrow().now
    }

    async fn pause(&self, millis: Millis) {
        self.pass(millis);
    }
}

impl Later for Mem {
    async fn start(&self, name: &str, input: &Value) -> Result<Started, CallError> {
        let arn = format!("arn:aws:states:eu-west-1:1:execution:domain-create:{name}");
        let mut cloud = self.cloud.borrow_mut();
        if cloud.started.contains_key(name) {
            return Ok(Started::Before(arn));
        }
        cloud.started.insert(name.to_owned(), input.clone());
        self.sim.borrow_mut().running.insert(arn.clone());
        Ok(Started::Now(arn))
    }

    async fn request_certificate(&self, name: &str, token: &str) -> Result<String, CallError> {
        let mut cloud = self.cloud.borrow_mut();
        let arn = format!("arn:aws:acm:eu-west-1:1:certificate/{name}");
        let seen = CertificateSeen {
            status: "PENDING_VALIDATION".into(),
            reason: None,
            validation: Vec::new(),
            complete: false,
        };
        cloud
            .certificates
            .entry(arn.clone())
            .or_insert((token.to_owned(), seen));
        Ok(arn)
    }

    async fn certificate(&self, arn: &str) -> Result<CertificateSeen, CallError> {
        let cloud = self.cloud.borrow();
        let gone = || {
            CallError::new(
                Class::NotFound,
                "acm:DescribeCertificate",
                "ResourceNotFoundException",
                "no",
            )
        };
        cloud
            .certificates
            .get(arn)
            .map(|(_, c)| c.clone())
            .ok_or_else(gone)
    }

    async fn lookup(&self, kind: &str, name: &str) -> Answer {
        let cloud = self.cloud.borrow();
        if cloud.dns_down {
            return Answer::Unknown;
        }
        let key = (kind.to_owned(), name.to_owned());
        Answer::Found(cloud.dns.get(&key).cloned().unwrap_or_default())
    }

    async fn zone_name(&self, _zone: &str) -> Result<String, CallError> {
        Ok(self.cloud.borrow().zone.clone())
    }

    async fn stack(&self, name: &str) -> Result<Option<String>, CallError> {
        Ok(self.cloud.borrow().stacks.get(name).map(|(s, _)| s.clone()))
    }

    async fn create_stack(&self, name: &str, template: &Value, _token: &str) -> Result<(), CallError> {
        let made = ("CREATE_IN_PROGRESS".to_owned(), template.clone());
        self.cloud.borrow_mut().stacks.insert(name.to_owned(), made);
        Ok(())
    }

    async fn delete_stack(&self, name: &str, _token: &str) -> Result<(), CallError> {
        self.cloud.borrow_mut().stacks.remove(name);
        Ok(())
    }
}

// ---------------------------------------------------------------- what tests start from

/// A cell with the suffix of the spec's tests.
pub fn cell() -> Cell {
    let suffix = OriginSuffix::parse(".pds1.example.test").ok().flatten();
    Cell {
        name: "pds1.eu".into(),
        names: NameRules {
            zone: suffix.as_ref().map(|s| s.zone().to_owned()),
            allow_test: true,
            certificate_for: None,
        },
        suffix,
        ports: PortRange {
            low: 20_000,
            high: 29_999,
        },
        sweep: SweepPolicy::Report,
    }
}

/// A domain that is known to be good.
pub fn domain(name: &str) -> Domain {
    match Domain::parse(name, &cell().names) {
        Ok(d) => d,
        Err(e) => panic!("{name}: {e}"),
    }
}

/// An invocation that begins now and has two minutes.
pub fn claim(execution: &str, request: &str, now: Millis) -> Claim {
    Claim {
        execution: execution.into(),
        request: request.into(),
        deadline: now + 120_000,
    }
}

/// A port's tombstone of some other domain.
pub fn used_port(cell: &str, port: u16, domain: &str) -> Item {
    Item::from([
        ("pk".into(), Attr::s(format!("PORTS#{cell}"))),
        ("sk".into(), Attr::s(format!("{port:05}"))),
        ("domain".into(), Attr::s(domain)),
        ("schema".into(), Attr::n(1)),
    ])
}
