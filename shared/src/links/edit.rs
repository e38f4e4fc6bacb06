//! Pure: what a link's desired configuration must have (spec/links.md 1.2), and when it really changed (1.3).

use super::event::string;
use super::model::Provider;
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// Longest configuration: with the greatest details it still fits an item of 400 KB.
pub const MAX_CONFIG_BYTES: usize = 64 * 1024;
/// Longest service identity: it is part of a sort key, which may have 1,024 bytes (DynamoDB developer guide,
/// "Constraints").
const MAX_IDENTITY_BYTES: usize = 1_000;
/// Deepest nesting of a configuration.
const MAX_DEPTH: usize = 32;

/// A configuration that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// What is stored: the received JSON text; only where an optional key was empty, without that key.
    pub text: String,
    /// The cloud.
    pub provider: Provider,
    /// The service the link leads to.
    pub identity: String,
}

/// What is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Faults {
    /// One sentence for people.
    pub summary: String,
    /// Field and what is wrong with it.
    pub fields: Vec<(String, String)>,
    /// Required keys that are missing, per cloud.
    pub missing: BTreeMap<Provider, Vec<&'static str>>,
}

/// What a key must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Texts,
    Bool,
}

struct Shape {
    required: &'static [(&'static str, Kind)],
    optional: &'static [(&'static str, Kind)],
}

/// The table of 1.2.
fn shape(provider: Provider) -> Shape {
    match provider {
        Provider::Aws => Shape {
            required: &[
                ("region", Kind::Text),
                ("az_ids", Kind::Texts),
                ("service_name", Kind::Text),
            ],
            optional: &[("service_region", Kind::Text)],
        },
        Provider::Azure => Shape {
            required: &[("service_name", Kind::Text), ("location", Kind::Text)],
            optional: &[("dns_name", Kind::Text), ("resource_type", Kind::Text)],
        },
        Provider::Gcp => Shape {
            required: &[
                ("service_attachment", Kind::Text),
                ("region", Kind::Text),
                ("dns_zone_name", Kind::Text),
                ("dns_record_names", Kind::Texts),
            ],
            optional: &[("all_ports", Kind::Bool)],
        },
    }
}

/// An object's members in their order, values as text.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                #[derive(Deserialize)]
                struct Name<'a>(#[serde(borrow)] Cow<'a, str>);
                let mut members = Vec::new();
                while let Some((name, value)) = map.next_entry::<Name<'de>, &'de RawValue>()? {
                    members.push((name.0, value));
                }
                Ok(Members(members))
            }
        }
        d.deserialize_map(V)
    }
}

/// Null and the empty string are "not given" (1.2).
fn given(value: &RawValue) -> bool {
    !matches!(value.get(), "null" | "\"\"")
}

fn fits(kind: Kind, value: &RawValue) -> Result<(), &'static str> {
    let texts = || -> Option<Vec<String>> { serde_json::from_str(value.get()).ok() };
    let ok = match kind {
        Kind::Text => string(value).is_some_and(|s| !s.trim().is_empty()),
        Kind::Texts => texts().is_some_and(|l| !l.is_empty() && l.iter().all(|s| !s.trim().is_empty())),
        Kind::Bool => matches!(value.get(), "true" | "false"),
    };
    let form = match kind {
        Kind::Text => "must be a string that is not empty",
        Kind::Texts => "must be a list of at least one string, none of them empty",
        Kind::Bool => "must be true or false",
    };
    if ok { Ok(()) } else { Err(form) }
}

fn refuse(summary: impl Into<String>, field: &str, text: &str) -> Faults {
    Faults {
        summary: summary.into(),
        fields: vec![(field.to_owned(), text.to_owned())],
        missing: BTreeMap::new(),
    }
}

impl Config {
    /// Reads the bare configuration object of a PUT.
    ///
    /// # Errors
    /// Every fault: missing keys per cloud, and fields of the wrong kind. No value is repeated.
    pub fn read(body: &[u8]) -> Result<Self, Faults> {
        if body.len() > MAX_CONFIG_BYTES {
            return Err(refuse(
                "The configuration is too large.",
                "body",
                "may have 65,536 bytes at most",
            ));
        }
        let raw: &RawValue = std::str::from_utf8(body)
            .ok()
            .and_then(|t| serde_json::from_str(t).ok())
            .ok_or_else(|| refuse("The body is not JSON.", "body", "must be one JSON object"))?;
        let Ok(Members(members)) = serde_json::from_str::<Members<'_>>(raw.get()) else {
            return Err(refuse(
                "The body is not a JSON object.",
                "body",
                "must be one JSON object",
            ));
        };
        if canonical(raw, 0).is_none() {
            let text = "may be 32 levels deep at most, and every key must be Unicode text";
            return Err(refuse("The configuration is nested too deeply.", "body", text));
        }
        let mut by_name: BTreeMap<&str, &RawValue> = BTreeMap::new();
        for (name, value) in &members {
            if by_name.insert(name, value).is_some() {
                return Err(refuse(
                    "The configuration names a key twice.",
                    name,
                    "is named twice",
                ));
            }
        }
        let provider = provider_of(&by_name)?;
        check(provider, &by_name)?;
        let identity_key = if provider == Provider::Gcp {
            "service_attachment"
        } else {
            "service_name"
        };
        let identity = by_name
            .get(identity_key)
            .and_then(|v| string(v))
            .unwrap_or_default()
            .into_owned();
        if identity.len() > MAX_IDENTITY_BYTES {
            return Err(refuse(
                "The service's name is too long.",
                identity_key,
                "may have 1,000 bytes at most",
            ));
        }
        Ok(Self {
            text: stored_text(provider, raw, &members),
            provider,
            identity,
        })
    }

    /// Is it the configuration that is stored? Order of keys and spacing do not count, as in the JSON column
    /// upstream; numbers are compared as written, never as floats.
    pub fn same_as(&self, stored: &str) -> bool {
        let read = |t| {
            serde_json::from_str::<&RawValue>(t)
                .ok()
                .and_then(|r| canonical(r, 0))
        };
        self.text == stored || read(&self.text).is_some_and(|a| read(stored) == Some(a))
    }
}

/// The cloud of a configuration (1.2), told by the keys that only one of them has.
fn provider_of(by_name: &BTreeMap<&str, &RawValue>) -> Result<Provider, Faults> {
    let has = |name: &str| by_name.get(name).is_some_and(|v| given(v));
    match (has("service_attachment"), has("az_ids")) {
        (true, true) => Err(refuse(
            "The configuration has keys of two clouds: `service_attachment` is gcp's, `az_ids` is aws's.",
            "az_ids",
            "can not be given together with service_attachment",
        )),
        (true, false) => Ok(Provider::Gcp),
        (false, true) => Ok(Provider::Aws),
        (false, false) => Ok(Provider::Azure),
    }
}

fn check(provider: Provider, by_name: &BTreeMap<&str, &RawValue>) -> Result<(), Faults> {
    let value = |name: &str| by_name.get(name).copied().filter(|v| given(v));
    let missing_of = |p| -> Vec<&'static str> {
        shape(p)
            .required
            .iter()
            .map(|(n, _)| *n)
            .filter(|n| value(n).is_none())
            .collect()
    };
    let Shape { required, optional } = shape(provider);
    let mut fields: Vec<(String, String)> = Vec::new();
    for (name, kind) in required.iter().chain(optional) {
        if let Some(Err(form)) = value(name).map(|v| fits(*kind, v)) {
            fields.push(((*name).to_owned(), form.to_owned()));
        }
    }
    let missing = missing_of(provider);
    if missing.is_empty() && fields.is_empty() {
        return Ok(());
    }
    let all: BTreeMap<_, _> = [Provider::Aws, Provider::Azure, Provider::Gcp]
        .into_iter()
        .map(|p| (p, missing_of(p)))
        .collect();
    fields.extend(
        missing
            .iter()
            .map(|n| ((*n).to_owned(), format!("is required for {}", provider.as_str()))),
    );
    let summary = if missing.is_empty() {
        format!(
            "The configuration looks like one for {}, but not every key holds what it must.",
            provider.as_str()
        )
    } else {
        let per: Vec<String> = all
            .iter()
            .map(|(p, m)| match m.as_slice() {
                [] => format!("{} lacks nothing", p.as_str()),
                m => format!("{} lacks {}", p.as_str(), m.join(", ")),
            })
            .collect();
        format!("The configuration is complete for no cloud: {}.", per.join("; "))
    };
    Err(Faults {
        summary,
        fields,
        missing: all,
    })
}

/// The received text; where an optional key is empty, the same without that key.
fn stored_text(provider: Provider, raw: &RawValue, members: &[(Cow<'_, str>, &RawValue)]) -> String {
    let dropped = |name: &str, value: &RawValue| {
        !given(value) && shape(provider).optional.iter().any(|(n, _)| *n == name)
    };
    if !members.iter().any(|(n, v)| dropped(n, v)) {
        return raw.get().to_owned();
    }
    let kept: Vec<String> = members
        .iter()
        .filter(|(n, v)| !dropped(n, v))
        .map(|(n, v)| format!("{}:{}", serde_json::Value::from(n.as_ref()), v.get()))
        .collect();
    format!("{{{}}}", kept.join(","))
}

/// A JSON value in which order of keys and spacing do not count.
#[derive(Debug, PartialEq, Eq)]
enum Canonical<'a> {
    Text(Cow<'a, str>),
    /// Numbers, `true`, `false`, `null`, and strings that are no Unicode text: as written.
    Word(&'a str),
    List(Vec<Canonical<'a>>),
    Object(BTreeMap<Cow<'a, str>, Canonical<'a>>),
}

/// `None` when nested too deeply, or when a key is no Unicode text.
fn canonical(raw: &RawValue, depth: usize) -> Option<Canonical<'_>> {
    if depth > MAX_DEPTH {
        return None;
    }
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'{') => {
            let Members(members) = serde_json::from_str(text).ok()?;
            let pairs = members
                .into_iter()
                .map(|(n, v)| Some((n, canonical(v, depth + 1)?)));
            pairs.collect::<Option<BTreeMap<_, _>>>().map(Canonical::Object)
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            items
                .into_iter()
                .map(|v| canonical(v, depth + 1))
                .collect::<Option<Vec<_>>>()
                .map(Canonical::List)
        }
        Some(b'"') => Some(string(raw).map_or(Canonical::Word(text), Canonical::Text)),
        _ => Some(Canonical::Word(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AWS: &str = r#"{"region":"us-east-1","az_ids":["use1-az1"],"service_name":"svc-a"}"#;

    fn faults(text: &str) -> Faults {
        Config::read(text.as_bytes()).unwrap_err()
    }

    #[test]
    fn each_cloud_is_told_by_its_keys() {
        for (text, provider, identity) in [
            (AWS, Provider::Aws, "svc-a"),
            (
                r#"{"service_name":"/subscriptions/x","location":"westeurope"}"#,
                Provider::Azure,
                "/subscriptions/x",
            ),
            (
                r#"{"service_attachment":"projects/p","region":"r","dns_zone_name":"acme","dns_record_names":["db"]}"#,
                Provider::Gcp,
                "projects/p",
            ),
        ] {
            let c = Config::read(text.as_bytes()).unwrap();
            assert_eq!(
                (c.provider, c.identity.as_str(), c.text.as_str()),
                (provider, identity, text)
            );
        }
    }

    #[test]
    fn missing_keys_are_named_per_cloud_and_all_at_once() {
        let f = faults(r#"{"region":"r"}"#);
        assert_eq!(f.missing[&Provider::Aws], ["az_ids", "service_name"]);
        assert_eq!(f.missing[&Provider::Azure], ["service_name", "location"]);
        assert_eq!(
            f.missing[&Provider::Gcp],
            ["service_attachment", "dns_zone_name", "dns_record_names"]
        );
        assert!(
            f.summary.contains("aws lacks az_ids, service_name;"),
            "{}",
            f.summary
        );
        let f = faults(r#"{"az_ids":[],"region":7,"service_region":{}}"#);
        let names: Vec<&str> = f.fields.iter().map(|(n, _)| n.as_str()).collect();
        assert_eq!(names, ["region", "az_ids", "service_region", "service_name"]);
    }

    #[test]
    fn what_can_not_be_a_configuration_is_refused() {
        let deep = format!(
            r#"{{"region":"r","az_ids":["a"],"service_name":"s","x":{}{}}}"#,
            "[".repeat(40),
            "]".repeat(40)
        );
        let long = format!(
            r#"{{"region":"r","az_ids":["a"],"service_name":"{}"}}"#,
            "s".repeat(1_001)
        );
        let big = format!("{{\"x\":\"{}\"}}", "s".repeat(MAX_CONFIG_BYTES));
        for text in [
            "",
            "[]",
            "null",
            "{",
            r#"{"a":1} {}"#,
            r#"{"region":"a","region":"b"}"#,
            r#"{"service_attachment":"s","az_ids":["a"],"region":"r","dns_zone_name":"z","dns_record_names":["d"],"service_name":"x"}"#,
            &deep,
            &long,
            &big,
        ] {
            let f = faults(text);
            assert!(!f.summary.is_empty() && !f.fields.is_empty(), "{text:.60}");
        }
        assert_eq!(Config::read(&[b'{', 0xff, b'}']).unwrap_err().fields[0].0, "body");
    }

    #[test]
    fn an_empty_optional_key_is_stored_as_absent_and_nothing_else_moves() {
        let text = r#"{ "region":"r", "n":9007199254740993.0, "az_ids":["a"], "service_region":"", "service_name":"s" }"#;
        let c = Config::read(text.as_bytes()).unwrap();
        assert_eq!(
            c.text,
            r#"{"region":"r","n":9007199254740993.0,"az_ids":["a"],"service_name":"s"}"#
        );
        let kept = r#"{ "region":"r",  "az_ids":["a"], "service_name":"s" , "x":1e400}"#;
        assert_eq!(Config::read(kept.as_bytes()).unwrap().text, kept);
    }

    #[test]
    fn order_and_spacing_are_no_change_and_everything_else_is() {
        let c = Config::read(AWS.as_bytes()).unwrap();
        for same in [
            AWS,
            r#"{ "service_name" : "svc-a","az_ids":["use1-az1"],"region":"us-east-1"}"#,
            r#"{"service_name":"svc\u002da","az_ids":["use1-az1"],"region":"us-east-1"}"#,
        ] {
            assert!(c.same_as(same), "{same}");
        }
        for other in [
            r#"{"region":"us-east-1","az_ids":["use1-az2"],"service_name":"svc-a"}"#,
            r#"{"region":"us-east-1","az_ids":["use1-az1"],"service_name":"svc-a","x":null}"#,
            "17",
            "not json",
        ] {
            assert!(!c.same_as(other), "{other}");
        }
        let n = |n: &str| format!(r#"{{"region":"r","az_ids":["a"],"service_name":"s","n":{n}}}"#);
        let big = Config::read(n("9007199254740993").as_bytes()).unwrap();
        assert!(
            !big.same_as(&n("9007199254740992")),
            "beyond 2^53 a float would call them equal"
        );
    }
}
