//! The pure core: a request, its inputs and the time in; a verdict out. No clock, no network, no environment.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::inputs::{Batch, CertRequested, Decisions, Entry, Fault, Manifest, Prior, State};
use super::live::Live;
use super::phase::{self, Phase};
use super::plan::{Plan, PlanFault};
use super::rules;
use super::verdict::{Finding, InputRef, Out, Verdict, Word};

/// How long ACM keeps trying to validate a certificate (spec 5, fact 2).
pub(crate) const CERT_WINDOW: SignedDuration = SignedDuration::from_hours(72);
/// Tolerated difference between two clocks (IN-7).
pub(crate) const SKEW: SignedDuration = SignedDuration::from_mins(5);

/// What is asked.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// The run; None takes the manifest's.
    pub run_id: Option<String>,
    /// Name of the phase, as given.
    pub phase: String,
    /// The use of the phase, where it has several.
    pub use_: Option<String>,
    /// The step of a cutover.
    pub step: Option<i64>,
    /// `forward`, `rollback`, or empty for forward.
    pub direction: String,
}

/// One input document.
#[derive(Debug, Clone)]
pub struct Input {
    /// Its name under `inputs` (`plan`, `manifest`, `state_m5a`, ...).
    pub kind: String,
    /// Where it came from, for the report.
    pub uri: String,
    /// Its bytes, or why they could not be had.
    pub bytes: Result<Vec<u8>, String>,
    /// The SHA-256 of the bytes, hex; empty when there are none. Hashed once, where the bytes are read.
    pub(crate) sha256: String,
    /// The SHA-256 that the caller recorded (IN-2). None where the caller has none: offline.
    pub expected_sha256: Option<String>,
}

impl Input {
    /// An input that was read from somewhere.
    pub fn new(kind: &str, uri: &str, bytes: Vec<u8>) -> Input {
        let sha256 = sha256_hex(&bytes);
        Input {
            kind: kind.to_owned(),
            uri: uri.to_owned(),
            bytes: Ok(bytes),
            sha256,
            expected_sha256: None,
        }
    }

    /// An input that could not be read, and why.
    pub fn unreadable(kind: &str, uri: &str, why: &str) -> Input {
        let (kind, uri, sha256) = (kind.to_owned(), uri.to_owned(), String::new());
        Input {
            kind,
            uri,
            bytes: Err(why.to_owned()),
            sha256,
            expected_sha256: None,
        }
    }
}

/// The SHA-256 of the generated files that a manifest names, by the name it gives them; None for a file that is not
/// there or can't be read.
pub type Files = BTreeMap<String, Option<String>>;

/// Everything a gate call looks at.
#[derive(Debug, Clone, Default)]
pub struct Inputs {
    /// The documents. `prior` may occur several times.
    pub items: Vec<Input>,
    /// The generated files, when the caller has them (IN-3).
    pub files: Option<Files>,
    /// Whether `prior` is the run's whole record, so that order rules are always judged (2.11 row 17).
    pub has_record: bool,
    /// Whether live reads were taken by somebody else, so that what rests on them is `attested` (2.11 row 9).
    pub live_is_attested: bool,
    /// Whether the SHA-256 of the binary plan is in the run's record (IN-9); None when there is no record.
    pub plan_file_sha256: Option<String>,
}

/// The inputs are not of the agreed shape, so no verdict can be given. Never worth a retry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadInput(pub String);

/// A verdict and what comes with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// The answer.
    pub verdict: Verdict,
    /// The evidence file that a passing verify phase produces.
    pub evidence: Option<Value>,
}

/// How old a plan may be (IN-10).
const PLAN_MAX_AGE: SignedDuration = SignedDuration::from_mins(60);

/// What rules look at.
#[derive(Debug)]
pub(crate) struct Ctx<'a> {
    pub(crate) phase: Phase,
    pub(crate) use_: Option<&'a str>,
    pub(crate) step: Option<i64>,
    pub(crate) rollback: bool,
    pub(crate) run_id: Option<String>,
    pub(crate) now: Timestamp,
    pub(crate) m: Manifest,
    pub(crate) manifest_sha256: String,
    pub(crate) plan: Option<Plan<'a>>,
    pub(crate) state_m5a: Option<State>,
    pub(crate) state_rebuild: Option<State>,
    pub(crate) state_alb: Option<State>,
    pub(crate) decisions: Option<Decisions>,
    pub(crate) cert: Option<CertRequested>,
    pub(crate) documents: BTreeMap<&'static str, Value>,
    pub(crate) live: Live,
    pub(crate) live_given: bool,
    pub(crate) batch: Option<Batch>,
    pub(crate) prior: Vec<Prior>,
    pub(crate) has_record: bool,
    pub(crate) hashes: BTreeMap<String, String>,
    pub(crate) files: Option<Files>,
    pub(crate) plan_file_sha256: Option<String>,
    pub(crate) plan_max_age: SignedDuration,
    pub(crate) given: Vec<String>,
}

impl Ctx<'_> {
    /// The key of the phase in the manifest.
    pub(crate) fn key(&self) -> String {
        match (self.phase, self.use_) {
            (Phase::Steady, Some(use_)) if self.m.phases.contains_key(&format!("steady:{use_}")) => {
                format!("steady:{use_}")
            }
            (Phase::Steady, _) => "steady".into(),
            (Phase::VerifyHandoff, _) => {
                if self.m.phases.contains_key("steady:m5a") {
                    "steady:m5a".into()
                } else {
                    "steady".into()
                }
            }
            (phase, Some(use_)) => format!("{phase}:{use_}"),
            (phase, None) => phase.to_string(),
        }
    }

    /// The manifest's entry for the phase.
    pub(crate) fn entry(&self) -> Option<&Entry> {
        self.m.phases.get(&self.key())
    }

    /// Which root the phase works on: `m5a`, `infra_rebuild` or `alb` (1.2).
    pub(crate) fn root(&self) -> &str {
        use Phase::*;
        match self.phase {
            VerifyHandoff | Prepare | Import | Cutover | Switch | WorkerOff => "m5a",
            PrepareAlb => "alb",
            Steady => match self.use_ {
                Some(use_) => use_,
                None => self
                    .entry()
                    .and_then(|e| e.root.as_deref())
                    .unwrap_or("infra_rebuild"),
            },
            _ => "infra_rebuild",
        }
    }

    /// The state of the phase's root, when it was given.
    pub(crate) fn root_state(&self) -> Option<&State> {
        match self.root() {
            "m5a" => self.state_m5a.as_ref(),
            "alb" => self.state_alb.as_ref(),
            _ => self.state_rebuild.as_ref(),
        }
    }

    /// Whether the outcome of the validation record is the given one, by the evidence or else the manifest.
    pub(crate) fn outcome(&self) -> Option<&str> {
        let stated = self.m.validation.as_ref().and_then(|v| v.outcome.as_deref());
        self.cert.as_ref().map(|c| c.outcome.as_str()).or(stated)
    }

    /// The address of the validation record that infra-rebuild creates.
    pub(crate) fn validation_address(&self) -> &str {
        self.m
            .validation
            .as_ref()
            .and_then(|v| v.address.as_deref())
            .unwrap_or("aws_route53_record.validation")
    }

    /// The App Runner service, by the manifest or the M5a state.
    pub(crate) fn service_arn(&self) -> Option<String> {
        let known = self
            .state_m5a
            .as_ref()
            .and_then(|s| s.first_text("aws_apprunner_service", "arn"));
        self.m.service_arn.clone().or(known)
    }

    /// The certificate of the run: by the evidence, else by the infra-rebuild state.
    pub(crate) fn certificate_arn(&self) -> Option<String> {
        let in_state = || {
            let state = self.state_rebuild.as_ref()?;
            super::json::str_at(state.values(&self.m.cert_address), "arn").map(str::to_owned)
        };
        self.cert
            .as_ref()
            .map(|c| c.certificate_arn.clone())
            .or_else(in_state)
    }

    /// Whether order rules can be judged (2.11 row 17).
    pub(crate) fn knows_order(&self) -> bool {
        self.has_record || !self.prior.is_empty()
    }

    /// The newest verdict of this run for a phase, use and direction.
    pub(crate) fn prior_of(&self, phase: &str, use_: Option<&str>, rollback: Option<bool>) -> Option<&Prior> {
        let found = self.prior.iter().filter(|p| {
            p.phase == phase
                && (use_.is_none() || p.use_.as_deref() == use_)
                && rollback.is_none_or(|r| p.rollback == r)
                && (p.run_id.is_none() || self.run_id.is_none() || p.run_id == self.run_id)
        });
        found.max_by_key(|p| p.checked_at)
    }

    /// Whether the plan may be judged: it was given, and it is a plan.
    pub(crate) fn plan(&self) -> Option<&Plan<'_>> {
        self.plan.as_ref()
    }
}

/// The hex SHA-256 of some bytes.
pub fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// Judges one gate call.
///
/// # Errors
/// [`BadInput`] when the manifest is missing or is not JSON: then no request can be formed (2.11 row 22).
pub fn judge(request: &Request, inputs: &Inputs, now: Timestamp) -> Result<Judgement, BadInput> {
    judge_with(request, inputs, now, &rules::all())
}

/// [`judge`] with a chosen set of rules: tests take one away and look for what it used to find.
pub(crate) fn judge_with(
    request: &Request,
    inputs: &Inputs,
    now: Timestamp,
    rules: &[rules::Rule],
) -> Result<Judgement, BadInput> {
    let mut out = Out::new();
    let refs: Vec<InputRef> = inputs.items.iter().filter_map(input_ref).collect();
    let manifest_input =
        only(inputs, "manifest").ok_or_else(|| BadInput("The manifest is missing.".into()))?;
    let manifest_bytes = manifest_input
        .bytes
        .as_ref()
        .map_err(|e| BadInput(format!("The manifest can't be read: {e}.")))?;
    let manifest_value: Value = serde_json::from_slice(manifest_bytes)
        .map_err(|e| BadInput(format!("The manifest {} is not JSON: {e}.", manifest_input.uri)))?;

    let run_id = request
        .run_id
        .clone()
        .or_else(|| manifest_value.get("run_id")?.as_str().map(str::to_owned));
    let judged = check_request(request, &mut out);
    let manifest = check_manifest(&manifest_value, &mut out);
    let mut pending_close = None;
    let mut attested = Vec::new();
    let mut summary = BTreeMap::new();
    if let (Some((phase, use_)), Some(m)) = (judged, manifest) {
        if phase == Phase::Retire {
            out.rule = "RETIRE";
            let text =
                "Retiring App Runner is not available: no real App Runner retirement has been recorded yet.";
            out.fail(Finding::new("RETIRE_UNAVAILABLE", text));
        } else {
            let ctx = load(
                request,
                inputs,
                now,
                phase,
                use_,
                run_id.clone(),
                m,
                &refs,
                &mut out,
            );
            for rule in rules.iter().filter(|rule| rule.phases.contains(&phase)) {
                out.rule = rule.id;
                ctx.live.touched.set(false);
                if catch_unwind(AssertUnwindSafe(|| (rule.check)(&ctx, &mut out))).is_err() {
                    let text = format!("Rule {} stopped with a bug of Headgate's own.", rule.id);
                    out.fail(Finding::new("INTERNAL_RULE_ERROR", text).path(rule.id));
                }
                if ctx.live.touched.get() && ctx.live_given && inputs.live_is_attested {
                    attested.push(rule.id);
                }
            }
            finish_plan(&ctx, &mut out);
            if let Some(plan) = ctx.plan() {
                out.redact(|address, path| {
                    let entries = [plan.change(address), plan.drift(address)];
                    entries.into_iter().flatten().any(|c| c.marked(path))
                });
            }
            if ctx
                .state_rebuild
                .as_ref()
                .is_some_and(|s| s.managed().next().is_none())
            {
                out.facts.insert("infra_rebuild_empty".into(), json!(true));
            }
            if let Some(at) = ctx.plan().and_then(|p| p.timestamp.as_deref()) {
                out.facts.insert("plan_timestamp".into(), json!(at));
            }
            pending_close = rules::pending_window_close(&ctx);
            summary = summarize(&ctx);
        }
    }
    if !out.not_checked.is_empty() {
        let ids = std::mem::take(&mut out.not_checked)
            .into_iter()
            .collect::<Vec<_>>();
        out.rule = "IN-6";
        let text = format!(
            "Not judged, for want of the run's record (--input prior=FILE): {}.",
            ids.join(", ")
        );
        out.warn(Finding::new("WARN_NOT_CHECKED", text).saw(json!(ids)));
    }
    let (verdict, failures, warnings) = out.finish();
    let evidence = if verdict == Word::Pass {
        out.evidence.take()
    } else {
        None
    };
    attested.sort_unstable();
    attested.dedup();
    let direction = if request.direction.is_empty() {
        "forward".to_owned()
    } else {
        request.direction.clone()
    };
    let verdict = Verdict {
        verdict,
        phase: request.phase.clone(),
        use_: request.use_.clone(),
        direction,
        step: request.step,
        run_id,
        checked_at: now,
        expires_at: expiry(request, now, pending_close),
        inputs: refs,
        failures,
        warnings,
        summary,
        must_keep: out.must_keep.into_iter().collect(),
        left_behind: out.left_behind.into_iter().collect(),
        attested,
        facts: out.facts,
        report: None,
        evidence: None,
    };
    Ok(Judgement { verdict, evidence })
}

fn only<'i>(inputs: &'i Inputs, kind: &str) -> Option<&'i Input> {
    inputs.items.iter().find(|input| input.kind == kind)
}

fn input_ref(input: &Input) -> Option<InputRef> {
    let there = input.bytes.is_ok();
    there.then(|| InputRef {
        kind: input.kind.clone(),
        uri: input.uri.clone(),
        sha256: input.sha256.clone(),
    })
}

/// IN-1: phase, use, direction and step are in the closed sets.
fn check_request<'r>(request: &'r Request, out: &mut Out) -> Option<(Phase, Option<&'r str>)> {
    out.rule = "IN-1";
    let before = out.len();
    let bad = |path: &str, text: String| Finding::new("INPUT_PHASE_UNKNOWN", text).path(path);
    // "import:7a" is the same as phase import with use 7a.
    let (name, in_name) = match request.phase.split_once(':') {
        Some((name, use_)) => (name, Some(use_)),
        None => (request.phase.as_str(), None),
    };
    let mut use_ = request.use_.as_deref().or(in_name);
    let phase = Phase::parse(name);
    let Some(phase) = phase else {
        let known: Vec<&str> = phase::ALL.iter().map(|p| p.as_str()).collect();
        out.fail(
            bad("phase", format!("There is no phase {name:?}."))
                .want(known.join(", "))
                .saw(name),
        );
        return None;
    };
    let rollback = match request.direction.as_str() {
        "" | "forward" => false,
        "rollback" => true,
        other => {
            out.fail(bad("direction", "The direction must be forward or rollback.".into()).saw(other));
            false
        }
    };
    if rollback && !phase.has_rollback() {
        out.fail(bad("direction", format!("{phase} has no rollback direction.")));
    }
    if phase == Phase::DnsBatch && use_.is_none() {
        use_ = Some(if rollback { "revert" } else { "convert" });
    }
    match use_ {
        Some(word) if !phase.uses().contains(&word) => {
            out.fail(
                bad("use", format!("{phase} has no use {word:?}."))
                    .want(phase.uses().join(", "))
                    .saw(word),
            );
        }
        Some("convert") if rollback => {
            out.fail(bad(
                "use",
                "dns-batch convert has no rollback direction; the way back is use revert.".into(),
            ));
        }
        None if phase.needs_use() => {
            out.fail(bad("use", format!("{phase} needs a use.")).want(phase.uses().join(", ")));
        }
        _ => {}
    }
    match request.step {
        Some(step) if phase == Phase::Cutover && !(1..=255).contains(&step) => {
            out.fail(bad("step", "A cutover step is a number from 1.".into()).saw(step));
        }
        _ => {}
    }
    (out.len() == before).then_some((phase, use_))
}

fn check_manifest(value: &Value, out: &mut Out) -> Option<Manifest> {
    out.rule = "IN-3";
    match Manifest::read(value) {
        Ok(manifest) => Some(manifest),
        Err(faults) => {
            for Fault { path, what } in faults {
                let name = if path.is_empty() {
                    "The manifest".to_owned()
                } else {
                    format!("Manifest field {path}")
                };
                out.fail(Finding::new("MANIFEST_INVALID", format!("{name} {what}.")).path(path));
            }
            None
        }
    }
}

/// The evidence documents kept as JSON, by kind.
const DOCUMENTS: [&str; 5] = ["handoff", "taskdef_on", "taskdef_off", "live_revision", "answer"];

#[expect(clippy::too_many_arguments, reason = "one call, and each is a separate fact")]
fn load<'a>(
    request: &'a Request,
    inputs: &'a Inputs,
    now: Timestamp,
    phase: Phase,
    use_: Option<&'a str>,
    run_id: Option<String>,
    m: Manifest,
    refs: &[InputRef],
    out: &mut Out,
) -> Ctx<'a> {
    out.rule = "IN-6";
    let hashes = refs
        .iter()
        .map(|r| (r.kind.clone(), r.sha256.clone()))
        .collect::<BTreeMap<_, _>>();
    let mut ctx = Ctx {
        phase,
        use_,
        step: request.step,
        rollback: request.direction == "rollback",
        run_id,
        now,
        m,
        manifest_sha256: hashes.get("manifest").cloned().unwrap_or_default(),
        plan: None,
        state_m5a: None,
        state_rebuild: None,
        state_alb: None,
        decisions: None,
        cert: None,
        documents: BTreeMap::new(),
        live: Live::default(),
        live_given: false,
        batch: None,
        prior: Vec::new(),
        has_record: inputs.has_record,
        hashes,
        files: inputs.files.clone(),
        plan_file_sha256: inputs.plan_file_sha256.clone(),
        plan_max_age: PLAN_MAX_AGE,
        given: inputs.items.iter().map(|i| i.kind.clone()).collect(),
    };
    for input in inputs.items.iter().filter(|i| i.kind != "manifest") {
        check_hash(input, refs, out);
        let bytes = match &input.bytes {
            Ok(bytes) => bytes,
            Err(why) => {
                out.cannot(unreadable(input, why));
                continue;
            }
        };
        load_one(&mut ctx, input, bytes, out);
    }
    if let Some(manifest) = only(inputs, "manifest") {
        check_hash(manifest, refs, out);
    }
    ctx
}

fn check_hash(input: &Input, refs: &[InputRef], out: &mut Out) {
    let Some(expected) = &input.expected_sha256 else {
        return;
    };
    let actual = refs
        .iter()
        .find(|r| r.kind == input.kind && r.uri == input.uri)
        .map(|r| r.sha256.as_str());
    if let Some(actual) = actual
        && !actual.eq_ignore_ascii_case(expected)
    {
        out.rule = "IN-2";
        let text = format!("The bytes of {} are not those that were recorded.", input.kind);
        let finding = Finding::new("INPUT_HASH_MISMATCH", text).path(input.kind.as_str());
        out.fail(finding.want(expected.as_str()).saw(actual));
        out.rule = "IN-6";
    }
}

fn unreadable(input: &Input, why: &str) -> Finding {
    Finding::new(
        "EVID_UNREADABLE",
        format!("{} ({}) can't be read: {why}.", input.kind, input.uri),
    )
    .path(input.kind.as_str())
}

fn load_one<'a>(ctx: &mut Ctx<'a>, input: &'a Input, bytes: &'a [u8], out: &mut Out) {
    if input.kind == "plan" {
        if !ctx.phase.takes_plan() {
            let text = format!("{} judges no plan; the one given is not looked at.", ctx.phase);
            out.warn(Finding::new("WARN_INPUT_UNUSED", text).path("plan"));
            return;
        }
        match Plan::read(bytes) {
            Ok(plan) => ctx.plan = Some(plan),
            Err(PlanFault::Unreadable(why)) => out.cannot(unreadable(input, &why)),
            Err(PlanFault::NotAPlan(why)) => {
                out.rule = "G-1";
                let text = format!("The document is not a Terraform plan: {why}.");
                out.fail(Finding::new("PLAN_NOT_A_PLAN", text).path("plan"));
                out.rule = "IN-6";
            }
        }
        return;
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(_) => return out.cannot(unreadable(input, "not UTF-8 text")),
    };
    match input.kind.as_str() {
        "state_m5a" | "state_rebuild" | "state_alb" => match State::read(text) {
            Ok(state) => match input.kind.as_str() {
                "state_m5a" => ctx.state_m5a = Some(state),
                "state_alb" => ctx.state_alb = Some(state),
                _ => ctx.state_rebuild = Some(state),
            },
            Err(why) => out.cannot(unreadable(input, &why)),
        },
        "decisions" => match parse_decisions(text) {
            Ok(value) => ctx.decisions = Some(Decisions(value)),
            Err(why) => out.cannot(unreadable(input, &why)),
        },
        kind => match serde_json::from_str::<Value>(text) {
            Ok(value) => load_json(ctx, kind, value, input, out),
            Err(why) => out.cannot(unreadable(input, &why.to_string())),
        },
    }
}

pub(crate) fn parse_decisions(text: &str) -> Result<Value, String> {
    let value = if text.trim_start().starts_with('{') {
        serde_json::from_str::<Value>(text).map_err(|e| e.to_string())?
    } else {
        super::yaml::parse(text)?
    };
    if !value.is_object() {
        return Err("not an object of decisions".into());
    }
    match value.get("schema").map(Value::as_u64) {
        None | Some(Some(1)) => Ok(value),
        Some(_) => Err("schema must be 1".into()),
    }
}

fn load_json(ctx: &mut Ctx<'_>, kind: &str, value: Value, input: &Input, out: &mut Out) {
    match kind {
        "cert_requested" => match CertRequested::read(&value) {
            Ok(cert) => {
                ctx.cert = Some(cert);
                ctx.documents.insert("cert_requested", value);
            }
            Err(faults) => faults
                .iter()
                .for_each(|f| out.cannot(unreadable(input, &format!("{} {}", f.path, f.what)))),
        },
        "live" => match Live::read(&value) {
            Ok(live) => {
                ctx.live = live;
                ctx.live_given = true;
            }
            Err(why) => out.cannot(unreadable(input, &why)),
        },
        "dns_batch" => match Batch::read(&value) {
            Ok(batch) => ctx.batch = Some(batch),
            Err(why) => out.cannot(unreadable(input, &why)),
        },
        "prior" => match Prior::read(&value) {
            Some(prior) => ctx.prior.push(prior),
            None => out.cannot(unreadable(input, "not a verdict")),
        },
        other => match DOCUMENTS.iter().find(|name| **name == other) {
            Some(name) if value.is_object() => {
                ctx.documents.insert(name, value);
            }
            Some(_) => out.cannot(unreadable(input, "not an object")),
            None => {
                let text = format!("There is no input {other}; it is not looked at.");
                out.warn(Finding::new("WARN_INPUT_UNUSED", text).path(other));
            }
        },
    }
}

fn finish_plan(ctx: &Ctx<'_>, out: &mut Out) {
    if ctx.plan().is_some_and(Plan::is_broken) {
        out.rule = "G-1";
        let text = "A value of the plan can't be parsed: it is nested deeper than any real plan.";
        out.fail(Finding::new("PLAN_NOT_A_PLAN", text).path("plan"));
    }
}

fn summarize(ctx: &Ctx<'_>) -> BTreeMap<String, u64> {
    let mut out = BTreeMap::new();
    for change in ctx.plan().iter().flat_map(|p| &p.changes) {
        let word = if change.is_import() {
            "import"
        } else {
            change.action.as_str()
        };
        *out.entry(word.to_owned()).or_insert(0) += 1;
    }
    for change in ctx.batch.iter().flat_map(|b| &b.changes) {
        *out.entry(change.action.to_ascii_lowercase()).or_insert(0) += 1;
    }
    out
}

/// 2.11 row 14.
fn expiry(request: &Request, now: Timestamp, window_close: Option<Timestamp>) -> Timestamp {
    let holds = match request.phase.as_str() {
        "verify-handoff" => SignedDuration::from_hours(24),
        "rolled-back" => SignedDuration::from_mins(15),
        _ => SignedDuration::from_mins(60),
    };
    let end = now.checked_add(holds).unwrap_or(Timestamp::MAX);
    match window_close {
        Some(close) => end.min(close.max(now)),
        None => end,
    }
}
