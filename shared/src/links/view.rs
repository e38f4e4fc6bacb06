//! Pure: what a reader is told about a link (spec/links.md 3.10) and its status object (contract 4.1).

use super::event::string;
use super::model::{LinkStatus, Provider, Row};
use crate::status::{Flag, NeedsAdmin, Progress, Reason, Status};
use crate::time::{Timestamp, older_than, plus_seconds};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A pending link whose name is older than this is stalled: a retried Ansible stage does not run PulumiUp1
/// again, so the clock keeps running (3.10).
pub const STALLED_AFTER_SECONDS: i64 = 45 * 60;
/// A converge is forced at least this often (1.1).
const CONVERGE_INTERVAL_SECONDS: i64 = 4 * 3_600;

/// Where a link is, for the person who waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Pending, and nothing to connect to is known.
    Waiting,
    /// Pending, and the name or address is final: it can be given to the customer now.
    DnsReady,
    /// A completed converge has seen the endpoint.
    Ready,
    /// The last observation was an error.
    Failed,
    /// Pending, name known, and the converge should have ended long ago.
    Stalled,
}

impl Phase {
    /// The word of the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Waiting => "waiting",
            Phase::DnsReady => "dns_ready",
            Phase::Ready => "ready",
            Phase::Failed => "failed",
            Phase::Stalled => "stalled",
        }
    }

    /// In how many seconds it is worth asking again; none when it is final.
    pub fn retry_after(self) -> Option<u32> {
        match self {
            Phase::Waiting => Some(20),
            Phase::DnsReady => Some(60),
            Phase::Stalled => Some(300),
            Phase::Ready | Phase::Failed => None,
        }
    }
}

/// What a customer connects to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Connect {
    /// The one name to use. Never a zonal or wildcard name.
    pub host: Option<String>,
    /// All names that may be used.
    pub hosts: Vec<String>,
    /// First 22 characters of an AWS name, which some services ask their customers for.
    pub endpoint_id: Option<String>,
    /// Address, where the cloud gives one.
    pub ip: Option<String>,
    /// Names that work in one zone only.
    pub zonal_hosts: Vec<String>,
}

/// A link as the API shows it. `config` and `details` are the stored bytes.
#[derive(Debug, Serialize)]
pub struct View<'a> {
    id: String,
    provider: Provider,
    generation: u64,
    status: LinkStatus,
    /// See [`Phase`].
    pub phase: Phase,
    /// `None` while there are no details.
    pub connect: Option<Connect>,
    message: String,
    support_text: String,
    error: Option<&'a str>,
    details_at: Option<Timestamp>,
    details_stage: Option<&'a str>,
    observed_at: Option<Timestamp>,
    created_at: Option<Timestamp>,
    updated_at: Option<Timestamp>,
    config: Option<&'a RawValue>,
    details: Option<&'a RawValue>,
    status_view: Status,
}

#[derive(Deserialize)]
struct RawConfig<'a> {
    #[serde(borrow)]
    region: Option<&'a RawValue>,
    #[serde(borrow)]
    service_region: Option<&'a RawValue>,
    #[serde(borrow)]
    az_ids: Option<&'a RawValue>,
    #[serde(borrow)]
    dns_name: Option<&'a RawValue>,
    #[serde(borrow)]
    dns_zone_name: Option<&'a RawValue>,
    #[serde(borrow)]
    dns_record_names: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawDetails<'a> {
    #[serde(borrow)]
    dns_entries: Option<&'a RawValue>,
    #[serde(borrow)]
    ip: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawEntry<'a> {
    #[serde(borrow)]
    dns_name: Option<&'a RawValue>,
}

fn text(raw: Option<&RawValue>) -> Option<String> {
    raw.and_then(string)
        .map(|s| s.into_owned())
        .filter(|s| !s.is_empty())
}

fn texts(raw: Option<&RawValue>) -> Vec<String> {
    let items: Vec<&RawValue> = raw
        .and_then(|r| serde_json::from_str(r.get()).ok())
        .unwrap_or_default();
    items.into_iter().filter_map(|i| text(Some(i))).collect()
}

/// Does the name work in one zone only? Its first label then ends in the zone: `-us-east-1a`,
/// `-us-east-1-bos-1a`, or the zone's id as the configuration names it.
fn is_zonal(name: &str, regions: &[String], az_ids: &[String]) -> bool {
    let label = name.split('.').next().unwrap_or(name);
    let one_letter_after = |region: &String| {
        label
            .rsplit_once(&format!("-{region}"))
            .is_some_and(|(_, rest)| rest.len() == 1 && rest.bytes().all(|b| b.is_ascii_lowercase()))
    };
    if regions.iter().any(one_letter_after) || az_ids.iter().any(|z| label.ends_with(&format!("-{z}"))) {
        return true;
    }
    // Any other region's zone: a number and a letter after a word of letters only, e.g. `east-1a`.
    let mut parts = label.rsplit('-');
    let zone = parts
        .next()
        .and_then(|p| p.strip_suffix(|c: char| c.is_ascii_lowercase()));
    let number = zone.is_some_and(|n| (1..=2).contains(&n.len()) && n.bytes().all(|b| b.is_ascii_digit()));
    let word = parts
        .next()
        .is_some_and(|w| w.len() > 2 && w.bytes().all(|b| b.is_ascii_lowercase()));
    number && word
}

/// `vpce-` and 17 hex digits: the endpoint's id.
fn endpoint_id(name: &str) -> Option<String> {
    let id = name.get(..22)?;
    let hex = id.strip_prefix("vpce-")?;
    let next = name.get(22..)?.bytes().next();
    let ends = next.is_none_or(|b| !b.is_ascii_alphanumeric());
    (ends && hex.bytes().all(|b| b.is_ascii_hexdigit())).then(|| id.to_owned())
}

/// What the customer connects to (3.10). `None` without details, whatever the configuration says: a name
/// that is known beforehand does not resolve yet.
pub fn connect(row: &Row) -> Option<Connect> {
    let details = row.details.as_deref()?;
    let RawDetails { dns_entries, ip } = serde_json::from_str(details).unwrap_or(RawDetails {
        dns_entries: None,
        ip: None,
    });
    let config: Option<RawConfig<'_>> = serde_json::from_str(&row.config).ok();
    let config = config.as_ref();
    Some(match row.provider {
        Provider::Aws => {
            let regions: Vec<String> = [
                config.and_then(|c| c.region),
                config.and_then(|c| c.service_region),
            ]
            .into_iter()
            .filter_map(text)
            .collect();
            let az_ids = texts(config.and_then(|c| c.az_ids));
            let entries: Vec<&RawValue> = dns_entries
                .and_then(|r| serde_json::from_str(r.get()).ok())
                .unwrap_or_default();
            let names = entries
                .into_iter()
                .filter_map(|e| text(serde_json::from_str::<RawEntry<'_>>(e.get()).ok()?.dns_name))
                .filter(|n| !n.starts_with('*'));
            let (zonal_hosts, hosts): (Vec<_>, Vec<_>) = names.partition(|n| is_zonal(n, &regions, &az_ids));
            let endpoint_id = hosts.iter().chain(&zonal_hosts).find_map(|n| endpoint_id(n));
            Connect {
                host: hosts.first().cloned(),
                hosts,
                endpoint_id,
                ip: None,
                zonal_hosts,
            }
        }
        Provider::Azure => {
            let host = text(config.and_then(|c| c.dns_name));
            Connect {
                hosts: host.iter().cloned().collect(),
                host,
                ip: text(ip),
                ..Connect::default()
            }
        }
        Provider::Gcp => {
            let zone = text(config.and_then(|c| c.dns_zone_name));
            let records = texts(config.and_then(|c| c.dns_record_names));
            let hosts: Vec<String> = zone
                .map(|z| records.iter().map(|r| format!("{r}.{z}")).collect())
                .unwrap_or_default();
            Connect {
                host: hosts.first().cloned(),
                hosts,
                ..Connect::default()
            }
        }
    })
}

/// The phase of a row whose connection is known (3.10).
pub fn phase(row: &Row, connect: Option<&Connect>, now: Timestamp) -> Phase {
    match row.status {
        LinkStatus::Failed => Phase::Failed,
        LinkStatus::Provisioned => Phase::Ready,
        LinkStatus::Pending if !connect.is_some_and(|c| c.host.is_some() || c.ip.is_some()) => Phase::Waiting,
        LinkStatus::Pending
            if row
                .details_at
                .is_some_and(|t| older_than(t, STALLED_AFTER_SECONDS, now)) =>
        {
            Phase::Stalled
        }
        LinkStatus::Pending => Phase::DnsReady,
    }
}

/// "the DNS name x", "the IP address y", or both.
fn spoken(connect: Option<&Connect>) -> String {
    let Some(c) = connect else { return String::new() };
    let host = match c.hosts.as_slice() {
        [] => None,
        [one] => Some(format!("DNS name {one}")),
        many => Some(format!("DNS names {}", many.join(", "))),
    };
    let host = match (host, &c.host) {
        // Of several AWS names the first is the one to use.
        (Some(_), Some(h)) if c.endpoint_id.is_some() => Some(format!("DNS name {h}")),
        (host, _) => host,
    };
    let ip = c.ip.as_ref().map(|ip| format!("IP address {ip}"));
    let id = c.endpoint_id.as_ref().map(|id| format!("endpoint id {id}"));
    [host, ip, id]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(", ")
}

const NETWORK_REBUILD: &str =
    " The plane's network is being rebuilt; wait for provisioned before testing traffic.";

/// The sentence for support.
fn message(row: &Row, phase: Phase, connect: Option<&Connect>) -> String {
    let what = if connect.is_some_and(|c| c.host.is_none() && c.ip.is_some()) {
        "IP address"
    } else {
        "DNS name"
    };
    let base = match phase {
        Phase::Waiting if row.details.is_some() => {
            "The endpoint exists, but it has no name that may be used everywhere yet. Nothing to send to the customer."
                .to_owned()
        }
        Phase::Waiting => {
            "The endpoint is not known yet. Its name appears minutes after the converge starts.".to_owned()
        }
        Phase::DnsReady => {
            format!("The {what} is final and can be given to the customer. The plane is still converging.")
        }
        Phase::Stalled => format!(
            "The {what} is final and stays valid, but the converge has not ended within 45 minutes. Look at the \
             plane's converge."
        ),
        Phase::Ready => "A completed converge has seen the endpoint. The link can be tested.".to_owned(),
        Phase::Failed => {
            "The link could not be set up. Act on the error; the customer's side or the configuration may have to \
             change."
                .to_owned()
        }
    };
    match phase {
        Phase::DnsReady | Phase::Stalled if row.network_rebuild => base + NETWORK_REBUILD,
        _ => base,
    }
}

/// A text that can be pasted to the customer as it is.
fn support_text(row: &Row, phase: Phase, connect: Option<&Connect>) -> String {
    let spoken = spoken(connect);
    let service = &row.service_identity;
    match phase {
        Phase::Waiting => format!(
            "Your private link to {service} is being created. We will send you what to connect to as soon as it is \
             known; this usually takes a few minutes."
        ),
        Phase::DnsReady | Phase::Stalled => format!(
            "Your private link to {service} has its final {spoken}. You can set up your side with it now. Please \
             wait for our confirmation before you test the connection."
        ),
        Phase::Ready if spoken.is_empty() => {
            format!("Your private link to {service} is ready. You can test the connection now.")
        }
        Phase::Ready => {
            format!("Your private link to {service} is ready: {spoken}. You can test the connection now.")
        }
        Phase::Failed => format!(
            "Your private link to {service} could not be set up. The cloud answered: {} Please check that your \
             service exists and accepts our connection; we try again with every converge.",
            sentence(row.error.as_deref().unwrap_or("no reason was given"))
        ),
    }
}

/// Ends in a mark that closes a sentence.
fn sentence(text: &str) -> String {
    let text = text.trim();
    if text.ends_with(['.', '!', '?']) {
        text.to_owned()
    } else {
        format!("{text}.")
    }
}

fn progress(done: u64, step: &str) -> Option<Progress> {
    Some(Progress {
        done: Some(done),
        total: Some(2),
        ..Progress::step(step)
    })
}

fn status_view(row: &Row, phase: Phase, summary: String, flags: Vec<Flag>) -> Status {
    let stalled_at = row.details_at.map(|t| plus_seconds(t, STALLED_AFTER_SECONDS));
    let (label, since, stale_after, progress) = match phase {
        Phase::Waiting => (
            "Waiting for the name",
            row.updated_at,
            row.updated_at.map(|t| plus_seconds(t, CONVERGE_INTERVAL_SECONDS)),
            progress(0, "naming"),
        ),
        Phase::DnsReady => (
            "Name is final",
            row.details_at,
            stalled_at,
            progress(1, "confirming"),
        ),
        Phase::Stalled => ("Converge is late", stalled_at, None, progress(1, "confirming")),
        Phase::Ready => ("Ready", row.observed_at, None, None),
        Phase::Failed => ("Failed", row.observed_at, None, None),
    };
    let (reason, needs_admin) = match phase {
        Phase::Waiting | Phase::DnsReady | Phase::Ready => (None, None),
        Phase::Failed => {
            let text = row.error.clone().unwrap_or_else(|| "No reason was given.".into());
            (
                Some(Reason::new("link_failed", text).from_source("controller")),
                None,
            )
        }
        Phase::Stalled => (
            Some(Reason::new(
                "converge_late",
                "The converge that created the endpoint has not ended within 45 minutes. The name stays valid.",
            )),
            Some(NeedsAdmin::new(
                "look_at_converge",
                "Look at the plane's converge: its Ansible stage or what comes after it is stuck or being retried. The \
                 name stays valid and may be used.",
                None,
            )),
        ),
    };
    Status {
        state: phase.as_str().into(),
        label: label.into(),
        summary,
        reason,
        needs_admin,
        since,
        observed_at: row.observed_at,
        stale_after,
        source: "stored".into(),
        progress,
        flags,
    }
}

impl<'a> View<'a> {
    /// What a reader is told at `now`.
    pub fn of(row: &'a Row, now: Timestamp) -> Self {
        let connect = connect(row);
        let phase = phase(row, connect.as_ref(), now);
        let message = message(row, phase, connect.as_ref());
        let raw = |t: &'a str| serde_json::from_str::<&RawValue>(t).ok();
        let (config, details) = (raw(&row.config), row.details.as_deref().map(raw));
        let mut flags = Vec::new();
        if config.is_none() || matches!(details, Some(None)) {
            flags.push(Flag::new(
                "stored_text_unreadable",
                "The stored configuration or details are not JSON.",
            ));
        }
        if row.is_newer() {
            flags.push(Flag::new(
                "row_newer",
                "The row was written by a newer version of Headgate.",
            ));
        }
        Self {
            id: row.id.to_string(),
            provider: row.provider,
            generation: row.generation,
            status: row.status,
            phase,
            support_text: support_text(row, phase, connect.as_ref()),
            connect,
            error: row.error.as_deref(),
            details_at: row.details_at,
            details_stage: row.details_stage.as_deref(),
            observed_at: row.observed_at,
            created_at: row.created_at,
            updated_at: row.updated_at,
            config,
            details: details.flatten(),
            status_view: status_view(row, phase, message.clone(), flags),
            message,
        }
    }

    /// The JSON text; `config` and `details` keep their bytes.
    pub fn to_json(&self) -> String {
        // Serializing plain data to memory can not fail; an empty object would be seen by every test.
        serde_json::to_string(self).unwrap_or_else(|_| "{}".to_owned())
    }
}
