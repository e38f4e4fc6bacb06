//! The numbered cases of spec/rebuild.md 4.1, by number.

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::harness::*;
use crate::rebuild::{Request, Word};

fn hours(h: i64) -> SignedDuration {
    SignedDuration::from_hours(h)
}

#[test]
fn c01_cert_request_happy() {
    let judged = Case::plan("cert-request", "cert_request__create_only").passes();
    // CR-8: the report says when the 72-hour window closes.
    assert!(
        judged
            .0
            .verdict
            .facts
            .contains_key("window_closes_at_the_earliest")
    );
}

#[test]
fn c02_cert_request_sans_empty() {
    let mut case = Case::plan("cert-request", "cert_request__create_only");
    case.change("aws_acm_certificate.app")["change"]["after"]["subject_alternative_names"] = json!([]);
    case.fails(&["CERT_SANS"]);
}

#[test]
fn c03_cert_request_extra_san() {
    Case::plan("cert-request", "cert_request__extra_san").fails(&["CERT_SANS"]);
}

#[test]
fn c04_cert_request_extra_resource() {
    let case = Case::plan("cert-request", "cert_request__plus_log_group");
    case.fails(&["CERT_REQUEST_EXTRA_CHANGE", "ADDR_CREATE_OUTSIDE_MANIFEST"]);
}

#[test]
fn c05_cert_request_email() {
    Case::plan("cert-request", "cert_request__email_validation").fails(&["CERT_NOT_DNS"]);
}

#[test]
fn c06_cert_request_unknown_domain() {
    let case = Case::plan("cert-request", "cert_request__unknown_domain");
    case.fails(&["ATTR_UNKNOWN", "PLAN_PROVIDER", "CERT_REQUEST_EXTRA_CHANGE"]);
}

#[test]
fn c07_cert_replace_requested() {
    Case::plan("cert-request", "cert_request__replace_requested").fails(&["PLAN_REPLACE"]);
}

#[test]
fn c08_cert_already_requested() {
    Case::plan("cert-request", "cert_request__already_in_state_noop").fails(&["CERT_ALREADY_REQUESTED"]);
}

fn cert_requested() -> Case {
    let mut case = Case::new("cert-requested");
    case.state_rebuild("after-2a");
    case.docs.remove("cert_requested");
    case.certificate("PENDING_VALIDATION", hours(1));
    case
}

#[test]
fn c09_cert_requested_absent() {
    let case = cert_requested();
    let judged = case.passes();
    let evidence = judged.0.evidence.unwrap();
    assert_eq!(evidence["outcome"], "absent");
    let created = case.now - hours(1);
    assert_eq!(
        evidence["window_closes_at"],
        json!((created + hours(72)).to_string())
    );
    assert_eq!(judged.0.verdict.must_keep.len(), 1);
    // What the gate writes it can read again.
    let mut next = Case::plan("rebuild", "rebuild__create_all_absent_outcome");
    next.docs.insert("cert_requested", evidence);
    next.certificate("PENDING_VALIDATION", hours(10));
    next.passes();
}

#[test]
fn c10_cert_requested_conflict() {
    let mut case = cert_requested();
    case.record(json!({"Name": VALIDATION, "Type": "CNAME", "TTL": 300, "ResourceRecords": [{"Value": "other.example.net."}]}));
    let judged = case.fails(&["VALIDATION_RECORD_CONFLICT"]);
    assert_eq!(judged.0.verdict.facts["outcome"], "blocked");
    assert!(judged.0.evidence.is_none());
}

#[test]
fn c11_unowned_without_decision() {
    let mut case = cert_requested();
    case.validation_record();
    case.doc("decisions")
        .as_object_mut()
        .unwrap()
        .shift_remove("validation_record");
    let judged = case.fails(&["DECISION_MISSING"]);
    assert!(judged.warns("WARN_FOREIGN_OWNER_RENEWAL"));
    judged.only(&["DECISION_MISSING"]);
}

#[test]
fn c12_unowned_import_without_provenance() {
    let mut case = cert_requested();
    case.validation_record();
    case.doc("decisions")
        .as_object_mut()
        .unwrap()
        .shift_remove("provenance");
    case.fails(&["DECISION_PROVENANCE_MISSING"])
        .only(&["DECISION_PROVENANCE_MISSING"]);
}

fn import_2b(plan: &str) -> Case {
    let mut case = Case::plan("import:2b", plan);
    case.validation_record();
    case
}

#[test]
fn c13_2b_happy() {
    let judged = import_2b("import_2b__pure_import_validation_record").passes();
    assert!(judged.warns("WARN_FOREIGN_OWNER_RENEWAL"));
}

#[test]
fn c14_2b_before_the_stage() {
    let mut case = import_2b("import_2b__pure_import_validation_record");
    case.manifest()["phases"]
        .as_object_mut()
        .unwrap()
        .shift_remove("import:2b");
    case.fails(&["ORDER_2B_BEFORE_STAGE"]);
    let mut case = import_2b("import_2b__pure_import_validation_record");
    case.bind = false;
    case.fails(&["ORDER_2B_BEFORE_STAGE", "ORDER_STAGE_NOT_GENERATED"]);
}

#[test]
fn c15_2b_imports_and_updates_ttl() {
    import_2b("import_2b__import_with_ttl_update").fails(&["IMPORT_NOT_PURE"]);
}

#[test]
fn c16_2b_plus_a_create() {
    import_2b("import_2b__plus_create").fails(&["ADDR_CREATE_OUTSIDE_MANIFEST"]);
}

#[test]
fn c17_2b_wrong_id() {
    let mut case = import_2b("import_2b__pure_import_validation_record");
    case.manifest()["phases"]["import:2b"]["addresses"]["aws_route53_record.validation"]["import_id"] =
        json!("Z_other_CNAME");
    case.fails(&["IMPORT_ID_MISMATCH"]).only(&["IMPORT_ID_MISMATCH"]);
}

pub(super) fn rebuild(plan: &str) -> Case {
    Case::plan("rebuild", plan)
}

#[test]
fn c18_rebuild_happy_absent() {
    let judged = rebuild("rebuild__create_all_absent_outcome").passes();
    assert_eq!(judged.0.verdict.summary["create"], 16);
    assert_eq!(judged.0.verdict.summary["no-op"], 1);
}

#[test]
fn c19_rebuild_timed_out() {
    let mut case = rebuild("rebuild__create_all_absent_outcome");
    case.certificate("VALIDATION_TIMED_OUT", hours(73));
    let judged = case.fails(&["CERT_TIMED_OUT", "CERT_TOO_OLD"]);
    for code in ["CERT_TIMED_OUT", "CERT_TOO_OLD"] {
        let failure = judged.0.verdict.failures.iter().find(|f| f.code == code).unwrap();
        let (first, then) = (
            failure.recovery.find("rollback-rebuild"),
            failure.recovery.find("2a"),
        );
        assert!(first.is_some() && first < then, "{}", failure.recovery);
    }
}

#[test]
fn c20_rebuild_at_exactly_72_hours() {
    let mut case = rebuild("rebuild__create_all_absent_outcome");
    case.certificate("PENDING_VALIDATION", hours(72));
    case.fails(&["CERT_TOO_OLD"]);
    let mut case = rebuild("rebuild__create_all_absent_outcome");
    case.certificate("PENDING_VALIDATION", hours(72) - SignedDuration::from_mins(1));
    let judged = case.passes();
    assert!(judged.warns("WARN_CERT_WINDOW"));
    // 2.11 row 14: a verdict never outlives the window.
    assert_eq!(
        judged.0.verdict.expires_at,
        case.now + SignedDuration::from_mins(1)
    );
}

#[test]
fn c21_rebuild_with_on_present() {
    let judged =
        rebuild("rebuild__contains_taskdef_on").fails(&["ADDR_CREATE_OUTSIDE_MANIFEST", "TASKDEF_ON_EARLY"]);
    let create = judged
        .0
        .verdict
        .failures
        .iter()
        .find(|f| f.code == "ADDR_CREATE_OUTSIDE_MANIFEST")
        .unwrap();
    assert_eq!(create.hint, Some("TASKDEF_ON_EARLY"));
}

#[test]
fn c22_rebuild_allow_overwrite_true() {
    rebuild("rebuild__validation_allow_overwrite_true").fails(&["VALIDATION_ALLOW_OVERWRITE"]);
}

#[test]
fn c23_rebuild_validation_value_differs() {
    rebuild("rebuild__validation_value_differs").fails(&["VALIDATION_RECORD_MISMATCH"]);
}

#[test]
fn c24_rebuild_scalable_target_above_zero() {
    rebuild("rebuild__scalable_target_1_2").fails(&["SCALE_NOT_ZERO"]);
}

#[test]
fn c25_rebuild_desired_count_1() {
    rebuild("rebuild__desired_count_1").fails(&["ECS_DESIRED_NOT_ZERO"]);
}

#[test]
fn c26_rebuild_off_has_on_value() {
    rebuild("rebuild__taskdef_off_has_on_value").fails(&["TD_OFF_VALUE"]);
}

#[test]
fn c27_rebuild_skip_destroy_false() {
    rebuild("rebuild__taskdef_skip_destroy_false").fails(&["TD_SKIP_DESTROY"]);
}

#[test]
fn c28_rebuild_replaces_the_certificate() {
    rebuild("rebuild__cert_replaced_new_san").fails(&["PLAN_REPLACE"]);
}

#[test]
fn c29_rebuild_targeted() {
    rebuild("rebuild__targeted_incomplete").fails(&["PLAN_INCOMPLETE", "ADDR_MISSING"]);
}

fn without_record(case: &mut Case) {
    case.manifest()["phases"]["rebuild"]["addresses"]
        .as_object_mut()
        .unwrap()
        .shift_remove("aws_route53_record.validation");
}

#[test]
fn c30_rebuild_reference_outcome() {
    let mut case = rebuild("rebuild__reference_outcome_no_record");
    case.outcome("owned");
    without_record(&mut case);
    case.certificate("ISSUED", hours(10));
    case.validation_record();
    case.passes();
    let case = rebuild("rebuild__reference_outcome_no_record");
    case.fails(&["VALIDATION_RECORD_MISMATCH", "ADDR_MISSING"]);
}

#[test]
fn c31_rebuild_record_create_although_owned() {
    let mut case = rebuild("rebuild__create_all_absent_outcome");
    case.outcome("owned");
    case.certificate("PENDING_VALIDATION", hours(10));
    case.validation_record();
    case.fails(&["VALIDATION_RECORD_UNEXPECTED"]);
}

#[test]
fn c32_rebuild_foreign_noop() {
    let mut case = rebuild("rebuild__create_all_absent_outcome");
    case.add(
        "aws_lb.foreign",
        json!(["no-op"]),
        json!({"arn": "x"}),
        json!({"arn": "x"}),
    );
    case.fails(&["ADDR_NOOP_NOT_IN_STATE"])
        .only(&["ADDR_NOOP_NOT_IN_STATE"]);
}

#[test]
fn c33_rebuild_errored() {
    rebuild("rebuild__errored_precondition").fails(&["PLAN_ERRORED", "PLAN_INCOMPLETE"]);
}

#[test]
fn c34_rebuild_deferred_read_and_output() {
    rebuild("rebuild__deferred_data_read_and_output").fails(&["PLAN_DATA_SOURCE", "PLAN_OUTPUT_CHANGE"]);
}

pub(super) fn rebuild_new_host(plan: &str) -> Case {
    let mut case = rebuild(plan);
    case.new_host("new.example.com");
    case.manifest()["phases"]["rebuild"]["addresses"]["aws_route53_record.new_host"] =
        json!({"action": "create"});
    case
}

#[test]
fn c35_new_host_happy() {
    rebuild_new_host("rebuild__new_host_alias_a").passes();
    // The same with the manifest's own gates, the target by reference.
    let mut case = rebuild_new_host("rebuild__new_host_alias_a");
    case.manifest()["phases"]["rebuild"]["addresses"]["aws_route53_record.new_host"]["gated"] = json!({
        "name": {"after": "new.example.com.", "compare": "dns"}, "type": {"after": "A"}, "allow_overwrite": {"after": false},
        "alias.0.name": {"after": "aws_lb.app", "compare": "ref"}, "alias.0.zone_id": {"after": "aws_lb.app", "compare": "ref"}});
    case.passes();
}

#[test]
fn c36_new_host_allow_overwrite() {
    rebuild_new_host("rebuild__new_host_allow_overwrite_true").fails(&["NEWHOST_ALLOW_OVERWRITE"]);
}

#[test]
fn c37_new_host_wrong_reference() {
    let mut case = rebuild_new_host("rebuild__new_host_alias_a");
    case.config("aws_route53_record.new_host")["expressions"]["alias"][0]["name"]["references"] =
        json!(["aws_lb.other.dns_name", "aws_lb.other"]);
    case.fails(&["NEWHOST_TARGET"]).only(&["NEWHOST_TARGET"]);
}

pub(super) fn pre_create(new_host: bool) -> Case {
    let mut case = Case::new("pre-create");
    case.docs.remove("cert_requested");
    case.docs.remove("state_rebuild");
    case.records("before-convert");
    if new_host {
        case.records("before-rebuild");
        case.new_host("new.example.com");
    }
    case.read(
        "acm:ListCertificates",
        json!({}),
        json!({"CertificateSummaryList": []}),
    );
    case
}

#[test]
fn c38_new_host_has_a_txt_record() {
    let mut case = pre_create(true);
    case.record(json!({"Name": "new.example.com.", "Type": "TXT", "TTL": 60, "ResourceRecords": [{"Value": "\"x\""}]}));
    case.fails(&["NEWHOST_RECORD_EXISTS"])
        .only(&["NEWHOST_RECORD_EXISTS"]);
}

#[test]
fn c39_new_host_needs_no_cname() {
    pre_create(true).passes();
    // With a custom domain the adoption rule holds.
    pre_create(false).passes();
    let mut case = pre_create(false);
    case.records("before-rebuild");
    case.fails(&["DOMAIN_NOT_SIMPLE_CNAME"]);
}

#[test]
fn c40_new_host_in_a_private_zone() {
    let zones = |list: Value| json!({"IsTruncated": false, "HostedZones": list});
    let public = json!({"Id": ZONE, "Name": "example.com.", "Config": {"PrivateZone": false}});
    let private = json!({"Id": "ZPRIVATE", "Name": "example.com.", "Config": {"PrivateZone": true}});
    let mut case = pre_create(true);
    case.read(
        "route53:ListHostedZonesByName",
        json!({"DNSName": "example.com"}),
        zones(json!([private, public])),
    );
    case.passes();
    case.read(
        "route53:ListHostedZonesByName",
        json!({"DNSName": "example.com"}),
        zones(json!([private])),
    );
    case.fails(&["ZONE_PRIVATE"]);
}

#[test]
fn c41_caa_forbids_amazon() {
    for in_zone in [true, false] {
        let mut case = pre_create(true);
        if in_zone {
            case.record(json!({"Name": "example.com.", "Type": "CAA", "TTL": 60, "ResourceRecords": [{"Value": "0 issue \"letsencrypt.org\""}]}));
        } else {
            let answer =
                json!({"name": "example.com", "type": "CAA", "answers": ["0 issue \"letsencrypt.org\""]});
            case.live["dns"].as_array_mut().unwrap().push(answer);
        }
        case.fails(&["CAA_FORBIDS_AMAZON"]).only(&["CAA_FORBIDS_AMAZON"]);
    }
}

pub(super) fn created() -> Case {
    let mut case = Case::new("created");
    case.certificate("ISSUED", hours(10));
    case
}

#[test]
fn c42_created_certificate_pending() {
    created().passes();
    let mut case = created();
    case.certificate("PENDING_VALIDATION", hours(5));
    case.gives(Word::Wait, &["CERT_NOT_ISSUED"])
        .only(&["CERT_NOT_ISSUED"]);
}

#[test]
fn created_knows_the_service_security_group_by_the_state() {
    // Terraform made the service with one further group, about which nothing was decided.
    let mut case = created();
    case.doc("decisions")["env_sg"] = json!({});
    case.passes();
}

#[test]
fn c43_created_a_task_runs() {
    let mut case = created();
    case.output("ecs:DescribeServices")["services"][0]["runningCount"] = json!(1);
    case.fails(&["ECS_COUNTS_NOT_ZERO"])
        .only(&["ECS_COUNTS_NOT_ZERO"]);
}

#[test]
fn c44_start() {
    Case::plan("start", "start__min_1_max_3").passes();
    Case::plan("start", "start__wrong_max").fails(&["START_VALUES"]);
    Case::plan("start", "start__plus_idle_timeout").fails(&["ADDR_UNEXPECTED"]);
}

pub(super) fn ready() -> Case {
    let mut case = Case::new("ready");
    case.started();
    case
}

#[test]
fn c45_ready_with_min_0() {
    ready().passes();
    let mut case = ready();
    case.manifest()["scaling"]["min"] = json!(0);
    let service = &mut case.output("ecs:DescribeServices")["services"][0];
    service["runningCount"] = json!(0);
    service["desiredCount"] = json!(0);
    case.fails(&["READY_VACUOUS"]);
}

pub(super) fn batch(use_: &str, name: &str) -> Case {
    let mut case = Case::new(&format!("dns-batch:{use_}"));
    case.docs.insert("dns_batch", fixture(name));
    case.records("before-convert");
    case
}

#[test]
fn c46_convert_batch() {
    batch("convert", "dns-batch-convert").passes();
    batch("convert", "dns-batch-convert-upsert-bad").fails(&["BATCH_UPSERT"]);
    batch("convert", "dns-batch-convert-wrong-ttl-bad").fails(&["BATCH_DELETE_MISMATCH"]);
    batch("convert", "dns-batch-convert-extra-delete-validation-bad")
        .fails(&["VALIDATION_RECORD_DELETE", "BATCH_EXTRA"]);
    batch("convert", "dns-batch-convert-zero-zero-bad").fails(&["BATCH_WEIGHTS", "CUT_ZERO_ZERO"]);
    // The way back.
    let mut case = batch("revert", "dns-batch-revert").rollback();
    case.records("after-convert");
    case.passes();
}

pub(super) fn import_7a(plan: &str) -> Case {
    Case::plan("import:7a", plan)
}

#[test]
fn c47_7a_refreshed() {
    import_7a("convert_import__refreshed_forget").passes();
}

#[test]
fn c48_7a_no_refresh() {
    import_7a("convert_import__no_refresh_forget").passes();
}

pub(super) fn null_noop() -> Case {
    let mut case = import_7a("convert_import__refreshed_forget");
    let change = &mut case.change("aws_route53_record.domain")["change"];
    let before = change["before"].clone();
    *change = json!({"actions": ["no-op"], "before": null, "after": null, "after_unknown": {}});
    let mut drift = case.change("aws_route53_record.domain").clone();
    drift["change"] = json!({"actions": ["delete"], "before": before, "after": null, "after_unknown": {}});
    case.doc("plan")["resource_drift"] = json!([drift]);
    case
}

#[test]
fn c49_7a_null_noop_form() {
    let mut case = null_noop();
    case.passes();
    case.doc("plan")
        .as_object_mut()
        .unwrap()
        .shift_remove("resource_drift");
    case.fails(&["FORGET_NO_DRIFT"]).only(&["FORGET_NO_DRIFT"]);
}

#[test]
fn c50_7a_missing_one_import() {
    import_7a("convert_import__missing_ecs_import").fails(&["IMPORT_MISSING"]);
}

#[test]
fn c51_7a_weights_changed() {
    import_7a("convert_import__weights_differ_update_while_importing").fails(&["IMPORT_NOT_PURE"]);
}

pub(super) fn cutover(plan: &str, live: (i64, i64)) -> Case {
    let mut case = Case::plan("cutover", plan);
    case.weights(live.0, live.1);
    case
}

#[test]
fn c52_cutover_first_step() {
    let mut case = cutover("cutover__100_0_to_90_10", (100, 0));
    case.passes();
    case.request.step = Some(1);
    case.passes();
    case.request.step = Some(2);
    case.fails(&["CUT_STEP"]).only(&["CUT_STEP"]);
}

#[test]
fn c53_cutover_direct() {
    cutover("cutover__100_0_to_0_100_direct", (100, 0)).fails(&["CUT_ZERO_ZERO", "CUT_STEP"]);
}

#[test]
fn c54_cutover_to_0_0() {
    cutover("cutover__to_0_0", (100, 0)).fails(&["CUT_ZERO_ZERO", "CUT_STEP"]);
}

#[test]
fn c55_cutover_weight_and_ttl() {
    cutover("cutover__weight_plus_ttl", (100, 0)).fails(&["CUT_ATTR"]);
}

#[test]
fn c56_rollback_direct() {
    let case = cutover("cutover_rollback__0_100_to_100_0_direct", (0, 100)).rollback();
    case.fails(&["CUT_ROLLBACK_PATH", "CUT_ZERO_ZERO"]);
}

#[test]
fn c57_rollback_waypoints() {
    cutover("cutover_rollback__waypoint_0_100_to_100_100", (0, 100))
        .rollback()
        .passes();
    cutover("cutover_rollback__waypoint_100_100_to_100_0", (100, 100))
        .rollback()
        .passes();
}

#[test]
fn c58_waypoint_without_rollback() {
    cutover("cutover_rollback__waypoint_0_100_to_100_100", (0, 100)).fails(&["CUT_DIRECTION", "CUT_STEP"]);
}

pub(super) fn switch(plan: &str) -> Case {
    let mut case = Case::plan("switch", plan);
    case.records("before-convert");
    case
}

#[test]
fn c59_switch() {
    switch("switch__records_in_place").passes();
    switch("switch__records_and_ttl").fails(&["SWITCH_ATTR"]);
    switch("switch__replace_requested").fails(&["PLAN_REPLACE"]);
}

#[test]
fn c60_taskdef_on() {
    Case::plan("taskdef-on", "taskdef_on__create_only").passes();
    Case::plan("taskdef-on", "taskdef_on__create_key_order_differs").passes();
}

#[test]
fn c61_taskdef_on_second_env_var() {
    Case::plan("taskdef-on", "taskdef_on__second_env_var_differs").fails(&["TD_DIFF"]);
}

#[test]
fn c62_taskdef_on_touches_the_service() {
    let case = Case::plan("taskdef-on", "taskdef_on__touches_service_unknown_arn");
    case.fails(&["TD_TOUCHES_SERVICE", "ATTR_UNKNOWN"]);
}

#[test]
fn c63_worker_off() {
    Case::plan("worker-off", "worker_off__single_env_var").passes();
    Case::plan("worker-off", "worker_off__plus_cpu").fails(&["WORKER_OFF_ATTR"]);
    Case::plan("worker-off", "worker_off__second_env_var").fails(&["WORKER_OFF_ATTR"]);
}

pub(super) fn worker_off_live() -> Case {
    let mut case = Case::new("worker-off-live");
    let env =
        &mut case.output("apprunner:DescribeService")["Service"]["SourceConfiguration"]["ImageRepository"];
    env["ImageConfiguration"]["RuntimeEnvironmentVariables"]["WORKER_ENABLED"] = json!("false");
    case.docs.insert(
        "answer",
        json!({"kind": "operator-answer", "run_id": "demo-1", "question": "idle-check", "exit_code": 0,
        "operator": "ada", "answered_at": "2026-11-30T23:30:00Z"}),
    );
    let mut planned = case.verdict("worker-off", "forward", "PASS");
    planned["facts"] = json!({"plan_timestamp": "2026-11-30T23:15:47Z"});
    case.prior.push(planned);
    case
}

#[test]
fn c64_worker_off_rolled_back() {
    worker_off_live().passes();
    let mut case = worker_off_live();
    case.output("apprunner:ListOperations")["OperationSummaryList"][0]["Status"] =
        json!("ROLLBACK_SUCCEEDED");
    case.fails(&["OPERATION_ROLLED_BACK"])
        .only(&["OPERATION_ROLLED_BACK"]);
}

#[test]
fn c65_worker_on() {
    Case::plan("worker-on", "worker_on__literal_on_arn").passes();
    Case::plan("worker-on", "worker_on__wrong_arn").fails(&["ATTR_AFTER_MISMATCH"]);
    Case::plan("worker-on", "worker_on__unknown_task_definition").fails(&["ATTR_UNKNOWN", "PLAN_REPLACE"]);
    Case::plan("worker-on", "worker_on__second_attribute").fails(&["WORKER_ON_ATTR"]);
}

#[test]
fn c66_worker_on_rollback() {
    let mut case = Case::plan("worker-on", "worker_on__rollback_to_off_arn").rollback();
    case.running(2);
    case.passes();
}

pub(super) fn rolled_back(values: &[f64], times: &[&str]) -> Case {
    let mut case = Case::new("rolled-back");
    case.new_host("new.example.com");
    let mut started = case.verdict("start", "forward", "PASS");
    started["applied_at"] = json!("2026-11-30T23:10:00Z");
    case.prior.push(started);
    let state = case.doc("state_rebuild")["values"]["root_module"]["resources"]
        .as_array_mut()
        .unwrap();
    let target = state
        .iter_mut()
        .find(|r| r["type"] == "aws_appautoscaling_target")
        .unwrap();
    target["values"]["max_capacity"] = json!(3);
    let (input, output) = request_count(values, times);
    case.read("cloudwatch:GetMetricData", input, output);
    case
}

pub(super) fn answer(word: &str, count: f64) -> Value {
    json!({"kind": "operator-answer", "run_id": "demo-1", "question": "rollback-destroy-new-host",
        "shown": {"alb_arn": LB, "window_start": "2026-11-30T23:10:00Z", "window_end": "2026-11-30T23:30:00Z", "request_count": count},
        "answer": word, "operator": "ada", "answered_at": "2026-11-30T23:32:00Z"})
}

#[test]
fn c67_rolled_back_needs_an_answer_whatever_the_count() {
    let judged = rolled_back(&[], &[]).gives(Word::NeedsAnswer, &["RB_ANSWER_REQUIRED"]);
    judged.only(&["RB_ANSWER_REQUIRED"]);
    assert_eq!(judged.0.verdict.facts["requests"]["request_count"], 0);
    assert!(
        judged.0.verdict.facts["requests"]["note"]
            .as_str()
            .unwrap()
            .starts_with("0 (no datapoints)")
    );
    // 412 requests and zero ask alike; with the answer it passes.
    let times = ["2026-11-30T23:12:00Z", "2026-11-30T23:13:00Z"];
    let mut case = rolled_back(&[400.0, 12.0], &times);
    case.gives(Word::NeedsAnswer, &["RB_ANSWER_REQUIRED"]);
    case.docs.insert("answer", answer("proceed", 412.0));
    assert_eq!(case.passes().0.verdict.facts["requests"]["request_count"], 412);
}

#[test]
fn c68_rolled_back_stop() {
    let mut case = rolled_back(&[412.0], &["2026-11-30T23:12:00Z"]);
    case.docs.insert("answer", answer("stop", 412.0));
    case.fails(&["RB_OPERATOR_STOP"]);
}

#[test]
fn c69_rolled_back_metrics_denied() {
    let mut case = rolled_back(&[], &[]);
    case.docs.insert("answer", answer("proceed", 0.0));
    case.read_fails("cloudwatch:GetMetricData", "AccessDenied");
    let judged = case.gives(Word::Indeterminate, &["RB_REQUESTCOUNT_UNAVAILABLE"]);
    assert!(judged.0.verdict.failures[0].needs_admin);
    // Also without the run's record, and with a state of before start.
    case.prior.clear();
    case.docs.remove("answer");
    case.state_rebuild("after-8a");
    case.gives(Word::Indeterminate, &["RB_REQUESTCOUNT_UNAVAILABLE"]);
    // RK-9: where nothing was ever started the count is 0 by construction, and the question stays.
    case.no_read("cloudwatch:GetMetricData");
    case.gives(Word::NeedsAnswer, &["RB_ANSWER_REQUIRED"])
        .only(&["RB_ANSWER_REQUIRED"]);
}

pub(super) fn destroy(plan: &str) -> Case {
    let mut case = Case::plan("rollback-rebuild", plan);
    case.validation_record();
    case
}

#[test]
fn c70_rollback_happy() {
    let judged = destroy("rollback__all_in_state_forget_log_and_validation").passes();
    let keep = &judged.0.verdict.must_keep[0];
    assert_eq!(keep.name, VALIDATION.trim_end_matches('.'));
    assert!(
        keep.reason.contains("unowned") && keep.reason.contains("do not delete"),
        "{}",
        keep.reason
    );
    let left = &judged.0.verdict.left_behind;
    assert!(left.iter().any(|l| l.kind == "task definition"
        && l.id == format!("{TD}:1")
        && l.action.contains("registered")));
    assert!(
        left.iter()
            .any(|l| l.kind == "log group" && l.id == "/ecsodus/api")
    );
}

#[test]
fn c71_rollback_deletes_the_validation_record() {
    destroy("rollback__deletes_validation_record").fails(&["VALIDATION_RECORD_DELETE", "FORGET_MISSING"]);
}

#[test]
fn c72_rollback_deletes_the_log_group() {
    destroy("rollback__deletes_log_group").fails(&["LOG_GROUP_DELETE", "FORGET_MISSING"]);
}

#[test]
fn c73_rollback_forgets_the_alb_too() {
    let judged =
        destroy("rollback__forgets_alb_too").fails(&["ADDR_FORGET_OUTSIDE_MANIFEST", "ADDR_MISSING"]);
    let missing = judged
        .0
        .verdict
        .failures
        .iter()
        .find(|f| f.code == "ADDR_MISSING")
        .unwrap();
    assert_eq!(
        (missing.address.as_deref(), missing.expected.clone()),
        (Some("aws_lb.app"), Some(json!("delete")))
    );
}

fn only_2a(plan: &str) -> Case {
    let mut case = destroy(plan);
    case.state_rebuild("after-2a");
    case
}

#[test]
fn c74_rollback_with_only_the_certificate() {
    let judged = only_2a("rollback__only_2a_cert_in_state").passes();
    assert_eq!(judged.0.verdict.summary["delete"], 1);
    assert!(judged.0.verdict.must_keep.is_empty());
}

#[test]
fn c75_rollback_targeted() {
    destroy("rollback__targeted").fails(&["PLAN_INCOMPLETE", "ADDR_MISSING", "FORGET_MISSING"]);
}

#[test]
fn c76_rollback_by_plain_destroy() {
    destroy("rollback__plan_destroy_flag").fails(&[
        "VALIDATION_RECORD_DELETE",
        "LOG_GROUP_DELETE",
        "FORGET_MISSING",
    ]);
}

#[test]
fn c77_rollback_removed_destroy_true() {
    destroy("rollback__removed_destroy_true").fails(&[
        "VALIDATION_RECORD_DELETE",
        "LOG_GROUP_DELETE",
        "FORGET_MISSING",
    ]);
}

#[test]
fn c78_steady() {
    Case::plan("steady:infra_rebuild", "steady__handover_ignore_task_definition").passes();
    Case::plan("steady:m5a", "steady__m5a_noop").passes();
    Case::plan("steady:infra_rebuild", "start__min_1_max_3").fails(&["STEADY_CHANGES"]);
    Case::plan("steady:infra_rebuild", "steady__infra_rebuild_noop").fails(&["STEADY_CHANGES"]);
}

#[test]
fn c79_prepare() {
    Case::plan("prepare", "prepare__trust_and_ttl").passes();
    Case::plan("prepare", "prepare__plus_apprunner_env").fails(&["ADDR_UNEXPECTED"]);
    Case::plan("prepare", "prepare__ttl_raised").fails(&["PREPARE_TTL"]);
    Case::plan("prepare", "prepare__trust_without_source_account").fails(&["PREPARE_TRUST_MISMATCH"]);
}

#[test]
fn c80_task_definition_replaced_with_skip_destroy() {
    for phase in ["start", "taskdef-on", "worker-on"] {
        let judged = Case::plan(phase, "taskdef__off_replaced_skip_destroy_true").fails(&["PLAN_REPLACE"]);
        assert!(!judged.has("TASKDEF_WOULD_DEREGISTER"), "{judged}");
    }
}

#[test]
fn c81_skip_destroy_cleared() {
    Case::plan("start", "taskdef__skip_destroy_flipped_off_update").fails(&["TASKDEF_SKIP_DESTROY_CLEARED"]);
}

#[test]
fn c82_state_as_plan() {
    let mut case = Case::plan("steady:infra_rebuild", "steady__m5a_noop");
    case.docs.insert("plan", fixture("state-infra-rebuild-after-2a"));
    case.manifest()["phases"]["steady:infra_rebuild"]["addresses"] = json!({});
    case.fails(&["PLAN_NOT_A_PLAN"]);
}

#[test]
fn c83_retire() {
    for plan in ["steady__m5a_noop", "rollback__plan_destroy_flag"] {
        Case::plan("retire", plan)
            .fails(&["RETIRE_UNAVAILABLE"])
            .only(&["RETIRE_UNAVAILABLE"]);
    }
}

#[test]
fn c84_manifest_for_another_account() {
    let mut case = Case::plan("start", "start__min_1_max_3");
    case.live["account"] = json!("210987654321");
    case.fails(&["BIND_ACCOUNT"]);
    let mut case = Case::plan("start", "start__min_1_max_3");
    case.read(
        "sts:GetCallerIdentity",
        json!({}),
        json!({"Account": "210987654321"}),
    );
    case.fails(&["BIND_ACCOUNT"]);
    let mut case = Case::plan("start", "start__min_1_max_3");
    case.manifest()["account"] = json!("210987654321");
    case.fails(&["BIND_ACCOUNT"]);
}

#[test]
fn c85_trailing_dots_and_case() {
    let mut case = rebuild("rebuild__create_all_absent_outcome");
    let name = format!("{}.", VALIDATION.to_ascii_uppercase().trim_end_matches('.'));
    case.doc("cert_requested")["record"]["name"] = json!(name);
    case.passes();
}

#[test]
fn c86_cutover_set_identifier_changed() {
    cutover("cutover__set_identifier_changed", (100, 0)).fails(&["CUT_ATTR"]);
}

#[test]
fn c87_cutover_targeted() {
    cutover("cutover__targeted_one_record", (100, 0)).fails(&["PLAN_INCOMPLETE", "ADDR_MISSING"]);
}

#[test]
fn c88_cutover_last_step() {
    cutover("cutover__10_90_to_0_100", (10, 90)).passes();
    cutover("cutover__10_90_to_0_100", (10, 90))
        .rollback()
        .fails(&["CUT_ROLLBACK_PATH"]);
}

#[test]
fn c89_reverse_conversion() {
    Case::plan("import:7a-revert", "revert_import__refreshed_forget").passes();
    Case::plan("import:7a-revert", "revert_import__no_refresh_forget").passes();
}

#[test]
fn c90_7a_without_the_removed_block() {
    let judged = import_7a("convert_import__no_removed_block_refreshed").fails(&["FORGET_MISSING"]);
    let forget = judged
        .0
        .verdict
        .failures
        .iter()
        .find(|f| f.code == "FORGET_MISSING")
        .unwrap();
    assert!(forget.message.contains("removed block"), "{}", forget.message);
}

#[test]
fn c91_7a_while_the_simple_record_is_live() {
    let mut case = import_7a("convert_import__refreshed_forget");
    case.records("before-convert");
    case.fails(&["CUT_LIVE_MISMATCH"]).only(&["CUT_LIVE_MISMATCH"]);
}

#[test]
fn c92_off_twin() {
    Case::plan("taskdef-off", "taskdef_off__create_off_live").passes();
    let mut case = Case::plan("taskdef-off", "taskdef_off__create_off_live");
    case.running(2);
    case.fails(&["LIVE_REVISION_MISMATCH"])
        .only(&["LIVE_REVISION_MISMATCH"]);
}

#[test]
fn c93_taskdef_on_skip_destroy_false() {
    Case::plan("taskdef-on", "taskdef_on__skip_destroy_false").fails(&["TD_SKIP_DESTROY"]);
}

#[test]
fn c94_2b_creates_or_changes() {
    let case = import_2b("import_2b__create_instead_of_import");
    case.fails(&["IMPORT_MISSING", "ADDR_CREATE_OUTSIDE_MANIFEST"]);
    let case = import_2b("import_2b__import_with_value_update");
    case.fails(&["IMPORT_NOT_PURE", "VALIDATION_RECORD_CHANGED"]);
}

#[test]
fn c95_destroy_on_the_m5a_root() {
    for phase in [
        "prepare",
        "import:7a",
        "cutover",
        "switch",
        "worker-off",
        "steady:m5a",
    ] {
        Case::plan(phase, "destroy__blocked_by_prevent_destroy").fails(&["PLAN_ERRORED", "APPRUNNER_DELETE"]);
    }
}

#[test]
fn c96_rollback_with_2a_only_and_no_removed_blocks() {
    only_2a("rollback__only_2a_no_removed_blocks").passes();
}

#[test]
fn c97_switch_renames_the_record() {
    switch("switch__renamed_forces_replace").fails(&["PLAN_REPLACE"]);
}

#[test]
fn c98_rebuild_already_issued_outcome_absent() {
    let mut case = rebuild("rebuild__create_all_certificate_already_issued");
    case.certificate("ISSUED", hours(10));
    case.validation_record();
    case.fails(&["VALIDATION_OUTCOME_CHANGED"])
        .only(&["VALIDATION_OUTCOME_CHANGED"]);
}

#[test]
fn c99_task_definition_replaced_flag_cleared() {
    let case = Case::plan("start", "taskdef__off_replaced_skip_destroy_false_in_config");
    case.fails(&["PLAN_REPLACE", "TD_SKIP_DESTROY"]);
}

#[test]
fn bad_requests_and_inputs() {
    // 2.11 row 22.
    let mut case = Case::plan("start", "start__min_1_max_3");
    case.request = Request {
        phase: "begin".into(),
        ..Request::default()
    };
    case.fails(&["INPUT_PHASE_UNKNOWN"]);
    for (bytes, word, code) in [
        (b"".to_vec(), Word::Indeterminate, "EVID_UNREADABLE"),
        (
            fixture_text("start__min_1_max_3.json").into_bytes()[..5000].to_vec(),
            Word::Indeterminate,
            "EVID_UNREADABLE",
        ),
        (vec![0xff, 0xfe], Word::Indeterminate, "EVID_UNREADABLE"),
        (b"[1,2]".to_vec(), Word::Fail, "PLAN_NOT_A_PLAN"),
        (b"{}".to_vec(), Word::Fail, "PLAN_NOT_A_PLAN"),
    ] {
        let mut case = Case::plan("start", "start__min_1_max_3");
        case.raw.insert("plan", bytes);
        let judged = case.judge();
        assert_eq!(judged.0.verdict.verdict, word, "{judged}");
        assert!(judged.has(code), "{judged}");
    }
    let mut case = Case::plan("start", "start__min_1_max_3");
    case.doc("plan")["format_version"] = json!("2.0");
    case.fails(&["PLAN_NOT_A_PLAN"]);
    let mut case = Case::plan("start", "start__min_1_max_3");
    case.manifest()["schema"] = json!(2);
    case.fails(&["MANIFEST_INVALID"]).only(&["MANIFEST_INVALID"]);
    let mut case = Case::plan("start", "start__min_1_max_3");
    case.raw.insert("manifest", b"not json".to_vec());
    let error = crate::rebuild::judge(&case.request, &case.inputs(), case.now).unwrap_err();
    assert!(error.0.contains("not JSON"), "{error}");
}
