//! Pure: what an event says about each pinned link (spec/links.md 3.2), and what it means when a write's
//! condition did not hold (3.5). What is written in each case is in `store`.

use super::event::{self, Event};
use super::model::{Generation, LinkId, LinkStatus, Outcome, SCHEMA, Stage};
use crate::store::{Attr, Item};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Longest JSON text of details that fits a row beside its configuration (3.2 rule 9).
pub const MAX_DETAILS_BYTES: usize = 300 * 1024;
/// Longest stored error (3.2 rule 8).
pub const MAX_ERROR_BYTES: usize = 4_096;
/// Stored where a failure came without a text.
pub const NO_ERROR_TEXT: &str = "provisioning failed without an error message";

/// What is to be done for one link of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<'a> {
    /// Nothing: this is the outcome.
    Done(Outcome),
    /// Try to write this observation.
    Write(Observation<'a>),
}

/// A believable result for a pinned link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation<'a> {
    /// The pinned generation; the row must have it.
    pub generation: Generation,
    /// What was observed.
    pub seen: Seen<'a>,
}

/// What was observed of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen<'a> {
    /// A success before the status may be settled: details only (D1).
    Early {
        /// JSON text as received.
        details: &'a str,
    },
    /// A success that settles the status. Without details those in the row stay (D5).
    Settled {
        /// JSON text as received.
        details: Option<&'a str>,
    },
    /// A failure, at any stage (D2). Without details those in the row go (D4).
    Failed {
        /// Never empty, at most [`MAX_ERROR_BYTES`].
        error: Cow<'a, str>,
        /// JSON text as received.
        details: Option<&'a str>,
    },
}

impl Seen<'_> {
    /// The outcome once it is written.
    pub fn written(&self) -> Outcome {
        match self {
            Seen::Early { .. } => Outcome::Published,
            Seen::Settled { .. } => Outcome::Settled,
            Seen::Failed { .. } => Outcome::FailedRecorded,
        }
    }
}

/// One link's steps, and what could not be attributed to any link.
#[derive(Debug)]
pub struct Plan<'a> {
    /// By link, so that the same event gives the same plan.
    pub steps: BTreeMap<LinkId, Step<'a>>,
    /// Elements (pins and results) that are not objects with a readable id.
    pub unreadable: usize,
}

/// The keys of a result element that are read.
#[derive(Deserialize)]
struct RawResult<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    generation: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
    #[serde(borrow)]
    details: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// A result element with its parts read; equal elements are repeats of each other.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Element<'a> {
    /// `Err` when present but not a whole number.
    generation: Result<Option<Generation>, ()>,
    /// The word, if it is a string.
    status: Option<Cow<'a, str>>,
    details: Option<&'a str>,
    error: Option<Cow<'a, str>>,
}

/// All elements of one link.
enum Found<'a> {
    One(Element<'a>),
    Conflicting,
}

fn element<'a>(raw: &'a RawValue) -> Option<(LinkId, Element<'a>)> {
    let r: RawResult<'a> = serde_json::from_str(raw.get()).ok()?;
    let id = LinkId::parse(&event::string(r.id?)?)?;
    let generation = match r.generation {
        None => Ok(None),
        Some(g) => event::whole(g).map(Some).ok_or(()),
    };
    let element = Element {
        generation,
        status: r.status.and_then(event::string),
        details: r.details.map(RawValue::get),
        error: r.error.and_then(event::string),
    };
    Some((id, element))
}

/// What `results` say about each link that `event` pinned, by the rules of 3.2.
pub fn plan<'a>(event: &Event<'_>, results: &[&'a RawValue]) -> Plan<'a> {
    let mut unreadable = event.unreadable;
    let mut found: BTreeMap<LinkId, Found<'a>> = BTreeMap::new();
    for raw in results {
        let Some((id, element)) = element(raw) else {
            unreadable += 1;
            continue;
        };
        match found.get_mut(&id) {
            None => {
                found.insert(id, Found::One(element));
            }
            Some(Found::One(first)) if *first == element => {}
            Some(other) => *other = Found::Conflicting,
        }
    }
    let mut steps = BTreeMap::new();
    for (id, pin) in &event.pins {
        steps.insert(*id, step(event.stamp.stage, *pin, found.remove(id)));
    }
    steps.extend(
        found
            .into_keys()
            .map(|id| (id, Step::Done(Outcome::Unattributed))),
    );
    Plan { steps, unreadable }
}

fn step<'a>(stage: Stage, pin: Option<Generation>, found: Option<Found<'a>>) -> Step<'a> {
    let Some(pin) = pin else {
        return Step::Done(Outcome::Malformed);
    };
    let element = match found {
        None => return Step::Done(Outcome::NoObservation),
        Some(Found::Conflicting) => return Step::Done(Outcome::Malformed),
        Some(Found::One(e)) => e,
    };
    match element.generation {
        Err(()) => return Step::Done(Outcome::Malformed),
        Ok(Some(g)) if g != pin => return Step::Done(Outcome::StaleResult),
        Ok(_) => {}
    }
    let status = match element.status.as_deref().and_then(LinkStatus::parse) {
        None => return Step::Done(Outcome::Malformed),
        Some(LinkStatus::Pending) => return Step::Done(Outcome::NoObservation),
        Some(s) => s,
    };
    if element.details.is_some_and(|d| d.len() > MAX_DETAILS_BYTES) {
        return Step::Done(Outcome::TooLarge);
    }
    let seen = match (status, stage.settles(), element.details) {
        (LinkStatus::Failed, _, details) => Seen::Failed {
            error: error_text(element.error),
            details,
        },
        (_, true, details) => Seen::Settled { details },
        (_, false, Some(details)) => Seen::Early { details },
        (_, false, None) => return Step::Done(Outcome::NoObservation),
    };
    Step::Write(Observation {
        generation: pin,
        seen,
    })
}

/// The text to store for a failure: never empty, cut on a character boundary.
fn error_text(text: Option<Cow<'_, str>>) -> Cow<'_, str> {
    match text {
        Some(t) if !t.trim().is_empty() => {
            let end = t.floor_char_boundary(MAX_ERROR_BYTES);
            match t {
                Cow::Borrowed(b) => Cow::Borrowed(b.get(..end).unwrap_or(b)),
                Cow::Owned(mut o) => {
                    o.truncate(end);
                    Cow::Owned(o)
                }
            }
        }
        _ => Cow::Borrowed(NO_ERROR_TEXT),
    }
}

/// What it means that a write's condition did not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missed {
    /// This is the outcome.
    Done(Outcome),
    /// The guard holds, so it was the status that did not fit: try the form for this status.
    Passes(LinkStatus),
}

/// Judges the item that failed the condition of a write of `generation` with token `order` (3.5). Only what
/// the guard is about is read, so that an item that is odd elsewhere can still be told apart.
pub fn missed(old: Option<&Item>, generation: Generation, order: u64) -> Missed {
    let Some(item) = old else {
        return Missed::Done(Outcome::LinkGone);
    };
    let number = |name: &str| item.get(name).and_then(Attr::as_u64);
    if number("schema").is_some_and(|s| s > SCHEMA) {
        return Missed::Done(Outcome::RowNewer);
    }
    match number("generation") {
        Some(g) if g > generation => return Missed::Done(Outcome::StaleGeneration),
        Some(g) if g == generation => {}
        // Smaller, or not a number at all: no version of this link that we know.
        _ => return Missed::Done(Outcome::RowBehind),
    }
    if number("w_gen") == Some(generation) {
        match number("w_order") {
            Some(o) if o == order => return Missed::Done(Outcome::Duplicate),
            Some(o) if o > order => return Missed::Done(Outcome::Superseded),
            Some(_) => {}
            None => return Missed::Done(Outcome::RowBehind),
        }
    }
    match item
        .get("status")
        .and_then(Attr::as_str)
        .and_then(LinkStatus::parse)
    {
        Some(status) => Missed::Passes(status),
        None => Missed::Done(Outcome::RowBehind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::event::{Read, read};

    fn run(stage: &str, pins: &str, results: &str) -> Vec<(String, String)> {
        let text = format!(
            r#"{{"schema":1,"data_plane_id":"0e8f3a0000000055","converge_id":"c","converge_seq":7,"stage":"{stage}",
            "result":"succeeded","completed_at":"2026-09-10T12:00:40Z","pinned_links":{pins},"outputs":{{"link_results":{results}}}}}"#
        );
        let Read::Act(e) = read(&text).unwrap() else {
            panic!("{stage}")
        };
        let event::Outputs::Inline(results) = &e.outputs else {
            panic!()
        };
        plan(&e, results)
            .steps
            .into_iter()
            .map(|(id, s)| {
                let what = match s {
                    Step::Done(o) => o.to_string(),
                    Step::Write(o) => format!("{:?}", o.seen),
                };
                (id.to_string(), what)
            })
            .collect()
    }

    fn only(stage: &str, result: &str) -> String {
        let all = run(
            stage,
            r#"[{"id":"0000000000000b01","generation":1}]"#,
            &format!("[{result}]"),
        );
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].1.clone()
    }

    const ID: &str = r#""id":"0000000000000b01""#;

    #[test]
    fn identical_repeats_collapse_and_conflicting_ones_spoil_that_link_only() {
        let ok = format!(r#"{{{ID},"status":"provisioned","details":{{"a":1}}}}"#);
        let same = format!(r#"{{ "status":"provisioned", {ID}, "details":{{"a":1}}}}"#);
        assert_eq!(
            only("PulumiUp1", &format!("{ok},{same}")),
            r#"Early { details: "{\"a\":1}" }"#
        );
        for other in [
            format!(r#"{{{ID},"status":"provisioned","details":{{"a":2}}}}"#),
            format!(r#"{{{ID},"status":"failed","details":{{"a":1}}}}"#),
            format!(r#"{{{ID},"status":"provisioned","generation":1,"details":{{"a":1}}}}"#),
        ] {
            assert_eq!(
                only("PulumiUp1", &format!("{ok},{other}")),
                "Malformed",
                "{other}"
            );
            assert_eq!(
                only("PulumiUp1", &format!("{ok},{other},{ok}")),
                "Malformed",
                "{other}"
            );
        }
        let two = r#"[{"id":"0000000000000b01","generation":1},{"id":"0000000000000b02","generation":1}]"#;
        let good = r#"{"id":"0000000000000b02","status":"provisioned","details":1}"#;
        let all = run(
            "PulumiUp1",
            two,
            &format!(r#"[{ok},{{{ID},"status":"failed"}},{good}]"#),
        );
        assert_eq!(
            (all[0].1.as_str(), all[1].1.as_str()),
            ("Malformed", r#"Early { details: "1" }"#)
        );
    }

    #[test]
    fn words_and_generations_that_are_not_ours() {
        for (fields, want) in [
            (r#""status":"pending","details":{}"#, "NoObservation"),
            (r#""status":"Provisioned","details":{}"#, "Malformed"),
            (r#""status":null,"details":{}"#, "Malformed"),
            (r#""status":1"#, "Malformed"),
            (r#""details":{}"#, "Malformed"),
            (
                r#""status":"provisioned","generation":"1","details":{}"#,
                "Malformed",
            ),
            (
                r#""status":"provisioned","generation":1.0,"details":{}"#,
                "Malformed",
            ),
            (
                r#""status":"provisioned","generation":2,"details":{}"#,
                "StaleResult",
            ),
            (r#""status":"provisioned","details":null"#, "NoObservation"),
            (r#""status":"provisioned""#, "NoObservation"),
        ] {
            assert_eq!(only("PulumiUp1", &format!("{{{ID},{fields}}}")), want, "{fields}");
        }
        assert_eq!(
            only("Ansible", &format!(r#"{{{ID},"status":"provisioned"}}"#)),
            "Settled { details: None }"
        );
    }

    #[test]
    fn a_pin_that_can_not_be_used_spoils_its_link_even_without_a_result() {
        let pins = r#"[{"id":"0000000000000b01","generation":1},{"id":"0000000000000b01","generation":2}]"#;
        assert_eq!(run("PulumiUp1", pins, "[]")[0].1, "Malformed");
    }

    #[test]
    fn details_are_the_received_bytes_and_too_many_of_them_are_refused() {
        let odd = "{ \"z\": 9007199254740993.10, \"a\": [1e400,\"\\ud800 \\u00e9 é \u{2028}\"] , \"z\": 1 }";
        let got = only(
            "PulumiUp1",
            &format!(r#"{{{ID},"status":"provisioned","details":{odd}}}"#),
        );
        assert_eq!(got, format!("Early {{ details: {odd:?} }}"));
        let fits = format!("\"{}\"", "x".repeat(MAX_DETAILS_BYTES - 2));
        let over = format!("\"{}\"", "x".repeat(MAX_DETAILS_BYTES - 1));
        for (details, status, too_large) in [
            (&fits, "provisioned", false),
            (&over, "provisioned", true),
            (&over, "failed", true),
        ] {
            let got = only(
                "Ansible",
                &format!(r#"{{{ID},"status":"{status}","details":{details}}}"#),
            );
            assert_eq!(got == "TooLarge", too_large);
        }
    }

    #[test]
    fn an_error_is_never_empty_and_cut_on_a_character() {
        for none in ["null", r#""""#, r#"" ""#, "7"] {
            let got = only(
                "PulumiUp1",
                &format!(r#"{{{ID},"status":"failed","error":{none}}}"#),
            );
            assert!(got.contains(NO_ERROR_TEXT), "{got}");
        }
        // "é" is two bytes: 4,095 bytes, then one that does not fit.
        let long = format!("x{}", "é".repeat(3_000));
        assert_eq!(error_text(Some(Cow::Borrowed(&long))).len(), MAX_ERROR_BYTES - 1);
        assert_eq!(error_text(Some(Cow::Owned(long))).len(), MAX_ERROR_BYTES - 1);
    }

    #[test]
    fn a_row_that_is_odd_or_newer_is_not_judged_written() {
        let item = |fields: &[(&str, Attr)]| -> Item {
            fields.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect()
        };
        let newer = item(&[("schema", Attr::n(2)), ("generation", Attr::n(9))]);
        assert_eq!(missed(Some(&newer), 1, 71), Missed::Done(Outcome::RowNewer));
        let words = item(&[("generation", Attr::s("1"))]);
        assert_eq!(missed(Some(&words), 1, 71), Missed::Done(Outcome::RowBehind));
        let status = item(&[("generation", Attr::n(1)), ("status", Attr::s("deleting"))]);
        assert_eq!(missed(Some(&status), 1, 71), Missed::Done(Outcome::RowBehind));
        let no_order = item(&[
            ("generation", Attr::n(1)),
            ("w_gen", Attr::n(1)),
            ("status", Attr::s("failed")),
        ]);
        assert_eq!(missed(Some(&no_order), 1, 71), Missed::Done(Outcome::RowBehind));
    }

    #[test]
    fn a_token_of_another_generation_stands_in_nobodys_way() {
        let item: Item = [
            ("generation", Attr::n(2)),
            ("w_gen", Attr::n(1)),
            ("w_order", Attr::n(99)),
            ("status", Attr::s("failed")),
        ]
        .into_iter()
        .map(|(k, v)| (k.to_owned(), v))
        .collect();
        assert_eq!(missed(Some(&item), 2, 71), Missed::Passes(LinkStatus::Failed));
    }
}
