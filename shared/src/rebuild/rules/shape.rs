//! Plan-shape rules: what a plan must look like whatever the phase (spec 2.3, G-1 to G-18).

use std::collections::BTreeSet;

use super::{Rule, rule};
use crate::rebuild::decide::Ctx;
use crate::rebuild::phase::{PLANS, PLANS_AND_HANDOFF, Phase};
use crate::rebuild::plan::{AWS_PROVIDER, Action, Change, Plan};
use crate::rebuild::verdict::{Finding, Out};

use Phase::*;

pub(super) const RULES: &[Rule] = &[
    rule(
        "G-1",
        PLANS_AND_HANDOFF,
        &["PLAN_NOT_A_PLAN"],
        "The document is a plan of format 1, not a state.",
        g_1,
    ),
    rule(
        "G-2",
        PLANS_AND_HANDOFF,
        &["PLAN_TF_VERSION"],
        "Terraform is a release of 1.10 or later, below 2.",
        g_2,
    ),
    rule(
        "G-3",
        PLANS_AND_HANDOFF,
        &["PLAN_ERRORED"],
        "errored is there and false.",
        g_3,
    ),
    rule(
        "G-4",
        PLANS_AND_HANDOFF,
        &["PLAN_INCOMPLETE"],
        "complete is there and true: no -target, no deferral.",
        g_4,
    ),
    rule(
        "G-5",
        PLANS,
        &["PLAN_NOT_APPLYABLE"],
        "applyable is true for a mutation.",
        g_5,
    ),
    rule(
        "G-6",
        PLANS_AND_HANDOFF,
        &["PLAN_DEFERRED", "PLAN_ACTION_INVOCATION"],
        "Nothing is deferred and no Terraform action runs.",
        g_6,
    ),
    rule(
        "G-7",
        PLANS_AND_HANDOFF,
        &["PLAN_CHECK_FAILED", "WARN_CHECK_UNKNOWN"],
        "No check fails.",
        g_7,
    ),
    rule(
        "G-8",
        PLANS_AND_HANDOFF,
        &["PLAN_DATA_SOURCE"],
        "No data source anywhere, also not one that was resolved while planning.",
        g_8,
    ),
    rule(
        "G-9",
        PLANS_AND_HANDOFF,
        &["PLAN_PROVISIONER"],
        "No provisioner.",
        g_9,
    ),
    rule(
        "G-10",
        PLANS_AND_HANDOFF,
        &["PLAN_PROVIDER"],
        "Only hashicorp/aws, once, without alias.",
        g_10,
    ),
    rule(
        "G-11",
        PLANS_AND_HANDOFF,
        &["PLAN_MODULE", "PLAN_TYPE_MISMATCH"],
        "Resources sit in the root module, and each address says its type.",
        g_11,
    ),
    rule(
        "G-12",
        PLANS_AND_HANDOFF,
        &["PLAN_DEPOSED"],
        "No deposed object.",
        g_12,
    ),
    rule(
        "G-13",
        PLANS_AND_HANDOFF,
        &["PLAN_MOVED"],
        "No moved address.",
        g_13,
    ),
    rule(
        "G-14",
        PLANS_AND_HANDOFF,
        &["PLAN_ACTION_UNKNOWN"],
        "Each action is one that this version knows.",
        g_14,
    ),
    rule(
        "G-15",
        PLANS_AND_HANDOFF,
        &["PLAN_REPLACE"],
        "Nothing is replaced.",
        g_15,
    ),
    rule(
        "G-16",
        PLANS_AND_HANDOFF,
        &["PLAN_DUPLICATE_ADDRESS"],
        "No address occurs twice.",
        g_16,
    ),
    rule(
        "G-17",
        PLANS_AND_HANDOFF,
        &["PLAN_GENERATED_CONFIG"],
        "No generated configuration.",
        g_17,
    ),
    rule(
        "G-18",
        PLANS_AND_HANDOFF,
        &["PLAN_OUTPUT_CHANGE"],
        "No output changes.",
        g_18,
    ),
];

/// Changes and drift.
fn entries<'p, 'a>(plan: &'p Plan<'a>) -> impl Iterator<Item = &'p Change<'a>> {
    plan.changes.iter().chain(&plan.drift)
}

fn g_1(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    let major = plan.format_version.as_deref().and_then(|v| v.split('.').next());
    let text = if plan.has_state_values || !plan.has_planned_values || !plan.has_configuration {
        "The document has no planned_values and configuration: it is a state or something else, not a plan."
    } else if major != Some("1") {
        "The format version of the plan is not 1.x."
    } else {
        return;
    };
    let seen = plan.format_version.as_deref().unwrap_or("none");
    out.fail(
        Finding::new("PLAN_NOT_A_PLAN", text)
            .path("format_version")
            .want("1.x")
            .saw(seen),
    );
}

fn g_2(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    let version = plan.terraform_version.as_deref().unwrap_or("none");
    let mut parts = version.split('.').map(|p| p.parse::<u32>().ok());
    // A pre-release has a non-numeric patch part, and is refused.
    let supported = matches!(
        (parts.next(), parts.next(), parts.next(), parts.next()),
        (Some(Some(1)), Some(Some(10..)), Some(Some(_)), None)
    );
    if !supported {
        let text = "The plan was made by a Terraform version that the gates do not know.";
        let finding = Finding::new("PLAN_TF_VERSION", text).path("terraform_version");
        out.fail(finding.want("~> 1.10").saw(version));
    }
}

fn g_3(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    if plan.errored != Some(false) {
        let text = "Planning ended in an error; later resources are missing from the plan.";
        out.fail(
            Finding::new("PLAN_ERRORED", text)
                .path("errored")
                .want(false)
                .saw(plan.errored),
        );
    }
}

fn g_4(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    if plan.complete != Some(true) {
        let text = "The plan is not complete: -target was used, or something is deferred.";
        out.fail(
            Finding::new("PLAN_INCOMPLETE", text)
                .path("complete")
                .want(true)
                .saw(plan.complete),
        );
    }
}

fn g_5(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    // steady demands false itself (ST-1); an empty prepare (PR-5) and a rollback with nothing left (RB-8) are judged
    // by their own rules.
    let may_be_empty = match ctx.phase {
        Steady => return,
        Prepare | RollbackRebuild => plan
            .changes
            .iter()
            .all(|c| c.action == Action::NoOp && !c.is_import()),
        _ => false,
    };
    if plan.applyable != Some(true) && !(may_be_empty && plan.applyable == Some(false)) {
        let text = "Terraform says that there is nothing to apply, or that this plan can't be applied.";
        out.fail(
            Finding::new("PLAN_NOT_APPLYABLE", text)
                .path("applyable")
                .want(true)
                .saw(plan.applyable),
        );
    }
}

fn g_6(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for key in &plan.deferred {
        out.fail(Finding::new("PLAN_DEFERRED", format!("The plan has {key}.")).path(*key));
    }
    for key in &plan.invocations {
        let text = format!("The plan has {key}: side effects that no resource change shows.");
        out.fail(Finding::new("PLAN_ACTION_INVOCATION", text).path(*key));
    }
}

fn g_7(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for check in &plan.checks {
        for status in check.statuses() {
            let finding = |code| {
                let text = format!(
                    "The check {} has status {}.",
                    check.name(),
                    status.unwrap_or("none")
                );
                Finding::new(code, text).path("checks").at(check.name())
            };
            match status {
                Some("pass") => {}
                Some("unknown") => out.warn(finding("WARN_CHECK_UNKNOWN")),
                _ => out.fail(finding("PLAN_CHECK_FAILED")),
            }
        }
    }
}

fn g_8(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    let mut found: BTreeSet<(&str, &str)> = BTreeSet::new();
    let data = |mode: Option<&str>| mode == Some("data");
    found.extend(
        plan.changes
            .iter()
            .filter(|c| data(c.mode.as_deref()))
            .map(|c| (&*c.address, "resource_changes")),
    );
    found.extend(
        plan.drift
            .iter()
            .filter(|c| data(c.mode.as_deref()))
            .map(|c| (&*c.address, "resource_drift")),
    );
    found.extend(
        plan.prior_data
            .iter()
            .map(|address| (address.as_str(), "prior_state")),
    );
    found.extend(
        plan.config
            .iter()
            .filter(|c| data(c.mode.as_deref()))
            .map(|c| (&*c.address, "configuration")),
    );
    for (address, place) in found {
        let text = format!("{place} holds a data source; what it read can change between plan and apply.");
        out.fail(Finding::new("PLAN_DATA_SOURCE", text).at(address).path(place));
    }
}

fn g_9(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for resource in plan.config.iter().filter(|r| r.has_provisioners) {
        let text = "The resource has a provisioner, which runs commands that no plan shows.";
        out.fail(
            Finding::new("PLAN_PROVISIONER", text)
                .at(&*resource.address)
                .path("provisioners"),
        );
    }
}

fn g_10(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in entries(plan) {
        let seen = change.provider_name.as_deref().unwrap_or("none");
        if seen != AWS_PROVIDER {
            let text = "The resource is not of the AWS provider.";
            let finding = Finding::new("PLAN_PROVIDER", text)
                .at(&*change.address)
                .path("provider_name");
            out.fail(finding.want(AWS_PROVIDER).saw(seen));
        }
    }
    for (key, provider) in &plan.providers {
        let seen = provider.full_name.as_deref().unwrap_or("none");
        if seen != AWS_PROVIDER || key != "aws" || provider.alias.is_some() {
            let text = format!(
                "The configuration has the provider {key}; only one hashicorp/aws without alias may be there."
            );
            let finding =
                Finding::new("PLAN_PROVIDER", text).path(format!("configuration.provider_config.{key}"));
            out.fail(finding.want(AWS_PROVIDER).saw(seen));
        }
    }
    for resource in &plan.config {
        if resource
            .provider_config_key
            .as_deref()
            .is_some_and(|key| key != "aws")
        {
            let text = "The resource uses another provider configuration.";
            out.fail(
                Finding::new("PLAN_PROVIDER", text)
                    .at(&*resource.address)
                    .path("provider_config_key"),
            );
        }
    }
}

fn g_11(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in entries(plan) {
        if change.module_address.is_some() || change.address.starts_with("module.") {
            let text = "The resource sits in a module; a gated root is flat.";
            out.fail(
                Finding::new("PLAN_MODULE", text)
                    .at(&*change.address)
                    .path("module_address"),
            );
        }
        if change.mode.as_deref() == Some("data") {
            continue;
        }
        let (kind, name) = (change.kind(), change.name.as_deref().unwrap_or(""));
        let plain = format!("{kind}.{name}");
        let matches = change.mode.as_deref() == Some("managed")
            && !kind.is_empty()
            && !name.is_empty()
            && change
                .address
                .strip_prefix(&plain)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('['));
        if !matches {
            let text = "The address does not say the type, name and mode that the entry has.";
            let finding = Finding::new("PLAN_TYPE_MISMATCH", text)
                .at(&*change.address)
                .path("type");
            out.fail(finding.want(&*change.address).saw(plain));
        }
    }
    for name in &plan.module_calls {
        let text = format!("The configuration calls the module {name}; a gated root is flat.");
        out.fail(
            Finding::new("PLAN_MODULE", text).path(format!("configuration.root_module.module_calls.{name}")),
        );
    }
}

fn g_12(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in entries(plan).filter(|c| c.deposed.is_some()) {
        let text = "The resource has a deposed object left over from an apply that failed.";
        out.fail(
            Finding::new("PLAN_DEPOSED", text)
                .at(&*change.address)
                .path("deposed"),
        );
    }
}

fn g_13(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in entries(plan) {
        if let Some(from) = &change.previous_address {
            let text = "The resource was moved from another address.";
            out.fail(
                Finding::new("PLAN_MOVED", text)
                    .at(&*change.address)
                    .path("previous_address")
                    .saw(&**from),
            );
        }
    }
}

fn g_14(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in entries(plan).filter(|c| c.action == Action::Unknown) {
        let text = "Terraform names an action that this version does not know.";
        let words = change
            .action_words
            .iter()
            .map(|w| w.to_string())
            .collect::<Vec<_>>();
        out.fail(
            Finding::new("PLAN_ACTION_UNKNOWN", text)
                .at(&*change.address)
                .path("change.actions")
                .saw(words),
        );
    }
}

fn g_15(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in entries(plan).filter(|c| c.action == Action::Replace) {
        let words = change
            .action_words
            .iter()
            .map(|w| w.to_string())
            .collect::<Vec<_>>();
        let text = "The resource would be replaced; no phase replaces anything.";
        let mut finding = Finding::new("PLAN_REPLACE", text)
            .at(&*change.address)
            .path("change.actions")
            .saw(words);
        if change.kind() == "aws_acm_certificate" {
            finding = finding.fix(super::build::RECOVER_CERTIFICATE);
        }
        out.fail(finding);
    }
}

fn g_16(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for list in [&plan.changes, &plan.drift] {
        let mut seen = BTreeSet::new();
        for change in list.iter().filter(|c| !seen.insert(c.address.as_ref())) {
            let text = "The address occurs twice.";
            out.fail(Finding::new("PLAN_DUPLICATE_ADDRESS", text).at(&*change.address));
        }
    }
}

fn g_17(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in entries(plan).filter(|c| c.has_generated_config) {
        let text = "The configuration of the resource was generated while planning, so nobody reviewed it.";
        out.fail(
            Finding::new("PLAN_GENERATED_CONFIG", text)
                .at(&*change.address)
                .path("change.generated_config"),
        );
    }
}

fn g_18(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for name in &plan.changed_outputs {
        let text = format!("The output {name} changes; generated roots declare no outputs.");
        out.fail(Finding::new("PLAN_OUTPUT_CHANGE", text).path(format!("output_changes.{name}")));
    }
}
