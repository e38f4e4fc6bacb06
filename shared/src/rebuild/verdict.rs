//! What a gate answers (spec/rebuild.md 2.1, 3.5): the verdict, every finding with its reason, and what the operator
//! must keep.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};

use super::codes;
use super::live::Gap;

/// The word of the whole gate. Only [`Word::Pass`] proceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Word {
    /// A rule is violated.
    Fail,
    /// A rule could not be evaluated.
    Indeterminate,
    /// Not yet; nothing is wrong.
    Wait,
    /// Everything that can be checked is fine, an explicit answer is missing.
    NeedsAnswer,
    /// May go ahead.
    Pass,
}

impl Word {
    /// The word as it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Word::Fail => "FAIL",
            Word::Indeterminate => "INDETERMINATE",
            Word::Wait => "WAIT",
            Word::NeedsAnswer => "NEEDS_ANSWER",
            Word::Pass => "PASS",
        }
    }
}

/// One reason, or one warning.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// The stable code.
    pub code: &'static str,
    /// The rule of the specification that it comes from.
    pub rule: &'static str,
    /// The resource address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The attribute, or the place in the input document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// What should be there. Never a sensitive value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<Value>,
    /// What is there. Never a sensitive value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actual: Option<Value>,
    /// What is wrong, in a sentence.
    pub message: String,
    /// What to do next.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub recovery: String,
    /// A second code that says where the thing belongs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<&'static str>,
    /// Set when only an AWS permission is missing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub needs_admin: bool,
    #[serde(skip)]
    pub(crate) class: Word,
}

impl Finding {
    /// A finding with a code and a message.
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Finding {
        Finding {
            code,
            rule: "",
            address: None,
            path: None,
            expected: None,
            actual: None,
            message: message.into(),
            recovery: String::new(),
            hint: None,
            needs_admin: false,
            class: Word::Fail,
        }
    }

    pub(crate) fn at(mut self, address: impl Into<String>) -> Self {
        self.address = Some(address.into());
        self
    }

    pub(crate) fn path(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    pub(crate) fn want(mut self, value: impl Into<Value>) -> Self {
        self.expected = Some(shown(value.into()));
        self
    }

    pub(crate) fn saw(mut self, value: impl Into<Value>) -> Self {
        self.actual = Some(shown(value.into()));
        self
    }

    pub(crate) fn fix(mut self, text: impl Into<String>) -> Self {
        self.recovery = text.into();
        self
    }

    pub(crate) fn hint(mut self, code: &'static str) -> Self {
        self.hint = Some(code);
        self
    }
}

/// What a report shows in place of a value that must not be shown.
pub(crate) const HIDDEN: &str = "(sensitive)";

/// Our own list of attributes that are never shown, because Terraform's masks are coarse or missing (6.3).
pub(crate) fn is_secret_path(path: &str) -> bool {
    path.split('.').any(|step| {
        let step = step.to_ascii_lowercase();
        matches!(
            step.as_str(),
            "container_definitions"
                | "environment"
                | "secrets"
                | "runtime_environment_variables"
                | "runtime_environment_secrets"
                | "private_key"
                | "certificate_body"
                | "certificate_chain"
                | "user_data"
                | "start_command"
        ) || ["secret", "password", "token", "credential"]
            .iter()
            .any(|word| step.contains(word))
    })
}

/// A long value is cut: a report is for people, and a policy of 20 kB is not a reason.
fn shown(value: Value) -> Value {
    const MOST: usize = 600;
    let text = match &value {
        Value::String(text) => text.clone(),
        Value::Array(_) | Value::Object(_) => value.to_string(),
        _ => return value,
    };
    if text.len() <= MOST {
        return value;
    }
    let cut: String = text.chars().take(MOST).collect();
    Value::String(format!("{cut}… ({} bytes)", text.len()))
}

/// Something that must stay although Terraform lets it go.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct MustKeep {
    /// Hosted zone.
    pub zone_id: String,
    /// Record name.
    pub name: String,
    /// Record value.
    pub value: String,
    /// Why.
    pub reason: String,
}

/// Something that remains and has no owner any more.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LeftBehind {
    /// What it is.
    pub kind: String,
    /// Its id.
    pub id: String,
    /// What a person may do with it.
    pub action: String,
}

/// One input, as it was judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InputRef {
    /// Its name under `inputs`.
    pub kind: String,
    /// Where it came from.
    pub uri: String,
    /// SHA-256 of its bytes, hex.
    pub sha256: String,
}

/// The answer of a gate (3.5).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// PASS, FAIL, WAIT, NEEDS_ANSWER or INDETERMINATE.
    pub verdict: Word,
    /// The phase as asked.
    pub phase: String,
    /// The use as asked.
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    pub use_: Option<String>,
    /// `forward` or `rollback`.
    pub direction: String,
    /// The step as asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
    /// The run.
    pub run_id: Option<String>,
    /// When it was judged.
    pub checked_at: Timestamp,
    /// Until when the answer holds.
    pub expires_at: Timestamp,
    /// What was judged.
    pub inputs: Vec<InputRef>,
    /// Every reason, sorted by address and code.
    pub failures: Vec<Finding>,
    /// Remarks that do not change the verdict.
    pub warnings: Vec<Finding>,
    /// Number of resources by action.
    pub summary: BTreeMap<String, u64>,
    /// What must not be deleted.
    pub must_keep: Vec<MustKeep>,
    /// What stays without an owner.
    pub left_behind: Vec<LeftBehind>,
    /// Rules decided from live reads that somebody else took.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attested: Vec<&'static str>,
    /// Figures for people and for later gates.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub facts: Map<String, Value>,
    /// Where the report is.
    pub report: Option<String>,
    /// Where the evidence is.
    pub evidence: Option<String>,
}

/// What rules write into.
#[derive(Debug)]
pub(crate) struct Out {
    pub(crate) rule: &'static str,
    findings: Vec<Finding>,
    warnings: Vec<Finding>,
    pub(crate) must_keep: BTreeSet<MustKeep>,
    pub(crate) left_behind: BTreeSet<LeftBehind>,
    pub(crate) not_checked: BTreeSet<&'static str>,
    pub(crate) facts: Map<String, Value>,
    pub(crate) evidence: Option<Value>,
}

impl Out {
    pub(crate) fn new() -> Self {
        Out {
            rule: "",
            findings: Vec::new(),
            warnings: Vec::new(),
            must_keep: BTreeSet::new(),
            left_behind: BTreeSet::new(),
            not_checked: BTreeSet::new(),
            facts: Map::new(),
            evidence: None,
        }
    }

    fn push(&mut self, mut finding: Finding, class: Word) {
        finding.class = class;
        finding.rule = self.rule;
        if finding.recovery.is_empty() {
            finding.recovery = codes::recovery(finding.code).to_owned();
        }
        self.findings.push(finding);
    }

    /// A rule is violated.
    pub(crate) fn fail(&mut self, finding: Finding) {
        self.push(finding, Word::Fail);
    }

    /// A rule is not satisfied yet.
    pub(crate) fn wait(&mut self, finding: Finding) {
        self.push(finding, Word::Wait);
    }

    /// A rule could not be evaluated.
    pub(crate) fn cannot(&mut self, finding: Finding) {
        self.push(finding, Word::Indeterminate);
    }

    /// A person must answer.
    pub(crate) fn ask(&mut self, finding: Finding) {
        self.push(finding, Word::NeedsAnswer);
    }

    /// A remark.
    pub(crate) fn warn(&mut self, mut finding: Finding) {
        finding.rule = self.rule;
        finding.class = Word::Pass;
        if finding.recovery.is_empty() {
            finding.recovery = codes::recovery(finding.code).to_owned();
        }
        self.warnings.push(finding);
    }

    /// A rule was not judged for want of the run's record (2.11 row 17).
    pub(crate) fn skip(&mut self) {
        self.not_checked.insert(self.rule);
    }

    /// The value of a live read, or a finding that says why there is none.
    pub(crate) fn read<T>(&mut self, result: Result<T, Gap>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(gap) => {
                self.gap(gap);
                None
            }
        }
    }

    /// A finding for a read that gave no answer (2.11 rows 13 and 22, 3.6).
    pub(crate) fn gap(&mut self, gap: Gap) {
        match gap {
            Gap::Missing(read) => {
                self.fail(
                    Finding::new(
                        "EVID_MISSING",
                        format!("The read {read} is needed and not there."),
                    )
                    .path(read),
                );
            }
            Gap::Failed { call, code, message } => {
                let denied = is_denial(&code);
                let mut finding =
                    Finding::new("EVID_UNREADABLE", format!("{call} failed: {code}.")).path(call);
                finding.actual = Some(shown(Value::String(format!("{code}: {message}"))));
                finding.needs_admin = denied;
                if denied {
                    finding.recovery = "Give the gate's role this read permission, then ask again.".into();
                }
                self.cannot(finding);
            }
            Gap::Truncated(read) => {
                let text = format!("{read} was not read to its end.");
                self.cannot(Finding::new("EVID_TRUNCATED", text).path(read));
            }
            Gap::Malformed(text) => self.cannot(Finding::new(
                "EVID_UNREADABLE",
                format!("A live read is not usable: {text}."),
            )),
        }
    }

    /// Number of findings so far.
    pub(crate) fn len(&self) -> usize {
        self.findings.len()
    }

    /// Whether a code was found for an address already.
    pub(crate) fn has(&self, code: &str, address: &str) -> bool {
        self.findings
            .iter()
            .any(|f| f.code == code && f.address.as_deref() == Some(address))
    }

    /// Hides the values of every finding whose address and path must not be shown, whichever rule wrote it.
    pub(crate) fn redact(&mut self, hidden: impl Fn(&str, &str) -> bool) {
        for finding in self.findings.iter_mut().chain(&mut self.warnings) {
            let (Some(address), Some(path)) = (&finding.address, &finding.path) else {
                continue;
            };
            if hidden(address, path) {
                let hide = |value: &mut Option<Value>| {
                    if value.is_some() {
                        *value = Some(Value::from(HIDDEN));
                    }
                };
                hide(&mut finding.expected);
                hide(&mut finding.actual);
            }
        }
    }

    /// Findings and warnings, sorted and without repetition, and the word.
    pub(crate) fn finish(&mut self) -> (Word, Vec<Finding>, Vec<Finding>) {
        let failures = tidy(std::mem::take(&mut self.findings));
        let warnings = tidy(std::mem::take(&mut self.warnings));
        let word = failures.iter().map(|f| f.class).min().unwrap_or(Word::Pass);
        (word, failures, warnings)
    }
}

fn tidy(mut list: Vec<Finding>) -> Vec<Finding> {
    let key = |f: &Finding| (f.address.clone(), f.code, f.path.clone(), f.message.clone());
    list.sort_by_key(key);
    list.dedup_by_key(|f| key(f));
    list
}

/// Whether an AWS error code means that a permission is missing.
pub(crate) fn is_denial(code: &str) -> bool {
    ["AccessDenied", "Unauthorized", "NotAuthorized", "Forbidden"]
        .iter()
        .any(|word| code.contains(word))
}
