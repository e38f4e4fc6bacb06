//! What an install goes through: the routes of contract 4.3 when all is well, and their refusals.

use headgate_tests::{Answer, HttpCall, Plan};
use serde_json::{Value, json};

use crate::install::{Install, apply, begin, call, discard, event, get, version};

#[test]
fn from_idle_to_updated() {
    let install = Install::new();
    let updater = install.updater();

    let idle = version(&updater);
    assert_eq!(idle.text("/status/state"), "idle");
    assert_eq!(idle.text("/installation/stack"), "install");
    assert_eq!(idle.text("/installation/stack_arn"), install.stack);
    assert_eq!(idle.text("/installation/region"), "eu-central-1");
    assert_eq!(idle.text("/current/release"), "2.3.0");
    assert_eq!(idle.text("/current/stack_status"), "CREATE_COMPLETE");
    assert_eq!(idle.text("/latest/release"), "3.0.0", "pre-releases aside");
    assert_eq!(idle.at("/update"), &json!(null));
    // The newest one listed needs 2.5.0 first.
    assert_eq!(idle.text("/blockers/0/code"), "release_too_far");

    // begin
    let begun = begin(&updater, "v2.4.0");
    begun.expect(201);
    let id = begun.text("/id").to_owned();
    assert_eq!(begun.header("location"), format!("/updates/{id}"));
    assert_eq!(begun.text("/state"), "preparing");
    assert_eq!(begun.text("/from_release"), "2.3.0");
    assert_eq!(begun.text("/to_release"), "2.4.0");
    assert_eq!(begun.text("/started_by"), "ana@example.com");
    assert_eq!(begun.at("/seq"), &json!(1));
    let set = install.newest_set();
    assert_eq!(begun.text("/change_set/arn"), set);
    let made = install.cfn.change_set(&set);
    assert_eq!(made.name, format!("upd-{id}"));
    assert_eq!(begun.text("/change_set/name"), made.name);
    assert_eq!(made.client_token, id);
    assert!(
        made.description.contains(&id) && made.description.contains("2.4.0"),
        "{}",
        made.description
    );
    // Parameters keep their values; no value is ever sent back (spec/updates.md 4.2 item 15).
    let mut sent: Vec<String> = made
        .parameters
        .as_array()
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect();
    sent.sort();
    assert_eq!(
        sent,
        [
            r#"{"ParameterKey":"AdminPassword","UsePreviousValue":"true"}"#,
            r#"{"ParameterKey":"Size","UsePreviousValue":"true"}"#,
        ]
    );
    let preparing = version(&updater);
    assert_eq!(preparing.text("/status/state"), "preparing");
    assert_eq!(preparing.text("/update/id"), id);

    // prepared
    install.cfn.make(&set);
    let prepared = version(&updater);
    assert_eq!(prepared.text("/status/state"), "prepared");
    assert_eq!(prepared.text("/status/label"), "Waiting for your OK");
    let summary = prepared.at("/update/summary");
    assert_eq!(
        (&summary["add"], &summary["modify"], &summary["remove"]),
        (&json!(1), &json!(1), &json!(1))
    );
    assert_eq!(summary["data_loss"].as_array().unwrap().len(), 1, "{summary}");
    let update = get(&updater, &format!("/updates/{id}"));
    update.expect(200);
    assert_eq!(update.at("/changes").as_array().unwrap().len(), 3);
    assert_eq!(update.text("/changes/2/logical_id"), "Data");
    assert_eq!(update.at("/changes/2/data_bearing"), &json!(true));

    // apply
    apply(&updater, &id).expect_problem(409, "model_check_not_started");
    install.check("2.4.0", "passed");
    let applied = apply(&updater, &id);
    applied.expect(202);
    assert_eq!(applied.text("/state"), "applying");
    assert_eq!(applied.text("/applied_by"), "ana@example.com");
    assert_eq!(applied.text("/model_check/release"), "2.4.0");
    let token = install.cfn.change_set(&set).execute_token.unwrap();
    assert_eq!(token, format!("apply-{id}-1"));
    apply(&updater, &id).expect_problem(409, "update_applying");
    discard(&updater, &id).expect_problem(409, "update_applying");
    begin(&updater, "2.5.0").expect_problem(409, "update_applying");

    // running
    assert_eq!(
        version(&updater).text("/status/state"),
        "applying",
        "accepted, not begun"
    );
    install.cfn.start_run(&set);
    install
        .cfn
        .resource("install", "Api", "AWS::Lambda::Function", "UPDATE_COMPLETE", None);
    let running = version(&updater);
    assert_eq!(running.text("/status/state"), "applying");
    assert_eq!(running.text("/status/progress/step"), "updating");
    assert_eq!(running.at("/status/progress/total"), &json!(3));
    assert_eq!(running.at("/status/progress/done"), &json!(1));
    install.cfn.clean_up("install");
    assert_eq!(version(&updater).text("/status/progress/step"), "cleaning_up");

    // updated
    install.cfn.complete_run("install");
    let poll = updater.invoke(&event!("stack-status-change")).answer();
    assert_eq!(poll["state"], "updated", "{poll}");
    let done = version(&updater);
    assert_eq!(done.text("/status/state"), "updated");
    assert_eq!(done.text("/update/id"), id);
    assert_eq!(done.text("/current/release"), "2.4.0");
    assert_eq!(install.cloudformation_writes(), (1, 1, 0));
    assert_eq!(install.head().get("pending"), None, "{}", install.head());
    // A read right after writes nothing (spec/updates.md 1.7).
    let before = install.table.items();
    version(&updater);
    assert_eq!(install.table.items(), before);
}

#[test]
fn a_poll_brings_a_finished_preparation_forward() {
    let install = Install::new();
    let updater = install.updater();
    begin(&updater, "2.4.0").expect(201);
    install.cfn.make(&install.newest_set());
    let poll = updater.invoke(&event!("tick-events")).answer();
    assert_eq!(poll["state"], "prepared", "{poll}");
    assert_eq!(install.rows()[0]["status"], "prepared");
}

#[test]
fn beginning_the_prepared_release_again_is_the_same_update() {
    let install = Install::new();
    let updater = install.updater();
    let id = install.prepare(&updater, "2.4.0");
    let again = begin(&updater, "2.4.0");
    again.expect(200);
    assert_eq!(again.text("/id"), id);
    assert_eq!(
        (install.rows().len(), install.cloudformation_writes()),
        (1, (1, 0, 0))
    );
}

#[test]
fn one_that_is_being_made_is_not_replaced() {
    let install = Install::new();
    let updater = install.updater();
    begin(&updater, "2.4.0").expect(201);
    let refused = begin(&updater, "2.5.0");
    refused.expect_problem(409, "update_preparing");
    let detail = refused.text("/detail");
    assert!(
        detail.contains("2.4.0") && detail.contains("ana@example.com"),
        "{detail}"
    );
    assert_eq!(
        (install.rows().len(), install.cloudformation_writes()),
        (1, (1, 0, 0))
    );
}

#[test]
fn a_newer_one_supersedes_the_prepared_one() {
    let install = Install::new();
    let updater = install.updater();
    let older = install.prepare(&updater, "2.4.0");
    let set = install.newest_set();
    let newer = begin(&updater, "2.5.0");
    newer.expect(201);
    assert!(install.cfn.is_deleted(&set));
    let old = get(&updater, &format!("/updates/{older}"));
    assert_eq!(
        (old.text("/state"), old.text("/superseded_by")),
        ("superseded", newer.text("/id"))
    );
    let refused = apply(&updater, &older);
    refused.expect_problem(409, "not_pending");
    assert_eq!(refused.text("/pending"), newer.text("/id"));
    assert_eq!(refused.text("/superseded_by"), newer.text("/id"));
    let list = get(&updater, "/updates");
    let states: Vec<&str> = list
        .at("/updates")
        .as_array()
        .unwrap()
        .iter()
        .map(|u| u["state"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["preparing", "superseded"]);
}

#[test]
fn discarding_deletes_the_plan_once() {
    let install = Install::new();
    let updater = install.updater();
    let id = install.prepare(&updater, "2.4.0");
    let discarded = discard(&updater, &id);
    discarded.expect(200);
    assert_eq!(discarded.text("/state"), "discarded");
    assert!(install.cfn.is_deleted(&install.newest_set()));
    discard(&updater, &id).expect_problem(409, "already_closed");
    apply(&updater, &id).expect_problem(409, "not_pending");
    assert_eq!(version(&updater).text("/status/state"), "idle");
    // The way is free again.
    begin(&updater, "2.4.0").expect(201);
}

#[test]
fn one_executed_in_the_console_is_recognised() {
    let install = Install::new();
    let updater = install.updater();
    let id = install.prepare(&updater, "2.4.0");
    install.cfn.console_execute(&install.newest_set());
    let running = version(&updater);
    assert_eq!(running.text("/status/state"), "applying");
    assert_eq!(running.text("/update/applied_by"), "someone in the AWS console");
    assert_eq!(running.text("/update/started_by"), "ana@example.com");
    begin(&updater, "2.5.0").expect_problem(409, "update_applying");
    install.cfn.complete_run("install");
    let done = version(&updater);
    assert_eq!(
        (done.text("/update/id"), done.text("/update/state")),
        (id.as_str(), "updated")
    );
    assert_eq!(install.cloudformation_writes(), (1, 0, 0));
}

#[test]
fn one_deleted_in_the_console_is_discarded() {
    let install = Install::new();
    let updater = install.updater();
    let id = install.prepare(&updater, "2.4.0");
    install.cfn.console_delete(&install.newest_set());
    assert_eq!(version(&updater).text("/status/state"), "idle");
    let row = get(&updater, &format!("/updates/{id}"));
    assert_eq!(
        (row.text("/state"), row.text("/reason/code")),
        ("discarded", "change_set_deleted")
    );
}

#[test]
fn a_rolled_back_update_says_why() {
    let install = Install::new();
    let updater = install.updater();
    let id = install.run(&updater, "2.4.0");
    let child = install.cfn.nested("install", "Jobs");
    let image = "Source image 123456789012.dkr.ecr.eu-central-1.amazonaws.com/worker:2.4.0 does not exist. (RequestToken: 11111111-2222-3333-4444-555555555555, HandlerErrorCode: InvalidRequest)";
    install.cfn.resource(
        &child,
        "Worker",
        "AWS::Lambda::Function",
        "UPDATE_FAILED",
        Some(image),
    );
    let embedded = format!("Embedded stack {child} was not successfully updated.");
    install
        .cfn
        .fail_run("install", "Jobs", "AWS::CloudFormation::Stack", &embedded);
    let rolling = version(&updater);
    assert_eq!(rolling.text("/status/state"), "rolling_back");
    assert_eq!(rolling.text("/update/state"), "applying");
    install.cfn.roll_back("install");
    let done = version(&updater);
    assert_eq!(
        (done.text("/status/state"), done.text("/update/id")),
        ("rolled_back", id.as_str())
    );
    let reason = done.at("/update/reason");
    let text = reason["text"].as_str().unwrap();
    assert!(text.contains("does not exist"), "{reason}");
    assert!(
        !text.contains("123456789012") && !text.contains("11111111-2222"),
        "{reason}"
    );
    assert_eq!(reason["resource"], "Jobs/Worker", "{reason}");
    assert_eq!(done.text("/current/release"), "2.3.0");
}

#[test]
fn a_failed_rollback_needs_its_admin_and_is_refined_when_it_is_continued() {
    let install = Install::new();
    let updater = install.updater();
    let id = install.run(&updater, "2.4.0");
    install
        .cfn
        .fail_run("install", "Api", "AWS::Lambda::Function", "no such runtime");
    install
        .cfn
        .fail_rollback("install", "Api", "AWS::Lambda::Function", "role is gone");
    let failed = version(&updater);
    assert_eq!(failed.text("/status/state"), "failed");
    assert_eq!(failed.text("/update/reason/code"), "rollback_failed");
    assert!(!failed.text("/status/needs_admin/code").is_empty(), "{failed:?}");
    begin(&updater, "2.5.0").expect_problem(409, "stack_rollback_failed");
    install.cfn.continue_rollback("install");
    let refined = version(&updater);
    assert_eq!(
        (refined.text("/update/id"), refined.text("/update/state")),
        (id.as_str(), "rolled_back")
    );
}

#[test]
fn an_empty_plan_is_discarded_and_its_set_deleted() {
    let install = Install::new();
    let updater = install.updater();
    begin(&updater, "2.4.0").expect(201);
    let set = install.newest_set();
    install.cfn.no_changes(&set);
    assert_eq!(version(&updater).text("/status/state"), "idle");
    assert_eq!(install.rows()[0]["reason"]["code"], "no_changes");
    assert!(install.cfn.is_deleted(&set));
}

#[test]
fn t19_t20_a_plan_that_could_not_be_made_says_why() {
    for may_read_details in [true, false] {
        let install = Install::new();
        let updater = install.updater();
        begin(&updater, "2.4.0").expect(201);
        let set = install.newest_set();
        install.cfn.fail_making(&set, "The following hook(s)/validation failed: [AWS::EarlyValidation::PropertyValidation]. To troubleshoot Early Validation errors, use the DescribeEvents API for detailed failure information.");
        install.cfn.validation_error(
            &set,
            "Api",
            "/Resources/Api/Properties/Runtime",
            "no such runtime",
        );
        install.cfn.validation_error(
            &set,
            "Queue",
            "/Resources/Queue/Properties/FifoQueue",
            "not a boolean",
        );
        if !may_read_details {
            install
                .aws
                .always("cloudformation", "DescribeEvents", Answer::AccessDenied);
        }
        let failed = version(&updater);
        assert_eq!(failed.text("/status/state"), "failed");
        assert_eq!(failed.text("/update/reason/code"), "prepare_failed");
        let reason = failed.at("/update/reason").to_string();
        if may_read_details {
            for wanted in [
                "Api",
                "/Resources/Api/Properties/Runtime",
                "no such runtime",
                "Queue",
                "not a boolean",
            ] {
                assert!(reason.contains(wanted), "{wanted}: {reason}");
            }
        } else {
            assert!(
                failed
                    .text("/update/reason/text")
                    .contains("AWS::EarlyValidation"),
                "{reason}"
            );
            assert!(
                !failed.text("/update/reason/text").contains("DescribeEvents is"),
                "{reason}"
            );
            assert!(
                reason.contains("cloudformation:DescribeEvents"),
                "names the permission: {reason}"
            );
        }
        assert!(install.cfn.is_deleted(&set), "a failed set counts to the limit");
        begin(&updater, "2.4.0").expect(201);
    }
}

#[test]
fn o03_empty_plans_do_not_pile_up() {
    let install = Install::new();
    let updater = install.updater();
    for _ in 0..3 {
        begin(&updater, "2.4.0").expect(201);
        install.cfn.no_updates(&install.newest_set());
        version(&updater);
    }
    let rows = install.rows();
    assert!(
        rows.iter()
            .all(|row| row["status"] == "discarded" && row["reason"]["code"] == "no_changes")
    );
    assert_eq!(install.cloudformation_writes(), (3, 0, 3));
    assert!(
        install
            .cfn
            .change_sets()
            .iter()
            .all(|set| install.cfn.is_deleted(&set.arn))
    );
}

#[test]
fn plans_and_events_are_read_to_their_last_page() {
    let install = Install::new();
    let updater = install.updater();
    install.cfn.page_size(1);
    let id = install.run(&updater, "2.4.0");
    assert_eq!(
        install.rows()[0]["summary"]["add"],
        json!(1),
        "{}",
        install.rows()[0]
    );
    assert_eq!(install.rows()[0]["summary"]["remove"], json!(1));
    let changes = get(&updater, &format!("/updates/{id}"));
    assert_eq!(
        changes.at("/changes").as_array().map(Vec::len),
        Some(3),
        "{changes:?}"
    );
    install
        .cfn
        .fail_run("install", "Api", "AWS::Lambda::Function", "no such runtime");
    for _ in 0..5 {
        install
            .cfn
            .resource("install", "Queue", "AWS::SQS::Queue", "UPDATE_COMPLETE", None);
    }
    install.cfn.roll_back("install");
    assert_eq!(version(&updater).text("/update/reason/text"), "no such runtime");
}

#[test]
fn a_set_that_only_changes_outputs_is_prepared() {
    let install = Install::new();
    let updater = install.updater();
    let url = crate::install::template_url("2.4.0");
    install.cfn.release(&url, Plan::release("2.4.0"));
    install.prepare(&updater, "2.4.0");
    let row = &install.rows()[0];
    assert_eq!(
        (&row["status"], &row["summary"]["modify"]),
        (&json!("prepared"), &json!(0))
    );
}

#[test]
fn a_stack_that_is_deleted_takes_its_plan_along() {
    let install = Install::new();
    let updater = install.updater();
    let id = install.prepare(&updater, "2.4.0");
    install.cfn.begin_delete("install");
    let going = version(&updater);
    assert_eq!(going.text("/update/state"), "prepared");
    let codes: Vec<_> = going
        .at("/blockers")
        .as_array()
        .unwrap()
        .iter()
        .map(|b| b["code"].clone())
        .collect();
    assert!(codes.contains(&json!("stack_going")), "{codes:?}");
    install.cfn.end_delete("install");
    version(&updater);
    let row = get(&updater, &format!("/updates/{id}"));
    assert_eq!(
        (row.text("/state"), row.text("/reason/code")),
        ("discarded", "stack_gone")
    );
    begin(&updater, "2.4.0").expect_problem(409, "stack_going");
}

#[test]
fn what_is_over_is_shown_whoever_can_be_asked() {
    let install = Install::new();
    let updater = install.updater();
    let id = install.run(&updater, "2.4.0");
    install.cfn.complete_run("install");
    version(&updater);
    let mark = install.aws.mark();
    get(&updater, "/updates").expect(200);
    assert_eq!(
        install.aws.since(mark).names(),
        ["dynamodb.Query"],
        "history asks the table only"
    );
    for fault in [Answer::Throttled, Answer::AccessDenied, Answer::Drops] {
        install
            .aws
            .from_nth(1, "cloudformation", fault.clone())
            .from_nth(1, "s3", fault.clone());
        let update = get(&updater, &format!("/updates/{id}"));
        update.expect(200);
        assert_eq!(
            (update.text("/state"), update.text("/status/state")),
            ("updated", "updated"),
            "{fault:?}"
        );
        install.aws.forget_nth();
    }
}

#[test]
fn a_cold_start_makes_one_call() {
    let install = Install::new();
    let _updater = install.updater();
    let traffic = install.aws.traffic();
    assert!(traffic.total() <= 1, "{:?}", traffic.names());
    assert_eq!(traffic.to("dynamodb"), traffic.total(), "{:?}", traffic.names());
}

#[test]
fn logs_are_json_lines_at_the_level_that_was_asked_for() {
    let install = Install::new();
    let updater = install.updater();
    version(&updater);
    let logs = updater.last_words();
    assert!(!logs.is_empty());
    let parsed: Vec<Value> = logs
        .iter()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    let metrics = parsed
        .iter()
        .find(|line| line["_aws"].is_object())
        .expect("metrics");
    assert_eq!(metrics["_aws"]["CloudWatchMetrics"][0]["Namespace"], "Headgate");
    let decision = parsed
        .iter()
        .find(|line| line["message"] == "reconciled")
        .expect("one line per decision");
    assert_eq!(decision["level"], "INFO");

    let quiet = install.builder().env("AWS_LAMBDA_LOG_LEVEL", "ERROR").start();
    version(&quiet);
    let words = quiet.last_words();
    assert!(!words.iter().any(|line| line.contains("reconciled")), "{words:?}");
    let text = install.builder().env("AWS_LAMBDA_LOG_FORMAT", "Text").start();
    version(&text);
    let line = text
        .last_words()
        .into_iter()
        .find(|line| line.contains("reconciled"))
        .expect("a line");
    assert!(!line.starts_with('{'), "{line}");
}

#[test]
fn t22_a_preparation_that_never_ends_is_shown_as_stalled() {
    let install = Install::new();
    let updater = install.updater();
    let begun = begin(&updater, "2.4.0");
    install.later(15 * 60 - 5);
    assert_eq!(version(&updater).text("/status/state"), "preparing");
    install.later(6);
    let stalled = version(&updater);
    assert_eq!(
        (stalled.text("/status/state"), stalled.text("/update/state")),
        ("stalled", "preparing")
    );
    begin(&updater, "2.5.0").expect_problem(409, "update_preparing");
    discard(&updater, begun.text("/id")).expect(200);
    begin(&updater, "2.5.0").expect(201);
}

#[test]
fn t36_a_paused_update_needs_its_admin() {
    let install = Install::new();
    let updater = install.updater();
    install.run(&updater, "2.4.0");
    install
        .cfn
        .pause("install", "Api", "AWS::Lambda::Function", "no such runtime");
    let paused = version(&updater);
    assert_eq!(
        (paused.text("/update/state"), paused.text("/update/reason/code")),
        ("failed", "stack_paused")
    );
    assert!(paused.at("/status/needs_admin").is_object(), "{paused:?}");
    begin(&updater, "2.5.0").expect_problem(409, "stack_paused");
}

#[test]
fn t30_t31_another_release_than_the_target_is_no_success() {
    for (reported, code) in [(Some("2.3.0"), "version_mismatch"), (None, "version_missing")] {
        let install = Install::new();
        let updater = install.updater();
        install.run(&updater, "2.4.0");
        install.cfn.complete_run("install");
        let outputs = reported.map(|v| json!([{"OutputKey": "Version", "OutputValue": v}]));
        install.cfn.edit("install", "Outputs", json!(outputs));
        let failed = version(&updater);
        assert_eq!(
            (failed.text("/update/state"), failed.text("/update/reason/code")),
            ("failed", code)
        );
    }
}

#[test]
fn t43_a_plan_removed_by_another_run_is_expired() {
    let install = Install::new();
    let updater = install.updater();
    let id = install.prepare(&updater, "2.4.0");
    let other = install
        .cfn
        .console_create("install", "theirs", &crate::install::template_url("2.3.5"));
    install.cfn.make(&other);
    install.cfn.console_execute(&other);
    install.cfn.complete_run("install");
    assert_eq!(version(&updater).text("/status/state"), "idle");
    let row = get(&updater, &format!("/updates/{id}"));
    assert_eq!(
        (row.text("/state"), row.text("/reason/code")),
        ("expired", "stack_changed_since")
    );
    assert_eq!(version(&updater).text("/current/release"), "2.3.5");
}

#[test]
fn t58_two_reads_that_disagree_are_believed_after_five_minutes() {
    let install = Install::new();
    let updater = install.updater();
    install.run(&updater, "2.4.0");
    version(&updater);
    install.cfn.complete_run("install");
    // The change set lags behind its stack.
    install
        .cfn
        .set_words(&install.newest_set(), "CREATE_COMPLETE", "EXECUTE_IN_PROGRESS");
    let settling = version(&updater);
    assert_eq!(settling.text("/status/state"), "applying");
    assert_eq!(settling.text("/status/progress/step"), "settling");
    install.later(290);
    assert_eq!(version(&updater).text("/status/state"), "applying");
    install.later(11);
    assert_eq!(version(&updater).text("/update/state"), "updated");
}

#[test]
fn t60_somebody_elses_operation_is_a_blocker_and_not_an_update() {
    let install = Install::new();
    let updater = install.updater();
    install.cfn.begin_direct_update("install");
    let seen = version(&updater);
    assert_eq!(
        (seen.text("/status/state"), seen.at("/update")),
        ("idle", &json!(null))
    );
    let busy = seen
        .at("/blockers")
        .as_array()
        .unwrap()
        .iter()
        .any(|b| b["code"] == "stack_busy");
    assert!(busy, "{seen:?}");
    begin(&updater, "2.4.0").expect_problem(409, "stack_busy");
    assert_eq!(install.rows().len(), 0);
}

#[test]
fn an_obsolete_plan_can_not_be_applied() {
    let install = Install::new();
    let updater = install.updater();
    install.check("2.4.0", "passed");
    let id = install.prepare(&updater, "2.4.0");
    install.cfn.begin_direct_update("install");
    install.cfn.end_direct_update("install", None);
    apply(&updater, &id).expect_problem(409, "plan_expired");
    let row = get(&updater, &format!("/updates/{id}"));
    assert_eq!(row.text("/state"), "expired");
    assert_eq!(install.cloudformation_writes().1, 0, "never executed");
}

#[test]
fn the_model_check_holds_an_update() {
    let install = Install::new();
    let updater = install.updater();
    let id = install.prepare(&updater, "2.4.0");
    for (state, code) in [
        ("pending", "model_check_pending"),
        ("failed", "model_check_failed"),
        ("stalled", "model_check_stalled"),
        ("a word of a newer build", "model_check_pending"),
    ] {
        install.check("2.4.0", state);
        let refused = apply(&updater, &id);
        if state.contains(' ') {
            assert_eq!(refused.status, 409, "{refused:?}");
        } else {
            refused.expect_problem(409, code);
        }
        assert_eq!(install.rows()[0]["status"], "prepared");
    }
    assert_eq!(install.cloudformation_writes(), (1, 0, 0));
}

#[test]
fn only_a_prepared_update_can_be_applied() {
    let install = Install::new();
    let updater = install.updater();
    install.check("2.4.0", "passed");
    let begun = begin(&updater, "2.4.0");
    apply(&updater, begun.text("/id")).expect_problem(409, "not_prepared");
    assert_eq!(install.cloudformation_writes(), (1, 0, 0));
}

#[test]
fn releases_that_can_not_be_begun_are_named() {
    let install = Install::new();
    let updater = install.updater();
    begin(&updater, "9.9.9").expect_problem(404, "release_unknown");
    begin(&updater, "2.3.0").expect_problem(409, "release_installed");
    begin(&updater, "2.2.0").expect_problem(409, "release_older");
    let far = begin(&updater, "3.0.0");
    far.expect_problem(409, "release_too_far");
    assert!(far.text("/detail").contains("2.5.0"), "{far:?}");
    assert_eq!(
        (install.rows().len(), install.cloudformation_writes()),
        (0, (0, 0, 0))
    );
}

#[test]
fn a_release_list_that_can_not_be_read_blocks_and_does_not_crash() {
    let install = Install::new();
    let updater = install.updater();
    let lists: [&str; 4] = [
        "",
        "nonsense",
        "{\"schema\": 2, \"releases\": []}",
        "{\"schema\": 1}",
    ];
    for list in lists {
        install.s3.put("releases", "releases.json", list);
        let seen = version(&updater);
        assert_eq!(
            seen.text("/blockers/0/code"),
            "releases_unreadable",
            "{list}: {seen:?}"
        );
        assert_eq!(seen.at("/latest"), &json!(null), "{list}");
        let refused = begin(&updater, "2.4.0");
        assert_eq!(
            refused.text("/code"),
            "releases_unreadable",
            "{list}: {refused:?}"
        );
        assert!(refused.status == 409 || refused.status == 503, "{refused:?}");
    }
    install.s3.remove("releases", "releases.json");
    assert_eq!(version(&updater).text("/blockers/0/code"), "releases_unreadable");
    assert_eq!(install.rows().len(), 0);
}

#[test]
fn a_stack_that_can_not_be_updated_is_a_blocker_in_both_answers() {
    let install = Install::new();
    let updater = install.updater();
    for (word, code) in [
        ("CREATE_IN_PROGRESS", "stack_busy"),
        ("UPDATE_IN_PROGRESS", "stack_busy"),
        ("UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", "stack_busy"),
        ("UPDATE_ROLLBACK_IN_PROGRESS", "stack_busy"),
        ("IMPORT_IN_PROGRESS", "stack_busy"),
        ("CREATE_FAILED", "stack_install_failed"),
        ("ROLLBACK_COMPLETE", "stack_install_failed"),
        ("UPDATE_FAILED", "stack_paused"),
        ("UPDATE_ROLLBACK_FAILED", "stack_rollback_failed"),
        ("REVIEW_IN_PROGRESS", "stack_not_installed"),
        ("DELETE_IN_PROGRESS", "stack_going"),
        ("DELETE_FAILED", "stack_going"),
        ("IMPORT_ROLLBACK_FAILED", "stack_import_rollback_failed"),
    ] {
        install.cfn.set_status("install", word);
        let seen = version(&updater);
        assert_eq!(seen.text("/status/state"), "idle", "{word}");
        let codes: Vec<&str> = seen
            .at("/blockers")
            .as_array()
            .unwrap()
            .iter()
            .map(|b| b["code"].as_str().unwrap())
            .collect();
        assert!(codes.contains(&code), "{word}: {codes:?}");
        begin(&updater, "2.4.0").expect_problem(409, code);
    }
    // A word of next year's CloudFormation must not open the gate.
    install.cfn.set_status("install", "UPDATE_PAUSED");
    assert_eq!(begin(&updater, "2.4.0").status, 409);
    assert_eq!(
        (install.rows().len(), install.cloudformation_writes()),
        (0, (0, 0, 0))
    );
}

#[test]
fn history_comes_in_pages_newest_first() {
    let install = Install::new();
    let updater = install.updater();
    let mut ids = Vec::new();
    for release in ["2.3.5", "2.4.0", "2.5.0", "2.4.0", "2.3.5"] {
        let id = install.prepare(&updater, release);
        discard(&updater, &id).expect(200);
        ids.push(id);
    }
    ids.reverse();
    let mut seen = Vec::new();
    let mut path = "/updates?limit=2".to_owned();
    for _ in 0..4 {
        let page = get(&updater, &path);
        page.expect(200);
        let updates = page.at("/updates").as_array().unwrap();
        assert!(updates.len() <= 2);
        seen.extend(
            updates
                .iter()
                .map(|update| update["id"].as_str().unwrap().to_owned()),
        );
        let cursor = page.text("/next_cursor");
        if cursor.is_empty() {
            break;
        }
        path = format!("/updates?limit=2&cursor={cursor}");
    }
    assert_eq!(seen, ids);
}

#[test]
fn a_page_that_has_not_changed_is_not_sent_again() {
    let install = Install::new();
    let updater = install.updater();
    let id = install.prepare(&updater, "2.4.0");
    for path in [
        "/version".to_owned(),
        "/updates".to_owned(),
        format!("/updates/{id}"),
    ] {
        let first = get(&updater, &path);
        let tag = first.header("etag").to_owned();
        assert!(tag.starts_with("W/\""), "{path}: {first:?}");
        let again = call(&updater, &HttpCall::get(&path).header("if-none-match", &tag));
        assert_eq!((again.status, again.body.clone()), (304, json!(null)), "{path}");
        assert_eq!(again.header("etag"), tag, "{path}");
    }
    let tag = version(&updater).header("etag").to_owned();
    discard(&updater, &id).expect(200);
    let changed = call(&updater, &HttpCall::get("/version").header("if-none-match", &tag));
    assert_eq!(changed.status, 200, "it changed");
}

#[test]
fn an_idle_poll_is_one_read_and_nothing_else() {
    let install = Install::new();
    let updater = install.updater();
    let ticks = [
        event!("tick-events"),
        event!("tick-scheduler"),
        event!("stack-status-change"),
    ];
    let idle = |when: &str| {
        for tick in &ticks {
            let mark = install.aws.mark();
            let answer = updater.invoke(tick).answer();
            assert_eq!(answer["state"], "idle", "{when}: {answer}");
            assert!(
                answer["wrote"] == json!(false) || answer["wrote"] == json!(0),
                "{when}: {answer}"
            );
            let traffic = install.aws.since(mark);
            assert_eq!(
                (traffic.total(), traffic.to("dynamodb")),
                (1, 1),
                "{when}: {:?}",
                traffic.names()
            );
        }
    };
    idle("on an empty table");
    let id = install.prepare(&updater, "2.4.0");
    discard(&updater, &id).expect(200);
    idle("after one was discarded");
}

#[test]
fn after_an_update_polls_are_idle_too() {
    let install = Install::new();
    let updater = install.updater();
    install.run(&updater, "2.4.0");
    install.cfn.complete_run("install");
    assert_eq!(
        updater.invoke(&event!("tick-events")).answer()["state"],
        "updated"
    );
    let mark = install.aws.mark();
    updater.invoke(&event!("tick-events")).answer();
    let traffic = install.aws.since(mark);
    assert_eq!(traffic.names(), ["dynamodb.Query"]);
}

/// What GET /version asks for while nothing changes, all sent together where they may be: the longest chain
/// of round trips.
fn two_round_trips(install: &Install, updater: &headgate_tests::Function, when: &str) {
    let mark = install.aws.mark();
    version(updater);
    let first = install.aws.since(mark);
    let together: Vec<(&str, &str)> = first
        .0
        .iter()
        .filter(|record| record.call.service != "dynamodb")
        .map(|record| (record.call.service.as_str(), record.call.operation.as_str()))
        .collect();
    let distinct: std::collections::BTreeSet<_> = together.iter().collect();
    assert_eq!(distinct.len(), together.len(), "asked twice: {:?}", first.names());
    // A fake endpoint answers faster than the next request comes: hold the answers until all are asked.
    install.aws.meet(&together);
    let mark = install.aws.mark();
    version(updater);
    let traffic = install.aws.since(mark);
    assert_eq!(
        traffic.total() - traffic.to("dynamodb"),
        together.len(),
        "{:?}",
        traffic.names()
    );
    assert!(traffic.depth() <= 2, "{when}:\n{}", traffic.story());
}

#[test]
fn a_version_with_an_open_update_costs_two_round_trips() {
    let install = Install::new();
    let updater = install.updater();
    begin(&updater, "2.4.0").expect(201);
    two_round_trips(&install, &updater, "preparing");
    install.check("2.4.0", "passed");
    install.cfn.make(&install.newest_set());
    version(&updater);
    two_round_trips(&install, &updater, "prepared");
    let id = install.rows()[0]["id"].as_str().unwrap().to_owned();
    apply(&updater, &id).expect(202);
    two_round_trips(&install, &updater, "accepted");
    install.cfn.start_run(&install.newest_set());
    version(&updater);
    two_round_trips(&install, &updater, "running");
}

#[test]
fn an_event_of_another_shape_is_refused_and_not_logged() {
    let install = Install::new();
    let updater = install.updater();
    let events = [
        event!("unknown"),
        json!(null),
        json!([]),
        json!("text"),
        json!({}),
        json!({"action": "validate", "domain": "secret.example.com"}),
        json!({"source": "aws.cloudformation", "detail-type": "CloudFormation Drift Detection Status Change"}),
    ];
    let mark = install.aws.mark();
    for event in &events {
        let (kind, message) = updater.invoke(event).error();
        assert_eq!(kind, "Headgate.UnknownEvent", "{event}: {message}");
    }
    assert_eq!(install.aws.since(mark).total(), 0);
    // It lives on.
    version(&updater);
    let words = updater.last_words().join("\n");
    for secret in ["a-key-that-must-not-be-logged", "secret.example.com"] {
        assert!(!words.contains(secret), "{secret} in {words}");
    }
}
