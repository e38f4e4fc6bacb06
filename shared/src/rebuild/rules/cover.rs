//! Coverage: the plan does exactly what the manifest lists, to the leaf (spec 2.3, A-1 to A-11, D-1 to D-3).

use serde_json::Value;

use super::{Rule, rule};
use crate::rebuild::decide::Ctx;
use crate::rebuild::inputs::{Compare, Gate, Gated};
use crate::rebuild::json::{self, ContainerFault};
use crate::rebuild::phase::{PLANS, PLANS_AND_HANDOFF, Phase};
use crate::rebuild::plan::{Action, Change};
use crate::rebuild::verdict::{Finding, HIDDEN, Out};

use Phase::*;

pub(super) const RULES: &[Rule] = &[
    rule(
        "A-1",
        PLANS,
        &["ADDR_MISSING"],
        "Every address of the manifest is in the plan.",
        a_1,
    ),
    rule(
        "A-2",
        PLANS,
        &[
            "ADDR_UNEXPECTED",
            "ADDR_CREATE_OUTSIDE_MANIFEST",
            "ADDR_DELETE_OUTSIDE_MANIFEST",
            "ADDR_FORGET_OUTSIDE_MANIFEST",
            "ADDR_IMPORT_OUTSIDE_MANIFEST",
        ],
        "Nothing else has an action.",
        a_2,
    ),
    rule(
        "A-3",
        PLANS,
        &["ADDR_NOOP_NOT_IN_STATE"],
        "A no-op is of a resource that the root's state records.",
        a_3,
    ),
    rule(
        "A-4",
        PLANS,
        &["ACTION_NOT_ALLOWED"],
        "The action at each address is the listed one.",
        a_4,
    ),
    rule(
        "A-5",
        PLANS,
        &["ATTR_CHANGE_NOT_ALLOWED"],
        "An update changes allowed paths only.",
        a_5,
    ),
    rule(
        "A-6",
        PLANS,
        &["ATTR_BEFORE_MISMATCH", "ATTR_AFTER_MISMATCH"],
        "Each gated path has exactly the manifest's value before and after.",
        a_6,
    ),
    rule("A-7", PLANS, &["ATTR_UNKNOWN"], "No gated path is unknown.", a_7),
    rule(
        "A-11",
        PLANS,
        &["ENV_DUPLICATE_NAME"],
        "No container names an environment variable or secret twice.",
        a_11,
    ),
    rule(
        "D-1",
        PLANS,
        &["DRIFT_GATED_ATTRIBUTE"],
        "No drift on a gated path.",
        d_1,
    ),
    rule(
        "D-2",
        PLANS_AND_HANDOFF,
        &["DRIFT_DELETED"],
        "Nothing of the root was deleted outside Terraform.",
        d_2,
    ),
    rule(
        "D-3",
        PLANS_AND_HANDOFF,
        &["WARN_DRIFT"],
        "Other drift is reported.",
        d_3,
    ),
];

/// Addresses and gates of the phase; none where the manifest says all-in-state.
fn gates<'c>(ctx: &'c Ctx<'_>) -> Vec<(&'c str, &'c Gate)> {
    let map = ctx.entry().and_then(|e| e.addresses.as_ref());
    map.into_iter()
        .flatten()
        .map(|(address, gate)| (address.as_str(), gate))
        .collect()
}

/// Whether the phase itself allows the listed update to be a no-op: an empty prepare (PR-5), a weight that the pair
/// leaves as it is (CU-7).
fn may_be_noop(ctx: &Ctx<'_>, gate: &Gate) -> bool {
    gate.action == "update" && matches!(ctx.phase, Prepare | PrepareAlb | Cutover)
}

fn a_1(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for (address, gate) in gates(ctx) {
        if plan.change(address).is_none() {
            let text = format!(
                "The manifest lists {} of this address and the plan does not have it.",
                gate.action
            );
            out.fail(
                Finding::new("ADDR_MISSING", text)
                    .at(address)
                    .want(gate.action.as_str()),
            );
        }
    }
}

/// The code for an action outside the manifest.
fn outside(action: Action) -> &'static str {
    match action {
        Action::Create => "ADDR_CREATE_OUTSIDE_MANIFEST",
        Action::Delete => "ADDR_DELETE_OUTSIDE_MANIFEST",
        Action::Forget => "ADDR_FORGET_OUTSIDE_MANIFEST",
        _ => "ADDR_UNEXPECTED",
    }
}

fn a_2(ctx: &Ctx<'_>, out: &mut Out) {
    let (Some(plan), false) = (ctx.plan(), ctx.phase == RollbackRebuild) else {
        return;
    };
    let entry = ctx.entry();
    for change in &plan.changes {
        let gate = entry.and_then(|e| e.gate(&change.address));
        let forgotten = entry.is_some_and(|e| e.forget.contains(&*change.address));
        if change.is_import() && gate.is_none_or(|g| g.action != "import") {
            let text = "The manifest allows no import here.";
            out.fail(
                Finding::new("ADDR_IMPORT_OUTSIDE_MANIFEST", text)
                    .at(&*change.address)
                    .saw("import"),
            );
        }
        let allowed = match change.action {
            Action::NoOp => true,
            Action::Forget => forgotten || gate.is_some_and(|g| g.action == "forget"),
            Action::Create => gate.is_some_and(|g| g.action == "create"),
            Action::Delete => gate.is_some_and(|g| g.action == "delete"),
            // A listed address with the wrong action is A-4's.
            _ => gate.is_some(),
        };
        if !allowed {
            let text = format!(
                "The manifest does not list {} of this address.",
                change.action.as_str()
            );
            let mut finding = Finding::new(outside(change.action), text)
                .at(&*change.address)
                .saw(change.action.as_str());
            if super::build::is_taskdef_on(ctx, change) {
                finding = finding.hint("TASKDEF_ON_EARLY");
            }
            out.fail(finding);
        }
    }
}

fn a_3(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    // Without a recorded state the plan's own prior state is asked; what a conversion drops may be gone from it.
    let recorded = |address: &str| match ctx.root_state() {
        Some(state) => state.has(address),
        None => {
            plan.prior_addresses.contains(address) || ctx.entry().is_some_and(|e| e.forget.contains(address))
        }
    };
    for change in plan
        .changes
        .iter()
        .filter(|c| c.action == Action::NoOp && !c.is_import())
    {
        if !recorded(&change.address) {
            let text = "The plan has a no-op of a resource that the root's recorded state does not hold.";
            out.fail(Finding::new("ADDR_NOOP_NOT_IN_STATE", text).at(&*change.address));
        }
    }
}

fn a_4(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for (address, gate) in gates(ctx) {
        let Some(change) = plan.change(address) else {
            continue;
        };
        let (want, saw) = (gate.action.as_str(), change.action);
        let fine = match want {
            // Purity of an import is IM-1's and IM-11's; here only what is no import at all.
            "import" => change.is_import() && matches!(saw, Action::NoOp | Action::Update),
            "update" => saw == Action::Update || (saw == Action::NoOp && may_be_noop(ctx, gate)),
            word => saw.as_str() == word,
        };
        if !fine {
            let text = "The action at this address is not the listed one.";
            out.fail(
                Finding::new("ACTION_NOT_ALLOWED", text)
                    .at(address)
                    .want(want)
                    .saw(saw.as_str()),
            );
        }
    }
}

/// The paths that a phase itself lets change on a type.
pub(super) fn phase_paths(ctx: &Ctx<'_>, kind: &str) -> Vec<String> {
    let paths: &[&str] = match (ctx.phase, kind) {
        (Prepare, "aws_iam_role") => &["assume_role_policy"],
        (Prepare, "aws_route53_record") => &["ttl"],
        (PrepareAlb, "aws_lb") => &["idle_timeout"],
        (Start, "aws_appautoscaling_target") => &["min_capacity", "max_capacity"],
        (Cutover, "aws_route53_record") => &["weighted_routing_policy.0.weight"],
        (Switch, "aws_route53_record") => &["records"],
        (WorkerOn, "aws_ecs_service") => &["task_definition"],
        (WorkerOff, "aws_apprunner_service") => match &ctx.m.worker {
            Some(worker) if worker.switch => {
                return vec![format!("{}.{}", super::work::APPRUNNER_ENV, worker.env)];
            }
            _ => &[],
        },
        _ => &[],
    };
    paths.iter().map(|p| (*p).to_owned()).collect()
}

/// Whether a changed path is one of the allowed paths or lies under one.
pub(super) fn within_paths<'p>(path: &str, allowed: impl IntoIterator<Item = &'p str>) -> bool {
    allowed.into_iter().any(|a| {
        path.strip_prefix(a)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

fn a_5(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in &plan.changes {
        let gate = ctx.entry().and_then(|e| e.gate(&change.address));
        let allowed: Vec<String> = match (change.action, gate) {
            (Action::Update, _) => {
                let listed = gate.map(|g| g.gated.keys().chain(&g.allow_paths));
                let mut allowed = phase_paths(ctx, change.kind());
                allowed.extend(listed.into_iter().flatten().cloned());
                allowed
            }
            // Terraform calls it a no-op, so both sides are the same; a document in which they differ was edited.
            (Action::NoOp, Some(_)) => Vec::new(),
            _ => continue,
        };
        for path in change.changed() {
            if !within_paths(&path, allowed.iter().map(String::as_str)) {
                let text = "This attribute may not change in this phase.";
                let finding = Finding::new("ATTR_CHANGE_NOT_ALLOWED", text)
                    .at(&*change.address)
                    .path(path.as_str());
                out.fail(show_change(finding, change, &path));
            }
        }
    }
}

/// Before and after of a path, hidden where it must be.
pub(super) fn show_change(finding: Finding, change: &Change<'_>, path: &str) -> Finding {
    if change.hidden(path) {
        return finding.want(HIDDEN).saw(HIDDEN);
    }
    let after = if change.known(path) {
        change.a(path).clone()
    } else {
        Value::from("(known after apply)")
    };
    finding.want(change.b(path).clone()).saw(after)
}

/// How a gated value is compared on a path, with what the path's name implies.
fn same(gated: Compare, kind: &str, path: &str, want: &Value, saw: &Value) -> bool {
    let dns_path = matches!(
        (kind, json::last(path)),
        ("aws_route53_record", "name" | "records")
    ) || matches!(
        json::last(path),
        "validation_record_fqdns" | "subject_alternative_names"
    );
    match gated {
        Compare::Dns => json::dns_equal(want, saw),
        Compare::Json => match (parsed(want), parsed(saw)) {
            (Some(w), Some(s)) => json::equal(&w, &s),
            _ => false,
        },
        Compare::Set => match (want.as_array(), saw.as_array()) {
            (Some(w), Some(s)) => json::same_set(w, s, &json::equal),
            _ => false,
        },
        Compare::Exact if dns_path => json::dns_equal(want, saw),
        Compare::Exact if json::is_set_path(path) => match (want.as_array(), saw.as_array()) {
            (Some(w), Some(s)) => json::same_set(w, s, &json::equal),
            _ => json::equal(want, saw),
        },
        // Route 53 state writes "" where a plan writes null.
        Compare::Exact if json::last(path) == "set_identifier" && json::is_empty(want) => json::is_empty(saw),
        Compare::Exact => json::equal(want, saw),
        Compare::Env | Compare::Ref => true,
    }
}

fn parsed(value: &Value) -> Option<Value> {
    match value {
        Value::String(_) => json::document(value),
        Value::Null => None,
        other => Some(other.clone()),
    }
}

fn a_6(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for (address, gate) in gates(ctx) {
        let Some(change) = plan.change(address) else {
            continue;
        };
        for (path, gated) in &gate.gated {
            match gated.compare {
                Compare::Ref => reference(ctx, address, path, gated, out),
                Compare::Env => environment(change, path, gated, out),
                _ => compare(ctx, change, path, gated, out),
            }
        }
    }
}

fn compare(ctx: &Ctx<'_>, change: &Change<'_>, path: &str, gated: &Gated, out: &mut Out) {
    // Where the change is done already (PR-5, CU-7) only its end is compared.
    let done = change.action == Action::NoOp && matches!(ctx.phase, Prepare | PrepareAlb | Cutover);
    let fits = |want: &Option<Value>, saw: &Value| {
        want.as_ref()
            .is_none_or(|want| same(gated.compare, change.kind(), path, want, saw))
    };
    // A manifest lists a change once; the rollback of the phase is the same change the other way. Which way is the
    // right one the phase's own rules say.
    let back = ctx.rollback && gated.before.is_some() && gated.after.is_some() && change.known(path);
    if back && fits(&gated.after, change.b(path)) && fits(&gated.before, change.a(path)) {
        return;
    }
    let sides = [
        ("ATTR_BEFORE_MISMATCH", &gated.before, change.b(path), true),
        (
            "ATTR_AFTER_MISMATCH",
            &gated.after,
            change.a(path),
            change.known(path),
        ),
    ];
    for (code, want, saw, known) in sides {
        let Some(want) = want
            .as_ref()
            .filter(|_| !(done && code == "ATTR_BEFORE_MISMATCH"))
        else {
            continue;
        };
        if known && !same(gated.compare, change.kind(), path, want, saw) {
            let finding = Finding::new(code, "The value is not the manifest's.")
                .at(&*change.address)
                .path(path);
            out.fail(if change.hidden(path) {
                finding.want(HIDDEN).saw(HIDDEN)
            } else {
                finding.want(want.clone()).saw(saw.clone())
            });
        }
    }
}

/// The named environment entries of every container that has them; at least one container has each.
fn environment(change: &Change<'_>, path: &str, gated: &Gated, out: &mut Out) {
    if !change.known(path) {
        return;
    }
    let finding = |name: &str, text: String| {
        Finding::new("ATTR_AFTER_MISMATCH", text)
            .at(&*change.address)
            .path(format!("{path}.environment.{name}"))
    };
    let definitions = json::document(change.a(path)).and_then(|d| json::containers(&d).ok());
    for (name, want) in &gated.env {
        let found: Vec<&Value> = definitions
            .as_ref()
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|c| c.get("environment")?.get(name))
            .collect();
        if found.is_empty() {
            out.fail(finding(
                name,
                format!("No container has the environment variable {name}."),
            ));
        } else if found.iter().any(|value| value.as_str() != Some(want)) {
            out.fail(finding(
                name,
                format!("The environment variable {name} does not have the manifest's value."),
            ));
        }
    }
}

/// The configuration refers to the listed address, or attribute of it, and to nothing else.
fn reference(ctx: &Ctx<'_>, address: &str, path: &str, gated: &Gated, out: &mut Out) {
    let want = gated.after.as_ref().and_then(Value::as_str).unwrap_or("");
    let config = ctx.plan().and_then(|p| p.config(address));
    let refs: Vec<&str> = config.map(|c| c.references(path)).unwrap_or_default();
    // Terraform lists `aws_lb.app.dns_name` and then `aws_lb.app`.
    let under = |inner: &str, outer: &str| {
        inner
            .strip_prefix(outer)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let first = refs.first().is_some_and(|r| under(r, want));
    if want.is_empty() || !first || !refs.iter().all(|r| under(r, want) || under(want, r)) {
        let text = "The configuration does not refer to the listed resource alone.";
        let finding = Finding::new("ATTR_AFTER_MISMATCH", text).at(address).path(path);
        out.fail(finding.want(want).saw(serde_json::json!(refs)));
    }
}

fn a_7(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for (address, gate) in gates(ctx) {
        let Some(change) = plan.change(address) else {
            continue;
        };
        let own = if change.action == Action::Update {
            phase_paths(ctx, change.kind())
        } else {
            Vec::new()
        };
        let listed = gate
            .gated
            .iter()
            .filter(|(_, g)| g.compare != Compare::Ref)
            .map(|(path, _)| path);
        for path in listed.chain(&own) {
            if !change.known(path) {
                let text = "The value is known only after apply, and this path is gated.";
                out.fail(Finding::new("ATTR_UNKNOWN", text).at(address).path(path.as_str()));
            }
        }
    }
}

fn a_11(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in plan
        .of_type("aws_ecs_task_definition")
        .filter(|c| c.action != Action::NoOp)
    {
        let Some(definitions) = json::document(change.a("container_definitions")) else {
            continue;
        };
        if let Err(ContainerFault::Duplicate(name)) = json::containers(&definitions) {
            let text = format!("A container names {name} twice; which one wins is not defined.");
            out.fail(
                Finding::new("ENV_DUPLICATE_NAME", text)
                    .at(&*change.address)
                    .path("container_definitions"),
            );
        }
    }
}

/// Gated paths of an address in this phase.
fn gated_paths(ctx: &Ctx<'_>, change: &Change<'_>) -> Vec<String> {
    let gate = ctx.entry().and_then(|e| e.gate(&change.address));
    let Some(gate) = gate else { return Vec::new() };
    gate.gated
        .keys()
        .cloned()
        .chain(phase_paths(ctx, change.kind()))
        .collect()
}

fn d_1(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for drift in plan.drift.iter().filter(|c| c.action != Action::Delete) {
        let gated = gated_paths(ctx, drift);
        for path in drift.changed() {
            let touches = within_paths(&path, gated.iter().map(String::as_str))
                || gated.iter().any(|g| within_paths(g, [path.as_str()]));
            if touches {
                let text = "A gated attribute was changed outside Terraform.";
                let finding = Finding::new("DRIFT_GATED_ATTRIBUTE", text)
                    .at(&*drift.address)
                    .path(path.as_str());
                out.fail(show_change(finding, drift, &path));
            }
        }
    }
}

fn d_2(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for drift in plan.drift.iter().filter(|c| c.action == Action::Delete) {
        let named = ctx.phase == Import && ctx.entry().is_some_and(|e| e.forget.contains(&*drift.address));
        // A timed-out certificate looks deleted; RB-8 judges it in a rollback.
        let certificate = ctx.phase == RollbackRebuild && *drift.address == *ctx.m.cert_address;
        if !named && !certificate {
            let text = "The resource is gone: somebody deleted it outside Terraform.";
            out.fail(Finding::new("DRIFT_DELETED", text).at(&*drift.address));
        }
    }
}

fn d_3(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for drift in plan.drift.iter().filter(|c| c.action != Action::Delete) {
        let paths = drift.changed();
        if !paths.is_empty() {
            let text = format!("Changed outside Terraform: {}.", paths.join(", "));
            out.warn(Finding::new("WARN_DRIFT", text).at(&*drift.address));
        }
    }
}
