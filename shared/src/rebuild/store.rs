//! The rows of a run: `REBUILD#<run>` with `RUN` and one `GATE#<time>#<phase>` per call, never overwritten
//! (spec/rebuild.md "Stored rows").

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::verdict::{Verdict, Word};
use crate::error::CallError;
use crate::store::{Attr, Cond, Item, Key, Query, Row, Table, Versioned, Write};
use crate::time::Timestamp;

/// Most gate rows read for one call: a run has some thirty steps, repeated a few times each.
const PAGE: u32 = 200;
/// Pages after which reading stops with an error rather than judging by half a record.
const PAGES: usize = 20;

/// An object that a row refers to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ObjectRef {
    /// `s3://bucket/key`.
    pub(crate) s3: String,
    /// SHA-256, hex.
    pub(crate) sha256: String,
}

/// The `RUN` row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) run_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) account: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) region: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) new_host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) manifest_sha256: Option<String>,
    /// The phase (and use) judged last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) transition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) certificate_arn: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) window_closes_at: Option<String>,
    /// When `start` passed: the beginning of the RequestCount window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) started_at: Option<String>,
    /// The last verdict of each phase (and use, and direction).
    #[serde(default)]
    pub(crate) verdicts: Map<String, Value>,
    /// The operator's answers by question.
    #[serde(default)]
    pub(crate) answers: Map<String, Value>,
    #[serde(default)]
    pub(crate) rev: u64,
}

impl Row for Run {
    const SCHEMA: u64 = 1;
    const FIELDS: &'static [&'static str] = &[
        "run_id",
        "account",
        "region",
        "host",
        "new_host",
        "manifest_sha256",
        "transition",
        "certificate_arn",
        "window_closes_at",
        "started_at",
        "verdicts",
        "answers",
        "rev",
    ];
}

/// The partition of a run.
pub(crate) fn pk(run: &str) -> String {
    format!("REBUILD#{run}")
}

/// Reads the `RUN` row.
///
/// # Errors
/// The table can't be asked, or the row can't be read.
pub(crate) async fn load<T: Table>(table: &T, run: &str) -> Result<Option<Versioned<Run>>, CallError> {
    let Some(item) = table.get(&Key::new(pk(run), "RUN")).await? else {
        return Ok(None);
    };
    Versioned::read(item).map(Some).map_err(|text| unreadable(&text))
}

fn unreadable(text: &str) -> CallError {
    CallError::new(
        crate::error::Class::Refused,
        "dynamodb:GetItem",
        "UnreadableRow",
        text,
    )
}

/// Every gate of a run in the shape of a verdict, oldest first.
///
/// # Errors
/// The table can't be asked, or the run has more gates than any run has.
pub(crate) async fn gates<T: Table>(table: &T, run: &str) -> Result<Vec<Value>, CallError> {
    let mut query = Query {
        pk: pk(run),
        sk_prefix: "GATE#".into(),
        descending: false,
        limit: Some(PAGE),
        after: None,
    };
    let mut out = Vec::new();
    for _ in 0..PAGES {
        let page = table.query(&query).await?;
        out.extend(page.items.iter().map(|item| {
            let members = item
                .iter()
                .filter(|(k, _)| !matches!(k.as_str(), "pk"))
                .map(|(k, v)| (k.clone(), v.to_json()));
            Value::Object(members.collect())
        }));
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok(out),
        }
    }
    Err(unreadable("the run has more gates than can be read"))
}

/// The key of a verdict among the last ones.
pub(crate) fn verdict_key(verdict: &Verdict) -> String {
    let mut key = verdict.phase.clone();
    if let Some(use_) = &verdict.use_ {
        key.push(':');
        key.push_str(use_);
    }
    if verdict.direction == "rollback" {
        key.push_str(" rollback");
    }
    key
}

fn word(verdict: &Verdict) -> &'static str {
    verdict.verdict.as_str()
}

fn codes(verdict: &Verdict) -> Vec<&'static str> {
    let mut codes: Vec<&'static str> = verdict.failures.iter().map(|f| f.code).collect();
    codes.dedup();
    codes
}

/// The gate row of a verdict.
fn gate_item(verdict: &Verdict, actor: &str, plan_file: Option<&str>) -> Item {
    let value = json!({
        "schema": 1, "phase": verdict.phase, "use": verdict.use_, "direction": verdict.direction, "step": verdict.step,
        "run_id": verdict.run_id, "verdict": word(verdict), "codes": codes(verdict), "checked_at": verdict.checked_at.to_string(),
        "expires_at": verdict.expires_at.to_string(), "inputs": verdict.inputs, "facts": verdict.facts, "report": verdict.report,
        "evidence": verdict.evidence, "actor": actor, "plan_file_sha256": plan_file,
    });
    let members = value.as_object().cloned().unwrap_or_default();
    members
        .into_iter()
        .filter(|(_, v)| !v.is_null())
        .map(|(k, v)| (k, Attr::from_json(&v)))
        .collect()
}

/// What a verdict changes in the run's row.
fn advanced(run: &Run, verdict: &Verdict) -> Run {
    let mut next = run.clone();
    let key = verdict_key(verdict);
    let before = run.verdicts.get(&key);
    let same = before.and_then(|v| v.get("verdict")).and_then(Value::as_str) == Some(word(verdict));
    let since = before.filter(|_| same).and_then(|v| v.get("since")).cloned();
    let text = |key: &str| verdict.facts.get(key).and_then(Value::as_str).map(str::to_owned);
    next.verdicts.insert(key.clone(), json!({
        "verdict": word(verdict), "codes": codes(verdict), "checked_at": verdict.checked_at.to_string(),
        "expires_at": verdict.expires_at.to_string(), "since": since.unwrap_or(json!(verdict.checked_at.to_string())),
        "report": verdict.report, "evidence": verdict.evidence,
    }));
    next.transition = Some(key);
    next.manifest_sha256 = verdict
        .inputs
        .iter()
        .find(|i| i.kind == "manifest")
        .map(|i| i.sha256.clone());
    if let Some(close) = text("window_closes_at") {
        next.window_closes_at = Some(close);
    }
    if let Some(arn) = text("certificate_arn") {
        next.certificate_arn = Some(arn);
    }
    if verdict.phase == "start" && verdict.verdict == Word::Pass {
        next.started_at = Some(verdict.checked_at.to_string());
    }
    next.rev = run.rev.saturating_add(1);
    next
}

/// The writes that record a verdict: the gate row, which must be new, and the run's row as it was read.
pub(crate) fn record(
    read: Option<&Versioned<Run>>,
    verdict: &Verdict,
    manifest: &Value,
    actor: &str,
    plan_file: Option<&str>,
) -> Vec<Write> {
    let run_id = verdict.run_id.clone().unwrap_or_default();
    let fresh = Versioned::fresh(Run {
        run_id: run_id.clone(),
        ..Run::default()
    });
    let versioned = read.unwrap_or(&fresh);
    let mut next = advanced(&versioned.row, verdict);
    let text = |key: &str| manifest.get(key).and_then(Value::as_str).map(str::to_owned);
    (next.account, next.region, next.host, next.new_host) =
        (text("account"), text("region"), text("host"), text("new_host"));
    let gate = Key::new(
        pk(&run_id),
        format!("GATE#{}#{}", verdict.checked_at, verdict.phase),
    );
    let run = Key::new(pk(&run_id), "RUN");
    let mut writes = vec![Write::put(
        gate,
        gate_item(verdict, actor, plan_file),
        Cond::NotExists,
    )];
    // A row of a newer version is never rewritten; its gates are still recorded.
    if !versioned.is_newer() {
        let when = if versioned.raw.is_empty() {
            Cond::NotExists
        } else {
            Cond::Rev(versioned.row.rev)
        };
        writes.push(Write::put(run, versioned.item_for(&next), when));
    }
    writes
}

/// The write that records an answer.
pub(crate) fn record_answer(read: &Versioned<Run>, question: &str, answer: Value) -> Write {
    let mut next = read.row.clone();
    next.answers.insert(question.to_owned(), answer);
    next.rev = read.row.rev.saturating_add(1);
    Write::put(
        Key::new(pk(&read.row.run_id), "RUN"),
        read.item_for(&next),
        Cond::Rev(read.row.rev),
    )
}

/// A time in a key of the evidence bucket.
pub(crate) fn folder(run: &str, at: Timestamp, phase: &str) -> String {
    let stamp: String = at
        .to_string()
        .chars()
        .filter(|c| c.is_ascii_alphanumeric())
        .collect();
    format!("rebuilds/{run}/{stamp}-{phase}")
}
