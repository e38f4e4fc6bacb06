//! Build, start, ready: the new service at zero, then running (spec 2.7).

use std::collections::BTreeSet;

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::certificate::{self, Certificate};
use super::{Rule, rule};
use crate::rebuild::decide::{CERT_WINDOW, Ctx};
use crate::rebuild::inputs::{State, Worker};
use crate::rebuild::json as j;
use crate::rebuild::live::Gap;
use crate::rebuild::names;
use crate::rebuild::phase::Phase;
use crate::rebuild::plan::{Action, Change};
use crate::rebuild::verdict::{Finding, HIDDEN, Out};

use Phase::*;

const BUILD: &[Phase] = &[Rebuild];
const CREATED: &[Phase] = &[Created];
const START: &[Phase] = &[Start];
const READY: &[Phase] = &[Ready];

/// What to do about a certificate that can't be used any more (S3).
pub(super) const RECOVER_CERTIFICATE: &str = "Run rollback-rebuild for what exists, then 2a (cert-request) again: rebuild never replaces a certificate.";

pub(super) const RULES: &[Rule] = &[
    rule(
        "RBD-2",
        BUILD,
        &["ADDR_MISSING"],
        "No-ops are exactly the addresses already in the state.",
        rbd_2,
    ),
    rule(
        "RBD-3",
        BUILD,
        &["ACTION_NOT_ALLOWED", "TASKDEF_ON_EARLY"],
        "Nothing is updated, deleted, forgotten, replaced or imported, and the on revision is not there yet.",
        rbd_3,
    ),
    rule(
        "RBD-4",
        BUILD,
        &["ECS_DESIRED_NOT_ZERO"],
        "The service wants 0 tasks.",
        rbd_4,
    ),
    rule(
        "RBD-5",
        BUILD,
        &["SCALE_NOT_ZERO"],
        "The scalable target is 0/0.",
        rbd_5,
    ),
    rule(
        "RBD-6",
        BUILD,
        &["TD_OFF_VALUE", "TD_IMAGE", "TD_SKIP_DESTROY", "ATTR_UNKNOWN"],
        "The off revision has the off value, the pinned image and skip_destroy.",
        rbd_6,
    ),
    rule(
        "RBD-7",
        BUILD,
        &[
            "VALIDATION_RECORD_MISMATCH",
            "VALIDATION_ALLOW_OVERWRITE",
            "ATTR_UNKNOWN",
        ],
        "Outcome absent: exactly one validation record is created, literally that of cert-requested.json.",
        rbd_7,
    ),
    rule(
        "RBD-8",
        BUILD,
        &[
            "VALIDATION_RECORD_UNEXPECTED",
            "VALIDATION_FQDN_MISMATCH",
            "CERT_ARN_MISMATCH",
        ],
        "Other outcomes create no record; the waiter names the record and the certificate literally.",
        rbd_8,
    ),
    rule(
        "RBD-9",
        BUILD,
        &[
            "NEWHOST_NAME",
            "NEWHOST_TYPE",
            "NEWHOST_TARGET",
            "NEWHOST_ALLOW_OVERWRITE",
            "NEWHOST_MISSING",
        ],
        "Without a custom domain: one alias A record of new_host to the load balancer, never overwriting.",
        rbd_9,
    ),
    rule(
        "RBD-10",
        BUILD,
        &["CERT_TIMED_OUT", "CERT_FAILED", "CERT_STATUS"],
        "The certificate is pending or issued.",
        rbd_10,
    ),
    rule(
        "RBD-11",
        BUILD,
        &["CERT_TOO_OLD", "WARN_CERT_WINDOW"],
        "The certificate is younger than 72 hours.",
        rbd_11,
    ),
    rule(
        "RBD-12",
        BUILD,
        &["CERT_RECREATED"],
        "The certificate is a no-op, the one of cert-requested.json.",
        rbd_12,
    ),
    rule(
        "RBD-13",
        BUILD,
        &["VALIDATION_OUTCOME_CHANGED", "VALIDATION_RECORD_CONFLICT"],
        "DNS still gives the outcome recorded in cert-requested.json.",
        rbd_13,
    ),
    rule(
        "RBD-14",
        BUILD,
        &["LISTENER_CERT"],
        "The 443 listener uses the certificate, through the waiter.",
        rbd_14,
    ),
    rule(
        "RBD-15",
        BUILD,
        &["ECS_CIRCUIT_BREAKER"],
        "The circuit breaker stops and does not roll back.",
        rbd_15,
    ),
    rule(
        "RBD-16",
        BUILD,
        &["VALIDATION_DEPENDS_ON"],
        "The waiter depends on the created record.",
        rbd_16,
    ),
    rule(
        "CRE-1",
        CREATED,
        &["ECS_COUNTS_NOT_ZERO", "ECS_SERVICE_MISSING"],
        "No task runs or is wanted.",
        cre_1,
    ),
    rule(
        "CRE-2",
        CREATED,
        &["SCALE_NOT_ZERO"],
        "The scalable target exists and is 0/0.",
        cre_2,
    ),
    rule(
        "CRE-3",
        CREATED,
        &["TD_OFF_VALUE", "TD_IMAGE", "TD_NOT_ACTIVE"],
        "The live task definition has the off value and the pinned image, and is active.",
        cre_3,
    ),
    rule(
        "CRE-4",
        CREATED,
        &["CERT_NOT_COVERING"],
        "The certificate covers the name.",
        cre_4,
    ),
    rule(
        "CRE-5",
        CREATED,
        &["CERT_NOT_ON_LISTENER"],
        "The certificate is on the 443 listener.",
        cre_5,
    ),
    rule(
        "CRE-6",
        CREATED,
        &[
            "CERT_NOT_ISSUED",
            "CERT_TIMED_OUT",
            "CERT_TOO_OLD",
            "CERT_FAILED",
            "CERT_STATUS",
        ],
        "The certificate is issued; pending and young waits.",
        cre_6,
    ),
    rule(
        "CRE-7",
        CREATED,
        &["NET_NO_EGRESS", "NET_VPC_DNS"],
        "Each task subnet reaches the registry, the log group and the secrets.",
        cre_7,
    ),
    rule(
        "CRE-8",
        CREATED,
        &["SG_MISMATCH", "DECISION_MISSING"],
        "The service has its own, the App Runner and the joined security groups, and no other.",
        cre_8,
    ),
    rule(
        "CRE-9",
        CREATED,
        &["SG_INGRESS"],
        "The load balancer reaches the container, and clients reach it.",
        cre_9,
    ),
    rule(
        "CRE-10",
        CREATED,
        &["IAM_DENIED"],
        "The roles may do what the tasks need.",
        cre_10,
    ),
    rule(
        "CRE-11",
        &[Created, Ready],
        &["NEWHOST_TARGET"],
        "new_host points at the live load balancer.",
        cre_11,
    ),
    rule(
        "ST-5",
        START,
        &["START_VALUES", "ATTR_CHANGE_NOT_ALLOWED"],
        "The one scalable target goes from 0/0 to the manifest's scaling, and nothing else changes.",
        start,
    ),
    rule(
        "RDY-1",
        READY,
        &["ECS_NOT_RUNNING", "READY_VACUOUS", "ECS_SERVICE_MISSING"],
        "As many tasks run as are wanted, and at least the minimum, which is at least 1.",
        rdy_1,
    ),
    rule(
        "RDY-2",
        READY,
        &["ECS_DEPLOYMENT_FAILED", "ECS_DEPLOYMENT_PENDING"],
        "The deployment is completed.",
        rdy_2,
    ),
    rule(
        "RDY-3",
        &[Ready, Shift],
        &["TARGETS_UNHEALTHY"],
        "At least the minimum of targets is healthy.",
        rdy_3,
    ),
    rule(
        "RDY-4",
        READY,
        &["LISTENER_ROUTE"],
        "The listener sends the host to the target group.",
        rdy_4,
    ),
    rule(
        "RDY-5",
        READY,
        &["TD_OFF_VALUE", "TD_IMAGE", "TD_NOT_ACTIVE"],
        "The live task definition is as in CRE-3.",
        cre_3,
    ),
    rule(
        "RDY-6",
        READY,
        &["TLS_MISMATCH", "TLS_UNREACHABLE"],
        "A handshake for the name presents a certificate that covers it.",
        rdy_6,
    ),
    rule(
        "RDY-7",
        READY,
        &["PROBE_STATUS"],
        "The safe path answers with the declared status.",
        rdy_7,
    ),
];

// ---------------------------------------------------------------------------------------------- rebuild

/// Whether a change is the on revision, planned in step 3 already (S6).
pub(super) fn is_taskdef_on(ctx: &Ctx<'_>, change: &Change<'_>) -> bool {
    ctx.phase == Rebuild && change.kind() == "aws_ecs_task_definition" && change.name.as_deref() == Some("on")
}

fn created<'c>(ctx: &'c Ctx<'_>, kind: &'c str) -> impl Iterator<Item = &'c Change<'c>> {
    ctx.plan()
        .into_iter()
        .flat_map(move |p| p.of_type(kind))
        .filter(|c| c.action == Action::Create)
}

fn rbd_2(ctx: &Ctx<'_>, out: &mut Out) {
    let (Some(plan), Some(state)) = (ctx.plan(), &ctx.state_rebuild) else {
        return;
    };
    for address in state.managed() {
        if plan.change(address).is_none_or(|c| c.action != Action::NoOp) {
            let text = "The resource is in the state and not a no-op of the plan.";
            out.fail(Finding::new("ADDR_MISSING", text).at(address).want("no-op"));
        }
    }
}

fn rbd_3(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in &plan.changes {
        if !matches!(change.action, Action::Create | Action::NoOp) || change.is_import() {
            let text = "Step 3 only creates.";
            let finding = Finding::new("ACTION_NOT_ALLOWED", text)
                .at(&*change.address)
                .want("create");
            out.fail(finding.saw(if change.is_import() {
                "import"
            } else {
                change.action.as_str()
            }));
        }
        if is_taskdef_on(ctx, change) && change.action != Action::NoOp {
            let text = "The on revision belongs to step 9 (8a): staged/taskdef-on.tf was copied into the root too early.";
            out.fail(Finding::new("TASKDEF_ON_EARLY", text).at(&*change.address));
        }
    }
}

fn rbd_4(ctx: &Ctx<'_>, out: &mut Out) {
    for change in created(ctx, "aws_ecs_service") {
        let seen = change.a("desired_count");
        if !change.known("desired_count") || seen.as_i64() != Some(0) {
            let text = "The service would start tasks at once.";
            let finding = Finding::new("ECS_DESIRED_NOT_ZERO", text)
                .at(&*change.address)
                .path("desired_count");
            out.fail(finding.want(0).saw(seen.clone()));
        }
    }
}

fn rbd_5(ctx: &Ctx<'_>, out: &mut Out) {
    for change in created(ctx, "aws_appautoscaling_target") {
        for path in ["min_capacity", "max_capacity"] {
            let seen = change.a(path);
            if !change.known(path) || seen.as_i64() != Some(0) {
                let text = "The scalable target would start tasks.";
                let finding = Finding::new("SCALE_NOT_ZERO", text)
                    .at(&*change.address)
                    .path(path);
                out.fail(finding.want(0).saw(seen.clone()));
            }
        }
    }
}

/// Judges container definitions: the switch has the wanted value in each container that runs the image, and the
/// image is the pinned one. Values other than the two declared ones are never shown.
pub(super) fn judge_containers(
    definitions: Option<&Value>,
    image: Option<&str>,
    switch: Option<(&Worker, bool)>,
    address: &str,
    out: &mut Out,
) {
    let code = match switch {
        Some((_, true)) => "TD_ON_VALUE",
        _ => "TD_OFF_VALUE",
    };
    let place = |code, text: String, path: String| Finding::new(code, text).at(address).path(path);
    let containers = definitions.and_then(|d| j::containers(d).ok());
    let Some(Value::Array(containers)) = containers else {
        let text = "The container definitions can't be read.".to_owned();
        out.fail(place(code, text, "container_definitions".into()));
        return;
    };
    let runs = |c: &Value| image.is_some_and(|image| j::str_at(c, "image") == Some(image));
    if !containers.iter().any(runs) {
        let seen: Vec<&str> = containers.iter().filter_map(|c| j::str_at(c, "image")).collect();
        let text = "No container runs the pinned image.".to_owned();
        out.fail(
            place("TD_IMAGE", text, "container_definitions".into())
                .want(image)
                .saw(json!(seen)),
        );
    }
    let repository = |image: &str| {
        image
            .split(['@'])
            .next()
            .map(|r| r.split_once(':').map_or(r, |(r, _)| r).to_owned())
    };
    for container in &containers {
        let seen = j::str_at(container, "image").unwrap_or("");
        let same_repository = image.is_some_and(|i| repository(i) == repository(seen));
        if !runs(container) && same_repository {
            let text = "A container runs another build of the image.".to_owned();
            out.fail(
                place("TD_IMAGE", text, "container_definitions".into())
                    .want(image)
                    .saw(seen),
            );
        }
    }
    let Some((worker, on)) = switch else { return };
    let want = if on { &worker.on } else { &worker.off };
    let mut found = false;
    for container in &containers {
        let name = j::str_at(container, "name").unwrap_or("?");
        let path = format!("container_definitions.{name}.environment.{}", worker.env);
        if container
            .get("secrets")
            .is_some_and(|s| s.get(&worker.env).is_some())
        {
            let text = format!("{} comes from a secret, so its value can't be told.", worker.env);
            out.fail(place(code, text, path.clone()).want(want.as_str()));
        }
        let value = container
            .get("environment")
            .and_then(|e| e.get(&worker.env))
            .and_then(Value::as_str);
        match value {
            Some(value) if value == want => found |= runs(container),
            Some(value) => {
                found |= runs(container);
                let shown = if value == worker.on || value == worker.off {
                    value
                } else {
                    HIDDEN
                };
                let text = format!(
                    "{} does not have the {} value.",
                    worker.env,
                    if on { "on" } else { "off" }
                );
                out.fail(place(code, text, path).want(want.as_str()).saw(shown));
            }
            None => {}
        }
    }
    if !found {
        let text = format!("The container of the image does not set {}.", worker.env);
        out.fail(
            place(
                code,
                text,
                format!("container_definitions.environment.{}", worker.env),
            )
            .want(want.as_str()),
        );
    }
}

/// The worker of the manifest, when background work is switched.
pub(super) fn switched<'c>(ctx: &'c Ctx<'_>) -> Option<&'c Worker> {
    ctx.m.worker.as_ref().filter(|w| w.switch)
}

fn rbd_6(ctx: &Ctx<'_>, out: &mut Out) {
    for change in created(ctx, "aws_ecs_task_definition").filter(|c| !is_taskdef_on(ctx, c)) {
        if !change.known("container_definitions") {
            let text = "The container definitions are known only after apply.";
            out.fail(
                Finding::new("ATTR_UNKNOWN", text)
                    .at(&*change.address)
                    .path("container_definitions"),
            );
            continue;
        }
        let definitions = j::document(change.a("container_definitions"));
        let switch = switched(ctx).map(|w| (w, false));
        judge_containers(
            definitions.as_ref(),
            ctx.m.image.as_deref(),
            switch,
            &change.address,
            out,
        );
        let seen = change.a("skip_destroy");
        if !change.known("skip_destroy") || *seen != Value::Bool(true) {
            let text = "Without skip_destroy the rollback deregisters the revision.";
            let finding = Finding::new("TD_SKIP_DESTROY", text)
                .at(&*change.address)
                .path("skip_destroy");
            out.fail(finding.want(true).saw(seen.clone()));
        }
    }
}

/// Whether a record has no routing policy, alias or set identifier.
pub(super) fn is_plain(change: &Change<'_>) -> bool {
    let policies = [
        "alias",
        "weighted_routing_policy",
        "failover_routing_policy",
        "geolocation_routing_policy",
        "geoproximity_routing_policy",
        "latency_routing_policy",
        "cidr_routing_policy",
        "set_identifier",
    ];
    policies
        .iter()
        .all(|path| j::is_empty(change.a(path)) && change.known(path))
        && *change.a("multivalue_answer_routing_policy") != Value::Bool(true)
}

fn named<'c>(ctx: &'c Ctx<'_>, name: &'c str) -> impl Iterator<Item = &'c Change<'c>> {
    let records = ctx
        .plan()
        .into_iter()
        .flat_map(|p| p.of_type("aws_route53_record"));
    records.filter(move |c| c.a("name").as_str().is_some_and(|n| names::dns_eq(n, name)))
}

fn rbd_7(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(cert) = &ctx.cert else { return };
    if cert.outcome != "absent" {
        return;
    }
    let listed = ctx.validation_address();
    let by_address = ctx
        .plan()
        .and_then(|p| p.change(listed))
        .filter(|c| c.action == Action::Create);
    let records: Vec<&Change<'_>> = match by_address {
        Some(one) => {
            let others =
                named(ctx, &cert.name).filter(|c| c.action == Action::Create && *c.address != *listed);
            std::iter::once(one).chain(others).collect()
        }
        None => named(ctx, &cert.name)
            .filter(|c| c.action == Action::Create)
            .collect(),
    };
    let [record] = records.as_slice() else {
        let text = format!(
            "The plan creates {} validation records; it must create one.",
            records.len()
        );
        out.fail(
            Finding::new("VALIDATION_RECORD_MISMATCH", text)
                .at(listed)
                .want(1)
                .saw(records.len()),
        );
        return;
    };
    let config = ctx.plan().and_then(|p| p.config(&record.address));
    let wanted: [(&str, Value); 4] = [
        ("zone_id", json!(cert.zone_id)),
        ("name", json!(cert.name)),
        ("type", json!(cert.kind)),
        ("records", json!([cert.value])),
    ];
    for (path, want) in wanted {
        if !record.known(path) {
            let text = "The value is known only after apply.";
            out.fail(Finding::new("ATTR_UNKNOWN", text).at(&*record.address).path(path));
            continue;
        }
        let literal = config.is_some_and(|c| c.expression(path).get("constant_value").is_some());
        let seen = record.a(path);
        if !j::dns_equal(&want, seen) || !literal {
            let text = "The record is not, literally, the one of cert-requested.json.";
            let finding = Finding::new("VALIDATION_RECORD_MISMATCH", text)
                .at(&*record.address)
                .path(path);
            out.fail(finding.want(want).saw(seen.clone()));
        }
    }
    if !is_plain(record) {
        let text = "The record has a routing policy or an alias.";
        out.fail(
            Finding::new("VALIDATION_RECORD_MISMATCH", text)
                .at(&*record.address)
                .path("routing"),
        );
    }
    overwrite(record, "VALIDATION_ALLOW_OVERWRITE", out);
}

/// `allow_overwrite` must be false, and said: left out it is unknown.
fn overwrite(record: &Change<'_>, code: &'static str, out: &mut Out) {
    let seen = record.a("allow_overwrite");
    let finding = |code, text: &str| {
        Finding::new(code, text)
            .at(&*record.address)
            .path("allow_overwrite")
            .want(false)
    };
    if !record.known("allow_overwrite") {
        let text = "allow_overwrite must be written as false; left out it is known only after apply.";
        out.fail(finding("ATTR_UNKNOWN", text));
    } else if *seen != Value::Bool(false) {
        out.fail(finding(code, "The record would silently overwrite one that is there.").saw(seen.clone()));
    }
}

fn waiters<'c>(ctx: &'c Ctx<'_>) -> Vec<&'c Change<'c>> {
    ctx.plan()
        .into_iter()
        .flat_map(|p| p.of_type("aws_acm_certificate_validation"))
        .collect()
}

fn rbd_8(ctx: &Ctx<'_>, out: &mut Out) {
    let (Some(cert), Some(plan)) = (&ctx.cert, ctx.plan()) else {
        return;
    };
    if cert.outcome != "absent" {
        for record in named(ctx, &cert.name).filter(|c| c.action == Action::Create) {
            let text = format!(
                "The outcome is {}: the record exists and must not be created.",
                cert.outcome
            );
            out.fail(Finding::new("VALIDATION_RECORD_UNEXPECTED", text).at(&*record.address));
        }
    }
    let waiters = waiters(ctx);
    if waiters.is_empty() {
        let text = "The plan has no certificate validation waiter.";
        out.fail(Finding::new("VALIDATION_FQDN_MISMATCH", text).at("aws_acm_certificate_validation"));
    }
    for waiter in waiters {
        let path = "validation_record_fqdns";
        let constant = plan
            .config(&waiter.address)
            .is_some_and(|c| c.expression(path).get("constant_value").is_some());
        let (want, seen) = (json!([cert.name]), waiter.a(path));
        if !waiter.known(path) || !constant || !j::dns_equal(&want, seen) {
            let text = "The waiter does not name, literally, the validation record.";
            let finding = Finding::new("VALIDATION_FQDN_MISMATCH", text)
                .at(&*waiter.address)
                .path(path);
            out.fail(finding.want(want).saw(seen.clone()));
        }
        let seen = waiter.a("certificate_arn");
        if !waiter.known("certificate_arn") || seen.as_str() != Some(cert.certificate_arn.as_str()) {
            let text = "The waiter waits for another certificate.";
            let finding = Finding::new("CERT_ARN_MISMATCH", text)
                .at(&*waiter.address)
                .path("certificate_arn");
            out.fail(finding.want(cert.certificate_arn.as_str()).saw(seen.clone()));
        }
    }
}

/// The load balancer that the manifest names in this phase; the only one of the plan otherwise.
fn load_balancer(ctx: &Ctx<'_>) -> Option<String> {
    let listed = ctx
        .entry()
        .and_then(|e| e.addresses_of("aws_lb").next().map(str::to_owned));
    listed.or_else(|| {
        ctx.plan()?
            .of_type("aws_lb")
            .next()
            .map(|c| c.address.to_string())
    })
}

fn rbd_9(ctx: &Ctx<'_>, out: &mut Out) {
    if ctx.m.has_custom_domain() {
        return;
    }
    let (Some(plan), Some(name)) = (ctx.plan(), ctx.m.new_host.as_deref()) else {
        return;
    };
    // Any created record that is not the validation record is meant to be the one of new_host.
    let validation = ctx.cert.as_ref().map(|c| c.name.clone()).unwrap_or_default();
    let is_validation = |c: &Change<'_>| {
        *c.address == *ctx.validation_address()
            || c.a("name")
                .as_str()
                .is_some_and(|n| names::dns_eq(n, &validation))
    };
    let records: Vec<&Change<'_>> = created(ctx, "aws_route53_record")
        .filter(|c| !is_validation(c))
        .collect();
    let [record] = records.as_slice() else {
        let text = format!(
            "The plan creates {} records for new_host; it must create one.",
            records.len()
        );
        out.fail(
            Finding::new("NEWHOST_MISSING", text)
                .path(name)
                .want(1)
                .saw(records.len()),
        );
        return;
    };
    let finding = |code, text: &str, path: &str| Finding::new(code, text).at(&*record.address).path(path);
    let seen = record.a("name");
    if !record.known("name") || !seen.as_str().is_some_and(|n| names::dns_eq(n, name)) {
        out.fail(
            finding("NEWHOST_NAME", "The record has another name.", "name")
                .want(name)
                .saw(seen.clone()),
        );
    }
    let zone = record.a("zone_id");
    if !record.known("zone_id") || zone.as_str().is_none_or(|z| names::zone_id(z) != ctx.m.zone_id) {
        out.fail(
            finding("NEWHOST_NAME", "The record is in another zone.", "zone_id")
                .want(ctx.m.zone_id.as_str())
                .saw(zone.clone()),
        );
    }
    let plain_parts = [
        "records",
        "ttl",
        "set_identifier",
        "weighted_routing_policy",
        "failover_routing_policy",
        "geolocation_routing_policy",
        "geoproximity_routing_policy",
        "latency_routing_policy",
        "cidr_routing_policy",
    ];
    let alias = record.a("alias").as_array().is_some_and(|a| a.len() == 1);
    let clean = plain_parts
        .iter()
        .all(|p| j::is_empty(record.a(p)) && record.known(p))
        && *record.a("multivalue_answer_routing_policy") != Value::Bool(true);
    if !record.known("type") || record.a("type").as_str() != Some("A") || !alias || !clean {
        let text = "The record must be an alias of type A without records, TTL or routing policy.";
        out.fail(
            finding("NEWHOST_TYPE", text, "type")
                .want("A")
                .saw(record.a("type").clone()),
        );
    }
    // The target does not exist yet: prove it from the configuration (2.11 row 4).
    let lb = load_balancer(ctx).unwrap_or_default();
    let config = plan.config(&record.address);
    for path in ["alias.0.name", "alias.0.zone_id"] {
        let suffix = if path.ends_with("name") {
            "dns_name"
        } else {
            "zone_id"
        };
        let exact = config.is_some_and(|c| {
            c.refers_only_to(path, &lb)
                && c.references(path).first() == Some(&format!("{lb}.{suffix}").as_str())
        });
        // After the load balancer exists the value is a literal, and then it must still come from there.
        if lb.is_empty() || !exact {
            let seen: Vec<String> = config
                .map(|c| c.references(path).iter().map(|r| (*r).to_owned()).collect())
                .unwrap_or_default();
            let text = "The alias does not point at the load balancer of this root.";
            out.fail(
                finding("NEWHOST_TARGET", text, path)
                    .want(format!("{lb}.{suffix}"))
                    .saw(seen),
            );
        }
    }
    overwrite(record, "NEWHOST_ALLOW_OVERWRITE", out);
}

/// The run's certificate, live. Not found is a finding of its own (RBD-10).
fn live_certificate(ctx: &Ctx<'_>, out: &mut Out) -> Option<Certificate> {
    let Some(arn) = ctx.certificate_arn() else {
        let text =
            "The certificate of the run is not known: give cert-requested.json or the state with values.";
        out.fail(Finding::new("EVID_MISSING", text).path("cert_requested"));
        return None;
    };
    match certificate::describe(ctx, &arn) {
        Ok(certificate) => Some(certificate),
        Err(gap) if certificate::not_found(&gap) => {
            let text = "ACM knows no such certificate.";
            out.fail(
                Finding::new("CERT_STATUS", text)
                    .path("Status")
                    .saw("not found")
                    .fix(RECOVER_CERTIFICATE),
            );
            None
        }
        Err(gap) => {
            out.gap(gap);
            None
        }
    }
}

fn rbd_10(ctx: &Ctx<'_>, out: &mut Out) {
    if let Some(certificate) = live_certificate(ctx, out) {
        certificate::certificate_status(&certificate, out);
    }
}

fn age(ctx: &Ctx<'_>, certificate: &Certificate, out: &mut Out) -> Option<SignedDuration> {
    let created = certificate.created_at;
    if created.is_none() {
        out.gap(Gap::Malformed("acm:DescribeCertificate has no CreatedAt".into()));
    }
    created.map(|at| ctx.now.duration_since(at))
}

fn too_old(age: SignedDuration) -> Finding {
    let text = format!(
        "The certificate was requested {} h {:02} min ago; ACM gives up after 72 hours.",
        age.as_mins() / 60,
        age.as_mins() % 60
    );
    Finding::new("CERT_TOO_OLD", text)
        .path("CreatedAt")
        .want("less than 72 h")
        .fix(RECOVER_CERTIFICATE)
}

fn rbd_11(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(certificate) = live_certificate(ctx, out) else {
        return;
    };
    let Some(age) = age(ctx, &certificate, out) else {
        return;
    };
    let adopted = matches!(ctx.outcome(), Some("owned" | "unowned"));
    if ctx.m.allow_old_issued && adopted && certificate.status == "ISSUED" {
        return; // 2.11 row 3
    }
    if age >= CERT_WINDOW {
        out.fail(too_old(age));
    } else if age >= SignedDuration::from_hours(60) && certificate.status == "PENDING_VALIDATION" {
        let left = (CERT_WINDOW - age).as_mins();
        let text = format!(
            "The certificate window closes in {} h {:02} min.",
            left / 60,
            left % 60
        );
        out.warn(Finding::new("WARN_CERT_WINDOW", text));
    }
}

fn rbd_12(ctx: &Ctx<'_>, out: &mut Out) {
    let (Some(plan), Some(cert)) = (ctx.plan(), &ctx.cert) else {
        return;
    };
    let Some(change) = plan.change(&ctx.m.cert_address) else {
        return;
    };
    let seen = change.b("arn");
    if change.action != Action::NoOp || seen.as_str() != Some(cert.certificate_arn.as_str()) {
        let text =
            "The certificate of 2a is not kept as it is: after a time-out the provider plans a new one.";
        let finding = Finding::new("CERT_RECREATED", text)
            .at(&*change.address)
            .path("arn");
        out.fail(
            finding
                .want(cert.certificate_arn.as_str())
                .saw(seen.clone())
                .fix(RECOVER_CERTIFICATE),
        );
    }
}

fn rbd_13(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(cert) = &ctx.cert else { return };
    let stated = ctx.m.validation.as_ref().and_then(|v| v.outcome.as_deref());
    let changed = |text: &str| Finding::new("VALIDATION_OUTCOME_CHANGED", text).path(cert.name.as_str());
    if let Some(stated) = stated.filter(|s| *s != cert.outcome) {
        let text = "The manifest was generated for another outcome than cert-requested.json says.";
        out.fail(changed(text).want(cert.outcome.as_str()).saw(stated));
    }
    if cert.outcome == "blocked" {
        let text = "The outcome of cert-requested is blocked: something else is at the name.";
        out.fail(Finding::new("VALIDATION_RECORD_CONFLICT", text).path(cert.name.as_str()));
        return;
    }
    let Some(records) = out.read(ctx.live.records(&ctx.m.zone_id, &cert.name)) else {
        return;
    };
    let fine = match records.as_slice() {
        [] => cert.outcome == "absent",
        [one] => {
            let same = one.kind == "CNAME"
                && one.is_simple()
                && one.only_value().is_some_and(|v| names::dns_eq(v, &cert.value));
            cert.outcome != "absent" && same
        }
        _ => false,
    };
    if !fine {
        let seen: Vec<Value> = records
            .iter()
            .map(|r| json!({"type": r.kind, "values": r.values}))
            .collect();
        let text = "DNS no longer gives the outcome that cert-requested.json recorded.";
        out.fail(changed(text).want(cert.outcome.as_str()).saw(json!(seen)));
    }
}

fn rbd_14(ctx: &Ctx<'_>, out: &mut Out) {
    let (Some(plan), Some(cert)) = (ctx.plan(), &ctx.cert) else {
        return;
    };
    let listeners = plan
        .of_type("aws_lb_listener")
        .filter(|c| c.a("port").as_i64() == Some(443));
    // With a shared load balancer the certificate is added to a listener that exists.
    let all: Vec<&Change<'_>> = listeners
        .chain(plan.of_type("aws_lb_listener_certificate"))
        .collect();
    if all.is_empty() {
        let text = "The plan has no listener on port 443.";
        out.fail(Finding::new("LISTENER_CERT", text).at("aws_lb_listener"));
    }
    let waiters: Vec<String> = waiters(ctx).iter().map(|w| w.address.to_string()).collect();
    for change in all {
        let seen = change.a("certificate_arn");
        let through = waiters.iter().any(|w| {
            plan.config(&change.address)
                .is_some_and(|c| c.refers_only_to("certificate_arn", w))
        });
        if !change.known("certificate_arn")
            || seen.as_str() != Some(cert.certificate_arn.as_str())
            || !through
        {
            let text = "The listener does not take the certificate from its validation waiter.";
            let finding = Finding::new("LISTENER_CERT", text)
                .at(&*change.address)
                .path("certificate_arn");
            out.fail(finding.want(cert.certificate_arn.as_str()).saw(seen.clone()));
        }
    }
}

fn rbd_15(ctx: &Ctx<'_>, out: &mut Out) {
    for change in created(ctx, "aws_ecs_service") {
        for (path, want) in [("enable", true), ("rollback", false)] {
            let path = format!("deployment_circuit_breaker.0.{path}");
            if !change.known(&path) || *change.a(&path) != Value::Bool(want) {
                let text = "The circuit breaker must stop a bad deployment and not roll back, so that the state stays honest.";
                let finding = Finding::new("ECS_CIRCUIT_BREAKER", text)
                    .at(&*change.address)
                    .path(path.as_str());
                out.fail(finding.want(want).saw(change.a(&path).clone()));
            }
        }
    }
}

fn rbd_16(ctx: &Ctx<'_>, out: &mut Out) {
    let (Some(plan), Some(cert)) = (ctx.plan(), &ctx.cert) else {
        return;
    };
    if cert.outcome != "absent" {
        return;
    }
    let record = ctx.validation_address();
    for waiter in waiters(ctx) {
        let depends = plan
            .config(&waiter.address)
            .is_some_and(|c| c.depends_on.iter().any(|d| *d == record));
        if !depends {
            let text = "The names are literals, so only depends_on makes the waiter wait for the record.";
            out.fail(
                Finding::new("VALIDATION_DEPENDS_ON", text)
                    .at(&*waiter.address)
                    .path("depends_on")
                    .want(record),
            );
        }
    }
}

// ---------------------------------------------------------------------------------------------- live service

/// ARN, name and cluster of the ECS service, from the infra-rebuild state.
fn identity(state: &State) -> Option<(String, String, Option<String>)> {
    let (_, values) = state.of_type("aws_ecs_service").next()?;
    let text = |path: &str| j::str_at(values, path).map(str::to_owned);
    Some((
        text("id").or_else(|| text("arn"))?,
        text("name")?,
        text("cluster"),
    ))
}

/// `ecs:DescribeServices` of the run's service.
pub(super) fn ecs_service<'c>(ctx: &'c Ctx<'_>, out: &mut Out) -> Option<&'c Value> {
    let known = ctx
        .state_rebuild
        .as_ref()
        .and_then(identity)
        .or_else(|| planned_identity(ctx));
    let Some((arn, name, _)) = known else {
        let text = "The ECS service is not known: give the infra-rebuild state with values.";
        out.fail(Finding::new("EVID_MISSING", text).path("state_rebuild"));
        return None;
    };
    let page = out.read(ctx.live.one("ecs:DescribeServices", &[("services", Some(&name))]))?;
    let missing = |text: &str| {
        Finding::new("ECS_SERVICE_MISSING", text)
            .path("services")
            .want(arn.as_str())
    };
    let failures = page
        .get("failures")
        .and_then(Value::as_array)
        .is_some_and(|f| !f.is_empty());
    let services = page
        .get("services")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    match services {
        [one] if !failures => {
            if j::str_at(one, "serviceArn").is_some_and(|seen| seen != arn) {
                out.fail(
                    missing("The live read answers for another service.").saw(j::str_at(one, "serviceArn")),
                );
                return None;
            }
            if j::str_at(one, "status").is_some_and(|s| s != "ACTIVE") {
                out.fail(missing("The service is not active.").saw(j::str_at(one, "status")));
                return None;
            }
            Some(one)
        }
        _ => {
            out.fail(missing("The read did not give exactly this service.").saw(services.len()));
            None
        }
    }
}

/// The service's identity by the plan's own entry, for phases that bring no state.
fn planned_identity(ctx: &Ctx<'_>) -> Option<(String, String, Option<String>)> {
    let change = ctx.plan()?.of_type("aws_ecs_service").next()?;
    let text = |path: &str| change.b(path).as_str().map(str::to_owned);
    Some((
        text("id").or_else(|| text("arn"))?,
        text("name")?,
        text("cluster"),
    ))
}

/// `ecs:DescribeTaskDefinition` of a revision.
pub(super) fn task_definition<'c>(ctx: &'c Ctx<'_>, arn: &str) -> Result<&'c Value, Gap> {
    const CALL: &str = "ecs:DescribeTaskDefinition";
    let page = match ctx.live.one(CALL, &[("taskDefinition", Some(arn))]) {
        // The input may name family:revision; the answer says the ARN.
        Err(Gap::Missing(text)) => {
            let tail = arn.rsplit('/').next().unwrap_or(arn);
            match ctx.live.one(CALL, &[("taskDefinition", Some(tail))]) {
                Err(Gap::Missing(_)) => return Err(Gap::Missing(text)),
                other => other?,
            }
        }
        other => other?,
    };
    let definition = page
        .get("taskDefinition")
        .ok_or_else(|| Gap::Malformed(format!("{CALL} has no taskDefinition")))?;
    if j::str_at(definition, "taskDefinitionArn") != Some(arn) {
        return Err(Gap::Malformed(format!(
            "{CALL} answers for another revision than {arn}"
        )));
    }
    Ok(definition)
}

fn cre_1(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(service) = ecs_service(ctx, out) else {
        return;
    };
    for path in ["runningCount", "pendingCount", "desiredCount"] {
        let seen = service.get(path).and_then(Value::as_i64);
        if seen != Some(0) {
            let text = "The service must be at zero after it was created.";
            out.fail(
                Finding::new("ECS_COUNTS_NOT_ZERO", text)
                    .path(path)
                    .want(0)
                    .saw(seen),
            );
        }
    }
}

fn cre_2(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(state) = &ctx.state_rebuild else { return };
    let resource = state.first_text("aws_appautoscaling_target", "resource_id");
    let list = ctx.live.items(
        "application-autoscaling:DescribeScalableTargets",
        &[],
        "ScalableTargets",
    );
    let Some(list) = out.read(list) else { return };
    let target = list
        .into_iter()
        .find(|t| resource.is_some() && j::str_at(t, "ResourceId") == resource.as_deref());
    let seen = target.map(|t| {
        (
            t.get("MinCapacity").and_then(Value::as_i64),
            t.get("MaxCapacity").and_then(Value::as_i64),
        )
    });
    if seen != Some((Some(0), Some(0))) {
        let text = "The scalable target is not there at 0/0.";
        out.fail(
            Finding::new("SCALE_NOT_ZERO", text)
                .path("ScalableTargets")
                .want(json!([0, 0]))
                .saw(json!(seen)),
        );
    }
}

fn cre_3(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(service) = ecs_service(ctx, out) else {
        return;
    };
    let arn = j::str_at(service, "taskDefinition").unwrap_or("");
    let Some(definition) = out.read(task_definition(ctx, arn)) else {
        return;
    };
    active(definition, out);
    let switch = switched(ctx).map(|w| (w, false));
    judge_containers(
        definition.get("containerDefinitions"),
        ctx.m.image.as_deref(),
        switch,
        arn,
        out,
    );
}

/// A revision must be active to run or be updated to.
pub(super) fn active(definition: &Value, out: &mut Out) {
    let seen = j::str_at(definition, "status");
    if seen != Some("ACTIVE") {
        let arn = j::str_at(definition, "taskDefinitionArn").unwrap_or("?");
        let text = "The revision is not active: no service can use it.";
        out.fail(
            Finding::new("TD_NOT_ACTIVE", text)
                .at(arn)
                .path("status")
                .want("ACTIVE")
                .saw(seen),
        );
    }
}

fn cre_4(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(certificate) = live_certificate(ctx, out) else {
        return;
    };
    let name = ctx.m.name().unwrap_or("");
    if !certificate.covers(name) {
        let text = "The certificate does not cover the name that clients use.";
        out.fail(
            Finding::new("CERT_NOT_COVERING", text)
                .want(name)
                .saw(json!(certificate.names)),
        );
    }
}

/// The listeners of the run's load balancer.
fn listeners<'c>(ctx: &'c Ctx<'_>, out: &mut Out) -> Option<Vec<&'c Value>> {
    let lb = lb_arn(ctx);
    let list = out.read(
        ctx.live
            .items("elasticloadbalancing:DescribeListeners", &[], "Listeners"),
    )?;
    Some(
        list.into_iter()
            .filter(|l| lb.is_none() || j::str_at(l, "LoadBalancerArn") == lb.as_deref())
            .collect(),
    )
}

/// The load balancer: of the infra-rebuild state, or of the shared root's.
pub(super) fn lb_arn(ctx: &Ctx<'_>) -> Option<String> {
    let of = |state: &Option<State>| state.as_ref().and_then(|s| s.first_text("aws_lb", "arn"));
    of(&ctx.state_rebuild).or_else(|| of(&ctx.state_alb))
}

fn cre_5(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(arn) = ctx.certificate_arn() else { return };
    let Some(list) = listeners(ctx, out) else { return };
    let mut found = false;
    for listener in list
        .iter()
        .filter(|l| l.get("Port").and_then(Value::as_i64) == Some(443))
    {
        let holds = |list: Option<&Value>| {
            let items = list.and_then(Value::as_array).into_iter().flatten();
            items
                .filter_map(|c| j::str_at(c, "CertificateArn"))
                .any(|seen| seen == arn)
        };
        if holds(listener.get("Certificates")) {
            found = true;
            continue;
        }
        // Not the default: look at the SNI list.
        let listener_arn = j::str_at(listener, "ListenerArn").unwrap_or("");
        let keys = [("ListenerArn", Some(listener_arn))];
        let Some(page) = out.read(ctx.live.items(
            "elasticloadbalancing:DescribeListenerCertificates",
            &keys,
            "Certificates",
        )) else {
            return;
        };
        found |= page
            .iter()
            .any(|c| j::str_at(c, "CertificateArn") == Some(arn.as_str()));
    }
    if !found {
        let text = "No listener on port 443 has the certificate.";
        out.fail(Finding::new("CERT_NOT_ON_LISTENER", text).want(arn));
    }
}

fn cre_6(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(certificate) = live_certificate(ctx, out) else {
        return;
    };
    if certificate.status == "ISSUED" {
        return;
    }
    certificate::certificate_status(&certificate, out);
    let Some(age) = age(ctx, &certificate, out) else {
        return;
    };
    if age >= CERT_WINDOW {
        out.fail(too_old(age));
    } else if certificate.status == "PENDING_VALIDATION" {
        let text = "ACM has not issued the certificate yet.";
        out.wait(
            Finding::new("CERT_NOT_ISSUED", text)
                .path("Status")
                .want("ISSUED")
                .saw("PENDING_VALIDATION"),
        );
    }
}

/// Subnets, security groups and public IP of the live service.
struct Network {
    subnets: Vec<String>,
    groups: BTreeSet<String>,
    public_ip: bool,
}

fn network(service: &Value) -> Network {
    let texts = |path: &str| {
        let list = j::at(service, path)
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        list.filter_map(Value::as_str)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let base = "networkConfiguration.awsvpcConfiguration";
    Network {
        subnets: texts(&format!("{base}.subnets")),
        groups: texts(&format!("{base}.securityGroups")).into_iter().collect(),
        public_ip: j::str_at(service, &format!("{base}.assignPublicIp")) == Some("ENABLED"),
    }
}

fn vpc(ctx: &Ctx<'_>) -> Option<String> {
    let state = ctx.state_rebuild.as_ref()?;
    state
        .first_text("aws_lb_target_group", "vpc_id")
        .or_else(|| state.first_text("aws_security_group", "vpc_id"))
}

fn cre_7(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(service) = ecs_service(ctx, out) else {
        return;
    };
    let Some(tables) = out.read(ctx.live.items("ec2:DescribeRouteTables", &[], "RouteTables")) else {
        return;
    };
    let (network, vpc) = (network(service), vpc(ctx));
    let associated = |table: &Value, subnet: &str| {
        let list = table
            .get("Associations")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        list.clone().any(|a| j::str_at(a, "SubnetId") == Some(subnet))
    };
    let is_main = |table: &Value| {
        let mut list = table
            .get("Associations")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        list.any(|a| a.get("Main") == Some(&Value::Bool(true)))
            && vpc.is_some()
            && j::str_at(table, "VpcId") == vpc.as_deref()
    };
    if network.subnets.is_empty() {
        out.fail(Finding::new("NET_NO_EGRESS", "The service has no subnets."));
    }
    for subnet in &network.subnets {
        let table = tables
            .iter()
            .find(|t| associated(t, subnet))
            .or_else(|| tables.iter().find(|t| is_main(t)));
        let Some(table) = table else {
            let text = format!("No route table of {subnet} was read.");
            out.fail(Finding::new("NET_NO_EGRESS", text).at(subnet.as_str()));
            continue;
        };
        let before = out.len();
        if !egress(ctx, table, &network, vpc.as_deref(), service, out) && out.len() == before {
            let text = "The subnet has no way to the registry, the log group and the secrets: no available NAT, no \
                        internet gateway with a public IP, and not all endpoints.";
            out.fail(Finding::new("NET_NO_EGRESS", text).at(subnet.as_str()));
        }
    }
    vpc_dns(ctx, vpc.as_deref(), out);
}

fn egress(
    ctx: &Ctx<'_>,
    table: &Value,
    network: &Network,
    vpc: Option<&str>,
    service: &Value,
    out: &mut Out,
) -> bool {
    let routes = table
        .get("Routes")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let default = routes.filter(|r| j::str_at(r, "DestinationCidrBlock") == Some("0.0.0.0/0"));
    for route in default.filter(|r| j::str_at(r, "State") != Some("blackhole")) {
        if let Some(nat) = j::str_at(route, "NatGatewayId") {
            let Some(list) = out.read(ctx.live.items("ec2:DescribeNatGateways", &[], "NatGateways")) else {
                return false;
            };
            let available = |n: &&Value| {
                j::str_at(n, "NatGatewayId") == Some(nat) && j::str_at(n, "State") == Some("available")
            };
            if list.iter().any(available) {
                return true;
            }
        }
        if let Some(igw) = j::str_at(route, "GatewayId").filter(|g| g.starts_with("igw-"))
            && network.public_ip
        {
            let Some(list) = out.read(ctx.live.items(
                "ec2:DescribeInternetGateways",
                &[],
                "InternetGateways",
            )) else {
                return false;
            };
            let attached = |g: &&Value| {
                let mut list = g
                    .get("Attachments")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten();
                let here = |a: &Value| {
                    matches!(j::str_at(a, "State"), Some("available" | "attached"))
                        && (vpc.is_none() || j::str_at(a, "VpcId") == vpc)
                };
                j::str_at(g, "InternetGatewayId") == Some(igw) && list.any(here)
            };
            if list.iter().any(attached) {
                return true;
            }
        }
    }
    endpoints(ctx, table, vpc, service, out)
}

fn endpoints(ctx: &Ctx<'_>, table: &Value, vpc: Option<&str>, service: &Value, out: &mut Out) -> bool {
    if !ctx.live.any("ec2:DescribeVpcEndpoints") {
        return false;
    }
    let Some(list) = out.read(ctx.live.items("ec2:DescribeVpcEndpoints", &[], "VpcEndpoints")) else {
        return false;
    };
    let table_id = j::str_at(table, "RouteTableId");
    let arn = j::str_at(service, "taskDefinition").unwrap_or("");
    let secrets = task_definition(ctx, arn).map(secrets).unwrap_or_default();
    let mut wanted = vec!["ecr.api", "ecr.dkr", "s3", "logs"];
    if secrets.iter().any(|s| s.contains(":secretsmanager:")) {
        wanted.push("secretsmanager");
    }
    if secrets.iter().any(|s| !s.contains(":secretsmanager:")) {
        wanted.push("ssm");
    }
    wanted.iter().all(|name| {
        list.iter().any(|e| {
            let service = format!("com.amazonaws.{}.{name}", ctx.m.region);
            let there = j::str_at(e, "ServiceName") == Some(service.as_str())
                && j::str_at(e, "State").is_some_and(|s| s.eq_ignore_ascii_case("available"))
                && (vpc.is_none() || j::str_at(e, "VpcId") == vpc);
            let tables = e
                .get("RouteTableIds")
                .and_then(Value::as_array)
                .into_iter()
                .flatten();
            let routed = tables.filter_map(Value::as_str).any(|t| Some(t) == table_id);
            there && (*name != "s3" || (j::str_at(e, "VpcEndpointType") == Some("Gateway") && routed))
        })
    })
}

/// What the containers take from secret stores.
fn secrets(definition: &Value) -> Vec<String> {
    let containers = definition
        .get("containerDefinitions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let all = containers.flat_map(|c| c.get("secrets").and_then(Value::as_array).into_iter().flatten());
    all.filter_map(|s| j::str_at(s, "valueFrom"))
        .map(str::to_owned)
        .collect()
}

fn vpc_dns(ctx: &Ctx<'_>, vpc: Option<&str>, out: &mut Out) {
    let Some(pages) = out.read(ctx.live.pages("ec2:DescribeVpcAttribute", &[("VpcId", vpc)])) else {
        return;
    };
    for key in ["EnableDnsSupport", "EnableDnsHostnames"] {
        let value = pages.iter().find_map(|p| j::at(p, &format!("{key}.Value")));
        match value {
            Some(Value::Bool(true)) => {}
            Some(other) => {
                let text = "The VPC must resolve names.";
                out.fail(
                    Finding::new("NET_VPC_DNS", text)
                        .path(key)
                        .want(true)
                        .saw(other.clone()),
                );
            }
            None => out.gap(Gap::Missing(format!("ec2:DescribeVpcAttribute {key}"))),
        }
    }
}

/// The task's and the load balancer's security groups, of the infra-rebuild state.
fn own_groups(state: &State) -> (BTreeSet<String>, BTreeSet<String>) {
    let texts = |value: &Value, path: &str| {
        let list = j::at(value, path).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(Value::as_str)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let lb: BTreeSet<String> = state
        .of_type("aws_lb")
        .flat_map(|(_, v)| texts(v, "security_groups"))
        .collect();
    let all = state
        .of_type("aws_security_group")
        .filter_map(|(_, v)| j::str_at(v, "id").map(str::to_owned));
    (all.filter(|id| !lb.contains(id)).collect(), lb)
}

/// The security groups with which Terraform made a service.
fn planned_groups(service: &Value) -> Vec<String> {
    let list = j::at(service, "network_configuration.0.security_groups").and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

fn cre_8(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(state) = &ctx.state_rebuild else { return };
    let Some(service) = ecs_service(ctx, out) else {
        return;
    };
    let seen = network(service).groups;
    let (mut want, _) = own_groups(state);
    let of_app_runner = ctx.state_m5a.iter().flat_map(|s| s.of_type("aws_security_group"));
    let service_group = of_app_runner.filter(|(address, _)| address.to_ascii_lowercase().contains("service"));
    let service_group: Vec<String> = service_group
        .filter_map(|(_, v)| j::str_at(v, "id").map(str::to_owned))
        .collect();
    let decided = ctx
        .decisions
        .as_ref()
        .and_then(|d| d.0.get("env_sg"))
        .and_then(Value::as_object);
    for (group, word) in decided.into_iter().flatten() {
        if word.as_str() == Some("join") {
            want.insert(group.clone());
        }
    }
    if service_group.is_empty() {
        // The M5a state does not show ServiceSecurityGroup. The one further group with which Terraform made the
        // service is it, unless something else was decided about that group.
        let made: Vec<String> = state
            .of_type("aws_ecs_service")
            .flat_map(|(_, v)| planned_groups(v))
            .collect();
        let decided = |group: &&String| decided.is_some_and(|d| d.contains_key(*group));
        let further: Vec<&String> = made
            .iter()
            .filter(|g| !want.contains(*g) && !decided(g))
            .collect();
        if let [one] = further.as_slice() {
            want.insert((*one).clone());
        }
    }
    want.extend(service_group);
    for group in seen.difference(&want) {
        if decided.is_none_or(|d| !d.contains_key(group)) {
            let text =
                format!("The service has the security group {group}, about which nothing was decided.");
            out.fail(Finding::new("DECISION_MISSING", text).path(format!("env_sg.{group}")));
        }
    }
    if seen != want {
        let text = "The security groups of the service are not those that were decided.";
        out.fail(
            Finding::new("SG_MISMATCH", text)
                .path("securityGroups")
                .want(json!(want))
                .saw(json!(seen)),
        );
    }
}

fn cre_9(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(state) = &ctx.state_rebuild else { return };
    let Some(service) = ecs_service(ctx, out) else {
        return;
    };
    let Some(rules) = out.read(
        ctx.live
            .items("ec2:DescribeSecurityGroupRules", &[], "SecurityGroupRules"),
    ) else {
        return;
    };
    let (tasks, lbs) = own_groups(state);
    let port = j::at(service, "loadBalancers.0.containerPort").and_then(Value::as_i64);
    let ingress = |rule: &Value, port: Option<i64>| {
        let (from, to) = (
            rule.get("FromPort").and_then(Value::as_i64),
            rule.get("ToPort").and_then(Value::as_i64),
        );
        let all = j::str_at(rule, "IpProtocol") == Some("-1");
        let tcp = matches!(j::str_at(rule, "IpProtocol"), Some("tcp" | "6"));
        let covers =
            matches!((from, to, port), (Some(from), Some(to), Some(port)) if from <= port && port <= to);
        rule.get("IsEgress") == Some(&Value::Bool(false)) && (all || (tcp && covers))
    };
    let group = |rule: &Value| j::str_at(rule, "GroupId").unwrap_or("").to_owned();
    let from_lb = rules.iter().any(|r| {
        let source = j::str_at(r, "ReferencedGroupInfo.GroupId").unwrap_or("");
        tasks.contains(&group(r)) && lbs.contains(source) && ingress(r, port)
    });
    if !from_lb {
        let text = "The tasks' security group does not let the load balancer reach the container port.";
        out.fail(
            Finding::new("SG_INGRESS", text)
                .path("SecurityGroupRules")
                .want(port),
        );
    }
    for client_port in [443, 80] {
        if !rules
            .iter()
            .any(|r| lbs.contains(&group(r)) && ingress(r, Some(client_port)))
        {
            let text =
                format!("The load balancer's security group does not let clients reach port {client_port}.");
            out.fail(
                Finding::new("SG_INGRESS", text)
                    .path("SecurityGroupRules")
                    .want(client_port),
            );
        }
    }
}

fn cre_10(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(service) = ecs_service(ctx, out) else {
        return;
    };
    let arn = j::str_at(service, "taskDefinition").unwrap_or("");
    let Some(definition) = out.read(task_definition(ctx, arn)) else {
        return;
    };
    let secrets = secrets(definition);
    let roles = [("executionRoleArn", !secrets.is_empty()), ("taskRoleArn", true)];
    for (key, needed) in roles {
        let Some(role) = j::str_at(definition, key).filter(|_| needed) else {
            continue;
        };
        let keys = [("PolicySourceArn", Some(role))];
        let Some(results) = out.read(ctx.live.items(
            "iam:SimulatePrincipalPolicy",
            &keys,
            "EvaluationResults",
        )) else {
            continue;
        };
        for result in &results {
            if j::str_at(result, "EvalDecision") != Some("allowed") {
                let action = j::str_at(result, "EvalActionName").unwrap_or("?");
                let text = format!("{role} may not {action}.");
                out.fail(
                    Finding::new("IAM_DENIED", text)
                        .at(role)
                        .path(action)
                        .saw(j::str_at(result, "EvalDecision")),
                );
            }
        }
        if key == "executionRoleArn" {
            for secret in &secrets {
                // A value may name a key inside the secret after three more colons.
                let bare: String = secret.split(':').take(7).collect::<Vec<_>>().join(":");
                let asked = results.iter().any(|r| {
                    j::str_at(r, "EvalResourceName").is_some_and(|n| n == secret || n == bare || n == "*")
                });
                if !asked {
                    out.gap(Gap::Missing(format!(
                        "iam:SimulatePrincipalPolicy of {role} on {bare}"
                    )));
                }
            }
        }
    }
}

fn cre_11(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(name) = ctx.m.new_host.as_deref().filter(|_| !ctx.m.has_custom_domain()) else {
        return;
    };
    let Some(records) = out.read(ctx.live.records(&ctx.m.zone_id, name)) else {
        return;
    };
    let arn = lb_arn(ctx);
    let list = ctx
        .live
        .items("elasticloadbalancing:DescribeLoadBalancers", &[], "LoadBalancers");
    let Some(list) = out.read(list) else { return };
    let lb = list
        .into_iter()
        .find(|l| arn.is_some() && j::str_at(l, "LoadBalancerArn") == arn.as_deref());
    let want = lb.and_then(|l| Some((j::str_at(l, "DNSName")?, j::str_at(l, "CanonicalHostedZoneId")?)));
    let seen = match records.as_slice() {
        [one] if one.kind == "A" => one.alias.clone(),
        _ => None,
    };
    let same = match (&want, &seen) {
        (Some((dns, zone)), Some((alias, alias_zone))) => {
            let alias = names::dns(alias);
            // Route 53 may show the dual-stack name of the same load balancer.
            (alias == names::dns(dns) || alias.strip_prefix("dualstack.") == Some(&names::dns(dns)))
                && zone == alias_zone
        }
        _ => false,
    };
    if !same {
        let text = "new_host does not point at the live load balancer.";
        out.fail(
            Finding::new("NEWHOST_TARGET", text)
                .path(name)
                .want(json!(want))
                .saw(json!(seen)),
        );
    }
}

// ---------------------------------------------------------------------------------------------- start, ready

fn start(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    certificate::only_phase_paths(ctx, "ATTR_CHANGE_NOT_ALLOWED", out);
    let targets: Vec<&Change<'_>> = plan
        .of_type("aws_appautoscaling_target")
        .filter(|c| c.action == Action::Update)
        .collect();
    let [target] = targets.as_slice() else {
        let text = format!("{} scalable targets change; one must.", targets.len());
        out.fail(Finding::new("START_VALUES", text).want(1).saw(targets.len()));
        return;
    };
    for (path, want) in [("min_capacity", ctx.m.min), ("max_capacity", ctx.m.max)] {
        let (before, after) = (target.b(path).as_i64(), target.a(path).as_i64());
        if !target.known(path) || before != Some(0) || after != want || want.is_none() {
            let text = "The scalable target must go from 0 to the manifest's scaling.";
            let finding = Finding::new("START_VALUES", text).at(&*target.address).path(path);
            out.fail(finding.want(json!([0, want])).saw(json!([before, after])));
        }
    }
}

fn rdy_1(ctx: &Ctx<'_>, out: &mut Out) {
    let min = ctx.m.min.unwrap_or(0);
    if min < 1 {
        let text = "With a minimum of 0 nothing would have to run, and ready would mean nothing.";
        out.fail(
            Finding::new("READY_VACUOUS", text)
                .path("scaling.min")
                .want(1)
                .saw(ctx.m.min),
        );
    }
    let Some(service) = ecs_service(ctx, out) else {
        return;
    };
    let count = |key: &str| service.get(key).and_then(Value::as_i64);
    let (running, desired) = (count("runningCount"), count("desiredCount"));
    if running.is_none() || running != desired || running < Some(min.max(1)) {
        let text = "Not as many tasks run as are wanted.";
        let finding = Finding::new("ECS_NOT_RUNNING", text).path("runningCount");
        out.fail(
            finding
                .want(json!({"at_least": min, "desired": desired}))
                .saw(running),
        );
    }
}

/// The primary deployment of a service.
pub(super) fn primary(service: &Value) -> Option<&Value> {
    let list = service.get("deployments")?.as_array()?;
    list.iter().find(|d| j::str_at(d, "status") == Some("PRIMARY"))
}

/// Judges the primary deployment (RDY-2, WN-3).
pub(super) fn deployment(service: &Value, out: &mut Out) {
    let state = primary(service).and_then(|d| j::str_at(d, "rolloutState"));
    let finding = |code, text: &str| {
        Finding::new(code, text)
            .path("deployments.rolloutState")
            .want("COMPLETED")
            .saw(state)
    };
    match state {
        Some("COMPLETED") => {}
        Some("IN_PROGRESS") => out.wait(finding(
            "ECS_DEPLOYMENT_PENDING",
            "The deployment is still in progress.",
        )),
        _ => out.fail(finding("ECS_DEPLOYMENT_FAILED", "The deployment failed.")),
    }
}

fn rdy_2(ctx: &Ctx<'_>, out: &mut Out) {
    if let Some(service) = ecs_service(ctx, out) {
        deployment(service, out);
    }
}

fn target_group(ctx: &Ctx<'_>) -> Option<String> {
    ctx.state_rebuild
        .as_ref()
        .and_then(|s| s.first_text("aws_lb_target_group", "arn"))
}

fn rdy_3(ctx: &Ctx<'_>, out: &mut Out) {
    let group = target_group(ctx);
    let keys = [("TargetGroupArn", group.as_deref())];
    let list = ctx.live.items(
        "elasticloadbalancing:DescribeTargetHealth",
        &keys,
        "TargetHealthDescriptions",
    );
    let Some(list) = out.read(list) else { return };
    let healthy = list
        .iter()
        .filter(|t| j::str_at(t, "TargetHealth.State") == Some("healthy"))
        .count();
    let min = ctx.m.min.unwrap_or(0).max(1);
    if i64::try_from(healthy).unwrap_or(i64::MAX) < min {
        let text = "Too few targets are healthy.";
        out.fail(
            Finding::new("TARGETS_UNHEALTHY", text)
                .path("TargetHealthDescriptions")
                .want(min)
                .saw(healthy),
        );
    }
}

fn forwards(actions: Option<&Value>, group: &str) -> bool {
    let list = actions.and_then(Value::as_array).into_iter().flatten();
    list.filter(|a| j::str_at(a, "Type") == Some("forward")).any(|a| {
        let groups = j::at(a, "ForwardConfig.TargetGroups").and_then(Value::as_array);
        match groups {
            // With weights every other group would take part of the traffic.
            Some(list) if !list.is_empty() => {
                list.iter().all(|g| j::str_at(g, "TargetGroupArn") == Some(group))
            }
            _ => j::str_at(a, "TargetGroupArn") == Some(group),
        }
    })
}

fn rdy_4(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(group) = target_group(ctx) else { return };
    let Some(list) = listeners(ctx, out) else { return };
    let name = ctx.m.name().unwrap_or("");
    for listener in list
        .iter()
        .filter(|l| l.get("Port").and_then(Value::as_i64) == Some(443))
    {
        let arn = j::str_at(listener, "ListenerArn").unwrap_or("");
        let rules = if ctx.live.any("elasticloadbalancing:DescribeRules") {
            let keys = [("ListenerArn", Some(arn))];
            out.read(
                ctx.live
                    .items("elasticloadbalancing:DescribeRules", &keys, "Rules"),
            )
            .unwrap_or_default()
        } else {
            Vec::new()
        };
        let host_rule = rules.iter().find(|rule| {
            let conditions = rule
                .get("Conditions")
                .and_then(Value::as_array)
                .into_iter()
                .flatten();
            conditions
                .filter(|c| j::str_at(c, "Field") == Some("host-header"))
                .any(|c| {
                    let values = j::at(c, "HostHeaderConfig.Values")
                        .or_else(|| c.get("Values"))
                        .and_then(Value::as_array);
                    values
                        .into_iter()
                        .flatten()
                        .filter_map(Value::as_str)
                        .any(|v| names::covers(v, name))
                })
        });
        let actions = match host_rule {
            Some(rule) => rule.get("Actions"),
            None => listener.get("DefaultActions"),
        };
        if forwards(actions, &group) {
            return;
        }
    }
    let text = "The listener on port 443 does not send the host to the target group.";
    out.fail(Finding::new("LISTENER_ROUTE", text).want(group));
}

fn rdy_6(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(name) = ctx.m.name() else { return };
    ctx.live.touched.set(true);
    let through_name = !ctx.m.has_custom_domain();
    let probe = ctx.live.tls.iter().rev().find(|t| {
        let host = t.connect.split(':').next().unwrap_or("");
        // A new host is tried through its own name; the old host still leads to App Runner.
        names::dns_eq(&t.sni, name) && (!through_name || names::dns_eq(host, name))
    });
    let Some(probe) = probe else {
        out.gap(Gap::Missing(format!("tls handshake with SNI {name}")));
        return;
    };
    match &probe.result {
        Ok(list) if list.iter().any(|n| names::covers(n, name)) => {}
        Ok(list) => {
            let text = "The handshake presents a certificate that does not cover the name.";
            out.fail(
                Finding::new("TLS_MISMATCH", text)
                    .path(name)
                    .want(name)
                    .saw(json!(list)),
            );
        }
        Err(why) => {
            let text = "The load balancer can't be reached with TLS.";
            out.fail(Finding::new("TLS_UNREACHABLE", text).path(name).saw(why.as_str()));
        }
    }
}

fn rdy_7(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(decisions) = &ctx.decisions else { return };
    let (Some(path), Some(want)) = (
        decisions.text("safe_path.path"),
        j::at(&decisions.0, "safe_path.status").and_then(Value::as_i64),
    ) else {
        return; // IN-8
    };
    ctx.live.touched.set(true);
    let found = ctx.live.http.iter().rev().find(|(url, _)| url_path(url) == path);
    match found {
        Some((_, Some(status))) if *status == want => {}
        Some((url, status)) => {
            let text = format!("{url} does not answer as declared.");
            out.fail(
                Finding::new("PROBE_STATUS", text)
                    .path(path)
                    .want(want)
                    .saw(*status),
            );
        }
        None => out.gap(Gap::Missing(format!("http GET {path}"))),
    }
}

/// The path and query of a URL.
fn url_path(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.find('/').and_then(|at| rest.get(at..)).unwrap_or("/")
}
