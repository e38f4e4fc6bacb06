//! Mutations of every kind of passing plan: each action, address, gated leaf, unknown mark and plan-wide member in
//! turn, extra and missing resources. None may pass. Reordering what is a set must pass. And fuzz: nothing panics.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::cases::{batch, cutover, destroy, import_7a, rebuild, rebuild_new_host, switch};
use super::harness::*;
use crate::rebuild::{PHASES, Request, Word};

const ALL: &[&str] = &["*"];

/// A passing plan and what of it is gated: address, side, paths.
struct Target {
    name: &'static str,
    case: Case,
    gated: Vec<(&'static str, &'static str, &'static [&'static str])>,
}

const RECORD: &[&str] = &["zone_id", "name", "type", "records"];
const WEIGHTED: &[&str] = &[
    "zone_id",
    "name",
    "type",
    "records",
    "ttl",
    "set_identifier",
    "weighted_routing_policy",
];
const REVISION: &[&str] = &[
    "container_definitions",
    "skip_destroy",
    "cpu",
    "memory",
    "family",
    "task_role_arn",
    "execution_role_arn",
    "network_mode",
    "runtime_platform",
];

fn targets() -> Vec<Target> {
    let both = |address: &'static str| vec![(address, "before", ALL), (address, "after", ALL)];
    let two = |a: &'static str, b: &'static str| [both(a), both(b)].concat();
    let target = |name, case: Case, gated| Target { name, case, gated };
    let mut rollback = cutover("cutover_rollback__waypoint_0_100_to_100_100", (0, 100)).rollback();
    rollback.request.step = Some(1);
    let mut back = Case::plan("worker-on", "worker_on__rollback_to_off_arn").rollback();
    back.running(2);
    let mut two_b = Case::plan("import:2b", "import_2b__pure_import_validation_record");
    two_b.validation_record();
    let created: Vec<(&str, &str, &'static [&str])> = vec![
        (
            "aws_ecs_service.app",
            "after",
            &["desired_count", "deployment_circuit_breaker"],
        ),
        (
            "aws_appautoscaling_target.app",
            "after",
            &["min_capacity", "max_capacity"],
        ),
        ("aws_ecs_task_definition.off", "after", &["skip_destroy"]),
        (
            "aws_route53_record.validation",
            "after",
            &["zone_id", "name", "type", "records", "allow_overwrite"],
        ),
        (
            "aws_acm_certificate_validation.app",
            "after",
            &["certificate_arn", "validation_record_fqdns"],
        ),
        ("aws_lb_listener.https", "after", &["certificate_arn"]),
        ("aws_acm_certificate.app", "before", &["arn"]),
    ];
    let mut new_host = created.clone();
    new_host.push((
        "aws_route53_record.new_host",
        "after",
        &["zone_id", "name", "type", "allow_overwrite", "records", "ttl"],
    ));
    vec![
        target(
            "cert-request",
            Case::plan("cert-request", "cert_request__create_only"),
            vec![(
                "aws_acm_certificate.app",
                "after",
                &[
                    "domain_name",
                    "validation_method",
                    "subject_alternative_names",
                    "certificate_authority_arn",
                    "certificate_body",
                    "private_key",
                ],
            )],
        ),
        target(
            "prepare",
            Case::plan("prepare", "prepare__trust_and_ttl"),
            two("aws_iam_role.instance", "aws_route53_record.domain"),
        ),
        target(
            "import 2b",
            two_b,
            vec![
                ("aws_route53_record.validation", "before", RECORD),
                ("aws_route53_record.validation", "after", ALL),
            ],
        ),
        target("rebuild", rebuild("rebuild__create_all_absent_outcome"), created),
        target(
            "rebuild new_host",
            rebuild_new_host("rebuild__new_host_alias_a"),
            new_host,
        ),
        target(
            "start",
            Case::plan("start", "start__min_1_max_3"),
            both("aws_appautoscaling_target.app"),
        ),
        target(
            "import 7a",
            import_7a("convert_import__refreshed_forget"),
            vec![
                ("aws_route53_record.apprunner", "before", WEIGHTED),
                ("aws_route53_record.ecs", "before", WEIGHTED),
            ],
        ),
        target(
            "import 7a-revert",
            Case::plan("import:7a-revert", "revert_import__refreshed_forget"),
            vec![("aws_route53_record.domain", "before", WEIGHTED)],
        ),
        target(
            "cutover",
            cutover("cutover__100_0_to_90_10", (100, 0)),
            two("aws_route53_record.apprunner", "aws_route53_record.ecs"),
        ),
        target(
            "cutover rollback",
            rollback,
            two("aws_route53_record.apprunner", "aws_route53_record.ecs"),
        ),
        target(
            "switch",
            switch("switch__records_in_place"),
            both("aws_route53_record.domain"),
        ),
        target(
            "taskdef-on",
            Case::plan("taskdef-on", "taskdef_on__create_only"),
            vec![
                ("aws_ecs_task_definition.on", "after", REVISION),
                (
                    "aws_ecs_task_definition.off",
                    "before",
                    &["cpu", "memory", "family", "network_mode"],
                ),
            ],
        ),
        target(
            "taskdef-off",
            Case::plan("taskdef-off", "taskdef_off__create_off_live"),
            vec![("aws_ecs_task_definition.off_live", "after", REVISION)],
        ),
        target(
            "worker-off",
            Case::plan("worker-off", "worker_off__single_env_var"),
            both("aws_apprunner_service.app"),
        ),
        target(
            "worker-on",
            Case::plan("worker-on", "worker_on__literal_on_arn"),
            both("aws_ecs_service.app"),
        ),
        target("worker-on rollback", back, both("aws_ecs_service.app")),
        target(
            "steady",
            {
                let mut c = Case::plan("steady:m5a", "steady__m5a_noop");
                let entry = c.manifest()["phases"]["steady:m5a"].clone();
                c.manifest()["phases"]["steady"] = entry;
                c.request.use_ = Some("m5a".into());
                c
            },
            vec![
                ("aws_apprunner_service.app", "before", &["id", "arn"]),
                ("aws_iam_role.instance", "before", &["id", "arn"]),
            ],
        ),
        target(
            "rollback-rebuild",
            destroy("rollback__all_in_state_forget_log_and_validation"),
            vec![("aws_ecs_task_definition.off", "before", &["skip_destroy"])],
        ),
    ]
}

/// The parts of a plan that no rule reads are left out, so that thousands of mutations stay quick.
fn slim(case: &mut Case) {
    let plan = case.doc("plan");
    plan["planned_values"] = json!({});
    plan.as_object_mut().unwrap().shift_remove("relevant_attributes");
    plan.as_object_mut().unwrap().shift_remove("prior_state");
    let phases = case.manifest()["phases"].as_object_mut().unwrap();
    phases.retain(|key, _| !key.starts_with("steady:"));
    case.bake();
}

/// Addresses that are gated, and a few of the others.
fn chosen(target: &mut Target) -> Vec<String> {
    let gated: Vec<&str> = target.gated.iter().map(|(a, _, _)| *a).collect();
    let all = addresses(&mut target.case);
    let (mine, rest): (Vec<String>, Vec<String>) = all.into_iter().partition(|a| gated.contains(&a.as_str()));
    let few = rest.len() / 3 + 1;
    mine.into_iter().chain(rest.into_iter().step_by(few)).collect()
}

/// Another value of the same kind.
fn other(value: &Value) -> Value {
    match value {
        Value::Null => json!("x"),
        Value::Bool(b) => json!(!b),
        Value::Number(n) => json!(n.as_i64().unwrap() + 1),
        Value::String(s) => json!(format!("{s}x")),
        Value::Array(_) => json!(["x"]),
        Value::Object(_) => json!({"x": "x"}),
    }
}

/// Pointers of every leaf, empty containers included.
fn leaves(value: &Value, at: &str, out: &mut Vec<String>) {
    match value {
        Value::Object(map) if !map.is_empty() => map.iter().for_each(|(k, v)| {
            leaves(
                v,
                &format!("{at}/{}", k.replace('~', "~0").replace('/', "~1")),
                out,
            )
        }),
        Value::Array(list) if !list.is_empty() => list
            .iter()
            .enumerate()
            .for_each(|(i, v)| leaves(v, &format!("{at}/{i}"), out)),
        _ => out.push(at.to_owned()),
    }
}

#[track_caller]
fn refused(name: &str, what: &str, case: &Case) {
    let judged = case.judge();
    assert_ne!(judged.0.verdict.verdict, Word::Pass, "{name}: {what} passes");
}

fn addresses(case: &mut Case) -> Vec<String> {
    let list = case.doc("plan")["resource_changes"].as_array().unwrap();
    list.iter()
        .map(|c| c["address"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn no_other_action_passes() {
    let all = [
        json!(["no-op"]),
        json!(["create"]),
        json!(["read"]),
        json!(["update"]),
        json!(["delete"]),
        json!(["forget"]),
        json!(["delete", "create"]),
        json!(["create", "delete"]),
        json!(["create", "forget"]),
        json!([]),
        json!(["later"]),
    ];
    for mut target in targets() {
        slim(&mut target.case);
        target.case.passes();
        for address in chosen(&mut target) {
            let now = target.case.change(&address)["change"]["actions"].clone();
            for actions in all.iter().filter(|a| **a != now) {
                let mut case = target.case.clone();
                case.change(&address)["change"]["actions"] = actions.clone();
                refused(target.name, &format!("{address} {actions}"), &case);
            }
        }
    }
}

#[test]
fn no_other_address_type_provider_or_mark_passes() {
    for mut target in targets() {
        slim(&mut target.case);
        for address in chosen(&mut target) {
            let edits: [(&str, Value); 9] = [
                ("address", json!(format!("{address}x"))),
                ("type", json!("aws_lb_x")),
                ("name", json!("x")),
                ("mode", json!("data")),
                ("provider_name", json!("registry.terraform.io/other/aws")),
                ("module_address", json!("module.x")),
                ("previous_address", json!("aws_lb.x")),
                ("deposed", json!("01234567")),
                ("address", json!("aws_lb.elsewhere")),
            ];
            for (key, value) in edits {
                let mut case = target.case.clone();
                case.change(&address)[key] = value;
                refused(target.name, &format!("{address} {key}"), &case);
            }
            let mut case = target.case.clone();
            case.change(&address)["change"]["generated_config"] = json!("x");
            refused(target.name, &format!("{address} generated"), &case);
        }
    }
}

#[test]
fn no_gated_leaf_may_differ_or_be_unknown() {
    for mut target in targets() {
        slim(&mut target.case);
        for (address, side, paths) in &target.gated {
            let mut all = Vec::new();
            leaves(&target.case.change(address)["change"][*side], "", &mut all);
            for leaf in all {
                let path = leaf.trim_start_matches('/').replace('/', ".");
                let gated = paths == &ALL
                    || paths
                        .iter()
                        .any(|p| path == *p || path.starts_with(&format!("{p}.")));
                if !gated {
                    continue;
                }
                let mut case = target.case.clone();
                let value = case.change(address)["change"][*side].pointer_mut(&leaf).unwrap();
                // Emptiness of one kind or another is the same to Terraform's API; a filled value is not.
                *value = if leaf.ends_with("set_identifier") && value.is_null() {
                    json!("x")
                } else {
                    other(value)
                };
                refused(target.name, &format!("{address} {side} {path}"), &case);
            }
            if *side == "after" {
                let known: Map<String, Value> = target.case.change(address)["change"]["after"]
                    .as_object()
                    .unwrap()
                    .clone();
                for key in known
                    .keys()
                    .filter(|k| paths == &ALL || paths.contains(&k.as_str()))
                {
                    let mut case = target.case.clone();
                    case.change(address)["change"]["after_unknown"][key] = json!(true);
                    refused(target.name, &format!("{address} {key} unknown"), &case);
                }
            }
        }
    }
}

#[test]
fn no_missing_or_extra_resource_passes() {
    for mut target in targets() {
        slim(&mut target.case);
        let listed = target.gated.iter().map(|(a, _, _)| (*a).to_owned());
        let every = ["rebuild", "rebuild new_host", "rollback-rebuild", "steady"].contains(&target.name);
        let gone: Vec<String> = if every {
            addresses(&mut target.case)
        } else {
            listed.collect()
        };
        for address in gone {
            let mut case = target.case.clone();
            case.doc("plan")["resource_changes"]
                .as_array_mut()
                .unwrap()
                .retain(|c| c["address"] != json!(address));
            refused(target.name, &format!("without {address}"), &case);
        }
        for action in ["create", "update", "delete", "forget", "read", "no-op"] {
            let mut case = target.case.clone();
            case.add(
                "aws_sqs_queue.extra",
                json!([action]),
                json!({"id": "x"}),
                json!({"id": "y"}),
            );
            if case.request.phase == "steady" || action != "no-op" || case.raw.contains_key("state_m5a") {
                refused(target.name, &format!("extra {action}"), &case);
            }
        }
        let mut case = target.case.clone();
        let mut twin = case.doc("plan")["resource_changes"][0].clone();
        twin["deposed"] = Value::Null;
        case.doc("plan")["resource_changes"]
            .as_array_mut()
            .unwrap()
            .push(twin);
        refused(target.name, "an address twice", &case);
    }
}

#[test]
fn no_other_plan_wide_member_passes() {
    for mut target in targets() {
        slim(&mut target.case);
        let steady = target.name == "steady";
        let edits = [
            ("errored", json!(true)),
            ("errored", Value::Null),
            ("complete", json!(false)),
            ("complete", Value::Null),
            ("applyable", json!(steady)),
            ("applyable", Value::Null),
            ("format_version", json!("2.0")),
            ("terraform_version", json!("1.9.0")),
            ("terraform_version", json!("1.12.0-beta1")),
            ("timestamp", json!("yesterday")),
            ("timestamp", json!("2026-11-29T00:00:00Z")),
            ("planned_values", Value::Null),
            ("configuration", Value::Null),
            ("values", json!({})),
            ("deferred_changes", json!([{}])),
            ("deferred_action_invocations", json!([{}])),
            ("action_invocations", json!([{}])),
            ("checks", json!([{"status": "error"}])),
            (
                "checks",
                json!([{"status": "pass", "instances": [{"status": "fail"}]}]),
            ),
            ("output_changes", json!({"x": {"actions": ["update"]}})),
            (
                "prior_state",
                json!({"values": {"root_module": {"resources": [{"address": "data.aws_lb.x", "mode": "data"}]}}}),
            ),
        ];
        for (key, value) in edits {
            let mut case = target.case.clone();
            case.doc("plan")[key] = value.clone();
            refused(target.name, &format!("{key} {value}"), &case);
        }
        let mut case = target.case.clone();
        case.doc("plan")["configuration"]["provider_config"]["aws.second"] =
            json!({"full_name": "registry.terraform.io/hashicorp/aws", "alias": "second"});
        refused(target.name, "second provider", &case);
        let mut case = target.case.clone();
        case.doc("plan")["configuration"]["root_module"]["module_calls"] = json!({"x": {}});
        refused(target.name, "module call", &case);
    }
}

/// Reverses every array that is a set, the list of changes, and the members of every object.
fn reorder(value: &mut Value, key: &str) {
    match value {
        Value::Array(list) => {
            list.iter_mut().for_each(|v| reorder(v, ""));
            let sets = [
                "records",
                "subject_alternative_names",
                "security_groups",
                "subnets",
                "validation_record_fqdns",
                "resource_changes",
                "resource_drift",
                "resources",
            ];
            if sets.contains(&key) {
                list.reverse();
            }
        }
        Value::Object(map) => {
            let members: Vec<(String, Value)> = std::mem::take(map).into_iter().collect();
            for (k, mut v) in members.into_iter().rev() {
                reorder(&mut v, &k);
                map.insert(k, v);
            }
        }
        _ => {}
    }
}

#[test]
fn order_never_matters_where_there_is_none() {
    for mut target in targets() {
        reorder(target.case.doc("plan"), "");
        let judged = target.case.judge();
        assert_eq!(judged.0.verdict.verdict, Word::Pass, "{}: {judged}", target.name);
        // One side only: a set that merely comes in another order is no change.
        for (address, side, _) in &target.gated {
            reorder(&mut target.case.change(address)["change"][*side], "");
        }
        target.case.passes();
    }
}

#[test]
fn no_mutation_of_a_batch_passes() {
    for (use_, name, records) in [
        ("convert", "dns-batch-convert", "before-convert"),
        ("revert", "dns-batch-revert", "after-convert"),
    ] {
        let mut case = batch(use_, name);
        case.records(records);
        case.passes();
        let mut all = Vec::new();
        leaves(&case.doc("dns_batch")["Changes"], "", &mut all);
        for leaf in all {
            let mut case = case.clone();
            let value = case.doc("dns_batch")["Changes"].pointer_mut(&leaf).unwrap();
            *value = other(value);
            // An unreadable record is not judged; every other mutation fails.
            refused(name, &leaf, &case);
        }
        for i in 0..3 {
            let mut case = case.clone();
            case.doc("dns_batch")["Changes"].as_array_mut().unwrap().remove(i);
            refused(name, &format!("without {i}"), &case);
        }
    }
}

#[test]
fn each_live_read_taken_away_or_denied_never_passes_where_it_decided() {
    // The reads that a passing gate used: without each of them it must not pass.
    for mut case in [
        cutover("cutover__100_0_to_90_10", (100, 0)),
        rebuild("rebuild__create_all_absent_outcome"),
        super::cases::created(),
        super::cases::ready(),
        batch("convert", "dns-batch-convert"),
        super::cases::worker_off_live(),
    ] {
        case.passes();
        let phase = case.request.phase.clone();
        let optional = |call: &str| match phase.as_str() {
            "cutover" => call != "route53:ListResourceRecordSets",
            "rebuild" => !["route53:ListResourceRecordSets", "acm:DescribeCertificate"].contains(&call),
            "dns-batch" => ![
                "route53:ListResourceRecordSets",
                "acm:DescribeCertificate",
                "acm:ListCertificates",
                "apprunner:DescribeCustomDomains",
            ]
            .contains(&call),
            "worker-off-live" => !["apprunner:ListOperations", "apprunner:DescribeService"].contains(&call),
            "ready" => ![
                "ecs:DescribeServices",
                "ecs:DescribeTaskDefinition",
                "elasticloadbalancing:DescribeListeners",
                "elasticloadbalancing:DescribeTargetHealth",
            ]
            .contains(&call),
            _ => ![
                "ecs:DescribeServices",
                "ecs:DescribeTaskDefinition",
                "application-autoscaling:DescribeScalableTargets",
                "acm:DescribeCertificate",
                "elasticloadbalancing:DescribeListeners",
                "ec2:DescribeRouteTables",
                "ec2:DescribeNatGateways",
                "ec2:DescribeVpcAttribute",
                "ec2:DescribeSecurityGroupRules",
                "iam:SimulatePrincipalPolicy",
            ]
            .contains(&call),
        };
        let calls: Vec<String> = case
            .reads()
            .iter()
            .map(|r| r["call"].as_str().unwrap().to_owned())
            .filter(|c| !optional(c))
            .collect();
        for call in calls {
            let mut missing = case.clone();
            missing.no_read(&call);
            missing.fails(&["EVID_MISSING"]);
            let mut denied = case.clone();
            for read in denied.reads().iter_mut().filter(|r| r["call"] == json!(call)) {
                let input = read["input"].clone();
                *read = json!({"call": call, "input": input, "error": {"code": "AccessDeniedException", "message": "no"}});
            }
            let judged = denied.gives(Word::Indeterminate, &["EVID_UNREADABLE"]);
            assert!(
                judged.0.verdict.failures.iter().any(|f| f.needs_admin),
                "{judged}"
            );
            let mut cut = case.clone();
            for read in cut.reads().iter_mut().filter(|r| r["call"] == json!(call)) {
                let key = if call.starts_with("route53") {
                    "IsTruncated"
                } else {
                    "NextToken"
                };
                read["output"][key] = if key == "IsTruncated" {
                    json!(true)
                } else {
                    json!("more")
                };
            }
            cut.gives(Word::Indeterminate, &["EVID_TRUNCATED"]);
        }
    }
}

#[test]
fn secrets_are_never_shown() {
    // Values of the environment, of the containers and of marked attributes, in every kind of report.
    const SECRET_TEXT: &str = "hunter2-hunter2";
    let mut on = Case::plan("taskdef-on", "taskdef_on__create_only");
    let text = on.change("aws_ecs_task_definition.on")["change"]["after"]["container_definitions"]
        .as_str()
        .unwrap()
        .replace("\"info\"", &format!("\"{SECRET_TEXT}\""));
    on.change("aws_ecs_task_definition.on")["change"]["after"]["container_definitions"] =
        json!(text.replace("\"true\"", &format!("\"{SECRET_TEXT}\"")));
    let mut off = Case::plan("worker-off", "worker_off__second_env_var");
    let env = &mut off.change("aws_apprunner_service.app")["change"]["after"]["source_configuration"][0]["image_repository"]
        [0]["image_configuration"][0];
    env["runtime_environment_variables"] = json!({"WORKER_ENABLED": SECRET_TEXT, "LOG_LEVEL": SECRET_TEXT});
    let mut marked = Case::plan("start", "start__min_1_max_3");
    marked.change("aws_appautoscaling_target.app")["change"]["after"]["role_arn"] = json!(SECRET_TEXT);
    marked.change("aws_appautoscaling_target.app")["change"]["after_sensitive"]["role_arn"] = json!(true);
    let mut steady = Case::plan("steady:infra_rebuild", "steady__handover_ignore_task_definition");
    steady.change("aws_ecs_task_definition.off")["change"]["after"]["container_definitions"] =
        json!(SECRET_TEXT);
    let mut live = super::cases::created();
    live.output("ecs:DescribeTaskDefinition")["taskDefinition"]["containerDefinitions"][0]["environment"]
        [1]["value"] = json!(SECRET_TEXT);
    // A rule of a phase that shows what it saw, on an attribute that is marked.
    let mut trust = Case::plan("prepare", "prepare__trust_without_source_account");
    let role = &mut trust.change("aws_iam_role.instance")["change"];
    role["after"]["assume_role_policy"] = json!(format!("{{\"Statement\":[],\"Id\":\"{SECRET_TEXT}\"}}"));
    role["after_sensitive"]["assume_role_policy"] = json!(true);
    for case in [on, off, marked, steady, live, trust] {
        let judged = case.judge();
        assert_eq!(judged.0.verdict.verdict, Word::Fail);
        let verdict = &judged.0.verdict;
        use crate::rebuild::report;
        for shown in [
            serde_json::to_string(verdict).unwrap(),
            report::text(verdict, true),
            report::markdown(verdict),
            report::junit(verdict),
            report::sarif(verdict).to_string(),
        ] {
            assert!(!shown.contains(SECRET_TEXT), "{shown}");
        }
    }
}

/// Any JSON, small.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|f| json!(f)),
        "[a-z0-9_.:/*\\\\\"{}-]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map("[a-z_]{1,8}", inner, 0..4)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is put anywhere into any input of any phase, the gate answers.
    #[test]
    fn nothing_panics(phase in prop::sample::select(PHASES), doc in prop::sample::select(vec!["plan", "manifest", "state_m5a", "state_rebuild",
        "decisions", "cert_requested", "dns_batch", "answer", "live_revision", "taskdef_on", "live"]), place in any::<prop::sample::Index>(),
        value in any_json(), rollback in any::<bool>(), plan in prop::sample::select(vec!["cutover__100_0_to_90_10", "switch__records_in_place",
        "cert_request__create_only", "convert_import__refreshed_forget"]))
    {
        let use_ = phase.uses().first().map(|u| (*u).to_owned());
        let mut case = Case::plan(phase.as_str(), plan);
        case.request = Request { phase: phase.to_string(), use_, step: Some(1), direction: if rollback { "rollback" } else { "" }.into(), run_id: None };
        case.docs.insert("dns_batch", fixture("dns-batch-convert"));
        case.docs.insert("answer", super::cases::answer("proceed", 3.0));
        case.docs.insert("live_revision", revision("live-revision", 5));
        case.docs.insert("taskdef_on", revision("taskdef-on", 2));
        prop_assume!(doc == "live" || case.docs.contains_key(doc));
        let target = if doc == "live" { &mut case.live } else { case.docs.get_mut(doc).unwrap() };
        let mut all = Vec::new();
        leaves(target, "", &mut all);
        let leaf = &all[place.index(all.len())];
        // At the leaf, or at the member above it.
        let above = leaf.rsplit_once('/').map_or("", |(up, _)| up);
        let at = if place.index(2) == 0 || above.is_empty() { leaf.as_str() } else { above };
        *target.pointer_mut(at).unwrap() = value;
        let judged = case.judge();
        prop_assert!(!judged.has("INTERNAL_RULE_ERROR"), "{judged}");
    }

    /// Bytes of any kind.
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in any::<prop::sample::Index>()) {
        let mut case = Case::plan("cutover", "cutover__100_0_to_90_10");
        let text = fixture_text("cutover__100_0_to_90_10.json").into_bytes();
        let mut torn = text[..cut.index(text.len())].to_vec();
        torn.extend(&bytes);
        for kind in ["plan", "state_m5a", "live", "decisions"] {
            let mut case = case.clone();
            case.raw.insert(kind, torn.clone());
            prop_assert_ne!(case.judge().0.verdict.verdict, Word::Pass);
        }
        case.raw.insert("manifest", bytes);
        prop_assert!(crate::rebuild::judge(&case.request, &case.inputs(), case.now).is_err());
    }
}

#[test]
fn a_value_nested_too_deep_is_refused() {
    let mut case = Case::plan("start", "start__min_1_max_3");
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    let text = case
        .doc("plan")
        .to_string()
        .replace("\"min_capacity\":0", &format!("\"min_capacity\":{deep}"));
    case.raw.insert("plan", text.into_bytes());
    case.fails(&["PLAN_NOT_A_PLAN"]);
}
