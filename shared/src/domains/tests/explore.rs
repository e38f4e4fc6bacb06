//! Every interleaving of small casts, and long random ways of larger ones, over the real Supervisor
//! (spec/domains.md 4.4, invariants I1 to I10), and the proof that the checks notice a missing guard (2.13).

use crate::domains::fake::{
    Ask, EPOCH, Mem, Mistake, Sim, Told, cell, claim, domain, drive, no_answer, told,
};
use crate::domains::model::{
    Cell, Claim, CommandStatus, Event as RowEvent, HostCommand, HostOp, Invocation, Millis, PortRange,
    Product, ProvisionError, Provisioned, RetireReason, State, SweepPolicy, next_state,
};
use crate::domains::names::Domain;
use crate::domains::run::{Aborted, Clock, Host, Retired, Sagas, Supervisor, Swept};
use crate::domains::store::{PRODUCT, REG};
use crate::error::{CallError, Class};
use crate::explore::{Act, Actor, Bounds, Branch, Part, Report, Running, Seat, Step, System, explore, walk};
use crate::store::{Attr, Item, Key, Page, Query, Table, Write, WriteError};
use std::cell::Cell as Knob;
use std::collections::BTreeMap;

/// What an actor does in each of its turns.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Role {
    /// One execution of the workflow: ensure, then insert; in further turns again, as its Retry does.
    Saga(&'static str, &'static str),
    /// The abort branch of an execution.
    Abort(&'static str, &'static str),
    /// A person's `DELETE`.
    Retire(&'static str),
    /// The schedule.
    Sweep,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Program {
    role: Role,
    request: String,
    now: Millis,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Outcome {
    Saga(
        Result<Provisioned, ProvisionError>,
        Option<Result<(), ProvisionError>>,
    ),
    Abort(Result<Aborted, ProvisionError>),
    Retire(Result<Retired, ProvisionError>),
    Sweep(Result<Swept, ProvisionError>),
}

/// What happens by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Event {
    /// The host gets a command, for the first time or again, in whatever order.
    Deliver(usize),
    /// The host gets an `up`, and the instance does not come up.
    Falter(usize),
    /// SSM gives a command up; the host may get it all the same.
    TimeOut(usize),
    /// All leases and the grace end, whoever is at work.
    Tick,
}

/// A cast and what may happen to it.
#[derive(Debug, Clone)]
struct Scene {
    cast: Vec<(Role, usize)>,
    ticks: Millis,
    tick: Millis,
    /// Commands sent for each tick gone, or long walks would spend all ticks before anything happens.
    pace: Millis,
    again: bool,
    falter: bool,
    time_out: bool,
    lost: bool,
    cell: Cell,
    start: Sim,
}

/// Longer than a lease and the sweep's grace.
const TICK: Millis = 200_000;
const WEEK: Millis = 8 * 86_400_000;

impl Scene {
    fn new(cast: &[(Role, usize)]) -> Self {
        Self {
            cast: cast.to_vec(),
            ticks: 1,
            tick: TICK,
            pace: 0,
            again: false,
            falter: false,
            time_out: false,
            lost: false,
            cell: Cell {
                ports: PortRange {
                    low: 20_000,
                    high: 20_009,
                },
                sweep: SweepPolicy::Retire,
                ..cell()
            },
            start: Sim::default(),
        }
    }

    fn mistaken(&self, mistake: Mistake) -> Self {
        let mut s = self.clone();
        s.start.mistake = Some(mistake);
        s
    }

    /// With `name` active, its saga over and unclaimed, before anybody starts.
    fn with_active(mut self, name: &str, claimed: bool) -> Self {
        let m = Mem::new();
        *m.sim.borrow_mut() = self.start;
        let s = Supervisor::new(&m, &self.cell);
        let me = claim("before", "r", EPOCH);
        let p = drive(s.ensure_provisioned(&domain(name), &me)).unwrap().unwrap();
        if claimed {
            drive(s.insert(&product(&domain(name), "before", &p, EPOCH)))
                .unwrap()
                .unwrap();
        }
        self.start = m.sim.into_inner();
        self
    }
}

fn product(domain: &Domain, execution: &str, p: &Provisioned, now: Millis) -> Product {
    Product {
        domain: domain.clone(),
        generation: p.generation,
        execution: execution.into(),
        certificate: None,
        dns_records: Vec::new(),
        dns_checked_at: None,
        created_at: now,
        updated_at: now,
    }
}

/// The world as one shell sees it. Its clock stands still but when it has waited for the host in vain: a
/// wrong clock must cost work only. The sweep's place in the list and the host's inventory, on which it only
/// reports, are left out, so that more of the rest fits.
struct Seated {
    seat: Seat<Ask, Told>,
    now: Knob<Millis>,
    end: Millis,
}

impl Table for Seated {
    async fn get(&self, key: &Key) -> Result<Option<Item>, CallError> {
        if key.pk.starts_with("SWEEP#") {
            return Ok(None);
        }
        told!(self.seat.ask(Ask::Get(key.clone())).await, Item)
    }
    async fn query(&self, query: &Query) -> Result<Page, CallError> {
        told!(self.seat.ask(Ask::Query(query.clone())).await, Page)
    }
    async fn write(&self, writes: &[Write], _token: &str) -> Result<(), WriteError> {
        if writes.iter().all(|w| w.key.pk.starts_with("SWEEP#")) {
            return Ok(());
        }
        told!(self.seat.ask(Ask::Write(writes.to_vec())).await, Written)
    }
}

impl Host for Seated {
    async fn send(&self, command: &HostCommand) -> Result<String, CallError> {
        if command.op == HostOp::Show {
            return Err(CallError::new(
                Class::Denied,
                "ssm:SendCommand",
                "AccessDenied",
                "no",
            ));
        }
        told!(self.seat.ask(Ask::Send(command.clone())).await, Sent)
    }
    async fn look(&self, command_id: &str) -> Result<Invocation, CallError> {
        let seen = told!(self.seat.ask(Ask::Look(command_id.to_owned())).await, Seen);
        if seen.as_ref().is_ok_and(|s| s.status == CommandStatus::Waiting) {
            self.now.set(self.end);
        }
        seen
    }
    async fn find(&self, comment: &str) -> Result<Option<String>, CallError> {
        told!(self.seat.ask(Ask::Find(comment.to_owned())).await, Found)
    }
}

impl Sagas for Seated {
    async fn running(&self, execution: &str) -> Result<bool, CallError> {
        told!(self.seat.ask(Ask::Running(execution.to_owned())).await, Runs)
    }
}

impl Clock for Seated {
    fn now(&self) -> Millis {
        self.now.get()
    }
    async fn pause(&self, _millis: Millis) {}
}

async fn play(program: Program, cell: &Cell, seat: Seat<Ask, Told>) -> Outcome {
    let me = |e: &str| Claim {
        execution: e.into(),
        request: program.request.clone(),
        deadline: program.now + 120_000,
    };
    let world = Seated {
        seat,
        now: Knob::new(program.now),
        end: program.now + 120_000,
    };
    let s = Supervisor::new(&world, cell);
    match &program.role {
        Role::Saga(d, e) => {
            let d = domain(d);
            let made = s.ensure_provisioned(&d, &me(e)).await;
            let inserted = match &made {
                Ok(p) => Some(s.insert(&product(&d, e, p, program.now)).await),
                Err(_) => None,
            };
            Outcome::Saga(made, inserted)
        }
        Role::Abort(d, e) => Outcome::Abort(s.abort(&domain(d), &me(e)).await),
        Role::Retire(d) => {
            let me = me(&format!("http-{}", program.request));
            Outcome::Retire(s.retire(&domain(d), &me, me.rollback_until()).await)
        }
        Role::Sweep => Outcome::Sweep(s.sweep(&me("sweep")).await),
    }
}

fn text<'a>(i: &'a Item, name: &str) -> &'a str {
    i.get(name).and_then(Attr::as_str).unwrap_or("")
}

fn number(i: &Item, name: &str) -> u64 {
    i.get(name).and_then(Attr::as_u64).unwrap_or(0)
}

fn state(i: &Item) -> (State, Option<RetireReason>) {
    let word = |name: &str| serde_json::Value::String(text(i, name).to_owned());
    (
        serde_json::from_value(word("state")).expect("a state"),
        serde_json::from_value(word("retire_reason")).ok(),
    )
}

fn rows(s: &Sim) -> impl Iterator<Item = (&Key, &Item)> {
    s.table.items.iter().filter(|(k, _)| k.sk == REG)
}

/// One of the pairs of 2.3, with its generation.
fn legal(before: &Item, after: &Item) -> bool {
    let (b, a) = (state(before), state(after));
    let step = number(after, "generation").wrapping_sub(number(before, "generation"));
    use RowEvent::{Down, Fail, Retire, Start, Stop, Take, Up};
    (a == b && step == 0)
        || [
            (Take, 1),
            (Start, 0),
            (Up, 0),
            (Fail, 1),
            (Stop, 1),
            (Retire, 1),
            (Down, 0),
        ]
        .iter()
        .any(|(e, g)| *g == step && next_state(b.0, b.1, *e) == Ok(a))
}

fn tables(before: &Sim, after: &Sim) -> Result<(), String> {
    for (k, i) in &before.table.items {
        let tombstone = k.pk.starts_with("SLUG#") || k.pk.starts_with("PORTS#");
        if (tombstone || k.sk == REG)
            && after
                .table
                .items
                .get(k)
                .is_none_or(|j| text(j, "domain") != text(i, "domain"))
        {
            return Err(format!("I1: {k:?} vanished or changed hands"));
        }
    }
    for (k, a) in rows(after) {
        for key in [
            Key::new(format!("SLUG#{}", text(a, "slug")), "-"),
            Key::new(
                format!("PORTS#{}", text(a, "cell")),
                format!("{:05}", number(a, "port")),
            ),
        ] {
            if after
                .table
                .items
                .get(&key)
                .is_none_or(|t| text(t, "domain") != text(a, "domain"))
            {
                return Err(format!("I1: {} does not own {key:?}", text(a, "domain")));
            }
        }
        let tied = ["owner", "lease_until", "command_id"]
            .iter()
            .any(|f| a.contains_key(*f));
        if tied && matches!(state(a).0, State::Active | State::Retired) {
            return Err(format!(
                "1.2: {} is {:?} and somebody is still at work on it",
                text(a, "domain"),
                state(a)
            ));
        }
        if let Some(p) = after.table.items.get(&Key::new(k.pk.clone(), PRODUCT))
            && (state(a).0 != State::Active || number(p, "generation") != number(a, "generation"))
        {
            return Err(format!("I9: {} is claimed and not active", text(a, "domain")));
        }
        let Some(b) = before.table.items.get(k) else {
            continue;
        };
        if ["slug", "cell", "origin", "server_did", "port"]
            .iter()
            .any(|f| a.get(*f) != b.get(*f))
        {
            return Err(format!("I4: {} moved", text(a, "domain")));
        }
        if !legal(b, a) {
            return Err(format!(
                "2.3, I10: {:?} g{} to {:?} g{}",
                state(b),
                number(b, "generation"),
                state(a),
                number(a, "generation")
            ));
        }
        if state(b).0 != State::Active && state(a).0 == State::Active {
            let h = after.host.get(text(a, "slug"));
            if !h.is_some_and(|h| h.up && !h.last_down && h.generation == number(a, "generation")) {
                return Err(format!(
                    "I2: {} marked active and the host has {h:?}",
                    text(a, "domain")
                ));
            }
        }
    }
    Ok(())
}

fn host(before: &Sim, after: &Sim) -> Result<(), String> {
    for (_, r) in rows(after).filter(|(_, r)| state(r).0 == State::Active) {
        let slug = text(r, "slug");
        let (b, a) = (before.host.get(slug), after.host.get(slug));
        if b.is_some_and(|b| b.up) && !a.is_some_and(|a| a.up) {
            return Err(format!("I3: the active {slug} was stopped"));
        }
        if let (Some(b), Some(a)) = (b, a)
            && b.up
            && a.starts > b.starts
        {
            return Err(format!("I3: the active {slug} was restarted"));
        }
    }
    Ok(())
}

/// Drained, leases over, swept twice: I5. Then a create must converge, whatever still arrives late.
fn at_rest(sim: &Sim, cell: &Cell) -> Result<(), String> {
    let m = Mem::new();
    *m.sim.borrow_mut() = sim.clone();
    let quiet = Cell {
        sweep: SweepPolicy::Report,
        ..cell.clone()
    };
    let drain = || {
        let mut s = m.sim.borrow_mut();
        for i in 0..s.commands.len() {
            s.deliver(i);
        }
    };
    for i in 0..2 {
        drain();
        m.pass(TICK);
        let now = m.sim.borrow().now;
        let me = claim("sweep", &format!("rest{i}"), now);
        drive(Supervisor::new(&m, &quiet).sweep(&me))
            .expect("nothing was to crash")
            .map_err(|e| format!("I5: the sweep failed: {e}"))?;
    }
    drain();
    agrees(&m.sim.borrow())?;
    let names: Vec<String> = rows(&m.sim.borrow())
        .map(|(_, r)| text(r, "domain").to_owned())
        .collect();
    m.pass(TICK);
    for (i, name) in names.iter().enumerate() {
        let now = m.sim.borrow().now;
        let d: Domain = serde_json::from_value(serde_json::json!(name)).expect("a domain");
        let me = claim("last", &format!("last{i}"), now);
        drive(Supervisor::new(&m, &quiet).ensure_provisioned(&d, &me))
            .expect("nothing was to crash")
            .map_err(|e| format!("{name} can not be created again: {e}"))?;
    }
    drain();
    agrees(&m.sim.borrow())?;
    for (_, r) in rows(&m.sim.borrow()) {
        if state(r).0 != State::Active {
            return Err(format!("{} does not stay active", text(r, "domain")));
        }
    }
    Ok(())
}

fn agrees(s: &Sim) -> Result<(), String> {
    for (_, r) in rows(s) {
        let h = s.host.get(text(r, "slug")).cloned().unwrap_or_default();
        let ok = match state(r).0 {
            State::Active => h.up && r.get("owner").is_none(),
            State::Retiring | State::Retired => !h.up && !h.residue && r.get("owner").is_none(),
            State::Allocating | State::Starting => false,
        };
        if !ok {
            return Err(format!(
                "I5: at rest {} is {:?} and the host has {h:?}",
                text(r, "domain"),
                state(r)
            ));
        }
    }
    for (slug, h) in &s.host {
        if (h.up || h.residue) && !rows(s).any(|(_, r)| text(r, "slug") == slug) {
            return Err(format!("I5: {slug} is on the host and in no row"));
        }
    }
    Ok(())
}

fn outcome_holds(after: &Sim, program: &Program, outcome: &Outcome) -> Result<(), String> {
    if let (Role::Saga(d, _), Outcome::Saga(Ok(p), None)) = (&program.role, outcome) {
        return Err(format!("{d}: {p:?} and no insert"));
    }
    if let (Role::Saga(d, _), Outcome::Saga(Err(ProvisionError::SlugConflict(slug)), _)) =
        (&program.role, outcome)
    {
        let owner = after.table.items.get(&Key::new(format!("SLUG#{slug}"), "-"));
        if owner.is_some_and(|o| text(o, "domain") == *d) {
            return Err(format!("{d} was refused its own slug"));
        }
    }
    if let (Role::Saga(d, e), Outcome::Saga(Ok(p), Some(Ok(())))) = (&program.role, outcome) {
        let pk = format!("DOMAIN#{d}");
        let row = after.table.items.get(&Key::new(pk.clone(), REG));
        let same = row.is_some_and(|r| {
            text(r, "origin") == p.origin.as_str()
                && number(r, "port") == u64::from(p.port.0)
                && text(r, "server_did") == p.server_did
        });
        if !same {
            return Err(format!("I6: {e} was told {p:?} and the row is {row:?}"));
        }
        // The insert's answer is the last one heard, so nobody was in between.
        let claimed = after.table.items.get(&Key::new(pk, PRODUCT));
        if claimed.is_none_or(|c| number(c, "generation") != p.generation.0) {
            return Err(format!("{e} was told that {d} is claimed, and it is not"));
        }
    }
    Ok(())
}

impl System for Scene {
    type World = Part<Sim>;
    type Program = Program;
    type Request = Ask;
    type Answer = Told;
    type Outcome = Outcome;
    type Event = Event;

    fn actors(&self) -> Vec<Actor> {
        self.cast
            .iter()
            .map(|(r, turns)| Actor::new(&format!("{r:?}"), *turns))
            .collect()
    }

    fn programs(&self, world: &Part<Sim>, actor: usize, nth: usize) -> Vec<Program> {
        let role = &self.cast[actor].0;
        // Without a row these have nothing to do, and would be spent before there is one.
        if let Role::Retire(d) | Role::Abort(d, _) = role
            && !world
                .table
                .items
                .contains_key(&Key::new(format!("DOMAIN#{d}"), REG))
        {
            return Vec::new();
        }
        vec![Program {
            role: role.clone(),
            request: format!("{actor}.{nth}"),
            now: world.now,
        }]
    }

    fn start<'a>(&'a self, program: Program, seat: Seat<Ask, Told>) -> Running<'a, Outcome> {
        Box::pin(play(program, &self.cell, seat))
    }

    fn answers(&self, world: &Part<Sim>, ask: &Ask) -> Vec<Branch<Part<Sim>, Told>> {
        if !ask.acts() {
            return vec![Branch::read(world.read(ask))];
        }
        let mut sim = Sim::clone(world);
        let told = sim.answer(ask);
        if matches!(told, Told::Written(Err(_))) {
            return vec![Branch::read(told)];
        }
        let after = Part::new(sim);
        let mut out = vec![Branch::write(after.clone(), told)];
        if self.lost {
            out.push(Branch::fault("answer lost", Some(after), ask.failed(no_answer())));
            out.push(Branch::fault("call lost", None, ask.failed(no_answer())));
        }
        out
    }

    fn acts(&self, ask: &Ask) -> bool {
        ask.acts()
    }

    fn events(&self, world: &Part<Sim>) -> Vec<Event> {
        let mut out = Vec::new();
        for (i, c) in world.commands.iter().enumerate() {
            if c.runs == 0 || (self.again && c.runs == 1) {
                out.push(Event::Deliver(i));
            }
            if self.falter && c.runs == 0 && c.command.op == HostOp::Up {
                out.push(Event::Falter(i));
            }
            if self.time_out && c.status == CommandStatus::Waiting {
                out.push(Event::TimeOut(i));
            }
        }
        let gone = (world.now - self.start.now) / self.tick;
        let busy = world.commands.len()
            >= self.start.commands.len() + usize::try_from(gone * self.pace).unwrap_or(0);
        if gone < self.ticks && busy {
            out.push(Event::Tick);
        }
        out
    }

    fn happen(&self, world: &Part<Sim>, event: &Event) -> Part<Sim> {
        let mut s = Sim::clone(world);
        match event {
            Event::Deliver(i) => s.deliver(*i),
            Event::Falter(i) => {
                let slug = s.commands[*i].command.slug.to_string();
                s.sick.insert(slug.clone(), "crash_loop".into());
                s.deliver(*i);
                s.sick.remove(&slug);
            }
            Event::TimeOut(i) => s.time_out(*i),
            Event::Tick => s.now += self.tick,
        }
        Part::new(s)
    }

    fn check(&self, step: &Step<'_, Self>) -> Result<(), String> {
        if step.before != step.after {
            if matches!(step.act, Act::Event(_)) {
                host(step.before, step.after)?;
            } else {
                tables(step.before, step.after)?;
            }
        }
        match &step.act {
            Act::Call {
                program,
                outcome: Some(o),
                heard: true,
                ..
            } => outcome_holds(step.after, program, o),
            _ => Ok(()),
        }
    }

    fn check_idle(&self, world: &Part<Sim>) -> Result<(), String> {
        at_rest(world, &self.cell)
    }

    fn show_outcome(&self, outcome: &Outcome) -> String {
        let name = |e: &ProvisionError| e.error_type().to_owned();
        match outcome {
            Outcome::Saga(Ok(p), None) => format!("{:?}", p.outcome),
            Outcome::Saga(Ok(p), Some(Ok(()))) => format!("{:?} and inserted", p.outcome),
            Outcome::Saga(Ok(p), Some(Err(e))) => format!("{:?}, then {}", p.outcome, name(e)),
            Outcome::Saga(Err(e), _) => name(e),
            Outcome::Abort(a) => format!("abort: {:?}", a.as_ref().map_err(name)),
            Outcome::Retire(r) => format!("retire: {:?}", r.as_ref().map_err(name)),
            Outcome::Sweep(Ok(s)) => format!(
                "sweep: {} rolled back, {} retired, {} reported, {} alarms",
                s.rolled_back.len(),
                s.retired.len(),
                s.reported.len(),
                s.alarms.len()
            ),
            Outcome::Sweep(Err(e)) => format!("sweep: {}", name(e)),
        }
    }

    fn show_request(&self, ask: &Ask) -> String {
        format!("{:?}", crate::domains::fake::point(ask))
    }

    fn show_answer(&self, told: &Told) -> String {
        match told {
            Told::Item(Ok(Some(i))) => format!("{:?} g{}", state(i), number(i, "generation")),
            Told::Page(Ok(p)) => format!("{} items", p.items.len()),
            Told::Seen(Ok(i)) => format!("{:?} {}", i.status, i.stdout.trim()),
            other => format!("{other:?}").chars().take(160).collect(),
        }
    }

    fn show_world(&self, world: &Part<Sim>) -> String {
        let rows: Vec<String> = rows(world)
            .map(|(_, r)| {
                format!(
                    "{} {:?} g{} {}",
                    text(r, "domain"),
                    state(r),
                    number(r, "generation"),
                    text(r, "owner")
                )
            })
            .collect();
        format!("{rows:?}\n{:?}", world.host)
    }
}

fn run(s: &Scene, bounds: &Bounds) -> Report {
    explore(s, Part::new(s.start.clone()), bounds)
}

/// Two creators of one domain and one sweep.
fn three() -> Scene {
    Scene::new(&[
        (Role::Saga("a.com", "ea"), 1),
        (Role::Saga("a.com", "eb"), 1),
        (Role::Sweep, 1),
    ])
}

/// At most this many interruptions of one actor by another within a program.
fn switches(n: u8) -> Bounds {
    Bounds {
        switches: Some(n),
        ..Bounds::default()
    }
}

#[test]
fn two_creators_and_a_sweep() {
    let report = run(&three(), &switches(2));
    report.assert_clean();
    assert!(report.complete());
    for what in [
        "Created and inserted",
        "Reused and inserted",
        "Provision.Busy",
        "Provision.LostLease",
        "Provision.InProgress",
        "sweep: 1 rolled back, 0 retired, 0 reported, 1 alarms",
    ] {
        assert!(
            report.outcomes.contains_key(what),
            "{what} in {:?}",
            report.outcomes
        );
    }
}

#[test]
#[ignore = "a minute of CPU, some 900,000 states; cargo test -p headgate-core --features fakes --profile explore domains::tests::explore -- --ignored"]
fn two_creators_and_a_sweep_exhaustively() {
    let report = run(&three(), &Bounds::default());
    println!("{report}");
    report.assert_clean();
    assert!(report.complete() && report.states > 400_000);
}

/// Start: retired, and nothing on the host.
fn retired() -> Scene {
    let mut s = Scene::new(&[(Role::Saga("a.com", "ea"), 1), (Role::Saga("a.com", "eb"), 1)])
        .with_active("a.com", false);
    let m = Mem::new();
    *m.sim.borrow_mut() = s.start;
    let me = claim("before", "d", m.sim.borrow().now);
    let end = drive(Supervisor::new(&m, &s.cell).retire(&domain("a.com"), &me, me.rollback_until()));
    assert_eq!(end.unwrap().unwrap(), Retired::Done);
    s.start = m.sim.into_inner();
    s
}

/// For each guard, a small scene in which its absence shows.
fn scenes() -> Vec<(Mistake, Scene, Bounds)> {
    let saga = |e: &'static str, turns: usize| (Role::Saga("a.com", e), turns);
    let retire = (Role::Retire("a.com"), 1);
    let pair = || Scene::new(&[saga("ea", 1), saga("eb", 1)]);
    let faltering = |cast: &[(Role, usize)]| Scene {
        falter: true,
        ..Scene::new(cast)
    };
    let old = Scene {
        tick: WEEK,
        ..Scene::new(&[saga("ea", 1), (Role::Sweep, 1)])
    };
    let mut stranger = Scene::new(&[saga("ea", 1)]);
    stranger.start.table.seed(Item::from([
        ("pk".into(), Attr::s("SLUG#a-com")),
        ("sk".into(), Attr::s("-")),
        ("domain".into(), Attr::s("b.com")),
    ]));
    vec![
        (
            Mistake::NoFence,
            faltering(&[saga("ea", 1), saga("eb", 1)]),
            switches(0),
        ),
        (
            Mistake::UpRestarts,
            Scene {
                again: true,
                ..Scene::new(&[saga("ea", 1)])
            },
            switches(0),
        ),
        (Mistake::ActivateBlindly, pair(), switches(1)),
        (
            Mistake::PortBlindly,
            Scene::new(&[saga("ea", 1), (Role::Saga("b.com", "eb"), 1)]),
            switches(1),
        ),
        (Mistake::SlugBlindly, stranger, switches(0)),
        (Mistake::RowBlindly, pair(), switches(1)),
        (
            Mistake::InsertBlindly,
            Scene::new(&[saga("ea", 1), retire.clone()]),
            switches(1),
        ),
        (
            Mistake::SweepUnclaimedBlindly,
            old.with_active("a.com", false),
            switches(1),
        ),
        (
            Mistake::SweepGenerationOnly,
            Scene::new(&[saga("ea", 1), (Role::Sweep, 1)]),
            switches(2),
        ),
        (Mistake::TakeBlindly, retired(), switches(1)),
        (Mistake::StartBlindly, pair(), switches(1)),
        (Mistake::SentBlindly, pair(), switches(1)),
        (
            Mistake::AdoptBlindly,
            Scene::new(&[saga("ea", 2), saga("eb", 1)]),
            switches(1),
        ),
        (
            Mistake::FailBlindly,
            faltering(&[saga("ea", 1), saga("eb", 1)]),
            switches(1),
        ),
        (
            Mistake::DownBlindly,
            Scene::new(&[retire.clone(), saga("ea", 1)]).with_active("a.com", true),
            switches(1),
        ),
        (
            Mistake::RetireBlindly,
            Scene::new(&[retire.clone(), retire.clone(), saga("ea", 1)]).with_active("a.com", false),
            switches(1),
        ),
        (
            Mistake::RetireKeepsClaim,
            Scene::new(&[retire]).with_active("a.com", true),
            switches(0),
        ),
        (
            Mistake::StopBlindly,
            faltering(&[saga("ea", 1), saga("eb", 1), (Role::Sweep, 1)]),
            switches(1),
        ),
    ]
}

#[test]
fn every_guard_is_needed() {
    for (mistake, scene, bounds) in scenes() {
        let report = run(&scene.mistaken(mistake), &bounds);
        assert!(
            report.violation.is_some(),
            "{mistake:?} was not noticed: {report}"
        );
    }
}

#[test]
fn with_all_guards_the_same_scenes_are_clean() {
    for (mistake, scene, bounds) in scenes() {
        let report = run(&scene, &bounds);
        println!("{mistake:?}: {report}");
        report.assert_clean();
        assert!(report.complete(), "{mistake:?}: {report}");
    }
}

/// A cast of three to nine over up to four domains, two of which fold to the same plain label, and everything
/// that can happen to it.
fn crowd(seed: u64) -> Scene {
    const NAMES: [&str; 4] = ["a.b.com", "a-b.com", "c.com", "d.com"];
    const EXECUTIONS: [&str; 9] = ["e0", "e1", "e2", "e3", "e4", "e5", "e6", "e7", "e8"];
    // Spread by a multiplicative hash, so that neighbouring seeds have different casts.
    let mut dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut roll = |n: u64| {
        dice = dice
            .wrapping_mul(0xd129_0d3b_3f6f_9a35)
            .rotate_left(29)
            .wrapping_add(seed);
        usize::try_from((dice >> 33) % n).unwrap_or(0)
    };
    let size = 3 + roll(7);
    // Few domains for many: they must meet.
    let names = 1 + roll(4);
    let cast: Vec<(Role, usize)> = (0..size)
        .map(|i| {
            let name = NAMES[roll(names as u64)];
            match roll(8) {
                0..=3 => (Role::Saga(name, EXECUTIONS[i]), 1 + roll(3)),
                4 => (Role::Abort(name, EXECUTIONS[roll(size as u64)]), 1 + roll(2)),
                5 => (Role::Retire(name), 1 + roll(2)),
                _ => (Role::Sweep, 1 + roll(3)),
            }
        })
        .collect();
    let mut s = Scene::new(&cast);
    s.tick = if roll(4) == 0 { WEEK } else { TICK };
    (s.ticks, s.pace) = (4, 2);
    (s.again, s.falter, s.time_out, s.lost) = (true, true, true, true);
    match roll(3) {
        0 => s.with_active(NAMES[0], true),
        1 => s.with_active(NAMES[0], false),
        _ => s,
    }
}

/// Random ways, one cast for each seed, and what programs ended with.
///
/// # Panics
/// A promise was broken.
fn walks(seeds: std::ops::Range<u64>) -> BTreeMap<String, usize> {
    let bounds = Bounds {
        crashes: 3,
        faults: 4,
        depth: 400,
        ..Bounds::default()
    };
    let mut seen = BTreeMap::new();
    for seed in seeds {
        let s = crowd(seed);
        let report = walk(&s, Part::new(s.start.clone()), &bounds, seed, 1);
        report.assert_clean();
        for (what, n) in report.outcomes.into_iter().chain(report.events) {
            let kind = what.split(['(', ':']).next().unwrap_or("").to_owned();
            *seen
                .entry(if kind == "retire" || kind == "abort" {
                    what
                } else {
                    kind
                })
                .or_default() += n;
        }
    }
    seen
}

#[test]
fn random_ways_of_a_crowd() {
    let seen = walks(0..200);
    for what in [
        "Created and inserted",
        "Reused, then Domain.InstanceMoved",
        "Reused and inserted",
        "Provision.ActivationFailed",
        "Provision.ActivationFailedDirty",
        "Provision.Busy",
        "Provision.InProgress",
        "Provision.LostLease",
        "Provision.Unavailable",
        "retire: Ok(Done)",
        "retire: Ok(Underway)",
        "sweep",
        "Falter",
        "TimeOut",
        "Tick",
    ] {
        assert!(seen.contains_key(what), "{what} in {seen:?}");
    }
}

#[test]
#[ignore = "minutes of CPU; cargo test -p headgate-core --features fakes --profile explore domains::tests::explore -- --ignored"]
fn forty_thousand_random_ways_of_a_crowd() {
    println!("{:?}", walks(0..40_000));
}

fn walked(s: &Scene, seed: u64) -> Report {
    let bounds = Bounds {
        depth: 5_000,
        ..Bounds::default()
    };
    let report = walk(s, Part::new(s.start.clone()), &bounds, seed, 1);
    report.assert_clean();
    assert_eq!(report.cut, None);
    report
}

#[test]
fn c16_concurrent_same_domain_converges() {
    const EXECUTIONS: [&str; 8] = ["e0", "e1", "e2", "e3", "e4", "e5", "e6", "e7"];
    for seed in 0..5 {
        let cast = EXECUTIONS.map(|e| (Role::Saga("a.com", e), 3));
        let report = walked(&Scene::new(&cast), seed);
        let good = [
            "Created",
            "Reused",
            "Provision.Busy",
            "Provision.InProgress",
            "Provision.LostLease",
        ];
        for what in report.outcomes.keys() {
            assert!(good.iter().any(|g| what.starts_with(g)), "{what}");
        }
    }
}

#[test]
fn c17_concurrent_domains_never_share() {
    let mut s = Scene::new(&[]);
    // Each is its own execution: the names live as long as the test. (50 sequentially: `the_sweep_goes_through_a_long_list`.)
    let name = |i: usize| -> &'static str { Box::leak(format!("d{i}.com").into_boxed_str()) };
    s.cast = (0..24).map(|i| (Role::Saga(name(i), name(i)), 2)).collect();
    s.ticks = 0;
    s.cell.ports.high = 20_099;
    let report = walked(&s, 1);
    // I1 held after every step: no port and no label was shared, and none was refused.
    for what in report.outcomes.keys() {
        assert!(
            !what.contains("Exhausted") && !what.contains("Conflict"),
            "{what}"
        );
    }
}
