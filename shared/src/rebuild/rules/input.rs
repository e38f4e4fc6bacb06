//! Input and order rules: what a call must bring, and in which order steps may be taken (spec 2.2, 2.6 ORD-*).

use jiff::SignedDuration;
use serde_json::Value;

use super::{Rule, rule};
use crate::rebuild::decide::{CERT_WINDOW, Ctx, SKEW};
use crate::rebuild::inputs::{Fault, Worker};
use crate::rebuild::names;
use crate::rebuild::phase::{ALL, PLANS, Phase};
use crate::rebuild::verdict::{Finding, Out};

use Phase::*;

const WORKER_PHASES: &[Phase] = &[
    TaskdefOn,
    TaskdefOnLive,
    WorkerOff,
    WorkerOffLive,
    WorkerOn,
    WorkerOnLive,
    TaskdefOff,
    TaskdefOffLive,
];
const CHAINED: &[Phase] = &[
    Prepare,
    CertRequest,
    Rebuild,
    Start,
    DnsBatch,
    Import,
    Cutover,
    Switch,
    WorkerOff,
    WorkerOn,
    TaskdefOff,
];
const STAGED: &[Phase] = &[Import, Rebuild];

pub(super) const RULES: &[Rule] = &[
    rule(
        "IN-3",
        ALL,
        &["MANIFEST_FILE_HASH", "EVID_MISSING", "WARN_FILES_NOT_CHECKED"],
        "Every generated file that the manifest names has the recorded SHA-256.",
        in_3,
    ),
    rule(
        "IN-4",
        ALL,
        &["BIND_ACCOUNT", "BIND_REGION"],
        "The manifest's account and region are those of the caller, of the provider, and of every gated ARN.",
        in_4,
    ),
    rule(
        "IN-5",
        ALL,
        &["EVID_BINDING", "EVID_STALE"],
        "Evidence is bound to account, region, resource and manifest, and is young enough.",
        in_5,
    ),
    rule(
        "IN-6",
        ALL,
        &["EVID_MISSING"],
        "The inputs that the phase needs are there.",
        in_6,
    ),
    rule(
        "IN-7",
        ALL,
        &["EVID_CLOCK"],
        "No evidence comes from the future.",
        in_7,
    ),
    rule(
        "IN-8",
        ALL,
        &["DECISION_MISSING", "DECISION_INVALID"],
        "The decisions that the phase needs are answered with an allowed value.",
        in_8,
    ),
    rule(
        "IN-9",
        PLANS,
        &["PLAN_NOT_BOUND"],
        "The plan judged is the plan that will be applied.",
        in_9,
    ),
    rule(
        "IN-10",
        PLANS,
        &["PLAN_STALE"],
        "The plan is not older than an hour, nor than the evidence it rests on.",
        in_10,
    ),
    rule(
        "MAN-12",
        PLANS,
        &["MANIFEST_INVALID"],
        "The manifest has an entry for the plan phase (2.11 row 12).",
        man_12,
    ),
    rule(
        "ORD-1",
        &[CertRequested],
        &["ORDER_CERT_NOT_APPLIED"],
        "The certificate request is applied before its outcome is recorded.",
        ord_1,
    ),
    rule(
        "ORD-2",
        STAGED,
        &["ORDER_STAGE_NOT_GENERATED"],
        "The rebuild stage was generated from cert-requested.json: the manifest names its SHA-256.",
        ord_2,
    ),
    rule(
        "ORD-3",
        &[Import],
        &["ORDER_2B_BEFORE_STAGE"],
        "2b needs the stage's manifest entry.",
        ord_3,
    ),
    rule(
        "ORD-4",
        &[Rebuild],
        &["ORDER_2B_NOT_APPLIED"],
        "With an unowned record and decision import, 2b is applied before step 3.",
        ord_4,
    ),
    rule(
        "ORD-5",
        CHAINED,
        &["ORDER_PREREQUISITE"],
        "Each mutation needs the PASS of the verify before it, of the same run and manifest.",
        ord_5,
    ),
    rule(
        "ORD-6",
        &[Prepare, Import, Cutover, Switch, WorkerOff, Steady],
        &["ORDER_CONVERT_OPEN"],
        "Between the convert batch and the passing 7a import no other M5a plan is gated.",
        ord_6,
    ),
];

/// IN-3: generated files have the recorded hashes. Where a rule rests on a file they must be there.
fn in_3(ctx: &Ctx<'_>, out: &mut Out) {
    let rests = matches!(
        (ctx.phase, ctx.use_),
        (Import, Some("2b")) | (TaskdefOn, _) | (DnsBatch, _)
    );
    let named = &ctx.m.files;
    let given = ctx.files.as_ref().filter(|files| {
        named
            .keys()
            .any(|name| files.get(name).is_some_and(Option::is_some))
    });
    let Some(files) = given else {
        let text =
            "The generated files that the manifest names were not given, so their hashes are not checked.";
        if rests {
            out.fail(Finding::new("EVID_MISSING", text).path("files"));
        } else if !named.is_empty() {
            out.warn(Finding::new("WARN_FILES_NOT_CHECKED", text).path("files"));
        }
        return;
    };
    for (name, want) in named {
        let actual = files.get(name).cloned().flatten();
        let finding = match actual {
            Some(actual) if actual.eq_ignore_ascii_case(want) => continue,
            Some(actual) => {
                let text = format!("The file {name} is not the one that the manifest was made with.");
                Finding::new("MANIFEST_FILE_HASH", text).saw(actual)
            }
            None => Finding::new("MANIFEST_FILE_HASH", format!("The file {name} is not there.")),
        };
        out.fail(finding.path(format!("files.{name}")).want(want.as_str()));
    }
    let batch = ctx.hashes.get("dns_batch");
    if let (DnsBatch, Some(sha)) = (ctx.phase, batch)
        && !named.values().any(|hash| hash.eq_ignore_ascii_case(sha))
    {
        let text = "The batch is none of the generated files that the manifest names.";
        out.fail(
            Finding::new("MANIFEST_FILE_HASH", text)
                .path("dns_batch")
                .saw(sha.as_str()),
        );
    }
}

/// IN-4: account and region agree everywhere they are written.
fn in_4(ctx: &Ctx<'_>, out: &mut Out) {
    let (account, region) = (&ctx.m.account, &ctx.m.region);
    let mut bind = |code: &'static str, what: &str, want: &str, saw: &str, path: &str| {
        if want != saw {
            let text = format!("{what} is not the manifest's.");
            out.fail(Finding::new(code, text).path(path).want(want).saw(saw));
        }
    };
    if let Some(seen) = &ctx.live.account {
        bind(
            "BIND_ACCOUNT",
            "The account of the live reads",
            account,
            seen,
            "live.account",
        );
    }
    if let Some(seen) = &ctx.live.region {
        bind(
            "BIND_REGION",
            "The region of the live reads",
            region,
            seen,
            "live.region",
        );
    }
    if ctx.live.any("sts:GetCallerIdentity")
        && let Ok(identity) = ctx.live.one("sts:GetCallerIdentity", &[])
    {
        let seen = identity.get("Account").and_then(Value::as_str).unwrap_or("");
        bind(
            "BIND_ACCOUNT",
            "The caller's account",
            account,
            seen,
            "sts:GetCallerIdentity",
        );
    }
    if let Some(plan) = ctx.plan()
        && let Some(seen) = plan.provider_region()
    {
        bind(
            "BIND_REGION",
            "The region of the plan's provider",
            region,
            seen,
            "configuration.provider_config.aws.region",
        );
    }
    let mut arn = |text: &str, path: &str| {
        let Some(parts) = names::arn(text) else { return };
        // Global services leave the region empty, AWS-owned things the account.
        if !parts.account.is_empty() && parts.account != "aws" {
            bind(
                "BIND_ACCOUNT",
                "The account inside an ARN",
                account,
                parts.account,
                path,
            );
        }
        if !parts.region.is_empty() {
            bind(
                "BIND_REGION",
                "The region inside an ARN",
                region,
                parts.region,
                path,
            );
        }
    };
    if let Some(text) = &ctx.m.service_arn {
        arn(text, "service_arn");
    }
    let gates = ctx.entry().and_then(|e| e.addresses.as_ref());
    for (address, gate) in gates.into_iter().flatten() {
        let change = ctx.plan().and_then(|p| p.change(address));
        for (path, gated) in &gate.gated {
            let place = format!("{address}.{path}");
            gated
                .before
                .iter()
                .chain(&gated.after)
                .filter_map(Value::as_str)
                .for_each(|text| arn(text, &place));
            if let Some(change) = change {
                [change.b(path), change.a(path)]
                    .iter()
                    .filter_map(|v| v.as_str())
                    .for_each(|text| arn(text, &place));
            }
        }
    }
}

/// The kinds of evidence and the name of each in the manifest.
const EVIDENCE: [&str; 5] = [
    "handoff",
    "cert_requested",
    "taskdef_on",
    "taskdef_off",
    "live_revision",
];

/// IN-5: evidence is bound and young.
fn in_5(ctx: &Ctx<'_>, out: &mut Out) {
    for kind in EVIDENCE {
        let Some(document) = ctx.documents.get(kind) else {
            continue;
        };
        let text = |key: &str| document.get(key).and_then(Value::as_str);
        let mut bind = |key: &str, want: Option<&str>, saw: Option<&str>, needed: bool| {
            if saw.is_none() && !needed || want.is_none() {
                return;
            }
            if saw != want {
                let message = format!("{kind}: {key} is not that of this run.");
                let finding = Finding::new("EVID_BINDING", message).path(format!("{kind}.{key}"));
                out.fail(
                    finding
                        .want(want.unwrap_or_default())
                        .saw(saw.unwrap_or("nothing")),
                );
            }
        };
        bind("account", Some(&ctx.m.account), text("account"), true);
        bind("region", Some(&ctx.m.region), text("region"), true);
        bind("run_id", ctx.m.run_id.as_deref(), text("run_id"), false);
        bind(
            "manifest_sha256",
            ctx.m.previous_sha256.as_deref(),
            text("manifest_sha256"),
            true,
        );
        bind(
            "sha256",
            ctx.m.evidence.get(kind).map(String::as_str),
            ctx.hashes.get(kind).map(String::as_str),
            true,
        );
        if kind == "cert_requested" {
            let (want, saw) = (
                names::dns(&ctx.m.cert_domain),
                text("domain_name").map(names::dns),
            );
            bind("domain_name", Some(&want), saw.as_deref(), true);
            let stated = ctx.m.validation.as_ref();
            for (key, want) in [
                ("name", stated.and_then(|v| v.name.as_ref())),
                ("value", stated.and_then(|v| v.value.as_ref())),
            ] {
                let saw = document
                    .get("record")
                    .and_then(|r| r.get(key))
                    .and_then(Value::as_str)
                    .map(names::dns);
                bind(
                    &format!("record.{key}"),
                    want.map(|w| names::dns(w)).as_deref(),
                    saw.as_deref(),
                    true,
                );
            }
            bind(
                "record.zone_id",
                Some(&ctx.m.zone_id),
                ctx.cert.as_ref().map(|c| c.zone_id.as_str()),
                true,
            );
        }
        if matches!(kind, "handoff" | "live_revision") {
            bind(
                "service_arn",
                ctx.m.service_arn.as_deref().filter(|_| kind == "handoff"),
                text("service_arn"),
                true,
            );
        }
        for key in ["certificate_arn", "arn", "service_arn"] {
            if let Some(parts) = text(key).and_then(names::arn) {
                bind(key, Some(&ctx.m.account), Some(parts.account), true);
                bind(key, Some(&ctx.m.region), Some(parts.region), true);
            }
        }
    }
    stale(ctx, out);
}

fn stale(ctx: &Ctx<'_>, out: &mut Out) {
    let too_old = |out: &mut Out, kind: &str, age: SignedDuration, most: SignedDuration| {
        if age >= most {
            let text = format!("{kind} is {} old; it may be {} old.", hours(age), hours(most));
            out.fail(Finding::new("EVID_STALE", text).path(kind));
        }
    };
    if let Some(at) = ctx
        .documents
        .get("handoff")
        .and_then(|d| d.get("captured_at"))
        .and_then(names::time)
    {
        too_old(
            out,
            "handoff",
            ctx.now.duration_since(at),
            SignedDuration::from_hours(24),
        );
    }
    if let Some(at) = ctx.live.captured_at {
        too_old(
            out,
            "live",
            ctx.now.duration_since(at),
            SignedDuration::from_mins(15) + SignedDuration::from_nanos(1),
        );
    } else if ctx.live_given {
        let text = "The live evidence does not say when it was captured.";
        out.fail(Finding::new("EVID_STALE", text).path("live.captured_at"));
    }
    // 2.11 row 21: the window does not bind a rollback, nor an old certificate that the manifest allows.
    if let (Some(cert), Some(document)) = (&ctx.cert, ctx.documents.get("cert_requested"))
        && !ctx.rollback
        && ctx.phase != RollbackRebuild
        && !ctx.m.allow_old_issued
        && matches!(ctx.phase, Import | Rebuild)
        && ctx.use_ != Some("7a")
        && ctx.use_ != Some("7a-revert")
    {
        let at = cert
            .created_at
            .or_else(|| document.get("captured_at").and_then(names::time));
        match at {
            Some(at) => too_old(out, "cert_requested", ctx.now.duration_since(at), CERT_WINDOW),
            None => {
                let text = "cert-requested.json does not say when the certificate was requested.";
                out.fail(Finding::new("EVID_STALE", text).path("cert_requested.certificate_created_at"));
            }
        }
    }
}

fn hours(age: SignedDuration) -> String {
    let minutes = age.as_mins();
    if minutes < 120 {
        format!("{minutes} min")
    } else {
        format!("{} h {:02} min", minutes / 60, minutes % 60)
    }
}

/// IN-6: what the phase cannot do without.
fn in_6(ctx: &Ctx<'_>, out: &mut Out) {
    for kind in super::super::needed_inputs(ctx.phase, ctx.use_, ctx.rollback) {
        if !ctx.given.iter().any(|given| given == kind) {
            let text = format!("{} needs the input {kind}.", ctx.phase);
            out.fail(Finding::new("EVID_MISSING", text).path(*kind));
        }
    }
}

/// IN-7: `captured_at` is not in the future.
fn in_7(ctx: &Ctx<'_>, out: &mut Out) {
    let mut check = |path: String, at: Option<jiff::Timestamp>| {
        if at.is_some_and(|at| at.duration_since(ctx.now) > SKEW) {
            let text = format!("{path} lies in the future.");
            out.fail(
                Finding::new("EVID_CLOCK", text)
                    .path(path)
                    .want(ctx.now.to_string())
                    .saw(at.map(|t| t.to_string())),
            );
        }
    };
    for (kind, document) in &ctx.documents {
        check(
            format!("{kind}.captured_at"),
            document.get("captured_at").and_then(names::time),
        );
        check(
            format!("{kind}.answered_at"),
            document.get("answered_at").and_then(names::time),
        );
    }
    check("live.captured_at".into(), ctx.live.captured_at);
    let planned = ctx
        .plan()
        .and_then(|p| p.timestamp.as_deref())
        .and_then(names::time_text);
    check("plan.timestamp".into(), planned);
}

fn missing(path: &str, text: &str) -> Finding {
    Finding::new(
        "DECISION_MISSING",
        format!("The decision {path} is missing. {text}"),
    )
    .path(path)
}

/// IN-8: decisions (2.10).
fn in_8(ctx: &Ctx<'_>, out: &mut Out) {
    let decisions = ctx.decisions.as_ref();
    if let (Some(validation), Some(decisions)) = (&ctx.m.validation, decisions) {
        for (key, copy) in [
            ("validation_record", &validation.decision),
            ("provenance", &validation.provenance),
        ] {
            if let (Some(a), Some(b)) = (copy.as_deref(), decisions.text(key))
                && a != b
            {
                let text = format!("The manifest's copy of {key} differs from the decisions file.");
                out.fail(Finding::new("DECISION_INVALID", text).path(key).want(b).saw(a));
            }
        }
    }
    if !ctx.m.has_custom_domain() && matches!(ctx.phase, Rebuild | Ready) {
        match decisions.and_then(|d| d.text("new_host")) {
            None => out.fail(missing(
                "new_host",
                "Without a custom domain the new name must be declared.",
            )),
            Some(name) if ctx.m.new_host.as_deref().is_some_and(|m| names::dns_eq(m, name)) => {}
            Some(name) => {
                let text = "The decided new_host is not the manifest's.";
                let want = ctx.m.new_host.clone().unwrap_or_default();
                out.fail(
                    Finding::new("DECISION_INVALID", text)
                        .path("new_host")
                        .want(want)
                        .saw(name),
                );
            }
        }
    }
    if WORKER_PHASES.contains(&ctx.phase) {
        background_work(ctx, out);
    }
    if ctx.phase == Ready {
        let path = decisions.and_then(|d| d.text("safe_path.path"));
        let status = decisions
            .and_then(|d| super::super::json::at(&d.0, "safe_path.status"))
            .and_then(Value::as_i64);
        match (path, status) {
            (Some(path), Some(status)) if path.starts_with('/') && (100..600).contains(&status) => {}
            (None, None) => out.fail(missing(
                "safe_path",
                "Say which path answers with which status without side effects.",
            )),
            _ => {
                let text = "safe_path must have a path that starts with / and a status.";
                out.fail(Finding::new("DECISION_INVALID", text).path("safe_path"));
            }
        }
    }
    if ctx.phase == PrepareAlb {
        match decisions.and_then(|d| d.text("alb.mode")) {
            Some("shared") => {}
            Some(other) => {
                let text = "prepare-alb is only for a shared load balancer.";
                out.fail(
                    Finding::new("DECISION_INVALID", text)
                        .path("alb.mode")
                        .want("shared")
                        .saw(other),
                );
            }
            None => out.fail(missing(
                "alb",
                "Say whether the load balancer is dedicated or shared.",
            )),
        }
        if decisions
            .and_then(|d| d.0.get("idle_timeout"))
            .and_then(Value::as_i64)
            .is_none()
        {
            out.fail(missing(
                "idle_timeout",
                "Say which idle time-out the shared load balancer gets, in seconds.",
            ));
        }
    }
    let egress = ctx.state_m5a.as_ref().and_then(|s| {
        s.first_text(
            "aws_apprunner_service",
            "network_configuration.0.egress_configuration.0.egress_type",
        )
    });
    if ctx.phase == Created
        && egress.as_deref() == Some("DEFAULT")
        && decisions
            .and_then(|d| d.0.get("egress"))
            .is_none_or(Value::is_null)
    {
        out.fail(missing(
            "egress",
            "App Runner used its default egress: say which subnets the tasks use.",
        ));
    }
}

fn background_work(ctx: &Ctx<'_>, out: &mut Out) {
    let decided = match ctx.decisions.as_ref().map(|d| d.worker()) {
        None | Some(Ok(None)) => {
            out.fail(missing(
                "background_work",
                "Say how background work is switched, or that there is none.",
            ));
            return;
        }
        Some(Ok(Some(worker))) => worker,
        Some(Err(faults)) => {
            for Fault { path, what } in faults {
                out.fail(Finding::new("DECISION_INVALID", format!("The decision {path} {what}.")).path(path));
            }
            return;
        }
    };
    if !decided.switch {
        let text = "With background_work none there is nothing to switch: this phase does not exist.";
        out.fail(
            Finding::new("DECISION_INVALID", text)
                .path("background_work.mode")
                .want("switch")
                .saw("none"),
        );
    }
    let same =
        |a: &Worker, b: &Worker| (a.switch, &a.env, &a.off, &a.on) == (b.switch, &b.env, &b.off, &b.on);
    match &ctx.m.worker {
        Some(worker) if same(worker, &decided) => {}
        Some(_) => {
            let text = "The manifest's worker is not what was decided.";
            out.fail(Finding::new("DECISION_INVALID", text).path("background_work"));
        }
        None => out.fail(Finding::new("MANIFEST_INVALID", "The manifest has no worker.").path("worker")),
    }
}

/// IN-9: the run's record carries the hash of the binary plan.
fn in_9(ctx: &Ctx<'_>, out: &mut Out) {
    if ctx.phase == Steady {
        return;
    }
    match (&ctx.plan_file_sha256, ctx.has_record) {
        (Some(hash), _) if hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {}
        (_, false) => out.skip(),
        _ => {
            let text = "The run's record has no SHA-256 of the binary plan file, so what is applied may be another plan.";
            out.fail(Finding::new("PLAN_NOT_BOUND", text).path("plan_file_sha256"));
        }
    }
}

/// IN-10: the plan is young, and not older than its evidence.
fn in_10(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    let Some(at) = plan.timestamp.as_deref().and_then(names::time_text) else {
        out.fail(Finding::new("PLAN_STALE", "The plan does not say when it was made.").path("timestamp"));
        return;
    };
    let age = ctx.now.duration_since(at);
    if age > ctx.plan_max_age {
        let text = format!(
            "The plan is {} old; it may be {} old.",
            hours(age),
            hours(ctx.plan_max_age)
        );
        out.fail(
            Finding::new("PLAN_STALE", text)
                .path("timestamp")
                .saw(at.to_string()),
        );
    }
    let rests: &[&str] = match (ctx.phase, ctx.use_) {
        (Rebuild, _) | (Import, Some("2b")) => &["cert_requested"],
        (WorkerOn, _) if !ctx.rollback => &["taskdef_on"],
        (TaskdefOff, _) => &["live_revision"],
        _ => &[],
    };
    for kind in rests {
        let captured = ctx
            .documents
            .get(kind)
            .and_then(|d| d.get("captured_at"))
            .and_then(names::time);
        // Two clocks: the operator's and the gate's.
        if captured.is_some_and(|captured| captured.duration_since(at) > SKEW) {
            let text = format!("The plan is older than {kind}, which it rests on.");
            out.fail(Finding::new("PLAN_STALE", text).path(*kind).saw(at.to_string()));
        }
    }
}

/// 2.11 row 12: a plan phase without an entry.
fn man_12(ctx: &Ctx<'_>, out: &mut Out) {
    if (ctx.phase, ctx.use_) == (Import, Some("2b")) {
        return;
    }
    let key = ctx.key();
    match ctx.entry() {
        None => {
            let text = format!("The manifest has no entry phases.{key}, so nothing of this plan is allowed.");
            out.fail(Finding::new("MANIFEST_INVALID", text).path(format!("phases.{key}")));
        }
        Some(entry) => {
            if let Some(root) = entry.root.as_deref()
                && root != ctx.root()
            {
                let text = format!("The manifest puts {key} into another root.");
                let finding = Finding::new("MANIFEST_INVALID", text).path(format!("phases.{key}.root"));
                out.fail(finding.want(ctx.root()).saw(root));
            }
            if entry.addresses.is_none() && ctx.phase != RollbackRebuild {
                let text = "Only rollback-rebuild may say all-in-state.";
                out.fail(Finding::new("MANIFEST_INVALID", text).path(format!("phases.{key}.addresses")));
            }
        }
    }
}

/// ORD-1.
fn ord_1(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(state) = &ctx.state_rebuild else { return };
    if !state.has(&ctx.m.cert_address) {
        let text = "The certificate is not in the infra-rebuild state: apply cert-request first.";
        out.fail(Finding::new("ORDER_CERT_NOT_APPLIED", text).at(ctx.m.cert_address.as_str()));
    }
}

fn stage_hash_matches(ctx: &Ctx<'_>) -> Option<bool> {
    let named = ctx.m.evidence.get("cert_requested")?;
    Some(
        ctx.hashes
            .get("cert_requested")
            .is_some_and(|sha| sha.eq_ignore_ascii_case(named)),
    )
}

/// ORD-2.
fn ord_2(ctx: &Ctx<'_>, out: &mut Out) {
    if ctx.phase == Import && ctx.use_ != Some("2b") {
        return;
    }
    let text = match stage_hash_matches(ctx) {
        Some(true) => return,
        Some(false) => "The manifest was not generated from this cert-requested.json.",
        None => "The manifest does not name cert-requested.json: generate the rebuild stage first.",
    };
    out.fail(Finding::new("ORDER_STAGE_NOT_GENERATED", text).path("evidence.cert_requested"));
}

/// ORD-3.
fn ord_3(ctx: &Ctx<'_>, out: &mut Out) {
    if ctx.use_ != Some("2b") {
        return;
    }
    if ctx.entry().is_none() || stage_hash_matches(ctx).is_none() {
        let text = "2b comes after the rebuild stage, which writes its manifest entry and import block.";
        out.fail(Finding::new("ORDER_2B_BEFORE_STAGE", text).path("phases.import:2b"));
    }
}

/// ORD-4.
fn ord_4(ctx: &Ctx<'_>, out: &mut Out) {
    let import = ctx.decisions.as_ref().and_then(|d| d.text("validation_record")) == Some("import");
    if ctx.outcome() != Some("unowned") || !import {
        return;
    }
    let Some(state) = &ctx.state_m5a else {
        let text = "Whether 2b is applied can't be told without the M5a state.";
        out.fail(Finding::new("EVID_MISSING", text).path("state_m5a"));
        return;
    };
    let entry = ctx.m.phases.get("import:2b");
    let addresses: Vec<&str> = match entry.and_then(|e| e.addresses.as_ref()) {
        Some(map) => map.keys().map(String::as_str).collect(),
        None => vec![ctx.validation_address()],
    };
    for address in addresses {
        if !state.has(address) {
            let text = "The validation record is not in the M5a state yet: apply import 2b before step 3.";
            out.fail(Finding::new("ORDER_2B_NOT_APPLIED", text).at(address));
        }
    }
}

/// The verify whose PASS a mutation needs (ORD-5, 1.5), and whether an older pass will do.
fn prerequisite(ctx: &Ctx<'_>) -> Option<(&'static str, Option<bool>)> {
    let forward = !ctx.rollback;
    Some(match (ctx.phase, ctx.use_) {
        (Prepare, _) | (CertRequest, _) if forward => ("pre-create", None),
        (Rebuild, _) => ("cert-requested", None),
        (Start, _) => ("created", None),
        (DnsBatch, Some("convert")) | (Import, Some("7a")) => ("ready", None),
        (Switch, _) if forward => ("ready", None),
        (Cutover, _) if forward => ("shift", None),
        (WorkerOff, _) if forward => ("taskdef-on-live", None),
        (WorkerOff, _) => ("worker-on-live", Some(true)),
        (WorkerOn, _) if forward => ("worker-off-live", Some(false)),
        (TaskdefOff, _) => ("live-revision", None),
        _ => return None,
    })
}

/// ORD-5.
fn ord_5(ctx: &Ctx<'_>, out: &mut Out) {
    // WO-2 and WO-6 carry the same demand under their own ids.
    if ctx.phase == WorkerOff {
        return;
    }
    require_prior(ctx, out);
}

/// The demand of ORD-5, for the phase at hand.
pub(super) fn require_prior(ctx: &Ctx<'_>, out: &mut Out) {
    let Some((phase, rollback)) = prerequisite(ctx) else {
        return;
    };
    if !ctx.knows_order() {
        out.skip();
        return;
    }
    let text = match ctx.prior_of(phase, None, rollback) {
        None => format!("This step needs a PASS of {phase} in this run, and there is none."),
        Some(prior) if !prior.passed => format!("The last {phase} of this run did not pass."),
        Some(prior) if prior.expires_at.is_none_or(|end| end <= ctx.now) && !already_applied(ctx) => {
            format!("The PASS of {phase} has expired: run it again.")
        }
        Some(prior) => {
            let current = prior.manifest_sha256.as_deref().is_none_or(|sha| {
                sha == ctx.manifest_sha256 || ctx.m.previous_sha256.as_deref() == Some(sha)
            });
            if current {
                return;
            }
            format!("The PASS of {phase} was given for another manifest.")
        }
    };
    out.fail(Finding::new("ORDER_PREREQUISITE", text).path(phase));
}

/// The 7a import follows a batch that was applied on the strength of `ready`; that step stays satisfied (2.11 row 14).
fn already_applied(ctx: &Ctx<'_>) -> bool {
    (ctx.phase, ctx.use_) == (Import, Some("7a"))
        && ctx
            .prior_of("dns-batch", Some("convert"), None)
            .is_some_and(|p| p.passed)
}

/// ORD-6.
fn ord_6(ctx: &Ctx<'_>, out: &mut Out) {
    if ctx.phase == Steady && ctx.root() != "m5a" {
        return;
    }
    if !ctx.knows_order() {
        out.skip();
        return;
    }
    for (batch, import) in [("convert", "7a"), ("revert", "7a-revert")] {
        let Some(opened) = ctx.prior_of("dns-batch", Some(batch), None).filter(|p| p.passed) else {
            continue;
        };
        let other = if batch == "convert" { "revert" } else { "convert" };
        let undone = ctx
            .prior_of("dns-batch", Some(other), None)
            .is_some_and(|p| p.passed && p.checked_at > opened.checked_at);
        let closed = ctx.prior.iter().any(|p| {
            p.phase == "import"
                && p.use_.as_deref() == Some(import)
                && p.passed
                && p.checked_at > opened.checked_at
        });
        if !closed && !undone && (ctx.phase, ctx.use_) != (Import, Some(import)) {
            let text =
                format!("The {batch} batch is done and its {import} import is not: finish that first.");
            out.fail(Finding::new("ORDER_CONVERT_OPEN", text).path(format!("import:{import}")));
        }
    }
}
