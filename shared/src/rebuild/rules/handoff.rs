//! Hand-off and pre-flight: live reads before anything is built (spec 2.5).

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Rule, rule};
use crate::rebuild::decide::Ctx;
use crate::rebuild::inputs::{Record, State};
use crate::rebuild::json as j;
use crate::rebuild::live::Gap;
use crate::rebuild::names;
use crate::rebuild::phase::Phase;
use crate::rebuild::verdict::{Finding, Out};

use Phase::*;

const HANDOFF: &[Phase] = &[VerifyHandoff];
const PRE: &[Phase] = &[PreCreate];

pub(super) const RULES: &[Rule] = &[
    rule(
        "HO-1",
        HANDOFF,
        &["HANDOFF_STACK_PRESENT"],
        "Every hand-off stack is gone.",
        ho_1,
    ),
    rule(
        "HO-2",
        HANDOFF,
        &["HANDOFF_COPILOT_WORKLOAD_LEFT", "WARN_APP_STACK_KEPT"],
        "No Copilot stack of this app and environment is left.",
        ho_2,
    ),
    rule(
        "HO-3",
        HANDOFF,
        &["HANDOFF_STATE_MISSING", "HANDOFF_UNEXPECTED_DOMAIN"],
        "The M5a state holds the service and, with a custom domain, its association and record.",
        ho_3,
    ),
    rule(
        "HO-4",
        HANDOFF,
        &["STEADY_CHANGES"],
        "A fresh M5a plan changes nothing.",
        ho_4,
    ),
    rule(
        "HO-5",
        HANDOFF,
        &["HANDOFF_IDENTITY"],
        "The service in the state is the live one.",
        ho_5,
    ),
    rule(
        "HO-6",
        HANDOFF,
        &["IMAGE_NOT_DIGEST", "IMAGE_STATE_LIVE_DIFFER"],
        "The image is pinned by digest, in the state and live.",
        ho_6,
    ),
    rule(
        "HO-7",
        HANDOFF,
        &[
            "OPERATION_NOT_SUCCEEDED",
            "OPERATION_ROLLED_BACK",
            "OPERATION_PENDING",
        ],
        "A synchronized deployment succeeded.",
        ho_7,
    ),
    rule("HO-8", HANDOFF, &[], "A pass writes handoff-complete.json.", ho_8),
    rule("PC-1", PRE, &["IMAGE_NOT_DIGEST"], "The image is a digest.", pc_1),
    rule(
        "PC-2",
        PRE,
        &["PREDICTOR_CONFLICT"],
        "No certificate's validation record meets another value in DNS.",
        pc_2,
    ),
    rule(
        "PC-3",
        PRE,
        &[
            "ZONE_NOT_EXACT",
            "ZONE_AMBIGUOUS",
            "ZONE_PRIVATE",
            "ZONE_OTHER_ACCOUNT",
            "ZONE_NOT_DELEGATED",
        ],
        "With a custom domain: exactly one public, delegated zone of the name in this account.",
        pc_3,
    ),
    rule(
        "PC-4",
        PRE,
        &["DOMAIN_NOT_SIMPLE_CNAME", "DOMAIN_TARGET_MISMATCH"],
        "With a custom domain: the record at the host is one simple CNAME to the service's DNS target.",
        pc_4,
    ),
    rule(
        "PC-5",
        PRE,
        &["DOMAIN_ALREADY_WEIGHTED"],
        "With a custom domain: no weighted record at the host yet.",
        pc_5,
    ),
    rule(
        "PC-6",
        PRE,
        &["CAA_FORBIDS_AMAZON"],
        "With a custom domain: CAA allows Amazon.",
        pc_6,
    ),
    rule(
        "PC-7",
        PRE,
        &["APPRUNNER_VALIDATION_MISSING"],
        "With a custom domain: App Runner's own validation records are in DNS.",
        pc_7,
    ),
    rule(
        "PC-10",
        PRE,
        &["NEWHOST_UNDECLARED", "NEWHOST_IS_APEX"],
        "Without one: new_host is declared, and is no apex.",
        pc_10,
    ),
    rule(
        "PC-11",
        PRE,
        &["ZONE_NOT_EXACT", "ZONE_AMBIGUOUS"],
        "Without one: the zone is exact and unique.",
        pc_11,
    ),
    rule(
        "PC-12",
        PRE,
        &["ZONE_PRIVATE"],
        "Without one: the zone is public.",
        pc_12,
    ),
    rule(
        "PC-13",
        PRE,
        &["ZONE_NOT_DELEGATED"],
        "Without one: the zone is delegated.",
        pc_13,
    ),
    rule(
        "PC-14",
        PRE,
        &["ZONE_OTHER_ACCOUNT"],
        "Without one: the zone is in this account.",
        pc_14,
    ),
    rule(
        "PC-15",
        PRE,
        &["CAA_FORBIDS_AMAZON"],
        "Without one: CAA allows Amazon.",
        pc_15,
    ),
    rule(
        "PC-16",
        PRE,
        &["NEWHOST_RECORD_EXISTS"],
        "Without one: no record of any type at new_host.",
        pc_16,
    ),
    rule(
        "PC-18",
        PRE,
        &["WARN_WILDCARD_SHADOW"],
        "Without one: a wildcard that answers for new_host is reported.",
        pc_18,
    ),
];

/// The live service.
fn live_service<'c>(ctx: &'c Ctx<'_>) -> Result<&'c Value, Gap> {
    service(ctx)
}

/// `apprunner:DescribeService` of the run's service.
pub(super) fn service<'c>(ctx: &'c Ctx<'_>) -> Result<&'c Value, Gap> {
    let arn = ctx.service_arn();
    let page = ctx
        .live
        .one("apprunner:DescribeService", &[("ServiceArn", arn.as_deref())])?;
    page.get("Service")
        .ok_or_else(|| Gap::Malformed("apprunner:DescribeService has no Service".into()))
}

const IMAGE_LIVE: &str = "SourceConfiguration.ImageRepository.ImageIdentifier";
const IMAGE_STATE: &str = "source_configuration.0.image_repository.0.image_identifier";

/// Name, type and value of App Runner's own certificate validation records.
pub(super) fn custom_domain_records(ctx: &Ctx<'_>) -> Result<Vec<(String, String, String)>, Gap> {
    let arn = ctx.service_arn();
    let mut out = Vec::new();
    let domains = ctx.live.items(
        "apprunner:DescribeCustomDomains",
        &[("ServiceArn", arn.as_deref())],
        "CustomDomains",
    )?;
    for domain in domains {
        for record in domain
            .get("CertificateValidationRecords")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            let text = |key: &str| record.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
            out.push((text("Name"), text("Type"), text("Value")));
        }
    }
    Ok(out)
}

/// The operations of the service, newest first.
pub(super) fn operations<'c>(ctx: &'c Ctx<'_>) -> Result<Vec<&'c Value>, Gap> {
    let arn = ctx.service_arn();
    let mut list = ctx.live.items(
        "apprunner:ListOperations",
        &[("ServiceArn", arn.as_deref())],
        "OperationSummaryList",
    )?;
    list.sort_by_key(|o| std::cmp::Reverse(o.get("StartedAt").and_then(names::time)));
    Ok(list)
}

fn ho_1(ctx: &Ctx<'_>, out: &mut Out) {
    for stack in &ctx.m.handoff_stacks {
        let keys = [("StackName", Some(stack.as_str()))];
        if let Some((code, message)) = ctx.live.failure("cloudformation:DescribeStacks", &keys)
            && code == "ValidationError"
            && message.contains("does not exist")
        {
            continue;
        }
        let list = match ctx.live.items("cloudformation:DescribeStacks", &keys, "Stacks") {
            // The list of all stacks shows those that exist.
            Err(Gap::Missing(text)) => match account_stacks(ctx) {
                Err(Gap::Missing(_)) => Err(Gap::Missing(text)),
                other => other.map(|all| all.into_iter().filter(|s| is_stack(s, stack)).collect()),
            },
            other => other,
        };
        let Some(list) = out.read(list) else { continue };
        for item in list {
            let status = j::str_at(item, "StackStatus").unwrap_or("unknown");
            if status != "DELETE_COMPLETE" {
                let text = format!("The hand-off stack {stack} still exists.");
                out.fail(
                    Finding::new("HANDOFF_STACK_PRESENT", text)
                        .at(stack)
                        .want("DELETE_COMPLETE")
                        .saw(status),
                );
            }
        }
    }
}

fn is_stack(item: &Value, stack: &str) -> bool {
    j::str_at(item, "StackName") == Some(stack) || j::str_at(item, "StackId") == Some(stack)
}

fn tag<'v>(stack: &'v Value, key: &str) -> Option<&'v str> {
    let tags = stack.get("Tags")?.as_array()?;
    tags.iter()
        .find(|t| j::str_at(t, "Key") == Some(key))
        .and_then(|t| j::str_at(t, "Value"))
}

fn ho_2(ctx: &Ctx<'_>, out: &mut Out) {
    let (Some(app), Some(env)) = (&ctx.m.app, &ctx.m.env) else {
        let text = "The manifest does not say app and env, so Copilot's stacks can't be looked for.";
        out.fail(Finding::new("MANIFEST_INVALID", text).path("app"));
        return;
    };
    // Only the account-wide list shows that nothing is left.
    let Some(stacks) = out.read(account_stacks(ctx)) else {
        return;
    };
    for stack in stacks {
        let name = j::str_at(stack, "StackName").unwrap_or("?");
        if j::str_at(stack, "StackStatus") == Some("DELETE_COMPLETE")
            || tag(stack, "copilot-application") != Some(app)
        {
            continue;
        }
        match tag(stack, "copilot-environment") {
            Some(seen) if seen == env => {
                let text = format!("The Copilot stack {name} of this app and environment is left.");
                out.fail(Finding::new("HANDOFF_COPILOT_WORKLOAD_LEFT", text).at(name));
            }
            _ => {
                let text = format!("The Copilot stack {name} is kept for other environments.");
                out.warn(Finding::new("WARN_APP_STACK_KEPT", text).at(name));
            }
        }
    }
}

fn account_stacks<'c>(ctx: &'c Ctx<'_>) -> Result<Vec<&'c Value>, Gap> {
    ctx.live.account_wide("cloudformation:DescribeStacks", "Stacks")
}

/// The address of the App Runner service that the manifest names, or the only one in the state.
fn service_address(ctx: &Ctx<'_>, state: &State) -> Option<String> {
    let entry = ctx
        .entry()
        .and_then(|e| e.addresses_of("aws_apprunner_service").next().map(str::to_owned));
    let only = || {
        state
            .of_type("aws_apprunner_service")
            .next()
            .map(|(address, _)| address.to_owned())
    };
    entry.or_else(only)
}

fn ho_3(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(state) = &ctx.state_m5a else { return };
    let missing = |what: &str| {
        let text = format!("The M5a state does not hold {what}.");
        Finding::new("HANDOFF_STATE_MISSING", text)
    };
    match service_address(ctx, state) {
        Some(address) if state.has(&address) => {}
        other => out.fail(
            missing("the App Runner service").at(other.unwrap_or_else(|| "aws_apprunner_service".into())),
        ),
    }
    if let Some(host) = &ctx.m.host {
        if state
            .of_type("aws_apprunner_custom_domain_association")
            .next()
            .is_none()
        {
            out.fail(missing("the custom-domain association").at("aws_apprunner_custom_domain_association"));
        }
        let record = |values: &Value| {
            j::str_at(values, "type") == Some("CNAME")
                && j::str_at(values, "name").is_some_and(|n| names::dns_eq(n, host))
        };
        if !state
            .of_type("aws_route53_record")
            .any(|(_, values)| record(values))
        {
            out.fail(missing("the CNAME of the host").at("aws_route53_record"));
        }
        return;
    }
    let arn = ctx.service_arn();
    let domains = ctx.live.items(
        "apprunner:DescribeCustomDomains",
        &[("ServiceArn", arn.as_deref())],
        "CustomDomains",
    );
    if let Some(domains) = out.read(domains)
        && !domains.is_empty()
    {
        let text = "The manifest says that there is no custom domain, and the service has one.";
        out.fail(Finding::new("HANDOFF_UNEXPECTED_DOMAIN", text));
    }
}

fn ho_4(ctx: &Ctx<'_>, out: &mut Out) {
    super::work::nothing_changes(ctx, out);
}

fn ho_5(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(state) = &ctx.state_m5a else { return };
    let in_state = state.first_text("aws_apprunner_service", "arn");
    let Some(live) = out.read(live_service(ctx)) else {
        return;
    };
    let seen = j::str_at(live, "ServiceArn");
    if in_state.is_none() || seen != in_state.as_deref() {
        let text = "The service in the state is not the live one.";
        let finding = Finding::new("HANDOFF_IDENTITY", text).path("ServiceArn");
        out.fail(finding.want(in_state).saw(seen));
        return;
    }
    let parts = seen.and_then(names::arn);
    if parts.is_none_or(|p| p.account != ctx.m.account || p.region != ctx.m.region) {
        let text = "The service is in another account or region.";
        out.fail(
            Finding::new("HANDOFF_IDENTITY", text)
                .path("ServiceArn")
                .saw(seen),
        );
    }
}

fn ho_6(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(live) = out.read(live_service(ctx)) else {
        return;
    };
    let seen = j::str_at(live, IMAGE_LIVE).unwrap_or("");
    if !names::is_digest(seen) {
        let text = "App Runner runs a tag, which can move: deploy once by digest.";
        out.fail(
            Finding::new("IMAGE_NOT_DIGEST", text)
                .path(IMAGE_LIVE)
                .want("repository@sha256:…")
                .saw(seen),
        );
    }
    let in_state = ctx
        .state_m5a
        .as_ref()
        .and_then(|s| s.first_text("aws_apprunner_service", IMAGE_STATE));
    if in_state.as_deref() != Some(seen) {
        let text = "The image in the M5a state is not the live one: refresh the state.";
        out.fail(
            Finding::new("IMAGE_STATE_LIVE_DIFFER", text)
                .path(IMAGE_STATE)
                .want(seen)
                .saw(in_state),
        );
    }
}

fn ho_7(ctx: &Ctx<'_>, out: &mut Out) {
    // Without the read no synchronized deployment is claimed.
    if !ctx.live.any("apprunner:ListOperations") {
        return;
    }
    let Some(list) = out.read(operations(ctx)) else {
        return;
    };
    let deployment =
        |o: &&&Value| matches!(j::str_at(o, "Type"), Some("UPDATE_SERVICE" | "START_DEPLOYMENT"));
    if let Some(last) = list.iter().find(deployment) {
        operation(last, out);
    }
}

/// Judges one App Runner operation.
pub(super) fn operation(operation: &Value, out: &mut Out) {
    let status = j::str_at(operation, "Status").unwrap_or("unknown");
    let finding = |code, text: &str| {
        Finding::new(code, text)
            .path("OperationSummaryList")
            .want("SUCCEEDED")
            .saw(status)
    };
    match status {
        "SUCCEEDED" => {}
        "PENDING" | "IN_PROGRESS" => {
            out.wait(finding("OPERATION_PENDING", "The operation is still running."))
        }
        "ROLLBACK_SUCCEEDED" | "ROLLBACK_IN_PROGRESS" | "ROLLBACK_FAILED" => {
            out.fail(finding(
                "OPERATION_ROLLED_BACK",
                "The operation was rolled back: the change did not stick.",
            ));
        }
        _ => out.fail(finding(
            "OPERATION_NOT_SUCCEEDED",
            "The operation did not succeed.",
        )),
    }
}

/// The evidence of a passing hand-off (3.4).
fn ho_8(ctx: &Ctx<'_>, out: &mut Out) {
    out.evidence = Some(json!({
        "schema": 1, "kind": "handoff-complete", "run_id": ctx.run_id, "captured_at": ctx.now.to_string(),
        "account": ctx.m.account, "region": ctx.m.region, "app": ctx.m.app, "env": ctx.m.env,
        "service_arn": ctx.service_arn(), "plan_sha256": ctx.hashes.get("plan"), "manifest_sha256": ctx.manifest_sha256,
    }));
}

fn pc_1(ctx: &Ctx<'_>, out: &mut Out) {
    let image = ctx.m.image.as_deref().unwrap_or("");
    if !names::is_digest(image) {
        let text = "The manifest's image is not pinned by digest.";
        out.fail(
            Finding::new("IMAGE_NOT_DIGEST", text)
                .path("image")
                .want("repository@sha256:…")
                .saw(image),
        );
    }
    // The live service is looked at where it was read; HO-6 demands the read.
    if ctx.live.any("apprunner:DescribeService") {
        let Some(live) = out.read(live_service(ctx)) else {
            return;
        };
        let seen = j::str_at(live, IMAGE_LIVE).unwrap_or("");
        if !names::is_digest(seen) {
            let text = "App Runner runs a tag, which can move.";
            out.fail(
                Finding::new("IMAGE_NOT_DIGEST", text)
                    .path(IMAGE_LIVE)
                    .want("repository@sha256:…")
                    .saw(seen),
            );
        }
    }
}

/// The predictor only reports; no certificate at all is "unknown", and allowed.
fn pc_2(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(certificates) = out.read(super::certificate::covering(ctx)) else {
        return;
    };
    let mut seen = BTreeSet::new();
    for option in certificates.iter().flat_map(|c| &c.options) {
        if option.name.is_empty()
            || !seen.insert(names::dns(&option.name))
            || !names::within(&option.name, &ctx.m.zone_name)
        {
            continue;
        }
        let Some(records) = out.read(ctx.live.records(&ctx.m.zone_id, &option.name)) else {
            continue;
        };
        for record in &records {
            let same = record.kind == "CNAME"
                && record
                    .only_value()
                    .is_some_and(|v| names::dns_eq(v, &option.value));
            if !same {
                let text = format!(
                    "The name of a validation record, {}, holds something else.",
                    option.name
                );
                let finding = Finding::new("PREDICTOR_CONFLICT", text).path(option.name.as_str());
                out.fail(finding.want(option.value.as_str()).saw(record.values.clone()));
            }
        }
    }
    out.facts
        .insert("certificates_covering".into(), json!(certificates.len()));
}

/// One hosted zone as Route 53 lists it.
struct Zone {
    id: String,
    private: bool,
}

/// Zones whose name is exactly the manifest's.
fn zones(ctx: &Ctx<'_>) -> Result<Vec<Zone>, Gap> {
    let keys = [("DNSName", Some(ctx.m.zone_name.as_str()))];
    let list = match ctx
        .live
        .items("route53:ListHostedZonesByName", &keys, "HostedZones")
    {
        // The list is sorted by name: it may end early once it has gone past the name.
        Err(Gap::Truncated(text)) => match ctx.live.zones_past(&ctx.m.zone_name) {
            Some(list) => list,
            None => return Err(Gap::Truncated(text)),
        },
        Err(Gap::Missing(text)) => match ctx
            .live
            .account_wide("route53:ListHostedZonesByName", "HostedZones")
        {
            Ok(list) => list,
            Err(Gap::Missing(_)) => return Err(Gap::Missing(text)),
            Err(other) => return Err(other),
        },
        other => other?,
    };
    let exact = list
        .into_iter()
        .filter(|z| j::str_at(z, "Name").is_some_and(|n| names::dns_eq(n, &ctx.m.zone_name)));
    Ok(exact
        .map(|z| Zone {
            id: names::zone_id(j::str_at(z, "Id").unwrap_or("")).to_owned(),
            private: j::at(z, "Config.PrivateZone") == Some(&Value::Bool(true)),
        })
        .collect())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ZoneRule {
    Exact,
    Public,
    Delegated,
    Account,
}

fn pc_3(ctx: &Ctx<'_>, out: &mut Out) {
    if ctx.m.has_custom_domain() {
        for rule in [
            ZoneRule::Exact,
            ZoneRule::Public,
            ZoneRule::Delegated,
            ZoneRule::Account,
        ] {
            zone_rule(ctx, rule, out);
        }
    }
}

fn zone_rule(ctx: &Ctx<'_>, rule: ZoneRule, out: &mut Out) {
    let zone = &ctx.m.zone_name;
    let finding = |code, text: String| Finding::new(code, text).path("zone").want(zone.as_str());
    let Some(zones) = out.read(zones(ctx)) else { return };
    let public: Vec<&Zone> = zones.iter().filter(|z| !z.private).collect();
    let name = ctx.m.name().unwrap_or("");
    match rule {
        ZoneRule::Exact => {
            if !names::within(name, zone) {
                out.fail(finding(
                    "ZONE_NOT_EXACT",
                    format!("{name} does not lie in the manifest's zone."),
                ));
            } else if zones.is_empty() {
                out.fail(finding(
                    "ZONE_NOT_EXACT",
                    format!("There is no hosted zone named exactly {zone}."),
                ));
            } else if public.len() > 1 {
                let ids: Vec<&str> = public.iter().map(|z| z.id.as_str()).collect();
                let text = format!("There are {} public zones named {zone}.", public.len());
                out.fail(finding("ZONE_AMBIGUOUS", text).saw(json!(ids)));
            }
        }
        ZoneRule::Public => {
            if !zones.is_empty() && public.is_empty() {
                out.fail(finding(
                    "ZONE_PRIVATE",
                    format!("The zone {zone} is private; ACM and clients can't see it."),
                ));
            }
        }
        ZoneRule::Account => {
            if let [only] = public.as_slice()
                && only.id != ctx.m.zone_id
            {
                let text = "The public zone of the name in this account is not the manifest's.".to_owned();
                out.fail(
                    finding("ZONE_OTHER_ACCOUNT", text)
                        .want(ctx.m.zone_id.as_str())
                        .saw(only.id.as_str()),
                );
            }
            let keys = [("Id", Some(ctx.m.zone_id.as_str()))];
            if let Some((code, _)) = ctx.live.failure("route53:GetHostedZone", &keys)
                && code.contains("NoSuchHostedZone")
            {
                let text = "The manifest's zone is not in this account.".to_owned();
                out.fail(finding("ZONE_OTHER_ACCOUNT", text).saw(ctx.m.zone_id.as_str()));
            }
        }
        ZoneRule::Delegated => {
            if public.is_empty() {
                return;
            }
            let Some(own) = out.read(name_servers(ctx)) else {
                return;
            };
            let Some(answer) = ctx.live.answer(zone, "NS") else {
                out.gap(Gap::Missing(format!("dns NS {zone}")));
                return;
            };
            let asked: BTreeSet<String> = answer.answers.iter().map(|n| names::dns(n)).collect();
            if asked != own || own.is_empty() {
                let text = format!("The parent of {zone} does not delegate to this zone's name servers.");
                out.fail(
                    finding("ZONE_NOT_DELEGATED", text)
                        .want(json!(own))
                        .saw(json!(asked)),
                );
            }
        }
    }
}

/// The zone's own name servers: its delegation set, or the NS records at its apex.
fn name_servers(ctx: &Ctx<'_>) -> Result<BTreeSet<String>, Gap> {
    let set = |values: &[String]| values.iter().map(|v| names::dns(v)).collect::<BTreeSet<_>>();
    match ctx
        .live
        .one("route53:GetHostedZone", &[("Id", Some(&ctx.m.zone_id))])
    {
        Ok(page) => {
            let list = j::at(page, "DelegationSet.NameServers").and_then(Value::as_array);
            let list =
                list.ok_or_else(|| Gap::Malformed("route53:GetHostedZone has no DelegationSet".into()))?;
            Ok(list.iter().filter_map(Value::as_str).map(names::dns).collect())
        }
        Err(Gap::Missing(text)) => match ctx.live.records(&ctx.m.zone_id, &ctx.m.zone_name) {
            Ok(records) => Ok(records
                .iter()
                .find(|r| r.kind == "NS")
                .map(|r| set(&r.values))
                .unwrap_or_default()),
            Err(Gap::Missing(_)) => Err(Gap::Missing(text)),
            Err(other) => Err(other),
        },
        Err(other) => Err(other),
    }
}

fn host_records(ctx: &Ctx<'_>, out: &mut Out) -> Option<Vec<Record>> {
    let name = ctx.m.name()?;
    out.read(ctx.live.records(&ctx.m.zone_id, name))
}

fn pc_4(ctx: &Ctx<'_>, out: &mut Out) {
    // PC-17: the adoption rule is not applied to a new host.
    if !ctx.m.has_custom_domain() {
        return;
    }
    let Some(records) = host_records(ctx, out) else {
        return;
    };
    let target = ctx.m.dns_target.as_deref().unwrap_or("");
    match records.as_slice() {
        [one] if one.kind == "CNAME" && one.is_simple() => match one.only_value() {
            Some(value) if !target.is_empty() && names::dns_eq(value, target) => {}
            _ => {
                let text = "The record of the host does not point at the App Runner service.";
                out.fail(
                    Finding::new("DOMAIN_TARGET_MISMATCH", text)
                        .want(target)
                        .saw(one.values.clone()),
                );
            }
        },
        other => {
            let kinds: Vec<&str> = other.iter().map(|r| r.kind.as_str()).collect();
            let text = "The host must hold exactly one simple CNAME.";
            out.fail(
                Finding::new("DOMAIN_NOT_SIMPLE_CNAME", text)
                    .want("one CNAME")
                    .saw(json!(kinds)),
            );
        }
    }
}

fn pc_5(ctx: &Ctx<'_>, out: &mut Out) {
    if !ctx.m.has_custom_domain() {
        return;
    }
    let Some(records) = host_records(ctx, out) else {
        return;
    };
    for record in records
        .iter()
        .filter(|r| r.set_identifier.is_some() || r.weight.is_some() || r.other_routing)
    {
        let text = "The host already has a record with a routing policy.";
        out.fail(Finding::new("DOMAIN_ALREADY_WEIGHTED", text).saw(record.set_identifier.clone()));
    }
}

fn pc_6(ctx: &Ctx<'_>, out: &mut Out) {
    if ctx.m.has_custom_domain() {
        caa(ctx, out);
    }
}

fn pc_15(ctx: &Ctx<'_>, out: &mut Out) {
    if !ctx.m.has_custom_domain() {
        caa(ctx, out);
    }
}

/// The certificate authorities of Amazon (spec 5, fact 5).
const AMAZON: [&str; 4] = ["amazon.com", "amazontrust.com", "awstrust.com", "amazonaws.com"];

/// Climbs from the name to the top; the first name with CAA records decides.
fn caa(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(name) = ctx.m.name() else { return };
    let mut here = names::dns(name);
    loop {
        let mut records: Vec<String> = Vec::new();
        let in_zone = names::within(&here, &ctx.m.zone_name);
        if let Some(answer) = ctx.live.answer(&here, "CAA") {
            records.extend(answer.answers.iter().cloned());
        } else if in_zone {
            let Some(found) = out.read(ctx.live.records(&ctx.m.zone_id, &here)) else {
                return;
            };
            records.extend(
                found
                    .into_iter()
                    .filter(|r| r.kind == "CAA")
                    .flat_map(|r| r.values),
            );
        } else if here.contains('.') {
            out.gap(Gap::Missing(format!("dns CAA {here}")));
            return;
        }
        let issue: Vec<&String> = records.iter().filter(|r| caa_tag(r).0 == "issue").collect();
        if !records.is_empty() {
            // Only "issue" restricts an ordinary certificate; a set without it allows everybody.
            let allowed = issue.is_empty() || issue.iter().any(|r| AMAZON.contains(&caa_tag(r).1.as_str()));
            if !allowed {
                let text = format!("The CAA records of {here} let no Amazon authority issue a certificate.");
                out.fail(
                    Finding::new("CAA_FORBIDS_AMAZON", text)
                        .path(here.as_str())
                        .want(json!(AMAZON))
                        .saw(json!(records)),
                );
            }
            return;
        }
        match here.split_once('.') {
            Some((_, parent)) => here = parent.to_owned(),
            None => return,
        }
    }
}

/// Tag and domain of `0 issue "letsencrypt.org; x=y"`.
fn caa_tag(record: &str) -> (String, String) {
    let mut parts = record.trim().splitn(3, char::is_whitespace);
    let (_flags, tag, value) = (
        parts.next(),
        parts.next().unwrap_or(""),
        parts.next().unwrap_or(""),
    );
    let value = value
        .trim()
        .trim_matches('"')
        .split(';')
        .next()
        .unwrap_or("")
        .trim();
    (tag.to_ascii_lowercase(), names::dns(value))
}

fn pc_7(ctx: &Ctx<'_>, out: &mut Out) {
    if !ctx.m.has_custom_domain() {
        return;
    }
    let Some(wanted) = out.read(custom_domain_records(ctx)) else {
        return;
    };
    for (name, kind, value) in wanted {
        let Some(records) = out.read(ctx.live.records(&ctx.m.zone_id, &name)) else {
            continue;
        };
        let there = records
            .iter()
            .any(|r| r.kind == kind && r.values.iter().any(|v| names::dns_eq(v, &value)));
        if !there {
            let text =
                format!("App Runner's validation record {name} is not in DNS; its certificate can't renew.");
            out.fail(
                Finding::new("APPRUNNER_VALIDATION_MISSING", text)
                    .path(name)
                    .want(value),
            );
        }
    }
}

/// The declared new host, which the rules without a custom domain are about.
fn new_host<'c>(ctx: &'c Ctx<'_>) -> Option<&'c str> {
    if ctx.m.has_custom_domain() {
        None
    } else {
        ctx.m.new_host.as_deref()
    }
}

fn pc_10(ctx: &Ctx<'_>, out: &mut Out) {
    if ctx.m.has_custom_domain() {
        return;
    }
    let declared = ctx.decisions.as_ref().and_then(|d| d.text("new_host"));
    match (declared, ctx.m.new_host.as_deref()) {
        (Some(decided), Some(name)) if names::dns_eq(decided, name) => {}
        _ => {
            let text = "Without a custom domain the decisions must declare new_host, and the manifest must carry it.";
            out.fail(
                Finding::new("NEWHOST_UNDECLARED", text)
                    .path("new_host")
                    .want(ctx.m.new_host.clone())
                    .saw(declared),
            );
        }
    }
    if new_host(ctx).is_some_and(|name| names::dns_eq(name, &ctx.m.zone_name)) {
        let text = "new_host is the apex of the zone, which is not supported: NS and SOA are there already.";
        out.fail(Finding::new("NEWHOST_IS_APEX", text).path("new_host"));
    }
}

fn pc_11(ctx: &Ctx<'_>, out: &mut Out) {
    if new_host(ctx).is_some() {
        zone_rule(ctx, ZoneRule::Exact, out);
    }
}

fn pc_12(ctx: &Ctx<'_>, out: &mut Out) {
    if new_host(ctx).is_some() {
        zone_rule(ctx, ZoneRule::Public, out);
    }
}

fn pc_13(ctx: &Ctx<'_>, out: &mut Out) {
    if new_host(ctx).is_some() {
        zone_rule(ctx, ZoneRule::Delegated, out);
    }
}

fn pc_14(ctx: &Ctx<'_>, out: &mut Out) {
    if new_host(ctx).is_some() {
        zone_rule(ctx, ZoneRule::Account, out);
    }
}

fn pc_16(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(name) = new_host(ctx) else { return };
    let Some(records) = host_records(ctx, out) else {
        return;
    };
    for record in records {
        let text = format!("There is a {} record at {name} already.", record.kind);
        out.fail(
            Finding::new("NEWHOST_RECORD_EXISTS", text)
                .path(name)
                .saw(record.kind),
        );
    }
}

fn pc_18(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(name) = new_host(ctx) else { return };
    let name = names::dns(name);
    let mut here = name.as_str();
    while let Some((_, parent)) = here.split_once('.') {
        if !names::within(parent, &ctx.m.zone_name) {
            return;
        }
        let wildcard = format!("*.{parent}");
        if let Ok(records) = ctx.live.records(&ctx.m.zone_id, &wildcard)
            && !records.is_empty()
        {
            let text =
                format!("{wildcard} answers for {name} today and stops doing so once the name exists.");
            out.warn(Finding::new("WARN_WILDCARD_SHADOW", text).path(wildcard));
            return;
        }
        here = parent;
    }
}
