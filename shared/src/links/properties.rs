//! The property of the issue: all orders, repeats and losses of the events of two converges, edits and
//! deletions between any two of them, from any starting row. The invariants I1-I5 of spec/links.md 3.3.

use super::api;
use super::fake::{FakeWorld, block_on};
use super::model::Stage;
use super::run::{self, World};
use crate::http::Request;
use crate::store::{Attr, Item, Key};
use crate::time::Timestamp;
use proptest::prelude::*;
use proptest::sample::{Index, subsequence};
use serde_json::json;

const PLANE: &str = "0e8f3a0000000055";
const ID: &str = "0000000000000b01";

/// What a stage of a converge says about the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Says {
    Ok(bool),
    Failed(bool),
    Nothing,
}

/// A completed stage. Its content follows from its token, as it does in a real controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    seq: u64,
    rank: u64,
    pin: u64,
    says: Says,
}

impl Event {
    fn stage(self) -> Stage {
        [Stage::PulumiUp1, Stage::Ansible, Stage::Converge]
            .into_iter()
            .find(|s| s.rank() == self.rank)
            .unwrap()
    }

    fn order(self) -> u64 {
        self.seq * 10 + self.rank
    }

    /// Does it write anything at all?
    fn writes(self) -> bool {
        match self.says {
            Says::Ok(details) => details || self.rank > 1,
            Says::Failed(_) => true,
            Says::Nothing => false,
        }
    }

    fn json(self) -> String {
        let details = |with: bool| {
            if with {
                format!(r#"{{"from":{}}}"#, self.order())
            } else {
                "null".into()
            }
        };
        let result = match self.says {
            Says::Ok(with) => format!(
                r#"{{"id":"{ID}","status":"provisioned","details":{}}}"#,
                details(with)
            ),
            Says::Failed(with) => {
                format!(
                    r#"{{"id":"{ID}","status":"failed","error":"e{}","details":{}}}"#,
                    self.order(),
                    details(with)
                )
            }
            Says::Nothing => String::new(),
        };
        format!(
            r#"{{"schema":1,"data_plane_id":"{PLANE}","converge_id":"c{}","converge_seq":{},"stage":"{}","result":"succeeded","completed_at":"2026-09-10T12:{:02}:00Z","network":{{"uses_private_network":true,"was":{}}},"pinned_links":[{{"id":"{ID}","generation":{}}}],"outputs":{{"link_results":[{result}]}}}}"#,
            self.seq,
            self.seq,
            self.stage().as_str(),
            self.order() % 60,
            self.seq.is_multiple_of(2),
            self.pin,
        )
    }
}

/// Something that happens to the row.
#[derive(Debug, Clone, Copy)]
enum Step {
    Deliver(Event),
    Edit(u8),
    Delete,
}

fn says() -> impl Strategy<Value = Says> {
    prop_oneof![
        4 => any::<bool>().prop_map(Says::Ok),
        3 => any::<bool>().prop_map(Says::Failed),
        1 => Just(Says::Nothing),
    ]
}

/// All events of converges 7 and 8, both pinned at `pin`.
fn converges(pin: u64) -> impl Strategy<Value = Vec<Event>> {
    proptest::collection::vec(says(), 6).prop_map(move |all| {
        all.into_iter()
            .zip([(7, 1), (7, 2), (7, 3), (8, 1), (8, 2), (8, 3)])
            .map(|(says, (seq, rank))| Event { seq, rank, pin, says })
            .collect()
    })
}

/// Any row at generation 1 that keeps the invariants.
fn starting_row() -> impl Strategy<Value = Item> {
    let token = prop_oneof![
        Just(None::<(u64, u64)>),
        (61u64..64).prop_map(|o| Some((1u64, o))),
        (71u64..84).prop_map(|o| Some((1, o))),
        (71u64..84).prop_map(|o| Some((9, o))),
    ];
    (0usize..3, any::<bool>(), token).prop_map(|(status, with_details, token)| {
        let s = |v: &str| Attr::s(v);
        let mut item = Item::from([
            ("pk".into(), s(&format!("PLANE#{PLANE}"))),
            ("sk".into(), s(&format!("LINK#{ID}"))),
            ("schema".into(), Attr::n(1)),
            ("config".into(), s(&config(0))),
            ("provider".into(), s("aws")),
            ("service_identity".into(), s("svc")),
            ("generation".into(), Attr::n(1)),
            ("status".into(), s(["pending", "provisioned", "failed"][status])),
            ("future".into(), Attr::B(vec![1])),
        ]);
        let at = || Attr::s("2026-09-10T08:05:00Z");
        if status > 0 {
            item.insert("observed_at".into(), at());
        }
        if status == 2 {
            item.insert("error".into(), s("before"));
        }
        if with_details {
            item.insert("details".into(), s("{\"from\":0}"));
            item.insert("details_at".into(), at());
            item.insert("details_stage".into(), s("Ansible"));
        }
        if let Some((generation, order)) = token {
            item.insert("w_gen".into(), Attr::n(generation));
            item.insert("w_order".into(), Attr::n(order));
        }
        item
    })
}

fn config(n: u8) -> String {
    format!(r#"{{"region":"us-east-1","az_ids":["use1-az{n}"],"service_name":"svc"}}"#)
}

fn world(row: &Item) -> FakeWorld {
    let world = FakeWorld::default();
    world.table.borrow_mut().seed(row.clone());
    world
}

fn row(world: &FakeWorld) -> Option<Item> {
    world.item(&Key::new(format!("PLANE#{PLANE}"), format!("LINK#{ID}")))
}

fn deliver(world: &FakeWorld, event: Event) {
    let w = World {
        table: world,
        outputs: world,
        buckets: &[],
    };
    block_on(run::process(&w, &event.json(), || true)).unwrap();
}

fn edit(world: &FakeWorld, method: &str, body: &str) {
    let request = Request::parse(&json!({
        "rawPath": format!("/data-planes/{PLANE}/private-links/{ID}"), "body": body,
        "requestContext": {"http": {"method": method}},
    }))
    .unwrap();
    let answer = block_on(api::respond(world, &request, true, Timestamp::UNIX_EPOCH));
    assert!(answer.status < 300, "{}", answer.body);
}

/// I1-I3, and that what is not the writer's stays.
fn check(item: &Item) -> Result<(), TestCaseError> {
    let has = |n: &str| item.contains_key(n);
    let status = item["status"].as_str().unwrap();
    prop_assert_eq!(status == "failed", has("error"), "I1 {:?}", item);
    prop_assert_eq!(status != "pending", has("observed_at"), "I2 {:?}", item);
    prop_assert_eq!(has("details"), has("details_at"), "I3 {:?}", item);
    prop_assert_eq!(has("details"), has("details_stage"), "I3 {:?}", item);
    Ok(())
}

fn number(item: &Item, name: &str) -> u64 {
    item.get(name).and_then(Attr::as_u64).unwrap_or(0)
}

/// Applies one step and checks what must hold after it, whatever came before.
fn step(world: &FakeWorld, step: Step) -> Result<(), TestCaseError> {
    let before = row(world);
    match step {
        Step::Edit(n) => edit(world, "PUT", &config(n)),
        Step::Delete => edit(world, "DELETE", ""),
        Step::Deliver(event) => {
            deliver(world, event);
            let Some(before) = &before else {
                prop_assert_eq!(row(world), None, "a deleted link came back");
                return Ok(());
            };
            let after = row(world).unwrap();
            for owned in [
                "config",
                "generation",
                "provider",
                "service_identity",
                "schema",
                "future",
                "updated_at",
            ] {
                prop_assert_eq!(before.get(owned), after.get(owned), "I4 {}", owned);
            }
            let same_generation = number(before, "w_gen") == number(before, "generation");
            if &after != before {
                prop_assert_eq!(
                    number(before, "generation"),
                    event.pin,
                    "another generation was stamped"
                );
                prop_assert_eq!(number(&after, "w_order"), event.order());
                prop_assert!(
                    !same_generation || number(before, "w_order") < event.order(),
                    "the token went back"
                );
            }
        }
    }
    row(world).as_ref().map_or(Ok(()), check)
}

/// Some of `events`, each once or more, in any order.
fn delivery(events: Vec<Event>) -> impl Strategy<Value = Vec<Event>> {
    let repeats = proptest::collection::vec(any::<Index>(), 0..6);
    (Just(events.clone()).prop_shuffle(), repeats).prop_flat_map(|(once, repeats)| {
        let mut all = once.clone();
        if !once.is_empty() {
            all.extend(repeats.iter().map(|i| *i.get(&once)));
        }
        Just(all).prop_shuffle()
    })
}

/// The row without what an early success may have been too late to learn, or a success without details can
/// not know.
fn without(item: &Item, names: &[&str]) -> Item {
    item.iter()
        .filter(|(k, _)| !names.contains(&k.as_str()))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        rng_seed: proptest::test_runner::RngSeed::Fixed(3477),
        ..ProptestConfig::default()
    })]

    /// I5: the same set of delivered events ends in the same row, in any order and with any repeats.
    #[test]
    fn any_order_and_any_repeats_end_in_the_same_row(
        (start, first, second) in (starting_row(), converges(1)).prop_flat_map(|(start, events)| {
            subsequence(events, 0..=6).prop_flat_map(move |kept| {
                (Just(start.clone()), delivery(kept.clone()), delivery(kept))
            })
        })
    ) {
        let (a, b) = (world(&start), world(&start));
        for event in &first {
            step(&a, Step::Deliver(*event))?;
        }
        for event in &second {
            step(&b, Step::Deliver(*event))?;
        }
        let (a, b) = (row(&a).unwrap(), row(&b).unwrap());
        let greatest = first.iter().filter(|e| e.writes()).max_by_key(|e| e.order());
        let stands = number(&start, "w_gen") == 1;
        match greatest {
            Some(e) if !stands || number(&start, "w_order") < e.order() => {
                prop_assert_eq!(number(&a, "w_order"), e.order());
                match (e.says, e.rank) {
                    // An early success may come after the settle it should have preceded: it leaves status and
                    // observed_at alone, so they may miss that settle until the next one.
                    (Says::Ok(_), 1) => prop_assert_eq!(
                        without(&a, &["status", "observed_at"]), without(&b, &["status", "observed_at"])),
                    // A settle without details keeps those there (D5), and an earlier event may be too late.
                    (Says::Ok(false), _) => prop_assert_eq!(
                        without(&a, &["details", "details_at", "details_stage"]),
                        without(&b, &["details", "details_at", "details_stage"])),
                    _ => prop_assert_eq!(a, b),
                }
            }
            // The starting row's token is the greatest, or nothing writes.
            _ => {
                prop_assert_eq!(&a, &start);
                prop_assert_eq!(&b, &start);
            }
        }
    }

    /// The same settles make the same row for a person: status, error, observed_at and details of the
    /// greatest settle stand when it is the greatest token, whatever was lost or late before it.
    #[test]
    fn losing_early_events_changes_nothing_once_it_is_settled(
        (start, events, lost) in (starting_row(), converges(1)).prop_flat_map(|(start, events)| {
            let early: Vec<Event> = events.iter().copied().filter(|e| e.rank == 1).collect();
            (Just(start), delivery(events), subsequence(early, 0..=2))
        })
    ) {
        let greatest = events.iter().filter(|e| e.writes()).max_by_key(|e| e.order()).copied();
        prop_assume!(greatest.is_some_and(|e| e.rank > 1 && e.says != Says::Ok(false)));
        let (a, b) = (world(&start), world(&start));
        for event in &events {
            step(&a, Step::Deliver(*event))?;
            if !lost.contains(event) {
                step(&b, Step::Deliver(*event))?;
            }
        }
        prop_assert_eq!(row(&a), row(&b));
    }

    /// Edits and deletions anywhere between the events: the invariants hold after every step, no event stamps
    /// another generation, nothing deleted comes back, and delivering everything again settles to a fixpoint.
    #[test]
    fn edits_and_deletions_anywhere_keep_the_invariants(
        start in starting_row(),
        one in converges(1),
        two in converges(2),
        steps in proptest::collection::vec(
            prop_oneof![8 => (0usize..12).prop_map(Ok), 2 => (0u8..3).prop_map(|n| Err(Some(n))), 1 => Just(Err(None))],
            1..25,
        )
    ) {
        let w = world(&start);
        let mut events = one;
        events.extend(two);
        for s in &steps {
            step(&w, match s {
                Ok(i) => Step::Deliver(events[*i]),
                Err(Some(n)) => Step::Edit(*n),
                Err(None) => Step::Delete,
            })?;
        }
        for event in &events {
            step(&w, Step::Deliver(*event))?;
        }
        let settled = row(&w);
        for event in events.iter().rev().chain(&events) {
            step(&w, Step::Deliver(*event))?;
            prop_assert_eq!(row(&w), settled.clone());
        }
    }
}
