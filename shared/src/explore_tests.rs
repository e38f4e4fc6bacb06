//! The explorer on toys whose mistakes are known.

use super::*;
use std::collections::BTreeSet;

/// A counter that several actors add to, and a bell that is owed after a note.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Counter {
    value: u32,
    rev: u32,
    /// Who added how often: what a lost answer is recognised by. (The last writer alone would not do, as the
    /// explorer was quick to show: somebody else may have written since.)
    added: BTreeMap<&'static str, u32>,
    owed: Option<&'static str>,
    rung: Vec<&'static str>,
    noon: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Toy {
    Add(&'static str),
    Note(&'static str),
    Mend,
    Both,
    Nothing,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Ask {
    Read(&'static str),
    Save {
        value: u32,
        if_rev: Option<u32>,
        by: &'static str,
    },
    Owe(Option<&'static str>),
    Owed,
    Ring(&'static str),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Hear {
    Row { value: u32, rev: u32, mine: bool },
    Owed(Option<&'static str>),
    Ok,
    Conflict,
    NoAnswer,
}

/// Which guards are in place.
#[derive(Clone, Copy)]
struct Guards {
    condition: bool,
    own_write_is_known: bool,
    mend_rings: bool,
    ring_token: bool,
    repeatable: bool,
    order_blind: bool,
}

const ALL: Guards = Guards {
    condition: true,
    own_write_is_known: true,
    mend_rings: true,
    ring_token: true,
    repeatable: true,
    order_blind: true,
};

struct Toys {
    guards: Guards,
    actors: Vec<(&'static str, Vec<Toy>)>,
    stale: bool,
    same: bool,
    noon_waits: bool,
    starts: std::cell::Cell<u32>,
}

impl Toys {
    fn new(guards: Guards, actors: &[(&'static str, &[Toy])]) -> Self {
        let actors = actors.iter().map(|(n, p)| (*n, p.to_vec())).collect();
        Self {
            guards,
            actors,
            stale: false,
            same: false,
            noon_waits: false,
            starts: std::cell::Cell::new(0),
        }
    }
}

type Desk = Seat<Ask, Hear>;

async fn add(g: Guards, by: &'static str, seat: Desk) -> &'static str {
    for _ in 0..3 {
        let Hear::Row { value, rev, mine } = seat.ask(Ask::Read(by)).await else {
            return "no row";
        };
        if g.own_write_is_known && mine {
            return "added";
        }
        let save = Ask::Save {
            value: value + 1,
            if_rev: g.condition.then_some(rev),
            by,
        };
        match seat.ask(save).await {
            Hear::Ok => return "added",
            _ => continue,
        }
    }
    "gave up"
}

async fn note(by: &'static str, seat: Desk) -> &'static str {
    seat.ask(Ask::Owe(Some(by))).await;
    seat.ask(Ask::Ring(by)).await;
    seat.ask(Ask::Owe(None)).await;
    "noted"
}

async fn mend(g: Guards, seat: Desk) -> &'static str {
    let Hear::Owed(Some(by)) = seat.ask(Ask::Owed).await else {
        return "nothing owed";
    };
    if g.mend_rings {
        seat.ask(Ask::Ring(by)).await;
    }
    seat.ask(Ask::Owe(None)).await;
    "mended"
}

/// Two requests at once, without a runtime.
async fn both(g: Guards, seat: Desk) -> &'static str {
    let mut a = Box::pin(seat.ask(Ask::Read("ann")));
    let mut b = Box::pin(seat.ask(Ask::Owed));
    let (mut x, mut y, mut first) = (None, None, "");
    poll_fn(|cx| {
        if x.is_none()
            && let Poll::Ready(v) = a.as_mut().poll(cx)
        {
            x = Some(v);
            if first.is_empty() {
                first = "row first";
            }
        }
        if y.is_none()
            && let Poll::Ready(v) = b.as_mut().poll(cx)
        {
            y = Some(v);
            if first.is_empty() {
                first = "debt first";
            }
        }
        if x.is_some() && y.is_some() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    if g.order_blind { "read both" } else { first }
}

impl System for Toys {
    type World = Counter;
    type Program = Toy;
    type Request = Ask;
    type Answer = Hear;
    type Outcome = &'static str;
    type Event = &'static str;

    fn actors(&self) -> Vec<Actor> {
        self.actors
            .iter()
            .map(|(name, script)| Actor::new(name, script.len()))
            .collect()
    }

    fn programs(&self, _: &Counter, actor: usize, nth: usize) -> Vec<Toy> {
        vec![self.actors[actor].1[nth].clone()]
    }

    fn start<'a>(&'a self, program: Toy, seat: Desk) -> Running<'a, &'static str> {
        let g = self.guards;
        match program {
            Toy::Add(by) => Box::pin(add(g, by, seat)),
            Toy::Note(by) => Box::pin(note(by, seat)),
            Toy::Mend => Box::pin(mend(g, seat)),
            Toy::Both => Box::pin(both(g, seat)),
            Toy::Nothing if g.repeatable => Box::pin(async { "nothing" }),
            Toy::Nothing => {
                self.starts.set(self.starts.get() + 1);
                let first = self.starts.get() == 1;
                Box::pin(async move {
                    if first {
                        seat.ask(Ask::Owed).await;
                    }
                    "nothing"
                })
            }
        }
    }

    fn answers(&self, w: &Counter, ask: &Ask) -> Vec<Branch<Counter, Hear>> {
        let mut w = w.clone();
        match ask {
            Ask::Read(by) => {
                let mine = w.added.contains_key(by);
                let now = Branch::read(Hear::Row {
                    value: w.value,
                    rev: w.rev,
                    mine,
                });
                let old = Hear::Row {
                    value: 0,
                    rev: 0,
                    mine: false,
                };
                if self.stale {
                    vec![now, Branch::fault("stale", None, old)]
                } else {
                    vec![now]
                }
            }
            Ask::Owed => vec![Branch::read(Hear::Owed(w.owed))],
            Ask::Save { value, if_rev, by } => {
                if if_rev.is_some_and(|r| r != w.rev) {
                    return vec![Branch::read(Hear::Conflict)];
                }
                (w.value, w.rev) = (*value, w.rev + 1);
                *w.added.entry(by).or_default() += 1;
                vec![
                    Branch::write(w.clone(), Hear::Ok),
                    Branch::fault("answer lost", Some(w), Hear::NoAnswer),
                    Branch::fault("never arrived", None, Hear::NoAnswer),
                ]
            }
            Ask::Owe(owed) => {
                w.owed = *owed;
                vec![Branch::write(w, Hear::Ok)]
            }
            Ask::Ring(by) => {
                if !(self.guards.ring_token && w.rung.contains(by)) {
                    w.rung.push(by);
                }
                vec![Branch::write(w, Hear::Ok)]
            }
        }
    }

    fn acts(&self, ask: &Ask) -> bool {
        !matches!(ask, Ask::Read(_) | Ask::Owed)
    }

    fn events(&self, w: &Counter) -> Vec<&'static str> {
        if w.noon { vec![] } else { vec!["noon"] }
    }

    fn happen(&self, w: &Counter, _: &&'static str) -> Counter {
        Counter {
            noon: true,
            ..w.clone()
        }
    }

    fn only_idle(&self, _: &&'static str) -> bool {
        self.noon_waits
    }

    fn check(&self, step: &Step<'_, Self>) -> Result<(), String> {
        let (before, after) = (step.before, step.after);
        if after.rev != before.rev && after.value != before.value + 1 {
            return Err(format!(
                "an addition was lost: {} then {}",
                before.value, after.value
            ));
        }
        match after.added.iter().find(|(_, n)| **n > 1) {
            Some((by, n)) => Err(format!("{by} added {n} times")),
            None => Ok(()),
        }
    }

    fn check_idle(&self, w: &Counter) -> Result<(), String> {
        let (end, _, _) = solo(self, w, &Toy::Mend);
        if let Some(by) = w.owed
            && !end.rung.contains(&by)
        {
            return Err(format!("the bell for {by} is never rung"));
        }
        let twice = end.rung.len() - end.rung.iter().collect::<BTreeSet<_>>().len();
        if twice > 0 {
            Err("a bell was rung twice".into())
        } else {
            Ok(())
        }
    }

    fn alike(&self, actor: usize) -> usize {
        if self.same { 0 } else { actor }
    }

    fn show_world(&self, w: &Counter) -> String {
        format!("value {}, rung {:?}", w.value, w.rung)
    }
}

const ANN: (&str, &[Toy]) = ("ann", &[Toy::Add("ann")]);
const BOB: (&str, &[Toy]) = ("bob", &[Toy::Add("bob")]);

fn bounds(crashes: u8, faults: u8) -> Bounds {
    Bounds {
        crashes,
        faults,
        ..Bounds::default()
    }
}

#[test]
fn with_all_guards_nothing_is_found_and_everything_is_visited() {
    let toys = Toys::new(ALL, &[ANN, BOB]);
    let r = explore(&toys, Counter::default(), &bounds(1, 1));
    r.assert_clean();
    assert!(r.complete());
    assert_eq!(
        r.outcomes.keys().map(String::as_str).collect::<Vec<_>>(),
        ["\"added\""]
    );
    assert!(
        r.labels["answer lost"] > 0 && r.labels["never arrived"] > 0 && r.crashes > 0,
        "{r}"
    );
    assert!(r.events["\"noon\""] > 0);
    // Counted by hand for one actor, no faults: 3 points (not begun, row read, added) at two times of day.
    let one = explore(&Toys::new(ALL, &[ANN]), Counter::default(), &bounds(0, 0));
    assert_eq!((one.states, one.transitions, one.depth, one.idle), (6, 7, 3, 4));
}

#[test]
fn a_missing_condition_is_found_with_the_shortest_story() {
    let toys = Toys::new(
        Guards {
            condition: false,
            ..ALL
        },
        &[ANN, BOB],
    );
    let r = explore(&toys, Counter::default(), &bounds(0, 0));
    let text = r.violation.expect("found").to_string();
    // Who reads first is free; everything else of the story is not.
    let tail = r#"
   3. ann: Save { value: 1, if_rev: None, by: "ann" } -> Ok; ends with "added"
   4. bob: Save { value: 1, if_rev: None, by: "bob" } -> Ok; ends with "added"
the world then:
value 1, rung []"#;
    assert!(
        text.starts_with("an addition was lost: 1 then 1 (found in 4 steps)\n"),
        "{text}"
    );
    assert!(text.ends_with(tail), "{text}");
    assert_eq!(text.matches("starts Add").count(), 2, "{text}");
}

#[test]
fn one_actor_alone_needs_no_condition() {
    let toys = Toys::new(
        Guards {
            condition: false,
            ..ALL
        },
        &[ANN],
    );
    assert!(explore(&toys, Counter::default(), &bounds(1, 0)).complete());
}

#[test]
fn a_lost_answer_taken_for_a_failure_is_found_only_with_a_fault() {
    let toys = Toys::new(
        Guards {
            own_write_is_known: false,
            ..ALL
        },
        &[ANN],
    );
    assert!(explore(&toys, Counter::default(), &bounds(0, 0)).complete());
    let r = explore(&toys, Counter::default(), &bounds(0, 1));
    let text = r.violation.expect("found").to_string();
    assert!(text.starts_with("ann added 2 times (found in 4 steps)"), "{text}");
    assert!(text.contains("-> NoAnswer [answer lost]"), "{text}");
}

#[test]
fn a_stale_read_is_harmless_under_the_condition_and_found_without_it() {
    let mut toys = Toys::new(ALL, &[ANN, BOB]);
    toys.stale = true;
    assert!(explore(&toys, Counter::default(), &bounds(0, 2)).complete());
    toys.guards.condition = false;
    // One after the other: only the stale read can do harm.
    let strict = Bounds {
        switches: Some(0),
        ..bounds(0, 1)
    };
    let text = explore(&toys, Counter::default(), &strict)
        .violation
        .expect("found")
        .to_string();
    assert!(text.contains("[stale]"), "{text}");
}

#[test]
fn a_crash_between_save_and_act_is_found_only_with_a_crash() {
    let script: [(&str, &[Toy]); 1] = [("ann", &[Toy::Note("ann")])];
    let toys = Toys::new(
        Guards {
            mend_rings: false,
            ..ALL
        },
        &script,
    );
    assert!(explore(&toys, Counter::default(), &bounds(0, 0)).complete());
    let text = explore(&toys, Counter::default(), &bounds(1, 0))
        .violation
        .expect("found")
        .to_string();
    assert!(
        text.starts_with("the bell for ann is never rung (found in 1 steps)"),
        "{text}"
    );
    assert!(
        text.contains("Owe(Some(\"ann\")) -> Ok [stops for ever, the answer unheard]"),
        "{text}"
    );
    let whole = Toys::new(ALL, &script);
    assert!(explore(&whole, Counter::default(), &bounds(1, 0)).complete());
}

#[test]
fn a_crash_after_the_act_needs_the_token() {
    let script: [(&str, &[Toy]); 1] = [("ann", &[Toy::Note("ann"), Toy::Mend])];
    let toys = Toys::new(
        Guards {
            ring_token: false,
            ..ALL
        },
        &script,
    );
    let text = explore(&toys, Counter::default(), &bounds(1, 0))
        .violation
        .expect("found")
        .to_string();
    assert!(text.starts_with("a bell was rung twice"), "{text}");
    let whole = Toys::new(ALL, &script);
    assert!(explore(&whole, Counter::default(), &bounds(2, 0)).complete());
}

#[test]
fn without_a_switch_in_the_middle_no_addition_is_lost_with_one_it_is() {
    let toys = Toys::new(
        Guards {
            condition: false,
            ..ALL
        },
        &[ANN, BOB],
    );
    let at_most = |n| Bounds {
        switches: Some(n),
        ..bounds(0, 0)
    };
    assert!(explore(&toys, Counter::default(), &at_most(0)).complete());
    assert!(
        explore(&toys, Counter::default(), &at_most(1))
            .violation
            .is_some()
    );
}

#[test]
fn actors_that_can_be_exchanged_are_visited_once() {
    let script: [(&str, &[Toy]); 3] = [("a", &[Toy::Mend]), ("b", &[Toy::Mend]), ("c", &[Toy::Mend])];
    let mut toys = Toys::new(ALL, &script);
    let start = Counter {
        owed: Some("ann"),
        ..Counter::default()
    };
    let each = explore(&toys, start.clone(), &bounds(1, 0));
    toys.same = true;
    let once = explore(&toys, start, &bounds(1, 0));
    assert!(each.complete() && once.complete());
    assert!(once.states * 3 < each.states * 2, "{once} / {each}");
    assert_eq!(once.idle, each.idle);
}

#[test]
fn two_requests_of_a_join_are_answered_in_both_orders_and_meet_again() {
    let toys = Toys::new(ALL, &[("ann", &[Toy::Both]), BOB]);
    let r = explore(&toys, Counter::default(), &bounds(0, 0));
    assert!(r.complete());
    assert_eq!(
        r.outcomes.keys().collect::<Vec<_>>(),
        ["\"added\"", "\"read both\""]
    );
    // Begun, row first (value 0 or 1), debt first, both (value 0 or 1); and bob's 3.
    assert_eq!(r.points, 6 + 3);
}

#[test]
#[should_panic(expected = "the shell tells the order of the answers to a join")]
fn a_shell_that_tells_the_order_of_a_join_is_refused() {
    let toys = Toys::new(
        Guards {
            order_blind: false,
            ..ALL
        },
        &[("ann", &[Toy::Both])],
    );
    explore(&toys, Counter::default(), &bounds(0, 0));
}

#[test]
#[should_panic(expected = "the shell is not repeatable")]
fn a_shell_that_is_not_repeatable_is_refused() {
    let toys = Toys::new(
        Guards {
            repeatable: false,
            ..ALL
        },
        &[("ann", &[Toy::Nothing]), ("bob", &[Toy::Note("bob")])],
    );
    explore(&toys, Counter::default(), &bounds(0, 0));
}

#[test]
fn a_program_may_end_without_asking() {
    let toys = Toys::new(ALL, &[("ann", &[Toy::Nothing, Toy::Add("ann")])]);
    let r = explore(&toys, Counter::default(), &bounds(0, 0));
    assert!(r.complete());
    assert_eq!(r.outcomes["\"nothing\""], 1);
}

#[test]
fn an_event_may_wait_until_no_program_is_under_way() {
    let mut toys = Toys::new(ALL, &[ANN]);
    toys.noon_waits = true;
    let r = explore(&toys, Counter::default(), &bounds(0, 0));
    // Noon can come before ann and after her, and not between her read and her save.
    assert_eq!((r.states, r.events["\"noon\""]), (6, 2));
}

#[test]
fn a_bound_that_cuts_is_reported() {
    let toys = Toys::new(ALL, &[ANN, BOB]);
    let deep = Bounds {
        depth: 2,
        ..bounds(0, 0)
    };
    assert_eq!(explore(&toys, Counter::default(), &deep).cut, Some("depth"));
    let wide = Bounds {
        states: 5,
        ..bounds(0, 0)
    };
    assert_eq!(explore(&toys, Counter::default(), &wide).cut, Some("states"));
    let never_noon = Bounds {
        events: Some(0),
        ..bounds(0, 0)
    };
    assert!(explore(&toys, Counter::default(), &never_noon).events.is_empty());
}

#[test]
fn a_walk_finds_shortens_and_repeats() {
    let toys = Toys::new(
        Guards {
            condition: false,
            ..ALL
        },
        &[ANN, BOB],
    );
    let b = bounds(1, 1);
    let r = walk(&toys, Counter::default(), &b, 7, 200);
    let found = r.violation.clone().expect("found");
    assert_eq!((found.lines.len(), found.seed), (4, Some(7)), "{found}");
    assert_eq!(walk(&toys, Counter::default(), &b, 7, 200).violation, r.violation);
    walk(&Toys::new(ALL, &[ANN, BOB]), Counter::default(), &b, 7, 200).assert_clean();
}

#[test]
fn solo_runs_one_program_to_its_end() {
    let toys = Toys::new(ALL, &[]);
    let start = Counter {
        owed: Some("ann"),
        ..Counter::default()
    };
    let (world, outcome, trace) = solo(&toys, &start, &Toy::Mend);
    assert_eq!((outcome, world.owed, world.rung), ("mended", None, vec!["ann"]));
    assert_eq!(trace.len(), 3);
    assert_eq!(ready(async { 3 }), 3);
}

#[test]
fn four_actors_meet_in_every_order() {
    let script: Vec<(&str, &[Toy])> = vec![
        ("a", &[Toy::Add("a"), Toy::Note("a")]),
        ("b", &[Toy::Add("b"), Toy::Mend]),
        ("c", &[Toy::Add("c"), Toy::Mend]),
        ("d", &[Toy::Mend]),
    ];
    let r = explore(&Toys::new(ALL, &script), Counter::default(), &bounds(1, 0));
    assert!(r.complete() && r.transitions > 50_000, "{r}");
}

#[test]
fn a_part_is_its_value() {
    let (a, b, c) = (Part::new(vec![1, 2]), Part::new(vec![1, 2]), Part::new(vec![1]));
    assert!(a == b && a != c && a.clone() == a);
    assert_eq!(
        (a.len(), digest(&a) == digest(&b), digest(&a) == digest(&c)),
        (2, true, false)
    );
    assert_eq!(format!("{a:?}"), "[1, 2]");
}
