//! Every interleaving of pollers, users, the console and CloudFormation over the real shell and the real
//! decisions (the engine is [`crate::explore`]).
//!
//! The shell talks to a [`Desk`]: the production trait [`World`], each method of which hands one request to
//! the explorer. The table is the in-memory table with the real conditions; CloudFormation is [`cfn`]. What
//! must hold is in [`checks`]. [`mistakes`] removes guards one at a time, in the world and never in the code,
//! and expects each to be found.

mod cfn;
mod checks;
mod mistakes;
mod scenarios;

use super::decide::Purpose;
use super::fake::{self, PK};
use super::model::{Act, Fact, Look, Seen, SetRead, StackRead};
use super::run::{self, Call, Reconciled, Refused, World};
use super::store;
use crate::error::{CallError, Class};
use crate::explore::{self, Actor, Branch, Part, Running, Seat, Step, System};
use crate::store::memory::MemoryTable;
use crate::store::{Attr, Item, Key, Op, Page, Query, Write, WriteError};
use crate::time::Timestamp;
use cfn::{Cfn, Happens, Life};
use mistakes::Mistake;
use std::collections::BTreeMap;
use uuid::Uuid;

/// The whole world outside the shells.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Outside {
    table: Part<MemoryTable>,
    cfn: Part<Cfn>,
    /// Which jumps of the clock are behind us.
    passed: usize,
    /// Execute tokens that were ever sent, in order.
    sent: Vec<String>,
}

/// What happens in the world by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moves {
    Cfn(Happens),
    /// A later verdict on the same release says no.
    CheckWithdrawn,
}

/// What an actor does as one turn of its script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Turn {
    Begin(&'static str),
    Apply,
    Discard,
    Poll,
    /// `GET /version`.
    View,
}

/// One run of a shell.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Program {
    what: What,
    by: &'static str,
    nth: usize,
    now: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum What {
    Begin(&'static str),
    Apply(String),
    Discard(String),
    Reconcile { full: bool },
}

/// What a shell asks of the world: the methods of [`World`] as data.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Ask {
    Query(Query),
    Get(Key),
    Save(Vec<Write>),
    Look(Vec<Look>),
    Act(Act),
}

/// What it hears.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Hear {
    Page(Page),
    Item(Option<Item>),
    Saved(Result<(), WriteError>),
    Seen(Vec<Seen>),
    Done(Result<Fact, CallError>),
}

/// The world as the shell sees it.
struct Desk {
    seat: Seat<Ask, Hear>,
    /// One read after another, so that others can come between; else all at once.
    torn: bool,
}

fn mixed_up() -> CallError {
    CallError::new(
        Class::Refused,
        "test:Answer",
        "MixedUp",
        "the model gave an answer to another question",
    )
}

impl World for Desk {
    async fn query(&self, q: &Query) -> Result<Page, CallError> {
        match self.seat.ask(Ask::Query(q.clone())).await {
            Hear::Page(p) => Ok(p),
            _ => Err(mixed_up()),
        }
    }

    async fn get(&self, key: &Key) -> Result<Option<Item>, CallError> {
        match self.seat.ask(Ask::Get(key.clone())).await {
            Hear::Item(i) => Ok(i),
            _ => Err(mixed_up()),
        }
    }

    async fn save(&self, writes: &[Write], _token: &str) -> Result<(), WriteError> {
        match self.seat.ask(Ask::Save(writes.to_vec())).await {
            Hear::Saved(r) => r,
            _ => Err(mixed_up().into()),
        }
    }

    async fn look(&self, looks: &[Look]) -> Vec<Seen> {
        if !self.torn {
            return match self.seat.ask(Ask::Look(looks.to_vec())).await {
                Hear::Seen(s) => s,
                _ => Vec::new(),
            };
        }
        let mut out = Vec::new();
        for look in looks {
            if let Hear::Seen(s) = self.seat.ask(Ask::Look(vec![look.clone()])).await {
                out.extend(s);
            }
        }
        out
    }

    async fn act(&self, act: &Act) -> Result<Fact, CallError> {
        match self.seat.ask(Ask::Act(act.clone())).await {
            Hear::Done(r) => r,
            _ => Err(mixed_up()),
        }
    }

    fn time_left(&self) -> bool {
        true
    }
}

/// A cast, what it may do, and what may go wrong.
#[derive(Debug, Clone)]
struct Updates {
    cast: Vec<(&'static str, Vec<Turn>)>,
    /// May an admin run, delete or continue things in the console?
    console: bool,
    /// May someone update the stack without a change set?
    foreign: bool,
    /// Does CloudFormation make every set, and never fail to roll back?
    lucky: bool,
    /// May the passed check of 2.4.0 be withdrawn?
    withdrawn: bool,
    /// Jumps of the clock, in seconds, in order.
    passes: Vec<i64>,
    /// Do several reads of one call happen one after another?
    torn: bool,
    /// The guard that is missing.
    mistake: Option<Mistake>,
}

impl Updates {
    fn new(cast: &[(&'static str, &[Turn])]) -> Self {
        Self {
            cast: cast.iter().map(|(n, t)| (*n, t.to_vec())).collect(),
            console: false,
            foreign: false,
            lucky: false,
            withdrawn: false,
            passes: Vec::new(),
            torn: false,
            mistake: None,
        }
    }
}

/// Version 2.3.0 is installed, nothing is under way, and the checks of both newer releases passed.
fn quiet() -> Outside {
    let now: Timestamp = "2026-12-01T10:00:00Z".parse().unwrap();
    let seeded = fake::FakeWorld::new(now);
    seeded.seed_check("2.4.0", "passed", None);
    seeded.seed_check("2.5.0", "passed", None);
    let table = seeded.table.into_inner();
    Outside {
        table: Part::new(table),
        cfn: Part::new(Cfn::quiet("2.3.0", now)),
        passed: 0,
        sent: Vec::new(),
    }
}

/// The same after these programs ran alone, one after another, and each set became ready at once.
fn after(start: &Outside, turns: &[Turn]) -> Outside {
    let sys = Updates::new(&[("setup", turns)]);
    let mut world = start.clone();
    for nth in 0..turns.len() {
        let program = sys.programs(&world, 0, nth).swap_remove(0);
        world = explore::solo(&sys, &world, &program).0;
        let making = |w: &Outside| {
            let all = w.cfn.may_happen(false, false).into_iter();
            all.into_iter().find(|h| matches!(h, Happens::Made(_)))
        };
        while let Some(h) = making(&world) {
            world.cfn = Part::new(world.cfn.happen(h));
        }
    }
    world
}

/// The same after 2.4.0 was begun and its set is still being made.
fn begun(start: &Outside) -> Outside {
    let sys = Updates::new(&[("setup", &[Turn::Begin("2.4.0")])]);
    let program = sys.programs(start, 0, 0).swap_remove(0);
    explore::solo(&sys, start, &program).0
}

fn refusal(r: &Refused) -> String {
    match r {
        Refused::ReleaseUnknown(_) => "404 release_unknown".into(),
        Refused::NoSuchUpdate(_) => "404 no such update".into(),
        Refused::Conflict { blocker, .. } => format!("409 {}", blocker.code),
        Refused::ChangeSet { .. } => "422 change_set_refused".into(),
        Refused::Aws { what, .. } => format!("503 {what}"),
    }
}

fn state(r: &Reconciled) -> String {
    let mut out = if r.lost { "lost" } else { "done" }.to_owned();
    for f in &r.flags {
        out = format!("{out}, {}", f.code);
    }
    out
}

impl System for Updates {
    type World = Outside;
    type Program = Program;
    type Request = Ask;
    type Answer = Hear;
    type Outcome = String;
    type Event = Moves;

    fn actors(&self) -> Vec<Actor> {
        self.cast
            .iter()
            .map(|(name, turns)| Actor::new(name, turns.len()))
            .collect()
    }

    fn programs(&self, w: &Outside, actor: usize, nth: usize) -> Vec<Program> {
        let (by, turns) = &self.cast[actor];
        let one = |what| Program {
            what,
            by,
            nth,
            now: w.cfn.now,
        };
        // A user acts on what is open when the decision is taken; what it has become by the time the call
        // arrives is the point of the exercise.
        let open = || {
            checks::rows(&w.table)
                .filter(|r| r.open() && r.has_set())
                .map(|r| r.id.to_owned())
        };
        match turns[nth] {
            Turn::Begin(release) => vec![one(What::Begin(release))],
            Turn::Apply => open().map(|id| one(What::Apply(id))).collect(),
            Turn::Discard => open().map(|id| one(What::Discard(id))).collect(),
            Turn::Poll => vec![one(What::Reconcile { full: false })],
            Turn::View => vec![one(What::Reconcile { full: true })],
        }
    }

    fn start<'a>(&'a self, p: Program, seat: Seat<Ask, Hear>) -> Running<'a, String> {
        Box::pin(async move {
            let desk = Desk {
                seat,
                torn: self.torn,
            };
            let request_id = format!("{}-{}", p.by, p.nth);
            let who =
                p.by.bytes()
                    .fold(7u64, |n, b| n.wrapping_mul(31).wrapping_add(b.into()));
            let call = Call {
                pk: PK,
                stack: fake::STACK,
                role_arn: None,
                now: mistakes::clock(self.mistake, &p),
                request_id: &request_id,
                actor: p.by,
                seed: Uuid::from_u64_pair(who, (p.nth as u64) << 32),
            };
            match &p.what {
                What::Begin(release) => match run::begin(&desk, &call, release).await {
                    Ok(b) => if b.existing { "200" } else { "201" }.into(),
                    Err(e) => refusal(&e),
                },
                What::Apply(id) => match run::apply(&desk, &call, id).await {
                    Ok(_) => "202".into(),
                    Err(e) => refusal(&e),
                },
                What::Discard(id) => match run::discard(&desk, &call, id).await {
                    Ok(_) => "200".into(),
                    Err(e) => refusal(&e),
                },
                What::Reconcile { full } => match run::reconcile(&desk, &call, Purpose { full: *full }).await
                {
                    Ok(r) => state(&r),
                    Err(e) => e.code,
                },
            }
        })
    }

    fn answers(&self, w: &Outside, ask: &Ask) -> Vec<Branch<Outside, Hear>> {
        match ask {
            Ask::Query(q) => vec![Branch::read(Hear::Page(w.table.query(q)))],
            Ask::Get(key) => vec![Branch::read(Hear::Item(w.table.get(key)))],
            Ask::Save(writes) => {
                let lost = || {
                    WriteError::Call(CallError::new(
                        Class::TimedOut,
                        "dynamodb:Write",
                        "Timeout",
                        "lost",
                    ))
                };
                let writes = mistakes::writes(self.mistake, writes);
                let mut table = MemoryTable::clone(&w.table);
                if let Err(e) = table.write(&writes) {
                    return vec![Branch::read(Hear::Saved(Err(e)))];
                }
                // Who wrote last is read by the adapter only; without it, worlds that are alike are one.
                for write in &writes {
                    table
                        .items
                        .get_mut(&write.key)
                        .map(|item| item.remove("last_write_id"));
                }
                let after = Outside {
                    table: Part::new(table),
                    ..w.clone()
                };
                vec![
                    Branch::write(after.clone(), Hear::Saved(Ok(()))),
                    Branch::fault("answer lost", Some(after), Hear::Saved(Err(lost()))),
                    Branch::fault("never arrived", None, Hear::Saved(Err(lost()))),
                ]
            }
            Ask::Look(looks) => {
                let now: Vec<Seen> = looks.iter().map(|l| w.cfn.cloud.look(l)).collect();
                let mut out = vec![Branch::read(now.clone())];
                for (i, look) in looks.iter().enumerate() {
                    if let Some(old) = w.cfn.look_behind(look) {
                        let mut seen = now.clone();
                        seen[i] = old;
                        out.push(Branch::fault("stale", None, seen));
                    }
                    if let Some(failed) = Cfn::look_failing(look) {
                        let mut seen = now.clone();
                        seen[i] = failed;
                        out.push(Branch::fault("unreadable", None, seen));
                    }
                }
                out.into_iter()
                    .map(|b| Branch {
                        label: b.label,
                        world: b.world,
                        answer: Hear::Seen(mistakes::seen(self.mistake, w, looks, b.answer)),
                        fault: b.fault,
                    })
                    .collect()
            }
            Ask::Act(act) => {
                let mut told = w.clone();
                if let Act::Execute { token, .. } = act {
                    told.sent.push(token.clone());
                }
                if let Some(answer) = mistakes::act(self.mistake, w, act) {
                    return vec![Branch::read(Hear::Done(answer))];
                }
                let (cfn, answer) = w.cfn.act(act);
                let after = if cfn == *w.cfn {
                    told.clone()
                } else {
                    Outside {
                        cfn: Part::new(cfn),
                        ..told.clone()
                    }
                };
                let mut out = vec![Branch::write(after.clone(), Hear::Done(answer.clone()))];
                if answer.is_ok() {
                    out.push(Branch::fault(
                        "answer lost",
                        Some(after),
                        Hear::Done(Err(cfn::no_answer())),
                    ));
                    out.push(Branch::fault(
                        "never arrived",
                        Some(told.clone()),
                        Hear::Done(Err(cfn::no_answer())),
                    ));
                    out.push(Branch::fault(
                        "throttled",
                        Some(told),
                        Hear::Done(Err(cfn::throttled())),
                    ));
                }
                out
            }
        }
    }

    fn acts(&self, ask: &Ask) -> bool {
        matches!(ask, Ask::Save(_) | Ask::Act(_))
    }

    fn events(&self, w: &Outside) -> Vec<Moves> {
        let all = w.cfn.may_happen(self.console, self.foreign).into_iter();
        let bad = |h: &Happens| {
            matches!(
                h,
                Happens::FoundEmpty(_) | Happens::CouldNotMake(_) | Happens::RollbackFails
            )
        };
        let mut out: Vec<Moves> = all.filter(|h| !(self.lucky && bad(h))).map(Moves::Cfn).collect();
        out.extend(self.passes.get(w.passed).map(|s| Moves::Cfn(Happens::Pass(*s))));
        if self.withdrawn && checks::passed(&w.table, "2.4.0") {
            out.push(Moves::CheckWithdrawn);
        }
        out
    }

    fn happen(&self, w: &Outside, what: &Moves) -> Outside {
        match what {
            Moves::Cfn(h) => {
                let passed = w.passed + usize::from(matches!(h, Happens::Pass(_)));
                Outside {
                    cfn: Part::new(w.cfn.happen(*h)),
                    passed,
                    ..w.clone()
                }
            }
            Moves::CheckWithdrawn => {
                let mut table = MemoryTable::clone(&w.table);
                let key = store::check_key(PK, "2.4.0");
                if let Some(item) = table.items.get_mut(&key) {
                    item.insert("state".into(), Attr::s("failed"));
                }
                Outside {
                    table: Part::new(table),
                    ..w.clone()
                }
            }
        }
    }

    /// A function lives for seconds, and every jump of the clock is longer.
    fn only_idle(&self, what: &Moves) -> bool {
        matches!(what, Moves::Cfn(Happens::Pass(_)))
    }

    fn check(&self, step: &Step<'_, Self>) -> Result<(), String> {
        checks::step(step)
    }

    fn check_idle(&self, w: &Outside) -> Result<(), String> {
        checks::idle(self, w)
    }

    fn show_program(&self, p: &Program) -> String {
        match &p.what {
            What::Begin(r) => format!("begin {r}"),
            What::Apply(id) => format!("apply {}", short(id)),
            What::Discard(id) => format!("discard {}", short(id)),
            What::Reconcile { full: true } => "GET /version".into(),
            What::Reconcile { full: false } => "a poll".into(),
        }
    }

    fn show_request(&self, ask: &Ask) -> String {
        match ask {
            Ask::Query(_) => "read the rows".into(),
            Ask::Get(key) => format!("read {}", key.sk),
            Ask::Save(writes) => {
                let each: Vec<String> = writes.iter().map(show_write).collect();
                format!("save {}", each.join(" + "))
            }
            Ask::Look(looks) => {
                let each: Vec<String> = looks.iter().map(show_look).collect();
                format!("look at {}", each.join(", "))
            }
            Ask::Act(act) => match act {
                Act::Create(c) => format!("CREATE {}", short(&c.name)),
                Act::Execute { arn, token } => format!("EXECUTE {} with {}", short(arn), short(token)),
                Act::Delete { arn } => format!("DELETE {}", short(arn)),
                Act::DeleteByName { name, .. } => format!("DELETE by name {}", short(name)),
                other => format!("{other:?}"),
            },
        }
    }

    fn show_answer(&self, hear: &Hear) -> String {
        let error = |e: &CallError| e.code.clone();
        match hear {
            Hear::Page(p) => show_rows(p.items.iter()),
            Hear::Item(i) => i
                .as_ref()
                .map_or("nothing".into(), |i| text(i, "state").to_owned()),
            Hear::Saved(Ok(())) => "saved".into(),
            Hear::Saved(Err(WriteError::Conflict(_))) => "the condition does not hold".into(),
            Hear::Saved(Err(WriteError::Call(e))) => error(e),
            Hear::Done(Ok(f)) => short(&format!("{f:?}")),
            Hear::Done(Err(e)) => short(&format!("{}: {}", e.code, e.message)),
            Hear::Seen(seen) => {
                let each = seen.iter().map(|s| match s {
                    Seen::Stack(StackRead::Seen(s)) => {
                        let by = s.change_set_id.as_deref().map(|a| format!(" by {}", short(a)));
                        format!("{}{}", s.status, by.unwrap_or_default())
                    }
                    Seen::Stack(StackRead::Missing) | Seen::Set(SetRead::NotFound) => "not found".into(),
                    Seen::Stack(StackRead::Failed(e)) | Seen::Set(SetRead::Failed(e)) => error(e),
                    Seen::Set(SetRead::Seen(c)) => format!("{}/{}", c.status, c.execution),
                    Seen::Events(Ok(e)) => format!("{} events", e.len()),
                    Seen::Events(Err(e)) => error(e),
                    _ => "…".into(),
                });
                each.collect::<Vec<_>>().join(", ")
            }
        }
    }

    fn show_outcome(&self, o: &String) -> String {
        o.clone()
    }

    fn show_event(&self, h: &Moves) -> String {
        let Moves::Cfn(h) = h else {
            return "the check of 2.4.0 is withdrawn".into();
        };
        let set = |i: &usize| format!("change set {}", i + 1);
        match h {
            Happens::Made(i) => format!("CloudFormation: {} is ready", set(i)),
            Happens::FoundEmpty(i) => format!("CloudFormation: {} has no changes", set(i)),
            Happens::CouldNotMake(i) => format!("CloudFormation: {} can not be made", set(i)),
            Happens::ConsoleRuns(i) => format!("console: runs {}", set(i)),
            Happens::ConsoleDeletes(i) => format!("console: deletes {}", set(i)),
            Happens::Foreign => "someone updates the stack without a change set".into(),
            Happens::Ends => "CloudFormation: the run ends well".into(),
            Happens::RollsBack => "CloudFormation: the run fails, rollback begins".into(),
            Happens::RolledBack => "CloudFormation: rolled back".into(),
            Happens::RollbackFails => "CloudFormation: the rollback fails".into(),
            Happens::Continued => "console: continues the rollback, with success".into(),
            Happens::Pass(s) => format!("{s} seconds pass"),
        }
    }

    fn show_world(&self, w: &Outside) -> String {
        let mut out = format!("  rows: {}\n", show_rows(w.table.items.values()));
        let version = w
            .cfn
            .cloud
            .stack
            .as_ref()
            .and_then(|s| s.version())
            .unwrap_or("-");
        out += &format!("  stack: {} at {version}", w.cfn.status());
        for s in &w.cfn.cloud.sets {
            out += &format!("\n  change set {}: {:?}", short(&s.set.name), Life::of(s));
        }
        out
    }
}

fn text<'a>(item: &'a Item, name: &str) -> &'a str {
    item.get(name).and_then(Attr::as_str).unwrap_or("-")
}

fn number(item: &Item, name: &str) -> u64 {
    item.get(name).and_then(Attr::as_u64).unwrap_or(0)
}

/// Ids as `U1`, so that a story can be read.
fn short(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        if rest.is_char_boundary(36.min(rest.len()))
            && let Some(id) = rest.get(..36)
            && id.as_bytes().get(8) == Some(&b'-')
            && let Some(seq) = store::seq_of(id)
        {
            out += &format!("U{seq}");
            rest = &rest[36..];
            continue;
        }
        let next = rest.chars().next().unwrap();
        out.push(next);
        rest = &rest[next.len_utf8()..];
    }
    let out = out
        .replace(fake::set_arn("").trim_end_matches("/1"), "")
        .replace("/1", "")
        .replace("upd-", "");
    cfn::plain(&out)
}

fn show_row(item: &Item) -> String {
    match text(item, "sk") {
        store::HEAD_SK => {
            let to = item
                .get("pending")
                .and_then(Attr::as_str)
                .map_or("nothing".into(), short);
            let held = item
                .get("reserving")
                .and_then(Attr::as_str)
                .map(|r| format!(" reserved by {}", short(r)));
            format!(
                "head to {to}{} r{}",
                held.unwrap_or_default(),
                number(item, "rev")
            )
        }
        sk if sk.starts_with("CHECK#") => format!("{sk} {}", text(item, "state")),
        _ => {
            let set = if item.contains_key("change_set_id") {
                ""
            } else {
                " without a set"
            };
            let why = match item.get("reason") {
                Some(Attr::M(m)) => m.get("code").and_then(Attr::as_str).map(|c| format!("/{c}")),
                _ => None,
            };
            let (id, status, rev) = (short(text(item, "id")), text(item, "status"), number(item, "rev"));
            format!("{id} {status}{}{set} r{rev}", why.unwrap_or_default())
        }
    }
}

fn show_rows<'a>(items: impl Iterator<Item = &'a Item>) -> String {
    let each: Vec<String> = items
        .filter(|i| text(i, "sk").starts_with("UPDATE#"))
        .map(show_row)
        .collect();
    if each.is_empty() {
        "no rows".into()
    } else {
        each.join(", ")
    }
}

fn show_write(w: &Write) -> String {
    match &w.op {
        Op::Put(item) => show_row(item),
        Op::Check => format!("(if {} still holds)", short(&w.key.sk)),
        Op::Update { set, .. } => {
            let each: Vec<String> = set
                .iter()
                .filter(|(p, _)| p != "last_write_id")
                .map(|(p, v)| format!("{p} {}", v.as_str().map(short).unwrap_or_default()))
                .collect();
            format!("head: {}", each.join(", "))
        }
        Op::Delete => format!("delete {}", w.key.sk),
    }
}

fn show_look(l: &Look) -> String {
    match l {
        Look::Stack(_) => "the stack".into(),
        Look::SetByArn(a) => short(a),
        Look::SetByName { name, .. } => format!("{} by name", short(name)),
        Look::Events { .. } => "events".into(),
        Look::Findings(_) => "findings".into(),
        Look::Releases => "the releases".into(),
        Look::Template(_) => "the template".into(),
        other => format!("{other:?}"),
    }
}

/// Labels and outcomes that a report must contain, so that a test can not pass by having visited nothing.
fn assert_seen(r: &explore::Report, labels: &[&str], events: &[&str], outcomes: &[&str]) {
    let missing = |have: &BTreeMap<String, usize>, want: &[&str]| -> Vec<String> {
        want.iter()
            .filter(|w| !have.keys().any(|k| k.contains(**w)))
            .map(|w| (*w).to_owned())
            .collect()
    };
    let had: BTreeMap<String, usize> = r.labels.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect();
    let gone = [
        missing(&had, labels),
        missing(&r.events, events),
        missing(&r.outcomes, outcomes),
    ]
    .concat();
    assert!(
        gone.is_empty(),
        "never happened: {gone:?}\n{r}\n{:?}\n{:?}\n{:?}",
        r.labels,
        r.events,
        r.outcomes
    );
}
