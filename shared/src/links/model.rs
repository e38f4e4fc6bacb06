//! The words of private links: ids, stages, ordering tokens, statuses, outcomes, and the stored row.
//!
//! Types only; every rule that chooses between them is in `decide`, `edit` or `view`.

use crate::store::{Attr, Item};
use crate::time::Timestamp;
use serde::Serialize;
use std::fmt;

/// Eight bytes that name a link or a plane. Two spellings are read (`00:00:…:0b:01` and bare hex, either
/// case), one is written: bare lower-case hex (spec/links.md 3.2 rule 1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId([u8; 8]);

impl FlowId {
    /// The id of that number.
    pub const fn of(number: u64) -> Self {
        Self(number.to_be_bytes())
    }

    /// Reads either spelling; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let hex: String = text.chars().filter(|c| *c != ':').collect();
        if hex.len() != 16 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        u64::from_str_radix(&hex, 16).ok().map(Self::of)
    }
}

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

impl fmt::Debug for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for FlowId {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// A private link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct LinkId(pub FlowId);

/// A data plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct PlaneId(pub FlowId);

impl LinkId {
    /// See [`FlowId::parse`].
    pub fn parse(text: &str) -> Option<Self> {
        FlowId::parse(text).map(Self)
    }
}

impl PlaneId {
    /// See [`FlowId::parse`].
    pub fn parse(text: &str) -> Option<Self> {
        FlowId::parse(text).map(Self)
    }
}

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for PlaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Version of a link's desired configuration; grows by one with every real change.
pub type Generation = u64;

/// The stages that say something about links (3.1). Every other stage is acknowledged and ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// The endpoints were just created: show what is known, claim nothing.
    PulumiUp1,
    /// The hosts are configured: the status is settled.
    Ansible,
    /// The whole converge is over: the status is settled.
    Converge,
}

impl Stage {
    /// The stage of that name, if it is one of the three.
    pub fn parse(name: &str) -> Option<Self> {
        [Stage::PulumiUp1, Stage::Ansible, Stage::Converge]
            .into_iter()
            .find(|s| s.as_str() == name)
    }

    /// The name in events and rows.
    pub fn as_str(self) -> &'static str {
        match self {
            Stage::PulumiUp1 => "PulumiUp1",
            Stage::Ansible => "Ansible",
            Stage::Converge => "Converge",
        }
    }

    /// Place within one converge, for the ordering token.
    pub fn rank(self) -> u64 {
        match self {
            Stage::PulumiUp1 => 1,
            Stage::Ansible => 2,
            Stage::Converge => 3,
        }
    }

    /// Does a success in this stage settle the status?
    pub fn settles(self) -> bool {
        match self {
            Stage::PulumiUp1 => false,
            Stage::Ansible | Stage::Converge => true,
        }
    }

    /// The ordering token of this stage in converge `seq` (3.4): `seq × 10 + rank`, whole numbers all the
    /// way. `None` when 64 bits do not hold it.
    pub fn order(self, seq: u64) -> Option<u64> {
        seq.checked_mul(10)?.checked_add(self.rank())
    }
}

/// What is known of a link's endpoint (1.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkStatus {
    /// No completed converge has observed this configuration. Not "nothing exists".
    Pending,
    /// A completed converge observed the endpoint at this generation.
    Provisioned,
    /// The last observation was an error of this link.
    Failed,
}

impl LinkStatus {
    /// The stored word.
    pub fn as_str(self) -> &'static str {
        match self {
            LinkStatus::Pending => "pending",
            LinkStatus::Provisioned => "provisioned",
            LinkStatus::Failed => "failed",
        }
    }

    /// The status of that word.
    pub fn parse(word: &str) -> Option<Self> {
        [LinkStatus::Pending, LinkStatus::Provisioned, LinkStatus::Failed]
            .into_iter()
            .find(|s| s.as_str() == word)
    }
}

/// What became of one link of an event (3.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum Outcome {
    /// Details shown early; the status claims nothing.
    Published,
    /// A settling stage's success is recorded.
    Settled,
    /// A failure is recorded in full.
    FailedRecorded,
    /// This very write had landed before.
    Duplicate,
    /// A later write of the same generation had landed before.
    Superseded,
    /// The link was edited after the converge pinned it.
    StaleGeneration,
    /// The result is of another generation than the pin.
    StaleResult,
    /// There is no such link under this plane.
    LinkGone,
    /// The event says nothing about a pinned link, or nothing yet.
    NoObservation,
    /// A result for a link that the converge did not pin.
    Unattributed,
    /// That link's part of the event can not be believed; the others are not affected.
    Malformed,
    /// The details do not fit a row.
    TooLarge,
    /// The row's generation is smaller than the pin: impossible on one table, so it is tried again.
    RowBehind,
    /// The row was written by a newer version of Headgate and is not rewritten by this one (contract 5);
    /// tried again, because the newer version is being rolled out.
    RowNewer,
    /// The write was throttled, timed out or met a server error, or there was no time left to start it.
    Unwritten,
}

impl Outcome {
    /// Must the event be delivered again for this link?
    pub fn must_retry(self) -> bool {
        match self {
            Outcome::RowBehind | Outcome::RowNewer | Outcome::Unwritten => true,
            Outcome::Published
            | Outcome::Settled
            | Outcome::FailedRecorded
            | Outcome::Duplicate
            | Outcome::Superseded
            | Outcome::StaleGeneration
            | Outcome::StaleResult
            | Outcome::LinkGone
            | Outcome::NoObservation
            | Outcome::Unattributed
            | Outcome::Malformed
            | Outcome::TooLarge => false,
        }
    }

    /// Is the row changed by it?
    pub fn wrote(self) -> bool {
        matches!(
            self,
            Outcome::Published | Outcome::Settled | Outcome::FailedRecorded
        )
    }

    /// Did the producer send something that should be looked at?
    pub fn is_fault(self) -> bool {
        matches!(self, Outcome::Malformed | Outcome::TooLarge)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The cloud a link is in. Stored as data, derived once from the configuration (1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Provider {
    /// Amazon Web Services.
    Aws,
    /// Microsoft Azure.
    Azure,
    /// Google Cloud.
    Gcp,
}

impl Provider {
    /// The stored word.
    pub fn as_str(self) -> &'static str {
        match self {
            Provider::Aws => "aws",
            Provider::Azure => "azure",
            Provider::Gcp => "gcp",
        }
    }

    /// The provider of that word.
    pub fn parse(word: &str) -> Option<Self> {
        [Provider::Aws, Provider::Azure, Provider::Gcp]
            .into_iter()
            .find(|p| p.as_str() == word)
    }
}

/// Version of the stored shape this build writes.
pub const SCHEMA: u64 = 1;

/// A link's row as stored (1.3, 3.3). `config` and `details` are the JSON text that was received, byte for
/// byte; what is null upstream is an absent attribute here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Version of the stored shape; an item without it counts as 1.
    pub schema: u64,
    /// The link.
    pub id: LinkId,
    /// Desired configuration, JSON text.
    pub config: String,
    /// Derived from the configuration.
    pub provider: Provider,
    /// The service the link leads to; unique per plane and provider.
    pub service_identity: String,
    /// Version of `config`.
    pub generation: Generation,
    /// What is known of the endpoint.
    pub status: LinkStatus,
    /// What the cloud said about the endpoint, JSON text.
    pub details: Option<String>,
    /// The controller's time of the stage that brought `details`.
    pub details_at: Option<Timestamp>,
    /// The stage that brought `details`.
    pub details_stage: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
    /// The controller's time of the last final observation.
    pub observed_at: Option<Timestamp>,
    /// When the link was asked for.
    pub created_at: Option<Timestamp>,
    /// When its configuration last changed.
    pub updated_at: Option<Timestamp>,
    /// Generation the writer's token belongs to.
    pub w_gen: Option<Generation>,
    /// The writer's ordering token.
    pub w_order: Option<u64>,
    /// The plane's network was being rebuilt in the converge that brought `details` (3.9).
    pub network_rebuild: bool,
}

impl Row {
    /// Reads an item.
    ///
    /// # Errors
    /// Names the attribute that is missing or of the wrong kind, never a value.
    pub fn read(item: &Item) -> Result<Self, String> {
        let text = |name: &str| item.get(name).and_then(Attr::as_str).map(str::to_owned);
        let need =
            |name: &str| text(name).ok_or_else(|| format!("attribute `{name}` is missing or not a string"));
        let time = |name: &str| text(name).and_then(|t| t.parse().ok());
        let number = |name: &str| item.get(name).and_then(Attr::as_u64);
        let bad = |name: &str| format!("attribute `{name}` has a value this version does not know");
        let sk = need("sk")?;
        Ok(Self {
            schema: number("schema").unwrap_or(SCHEMA),
            id: sk
                .strip_prefix("LINK#")
                .and_then(LinkId::parse)
                .ok_or_else(|| bad("sk"))?,
            config: need("config")?,
            provider: Provider::parse(&need("provider")?).ok_or_else(|| bad("provider"))?,
            service_identity: need("service_identity")?,
            generation: number("generation").ok_or_else(|| bad("generation"))?,
            status: LinkStatus::parse(&need("status")?).ok_or_else(|| bad("status"))?,
            details: text("details"),
            details_at: time("details_at"),
            details_stage: text("details_stage"),
            error: text("error"),
            observed_at: time("observed_at"),
            created_at: time("created_at"),
            updated_at: time("updated_at"),
            w_gen: number("w_gen"),
            w_order: number("w_order"),
            network_rebuild: item.get("w_network").is_some(),
        })
    }

    /// Was it written by a newer version, whose meaning this build may not know?
    pub fn is_newer(&self) -> bool {
        self.schema > SCHEMA
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_two_spellings_and_one_stored_form() {
        let bare = LinkId::parse("0000000000000b01").unwrap();
        assert_eq!(LinkId::parse("00:00:00:00:00:00:0B:01"), Some(bare));
        assert_eq!(bare.to_string(), "0000000000000b01");
        for bad in [
            "",
            "L1",
            "0b01",
            "0000000000000b0g",
            "0000000000000b0100",
            "+000000000000b01",
        ] {
            assert_eq!(LinkId::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn stored_words_read_back() {
        for s in [LinkStatus::Pending, LinkStatus::Provisioned, LinkStatus::Failed] {
            assert_eq!(LinkStatus::parse(s.as_str()), Some(s));
        }
        for s in [Stage::PulumiUp1, Stage::Ansible, Stage::Converge] {
            assert_eq!(Stage::parse(s.as_str()), Some(s));
        }
        for p in [Provider::Aws, Provider::Azure, Provider::Gcp] {
            assert_eq!(Provider::parse(p.as_str()), Some(p));
        }
        assert_eq!(Stage::parse("pulumiup1"), None);
    }

    #[test]
    fn the_token_passes_two_to_the_53_exactly_and_refuses_an_overflow() {
        assert_eq!(
            Stage::Ansible.order(1_788_955_240_123_456),
            Some(17_889_552_401_234_562)
        );
        assert_eq!(
            Stage::PulumiUp1.order(u64::MAX / 10),
            Some(u64::MAX / 10 * 10 + 1)
        );
        assert_eq!(Stage::PulumiUp1.order(u64::MAX / 10 + 1), None);
    }
}
