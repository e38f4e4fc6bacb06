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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::model::LinkId;
    use serde_json::Value;

    const AWS: &str = r#"{"region":"us-east-1","az_ids":["use1-az1"],"service_name":"svc-a"}"#;
    const GCP: &str = r#"{"service_attachment":"projects/p/sa","region":"r","dns_zone_name":"acme","dns_record_names":["db","kafka"]}"#;
    const AZURE: &str = r#"{"service_name":"/subscriptions/s","location":"westeurope"}"#;
    const REGIONAL: &str = "vpce-0aaaaaaaaaaaaaaaa-abcd1234.svc-a.us-east-1.vpce.amazonaws.com";
    const ZONAL: &str = "vpce-0aaaaaaaaaaaaaaaa-abcd1234-us-east-1a.svc-a.us-east-1.vpce.amazonaws.com";
    const WILD: &str = "*.vpce-0aaaaaaaaaaaaaaaa-abcd1234.svc-a.us-east-1.vpce.amazonaws.com";
    const NOW: &str = "2026-09-10T12:46:00Z";

    fn at(text: &str) -> Option<Timestamp> {
        Some(text.parse().unwrap())
    }

    /// A row at generation 1 whose details, if any, are one minute old.
    fn row(config: &str, status: LinkStatus, details: Option<String>) -> Row {
        let config = crate::links::edit::Config::read(config.as_bytes()).unwrap();
        Row {
            schema: 1,
            id: LinkId::parse("0000000000000b01").unwrap(),
            config: config.text,
            provider: config.provider,
            service_identity: config.identity,
            generation: 1,
            status,
            details_at: details.as_ref().and_then(|_| at("2026-09-10T12:45:00Z")),
            details_stage: details.as_ref().map(|_| "PulumiUp1".into()),
            details,
            error: None,
            observed_at: (status != LinkStatus::Pending)
                .then(|| at("2026-09-10T12:45:30Z"))
                .flatten(),
            created_at: at("2026-09-10T11:00:00Z"),
            updated_at: at("2026-09-10T12:00:00Z"),
            w_gen: None,
            w_order: None,
            network_rebuild: false,
        }
    }

    fn dns(names: &[&str]) -> Option<String> {
        let entries: Vec<String> = names.iter().map(|n| format!(r#"{{"dns_name":"{n}"}}"#)).collect();
        Some(format!(
            r#"{{"service_name":"svc-a","dns_entries":[{}]}}"#,
            entries.join(",")
        ))
    }

    fn json(row: &Row) -> Value {
        let text = View::of(row, NOW.parse().unwrap()).to_json();
        serde_json::from_str(&text).unwrap()
    }

    fn phase_and_host(row: &Row) -> (String, Option<String>) {
        let v = json(row);
        let host = v["connect"]["host"].as_str().map(str::to_owned);
        assert_eq!(v["status_view"]["state"], v["phase"]);
        assert_eq!(v["status_view"]["summary"], v["message"]);
        (v["phase"].as_str().unwrap().to_owned(), host)
    }

    fn check(row: &Row, phase: &str, host: Option<&str>) {
        assert_eq!(phase_and_host(row), (phase.to_owned(), host.map(str::to_owned)));
    }

    #[test]
    fn r01_pending_without_details_waits() {
        let r = row(AWS, LinkStatus::Pending, None);
        check(&r, "waiting", None);
        let v = json(&r);
        assert_eq!(v["connect"], Value::Null);
        assert_eq!(v["status_view"]["since"], "2026-09-10T12:00:00Z");
        assert_eq!(v["status_view"]["stale_after"], "2026-09-10T16:00:00Z");
        assert_eq!(v["status_view"]["observed_at"], Value::Null);
        assert_eq!(v["status_view"]["progress"]["done"], 0);
        assert_eq!(v["status_view"]["progress"]["total"], 2);
    }

    #[test]
    fn r02_pending_with_details_has_its_regional_name() {
        let r = row(AWS, LinkStatus::Pending, dns(&[REGIONAL, ZONAL]));
        check(&r, "dns_ready", Some(REGIONAL));
        let v = json(&r);
        assert_eq!(v["connect"]["endpoint_id"], "vpce-0aaaaaaaaaaaaaaaa");
        assert_eq!(v["connect"]["zonal_hosts"], serde_json::json!([ZONAL]));
        assert_eq!(v["status_view"]["since"], "2026-09-10T12:45:00Z");
        assert_eq!(v["status_view"]["stale_after"], "2026-09-10T13:30:00Z");
        assert_eq!(v["status_view"]["progress"]["done"], 1);
        assert!(v["support_text"].as_str().unwrap().contains(REGIONAL));
        assert!(!v["support_text"].as_str().unwrap().contains(ZONAL));
    }

    #[test]
    fn r03_the_order_of_names_does_not_matter() {
        check(
            &row(AWS, LinkStatus::Pending, dns(&[WILD, ZONAL, REGIONAL])),
            "dns_ready",
            Some(REGIONAL),
        );
    }

    #[test]
    fn r04_details_without_a_name_still_wait() {
        check(&row(AWS, LinkStatus::Pending, dns(&[])), "waiting", None);
        let only_zonal = row(AWS, LinkStatus::Pending, dns(&[ZONAL, WILD]));
        check(&only_zonal, "waiting", None);
        assert!(
            !json(&only_zonal)["support_text"]
                .as_str()
                .unwrap()
                .contains("vpce")
        );
    }

    #[test]
    fn r05_provisioned_is_ready() {
        let r = row(AWS, LinkStatus::Provisioned, dns(&[REGIONAL, ZONAL]));
        check(&r, "ready", Some(REGIONAL));
        let v = json(&r);
        assert_eq!(v["status_view"]["since"], "2026-09-10T12:45:30Z");
        assert_eq!(
            (&v["status_view"]["stale_after"], &v["status_view"]["progress"]),
            (&Value::Null, &Value::Null)
        );
    }

    #[test]
    fn r06_failed_has_no_host_and_its_error() {
        let mut r = row(AWS, LinkStatus::Failed, None);
        r.error = Some("service not found".into());
        check(&r, "failed", None);
        let v = json(&r);
        assert_eq!(v["status_view"]["reason"]["text"], "service not found");
        assert_eq!(v["status_view"]["needs_admin"], Value::Null);
        assert!(
            v["support_text"]
                .as_str()
                .unwrap()
                .contains("service not found. Please")
        );
    }

    #[test]
    fn r07_a_name_older_than_45_minutes_is_stalled_and_still_shown() {
        let mut r = row(AWS, LinkStatus::Pending, dns(&[REGIONAL]));
        r.details_at = at("2026-09-10T12:00:00Z");
        check(&r, "stalled", Some(REGIONAL));
        let v = json(&r);
        assert_eq!(v["status_view"]["since"], "2026-09-10T12:45:00Z");
        assert_eq!(v["status_view"]["needs_admin"]["code"], "look_at_converge");
        assert_eq!(v["status_view"]["reason"]["code"], "converge_late");
        // Exactly 45 minutes is still in time.
        r.details_at = at("2026-09-10T12:01:00Z");
        check(&r, "dns_ready", Some(REGIONAL));
    }

    #[test]
    fn r08_gcp_names_come_from_the_configuration() {
        let r = row(
            GCP,
            LinkStatus::Provisioned,
            Some(r#"{"service_attachment":"x"}"#.into()),
        );
        check(&r, "ready", Some("db.acme"));
        assert_eq!(
            json(&r)["connect"]["hosts"],
            serde_json::json!(["db.acme", "kafka.acme"])
        );
        assert!(
            json(&r)["support_text"]
                .as_str()
                .unwrap()
                .contains("DNS names db.acme, kafka.acme")
        );
    }

    #[test]
    fn r09_azure_has_an_address() {
        let mut r = row(
            AZURE,
            LinkStatus::Pending,
            Some(r#"{"ip":"10.0.0.2","service_name":"x"}"#.into()),
        );
        check(&r, "dns_ready", None);
        let v = json(&r);
        assert_eq!(v["connect"]["ip"], "10.0.0.2");
        assert!(
            v["message"]
                .as_str()
                .unwrap()
                .starts_with("The IP address is final")
        );
        r.config = r#"{"service_name":"/s","location":"w","dns_name":"db.example.net"}"#.into();
        check(&r, "dns_ready", Some("db.example.net"));
    }

    #[test]
    fn r10_a_gcp_name_known_beforehand_is_not_shown() {
        let r = row(GCP, LinkStatus::Pending, None);
        check(&r, "waiting", None);
        assert_eq!(json(&r)["connect"], Value::Null);
    }

    #[test]
    fn names_of_one_zone_are_told_from_regional_ones() {
        let regions = ["us-east-1".to_owned()];
        let zones = ["use1-az1".to_owned()];
        for (name, zonal) in [
            (
                "vpce-0aaaaaaaaaaaaaaaa-abcd1234-us-east-1a.x.us-east-1.vpce.amazonaws.com",
                true,
            ),
            (
                "vpce-0aaaaaaaaaaaaaaaa-abcd1234-eu-central-2c.x.eu-central-2.vpce.amazonaws.com",
                true,
            ),
            (
                "vpce-0aaaaaaaaaaaaaaaa-abcd1234-us-east-1-bos-1a.x.us-east-1.vpce.amazonaws.com",
                true,
            ),
            (
                "vpce-0aaaaaaaaaaaaaaaa-abcd1234-use1-az1.x.us-east-1.vpce.amazonaws.com",
                true,
            ),
            (
                "vpce-0aaaaaaaaaaaaaaaa-abcd1234.x.us-east-1.vpce.amazonaws.com",
                false,
            ),
            (
                "vpce-0aaaaaaaaaaaaaaaa-1234567a.x.us-east-1.vpce.amazonaws.com",
                false,
            ),
            ("vpce-0aaaaaaaaaaaaaaaa.vpce.amazonaws.com", false),
            ("db.us-east-1a.example.net", false),
        ] {
            assert_eq!(is_zonal(name, &regions, &zones), zonal, "{name}");
        }
        assert_eq!(
            endpoint_id("vpce-0aaaaaaaaaaaaaaaa-x.y"),
            Some("vpce-0aaaaaaaaaaaaaaaa".into())
        );
        for none in [
            "vpce-0aaaaaaaaaaaaaaaab-x",
            "vpce-0aaaaaaaaaaaaaaag-x",
            "é".repeat(20).as_str(),
            "vpce-0",
        ] {
            assert_eq!(endpoint_id(none), None, "{none}");
        }
    }

    #[test]
    fn the_rebuilt_network_is_said_only_while_it_matters() {
        let mut r = row(AWS, LinkStatus::Pending, dns(&[REGIONAL]));
        r.network_rebuild = true;
        assert!(
            json(&r)["message"]
                .as_str()
                .unwrap()
                .contains("network is being rebuilt; wait for provisioned")
        );
        r.status = LinkStatus::Provisioned;
        assert!(!json(&r)["message"].as_str().unwrap().contains("network"));
        let mut edited = row(AWS, LinkStatus::Pending, None);
        edited.network_rebuild = true;
        assert!(!json(&edited)["message"].as_str().unwrap().contains("network"));
    }

    #[test]
    fn details_come_out_as_they_went_in() {
        let odd = r#"{ "z": 9007199254740993.10, "a":"\u00e9 é \ud800" , "dns_entries":[ 1, {"dns_name":7}, null ] }"#;
        let r = row(AWS, LinkStatus::Pending, Some(odd.into()));
        let text = View::of(&r, NOW.parse().unwrap()).to_json();
        assert!(text.contains(&format!(r#""details":{odd}"#)), "{text}");
        assert_eq!(
            phase(&r, connect(&r).as_ref(), NOW.parse().unwrap()),
            Phase::Waiting
        );
    }

    #[test]
    fn odd_stored_text_is_shown_as_a_flag_and_never_breaks_the_answer() {
        let mut r = row(AWS, LinkStatus::Provisioned, Some("{not json".into()));
        r.config = "[".into();
        r.schema = 9;
        let v = json(&r);
        assert_eq!((&v["config"], &v["details"]), (&Value::Null, &Value::Null));
        let flags: Vec<&str> = v["status_view"]["flags"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|f| f["code"].as_str())
            .collect();
        assert_eq!(flags, ["stored_text_unreadable", "row_newer"]);
    }
}
