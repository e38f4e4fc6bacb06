//! An explorer of interleavings: runs the real shells against a small model of the world, in every order,
//! with crashes, lost answers and stale reads, and prints the shortest way to a broken promise.
//!
//! # How
//! A shell (`run.rs` of a domain) is an `async fn` over a small trait in the words of its domain. The
//! compiler has already made a step machine of it: between two requests it is a value at rest. In a test the
//! trait is implemented over a [`Seat`], which hands each request out and waits. The explorer takes the
//! request, lets the [`System`] say what the world may answer and what it looks like afterwards (a
//! [`Branch`] for each possibility), and puts an answer back. So what is explored is the shell that runs in
//! production and the decisions it calls, not a copy of them.
//!
//! A future can not be cloned. A branch is therefore reached by *replay*: a fresh future, fed the recorded
//! answers. A shell sees nothing but its arguments and its answers, so (program, answers) says all about
//! where it stands; these points form a tree, each is computed once, and a state of the whole system is one
//! world and one small number per actor. That makes exact de-duplication cheap.
//!
//! # What is explored
//! Each actor has a script: one program after another. At every point any actor may have any of its
//! outstanding requests answered in any of the possible ways, or an event of the world may happen, or an
//! actor may stop for ever before a call that acts, or after it and before hearing the answer. [`Bounds`]
//! limit how many crashes, faults and events one run may have; within them [`explore`] is exhaustive and
//! breadth first, so its counterexample is a shortest one, and [`walk`] takes long random ways and shortens
//! what it finds.
//!
//! # How much
//! In the dev profile about 250,000 transitions a second on the toys of the tests, and about 8,000 with the
//! updater, where the time goes into the shell itself (reading and building rows). A state costs about 60
//! bytes once it has been left; only the states still to be visited hold their world, and equal worlds are one.
//! What takes memory is the points at which a shell stood: each keeps the answer that led there.
//!
//! # Why not stateright (0.31) or shuttle (0.9)
//! stateright wants states that can be cloned and actors written as message handlers; an `async fn` is
//! neither, so it would need this very replay underneath, and what would remain of it is a hash set and a
//! queue. shuttle schedules real async code, but at random or by bounded preemption and without
//! de-duplication, and it has no notion of a crash or of an answer that never came. Both would be a second
//! vocabulary for every test. This file is smaller than the adapters they would need.

#![allow(
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests only: a fault in a model must stop the test that holds it"
)]

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Debug};
use std::future::{Future, poll_fn};
use std::hash::{Hash, Hasher};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

/// A running program: what [`System::start`] returns.
pub type Running<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// What is explored: who takes part, what they run, what the world answers, what must hold.
pub trait System {
    /// Everything outside the shells: table, services, clock, and what the checks want to remember.
    type World: Clone + Hash + Debug;
    /// One run of a shell with its arguments, the time of the call included.
    type Program: Clone + Hash + Debug;
    /// What a shell asks of the world.
    type Request: Clone + Hash + Debug;
    /// What it hears back.
    type Answer: Clone + Hash + Debug;
    /// What a program ends with.
    type Outcome: Clone + Hash + Debug;
    /// Something that happens in the world by itself.
    type Event: Clone + PartialEq + Debug;

    /// The actors, each with the number of programs in its script.
    fn actors(&self) -> Vec<Actor>;

    /// The programs the actor may start now as its `nth` (from 0); none means that it waits.
    fn programs(&self, world: &Self::World, actor: usize, nth: usize) -> Vec<Self::Program>;

    /// The real shell, talking to `seat`. It must depend on nothing but the program and the answers.
    fn start<'a>(
        &'a self,
        program: Self::Program,
        seat: Seat<Self::Request, Self::Answer>,
    ) -> Running<'a, Self::Outcome>;

    /// Every way the world may answer. The first is the plain one; [`solo`] takes only that.
    fn answers(&self, world: &Self::World, request: &Self::Request)
    -> Vec<Branch<Self::World, Self::Answer>>;

    /// Is this a call that may change the world? The actor may crash before it and after it. (A crash at a
    /// read leaves the same world as a crash at the call before.)
    fn acts(&self, request: &Self::Request) -> bool;

    /// What may happen by itself now. What comes back must be finite in number along every run.
    fn events(&self, world: &Self::World) -> Vec<Self::Event>;

    /// The world after an event.
    fn happen(&self, world: &Self::World, event: &Self::Event) -> Self::World;

    /// Does this happen only while no program is under way? So for a jump of the clock that is longer than
    /// a program may run: whoever was under way has ended or was stopped by then.
    fn only_idle(&self, _event: &Self::Event) -> bool {
        false
    }

    /// The world after a program ended; `None` when nobody takes note.
    fn ended(
        &self,
        _world: &Self::World,
        _program: &Self::Program,
        _outcome: &Self::Outcome,
    ) -> Option<Self::World> {
        None
    }

    /// What must hold of every step.
    ///
    /// # Errors
    /// The promise that was broken.
    fn check(&self, step: &Step<'_, Self>) -> Result<(), String>;

    /// What must hold whenever no program is under way. Asked once for each such world.
    ///
    /// # Errors
    /// The promise that was broken.
    fn check_idle(&self, _world: &Self::World) -> Result<(), String> {
        Ok(())
    }

    /// The smallest actor this one can be exchanged with: same script, same programs. States that differ
    /// only in which of the two stands where are then one.
    fn alike(&self, actor: usize) -> usize {
        actor
    }

    /// A program in a counterexample.
    fn show_program(&self, program: &Self::Program) -> String {
        format!("{program:?}")
    }

    /// A request in a counterexample.
    fn show_request(&self, request: &Self::Request) -> String {
        format!("{request:?}")
    }

    /// An answer in a counterexample.
    fn show_answer(&self, answer: &Self::Answer) -> String {
        format!("{answer:?}")
    }

    /// An outcome in a counterexample, and the key of [`Report::outcomes`].
    fn show_outcome(&self, outcome: &Self::Outcome) -> String {
        format!("{outcome:?}")
    }

    /// An event in a counterexample, and the key of [`Report::events`].
    fn show_event(&self, event: &Self::Event) -> String {
        format!("{event:?}")
    }

    /// The world at the end of a counterexample.
    fn show_world(&self, world: &Self::World) -> String {
        format!("{world:#?}")
    }
}

/// One who runs programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// Its name in a counterexample.
    pub name: String,
    /// How many programs it runs, one after another.
    pub turns: usize,
}

impl Actor {
    /// An actor with a script of `turns` programs.
    pub fn new(name: &str, turns: usize) -> Self {
        Self {
            name: name.into(),
            turns,
        }
    }
}

/// One way the world may answer a request.
#[derive(Debug, Clone)]
pub struct Branch<W, A> {
    /// What is special about it, e.g. `ok`, `answer lost`, `stale`. The key of [`Report::labels`].
    pub label: &'static str,
    /// The world afterwards; `None` when it did not change.
    pub world: Option<W>,
    /// What the shell hears.
    pub answer: A,
    /// Counts against [`Bounds::faults`].
    pub fault: bool,
}

impl<W, A> Branch<W, A> {
    /// An answer that changes nothing.
    pub fn read(answer: A) -> Self {
        Self {
            label: "ok",
            world: None,
            answer,
            fault: false,
        }
    }

    /// An answer together with the world it leaves.
    pub fn write(world: W, answer: A) -> Self {
        Self {
            label: "ok",
            world: Some(world),
            answer,
            fault: false,
        }
    }

    /// A fault: `world` is what it leaves, `None` when nothing happened.
    pub fn fault(label: &'static str, world: Option<W>, answer: A) -> Self {
        Self {
            label,
            world,
            answer,
            fault: true,
        }
    }
}

/// One transition, as the checks see it.
pub struct Step<'a, S: System + ?Sized> {
    /// The world before.
    pub before: &'a S::World,
    /// The world after.
    pub after: &'a S::World,
    /// What happened.
    pub act: Act<'a, S>,
}

/// What happened in a step.
pub enum Act<'a, S: System + ?Sized> {
    /// The world moved by itself.
    Event(&'a S::Event),
    /// A request was answered.
    Call {
        /// Who asked.
        actor: usize,
        /// What it runs.
        program: &'a S::Program,
        /// What it asked.
        request: &'a S::Request,
        /// What the world answered.
        answer: &'a S::Answer,
        /// Did the answer arrive? If not, the actor is gone.
        heard: bool,
        /// What the program ended with, if this was its last answer.
        outcome: Option<&'a S::Outcome>,
    },
    /// A program ended without asking anything.
    End {
        /// Who ran it.
        actor: usize,
        /// What it ran.
        program: &'a S::Program,
        /// What it ended with.
        outcome: &'a S::Outcome,
    },
}

impl<S: System> Debug for Step<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step")
            .field("act", &self.act)
            .finish_non_exhaustive()
    }
}

impl<S: System> Debug for Act<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Act::Event(e) => write!(f, "{e:?}"),
            Act::Call {
                actor,
                request,
                answer,
                ..
            } => write!(f, "{actor}: {request:?} -> {answer:?}"),
            Act::End { actor, outcome, .. } => write!(f, "{actor}: {outcome:?}"),
        }
    }
}

/// Where a shell sits while it waits for the world. Clones are the same seat.
pub struct Seat<R, A>(Rc<RefCell<Slots<R, A>>>);

struct Slots<R, A> {
    tickets: u32,
    asked: Vec<(u32, R)>,
    heard: Vec<(u32, A)>,
}

impl<R, A> Clone for Seat<R, A> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<R, A> Debug for Seat<R, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seat({} asked)", self.0.borrow().tickets)
    }
}

impl<R, A> Seat<R, A> {
    fn new() -> Self {
        Self(Rc::new(RefCell::new(Slots {
            tickets: 0,
            asked: Vec::new(),
            heard: Vec::new(),
        })))
    }

    /// Hands a request out and waits for its answer. Several may be out at once (a join).
    pub async fn ask(&self, request: R) -> A {
        let ticket = {
            let mut s = self.0.borrow_mut();
            s.tickets += 1;
            let t = s.tickets;
            s.asked.push((t, request));
            t
        };
        poll_fn(|_| {
            let mut s = self.0.borrow_mut();
            match s.heard.iter().position(|(t, _)| *t == ticket) {
                Some(at) => Poll::Ready(s.heard.swap_remove(at).1),
                None => Poll::Pending,
            }
        })
        .await
    }
}

/// A part of a world that is shared between the worlds that have not changed it. Its digest is taken once,
/// so cloning and hashing a world costs only what changed.
pub struct Part<T> {
    value: Rc<T>,
    digest: u64,
}

impl<T: Hash> Part<T> {
    /// A new part.
    pub fn new(value: T) -> Self {
        Self {
            digest: digest(&value),
            value: Rc::new(value),
        }
    }
}

impl<T> Clone for Part<T> {
    fn clone(&self) -> Self {
        Self {
            value: Rc::clone(&self.value),
            digest: self.digest,
        }
    }
}

impl<T> std::ops::Deref for Part<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Hash for Part<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest);
    }
}

impl<T> PartialEq for Part<T> {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl<T> Eq for Part<T> {}

impl<T: Debug> Debug for Part<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

/// The value of a future that never waits, such as a call to an in-memory world.
///
/// # Panics
/// The future waits.
pub fn ready<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(v) => v,
        Poll::Pending => panic!("this future was said never to wait"),
    }
}

/// What one run may contain, and when to give up. A state reached with less left counts as another state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Actors that stop for ever.
    pub crashes: u8,
    /// Answers marked as a fault.
    pub faults: u8,
    /// Events of the world; `None` for as many as there are (the world must then be finite by itself).
    pub events: Option<u8>,
    /// Times an actor is interrupted by another one in the middle of a program; `None` for no limit. Most
    /// mistakes need one or two (Musuvathi and Qadeer, "Iterative context bounding", PLDI 2007).
    pub switches: Option<u8>,
    /// Steps in a run. A run that is cut here makes the report incomplete.
    pub depth: usize,
    /// States to visit before giving up; reaching it makes the report incomplete.
    pub states: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            crashes: 0,
            faults: 0,
            events: None,
            switches: None,
            depth: 10_000,
            states: 10_000_000,
        }
    }
}

/// What was explored, and what was found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Different states visited (for [`walk`]: steps taken).
    pub states: usize,
    /// Transitions checked.
    pub transitions: usize,
    /// Steps of the longest run ([`explore`]: of the longest among shortest ways to a state).
    pub depth: usize,
    /// Different points at which a shell stood.
    pub points: usize,
    /// Different worlds in which no program was under way.
    pub idle: usize,
    /// How often each kind of answer was given.
    pub labels: BTreeMap<&'static str, usize>,
    /// How often each kind of event happened.
    pub events: BTreeMap<String, usize>,
    /// What programs ended with, and after how many different histories.
    pub outcomes: BTreeMap<String, usize>,
    /// Actors that stopped for ever.
    pub crashes: usize,
    /// Which limit cut the exploration, if one did.
    pub cut: Option<&'static str>,
    /// The broken promise and the way to it.
    pub violation: Option<Counterexample>,
}

impl Report {
    /// Was everything within the bounds visited and nothing found?
    pub fn complete(&self) -> bool {
        self.cut.is_none() && self.violation.is_none()
    }

    /// Stops the test with the counterexample if there is one.
    ///
    /// # Panics
    /// A promise was broken.
    #[track_caller]
    pub fn assert_clean(&self) {
        if let Some(v) = &self.violation {
            panic!("{v}");
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} states, {} transitions, depth {}, {} points, {} idle worlds, {} crashes{}",
            self.states,
            self.transitions,
            self.depth,
            self.points,
            self.idle,
            self.crashes,
            self.cut.map(|c| format!(", cut by {c}")).unwrap_or_default()
        )
    }
}

/// How a promise was broken, step by step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counterexample {
    /// The promise.
    pub reason: String,
    /// What happened, in order.
    pub lines: Vec<String>,
    /// The world at the end.
    pub world: String,
    /// Seed of the walk that found it.
    pub seed: Option<u64>,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (found in {} steps", self.reason, self.lines.len())?;
        match self.seed {
            Some(s) => writeln!(f, ", seed {s})")?,
            None => writeln!(f, ")")?,
        }
        for (i, line) in self.lines.iter().enumerate() {
            writeln!(f, "{:>4}. {line}", i + 1)?;
        }
        write!(f, "the world then:\n{}", self.world)
    }
}

// ---------------------------------------------------------------- digests

/// A 64-bit digest that is the same in every process. Not for untrusted input: a test's own states.
#[derive(Default)]
struct Digest(u64);

impl Digest {
    #[inline]
    fn mix(&mut self, word: u64) {
        let m = u128::from(self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15)
            .wrapping_mul(0xd6e8_feb8_6659_fd93_a5a3_564e_27f8_864d);
        self.0 = (m as u64).rotate_left(23) ^ (m >> 64) as u64;
    }
}

impl Hasher for Digest {
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for c in &mut chunks {
            self.mix(u64::from_le_bytes([
                c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7],
            ]));
        }
        let mut last = [0u8; 8];
        let rest = chunks.remainder();
        last[..rest.len()].copy_from_slice(rest);
        self.mix(u64::from_le_bytes(last) ^ ((bytes.len() as u64) << 56));
    }

    fn write_u8(&mut self, n: u8) {
        self.mix(n.into());
    }

    fn write_u32(&mut self, n: u32) {
        self.mix(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        self.mix(n);
    }

    fn write_usize(&mut self, n: usize) {
        self.mix(n as u64);
    }

    fn finish(&self) -> u64 {
        let mut d = Digest(self.0);
        d.mix(0x2545_f491_4f6c_dd1d);
        d.0
    }
}

fn digest<T: Hash + ?Sized>(value: &T) -> u64 {
    let mut d = Digest::default();
    value.hash(&mut d);
    d.finish()
}

/// Takes a digest as its own hash.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn write(&mut self, _: &[u8]) {}
    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

#[expect(
    clippy::disallowed_types,
    reason = "keyed by digests with a fixed hasher, and never iterated in order"
)]
type ByDigest<T> = std::collections::HashMap<u64, T, std::hash::BuildHasherDefault<AsIs>>;

// ---------------------------------------------------------------- points: where a shell stands

type Point = u32;
/// Between two programs.
const IDLE: Point = u32::MAX;

struct At<'s, S: System + ?Sized> {
    program: Rc<S::Program>,
    /// The point before and the answer that led here; none for a program that has just started.
    from: Option<(Point, u32, S::Answer)>,
    waits_for: Rc<Vec<(u32, S::Request)>>,
    outcome: Option<Rc<S::Outcome>>,
    /// Digest of the program and of the answers, whatever their order: a join does not see the order.
    key: u64,
    /// Digest of what it asks and of its outcome.
    shape: u64,
    /// The shell itself, waiting here, until it is taken further. Another answer needs a replay.
    live: Option<Live<'s, S>>,
}

/// A shell that has been run up to a point.
struct Live<'s, S: System + ?Sized> {
    running: Running<'s, S::Outcome>,
    seat: Seat<S::Request, S::Answer>,
}

/// At most so many shells are kept alive at once.
const LIVE: usize = 4096;

/// The tree of points, each computed once.
struct Points<'s, S: System + ?Sized> {
    all: Vec<At<'s, S>>,
    live: usize,
    by_key: ByDigest<Point>,
    edges: ByDigest<Point>,
    outcomes: BTreeMap<String, usize>,
}

impl<'s, S: System + ?Sized> Points<'s, S> {
    fn new() -> Self {
        Self {
            all: Vec::new(),
            live: 0,
            by_key: ByDigest::default(),
            edges: ByDigest::default(),
            outcomes: BTreeMap::new(),
        }
    }

    fn get(&self, p: Point) -> &At<'s, S> {
        &self.all[p as usize]
    }

    fn begin(&mut self, sys: &'s S, program: &S::Program) -> Point {
        let key = digest(program);
        if let Some(p) = self.by_key.get(&key) {
            return *p;
        }
        let program = Rc::new(program.clone());
        let (live, outcome) = Self::start(sys, &program);
        self.add(sys, program, None, key, live, outcome)
    }

    /// The point after `answer` to the request with this ticket.
    fn after(&mut self, sys: &'s S, from: Point, ticket: u32, answer: S::Answer) -> Point {
        let heard = digest(&(ticket, &answer));
        let edge = digest(&(from, heard));
        if let Some(p) = self.edges.get(&edge) {
            return *p;
        }
        let key = self.get(from).key.wrapping_add(heard);
        let program = Rc::clone(&self.get(from).program);
        let mut live = match self.all[from as usize].live.take() {
            Some(live) => {
                self.live -= 1;
                live
            }
            None => self.replay(sys, from),
        };
        let outcome = Self::tell(sys, &program, &mut live, ticket, answer.clone());
        let p = match self.by_key.get(&key) {
            // The same answers in another order (two requests of a join). The shell must not care.
            Some(&p) => {
                assert!(
                    shape(&live.seat.0.borrow().asked, &outcome) == self.get(p).shape,
                    "the shell tells the order of the answers to a join, or is not repeatable: {}",
                    sys.show_program(&program)
                );
                p
            }
            None => self.add(sys, program, Some((from, ticket, answer)), key, live, outcome),
        };
        self.edges.insert(edge, p);
        p
    }

    fn add(
        &mut self,
        sys: &S,
        program: Rc<S::Program>,
        from: Option<(Point, u32, S::Answer)>,
        key: u64,
        live: Live<'s, S>,
        outcome: Option<S::Outcome>,
    ) -> Point {
        let waits_for = live.seat.0.borrow().asked.clone();
        if let Some(o) = &outcome {
            *self.outcomes.entry(sys.show_outcome(o)).or_default() += 1;
        } else {
            assert!(
                !waits_for.is_empty(),
                "the shell waits for something that is no seat: {}",
                sys.show_program(&program)
            );
        }
        let shape = shape(&waits_for, &outcome);
        let keep = outcome.is_none() && self.live < LIVE;
        self.live += usize::from(keep);
        let p = Point::try_from(self.all.len()).expect("fewer points than numbers for them");
        self.all.push(At {
            program,
            from,
            waits_for: Rc::new(waits_for),
            outcome: outcome.map(Rc::new),
            key,
            shape,
            live: keep.then_some(live),
        });
        self.by_key.insert(key, p);
        p
    }

    fn start(sys: &'s S, program: &S::Program) -> (Live<'s, S>, Option<S::Outcome>) {
        let seat = Seat::new();
        let mut running = sys.start(program.clone(), seat.clone());
        let polled = running.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let outcome = if let Poll::Ready(o) = polled {
            Some(o)
        } else {
            None
        };
        (Live { running, seat }, outcome)
    }

    fn tell(
        sys: &S,
        program: &S::Program,
        live: &mut Live<'s, S>,
        ticket: u32,
        answer: S::Answer,
    ) -> Option<S::Outcome> {
        {
            let mut s = live.seat.0.borrow_mut();
            let Some(at) = s.asked.iter().position(|(t, _)| *t == ticket) else {
                panic!("the shell is not repeatable: {}", sys.show_program(program));
            };
            s.asked.remove(at);
            s.heard.push((ticket, answer));
        }
        let polled = live
            .running
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(o) = polled {
            Some(o)
        } else {
            None
        }
    }

    /// A fresh shell, told all that leads to this point.
    fn replay(&self, sys: &'s S, to: Point) -> Live<'s, S> {
        let mut answers = Vec::new();
        let mut here = to;
        while let Some((p, ticket, answer)) = &self.get(here).from {
            answers.push((*ticket, answer));
            here = *p;
        }
        let program = &self.get(to).program;
        let (mut live, mut outcome) = Self::start(sys, program);
        for (ticket, answer) in answers.into_iter().rev() {
            assert!(
                outcome.is_none(),
                "the shell is not repeatable: {}",
                sys.show_program(program)
            );
            outcome = Self::tell(sys, program, &mut live, ticket, answer.clone());
        }
        live
    }
}

fn shape<R: Hash, O: Hash>(waits_for: &Vec<(u32, R)>, outcome: &Option<O>) -> u64 {
    digest(&(waits_for, outcome))
}

// ---------------------------------------------------------------- states and moves

struct Kept<W> {
    world: W,
    digest: u64,
}

/// Where one actor is in its script.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Place {
    turn: u16,
    point: Point,
}

#[derive(Clone, Copy, Hash)]
struct Left {
    crashes: u8,
    faults: u8,
    events: u8,
    switches: u8,
}

struct Node<W> {
    world: Rc<Kept<W>>,
    places: Rc<[Place]>,
    left: Left,
    /// Who moved last, when switches are counted.
    last: u8,
    depth: u32,
}

impl<W> Clone for Node<W> {
    fn clone(&self) -> Self {
        Self {
            world: Rc::clone(&self.world),
            places: Rc::clone(&self.places),
            left: self.left,
            last: self.last,
            depth: self.depth,
        }
    }
}

/// A move, by what is stable when earlier moves are left out.
#[derive(Debug, Clone, PartialEq)]
enum Move<E> {
    Answer {
        actor: usize,
        start: Option<usize>,
        ticket: u32,
        branch: usize,
        label: &'static str,
        heard: bool,
    },
    End {
        actor: usize,
        start: usize,
    },
    Crash {
        actor: usize,
    },
    Event(E),
}

impl<E: PartialEq> Move<E> {
    fn like(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Move::Answer {
                    actor: a,
                    label: l,
                    heard: h,
                    start: s,
                    ..
                },
                Move::Answer {
                    actor: b,
                    label: m,
                    heard: i,
                    start: t,
                    ..
                },
            ) => a == b && l == m && h == i && s.is_some() == t.is_some(),
            (Move::End { actor: a, .. }, Move::End { actor: b, .. }) => a == b,
            _ => self == other,
        }
    }
}

struct Next<S: System + ?Sized> {
    mv: Move<S::Event>,
    node: Node<S::World>,
    broken: Option<String>,
}

struct Engine<'s, S: System> {
    sys: &'s S,
    actors: Vec<Actor>,
    alike: Vec<usize>,
    bounds: Bounds,
    points: Points<'s, S>,
    worlds: ByDigest<Weak<Kept<S::World>>>,
    worlds_limit: usize,
    idle: ByDigest<()>,
    events: Vec<(S::Event, usize)>,
    report: Report,
}

impl<'s, S: System> Engine<'s, S> {
    fn new(sys: &'s S, bounds: &Bounds) -> Self {
        let actors = sys.actors();
        Self {
            sys,
            alike: (0..actors.len()).map(|a| sys.alike(a)).collect(),
            actors,
            bounds: *bounds,
            points: Points::new(),
            worlds: ByDigest::default(),
            worlds_limit: 4096,
            idle: ByDigest::default(),
            events: Vec::new(),
            report: Report::default(),
        }
    }

    /// One copy of each world that is in use.
    fn keep(&mut self, world: S::World) -> Rc<Kept<S::World>> {
        let digest = digest(&world);
        if let Some(w) = self.worlds.get(&digest).and_then(Weak::upgrade) {
            return w;
        }
        if self.worlds.len() >= self.worlds_limit {
            self.worlds.retain(|_, w| w.strong_count() > 0);
            self.worlds_limit = 4096.max(self.worlds.len() * 2);
        }
        let w = Rc::new(Kept { world, digest });
        self.worlds.insert(digest, Rc::downgrade(&w));
        w
    }

    fn root(&mut self, world: S::World) -> Node<S::World> {
        Node {
            world: self.keep(world),
            places: self
                .actors
                .iter()
                .map(|_| Place { turn: 0, point: IDLE })
                .collect(),
            left: Left {
                crashes: self.bounds.crashes,
                faults: self.bounds.faults,
                events: self.bounds.events.unwrap_or(1),
                switches: self.bounds.switches.unwrap_or(0),
            },
            last: u8::MAX,
            depth: 0,
        }
    }

    fn digest_of(&self, node: &Node<S::World>) -> u64 {
        let mut d = Digest(node.world.digest);
        node.left.hash(&mut d);
        if self.bounds.switches.is_some() {
            d.write_u8(node.last);
        }
        // Actors that can be exchanged stand in a fixed order. (Not when the last mover matters.)
        let exchange = self.bounds.switches.is_none() && self.alike.iter().enumerate().any(|(a, b)| a != *b);
        if exchange {
            let mut sorted: Vec<(usize, Place)> = self
                .alike
                .iter()
                .copied()
                .zip(node.places.iter().copied())
                .collect();
            sorted.sort_unstable();
            sorted.hash(&mut d);
        } else {
            node.places.hash(&mut d);
        }
        d.finish()
    }

    /// Checks a step and makes the state after it.
    fn next(
        &mut self,
        node: &Node<S::World>,
        mv: Move<S::Event>,
        world: &Rc<Kept<S::World>>,
        seat: Option<(usize, Place)>,
        left: Left,
        broken: Result<(), String>,
    ) -> Next<S> {
        let mut broken = broken.err();
        let mut last = node.last;
        let places = match seat {
            None => Rc::clone(&node.places),
            Some((actor, place)) => {
                if self.bounds.switches.is_some() {
                    last = if place.point == IDLE {
                        u8::MAX
                    } else {
                        u8::try_from(actor).unwrap_or(u8::MAX)
                    };
                }
                let mut p: Rc<[Place]> = Rc::from(&node.places[..]);
                if let Some(p) = Rc::get_mut(&mut p) {
                    p[actor] = place;
                }
                p
            }
        };
        let node = Node {
            world: Rc::clone(world),
            places,
            left,
            last,
            depth: node.depth + 1,
        };
        if broken.is_none()
            && node.places.iter().all(|p| p.point == IDLE)
            && self.idle.insert(node.world.digest, ()).is_none()
        {
            broken = self.sys.check_idle(&node.world.world).err();
        }
        Next { mv, node, broken }
    }

    /// Everything that can happen in a state, always in the same order.
    fn expand(&mut self, node: &Node<S::World>) -> Vec<Next<S>> {
        let mut out = Vec::new();
        let world = &node.world;
        for actor in 0..self.actors.len() {
            let place = node.places[actor];
            let mut left = node.left;
            let interrupts =
                self.bounds.switches.is_some() && node.last != u8::MAX && usize::from(node.last) != actor;
            if interrupts {
                let Some(n) = left.switches.checked_sub(1) else {
                    continue;
                };
                left.switches = n;
            }
            let mut from: Vec<(Option<usize>, Point)> = Vec::new();
            if place.point != IDLE {
                from.push((None, place.point));
            } else if usize::from(place.turn) < self.actors[actor].turns {
                for (i, p) in self
                    .sys
                    .programs(&world.world, actor, place.turn.into())
                    .iter()
                    .enumerate()
                {
                    from.push((Some(i), self.points.begin(self.sys, p)));
                }
            }
            for (start, point) in from {
                self.serve(node, actor, start, point, left, &mut out);
            }
        }
        if node.left.events > 0 {
            let spent = u8::from(self.bounds.events.is_some());
            let left = Left {
                events: node.left.events - spent,
                ..node.left
            };
            let idle = node.places.iter().all(|p| p.point == IDLE);
            for event in self.sys.events(&world.world) {
                if !idle && self.sys.only_idle(&event) {
                    continue;
                }
                let after = self.sys.happen(&world.world, &event);
                let after = self.keep(after);
                let checked = self.sys.check(&Step {
                    before: &world.world,
                    after: &after.world,
                    act: Act::Event(&event),
                });
                out.push(self.next(node, Move::Event(event), &after, None, left, checked));
            }
        }
        out
    }

    /// Every way one actor's outstanding requests may be answered.
    fn serve(
        &mut self,
        node: &Node<S::World>,
        actor: usize,
        start: Option<usize>,
        point: Point,
        left: Left,
        out: &mut Vec<Next<S>>,
    ) {
        let (sys, world) = (self.sys, &node.world);
        let turn = node.places[actor].turn;
        let gone = Place {
            turn: turn + 1,
            point: IDLE,
        };
        let program = Rc::clone(&self.points.get(point).program);
        if let (Some(start), Some(outcome)) = (start, self.points.get(point).outcome.clone()) {
            let after = match sys.ended(&world.world, &program, &outcome) {
                Some(w) => self.keep(w),
                None => Rc::clone(world),
            };
            let act = Act::End {
                actor,
                program: program.as_ref(),
                outcome: outcome.as_ref(),
            };
            let checked = sys.check(&Step {
                before: &world.world,
                after: &after.world,
                act,
            });
            out.push(self.next(
                node,
                Move::End { actor, start },
                &after,
                Some((actor, gone)),
                left,
                checked,
            ));
            return;
        }
        let waits_for = Rc::clone(&self.points.get(point).waits_for);
        for (ticket, request) in waits_for.iter() {
            let acts = sys.acts(request);
            for (i, branch) in sys.answers(&world.world, request).into_iter().enumerate() {
                let Branch {
                    label,
                    world: changed,
                    answer,
                    fault,
                } = branch;
                let mut left = left;
                if fault {
                    let Some(n) = left.faults.checked_sub(1) else {
                        continue;
                    };
                    left.faults = n;
                }
                let applied = match changed {
                    Some(w) => self.keep(w),
                    None => Rc::clone(world),
                };
                let mv = |heard| Move::Answer {
                    actor,
                    start,
                    ticket: *ticket,
                    branch: i,
                    label,
                    heard,
                };
                // After it, and before the answer is heard. (A fault is no answer that could be missed.)
                if acts && !fault && left.crashes > 0 {
                    let left = Left {
                        crashes: left.crashes - 1,
                        ..left
                    };
                    let act = Act::Call {
                        actor,
                        program: program.as_ref(),
                        request,
                        answer: &answer,
                        heard: false,
                        outcome: None,
                    };
                    let checked = sys.check(&Step {
                        before: &world.world,
                        after: &applied.world,
                        act,
                    });
                    out.push(self.next(node, mv(false), &applied, Some((actor, gone)), left, checked));
                }
                let then = self.points.after(sys, point, *ticket, answer.clone());
                let outcome = self.points.get(then).outcome.clone();
                let (after, place) = match &outcome {
                    None => (applied, Place { turn, point: then }),
                    Some(o) => match sys.ended(&applied.world, &program, o) {
                        Some(w) => (self.keep(w), gone),
                        None => (applied, gone),
                    },
                };
                let act = Act::Call {
                    actor,
                    program: program.as_ref(),
                    request,
                    answer: &answer,
                    heard: true,
                    outcome: outcome.as_deref(),
                };
                let checked = sys.check(&Step {
                    before: &world.world,
                    after: &after.world,
                    act,
                });
                out.push(self.next(node, mv(true), &after, Some((actor, place)), left, checked));
            }
            // Before it. A program that has not asked anything yet has simply not run.
            if acts && start.is_none() && left.crashes > 0 {
                let left = Left {
                    crashes: left.crashes - 1,
                    ..left
                };
                out.push(self.next(
                    node,
                    Move::Crash { actor },
                    world,
                    Some((actor, gone)),
                    left,
                    Ok(()),
                ));
            }
        }
    }

    fn count(&mut self, next: &Next<S>) {
        self.report.transitions += 1;
        self.report.depth = self.report.depth.max(next.node.depth as usize);
        match &next.mv {
            Move::Answer { label, heard, .. } => {
                *self.report.labels.entry(label).or_default() += 1;
                if !heard {
                    self.report.crashes += 1;
                }
            }
            Move::Crash { .. } => self.report.crashes += 1,
            Move::Event(e) => match self.events.iter_mut().find(|(seen, _)| seen == e) {
                Some((_, n)) => *n += 1,
                None => self.events.push((e.clone(), 1)),
            },
            Move::End { .. } => {}
        }
    }

    fn finish(mut self) -> Report {
        self.report.points = self.points.all.len();
        self.report.idle = self.idle.len();
        self.report.outcomes = self.points.outcomes;
        for (event, n) in &self.events {
            *self.report.events.entry(self.sys.show_event(event)).or_default() += n;
        }
        self.report
    }

    /// Puts a way into words by going it once more.
    fn tell(
        &mut self,
        root: &Node<S::World>,
        way: &[Move<S::Event>],
        reason: String,
        seed: Option<u64>,
    ) -> Counterexample {
        let mut lines = Vec::new();
        let mut node = root.clone();
        for mv in way {
            lines.push(self.line(&node, mv));
            match self.expand(&node).into_iter().find(|n| n.mv == *mv) {
                Some(n) => node = n.node,
                None => panic!("the system does not answer the same way twice: {mv:?}"),
            }
        }
        Counterexample {
            reason,
            lines,
            world: self.sys.show_world(&node.world.world),
            seed,
        }
    }

    fn line(&mut self, node: &Node<S::World>, mv: &Move<S::Event>) -> String {
        let sys = self.sys;
        let begin = |e: &mut Self, actor: usize, start: Option<usize>| {
            let place = node.places[actor];
            match start {
                None => (place.point, e.actors[actor].name.clone()),
                Some(i) => {
                    let p = &sys.programs(&node.world.world, actor, place.turn.into())[i];
                    let text = format!("{} starts {}", e.actors[actor].name, sys.show_program(p));
                    (e.points.begin(sys, p), text)
                }
            }
        };
        match mv {
            Move::Event(e) => format!("* {}", sys.show_event(e)),
            Move::Crash { actor } => {
                let at = self.points.get(node.places[*actor].point);
                let what: Vec<String> = at.waits_for.iter().map(|(_, r)| sys.show_request(r)).collect();
                format!(
                    "{}: stops for ever before {}",
                    self.actors[*actor].name,
                    what.join(" and ")
                )
            }
            Move::End { actor, start } => {
                let (point, text) = begin(self, *actor, Some(*start));
                let outcome = self
                    .points
                    .get(point)
                    .outcome
                    .as_ref()
                    .map(|o| sys.show_outcome(o));
                format!("{text}: ends with {}", outcome.unwrap_or_default())
            }
            Move::Answer {
                actor,
                start,
                ticket,
                branch,
                label,
                heard,
            } => {
                let (point, mut text) = begin(self, *actor, *start);
                let waits_for = Rc::clone(&self.points.get(point).waits_for);
                let Some((_, request)) = waits_for.iter().find(|(t, _)| t == ticket) else {
                    return text;
                };
                let answer = sys
                    .answers(&node.world.world, request)
                    .swap_remove(*branch)
                    .answer;
                text += &format!(": {} -> {}", sys.show_request(request), sys.show_answer(&answer));
                if *label != "ok" {
                    text += &format!(" [{label}]");
                }
                if !heard {
                    text += " [stops for ever, the answer unheard]";
                } else {
                    let then = self.points.after(sys, point, *ticket, answer);
                    if let Some(o) = &self.points.get(then).outcome {
                        text += &format!("; ends with {}", sys.show_outcome(o));
                    }
                }
                text
            }
        }
    }
}

/// Visits every state within the bounds, nearest first, and stops at the first broken promise, which is then
/// one that needs the fewest steps.
pub fn explore<S: System>(sys: &S, world: S::World, bounds: &Bounds) -> Report {
    let mut e = Engine::new(sys, bounds);
    let root = e.root(world);
    // Per state: the state before it, and which of the moves there led here.
    let mut came: Vec<(u32, u16)> = vec![(0, 0)];
    let mut seen: ByDigest<()> = ByDigest::default();
    seen.insert(e.digest_of(&root), ());
    let mut queue = VecDeque::from([(0u32, root.clone())]);
    if let Err(reason) = sys.check_idle(&root.world.world) {
        let found = e.tell(&root, &[], reason, None);
        e.report.violation = Some(found);
        return e.finish();
    }
    e.idle.insert(root.world.digest, ());
    'all: while let Some((id, node)) = queue.pop_front() {
        if node.depth as usize >= bounds.depth {
            e.report.cut = Some("depth");
            continue;
        }
        for (i, next) in e.expand(&node).into_iter().enumerate() {
            e.count(&next);
            if let Some(reason) = next.broken {
                let mut way = vec![next.mv];
                let mut at = id;
                let mut picks = Vec::new();
                while at != 0 {
                    let (before, pick) = came[at as usize];
                    picks.push(pick);
                    at = before;
                }
                let mut here = root.clone();
                let mut first = Vec::new();
                for pick in picks.into_iter().rev() {
                    let n = e.expand(&here).swap_remove(pick.into());
                    first.push(n.mv);
                    here = n.node;
                }
                first.append(&mut way);
                let found = e.tell(&root, &first, reason, None);
                e.report.violation = Some(found);
                break 'all;
            }
            if seen.insert(e.digest_of(&next.node), ()).is_some() {
                continue;
            }
            if came.len() >= bounds.states {
                e.report.cut = Some("states");
                break 'all;
            }
            let new = u32::try_from(came.len()).expect("fewer states than numbers for them");
            came.push((id, u16::try_from(i).expect("fewer than 65536 moves in one state")));
            queue.push_back((new, next.node));
        }
    }
    e.report.states = came.len();
    e.finish()
}

/// Takes `walks` random ways from the same start, and shortens the first one that breaks a promise. The same
/// seed gives the same ways.
pub fn walk<S: System>(sys: &S, world: S::World, bounds: &Bounds, seed: u64, walks: usize) -> Report {
    let mut e = Engine::new(sys, bounds);
    let root = e.root(world);
    let mut random = Random(seed);
    for _ in 0..walks {
        let mut node = root.clone();
        let mut way = Vec::new();
        while (node.depth as usize) < bounds.depth {
            let mut nexts = e.expand(&node);
            if nexts.is_empty() {
                break;
            }
            let pick = random.pick(&nexts);
            let next = nexts.swap_remove(pick);
            e.count(&next);
            e.report.states += 1;
            way.push(next.mv);
            if let Some(reason) = next.broken {
                let (way, reason) = shorten(&mut e, &root, way, reason);
                let found = e.tell(&root, &way, reason, Some(seed));
                e.report.violation = Some(found);
                return e.finish();
            }
            node = next.node;
        }
        if node.depth as usize >= bounds.depth {
            e.report.cut = Some("depth");
        }
    }
    e.finish()
}

/// Leaves out moves, in ever smaller pieces, as long as a promise is still broken.
fn shorten<S: System>(
    e: &mut Engine<'_, S>,
    root: &Node<S::World>,
    mut way: Vec<Move<S::Event>>,
    mut reason: String,
) -> (Vec<Move<S::Event>>, String) {
    // Whole programs first: leaving out one step of a program leaves out what it would have done later.
    let mut at = 0;
    while at < way.len() {
        let mut less = way.clone();
        if let Move::Answer {
            actor,
            start: Some(_),
            ..
        } = &way[at]
        {
            let rest = way[at + 1..].iter();
            let next = rest
                .clone()
                .position(|m| matches!(m, Move::Answer { actor: a, start: Some(_), .. } if a == actor));
            let end = next.map_or(way.len(), |n| at + 1 + n);
            let of_it = |m: &Move<S::Event>| match m {
                Move::Answer { actor: a, .. } | Move::Crash { actor: a } => a == actor,
                _ => false,
            };
            less = (0..way.len())
                .filter(|i| *i < at || *i >= end || !of_it(&way[*i]))
                .map(|i| way[i].clone())
                .collect();
        }
        match follow(e, root, &less) {
            Some((w, r)) if w.len() < way.len() => (way, reason) = (w, r),
            _ => at += 1,
        }
    }
    let mut piece = way.len().div_ceil(2);
    while piece > 0 {
        let mut at = 0;
        let mut shorter = false;
        while at < way.len() {
            let mut less = way.clone();
            less.drain(at..(at + piece).min(way.len()));
            match follow(e, root, &less) {
                Some((w, r)) if w.len() < way.len() => {
                    (way, reason, shorter) = (w, r, true);
                }
                _ => at += piece,
            }
        }
        if piece > 1 || !shorter {
            piece /= 2;
        }
    }
    (way, reason)
}

/// Goes a way, passing over moves that are not possible, to the first broken promise.
fn follow<S: System>(
    e: &mut Engine<'_, S>,
    root: &Node<S::World>,
    way: &[Move<S::Event>],
) -> Option<(Vec<Move<S::Event>>, String)> {
    // A promise about idle worlds is asked once per world; here it must be asked again.
    e.idle.clear();
    let mut node = root.clone();
    let mut gone = Vec::new();
    for mv in way {
        let mut nexts = e.expand(&node);
        let at = nexts
            .iter()
            .position(|n| n.mv == *mv)
            .or_else(|| nexts.iter().position(|n| n.mv.like(mv)));
        let Some(at) = at else { continue };
        let next = nexts.swap_remove(at);
        gone.push(next.mv);
        if let Some(reason) = next.broken {
            return Some((gone, reason));
        }
        node = next.node;
    }
    None
}

/// Runs one program alone to its end, with the plain answer to everything. Returns the world afterwards, the
/// outcome, and what was asked and answered.
///
/// # Panics
/// The program asks more than 10,000 times.
#[expect(clippy::type_complexity, reason = "a list of pairs")]
pub fn solo<S: System>(
    sys: &S,
    world: &S::World,
    program: &S::Program,
) -> (S::World, S::Outcome, Vec<(S::Request, S::Answer)>) {
    let mut world = world.clone();
    let mut trace = Vec::new();
    let seat = Seat::new();
    let mut running = sys.start(program.clone(), seat.clone());
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..10_000 {
        if let Poll::Ready(outcome) = running.as_mut().poll(&mut cx) {
            if let Some(w) = sys.ended(&world, program, &outcome) {
                world = w;
            }
            return (world, outcome, trace);
        }
        let mut s = seat.0.borrow_mut();
        assert!(
            !s.asked.is_empty(),
            "the shell waits for something that is no seat: {}",
            sys.show_program(program)
        );
        let (ticket, request) = s.asked.remove(0);
        let branch = sys.answers(&world, &request).swap_remove(0);
        if let Some(w) = branch.world {
            world = w;
        }
        trace.push((request, branch.answer.clone()));
        s.heard.push((ticket, branch.answer));
    }
    panic!("the program does not end: {}", sys.show_program(program))
}

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % (n as u64)).unwrap_or(0)
    }

    /// One of the moves. Plain answers are taken more often than faults, crashes and events, or most walks
    /// would have spent those before anything is under way.
    fn pick<S: System>(&mut self, nexts: &[Next<S>]) -> usize {
        let weight = |n: &Next<S>| match &n.mv {
            Move::Answer {
                label: "ok",
                heard: true,
                ..
            }
            | Move::End { .. } => 6,
            Move::Event(_) => 2,
            Move::Answer { .. } | Move::Crash { .. } => 1,
        };
        let mut at = self.below(nexts.iter().map(weight).sum());
        for (i, n) in nexts.iter().enumerate() {
            match at.checked_sub(weight(n)) {
                Some(rest) => at = rest,
                None => return i,
            }
        }
        0
    }
}

#[cfg(test)]
#[path = "explore_tests.rs"]
mod tests;
