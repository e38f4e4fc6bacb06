//! Never-rules: what no phase may do (spec 2.4). They run in every plan phase and in `dns-batch`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Rule, rule};
use crate::rebuild::decide::Ctx;
use crate::rebuild::inputs::{State, weight};
use crate::rebuild::json;
use crate::rebuild::live::Gap;
use crate::rebuild::names;
use crate::rebuild::phase::{MUTATIONS, PLANS_AND_HANDOFF, Phase};
use crate::rebuild::plan::{Action, Change};
use crate::rebuild::verdict::{Finding, Out};

use Phase::*;

pub(super) const RULES: &[Rule] = &[
    rule(
        "N1",
        MUTATIONS,
        &["VALIDATION_RECORD_DELETE", "VALIDATION_RECORD_CHANGED"],
        "No certificate validation record is deleted or changed, whoever owns it.",
        n_1,
    ),
    rule(
        "N2",
        PLANS_AND_HANDOFF,
        &["APPRUNNER_DELETE"],
        "The App Runner service and its domain association are never deleted, replaced or forgotten.",
        n_2,
    ),
    rule(
        "N3",
        PLANS_AND_HANDOFF,
        &["PROTECTED_RESOURCE"],
        "What App Runner and the environment still use is never deleted.",
        n_3,
    ),
    rule(
        "N4",
        &[Import],
        &["PLAN_REPLACE"],
        "An import never replaces the connector or the service.",
        n_4,
    ),
    rule(
        "N5",
        PLANS_AND_HANDOFF,
        &["LOG_GROUP_DELETE"],
        "The log group is never deleted.",
        n_5,
    ),
    rule(
        "N6",
        PLANS_AND_HANDOFF,
        &["TASKDEF_WOULD_DEREGISTER"],
        "A task definition is deleted only while its state says skip_destroy.",
        n_6,
    ),
    rule(
        "N7",
        PLANS_AND_HANDOFF,
        &["TASKDEF_SKIP_DESTROY_CLEARED", "TD_SKIP_DESTROY"],
        "skip_destroy is set on every task definition and never cleared.",
        n_7,
    ),
    rule(
        "N8",
        PLANS_AND_HANDOFF,
        &["ZONE_TOUCHED"],
        "Hosted zones are never in a plan.",
        n_8,
    ),
    rule(
        "N9",
        MUTATIONS,
        &["CUT_ZERO_ZERO"],
        "No set of weighted records ends with all weights 0.",
        n_9,
    ),
];

/// Names of validation records, each with where it was seen.
type Names = BTreeMap<String, &'static str>;

fn add(names: &mut Names, name: Option<&str>, source: &'static str) {
    if let Some(name) = name.filter(|n| !n.is_empty()) {
        names.entry(names::dns(name)).or_insert(source);
    }
}

fn add_options(names: &mut Names, certificate: &Value, source: &'static str) {
    for option in certificate
        .get("domain_validation_options")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        add(names, json::str_at(option, "resource_record_name"), source);
    }
}

/// V as far as the inputs say: both states, the plan, the manifest, `cert-requested.json`.
fn stated_names(ctx: &Ctx<'_>) -> Names {
    let mut names = Names::new();
    for state in [&ctx.state_m5a, &ctx.state_rebuild].into_iter().flatten() {
        state
            .of_type("aws_acm_certificate")
            .for_each(|(_, values)| add_options(&mut names, values, "a state"));
    }
    for change in ctx
        .plan()
        .into_iter()
        .flat_map(|p| p.of_type("aws_acm_certificate"))
    {
        add_options(&mut names, change.before(), "the plan");
    }
    add(
        &mut names,
        ctx.m.validation.as_ref().and_then(|v| v.name.as_deref()),
        "the manifest",
    );
    add(
        &mut names,
        ctx.cert.as_ref().map(|c| c.name.as_str()),
        "cert-requested.json",
    );
    names
}

/// V as AWS says: every certificate of the account that covers the host, and App Runner's own records.
fn live_names(ctx: &Ctx<'_>) -> Result<Names, Gap> {
    let mut names = Names::new();
    for certificate in super::certificate::covering(ctx)? {
        certificate
            .options
            .iter()
            .for_each(|o| add(&mut names, Some(&o.name), "a certificate in ACM"));
    }
    for record in super::handoff::custom_domain_records(ctx)? {
        add(&mut names, Some(&record.0), "App Runner's custom domain");
    }
    Ok(names)
}

/// A thing that could break a validation record: its name, and how to say it.
struct Threat {
    name: String,
    address: Option<String>,
    code: &'static str,
}

fn threats(ctx: &Ctx<'_>) -> Vec<Threat> {
    let mut out = Vec::new();
    for change in ctx.plan().into_iter().flat_map(|p| &p.changes) {
        if !matches!(
            change.kind(),
            "aws_route53_record" | "aws_route53_records_exclusive"
        ) {
            continue;
        }
        let code = if change.action.deletes() {
            "VALIDATION_RECORD_DELETE"
        } else if change.action == Action::Update && changes_identity(change) {
            "VALIDATION_RECORD_CHANGED"
        } else {
            continue;
        };
        let names: BTreeSet<&str> = ["name", "fqdn"]
            .iter()
            .filter_map(|p| change.b(p).as_str())
            .collect();
        out.extend(names.into_iter().map(|name| Threat {
            name: name.into(),
            address: Some(change.address.to_string()),
            code,
        }));
    }
    for item in ctx.batch.iter().flat_map(|b| &b.changes) {
        if item.action != "CREATE" {
            out.push(Threat {
                name: item.record.name.clone(),
                address: None,
                code: "VALIDATION_RECORD_DELETE",
            });
        }
    }
    out
}

fn changes_identity(change: &Change<'_>) -> bool {
    change.changed().iter().any(|p| {
        matches!(
            p.split('.').next(),
            Some("name" | "type" | "records" | "zone_id" | "alias")
        )
    })
}

/// N1. Matching is by name even if the value differs; the only exit is `forget` where RB-3 allows it.
fn n_1(ctx: &Ctx<'_>, out: &mut Out) {
    let threats = threats(ctx);
    if threats.is_empty() {
        return;
    }
    let mut names = stated_names(ctx);
    if threats.iter().any(|t| !names.contains_key(&names::dns(&t.name))) {
        // Whether the others are validation records only AWS knows.
        match live_names(ctx) {
            Ok(live) => names.extend(live),
            Err(gap) => out.gap(gap),
        }
    }
    for threat in threats {
        let Some(source) = names.get(&names::dns(&threat.name)) else {
            continue;
        };
        let text = format!(
            "{} is a certificate validation record (by {source}); without it ACM can't renew any certificate on the name.",
            threat.name
        );
        let mut finding = Finding::new(threat.code, text)
            .path("name")
            .saw(threat.name.as_str());
        finding.address = threat.address;
        out.fail(finding);
    }
}

fn n_2(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in &plan.changes {
        let kind = matches!(
            change.kind(),
            "aws_apprunner_service" | "aws_apprunner_custom_domain_association"
        );
        if kind && (change.action.deletes() || change.action == Action::Forget) {
            let text = "App Runner stays: it is the way back.";
            out.fail(
                Finding::new("APPRUNNER_DELETE", text)
                    .at(&*change.address)
                    .saw(change.action.as_str()),
            );
        }
    }
}

/// Types that are App Runner's or the environment's wherever they are planned.
const PROTECTED: [&str; 6] = [
    "aws_apprunner_vpc_connector",
    "aws_apprunner_auto_scaling_configuration_version",
    "aws_apprunner_observability_configuration",
    "aws_apprunner_connection",
    "aws_apprunner_vpc_ingress_connection",
    "aws_vpc_endpoint",
];
/// Types that the M5a root holds only because App Runner uses them.
const PROTECTED_IN_M5A: [&str; 10] = [
    "aws_iam_role",
    "aws_iam_role_policy",
    "aws_iam_role_policy_attachment",
    "aws_iam_policy",
    "aws_iam_instance_profile",
    "aws_security_group",
    "aws_security_group_rule",
    "aws_vpc_security_group_ingress_rule",
    "aws_vpc_security_group_egress_rule",
    "aws_cloudwatch_log_group",
];

fn n_3(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in plan.changes.iter().filter(|c| c.action.deletes()) {
        let kind = change.kind();
        let protected = PROTECTED.contains(&kind)
            || (ctx.root() == "m5a" && PROTECTED_IN_M5A.contains(&kind))
            || ctx
                .state_m5a
                .as_ref()
                .is_some_and(|state| ctx.root() != "m5a" && owns(state, change))
            || change
                .b("name")
                .as_str()
                .is_some_and(|name| name.starts_with("/aws/apprunner/"));
        if protected {
            let text = "App Runner or the environment still uses this resource.";
            out.fail(
                Finding::new("PROTECTED_RESOURCE", text)
                    .at(&*change.address)
                    .saw(change.action.as_str()),
            );
        }
    }
}

/// Whether the M5a state holds the very object that another root would delete.
fn owns(m5a: &State, change: &Change<'_>) -> bool {
    let arn = change.b("arn").as_str();
    arn.is_some()
        && m5a
            .of_type(change.kind())
            .any(|(_, values)| json::str_at(values, "arn") == arn)
}

fn n_4(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in plan.changes.iter().filter(|c| c.action == Action::Replace) {
        if matches!(
            change.kind(),
            "aws_apprunner_vpc_connector" | "aws_apprunner_service"
        ) {
            let text = "Importing must not replace it: almost every argument of it forces a replacement.";
            out.fail(
                Finding::new("PLAN_REPLACE", text)
                    .at(&*change.address)
                    .path("change.replace_paths"),
            );
        }
    }
}

fn n_5(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in plan
        .of_type("aws_cloudwatch_log_group")
        .filter(|c| c.action.deletes())
    {
        let text = "The log group would be deleted, and with it the record of what happened.";
        out.fail(Finding::new("LOG_GROUP_DELETE", text).at(&*change.address));
    }
}

fn n_6(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in plan
        .of_type("aws_ecs_task_definition")
        .filter(|c| c.action.deletes())
    {
        if *change.b("skip_destroy") != Value::Bool(true) {
            let text = "The state does not say skip_destroy, so deleting deregisters the revision; no service can use it again.";
            let finding = Finding::new("TASKDEF_WOULD_DEREGISTER", text)
                .at(&*change.address)
                .path("skip_destroy");
            out.fail(finding.want(true).saw(change.b("skip_destroy").clone()));
        }
    }
}

fn n_7(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in plan.of_type("aws_ecs_task_definition") {
        let after = change.a("skip_destroy");
        let set = change.known("skip_destroy") && *after == Value::Bool(true);
        let finding = |code, text: &str| {
            Finding::new(code, text)
                .at(&*change.address)
                .path("skip_destroy")
                .want(true)
                .saw(after.clone())
        };
        match change.action {
            Action::Update if *change.b("skip_destroy") == Value::Bool(true) && !set => {
                out.fail(finding(
                    "TASKDEF_SKIP_DESTROY_CLEARED",
                    "skip_destroy would be cleared in place.",
                ));
            }
            Action::Create | Action::Replace if !set => {
                out.fail(finding(
                    "TD_SKIP_DESTROY",
                    "The task definition is made without skip_destroy.",
                ));
            }
            _ => {}
        }
    }
}

fn n_8(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in &plan.changes {
        let kind = change.kind();
        if kind.starts_with("aws_route53_zone")
            || matches!(
                kind,
                "aws_route53_delegation_set" | "aws_route53_hosted_zone_dnssec"
            )
        {
            out.fail(Finding::new("ZONE_TOUCHED", "A hosted zone is in the plan.").at(&*change.address));
        }
    }
}

/// N9: of each set of weighted records that a plan or batch writes, one weight at least stays above 0. What a step
/// passes through on its way is CU-6's.
fn n_9(ctx: &Ctx<'_>, out: &mut Out) {
    let mut sets: BTreeMap<(String, String), Vec<i64>> = BTreeMap::new();
    let mut written: BTreeSet<(String, String)> = BTreeSet::new();
    for change in ctx
        .plan()
        .into_iter()
        .flat_map(|p| p.of_type("aws_route53_record"))
    {
        let Some(after) = weight(change.a("weighted_routing_policy.0.weight")) else {
            continue;
        };
        let text = |path: &str| change.a(path).as_str().unwrap_or("").to_owned();
        let key = (names::dns(&text("name")), text("type"));
        if change.action != Action::NoOp || change.is_import() {
            written.insert(key.clone());
        }
        sets.entry(key).or_default().push(after);
    }
    for change in ctx
        .batch
        .iter()
        .flat_map(|b| &b.changes)
        .filter(|c| c.action != "DELETE")
    {
        let Some(after) = change.record.weight else {
            continue;
        };
        let key = (names::dns(&change.record.name), change.record.kind.clone());
        written.insert(key.clone());
        sets.entry(key).or_default().push(after);
    }
    for (key, weights) in sets.iter().filter(|(key, _)| written.contains(*key)) {
        if weights.iter().all(|w| *w == 0) {
            let text = format!(
                "Every weight of {} {} would be 0: Route 53 then answers with all of them equally.",
                key.0, key.1
            );
            out.fail(
                Finding::new("CUT_ZERO_ZERO", text)
                    .path(key.0.as_str())
                    .saw(weights.clone()),
            );
        }
    }
}
