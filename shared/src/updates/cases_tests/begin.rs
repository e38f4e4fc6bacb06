//! T01-T15: begin, supersede_open, the pointer and the history.

use super::*;

#[test]
fn t01_begin_on_a_quiet_stack() {
    let s = Scene::quiet();
    let a = s.begin("2.4.0");
    assert_eq!(a.code, 201, "{a:?}");
    let u = s.made(1);
    assert_eq!(a.headers.get("location"), Some(&format!("/updates/{}", u.id)));
    assert_eq!(a.text("/state"), "preparing");
    assert_eq!(a.text("/id"), u.id);
    assert_eq!(u.status, State::Preparing);
    assert_eq!(u.seq, 1);
    assert_eq!(u.started_by, "ana@example.org");
    assert_eq!(u.started_at, start());
    assert_eq!(u.from_release.as_deref(), Some("2.3.0"));
    assert_eq!(u.to_release, "2.4.0");
    assert_eq!(u.change_set_id, Some(set_arn(&u.change_set_name)));
    assert_eq!(s.w.head().pending.as_deref(), Some(u.id.as_str()));
    assert_eq!(s.w.head().reserving, None);
    assert_eq!(s.w.head().next_seq, 2);
    assert_eq!(
        s.acts(),
        [format!("act create {} token={}", u.change_set_name, u.id)]
    );
    // Intent before act (3.2): the row was saved before CloudFormation was asked.
    let trace = s.w.trace.borrow().clone();
    let at = |w: &str| trace.iter().position(|l| l.starts_with(w)).unwrap();
    assert!(
        at("save UPDATE#0000000001=preparing") < at("act create"),
        "{trace:?}"
    );
    s.writes_nothing(|s| s.version());
}

#[test]
fn t02_prepared_but_not_run_is_not_running() {
    let s = Scene::quiet();
    let u1 = s.prepared(1, "2.3.5");
    s.point(Some(&u1));
    let a = s.begin("2.4.0");
    assert_eq!(a.code, 201, "{a:?}");
    let u2 = s.made(2);
    assert_eq!(u2.status, State::Preparing);
    assert_eq!(s.w.head().pending.as_deref(), Some(u2.id.as_str()));
    let old = s.stored(&u1);
    assert_eq!(old.status, State::Superseded);
    assert_eq!(old.superseded_by.as_deref(), Some(u2.id.as_str()));
    assert_eq!(old.change_set_cleanup, Cleanup::Done);
    assert_eq!(old.finished_at, Some(start()));
    // The older one stays the pending one until the new change set exists, and it is deleted after that.
    assert_eq!(
        s.acts(),
        [
            format!("act create {} token={}", u2.change_set_name, u2.id),
            format!("act delete {}", set_arn(&u1.change_set_name)),
        ]
    );
    s.writes_nothing(|s| s.version());
}

#[test]
fn t03_never_replace_one_still_being_made() {
    let s = Scene::quiet();
    let u1 = s.row_with(
        1,
        "2.3.5",
        State::Preparing,
        60,
        ("CREATE_IN_PROGRESS", "UNAVAILABLE"),
        |u| u.started_by = "bob@example.org".into(),
    );
    s.point(Some(&u1));
    let a = s.writes_nothing(|s| s.begin("2.4.0"));
    assert_eq!(a.refusal(), (409, "update_preparing"));
    a.detail_names(&["2.3.5", "bob@example.org", "2026-11-30 10:29:00"]);
    assert_eq!(a.text("/pending"), u1.id);
    assert!(s.w.row(2).is_none());
}

#[test]
fn t04_never_replace_one_running() {
    let s = Scene::quiet();
    let u1 = s.row_with(
        1,
        "2.3.5",
        State::Applying,
        600,
        ("CREATE_COMPLETE", "AVAILABLE"),
        |u| {
            u.applied_by = Some("bob@example.org".into());
            u.applied_at = Some(plus_seconds(start(), -60));
            u.apply_token = Some(format!("apply-{}-1", u.id));
        },
    );
    s.point(Some(&u1));
    s.run(&u1, 60);
    // Its progress is stored by an earlier poll.
    s.poll();
    let a = s.writes_nothing(|s| s.begin("2.4.0"));
    assert_eq!(a.refusal(), (409, "update_applying"));
    a.detail_names(&["2.3.5", "bob@example.org", "2026-11-30 10:29:00"]);
    assert!(s.w.row(2).is_none());
    // The busy stack is the same fact, said once.
    assert_eq!(s.version().blockers(), ["update_applying"]);
}

#[test]
fn t05_begin_reconciles_first() {
    let s = Scene::quiet();
    let u1 = s.prepared(1, "2.4.0");
    s.point(Some(&u1));
    s.run(&u1, 30);
    let a = s.begin("2.4.0");
    assert_eq!(a.refusal(), (409, "update_applying"));
    a.detail_names(&["2.4.0", CONSOLE]);
    let now = s.stored(&u1);
    assert_eq!(now.status, State::Applying);
    assert_eq!(now.applied_by.as_deref(), Some(CONSOLE));
    assert_eq!(s.acts(), Vec::<String>::new());
    assert!(s.w.row(2).is_none());
    s.writes_nothing(|s| s.version());
}

#[test]
fn t06_a_failed_create_must_not_cost_the_old_plan() {
    let s = Scene::quiet();
    let u1 = s.prepared(1, "2.3.5");
    s.point(Some(&u1));
    let text = "ChangeSet limit exceeded for stack shop";
    let e = failed(Class::Refused, CREATE, "LimitExceededException", text);
    s.w.fault("act create", vec![Instead::Before(e)]);
    let a = s.begin("2.4.0");
    assert_eq!(a.refusal(), (422, "change_set_refused"));
    a.detail_names(&[text]);
    // Section 8: the number of change sets a stack may have.
    assert_eq!(a.text("/needs_admin/code"), "delete_change_sets");
    assert!(a.text("/needs_admin/text").contains("do not need"));
    let u2 = s.made(2);
    assert_eq!(u2.status, State::Failed);
    assert_eq!(code_of(&u2), "prepare_failed");
    assert!(text_of(&u2).contains(text));
    assert_eq!(u2.finished_at, Some(start()));
    assert_eq!(s.w.head().pending.as_deref(), Some(u1.id.as_str()));
    assert_eq!(s.w.head().reserving, None);
    assert_eq!(s.stored(&u1), u1);
    assert_eq!(s.w.count("act delete"), 0);
    let v = s.writes_nothing(|s| s.version());
    assert_eq!(v.text("/update/id"), u1.id);
    assert_eq!(v.text("/status/state"), "prepared");
}

#[test]
fn t07_an_older_one_started_running_meanwhile() {
    let s = Scene::quiet();
    let u1 = s.prepared(1, "2.3.5");
    let u2 = s.row(
        2,
        "2.4.0",
        State::Preparing,
        20,
        ("CREATE_IN_PROGRESS", "UNAVAILABLE"),
    );
    s.point(Some(&u2));
    // Executing one removes all the others (4.1 item 3).
    s.run(&u1, 10);
    let v = s.version();
    let old = s.stored(&u1);
    assert_eq!(old.status, State::Applying);
    assert_eq!(old.applied_by.as_deref(), Some(CONSOLE));
    assert_eq!(old.superseded_by, None);
    assert_eq!(s.w.head().pending.as_deref(), Some(u1.id.as_str()));
    assert_eq!(v.text("/update/id"), u1.id);
    assert_eq!(s.acts(), Vec::<String>::new());
    s.at(130).version();
    let late = s.stored(&u2);
    assert_eq!(late.status, State::Expired);
    assert_eq!(code_of(&late), "stack_changed_since");
    assert_eq!(s.w.head().pending.as_deref(), Some(u1.id.as_str()));
    assert_eq!(s.acts(), Vec::<String>::new());
}

#[test]
fn t07_an_older_one_is_run_in_the_console_between_create_and_delete() {
    let s = Scene::quiet();
    let u1 = s.prepared(1, "2.3.5");
    s.point(Some(&u1));
    let arn = set_arn(&u1.change_set_name);
    let run = arn.clone();
    s.w.meanwhile("act delete", move |w| {
        w.cloud
            .borrow_mut()
            .start_run(&run, "Console-ExecuteChangeSet-1", start())
            .unwrap();
    });
    let a = s.begin("2.4.0");
    assert_eq!(a.code, 201, "{a:?}");
    // CloudFormation refused the delete and a fresh describe says that it runs: it is not marked.
    assert_eq!(s.stored(&u1).status, State::Applying);
    assert_eq!(s.stored(&u1).superseded_by, None);
    assert_eq!(s.w.head().pending.as_deref(), Some(u1.id.as_str()));
    assert_eq!(s.w.count(&format!("act delete {arn}")), 1);
    s.at(130).version();
    assert_eq!(s.made(2).status, State::Expired);
    assert_eq!(s.stored(&u1).status, State::Applying);
}

#[test]
fn t08_older_one_whose_plan_failed_is_cleaned_too() {
    let s = Scene::quiet();
    let u1 = s.row(1, "2.3.5", State::Preparing, 300, ("FAILED", "UNAVAILABLE"));
    let u2 = s.row(
        2,
        "2.4.0",
        State::Preparing,
        60,
        ("CREATE_IN_PROGRESS", "UNAVAILABLE"),
    );
    s.point(Some(&u2));
    s.version();
    let old = s.stored(&u1);
    assert_eq!(old.status, State::Superseded);
    assert_eq!(old.superseded_by.as_deref(), Some(u2.id.as_str()));
    assert_eq!(s.acts(), [format!("act delete {}", set_arn(&u1.change_set_name))]);
    assert_eq!(s.stored(&u2).status, State::Preparing);
}

#[test]
fn t09_older_one_that_already_ran_keeps_its_result() {
    let s = Scene::quiet();
    let u1 = s.prepared(1, "2.3.5");
    let u2 = s.prepared(2, "2.4.0");
    s.point(Some(&u2));
    s.run(&u1, 300);
    s.w.cloud.borrow_mut().succeed(plus_seconds(start(), -60));
    let v = s.version();
    let old = s.stored(&u1);
    assert_eq!(old.status, State::Updated);
    assert_eq!(old.applied_by.as_deref(), Some(CONSOLE));
    assert_eq!(old.superseded_by, None);
    assert_eq!(old.finished_at, Some(plus_seconds(start(), -60)));
    let new = s.stored(&u2);
    assert_eq!(new.status, State::Expired);
    assert_eq!(
        s.acts(),
        Vec::<String>::new(),
        "CloudFormation removed U2's set itself"
    );
    assert_eq!(s.w.head().pending, None);
    assert_eq!(v.text("/current/release"), "2.3.5");
}

#[test]
fn t10_the_observed_bug_pointer_on_the_older() {
    let s = Scene::quiet();
    let u1 = s.prepared(1, "2.3.5");
    let u2 = s.prepared(2, "2.4.0");
    s.point(Some(&u1));
    let v = s.version();
    assert_eq!(s.w.head().pending.as_deref(), Some(u2.id.as_str()));
    let old = s.stored(&u1);
    assert_eq!(old.status, State::Superseded);
    assert_eq!(old.superseded_by.as_deref(), Some(u2.id.as_str()));
    assert_eq!(s.acts(), [format!("act delete {}", set_arn(&u1.change_set_name))]);
    assert_eq!(v.text("/update/id"), u2.id);
    assert_eq!(v.text("/update/state"), "prepared");
    assert_eq!(v.text("/status/state"), "prepared");
    let open: Vec<Value> = s
        .history()
        .into_iter()
        .filter(|u| {
            ["preparing", "prepared", "applying"]
                .iter()
                .any(|w| u["state"] == *w)
        })
        .collect();
    assert_eq!(open.len(), 1);
}

#[test]
fn t11_pointer_missing_three_open_rows() {
    let s = Scene::quiet();
    let u1 = s.prepared(1, "2.3.5");
    let u2 = s.prepared(2, "2.4.0");
    let u3 = s.prepared(3, "2.5.0");
    s.point(None);
    s.version();
    assert_eq!(s.w.head().pending.as_deref(), Some(u3.id.as_str()));
    for old in [&u1, &u2] {
        let now = s.stored(old);
        assert_eq!(now.status, State::Superseded);
        assert_eq!(now.superseded_by.as_deref(), Some(u3.id.as_str()));
    }
    assert_eq!(s.stored(&u3).status, State::Prepared);
    s.writes_nothing(|s| s.version());
}

#[test]
fn t12_history_never_shows_two_waiting() {
    let s = Scene::quiet();
    let u1 = s.prepared(1, "2.3.5");
    let u2 = s.prepared(2, "2.4.0");
    s.point(Some(&u2));
    let list = s.writes_nothing(|s| s.history());
    assert_eq!(s.w.count("look"), 0, "a view of rows asks AWS nothing");
    assert_eq!(list.len(), 2);
    assert_eq!(
        (list[0]["id"].as_str(), list[0]["state"].as_str()),
        (Some(u2.id.as_str()), Some("prepared"))
    );
    assert_eq!(list[1]["id"], u1.id);
    assert_eq!(list[1]["state"], "superseded");
    assert_eq!(list[1]["status"]["state"], "superseded");
    assert_eq!(list[1]["superseded_by"], u2.id);
    assert_eq!(s.stored(&u1).status, State::Prepared);
}

#[test]
fn t13_pointer_on_a_finished_row() {
    let s = Scene::quiet();
    let u1 = s.row_with(1, "2.3.0", State::Updated, 6000, ("", ""), |u| {
        u.finished_at = Some(plus_seconds(start(), -5000));
    });
    let u2 = s.prepared(2, "2.4.0");
    s.point(Some(&u1));
    let v = s.version();
    assert_eq!(s.w.head().pending.as_deref(), Some(u2.id.as_str()));
    assert_eq!(s.stored(&u1), u1);
    assert_eq!(v.text("/update/id"), u2.id);
    assert_eq!(v.text("/status/state"), "prepared");
}

#[test]
fn t14_dangling_pointer() {
    let s = Scene::quiet();
    s.head(|h| h.pending = Some("0192f000-0000-7000-8000-000000000063".into()));
    let v = s.version();
    assert_eq!(s.w.head().pending, None);
    assert_eq!(v.text("/status/state"), "idle");
    assert_eq!(v.at("/update"), &Value::Null);
    assert_eq!(v.blockers(), Vec::<&str>::new());
}

#[test]
fn t15_preparing_turns_into_waiting_at_once() {
    let s = Scene::quiet();
    let u = s.row(2, "2.4.0", State::Preparing, 40, ("CREATE_COMPLETE", "AVAILABLE"));
    s.point(Some(&u));
    let v = s.version();
    assert_eq!(v.text("/update/state"), "prepared");
    assert_eq!(v.text("/status/label"), "Waiting for your OK");
    assert_eq!(s.stored(&u).status, State::Prepared);
    assert_eq!(v.blockers(), Vec::<&str>::new(), "prepared is not running");
}

#[test]
fn t59_begin_on_a_stack_that_needs_its_admin() {
    let s = Scene::quiet();
    s.stack(|st| st.status = "UPDATE_ROLLBACK_FAILED".into());
    let a = s.writes_nothing(|s| s.begin("2.4.0"));
    assert_eq!(a.refusal(), (409, "stack_rollback_failed"));
    a.detail_names(&["continue the rollback in CloudFormation first"]);
    assert_eq!(a.text("/needs_admin/code"), "continue_update_rollback");
    assert!(s.w.row(1).is_none());
}

#[test]
fn t60_someone_else_is_using_the_stack() {
    let s = Scene::quiet();
    s.stack(|st| {
        st.status = "UPDATE_IN_PROGRESS".into();
        st.change_set_id = Some("arn:foreign".into());
    });
    let v = s.writes_nothing(|s| s.version());
    assert_eq!(v.text("/status/state"), "idle");
    assert_eq!(v.blockers(), ["stack_busy"]);
    assert_eq!(
        v.text("/blockers/0/text"),
        "CloudFormation is changing this stack; not started here."
    );
    let a = s.writes_nothing(|s| s.begin("2.4.0"));
    assert_eq!(a.refusal(), (409, "stack_busy"));
}

/// Table B, first column: every stack status that refuses begin, with its code; the others let it through.
#[test]
fn every_stack_gate_of_table_b_holds_begin_and_apply() {
    for (status, code) in [
        ("CREATE_IN_PROGRESS", "stack_busy"),
        ("CREATE_FAILED", "stack_install_failed"),
        ("CREATE_COMPLETE", ""),
        ("ROLLBACK_IN_PROGRESS", "stack_busy"),
        ("ROLLBACK_FAILED", "stack_install_failed"),
        ("ROLLBACK_COMPLETE", "stack_install_failed"),
        ("DELETE_IN_PROGRESS", "stack_going"),
        ("DELETE_FAILED", "stack_going"),
        ("DELETE_COMPLETE", "stack_going"),
        ("UPDATE_IN_PROGRESS", "stack_busy"),
        ("UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", "stack_busy"),
        ("UPDATE_COMPLETE", ""),
        ("UPDATE_FAILED", "stack_paused"),
        ("UPDATE_ROLLBACK_IN_PROGRESS", "stack_busy"),
        ("UPDATE_ROLLBACK_FAILED", "stack_rollback_failed"),
        ("UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS", "stack_busy"),
        ("UPDATE_ROLLBACK_COMPLETE", ""),
        ("REVIEW_IN_PROGRESS", "stack_not_installed"),
        ("IMPORT_IN_PROGRESS", "stack_busy"),
        ("IMPORT_COMPLETE", ""),
        ("IMPORT_ROLLBACK_IN_PROGRESS", "stack_busy"),
        ("IMPORT_ROLLBACK_FAILED", "stack_import_rollback_failed"),
        ("IMPORT_ROLLBACK_COMPLETE", ""),
    ] {
        let s = Scene::quiet();
        s.stack(|st| st.status = status.into());
        let a = s.begin("2.4.0");
        if code.is_empty() {
            assert_eq!(a.code, 201, "{status}: {a:?}");
        } else {
            assert_eq!(a.refusal(), (409, code), "{status}");
            assert!(s.w.row(1).is_none(), "{status}");
            assert_eq!(s.acts(), Vec::<String>::new(), "{status}");
        }
        let s = Scene::quiet();
        let u = s.pending_prepared();
        s.checked();
        s.stack(|st| st.status = status.into());
        let a = s.apply(&u);
        match code {
            "" => assert_eq!(a.code, 202, "{status}: {a:?}"),
            // Rule 4: a deleted stack ends the update.
            _ if status == "DELETE_COMPLETE" => assert_eq!(a.refusal(), (409, "not_pending")),
            _ => {
                assert_eq!(a.refusal(), (409, code), "{status}");
                assert_eq!(s.stored(&u).status, State::Prepared);
                assert_eq!(s.w.count("act execute"), 0);
            }
        }
    }
}

/// 1.7 begin 5: the same release already prepared and still AVAILABLE.
#[test]
fn begin_answers_200_with_the_row_already_prepared() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    for word in ["2.4.0", "v2.4.0"] {
        let a = s.writes_nothing(|s| s.begin(word));
        assert_eq!(a.code, 200, "{a:?}");
        assert_eq!(a.text("/id"), u.id);
    }
}

#[test]
fn begin_refuses_unknown_installed_older_and_too_far_releases() {
    let s = Scene::quiet();
    s.w.cloud.borrow_mut().releases = fake::release_list(&[
        ("2.2.0", None),
        ("2.3.0", None),
        ("2.4.0", None),
        ("2.5.0", Some("2.4.0")),
    ]);
    for (release, code, name) in [
        ("9.9.9", (404, "release_unknown"), "9.9.9"),
        ("2.3.0", (409, "release_installed"), "2.3.0"),
        ("v2.3.0", (409, "release_installed"), "2.3.0"),
        ("2.2.0", (409, "release_older"), "2.2.0"),
        ("2.5.0", (409, "release_too_far"), "2.4.0"),
    ] {
        let a = s.writes_nothing(|s| s.begin(release));
        assert_eq!(a.refusal(), code, "{release}");
        a.detail_names(&[name]);
    }
    // "Before both": the release is judged before another update and before the stack.
    let u = s.row(
        1,
        "2.4.0",
        State::Preparing,
        60,
        ("CREATE_IN_PROGRESS", "UNAVAILABLE"),
    );
    s.point(Some(&u));
    s.stack(|st| st.status = "UPDATE_IN_PROGRESS".into());
    assert_eq!(s.begin("9.9.9").refusal(), (404, "release_unknown"));
    assert_eq!(s.begin("2.3.0").refusal(), (409, "release_installed"));
    assert_eq!(s.begin("2.4.0").refusal(), (409, "update_preparing"));
}

/// A row that is only an intent blocks begin, and the older one is shown with a note (1.7 reconcile 2).
#[test]
fn an_intent_is_no_candidate_but_blocks_begin() {
    let s = Scene::quiet();
    let u1 = s.prepared(1, "2.3.5");
    let u2 = s.row_with(2, "2.4.0", State::Preparing, 20, ("", ""), |u| {
        u.change_set_id = None;
        u.change_set_created_at = None;
    });
    s.head(|h| {
        h.pending = Some(u1.id.clone());
        h.reserving = Some(u2.id.clone());
        h.reserve_until = Some(plus_seconds(start(), 100).as_millisecond());
    });
    let v = s.writes_nothing(|s| s.version());
    assert_eq!(v.text("/update/id"), u1.id);
    let note = v.flag("/status", "newer_preparing");
    assert!(note["text"].as_str().unwrap().contains("2.4.0"));
    let a = s.writes_nothing(|s| s.begin("2.5.0"));
    assert_eq!(a.refusal(), (409, "update_preparing"));
    a.detail_names(&["2.4.0"]);
    assert_eq!(s.acts(), Vec::<String>::new());
}
