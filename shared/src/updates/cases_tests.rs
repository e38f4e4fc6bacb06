//! The cases of spec/updates.md section 6, the reports of 5.2 and what the spec decided, each a test named by
//! its id. Everything goes through the public shell and the HTTP routes, over the in-memory world, at a moment
//! that the test sets. Expectations are the spec's, never the code's.
//!
//! Every look ([`Scene::version`], [`Scene::poll`]) is done twice: the second one must write nothing and must
//! call nothing that changes anything ("Idempotent: a second GET right after writes nothing", 1.7).

mod begin;
mod decided;
mod lost;
mod polls;
mod reports;
mod shapes;
mod stories;

use super::api::{self, Invocation};
use super::fake::{self, FakeWorld, Instead, PK, STACK, STACK_ARN, now_or_never, set_arn};
use super::model::*;
use super::run::{self, Call};
use crate::config;
use crate::error::{CallError, Class};
use crate::store::Item;
use crate::time::{Timestamp, plus_seconds};
use serde_json::{Value, json};
use std::cell::Cell;
use std::collections::BTreeMap;
use uuid::Uuid;

/// The moment at which every case begins.
fn start() -> Timestamp {
    "2026-11-30T10:30:00Z".parse().unwrap()
}

fn cfg() -> config::Updater {
    let vars = [
        ("TABLE_NAME", "t"),
        ("STACK_NAME", STACK),
        ("RELEASES_URI", "s3://bucket/releases.json"),
    ];
    config::Updater::read(&|n| vars.iter().find(|(k, _)| *k == n).map(|(_, v)| (*v).to_owned())).unwrap()
}

fn failed(class: Class, action: &str, code: &str, text: &str) -> CallError {
    CallError::new(class, action, code, text)
}

fn throttled(action: &str) -> CallError {
    failed(Class::Throttled, action, "Throttling", "Rate exceeded")
}

fn denied(action: &str) -> CallError {
    failed(Class::Denied, action, "AccessDenied", "User is not authorized")
}

fn timed_out(action: &str) -> CallError {
    failed(Class::TimedOut, action, "Timeout", "no answer in 3 s")
}

const DESCRIBE_SET: &str = "cloudformation:DescribeChangeSet";
const DESCRIBE_STACKS: &str = "cloudformation:DescribeStacks";
const DESCRIBE_EVENTS: &str = "cloudformation:DescribeStackEvents";
const CREATE: &str = "cloudformation:CreateChangeSet";
const EXECUTE: &str = "cloudformation:ExecuteChangeSet";

/// An HTTP answer.
#[derive(Debug, Clone)]
struct Answer {
    code: u64,
    headers: BTreeMap<String, String>,
    body: Value,
}

impl Answer {
    fn at(&self, pointer: &str) -> &Value {
        self.body.pointer(pointer).unwrap_or(&Value::Null)
    }

    fn text(&self, pointer: &str) -> &str {
        self.at(pointer).as_str().unwrap_or("")
    }

    /// The refusal code and the text for people.
    fn refusal(&self) -> (u64, &str) {
        assert_eq!(
            self.headers.get("content-type").map(String::as_str),
            Some("application/problem+json"),
            "{self:?}"
        );
        (self.code, self.text("/code"))
    }

    fn detail_names(&self, words: &[&str]) {
        let detail = self.text("/detail");
        for w in words {
            assert!(detail.contains(w), "{w:?} is not in {detail:?}");
        }
    }

    /// Codes of the flags under a status.
    fn flags(&self, status: &str) -> Vec<&str> {
        self.at(&format!("{status}/flags"))
            .as_array()
            .map(|l| l.iter().filter_map(|f| f["code"].as_str()).collect())
            .unwrap_or_default()
    }

    fn flag(&self, status: &str, code: &str) -> Value {
        self.at(&format!("{status}/flags"))
            .as_array()
            .and_then(|l| l.iter().find(|f| f["code"] == code).cloned())
            .unwrap_or_else(|| panic!("no flag {code} in {self:?}"))
    }

    fn blockers(&self) -> Vec<&str> {
        self.at("/blockers")
            .as_array()
            .map(|l| l.iter().filter_map(|f| f["code"].as_str()).collect())
            .unwrap_or_default()
    }
}

/// One stack, its rows, and the moment.
#[derive(Debug)]
struct Scene {
    w: FakeWorld,
    calls: Cell<u64>,
    /// Is the second look skipped, because the answers of the first were scripted once?
    once: Cell<bool>,
}

impl Scene {
    /// The common ground of section 6: UPDATE_COMPLETE at 2.3.0, nothing open, the stack's ARN known.
    fn quiet() -> Self {
        let s = Self {
            w: FakeWorld::new(start()),
            calls: Cell::new(0),
            once: Cell::new(false),
        };
        s.head(|_| ());
        s
    }

    fn now(&self) -> Timestamp {
        self.w.now.get()
    }

    /// Moves the clock to so many seconds after the start.
    fn at(&self, seconds: i64) -> &Self {
        self.w.now.set(plus_seconds(start(), seconds));
        self
    }

    fn head(&self, change: impl FnOnce(&mut Head)) {
        let mut head = self.w.head();
        head.stack_arn = Some(STACK_ARN.into());
        head.rev = head.rev.max(1);
        change(&mut head);
        self.w.seed_head(&head);
    }

    fn point(&self, to: Option<&Update>) {
        self.head(|h| h.pending = to.map(|u| u.id.clone()));
    }

    /// Stores a row and, with it, its change set of the given words.
    fn row(&self, seq: u64, release: &str, state: State, age: i64, words: (&str, &str)) -> Update {
        self.row_with(seq, release, state, age, words, |_| ())
    }

    fn row_with(
        &self,
        seq: u64,
        release: &str,
        state: State,
        age: i64,
        (status, execution): (&str, &str),
        change: impl FnOnce(&mut Update),
    ) -> Update {
        let mut u = fake::update(seq, release, state, age, start());
        if u.status == State::Preparing {
            u.summary = None;
        }
        change(&mut u);
        self.w.seed(&u);
        if !status.is_empty() {
            let at = plus_seconds(start(), -age);
            self.w
                .cloud
                .borrow_mut()
                .put_set(&u.change_set_name, release, status, execution, at);
        }
        self.head(|h| h.next_seq = h.next_seq.max(seq + 1));
        u
    }

    /// A row that waits for its OK since ten minutes.
    fn prepared(&self, seq: u64, release: &str) -> Update {
        self.row(
            seq,
            release,
            State::Prepared,
            600,
            ("CREATE_COMPLETE", "AVAILABLE"),
        )
    }

    /// U2 as the pending row, prepared for 2.4.0.
    fn pending_prepared(&self) -> Update {
        let u = self.prepared(2, "2.4.0");
        self.point(Some(&u));
        u
    }

    /// U2 applying since `age` seconds by ana's OK, its set not touched by CloudFormation yet.
    fn applying(&self, age: i64) -> Update {
        let u = self.row_with(
            2,
            "2.4.0",
            State::Applying,
            600,
            ("CREATE_COMPLETE", "AVAILABLE"),
            |u| {
                u.applied_by = Some("ana@example.org".into());
                u.attempted_by = u.applied_by.clone();
                u.applied_at = Some(plus_seconds(start(), -age));
                u.apply_token = Some(format!("apply-{}-1", u.id));
                u.progress = Some(crate::status::Progress::step("settling"));
            },
        );
        self.point(Some(&u));
        u
    }

    /// CloudFormation runs the set of `u` since `age` seconds.
    fn run(&self, u: &Update, age: i64) {
        let token = u
            .apply_token
            .clone()
            .unwrap_or_else(|| "Console-ExecuteChangeSet-7".into());
        let arn = set_arn(&u.change_set_name);
        self.w
            .cloud
            .borrow_mut()
            .start_run(&arn, &token, plus_seconds(start(), -age))
            .unwrap();
    }

    /// The words of a set and of the stack.
    fn set(&self, u: &Update, change: impl FnOnce(&mut fake::FakeSet)) {
        change(
            self.w
                .cloud
                .borrow_mut()
                .set(&set_arn(&u.change_set_name))
                .unwrap(),
        );
    }

    fn stack(&self, change: impl FnOnce(&mut Stack)) {
        change(self.w.cloud.borrow_mut().stack.as_mut().unwrap());
    }

    /// The stack's state is by the run of `u`, which began `age` seconds ago.
    fn owned(&self, u: &Update, status: &str, version: Option<&str>, age: i64) {
        self.stack(|s| {
            s.status = status.into();
            s.change_set_id = Some(set_arn(&u.change_set_name));
            s.updated_at = Some(plus_seconds(start(), -age));
            s.outputs.clear();
            if let Some(v) = version {
                s.outputs.insert("Version".into(), v.into());
            }
        });
    }

    fn execution(&self, u: &Update, word: &str) {
        self.set(u, |s| {
            s.set.execution = word.into();
            if word.starts_with("EXECUTE") {
                s.runs = s.runs.max(1);
            }
        });
    }

    fn stored(&self, u: &Update) -> Update {
        self.w.row(u.seq).unwrap()
    }

    fn items(&self) -> BTreeMap<crate::store::Key, Item> {
        self.w.table.borrow().items.clone()
    }

    /// Lines of the trace since this length that begin with a word.
    fn since(&self, from: usize, word: &str) -> Vec<String> {
        self.w
            .trace
            .borrow()
            .iter()
            .skip(from)
            .filter(|l| l.starts_with(word))
            .cloned()
            .collect()
    }

    fn mark(&self) -> usize {
        self.w.trace.borrow().len()
    }

    fn acts(&self) -> Vec<String> {
        self.since(0, "act")
    }

    fn saves(&self) -> usize {
        self.w.count("save")
    }

    fn invocation(&self) -> Invocation {
        let n = self.calls.get() + 1;
        self.calls.set(n);
        Invocation {
            now: self.now(),
            request_id: format!("req-{n}"),
            seed: Uuid::from_u128(0x0193_0000_0000_7000_8000_0000_0000_0000 + u128::from(n)),
        }
    }

    fn http_as(&self, by: &str, method: &str, path: &str, body: Option<Value>) -> Answer {
        let claims = json!({"sub": "s-1", "email": by, "scope": "headgate/read headgate/write"});
        let event = json!({
            "version": "2.0", "rawPath": path,
            "requestContext": {
                "stage": "$default", "requestId": "r", "http": {"method": method},
                "authorizer": {"jwt": {"claims": claims}},
            },
            "body": body.map(|b| b.to_string()),
        });
        self.raw(&event)
    }

    fn raw(&self, event: &Value) -> Answer {
        let inv = self.invocation();
        let answer = now_or_never(api::handle(&self.w, &cfg(), &inv, event)).unwrap();
        let headers = answer["headers"]
            .as_object()
            .map(|h| {
                h.iter()
                    .map(|(k, v)| (k.clone(), v.as_str().unwrap_or("").to_owned()))
                    .collect()
            })
            .unwrap_or_default();
        Answer {
            code: answer["statusCode"].as_u64().unwrap(),
            headers,
            body: serde_json::from_str(answer["body"].as_str().unwrap_or("null")).unwrap_or(Value::Null),
        }
    }

    fn http(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        self.http_as("ana@example.org", method, path, body)
    }

    fn again(&self, what: &str, call: impl Fn()) {
        if self.once.get() {
            return;
        }
        let (items, cloud, mark) = (self.items(), self.w.cloud.borrow().clone(), self.mark());
        call();
        let lines: Vec<String> = ["save", "act"].iter().flat_map(|w| self.since(mark, w)).collect();
        assert!(lines.is_empty(), "a second {what} was not idle: {lines:?}");
        assert_eq!(items, self.items(), "a second {what} changed rows");
        assert_eq!(cloud, *self.w.cloud.borrow(), "a second {what} changed AWS");
    }

    /// GET /version, which must answer 200 and be done at the first time.
    fn version(&self) -> Answer {
        let a = self.http("GET", "/version", None);
        assert_eq!(a.code, 200, "{a:?}");
        self.again("GET /version", || {
            assert_eq!(self.http("GET", "/version", None).code, 200);
            self.poll_once();
        });
        a
    }

    fn poll_once(&self) -> Value {
        let event = json!({"source": "aws.scheduler", "detail-type": "Scheduled Event", "detail": {}});
        now_or_never(api::handle(&self.w, &cfg(), &self.invocation(), &event)).unwrap()
    }

    /// native_poll by the schedule, which must be done at the first time.
    fn poll(&self) -> Value {
        let v = self.poll_once();
        self.again("poll", || assert_eq!(self.poll_once()["wrote"], false));
        v
    }

    /// A look that must not write: neither a row nor anything in AWS.
    fn writes_nothing<T>(&self, call: impl FnOnce(&Self) -> T) -> T {
        let (items, cloud, mark) = (self.items(), self.w.cloud.borrow().clone(), self.mark());
        let out = call(self);
        let lines: Vec<String> = ["save", "act"].iter().flat_map(|w| self.since(mark, w)).collect();
        assert!(lines.is_empty(), "something was written: {lines:?}");
        assert_eq!(items, self.items());
        assert_eq!(cloud, *self.w.cloud.borrow());
        out
    }

    fn begin(&self, release: &str) -> Answer {
        self.http("POST", "/updates", Some(json!({"release": release})))
    }

    fn apply(&self, u: &Update) -> Answer {
        self.http("POST", &format!("/updates/{}/apply", u.id), None)
    }

    fn discard(&self, u: &Update) -> Answer {
        self.http("POST", &format!("/updates/{}/discard", u.id), None)
    }

    fn one(&self, u: &Update) -> Answer {
        let a = self.http("GET", &format!("/updates/{}", u.id), None);
        assert_eq!(a.code, 200, "{a:?}");
        a
    }

    fn history(&self) -> Vec<Value> {
        let a = self.http("GET", "/updates", None);
        assert_eq!(a.code, 200, "{a:?}");
        a.at("/updates").as_array().unwrap().clone()
    }

    /// The release check of 2.4.0 has passed.
    fn checked(&self) {
        self.w.seed_check("2.4.0", "passed", None);
    }

    /// The row that begin made, by its sequence number.
    fn made(&self, seq: u64) -> Update {
        self.w.row(seq).unwrap_or_else(|| panic!("there is no row {seq}"))
    }

    /// The call to the shell itself, for cases below the HTTP routes.
    fn call<'a>(&self, request: &'a str, by: &'a str) -> Call<'a> {
        Call {
            pk: PK,
            stack: STACK,
            role_arn: None,
            now: self.now(),
            request_id: request,
            actor: by,
            seed: Uuid::from_u128(0x0194_0000_0000_7000_8000_0000_0000_0000),
        }
    }
}

/// One event of a resource of the stack `arn`.
fn event(arn: &str, id: &str, status: &str, reason: Option<&str>, at: Timestamp) -> Event {
    Event {
        stack_arn: arn.into(),
        logical_id: id.into(),
        physical_id: Some(format!("{id}-1")),
        kind: "AWS::Lambda::Function".into(),
        status: status.into(),
        reason: reason.map(Into::into),
        at,
        token: None,
        operation_id: None,
        hook: None,
    }
}

fn code_of(u: &Update) -> &str {
    u.reason.as_ref().map_or("", |r| r.code.as_str())
}

fn text_of(u: &Update) -> &str {
    u.reason.as_ref().map_or("", |r| r.text.as_str())
}
