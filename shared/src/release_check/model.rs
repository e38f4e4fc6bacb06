//! What is stored of a check (`CHECK#<release>`) and of a report (`RELEASE#<release>`), and the report event.

use crate::status::{NeedsAdmin, Reason};
use crate::store::Row;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The stored state of a check.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum State {
    /// The release check really runs now.
    Pending,
    /// Verified and judged fine.
    Passed,
    /// The model check itself said no.
    Failed,
    /// There is no verdict and none is coming.
    Stalled,
    /// A word of another version, kept as it is.
    Unknown(String),
}

impl State {
    /// The stored word.
    pub fn as_str(&self) -> &str {
        match self {
            State::Pending => "pending",
            State::Passed => "passed",
            State::Failed => "failed",
            State::Stalled => "stalled",
            State::Unknown(w) => w,
        }
    }
}

impl From<String> for State {
    fn from(w: String) -> Self {
        match w.as_str() {
            "pending" => State::Pending,
            "passed" => State::Passed,
            "failed" => State::Failed,
            "stalled" => State::Stalled,
            _ => State::Unknown(w),
        }
    }
}

impl From<State> for String {
    fn from(s: State) -> Self {
        s.as_str().to_owned()
    }
}

/// What the report says of one model.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Model {
    /// Model id.
    pub id: String,
    /// Does it keep working with the release?
    pub ok: bool,
    /// Why not.
    #[serde(default)]
    pub reason: Option<String>,
}

/// The model check of one release.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Check {
    /// Release.
    pub release: String,
    /// Stored state.
    pub state: State,
    /// Which try this is: a generation. A failure of an older one is ignored.
    #[serde(default)]
    pub attempt: u64,
    /// `project:uuid`, once StartBuild answered.
    #[serde(default)]
    pub build_id: Option<String>,
    /// Last build status seen.
    #[serde(default)]
    pub build_status: Option<String>,
    /// Last phase seen.
    #[serde(default)]
    pub step: Option<String>,
    /// When the check started: the 30 minutes count from here.
    #[serde(default)]
    pub started_at: Option<Timestamp>,
    /// When the verdict was made.
    #[serde(default)]
    pub checked_at: Option<Timestamp>,
    /// Digest of the template it is about.
    #[serde(default)]
    pub template_sha256: Option<String>,
    /// Verdict by model.
    #[serde(default)]
    pub models: Vec<Model>,
    /// Why.
    #[serde(default)]
    pub reason: Option<Reason>,
    /// What only the admin can do.
    #[serde(default)]
    pub needs_admin: Option<NeedsAdmin>,
    /// Optimistic version.
    #[serde(default)]
    pub rev: u64,
    /// Id of the last writer's request.
    #[serde(default)]
    pub last_write_id: Option<String>,
}

impl Row for Check {
    const SCHEMA: u64 = 1;
    const FIELDS: &'static [&'static str] = &[
        "release",
        "state",
        "attempt",
        "build_id",
        "build_status",
        "step",
        "started_at",
        "checked_at",
        "template_sha256",
        "models",
        "reason",
        "needs_admin",
        "rev",
        "last_write_id",
    ];
}

/// What the build reported of a release.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Report {
    /// Release.
    pub release: String,
    /// `passed` or `failed`.
    pub verdict: String,
    /// Attempt that reported.
    pub attempt: u64,
    /// Build that reported.
    #[serde(default)]
    pub build_id: Option<String>,
    /// Digest of the template that was checked.
    #[serde(default)]
    pub template_sha256: Option<String>,
    /// Verdict by model.
    #[serde(default)]
    pub models: Vec<Model>,
    /// Why.
    #[serde(default)]
    pub reason: Option<Reason>,
    /// When it arrived.
    #[serde(default)]
    pub reported_at: Option<Timestamp>,
    /// Optimistic version.
    #[serde(default)]
    pub rev: u64,
    /// Id of the last writer's request.
    #[serde(default)]
    pub last_write_id: Option<String>,
}

impl Row for Report {
    const SCHEMA: u64 = 1;
    const FIELDS: &'static [&'static str] = &[
        "release",
        "verdict",
        "attempt",
        "build_id",
        "template_sha256",
        "models",
        "reason",
        "reported_at",
        "rev",
        "last_write_id",
    ];
}

/// Longest text taken from a report, in characters.
const TEXT_MAX: usize = 500;
/// Most models taken from a report.
const MODELS_MAX: usize = 200;

impl Report {
    /// Reads the detail of `Release Check Reported` (contract 4.4).
    ///
    /// # Errors
    /// Every fault, by field.
    pub fn parse(detail: &Value, now: Timestamp) -> Result<Self, Vec<String>> {
        let mut bad = Vec::new();
        let text = |k: &str| {
            detail
                .get(k)
                .and_then(Value::as_str)
                .map(str::trim)
                .filter(|s| !s.is_empty())
        };
        let release = text("release").filter(|r| crate::release::Release::parse(r).is_some());
        if release.is_none() {
            bad.push("release must be a version such as 2.4.0".to_owned());
        }
        let attempt = detail.get("attempt").and_then(|a| {
            // CodeBuild's environment knows only strings.
            a.as_u64().or_else(|| a.as_str().and_then(|s| s.parse().ok()))
        });
        if attempt.is_none_or(|a| a == 0) {
            bad.push("attempt must be a whole number from 1".to_owned());
        }
        let verdict = text("verdict").filter(|v| matches!(*v, "passed" | "failed"));
        if verdict.is_none() {
            bad.push("verdict must be passed or failed".to_owned());
        }
        let digest = text("template_sha256").map(str::to_ascii_lowercase);
        if digest
            .as_ref()
            .is_some_and(|d| d.len() != 64 || !d.bytes().all(|b| b.is_ascii_hexdigit()))
        {
            bad.push("template_sha256 must be 64 hexadecimal digits".to_owned());
        }
        if verdict == Some("passed") && digest.is_none() {
            bad.push("template_sha256 is missing from a passed report".to_owned());
        }
        let mut models = Vec::new();
        match detail.get("models") {
            None | Some(Value::Null) => {}
            Some(Value::Array(list)) if list.len() <= MODELS_MAX => {
                for (i, m) in list.iter().enumerate() {
                    let id = m
                        .get("id")
                        .and_then(Value::as_str)
                        .filter(|s| !s.is_empty() && s.len() <= 256);
                    let ok = m.get("ok").and_then(Value::as_bool);
                    match (id, ok) {
                        (Some(id), Some(ok)) => models.push(Model {
                            id: id.to_owned(),
                            ok,
                            reason: m.get("reason").and_then(Value::as_str).map(short),
                        }),
                        _ => bad.push(format!("models[{i}] must have a string id and a boolean ok")),
                    }
                }
            }
            Some(_) => bad.push(format!("models must be a list of at most {MODELS_MAX}")),
        }
        if let (true, Some(release), Some(attempt), Some(verdict)) =
            (bad.is_empty(), release, attempt, verdict)
        {
            let why = match detail.get("reason") {
                Some(Value::String(s)) if !s.trim().is_empty() => Some(short(s)),
                _ => None,
            };
            return Ok(Self {
                release: crate::release::canonical(release),
                verdict: verdict.to_owned(),
                attempt,
                build_id: text("build_id").map(build_id),
                template_sha256: digest,
                models,
                reason: why.map(|t| Reason::new("release_check", t).from_source("codebuild")),
                reported_at: Some(now),
                rev: 0,
                last_write_id: None,
            });
        }
        Err(bad)
    }

    /// Do both say the same?
    pub fn same_as(&self, other: &Self) -> bool {
        self.verdict == other.verdict
            && self.attempt == other.attempt
            && self.template_sha256 == other.template_sha256
            && self.models == other.models
            && self.reason == other.reason
    }
}

fn short(s: &str) -> String {
    let t = crate::updates::cause::clean(s);
    t.chars().take(TEXT_MAX).collect()
}

/// A build id as StartBuild gives it, also out of a full ARN (spec/updates.md 4.6 item 51).
pub fn build_id(text: &str) -> String {
    text.rsplit_once(":build/").map_or(text, |(_, id)| id).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn keys<T: Serialize>(v: &T) -> Vec<String> {
        serde_json::to_value(v)
            .unwrap()
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect()
    }

    #[test]
    fn the_field_lists_are_complete_and_reports_list_every_fault() {
        let ok = json!({"release": "v2.4.0", "attempt": "2", "verdict": "passed", "template_sha256": "AB".repeat(32),
            "build_id": "arn:aws:codebuild:eu-west-1:123456789012:build/check:1-2", "models": [{"id": "m", "ok": true}]});
        let r = Report::parse(&ok, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(
            (r.release.as_str(), r.attempt, r.build_id.as_deref()),
            ("2.4.0", 2, Some("check:1-2"))
        );
        assert_eq!(keys(&r), Report::FIELDS);
        let bad = json!({"release": 1, "attempt": 0, "verdict": "fine", "template_sha256": "x", "models": [{"id": 1}]});
        assert_eq!(Report::parse(&bad, Timestamp::UNIX_EPOCH).unwrap_err().len(), 5);
        assert!(Report::parse(&json!(null), Timestamp::UNIX_EPOCH).is_err());
        let none = json!({"release": "2.4.0", "attempt": 1, "verdict": "passed"});
        assert!(Report::parse(&none, Timestamp::UNIX_EPOCH).unwrap_err()[0].contains("template_sha256"));
        let c: Check = serde_json::from_value(json!({"release": "2.4.0", "state": "pending"})).unwrap();
        assert_eq!(keys(&c), Check::FIELDS);
    }
}
