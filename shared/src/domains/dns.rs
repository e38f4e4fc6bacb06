//! The DNS records of a hosted domain: which are wanted, what was found, which we may publish
//! (spec/domains.md 2.11). Pure.
//!
//! The customer owns the DNS. A record of theirs is never replaced: it is shown with what we would set, and
//! switching over is their act.

use super::model::DnsRecord;
use super::names::{Domain, Origin, Slug};
use serde_json::{Value, json};

/// DKIM selector; the cell's operator publishes its key once, at the origin.
const SELECTOR: &str = "hg1";
/// Seconds a resolver may keep a record we publish.
const TTL: u32 = 300;

/// What a public DNS query answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// These values, none if there is no such record.
    Found(Vec<String>),
    /// No answer: unknown, never missing.
    Unknown,
}

/// The records that the domain needs.
pub fn wanted(domain: &Domain, origin: &Origin) -> Vec<DnsRecord> {
    let record = |kind: &str, name: String, value: String| DnsRecord {
        kind: kind.into(),
        name,
        value,
        found: None,
        ok: false,
        foreign: false,
    };
    vec![
        record("MX", domain.to_string(), format!("10 {origin}.")),
        record("TXT", domain.to_string(), "v=spf1 mx ~all".into()),
        record(
            "CNAME",
            format!("{SELECTOR}._domainkey.{domain}"),
            format!("{SELECTOR}._domainkey.{origin}"),
        ),
        record("TXT", format!("_dmarc.{domain}"), "v=DMARC1; p=none".into()),
        record("CNAME", format!("*.{domain}"), origin.to_string()),
    ]
}

/// A name or value for comparison: lower case, no trailing dot, single spaces.
fn plain(s: &str) -> String {
    let words: Vec<&str> = s.split_whitespace().collect();
    words.join(" ").trim_end_matches('.').to_ascii_lowercase()
}

/// The record after a query; one that failed keeps what was known.
pub fn judged(record: &DnsRecord, answer: Answer) -> DnsRecord {
    let Answer::Found(values) = answer else {
        return record.clone();
    };
    match spf_or_policy(record) {
        Some("v=spf1") => spf(record, values),
        Some(prefix) => {
            let ours = values
                .into_iter()
                .filter(|v| plain(v).starts_with(&plain(prefix)))
                .collect();
            compared(record, ours)
        }
        None => compared(record, values),
    }
}

/// TXT records stand beside others of other purposes; only those of the same purpose count.
fn spf_or_policy(record: &DnsRecord) -> Option<&'static str> {
    let prefix = ["v=spf1", "v=DMARC1"]
        .into_iter()
        .find(|p| record.value.starts_with(p));
    prefix.filter(|_| record.kind == "TXT")
}

fn compared(record: &DnsRecord, values: Vec<String>) -> DnsRecord {
    let ok = values.iter().any(|v| same(&record.kind, v, &record.value));
    DnsRecord {
        ok,
        foreign: !ok && !values.is_empty(),
        found: Some(values),
        ..record.clone()
    }
}

fn same(kind: &str, found: &str, wanted: &str) -> bool {
    let (f, w) = (plain(found), plain(wanted));
    match kind {
        // The preference is the customer's.
        "MX" => f.rsplit(' ').next() == w.rsplit(' ').next(),
        "TXT" => f.replace(' ', "").trim_end_matches(';') == w.replace(' ', "").trim_end_matches(';'),
        _ => f == w,
    }
}

/// Two SPF records are a permanent error (RFC 7208 3.2), so ours is merged into the one that is there, for a
/// person to set.
fn spf(record: &DnsRecord, values: Vec<String>) -> DnsRecord {
    let found: Vec<String> = values
        .into_iter()
        .filter(|v| plain(v) == "v=spf1" || plain(v).starts_with("v=spf1 "))
        .collect();
    let has_mx = |v: &str| plain(v).split(' ').any(|t| t == "mx" || t == "+mx");
    let ok = found.len() == 1 && found.first().is_some_and(|v| has_mx(v));
    let value = match found.first() {
        Some(v) if !has_mx(v) => {
            let rest = v.split_whitespace().skip(1).collect::<Vec<_>>().join(" ");
            format!("v=spf1 mx {rest}").trim_end().to_owned()
        }
        Some(v) => v.clone(),
        None => "v=spf1 mx ~all".into(),
    };
    DnsRecord {
        value,
        ok,
        foreign: !ok && !found.is_empty(),
        found: Some(found),
        ..record.clone()
    }
}

/// May the zone hold the domain's records? Only if it is the domain or a parent of it.
pub fn zone_holds(zone: &str, domain: &Domain) -> bool {
    let zone = plain(zone);
    domain.as_str() == zone || domain.as_str().ends_with(&format!(".{zone}"))
}

/// Stack of a domain's records. A stack name must begin with a letter, and a slug need not.
pub fn stack_name(slug: &Slug) -> String {
    format!("headgate-dns-{slug}")
}

/// Stack of the records that prove control of the certificate's name. Made before the others, and left in
/// place: ACM needs them again for every renewal.
pub fn certificate_stack_name(slug: &Slug) -> String {
    format!("headgate-dns-{slug}-certificate")
}

/// The records that nobody has set: only these are published, since a stack can not change a record set that
/// it did not make. `free` are the names and types at which nothing at all was found.
pub fn template(zone_id: &str, records: &[DnsRecord], free: &[(String, String)]) -> Option<Value> {
    let resources: serde_json::Map<String, Value> = records
        .iter()
        .enumerate()
        .filter(|(_, r)| free.iter().any(|(k, n)| *k == r.kind && *n == r.name))
        .map(|(i, r)| {
            let value = if r.kind == "TXT" {
                format!("\"{}\"", r.value)
            } else {
                r.value.clone()
            };
            let properties = json!({
                "HostedZoneId": zone_id, "Name": format!("{}.", r.name), "Type": r.kind,
                "TTL": TTL.to_string(), "ResourceRecords": [value],
            });
            let resource = json!({
                "Type": "AWS::Route53::RecordSet",
                // Taking mail down is a person's act: the records outlive the stack.
                "DeletionPolicy": "Retain",
                "Properties": properties,
            });
            (format!("Record{i}"), resource)
        })
        .collect();
    (!resources.is_empty()).then(|| {
        json!({
            "AWSTemplateFormatVersion": "2010-09-09",
            "Description": "DNS records of a domain hosted by Headgate. Made by the domain provisioner.",
            "Resources": resources,
        })
    })
}

/// What to do about a domain's stack, from its status (`None`: there is none).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StackStep {
    /// Make it.
    Create,
    /// Its first creation failed and was rolled back: it must go before a new try (CloudFormation user
    /// guide, "Stack status codes").
    Delete,
    /// Something is under way.
    Wait,
    /// It is there.
    Done,
    /// A person has to look.
    Stuck,
}

/// See [`StackStep`].
pub fn stack_step(status: Option<&str>) -> StackStep {
    match status {
        None | Some("DELETE_COMPLETE" | "REVIEW_IN_PROGRESS") => StackStep::Create,
        Some("ROLLBACK_COMPLETE") => StackStep::Delete,
        Some(s) if s.ends_with("_IN_PROGRESS") => StackStep::Wait,
        Some("CREATE_COMPLETE" | "UPDATE_COMPLETE" | "IMPORT_COMPLETE" | "UPDATE_ROLLBACK_COMPLETE") => {
            StackStep::Done
        }
        Some(_) => StackStep::Stuck,
    }
}

/// One sentence that lists what a person has to set; none when nothing is to be done.
pub fn to_set(records: &[DnsRecord]) -> Option<String> {
    let line = |r: &DnsRecord| {
        let there = match &r.found {
            Some(f) if !f.is_empty() => format!(" (there now: {})", f.join(", ")),
            _ => String::new(),
        };
        format!("{} {} → {}{there}", r.kind, r.name, r.value)
    };
    let open: Vec<String> = records.iter().filter(|r| !r.ok).map(line).collect();
    (!open.is_empty()).then(|| format!("Set these DNS records: {}.", open.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::super::fake::domain;
    use super::*;

    fn origin() -> Origin {
        serde_json::from_value(json!("a-com.pds1.example.test")).unwrap()
    }

    fn found(v: &[&str]) -> Answer {
        Answer::Found(v.iter().map(|s| (*s).to_owned()).collect())
    }

    fn all() -> Vec<DnsRecord> {
        wanted(&domain("a.com"), &origin())
    }

    #[test]
    fn records_as_wanted_are_ok_in_any_spelling() {
        let [mx, spf, dkim, dmarc, handles] = <[DnsRecord; 5]>::try_from(all()).unwrap();
        assert!(judged(&mx, found(&["20 A-COM.pds1.example.test."])).ok);
        assert!(judged(&spf, found(&["other=1", "v=spf1 +mx include:x.net -all"])).ok);
        assert!(judged(&dkim, found(&["hg1._domainkey.a-com.pds1.example.test."])).ok);
        assert!(judged(&dmarc, found(&["v=DMARC1;p=none;"])).ok);
        assert!(judged(&handles, found(&["a-com.pds1.example.test"])).ok);
    }

    #[test]
    fn foreign_records_are_left_alone_and_said() {
        let [mx, spf, _, dmarc, handles] = <[DnsRecord; 5]>::try_from(all()).unwrap();
        for (r, v) in [
            (&mx, "10 mail.google.com."),
            (&dmarc, "v=DMARC1; p=reject"),
            (&handles, "shop.example.net"),
        ] {
            let j = judged(r, found(&[v]));
            assert!(!j.ok && j.foreign && j.value == r.value, "{j:?}");
        }
        let j = judged(&spf, found(&["v=spf1 include:_spf.google.com ~all"]));
        assert_eq!(
            (j.ok, j.value.as_str()),
            (false, "v=spf1 mx include:_spf.google.com ~all")
        );
        // Two are a permanent error, whoever set them.
        assert!(!judged(&spf, found(&["v=spf1 mx ~all", "v=spf1 -all"])).ok);
        // Not an SPF record at all.
        assert_eq!(judged(&spf, found(&["v=spf10 x"])).found, Some(vec![]));
    }

    #[test]
    fn no_answer_is_unknown_and_keeps_what_was_known() {
        let mx = judged(&all()[0], found(&["10 a-com.pds1.example.test"]));
        assert_eq!(judged(&mx, Answer::Unknown), mx);
        assert!(!judged(&mx, found(&[])).ok);
    }

    #[test]
    fn only_free_names_are_published_and_only_in_a_zone_that_holds_the_domain() {
        let d = domain("a.com");
        assert!(zone_holds("A.com.", &d) && zone_holds("com", &d));
        assert!(!zone_holds("b.a.com.", &d) && !zone_holds("xa.com", &d) && !zone_holds("m", &d));
        let free = [
            ("MX".to_owned(), "a.com".to_owned()),
            ("TXT".to_owned(), "_dmarc.a.com".to_owned()),
        ];
        let t = template("Z1", &all(), &free).unwrap();
        let resources = t["Resources"].as_object().unwrap();
        assert_eq!(resources.keys().collect::<Vec<_>>(), ["Record0", "Record3"]);
        assert_eq!(
            resources["Record3"]["Properties"]["ResourceRecords"][0],
            "\"v=DMARC1; p=none\""
        );
        assert_eq!(template("Z1", &all(), &[]), None);
        assert!(stack_name(&Slug::parse("1-com").unwrap()).starts_with('h'));
    }

    #[test]
    fn stacks_are_made_once_and_a_failed_creation_is_cleared_first() {
        for (status, step) in [
            (None, StackStep::Create),
            (Some("DELETE_COMPLETE"), StackStep::Create),
            (Some("CREATE_IN_PROGRESS"), StackStep::Wait),
            (Some("ROLLBACK_IN_PROGRESS"), StackStep::Wait),
            (Some("ROLLBACK_COMPLETE"), StackStep::Delete),
            (Some("CREATE_COMPLETE"), StackStep::Done),
            (Some("DELETE_FAILED"), StackStep::Stuck),
            (Some("SOMETHING_NEW"), StackStep::Stuck),
        ] {
            assert_eq!(stack_step(status), step, "{status:?}");
        }
    }

    #[test]
    fn what_is_to_be_set_is_one_sentence() {
        let mut records = all();
        assert!(
            to_set(&records)
                .unwrap()
                .contains("MX a.com → 10 a-com.pds1.example.test.")
        );
        for r in &mut records {
            r.ok = true;
        }
        assert_eq!(to_set(&records), None);
    }
}
