//! Live reads, from AWS or from an evidence file (spec/rebuild.md 3.6), and how a rule asks for one.
//!
//! A read that is not there, was denied or was cut short is never "fine": asking for it gives an error that turns
//! into a finding of the rule that asked.

use std::cell::Cell;

use jiff::Timestamp;
use serde_json::Value;

use super::inputs::Record;
use super::names;

/// One recorded read.
#[derive(Debug, Clone)]
struct Read {
    call: String,
    input: Value,
    result: Result<Value, (String, String)>,
}

/// All live reads of one gate call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Live {
    reads: Vec<Read>,
    pub(crate) dns: Vec<Dns>,
    pub(crate) tls: Vec<Tls>,
    pub(crate) http: Vec<(String, Option<i64>)>,
    pub(crate) account: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) captured_at: Option<Timestamp>,
    /// Set when a rule has looked at a read: what it decides then rests on the file's word.
    pub(crate) touched: Cell<bool>,
}

/// A DNS answer.
#[derive(Debug, Clone)]
pub(crate) struct Dns {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) answers: Vec<String>,
}

/// A TLS handshake.
#[derive(Debug, Clone)]
pub(crate) struct Tls {
    pub(crate) sni: String,
    pub(crate) connect: String,
    pub(crate) result: Result<Vec<String>, String>,
}

/// Why a read gives no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Gap {
    /// Nobody made this read.
    Missing(String),
    /// It was made and failed: operation, error code, message.
    Failed {
        call: String,
        code: String,
        message: String,
    },
    /// A list that was not read to its end.
    Truncated(String),
    /// The answer is not of the documented shape.
    Malformed(String),
}

/// The keys that carry the next page in the answers we read.
const NEXT: [&str; 5] = ["NextToken", "nextToken", "NextMarker", "Marker", "NextRecordName"];

impl Live {
    /// Reads the evidence file; Err says what is wrong.
    pub(crate) fn read(root: &Value) -> Result<Live, String> {
        if root.get("schema").and_then(Value::as_u64) != Some(1) {
            return Err("schema must be 1".into());
        }
        if root.get("kind").and_then(Value::as_str) != Some("live") {
            return Err("kind must be live".into());
        }
        let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        let list = |key: &str| {
            root.get(key)
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default()
        };
        let mut live = Live {
            account: text(root, "account"),
            region: text(root, "region"),
            captured_at: root.get("captured_at").and_then(names::time),
            ..Live::default()
        };
        for (i, item) in list("reads").iter().enumerate() {
            let call = text(item, "call").ok_or_else(|| format!("reads.{i}.call must be text"))?;
            let result = match (item.get("output"), item.get("error")) {
                (Some(output), None) => Ok(output.clone()),
                (None, Some(error)) => Err((
                    text(error, "code").unwrap_or_else(|| "Unknown".into()),
                    text(error, "message").unwrap_or_default(),
                )),
                _ => return Err(format!("reads.{i} must have either output or error")),
            };
            live.reads.push(Read {
                call,
                input: item.get("input").cloned().unwrap_or(Value::Null),
                result,
            });
        }
        for (i, item) in list("dns").iter().enumerate() {
            let (Some(name), Some(kind)) = (text(item, "name"), text(item, "type")) else {
                return Err(format!("dns.{i} must have name and type"));
            };
            let answers = item
                .get("answers")
                .and_then(Value::as_array)
                .ok_or(format!("dns.{i}.answers must be a list"))?;
            let answers = answers
                .iter()
                .map(|a| a.as_str().map(str::to_owned))
                .collect::<Option<Vec<_>>>();
            let answers = answers.ok_or(format!("dns.{i}.answers must be texts"))?;
            live.dns.push(Dns { name, kind, answers });
        }
        for (i, item) in list("tls").iter().enumerate() {
            let sni = text(item, "sni").ok_or(format!("tls.{i}.sni must be text"))?;
            let result = match (item.get("names").and_then(Value::as_array), text(item, "error")) {
                (Some(names), None) => Ok(names
                    .iter()
                    .filter_map(Value::as_str)
                    .map(str::to_owned)
                    .collect()),
                (_, error) => Err(error.unwrap_or_else(|| "no names".into())),
            };
            live.tls.push(Tls {
                sni,
                connect: text(item, "connect").unwrap_or_default(),
                result,
            });
        }
        for (i, item) in list("http").iter().enumerate() {
            let url = text(item, "url").ok_or(format!("http.{i}.url must be text"))?;
            live.http.push((url, item.get("status").and_then(Value::as_i64)));
        }
        Ok(live)
    }

    /// Whether any read of a call is there, whatever its input.
    pub(crate) fn any(&self, call: &str) -> bool {
        self.reads.iter().any(|r| r.call == call)
    }

    /// The pages that answer a needed read: its input holds the identifying keys with equal values (2.11 row 26).
    /// A key whose value we do not know (None) is not compared.
    pub(crate) fn pages(&self, call: &str, keys: &[(&str, Option<&str>)]) -> Result<Vec<&Value>, Gap> {
        self.touched.set(true);
        let label = label(call, keys);
        let answers: Vec<&Read> = self
            .reads
            .iter()
            .filter(|r| r.call == call && keys.iter().all(|(key, want)| holds(&r.input, key, *want)))
            .collect();
        let mut pages = Vec::new();
        for read in &answers {
            match &read.result {
                Ok(output) => pages.push(output),
                Err((code, message)) => {
                    return Err(Gap::Failed {
                        call: label,
                        code: code.clone(),
                        message: message.clone(),
                    });
                }
            }
        }
        if pages.is_empty() {
            return Err(Gap::Missing(label));
        }
        if call != "route53:ListResourceRecordSets" && unfinished(&answers) {
            return Err(Gap::Truncated(label));
        }
        Ok(pages)
    }

    /// The only page of a read that has no pages.
    pub(crate) fn one(&self, call: &str, keys: &[(&str, Option<&str>)]) -> Result<&Value, Gap> {
        // When a read was made twice the last one is the newest.
        self.pages(call, keys)?
            .last()
            .copied()
            .ok_or_else(|| Gap::Missing(label(call, keys)))
    }

    /// Every item of a list over all pages.
    pub(crate) fn items(
        &self,
        call: &str,
        keys: &[(&str, Option<&str>)],
        list: &str,
    ) -> Result<Vec<&Value>, Gap> {
        let mut out = Vec::new();
        for page in self.pages(call, keys)? {
            let items = page.get(list).and_then(Value::as_array);
            out.extend(
                items.ok_or_else(|| Gap::Malformed(format!("{} has no list {list}", label(call, keys))))?,
            );
        }
        Ok(out)
    }

    /// Every item of a list that was read for the whole account: the input names nothing (2.11 row 26).
    pub(crate) fn account_wide(&self, call: &str, list: &str) -> Result<Vec<&Value>, Gap> {
        self.touched.set(true);
        let whole: Vec<&Read> = self
            .reads
            .iter()
            .filter(|r| r.call == call && names_nothing(&r.input))
            .collect();
        let mut out = Vec::new();
        for read in &whole {
            match &read.result {
                Ok(page) => {
                    let items = page.get(list).and_then(Value::as_array);
                    out.extend(items.ok_or_else(|| Gap::Malformed(format!("{call} has no list {list}")))?);
                }
                Err((code, message)) => {
                    return Err(Gap::Failed {
                        call: call.to_owned(),
                        code: code.clone(),
                        message: message.clone(),
                    });
                }
            }
        }
        if whole.is_empty() {
            return Err(Gap::Missing(call.to_owned()));
        }
        if unfinished(&whole) {
            return Err(Gap::Truncated(call.to_owned()));
        }
        Ok(out)
    }

    /// The hosted zones listed by name, when the list ends early but has gone past the name.
    pub(crate) fn zones_past(&self, name: &str) -> Option<Vec<&Value>> {
        let keys = [("DNSName", Some(name))];
        let mut out = Vec::new();
        let mut past = false;
        for read in self
            .reads
            .iter()
            .filter(|r| r.call == "route53:ListHostedZonesByName")
        {
            if !keys.iter().all(|(key, want)| holds(&read.input, key, *want)) {
                continue;
            }
            let page = read.result.as_ref().ok()?;
            out.extend(page.get("HostedZones")?.as_array()?);
            let next = page.get("NextDNSName").and_then(Value::as_str);
            past |= next.is_some_and(|next| names::route53_order(next) > names::route53_order(name));
        }
        past.then_some(out)
    }

    /// The inputs and answers of every successful read of a call.
    pub(crate) fn inputs_and_outputs(&self, call: &str) -> Vec<(&Value, &Value)> {
        let reads = self.reads.iter().filter(|r| r.call == call);
        reads
            .filter_map(|r| r.result.as_ref().ok().map(|page| (&r.input, page)))
            .collect()
    }

    /// The error of a read, when it failed: for reads whose refusal is an answer (a stack that does not exist).
    pub(crate) fn failure(&self, call: &str, keys: &[(&str, Option<&str>)]) -> Option<(&str, &str)> {
        match self.pages(call, keys) {
            Err(Gap::Failed { .. }) => {}
            _ => return None,
        }
        let found = self
            .reads
            .iter()
            .filter(|r| r.call == call && keys.iter().all(|(k, want)| holds(&r.input, k, *want)));
        found
            .filter_map(|r| r.result.as_ref().err())
            .next()
            .map(|(code, message)| (code.as_str(), message.as_str()))
    }

    /// All records at a name, read to completion for that name (CQ-8).
    pub(crate) fn records(&self, zone: &str, name: &str) -> Result<Vec<Record>, Gap> {
        const CALL: &str = "route53:ListResourceRecordSets";
        let keys = [("HostedZoneId", Some(zone))];
        let pages = self.pages(CALL, &keys)?;
        let mut out = Vec::new();
        let mut complete = false;
        for read in self
            .reads
            .iter()
            .filter(|r| r.call == CALL && holds(&r.input, "HostedZoneId", Some(zone)))
        {
            let Ok(page) = &read.result else { continue };
            complete |= covers_name(&read.input, page, name);
        }
        // Several pages: together they are complete when one of them is the end of the list.
        let whole = self.reads.iter().any(|r| {
            r.call == CALL
                && holds(&r.input, "HostedZoneId", Some(zone))
                && r.input.get("StartRecordName").is_none_or(Value::is_null)
        });
        complete |= whole && pages.len() > 1 && pages.last().is_some_and(|page| !truncated(page));
        for page in &pages {
            let items = page.get("ResourceRecordSets").and_then(Value::as_array);
            let items =
                items.ok_or_else(|| Gap::Malformed(format!("{CALL} has no list ResourceRecordSets")))?;
            for item in items {
                let record = Record::read(item)
                    .ok_or_else(|| Gap::Malformed(format!("{CALL}: a record can't be read")))?;
                if names::dns_eq(&record.name, name) && !out.contains(&record) {
                    out.push(record);
                }
            }
        }
        if complete {
            Ok(out)
        } else {
            Err(Gap::Truncated(format!("{CALL} for {name}")))
        }
    }

    /// A DNS answer, if it was asked.
    pub(crate) fn answer(&self, name: &str, kind: &str) -> Option<&Dns> {
        self.touched.set(true);
        self.dns
            .iter()
            .find(|d| d.kind.eq_ignore_ascii_case(kind) && names::dns_eq(&d.name, name))
    }
}

fn label(call: &str, keys: &[(&str, Option<&str>)]) -> String {
    let with: Vec<String> = keys
        .iter()
        .filter_map(|(key, value)| value.map(|v| format!("{key}={v}")))
        .collect();
    if with.is_empty() {
        call.to_owned()
    } else {
        format!("{call} {}", with.join(" "))
    }
}

/// Whether an input names nothing but pages, so that the answer is a list of the whole account.
fn names_nothing(input: &Value) -> bool {
    const PAGING: [&str; 7] = [
        "nexttoken",
        "maxitems",
        "maxresults",
        "includes",
        "marker",
        "pagesize",
        "certificatestatuses",
    ];
    match input {
        Value::Null => true,
        Value::Object(map) => map.iter().all(|(key, value)| {
            let key = key.to_ascii_lowercase();
            // ACM leaves out what is not asked for: only the whole set of statuses is "all".
            let all = key != "certificatestatuses" || value.as_array().is_some_and(|list| list.len() >= 7);
            value.is_null() || (PAGING.contains(&key.as_str()) && all)
        }),
        _ => false,
    }
}

/// Whether an input names what we look for: the same text, a list that holds it, or an ARN that ends in it.
fn holds(input: &Value, key: &str, want: Option<&str>) -> bool {
    let Some(want) = want else { return true };
    let found = input
        .as_object()
        .and_then(|map| map.iter().find(|(k, _)| k.eq_ignore_ascii_case(key)))
        .map(|(_, v)| v);
    match found {
        Some(Value::String(text)) => same(text, want, key),
        Some(Value::Array(items)) => items
            .iter()
            .filter_map(Value::as_str)
            .any(|text| same(text, want, key)),
        _ => false,
    }
}

fn same(text: &str, want: &str, key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    if text == want {
        return true;
    }
    match key.as_str() {
        "hostedzoneid" | "id" => names::zone_id(text) == names::zone_id(want),
        "dnsname" => names::dns_eq(text, want),
        // ECS takes a name or an ARN for the same thing.
        "cluster" | "services" => {
            tail(text) == tail(want) && (!text.starts_with("arn:") || !want.starts_with("arn:"))
        }
        "resourceids" => text == want,
        _ => false,
    }
}

fn tail(text: &str) -> &str {
    text.rsplit('/').next().unwrap_or(text)
}

fn truncated(page: &Value) -> bool {
    page.get("IsTruncated") == Some(&Value::Bool(true)) || next(page).is_some()
}

fn next(page: &Value) -> Option<&str> {
    NEXT.iter()
        .filter_map(|key| page.get(*key)?.as_str())
        .find(|token| !token.is_empty())
}

/// Whether a page names a next one that nobody read. Pages may be recorded without their own token, so only the
/// last page must have none.
fn unfinished(reads: &[&Read]) -> bool {
    let last = reads.last().and_then(|r| r.result.as_ref().ok());
    last.is_some_and(truncated)
}

/// Whether one page of ListResourceRecordSets shows everything at a name.
fn covers_name(input: &Value, page: &Value, name: &str) -> bool {
    let wanted = names::route53_order(name);
    let started = match input.get("StartRecordName").and_then(Value::as_str) {
        Some(start) => {
            names::route53_order(start) <= wanted && input.get("StartRecordType").is_none_or(Value::is_null)
                || names::route53_order(start) < wanted
        }
        None => true,
    };
    let ended = if truncated(page) {
        match page.get("NextRecordName").and_then(Value::as_str) {
            Some(next) => names::route53_order(next) > wanted,
            None => false,
        }
    } else {
        true
    };
    started && ended
}
