//! The shell of the writer: gets the results, tries one conditional update per pinned link, at most eight at
//! a time, and says for each what became of it. It decides nothing: `decide` does.

use super::decide::{self, Missed, Observation, Step};
use super::event::{self, Event, Outputs as Where, Pointer, Read, Reject, Stamp};
use super::model::{LinkId, Outcome};
use super::store::{self, Form};
use crate::error::{CallError, Class, Failure};
use crate::http::hex;
use crate::store::{Table, WriteError};
use futures_util::stream::{self, StreamExt};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Updates in flight (3.4).
pub const IN_FLIGHT: usize = 8;
/// Tries to find the form that fits a row which changes meanwhile (3.6).
const ROUNDS: usize = 3;
/// Links named in the text of a failed invocation; more are counted only.
const NAMED: usize = 50;

/// Where the outputs of a stage are kept when they do not fit an event.
#[expect(
    async_fn_in_trait,
    reason = "used with generics on one thread; no Send bound is wanted"
)]
pub trait Outputs {
    /// The object's bytes, checked by an [`Intake`] while they come in.
    async fn read(&self, pointer: &Pointer) -> Result<Vec<u8>, OutputsError>;
}

/// Why an object's bytes are not here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutputsError {
    /// The call failed, or the object is not there (yet): try again.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The object is not the one the event describes: trying again can not help.
    #[error("{0}")]
    Mismatch(String),
}

/// Takes an object in piece by piece: never more than the event announced, hashed on the way.
#[derive(Debug)]
pub struct Intake<'a> {
    pointer: &'a Pointer,
    bytes: Vec<u8>,
    hash: Sha256,
}

impl<'a> Intake<'a> {
    /// An empty intake for the object of `pointer`, whose length was checked when the event was read.
    pub fn new(pointer: &'a Pointer) -> Self {
        let room = usize::try_from(pointer.bytes.min(event::MAX_OUTPUTS_BYTES)).unwrap_or_default();
        Self {
            pointer,
            bytes: Vec::with_capacity(room),
            hash: Sha256::new(),
        }
    }

    /// The next piece.
    ///
    /// # Errors
    /// The object is longer than announced.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), OutputsError> {
        let long = self.bytes.len().saturating_add(piece.len()) as u64;
        if long > self.pointer.bytes {
            let announced = self.pointer.bytes;
            return Err(OutputsError::Mismatch(format!(
                "it is longer than the {announced} bytes announced"
            )));
        }
        self.hash.update(piece);
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    /// All bytes, once length and hash are as announced.
    ///
    /// # Errors
    /// They are not.
    pub fn finish(self) -> Result<Vec<u8>, OutputsError> {
        let (have, want) = (self.bytes.len() as u64, self.pointer.bytes);
        if have != want {
            return Err(OutputsError::Mismatch(format!(
                "it has {have} bytes instead of the {want} announced"
            )));
        }
        if hex(&self.hash.finalize()) != self.pointer.sha256 {
            return Err(OutputsError::Mismatch(
                "its SHA-256 is not the one announced".into(),
            ));
        }
        Ok(self.bytes)
    }
}

/// What the writer works with.
#[derive(Debug)]
pub struct World<'a, T, O> {
    /// The one table.
    pub table: &'a T,
    /// Where outputs are kept.
    pub outputs: &'a O,
    /// Buckets an event may name (`OUTPUTS_BUCKETS`).
    pub buckets: &'a [String],
}

/// What became of an event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Processed {
    /// `Processed`, `StageIgnored` or `StageNotSucceeded` (contract 4.5).
    pub event: &'static str,
    /// By link.
    pub outcomes: BTreeMap<LinkId, Outcome>,
    /// Elements that are not objects with a readable id.
    pub unreadable: usize,
    /// Failed calls to the table, by kind.
    pub errors: BTreeMap<Class, usize>,
    /// What the event was about, if it wrote.
    pub stamp: Option<Stamp>,
}

/// Why an event was not processed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// It can never succeed.
    Reject(Reject),
    /// Its outputs could not be read now.
    Unread(CallError),
}

/// Processes the `detail` of a stage event. `has_time` is asked before each update; once it says no, the
/// rest is left for the retry, in which what was written comes back as a duplicate.
///
/// # Errors
/// See [`Stop`].
pub async fn process<T: Table, O: Outputs>(
    world: &World<'_, T, O>,
    detail: &str,
    has_time: impl Fn() -> bool,
) -> Result<Processed, Stop> {
    let event = match event::read(detail).map_err(Stop::Reject)? {
        Read::StageIgnored => {
            return Ok(Processed {
                event: "StageIgnored",
                ..Processed::default()
            });
        }
        Read::StageNotSucceeded => {
            return Ok(Processed {
                event: "StageNotSucceeded",
                ..Processed::default()
            });
        }
        Read::Act(event) => event,
    };
    match &event.outputs {
        Where::Inline(results) => Ok(record(world.table, &event, results, has_time).await),
        Where::Pointer(pointer) => {
            let object = fetch(world, pointer).await?;
            let raw = parsed(&object)?;
            Ok(record(world.table, &event, &event::link_results(raw), has_time).await)
        }
    }
}

async fn fetch<T, O: Outputs>(world: &World<'_, T, O>, pointer: &Pointer) -> Result<Vec<u8>, Stop> {
    if !world.buckets.contains(&pointer.bucket) {
        let text =
            "`outputs_ref.bucket` is not one of OUTPUTS_BUCKETS; add it there if the controller may use it";
        return Err(Stop::Reject(Reject::one(text)));
    }
    world.outputs.read(pointer).await.map_err(|e| match e {
        OutputsError::Call(e) => Stop::Unread(e),
        OutputsError::Mismatch(text) => Stop::Reject(Reject::one(format!(
            "`outputs_ref` does not describe its object: {text}"
        ))),
    })
}

fn parsed(object: &[u8]) -> Result<&RawValue, Stop> {
    serde_json::from_slice(object)
        .map_err(|_| Stop::Reject(Reject::one("the object of `outputs_ref` is not JSON")))
}

/// Tries every write of the plan; one link's trouble never stops another's.
async fn record<T: Table>(
    table: &T,
    event: &Event<'_>,
    results: &[&RawValue],
    has_time: impl Fn() -> bool,
) -> Processed {
    let plan = decide::plan(event, results);
    let mut out = Processed {
        event: "Processed",
        unreadable: plan.unreadable,
        stamp: Some(event.stamp.clone()),
        ..Processed::default()
    };
    let mut writes: Vec<(LinkId, Observation<'_>)> = Vec::new();
    for (id, step) in plan.steps {
        match step {
            Step::Done(outcome) => {
                out.outcomes.insert(id, outcome);
            }
            Step::Write(observation) => writes.push((id, observation)),
        }
    }
    let has_time = &has_time;
    let mut done = stream::iter(writes)
        .map(|(id, seen)| async move {
            let result = if has_time() {
                write(table, &event.stamp, id, &seen).await
            } else {
                Ok(Outcome::Unwritten)
            };
            (id, result)
        })
        .buffer_unordered(IN_FLIGHT);
    while let Some((id, result)) = done.next().await {
        let outcome = result.unwrap_or_else(|e| {
            *out.errors.entry(e.class).or_default() += 1;
            Outcome::Unwritten
        });
        out.outcomes.insert(id, outcome);
    }
    drop(done);
    out
}

/// One link: the form for a row that is not failed first, then the one that fits what is there.
async fn write<T: Table>(
    table: &T,
    stamp: &Stamp,
    id: LinkId,
    seen: &Observation<'_>,
) -> Result<Outcome, CallError> {
    let mut form = Form::Usual;
    for _ in 0..ROUNDS {
        let update = store::observe(stamp, id, seen, form);
        match table.write(std::slice::from_ref(&update), "").await {
            Ok(()) => return Ok(seen.seen.written()),
            Err(WriteError::Call(e)) => return Err(e),
            Err(WriteError::Conflict(failed)) => {
                let old = failed.first().and_then(|c| c.old.as_ref());
                match decide::missed(old, seen.generation, stamp.order) {
                    Missed::Done(outcome) => return Ok(outcome),
                    Missed::Passes(status) => form = Form::fitting(status),
                }
            }
        }
    }
    Ok(Outcome::Unwritten)
}

/// The invocation's answer: the outcomes, or the failure that makes Lambda deliver the event again
/// (`Link.Retry`) or that will end in the failure queue whatever is tried (`Link.Rejected`).
///
/// # Errors
/// See above; the text lists every fault, or the links to retry.
pub fn answer(result: &Result<Processed, Stop>) -> Result<Value, Failure> {
    let processed = match result {
        Ok(p) => p,
        Err(Stop::Reject(Reject(faults))) => {
            let text = format!(
                "The event can never succeed and nothing was written: {}. Correct the controller that sent it; a \
                 retry of the same event is harmless and useless.",
                faults.join("; ")
            );
            return Err(Failure::new("Link.Rejected", text));
        }
        Err(Stop::Unread(e)) => {
            let text = format!(
                "The object of `outputs_ref` could not be read: {} answered {}. Nothing was written; the event is \
                 retried.",
                e.action, e.code
            );
            return Err(Failure::new("Link.Retry", text));
        }
    };
    let retry: Vec<String> = processed
        .outcomes
        .iter()
        .filter(|(_, o)| o.must_retry())
        .map(|(id, o)| format!("{id}={o}"))
        .collect();
    if !retry.is_empty() {
        let more = retry.len().saturating_sub(NAMED);
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        let text = format!(
            "{} of {} links must be tried again: {}{more}. What was written comes back as Duplicate.",
            retry.len(),
            processed.outcomes.len(),
            retry
                .iter()
                .take(NAMED)
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(", ")
        );
        return Err(Failure::new("Link.Retry", text));
    }
    let outcomes: BTreeMap<String, String> = processed
        .outcomes
        .iter()
        .map(|(id, o)| (id.to_string(), o.to_string()))
        .collect();
    Ok(json!({"event": processed.event, "outcomes": outcomes, "unreadable": processed.unreadable}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::cases;
    use crate::links::fake::{FakeWorld, Trouble, block_on};
    use crate::links::model::PlaneId;
    use crate::links::store::link_key;
    use crate::store::{Attr, Cond, Item, Op, Write};

    const PLANE: &str = "0e8f3a0000000099";

    fn id(n: usize) -> LinkId {
        LinkId::parse(&format!("{n:016x}")).unwrap()
    }

    fn plane() -> PlaneId {
        PlaneId::parse(PLANE).unwrap()
    }

    /// A world with links 1 to `n`, all pending at generation 1.
    fn world(n: usize) -> FakeWorld {
        let world = FakeWorld::default();
        for i in 1..=n {
            let key = link_key(plane(), id(i));
            world.table.borrow_mut().seed(Item::from([
                ("pk".into(), Attr::s(key.pk)),
                ("sk".into(), Attr::s(key.sk)),
                ("generation".into(), Attr::n(1)),
                ("status".into(), Attr::s("pending")),
            ]));
        }
        world
    }

    fn results(n: usize) -> String {
        let all: Vec<String> = (1..=n)
            .map(|i| {
                format!(
                    r#"{{"id":"{}","status":"provisioned","details":{{"n":{i}}}}}"#,
                    id(i)
                )
            })
            .collect();
        format!(r#"{{"link_results":[{}]}}"#, all.join(","))
    }

    fn event(n: usize, outputs: &str) -> String {
        let pins: Vec<String> = (1..=n)
            .map(|i| format!(r#"{{"id":"{}","generation":1}}"#, id(i)))
            .collect();
        format!(
            r#"{{"schema":1,"data_plane_id":"{PLANE}","converge_id":"c","converge_seq":7,"stage":"PulumiUp1","result":"succeeded","completed_at":"2026-09-10T12:00:40Z","pinned_links":[{}],{outputs}}}"#,
            pins.join(",")
        )
    }

    fn inline(n: usize) -> String {
        event(n, &format!(r#""outputs":{}"#, results(n)))
    }

    fn run(world: &FakeWorld, event: &str) -> Result<Processed, Stop> {
        let buckets = [cases::BUCKET.to_owned()];
        block_on(process(
            &World {
                table: world,
                outputs: world,
                buckets: &buckets,
            },
            event,
            || true,
        ))
    }

    fn count(p: &Processed, outcome: Outcome) -> usize {
        p.outcomes.values().filter(|o| **o == outcome).count()
    }

    #[test]
    fn never_more_than_eight_updates_in_flight_and_never_fewer_when_there_are_more() {
        let world = world(100);
        let p = run(&world, &inline(100)).unwrap();
        assert_eq!(count(&p, Outcome::Published), 100);
        assert_eq!(world.in_flight.get(), (0, IN_FLIGHT));
        assert_eq!(world.writes.get(), 100);
    }

    #[test]
    fn trouble_with_one_link_stops_no_other_and_the_retry_ends_as_duplicate() {
        for trouble in [Trouble::Throttled, Trouble::TimedOut, Trouble::AnswerLost] {
            let world = world(3);
            world.trouble.borrow_mut().extend([Trouble::None, trouble]);
            let first = run(&world, &inline(3));
            let p = first.as_ref().unwrap();
            assert_eq!(
                (count(p, Outcome::Published), count(p, Outcome::Unwritten)),
                (2, 1)
            );
            assert_eq!(p.errors.values().sum::<usize>(), 1);
            let failure = answer(&first).unwrap_err();
            assert_eq!(failure.error_type, "Link.Retry");
            assert!(
                failure.message.contains(&format!("{}=Unwritten", id(2))),
                "{}",
                failure.message
            );
            let second = run(&world, &inline(3)).unwrap();
            let written = usize::from(trouble != Trouble::AnswerLost);
            assert_eq!(count(&second, Outcome::Published), written, "{trouble:?}");
            assert_eq!(count(&second, Outcome::Duplicate), 3 - written, "{trouble:?}");
            assert!(answer(&Ok(second)).is_ok());
        }
    }

    #[test]
    fn without_time_nothing_is_started_and_the_rest_is_retried() {
        let world = world(20);
        let left = std::cell::Cell::new(5);
        let buckets = [];
        let w = World {
            table: &world,
            outputs: &world,
            buckets: &buckets,
        };
        let p = block_on(process(&w, &inline(20), || left.replace(left.get() - 1) > 0)).unwrap();
        assert_eq!(
            (count(&p, Outcome::Published), count(&p, Outcome::Unwritten)),
            (5, 15)
        );
        assert_eq!(world.writes.get(), 5);
        let again = run(&world, &inline(20)).unwrap();
        assert_eq!(
            (
                count(&again, Outcome::Published),
                count(&again, Outcome::Duplicate)
            ),
            (15, 5)
        );
    }

    fn set_status(n: usize, status: &str) -> Vec<Write> {
        let set = vec![("status".to_owned(), Attr::s(status))];
        let op = Op::Update {
            set,
            remove: vec![],
            add: vec![],
        };
        vec![Write {
            key: link_key(plane(), id(n)),
            op,
            when: Cond::Always,
        }]
    }

    #[test]
    fn a_row_that_changes_between_the_tries_is_tried_three_times_and_then_again_later() {
        let w = world(1);
        // Failed before the first try, pending again before the second, which the third then fits.
        w.meanwhile
            .borrow_mut()
            .extend([set_status(1, "failed"), set_status(1, "pending"), vec![]]);
        assert_eq!(count(&run(&w, &inline(1)).unwrap(), Outcome::Published), 1);
        assert_eq!(w.writes.get(), 3);
        let w = world(1);
        w.meanwhile.borrow_mut().extend([
            set_status(1, "failed"),
            set_status(1, "pending"),
            set_status(1, "failed"),
            vec![],
        ]);
        let result = run(&w, &inline(1));
        assert_eq!(w.writes.get(), 3);
        assert_eq!(answer(&result).unwrap_err().error_type, "Link.Retry");
        assert_eq!(count(&run(&w, &inline(1)).unwrap(), Outcome::Published), 1);
    }

    #[test]
    fn a_row_behind_its_pin_is_retried_and_a_newer_schema_is_never_rewritten() {
        for (attribute, value, outcome) in [
            ("generation", 0, Outcome::RowBehind),
            ("schema", 2, Outcome::RowNewer),
        ] {
            let w = world(1);
            let key = link_key(plane(), id(1));
            let mut item = w.item(&key).unwrap();
            item.insert(attribute.into(), Attr::n(value));
            w.table.borrow_mut().seed(item.clone());
            let result = run(&w, &inline(1));
            assert_eq!(result.as_ref().unwrap().outcomes[&id(1)], outcome);
            assert_eq!(answer(&result).unwrap_err().error_type, "Link.Retry");
            assert_eq!(w.item(&key), Some(item));
        }
    }

    fn pointer(bytes: &[u8], change: &str) -> String {
        let sha = hex(&Sha256::digest(bytes));
        let text = format!(
            r#""outputs_ref":{{"bucket":"outputs","key":"k","version_id":"v1","bytes":{},"sha256":"{sha}"}}"#,
            bytes.len()
        );
        match change.split_once("=>") {
            Some((from, to)) => {
                assert!(text.contains(from), "{from}");
                text.replacen(from, to, 1)
            }
            None => text,
        }
    }

    #[test]
    fn a_pointer_is_checked_before_it_is_read() {
        let body = results(1).into_bytes();
        let key = |v: &str| (cases::BUCKET.to_owned(), "k".to_owned(), Some(v.to_owned()));
        let with = |object: &[u8], pointer: String| {
            let mut w = world(1);
            w.objects.insert(key("v1"), object.to_vec());
            let result = run(&w, &event(1, &pointer));
            let untouched = w.item(&link_key(plane(), id(1))).unwrap().len() == 4;
            (answer(&result).map_err(|f| (f.error_type, f.message)), untouched)
        };
        let (ok, untouched) = with(&body, pointer(&body, ""));
        assert!(ok.is_ok() && !untouched);
        let longer = [body.as_slice(), b" "].concat();
        let shorter = &body[..body.len() - 1];
        let mut other = body.clone();
        other[0] = b'[';
        for (object, change, kind, words) in [
            (longer.as_slice(), "", "Link.Rejected", "longer than"),
            (shorter, "", "Link.Rejected", "bytes instead of"),
            (other.as_slice(), "", "Link.Rejected", "SHA-256"),
            (&body, "v1=>v2", "Link.Retry", "s3:GetObject"),
            (
                &body,
                "\"outputs\"=>\"elsewhere\"",
                "Link.Rejected",
                "OUTPUTS_BUCKETS",
            ),
        ] {
            let (result, untouched) = with(object, pointer(&body, change));
            let (got, message) = result.unwrap_err();
            assert_eq!(got, kind, "{message}");
            assert!(untouched && message.contains(words), "{message}");
        }
        let (not_json, _) = with(b"{", pointer(b"{", ""));
        assert_eq!(not_json.unwrap_err().0, "Link.Rejected");
        let (no_results, untouched) = with(b"\"[secret]\"", pointer(b"\"[secret]\"", ""));
        assert_eq!(
            no_results.unwrap()["outcomes"][id(1).to_string()],
            "NoObservation"
        );
        assert!(untouched);
    }

    #[test]
    fn a_failure_names_at_most_fifty_links_and_counts_the_rest() {
        let w = world(0);
        w.trouble.borrow_mut().extend([Trouble::Throttled; 60]);
        let failure = answer(&run(&w, &inline(60))).unwrap_err();
        assert!(failure.message.contains("60 of 60 links") && failure.message.contains("and 10 more"));
        assert_eq!(failure.message.matches("=Unwritten").count(), NAMED);
    }

    #[test]
    fn answers_have_the_words_of_the_contract() {
        let w = world(1);
        let p = run(&w, &event(2, &format!(r#""outputs":{}"#, results(1)))).unwrap();
        assert_eq!(
            answer(&Ok(p)).unwrap(),
            json!({"event":"Processed","outcomes":{(id(1).to_string()):"Published",(id(2).to_string()):"NoObservation"},"unreadable":0})
        );
        let ignored = run(&w, r#"{"schema":1,"stage":"AwaitDNS1","result":"succeeded"}"#);
        assert_eq!(answer(&ignored).unwrap()["event"], "StageIgnored");
        let rejected = answer(&run(&w, r#"{"schema":9,"stage":"Ansible"}"#)).unwrap_err();
        assert_eq!(rejected.error_type, "Link.Rejected");
        assert!(rejected.message.contains("`schema`") && rejected.message.contains("`result`"));
    }
}
