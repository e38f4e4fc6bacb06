//! One gate call of the function: fetch the inputs, check their hashes, judge with the run's own record, write
//! report, evidence and rows. Reads only, but for its own bucket and table.

use serde_json::{Map, Value, json};

use super::decide::{Files, Input, Inputs, Request, judge, sha256_hex};
use super::report;
use super::store::{self, ObjectRef, Run};
use super::verdict::Verdict;
use crate::config::S3Uri;
use crate::error::{CallError, Class, Failure};
use crate::store::{Table, Versioned, WriteError};
use crate::time::Timestamp;

/// Largest inline input (contract 4.6).
const INLINE_MAX: usize = 200 * 1024;
/// Tries against others that record a gate of the same run.
const ROUNDS: usize = 4;

/// The seam to the evidence bucket.
#[expect(
    async_fn_in_trait,
    reason = "used with generics on one thread; no Send bound is wanted"
)]
pub trait Objects {
    /// The bytes of an object; None when it is not there.
    async fn get(&self, at: &S3Uri, version: Option<&str>) -> Result<Option<Vec<u8>>, CallError>;
    /// Writes an object.
    async fn put(&self, at: &S3Uri, bytes: Vec<u8>, content_type: &str) -> Result<(), CallError>;
}

/// What a gate call works with.
#[derive(Debug)]
pub struct World<'w, T, O> {
    /// The one table.
    pub table: &'w T,
    /// The evidence bucket.
    pub objects: &'w O,
    /// Its name; references to other buckets are refused.
    pub bucket: &'w str,
}

/// Why no verdict could be given.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum GateError {
    /// The request is not of the agreed shape: every fault, by field.
    BadInput(Vec<(String, String)>),
    /// Our own table or bucket can't be reached.
    Unavailable(CallError),
}

impl From<CallError> for GateError {
    fn from(error: CallError) -> Self {
        GateError::Unavailable(error)
    }
}

impl GateError {
    fn bad(field: &str, text: impl Into<String>) -> Self {
        GateError::BadInput(vec![(field.to_owned(), text.into())])
    }

    /// As a Step Functions error.
    pub(crate) fn failure(&self) -> Failure {
        match self {
            GateError::BadInput(faults) => {
                let list: Vec<String> = faults
                    .iter()
                    .map(|(field, text)| format!("{field} {text}"))
                    .collect();
                Failure::new(
                    "Gate.BadInput",
                    format!("The request is not of the agreed shape: {}.", list.join("; ")),
                )
            }
            GateError::Unavailable(e) => Failure::new(
                "Gate.Unavailable",
                format!(
                    "{} answered {}. Nothing was recorded; try again.",
                    e.action, e.code
                ),
            ),
        }
    }
}

/// One input of a request.
#[derive(Debug, Clone)]
enum Source {
    Object {
        at: S3Uri,
        version: Option<String>,
        sha256: String,
    },
    Inline(Vec<u8>),
}

/// A request, read.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) request: Request,
    pub(crate) run_id: String,
    inputs: Vec<(String, Source)>,
    files: Option<S3Uri>,
    plan_file_sha256: Option<String>,
}

/// The inputs that a request may name; `files` is a prefix, and `prior` is the function's own record.
const KINDS: [&str; 14] = [
    "plan",
    "manifest",
    "state_m5a",
    "state_rebuild",
    "state_alb",
    "decisions",
    "cert_requested",
    "handoff",
    "taskdef_on",
    "taskdef_off",
    "live_revision",
    "dns_batch",
    "live",
    "answer",
];

/// Whether a run id can stand in keys: letters, digits, `.`, `_`, `-`, 1 to 64.
pub(crate) fn is_run_id(id: &str) -> bool {
    (1..=64).contains(&id.len()) && id.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

impl Call {
    /// Reads a task input or body, listing every fault.
    pub(crate) fn read(body: &Map<String, Value>, bucket: &str) -> Result<Call, GateError> {
        let mut faults: Vec<(String, String)> = Vec::new();
        let mut text = |key: &str, needed: bool| match body.get(key) {
            None | Some(Value::Null) if !needed => None,
            Some(Value::String(text)) if !text.is_empty() => Some(text.clone()),
            _ => {
                faults.push((key.to_owned(), "must be text".to_owned()));
                None
            }
        };
        let run_id = text("run_id", true).unwrap_or_default();
        let request = Request {
            run_id: Some(run_id.clone()),
            phase: text("phase", true).unwrap_or_default(),
            use_: text("use", false),
            direction: text("direction", false).unwrap_or_default(),
            step: None,
        };
        let step = match body.get("step") {
            None | Some(Value::Null) => None,
            Some(value) if value.is_i64() => value.as_i64(),
            Some(_) => {
                faults.push(("step".into(), "must be a whole number".into()));
                None
            }
        };
        if !run_id.is_empty() && !is_run_id(&run_id) {
            faults.push((
                "run_id".into(),
                "must be 1 to 64 letters, digits, dots, hyphens or underscores".into(),
            ));
        }
        let mut call = Call {
            request: Request { step, ..request },
            run_id,
            inputs: Vec::new(),
            files: None,
            plan_file_sha256: None,
        };
        match body.get("inputs") {
            Some(Value::Object(map)) => map
                .iter()
                .for_each(|(kind, value)| call.input(kind, value, bucket, &mut faults)),
            _ => faults.push(("inputs".into(), "must be an object".into())),
        }
        if !call.inputs.iter().any(|(kind, _)| kind == "manifest") && faults.is_empty() {
            faults.push(("inputs.manifest".into(), "must be given".into()));
        }
        if faults.is_empty() {
            Ok(call)
        } else {
            Err(GateError::BadInput(faults))
        }
    }

    fn input(&mut self, kind: &str, value: &Value, bucket: &str, faults: &mut Vec<(String, String)>) {
        let field = format!("inputs.{kind}");
        // Its own record is what the function judges order by; a caller's copy of it is not asked.
        if value.is_null() || kind == "prior" {
            return;
        }
        let mut fault = |text: &str| faults.push((field.clone(), text.to_owned()));
        let uri = |value: &Value| {
            let at = value.get("s3").and_then(Value::as_str).and_then(S3Uri::parse);
            at.filter(|at| at.bucket == bucket)
        };
        if kind == "files" {
            match uri(value) {
                Some(at) if at.key.ends_with('/') => self.files = Some(at),
                _ => fault("must be {s3} with a prefix of the evidence bucket that ends in /"),
            }
            return;
        }
        if !KINDS.contains(&kind) {
            return fault("is no input that a gate knows");
        }
        if let Some(inline) = value.get("inline") {
            let bytes = match inline {
                Value::String(text) => text.clone().into_bytes(),
                other => other.to_string().into_bytes(),
            };
            if bytes.len() > INLINE_MAX {
                return fault("is longer than 200 KB; give it by reference");
            }
            self.inputs.push((kind.to_owned(), Source::Inline(bytes)));
            return;
        }
        let sha256 = value.get("sha256").and_then(Value::as_str).unwrap_or("");
        let hex = sha256.len() == 64 && sha256.bytes().all(|b| b.is_ascii_hexdigit());
        match uri(value) {
            Some(at) if hex => {
                let version = value.get("version_id").and_then(Value::as_str).map(str::to_owned);
                self.inputs.push((
                    kind.to_owned(),
                    Source::Object {
                        at,
                        version,
                        sha256: sha256.to_owned(),
                    },
                ));
            }
            _ => fault("must be {s3, version_id?, sha256} in the evidence bucket, or {inline}"),
        }
        if kind == "plan" {
            self.plan_file_sha256 = value
                .get("binary_sha256")
                .and_then(Value::as_str)
                .map(str::to_owned);
        }
    }
}

/// An input that the bucket does not have or does not give is evidence that can't be read; a bucket that can't be
/// reached is trouble of ours.
async fn fetch<O: Objects>(objects: &O, kind: &str, source: &Source) -> Result<Input, GateError> {
    let (at, version, sha256) = match source {
        Source::Inline(bytes) => return Ok(Input::new(kind, "inline", bytes.clone())),
        Source::Object { at, version, sha256 } => (at, version.as_deref(), sha256),
    };
    let uri = format!("s3://{}/{}", at.bucket, at.key);
    match objects.get(at, version).await {
        Ok(Some(bytes)) => {
            let mut input = Input::new(kind, &uri, bytes);
            input.expected_sha256 = Some(sha256.clone());
            Ok(input)
        }
        Ok(None) => Ok(Input::unreadable(kind, &uri, "there is no such object")),
        Err(e) if matches!(e.class, Class::Denied | Class::NotFound | Class::Refused) => Ok(
            Input::unreadable(kind, &uri, &format!("{} answered {}", e.action, e.code)),
        ),
        Err(e) => Err(e.into()),
    }
}

/// The hashes of the generated files that the manifest names, under the prefix.
async fn files<O: Objects>(objects: &O, prefix: &S3Uri, manifest: &Value) -> Result<Files, GateError> {
    let mut out = Files::new();
    let names = manifest
        .get("files")
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(|m| m.keys());
    for name in names {
        let at = S3Uri {
            bucket: prefix.bucket.clone(),
            key: format!("{}{name}", prefix.key),
        };
        let found = match objects.get(&at, None).await {
            Ok(bytes) => bytes.map(|b| sha256_hex(&b)),
            Err(e) if matches!(e.class, Class::Denied | Class::NotFound | Class::Refused) => None,
            Err(e) => return Err(e.into()),
        };
        out.insert(name.clone(), found);
    }
    Ok(out)
}

/// The question that a phase's answer belongs to.
fn questions(phase: &str) -> &'static [&'static str] {
    match phase {
        "rolled-back" => &["rollback-destroy-new-host"],
        "worker-off-live" => &["idle-check", "lock"],
        _ => &[],
    }
}

/// The newest recorded answer to a phase's question.
fn recorded_answer(run: &Run, phase: &str) -> Option<ObjectRef> {
    let asked = questions(phase).iter().filter_map(|q| run.answers.get(*q));
    let newest = asked.max_by_key(|a| {
        a.get("answered_at")
            .and_then(Value::as_str)
            .unwrap_or("")
            .to_owned()
    })?;
    serde_json::from_value(newest.clone()).ok()
}

/// Judges one call and records it.
pub(crate) async fn gate<T: Table, O: Objects>(
    world: &World<'_, T, O>,
    call: &Call,
    actor: &str,
    now: Timestamp,
) -> Result<Verdict, GateError> {
    let mut items = Vec::new();
    for (kind, source) in &call.inputs {
        items.push(fetch(world.objects, kind, source).await?);
    }
    let bytes = items
        .iter()
        .find(|i| i.kind == "manifest")
        .and_then(|i| i.bytes.as_ref().ok());
    let manifest: Value = bytes
        .and_then(|b| serde_json::from_slice(b).ok())
        .unwrap_or(Value::Null);
    let read = store::load(world.table, &call.run_id).await?;
    if let (false, Some(run)) = (items.iter().any(|i| i.kind == "answer"), &read)
        && let Some(answer) = recorded_answer(&run.row, &call.request.phase)
        && let Some(at) = S3Uri::parse(&answer.s3)
    {
        let source = Source::Object {
            at,
            version: None,
            sha256: answer.sha256,
        };
        items.push(fetch(world.objects, "answer", &source).await?);
    }
    for gate in store::gates(world.table, &call.run_id).await? {
        let sk = gate
            .get("sk")
            .and_then(Value::as_str)
            .unwrap_or("GATE#")
            .to_owned();
        items.push(Input::new("prior", &sk, gate.to_string().into_bytes()));
    }
    let files = match &call.files {
        Some(prefix) => Some(files(world.objects, prefix, &manifest).await?),
        None => None,
    };
    let inputs = Inputs {
        items,
        files,
        has_record: true,
        live_is_attested: true,
        plan_file_sha256: call.plan_file_sha256.clone(),
    };
    let judged =
        judge(&call.request, &inputs, now).map_err(|bad| GateError::bad("inputs.manifest", bad.0))?;
    let mut verdict = judged.verdict;
    verdict.inputs.retain(|i| i.kind != "prior");

    let folder = store::folder(&call.run_id, now, &call.request.phase.replace(':', "-"));
    let at = |name: &str| S3Uri {
        bucket: world.bucket.to_owned(),
        key: format!("{folder}/{name}"),
    };
    let uri = |at: &S3Uri| format!("s3://{}/{}", at.bucket, at.key);
    if let Some(evidence) = &judged.evidence {
        let kind = evidence.get("kind").and_then(Value::as_str).unwrap_or("evidence");
        let place = at(&format!("{kind}.json"));
        world
            .objects
            .put(&place, evidence.to_string().into_bytes(), "application/json")
            .await?;
        verdict.evidence = Some(uri(&place));
    }
    verdict.report = Some(uri(&at("report.md")));
    world
        .objects
        .put(
            &at("report.md"),
            report::markdown(&verdict).into_bytes(),
            "text/markdown; charset=utf-8",
        )
        .await?;
    let full = serde_json::to_vec(&verdict).unwrap_or_default();
    world
        .objects
        .put(&at("verdict.json"), full, "application/json")
        .await?;
    save(world, read, &verdict, &manifest, actor, call).await?;
    Ok(verdict)
}

/// Records the verdict; others may record gates of the same run at the same time.
async fn save<T: Table, O: Objects>(
    world: &World<'_, T, O>,
    mut read: Option<Versioned<Run>>,
    verdict: &Verdict,
    manifest: &Value,
    actor: &str,
    call: &Call,
) -> Result<(), GateError> {
    for round in 0..ROUNDS {
        let writes = store::record(
            read.as_ref(),
            verdict,
            manifest,
            actor,
            call.plan_file_sha256.as_deref(),
        );
        // The token names the call and the round, so that a repeated transaction is one.
        let token = sha256_hex(
            format!("{} {} {} {round}", call.run_id, verdict.checked_at, verdict.phase).as_bytes(),
        );
        match world
            .table
            .write(&writes, token.get(..36).unwrap_or(&token))
            .await
        {
            Ok(()) => return Ok(()),
            Err(WriteError::Conflict(_)) => read = store::load(world.table, &call.run_id).await?,
            Err(WriteError::Call(e)) => return Err(e.into()),
        }
    }
    let text = "others recorded gates of this run all the time";
    Err(CallError::new(Class::Throttled, "dynamodb:TransactWriteItems", "Conflict", text).into())
}

/// Records an operator's answer, bound to what was shown last.
pub(crate) async fn answer<T: Table, O: Objects>(
    world: &World<'_, T, O>,
    run_id: &str,
    body: &Map<String, Value>,
    actor: &str,
    now: Timestamp,
) -> Result<Answered, GateError> {
    let Some(run) = store::load(world.table, run_id).await? else {
        return Ok(Answered::NoRun);
    };
    let question = body
        .get("question")
        .and_then(Value::as_str)
        .unwrap_or("rollback-destroy-new-host");
    let word = body.get("answer").and_then(Value::as_str);
    let mut document = json!({"schema": 1, "kind": "operator-answer", "run_id": run_id, "question": question, "operator": actor,
        "answered_at": now.to_string()});
    let mut put = |key: &str, value: Value| {
        if let Some(map) = document.as_object_mut() {
            map.insert(key.to_owned(), value);
        }
    };
    match question {
        "rollback-destroy-new-host" => {
            if !matches!(word, Some("proceed" | "stop")) {
                return Err(GateError::bad("answer", "must be proceed or stop"));
            }
            let gates = store::gates(world.table, run_id).await?;
            let last = gates
                .iter()
                .rev()
                .find(|g| g.get("phase").and_then(Value::as_str) == Some("rolled-back"));
            let Some(shown) = last.and_then(|g| g.get("facts")?.get("requests")) else {
                return Ok(Answered::NothingShown);
            };
            // Who answers says which count was seen; another one means that the page was old.
            let seen = body
                .get("shown")
                .and_then(|s| s.get("request_count"))
                .or_else(|| body.get("request_count"));
            if seen.is_some_and(|seen| Some(seen) != shown.get("request_count")) {
                return Ok(Answered::Stale(shown.clone()));
            }
            put("shown", shown.clone());
            put("answer", json!(word));
        }
        "idle-check" => match body.get("exit_code").and_then(Value::as_i64) {
            Some(code) => put("exit_code", json!(code)),
            None => return Err(GateError::bad("exit_code", "must be a whole number")),
        },
        "lock" if word == Some("held") => put("answer", json!("held")),
        "lock" => return Err(GateError::bad("answer", "must be held")),
        _ => {
            return Err(GateError::bad(
                "question",
                "must be rollback-destroy-new-host, idle-check or lock",
            ));
        }
    }
    let bytes = document.to_string().into_bytes();
    let sha256 = sha256_hex(&bytes);
    let folder = store::folder(run_id, now, "answer");
    let at = S3Uri {
        bucket: world.bucket.to_owned(),
        key: format!("{folder}/operator-answer.json"),
    };
    let s3 = format!("s3://{}/{}", at.bucket, at.key);
    world.objects.put(&at, bytes, "application/json").await?;
    let reference = json!({"s3": s3, "sha256": sha256, "answered_at": now.to_string()});
    let mut read = run;
    for round in 0..ROUNDS {
        let token = sha256_hex(format!("{run_id} answer {now} {round}").as_bytes());
        let write = store::record_answer(&read, question, reference.clone());
        match world
            .table
            .write(&[write], token.get(..36).unwrap_or(&token))
            .await
        {
            Ok(()) => {
                return Ok(Answered::Recorded(
                    json!({"answer": document, "s3": s3, "sha256": sha256}),
                ));
            }
            Err(WriteError::Call(e)) => return Err(e.into()),
            Err(WriteError::Conflict(_)) => match store::load(world.table, run_id).await? {
                Some(again) => read = again,
                None => return Ok(Answered::NoRun),
            },
        }
    }
    let text = "others recorded gates of this run all the time";
    Err(CallError::new(Class::Throttled, "dynamodb:TransactWriteItems", "Conflict", text).into())
}

/// What became of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answered {
    /// Recorded.
    Recorded(Value),
    /// There is no such run.
    NoRun,
    /// No figures were shown yet.
    NothingShown,
    /// Other figures are current.
    Stale(Value),
}
