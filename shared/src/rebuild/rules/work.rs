//! Background work, steady, state (spec 2.9).

use jiff::Timestamp;
use serde_json::{Value, json};

use super::build::{self, switched};
use super::{Rule, rule};
use crate::rebuild::decide::Ctx;
use crate::rebuild::inputs::Worker;
use crate::rebuild::json as j;
use crate::rebuild::live::Gap;
use crate::rebuild::names;
use crate::rebuild::phase::Phase;
use crate::rebuild::plan::{Action, Change};
use crate::rebuild::verdict::{Finding, HIDDEN, Out};

use Phase::*;

const ON: &[Phase] = &[TaskdefOn];
const OFF: &[Phase] = &[TaskdefOff];
const WORKER_OFF: &[Phase] = &[WorkerOff];
const WORKER_OFF_LIVE: &[Phase] = &[WorkerOffLive];
const WORKER_ON: &[Phase] = &[WorkerOn];

/// Where App Runner keeps the environment, in the provider's schema.
pub(super) const APPRUNNER_ENV: &str =
    "source_configuration.0.image_repository.0.image_configuration.0.runtime_environment_variables";
const APPRUNNER_IMAGE: &str = "source_configuration.0.image_repository.0.image_identifier";
const LIVE_ENV: &str = "SourceConfiguration.ImageRepository.ImageConfiguration.RuntimeEnvironmentVariables";

pub(super) const RULES: &[Rule] = &[
    rule(
        "TD-1",
        ON,
        &["ADDR_UNEXPECTED", "ADDR_MISSING"],
        "The on revision is created and nothing else.",
        td_1,
    ),
    rule(
        "TD-2",
        ON,
        &["TD_DIFF", "TD_ON_VALUE", "TD_IMAGE"],
        "It equals the off revision except for the switch, which has the on value.",
        td_2,
    ),
    rule("TD-3", ON, &["TD_SKIP_DESTROY"], "It has skip_destroy.", td_3),
    rule(
        "TD-4",
        &[TaskdefOn, TaskdefOff],
        &["TD_TOUCHES_SERVICE", "ATTR_UNKNOWN"],
        "The service is not touched.",
        td_4,
    ),
    rule(
        "TD-5",
        &[TaskdefOn, TaskdefOff],
        &["ATTR_UNKNOWN"],
        "Its container definitions are known.",
        td_5,
    ),
    rule(
        "TD-6",
        ON,
        &["MANIFEST_FILE_HASH"],
        "The staged file is the one that the manifest names.",
        td_6,
    ),
    rule(
        "TD-7",
        &[TaskdefOnLive, TaskdefOffLive],
        &[
            "TD_NOT_ACTIVE",
            "TD_DIFF",
            "TD_IMAGE",
            "TD_ON_VALUE",
            "TD_OFF_VALUE",
        ],
        "The registered revision is active and differs from the running one only in the switch.",
        td_7,
    ),
    rule(
        "WO-1",
        WORKER_OFF,
        &["WORKER_OFF_ATTR", "WORKER_OFF_VALUE"],
        "One in-place update of the App Runner service changes the switch and nothing else.",
        wo_1,
    ),
    rule(
        "WO-2",
        WORKER_OFF,
        &["ORDER_PREREQUISITE"],
        "8a is verified; for the rollback, the reverse of 8c is.",
        wo_2,
    ),
    rule(
        "WO-3",
        WORKER_OFF,
        &["IMAGE_STATE_LIVE_DIFFER"],
        "The update resends the pinned image.",
        wo_3,
    ),
    rule(
        "WO-4",
        WORKER_OFF_LIVE,
        &[
            "OPERATION_NOT_SUCCEEDED",
            "OPERATION_ROLLED_BACK",
            "OPERATION_PENDING",
            "OPERATION_BEFORE_PLAN",
            "APPRUNNER_STATUS",
            "WORKER_OFF_LIVE",
        ],
        "App Runner's update succeeded after the plan, and the live switch has its value.",
        wo_4,
    ),
    rule(
        "WO-5",
        WORKER_OFF_LIVE,
        &["IDLE_EVIDENCE_MISSING"],
        "After it, background work is proven idle.",
        wo_5,
    ),
    rule(
        "WN-1",
        WORKER_ON,
        &[
            "WORKER_ON_ATTR",
            "ATTR_BEFORE_MISMATCH",
            "ATTR_AFTER_MISMATCH",
            "ATTR_UNKNOWN",
        ],
        "Only the service's task definition changes, from the live revision to the literal target.",
        wn_1,
    ),
    rule(
        "WN-2",
        WORKER_ON,
        &["WORKER_ON_NOT_LITERAL"],
        "In the configuration the value is a constant.",
        wn_2,
    ),
    rule(
        "WN-3",
        &[WorkerOnLive],
        &[
            "ECS_DEPLOYMENT_FAILED",
            "ECS_DEPLOYMENT_PENDING",
            "WORKER_ON_LIVE",
        ],
        "The deployment is completed and the target revision runs.",
        wn_3,
    ),
    rule(
        "WN-4",
        WORKER_ON,
        &["TD_NOT_ACTIVE"],
        "The target revision is active.",
        wn_4,
    ),
    rule(
        "TO-1",
        &[LiveRevision],
        &["IMAGE_NOT_DIGEST", "TD_NOT_ACTIVE"],
        "The live revision is recorded before any worker change.",
        to_1,
    ),
    rule(
        "TO-2",
        OFF,
        &["LIVE_REVISION_MISMATCH"],
        "The recorded revision is the live one.",
        to_2,
    ),
    rule(
        "TO-3",
        OFF,
        &[
            "TD_DIFF",
            "TD_OFF_VALUE",
            "TD_IMAGE",
            "TD_SKIP_DESTROY",
            "ADDR_UNEXPECTED",
            "ADDR_MISSING",
        ],
        "Only off_live is created: the live revision with the off value.",
        to_3,
    ),
    rule(
        "TO-4",
        OFF,
        &["TASKDEF_OFF_NOT_NEEDED"],
        "It is not used while the on revision is live.",
        to_4,
    ),
    rule(
        "ST-1",
        &[Steady],
        &["STEADY_CHANGES"],
        "Nothing changes and nothing is imported.",
        nothing_changes,
    ),
    rule(
        "ST-2",
        &[Steady, VerifyHandoff],
        &["STEADY_IDENTITY", "ADDR_MISSING", "MANIFEST_INVALID"],
        "Every address has the manifest's physical id.",
        st_2,
    ),
    rule(
        "IM-12",
        &[State],
        &["STATE_STILL_LISTS", "STATE_MISSING"],
        "The state holds what was imported and no longer what was dropped.",
        im_12,
    ),
];

// ---------------------------------------------------------------------------------------------- task definitions

/// The address that the phase creates.
fn created_address(ctx: &Ctx<'_>) -> String {
    let listed = ctx.entry().and_then(|e| {
        let mut all = e
            .addresses
            .iter()
            .flatten()
            .filter(|(a, g)| g.action == "create" && a.starts_with("aws_ecs_task_definition."));
        all.next().map(|(address, _)| address.clone())
    });
    let default = if ctx.phase == TaskdefOn { "on" } else { "off_live" };
    listed.unwrap_or_else(|| format!("aws_ecs_task_definition.{default}"))
}

fn created<'c>(ctx: &'c Ctx<'_>) -> Option<&'c Change<'c>> {
    ctx.plan()?
        .change(&created_address(ctx))
        .filter(|c| c.action == Action::Create)
}

/// Exactly one create, of the phase's revision.
fn creates_only(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    let address = created_address(ctx);
    if created(ctx).is_none() {
        let text = "The revision is not created.";
        out.fail(
            Finding::new("ADDR_MISSING", text)
                .at(address.as_str())
                .want("create"),
        );
    }
    for change in plan
        .changes
        .iter()
        .filter(|c| (c.action != Action::NoOp || c.is_import()) && *c.address != *address)
    {
        let text = "Registering a revision touches nothing else.";
        out.fail(
            Finding::new("ADDR_UNEXPECTED", text)
                .at(&*change.address)
                .saw(change.action.as_str()),
        );
    }
}

fn td_1(ctx: &Ctx<'_>, out: &mut Out) {
    creates_only(ctx, out);
}

/// Task-level fields that two revisions must share (TD-2), by plan name and by name in the API.
const TASK_FIELDS: [(&str, &str); 13] = [
    ("cpu", "cpu"),
    ("memory", "memory"),
    ("family", "family"),
    ("task_role_arn", "taskRoleArn"),
    ("execution_role_arn", "executionRoleArn"),
    ("network_mode", "networkMode"),
    ("requires_compatibilities", "requiresCompatibilities"),
    ("ipc_mode", "ipcMode"),
    ("pid_mode", "pidMode"),
    ("runtime_platform", "runtimePlatform"),
    ("volume", "volumes"),
    ("placement_constraints", "placementConstraints"),
    ("proxy_configuration", "proxyConfiguration"),
];

/// A revision in one form, whether from a plan or from the API.
struct Revision {
    containers: Option<Value>,
    fields: Vec<(&'static str, Value)>,
}

/// A value of the API in the provider's form: one-element lists and snake case for blocks.
fn block(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut out = serde_json::Map::new();
            for (key, item) in map {
                let mut snake = String::new();
                for c in key.chars() {
                    if c.is_ascii_uppercase() {
                        snake.push('_');
                    }
                    snake.push(c.to_ascii_lowercase());
                }
                out.insert(snake, item.clone());
            }
            Value::Array(vec![Value::Object(out)])
        }
        other => other.clone(),
    }
}

fn of_plan(value: &Value) -> Revision {
    let containers = value
        .get("container_definitions")
        .and_then(j::document)
        .and_then(|d| j::containers(&d).ok());
    let fields = TASK_FIELDS
        .iter()
        .map(|(plan, _)| (*plan, value.get(*plan).cloned().unwrap_or(Value::Null)));
    Revision {
        containers,
        fields: fields.collect(),
    }
}

fn of_api(value: &Value) -> Revision {
    let containers = value
        .get("containerDefinitions")
        .and_then(|d| j::containers(d).ok());
    let fields = TASK_FIELDS
        .iter()
        .map(|(plan, api)| (*plan, value.get(*api).map(block).unwrap_or(Value::Null)));
    Revision {
        containers,
        fields: fields.collect(),
    }
}

/// The containers without the switch.
fn without_switch(containers: &Value, env: &str) -> Value {
    let mut containers = containers.clone();
    for container in containers.as_array_mut().into_iter().flatten() {
        if let Some(map) = container.get_mut("environment").and_then(Value::as_object_mut) {
            map.shift_remove(env);
        }
    }
    j::without_empty(&containers)
}

/// What differs between two revisions besides the switch. Values are never shown.
fn differences(a: &Revision, b: &Revision, env: &str, loose: bool) -> Vec<String> {
    let mut out = Vec::new();
    match (&a.containers, &b.containers) {
        (Some(x), Some(y)) => {
            let (x, y) = (without_switch(x, env), without_switch(y, env));
            let changed = j::changed_paths(&x, &y, &Value::Null);
            out.extend(changed.into_iter().map(|p| format!("container_definitions.{p}")));
        }
        _ => out.push("container_definitions".into()),
    }
    for ((name, x), (_, y)) in a.fields.iter().zip(&b.fields) {
        // The shapes of these blocks differ between plan and API beyond renaming; only presence is compared.
        if loose && matches!(*name, "volume" | "placement_constraints" | "proxy_configuration") {
            if j::is_empty(x) != j::is_empty(y) {
                out.push((*name).into());
            }
            continue;
        }
        let same = j::is_empty(x) && j::is_empty(y)
            || j::equal(&j::without_empty(x), &j::without_empty(y))
            || matches!((x.as_array(), y.as_array()), (Some(x), Some(y)) if j::same_set(x, y, &j::equal));
        if !same {
            out.push((*name).into());
        }
    }
    out
}

fn report_differences(list: Vec<String>, address: &str, against: &str, out: &mut Out) {
    for path in list {
        let text = format!("The revision differs from {against} in more than the switch.");
        out.fail(
            Finding::new("TD_DIFF", text)
                .at(address)
                .path(path)
                .want(HIDDEN)
                .saw(HIDDEN),
        );
    }
}

/// Judges a created revision against another one.
fn compare_created(
    ctx: &Ctx<'_>,
    change: &Change<'_>,
    other: &Revision,
    against: &str,
    on: bool,
    loose: bool,
    out: &mut Out,
) {
    let Some(worker) = switched(ctx) else { return }; // IN-8
    for (plan, _) in TASK_FIELDS {
        if !change.known(plan)
            && !j::is_empty(
                &other
                    .fields
                    .iter()
                    .find(|(n, _)| *n == plan)
                    .map_or(Value::Null, |f| f.1.clone()),
            )
        {
            let text = "The value is known only after apply, so it can't be compared.";
            out.fail(Finding::new("TD_DIFF", text).at(&*change.address).path(plan));
        }
    }
    if !change.known("container_definitions") {
        return; // TD-5
    }
    let mine = of_plan(change.after());
    let unknown = |path: &str| !change.known(path);
    let list = differences(other, &mine, &worker.env, loose)
        .into_iter()
        .filter(|p| !unknown(p))
        .collect();
    report_differences(list, &change.address, against, out);
    let definitions = j::document(change.a("container_definitions"));
    build::judge_containers(
        definitions.as_ref(),
        ctx.m.image.as_deref(),
        Some((worker, on)),
        &change.address,
        out,
    );
}

fn td_2(ctx: &Ctx<'_>, out: &mut Out) {
    let (Some(plan), Some(change)) = (ctx.plan(), created(ctx)) else {
        return;
    };
    let address = &*change.address;
    let off = plan
        .of_type("aws_ecs_task_definition")
        .find(|c| c.name.as_deref() == Some("off") && c.action == Action::NoOp);
    let Some(off) = off else {
        let text = "The plan has no off revision to compare with.";
        out.fail(
            Finding::new("TD_DIFF", text)
                .at(address)
                .want("aws_ecs_task_definition.off"),
        );
        return;
    };
    compare_created(ctx, change, &of_plan(off.before()), "off", true, false, out);
}

fn skip_destroy(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(change) = created(ctx) else { return };
    let seen = change.a("skip_destroy");
    if !change.known("skip_destroy") || *seen != Value::Bool(true) {
        let text = "Without skip_destroy the rollback deregisters the revision.";
        let finding = Finding::new("TD_SKIP_DESTROY", text)
            .at(&*change.address)
            .path("skip_destroy");
        out.fail(finding.want(true).saw(seen.clone()));
    }
}

fn td_3(ctx: &Ctx<'_>, out: &mut Out) {
    skip_destroy(ctx, out);
}

fn td_4(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in plan
        .of_type("aws_ecs_service")
        .filter(|c| c.action != Action::NoOp || c.is_import())
    {
        let text = "Registering a revision must not touch the service.";
        let finding = Finding::new("TD_TOUCHES_SERVICE", text)
            .at(&*change.address)
            .saw(change.action.as_str());
        out.fail(finding.path(change.changed().join(", ")));
        if !change.known("task_definition") {
            let text = "The service's task definition is known only after apply.";
            out.fail(
                Finding::new("ATTR_UNKNOWN", text)
                    .at(&*change.address)
                    .path("task_definition"),
            );
        }
    }
}

fn td_5(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(change) = created(ctx) else { return };
    if !change.known("container_definitions") {
        let text = "The container definitions are known only after apply.";
        out.fail(
            Finding::new("ATTR_UNKNOWN", text)
                .at(&*change.address)
                .path("container_definitions"),
        );
    }
}

fn td_6(ctx: &Ctx<'_>, out: &mut Out) {
    if ctx.files.is_some() && !ctx.m.files.keys().any(|name| name.ends_with("taskdef-on.tf")) {
        let text = "The manifest does not name staged/taskdef-on.tf, which carries the on revision.";
        out.fail(Finding::new("MANIFEST_FILE_HASH", text).path("files.staged/taskdef-on.tf"));
    }
}

/// The revision that the state holds under a resource name.
fn revision_in_state(ctx: &Ctx<'_>, name: &str) -> Option<String> {
    let state = ctx.state_rebuild.as_ref()?;
    let address = format!("aws_ecs_task_definition.{name}");
    j::str_at(state.values(&address), "arn").map(str::to_owned)
}

fn td_7(ctx: &Ctx<'_>, out: &mut Out) {
    let on = ctx.phase == TaskdefOnLive;
    let name = if on { "on" } else { "off_live" };
    let Some(arn) = revision_in_state(ctx, name) else {
        let text = format!("The infra-rebuild state does not hold the {name} revision with its ARN.");
        out.fail(Finding::new("EVID_MISSING", text).path("state_rebuild"));
        return;
    };
    let Some(definition) = out.read(build::task_definition(ctx, &arn)) else {
        return;
    };
    build::active(definition, out);
    let Some(worker) = switched(ctx) else { return };
    build::judge_containers(
        definition.get("containerDefinitions"),
        ctx.m.image.as_deref(),
        Some((worker, on)),
        &arn,
        out,
    );
    let Some(service) = build::ecs_service(ctx, out) else {
        return;
    };
    let running = j::str_at(service, "taskDefinition").unwrap_or("");
    let Some(other) = out.read(build::task_definition(ctx, running)) else {
        return;
    };
    let list = differences(&of_api(other), &of_api(definition), &worker.env, false);
    report_differences(list, &arn, "the running revision", out);
    let kind = if on { "taskdef-on" } else { "taskdef-off" };
    out.evidence = Some(json!({
        "schema": 1, "kind": kind, "run_id": ctx.run_id, "captured_at": ctx.now.to_string(),
        "account": ctx.m.account, "region": ctx.m.region, "manifest_sha256": ctx.manifest_sha256,
        "arn": arn, "family": definition.get("family"), "revision": definition.get("revision"),
    }));
}

// ---------------------------------------------------------------------------------------------- worker-off

fn wo_1(ctx: &Ctx<'_>, out: &mut Out) {
    let (Some(plan), Some(worker)) = (ctx.plan(), switched(ctx)) else {
        return;
    };
    let updates: Vec<&Change<'_>> = plan
        .changes
        .iter()
        .filter(|c| c.action != Action::NoOp || c.is_import())
        .collect();
    let [change] = updates.as_slice() else {
        let text = format!(
            "{} resources change; exactly the App Runner service must.",
            updates.len()
        );
        out.fail(Finding::new("WORKER_OFF_ATTR", text).want(1).saw(updates.len()));
        return;
    };
    if change.kind() != "aws_apprunner_service" || change.action != Action::Update {
        let text = "What changes is not the App Runner service in place.";
        out.fail(
            Finding::new("WORKER_OFF_ATTR", text)
                .at(&*change.address)
                .saw(change.action.as_str()),
        );
        return;
    }
    let path = format!("{APPRUNNER_ENV}.{}", worker.env);
    for changed in change.changed().iter().filter(|p| **p != path) {
        let text = "Only the switch may change: the update redeploys App Runner with everything in it.";
        let finding = Finding::new("WORKER_OFF_ATTR", text)
            .at(&*change.address)
            .path(changed.as_str());
        out.fail(super::cover::show_change(finding, change, changed));
    }
    let (from, to) = if ctx.rollback {
        (&worker.off, &worker.on)
    } else {
        (&worker.on, &worker.off)
    };
    let (before, after) = (change.b(&path).as_str(), change.a(&path).as_str());
    if !change.known(&path) || before != Some(from) || after != Some(to) {
        let text = format!("{} must go from {from:?} to {to:?}.", worker.env);
        out.fail(
            Finding::new("WORKER_OFF_VALUE", text)
                .at(&*change.address)
                .path(path)
                .want(to.as_str())
                .saw(safe(after, worker)),
        );
    }
}

/// A value of the switch, shown only where it is one of the declared two.
fn safe(value: Option<&str>, worker: &Worker) -> Value {
    match value {
        Some(v) if v == worker.on || v == worker.off => json!(v),
        Some(_) => json!(HIDDEN),
        None => Value::Null,
    }
}

fn wo_2(ctx: &Ctx<'_>, out: &mut Out) {
    super::input::require_prior(ctx, out);
}

fn wo_3(ctx: &Ctx<'_>, out: &mut Out) {
    for change in ctx
        .plan()
        .into_iter()
        .flat_map(|p| p.of_type("aws_apprunner_service"))
        .filter(|c| c.action == Action::Update)
    {
        let seen = change.b(APPRUNNER_IMAGE).as_str();
        if seen.is_none() || seen != ctx.m.image.as_deref() || !seen.is_some_and(names::is_digest) {
            let text = "The update would deploy another image than the pinned one.";
            let finding = Finding::new("IMAGE_STATE_LIVE_DIFFER", text)
                .at(&*change.address)
                .path(APPRUNNER_IMAGE);
            out.fail(finding.want(ctx.m.image.clone()).saw(seen));
        }
    }
}

/// When the plan of this step was made, as far as the record says.
fn planned_at(ctx: &Ctx<'_>) -> Option<Timestamp> {
    let prior = ctx
        .prior_of("worker-off", None, Some(ctx.rollback))
        .filter(|p| p.passed)?;
    prior
        .facts
        .get("plan_timestamp")
        .and_then(names::time)
        .or(prior.checked_at)
}

fn last_update<'c>(ctx: &'c Ctx<'_>, out: &mut Out) -> Option<Option<&'c Value>> {
    let list = out.read(super::handoff::operations(ctx))?;
    Some(
        list.into_iter()
            .find(|o| j::str_at(o, "Type") == Some("UPDATE_SERVICE")),
    )
}

fn wo_4(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(worker) = switched(ctx) else { return };
    match last_update(ctx, out) {
        None => {}
        Some(None) => {
            let text = "App Runner shows no update of the service.";
            out.fail(Finding::new("OPERATION_NOT_SUCCEEDED", text).path("OperationSummaryList"));
        }
        Some(Some(operation)) => {
            super::handoff::operation(operation, out);
            let started = operation.get("StartedAt").and_then(names::time);
            match planned_at(ctx) {
                Some(planned) if started.is_none_or(|at| at < planned) => {
                    let text =
                        "The latest update started before the plan was made: this step was not applied.";
                    let finding = Finding::new("OPERATION_BEFORE_PLAN", text).path("StartedAt");
                    out.fail(
                        finding
                            .want(planned.to_string())
                            .saw(started.map(|t| t.to_string())),
                    );
                }
                Some(_) => {}
                None if ctx.has_record => {
                    let text = "The run's record has no PASS of worker-off, so nothing was to be applied.";
                    out.fail(Finding::new("OPERATION_BEFORE_PLAN", text).path("prior"));
                }
                None => out.skip(),
            }
        }
    }
    let Some(service) = out.read(super::handoff::service(ctx)) else {
        return;
    };
    running(service, out);
    let want = if ctx.rollback { &worker.on } else { &worker.off };
    let seen = j::at(service, LIVE_ENV)
        .and_then(|e| e.get(&worker.env))
        .and_then(Value::as_str);
    if seen != Some(want) {
        let text = format!("The live value of {} is not the wanted one.", worker.env);
        out.fail(
            Finding::new("WORKER_OFF_LIVE", text)
                .path(worker.env.as_str())
                .want(want.as_str())
                .saw(safe(seen, worker)),
        );
    }
}

/// The App Runner service runs.
pub(super) fn running(service: &Value, out: &mut Out) {
    let seen = j::str_at(service, "Status");
    if seen != Some("RUNNING") {
        let text = "The App Runner service is not running.";
        out.fail(
            Finding::new("APPRUNNER_STATUS", text)
                .path("Status")
                .want("RUNNING")
                .saw(seen),
        );
    }
}

/// The idle evidence is an answer of the operator: the exit code of the idle check, or that the lock is held.
fn wo_5(ctx: &Ctx<'_>, out: &mut Out) {
    if ctx.rollback {
        return; // Work goes back to App Runner; ECS was proven idle by the reverse of 8c.
    }
    let Some(worker) = switched(ctx) else { return };
    let missing = |text: &str| Finding::new("IDLE_EVIDENCE_MISSING", text).path("answer");
    let Some(answer) = ctx.documents.get("answer") else {
        out.fail(missing(
            "Record the exit code of the idle check, or that the declared lock is held.",
        ));
        return;
    };
    let question = j::str_at(answer, "question").unwrap_or("");
    let confirmed = match question {
        "idle-check" => {
            worker_decl(ctx, worker).1.is_some() && answer.get("exit_code").and_then(Value::as_i64) == Some(0)
        }
        "lock" => worker_decl(ctx, worker).0.is_some() && j::str_at(answer, "answer") == Some("held"),
        _ => false,
    };
    if !confirmed {
        out.fail(
            missing(
                "The answer is no idle evidence: an idle check with exit code 0, or the declared lock held.",
            )
            .saw(question),
        );
        return;
    }
    if ctx.run_id.is_some() && j::str_at(answer, "run_id") != ctx.run_id.as_deref() {
        out.fail(missing("The idle evidence is of another run."));
    }
    let at = answer.get("answered_at").and_then(names::time);
    let ended = last_update(ctx, out)
        .flatten()
        .and_then(|o| o.get("EndedAt").and_then(names::time));
    match (at, ended) {
        (Some(at), Some(ended)) if at >= ended => {}
        (None, _) => out.fail(missing("The idle evidence does not say when it was taken.")),
        (_, None) => {} // The operation has not ended: WO-4's.
        _ => out.fail(missing(
            "The idle evidence is older than the end of App Runner's update.",
        )),
    }
}

/// Lock and idle check, from the decisions or the manifest.
fn worker_decl(ctx: &Ctx<'_>, worker: &Worker) -> (Option<String>, Option<String>) {
    let decided = ctx.decisions.as_ref().and_then(|d| d.worker().ok().flatten());
    match decided {
        Some(d) => (
            d.lock.or_else(|| worker.lock.clone()),
            d.idle_check.or_else(|| worker.idle_check.clone()),
        ),
        None => (worker.lock.clone(), worker.idle_check.clone()),
    }
}

// ---------------------------------------------------------------------------------------------- worker-on

fn document_arn(ctx: &Ctx<'_>, kind: &str) -> Option<String> {
    ctx.documents
        .get(kind)
        .and_then(|d| j::str_at(d, "arn"))
        .map(str::to_owned)
}

/// The revision that the service goes to: the on revision; with rollback, the twin of a later one, or off.
fn target_revision(ctx: &Ctx<'_>) -> Option<String> {
    if !ctx.rollback {
        return document_arn(ctx, "taskdef_on");
    }
    let planned = || {
        let off = ctx.plan()?.change("aws_ecs_task_definition.off")?;
        off.b("arn").as_str().map(str::to_owned)
    };
    document_arn(ctx, "taskdef_off")
        .or_else(planned)
        .or_else(|| revision_in_state(ctx, "off"))
}

fn wn_1(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    let changes: Vec<&Change<'_>> = plan
        .changes
        .iter()
        .filter(|c| c.action != Action::NoOp || c.is_import())
        .collect();
    for change in changes
        .iter()
        .filter(|c| c.kind() != "aws_ecs_service" || c.action != Action::Update)
    {
        let text = "Only the service may change, in place.";
        out.fail(
            Finding::new("WORKER_ON_ATTR", text)
                .at(&*change.address)
                .saw(change.action.as_str()),
        );
    }
    let services: Vec<&&Change<'_>> = changes.iter().filter(|c| c.kind() == "aws_ecs_service").collect();
    let [change] = services.as_slice() else {
        let text = format!("{} services change; one must.", services.len());
        out.fail(Finding::new("WORKER_ON_ATTR", text).want(1).saw(services.len()));
        return;
    };
    for path in change.changed().iter().filter(|p| *p != "task_definition") {
        let text = "Only the task definition may change.";
        let finding = Finding::new("WORKER_ON_ATTR", text)
            .at(&*change.address)
            .path(path.as_str());
        out.fail(super::cover::show_change(finding, change, path));
    }
    let finding = |code, text: &str| {
        Finding::new(code, text)
            .at(&*change.address)
            .path("task_definition")
    };
    let before = change.b("task_definition").as_str();
    if let Some(service) = build::ecs_service(ctx, out) {
        let live = j::str_at(service, "taskDefinition");
        if live.is_none() || live != before {
            let text = "The plan starts from another revision than the live one.";
            out.fail(finding("ATTR_BEFORE_MISMATCH", text).want(live).saw(before));
        }
    }
    if !ctx.rollback {
        // The live revision must be off itself, not something deployed meanwhile.
        let off = plan
            .change("aws_ecs_task_definition.off")
            .and_then(|c| c.b("arn").as_str());
        if off.is_some() && off != before {
            let text = "The service does not run the off revision.";
            out.fail(finding("ATTR_BEFORE_MISMATCH", text).want(off).saw(before));
        }
    }
    if !change.known("task_definition") {
        out.fail(finding(
            "ATTR_UNKNOWN",
            "The revision is known only after apply; it must be a literal ARN.",
        ));
        return;
    }
    let (want, after) = (target_revision(ctx), change.a("task_definition").as_str());
    if want.is_none() || want.as_deref() != after {
        let text = "The service would go to another revision than the verified one.";
        out.fail(finding("ATTR_AFTER_MISMATCH", text).want(want).saw(after));
    }
}

fn wn_2(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in plan
        .of_type("aws_ecs_service")
        .filter(|c| c.action == Action::Update)
    {
        let constant = plan
            .config(&change.address)
            .map(|c| c.expression("task_definition").clone())
            .unwrap_or(Value::Null);
        let literal = constant.get("constant_value").and_then(Value::as_str);
        if literal.is_none() || literal != change.a("task_definition").as_str() {
            let text = "In the configuration the task definition is a reference, not a literal ARN.";
            let finding = Finding::new("WORKER_ON_NOT_LITERAL", text)
                .at(&*change.address)
                .path("task_definition");
            out.fail(finding.saw(constant));
        }
    }
}

fn wn_3(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(service) = build::ecs_service(ctx, out) else {
        return;
    };
    build::deployment(service, out);
    let want = target_revision(ctx);
    let seen = j::str_at(service, "taskDefinition");
    let primary = build::primary(service).and_then(|d| j::str_at(d, "taskDefinition"));
    if want.is_none() || seen != want.as_deref() || primary.is_some_and(|p| Some(p) != want.as_deref()) {
        let text = "The service does not run the wanted revision.";
        out.fail(
            Finding::new("WORKER_ON_LIVE", text)
                .path("taskDefinition")
                .want(want)
                .saw(seen),
        );
    }
}

fn wn_4(ctx: &Ctx<'_>, out: &mut Out) {
    // Forward the target was verified by taskdef-on-live; the way back may be weeks later.
    let required = ctx.rollback || ctx.live.any("ecs:DescribeTaskDefinition");
    let Some(arn) = target_revision(ctx).filter(|_| required) else {
        return;
    };
    match build::task_definition(ctx, &arn) {
        Ok(definition) => build::active(definition, out),
        Err(Gap::Missing(_)) if !ctx.rollback => {}
        Err(gap) => out.gap(gap),
    }
}

// ---------------------------------------------------------------------------------------------- live-revision, taskdef-off

fn to_1(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(service) = build::ecs_service(ctx, out) else {
        return;
    };
    let arn = j::str_at(service, "taskDefinition").unwrap_or("");
    let Some(definition) = out.read(build::task_definition(ctx, arn)) else {
        return;
    };
    build::active(definition, out);
    let containers = definition
        .get("containerDefinitions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let images: Vec<&str> = containers.filter_map(|c| j::str_at(c, "image")).collect();
    let digest = images.iter().find(|i| names::is_digest(i));
    if digest.is_none() {
        let text = "The live revision runs a tag, which can move.";
        out.fail(Finding::new("IMAGE_NOT_DIGEST", text).at(arn).saw(json!(images)));
    }
    out.evidence = Some(json!({
        "schema": 1, "kind": "live-revision", "run_id": ctx.run_id, "captured_at": ctx.now.to_string(),
        "account": ctx.m.account, "region": ctx.m.region, "manifest_sha256": ctx.manifest_sha256,
        "arn": arn, "image": digest, "service_arn": j::str_at(service, "serviceArn"),
    }));
}

fn to_2(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(recorded) = document_arn(ctx, "live_revision") else {
        if ctx.documents.contains_key("live_revision") {
            out.fail(
                Finding::new("LIVE_REVISION_MISMATCH", "live-revision.json names no revision.")
                    .path("live_revision.arn"),
            );
        }
        return; // IN-6
    };
    let Some(service) = build::ecs_service(ctx, out) else {
        return;
    };
    let live = j::str_at(service, "taskDefinition");
    if live != Some(&recorded) {
        let text = "Another revision is live than the recorded one.";
        out.fail(
            Finding::new("LIVE_REVISION_MISMATCH", text)
                .path("live_revision.arn")
                .want(live)
                .saw(recorded),
        );
    }
}

fn to_3(ctx: &Ctx<'_>, out: &mut Out) {
    creates_only(ctx, out);
    skip_destroy(ctx, out);
    let Some(change) = created(ctx) else { return };
    let Some(arn) = document_arn(ctx, "live_revision") else {
        return;
    };
    let planned = ctx.plan().and_then(|p| {
        p.of_type("aws_ecs_task_definition")
            .find(|c| c.b("arn").as_str() == Some(&arn))
    });
    match (build::task_definition(ctx, &arn), planned) {
        (Ok(live), _) => compare_created(ctx, change, &of_api(live), "the live revision", false, true, out),
        // The state holds the live revision: what it registered can't change.
        (Err(Gap::Missing(_)), Some(planned)) => {
            compare_created(
                ctx,
                change,
                &of_plan(planned.before()),
                "the live revision",
                false,
                false,
                out,
            );
        }
        (Err(gap), _) => out.gap(gap),
    }
}

fn to_4(ctx: &Ctx<'_>, out: &mut Out) {
    let (live, on) = (
        document_arn(ctx, "live_revision"),
        document_arn(ctx, "taskdef_on"),
    );
    if live.is_some() && live == on {
        let text = "The live revision is on itself: go back to the existing off revision.";
        out.fail(Finding::new("TASKDEF_OFF_NOT_NEEDED", text).saw(live));
    }
}

// ---------------------------------------------------------------------------------------------- steady, state

/// ST-1; HO-4 for the hand-off.
pub(super) fn nothing_changes(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in plan
        .changes
        .iter()
        .filter(|c| c.action != Action::NoOp || c.is_import())
    {
        let what = if change.is_import() {
            "import"
        } else {
            change.action.as_str()
        };
        let paths = if change.action == Action::Update {
            change.changed().join(", ")
        } else {
            String::new()
        };
        let text = "The plan must change nothing.";
        out.fail(
            Finding::new("STEADY_CHANGES", text)
                .at(&*change.address)
                .path(paths)
                .want("no-op")
                .saw(what),
        );
    }
    if plan.applyable != Some(false) {
        let text = "Terraform says that there is something to apply.";
        out.fail(
            Finding::new("STEADY_CHANGES", text)
                .path("applyable")
                .want(false)
                .saw(plan.applyable),
        );
    }
}

fn st_2(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    let Some(gates) = ctx.entry().and_then(|e| e.addresses.as_ref()) else {
        if ctx.phase == VerifyHandoff {
            let text = "The manifest has no entry steady for the M5a root, so nothing proves its identity.";
            out.fail(Finding::new("MANIFEST_INVALID", text).path("phases.steady"));
        }
        return;
    };
    if gates.is_empty() {
        let text = "The manifest lists no address, so steady would prove nothing.";
        out.fail(Finding::new("MANIFEST_INVALID", text).path(format!("phases.{}.addresses", ctx.key())));
    }
    for (address, gate) in gates {
        let Some(change) = plan.change(address) else {
            let text = "The address is not in the plan.";
            out.fail(Finding::new("ADDR_MISSING", text).at(address).want("no-op"));
            continue;
        };
        let ids: Vec<_> = ["id", "arn"]
            .iter()
            .filter_map(|p| Some((*p, gate.gated.get(*p)?)))
            .collect();
        if ids.is_empty() {
            let text = "The manifest has no physical id of this address.";
            out.fail(Finding::new("STEADY_IDENTITY", text).at(address).path("id"));
        }
        for (path, gated) in ids {
            let want = gated
                .before
                .as_ref()
                .or(gated.after.as_ref())
                .unwrap_or(&Value::Null);
            let seen = change.b(path);
            if want.is_null() || !j::equal(want, seen) {
                let text = "Terraform manages another object than the manifest says.";
                let finding = Finding::new("STEADY_IDENTITY", text).at(address).path(path);
                out.fail(finding.want(want.clone()).saw(seen.clone()));
            }
        }
    }
}

fn im_12(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(use_) = ctx.use_ else { return };
    let own = ctx.m.phases.get(&format!("state:{use_}"));
    let import = match use_ {
        "present" => "import:2b",
        "absent" => "import:7a",
        "2b" => "import:2b",
        "7a" => "import:7a",
        _ => "import:7a-revert",
    };
    let Some(entry) = own.or_else(|| ctx.m.phases.get(import)) else {
        let text = format!("The manifest has no entry {import} to compare the state with.");
        out.fail(Finding::new("MANIFEST_INVALID", text).path(format!("phases.{import}")));
        return;
    };
    let state = match entry.root.as_deref() {
        Some("infra_rebuild") => ctx.state_rebuild.as_ref(),
        _ => ctx.state_m5a.as_ref(),
    };
    let Some(state) = state else {
        let given = if entry.root.as_deref() == Some("infra_rebuild") {
            "state_rebuild"
        } else {
            "state_m5a"
        };
        let text = format!("The state is needed: give {given}.");
        out.fail(Finding::new("EVID_MISSING", text).path(given));
        return;
    };
    for address in entry
        .addresses
        .iter()
        .flat_map(|map| map.keys())
        .filter(|a| !state.has(a))
    {
        let text = "The state does not hold the imported resource.";
        out.fail(Finding::new("STATE_MISSING", text).at(address));
    }
    for address in entry.forget.iter().filter(|a| state.has(a)) {
        let text = "The state still holds the dropped resource.";
        out.fail(Finding::new("STATE_STILL_LISTS", text).at(address));
    }
}
