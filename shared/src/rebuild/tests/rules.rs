//! Every rule and every code of it: one input that violates it. A test fails when its rule is taken away, because
//! only that rule reports under its id. The table in `docs/rebuild-rules.md` is made from these names.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::cases::{
    answer, batch, created, cutover, destroy, import_7a, null_noop, pre_create, ready, rebuild,
    rebuild_new_host, rolled_back, switch, worker_off_live,
};
use super::harness::*;
use crate::rebuild::codes::CODES;
use crate::rebuild::rules::{self, Rule};
use crate::rebuild::{PHASES, Phase};

fn edit(mut case: Case, change: impl FnOnce(&mut Case)) -> Case {
    change(&mut case);
    case
}

fn start() -> Case {
    Case::plan("start", "start__min_1_max_3")
}

fn start_with(change: impl FnOnce(&mut Case)) -> Case {
    edit(start(), change)
}

fn built(change: impl FnOnce(&mut Case)) -> Case {
    edit(rebuild("rebuild__create_all_absent_outcome"), change)
}

fn requested(change: impl FnOnce(&mut Case)) -> Case {
    edit(Case::plan("cert-request", "cert_request__create_only"), change)
}

fn verify_2a(change: impl FnOnce(&mut Case)) -> Case {
    let mut case = Case::new("cert-requested");
    case.state_rebuild("after-2a");
    case.docs.remove("cert_requested");
    case.certificate("PENDING_VALIDATION", SignedDuration::from_hours(1));
    edit(case, change)
}

fn pure_2b(change: impl FnOnce(&mut Case)) -> Case {
    let mut case = Case::plan("import:2b", "import_2b__pure_import_validation_record");
    case.validation_record();
    edit(case, change)
}

fn handoff(change: impl FnOnce(&mut Case)) -> Case {
    let mut case = Case::plan("verify-handoff", "steady__m5a_noop");
    case.docs.remove("cert_requested");
    case.docs.remove("state_rebuild");
    // The fixture's state has no association; add one, and the plan's entry of it.
    let association = json!({"address": "aws_apprunner_custom_domain_association.app", "mode": "managed",
        "values": {"id": "api.example.com,arn", "domain_name": HOST}});
    case.doc("state_m5a")["values"]["root_module"]["resources"]
        .as_array_mut()
        .unwrap()
        .push(association);
    edit(case, change)
}

fn prepare(change: impl FnOnce(&mut Case)) -> Case {
    edit(Case::plan("prepare", "prepare__trust_and_ttl"), change)
}

/// The prepare plan the other way: the statement goes.
fn unprepare(change: impl FnOnce(&mut Case)) -> Case {
    let mut case = prepare(|c| {
        let role = &mut c.change("aws_iam_role.instance")["change"];
        let (before, after) = (role["before"].clone(), role["after"].clone());
        role["before"] = after;
        role["after"] = before;
        c.doc("plan")
            .as_object_mut()
            .unwrap()
            .shift_remove("resource_drift");
        let ttl = &mut c.change("aws_route53_record.domain")["change"];
        ttl["actions"] = json!(["no-op"]);
        ttl["before"] = ttl["after"].clone();
        c.docs.insert(
            "state_rebuild",
            json!({"format_version": "1.0", "terraform_version": "1.11.4"}),
        );
        c.docs.remove("cert_requested");
    });
    case.request.direction = "rollback".into();
    edit(case, change)
}

/// A plan of the shared load balancer's root.
fn prepare_alb(change: impl FnOnce(&mut Case)) -> Case {
    let mut case = Case::plan("prepare-alb", "start__plus_idle_timeout");
    let keep = |c: &Value| c["address"] == "aws_lb.app";
    let plan = case.doc("plan");
    plan["resource_changes"].as_array_mut().unwrap().retain(keep);
    plan.as_object_mut().unwrap().shift_remove("resource_drift");
    edit(case, change)
}

fn step(change: impl FnOnce(&mut Case)) -> Case {
    edit(cutover("cutover__100_0_to_90_10", (100, 0)), change)
}

fn shift(change: impl FnOnce(&mut Case)) -> Case {
    let mut case = Case::new("shift");
    case.state_m5a("after-7a");
    case.records("after-convert");
    edit(case, change)
}

fn converted(change: impl FnOnce(&mut Case)) -> Case {
    let mut case = Case::new("converted");
    case.records("after-convert");
    edit(case, change)
}

fn convert(change: impl FnOnce(&mut Case)) -> Case {
    edit(batch("convert", "dns-batch-convert"), change)
}

fn revert(change: impl FnOnce(&mut Case)) -> Case {
    let mut case = batch("revert", "dns-batch-revert").rollback();
    case.records("after-convert");
    edit(case, change)
}

fn seven(change: impl FnOnce(&mut Case)) -> Case {
    edit(import_7a("convert_import__refreshed_forget"), change)
}

fn on(change: impl FnOnce(&mut Case)) -> Case {
    edit(Case::plan("taskdef-on", "taskdef_on__create_only"), change)
}

fn on_live(change: impl FnOnce(&mut Case)) -> Case {
    let mut case = Case::new("taskdef-on-live");
    case.state_rebuild("after-8a");
    case.running(1);
    edit(case, change)
}

fn worker_off(change: impl FnOnce(&mut Case)) -> Case {
    edit(Case::plan("worker-off", "worker_off__single_env_var"), change)
}

fn worker_on(change: impl FnOnce(&mut Case)) -> Case {
    edit(Case::plan("worker-on", "worker_on__literal_on_arn"), change)
}

fn worker_on_live(change: impl FnOnce(&mut Case)) -> Case {
    let mut case = Case::new("worker-on-live");
    case.docs.insert("taskdef_on", revision("taskdef-on", 2));
    case.started();
    case.running(2);
    edit(case, change)
}

fn live_revision(change: impl FnOnce(&mut Case)) -> Case {
    let mut case = Case::new("live-revision");
    case.running(5);
    edit(case, change)
}

fn off_twin(change: impl FnOnce(&mut Case)) -> Case {
    edit(Case::plan("taskdef-off", "taskdef_off__create_off_live"), change)
}

fn steady(change: impl FnOnce(&mut Case)) -> Case {
    edit(
        Case::plan("steady:infra_rebuild", "steady__handover_ignore_task_definition"),
        change,
    )
}

fn states(change: impl FnOnce(&mut Case)) -> Case {
    let mut case = Case::new("state:7a");
    case.state_m5a("after-7a");
    edit(case, change)
}

fn back(change: impl FnOnce(&mut Case)) -> Case {
    let mut case = rolled_back(&[3.0], &["2026-11-30T23:12:00Z"]);
    case.docs.insert("answer", answer("proceed", 3.0));
    edit(case, change)
}

fn destroyed(change: impl FnOnce(&mut Case)) -> Case {
    edit(
        destroy("rollback__all_in_state_forget_log_and_validation"),
        change,
    )
}

fn zones(list: Value) -> impl FnOnce(&mut Case) {
    move |c| {
        let output = json!({"IsTruncated": false, "HostedZones": list});
        c.read(
            "route53:ListHostedZonesByName",
            json!({"DNSName": "example.com"}),
            output,
        );
    }
}

fn zone(id: &str, private: bool) -> Value {
    json!({"Id": id, "Name": "example.com.", "Config": {"PrivateZone": private}})
}

fn remove(value: &mut Value, key: &str) {
    value.as_object_mut().unwrap().shift_remove(key);
}

fn after<'c>(case: &'c mut Case, address: &str) -> &'c mut Value {
    &mut case.change(address)["change"]["after"]
}

fn unknown<'c>(case: &'c mut Case, address: &str) -> &'c mut Value {
    &mut case.change(address)["change"]["after_unknown"]
}

fn output_service(case: &mut Case) -> &mut Value {
    &mut case.output("ecs:DescribeServices")["services"][0]
}

const TD_OFF: &str = "aws_ecs_task_definition.off";
const TD_ON: &str = "aws_ecs_task_definition.on";
const RECORD: &str = "aws_route53_record.validation";
const DOMAIN: &str = "aws_route53_record.domain";
const APPRUNNER: &str = "aws_route53_record.apprunner";
const TARGET_ADDRESS: &str = "aws_appautoscaling_target.app";
const ECS_SERVICE: &str = "aws_ecs_service.app";
const CERTIFICATE: &str = "aws_acm_certificate.app";
const HOUR: SignedDuration = SignedDuration::from_hours(1);

fn prior(case: &mut Case, phase: &str, word: &str, change: impl FnOnce(&mut Value)) {
    let mut verdict = case.verdict(phase, "forward", word);
    change(&mut verdict);
    case.prior.push(verdict);
}

/// A change with one action, of a kind.
fn extra(address: &'static str, action: &'static str) -> impl FnOnce(&mut Case) {
    move |c| {
        let object = json!({"id": "x", "name": "x"});
        let (before, after) = match action {
            "create" => (Value::Null, object),
            "delete" | "forget" => (object, Value::Null),
            "update" => (json!({"id": "x", "name": "y"}), object),
            _ => (object.clone(), object),
        };
        c.add(address, json!([action]), before, after);
    }
}

fn env_off(case: &mut Case, address: &str, from: &str, to: &str) {
    let text = after(case, address)["container_definitions"]
        .as_str()
        .unwrap()
        .replace(from, to);
    after(case, address)["container_definitions"] = json!(text);
}

#[track_caller]
fn check(rule: &str, code: &str, case: &Case) {
    let judged = case.judge();
    assert!(judged.found(rule, code), "{rule} did not report {code}: {judged}");
    let without: Vec<Rule> = rules::all().into_iter().filter(|r| r.id != rule).collect();
    assert!(!case.judge_with(&without).found(rule, code));
    // A finding that is no warning never lets anything pass.
    if !code.starts_with("WARN_") && code != "VALIDATION_RECORD_IN_REBUILD_STATE" {
        assert_ne!(judged.0.verdict.verdict, crate::rebuild::Word::Pass);
    }
}

macro_rules! violations {
    ($($name:ident, $rule:literal, $code:literal, $case:expr;)*) => {
        $(#[test]
        fn $name() {
            check($rule, $code, &$case);
        })*
        /// Test, rule, code.
        const TABLE: &[(&str, &str, &str)] = &[$((stringify!($name), $rule, $code)),*];
    };
}

violations! {
    in_3_file_hash, "IN-3", "MANIFEST_FILE_HASH", start_with(|c| { c.files.as_mut().unwrap().insert("infra-rebuild/main.tf".into(), Some("ff".into())); });
    in_3_files_missing, "IN-3", "EVID_MISSING", on(|c| c.files = None);
    in_3_files_not_checked, "IN-3", "WARN_FILES_NOT_CHECKED", start_with(|c| c.files = None);
    in_4_account, "IN-4", "BIND_ACCOUNT", start_with(|c| c.live["account"] = json!("210987654321"));
    in_4_region, "IN-4", "BIND_REGION", start_with(|c| c.live["region"] = json!("eu-west-1"));
    in_5_binding, "IN-5", "EVID_BINDING", built(|c| c.doc("cert_requested")["account"] = json!("210987654321"));
    in_5_stale, "IN-5", "EVID_STALE", start_with(|c| c.live["captured_at"] = json!((c.now - HOUR).to_string()));
    in_6_missing, "IN-6", "EVID_MISSING", built(|c| { c.docs.remove("cert_requested"); });
    in_7_future, "IN-7", "EVID_CLOCK", start_with(|c| c.live["captured_at"] = json!((c.now + HOUR).to_string()));
    in_8_missing, "IN-8", "DECISION_MISSING", on(|c| remove(c.doc("decisions"), "background_work"));
    in_8_invalid, "IN-8", "DECISION_INVALID", on(|c| c.doc("decisions")["background_work"] = json!({"mode": "none"}));
    in_9_not_bound, "IN-9", "PLAN_NOT_BOUND", start_with(|c| c.record = true);
    in_10_stale, "IN-10", "PLAN_STALE", start_with(|c| c.at(c.now + HOUR));
    man_12_no_entry, "MAN-12", "MANIFEST_INVALID", start_with(|c| remove(&mut c.manifest()["phases"], "start"));
    ord_1_not_applied, "ORD-1", "ORDER_CERT_NOT_APPLIED", verify_2a(|c| { c.docs.insert("state_rebuild", json!({"format_version": "1.0"})); });
    ord_2_not_generated, "ORD-2", "ORDER_STAGE_NOT_GENERATED", built(|c| c.bind = false);
    ord_3_before_stage, "ORD-3", "ORDER_2B_BEFORE_STAGE", pure_2b(|c| remove(&mut c.manifest()["phases"], "import:2b"));
    ord_4_2b_not_applied, "ORD-4", "ORDER_2B_NOT_APPLIED", built(|c| { c.outcome("unowned"); c.validation_record(); });
    ord_5_prerequisite, "ORD-5", "ORDER_PREREQUISITE", start_with(|c| prior(c, "created", "PASS", |v| v["expires_at"] = json!("2026-11-30T23:00:00Z")));
    ord_6_convert_open, "ORD-6", "ORDER_CONVERT_OPEN", step(|c| prior(c, "dns-batch:convert", "PASS", |_| {}));
    g_1_state, "G-1", "PLAN_NOT_A_PLAN", start_with(|c| { c.docs.insert("plan", fixture("state-infra-rebuild-after-2a")); });
    g_2_version, "G-2", "PLAN_TF_VERSION", start_with(|c| c.doc("plan")["terraform_version"] = json!("1.9.8"));
    g_3_errored, "G-3", "PLAN_ERRORED", start_with(|c| remove(c.doc("plan"), "errored"));
    g_4_incomplete, "G-4", "PLAN_INCOMPLETE", start_with(|c| remove(c.doc("plan"), "complete"));
    g_5_not_applyable, "G-5", "PLAN_NOT_APPLYABLE", start_with(|c| c.doc("plan")["applyable"] = json!(false));
    g_6_deferred, "G-6", "PLAN_DEFERRED", start_with(|c| c.doc("plan")["deferred_changes"] = json!([{"reason": "x"}]));
    g_6_invocation, "G-6", "PLAN_ACTION_INVOCATION", start_with(|c| c.doc("plan")["action_invocations"] = json!([{"address": "x"}]));
    g_7_check, "G-7", "PLAN_CHECK_FAILED", start_with(|c| c.doc("plan")["checks"] = json!([{"address": {"to_display": "check.x"}, "status": "fail"}]));
    g_7_check_unknown, "G-7", "WARN_CHECK_UNKNOWN", start_with(|c| c.doc("plan")["checks"] = json!([{"address": {"to_display": "check.x"}, "status": "unknown"}]));
    g_8_resolved_data_source, "G-8", "PLAN_DATA_SOURCE", start_with(|c| c.doc("plan")["prior_state"]["values"]["root_module"]["child_modules"] =
        json!([{"resources": [{"address": "data.aws_lb.x", "mode": "data"}]}]));
    g_9_provisioner, "G-9", "PLAN_PROVISIONER", start_with(|c| c.config(ECS_SERVICE)["provisioners"] = json!([{"type": "local-exec"}]));
    g_10_suffix_provider, "G-10", "PLAN_PROVIDER", start_with(|c| c.change(ECS_SERVICE)["provider_name"] = json!("evil.example/hashicorp/aws"));
    g_11_module, "G-11", "PLAN_MODULE", start_with(|c| c.change(ECS_SERVICE)["module_address"] = json!("module.x"));
    g_11_type, "G-11", "PLAN_TYPE_MISMATCH", start_with(|c| remove(c.change(ECS_SERVICE), "type"));
    g_12_deposed, "G-12", "PLAN_DEPOSED", start_with(|c| c.change(ECS_SERVICE)["deposed"] = json!("deadbeef"));
    g_13_moved, "G-13", "PLAN_MOVED", start_with(|c| c.change(ECS_SERVICE)["previous_address"] = json!("aws_ecs_service.old"));
    g_14_unknown_action, "G-14", "PLAN_ACTION_UNKNOWN", start_with(|c| c.change(ECS_SERVICE)["change"]["actions"] = json!(["noop"]));
    g_15_replace, "G-15", "PLAN_REPLACE", start_with(|c| c.change(ECS_SERVICE)["change"]["actions"] = json!(["create", "forget"]));
    g_16_duplicate, "G-16", "PLAN_DUPLICATE_ADDRESS", start_with(|c| { let twin = c.change(ECS_SERVICE).clone(); c.doc("plan")["resource_changes"].as_array_mut().unwrap().push(twin); });
    g_17_generated, "G-17", "PLAN_GENERATED_CONFIG", start_with(|c| c.change(ECS_SERVICE)["change"]["generated_config"] = json!("resource …"));
    g_18_output, "G-18", "PLAN_OUTPUT_CHANGE", start_with(|c| c.doc("plan")["output_changes"] = json!({"x": {"actions": ["create"]}}));
    a_1_missing, "A-1", "ADDR_MISSING", start_with(|c| c.manifest()["phases"]["start"]["addresses"]["aws_lb.other"] = json!({"action": "update"}));
    a_2_update, "A-2", "ADDR_UNEXPECTED", Case::plan("start", "start__plus_idle_timeout");
    a_2_create, "A-2", "ADDR_CREATE_OUTSIDE_MANIFEST", start_with(extra("aws_lb.x", "create"));
    a_2_delete, "A-2", "ADDR_DELETE_OUTSIDE_MANIFEST", start_with(extra("aws_lb.x", "delete"));
    a_2_forget, "A-2", "ADDR_FORGET_OUTSIDE_MANIFEST", start_with(extra("aws_lb.x", "forget"));
    a_2_import, "A-2", "ADDR_IMPORT_OUTSIDE_MANIFEST", start_with(|c| c.change(ECS_SERVICE)["change"]["importing"] = json!({"id": "x"}));
    a_3_foreign_noop, "A-3", "ADDR_NOOP_NOT_IN_STATE", start_with(extra("aws_lb.x", "no-op"));
    a_4_action, "A-4", "ACTION_NOT_ALLOWED", start_with(|c| c.change(TARGET_ADDRESS)["change"]["actions"] = json!(["no-op"]));
    a_5_attribute, "A-5", "ATTR_CHANGE_NOT_ALLOWED", start_with(|c| after(c, TARGET_ADDRESS)["role_arn"] = json!("other"));
    a_6_before, "A-6", "ATTR_BEFORE_MISMATCH", start_with(|c| c.change(TARGET_ADDRESS)["change"]["before"]["min_capacity"] = json!(1));
    a_6_after, "A-6", "ATTR_AFTER_MISMATCH", start_with(|c| after(c, TARGET_ADDRESS)["max_capacity"] = json!(4));
    a_7_unknown, "A-7", "ATTR_UNKNOWN", start_with(|c| unknown(c, TARGET_ADDRESS)["max_capacity"] = json!(true));
    a_11_duplicate, "A-11", "ENV_DUPLICATE_NAME", on(|c| env_off(c, TD_ON, "{\"name\":\"LOG_LEVEL\",\"value\":\"info\"},", "{\"name\":\"LOG_LEVEL\",\"value\":\"info\"},{\"name\":\"LOG_LEVEL\",\"value\":\"info\"},"));
    d_1_gated_drift, "D-1", "DRIFT_GATED_ATTRIBUTE", start_with(|c| { let mut d = c.change(TARGET_ADDRESS).clone(); d["change"]["after"]["min_capacity"] = json!(5); c.doc("plan")["resource_drift"] = json!([d]); });
    d_2_deleted, "D-2", "DRIFT_DELETED", start_with(|c| { let mut d = c.change(ECS_SERVICE).clone(); d["change"]["actions"] = json!(["delete"]); d["change"]["after"] = Value::Null; c.doc("plan")["resource_drift"] = json!([d]); });
    d_3_drift, "D-3", "WARN_DRIFT", rebuild("rebuild__create_all_absent_outcome");
    n_1_delete, "N1", "VALIDATION_RECORD_DELETE", destroy("rollback__deletes_validation_record");
    n_1_change, "N1", "VALIDATION_RECORD_CHANGED", pure_2b(|c| { c.docs.insert("plan", fixture("import_2b__import_with_value_update")); });
    n_2_apprunner, "N2", "APPRUNNER_DELETE", step(|c| c.change("aws_apprunner_service.app")["change"]["actions"] = json!(["forget"]));
    n_3_protected, "N3", "PROTECTED_RESOURCE", step(|c| c.change("aws_iam_role.instance")["change"]["actions"] = json!(["delete"]));
    n_4_import_replace, "N4", "PLAN_REPLACE", pure_2b(|c| c.change("aws_apprunner_service.app")["change"]["actions"] = json!(["delete", "create"]));
    n_5_log_group, "N5", "LOG_GROUP_DELETE", destroy("rollback__deletes_log_group");
    n_6_deregister, "N6", "TASKDEF_WOULD_DEREGISTER", destroyed(|c| c.change(TD_OFF)["change"]["before"]["skip_destroy"] = Value::Null);
    n_7_cleared, "N7", "TASKDEF_SKIP_DESTROY_CLEARED", Case::plan("start", "taskdef__skip_destroy_flipped_off_update");
    n_7_created_without, "N7", "TD_SKIP_DESTROY", Case::plan("taskdef-on", "taskdef_on__skip_destroy_false");
    n_8_zone, "N8", "ZONE_TOUCHED", start_with(extra("aws_route53_zone.x", "no-op"));
    n_9_zero, "N9", "CUT_ZERO_ZERO", cutover("cutover__to_0_0", (100, 0));
    ho_1_stack, "HO-1", "HANDOFF_STACK_PRESENT", handoff(|c| c.output("cloudformation:DescribeStacks")["Stacks"] = json!([{"StackName": "demo-test-api", "StackStatus": "UPDATE_COMPLETE"}]));
    ho_2_left, "HO-2", "HANDOFF_COPILOT_WORKLOAD_LEFT", handoff(|c| c.output("cloudformation:DescribeStacks")["Stacks"] = json!([{"StackName": "demo-test-job", "StackStatus": "UPDATE_COMPLETE",
        "Tags": [{"Key": "copilot-application", "Value": "demo"}, {"Key": "copilot-environment", "Value": "test"}]}]));
    ho_2_kept, "HO-2", "WARN_APP_STACK_KEPT", handoff(|c| c.output("cloudformation:DescribeStacks")["Stacks"] = json!([{"StackName": "demo-roles", "StackStatus": "UPDATE_COMPLETE",
        "Tags": [{"Key": "copilot-application", "Value": "demo"}]}]));
    ho_3_missing, "HO-3", "HANDOFF_STATE_MISSING", handoff(|c| c.state_m5a("initial"));
    ho_3_domain, "HO-3", "HANDOFF_UNEXPECTED_DOMAIN", handoff(|c| { c.new_host("new.example.com"); c.read("apprunner:DescribeCustomDomains", json!({"ServiceArn": SERVICE}), json!({"CustomDomains": [{"DomainName": HOST}]})); });
    ho_4_changes, "HO-4", "STEADY_CHANGES", handoff(|c| c.change(DOMAIN)["change"]["actions"] = json!(["update"]));
    ho_5_identity, "HO-5", "HANDOFF_IDENTITY", handoff(|c| c.output("apprunner:DescribeService")["Service"]["ServiceArn"] = json!("arn:aws:apprunner:us-east-1:123456789012:service/other/1"));
    ho_6_tag, "HO-6", "IMAGE_NOT_DIGEST", handoff(|c| c.output("apprunner:DescribeService")["Service"]["SourceConfiguration"]["ImageRepository"]["ImageIdentifier"] = json!("repo:latest"));
    ho_6_differs, "HO-6", "IMAGE_STATE_LIVE_DIFFER", handoff(|c| c.output("apprunner:DescribeService")["Service"]["SourceConfiguration"]["ImageRepository"]["ImageIdentifier"] = json!("repo:latest"));
    ho_7_failed, "HO-7", "OPERATION_NOT_SUCCEEDED", handoff(|c| c.output("apprunner:ListOperations")["OperationSummaryList"][0]["Status"] = json!("FAILED"));
    ho_7_rolled_back, "HO-7", "OPERATION_ROLLED_BACK", handoff(|c| c.output("apprunner:ListOperations")["OperationSummaryList"][0]["Status"] = json!("ROLLBACK_SUCCEEDED"));
    ho_7_pending, "HO-7", "OPERATION_PENDING", handoff(|c| c.output("apprunner:ListOperations")["OperationSummaryList"][0]["Status"] = json!("IN_PROGRESS"));
    pc_1_tag, "PC-1", "IMAGE_NOT_DIGEST", edit(pre_create(false), |c| c.manifest()["image"] = json!("repo:1"));
    pc_2_conflict, "PC-2", "PREDICTOR_CONFLICT", edit(pre_create(false), |c| {
        c.read("acm:ListCertificates", json!({}), fixture("live-acm-list-certificates"));
        let records = c.output("route53:ListResourceRecordSets")["ResourceRecordSets"].as_array_mut().unwrap();
        records.retain(|r| !r["Name"].as_str().unwrap().starts_with('_'));
        c.record(json!({"Name": VALIDATION, "Type": "CNAME", "TTL": 60, "ResourceRecords": [{"Value": "other."}]}));
    });
    pc_3_exact, "PC-3", "ZONE_NOT_EXACT", edit(pre_create(false), zones(json!([])));
    pc_3_ambiguous, "PC-3", "ZONE_AMBIGUOUS", edit(pre_create(false), zones(json!([zone(ZONE, false), zone("Z2", false)])));
    pc_3_private, "PC-3", "ZONE_PRIVATE", edit(pre_create(false), zones(json!([zone(ZONE, true)])));
    pc_3_account, "PC-3", "ZONE_OTHER_ACCOUNT", edit(pre_create(false), zones(json!([zone("ZOTHER", false)])));
    pc_3_delegated, "PC-3", "ZONE_NOT_DELEGATED", edit(pre_create(false), |c| c.live["dns"][0]["answers"] = json!(["ns.other.example."]));
    pc_4_shape, "PC-4", "DOMAIN_NOT_SIMPLE_CNAME", edit(pre_create(false), |c| c.records("after-convert"));
    pc_4_target, "PC-4", "DOMAIN_TARGET_MISMATCH", edit(pre_create(false), |c| c.manifest()["dns_target"] = json!("other.awsapprunner.com"));
    pc_5_weighted, "PC-5", "DOMAIN_ALREADY_WEIGHTED", edit(pre_create(false), |c| c.records("after-convert"));
    pc_6_caa, "PC-6", "CAA_FORBIDS_AMAZON", edit(pre_create(false), |c| c.record(json!({"Name": "example.com.", "Type": "CAA", "ResourceRecords": [{"Value": "0 issue \";\""}]})));
    pc_7_missing, "PC-7", "APPRUNNER_VALIDATION_MISSING", edit(pre_create(false), |c| c.output("apprunner:DescribeCustomDomains")["CustomDomains"][0]["CertificateValidationRecords"] =
        json!([{"Name": "_a.api.example.com.", "Type": "CNAME", "Value": "_b.acm-validations.aws."}]));
    pc_10_undeclared, "PC-10", "NEWHOST_UNDECLARED", edit(pre_create(true), |c| remove(c.doc("decisions"), "new_host"));
    pc_10_apex, "PC-10", "NEWHOST_IS_APEX", edit(pre_create(true), |c| c.new_host("example.com"));
    pc_11_exact, "PC-11", "ZONE_NOT_EXACT", edit(pre_create(true), zones(json!([])));
    pc_11_ambiguous, "PC-11", "ZONE_AMBIGUOUS", edit(pre_create(true), zones(json!([zone(ZONE, false), zone("Z2", false)])));
    pc_12_private, "PC-12", "ZONE_PRIVATE", edit(pre_create(true), zones(json!([zone(ZONE, true)])));
    pc_13_delegated, "PC-13", "ZONE_NOT_DELEGATED", edit(pre_create(true), |c| c.live["dns"][0]["answers"] = json!([]));
    pc_14_account, "PC-14", "ZONE_OTHER_ACCOUNT", edit(pre_create(true), zones(json!([zone("ZOTHER", false)])));
    pc_15_caa, "PC-15", "CAA_FORBIDS_AMAZON", edit(pre_create(true), |c| c.record(json!({"Name": "new.example.com.", "Type": "CAA", "ResourceRecords": [{"Value": "0 issue \"letsencrypt.org\""}]})));
    pc_16_exists, "PC-16", "NEWHOST_RECORD_EXISTS", edit(pre_create(true), |c| c.record(json!({"Name": "new.example.com.", "Type": "AAAA", "SetIdentifier": "x", "Weight": 1, "ResourceRecords": [{"Value": "::1"}]})));
    pc_18_wildcard, "PC-18", "WARN_WILDCARD_SHADOW", edit(pre_create(true), |c| c.record(json!({"Name": "\\052.example.com.", "Type": "A", "ResourceRecords": [{"Value": "192.0.2.1"}]})));
    pr_1_trust, "PR-1", "PREPARE_TRUST_MISMATCH", Case::plan("prepare", "prepare__trust_without_source_account");
    pr_2_ttl, "PR-2", "PREPARE_TTL", Case::plan("prepare", "prepare__ttl_raised");
    pr_3_attribute, "PR-3", "ATTR_CHANGE_NOT_ALLOWED", prepare(|c| { c.manifest()["phases"]["prepare"]["addresses"]["aws_iam_role.instance"]["allow_paths"] = json!(["max_session_duration"]); after(c, "aws_iam_role.instance")["max_session_duration"] = json!(7200); });
    pr_4_attribute, "PR-4", "PREPARE_ALB_ATTR", prepare_alb(|c| c.doc("decisions")["idle_timeout"] = json!(120));
    pr_4_lineage, "PR-4", "BIND_LINEAGE", prepare_alb(|c| remove(&mut c.manifest()["roots"], "alb"));
    pr_6_wait, "PR-6", "WAIT_TTL", requested(|c| { let now = c.now; prior(c, "prepare", "PASS", |v| { v["applied_at"] = json!((now - SignedDuration::from_mins(2)).to_string()); v["facts"] = json!({"old_ttl": 300}); }); });
    pr_7_trust, "PR-7", "PREPARE_TRUST_MISMATCH", unprepare(|c| { let b = c.change("aws_iam_role.instance")["change"]["before"].clone(); *after(c, "aws_iam_role.instance") = b; after(c, "aws_iam_role.instance")["assume_role_policy"] = json!("{\"Statement\":[]}"); });
    pr_7_present, "PR-7", "ORDER_REBUILD_STILL_PRESENT", unprepare(|c| c.state_rebuild("after-2a"));
    cr_1_extra, "CR-1", "CERT_REQUEST_EXTRA_CHANGE", Case::plan("cert-request", "cert_request__plus_log_group");
    cr_2_domain, "CR-2", "CERT_DOMAIN_MISMATCH", requested(|c| after(c, CERTIFICATE)["domain_name"] = json!("www.example.com"));
    cr_2_unknown, "CR-2", "ATTR_UNKNOWN", Case::plan("cert-request", "cert_request__unknown_domain");
    cr_3_email, "CR-3", "CERT_NOT_DNS", Case::plan("cert-request", "cert_request__email_validation");
    cr_4_sans, "CR-4", "CERT_SANS", Case::plan("cert-request", "cert_request__extra_san");
    cr_5_private, "CR-5", "CERT_NOT_ACM_PUBLIC", requested(|c| after(c, CERTIFICATE)["certificate_authority_arn"] = json!("arn:aws:acm-pca:us-east-1:123456789012:certificate-authority/x"));
    cr_6_region, "CR-6", "BIND_REGION", requested(|c| remove(&mut c.doc("plan")["configuration"]["provider_config"]["aws"]["expressions"], "region"));
    cr_7_requested, "CR-7", "CERT_ALREADY_REQUESTED", Case::plan("cert-request", "cert_request__already_in_state_noop");
    cq_1_unassigned, "CQ-1", "CERT_OPTIONS_UNAVAILABLE", verify_2a(|c| c.output("acm:DescribeCertificate")["Certificate"]["DomainValidationOptions"] = json!([{"DomainName": HOST}]));
    cq_1_domain, "CQ-1", "CERT_DOMAIN_MISMATCH", verify_2a(|c| c.output("acm:DescribeCertificate")["Certificate"]["SubjectAlternativeNames"] = json!([HOST, "www.example.com"]));
    cq_2_timed_out, "CQ-2", "CERT_TIMED_OUT", verify_2a(|c| c.certificate("VALIDATION_TIMED_OUT", HOUR * 73));
    cq_2_failed, "CQ-2", "CERT_FAILED", verify_2a(|c| c.certificate("FAILED", HOUR));
    cq_2_revoked, "CQ-2", "CERT_STATUS", verify_2a(|c| c.certificate("REVOKED", HOUR));
    cq_6_conflict, "CQ-6", "VALIDATION_RECORD_CONFLICT", verify_2a(|c| c.record(json!({"Name": VALIDATION, "Type": "TXT", "ResourceRecords": [{"Value": "x"}]})));
    cq_7_left_behind, "CQ-7", "VALIDATION_RECORD_IN_REBUILD_STATE", verify_2a(|c| { c.state_rebuild("after-step3"); c.validation_record(); });
    own_1_missing, "OWN-1", "DECISION_MISSING", pure_2b(|c| remove(c.doc("decisions"), "validation_record"));
    own_1_invalid, "OWN-1", "DECISION_INVALID", pure_2b(|c| c.doc("decisions")["validation_record"] = json!("adopt"));
    own_2_provenance, "OWN-2", "DECISION_PROVENANCE_MISSING", pure_2b(|c| c.doc("decisions")["provenance"] = json!("  "));
    own_3_warning, "OWN-3", "WARN_FOREIGN_OWNER_RENEWAL", pure_2b(|_| {});
    own_4_reference, "OWN-4", "ORDER_2B_NOT_REQUESTED", pure_2b(|c| c.doc("decisions")["validation_record"] = json!("reference"));
    im_1_not_pure, "IM-1", "IMPORT_NOT_PURE", pure_2b(|c| { c.docs.insert("plan", fixture("import_2b__import_with_ttl_update")); });
    im_1_id, "IM-1", "IMPORT_ID_MISMATCH", pure_2b(|c| c.change(RECORD)["change"]["importing"] = json!({"unknown": true}));
    im_1_missing, "IM-1", "IMPORT_MISSING", pure_2b(|c| remove(&mut c.change(RECORD)["change"], "importing"));
    im_2_identity, "IM-2", "IMPORT_IDENTITY", pure_2b(|c| c.change(RECORD)["change"]["before"]["zone_id"] = json!("ZOTHER"));
    im_3_no_file, "IM-3", "MANIFEST_FILE_HASH", pure_2b(|c| c.manifest()["files"] = json!({}));
    im_4_creates, "IM-4", "ACTION_NOT_ALLOWED", pure_2b(|c| { c.docs.insert("plan", fixture("import_2b__plus_create")); });
    im_5_nothing_shown, "IM-5", "IMPORT_NOT_PURE", pure_2b(|c| c.change(RECORD)["change"]["before"] = Value::Null);
    rbd_2_missing, "RBD-2", "ADDR_MISSING", built(|c| c.doc("plan")["resource_changes"].as_array_mut().unwrap().retain(|r| r["address"] != CERTIFICATE));
    rbd_3_update, "RBD-3", "ACTION_NOT_ALLOWED", built(|c| c.change(CERTIFICATE)["change"]["actions"] = json!(["update"]));
    rbd_3_on_early, "RBD-3", "TASKDEF_ON_EARLY", rebuild("rebuild__contains_taskdef_on");
    rbd_4_desired, "RBD-4", "ECS_DESIRED_NOT_ZERO", rebuild("rebuild__desired_count_1");
    rbd_5_scale, "RBD-5", "SCALE_NOT_ZERO", rebuild("rebuild__scalable_target_1_2");
    rbd_6_off, "RBD-6", "TD_OFF_VALUE", rebuild("rebuild__taskdef_off_has_on_value");
    rbd_6_image, "RBD-6", "TD_IMAGE", built(|c| c.manifest()["image"] = json!(format!("other@sha256:{}", "b".repeat(64))));
    rbd_6_skip_destroy, "RBD-6", "TD_SKIP_DESTROY", rebuild("rebuild__taskdef_skip_destroy_false");
    rbd_6_unknown, "RBD-6", "ATTR_UNKNOWN", built(|c| unknown(c, TD_OFF)["container_definitions"] = json!(true));
    rbd_7_mismatch, "RBD-7", "VALIDATION_RECORD_MISMATCH", rebuild("rebuild__validation_value_differs");
    rbd_7_overwrite, "RBD-7", "VALIDATION_ALLOW_OVERWRITE", rebuild("rebuild__validation_allow_overwrite_true");
    rbd_7_overwrite_omitted, "RBD-7", "ATTR_UNKNOWN", built(|c| { remove(after(c, RECORD), "allow_overwrite"); unknown(c, RECORD)["allow_overwrite"] = json!(true); });
    rbd_8_unexpected, "RBD-8", "VALIDATION_RECORD_UNEXPECTED", built(|c| c.outcome("owned"));
    rbd_8_fqdn, "RBD-8", "VALIDATION_FQDN_MISMATCH", built(|c| after(c, "aws_acm_certificate_validation.app")["validation_record_fqdns"] = json!(["other.example.com"]));
    rbd_8_arn, "RBD-8", "CERT_ARN_MISMATCH", built(|c| after(c, "aws_acm_certificate_validation.app")["certificate_arn"] = json!("arn:aws:acm:us-east-1:123456789012:certificate/other"));
    rbd_9_name, "RBD-9", "NEWHOST_NAME", edit(rebuild_new_host("rebuild__new_host_alias_a"), |c| after(c, "aws_route53_record.new_host")["name"] = json!("old.example.com"));
    rbd_9_type, "RBD-9", "NEWHOST_TYPE", edit(rebuild_new_host("rebuild__new_host_alias_a"), |c| after(c, "aws_route53_record.new_host")["ttl"] = json!(60));
    rbd_9_target, "RBD-9", "NEWHOST_TARGET", edit(rebuild_new_host("rebuild__new_host_alias_a"), |c| c.config("aws_route53_record.new_host")["expressions"]["alias"][0]["zone_id"] = json!({"constant_value": "Z35SXDOTRQ7X7K"}));
    rbd_9_overwrite, "RBD-9", "NEWHOST_ALLOW_OVERWRITE", rebuild_new_host("rebuild__new_host_allow_overwrite_true");
    rbd_9_missing, "RBD-9", "NEWHOST_MISSING", rebuild_new_host("rebuild__create_all_absent_outcome");
    rbd_10_timed_out, "RBD-10", "CERT_TIMED_OUT", built(|c| c.certificate("VALIDATION_TIMED_OUT", HOUR));
    rbd_10_failed, "RBD-10", "CERT_FAILED", built(|c| c.certificate("FAILED", HOUR));
    rbd_10_not_found, "RBD-10", "CERT_STATUS", built(|c| c.read_fails("acm:DescribeCertificate", "ResourceNotFoundException"));
    rbd_11_old, "RBD-11", "CERT_TOO_OLD", built(|c| c.certificate("ISSUED", HOUR * 72));
    rbd_11_window, "RBD-11", "WARN_CERT_WINDOW", built(|c| c.certificate("PENDING_VALIDATION", HOUR * 60));
    rbd_12_recreated, "RBD-12", "CERT_RECREATED", built(|c| c.change(CERTIFICATE)["change"]["actions"] = json!(["create"]));
    rbd_13_changed, "RBD-13", "VALIDATION_OUTCOME_CHANGED", built(|c| c.validation_record());
    rbd_13_blocked, "RBD-13", "VALIDATION_RECORD_CONFLICT", built(|c| c.outcome("blocked"));
    rbd_14_listener, "RBD-14", "LISTENER_CERT", built(|c| c.config("aws_lb_listener.https")["expressions"]["certificate_arn"] = json!({"constant_value": CERT}));
    rbd_15_breaker, "RBD-15", "ECS_CIRCUIT_BREAKER", built(|c| after(c, ECS_SERVICE)["deployment_circuit_breaker"] = json!([{"enable": true, "rollback": true}]));
    rbd_16_depends, "RBD-16", "VALIDATION_DEPENDS_ON", built(|c| remove(c.config("aws_acm_certificate_validation.app"), "depends_on"));
    cre_1_counts, "CRE-1", "ECS_COUNTS_NOT_ZERO", edit(created(), |c| output_service(c)["pendingCount"] = json!(1));
    cre_1_missing, "CRE-1", "ECS_SERVICE_MISSING", edit(created(), |c| c.output("ecs:DescribeServices")["services"] = json!([]));
    cre_2_scale, "CRE-2", "SCALE_NOT_ZERO", edit(created(), |c| c.output("application-autoscaling:DescribeScalableTargets")["ScalableTargets"] = json!([]));
    cre_3_off, "CRE-3", "TD_OFF_VALUE", edit(created(), |c| c.running(2));
    cre_3_image, "CRE-3", "TD_IMAGE", edit(created(), |c| c.output("ecs:DescribeTaskDefinition")["taskDefinition"]["containerDefinitions"][0]["image"] = json!("123456789012.dkr.ecr.us-east-1.amazonaws.com/api:latest"));
    cre_3_inactive, "CRE-3", "TD_NOT_ACTIVE", edit(created(), |c| c.output("ecs:DescribeTaskDefinition")["taskDefinition"]["status"] = json!("INACTIVE"));
    cre_4_covers, "CRE-4", "CERT_NOT_COVERING", edit(created(), |c| { let o = &mut c.output("acm:DescribeCertificate")["Certificate"]; o["DomainName"] = json!("www.example.com"); o["SubjectAlternativeNames"] = json!(["www.example.com"]); });
    cre_5_listener, "CRE-5", "CERT_NOT_ON_LISTENER", edit(created(), |c| { for l in c.output("elasticloadbalancing:DescribeListeners")["Listeners"].as_array_mut().unwrap() { l["Certificates"] = json!([]); } c.output("elasticloadbalancing:DescribeListenerCertificates")["Certificates"] = json!([]); });
    cre_6_pending, "CRE-6", "CERT_NOT_ISSUED", edit(created(), |c| c.certificate("PENDING_VALIDATION", HOUR));
    cre_6_timed_out, "CRE-6", "CERT_TIMED_OUT", edit(created(), |c| c.certificate("VALIDATION_TIMED_OUT", HOUR));
    cre_6_old, "CRE-6", "CERT_TOO_OLD", edit(created(), |c| c.certificate("PENDING_VALIDATION", HOUR * 72));
    cre_6_failed, "CRE-6", "CERT_FAILED", edit(created(), |c| c.certificate("FAILED", HOUR));
    cre_6_expired, "CRE-6", "CERT_STATUS", edit(created(), |c| c.certificate("EXPIRED", HOUR));
    cre_7_nat_gone, "CRE-7", "NET_NO_EGRESS", edit(created(), |c| c.output("ec2:DescribeNatGateways")["NatGateways"][0]["State"] = json!("deleted"));
    cre_7_dns, "CRE-7", "NET_VPC_DNS", edit(created(), |c| c.output("ec2:DescribeVpcAttribute")["EnableDnsSupport"]["Value"] = json!(false));
    cre_8_extra, "CRE-8", "SG_MISMATCH", edit(created(), |c| c.doc("decisions")["env_sg"] = json!({"sg-a74f05c55fe3f3a9f": "omit"}));
    cre_8_undecided, "CRE-8", "DECISION_MISSING", edit(created(), |c| output_service(c)["networkConfiguration"]["awsvpcConfiguration"]["securityGroups"].as_array_mut().unwrap().push(json!("sg-0stranger")));
    cre_9_ingress, "CRE-9", "SG_INGRESS", edit(created(), |c| { c.output("ec2:DescribeSecurityGroupRules")["SecurityGroupRules"].as_array_mut().unwrap().remove(0); });
    cre_10_denied, "CRE-10", "IAM_DENIED", edit(created(), |c| c.output("iam:SimulatePrincipalPolicy")["EvaluationResults"][0]["EvalDecision"] = json!("implicitDeny"));
    cre_11_target, "CRE-11", "NEWHOST_TARGET", edit(created(), |c| { c.new_host("new.example.com"); c.record(json!({"Name": "new.example.com.", "Type": "A", "AliasTarget": {"DNSName": "other.elb.amazonaws.com.", "HostedZoneId": "Z2P70J7EXAMPLE", "EvaluateTargetHealth": false}})); });
    start_values, "ST-5", "START_VALUES", Case::plan("start", "start__wrong_max");
    start_attribute, "ST-5", "ATTR_CHANGE_NOT_ALLOWED", start_with(|c| { c.manifest()["phases"]["start"]["addresses"][TARGET_ADDRESS]["allow_paths"] = json!(["role_arn"]); after(c, TARGET_ADDRESS)["role_arn"] = json!("other"); });
    rdy_1_running, "RDY-1", "ECS_NOT_RUNNING", edit(ready(), |c| output_service(c)["runningCount"] = json!(0));
    rdy_1_vacuous, "RDY-1", "READY_VACUOUS", edit(ready(), |c| c.manifest()["scaling"]["min"] = json!(0));
    rdy_1_missing, "RDY-1", "ECS_SERVICE_MISSING", edit(ready(), |c| output_service(c)["status"] = json!("DRAINING"));
    rdy_2_failed, "RDY-2", "ECS_DEPLOYMENT_FAILED", edit(ready(), |c| output_service(c)["deployments"][0]["rolloutState"] = json!("FAILED"));
    rdy_2_pending, "RDY-2", "ECS_DEPLOYMENT_PENDING", edit(ready(), |c| output_service(c)["deployments"][0]["rolloutState"] = json!("IN_PROGRESS"));
    rdy_3_unhealthy, "RDY-3", "TARGETS_UNHEALTHY", edit(ready(), |c| c.output("elasticloadbalancing:DescribeTargetHealth")["TargetHealthDescriptions"] = json!([]));
    rdy_4_route, "RDY-4", "LISTENER_ROUTE", edit(ready(), |c| { for l in c.output("elasticloadbalancing:DescribeListeners")["Listeners"].as_array_mut().unwrap() { l["DefaultActions"][0]["TargetGroupArn"] = json!("other"); } });
    rdy_5_off, "RDY-5", "TD_OFF_VALUE", edit(ready(), |c| c.running(2));
    rdy_5_image, "RDY-5", "TD_IMAGE", edit(ready(), |c| c.output("ecs:DescribeTaskDefinition")["taskDefinition"]["containerDefinitions"][0]["image"] = json!("other"));
    rdy_5_inactive, "RDY-5", "TD_NOT_ACTIVE", edit(ready(), |c| c.output("ecs:DescribeTaskDefinition")["taskDefinition"]["status"] = json!("INACTIVE"));
    rdy_6_mismatch, "RDY-6", "TLS_MISMATCH", edit(ready(), |c| c.live["tls"][0]["names"] = json!(["www.example.com"]));
    rdy_6_unreachable, "RDY-6", "TLS_UNREACHABLE", edit(ready(), |c| c.live["tls"][0] = json!({"sni": HOST, "connect": "lb:443", "error": "refused"}));
    rdy_7_status, "RDY-7", "PROBE_STATUS", edit(ready(), |c| c.live["http"][0]["status"] = json!(503));
    db_1_shape, "DB-1", "BATCH_SHAPE", convert(|c| c.doc("dns_batch")["Changes"].as_array_mut().unwrap().swap(0, 1));
    db_2_delete, "DB-2", "BATCH_DELETE_MISMATCH", batch("convert", "dns-batch-convert-wrong-ttl-bad");
    db_3_upsert, "DB-3", "BATCH_UPSERT", batch("convert", "dns-batch-convert-upsert-bad");
    db_4_extra, "DB-4", "BATCH_EXTRA", batch("convert", "dns-batch-convert-extra-delete-validation-bad");
    db_5_weights, "DB-5", "BATCH_WEIGHTS", batch("convert", "dns-batch-convert-zero-zero-bad");
    db_6_swapped, "DB-6", "BATCH_TARGET", convert(|c| { let l = c.doc("dns_batch")["Changes"].as_array_mut().unwrap(); l[1]["ResourceRecordSet"]["ResourceRecords"][0]["Value"] = json!(LB_NAME); });
    db_7_zone, "DB-7", "BIND_ZONE", convert(|c| c.doc("dns_batch")["HostedZoneId"] = json!("/hostedzone/ZOTHER"));
    db_8_not_at_100_0, "DB-8", "REVERT_NOT_AT_100_0", revert(|c| c.weights(90, 10));
    db_8_shape, "DB-8", "BATCH_SHAPE", revert(|c| c.doc("dns_batch")["Changes"][2]["ResourceRecordSet"]["TTL"] = json!(300));
    db_9_pending, "DB-9", "DNS_NOT_INSYNC", seven(|c| c.read("route53:GetChange", json!({"Id": "C1"}), json!({"ChangeInfo": {"Status": "PENDING"}})));
    im_6_identity, "IM-6", "IMPORT_IDENTITY", seven(|c| c.change(APPRUNNER)["change"]["before"]["ttl"] = json!(300));
    im_6_missing, "IM-6", "IMPORT_MISSING", import_7a("convert_import__missing_ecs_import");
    im_7_missing, "IM-7", "FORGET_MISSING", import_7a("convert_import__no_removed_block_refreshed");
    im_8_no_drift, "IM-8", "FORGET_NO_DRIFT", edit(null_noop(), |c| remove(c.doc("plan"), "resource_drift"));
    im_8b_live, "IM-8b", "CUT_LIVE_MISMATCH", seven(|c| c.records("before-convert"));
    im_9_elsewhere, "IM-9", "ADDR_FORGET_OUTSIDE_MANIFEST", seven(|c| { let change = &mut c.change("aws_iam_role.instance")["change"]; change["before"] = Value::Null; change["after"] = Value::Null; });
    im_10_list, "IM-10", "FORGET_LIST_MISMATCH", seven(|c| c.manifest()["phases"]["import:7a"]["forget"] = json!(["aws_route53_record.domain", "aws_iam_role.instance"]));
    cv_1_partial, "CV-1", "CONVERT_PARTIAL", converted(|c| c.records("before-rebuild"));
    cv_1_not_applied, "CV-1", "CUT_LIVE_MISMATCH", converted(|c| c.records("before-convert"));
    sh_1_weights, "SH-1", "CUT_LIVE_MISMATCH", shift(|c| { c.request.step = Some(2); });
    sh_3_alarm, "SH-3", "ALARM_NOT_OK", shift(|c| c.output("cloudwatch:DescribeAlarms")["MetricAlarms"][1]["StateValue"] = json!("INSUFFICIENT_DATA"));
    sh_4_wait, "SH-4", "WAIT_TTL", shift(|c| { let now = c.now; prior(c, "cutover", "PASS", |v| v["applied_at"] = json!((now - SignedDuration::from_secs(30)).to_string())); });
    cu_1_attribute, "CU-1", "CUT_ATTR", cutover("cutover__set_identifier_changed", (100, 0));
    cu_1_missing, "CU-1", "ADDR_MISSING", cutover("cutover__targeted_one_record", (100, 0));
    cu_1_unexpected, "CU-1", "ADDR_UNEXPECTED", step(|c| c.change("aws_iam_role.instance")["change"]["actions"] = json!(["update"]));
    cu_2_live, "CU-2", "CUT_LIVE_MISMATCH", step(|c| c.weights(90, 10));
    cu_3_step, "CU-3", "CUT_STEP", cutover("cutover__100_0_to_0_100_direct", (100, 0));
    cu_4_path, "CU-4", "CUT_ROLLBACK_PATH", cutover("cutover__10_90_to_0_100", (10, 90)).rollback();
    cu_5_direction, "CU-5", "CUT_DIRECTION", cutover("cutover_rollback__waypoint_0_100_to_100_100", (0, 100));
    cu_6_zero, "CU-6", "CUT_ZERO_ZERO", cutover("cutover__100_0_to_0_100_direct", (100, 0));
    cu_7_expected, "CU-7", "CUT_NOOP_EXPECTED", edit(cutover("cutover__to_0_0", (100, 0)), |c| c.change("aws_route53_record.ecs")["change"]["actions"] = json!(["update"]));
    cu_7_unexpected, "CU-7", "CUT_NOOP_UNEXPECTED", cutover("cutover__to_0_0", (100, 0));
    cu_8_unknown, "CU-8", "ATTR_UNKNOWN", step(|c| unknown(c, APPRUNNER)["weighted_routing_policy"] = json!([{"weight": true}]));
    cu_8_range, "CU-8", "CUT_STEP", step(|c| after(c, APPRUNNER)["weighted_routing_policy"][0]["weight"] = json!(256));
    cu_9_step, "CU-9", "CUT_STEP", step(|c| c.request.step = Some(4));
    sw_1_attribute, "SW-1", "SWITCH_ATTR", switch("switch__records_and_ttl");
    sw_1_target, "SW-1", "SWITCH_TARGET", edit(switch("switch__records_in_place"), |c| after(c, DOMAIN)["records"] = json!(["evil.example.net"]));
    td_1_unexpected, "TD-1", "ADDR_UNEXPECTED", Case::plan("taskdef-on", "taskdef_on__touches_service_unknown_arn");
    td_1_missing, "TD-1", "ADDR_MISSING", on(|c| c.change(TD_ON)["change"]["actions"] = json!(["no-op"]));
    td_2_diff, "TD-2", "TD_DIFF", Case::plan("taskdef-on", "taskdef_on__second_env_var_differs");
    td_2_value, "TD-2", "TD_ON_VALUE", on(|c| env_off(c, TD_ON, "\"true\"", "\"maybe\""));
    td_2_image, "TD-2", "TD_IMAGE", on(|c| env_off(c, TD_ON, "api@sha256:aaaa", "api@sha256:bbbb"));
    td_3_skip_destroy, "TD-3", "TD_SKIP_DESTROY", Case::plan("taskdef-on", "taskdef_on__skip_destroy_false");
    td_4_service, "TD-4", "TD_TOUCHES_SERVICE", Case::plan("taskdef-on", "taskdef_on__touches_service_unknown_arn");
    td_4_unknown, "TD-4", "ATTR_UNKNOWN", Case::plan("taskdef-on", "taskdef_on__touches_service_unknown_arn");
    td_5_unknown, "TD-5", "ATTR_UNKNOWN", on(|c| unknown(c, TD_ON)["container_definitions"] = json!(true));
    td_6_staged, "TD-6", "MANIFEST_FILE_HASH", on(|c| remove(&mut c.manifest()["files"], "staged/taskdef-on.tf"));
    td_7_inactive, "TD-7", "TD_NOT_ACTIVE", on_live(|c| { let d = c.reads().iter_mut().find(|r| r["input"]["taskDefinition"] == format!("{TD}:2")).unwrap(); d["output"]["taskDefinition"]["status"] = json!("INACTIVE"); });
    td_7_diff, "TD-7", "TD_DIFF", on_live(|c| { let d = c.reads().iter_mut().find(|r| r["input"]["taskDefinition"] == format!("{TD}:2")).unwrap(); d["output"]["taskDefinition"]["memory"] = json!("1024"); });
    td_7_image, "TD-7", "TD_IMAGE", on_live(|c| c.manifest()["image"] = json!("other"));
    td_7_on_value, "TD-7", "TD_ON_VALUE", on_live(|c| { let d = c.reads().iter_mut().find(|r| r["input"]["taskDefinition"] == format!("{TD}:2")).unwrap(); d["output"]["taskDefinition"]["containerDefinitions"][0]["environment"] = json!([]); });
    td_7_off_value, "TD-7", "TD_OFF_VALUE", on_live(|c| { c.request.phase = "taskdef-off-live".into(); let on = c.doc("state_rebuild")["values"]["root_module"]["resources"].as_array_mut().unwrap().iter_mut().find(|r| r["address"] == TD_ON).unwrap(); on["address"] = json!("aws_ecs_task_definition.off_live"); });
    wo_1_attribute, "WO-1", "WORKER_OFF_ATTR", Case::plan("worker-off", "worker_off__plus_cpu");
    wo_1_value, "WO-1", "WORKER_OFF_VALUE", worker_off(|c| c.request.direction = "rollback".into());
    wo_2_order, "WO-2", "ORDER_PREREQUISITE", worker_off(|c| prior(c, "ready", "PASS", |_| {}));
    wo_3_image, "WO-3", "IMAGE_STATE_LIVE_DIFFER", worker_off(|c| c.manifest()["image"] = json!(format!("repo@sha256:{}", "c".repeat(64))));
    wo_4_failed, "WO-4", "OPERATION_NOT_SUCCEEDED", edit(worker_off_live(), |c| c.output("apprunner:ListOperations")["OperationSummaryList"][0]["Status"] = json!("FAILED"));
    wo_4_rolled_back, "WO-4", "OPERATION_ROLLED_BACK", edit(worker_off_live(), |c| c.output("apprunner:ListOperations")["OperationSummaryList"][0]["Status"] = json!("ROLLBACK_SUCCEEDED"));
    wo_4_pending, "WO-4", "OPERATION_PENDING", edit(worker_off_live(), |c| c.output("apprunner:ListOperations")["OperationSummaryList"][0]["Status"] = json!("IN_PROGRESS"));
    wo_4_before_plan, "WO-4", "OPERATION_BEFORE_PLAN", edit(worker_off_live(), |c| c.output("apprunner:ListOperations")["OperationSummaryList"][0]["StartedAt"] = json!("2026-11-30T23:00:00Z"));
    wo_4_status, "WO-4", "APPRUNNER_STATUS", edit(worker_off_live(), |c| c.output("apprunner:DescribeService")["Service"]["Status"] = json!("PAUSED"));
    wo_4_live, "WO-4", "WORKER_OFF_LIVE", edit(worker_off_live(), |c| c.output("apprunner:DescribeService")["Service"]["SourceConfiguration"]["ImageRepository"]["ImageConfiguration"]["RuntimeEnvironmentVariables"] = json!({}));
    wo_5_idle, "WO-5", "IDLE_EVIDENCE_MISSING", edit(worker_off_live(), |c| c.doc("answer")["exit_code"] = json!(1));
    wn_1_attribute, "WN-1", "WORKER_ON_ATTR", Case::plan("worker-on", "worker_on__second_attribute");
    wn_1_before, "WN-1", "ATTR_BEFORE_MISMATCH", worker_on(|c| c.running(5));
    wn_1_after, "WN-1", "ATTR_AFTER_MISMATCH", Case::plan("worker-on", "worker_on__wrong_arn");
    wn_1_unknown, "WN-1", "ATTR_UNKNOWN", Case::plan("worker-on", "worker_on__unknown_task_definition");
    wn_2_reference, "WN-2", "WORKER_ON_NOT_LITERAL", worker_on(|c| c.config(ECS_SERVICE)["expressions"]["task_definition"] = json!({"references": ["aws_ecs_task_definition.on.arn", "aws_ecs_task_definition.on"]}));
    wn_3_failed, "WN-3", "ECS_DEPLOYMENT_FAILED", worker_on_live(|c| output_service(c)["deployments"][0]["rolloutState"] = json!("FAILED"));
    wn_3_pending, "WN-3", "ECS_DEPLOYMENT_PENDING", worker_on_live(|c| output_service(c)["deployments"][0]["rolloutState"] = json!("IN_PROGRESS"));
    wn_3_live, "WN-3", "WORKER_ON_LIVE", worker_on_live(|c| c.running(1));
    wn_4_inactive, "WN-4", "TD_NOT_ACTIVE", edit(Case::plan("worker-on", "worker_on__rollback_to_off_arn").rollback(), |c| { c.running(2); c.output("ecs:DescribeTaskDefinition")["taskDefinition"]["status"] = json!("INACTIVE"); });
    to_1_tag, "TO-1", "IMAGE_NOT_DIGEST", live_revision(|c| { let d = c.reads().iter_mut().find(|r| r["input"]["taskDefinition"] == format!("{TD}:5")).unwrap(); d["output"]["taskDefinition"]["containerDefinitions"][0]["image"] = json!("api:7"); });
    to_1_inactive, "TO-1", "TD_NOT_ACTIVE", live_revision(|c| { let d = c.reads().iter_mut().find(|r| r["input"]["taskDefinition"] == format!("{TD}:5")).unwrap(); d["output"]["taskDefinition"]["status"] = json!("INACTIVE"); });
    to_2_mismatch, "TO-2", "LIVE_REVISION_MISMATCH", off_twin(|c| c.running(2));
    to_3_diff, "TO-3", "TD_DIFF", off_twin(|c| env_off(c, "aws_ecs_task_definition.off_live", "\"info\"", "\"debug\""));
    to_3_value, "TO-3", "TD_OFF_VALUE", off_twin(|c| env_off(c, "aws_ecs_task_definition.off_live", "\"false\"", "\"true\""));
    to_3_image, "TO-3", "TD_IMAGE", off_twin(|c| env_off(c, "aws_ecs_task_definition.off_live", "api@sha256:aaaa", "api@sha256:bbbb"));
    to_3_skip_destroy, "TO-3", "TD_SKIP_DESTROY", off_twin(|c| after(c, "aws_ecs_task_definition.off_live")["skip_destroy"] = json!(false));
    to_3_unexpected, "TO-3", "ADDR_UNEXPECTED", off_twin(|c| c.change("aws_lb.app")["change"]["actions"] = json!(["update"]));
    to_3_missing, "TO-3", "ADDR_MISSING", off_twin(|c| c.change("aws_ecs_task_definition.off_live")["change"]["actions"] = json!(["no-op"]));
    to_4_not_needed, "TO-4", "TASKDEF_OFF_NOT_NEEDED", off_twin(|c| { c.docs.insert("taskdef_on", revision("taskdef-on", 5)); });
    st_1_changes, "ST-1", "STEADY_CHANGES", Case::plan("steady:infra_rebuild", "steady__infra_rebuild_noop");
    st_2_identity, "ST-2", "STEADY_IDENTITY", steady(|c| c.change("aws_lb.app")["change"]["before"]["arn"] = json!("arn:aws:elasticloadbalancing:us-east-1:123456789012:loadbalancer/app/demo-test-api/2")) ;
    st_2_refresh_only, "ST-2", "ADDR_MISSING", steady(|c| remove(c.doc("plan"), "resource_changes"));
    st_2_vacuous, "ST-2", "MANIFEST_INVALID", steady(|c| c.manifest()["phases"]["steady:infra_rebuild"]["addresses"] = json!({}));
    im_12_still, "IM-12", "STATE_STILL_LISTS", states(|c| { let l = c.doc("state_m5a")["values"]["root_module"]["resources"].as_array_mut().unwrap(); let mut twin = l[0].clone(); twin["address"] = json!(DOMAIN); l.push(twin); });
    im_12_missing, "IM-12", "STATE_MISSING", states(|c| c.state_m5a("initial"));
    rk_1_work, "RK-1", "RB_WORK_NOT_RETURNED", back(|c| c.running(2));
    rk_2_dns, "RK-2", "RB_DNS_NOT_RETURNED", edit(Case::new("rolled-back"), |c| c.records("after-convert"));
    rk_3_status, "RK-3", "APPRUNNER_STATUS", back(|c| c.output("apprunner:DescribeService")["Service"]["Status"] = json!("PAUSED"));
    rk_4_unavailable, "RK-4", "RB_REQUESTCOUNT_UNAVAILABLE", back(|c| c.output("cloudwatch:GetMetricData")["MetricDataResults"][0]["StatusCode"] = json!("InternalError"));
    rk_5_required, "RK-5", "RB_ANSWER_REQUIRED", back(|c| { c.docs.remove("answer"); });
    rk_6_stop, "RK-6", "RB_OPERATOR_STOP", back(|c| c.doc("answer")["answer"] = json!("stop"));
    rk_6_stale, "RK-6", "RB_ANSWER_STALE", back(|c| c.doc("answer")["answered_at"] = json!("2026-11-30T22:00:00Z"));
    rk_7_unknown, "RK-7", "RB_START_TIME_UNKNOWN", back(|c| { c.prior.clear(); c.record = true; });
    rb_1_order, "RB-1", "ORDER_PREREQUISITE", destroyed(|c| prior(c, "rolled-back", "NEEDS_ANSWER", |_| {}));
    rb_2_address, "RB-2", "VALIDATION_RECORD_DELETE", edit(destroy("rollback__deletes_validation_record"), |c| { let b = &mut c.change(RECORD)["change"]["before"]; b["name"] = json!("_x.api.example.com"); b["fqdn"] = json!("_x.api.example.com"); });
    rb_3_missing, "RB-3", "FORGET_MISSING", destroy("rollback__deletes_log_group");
    rb_3_outside, "RB-3", "ADDR_FORGET_OUTSIDE_MANIFEST", destroy("rollback__forgets_alb_too");
    rb_4_missing, "RB-4", "ADDR_MISSING", destroyed(|c| c.doc("plan")["resource_changes"].as_array_mut().unwrap().retain(|r| r["address"] != "aws_lb.app"));
    rb_4_extra, "RB-4", "ADDR_DELETE_OUTSIDE_MANIFEST", destroyed(extra("aws_lb.x", "delete"));
    rb_8_not_deleted, "RB-8", "ADDR_MISSING", destroyed(|c| c.doc("plan")["resource_changes"].as_array_mut().unwrap().retain(|r| r["address"] != CERTIFICATE));
    rb_8_orphan, "RB-8", "WARN_CERT_ORPHANED", timed_out();
    rb_9_unexpected, "RB-9", "ADDR_UNEXPECTED", destroyed(extra("aws_lb.x", "update"));
    rb_9_create, "RB-9", "ADDR_CREATE_OUTSIDE_MANIFEST", destroyed(extra("aws_lb.x", "create"));
    rb_9_import, "RB-9", "ADDR_IMPORT_OUTSIDE_MANIFEST", destroyed(|c| c.change("aws_lb.app")["change"]["importing"] = json!({"id": "x"}));
    rb_10_not_ours, "RB-10", "ADDR_UNEXPECTED", destroyed(|c| c.outcome("owned"));
    rb_11_other_record, "RB-11", "ADDR_DELETE_OUTSIDE_MANIFEST", destroyed(extra("aws_route53_record.x", "delete"));
    rb_13_in_use, "RB-13", "CERT_IN_USE_ELSEWHERE", destroyed(|c| c.output("acm:DescribeCertificate")["Certificate"]["InUseBy"] = json!([LB, "arn:aws:cloudfront::123456789012:distribution/E1"]));
    rb_14_absent, "RB-14", "WARN_FORGOTTEN_RECORD_ABSENT", destroyed(|c| c.records("before-rebuild"));
}

/// 2a only, and the certificate timed out: the plan is empty and not applyable (RB-8).
fn timed_out() -> Case {
    let mut case = destroy("rollback__only_2a_cert_in_state");
    case.state_rebuild("after-2a");
    let mut drift = case.change(CERTIFICATE).clone();
    drift["change"]["after"] = Value::Null;
    let plan = case.doc("plan");
    plan["resource_drift"] = json!([drift]);
    remove(plan, "resource_changes");
    plan["applyable"] = json!(false);
    case.certificate("VALIDATION_TIMED_OUT", HOUR * 73);
    case
}

#[test]
fn rb_8_accepts_the_timed_out_certificate() {
    let judged = timed_out().passes();
    assert!(
        judged
            .0
            .verdict
            .left_behind
            .iter()
            .any(|l| l.kind == "certificate" && l.id == CERT)
    );
    // While the certificate lives, the same plan is refused.
    edit(timed_out(), |c| c.certificate("PENDING_VALIDATION", HOUR)).fails(&["ADDR_MISSING"]);
}

#[test]
fn the_bases_pass() {
    for case in [
        handoff(|_| {}),
        prepare(|_| {}),
        unprepare(|_| {}),
        prepare_alb(|_| {}),
        verify_2a(|_| {}),
        on_live(|_| {}),
        worker_on_live(|_| {}),
        live_revision(|_| {}),
        shift(|_| {}),
        converted(|_| {}),
        revert(|_| {}),
        steady(|_| {}),
        states(|_| {}),
        back(|_| {}),
        destroyed(|_| {}),
        Case::new("rolled-back").with_simple_record(),
    ] {
        case.passes();
    }
}

#[test]
fn every_code_of_every_rule_has_a_violation() {
    let covered: BTreeSet<(&str, &str)> = TABLE.iter().map(|(_, rule, code)| (*rule, *code)).collect();
    let mut wanted = BTreeSet::new();
    for rule in rules::all() {
        for code in rule.codes {
            wanted.insert((rule.id, *code));
        }
    }
    assert_eq!(covered, wanted);
}

#[test]
fn every_code_is_explained_and_every_explained_code_is_used() {
    // Codes that no rule of the list raises: the request, the evidence and the machine itself.
    let outside = [
        "INPUT_PHASE_UNKNOWN",
        "INPUT_HASH_MISMATCH",
        "EVID_UNREADABLE",
        "EVID_TRUNCATED",
        "INTERNAL_RULE_ERROR",
        "RETIRE_UNAVAILABLE",
        "WARN_INPUT_UNUSED",
        "WARN_NOT_CHECKED",
    ];
    let used: BTreeSet<&str> = rules::all()
        .iter()
        .flat_map(|r| r.codes)
        .copied()
        .chain(outside)
        .collect();
    let explained: BTreeSet<&str> = CODES.iter().map(|c| c.code).collect();
    assert_eq!(used, explained);
    assert_eq!(explained.len(), CODES.len(), "a code is explained twice");
    for code in CODES {
        assert!(
            !code.meaning.is_empty() && !code.why.is_empty() && !code.recovery.is_empty(),
            "{}",
            code.code
        );
    }
}

/// Ids of the specification that have no function of their own, and where they are kept.
const ELSEWHERE: &[(&str, &str)] = &[
    ("IN-1", "decide.rs, check_request: before any rule runs"),
    ("IN-2", "decide.rs, check_hash: while inputs are read"),
    ("G-19", "plan.rs: planned_values is skipped, never read"),
    ("G-20", "plan.rs: action_reason is not read"),
    ("A-8", "verdict.rs and Change::hidden: what is not shown"),
    ("A-9", "json.rs, is_set_path and same_set"),
    ("A-10", "names.rs, dns_eq"),
    ("PC-17", "PC-4: not applied without a custom domain"),
    ("PR-5", "G-5 and A-4 let an empty prepare pass"),
    ("CQ-4", "CQ-3, outcome owned"),
    ("CQ-5", "CQ-3, outcome unowned"),
    ("CQ-8", "live.rs, records: read to completion for a name"),
    ("RBD-1", "A-1, A-2 and A-4 on the entry rebuild"),
    ("RBD-17", "A-7: only gated paths must be known"),
    ("SH-2", "RDY-3, which also runs in shift"),
    ("IM-11", "IM-1: an import with an action is not pure"),
    ("IM-13", "IM-7 and A-2: no entry, or a delete"),
    ("WO-6", "WO-1 and WO-2 with direction rollback"),
    ("ST-3", "ST-2: a refresh-only plan lacks the addresses"),
    ("RK-8", "RK-4: no datapoints from a complete query"),
    ("RK-9", "RK-5: also when the service never started"),
    ("RB-5", "RB-3 and RB-4: only what is in the state"),
    ("RB-7", "N6"),
    ("RB-12", "2b imports into M5a; RB-10"),
];

/// Our names for rules that the specification words without an id.
const OURS: &[(&str, &str)] = &[
    ("MAN-12", "2.11 row 12"),
    ("HO-8", "2.5, output of verify-handoff"),
    ("CV-1", "2.8, converted"),
    ("SW-1", "2.8, switch"),
    ("ST-5", "2.7, start"),
];

/// Every id of spec/rebuild.md 2.2 to 2.9.
fn spec_ids() -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    let mut range = |prefix: &str, numbers: std::ops::RangeInclusive<u32>| {
        out.extend(numbers.map(|n| format!("{prefix}{n}")))
    };
    range("IN-", 1..=10);
    range("G-", 1..=20);
    range("A-", 1..=11);
    range("D-", 1..=3);
    range("N", 1..=9);
    range("HO-", 1..=7);
    range("PC-", 1..=7);
    range("PC-", 10..=18);
    range("PR-", 1..=7);
    range("CR-", 1..=8);
    range("CQ-", 1..=8);
    range("OWN-", 1..=4);
    range("ORD-", 1..=6);
    range("IM-", 1..=13);
    range("RBD-", 1..=17);
    range("CRE-", 1..=11);
    range("RDY-", 1..=7);
    range("DB-", 1..=9);
    range("SH-", 1..=4);
    range("CU-", 1..=9);
    range("TD-", 1..=7);
    range("WO-", 1..=6);
    range("WN-", 1..=4);
    range("TO-", 1..=4);
    range("ST-", 1..=3);
    range("RK-", 1..=9);
    range("RB-", 1..=14);
    out.insert("IM-8b".into());
    out
}

#[test]
fn every_id_of_the_specification_is_somewhere() {
    let all = rules::all();
    let coded: BTreeSet<String> = all.iter().map(|r| r.id.to_owned()).collect();
    assert_eq!(coded.len(), all.len(), "a rule id is used twice");
    let elsewhere: BTreeSet<String> = ELSEWHERE.iter().map(|(id, _)| (*id).to_owned()).collect();
    let ours: BTreeSet<String> = OURS.iter().map(|(id, _)| (*id).to_owned()).collect();
    assert!(coded.is_disjoint(&elsewhere));
    let kept: BTreeSet<String> = coded.difference(&ours).cloned().chain(elsewhere).collect();
    assert_eq!(kept, spec_ids());
}

/// The table of the documentation.
fn table() -> String {
    let mut tests: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for (name, rule, code) in TABLE {
        tests.entry((rule, code)).or_default().push(name);
    }
    let mut out = String::from(
        "# Rules of the rebuild gates\n\nMade from the code: `cargo test -p headgate-core rebuild::tests::rules::write_the_table -- --ignored`, and \
         compared with it by a test.\n\nContents\n\n- **Rules by id**: what each demands, where it runs, its codes and the test that fails without it\n\
         - **Rules by phase**: which rules judge a phase\n- **Ids without a function of their own**\n- **Ids that are ours**\n\nTests are in \
         `shared/src/rebuild/tests/rules.rs`; the numbered cases of the specification are in `cases.rs`.\n\n## Rules by id\n\n| rule | demands | phases | code | test |\n|---|---|---|---|---|\n",
    );
    for rule in rules::all() {
        let phases = if rule.phases.len() == PHASES.len() {
            "all".to_owned()
        } else {
            rule.phases
                .iter()
                .map(|p| p.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        };
        if rule.codes.is_empty() {
            out.push_str(&format!(
                "| {} | {} | {phases} | - | `cases.rs` |\n",
                rule.id, rule.what
            ));
        }
        for code in rule.codes {
            let names = tests
                .get(&(rule.id, *code))
                .map(|n| n.join("`, `"))
                .unwrap_or_default();
            out.push_str(&format!(
                "| {} | {} | {phases} | `{code}` | `{names}` |\n",
                rule.id, rule.what
            ));
        }
    }
    out.push_str("\n## Rules by phase\n\n| phase | rules |\n|---|---|\n");
    for phase in PHASES.iter().filter(|p| **p != Phase::Retire) {
        let ids: Vec<&str> = rules::all()
            .iter()
            .filter(|r| r.phases.contains(phase))
            .map(|r| r.id)
            .collect();
        out.push_str(&format!("| `{phase}` | {} |\n", ids.join(", ")));
    }
    out.push_str("| `retire` | always `RETIRE_UNAVAILABLE` |\n\n## Ids without a function of their own\n\n| id | kept in |\n|---|---|\n");
    ELSEWHERE
        .iter()
        .for_each(|(id, place)| out.push_str(&format!("| {id} | {place} |\n")));
    out.push_str("\n## Ids that are ours\n\n| id | rule of the specification |\n|---|---|\n");
    OURS.iter()
        .for_each(|(id, place)| out.push_str(&format!("| {id} | {place} |\n")));
    out
}

fn table_path() -> String {
    format!("{}/../docs/rebuild-rules.md", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_table_in_the_documentation_is_current() {
    let written = std::fs::read_to_string(table_path()).unwrap();
    assert!(
        written == table(),
        "docs/rebuild-rules.md is not current: run the ignored test write_the_table"
    );
}

#[test]
#[ignore = "writes docs/rebuild-rules.md"]
fn write_the_table() {
    std::fs::write(table_path(), table()).unwrap();
}
