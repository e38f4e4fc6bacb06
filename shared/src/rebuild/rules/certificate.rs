//! Prepare, the certificate request, and the adoption of its validation record (spec 2.6).

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Rule, rule};
use crate::rebuild::decide::{CERT_WINDOW, Ctx};
use crate::rebuild::inputs::Record;
use crate::rebuild::json as j;
use crate::rebuild::live::Gap;
use crate::rebuild::names;
use crate::rebuild::phase::Phase;
use crate::rebuild::plan::{Action, Change};
use crate::rebuild::verdict::{Finding, MustKeep, Out};

use Phase::*;

const PREPARE: &[Phase] = &[Prepare];
const REQUEST: &[Phase] = &[CertRequest];
const REQUESTED: &[Phase] = &[CertRequested];
const OWNED: &[Phase] = &[CertRequested, Import, Rebuild];
const IMPORT: &[Phase] = &[Import];

pub(super) const RULES: &[Rule] = &[
    rule(
        "PR-1",
        PREPARE,
        &["PREPARE_TRUST_MISMATCH"],
        "Only the instance role's trust changes, to the original statement and ecs-tasks with aws:SourceAccount.",
        pr_1,
    ),
    rule(
        "PR-2",
        PREPARE,
        &["PREPARE_TTL"],
        "Only the host record's TTL changes, to 60, from a higher value.",
        pr_2,
    ),
    rule(
        "PR-3",
        PREPARE,
        &["ATTR_CHANGE_NOT_ALLOWED"],
        "No other attribute changes.",
        pr_3,
    ),
    rule(
        "PR-4",
        &[PrepareAlb],
        &["PREPARE_ALB_ATTR", "BIND_LINEAGE"],
        "Only idle_timeout of the one shared load balancer changes, in the recorded root.",
        pr_4,
    ),
    rule(
        "PR-6",
        &[CertRequest, Import, Rebuild],
        &["WAIT_TTL"],
        "After a lowered TTL the next phase waits for the old one to pass.",
        pr_6,
    ),
    rule(
        "PR-7",
        PREPARE,
        &["PREPARE_TRUST_MISMATCH", "ORDER_REBUILD_STILL_PRESENT"],
        "The rollback only removes the ecs-tasks statement, after infra-rebuild is empty.",
        pr_7,
    ),
    rule(
        "CR-1",
        REQUEST,
        &["CERT_REQUEST_EXTRA_CHANGE"],
        "The certificate is created and nothing else happens.",
        cr_1,
    ),
    rule(
        "CR-2",
        REQUEST,
        &["CERT_DOMAIN_MISMATCH", "ATTR_UNKNOWN"],
        "Its domain name is known and the manifest's.",
        cr_2,
    ),
    rule(
        "CR-3",
        REQUEST,
        &["CERT_NOT_DNS"],
        "It is validated by DNS.",
        cr_3,
    ),
    rule(
        "CR-4",
        REQUEST,
        &["CERT_SANS"],
        "Its alternative names are exactly its domain name.",
        cr_4,
    ),
    rule(
        "CR-5",
        REQUEST,
        &["CERT_NOT_ACM_PUBLIC"],
        "It is a public certificate of ACM.",
        cr_5,
    ),
    rule(
        "CR-6",
        REQUEST,
        &["BIND_REGION"],
        "The provider works in the load balancer's region.",
        cr_6,
    ),
    rule(
        "CR-7",
        REQUEST,
        &["CERT_ALREADY_REQUESTED"],
        "It is not in the state yet.",
        cr_7,
    ),
    rule(
        "CR-8",
        REQUEST,
        &[],
        "The report says when the 72-hour window will close.",
        cr_8,
    ),
    rule(
        "CQ-1",
        REQUESTED,
        &["CERT_OPTIONS_UNAVAILABLE", "CERT_DOMAIN_MISMATCH"],
        "ACM has assigned exactly one CNAME for the domain.",
        cq_1,
    ),
    rule(
        "CQ-2",
        REQUESTED,
        &["CERT_TIMED_OUT", "CERT_FAILED", "CERT_STATUS"],
        "The certificate is pending validation or issued.",
        cq_2,
    ),
    rule(
        "CQ-3",
        REQUESTED,
        &[],
        "The outcome of the record is told and written to cert-requested.json.",
        cq_3,
    ),
    rule(
        "CQ-6",
        REQUESTED,
        &["VALIDATION_RECORD_CONFLICT"],
        "No record of another type or value is at the name.",
        cq_6,
    ),
    rule(
        "CQ-7",
        REQUESTED,
        &["VALIDATION_RECORD_IN_REBUILD_STATE"],
        "A record left in the infra-rebuild state is owned by it.",
        cq_7,
    ),
    rule(
        "OWN-1",
        OWNED,
        &["DECISION_MISSING", "DECISION_INVALID"],
        "An unowned match needs the decision import or reference.",
        own_1,
    ),
    rule(
        "OWN-2",
        OWNED,
        &["DECISION_PROVENANCE_MISSING"],
        "import needs a note that no other infrastructure code owns the record.",
        own_2,
    ),
    rule(
        "OWN-3",
        OWNED,
        &["WARN_FOREIGN_OWNER_RENEWAL"],
        "The report warns that a deletion by another owner stops renewal for both.",
        own_3,
    ),
    rule(
        "OWN-4",
        IMPORT,
        &["ORDER_2B_NOT_REQUESTED"],
        "With reference there is no 2b.",
        own_4,
    ),
    rule(
        "IM-1",
        IMPORT,
        &["IMPORT_NOT_PURE", "IMPORT_ID_MISMATCH", "IMPORT_MISSING"],
        "Exactly the listed addresses are imported, purely, with the listed ids.",
        im_1,
    ),
    rule(
        "IM-2",
        IMPORT,
        &["IMPORT_IDENTITY"],
        "2b imports the record of cert-requested.json.",
        im_2,
    ),
    rule(
        "IM-3",
        IMPORT,
        &["MANIFEST_FILE_HASH"],
        "The configuration of 2b has prevent_destroy, proven by the hash of its generated file.",
        im_3,
    ),
    rule(
        "IM-4",
        IMPORT,
        &["ACTION_NOT_ALLOWED"],
        "2b creates, changes, deletes and forgets nothing.",
        im_4,
    ),
    rule(
        "IM-5",
        IMPORT,
        &["IMPORT_NOT_PURE"],
        "An import shows the object as it is.",
        im_5,
    ),
];

/// A certificate as ACM describes it.
#[derive(Debug, Clone)]
pub(super) struct Certificate {
    pub(super) arn: String,
    pub(super) domain: String,
    pub(super) names: Vec<String>,
    pub(super) status: String,
    pub(super) created_at: Option<Timestamp>,
    pub(super) in_use_by: Vec<String>,
    pub(super) options: Vec<ValidationOption>,
}

/// One validation record that ACM wants.
#[derive(Debug, Clone)]
pub(super) struct ValidationOption {
    pub(super) domain: String,
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) value: String,
}

impl Certificate {
    fn read(value: &Value) -> Option<Certificate> {
        let text = |v: &Value, key: &str| j::str_at(v, key).unwrap_or("").to_owned();
        let list = |key: &str| {
            let items = value.get(key).and_then(Value::as_array).into_iter().flatten();
            items
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let options = value
            .get("DomainValidationOptions")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        let mut names = list("SubjectAlternativeNames");
        let domain = text(value, "DomainName");
        if !names.iter().any(|n| names::dns_eq(n, &domain)) {
            names.push(domain.clone());
        }
        Some(Certificate {
            arn: value.get("CertificateArn")?.as_str()?.to_owned(),
            domain,
            names,
            status: value.get("Status")?.as_str()?.to_owned(),
            created_at: value.get("CreatedAt").and_then(names::time),
            in_use_by: list("InUseBy"),
            options: options
                .map(|o| ValidationOption {
                    domain: text(o, "DomainName"),
                    name: text(o, "ResourceRecord.Name"),
                    kind: text(o, "ResourceRecord.Type"),
                    value: text(o, "ResourceRecord.Value"),
                })
                .collect(),
        })
    }

    /// Whether it covers a host.
    pub(super) fn covers(&self, host: &str) -> bool {
        self.names.iter().any(|name| names::covers(name, host))
    }
}

/// `acm:DescribeCertificate` of one certificate.
pub(super) fn describe(ctx: &Ctx<'_>, arn: &str) -> Result<Certificate, Gap> {
    let page = ctx
        .live
        .one("acm:DescribeCertificate", &[("CertificateArn", Some(arn))])?;
    let certificate = page.get("Certificate").and_then(Certificate::read);
    let certificate =
        certificate.ok_or_else(|| Gap::Malformed(format!("acm:DescribeCertificate of {arn}")))?;
    if certificate.arn != arn {
        return Err(Gap::Malformed(format!(
            "acm:DescribeCertificate of {arn} answers for another certificate"
        )));
    }
    Ok(certificate)
}

/// Whether ACM says that there is no such certificate.
pub(super) fn not_found(gap: &Gap) -> bool {
    matches!(gap, Gap::Failed { code, .. } if code.contains("ResourceNotFound"))
}

/// Every certificate of the account, in any status, that covers the host or new host.
pub(super) fn covering(ctx: &Ctx<'_>) -> Result<Vec<Certificate>, Gap> {
    let hosts: Vec<&str> = [&ctx.m.host, &ctx.m.new_host]
        .into_iter()
        .flatten()
        .map(String::as_str)
        .collect();
    let mut out = Vec::new();
    for summary in ctx
        .live
        .account_wide("acm:ListCertificates", "CertificateSummaryList")?
    {
        let sans = summary
            .get("SubjectAlternativeNameSummaries")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        let mut names = sans
            .filter_map(Value::as_str)
            .chain(j::str_at(summary, "DomainName"));
        let more = summary.get("HasAdditionalSubjectAlternativeNames") == Some(&Value::Bool(true));
        if !more && !names.any(|name| hosts.iter().any(|host| names::covers(name, host))) {
            continue;
        }
        let arn = j::str_at(summary, "CertificateArn")
            .ok_or_else(|| Gap::Malformed("acm:ListCertificates".into()))?;
        let certificate = describe(ctx, arn)?;
        if hosts.iter().any(|host| certificate.covers(host)) {
            out.push(certificate);
        }
    }
    Ok(out)
}

// ---------------------------------------------------------------------------------------------- prepare

/// The trust statements of a policy document, single or list.
fn statements(policy: &Value) -> Option<Vec<Value>> {
    match j::document(policy)?.get("Statement")? {
        Value::Array(items) => Some(items.clone()),
        one @ Value::Object(_) => Some(vec![one.clone()]),
        _ => None,
    }
}

/// A principal or action as a list, since IAM reads a text and a list of one alike.
fn as_list(value: Option<&Value>) -> Vec<&str> {
    match value {
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// Whether a statement lets ECS tasks of this account, and nobody else, take the role.
fn is_ecs_statement(statement: &Value, account: &str) -> bool {
    let keys = |v: &Value| {
        v.as_object()
            .map(|m| m.keys().cloned().collect::<Vec<_>>())
            .unwrap_or_default()
    };
    let plain = keys(statement).iter().all(|k| {
        matches!(
            k.as_str(),
            "Action" | "Condition" | "Effect" | "Principal" | "Sid"
        )
    });
    let principal = statement.get("Principal").unwrap_or(&Value::Null);
    let condition = statement.get("Condition").unwrap_or(&Value::Null);
    let equals = condition.get("StringEquals").unwrap_or(&Value::Null);
    plain
        && j::str_at(statement, "Effect") == Some("Allow")
        && as_list(statement.get("Action")) == ["sts:AssumeRole"]
        && keys(principal) == ["Service"]
        && as_list(principal.get("Service")) == ["ecs-tasks.amazonaws.com"]
        && keys(condition) == ["StringEquals"]
        && keys(equals) == ["aws:SourceAccount"]
        && as_list(equals.get("aws:SourceAccount")) == [account]
}

fn mentions_ecs(statement: &Value) -> bool {
    as_list(j::at(statement, "Principal.Service")).contains(&"ecs-tasks.amazonaws.com")
}

fn prepared_roles<'c>(ctx: &'c Ctx<'_>) -> impl Iterator<Item = &'c Change<'c>> {
    ctx.plan()
        .into_iter()
        .flat_map(|p| p.of_type("aws_iam_role"))
        .filter(|c| c.action == Action::Update)
}

fn trust_mismatch(change: &Change<'_>, text: &str) -> Finding {
    let finding = Finding::new("PREPARE_TRUST_MISMATCH", text)
        .at(&*change.address)
        .path("assume_role_policy");
    finding.saw(change.a("assume_role_policy").clone())
}

fn pr_1(ctx: &Ctx<'_>, out: &mut Out) {
    if ctx.rollback {
        return;
    }
    for change in prepared_roles(ctx) {
        if !change.changed().iter().any(|p| p == "assume_role_policy") {
            continue;
        }
        let (before, after) = (
            statements(change.b("assume_role_policy")),
            statements(change.a("assume_role_policy")),
        );
        let fine = change.known("assume_role_policy")
            && match (before, after) {
                (Some(before), Some(after)) => {
                    let (new, old): (Vec<_>, Vec<_>) = after
                        .into_iter()
                        .partition(|s| mentions_ecs(s) && !before.iter().any(|b| j::equal(b, s)));
                    new.len() == 1
                        && new.iter().all(|s| is_ecs_statement(s, &ctx.m.account))
                        && j::same_set(&before, &old, &j::equal)
                        && same_version(change)
                }
                _ => false,
            };
        let text =
            "The trust must keep its statement and gain ecs-tasks.amazonaws.com with aws:SourceAccount.";
        if !fine {
            out.fail(trust_mismatch(change, text));
            continue;
        }
        // Where the manifest has the whole document, it is that.
        let listed = ctx.entry().and_then(|e| {
            e.gate(&change.address)?
                .gated
                .get("assume_role_policy")?
                .after
                .clone()
        });
        let differs = listed.is_some_and(|want| {
            let want = j::document(&want).unwrap_or(want);
            !j::document(change.a("assume_role_policy")).is_some_and(|saw| j::equal(&want, &saw))
        });
        if differs {
            out.fail(trust_mismatch(
                change,
                "The trust is not the manifest's document.",
            ));
        }
    }
}

/// Whether the rest of the document (version, id) stays.
fn same_version(change: &Change<'_>) -> bool {
    let rest = |v: &Value| {
        let mut document = j::document(v)?;
        document.as_object_mut()?.shift_remove("Statement");
        Some(document)
    };
    match (
        rest(change.b("assume_role_policy")),
        rest(change.a("assume_role_policy")),
    ) {
        (Some(b), Some(a)) => j::equal(&b, &a),
        _ => false,
    }
}

fn pr_2(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in plan
        .of_type("aws_route53_record")
        .filter(|c| c.action == Action::Update)
    {
        let (before, after) = (change.b("ttl").as_i64(), change.a("ttl").as_i64());
        let host = ctx
            .m
            .name()
            .is_some_and(|host| change.b("name").as_str().is_some_and(|n| names::dns_eq(n, host)));
        if !host || !change.known("ttl") || after != Some(60) || before.is_none_or(|b| b <= 60) {
            let text = "Only the TTL of the host's record may change, to 60, from a higher value.";
            let finding = Finding::new("PREPARE_TTL", text).at(&*change.address).path("ttl");
            out.fail(
                finding
                    .want("60, from a higher value")
                    .saw(json!([before, after])),
            );
            continue;
        }
        // What PR-6 waits for.
        out.facts.insert("old_ttl".into(), json!(before));
    }
}

fn pr_3(ctx: &Ctx<'_>, out: &mut Out) {
    only_phase_paths(ctx, "ATTR_CHANGE_NOT_ALLOWED", out);
}

/// Every update changes only the paths that the phase itself names; a manifest can't widen that.
pub(super) fn only_phase_paths(ctx: &Ctx<'_>, code: &'static str, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in plan.changes.iter().filter(|c| c.action == Action::Update) {
        let own = super::cover::phase_paths(ctx, change.kind());
        for path in change.changed() {
            if !super::cover::within_paths(&path, own.iter().map(String::as_str)) {
                let text = "This attribute may not change in this phase.";
                let finding = Finding::new(code, text).at(&*change.address).path(path.as_str());
                out.fail(super::cover::show_change(finding, change, &path));
            }
        }
    }
}

fn pr_4(ctx: &Ctx<'_>, out: &mut Out) {
    only_phase_paths(ctx, "PREPARE_ALB_ATTR", out);
    let decided = ctx
        .decisions
        .as_ref()
        .and_then(|d| d.0.get("idle_timeout"))
        .and_then(Value::as_i64);
    for change in ctx
        .plan()
        .into_iter()
        .flat_map(|p| p.of_type("aws_lb"))
        .filter(|c| c.action == Action::Update)
    {
        let after = change.a("idle_timeout").as_i64();
        if !change.known("idle_timeout") || after.is_none() || after != decided {
            let text = "The idle time-out is not the decided one.";
            let finding = Finding::new("PREPARE_ALB_ATTR", text)
                .at(&*change.address)
                .path("idle_timeout");
            out.fail(finding.want(decided).saw(after));
        }
    }
    let recorded = ctx.m.roots.get("alb").cloned().flatten();
    let seen = ctx.state_alb.as_ref().and_then(|s| s.lineage.clone());
    let text = match (&recorded, &seen) {
        (None, _) => "The manifest does not record the lineage of the load balancer's root.",
        (Some(a), Some(b)) if a != b => "The state is not that of the recorded root.",
        _ => return,
    };
    out.fail(
        Finding::new("BIND_LINEAGE", text)
            .path("roots.alb.lineage")
            .want(recorded)
            .saw(seen),
    );
}

fn pr_6(ctx: &Ctx<'_>, out: &mut Out) {
    if !ctx.knows_order() {
        out.skip();
        return;
    }
    let Some(prepared) = ctx.prior_of("prepare", None, Some(false)).filter(|p| p.passed) else {
        return;
    };
    let Some(ttl) = prepared.facts.get("old_ttl").and_then(Value::as_i64) else {
        return;
    };
    wait_ttl(ctx, prepared.applied_at.or(prepared.checked_at), ttl, out);
}

/// Waits until a TTL has passed since a change was made.
pub(super) fn wait_ttl(ctx: &Ctx<'_>, since: Option<Timestamp>, ttl: i64, out: &mut Out) {
    let end = since.and_then(|at| {
        at.checked_add(jiff::SignedDuration::from_secs(ttl.clamp(0, 604_800)))
            .ok()
    });
    match end {
        Some(end) if end <= ctx.now => {}
        Some(end) => {
            let text = format!("Resolvers may still hold the old answer until {end}.");
            out.wait(
                Finding::new("WAIT_TTL", text)
                    .want(end.to_string())
                    .saw(ctx.now.to_string()),
            );
        }
        None => {
            let text = "When the last change was applied is not recorded.";
            out.wait(Finding::new("WAIT_TTL", text));
        }
    }
}

fn pr_7(ctx: &Ctx<'_>, out: &mut Out) {
    if !ctx.rollback {
        return;
    }
    for change in prepared_roles(ctx) {
        let (before, after) = (
            statements(change.b("assume_role_policy")),
            statements(change.a("assume_role_policy")),
        );
        let fine = change.known("assume_role_policy")
            && match (before, after) {
                (Some(before), Some(after)) => {
                    let rest: Vec<Value> = before.iter().filter(|s| !mentions_ecs(s)).cloned().collect();
                    rest.len() < before.len() && j::same_set(&rest, &after, &j::equal) && same_version(change)
                }
                _ => false,
            };
        if !fine {
            out.fail(trust_mismatch(
                change,
                "The rollback may only remove the ecs-tasks statement.",
            ));
        }
    }
    match &ctx.state_rebuild {
        Some(state) if state.managed().next().is_none() => {}
        Some(state) => {
            let left: Vec<&str> = state.managed().collect();
            let text = "infra-rebuild still holds resources that need the trust.";
            out.fail(
                Finding::new("ORDER_REBUILD_STILL_PRESENT", text)
                    .path("state_rebuild")
                    .saw(json!(left)),
            );
        }
        None => {
            let text = "Whether infra-rebuild is empty can't be told without its state.";
            out.fail(Finding::new("EVID_MISSING", text).path("state_rebuild"));
        }
    }
}

// ---------------------------------------------------------------------------------------------- cert-request

fn requested<'c>(ctx: &'c Ctx<'_>) -> Option<&'c Change<'c>> {
    ctx.plan()?.change(&ctx.m.cert_address)
}

fn cr_1(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in plan
        .changes
        .iter()
        .filter(|c| c.action != Action::NoOp || c.is_import())
    {
        if *change.address != *ctx.m.cert_address || change.action != Action::Create || change.is_import() {
            let text = "The certificate request may create the certificate and do nothing else.";
            out.fail(
                Finding::new("CERT_REQUEST_EXTRA_CHANGE", text)
                    .at(&*change.address)
                    .saw(change.action.as_str()),
            );
        }
    }
}

fn cr_2(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(change) = requested(ctx) else { return };
    if !change.known("domain_name") {
        let text = "The domain name is known only after apply.";
        out.fail(
            Finding::new("ATTR_UNKNOWN", text)
                .at(&*change.address)
                .path("domain_name"),
        );
        return;
    }
    let seen = change.a("domain_name").as_str().unwrap_or("");
    let host = ctx.m.name().unwrap_or("");
    if !names::dns_eq(seen, &ctx.m.cert_domain) || !names::dns_eq(&ctx.m.cert_domain, host) {
        let text = "The certificate's domain is not the name that clients use.";
        let finding = Finding::new("CERT_DOMAIN_MISMATCH", text)
            .at(&*change.address)
            .path("domain_name");
        out.fail(finding.want(host).saw(seen));
    }
}

fn cr_3(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(change) = requested(ctx) else { return };
    let seen = change.a("validation_method");
    if !change.known("validation_method") || seen.as_str() != Some("DNS") {
        let text = "The certificate must be validated by DNS: nobody reads the mail.";
        let finding = Finding::new("CERT_NOT_DNS", text)
            .at(&*change.address)
            .path("validation_method");
        out.fail(finding.want("DNS").saw(seen.clone()));
    }
}

fn cr_4(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(change) = requested(ctx) else { return };
    let names = change.a("subject_alternative_names");
    let one = match names.as_array().map(Vec::as_slice) {
        Some([Value::String(one)]) => Some(one),
        _ => None,
    };
    let known = change.known("subject_alternative_names");
    if !known || !one.is_some_and(|one| names::dns_eq(one, &ctx.m.cert_domain)) {
        // The provider adds domain_name to the set while planning, so a right plan always shows it.
        let text = "The alternative names must be exactly the domain name.";
        let finding = Finding::new("CERT_SANS", text)
            .at(&*change.address)
            .path("subject_alternative_names");
        let seen = if known {
            names.clone()
        } else {
            json!("(known after apply)")
        };
        out.fail(finding.want(json!([ctx.m.cert_domain])).saw(seen));
    }
}

fn cr_5(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(change) = requested(ctx) else { return };
    for path in [
        "certificate_authority_arn",
        "certificate_body",
        "certificate_chain",
        "private_key",
    ] {
        if !change.known(path) || !j::is_empty(change.a(path)) {
            let text = "The certificate must be a public one, made by ACM.";
            out.fail(
                Finding::new("CERT_NOT_ACM_PUBLIC", text)
                    .at(&*change.address)
                    .path(path),
            );
        }
    }
}

fn cr_6(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    // A region that differs is IN-4's; here it must be said at all, since a certificate has a region for life.
    if plan.provider_region().is_none() {
        let text = "The provider's region is not written in the configuration, so the certificate's region is not proven.";
        let finding = Finding::new("BIND_REGION", text).path("configuration.provider_config.aws.region");
        out.fail(finding.want(ctx.m.region.as_str()));
    }
}

fn cr_7(ctx: &Ctx<'_>, out: &mut Out) {
    let in_state = ctx
        .state_rebuild
        .as_ref()
        .is_some_and(|s| s.has(&ctx.m.cert_address));
    let noop = requested(ctx).is_some_and(|c| c.action == Action::NoOp);
    if in_state || noop {
        let text = "The certificate is in the state already: go on with cert-requested.";
        out.fail(Finding::new("CERT_ALREADY_REQUESTED", text).at(ctx.m.cert_address.as_str()));
    }
}

fn cr_8(ctx: &Ctx<'_>, out: &mut Out) {
    if let Ok(close) = ctx.now.checked_add(CERT_WINDOW) {
        out.facts
            .insert("window_closes_at_the_earliest".into(), json!(close.to_string()));
    }
}

// ---------------------------------------------------------------------------------------------- cert-requested

/// What is known about the requested certificate's record.
struct Seen {
    certificate: Certificate,
    option: ValidationOption,
    records: Vec<Record>,
}

/// The certificate that is now in the state, live.
fn live_certificate(ctx: &Ctx<'_>, out: &mut Out) -> Option<Certificate> {
    let state = ctx.state_rebuild.as_ref()?;
    if !state.has(&ctx.m.cert_address) {
        return None; // ORD-1
    }
    let Some(arn) = j::str_at(state.values(&ctx.m.cert_address), "arn") else {
        let text = "The certificate's ARN is needed: give the state as `terraform show -json`.";
        out.fail(Finding::new("EVID_MISSING", text).path("state_rebuild"));
        return None;
    };
    out.read(describe(ctx, arn))
}

fn seen(ctx: &Ctx<'_>, out: &mut Out) -> Option<Seen> {
    let certificate = live_certificate(ctx, out)?;
    let option = certificate
        .options
        .first()
        .filter(|o| !o.name.is_empty())?
        .clone();
    let records = out.read(ctx.live.records(&ctx.m.zone_id, &option.name))?;
    Some(Seen {
        certificate,
        option,
        records,
    })
}

fn cq_1(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(certificate) = live_certificate(ctx, out) else {
        return;
    };
    match certificate.options.as_slice() {
        [one] if !one.name.is_empty() && !one.value.is_empty() && one.kind == "CNAME" => {
            let right = names::dns_eq(&one.domain, &ctx.m.cert_domain)
                && names::dns_eq(&certificate.domain, &ctx.m.cert_domain);
            if !right || certificate.names.len() != 1 {
                let text = "The certificate is not for exactly the manifest's domain.";
                let finding = Finding::new("CERT_DOMAIN_MISMATCH", text).path("DomainName");
                out.fail(
                    finding
                        .want(ctx.m.cert_domain.as_str())
                        .saw(json!(certificate.names)),
                );
            }
        }
        [] | [_] => {
            let text = "ACM has not assigned the validation record yet; it takes up to five minutes.";
            out.wait(Finding::new("CERT_OPTIONS_UNAVAILABLE", text).path("DomainValidationOptions"));
        }
        many => {
            let text = "The certificate has more than one validation record.";
            let names: Vec<&str> = many.iter().map(|o| o.name.as_str()).collect();
            out.fail(
                Finding::new("CERT_DOMAIN_MISMATCH", text)
                    .path("DomainValidationOptions")
                    .saw(json!(names)),
            );
        }
    }
}

fn cq_2(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(certificate) = live_certificate(ctx, out) else {
        return;
    };
    certificate_status(&certificate, out);
}

/// Fails for a status that can't become or stay usable (CQ-2, RBD-10).
pub(super) fn certificate_status(certificate: &Certificate, out: &mut Out) {
    let code = match certificate.status.as_str() {
        "PENDING_VALIDATION" | "ISSUED" => return,
        "VALIDATION_TIMED_OUT" => "CERT_TIMED_OUT",
        "FAILED" => "CERT_FAILED",
        _ => "CERT_STATUS",
    };
    let text = format!("The certificate is {}.", certificate.status);
    let finding = Finding::new(code, text)
        .path("Status")
        .want("PENDING_VALIDATION or ISSUED");
    out.fail(
        finding
            .saw(certificate.status.as_str())
            .fix(super::build::RECOVER_CERTIFICATE),
    );
}

/// Whether a record is exactly the wanted CNAME.
fn is_the_record(records: &[Record], option_value: &str) -> bool {
    match records {
        [one] => {
            one.kind == "CNAME"
                && one.is_simple()
                && one.only_value().is_some_and(|v| names::dns_eq(v, option_value))
        }
        _ => false,
    }
}

/// The outcome of CQ-3 to CQ-7, with owner and owner's address.
fn outcome(ctx: &Ctx<'_>, seen: &Seen) -> (&'static str, &'static str, Option<String>) {
    if seen.records.is_empty() {
        return ("absent", "none", None);
    }
    if !is_the_record(&seen.records, &seen.option.value) {
        return ("blocked", "unknown", None);
    }
    for (state, owner) in [(&ctx.state_m5a, "m5a"), (&ctx.state_rebuild, "infra_rebuild")] {
        let holds = state
            .iter()
            .flat_map(|s| s.of_type("aws_route53_record"))
            .find(|(_, values)| {
                j::str_at(values, "name").is_some_and(|n| names::dns_eq(n, &seen.option.name))
            });
        if let Some((address, _)) = holds {
            return ("owned", owner, Some(address.to_owned()));
        }
    }
    ("unowned", "unknown", None)
}

fn cq_3(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(seen) = seen(ctx, out) else { return };
    let (outcome, owner, address) = outcome(ctx, &seen);
    let close = seen
        .certificate
        .created_at
        .and_then(|at| at.checked_add(CERT_WINDOW).ok());
    let close = close.map(|t| t.to_string());
    out.facts.insert("outcome".into(), json!(outcome));
    out.facts.insert("window_closes_at".into(), json!(close));
    out.facts
        .insert("certificate_arn".into(), json!(seen.certificate.arn));
    out.must_keep.insert(MustKeep {
        zone_id: ctx.m.zone_id.clone(),
        name: seen.option.name.clone(),
        value: seen.option.value.clone(),
        reason: "ACM validates and renews every certificate on this name through it".into(),
    });
    let live: Vec<Value> = seen.records.iter().map(record_json).collect();
    let warnings: &[&str] = if outcome == "unowned" {
        &["WARN_FOREIGN_OWNER_RENEWAL"]
    } else {
        &[]
    };
    let mut evidence = json!({
        "schema": 1, "kind": "cert-requested", "run_id": ctx.run_id, "captured_at": ctx.now.to_string(),
        "account": ctx.m.account, "region": ctx.m.region, "manifest_sha256": ctx.manifest_sha256,
        "certificate_arn": seen.certificate.arn, "domain_name": seen.certificate.domain,
        "certificate_created_at": seen.certificate.created_at.map(|t| t.to_string()),
        "certificate_status": seen.certificate.status, "window_closes_at": close,
        "record": {"zone_id": ctx.m.zone_id, "name": seen.option.name, "type": seen.option.kind, "value": seen.option.value},
        "live": live, "owner": owner, "outcome": outcome, "warnings": warnings,
    });
    if let (Some(address), Some(map)) = (address, evidence.as_object_mut()) {
        map.insert("owner_address".into(), json!(address));
    }
    out.evidence = Some(evidence);
}

fn record_json(record: &Record) -> Value {
    let mut out =
        json!({"name": record.name, "type": record.kind, "ttl": record.ttl, "values": record.values});
    if let (Some(id), Some(map)) = (&record.set_identifier, out.as_object_mut()) {
        map.insert("set_identifier".into(), json!(id));
    }
    out
}

fn cq_6(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(seen) = seen(ctx, out) else { return };
    if outcome(ctx, &seen).0 == "blocked" {
        let live: Vec<Value> = seen.records.iter().map(record_json).collect();
        let text = format!("{} holds something else than what ACM wants.", seen.option.name);
        let finding = Finding::new("VALIDATION_RECORD_CONFLICT", text).path(seen.option.name.as_str());
        out.fail(finding.want(seen.option.value).saw(json!(live)));
    }
}

fn cq_7(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(seen) = seen(ctx, out) else { return };
    if let ("owned", "infra_rebuild", Some(address)) = outcome(ctx, &seen) {
        let text =
            "The record is in the infra-rebuild state, left by an earlier attempt: it is not created again.";
        out.warn(Finding::new("VALIDATION_RECORD_IN_REBUILD_STATE", text).at(address));
    }
}

// ---------------------------------------------------------------------------------------------- ownership

/// Whether the record matched and nobody is known to own it.
fn is_unowned(ctx: &Ctx<'_>, out: &mut Out) -> bool {
    match ctx.phase {
        CertRequested => seen(ctx, out).is_some_and(|seen| outcome(ctx, &seen).0 == "unowned"),
        Import => ctx.use_ == Some("2b"),
        _ => ctx.outcome() == Some("unowned"),
    }
}

fn own_1(ctx: &Ctx<'_>, out: &mut Out) {
    if !is_unowned(ctx, out) {
        return;
    }
    match ctx.decisions.as_ref().and_then(|d| d.text("validation_record")) {
        Some("import" | "reference") => {}
        Some(other) => {
            let text = "validation_record must be import or reference.";
            out.fail(
                Finding::new("DECISION_INVALID", text)
                    .path("validation_record")
                    .saw(other),
            );
        }
        None => {
            let text = "The record exists and nobody is known to own it: decide import or reference.";
            out.fail(Finding::new("DECISION_MISSING", text).path("validation_record"));
        }
    }
}

fn own_2(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(decisions) = &ctx.decisions else { return };
    if decisions.text("validation_record") != Some("import") || !is_unowned(ctx, out) {
        return;
    }
    if decisions.text("provenance").is_none_or(|p| p.trim().is_empty()) {
        let text =
            "An import needs a note on how you know that no other infrastructure code owns the record.";
        out.fail(Finding::new("DECISION_PROVENANCE_MISSING", text).path("provenance"));
    }
}

fn own_3(ctx: &Ctx<'_>, out: &mut Out) {
    if !is_unowned(ctx, out) {
        return;
    }
    let text = "The owner of the validation record is unknown. It is in neither of the two states we see, which does not \
                make it unowned: if another owner deletes it, renewal stops for the certificates of both.";
    out.warn(Finding::new("WARN_FOREIGN_OWNER_RENEWAL", text));
}

fn own_4(ctx: &Ctx<'_>, out: &mut Out) {
    if ctx.use_ != Some("2b") {
        return;
    }
    let reference = ctx.decisions.as_ref().and_then(|d| d.text("validation_record")) == Some("reference");
    let other = ctx.cert.as_ref().is_some_and(|c| c.outcome != "unowned");
    if reference || other {
        let text = "2b is only for an unowned record that was decided to be imported.";
        out.fail(Finding::new("ORDER_2B_NOT_REQUESTED", text).path("validation_record"));
    }
}

// ---------------------------------------------------------------------------------------------- import

fn im_1(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    let gates = ctx.entry().and_then(|e| e.addresses.as_ref());
    for (address, gate) in gates.into_iter().flatten().filter(|(_, g)| g.action == "import") {
        let Some(change) = plan.change(address).filter(|c| c.is_import()) else {
            let text = "The plan does not import this address.";
            out.fail(
                Finding::new("IMPORT_MISSING", text)
                    .at(address)
                    .want(gate.import_id.clone()),
            );
            continue;
        };
        if change.action != Action::NoOp {
            // Also IM-11: an update while importing.
            let text = format!("The import also does: {}.", change.action.as_str());
            let finding = Finding::new("IMPORT_NOT_PURE", text)
                .at(address)
                .want("no-op")
                .saw(change.action.as_str());
            out.fail(finding.path(change.changed().join(", ")));
        }
        let importing = change.importing.as_ref().unwrap_or(&Value::Null);
        let id = j::str_at(importing, "id");
        if importing.get("unknown").is_some_and(|v| *v != Value::Bool(false))
            || id != gate.import_id.as_deref()
        {
            let text = "The import takes another object than the listed one.";
            let finding = Finding::new("IMPORT_ID_MISMATCH", text)
                .at(address)
                .path("change.importing.id");
            out.fail(finding.want(gate.import_id.clone()).saw(id));
        }
    }
}

fn im_2(ctx: &Ctx<'_>, out: &mut Out) {
    let (Some(plan), Some("2b"), Some(cert)) = (ctx.plan(), ctx.use_, &ctx.cert) else {
        return;
    };
    let mut imports = plan
        .of_type("aws_route53_record")
        .filter(|c| c.is_import())
        .peekable();
    if imports.peek().is_none() {
        return; // IM-1
    }
    for change in imports {
        let records = change.b("records");
        let wanted = [
            (
                "zone_id",
                change
                    .b("zone_id")
                    .as_str()
                    .is_some_and(|z| names::zone_id(z) == cert.zone_id),
                json!(cert.zone_id),
            ),
            (
                "name",
                change
                    .b("name")
                    .as_str()
                    .is_some_and(|n| names::dns_eq(n, &cert.name)),
                json!(cert.name),
            ),
            (
                "type",
                change.b("type").as_str() == Some(cert.kind.as_str()),
                json!(cert.kind),
            ),
            (
                "records",
                j::dns_equal(records, &json!([cert.value])),
                json!([cert.value]),
            ),
        ];
        for (path, same, want) in wanted {
            if !same {
                let text = "The imported record is not the one of cert-requested.json.";
                let finding = Finding::new("IMPORT_IDENTITY", text)
                    .at(&*change.address)
                    .path(path);
                out.fail(finding.want(want).saw(change.b(path).clone()));
            }
        }
    }
}

fn im_3(ctx: &Ctx<'_>, out: &mut Out) {
    if ctx.use_ == Some("2b") && ctx.files.is_some() && ctx.m.files.is_empty() {
        let text = "The manifest names no generated file, so prevent_destroy on the record is not proven.";
        out.fail(Finding::new("MANIFEST_FILE_HASH", text).path("files"));
    }
}

fn im_4(ctx: &Ctx<'_>, out: &mut Out) {
    let (Some(plan), Some("2b")) = (ctx.plan(), ctx.use_) else {
        return;
    };
    for change in plan.changes.iter().filter(|c| c.action != Action::NoOp) {
        let text = "2b only imports.";
        out.fail(
            Finding::new("ACTION_NOT_ALLOWED", text)
                .at(&*change.address)
                .want("no-op")
                .saw(change.action.as_str()),
        );
    }
}

fn im_5(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in plan
        .changes
        .iter()
        .filter(|c| c.is_import() && c.before().is_null())
    {
        let text = "The import shows no object: nothing can be said about what is taken over.";
        out.fail(
            Finding::new("IMPORT_NOT_PURE", text)
                .at(&*change.address)
                .path("change.before"),
        );
    }
}
