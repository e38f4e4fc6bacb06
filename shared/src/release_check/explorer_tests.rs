//! The model check as an actor beside an OK: every interleaving of starts, views, reports (late, repeated, of old
//! attempts, of other templates), builds that end, a release that is published anew, and a person who gives the OK.
//! No way runs an update whose check did not pass for that release and digest.
//!
//! The shells and decisions are the production ones; see [`crate::explore`].

use super::model::Report;
use super::run::{self, Started};
use crate::error::{CallError, Class};
use crate::explore::{self, Actor, Bounds, Branch, Running, Seat, Step, System, explore};
use crate::store::memory::MemoryTable;
use crate::store::{Attr, Cond, Item, Key, Op, Page, Query, Write, WriteError};
use crate::time::{Timestamp, plus_seconds};
use crate::updates::fake::{Cloud, FakeWorld, PK, STACK, digest_of, update};
use crate::updates::model::{Act, Fact, Head, Look, Seen, State};
use crate::updates::run::{Call, Refused, World};
use crate::updates::store::{check_key, report_key, update_key};
use serde_json::json;
use uuid::Uuid;

const RELEASE: &str = "2.4.0";

fn t0() -> Timestamp {
    "2026-12-01T10:00:00Z".parse().unwrap()
}

/// Everything outside the shells, and what the checks remember.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Outside {
    table: MemoryTable,
    cloud: Cloud,
    now: Timestamp,
    late: bool,
    anew: bool,
    /// Digests for which a build really reported a pass.
    passes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum What {
    Start,
    View,
    Report {
        attempt: u64,
        verdict: &'static str,
        digest: String,
    },
    Apply(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Program {
    what: What,
    by: &'static str,
    nth: usize,
    now: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Ask {
    Query(Query),
    Get(Key),
    Save(Vec<Write>),
    Look(Vec<Look>),
    Act(Act),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Hear {
    Page(Page),
    Item(Option<Item>),
    Saved(Result<(), WriteError>),
    Seen(Vec<Seen>),
    Done(Result<Fact, CallError>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Happens {
    Ends(String, &'static str),
    Late,
    Anew,
}

/// A guard that is missing, in the world and never in the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    /// The transaction of the OK does not check the record.
    OkWithoutCheck,
    /// The OK reads a record that says passed, whatever is stored.
    CheckBelieved,
    /// A report is read as being of the template that is listed, whatever it was of.
    DigestIgnored,
    /// A check is written without its revision.
    CheckUnconditional,
}

struct Checks {
    cast: Vec<(&'static str, usize)>,
    ends: bool,
    late: bool,
    anew: bool,
    mistake: Option<Mistake>,
}

struct Desk(Seat<Ask, Hear>);

fn no_answer(action: &str) -> CallError {
    CallError::new(Class::TimedOut, action, "Timeout", "no answer")
}

impl World for Desk {
    async fn query(&self, q: &Query) -> Result<Page, CallError> {
        match self.0.ask(Ask::Query(q.clone())).await {
            Hear::Page(p) => Ok(p),
            _ => Err(no_answer("test:Query")),
        }
    }
    async fn get(&self, key: &Key) -> Result<Option<Item>, CallError> {
        match self.0.ask(Ask::Get(key.clone())).await {
            Hear::Item(i) => Ok(i),
            _ => Err(no_answer("test:Get")),
        }
    }
    async fn save(&self, writes: &[Write], _: &str) -> Result<(), WriteError> {
        match self.0.ask(Ask::Save(writes.to_vec())).await {
            Hear::Saved(r) => r,
            _ => Err(no_answer("test:Save").into()),
        }
    }
    async fn look(&self, looks: &[Look]) -> Vec<Seen> {
        match self.0.ask(Ask::Look(looks.to_vec())).await {
            Hear::Seen(s) => s,
            _ => Vec::new(),
        }
    }
    async fn act(&self, act: &Act) -> Result<Fact, CallError> {
        match self.0.ask(Ask::Act(act.clone())).await {
            Hear::Done(r) => r,
            _ => Err(no_answer("test:Act")),
        }
    }
    fn time_left(&self) -> bool {
        true
    }
}

/// An update to 2.4.0 waits for the OK; its check was not started yet.
fn waiting() -> Outside {
    let w = FakeWorld::new(t0());
    let u = update(1, RELEASE, State::Prepared, 60, t0());
    w.seed(&u);
    let arn = crate::updates::fake::STACK_ARN.to_owned();
    w.seed_head(&Head {
        pending: Some(u.id.clone()),
        next_seq: 2,
        rev: 1,
        stack_arn: Some(arn),
        ..Head::default()
    });
    w.cloud
        .borrow_mut()
        .put_set(&u.change_set_name, RELEASE, "CREATE_COMPLETE", "AVAILABLE", t0());
    w.cloud.borrow_mut().releases = crate::updates::fake::release_list(&[("2.3.0", None), (RELEASE, None)]);
    let (table, cloud) = (w.table.borrow().clone(), w.cloud.borrow().clone());
    Outside {
        table,
        cloud,
        now: t0(),
        late: false,
        anew: false,
        passes: Vec::new(),
    }
}

fn other_digest() -> String {
    "b".repeat(64)
}

impl System for Checks {
    type World = Outside;
    type Program = Program;
    type Request = Ask;
    type Answer = Hear;
    type Outcome = String;
    type Event = Happens;

    fn actors(&self) -> Vec<Actor> {
        self.cast.iter().map(|(n, turns)| Actor::new(n, *turns)).collect()
    }

    fn programs(&self, w: &Outside, actor: usize, nth: usize) -> Vec<Program> {
        let by = self.cast[actor].0;
        let one = |what| Program {
            what,
            by,
            nth,
            now: w.now,
        };
        match by {
            "start" | "start2" => vec![one(What::Start)],
            "view" => vec![one(What::View)],
            "ok" => vec![one(What::Apply(update(1, RELEASE, State::Prepared, 60, t0()).id))],
            // A build reports of its own attempt: what it checked is what was listed when it started, or not.
            _ => {
                let mut out = Vec::new();
                for b in &w.cloud.builds {
                    for (verdict, digest) in [
                        ("passed", digest_of(RELEASE)),
                        ("passed", other_digest()),
                        ("failed", digest_of(RELEASE)),
                    ] {
                        out.push(one(What::Report {
                            attempt: b.attempt,
                            verdict,
                            digest,
                        }));
                    }
                }
                out
            }
        }
    }

    fn start<'a>(&'a self, p: Program, seat: Seat<Ask, Hear>) -> Running<'a, String> {
        Box::pin(async move {
            let desk = Desk(seat);
            let request_id = format!("{}-{}", p.by, p.nth);
            let call = Call {
                pk: PK,
                stack: STACK,
                role_arn: None,
                now: p.now,
                request_id: &request_id,
                actor: p.by,
                seed: Uuid::from_u128(p.nth as u128),
            };
            match &p.what {
                What::Start => match run::start_verify(&desk, &call, RELEASE).await {
                    Ok(Started::New(k) | Started::Passed(k) | Started::Running(k)) => {
                        k.judgement.state.to_owned()
                    }
                    Err(_) => "refused".into(),
                },
                What::View => match run::view(&desk, &call, RELEASE).await {
                    Ok(k) => k.judgement.state.to_owned(),
                    Err(e) => e.code,
                },
                What::Report {
                    attempt,
                    verdict,
                    digest,
                } => {
                    let detail = json!({"release": RELEASE, "attempt": attempt, "verdict": verdict, "template_sha256": digest});
                    let report = Report::parse(&detail, p.now).unwrap();
                    match run::take_report(&desk, &call, &report).await {
                        Ok(t) => format!("{t:?}"),
                        Err(e) => e.code,
                    }
                }
                What::Apply(id) => match crate::updates::run::apply(&desk, &call, id).await {
                    Ok(_) => "202".into(),
                    Err(Refused::Conflict { blocker, .. }) => blocker.code,
                    Err(_) => "refused".into(),
                },
            }
        })
    }

    fn answers(&self, w: &Outside, ask: &Ask) -> Vec<Branch<Outside, Hear>> {
        match ask {
            Ask::Query(q) => vec![Branch::read(Hear::Page(w.table.query(q)))],
            Ask::Get(key) => {
                let mut item = w.table.get(key);
                if self.mistake == Some(Mistake::CheckBelieved) && *key == check_key(PK, RELEASE) {
                    let forged = FakeWorld::new(t0());
                    forged.seed_check(RELEASE, "passed", None);
                    item = forged.table.borrow().get(key);
                }
                if self.mistake == Some(Mistake::DigestIgnored)
                    && *key == report_key(PK, RELEASE)
                    && let Some(i) = &mut item
                {
                    i.insert("template_sha256".into(), Attr::s(digest_of(RELEASE)));
                }
                vec![Branch::read(Hear::Item(item))]
            }
            Ask::Save(writes) => {
                let mut writes = writes.clone();
                match self.mistake {
                    Some(Mistake::OkWithoutCheck | Mistake::CheckBelieved) => {
                        writes.retain(|x| !(x.key == check_key(PK, RELEASE) && x.op == Op::Check));
                    }
                    Some(Mistake::CheckUnconditional) => {
                        for x in writes
                            .iter_mut()
                            .filter(|x| x.key == check_key(PK, RELEASE) && x.op != Op::Check)
                        {
                            x.when = Cond::Always;
                        }
                    }
                    _ => {}
                }
                let mut table = w.table.clone();
                if let Err(e) = table.write(&writes) {
                    return vec![Branch::read(Hear::Saved(Err(e)))];
                }
                let after = Outside { table, ..w.clone() };
                let lost = || Hear::Saved(Err(no_answer("dynamodb:Write").into()));
                vec![
                    Branch::write(after.clone(), Hear::Saved(Ok(()))),
                    Branch::fault("answer lost", Some(after), lost()),
                    Branch::fault("never arrived", None, lost()),
                ]
            }
            Ask::Look(looks) => {
                vec![Branch::read(Hear::Seen(
                    looks.iter().map(|l| w.cloud.look(l)).collect(),
                ))]
            }
            Ask::Act(act) => {
                let mut cloud = w.cloud.clone();
                let answer = cloud.act(act, w.now);
                let after = Outside { cloud, ..w.clone() };
                let lost = || Hear::Done(Err(no_answer("aws:Act")));
                vec![
                    Branch::write(after.clone(), Hear::Done(answer)),
                    Branch::fault("answer lost", Some(after), lost()),
                    Branch::fault("never arrived", None, lost()),
                ]
            }
        }
    }

    fn acts(&self, ask: &Ask) -> bool {
        matches!(ask, Ask::Save(_) | Ask::Act(_))
    }

    fn events(&self, w: &Outside) -> Vec<Happens> {
        let mut out = Vec::new();
        if self.ends {
            for b in w.cloud.builds.iter().filter(|b| !b.build.complete) {
                out.push(Happens::Ends(b.build.id.clone(), "SUCCEEDED"));
                out.push(Happens::Ends(b.build.id.clone(), "FAULT"));
            }
        }
        if self.late && !w.late {
            out.push(Happens::Late);
        }
        if self.anew && !w.anew {
            out.push(Happens::Anew);
        }
        out
    }

    fn happen(&self, w: &Outside, what: &Happens) -> Outside {
        let mut after = w.clone();
        match what {
            Happens::Ends(id, status) => after.cloud.end_build(id, status, None),
            Happens::Late => {
                after.now = plus_seconds(w.now, 1801);
                after.late = true;
            }
            Happens::Anew => {
                let list = String::from_utf8(w.cloud.releases.clone()).unwrap();
                after.cloud.releases = list.replace(&digest_of(RELEASE), &other_digest()).into_bytes();
                after.anew = true;
            }
        }
        after
    }

    fn show_request(&self, ask: &Ask) -> String {
        match ask {
            Ask::Save(writes) => crate::updates::fake::save_line(writes),
            Ask::Act(act) => crate::updates::fake::act_line(act),
            other => format!("{other:?}"),
        }
    }

    fn show_answer(&self, answer: &Hear) -> String {
        match answer {
            Hear::Seen(seen) => format!("{} seen", seen.len()),
            other => format!("{other:?}"),
        }
    }

    /// A function lives for seconds, and the jump of the clock is longer.
    fn only_idle(&self, what: &Happens) -> bool {
        *what == Happens::Late
    }

    fn ended(&self, w: &Outside, p: &Program, _: &String) -> Option<Outside> {
        // Whatever became of the report, it was made.
        match &p.what {
            What::Report {
                verdict: "passed",
                digest,
                ..
            } if !w.passes.contains(digest) => {
                let mut after = w.clone();
                after.passes.push(digest.clone());
                after.passes.sort();
                Some(after)
            }
            _ => None,
        }
    }

    fn check(&self, step: &Step<'_, Self>) -> Result<(), String> {
        let row = |w: &Outside| w.table.get(&update_key(PK, 1)).unwrap();
        let text = |i: &Item, k: &str| i.get(k).and_then(Attr::as_str).unwrap_or("-").to_owned();
        let (old, new) = (row(step.before), row(step.after));
        let wanted = text(&new, "template_sha256");
        let record = |w: &Outside| w.table.get(&check_key(PK, RELEASE));
        // What a build reported, as the intake stored it before anybody could judge it.
        let reported = |w: &Outside, digest: &str| {
            let r = w.table.get(&report_key(PK, RELEASE)).unwrap_or_default();
            w.passes.iter().any(|d| d == digest)
                || (text(&r, "verdict") == "passed" && text(&r, "template_sha256") == digest)
        };
        if text(&old, "status") == "prepared" && text(&new, "status") == "applying" {
            let r = record(step.before).unwrap_or_default();
            if text(&r, "state") != "passed" || text(&r, "template_sha256") != wanted {
                return Err(format!(
                    "the OK was stored while the check was {} for {}",
                    text(&r, "state"),
                    text(&r, "template_sha256")
                ));
            }
        }
        let executed = matches!(
            &step.act,
            explore::Act::Call {
                request: Ask::Act(Act::Execute { .. }),
                ..
            }
        );
        if executed && (!reported(step.before, &wanted) || text(&new, "status") != "applying") {
            return Err("an update was executed without a pass".into());
        }
        if let (Some(a), Some(b)) = (record(step.before), record(step.after)) {
            let n = |i: &Item, k: &str| i.get(k).and_then(Attr::as_u64).unwrap_or(0);
            if n(&b, "attempt") < n(&a, "attempt") {
                return Err("an attempt went backwards".into());
            }
            if a != b && n(&b, "rev") <= n(&a, "rev") {
                return Err("a check was overwritten by somebody who had not read it".into());
            }
            if text(&a, "state") == "passed" && text(&b, "state") != "passed" && !step.after.anew {
                return Err("a pass was taken back".into());
            }
        }
        // A pass is never stored for a digest that no build reported.
        if let Some(r) = record(step.after)
            && record(step.before) != Some(r.clone())
            && text(&r, "state") == "passed"
            && !reported(step.before, &text(&r, "template_sha256"))
        {
            return Err(format!(
                "passed was stored for {} that nobody reported",
                text(&r, "template_sha256")
            ));
        }
        Ok(())
    }

    fn check_idle(&self, w: &Outside) -> Result<(), String> {
        // A pending check is one that may still end: brought up to date, it either runs or has a verdict; and
        // looking twice writes once.
        let view = Program {
            what: What::View,
            by: "view",
            nth: 90,
            now: w.now,
        };
        let (once, _, _) = explore::solo(self, w, &view);
        let (twice, state, _) = explore::solo(self, &once, &view);
        if once.table != twice.table {
            return Err("a second look wrote something".into());
        }
        if state == "pending" {
            let item = once.table.get(&check_key(PK, RELEASE)).unwrap_or_default();
            let attempt = item.get("attempt").and_then(Attr::as_u64).unwrap_or(0);
            let young = item
                .get("started_at")
                .and_then(Attr::as_str)
                .and_then(|t| t.parse::<Timestamp>().ok())
                .is_some_and(|t| !crate::time::older_than(t, super::decide::CHECK_BOUND_S, w.now));
            let running = w
                .cloud
                .builds
                .iter()
                .any(|b| b.attempt == attempt && !b.build.complete);
            let on_its_way = !w.cloud.builds.iter().any(|b| b.attempt == attempt);
            if !young || !(running || on_its_way) {
                return Err("pending, but nothing runs".into());
            }
        }
        Ok(())
    }
}

fn checks(cast: &[(&'static str, usize)]) -> Checks {
    Checks {
        cast: cast.to_vec(),
        ends: true,
        late: false,
        anew: false,
        mistake: None,
    }
}

fn bounds(crashes: u8, faults: u8) -> Bounds {
    Bounds {
        crashes,
        faults,
        ..Bounds::default()
    }
}

#[test]
fn no_way_runs_an_update_without_a_pass() {
    let mut outcomes = std::collections::BTreeMap::new();
    for (crashes, faults) in [(1, 0), (0, 1)] {
        let r = explore(
            &checks(&[("start", 1), ("bus", 1), ("ok", 1)]),
            waiting(),
            &bounds(crashes, faults),
        );
        println!("{r}\n{:?}", r.outcomes);
        r.assert_clean();
        assert!(r.complete());
        outcomes.extend(r.outcomes);
    }
    for seen in [
        "202",
        "model_check_pending",
        "model_check_stalled",
        "model_check_not_started",
        "model_check_failed",
    ] {
        assert!(
            outcomes.contains_key(&format!("{seen:?}")),
            "{seen} was never reached: {outcomes:?}"
        );
    }
}

#[test]
fn two_starters_and_a_late_clock() {
    let sys = Checks {
        late: true,
        ends: false,
        ..checks(&[("start", 1), ("start2", 1), ("bus", 1)])
    };
    let r = explore(&sys, waiting(), &bounds(1, 0));
    println!("{r}\n{:?}", r.outcomes);
    r.assert_clean();
    assert!(r.complete());
}

#[test]
fn a_release_published_anew_is_another_template() {
    let sys = Checks {
        anew: true,
        ends: false,
        ..checks(&[("start", 2), ("bus", 1), ("ok", 1)])
    };
    let r = explore(&sys, waiting(), &bounds(0, 0));
    println!("{r}\n{:?}", r.outcomes);
    r.assert_clean();
    assert!(r.complete());
}

#[test]
fn each_missing_guard_is_found() {
    let casts: [(Mistake, &[(&'static str, usize)]); 4] = [
        (Mistake::OkWithoutCheck, &[("start", 2), ("bus", 1), ("ok", 1)]),
        (Mistake::CheckBelieved, &[("start", 1), ("ok", 1)]),
        (Mistake::DigestIgnored, &[("start", 1), ("bus", 1)]),
        (Mistake::CheckUnconditional, &[("start", 1), ("start2", 1)]),
    ];
    for (mistake, cast) in casts {
        let sys = Checks {
            anew: mistake == Mistake::OkWithoutCheck,
            ends: false,
            mistake: Some(mistake),
            ..checks(cast)
        };
        let r = explore(&sys, waiting(), &bounds(0, 0));
        assert!(r.violation.is_some(), "{mistake:?} was not found: {r}");
    }
}
