//! T16-T50 and T58: what a look makes of what CloudFormation says.

use super::*;

const NO_CHANGES_1: &str =
    "The submitted information didn't contain changes. Submit different information to create a change set.";
const NO_CHANGES_2: &str = "No updates are to be performed.";

fn preparing(s: &Scene, age: i64, words: (&str, &str)) -> Update {
    let u = s.row(2, "2.4.0", State::Preparing, age, words);
    s.point(Some(&u));
    u
}

#[test]
fn t16_complete_but_not_yet_executable() {
    let s = Scene::quiet();
    let u = preparing(&s, 40, ("CREATE_COMPLETE", "UNAVAILABLE"));
    let answer = s.writes_nothing(|s| s.poll());
    assert_eq!(answer, json!({"state": "preparing", "wrote": false}));
    assert_eq!(s.stored(&u), u);
}

fn empty_plan(reason: &str) {
    let s = Scene::quiet();
    let u = preparing(&s, 40, ("FAILED", "UNAVAILABLE"));
    s.set(&u, |x| x.set.reason = Some(reason.into()));
    assert_eq!(s.poll()["wrote"], true);
    let now = s.stored(&u);
    assert_eq!(now.status, State::Discarded, "{reason}");
    assert_eq!(code_of(&now), "no_changes");
    assert_eq!(now.finished_at, Some(start()));
    assert_eq!(now.change_set_cleanup, Cleanup::Done);
    assert_eq!(s.acts(), [format!("act delete {}", set_arn(&u.change_set_name))]);
    assert_eq!(s.w.head().pending, None);
    assert!(s.w.head().work.is_empty());
    // Not shown as an error.
    let v = s.version();
    assert_eq!(v.text("/status/state"), "idle");
    assert_eq!(v.text("/update/state"), "discarded");
    assert_eq!(v.at("/update/needs_admin"), &Value::Null);
}

#[test]
fn t17_empty_plan_wording_1() {
    empty_plan(NO_CHANGES_1);
}

#[test]
fn t18_empty_plan_wording_2() {
    empty_plan(NO_CHANGES_2);
}

/// 4.1 item 8: judged by status and the beginning of the reason, by nothing else.
#[test]
fn a_failed_set_with_another_reason_is_not_an_empty_plan() {
    for reason in [
        Some("Transform AWS::Serverless failed: No updates are to be performed in this account"),
        Some("Requires capabilities : [CAPABILITY_NAMED_IAM]"),
        Some(""),
        None,
    ] {
        let s = Scene::quiet();
        let u = preparing(&s, 40, ("FAILED", "UNAVAILABLE"));
        s.set(&u, |x| x.set.reason = reason.map(Into::into));
        s.poll();
        let now = s.stored(&u);
        assert_eq!(now.status, State::Failed, "{reason:?}");
        assert_eq!(code_of(&now), "prepare_failed");
        if let Some(r) = reason {
            assert!(text_of(&now).contains(r));
        }
        assert_eq!(s.w.count("act delete"), 1, "a failed set is deleted");
    }
}

const VALIDATION: &str = "The following change set validation failed: [AWS::EarlyValidation::PropertyValidation]. \
                          Use the DescribeEvents API to learn more.";

fn finding(resource: &str, path: &str, text: &str) -> Finding {
    Finding {
        resource: resource.into(),
        path: Some(path.into()),
        text: text.into(),
    }
}

#[test]
fn t19_early_validation_says_why() {
    let s = Scene::quiet();
    let u = preparing(&s, 40, ("FAILED", "UNAVAILABLE"));
    s.set(&u, |x| x.set.reason = Some(VALIDATION.into()));
    let arn = set_arn(&u.change_set_name);
    s.w.cloud.borrow_mut().findings.insert(
        arn.clone(),
        vec![
            finding("Api", "/Resources/Api/Properties/Port", "70000 is not <= 65535"),
            // 4.4 item 32: several errors of one resource are all kept.
            finding("Api", "/Resources/Api/Properties/Name", "is required"),
            finding("Table", "/Resources/Table/Properties/Keys", "is not a list"),
        ],
    );
    s.poll();
    let now = s.stored(&u);
    assert_eq!(now.status, State::Failed);
    assert_eq!(code_of(&now), "prepare_failed");
    for part in [
        "Api",
        "/Resources/Api/Properties/Port",
        "70000 is not <= 65535",
        "/Resources/Api/Properties/Name",
        "is required",
        "Table",
        "/Resources/Table/Properties/Keys",
        "is not a list",
    ] {
        assert!(
            text_of(&now).contains(part),
            "{part:?} is not in {:?}",
            text_of(&now)
        );
    }
    // Item 32: asked by the ARN, once.
    assert_eq!(s.since(0, "look findings"), [format!("look findings {arn}")]);
    assert_eq!(s.w.count("act delete"), 1);
}

#[test]
fn t20_no_right_to_read_the_details() {
    let s = Scene::quiet();
    let u = preparing(&s, 40, ("FAILED", "UNAVAILABLE"));
    s.set(&u, |x| x.set.reason = Some(VALIDATION.into()));
    s.w.answer(
        "look findings",
        vec![Seen::Findings(Err(denied("cloudformation:DescribeEvents")))],
    );
    s.poll();
    let now = s.stored(&u);
    assert_eq!(now.status, State::Failed);
    assert_eq!(code_of(&now), "prepare_failed");
    assert_eq!(text_of(&now), VALIDATION);
    let notes = now.reason.as_ref().unwrap().notes.join(" ");
    assert!(notes.contains("cloudformation:DescribeEvents"), "{notes}");
    assert!(notes.contains("not the cause"), "{notes}");
    assert!(!text_of(&now).contains("AccessDenied"));
}

#[test]
fn t21_only_an_output_changes() {
    let s = Scene::quiet();
    let u = preparing(&s, 40, ("CREATE_COMPLETE", "AVAILABLE"));
    let v = s.version();
    let now = s.stored(&u);
    assert_eq!(now.status, State::Prepared);
    assert_eq!(now.summary, Some(Summary::default()));
    assert!(
        v.text("/status/summary").contains("0 resources, outputs only"),
        "{v:?}"
    );
    assert_eq!(s.acts(), Vec::<String>::new());
}

#[test]
fn t22_a_plan_that_never_finishes() {
    let s = Scene::quiet();
    let u = preparing(&s, 0, ("CREATE_PENDING", "UNAVAILABLE"));
    for seconds in [0, 15 * 60 - 1, 15 * 60] {
        let v = s.at(seconds).version();
        assert_eq!(v.text("/status/state"), "preparing", "at {seconds} s");
        assert_eq!(v.text("/status/progress/step"), "making");
    }
    s.at(15 * 60 + 1);
    let v = s.writes_nothing(|s| s.version());
    assert_eq!(v.text("/status/state"), "stalled");
    assert_eq!(v.text("/status/reason/code"), "preparing_too_long");
    assert!(
        v.text("/status/reason/text").contains("15 minutes"),
        "with its age: {v:?}"
    );
    assert!(
        v.text("/status/reason/text").contains("Discard"),
        "discard is offered: {v:?}"
    );
    assert_eq!(v.text("/update/state"), "preparing");
    assert_eq!(s.stored(&u).status, State::Preparing);
    let a = s.begin("2.5.0");
    assert_eq!(a.refusal(), (409, "update_preparing"));
    assert_eq!(s.discard(&u).code, 200);
    assert_eq!(s.stored(&u).status, State::Discarded);
    assert_eq!(s.w.count("act delete"), 1);
}

/// An intent without ARN, reserved, of this age.
fn intent(s: &Scene, age: i64) -> Update {
    let u = s.row_with(2, "2.4.0", State::Preparing, age, ("", ""), |u| {
        u.change_set_id = None;
        u.change_set_created_at = None;
        u.observed_at = None;
    });
    s.head(|h| {
        h.reserving = Some(u.id.clone());
        h.reserve_until = Some(plus_seconds(start(), 120 - age).as_millisecond());
    });
    u
}

#[test]
fn t23_create_succeeded_response_lost() {
    let s = Scene::quiet();
    let u1 = s.prepared(1, "2.3.5");
    let u2 = intent(&s, 20);
    s.head(|h| h.pending = Some(u1.id.clone()));
    let arn = s.w.cloud.borrow_mut().put_set(
        &u2.change_set_name,
        "2.4.0",
        "CREATE_COMPLETE",
        "AVAILABLE",
        plus_seconds(start(), -19),
    );
    let v = s.version();
    let now = s.stored(&u2);
    assert_eq!(now.change_set_id, Some(arn));
    assert_eq!(now.status, State::Prepared);
    assert_eq!(now.change_set_created_at, Some(plus_seconds(start(), -19)));
    assert_eq!(s.stored(&u1).status, State::Superseded);
    assert_eq!(s.w.head().pending.as_deref(), Some(u2.id.as_str()));
    assert_eq!(s.w.head().reserving, None);
    assert_eq!(s.acts(), [format!("act delete {}", set_arn(&u1.change_set_name))]);
    assert_eq!(v.text("/update/id"), u2.id);
}

/// A set of the same name that does not carry our id is somebody else's (4.1 item 11).
#[test]
fn t23_a_set_without_our_id_is_not_adopted() {
    let s = Scene::quiet();
    let u = intent(&s, 20);
    let arn = s.w.cloud.borrow_mut().put_set(
        &u.change_set_name,
        "2.4.0",
        "CREATE_COMPLETE",
        "AVAILABLE",
        start(),
    );
    s.w.cloud.borrow_mut().set(&arn).unwrap().set.description = Some("made by hand".into());
    s.version();
    assert_eq!(s.stored(&u).change_set_id, None);
    assert_eq!(s.stored(&u).status, State::Preparing);
}

#[test]
fn t24_create_never_reached_aws() {
    let s = Scene::quiet();
    let u1 = s.prepared(1, "2.3.5");
    let u2 = intent(&s, 0);
    s.head(|h| h.pending = Some(u1.id.clone()));
    for seconds in [119, 120] {
        let v = s.at(seconds).version();
        assert_eq!(s.stored(&u2).status, State::Preparing, "at {seconds} s");
        assert_eq!(v.text("/update/id"), u1.id);
    }
    s.at(121);
    let v = s.version();
    let now = s.stored(&u2);
    assert_eq!(now.status, State::Failed);
    assert_eq!(code_of(&now), "prepare_lost");
    assert_eq!(s.w.head().pending.as_deref(), Some(u1.id.as_str()));
    assert_eq!(s.w.head().reserving, None);
    assert_eq!(v.text("/update/id"), u1.id);
    assert_eq!(v.text("/status/state"), "prepared");
    assert_eq!(s.stored(&u1), u1);
    assert_eq!(s.w.count("act create"), 0);
    assert_eq!(s.w.count("act execute"), 0);
}

#[test]
fn t25_just_executed_aws_still_says_available() {
    for age in [30, 119, 120] {
        let s = Scene::quiet();
        let u = s.applying(age);
        let answer = s.writes_nothing(|s| s.poll());
        assert_eq!(
            answer,
            json!({"state": "applying", "wrote": false}),
            "after {age} s"
        );
        assert_eq!(s.stored(&u), u);
        assert_eq!(s.version().text("/status/progress/step"), "settling");
    }
}

#[test]
fn t26_execute_never_took() {
    let s = Scene::quiet();
    let u = s.applying(121);
    s.poll();
    let now = s.stored(&u);
    assert_eq!(now.status, State::Prepared);
    assert_eq!(code_of(&now), "execute_not_started");
    assert_eq!(now.applied_at, None);
    assert_eq!(s.w.head().pending.as_deref(), Some(u.id.as_str()));
    assert_eq!(s.acts(), Vec::<String>::new(), "a poll never executes by itself");
    // The admin decides; the next try has a token of its own (3.4).
    s.checked();
    assert_eq!(s.apply(&u).code, 202);
    assert_eq!(
        s.since(0, "act execute"),
        [format!(
            "act execute {} token=apply-{}-2",
            set_arn(&u.change_set_name),
            u.id
        )]
    );
    assert_eq!(s.stored(&u).reason, None);
}

#[test]
fn t27_running() {
    let s = Scene::quiet();
    let u = s.applying(60);
    s.run(&u, 58);
    s.version();
    let a = s.one(&u);
    assert_eq!(a.text("/state"), "applying");
    assert_eq!(a.text("/status/state"), "applying");
    assert_eq!(a.text("/status/progress/step"), "updating");
    assert_eq!(a.text("/started_by"), "ana");
    assert_eq!(a.text("/started_at"), "2026-11-30T10:20:00Z");
    assert_eq!(a.text("/applied_by"), "ana@example.org");
    assert_eq!(a.text("/applied_at"), "2026-11-30T10:29:00Z");
    assert_eq!(a.text("/status/source"), "cloudformation");
    assert_eq!(s.stored(&u).status, State::Applying);
}

#[test]
fn t27_progress_counts_what_cloudformation_has_done() {
    let s = Scene::quiet();
    let u = s.applying(60);
    let mut row = s.stored(&u);
    row.summary = Some(Summary {
        modify: 3,
        ..Summary::default()
    });
    s.w.seed(&row);
    s.run(&u, 58);
    let at = |n| plus_seconds(start(), n);
    {
        let mut c = s.w.cloud.borrow_mut();
        c.resource_event(at(-50), "Api", "UPDATE_IN_PROGRESS", None);
        c.resource_event(at(-40), "Api", "UPDATE_COMPLETE", None);
        c.resource_event(at(-30), "Table", "UPDATE_IN_PROGRESS", None);
    }
    let v = s.version();
    assert_eq!(v.at("/status/progress/done"), &json!(1));
    assert_eq!(v.at("/status/progress/total"), &json!(3));
    assert_eq!(v.text("/status/progress/resource"), "Table");
    assert_eq!(v.text("/status/progress/last_event_at"), at(-30).to_string());
    assert!(v.text("/status/summary").contains("1 of 3"));
}

#[test]
fn t28_cleanup_is_not_yet_success() {
    let s = Scene::quiet();
    let u = s.applying(300);
    s.run(&u, 298);
    s.execution(&u, "EXECUTE_COMPLETE");
    s.owned(&u, "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", Some("2.4.0"), 298);
    s.poll();
    assert_eq!(s.stored(&u).status, State::Applying);
    let v = s.version();
    assert_eq!(v.text("/status/state"), "applying");
    assert_eq!(v.text("/status/progress/step"), "cleaning_up");
}

#[test]
fn t29_success() {
    for version in ["2.4.0", "v2.4.0", " 2.4.0 "] {
        let s = Scene::quiet();
        let u = s.applying(300);
        s.run(&u, 298);
        s.w.cloud.borrow_mut().succeed(plus_seconds(start(), -20));
        s.stack(|st| {
            st.outputs.insert("Version".into(), version.into());
        });
        s.poll();
        let now = s.stored(&u);
        assert_eq!(now.status, State::Updated, "{version:?}");
        assert_eq!(
            now.finished_at,
            Some(plus_seconds(start(), -20)),
            "the root event's time"
        );
        assert_eq!(now.applied_by.as_deref(), Some("ana@example.org"));
        assert_eq!(now.warnings, []);
        assert_eq!(now.reason, None);
        assert_eq!(now.progress, None);
        assert_eq!(s.w.head().pending, None);
        let v = s.version();
        assert_eq!(v.text("/status/state"), "updated");
        assert_eq!(v.text("/update/id"), u.id);
        assert_eq!(s.acts(), Vec::<String>::new());
    }
}

#[test]
fn t30_wrong_release_is_not_success() {
    let s = Scene::quiet();
    let u = s.applying(300);
    s.run(&u, 298);
    s.w.cloud.borrow_mut().succeed(plus_seconds(start(), -20));
    s.stack(|st| {
        st.outputs.insert("Version".into(), "2.3.0".into());
    });
    s.poll();
    let now = s.stored(&u);
    assert_eq!(now.status, State::Failed);
    assert_eq!(code_of(&now), "version_mismatch");
    assert_eq!(text_of(&now), "the stack reports 2.3.0, expected 2.4.0");
    assert_eq!(s.w.head().pending, None);
}

#[test]
fn t31_no_version_output() {
    for outputs in [None, Some("")] {
        let s = Scene::quiet();
        let u = s.applying(300);
        s.run(&u, 298);
        s.w.cloud.borrow_mut().succeed(plus_seconds(start(), -20));
        s.stack(|st| {
            st.outputs.clear();
            if let Some(v) = outputs {
                st.outputs.insert("Version".into(), v.into());
            }
        });
        s.poll();
        assert_eq!(s.stored(&u).status, State::Failed);
        assert_eq!(code_of(&s.stored(&u)), "version_missing");
    }
}

const REFUSED: &str = "Resource handler returned message: \"image not found\" (RequestToken: 1-2-3, \
                       HandlerErrorCode: InvalidRequest)";

#[test]
fn t32_rolling_back_is_shown_while_it_happens() {
    let s = Scene::quiet();
    let u = s.applying(300);
    s.run(&u, 298);
    s.w.cloud
        .borrow_mut()
        .fail_run(plus_seconds(start(), -100), "Api", REFUSED);
    let v = s.version();
    assert_eq!(v.text("/status/state"), "rolling_back");
    assert_eq!(v.text("/status/label"), "Rolling back");
    assert_eq!(v.text("/update/state"), "applying");
    assert_eq!(s.stored(&u).status, State::Applying);
    assert_eq!(v.text("/status/progress/step"), "rolling_back");
    assert_eq!(v.text("/status/reason/code"), "root_cause");
    assert!(v.text("/status/reason/text").contains("image not found"));
    assert_eq!(v.text("/status/reason/resource"), "Api");
    // 4.5 item 46: tokens are stripped.
    assert!(!v.text("/status/reason/text").contains("1-2-3"));
    assert_eq!(v.text("/status/reason/handler_error_code"), "InvalidRequest");
}

fn rolled_back(s: &Scene, u: &Update) {
    s.w.cloud
        .borrow_mut()
        .fail_run(plus_seconds(start(), -100), "Api", REFUSED);
    s.w.cloud.borrow_mut().finish_rollback(plus_seconds(start(), -20));
    let _ = u;
}

#[test]
fn t33_rolled_back_says_why() {
    let s = Scene::quiet();
    let u = s.applying(300);
    s.run(&u, 298);
    s.w.cloud.borrow_mut().resource_event(
        plus_seconds(start(), -90),
        "Table",
        "UPDATE_FAILED",
        Some("later failure"),
    );
    rolled_back(&s, &u);
    s.poll();
    let now = s.stored(&u);
    assert_eq!(now.status, State::RolledBack);
    let reason = now.reason.clone().unwrap();
    assert_eq!(reason.code, "root_cause");
    assert!(
        reason.text.contains("image not found"),
        "the first real failure: {reason:?}"
    );
    assert_eq!(reason.resource.as_deref(), Some("Api"));
    assert_eq!(reason.at, Some(plus_seconds(start(), -100)));
    assert_eq!(now.finished_at, Some(plus_seconds(start(), -20)));
    assert_eq!(s.w.head().pending, None);
    assert_eq!(s.version().text("/status/state"), "rolled_back");
}

#[test]
fn t34_rollback_itself_failed() {
    let s = Scene::quiet();
    let u = s.applying(300);
    s.run(&u, 298);
    s.w.cloud
        .borrow_mut()
        .fail_run(plus_seconds(start(), -100), "Api", REFUSED);
    s.w.cloud.borrow_mut().fail_rollback(plus_seconds(start(), -20));
    s.poll();
    let now = s.stored(&u);
    assert_eq!(now.status, State::Failed);
    assert_eq!(code_of(&now), "rollback_failed");
    assert!(text_of(&now).contains("image not found"));
    assert_eq!(now.needs_admin.as_ref().unwrap().code, "continue_update_rollback");
    let a = s.begin("2.4.0");
    assert_eq!(a.refusal(), (409, "stack_rollback_failed"));
    let v = s.version();
    assert_eq!(v.text("/status/state"), "failed");
    assert_eq!(v.text("/status/needs_admin/code"), "continue_update_rollback");
    assert_eq!(v.blockers(), ["stack_rollback_failed"]);
}

#[test]
fn t35_admin_continued_the_rollback() {
    for code in ["rollback_failed", "stack_paused"] {
        let s = Scene::quiet();
        let reason = crate::status::Reason::new(code, "image not found");
        let u = s.row_with(
            2,
            "2.4.0",
            State::Failed,
            600,
            ("CREATE_COMPLETE", "EXECUTE_FAILED"),
            |u| {
                u.applied_by = Some("ana@example.org".into());
                u.applied_at = Some(plus_seconds(start(), -590));
                u.reason = Some(reason.clone());
                u.needs_admin = Some(crate::status::NeedsAdmin::new(
                    "continue_update_rollback",
                    "do",
                    None,
                ));
                u.finished_at = Some(plus_seconds(start(), -300));
            },
        );
        s.owned(&u, "UPDATE_ROLLBACK_COMPLETE", Some("2.3.0"), 590);
        let v = s.version();
        let now = s.stored(&u);
        assert_eq!(now.status, State::RolledBack, "{code}");
        assert_eq!(now.reason, Some(reason), "the original reason is kept");
        assert_eq!(now.needs_admin, None);
        assert_eq!(v.text("/status/state"), "rolled_back");
        s.writes_nothing(|s| s.version());
    }
}

/// The refinement only while no newer update exists, only for the two codes, only for our own rollback.
#[test]
fn t35_nothing_else_ever_changes_a_closed_row() {
    let failed_row = |s: &Scene, code: &str| {
        s.row_with(
            2,
            "2.4.0",
            State::Failed,
            600,
            ("CREATE_COMPLETE", "EXECUTE_FAILED"),
            |u| {
                u.applied_at = Some(plus_seconds(start(), -590));
                u.reason = Some(crate::status::Reason::new(code, "x"));
                u.finished_at = Some(plus_seconds(start(), -300));
            },
        )
    };
    for code in [
        "execute_failed",
        "version_mismatch",
        "prepare_failed",
        "stack_gone",
    ] {
        let s = Scene::quiet();
        let u = failed_row(&s, code);
        s.owned(&u, "UPDATE_ROLLBACK_COMPLETE", Some("2.3.0"), 590);
        s.writes_nothing(|s| s.version());
        assert_eq!(s.stored(&u), u, "{code}");
    }
    let s = Scene::quiet();
    let u = failed_row(&s, "rollback_failed");
    s.owned(&u, "UPDATE_ROLLBACK_COMPLETE", Some("2.3.0"), 590);
    s.prepared(3, "2.5.0");
    s.head(|h| h.pending = Some(fake::update(3, "2.5.0", State::Prepared, 0, start()).id));
    s.version();
    assert_eq!(s.stored(&u), u, "a newer update exists");
    let s = Scene::quiet();
    let u = failed_row(&s, "rollback_failed");
    s.stack(|st| st.status = "UPDATE_ROLLBACK_COMPLETE".into());
    s.version();
    assert_eq!(s.stored(&u), u, "it is another operation's rollback");
    let s = Scene::quiet();
    let u = failed_row(&s, "rollback_failed");
    s.owned(&u, "UPDATE_ROLLBACK_IN_PROGRESS", Some("2.3.0"), 590);
    s.version();
    assert_eq!(s.stored(&u), u, "it has not ended");
}

#[test]
fn t36_preserved_after_failure() {
    let s = Scene::quiet();
    let u = s.applying(300);
    s.run(&u, 298);
    s.w.cloud
        .borrow_mut()
        .resource_event(plus_seconds(start(), -90), "Api", "UPDATE_FAILED", Some(REFUSED));
    s.w.cloud.borrow_mut().root_event(
        plus_seconds(start(), -80),
        "UPDATE_FAILED",
        None,
        u.apply_token.as_deref(),
    );
    s.execution(&u, "EXECUTE_FAILED");
    s.owned(&u, "UPDATE_FAILED", Some("2.3.0"), 298);
    s.poll();
    let now = s.stored(&u);
    assert_eq!(now.status, State::Failed);
    assert_eq!(code_of(&now), "stack_paused");
    let admin = now.needs_admin.unwrap();
    assert!(
        admin.text.contains("RollbackStack") && admin.text.contains("fix"),
        "{admin:?}"
    );
    assert_eq!(now.finished_at, Some(plus_seconds(start(), -80)));
    assert_eq!(s.begin("2.4.0").refusal(), (409, "stack_paused"));
}

#[test]
fn t37_success_with_leftovers() {
    let s = Scene::quiet();
    let u = s.applying(300);
    s.run(&u, 298);
    {
        let mut c = s.w.cloud.borrow_mut();
        let token = u.apply_token.as_deref();
        c.root_event(
            plus_seconds(start(), -90),
            "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS",
            None,
            token,
        );
        c.resource_event(
            plus_seconds(start(), -80),
            "OldBucket",
            "DELETE_FAILED",
            Some("not empty"),
        );
        c.succeed(plus_seconds(start(), -20));
    }
    s.stack(|st| {
        st.reason = Some("Update successful. One or more resources could not be deleted.".into());
    });
    s.poll();
    let now = s.stored(&u);
    assert_eq!(now.status, State::Updated);
    assert_eq!(now.reason, None);
    assert_eq!(now.warnings.len(), 1);
    assert_eq!(now.warnings[0].code, "cleanup_incomplete");
    assert_eq!(now.warnings[0].resources, ["OldBucket"]);
    assert_eq!(s.version().text("/update/warnings/0/code"), "cleanup_incomplete");
}

#[test]
fn t38_previous_result_not_taken_for_ours() {
    let s = Scene::quiet();
    let u = s.applying(20);
    s.execution(&u, "EXECUTE_IN_PROGRESS");
    s.stack(|st| {
        st.status = "UPDATE_ROLLBACK_COMPLETE".into();
        st.change_set_id = Some(set_arn("upd-1"));
    });
    for seconds in [0, 60, 299, 300, 301, 3600] {
        s.at(seconds).poll();
        let now = s.stored(&u);
        assert_eq!(now.status, State::Applying, "at {seconds} s");
        assert_eq!(now.settling_since, Some(start()));
        let v = s.version();
        assert_eq!(v.text("/status/progress/step"), "settling");
        // Past the bound it is said that nothing can be told.
        assert_eq!(
            v.flags("/status").contains(&"unrecognised"),
            seconds > 300,
            "at {seconds} s"
        );
    }
}

#[test]
fn t39_executed_in_the_console() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    s.run(&u, 45);
    let v = s.version();
    let now = s.stored(&u);
    assert_eq!(now.status, State::Applying);
    assert_eq!(now.applied_by.as_deref(), Some("someone in the AWS console"));
    assert_eq!(now.applied_at, Some(plus_seconds(start(), -45)));
    assert_eq!(v.text("/update/applied_by"), CONSOLE);
    assert_eq!(v.text("/update/applied_at"), "2026-11-30T10:29:15Z");
    assert_eq!(v.text("/status/progress/step"), "updating");
    assert_eq!(s.acts(), Vec::<String>::new());
}

#[test]
fn t39_also_while_it_was_still_shown_as_preparing() {
    let s = Scene::quiet();
    let u = preparing(&s, 60, ("CREATE_COMPLETE", "AVAILABLE"));
    s.run(&u, 45);
    s.version();
    let now = s.stored(&u);
    assert_eq!(now.status, State::Applying);
    assert_eq!(now.applied_by.as_deref(), Some(CONSOLE));
    assert!(now.summary.is_some());
}

#[test]
fn t40_console_run_already_finished() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    s.run(&u, 300);
    s.w.cloud.borrow_mut().succeed(plus_seconds(start(), -20));
    let v = s.version();
    let now = s.stored(&u);
    assert_eq!(now.status, State::Updated);
    assert_eq!(now.applied_by.as_deref(), Some(CONSOLE));
    assert_eq!(now.applied_at, Some(plus_seconds(start(), -300)));
    assert_eq!(now.finished_at, Some(plus_seconds(start(), -20)));
    assert_eq!(s.w.head().pending, None);
    assert_eq!(v.text("/status/state"), "updated");
}

#[test]
fn t41_console_run_rolled_back() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    // An older failure, from before the set was made, is not its reason.
    s.w.cloud.borrow_mut().resource_event(
        plus_seconds(start(), -900),
        "Old",
        "UPDATE_FAILED",
        Some("last month"),
    );
    s.run(&u, 400);
    s.w.cloud
        .borrow_mut()
        .fail_run(plus_seconds(start(), -300), "Api", REFUSED);
    s.w.cloud.borrow_mut().finish_rollback(plus_seconds(start(), -20));
    let v = s.version();
    let now = s.stored(&u);
    assert_eq!(now.status, State::RolledBack);
    assert_eq!(now.applied_by.as_deref(), Some(CONSOLE));
    assert!(text_of(&now).contains("image not found"), "{now:?}");
    assert!(v.text("/status/reason/text").contains("image not found"));
}

fn vanish(s: &Scene, u: &Update) {
    s.set(u, |x| x.deleted = true);
}

#[test]
fn t42_set_unreadable_but_the_stack_says_it_ran_ours() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    s.run(&u, 300);
    s.w.cloud.borrow_mut().succeed(plus_seconds(start(), -20));
    vanish(&s, &u);
    s.version();
    let now = s.stored(&u);
    assert_eq!(now.status, State::Updated);
    assert_eq!(now.applied_by.as_deref(), Some(CONSOLE));
}

#[test]
fn t43_another_operation_removed_the_plan() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    vanish(&s, &u);
    s.stack(|st| {
        st.change_set_id = Some("arn:another".into());
        st.updated_at = Some(plus_seconds(start(), -60));
    });
    s.version();
    let now = s.stored(&u);
    assert_eq!(now.status, State::Expired);
    assert_eq!(code_of(&now), "stack_changed_since");
    assert!(
        text_of(&now).contains("Prepare it again"),
        "offers to prepare again"
    );
    assert_eq!(s.w.head().pending, None);
    // And it can be prepared again at once.
    assert_eq!(s.begin("2.4.0").code, 201);
}

#[test]
fn t44_someone_deleted_the_plan() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    s.w.cloud
        .borrow_mut()
        .console_delete(&set_arn(&u.change_set_name));
    s.version();
    let now = s.stored(&u);
    assert_eq!(now.status, State::Discarded);
    assert_eq!(code_of(&now), "change_set_deleted");
    assert_eq!(s.acts(), Vec::<String>::new());
}

#[test]
fn t45_obsolete_plan() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    s.checked();
    s.w.cloud.borrow_mut().foreign_update(plus_seconds(start(), -60));
    let a = s.apply(&u);
    assert_eq!(a.refusal(), (409, "plan_expired"));
    assert_eq!(s.stored(&u).status, State::Expired);
    assert_eq!(s.acts(), [format!("act delete {}", set_arn(&u.change_set_name))]);
    let s = Scene::quiet();
    let u = s.pending_prepared();
    s.w.cloud.borrow_mut().foreign_update(plus_seconds(start(), -60));
    s.version();
    assert_eq!(s.stored(&u).status, State::Expired);
    assert_eq!(s.stored(&u).change_set_cleanup, Cleanup::Done);
    assert_eq!(s.w.count("act delete"), 1);
    assert_eq!(s.apply(&u).refusal(), (409, "plan_expired"));
}

#[test]
fn t46_throttled() {
    for e in [
        throttled(DESCRIBE_SET),
        timed_out(DESCRIBE_SET),
        failed(Class::Unavailable, DESCRIBE_SET, "InternalFailure", "500"),
    ] {
        let s = Scene::quiet();
        let u = s.pending_prepared();
        s.w.answer("look set", vec![Seen::Set(SetRead::Failed(e)); 9]);
        let v = s.writes_nothing(|s| s.version());
        assert_eq!(v.text("/status/state"), "prepared");
        assert!(v.flags("/status").contains(&"stale_read"));
        assert_eq!(
            v.at("/status/observed_at"),
            &json!(u.observed_at),
            "the last good read"
        );
        assert_eq!(v.text("/status/source"), "stored");
        assert_eq!(s.stored(&u), u);
    }
}

#[test]
fn t47_access_denied() {
    let s = Scene::quiet();
    let u = s.applying(60);
    s.execution(&u, "EXECUTE_COMPLETE");
    s.w.answer(
        "look stack",
        vec![Seen::Stack(StackRead::Failed(denied(DESCRIBE_STACKS))); 9],
    );
    let v = s.writes_nothing(|s| s.version());
    assert_eq!(v.text("/update/state"), "applying");
    let flag = v.flag("/status", "needs_permission");
    assert_eq!(flag["action"], DESCRIBE_STACKS);
    assert_eq!(s.stored(&u), u);
}

#[test]
fn t47_access_denied_on_the_change_set() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    s.w.answer(
        "look set",
        vec![Seen::Set(SetRead::Failed(denied(DESCRIBE_SET))); 9],
    );
    let v = s.writes_nothing(|s| s.version());
    assert_eq!(v.flag("/status", "needs_permission")["action"], DESCRIBE_SET);
    assert_eq!(v.text("/status/source"), "stored");
    assert_eq!(s.stored(&u), u);
}

#[test]
fn t48_stack_not_seen_once() {
    let s = Scene::quiet();
    let u = s.applying(60);
    s.run(&u, 58);
    s.version();
    let stack = s.w.cloud.borrow_mut().stack.take();
    let v = s.version();
    assert_eq!(v.text("/update/state"), "applying");
    assert!(v.flags("/status").contains(&"stack_not_seen"));
    assert_eq!(s.stored(&u).stack_missed_at, Some(start()));
    // A good read clears it, and then a miss is the first one again.
    s.at(30).w.cloud.borrow_mut().stack = stack;
    s.version();
    assert_eq!(s.stored(&u).stack_missed_at, None);
    s.at(40).w.cloud.borrow_mut().stack = None;
    s.version();
    assert_eq!(s.stored(&u).stack_missed_at, Some(plus_seconds(start(), 40)));
    s.at(99).version();
    assert_eq!(s.stored(&u).status, State::Applying, "59 s apart");
    s.at(101);
    s.version();
    let now = s.stored(&u);
    assert_eq!(now.status, State::Failed);
    assert_eq!(code_of(&now), "stack_gone");
    assert_eq!(s.w.head().pending, None);
}

/// Rule 4: "at least 60 s apart", for every open state, and DELETE_COMPLETE at once.
#[test]
fn t48_the_second_miss_counts_from_sixty_seconds() {
    for (state, to) in [
        (State::Preparing, State::Discarded),
        (State::Prepared, State::Discarded),
        (State::Applying, State::Failed),
    ] {
        for (gap, gone) in [(59, false), (60, true), (61, true)] {
            let s = Scene::quiet();
            let words = ("CREATE_COMPLETE", "AVAILABLE");
            let u = s.row(2, "2.4.0", state.clone(), 300, words);
            s.point(Some(&u));
            s.w.cloud.borrow_mut().stack = None;
            s.version();
            assert_eq!(s.stored(&u).status, state, "one miss decides nothing");
            s.at(gap).version();
            let now = s.stored(&u);
            assert_eq!(now.status == to, gone, "{state:?} after {gap} s");
            assert_eq!(code_of(&now) == "stack_gone", gone);
        }
        let s = Scene::quiet();
        let u = s.row(2, "2.4.0", state.clone(), 300, ("CREATE_COMPLETE", "AVAILABLE"));
        s.point(Some(&u));
        s.stack(|st| st.status = "DELETE_COMPLETE".into());
        s.version();
        assert_eq!((s.stored(&u).status, code_of(&s.stored(&u))), (to, "stack_gone"));
    }
}

#[test]
fn t49_poll_loses_to_the_user() {
    let s = Scene::quiet();
    let u = s.row_with(
        2,
        "2.4.0",
        State::Prepared,
        600,
        ("CREATE_COMPLETE", "AVAILABLE"),
        |u| u.rev = 4,
    );
    s.point(Some(&u));
    s.checked();
    // The poll sees the run of the user's OK, but read the row from before it.
    s.run(&u, 1);
    let mut won = u.clone();
    won.rev = 5;
    won.status = State::Applying;
    won.applied_by = Some("ana@example.org".into());
    won.applied_at = Some(start());
    let there = won.clone();
    s.w.meanwhile("save", move |w| w.seed(&there));
    let before = s.saves();
    let answer = s.poll_once();
    assert_eq!(s.saves() - before, 1, "one attempt only");
    assert_eq!(s.stored(&u), won, "applying rev 5 stays");
    assert_eq!(
        answer,
        json!({"state": "applying", "wrote": false}),
        "it shows what is there"
    );
}

#[test]
fn t50_a_status_this_build_does_not_know() {
    let s = Scene::quiet();
    let u = s.applying(60);
    s.run(&u, 58);
    s.poll();
    let before = s.stored(&u);
    s.stack(|st| st.status = "UPDATE_PAUSED".into());
    let answer = s.writes_nothing(|s| s.poll());
    assert_eq!(answer, json!({"state": "applying", "wrote": false}));
    let v = s.writes_nothing(|s| s.version());
    assert_eq!(v.text("/update/state"), "applying");
    assert_eq!(v.flag("/status", "unrecognised")["raw"], "UPDATE_PAUSED");
    assert_eq!(s.stored(&u), before);
}

#[test]
fn t50_unknown_words_of_the_change_set() {
    for (status, execution, raw) in [
        ("CREATE_PAUSED", "AVAILABLE", "CREATE_PAUSED"),
        ("CREATE_COMPLETE", "EXECUTE_QUEUED", "EXECUTE_QUEUED"),
    ] {
        for state in [State::Preparing, State::Prepared, State::Applying] {
            let s = Scene::quiet();
            let u = s.row(2, "2.4.0", state.clone(), 600, (status, execution));
            s.point(Some(&u));
            let v = s.writes_nothing(|s| s.version());
            assert_eq!(v.text("/update/state"), state.as_str());
            assert_eq!(v.flag("/status", "unrecognised")["raw"], raw);
        }
    }
}

#[test]
fn t58_settling_is_bounded_too() {
    let s = Scene::quiet();
    let u = s.applying(60);
    s.execution(&u, "EXECUTE_IN_PROGRESS");
    s.owned(&u, "UPDATE_COMPLETE", Some("2.4.0"), 55);
    s.poll();
    assert_eq!(s.stored(&u).settling_since, Some(start()));
    for seconds in [299, 300] {
        s.at(seconds);
        s.writes_nothing(|s| s.poll());
        assert_eq!(s.stored(&u).status, State::Applying, "at {seconds} s");
        assert_eq!(s.version().text("/status/progress/step"), "settling");
    }
    s.at(301).poll();
    assert_eq!(s.stored(&u).status, State::Updated);
    assert_eq!(s.w.head().pending, None);
}

/// The disagreement is forgotten once the two agree.
#[test]
fn t58_the_bound_runs_from_the_last_disagreement() {
    let s = Scene::quiet();
    let u = s.applying(60);
    s.execution(&u, "EXECUTE_IN_PROGRESS");
    s.owned(&u, "UPDATE_COMPLETE", Some("2.4.0"), 55);
    s.poll();
    s.at(200).owned(&u, "UPDATE_IN_PROGRESS", Some("2.3.0"), 55);
    s.poll();
    assert_eq!(s.stored(&u).settling_since, None);
    s.at(250).owned(&u, "UPDATE_COMPLETE", Some("2.4.0"), 55);
    s.poll();
    s.at(400).poll();
    assert_eq!(s.stored(&u).status, State::Applying);
    s.at(551).poll();
    assert_eq!(s.stored(&u).status, State::Updated);
}
