//! The function on a world in memory: task and routes, the run's record, evidence and reports.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use serde_json::{Value, json};

use super::cases::{answer, rolled_back};
use super::harness::*;
use crate::config::{RebuildGate, S3Uri};
use crate::error::{CallError, Class, Failure};
use crate::rebuild::api;
use crate::rebuild::run::{Objects, World};
use crate::rebuild::sha256_hex;
use crate::rebuild::store::{Run, pk};
use crate::store::memory::MemoryTable;
use crate::store::{Attr, Item, Key, Page, Query, Row, Table, Write, WriteError};
use crate::time::Timestamp;

const BUCKET: &str = "evidence";

/// A table and a bucket in memory, with trouble on demand.
#[derive(Debug, Default)]
struct Fake {
    table: RefCell<MemoryTable>,
    objects: RefCell<BTreeMap<String, Vec<u8>>>,
    /// What the table answers to the next write.
    trouble: Cell<Option<Class>>,
    /// What the bucket answers to every read.
    closed: Cell<Option<Class>>,
    /// Somebody else records a gate just before the next write.
    race: Cell<bool>,
}

fn failed(class: Class, action: &str) -> CallError {
    CallError::new(class, action, "Scripted", "scripted by a test")
}

impl Table for Fake {
    async fn get(&self, key: &Key) -> Result<Option<Item>, CallError> {
        Ok(self.table.borrow().get(key))
    }

    async fn query(&self, query: &Query) -> Result<Page, CallError> {
        Ok(self.table.borrow().query(&Query {
            limit: Some(2),
            ..query.clone()
        }))
    }

    async fn write(&self, writes: &[Write], _token: &str) -> Result<(), WriteError> {
        if let Some(class) = self.trouble.take() {
            return Err(failed(class, "dynamodb:TransactWriteItems").into());
        }
        if self.race.take() {
            let mut table = self.table.borrow_mut();
            let mut item = table.get(&Key::new(pk("demo-1"), "RUN")).unwrap();
            let rev = item.get("rev").and_then(Attr::as_u64).unwrap();
            item.insert("rev".into(), Attr::n(rev + 1));
            table.seed(item);
        }
        self.table.borrow_mut().write(writes)
    }
}

impl Objects for Fake {
    async fn get(&self, at: &S3Uri, _version: Option<&str>) -> Result<Option<Vec<u8>>, CallError> {
        match self.closed.get() {
            Some(class) => Err(failed(class, "s3:GetObject")),
            None => Ok(self.objects.borrow().get(&at.key).cloned()),
        }
    }

    async fn put(&self, at: &S3Uri, bytes: Vec<u8>, _content_type: &str) -> Result<(), CallError> {
        assert_eq!(at.bucket, BUCKET);
        self.objects.borrow_mut().insert(at.key.clone(), bytes);
        Ok(())
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(out) = future.as_mut().poll(&mut cx) {
            return out;
        }
    }
}

impl Fake {
    fn handle(&self, now: Timestamp, event: &Value) -> Result<Value, Failure> {
        let cfg = RebuildGate {
            table: "t".into(),
            evidence_bucket: BUCKET.into(),
            auth_is_local: true,
            s3_path_style: true,
        };
        let world = World {
            table: self,
            objects: self,
            bucket: BUCKET,
        };
        block_on(api::handle(&world, &cfg, now, event))
    }

    fn upload(&self, key: &str, bytes: Vec<u8>) -> Value {
        let sha256 = sha256_hex(&bytes);
        self.objects.borrow_mut().insert(key.into(), bytes);
        json!({"s3": format!("s3://{BUCKET}/{key}"), "sha256": sha256})
    }

    /// The task input of a case, with every input uploaded.
    fn task(&self, case: &Case) -> Value {
        let mut docs = case.docs.clone();
        let mut evidence = serde_json::Map::new();
        for kind in ["cert_requested", "taskdef_on", "live_revision"] {
            if let Some(document) = docs.get(kind) {
                evidence.insert(kind.into(), json!(sha256_hex(document.to_string().as_bytes())));
            }
        }
        let manifest = docs.get_mut("manifest").unwrap();
        manifest["evidence"] = Value::Object(evidence);
        let mut files = serde_json::Map::new();
        for name in ["infra-rebuild/main.tf", "staged/taskdef-on.tf"] {
            let reference = self.upload(&format!("files/{name}"), name.as_bytes().to_vec());
            files.insert(name.into(), reference["sha256"].clone());
        }
        manifest["files"] = Value::Object(files);
        let mut inputs = serde_json::Map::new();
        for (kind, document) in &docs {
            inputs.insert(
                (*kind).into(),
                self.upload(&format!("in/{kind}.json"), document.to_string().into_bytes()),
            );
        }
        inputs.insert(
            "live".into(),
            self.upload("in/live.json", case.live.to_string().into_bytes()),
        );
        inputs.insert("files".into(), json!({"s3": format!("s3://{BUCKET}/files/")}));
        if let Some(plan) = inputs.get_mut("plan") {
            plan["binary_sha256"] = json!("b".repeat(64));
        }
        json!({"run_id": "demo-1", "phase": case.request.phase, "use": case.request.use_, "step": case.request.step,
            "direction": if case.request.direction.is_empty() { "forward" } else { &case.request.direction }, "inputs": inputs})
    }

    fn http(&self, now: Timestamp, method: &str, path: &str, body: Option<&Value>) -> (u64, Value) {
        let event = json!({"rawPath": path, "headers": {}, "body": body.map(Value::to_string),
            "requestContext": {"stage": "$default", "requestId": "r1", "http": {"method": method}}});
        let answer = self.handle(now, &event).unwrap();
        let body = answer["body"].as_str().unwrap();
        (
            answer["statusCode"].as_u64().unwrap(),
            serde_json::from_str(body).unwrap_or_else(|_| json!(body)),
        )
    }

    fn rows(&self) -> Vec<String> {
        self.table.borrow().items.keys().map(|k| k.sk.clone()).collect()
    }

    /// Records that an earlier phase passed a moment before.
    fn passed(&self, case: &Case, phase: &str) {
        let mut verdict = case.clone().verdict(phase, "forward", "PASS");
        verdict["pk"] = json!(pk("demo-1"));
        verdict["sk"] = json!(format!(
            "GATE#{}#{phase}",
            verdict["checked_at"].as_str().unwrap()
        ));
        let item = verdict
            .as_object()
            .unwrap()
            .iter()
            .map(|(k, v)| (k.clone(), Attr::from_json(v)))
            .collect();
        self.table.borrow_mut().seed(item);
    }
}

fn codes(verdict: &Value) -> Vec<&str> {
    verdict["failures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| f["code"].as_str().unwrap())
        .collect()
}

#[test]
fn a_task_is_judged_and_recorded() {
    let fake = Fake::default();
    let case = Case::plan("start", "start__min_1_max_3");
    fake.passed(&case, "created");
    let verdict = fake.handle(case.now, &fake.task(&case)).unwrap();
    assert_eq!(verdict["verdict"], "PASS", "{verdict}");
    assert!(
        verdict["warnings"]
            .as_array()
            .unwrap()
            .iter()
            .all(|w| w["code"] != "WARN_NOT_CHECKED")
    );
    // The report and the whole verdict are in the bucket, the call and the run in the table.
    let report = S3Uri::parse(verdict["report"].as_str().unwrap()).unwrap();
    assert!(
        String::from_utf8(fake.objects.borrow()[&report.key].clone())
            .unwrap()
            .starts_with("# start: PASS")
    );
    let rows = fake.rows();
    assert_eq!(rows.len(), 3, "{rows:?}");
    let run = fake.table.borrow().get(&Key::new(pk("demo-1"), "RUN")).unwrap();
    assert_eq!(run["started_at"], Attr::s(case.now.to_string()));
    assert_eq!(run["account"], Attr::s(ACCOUNT));
    let (status, view) = fake.http(case.now, "GET", "/rebuilds/demo-1", None);
    assert_eq!(
        (status, &view["status"]["state"], &view["status"]["source"]),
        (200, &json!("ready"), &json!("stored"))
    );
    assert_eq!(view["status"]["progress"]["total"], 12);
    let (status, text) = fake.http(case.now, "GET", "/rebuilds/demo-1/report", None);
    assert!(status == 200 && text.as_str().unwrap().contains("start: PASS"));
}

#[test]
fn the_record_is_always_judged() {
    let fake = Fake::default();
    let case = Case::plan("start", "start__min_1_max_3");
    let mut task = fake.task(&case);
    task["inputs"]["plan"]
        .as_object_mut()
        .unwrap()
        .shift_remove("binary_sha256");
    // A caller's own copy of the record is not asked.
    task["inputs"]["prior"] = json!([{"inline": {"verdict": "PASS", "phase": "created"}}]);
    let verdict = fake.handle(case.now, &task).unwrap();
    assert_eq!(verdict["verdict"], "FAIL");
    assert_eq!(codes(&verdict), ["ORDER_PREREQUISITE", "PLAN_NOT_BOUND"]);
    let (_, view) = fake.http(case.now, "GET", "/rebuilds/demo-1", None);
    assert_eq!(
        (&view["status"]["state"], &view["status"]["reason"]["code"]),
        (&json!("blocked"), &json!("ORDER_PREREQUISITE"))
    );
}

#[test]
fn other_bytes_missing_objects_and_foreign_buckets() {
    let fake = Fake::default();
    let case = Case::plan("start", "start__min_1_max_3");
    fake.passed(&case, "created");
    let task = fake.task(&case);
    fake.objects.borrow_mut().insert(
        "in/state_rebuild.json".into(),
        fixture("state-infra-rebuild-after-8a")
            .to_string()
            .replace("t_a", "t_b")
            .into_bytes(),
    );
    fake.objects
        .borrow_mut()
        .get_mut("in/state_rebuild.json")
        .unwrap()
        .push(b'\n');
    assert_eq!(
        codes(&fake.handle(case.now, &task).unwrap()),
        ["INPUT_HASH_MISMATCH"]
    );
    fake.objects.borrow_mut().remove("in/plan.json");
    let verdict = fake
        .handle(case.now + std::time::Duration::from_secs(1), &task)
        .unwrap();
    assert_eq!(verdict["verdict"], "FAIL");
    assert!(codes(&verdict).contains(&"EVID_UNREADABLE"));
    let before = fake.rows();
    for (pointer, value) in [
        ("/inputs/plan/s3", json!("s3://elsewhere/plan.json")),
        ("/inputs/plan/sha256", json!("short")),
        ("/inputs/manifest", Value::Null),
        ("/inputs", json!([])),
        ("/run_id", json!("a/b")),
        ("/run_id", Value::Null),
        ("/step", json!("two")),
        ("/inputs/files", json!({"s3": "s3://evidence/no-slash"})),
        ("/inputs/plan", json!({"inline": "x".repeat(300 * 1024)})),
    ] {
        let mut bad = task.clone();
        *bad.pointer_mut(pointer).unwrap() = value;
        let failure = fake.handle(case.now, &bad).unwrap_err();
        assert_eq!(failure.error_type, "Gate.BadInput", "{pointer}: {failure}");
    }
    let mut unknown = task.clone();
    unknown["inputs"]["secret"] = json!({"inline": "x"});
    assert!(
        fake.handle(case.now, &unknown)
            .unwrap_err()
            .message
            .contains("inputs.secret")
    );
    assert_eq!(fake.rows(), before);
    // An unknown phase is a verdict, and recorded.
    let mut begin = task.clone();
    begin["phase"] = json!("begin");
    assert_eq!(
        codes(&fake.handle(case.now, &begin).unwrap()),
        ["INPUT_PHASE_UNKNOWN"]
    );
}

#[test]
fn trouble_of_ours_is_no_verdict() {
    let fake = Fake::default();
    let case = Case::plan("start", "start__min_1_max_3");
    fake.passed(&case, "created");
    let task = fake.task(&case);
    fake.closed.set(Some(Class::Throttled));
    assert_eq!(
        fake.handle(case.now, &task).unwrap_err().error_type,
        "Gate.Unavailable"
    );
    fake.closed.set(None);
    fake.trouble.set(Some(Class::Throttled));
    assert_eq!(
        fake.handle(case.now, &task).unwrap_err().error_type,
        "Gate.Unavailable"
    );
    assert_eq!(fake.rows().len(), 1);
    // A bucket that refuses one input makes that input unreadable.
    fake.closed.set(Some(Class::Denied));
    assert_eq!(
        fake.handle(case.now, &task).unwrap_err().error_type,
        "Gate.BadInput"
    );
}

#[test]
fn two_gates_at_once_are_both_recorded() {
    let fake = Fake::default();
    let case = Case::plan("start", "start__min_1_max_3");
    let task = fake.task(&case);
    fake.handle(case.now, &task).unwrap();
    let mut item = fake.table.borrow().get(&Key::new(pk("demo-1"), "RUN")).unwrap();
    item.insert("later".into(), Attr::s("kept"));
    fake.table.borrow_mut().seed(item);
    fake.race.set(true);
    fake.handle(case.now + std::time::Duration::from_secs(1), &task)
        .unwrap();
    let run = fake.table.borrow().get(&Key::new(pk("demo-1"), "RUN")).unwrap();
    // Unknown attributes survive; a newer schema is never rewritten.
    assert_eq!((&run["later"], run["rev"].as_u64()), (&Attr::s("kept"), Some(3)));
    let mut newer = run.clone();
    newer.insert("schema".into(), Attr::n(2));
    fake.table.borrow_mut().seed(newer.clone());
    fake.handle(case.now + std::time::Duration::from_secs(2), &task)
        .unwrap();
    assert_eq!(
        fake.table.borrow().get(&Key::new(pk("demo-1"), "RUN")),
        Some(newer)
    );
    assert_eq!(fake.rows().iter().filter(|sk| sk.starts_with("GATE#")).count(), 3);
}

#[test]
fn an_answer_is_bound_to_what_was_shown() {
    let fake = Fake::default();
    let mut case = rolled_back(&[412.0], &["2026-11-30T23:12:00Z"]);
    let path = "/rebuilds/demo-1/answers";
    let stop = json!({"answer": "stop"});
    assert_eq!(fake.http(case.now, "POST", path, Some(&stop)).0, 404);
    let mut started = case.prior.remove(0);
    started["pk"] = json!(pk("demo-1"));
    started["sk"] = json!("GATE#2026-11-30T23:10:00Z#start");
    fake.table.borrow_mut().seed(
        started
            .as_object()
            .unwrap()
            .iter()
            .map(|(k, v)| (k.clone(), Attr::from_json(v)))
            .collect(),
    );
    let task = fake.task(&case);
    let verdict = fake.handle(case.now, &task).unwrap();
    assert_eq!(
        (&verdict["verdict"], codes(&verdict)),
        (&json!("NEEDS_ANSWER"), vec!["RB_ANSWER_REQUIRED"]),
        "{verdict}"
    );
    let (_, view) = fake.http(case.now, "GET", "/rebuilds/demo-1", None);
    assert_eq!(
        (&view["status"]["state"], &view["status"]["needs_admin"]["code"]),
        (&json!("rolling_back"), &json!("answer"))
    );
    // Who saw another count answers another question.
    let old = json!({"answer": "proceed", "shown": {"request_count": 3}});
    let (status, problem) = fake.http(case.now, "POST", path, Some(&old));
    assert_eq!(
        (status, &problem["code"], &problem["shown"]["request_count"]),
        (409, &json!("answer_stale"), &json!(412))
    );
    assert_eq!(
        fake.http(case.now, "POST", path, Some(&json!({"answer": "maybe"})))
            .0,
        400
    );
    let yes = json!({"answer": "proceed", "shown": {"request_count": 412}});
    let later = case.now + std::time::Duration::from_secs(60);
    let (status, recorded) = fake.http(later, "POST", path, Some(&yes));
    assert_eq!(
        (status, &recorded["answer"]["shown"]["alb_arn"]),
        (201, &json!(LB))
    );
    let verdict = fake.handle(later, &task).unwrap();
    assert_eq!(verdict["verdict"], "PASS", "{verdict}");
    assert_eq!(verdict["facts"]["requests"]["request_count"], 412);
    // An answer given with the call counts too, and stop stops.
    case.docs.insert("answer", answer("stop", 412.0));
    let verdict = fake
        .handle(later + std::time::Duration::from_secs(1), &fake.task(&case))
        .unwrap();
    assert!(codes(&verdict).contains(&"RB_OPERATOR_STOP"));
}

#[test]
fn routes_and_methods() {
    let fake = Fake::default();
    let now = Case::new("start").now;
    for (method, path, want) in [
        ("GET", "/rebuilds/none", 404),
        ("GET", "/rebuilds/none/report", 404),
        ("PUT", "/rebuilds/r1", 405),
        ("GET", "/rebuilds/r1/gates/start", 405),
        ("GET", "/rebuilds/r1/answers", 405),
        ("POST", "/rebuilds/r1/report", 405),
        ("GET", "/rebuilds", 404),
        ("GET", "/rebuilds/a%2Fb", 404),
        ("POST", "/rebuilds/r1/gates/start", 400),
    ] {
        let (status, body) = fake.http(now, method, path, None);
        assert_eq!(status, want, "{method} {path} {body}");
    }
    let body = json!({"phase": "ready", "inputs": {}});
    let (status, problem) = fake.http(now, "POST", "/rebuilds/r1/gates/start", Some(&body));
    assert_eq!((status, &problem["errors"][0]["field"]), (400, &json!("phase")));
    // The route judges as the task does.
    let case = Case::plan("start", "start__min_1_max_3");
    fake.passed(&case, "created");
    let mut task = fake.task(&case);
    task.as_object_mut().unwrap().retain(|k, _| k == "inputs");
    let (status, verdict) = fake.http(case.now, "POST", "/rebuilds/demo-1/gates/start", Some(&task));
    assert_eq!((status, &verdict["verdict"]), (200, &json!("PASS")));
    assert_eq!(
        fake.handle(
            now,
            &json!({"source": "aws.events", "detail-type": "Scheduled Event"})
        )
        .unwrap_err()
        .error_type,
        "Headgate.UnknownEvent"
    );
}

#[test]
fn every_field_of_the_run_row_is_known() {
    let run = Run {
        account: Some("a".into()),
        region: Some("r".into()),
        host: Some("h".into()),
        new_host: Some("n".into()),
        manifest_sha256: Some("m".into()),
        transition: Some("t".into()),
        certificate_arn: Some("c".into()),
        window_closes_at: Some("w".into()),
        started_at: Some("s".into()),
        ..Run::default()
    };
    let written: Vec<String> = serde_json::to_value(&run)
        .unwrap()
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    let known: Vec<String> = Run::FIELDS.iter().map(|f| (*f).to_owned()).collect();
    assert_eq!(written, known);
}
