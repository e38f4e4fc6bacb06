//! The words of the domain provisioner: stored rows, who works on them, what the host is asked and answers,
//! outcomes (spec/domains.md 1.1, 1.2, 2.1). No I/O, no clock.

use super::names::{Domain, NameRules, Origin, OriginSuffix, Slug, is_ldh, is_slug};
use crate::error::{CallError, Class, Failure};
use crate::store::Row;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Epoch milliseconds, as the registry stores times (contract 5).
pub type Millis = i64;

/// Longest stored error text, in characters (spec/domains.md 1.2).
pub const MESSAGE_MAX: usize = 512;

/// A port of an instance on its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Port(pub u16);

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The ports of a cell, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PortRange {
    /// Lowest.
    pub low: u16,
    /// Highest.
    pub high: u16,
}

impl PortRange {
    /// Reads `PORT_RANGE`: two numbers of four or five digits, outside the range from which Linux hands out
    /// ports by itself (32768 to 60999).
    ///
    /// # Errors
    /// What is wrong and the expected form.
    pub fn parse(text: &str) -> Result<Self, String> {
        const FORM: &str = "two ports, low-high, from 1024 up and outside 32768-60999, e.g. 20000-29999";
        let number = |s: &str| {
            let plain =
                (4..=5).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_digit()) && !s.starts_with('0');
            plain.then(|| s.parse::<u16>().ok()).flatten()
        };
        let ends = text
            .split_once('-')
            .and_then(|(l, h)| Some((number(l)?, number(h)?)));
        match ends {
            Some((low, high)) if low >= 1024 && low <= high && (high < 32_768 || low > 60_999) => {
                Ok(Self { low, high })
            }
            _ => Err(format!("it must be {FORM}")),
        }
    }

    /// How many ports there are.
    pub fn len(self) -> u32 {
        u32::from(self.high) - u32::from(self.low) + 1
    }

    /// Never: a range holds at least one port.
    pub fn is_empty(self) -> bool {
        false
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.low, self.high)
    }
}

/// Fencing token: rises with every take-over and every move to `retiring`, and is sent to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

impl Generation {
    /// The first one.
    pub const FIRST: Self = Self(1);

    /// The next one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who works on a row: `<execution>#<invocation>`. Two invocations of one execution are two owners.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OwnerToken(pub String);

impl OwnerToken {
    /// The execution's part.
    pub fn execution(&self) -> &str {
        self.0.rsplit_once('#').map_or(self.0.as_str(), |(e, _)| e)
    }
}

/// State of a registry row (spec/domains.md 1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Slug and port are claimed; nothing was done on the host at this generation.
    Allocating,
    /// An `up` may have been sent; the host's state is unknown until a result is read.
    Starting,
    /// The host reported up, with the right DID and routed. No owner, no lease.
    Active,
    /// Being stopped, or stopped after a failed activation. The same slug and port can be reclaimed.
    Retiring,
    /// Nothing on the host; slug and port stay burnt, for this domain only.
    Retired,
}

impl State {
    /// The stored word.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Allocating => "allocating",
            State::Starting => "starting",
            State::Active => "active",
            State::Retiring => "retiring",
            State::Retired => "retired",
        }
    }
}

/// Why a row is being retired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetireReason {
    /// A failed activation undid itself; ends `retiring`, free.
    Rollback,
    /// A person or the sweep wants it gone; ends `retired`.
    Requested,
}

/// What happens to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// A create takes the row over.
    Take,
    /// The host is about to be asked to start it.
    Start,
    /// The host said that it is up, right and routed.
    Up,
    /// The activation failed, or was found dead.
    Fail,
    /// Somebody takes over the stopping of it.
    Stop,
    /// It is to go.
    Retire,
    /// The host said that it is down.
    Down,
}

/// An event that its state does not know. A programming error, answered and not panicked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("a row that is {state:?} ({reason:?}) can not take {event:?}")]
pub struct IllegalEvent {
    state: State,
    reason: Option<RetireReason>,
    event: Event,
}

/// The only table of legal pairs (spec/domains.md 2.3).
///
/// # Errors
/// The pair is not in the table.
pub fn next_state(
    state: State,
    reason: Option<RetireReason>,
    event: Event,
) -> Result<(State, Option<RetireReason>), IllegalEvent> {
    use RetireReason::{Requested, Rollback};
    use State::{Active, Allocating, Retired, Retiring, Starting};
    Ok(match (state, event) {
        (Allocating | Starting | Retiring | Retired, Event::Take) => (Allocating, None),
        (Allocating, Event::Start) => (Starting, None),
        (Starting, Event::Up) => (Active, None),
        (Allocating | Starting, Event::Fail) => (Retiring, Some(Rollback)),
        (Retiring, Event::Stop) => (Retiring, reason),
        (Allocating | Starting | Active | Retiring, Event::Retire) => (Retiring, Some(Requested)),
        (Retiring, Event::Down) if reason == Some(Requested) => (Retired, reason),
        (Retiring, Event::Down) => (Retiring, reason),
        _ => return Err(IllegalEvent { state, reason, event }),
    })
}

/// The first cause of a failed activation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fault {
    /// Stable code: the host's own (`crash_loop`, `port_taken`, …) or one of ours.
    pub code: String,
    /// What happened, at most 512 characters.
    pub message: String,
    /// When.
    pub at: Millis,
    /// At which generation.
    pub generation: Generation,
}

/// A later step of the saga that failed; the instance is untouched.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SagaError {
    /// Step of the workflow.
    pub step: String,
    /// Error type.
    pub code: String,
    /// What happened, at most 512 characters.
    pub message: String,
    /// When.
    pub at: Millis,
}

/// At most [`MESSAGE_MAX`] characters of a text, on one line.
pub fn cut(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(plain).take(MESSAGE_MAX).collect()
}

/// What SSM is doing for a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostOp {
    /// Make it run, or verify that it does.
    Up,
    /// Make it stop, or verify that it has.
    Down,
    /// List what is there.
    Show,
}

impl HostOp {
    /// The document's word.
    pub fn as_str(self) -> &'static str {
        match self {
            HostOp::Up => "up",
            HostOp::Down => "down",
            HostOp::Show => "show",
        }
    }
}

/// The registry record of a domain (spec/domains.md 1.2). Never deleted; slug, cell, port, origin and DID
/// never change.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Registry {
    /// The domain, the identity of everything below.
    pub domain: Domain,
    /// Its slug.
    pub slug: Slug,
    /// Its cell.
    pub cell: String,
    /// Its port on that cell.
    pub port: Port,
    /// Its public host name; the stored one wins over a later configuration.
    pub origin: Origin,
    /// `did:web:` + origin.
    pub server_did: String,
    /// Each with its leading dot.
    #[serde(default)]
    pub handle_domains: Vec<String>,
    /// Where it stands.
    pub state: State,
    /// Why it is retiring or retired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retire_reason: Option<RetireReason>,
    /// Fencing token.
    pub generation: Generation,
    /// Who works on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<OwnerToken>,
    /// Until when its owner is taken to be alive. A hint; safety comes from conditions and the fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_until: Option<Millis>,
    /// Command in flight, so that a retry adopts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<String>,
    /// What that command does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_op: Option<HostOp>,
    /// How often it was adopted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adoptions: Option<u32>,
    /// First cause of the last failed activation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<Fault>,
    /// Newest execution that asked for the domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saga: Option<String>,
    /// Later step that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saga_error: Option<SagaError>,
    /// Digest of what was rendered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_digest: Option<String>,
    /// Certificate that the saga waits for, so that its validation records can be shown before the insert.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Certificate>,
    /// First allocation.
    pub created_at: Millis,
    /// Last change.
    pub updated_at: Millis,
    /// Last time it became active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activated_at: Option<Millis>,
    /// When it was retired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retired_at: Option<Millis>,
}

impl Row for Registry {
    const SCHEMA: u64 = 1;
    const FIELDS: &'static [&'static str] = &[
        "domain",
        "slug",
        "cell",
        "port",
        "origin",
        "server_did",
        "handle_domains",
        "state",
        "retire_reason",
        "generation",
        "owner",
        "lease_until",
        "command_id",
        "command_op",
        "adoptions",
        "last_error",
        "saga",
        "saga_error",
        "config_digest",
        "certificate",
        "created_at",
        "updated_at",
        "activated_at",
        "retired_at",
    ];
}

impl Registry {
    /// Is somebody taken to be at work on it? Exactly at its end a lease is over.
    pub fn leased(&self, now: Millis) -> bool {
        self.owner.is_some() && self.lease_until.is_some_and(|t| now < t)
    }

    /// What the host is told.
    pub fn command(&self, op: HostOp) -> HostCommand {
        HostCommand {
            op,
            slug: self.slug.clone(),
            port: self.port,
            generation: self.generation,
            origin: self.origin.clone(),
            handle_domains: self.handle_domains.clone(),
        }
    }

    /// The answer for an active row.
    pub fn provisioned(&self, outcome: Outcome) -> Provisioned {
        Provisioned {
            origin: self.origin.clone(),
            port: self.port,
            server_did: self.server_did.clone(),
            generation: self.generation,
            outcome,
        }
    }
}

/// One DNS record that the domain needs (spec/domains.md 2.11).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DnsRecord {
    /// `MX`, `TXT`, `CNAME`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its full name, no trailing dot.
    pub name: String,
    /// The value to set.
    pub value: String,
    /// What was found; null until asked, and after an answer that never came the last one is kept.
    pub found: Option<Vec<String>>,
    /// Is it as it should be?
    pub ok: bool,
    /// Is something else there, which we leave alone?
    #[serde(default)]
    pub foreign: bool,
}

/// A certificate asked for the domain.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Certificate {
    /// Its ARN.
    pub arn: String,
    /// The name it is for.
    pub name: String,
    /// ACM's word.
    pub status: String,
    /// Records that prove control of the name.
    #[serde(default)]
    pub validation: Vec<DnsRecord>,
}

/// The domain's row that the saga inserts last: the domain is claimed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Product {
    /// The domain.
    pub domain: Domain,
    /// Generation of the instance it claims.
    pub generation: Generation,
    /// Execution that inserted it.
    pub execution: String,
    /// Certificate, where one is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Certificate>,
    /// The records the domain needs, and what was found.
    #[serde(default)]
    pub dns_records: Vec<DnsRecord>,
    /// When all records were last looked up with an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns_checked_at: Option<Millis>,
    /// When it was inserted.
    pub created_at: Millis,
    /// Last change.
    pub updated_at: Millis,
}

impl Row for Product {
    const SCHEMA: u64 = 1;
    const FIELDS: &'static [&'static str] = &[
        "domain",
        "generation",
        "execution",
        "certificate",
        "dns_records",
        "dns_checked_at",
        "created_at",
        "updated_at",
    ];
}

impl Product {
    /// Are all records found as they should be?
    pub fn dns_complete(&self) -> bool {
        self.dns_records.iter().all(|r| r.ok)
    }
}

/// Was the instance made by this call or was it there?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// This call made it active.
    Created,
    /// It was active already.
    Reused,
}

/// Answer of `ensure_provisioned` (contract 4.7).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Provisioned {
    /// Public host name of the instance.
    pub origin: Origin,
    /// Its port.
    pub port: Port,
    /// Its server DID.
    pub server_did: String,
    /// Generation, for the insert.
    pub generation: Generation,
    /// Made or reused.
    pub outcome: Outcome,
}

/// What may be done about active instances that no domain claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SweepPolicy {
    /// Only say so.
    #[default]
    Report,
    /// Retire them once they are old enough.
    Retire,
}

/// The cell and its rules, from the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// Name of the cell.
    pub name: String,
    /// Origin suffix; none means lookup only.
    pub suffix: Option<OriginSuffix>,
    /// Ports of the cell.
    pub ports: PortRange,
    /// What names it takes.
    pub names: NameRules,
    /// What the sweep may do.
    pub sweep: SweepPolicy,
}

/// One invocation that works on a row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claim {
    /// Execution of the workflow, or what stands for it in a sweep or an HTTP call.
    pub execution: String,
    /// Id of this invocation.
    pub request: String,
    /// When Lambda stops it.
    pub deadline: Millis,
}

/// Kept for the rollback of an activation, in milliseconds (spec/domains.md 2.9).
pub const ROLLBACK_RESERVE: Millis = 25_000;
/// Kept to write and answer, in milliseconds.
pub const SAFETY: Millis = 3_000;
/// Least time for which an activation is begun, in milliseconds.
pub const WORK_MIN: Millis = 20_000;
/// A lease outlives its invocation by this much, in milliseconds.
pub const LEASE_SLACK: Millis = 5_000;

impl Claim {
    /// The owner token of this invocation.
    pub fn owner(&self) -> OwnerToken {
        OwnerToken(format!("{}#{}", self.execution, self.request))
    }

    /// Lease for a row taken now.
    pub fn lease_until(&self) -> Millis {
        self.deadline.saturating_add(LEASE_SLACK)
    }

    /// End of the time for work; what is left belongs to the rollback.
    pub fn work_until(&self) -> Millis {
        self.deadline.saturating_sub(ROLLBACK_RESERVE + SAFETY)
    }

    /// End of the time for a rollback.
    pub fn rollback_until(&self) -> Millis {
        self.deadline.saturating_sub(SAFETY)
    }

    /// Is there time to begin?
    pub fn may_begin(&self, now: Millis) -> bool {
        now.saturating_add(WORK_MIN) <= self.work_until()
    }
}

/// A command for the host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostCommand {
    /// What to do.
    pub op: HostOp,
    /// With which instance.
    pub slug: Slug,
    /// Its port.
    pub port: Port,
    /// Fencing token.
    pub generation: Generation,
    /// Its host name.
    pub origin: Origin,
    /// Its handle domains.
    pub handle_domains: Vec<String>,
}

impl HostCommand {
    /// Marks the command in SSM, so that a retry finds it (spec/domains.md 1.13): at most 100 characters.
    pub fn comment(&self) -> String {
        format!("zds {} g{} {}", self.slug, self.generation, self.op.as_str())
    }

    /// The document's parameters. Values are checked here against the document's own patterns, on the whole
    /// string: a pattern that accepts a final newline is the usual slip (spec/domains.md 1.13, O6).
    ///
    /// # Errors
    /// Every parameter that the document would refuse.
    pub fn parameters(&self) -> Result<BTreeMap<&'static str, String>, Vec<&'static str>> {
        let handles = self.handle_domains.join(",");
        let port = self.port.to_string();
        let generation = self.generation.to_string();
        let handle_ok = |h: &String| {
            h.strip_prefix('.')
                .is_some_and(|rest| (1..=252).contains(&rest.len()) && is_ldh(rest, true))
        };
        let checks = [
            ("Slug", is_slug(self.slug.as_str())),
            ("Port", (4..=5).contains(&port.len())),
            ("Generation", self.generation.0 > 0 && generation.len() <= 19),
            (
                "Origin",
                (3..=64).contains(&self.origin.as_str().len()) && is_ldh(self.origin.as_str(), true),
            ),
            (
                "HandleDomains",
                !self.handle_domains.is_empty() && self.handle_domains.iter().all(handle_ok),
            ),
        ];
        let bad: Vec<&'static str> = checks.iter().filter(|(_, ok)| !ok).map(|(n, _)| *n).collect();
        if !bad.is_empty() {
            return Err(bad);
        }
        Ok(BTreeMap::from([
            ("Op", self.op.as_str().to_owned()),
            ("Slug", self.slug.to_string()),
            ("Port", port),
            ("Generation", generation),
            ("Origin", self.origin.to_string()),
            ("HandleDomains", handles),
        ]))
    }
}

/// What SSM says about a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CommandStatus {
    /// SSM does not know it (yet): `InvocationDoesNotExist`.
    NotVisible,
    /// Not at its end, whatever the word: unknown ones count here.
    Waiting,
    /// Ended with exit code 0.
    Success,
    /// Ended with another exit code, or could not be run.
    Failed,
    /// Was not delivered or took too long; it may have run all the same.
    TimedOut,
    /// Somebody cancelled it; it may have run all the same.
    Cancelled,
}

/// A command as SSM shows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Invocation {
    /// Where it stands.
    pub status: CommandStatus,
    /// SSM's own words, for texts.
    pub details: String,
    /// What it printed.
    pub stdout: String,
}

/// The one line that the host's script prints: the contract between `host/zds-host` and this crate.
///
/// `result` is `ok`, `fenced`, `failed` (this generation will not get there), `busy` (ask again) or `error`
/// (not known); `code` and `message` say why.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HostLine {
    /// Echo of the command.
    pub op: HostOp,
    /// Echo of the command.
    #[serde(default)]
    pub slug: String,
    /// Echo of the command.
    #[serde(default)]
    pub generation: u64,
    /// See above; any other word is not known.
    pub result: String,
    /// DID that the instance serves (`up`).
    #[serde(default)]
    pub did: Option<String>,
    /// Why it failed.
    #[serde(default)]
    pub code: Option<String>,
    /// Why it failed, for people; never a secret.
    #[serde(default)]
    pub message: Option<String>,
    /// Inventory (`show`), in order of slugs.
    #[serde(default)]
    pub instances: Vec<HostInstance>,
    /// Slug to go on from, when the inventory did not fit.
    #[serde(default)]
    pub next: Option<String>,
}

/// One instance as the host knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HostInstance {
    /// Its slug.
    pub slug: String,
    /// Last generation the host accepted.
    #[serde(default)]
    pub generation: u64,
    /// Is its unit running?
    #[serde(default)]
    pub unit: bool,
    /// Is its env file there?
    #[serde(default)]
    pub env: bool,
    /// Is its map there?
    #[serde(default)]
    pub map: bool,
}

/// What went wrong, as Step Functions and callers see it (spec/domains.md 2.1). The text is the first cause.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ProvisionError {
    /// The name can not be hosted.
    #[error("{0}")]
    InvalidDomain(String),
    /// Lookup only, and there is no active instance.
    #[error(
        "The domain has no active instance, and this cell only looks instances up because ORIGIN_SUFFIX is empty. Set \
         ORIGIN_SUFFIX (SAM parameter OriginSuffix) to the cell's suffix, e.g. .pds1.eu.example.net, then create the \
         domain again. Nothing was changed."
    )]
    NotConfigured,
    /// Another domain has the slug.
    #[error(
        "The label {0} that this domain would get is taken by another domain. Labels are never freed; an operator has \
         to look into it. Nothing was changed."
    )]
    SlugConflict(Slug),
    /// No port is left.
    #[error(
        "All {count} ports of cell {cell} ({range}) are used; ports of retired domains stay used. Widen PORT_RANGE. \
         Nothing was changed."
    )]
    PortsExhausted {
        /// Cell.
        cell: String,
        /// How many ports it has.
        count: u32,
        /// Which.
        range: String,
    },
    /// Somebody else is at work on the domain.
    #[error("Somebody else is at work on this domain; try again in {retry_after} s.")]
    Busy {
        /// Seconds until their lease ends.
        retry_after: u64,
    },
    /// Not done yet; the next attempt goes on.
    #[error("{0}")]
    InProgress(String),
    /// Somebody else took the row over.
    #[error("Somebody else has taken over the work on this domain; the next attempt looks again.")]
    LostLease,
    /// AWS asked for less.
    #[error("{0}")]
    Throttled(String),
    /// AWS did not answer, or not as it should.
    #[error("{0}")]
    Unavailable(String),
    /// It did not come up, and everything is undone.
    #[error("{message}")]
    ActivationFailed {
        /// Code of the first cause.
        code: String,
        /// The first cause.
        message: String,
    },
    /// It did not come up, and it is not known whether everything is undone.
    #[error("{message}")]
    ActivationFailedDirty {
        /// Code of the first cause.
        code: String,
        /// The first cause.
        message: String,
        /// What went wrong with the rollback.
        note: String,
    },
    /// The certificate will not come; the instance is kept.
    #[error("{0}")]
    Certificate(String),
    /// The DNS records could not be published; the instance is kept.
    #[error("{0}")]
    Dns(String),
    /// The instance is not the one that the insert was for.
    #[error("The instance moved on before the domain was inserted; it has to be provisioned again.")]
    InstanceMoved,
}

impl ProvisionError {
    /// Stable name for `ErrorEquals` in the workflow.
    pub fn error_type(&self) -> &'static str {
        match self {
            ProvisionError::InvalidDomain(_) => "Provision.InvalidDomain",
            ProvisionError::NotConfigured => "Provision.NotConfigured",
            ProvisionError::SlugConflict(_) => "Provision.SlugConflict",
            ProvisionError::PortsExhausted { .. } => "Provision.PortsExhausted",
            ProvisionError::Busy { .. } => "Provision.Busy",
            ProvisionError::InProgress(_) => "Provision.InProgress",
            ProvisionError::LostLease => "Provision.LostLease",
            ProvisionError::Throttled(_) => "Provision.Throttled",
            ProvisionError::Unavailable(_) => "Provision.Unavailable",
            ProvisionError::ActivationFailed { .. } => "Provision.ActivationFailed",
            ProvisionError::ActivationFailedDirty { .. } => "Provision.ActivationFailedDirty",
            ProvisionError::Certificate(_) => "Domain.CertificateFailed",
            ProvisionError::Dns(_) => "Domain.DnsFailed",
            ProvisionError::InstanceMoved => "Domain.InstanceMoved",
        }
    }

    /// Will the same call do better later, without anybody doing anything?
    pub fn retryable(&self) -> bool {
        matches!(
            self,
            ProvisionError::Busy { .. }
                | ProvisionError::InProgress(_)
                | ProvisionError::LostLease
                | ProvisionError::Throttled(_)
                | ProvisionError::Unavailable(_)
        )
    }
}

impl From<CallError> for ProvisionError {
    fn from(e: CallError) -> Self {
        match e.class {
            Class::Throttled => ProvisionError::Throttled(e.to_string()),
            _ => ProvisionError::Unavailable(e.to_string()),
        }
    }
}

impl From<ProvisionError> for Failure {
    fn from(e: ProvisionError) -> Self {
        Failure::new(e.error_type(), e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c42_error_type_names_are_stable() {
        let text = String::new;
        let all = [
            (
                ProvisionError::InvalidDomain(text()),
                "Provision.InvalidDomain",
                false,
            ),
            (ProvisionError::NotConfigured, "Provision.NotConfigured", false),
            (
                ProvisionError::SlugConflict(Slug::parse("a-com").unwrap()),
                "Provision.SlugConflict",
                false,
            ),
            (
                ProvisionError::PortsExhausted {
                    cell: text(),
                    count: 2,
                    range: text(),
                },
                "Provision.PortsExhausted",
                false,
            ),
            (ProvisionError::Busy { retry_after: 1 }, "Provision.Busy", true),
            (ProvisionError::InProgress(text()), "Provision.InProgress", true),
            (ProvisionError::LostLease, "Provision.LostLease", true),
            (ProvisionError::Throttled(text()), "Provision.Throttled", true),
            (ProvisionError::Unavailable(text()), "Provision.Unavailable", true),
            (
                ProvisionError::ActivationFailed {
                    code: text(),
                    message: "it died".into(),
                },
                "Provision.ActivationFailed",
                false,
            ),
            (
                ProvisionError::ActivationFailedDirty {
                    code: text(),
                    message: "it died".into(),
                    note: "and more".into(),
                },
                "Provision.ActivationFailedDirty",
                false,
            ),
            (
                ProvisionError::Certificate(text()),
                "Domain.CertificateFailed",
                false,
            ),
            (ProvisionError::Dns(text()), "Domain.DnsFailed", false),
            (ProvisionError::InstanceMoved, "Domain.InstanceMoved", false),
        ];
        for (e, name, retryable) in all {
            assert_eq!((e.error_type(), e.retryable()), (name, retryable));
            let f = Failure::from(e.clone());
            assert_eq!((f.error_type.as_str(), f.message), (name, e.to_string()));
        }
        assert!(
            ProvisionError::NotConfigured
                .to_string()
                .contains("ORIGIN_SUFFIX")
        );
    }

    #[test]
    fn the_legal_pairs_are_those_of_the_table_and_no_others() {
        use RetireReason::{Requested, Rollback};
        use State::{Active, Allocating, Retired, Retiring, Starting};
        let legal = [
            (Allocating, None, Event::Take, Allocating, None),
            (Starting, None, Event::Take, Allocating, None),
            (Retiring, Some(Rollback), Event::Take, Allocating, None),
            (Retiring, Some(Requested), Event::Take, Allocating, None),
            (Retired, Some(Requested), Event::Take, Allocating, None),
            (Allocating, None, Event::Start, Starting, None),
            (Starting, None, Event::Up, Active, None),
            (Allocating, None, Event::Fail, Retiring, Some(Rollback)),
            (Starting, None, Event::Fail, Retiring, Some(Rollback)),
            (Retiring, Some(Rollback), Event::Stop, Retiring, Some(Rollback)),
            (Retiring, Some(Requested), Event::Stop, Retiring, Some(Requested)),
            (Allocating, None, Event::Retire, Retiring, Some(Requested)),
            (Starting, None, Event::Retire, Retiring, Some(Requested)),
            (Active, None, Event::Retire, Retiring, Some(Requested)),
            (Retiring, Some(Rollback), Event::Retire, Retiring, Some(Requested)),
            (
                Retiring,
                Some(Requested),
                Event::Retire,
                Retiring,
                Some(Requested),
            ),
            (Retiring, Some(Requested), Event::Down, Retired, Some(Requested)),
            (Retiring, Some(Rollback), Event::Down, Retiring, Some(Rollback)),
        ];
        let events = [
            Event::Take,
            Event::Start,
            Event::Up,
            Event::Fail,
            Event::Stop,
            Event::Retire,
            Event::Down,
        ];
        let places = [
            (Allocating, None),
            (Starting, None),
            (Active, None),
            (Retiring, Some(Rollback)),
            (Retiring, Some(Requested)),
            (Retired, Some(Requested)),
        ];
        for (state, reason) in places {
            for event in events {
                let want = legal
                    .iter()
                    .find(|(s, r, e, ..)| (*s, *r, *e) == (state, reason, event))
                    .map(|l| (l.3, l.4));
                assert_eq!(
                    next_state(state, reason, event).ok(),
                    want,
                    "{state:?} {reason:?} {event:?}"
                );
            }
        }
    }

    #[test]
    fn port_ranges_are_checked() {
        assert_eq!(PortRange::parse("20000-29999").unwrap().len(), 10_000);
        assert_eq!(PortRange::parse("61000-65535").unwrap().low, 61_000);
        for bad in [
            "",
            "20000",
            "29999-20000",
            "80-90",
            "20000-40000",
            "20000-29999\n",
            "020000-029999",
            "60000-61000",
        ] {
            PortRange::parse(bad).unwrap_err();
        }
    }

    fn command() -> HostCommand {
        HostCommand {
            op: HostOp::Up,
            slug: Slug::parse("a-com").unwrap(),
            port: Port(20_000),
            generation: Generation(3),
            origin: serde_json::from_str("\"a-com.pds1.example.test\"").unwrap(),
            handle_domains: vec![".a.com".into()],
        }
    }

    #[test]
    fn o6_parameters_that_the_document_would_refuse_are_refused_before() {
        let good = command();
        assert_eq!(good.comment(), "zds a-com g3 up");
        assert_eq!(good.parameters().unwrap()["HandleDomains"], ".a.com");
        for bad in [
            "a; touch tmp/pwn",
            "a$(id)",
            "a\nid",
            "a-com\n",
            "-a",
            "a-",
            "A",
            "",
            "a.b",
            "a'",
        ] {
            // Foreign text can only come from a stored row.
            let slug: Slug = serde_json::from_value(serde_json::json!(bad)).unwrap();
            let origin: Origin = serde_json::from_value(serde_json::json!(bad)).unwrap();
            let c = HostCommand { slug, ..command() };
            assert_eq!(c.parameters().unwrap_err(), ["Slug"], "{bad:?}");
            let c = HostCommand {
                origin,
                handle_domains: vec![".a.com".into(), bad.into()],
                ..command()
            };
            let faults = c.parameters().unwrap_err();
            assert!(faults.contains(&"HandleDomains"), "{bad:?}");
            assert!(bad == "a.b" || faults.contains(&"Origin"), "{bad:?}");
        }
        let c = HostCommand {
            port: Port(80),
            generation: Generation(0),
            handle_domains: vec![],
            ..command()
        };
        assert_eq!(
            c.parameters().unwrap_err(),
            ["Port", "Generation", "HandleDomains"]
        );
    }

    #[test]
    fn the_longest_comment_fits() {
        let c = HostCommand {
            slug: Slug::parse(&"a".repeat(40)).unwrap(),
            generation: Generation(u64::MAX),
            op: HostOp::Down,
            ..command()
        };
        assert!(c.comment().len() <= 100);
    }

    #[test]
    fn times_of_a_claim_leave_room_for_the_rollback() {
        let c = Claim {
            execution: "e".into(),
            request: "r".into(),
            deadline: 120_000,
        };
        assert_eq!(
            (c.work_until(), c.rollback_until(), c.lease_until()),
            (92_000, 117_000, 125_000)
        );
        assert!(c.may_begin(72_000) && !c.may_begin(72_001));
        assert_eq!(c.owner().execution(), "e");
    }
}
