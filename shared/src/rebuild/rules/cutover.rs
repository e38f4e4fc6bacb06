//! DNS cutover: the convert batch, its import, and the shift of weights (spec 2.8).

use serde_json::{Value, json};

use super::{Rule, rule};
use crate::rebuild::decide::Ctx;
use crate::rebuild::inputs::{BatchChange, Record, weight};
use crate::rebuild::json as j;
use crate::rebuild::live::Gap;
use crate::rebuild::names;
use crate::rebuild::phase::Phase;
use crate::rebuild::plan::{Action, Change};
use crate::rebuild::verdict::{Finding, Out};

use Phase::*;

const BATCH: &[Phase] = &[DnsBatch];
const IMPORT: &[Phase] = &[Import];
const SHIFT: &[Phase] = &[Shift];
const CUT: &[Phase] = &[Cutover];

pub(super) const RULES: &[Rule] = &[
    rule(
        "DB-1",
        BATCH,
        &["BATCH_SHAPE"],
        "The batch is one DELETE and two CREATEs, in that order, TTL 60.",
        db_1,
    ),
    rule(
        "DB-2",
        BATCH,
        &["BATCH_DELETE_MISMATCH"],
        "What is deleted equals the live record exactly.",
        db_2,
    ),
    rule("DB-3", BATCH, &["BATCH_UPSERT"], "No UPSERT.", db_3),
    rule("DB-4", BATCH, &["BATCH_EXTRA"], "No other name or type.", db_4),
    rule(
        "DB-5",
        BATCH,
        &["BATCH_WEIGHTS"],
        "The weights are (100, 0).",
        db_5,
    ),
    rule(
        "DB-6",
        BATCH,
        &["BATCH_TARGET"],
        "Each set identifier points at its own target.",
        db_6,
    ),
    rule(
        "DB-7",
        BATCH,
        &["BIND_ZONE"],
        "The zone of the call is the manifest's.",
        db_7,
    ),
    rule(
        "DB-8",
        BATCH,
        &["REVERT_NOT_AT_100_0", "BATCH_SHAPE"],
        "The revert deletes both weighted records at live (100, 0) and creates the simple one.",
        db_8,
    ),
    rule(
        "DB-9",
        &[Import, Converted],
        &["DNS_NOT_INSYNC"],
        "The batch is in sync before its import.",
        db_9,
    ),
    rule(
        "IM-6",
        IMPORT,
        &["IMPORT_IDENTITY", "IMPORT_MISSING"],
        "7a imports exactly the two weighted records (its reverse the simple one), as the manifest describes them.",
        im_6,
    ),
    rule(
        "IM-7",
        IMPORT,
        &["FORGET_MISSING"],
        "Each dropped address is forgotten.",
        im_7,
    ),
    rule(
        "IM-8",
        IMPORT,
        &["FORGET_NO_DRIFT"],
        "A null no-op counts only with its drift entry.",
        im_8,
    ),
    rule(
        "IM-8b",
        IMPORT,
        &["CUT_LIVE_MISMATCH"],
        "Live DNS shows the new form and not the dropped one.",
        im_8b,
    ),
    rule(
        "IM-9",
        IMPORT,
        &["ADDR_FORGET_OUTSIDE_MANIFEST"],
        "Nothing else is forgotten, in either form.",
        im_9,
    ),
    rule(
        "IM-10",
        IMPORT,
        &["FORGET_LIST_MISMATCH"],
        "The forget list is exactly the dropped form's addresses.",
        im_10,
    ),
    rule(
        "CV-1",
        &[Converted],
        &["CONVERT_PARTIAL", "CUT_LIVE_MISMATCH"],
        "Live DNS is the whole weighted pair: resume at the import plan.",
        converted,
    ),
    rule(
        "SH-1",
        SHIFT,
        &["CUT_LIVE_MISMATCH"],
        "Live weights are the expected pair; targets, TTL and identifiers are the manifest's.",
        sh_1,
    ),
    rule("SH-3", SHIFT, &["ALARM_NOT_OK"], "Both 5xx alarms are OK.", sh_3),
    rule(
        "SH-4",
        SHIFT,
        &["WAIT_TTL"],
        "One TTL has passed since the last step.",
        sh_4,
    ),
    rule(
        "CU-1",
        CUT,
        &["CUT_ATTR", "ADDR_MISSING", "ADDR_UNEXPECTED"],
        "Both weighted records are in the plan and only their weights change.",
        cu_1,
    ),
    rule(
        "CU-2",
        CUT,
        &["CUT_LIVE_MISMATCH"],
        "The plan's weights before are the live ones.",
        cu_2,
    ),
    rule(
        "CU-3",
        CUT,
        &["CUT_STEP"],
        "The weights after are the manifest's next pair.",
        cu_3,
    ),
    rule(
        "CU-4",
        CUT,
        &["CUT_ROLLBACK_PATH"],
        "With rollback: the next pair of the listed way back.",
        cu_4,
    ),
    rule(
        "CU-5",
        CUT,
        &["CUT_DIRECTION"],
        "No way back without rollback.",
        cu_5,
    ),
    rule(
        "CU-6",
        CUT,
        &["CUT_ZERO_ZERO"],
        "The records change one after the other, and never are both 0 on the way.",
        cu_6,
    ),
    rule(
        "CU-7",
        CUT,
        &["CUT_NOOP_EXPECTED", "CUT_NOOP_UNEXPECTED"],
        "A record is a no-op exactly where the pair leaves its weight.",
        cu_7,
    ),
    rule(
        "CU-8",
        CUT,
        &["ATTR_UNKNOWN", "CUT_STEP"],
        "Weights are known integers from 0 to 255.",
        cu_8,
    ),
    rule(
        "CU-9",
        CUT,
        &["CUT_STEP"],
        "The step asked for is the one that the plan takes.",
        cu_9,
    ),
    rule(
        "SW-1",
        &[Switch],
        &["SWITCH_ATTR", "SWITCH_TARGET"],
        "One in-place change of the simple record: from the DNS target to the load balancer, or back.",
        switch,
    ),
];

const APPRUNNER: &str = "apprunner";
const ECS: &str = "ecs";

fn host<'c>(ctx: &'c Ctx<'_>) -> &'c str {
    ctx.m.name().unwrap_or("")
}

/// The load balancer's DNS name, by the infra-rebuild state, or by what the manifest gates for the ecs record.
fn lb_name(ctx: &Ctx<'_>) -> Option<String> {
    let in_state = ctx
        .state_rebuild
        .as_ref()
        .and_then(|s| s.first_text("aws_lb", "dns_name"));
    let gated = || {
        let gates = ctx.m.phases.get("import:7a")?.addresses.as_ref()?;
        let ecs = gates.iter().find(|(address, _)| address.ends_with(".ecs"))?.1;
        ecs.gated
            .get("records")?
            .after
            .as_ref()?
            .get(0)?
            .as_str()
            .map(str::to_owned)
    };
    in_state.or_else(gated)
}

/// Whether a value is what the load balancer's record must hold. Where its name is not known it must at least be one
/// of a load balancer: the batch itself is bound by its hash.
fn is_lb(ctx: &Ctx<'_>, value: &str) -> bool {
    match lb_name(ctx) {
        Some(name) => names::dns_eq(value, &name),
        None => names::dns(value).ends_with(".elb.amazonaws.com"),
    }
}

fn is_service(ctx: &Ctx<'_>, value: &str) -> bool {
    ctx.m
        .dns_target
        .as_deref()
        .is_some_and(|target| names::dns_eq(value, target))
}

/// Whether a set identifier's value is its own target.
fn right_target(ctx: &Ctx<'_>, identifier: &str, value: &str) -> bool {
    match identifier {
        APPRUNNER => is_service(ctx, value),
        ECS => is_lb(ctx, value),
        _ => false,
    }
}

fn live_host(ctx: &Ctx<'_>) -> Result<Vec<Record>, Gap> {
    ctx.live.records(&ctx.m.zone_id, host(ctx))
}

/// The weighted pair in a set of records: exactly apprunner and ecs, CNAMEs with a weight.
fn pair(records: &[Record]) -> Option<((i64, i64), [&Record; 2])> {
    let find = |id: &str| {
        let mut found = records
            .iter()
            .filter(|r| r.set_identifier.as_deref() == Some(id) && r.kind == "CNAME");
        found
            .next()
            .filter(|r| r.weight.is_some() && r.alias.is_none() && !r.other_routing)
    };
    let (a, b) = (find(APPRUNNER)?, find(ECS)?);
    (records.len() == 2).then_some(((a.weight?, b.weight?), [a, b]))
}

/// The one simple CNAME in a set of records.
fn simple(records: &[Record]) -> Option<&Record> {
    match records {
        [one] if one.kind == "CNAME" && one.is_simple() => Some(one),
        _ => None,
    }
}

fn shown(records: &[Record]) -> Value {
    let one = |r: &Record| json!({"type": r.kind, "set_identifier": r.set_identifier, "weight": r.weight, "ttl": r.ttl, "values": r.values});
    Value::Array(records.iter().map(one).collect())
}

// ---------------------------------------------------------------------------------------------- dns-batch

fn is_revert(ctx: &Ctx<'_>) -> bool {
    ctx.use_ == Some("revert")
}

fn of_host(ctx: &Ctx<'_>, change: &BatchChange) -> bool {
    names::dns_eq(&change.record.name, host(ctx)) && change.record.kind == "CNAME"
}

fn db_1(ctx: &Ctx<'_>, out: &mut Out) {
    let (Some(batch), false) = (&ctx.batch, is_revert(ctx)) else {
        return;
    };
    let fine = match batch.changes.as_slice() {
        [delete, first, second] => {
            let ids = [first, second].map(|c| c.record.set_identifier.as_deref().unwrap_or(""));
            let created = |c: &BatchChange| c.action == "CREATE" && of_host(ctx, c) && is_weighted(&c.record);
            delete.action == "DELETE"
                && of_host(ctx, delete)
                && delete.record.is_simple()
                && created(first)
                && created(second)
                && matches!(ids, [APPRUNNER, ECS] | [ECS, APPRUNNER])
        }
        _ => false,
    };
    if !fine {
        let seen: Vec<String> = batch
            .changes
            .iter()
            .map(|c| format!("{} {} {}", c.action, c.record.kind, c.record.name))
            .collect();
        let text = "The batch must delete the simple CNAME and create the weighted apprunner and ecs, TTL 60, in this order.";
        out.fail(Finding::new("BATCH_SHAPE", text).path("Changes").saw(json!(seen)));
    }
}

/// A weighted record with one value and the TTL of a cutover.
fn is_weighted(record: &Record) -> bool {
    record.weight.is_some()
        && record.ttl == Some(60)
        && record.values.len() == 1
        && record.alias.is_none()
        && !record.other_routing
}

fn db_2(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(batch) = &ctx.batch else { return };
    let Some(live) = out.read(live_host(ctx)) else {
        return;
    };
    for change in batch
        .changes
        .iter()
        .filter(|c| c.action == "DELETE" && of_host(ctx, c))
    {
        // Route 53 wants every member of the deleted record as it is; only the name may be written differently.
        let same = live.iter().any(|l| {
            Record {
                name: l.name.clone(),
                ..change.record.clone()
            } == *l
        });
        if !same {
            let text = "What the batch deletes is not what is live, so Route 53 would refuse it or delete something else.";
            let finding = Finding::new("BATCH_DELETE_MISMATCH", text).path(change.record.name.as_str());
            out.fail(
                finding
                    .want(shown(&live))
                    .saw(shown(std::slice::from_ref(&change.record))),
            );
        }
    }
}

fn db_3(ctx: &Ctx<'_>, out: &mut Out) {
    for change in ctx
        .batch
        .iter()
        .flat_map(|b| &b.changes)
        .filter(|c| c.action == "UPSERT")
    {
        let text = "UPSERT overwrites whatever is there; a batch says what it expects.";
        out.fail(Finding::new("BATCH_UPSERT", text).path(change.record.name.as_str()));
    }
}

fn db_4(ctx: &Ctx<'_>, out: &mut Out) {
    for change in ctx
        .batch
        .iter()
        .flat_map(|b| &b.changes)
        .filter(|c| !of_host(ctx, c))
    {
        let text = "The batch touches another record than the host's CNAME.";
        let finding = Finding::new("BATCH_EXTRA", text).path(change.record.name.as_str());
        out.fail(finding.saw(format!("{} {}", change.action, change.record.kind)));
    }
}

fn db_5(ctx: &Ctx<'_>, out: &mut Out) {
    for change in ctx
        .batch
        .iter()
        .flat_map(|b| &b.changes)
        .filter(|c| c.action != "DELETE")
    {
        let want = match change.record.set_identifier.as_deref() {
            Some(APPRUNNER) => 100,
            Some(ECS) => 0,
            _ => continue,
        };
        if change.record.weight != Some(want) {
            let text = "Converting must not move traffic: the weights are (100, 0).";
            let finding = Finding::new("BATCH_WEIGHTS", text).path(format!(
                "{}.Weight",
                change.record.set_identifier.as_deref().unwrap_or("")
            ));
            out.fail(finding.want(want).saw(change.record.weight));
        }
    }
}

fn db_6(ctx: &Ctx<'_>, out: &mut Out) {
    for change in ctx
        .batch
        .iter()
        .flat_map(|b| &b.changes)
        .filter(|c| of_host(ctx, c) && c.action != "DELETE")
    {
        let value = change.record.only_value().unwrap_or("");
        let fine = match change.record.set_identifier.as_deref() {
            Some(id) => right_target(ctx, id, value),
            None => is_service(ctx, value),
        };
        if !fine {
            let text = "The record does not point at its own target: apprunner to the service, ecs to the load balancer.";
            let finding = Finding::new("BATCH_TARGET", text)
                .path(change.record.set_identifier.clone().unwrap_or_default());
            out.fail(finding.saw(change.record.values.clone()));
        }
    }
}

fn db_7(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(seen) = ctx.batch.as_ref().and_then(|b| b.zone_id.clone()) else {
        return;
    };
    if seen != ctx.m.zone_id {
        let text = "The batch is for another zone than the manifest's.";
        out.fail(
            Finding::new("BIND_ZONE", text)
                .path("HostedZoneId")
                .want(ctx.m.zone_id.as_str())
                .saw(seen),
        );
    }
}

fn db_8(ctx: &Ctx<'_>, out: &mut Out) {
    let (Some(batch), true) = (&ctx.batch, is_revert(ctx)) else {
        return;
    };
    let fine = match batch.changes.as_slice() {
        [first, second, create] => {
            let ids = [first, second].map(|c| c.record.set_identifier.as_deref().unwrap_or(""));
            [first, second]
                .iter()
                .all(|c| c.action == "DELETE" && of_host(ctx, c))
                && matches!(ids, [APPRUNNER, ECS] | [ECS, APPRUNNER])
                && create.action == "CREATE"
                && of_host(ctx, create)
                && create.record.is_simple()
                && create.record.ttl == Some(60)
                && create.record.values.len() == 1
        }
        _ => false,
    };
    if !fine {
        let text = "The revert must delete both weighted records and create the simple CNAME with TTL 60, in this order.";
        out.fail(Finding::new("BATCH_SHAPE", text).path("Changes"));
    }
    let Some(live) = out.read(live_host(ctx)) else {
        return;
    };
    let seen = pair(&live).map(|(weights, _)| weights);
    if seen != Some((100, 0)) {
        let text = "The way back to the simple record starts at (100, 0): shift the weights back first.";
        out.fail(
            Finding::new("REVERT_NOT_AT_100_0", text)
                .want(json!([100, 0]))
                .saw(shown(&live)),
        );
    }
}

fn db_9(ctx: &Ctx<'_>, out: &mut Out) {
    if ctx.use_ == Some("2b") || !ctx.live.any("route53:GetChange") {
        return; // The live records themselves are IM-8b's.
    }
    let Some(page) = out.read(ctx.live.one("route53:GetChange", &[])) else {
        return;
    };
    let seen = j::str_at(page, "ChangeInfo.Status").unwrap_or("");
    if seen != "INSYNC" {
        let text = "Route 53 has not spread the change to all its servers yet.";
        out.wait(
            Finding::new("DNS_NOT_INSYNC", text)
                .path("ChangeInfo.Status")
                .want("INSYNC")
                .saw(seen),
        );
    }
}

// ---------------------------------------------------------------------------------------------- import 7a

/// Whether the import is that of 7a (Some(false)) or of its reverse (Some(true)).
fn conversion(ctx: &Ctx<'_>) -> Option<bool> {
    match (ctx.phase, ctx.use_) {
        (Import, Some("7a")) => Some(false),
        (Import, Some("7a-revert")) => Some(true),
        _ => None,
    }
}

fn im_6(ctx: &Ctx<'_>, out: &mut Out) {
    let (Some(plan), Some(revert)) = (ctx.plan(), conversion(ctx)) else {
        return;
    };
    let imports: Vec<&Change<'_>> = plan.changes.iter().filter(|c| c.is_import()).collect();
    let wanted: &[(&str, Option<i64>)] = if revert {
        &[("", None)]
    } else {
        &[(APPRUNNER, Some(100)), (ECS, Some(0))]
    };
    for (id, want_weight) in wanted {
        let of_id = |c: &&&Change<'_>| c.b("set_identifier").as_str().unwrap_or("") == *id;
        let Some(change) = imports.iter().find(of_id) else {
            let text = format!("No record with set identifier {id:?} is imported.");
            out.fail(
                Finding::new("IMPORT_MISSING", text)
                    .path("set_identifier")
                    .want(*id),
            );
            continue;
        };
        let suffix = if id.is_empty() {
            String::new()
        } else {
            format!("_{id}")
        };
        let import_id = format!("{}_{}_CNAME{suffix}", ctx.m.zone_id, names::dns(host(ctx)));
        let value = match change.b("records").as_array().map(Vec::as_slice) {
            Some([Value::String(one)]) => one.as_str(),
            _ => "",
        };
        let target = if revert {
            is_service(ctx, value)
        } else {
            right_target(ctx, id, value)
        };
        let text = |path: &str| change.b(path).as_str().unwrap_or("");
        let checks = [
            (
                "importing.id",
                j::str_at(change.importing.as_ref().unwrap_or(&Value::Null), "id")
                    .is_some_and(|i| i.eq_ignore_ascii_case(&import_id)),
            ),
            ("name", names::dns_eq(text("name"), host(ctx))),
            ("type", text("type") == "CNAME"),
            ("zone_id", names::zone_id(text("zone_id")) == ctx.m.zone_id),
            (
                "weighted_routing_policy.0.weight",
                change.b("weighted_routing_policy.0.weight").as_i64() == *want_weight,
            ),
            ("records", target),
            ("ttl", change.b("ttl").as_i64() == Some(60)),
        ];
        for (path, fine) in checks {
            if !fine {
                let text = "The imported record is not the one that the batch made.";
                let finding = Finding::new("IMPORT_IDENTITY", text)
                    .at(&*change.address)
                    .path(path);
                out.fail(finding.saw(change.b(path).clone()));
            }
        }
    }
    if imports.len() > wanted.len() {
        let text = format!(
            "{} records are imported; {} must be.",
            imports.len(),
            wanted.len()
        );
        out.fail(
            Finding::new("IMPORT_IDENTITY", text)
                .want(wanted.len())
                .saw(imports.len()),
        );
    }
}

fn forget_list<'c>(ctx: &'c Ctx<'_>) -> impl Iterator<Item = &'c str> {
    ctx.entry()
        .into_iter()
        .flat_map(|e| &e.forget)
        .map(String::as_str)
}

/// Whether a change is r4's second form of a dropped address (IM-7).
fn is_null_noop(change: &Change<'_>) -> bool {
    change.action == Action::NoOp && change.is_null() && !change.is_import()
}

fn drift_deleted(ctx: &Ctx<'_>, address: &str) -> bool {
    ctx.plan()
        .and_then(|p| p.drift(address))
        .is_some_and(|d| d.action == Action::Delete)
}

fn im_7(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for address in forget_list(ctx) {
        let change = plan.change(address);
        if change.is_some_and(|c| c.action == Action::Forget || is_null_noop(c)) {
            continue; // A null no-op without drift is IM-8's.
        }
        let text = match change {
            Some(change) => format!(
                "The dropped record is not forgotten; the plan shows {}.",
                change.action.as_str()
            ),
            None if drift_deleted(ctx, address) => {
                "The dropped record has no entry: the removed block is missing.".into()
            }
            None => "The dropped record has no entry in the plan.".into(),
        };
        let seen = change.map(|c| c.action.as_str());
        out.fail(
            Finding::new("FORGET_MISSING", text)
                .at(address)
                .want("forget")
                .saw(seen),
        );
    }
}

fn im_8(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for address in forget_list(ctx) {
        if plan.change(address).is_some_and(is_null_noop) && !drift_deleted(ctx, address) {
            let text = "The plan shows nothing on both sides and no drift, which proves nothing.";
            out.fail(
                Finding::new("FORGET_NO_DRIFT", text)
                    .at(address)
                    .path("resource_drift")
                    .want("delete"),
            );
        }
    }
}

fn im_8b(ctx: &Ctx<'_>, out: &mut Out) {
    let (Some(plan), Some(revert)) = (ctx.plan(), conversion(ctx)) else {
        return;
    };
    let Some(live) = out.read(live_host(ctx)) else {
        return;
    };
    let same = |change: &Change<'_>, record: &Record| {
        j::dns_equal(change.b("records"), &json!(record.values))
            && change.b("ttl").as_i64() == record.ttl
            && weight(change.b("weighted_routing_policy.0.weight")) == record.weight
    };
    let imports: Vec<&Change<'_>> = plan.changes.iter().filter(|c| c.is_import()).collect();
    let imported = |record: &Record| {
        let id = record.set_identifier.as_deref().unwrap_or("");
        imports
            .iter()
            .any(|c| c.b("set_identifier").as_str().unwrap_or("") == id && same(c, record))
    };
    let fine = if revert {
        simple(&live).is_some_and(imported)
    } else {
        pair(&live)
            .is_some_and(|(weights, records)| weights == (100, 0) && records.iter().all(|r| imported(r)))
    };
    if !fine {
        let text = "Live DNS does not show exactly the records that the plan imports.";
        out.fail(
            Finding::new("CUT_LIVE_MISMATCH", text)
                .path(host(ctx))
                .saw(shown(&live)),
        );
    }
}

fn im_9(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    let listed = |address: &str| forget_list(ctx).any(|a| a == address);
    for change in plan
        .changes
        .iter()
        .filter(|c| (c.action == Action::Forget || is_null_noop(c)) && !listed(&c.address))
    {
        let text = "The plan drops an address that the manifest does not list.";
        out.fail(
            Finding::new("ADDR_FORGET_OUTSIDE_MANIFEST", text)
                .at(&*change.address)
                .saw(change.action.as_str()),
        );
    }
}

fn im_10(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(entry) = ctx.entry() else { return };
    let want = match conversion(ctx) {
        Some(false) => 1,
        Some(true) => 2,
        None => 0,
    };
    let records = entry.forget.iter().all(|a| a.starts_with("aws_route53_record."));
    let imported = entry
        .addresses
        .as_ref()
        .is_some_and(|map| entry.forget.iter().any(|a| map.contains_key(a)));
    let in_state = |state: &crate::rebuild::inputs::State| entry.forget.iter().all(|a| state.has(a));
    if entry.forget.len() != want
        || !records
        || imported
        || ctx.state_m5a.as_ref().is_some_and(|s| !in_state(s))
    {
        let text = format!("The manifest must list exactly the {want} records that this import drops.");
        let listed: Vec<&String> = entry.forget.iter().collect();
        out.fail(
            Finding::new("FORGET_LIST_MISMATCH", text)
                .path("forget")
                .want(want)
                .saw(json!(listed)),
        );
    }
}

// ---------------------------------------------------------------------------------------------- converted, shift

fn converted(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(live) = out.read(live_host(ctx)) else {
        return;
    };
    if let Some((weights, records)) = pair(&live) {
        let right = records.iter().all(|r| {
            let id = r.set_identifier.as_deref().unwrap_or("");
            r.ttl == Some(60) && r.only_value().is_some_and(|v| right_target(ctx, id, v))
        });
        if weights == (100, 0) && right {
            let simple_in_state = ctx.state_m5a.as_ref().is_some_and(|s| {
                s.of_type("aws_route53_record").any(|(_, v)| {
                    j::str_at(v, "name").is_some_and(|n| names::dns_eq(n, host(ctx)))
                        && j::is_empty(v.get("set_identifier").unwrap_or(&Value::Null))
                })
            });
            let next = if simple_in_state {
                "resume at the import plan (import 7a)"
            } else {
                "the import is applied; go on with shift"
            };
            out.facts.insert("next".into(), json!(next));
            return;
        }
        let text = "The weighted records are live, but not as the batch made them.";
        out.fail(
            Finding::new("CUT_LIVE_MISMATCH", text)
                .path(host(ctx))
                .want(json!([100, 0]))
                .saw(shown(&live)),
        );
        return;
    }
    if simple(&live).is_some() {
        let text = "The batch is not applied: the simple record is still live.";
        out.fail(
            Finding::new("CUT_LIVE_MISMATCH", text)
                .path(host(ctx))
                .saw(shown(&live)),
        );
        return;
    }
    let text = "Live DNS is neither the simple record nor the whole weighted pair.";
    out.fail(
        Finding::new("CONVERT_PARTIAL", text)
            .path(host(ctx))
            .saw(shown(&live)),
    );
}

fn sh_1(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(live) = out.read(live_host(ctx)) else {
        return;
    };
    let mismatch = |text: &str| {
        Finding::new("CUT_LIVE_MISMATCH", text)
            .path(host(ctx))
            .saw(shown(&live))
    };
    let Some((weights, records)) = pair(&live) else {
        out.fail(mismatch("Live DNS is not the weighted pair."));
        return;
    };
    for record in records {
        let id = record.set_identifier.as_deref().unwrap_or("");
        if record.ttl != Some(60) || !record.only_value().is_some_and(|v| right_target(ctx, id, v)) {
            out.fail(mismatch(
                "A weighted record has another target or TTL than the manifest's.",
            ));
        }
    }
    let step = ctx
        .step
        .and_then(|n| usize::try_from(n).ok())
        .and_then(|n| n.checked_sub(1));
    let expected = step
        .filter(|_| !ctx.rollback)
        .map(|i| ctx.m.sequence.get(i).copied());
    let on_path = || {
        ctx.m.sequence.contains(&weights)
            || ctx.rollback && ctx.m.rollback.values().flatten().any(|p| *p == weights)
    };
    let fine = match expected {
        Some(pair) => pair == Some(weights),
        None => on_path(),
    };
    if !fine {
        out.fail(mismatch("The live weights are not the expected pair.").want(json!(expected.flatten())));
    }
}

fn sh_3(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(list) = out.read(ctx.live.items("cloudwatch:DescribeAlarms", &[], "MetricAlarms")) else {
        return;
    };
    for alarm in &list {
        let state = j::str_at(alarm, "StateValue").unwrap_or("none");
        if state != "OK" {
            let name = j::str_at(alarm, "AlarmName").unwrap_or("?");
            let text = format!("The alarm {name} is {state}.");
            out.fail(
                Finding::new("ALARM_NOT_OK", text)
                    .at(name)
                    .path("StateValue")
                    .want("OK")
                    .saw(state),
            );
        }
    }
    let spaces: Vec<&str> = list.iter().filter_map(|a| j::str_at(a, "Namespace")).collect();
    let both = spaces.contains(&"AWS/ApplicationELB") && spaces.contains(&"AWS/AppRunner");
    if list.len() < 2 || (!spaces.is_empty() && !both) {
        let text = "The 5xx alarms of both the load balancer and App Runner must be read.";
        out.gap(Gap::Missing(format!("cloudwatch:DescribeAlarms ({text})")));
    }
}

fn sh_4(ctx: &Ctx<'_>, out: &mut Out) {
    if !ctx.knows_order() {
        out.skip();
        return;
    }
    let last = [
        ctx.prior_of("cutover", None, None),
        ctx.prior_of("dns-batch", None, None),
    ];
    let Some(last) = last
        .into_iter()
        .flatten()
        .filter(|p| p.passed)
        .max_by_key(|p| p.checked_at)
    else {
        return;
    };
    super::certificate::wait_ttl(ctx, last.applied_at.or(last.checked_at), 60, out);
}

// ---------------------------------------------------------------------------------------------- cutover

/// The two weighted records of the plan.
struct Cut<'c> {
    records: [&'c Change<'c>; 2],
    before: (i64, i64),
    after: (i64, i64),
}

fn weighted<'c>(ctx: &'c Ctx<'_>, id: &str) -> Option<&'c Change<'c>> {
    ctx.plan()?.of_type("aws_route53_record").find(|c| {
        c.b("set_identifier").as_str() == Some(id)
            && c.b("name").as_str().is_some_and(|n| names::dns_eq(n, host(ctx)))
    })
}

const WEIGHT: &str = "weighted_routing_policy.0.weight";

fn cut<'c>(ctx: &'c Ctx<'_>) -> Option<Cut<'c>> {
    let records = [weighted(ctx, APPRUNNER)?, weighted(ctx, ECS)?];
    let [a, b] = records;
    let before = (weight(a.b(WEIGHT))?, weight(b.b(WEIGHT))?);
    let known = a.known(WEIGHT) && b.known(WEIGHT);
    let after = (weight(a.a(WEIGHT))?, weight(b.a(WEIGHT))?);
    known.then_some(Cut {
        records,
        before,
        after,
    })
}

/// Where a pair leads: the next of the sequence, or the next of the way back that holds it.
fn next_pair(ctx: &Ctx<'_>, before: (i64, i64), rollback: bool) -> Option<(i64, i64)> {
    if !rollback {
        let i = ctx.m.sequence.iter().position(|p| *p == before)?;
        return ctx.m.sequence.get(i + 1).copied();
    }
    if let Some(path) = ctx.m.rollback.get(&before) {
        return path.first().copied();
    }
    ctx.m.rollback.values().find_map(|path| {
        let i = path.iter().position(|p| *p == before)?;
        path.get(i + 1).copied()
    })
}

fn cu_1(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    let mut pair = Vec::new();
    for id in [APPRUNNER, ECS] {
        match weighted(ctx, id) {
            Some(change) => pair.push(&*change.address),
            None => {
                let listed = ctx
                    .entry()
                    .and_then(|e| e.addresses_of("aws_route53_record").find(|a| a.ends_with(id)));
                let address = listed.map_or_else(|| format!("aws_route53_record.{id}"), str::to_owned);
                let text = format!("The weighted record {id} is not in the plan.");
                out.fail(Finding::new("ADDR_MISSING", text).at(address));
            }
        }
    }
    for change in plan
        .changes
        .iter()
        .filter(|c| c.action != Action::NoOp || c.is_import())
    {
        if !pair.contains(&&*change.address) {
            let text = "Everything else in the root must be a no-op.";
            out.fail(
                Finding::new("ADDR_UNEXPECTED", text)
                    .at(&*change.address)
                    .saw(change.action.as_str()),
            );
            continue;
        }
        for path in change.changed().iter().filter(|p| *p != WEIGHT) {
            let text = "Only the weight may change.";
            let finding = Finding::new("CUT_ATTR", text)
                .at(&*change.address)
                .path(path.as_str());
            out.fail(super::cover::show_change(finding, change, path));
        }
        let fixed = change.b("type").as_str() == Some("CNAME")
            && change.b("zone_id").as_str().map(names::zone_id) == Some(&ctx.m.zone_id);
        if !fixed {
            let text = "The weighted record is not a CNAME of the manifest's zone.";
            out.fail(
                Finding::new("CUT_ATTR", text)
                    .at(&*change.address)
                    .path("zone_id"),
            );
        }
    }
}

fn cu_2(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(cut) = cut(ctx) else { return };
    let Some(live) = out.read(live_host(ctx)) else {
        return;
    };
    let same_targets = |records: [&Record; 2]| {
        cut.records
            .iter()
            .zip(records)
            .all(|(c, r)| j::dns_equal(c.b("records"), &json!(r.values)) && c.b("ttl").as_i64() == r.ttl)
    };
    let fine = pair(&live).is_some_and(|(weights, records)| weights == cut.before && same_targets(records));
    if !fine {
        let text = "The plan was made from other records than those that are live.";
        out.fail(
            Finding::new("CUT_LIVE_MISMATCH", text)
                .path(host(ctx))
                .want(json!(cut.before))
                .saw(shown(&live)),
        );
    }
}

fn cu_3(ctx: &Ctx<'_>, out: &mut Out) {
    let (Some(cut), false) = (cut(ctx), ctx.rollback) else {
        return;
    };
    let want = next_pair(ctx, cut.before, false);
    if want != Some(cut.after) {
        let text = "The weights after are not the next pair of the sequence.";
        out.fail(
            Finding::new("CUT_STEP", text)
                .path(WEIGHT)
                .want(json!(want))
                .saw(json!([cut.before, cut.after])),
        );
    }
}

fn cu_4(ctx: &Ctx<'_>, out: &mut Out) {
    let (Some(cut), true) = (cut(ctx), ctx.rollback) else {
        return;
    };
    let want = next_pair(ctx, cut.before, true);
    if want != Some(cut.after) {
        let text = "The weights after are not the next pair on the listed way back.";
        out.fail(
            Finding::new("CUT_ROLLBACK_PATH", text)
                .path(WEIGHT)
                .want(json!(want))
                .saw(json!([cut.before, cut.after])),
        );
    }
}

fn cu_5(ctx: &Ctx<'_>, out: &mut Out) {
    let (Some(cut), false) = (cut(ctx), ctx.rollback) else {
        return;
    };
    let place = |pair| ctx.m.sequence.iter().position(|p| *p == pair);
    let back = next_pair(ctx, cut.before, true) == Some(cut.after)
        || matches!((place(cut.before), place(cut.after)), (Some(b), Some(a)) if a < b);
    if back {
        let text = "This plan takes traffic back to App Runner: ask for direction rollback if that is meant.";
        out.fail(
            Finding::new("CUT_DIRECTION", text)
                .path(WEIGHT)
                .saw(json!([cut.before, cut.after])),
        );
    }
}

fn cu_6(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(cut) = cut(ctx) else { return };
    let ((a, b), (x, y)) = (cut.before, cut.after);
    if [(x, y), (x, b), (a, y)].contains(&(0, 0)) {
        let text = "Terraform changes the two records one after the other; on this way both weights can be 0, which Route \
                    53 reads as an equal split.";
        out.fail(
            Finding::new("CUT_ZERO_ZERO", text)
                .path(WEIGHT)
                .saw(json!([cut.before, cut.after])),
        );
    }
}

fn cu_7(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(cut) = cut(ctx) else { return };
    let want = next_pair(ctx, cut.before, ctx.rollback);
    let sides = [
        (cut.before.0, cut.after.0, want.map(|w| w.0)),
        (cut.before.1, cut.after.1, want.map(|w| w.1)),
    ];
    for (change, (before, after, want)) in cut.records.iter().zip(sides) {
        if before == after && change.action != Action::NoOp {
            let text = "The weight stays, so the record must be a no-op.";
            out.fail(
                Finding::new("CUT_NOOP_EXPECTED", text)
                    .at(&*change.address)
                    .want("no-op")
                    .saw(change.action.as_str()),
            );
        }
        if change.action == Action::NoOp && want.is_some_and(|w| w != before) {
            let text = "The pair changes this weight, and the plan leaves the record as it is.";
            out.fail(
                Finding::new("CUT_NOOP_UNEXPECTED", text)
                    .at(&*change.address)
                    .path(WEIGHT)
                    .want(want)
                    .saw(before),
            );
        }
    }
}

fn cu_8(ctx: &Ctx<'_>, out: &mut Out) {
    for change in [APPRUNNER, ECS].iter().filter_map(|id| weighted(ctx, id)) {
        if !change.known(WEIGHT) {
            let text = "The weight is known only after apply.";
            out.fail(
                Finding::new("ATTR_UNKNOWN", text)
                    .at(&*change.address)
                    .path(WEIGHT),
            );
        } else if weight(change.b(WEIGHT)).is_none() || weight(change.a(WEIGHT)).is_none() {
            let text = "A weight is an integer from 0 to 255.";
            let finding = Finding::new("CUT_STEP", text).at(&*change.address).path(WEIGHT);
            out.fail(finding.want("0..=255").saw(change.a(WEIGHT).clone()));
        }
    }
}

fn cu_9(ctx: &Ctx<'_>, out: &mut Out) {
    let (Some(cut), Some(step)) = (cut(ctx), ctx.step) else {
        return;
    };
    let number = |i: usize| i64::try_from(i).unwrap_or(i64::MAX);
    let fine = if ctx.rollback {
        // Counted along the way back that holds the pair; from the pair itself the next step is always 1.
        let along = ctx
            .m
            .rollback
            .values()
            .filter_map(|path| path.iter().position(|p| *p == cut.after))
            .map(|i| number(i) + 1);
        step == 1 || along.into_iter().any(|n| n == step)
    } else {
        ctx.m
            .sequence
            .iter()
            .position(|p| *p == cut.before)
            .map(|i| number(i) + 1)
            == Some(step)
    };
    if !fine {
        let text = "The plan takes another step than the one asked for.";
        out.fail(
            Finding::new("CUT_STEP", text)
                .path("step")
                .saw(json!({"step": step, "pair": [cut.before, cut.after]})),
        );
    }
}

// ---------------------------------------------------------------------------------------------- switch

fn switch(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    let updates: Vec<&Change<'_>> = plan
        .changes
        .iter()
        .filter(|c| c.action == Action::Update)
        .collect();
    let [change] = updates.as_slice() else {
        let text = format!(
            "{} resources change; exactly the host's record must.",
            updates.len()
        );
        out.fail(Finding::new("SWITCH_ATTR", text).want(1).saw(updates.len()));
        return;
    };
    let host_record = change.kind() == "aws_route53_record"
        && change
            .b("name")
            .as_str()
            .is_some_and(|n| names::dns_eq(n, host(ctx)))
        && change.b("type").as_str() == Some("CNAME")
        && change.b("zone_id").as_str().map(names::zone_id) == Some(&ctx.m.zone_id)
        && super::build::is_plain(change);
    if !host_record {
        let text = "What changes is not the host's simple CNAME.";
        out.fail(
            Finding::new("SWITCH_ATTR", text)
                .at(&*change.address)
                .path("name")
                .want(host(ctx)),
        );
    }
    for path in change
        .changed()
        .iter()
        .filter(|p| !super::cover::within_paths(p, ["records"]))
    {
        let text = "Only the record's value may change.";
        let finding = Finding::new("SWITCH_ATTR", text)
            .at(&*change.address)
            .path(path.as_str());
        out.fail(super::cover::show_change(finding, change, path));
    }
    let only = |value: &Value| match value.as_array().map(Vec::as_slice) {
        Some([Value::String(one)]) => one.clone(),
        _ => String::new(),
    };
    let (before, after) = (only(change.b("records")), only(change.a("records")));
    let (from, to) = if ctx.rollback {
        (&after, &before)
    } else {
        (&before, &after)
    };
    if !change.known("records") || !is_service(ctx, from) || !is_lb(ctx, to) {
        let text =
            "The switch goes from the service's DNS target to the load balancer, the rollback the other way.";
        let finding = Finding::new("SWITCH_TARGET", text)
            .at(&*change.address)
            .path("records");
        out.fail(
            finding
                .want(json!({"service": ctx.m.dns_target, "load_balancer": lb_name(ctx)}))
                .saw(json!([before, after])),
        );
    }
}
