//! The stage event (spec/links.md 3.1), read by an allow-list: `serde` skips every key not named here
//! without storing it, so a secret that a producer put beside the results is neither read nor logged.
//!
//! No text made here repeats a value of the event.

use super::model::{Generation, LinkId, PlaneId, Stage};
use crate::time::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Objects greater than this are refused (3.8).
pub const MAX_OUTPUTS_BYTES: u64 = 5 * 1024 * 1024;

/// What an event asks for.
#[derive(Debug)]
pub enum Read<'a> {
    /// A stage that says nothing about links.
    StageIgnored,
    /// A stage that did not succeed: its outputs are partly old, so nothing in them is trusted.
    StageNotSucceeded,
    /// Results to record.
    Act(Box<Event<'a>>),
}

/// An event that can never succeed: every fault found, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reject(pub Vec<String>);

impl Reject {
    /// A single fault.
    pub fn one(text: impl Into<String>) -> Self {
        Self(vec![text.into()])
    }
}

/// A stage event that writes.
#[derive(Debug)]
pub struct Event<'a> {
    /// What every write of this event carries.
    pub stamp: Stamp,
    /// What the converge pinned; `None` for a pin that can not be used.
    pub pins: BTreeMap<LinkId, Option<Generation>>,
    /// Pins without a readable id.
    pub unreadable: usize,
    /// Where the results are.
    pub outputs: Outputs<'a>,
}

/// The facts of an event that every write of it carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    /// The plane that converges.
    pub plane: PlaneId,
    /// The converge's name, for people.
    pub converge_id: String,
    /// The completed stage.
    pub stage: Stage,
    /// The ordering token (3.4).
    pub order: u64,
    /// The controller's clock: the only source of `observed_at` and `details_at`, so that a redelivery
    /// writes the same bytes.
    pub at: Timestamp,
    /// The plane's network is being rebuilt by this converge (3.9). Wording only.
    pub network_rebuild: bool,
}

/// Where an event's results are.
#[derive(Debug)]
pub enum Outputs<'a> {
    /// In the event; empty when it carries none.
    Inline(Vec<&'a RawValue>),
    /// In an object.
    Pointer(Pointer),
}

/// An object that holds the outputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pointer {
    /// Bucket; must be in the configured list.
    pub bucket: String,
    /// Key.
    pub key: String,
    /// Exact version, where the bucket keeps versions.
    pub version_id: Option<String>,
    /// Length of the object.
    pub bytes: u64,
    /// SHA-256 of the object, lower-case hex.
    pub sha256: String,
}

/// The keys that are read. `null` counts as absent.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    schema: Option<&'a RawValue>,
    #[serde(borrow)]
    data_plane_id: Option<&'a RawValue>,
    #[serde(borrow)]
    converge_id: Option<&'a RawValue>,
    #[serde(borrow)]
    converge_seq: Option<&'a RawValue>,
    #[serde(borrow)]
    stage: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    completed_at: Option<&'a RawValue>,
    #[serde(borrow)]
    pinned_links: Option<&'a RawValue>,
    #[serde(borrow)]
    network: Option<&'a RawValue>,
    #[serde(borrow)]
    outputs: Option<&'a RawValue>,
    #[serde(borrow)]
    outputs_ref: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawPin<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    generation: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawNetwork {
    uses_private_network: Option<bool>,
    was: Option<bool>,
}

#[derive(Deserialize)]
struct RawOutputs<'a> {
    #[serde(borrow)]
    link_results: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawPointer<'a> {
    #[serde(borrow)]
    bucket: Option<&'a RawValue>,
    #[serde(borrow)]
    key: Option<&'a RawValue>,
    #[serde(borrow)]
    version_id: Option<&'a RawValue>,
    #[serde(borrow)]
    bytes: Option<&'a RawValue>,
    #[serde(borrow)]
    sha256: Option<&'a RawValue>,
}

/// The string a raw value is, if it is one. The text is copied only where it has escapes.
pub(crate) fn string(raw: &RawValue) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct S<'a>(#[serde(borrow)] Cow<'a, str>);
    serde_json::from_str::<S<'_>>(raw.get()).ok().map(|s| s.0)
}

/// The whole number a raw value is, if it is one; never by way of a float.
pub(crate) fn whole(raw: &RawValue) -> Option<u64> {
    serde_json::from_str(raw.get()).ok()
}

/// Collects what is wrong with an envelope, so that all of it is told at once.
#[derive(Default)]
struct Faults(Vec<String>);

impl Faults {
    fn need<'a, T>(
        &mut self,
        raw: Option<&'a RawValue>,
        name: &str,
        form: &str,
        read: impl Fn(&'a RawValue) -> Option<T>,
    ) -> Option<T> {
        let value = raw.and_then(read);
        if value.is_none() {
            let what = if raw.is_some() {
                "is not"
            } else {
                "is missing; it must be"
            };
            self.0.push(format!("`{name}` {what} {form}"));
        }
        value
    }
}

/// Reads the `detail` of an event. Unknown keys are skipped unread.
///
/// # Errors
/// Every fault of an event that can never succeed (3.5, Reject).
pub fn read(detail: &str) -> Result<Read<'_>, Reject> {
    let env: Envelope<'_> = serde_json::from_str(detail)
        .map_err(|_| Reject::one("`detail` is not a JSON object, or names a key twice"))?;
    let mut faults = Faults::default();
    faults.need(
        env.schema,
        "schema",
        "the number 1, the only version this function reads",
        |r| whole(r).filter(|n| *n == 1),
    );
    let stage_name = faults.need(env.stage, "stage", "a string", string);
    let result = faults.need(env.result, "result", "a string", string);
    let (Some(stage_name), Some(result), true) = (stage_name, result, faults.0.is_empty()) else {
        return Err(Reject(faults.0));
    };
    let Some(stage) = Stage::parse(&stage_name) else {
        return Ok(Read::StageIgnored);
    };
    if result != "succeeded" {
        return Ok(Read::StageNotSucceeded);
    }
    act(&env, stage, faults)
}

fn act<'a>(env: &Envelope<'a>, stage: Stage, mut faults: Faults) -> Result<Read<'a>, Reject> {
    let plane = faults.need(
        env.data_plane_id,
        "data_plane_id",
        "an id of 16 hex digits",
        |r| string(r).and_then(|s| PlaneId::parse(&s)),
    );
    let converge_id = faults.need(
        env.converge_id,
        "converge_id",
        "a string of 1 to 256 characters",
        |r| string(r).filter(|s| !s.is_empty() && s.chars().count() <= 256),
    );
    let order = faults.need(
        env.converge_seq,
        "converge_seq",
        "a whole number that, times ten, fits 64 bits",
        |r| whole(r).and_then(|seq| stage.order(seq)),
    );
    let at = faults.need(env.completed_at, "completed_at", "an RFC 3339 time", |r| {
        string(r).and_then(|s| s.parse::<Timestamp>().ok())
    });
    let pins = faults.need(env.pinned_links, "pinned_links", "a list", |r| {
        serde_json::from_str::<Vec<&'a RawValue>>(r.get()).ok()
    });
    let outputs = match (env.outputs, env.outputs_ref) {
        (Some(_), Some(_)) => {
            faults
                .0
                .push("`outputs` and `outputs_ref` are both given; only one of them may be".into());
            None
        }
        (_, Some(raw)) => pointer(raw, &mut faults).map(Outputs::Pointer),
        (outputs, None) => Some(Outputs::Inline(outputs.map(link_results).unwrap_or_default())),
    };
    let (Some(plane), Some(converge_id), Some(order), Some(at), Some(pins), Some(outputs), true) =
        (plane, converge_id, order, at, pins, outputs, faults.0.is_empty())
    else {
        return Err(Reject(faults.0));
    };
    let network = env
        .network
        .and_then(|r| serde_json::from_str::<RawNetwork>(r.get()).ok());
    let network_rebuild =
        network.is_some_and(|n| n.uses_private_network == Some(true) && n.was == Some(false));
    let (pins, unreadable) = read_pins(&pins);
    let stamp = Stamp {
        plane,
        converge_id: converge_id.into_owned(),
        stage,
        order,
        at,
        network_rebuild,
    };
    Ok(Read::Act(Box::new(Event {
        stamp,
        pins,
        unreadable,
        outputs,
    })))
}

/// Pins by link. A pin whose generation can not be read, and repeated pins that differ, make that link
/// unusable and no other (3.2 rule 4).
fn read_pins(pins: &[&RawValue]) -> (BTreeMap<LinkId, Option<Generation>>, usize) {
    let mut by_id = BTreeMap::new();
    let mut unreadable = 0;
    for raw in pins {
        let pin = serde_json::from_str::<RawPin<'_>>(raw.get()).ok();
        let id = pin
            .as_ref()
            .and_then(|p| p.id)
            .and_then(string)
            .and_then(|s| LinkId::parse(&s));
        let (Some(pin), Some(id)) = (pin, id) else {
            unreadable += 1;
            continue;
        };
        let generation = pin.generation.and_then(whole);
        by_id
            .entry(id)
            .and_modify(|g: &mut Option<Generation>| *g = g.filter(|g| Some(*g) == generation))
            .or_insert(generation);
    }
    (by_id, unreadable)
}

fn pointer(raw: &RawValue, faults: &mut Faults) -> Option<Pointer> {
    let Ok(p) = serde_json::from_str::<RawPointer<'_>>(raw.get()) else {
        faults
            .0
            .push("`outputs_ref` is not an object with bucket, key, version_id, bytes and sha256".into());
        return None;
    };
    let text = |r| string(r).filter(|s| !s.is_empty()).map(Cow::into_owned);
    let bucket = faults.need(p.bucket, "outputs_ref.bucket", "a bucket name", text);
    let key = faults.need(p.key, "outputs_ref.key", "an object key", text);
    let version_id = match p.version_id {
        None => Some(None),
        some => faults
            .need(some, "outputs_ref.version_id", "a version id or null", text)
            .map(Some),
    };
    let form = format!("a whole number of at most {MAX_OUTPUTS_BYTES}");
    let bytes = faults.need(p.bytes, "outputs_ref.bytes", &form, |r| {
        whole(r).filter(|n| *n <= MAX_OUTPUTS_BYTES)
    });
    let sha256 = faults.need(p.sha256, "outputs_ref.sha256", "64 hex digits", |r| {
        string(r)
            .filter(|s| s.len() == 64 && s.bytes().all(|b| b.is_ascii_hexdigit()))
            .map(|s| s.to_ascii_lowercase())
    });
    Some(Pointer {
        bucket: bucket?,
        key: key?,
        version_id: version_id?,
        bytes: bytes?,
        sha256: sha256?,
    })
}

/// The elements of `link_results`. Absent, null, or anything but a list (such as the mask `"[secret]"`) is
/// no result at all, and no fault.
pub fn link_results(outputs: &RawValue) -> Vec<&RawValue> {
    serde_json::from_str::<RawOutputs<'_>>(outputs.get())
        .ok()
        .and_then(|o| o.link_results)
        .and_then(|r| serde_json::from_str(r.get()).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"schema":1,"data_plane_id":"0e8f3a0000000055","converge_id":"c","converge_seq":42,
        "stage":"PulumiUp1","result":"succeeded","completed_at":"2026-09-10T14:00:40.123456+02:00",
        "pinned_links":[{"id":"0000000000000b01","generation":1}],"outputs":null,"outputs_ref":null,"later":1}"#;

    fn with(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from), "{from}");
        GOOD.replacen(from, to, 1)
    }

    fn faults(text: &str) -> Vec<String> {
        read(text).map(|r| format!("{r:?}")).unwrap_err().0
    }

    fn event(text: &str) -> Box<Event<'_>> {
        match read(text).unwrap() {
            Read::Act(e) => e,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_good_event_is_read_and_its_time_is_in_utc() {
        let e = event(GOOD);
        assert_eq!(e.stamp.order, 421);
        assert_eq!(e.stamp.at.to_string(), "2026-09-10T12:00:40.123456Z");
        assert_eq!(
            e.pins,
            BTreeMap::from([(LinkId::parse("0000000000000b01").unwrap(), Some(1))])
        );
    }

    #[test]
    fn every_fault_is_told_at_once_and_no_value_is_repeated() {
        let text = r#"{"schema":1,"stage":"Ansible","result":"succeeded","data_plane_id":"hunter2","converge_seq":1.5,
            "completed_at":"hunter2","pinned_links":{},"outputs":{},"outputs_ref":{"bucket":"","key":7,"bytes":-1,"sha256":"hunter2"}}"#;
        let all = faults(text);
        assert_eq!(all.len(), 6, "{all:?}");
        assert!(!all.join(" ").contains("hunter2"), "{all:?}");
        let pointer = faults(&with(
            r#""outputs_ref":null"#,
            r#""outputs_ref":{"bucket":"","key":7,"bytes":5242881,"sha256":"zz"}"#,
        ));
        assert_eq!(pointer.len(), 4, "{pointer:?}");
    }

    #[test]
    fn envelopes_that_can_never_succeed() {
        for (from, to) in [
            (r#""schema":1"#, r#""schema":2"#),
            (r#""schema":1"#, r#""schema":1.0"#),
            (r#""schema":1"#, r#""schema":1,"schema":1"#),
            (r#""stage":"PulumiUp1""#, r#""stage":7"#),
            (r#""result":"succeeded""#, r#""result":null"#),
            (r#""converge_seq":42"#, r#""converge_seq":"42""#),
            (r#""converge_seq":42"#, r#""converge_seq":18446744073709551615"#),
            (r#""converge_id":"c""#, r#""converge_id":"""#),
            (
                r#""outputs":null,"outputs_ref":null"#,
                r#""outputs":{},"outputs_ref":{}"#,
            ),
        ] {
            assert_eq!(faults(&with(from, to)).len(), 1, "{to}");
        }
        assert_eq!(faults("[]").len(), 1);
        assert_eq!(faults("17").len(), 1);
    }

    #[test]
    fn a_sequence_beyond_two_to_the_53_stays_exact() {
        let text = with(r#""converge_seq":42"#, r#""converge_seq":1788955240123457"#);
        assert_eq!(event(&text).stamp.order, 17_889_552_401_234_571);
    }

    #[test]
    fn an_ignored_or_failed_stage_needs_nothing_else() {
        assert!(matches!(
            read(r#"{"schema":1,"stage":"Invented","result":"succeeded"}"#),
            Ok(Read::StageIgnored)
        ));
        assert!(matches!(
            read(r#"{"schema":1,"stage":"Ansible","result":"failed"}"#),
            Ok(Read::StageNotSucceeded)
        ));
    }

    #[test]
    fn pins_fail_one_by_one() {
        let id = "0000000000000b0";
        let text = with(
            r#"[{"id":"0000000000000b01","generation":1}]"#,
            &format!(
                r#"[{{"id":"{id}1","generation":1}},{{"id":"{id}1","generation":1}},{{"id":"{id}2","generation":1}},
                {{"id":"{id}2","generation":2}},{{"id":"{id}2","generation":1}},{{"id":"{id}3","generation":1.0}},{{"id":9}},17,{{"generation":1}}]"#
            ),
        );
        let e = event(&text);
        assert_eq!(
            e.pins.values().copied().collect::<Vec<_>>(),
            [Some(1), None, None]
        );
        assert_eq!(e.unreadable, 3);
    }

    #[test]
    fn results_that_are_not_a_list_are_no_results() {
        for outputs in [
            r#"{}"#,
            r#"{"link_results":null}"#,
            r#"{"link_results":"[secret]"}"#,
            r#""[secret]""#,
            "[1]",
        ] {
            let raw: &RawValue = serde_json::from_str(outputs).unwrap();
            assert!(link_results(raw).is_empty(), "{outputs}");
        }
    }

    #[test]
    fn the_network_flag_is_wording_and_never_a_fault() {
        let flips = with(
            r#""outputs":null"#,
            r#""network":{"uses_private_network":true,"was":false},"outputs":null"#,
        );
        assert!(event(&flips).stamp.network_rebuild);
        for other in [
            r#"{"uses_private_network":true,"was":true}"#,
            r#"{"was":false}"#,
            "17",
            r#"{"was":"no"}"#,
        ] {
            let text = with(
                r#""outputs":null"#,
                &format!(r#""network":{other},"outputs":null"#),
            );
            assert!(!event(&text).stamp.network_rebuild, "{other}");
        }
    }

    #[test]
    fn deep_nesting_outside_the_allow_list_is_skipped() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let text = with(r#""later":1"#, &format!(r#""later":{deep}"#));
        assert_eq!(event(&text).stamp.order, 421);
    }
}
