//! An AWS endpoint whose answers the test writes.
//!
//! The function under test reaches it through `AWS_ENDPOINT_URL`. For each request the endpoint
//! 1. records it,
//! 2. waits where the test holds it ([`ScriptedAws::hold`], [`ScriptedAws::meet`]),
//! 3. answers from the operation's script: the queue first ([`ScriptedAws::next`], or [`ScriptedAws::nth`]
//!    where only the number of the request matters), then the standing answer
//!    ([`ScriptedAws::always`]), then whatever stands behind the service ([`ScriptedAws::serve`],
//!    [`ScriptedAws::forward`]).
//!
//! A request nobody planned for fails the test when the endpoint is dropped: a call too many never passes
//! unseen.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::Value;

use super::http::{self, Reply, Response, Server};
use super::protocol::Call;
use crate::PATIENCE;

type Effect = Arc<dyn Fn(&Call) -> Answer + Send + Sync>;

/// What to say to a request.
#[derive(Clone)]
pub enum Answer {
    /// Success with this output, written in the service's protocol. S3 and Route 53: one field, the root
    /// element.
    Ok(Value),
    /// These bytes.
    Raw(Response),
    /// A service error.
    Error {
        status: u16,
        code: String,
        message: String,
    },
    Throttled,
    AccessDenied,
    /// HTTP 500 without a known code.
    ServerError,
    /// 200 with a body that breaks off.
    Malformed,
    /// A body shorter than announced.
    Cut(Box<Answer>),
    /// Nothing happens and nothing is said until the caller gives up.
    NeverAnswers,
    /// Nothing happens and the connection closes.
    Drops,
    /// It happens (the inner answer is worked out, with its effects), but the connection closes instead.
    Lost(Box<Answer>),
    /// The answer is worked out, with its effects if it has any, and then waits for the gate.
    Late(Gate, Box<Answer>),
    /// Asks a closure.
    With(Effect),
    /// Whatever stands behind the service: a stateful fake, or a real endpoint.
    Behind,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok(value) => write!(f, "Ok({value})"),
            Self::Raw(response) => write!(f, "Raw({})", response.status),
            Self::Error {
                status,
                code,
                message,
            } => write!(f, "Error({status} {code}: {message})"),
            Self::Throttled => f.write_str("Throttled"),
            Self::AccessDenied => f.write_str("AccessDenied"),
            Self::ServerError => f.write_str("ServerError"),
            Self::Malformed => f.write_str("Malformed"),
            Self::Cut(inner) => write!(f, "Cut({inner:?})"),
            Self::NeverAnswers => f.write_str("NeverAnswers"),
            Self::Drops => f.write_str("Drops"),
            Self::Lost(inner) => write!(f, "Lost({inner:?})"),
            Self::Late(_, inner) => write!(f, "Late({inner:?})"),
            Self::With(_) => f.write_str("With(..)"),
            Self::Behind => f.write_str("Behind"),
        }
    }
}

impl Answer {
    pub fn ok(output: Value) -> Self {
        Self::Ok(output)
    }

    pub fn error(status: u16, code: &str, message: &str) -> Self {
        Self::Error {
            status,
            code: code.into(),
            message: message.into(),
        }
    }

    /// Asks `f`, which may change a fake's state.
    pub fn with(f: impl Fn(&Call) -> Answer + Send + Sync + 'static) -> Self {
        Self::With(Arc::new(f))
    }

    /// The request has its effect behind the service, the answer never arrives ("committed, answer lost").
    pub fn lost() -> Self {
        Self::Lost(Box::new(Self::Behind))
    }

    /// The request has its effect behind the service, the answer waits for the gate.
    pub fn late(gate: &Gate) -> Self {
        Self::Late(gate.clone(), Box::new(Self::Behind))
    }
}

/// Holds a request or an answer until the test opens it.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<(Mutex<GateState>, Condvar)>);

#[derive(Debug, Default)]
struct GateState {
    reached: bool,
    open: bool,
}

impl Gate {
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets everything through from now on.
    pub fn open(&self) {
        self.0.0.lock().unwrap().open = true;
        self.0.1.notify_all();
    }

    /// Blocks until a request stands at the gate.
    pub fn reached(&self) {
        self.until(|state| state.reached, "no request reached the gate");
    }

    fn pass(&self) {
        self.0.0.lock().unwrap().reached = true;
        self.0.1.notify_all();
        self.until(|state| state.open, "a gate was never opened");
    }

    fn until(&self, ready: impl Fn(&GateState) -> bool, what: &str) {
        let state = self.0.0.lock().unwrap();
        let (state, _) = self
            .0
            .1
            .wait_timeout_while(state, PATIENCE, |state| !ready(state))
            .unwrap();
        assert!(ready(&state), "{what}");
    }
}

/// Requests that must be under way at the same time.
#[derive(Clone, Debug)]
struct Meeting(Arc<(Mutex<usize>, Condvar)>);

impl Meeting {
    /// True when all have come. Bounded by less than [`PATIENCE`]: the callers give up after seconds anyway.
    fn join(&self) -> bool {
        const BOUND: Duration = Duration::from_secs(20);
        let mut missing = self.0.0.lock().unwrap();
        *missing = missing.saturating_sub(1);
        self.0.1.notify_all();
        let (missing, _) = self
            .0
            .1
            .wait_timeout_while(missing, BOUND, |missing| *missing > 0)
            .unwrap();
        *missing == 0
    }
}

#[derive(Clone, Debug)]
enum Hold {
    Gate(Gate),
    Meeting(Meeting),
}

/// One request as it was seen.
#[derive(Debug, Clone)]
pub struct Record {
    pub call: Call,
    /// Position of its arrival and of its answer in the order of all arrivals and answers.
    pub arrived: u64,
    pub answered: Option<u64>,
}

/// A point in the record, for [`ScriptedAws::since`].
#[derive(Debug, Clone, Copy)]
pub struct Mark(usize);

/// The requests of a window.
#[derive(Debug, Clone)]
pub struct Traffic(pub Vec<Record>);

impl Traffic {
    pub fn total(&self) -> usize {
        self.0.len()
    }

    /// Requests to a service (`dynamodb`).
    pub fn to(&self, service: &str) -> usize {
        self.0
            .iter()
            .filter(|record| record.call.service == service)
            .count()
    }

    /// Requests of an operation.
    pub fn of(&self, service: &str, operation: &str) -> usize {
        self.calls(service, operation).len()
    }

    /// The calls of an operation, in order of arrival.
    pub fn calls(&self, service: &str, operation: &str) -> Vec<&Call> {
        self.0
            .iter()
            .map(|record| &record.call)
            .filter(|call| call.service == service && call.operation == operation)
            .collect()
    }

    /// `service.Operation` in order of arrival.
    pub fn names(&self) -> Vec<String> {
        self.0.iter().map(|record| record.call.name()).collect()
    }

    /// One line per request: when it arrived, when it was answered (counting arrivals and answers), its name.
    pub fn story(&self) -> String {
        let line = |record: &Record| {
            let answered = record
                .answered
                .map_or_else(|| "never".to_owned(), |at| at.to_string());
            format!("{}-{answered} {}", record.arrived, record.call.name())
        };
        self.0.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// The longest chain of requests each of which arrived after the one before was answered: how many round
    /// trips the caller had to wait for one after the other. Requests that were sent together may still be
    /// answered one after the other; [`ScriptedAws::meet`] makes the figure exact.
    pub fn depth(&self) -> usize {
        let mut depths: Vec<usize> = Vec::with_capacity(self.0.len());
        // In order of arrival, so whatever was answered before is already computed.
        for record in &self.0 {
            let before = self
                .0
                .iter()
                .zip(&depths)
                .filter(|(earlier, _)| earlier.answered.is_some_and(|at| at < record.arrived))
                .map(|(_, depth)| *depth)
                .max();
            depths.push(1 + before.unwrap_or(0));
        }
        depths.into_iter().max().unwrap_or(0)
    }
}

type Key = (String, String);

#[derive(Default)]
struct State {
    tick: u64,
    records: Vec<Record>,
    queues: BTreeMap<Key, VecDeque<Answer>>,
    standing: BTreeMap<Key, Answer>,
    holds: BTreeMap<Key, VecDeque<Hold>>,
    behind: BTreeMap<String, Effect>,
    /// Requests still to come before this answer is due, whatever the operation.
    nth: Vec<Planned>,
    complaints: Vec<String>,
}

/// An answer that waits for its turn in the count of a service's requests.
struct Planned {
    service: String,
    left: usize,
    answer: Answer,
    lasting: bool,
}

impl State {
    /// Counts the request and returns the answer that was planned for its number.
    fn due(&mut self, service: &str) -> Option<Answer> {
        let mut due = None;
        for (at, planned) in self.nth.iter_mut().enumerate() {
            if planned.service != "*" && planned.service != service {
                continue;
            }
            planned.left = planned.left.saturating_sub(1);
            if planned.left == 0 && due.is_none() {
                due = Some(at);
            }
        }
        let planned = self.nth.get(due?)?;
        if planned.lasting {
            return Some(planned.answer.clone());
        }
        Some(self.nth.remove(due?).answer)
    }
}

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

/// The endpoint. See the module.
pub struct ScriptedAws {
    inner: Arc<Inner>,
    server: Server,
}

impl fmt::Debug for ScriptedAws {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedAws")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

impl ScriptedAws {
    /// Starts an endpoint on 127.0.0.1, port 0.
    pub fn start() -> Self {
        let inner = Arc::new(Inner::default());
        let server = {
            let inner = Arc::clone(&inner);
            Server::start(move |request| {
                let call = Call::decode(request);
                let name = call.name();
                // A panic in a fake is a broken test, and must not look like a lost connection.
                catch_unwind(AssertUnwindSafe(|| inner.handle(call))).unwrap_or_else(|_| {
                    inner.complain(format!("answering {name} panicked"));
                    Reply::Drop
                })
            })
        };
        Self { inner, server }
    }

    /// The value of `AWS_ENDPOINT_URL` or `AWS_ENDPOINT_URL_<SERVICE>`.
    pub fn url(&self) -> String {
        format!("http://{}", self.server.authority())
    }

    /// The next request of the operation gets this answer; several are used up in order.
    pub fn next(&self, service: &str, operation: &str, answer: Answer) -> &Self {
        self.next_n(1, service, operation, answer)
    }

    /// The next `n` requests get this answer. The SDK's standard retry makes up to three of a transient
    /// fault.
    pub fn next_n(&self, n: usize, service: &str, operation: &str, answer: Answer) -> &Self {
        let mut state = self.inner.state.lock().unwrap();
        let queue = state.queues.entry(key(service, operation)).or_default();
        queue.extend(std::iter::repeat_n(answer, n));
        drop(state);
        self
    }

    /// Every request of the operation gets this answer once its queue is empty.
    pub fn always(&self, service: &str, operation: &str, answer: Answer) -> &Self {
        self.inner
            .state
            .lock()
            .unwrap()
            .standing
            .insert(key(service, operation), answer);
        self
    }

    /// The `n`-th request from now (1 is the next) of any operation of the service gets this answer; `*` counts
    /// the requests of all services. For faults at every point of a course.
    pub fn nth(&self, n: usize, service: &str, answer: Answer) -> &Self {
        self.plan(n, service, answer, false)
    }

    /// The same for the `n`-th and every later request, until [`Self::forget_nth`]: an outage.
    pub fn from_nth(&self, n: usize, service: &str, answer: Answer) -> &Self {
        self.plan(n, service, answer, true)
    }

    fn plan(&self, n: usize, service: &str, answer: Answer, lasting: bool) -> &Self {
        assert!(n > 0, "the first request is number 1");
        let planned = Planned {
            service: service.into(),
            left: n,
            answer,
            lasting,
        };
        self.inner.state.lock().unwrap().nth.push(planned);
        self
    }

    /// True once every answer of [`Self::nth`] was given.
    pub fn nth_done(&self) -> bool {
        self.inner.state.lock().unwrap().nth.is_empty()
    }

    /// Forgets the answers of [`Self::nth`] that were not given, and ends an outage.
    pub fn forget_nth(&self) -> &Self {
        self.inner.state.lock().unwrap().nth.clear();
        self
    }

    /// Forgets what [`Self::next`] and [`Self::always`] said for the operation.
    pub fn clear(&self, service: &str, operation: &str) -> &Self {
        let mut state = self.inner.state.lock().unwrap();
        state.queues.remove(&key(service, operation));
        state.standing.remove(&key(service, operation));
        drop(state);
        self
    }

    /// A stateful fake behind the service.
    pub fn serve(&self, service: &str, fake: impl Fn(&Call) -> Answer + Send + Sync + 'static) -> &Self {
        self.inner
            .state
            .lock()
            .unwrap()
            .behind
            .insert(service.into(), Arc::new(fake));
        self
    }

    /// A real endpoint behind the service (`http://host:port`). Requests are still counted and faults apply.
    pub fn forward(&self, service: &str, base: &str) -> &Self {
        let base = base.to_owned();
        self.serve(service, move |call| match http::send(&base, &call.request) {
            Ok(response) => Answer::Raw(response),
            Err(error) => panic!("{} forwarded to {base}: {error}", call.name()),
        })
    }

    /// The next request of the operation waits, before it has any effect, until the gate is opened.
    pub fn hold(&self, service: &str, operation: &str) -> Gate {
        let gate = Gate::new();
        let mut state = self.inner.state.lock().unwrap();
        state
            .holds
            .entry(key(service, operation))
            .or_default()
            .push_back(Hold::Gate(gate.clone()));
        drop(state);
        gate
    }

    /// The next request of each operation waits until all of them are under way: they must be sent together,
    /// or the test fails.
    pub fn meet(&self, operations: &[(&str, &str)]) -> &Self {
        let meeting = Meeting(Arc::new((Mutex::new(operations.len()), Condvar::new())));
        let mut state = self.inner.state.lock().unwrap();
        for (service, operation) in operations {
            let holds = state.holds.entry(key(service, operation)).or_default();
            holds.push_back(Hold::Meeting(meeting.clone()));
        }
        drop(state);
        self
    }

    /// From here on, for [`Self::since`].
    pub fn mark(&self) -> Mark {
        Mark(self.inner.state.lock().unwrap().records.len())
    }

    /// The requests since the mark.
    pub fn since(&self, mark: Mark) -> Traffic {
        Traffic(self.inner.state.lock().unwrap().records[mark.0..].to_vec())
    }

    /// All requests.
    pub fn traffic(&self) -> Traffic {
        self.since(Mark(0))
    }

    /// Blocks until the operation was asked for `n` times in all.
    pub fn wait_for(&self, n: usize, service: &str, operation: &str) {
        let count = |state: &State| {
            state
                .records
                .iter()
                .filter(|record| record.call.service == service && record.call.operation == operation)
                .count()
        };
        let state = self.inner.state.lock().unwrap();
        let (state, _) = self
            .inner
            .changed
            .wait_timeout_while(state, PATIENCE, |state| count(state) < n)
            .unwrap();
        let seen = count(&state);
        assert!(seen >= n, "{service}.{operation}: {seen} of {n} requests came");
    }

    /// What was asked without a plan, so far; asking clears it.
    pub fn take_complaints(&self) -> Vec<String> {
        std::mem::take(&mut self.inner.state.lock().unwrap().complaints)
    }
}

impl Drop for ScriptedAws {
    fn drop(&mut self) {
        let complaints = self.take_complaints();
        if !std::thread::panicking() {
            assert!(complaints.is_empty(), "the scripted AWS: {complaints:#?}");
        }
    }
}

fn key(service: &str, operation: &str) -> Key {
    (service.into(), operation.into())
}

impl Inner {
    fn handle(&self, call: Call) -> Reply {
        let key = key(&call.service, &call.operation);
        let (index, hold, answer) = {
            let mut state = self.state.lock().unwrap();
            state.tick += 1;
            let arrived = state.tick;
            state.records.push(Record {
                call: call.clone(),
                arrived,
                answered: None,
            });
            let index = state.records.len() - 1;
            let hold = state.holds.get_mut(&key).and_then(VecDeque::pop_front);
            let due = state.due(&call.service);
            let queued = state.queues.get_mut(&key).and_then(VecDeque::pop_front);
            let answer = due
                .or(queued)
                .or_else(|| state.standing.get(&key).cloned())
                .unwrap_or(Answer::Behind);
            (index, hold, answer)
        };
        self.changed.notify_all();
        match hold {
            Some(Hold::Gate(gate)) => gate.pass(),
            Some(Hold::Meeting(meeting)) if !meeting.join() => {
                self.complain(format!("{} was not sent together with the others", call.name()));
            }
            Some(Hold::Meeting(_)) | None => {}
        }
        let reply = self.reply(&call, answer);
        let mut state = self.state.lock().unwrap();
        state.tick += 1;
        let answered = state.tick;
        state.records[index].answered = Some(answered);
        drop(state);
        reply
    }

    fn complain(&self, text: String) {
        self.state.lock().unwrap().complaints.push(text);
    }

    fn reply(&self, call: &Call, answer: Answer) -> Reply {
        let protocol = call.protocol;
        Reply::Send(match answer {
            Answer::Ok(output) => protocol.success(&call.operation, &output),
            Answer::Raw(response) => response,
            Answer::Error {
                status,
                code,
                message,
            } => protocol.error(status, &code, &message),
            Answer::Throttled => protocol.throttled(),
            Answer::AccessDenied => protocol.access_denied(&format!("{}:{}", call.service, call.operation)),
            Answer::ServerError => {
                protocol.error(500, "InternalFailure", "We encountered an internal error.")
            }
            Answer::Malformed => protocol.malformed(),
            Answer::NeverAnswers => return Reply::Hang,
            Answer::Drops => return Reply::Drop,
            Answer::Lost(inner) => {
                drop(self.reply(call, *inner));
                return Reply::Drop;
            }
            Answer::Cut(inner) => {
                return match self.reply(call, *inner) {
                    Reply::Send(response) => Reply::Cut(response),
                    other => other,
                };
            }
            Answer::Late(gate, inner) => {
                let reply = self.reply(call, *inner);
                gate.pass();
                return reply;
            }
            Answer::With(effect) => return self.reply(call, effect(call)),
            Answer::Behind => {
                let behind = self.state.lock().unwrap().behind.get(&call.service).cloned();
                match behind.map(|fake| fake(call)) {
                    None | Some(Answer::Behind) => {
                        self.complain(format!("nobody planned for {} {}", call.name(), call.params));
                        // Not retried by the SDK, so the test ends soon.
                        protocol.error(400, "UnplannedRequest", "the test has no answer for this request")
                    }
                    Some(answer) => return self.reply(call, answer),
                }
            }
        })
    }
}
