//! O1-O10 and O12-O15: public reports of other updaters (spec/updates.md 5.2), each with its small input.

use super::*;

#[test]
fn o1_an_executed_set_is_found_by_its_arn_only() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    s.run(&u, 300);
    s.w.cloud.borrow_mut().succeed(plus_seconds(start(), -20));
    s.version();
    assert_eq!(s.stored(&u).status, State::Updated);
    assert_eq!(s.stored(&u).applied_by.as_deref(), Some(CONSOLE));
    assert_eq!(s.w.count("look set-by-name"), 0);
    assert!(s.w.count("look set arn:") > 0);
}

#[test]
fn o2_a_create_whose_answer_was_lost_makes_one_set() {
    let s = Scene::quiet();
    s.w.fault("act create", vec![Instead::After(timed_out(CREATE))]);
    let a = s.begin("2.4.0");
    assert_eq!(a.code, 201, "{a:?}");
    assert_eq!(a.text("/state"), "preparing");
    assert_eq!(s.made(1).change_set_id, None);
    // The retry of a person who saw no change is refused, not answered with a second set.
    s.w.cloud.borrow_mut().make(&s.made(1).change_set_name);
    let v = s.at(5).version();
    let u = s.made(1);
    assert_eq!(u.status, State::Prepared);
    assert_eq!(u.change_set_id, Some(set_arn(&u.change_set_name)));
    assert_eq!(v.text("/update/state"), "prepared");
    let again = s.begin("2.4.0");
    assert_eq!((again.code, again.text("/id")), (200, u.id.as_str()));
    assert_eq!(s.w.cloud.borrow().sets.len(), 1);
    assert_eq!(s.w.count("act create"), 1);
}

#[test]
fn o3_empty_failed_sets_do_not_pile_up() {
    let s = Scene::quiet();
    for n in 1..=3 {
        assert_eq!(s.begin("2.4.0").code, 201);
        let u = s.made(n);
        s.w.cloud.borrow_mut().fail_to_make(
            &u.change_set_name,
            "The submitted information didn't contain changes. Submit different information to create a change set.",
        );
        s.poll();
        let now = s.stored(&u);
        assert_eq!(
            (now.status.clone(), code_of(&now)),
            (State::Discarded, "no_changes")
        );
    }
    assert_eq!(s.w.count("act delete"), 3);
    assert!(s.w.cloud.borrow().sets.iter().all(|x| x.deleted));
}

#[test]
fn o4_a_set_with_only_output_changes_is_prepared() {
    let s = Scene::quiet();
    assert_eq!(s.begin("2.4.0").code, 201);
    s.w.cloud.borrow_mut().make(&s.made(1).change_set_name);
    assert!(s.w.cloud.borrow().sets[0].set.changes.is_empty());
    s.poll();
    assert_eq!(s.made(1).status, State::Prepared);
}

#[test]
fn o5_the_result_of_the_run_before_is_not_reported() {
    let s = Scene::quiet();
    let u = s.applying(10);
    s.execution(&u, "EXECUTE_IN_PROGRESS");
    s.poll();
    assert_eq!(s.stored(&u).status, State::Applying);
    let s = Scene::quiet();
    let u = s.applying(10);
    s.poll();
    assert_eq!(s.stored(&u).status, State::Applying);
}

#[test]
fn o6_a_throttled_event_read_does_not_fail_a_good_update() {
    let s = Scene::quiet();
    let u = s.applying(300);
    s.run(&u, 298);
    s.w.cloud.borrow_mut().succeed(plus_seconds(start(), -20));
    s.w.answer(
        "look events",
        vec![Seen::Events(Err(throttled(DESCRIBE_EVENTS))); 20],
    );
    s.poll();
    assert_eq!(s.stored(&u).status, State::Updated);
    assert_eq!(s.w.head().pending, None);
}

/// 4.5 item 46: the status never waits for the reason.
#[test]
fn o6_a_rollback_is_stored_at_once_and_its_reason_later() {
    let s = Scene::quiet();
    let u = s.applying(300);
    s.run(&u, 298);
    s.w.cloud
        .borrow_mut()
        .fail_run(plus_seconds(start(), -100), "Api", "image not found");
    s.w.cloud.borrow_mut().finish_rollback(plus_seconds(start(), -20));
    s.stack(|st| st.reason = None);
    s.w.answer(
        "look events",
        vec![Seen::Events(Err(throttled(DESCRIBE_EVENTS))); 1],
    );
    s.once.set(true);
    s.poll();
    let now = s.stored(&u);
    assert_eq!(now.status, State::RolledBack);
    assert!(now.reason_pending);
    assert!(s.w.head().work.contains(&u.id));
    s.once.set(false);
    s.at(300).poll();
    let now = s.stored(&u);
    assert_eq!(now.status, State::RolledBack);
    assert!(!now.reason_pending);
    assert_eq!(text_of(&now), "image not found");
    assert_eq!(now.finished_at, Some(plus_seconds(start(), -20)));
    assert!(s.w.head().work.is_empty());
}

#[test]
fn o7_cancelled_resources_are_not_the_cause() {
    let s = Scene::quiet();
    let u = s.applying(300);
    s.run(&u, 298);
    let at = |n| plus_seconds(start(), n);
    {
        let mut c = s.w.cloud.borrow_mut();
        c.resource_event(at(-102), "Api", "UPDATE_FAILED", Some("the real one"));
        c.resource_event(
            at(-101),
            "Queue",
            "CREATE_FAILED",
            Some("Resource creation cancelled"),
        );
        c.resource_event(
            at(-101),
            "Table",
            "UPDATE_FAILED",
            Some("Resource update cancelled"),
        );
        c.fail_run(at(-100), "Late", "a later one");
        c.finish_rollback(at(-20));
    }
    s.poll();
    let now = s.stored(&u);
    assert_eq!(now.status, State::RolledBack);
    assert_eq!(text_of(&now), "the real one");
    assert_eq!(now.reason.unwrap().resource.as_deref(), Some("Api"));
}

#[test]
fn o8_the_nested_cause_with_its_path() {
    let s = Scene::quiet();
    let u = s.applying(300);
    s.run(&u, 298);
    let at = |n| plus_seconds(start(), n);
    let child = "arn:aws:cloudformation:eu-west-1:123456789012:stack/shop-Db-1/2222";
    {
        let mut c = s.w.cloud.borrow_mut();
        let mut nested = event(STACK_ARN, "Db", "UPDATE_IN_PROGRESS", None, at(-150));
        nested.kind = "AWS::CloudFormation::Stack".into();
        nested.physical_id = Some(child.into());
        let mut ended = nested.clone();
        ended.status = "UPDATE_FAILED".into();
        ended.reason = Some(format!("Embedded stack {child} was not successfully updated"));
        ended.at = at(-100);
        let list = c.events.entry(STACK_ARN.into()).or_default();
        list.insert(0, nested);
        list.insert(0, ended);
        c.events.insert(
            child.into(),
            vec![
                event(
                    child,
                    "Volume",
                    "UPDATE_FAILED",
                    Some("volume is in use"),
                    at(-120),
                ),
                event(
                    child,
                    "Old",
                    "UPDATE_FAILED",
                    Some("of the month before"),
                    at(-5000),
                ),
            ],
        );
        c.root_event(
            at(-99),
            "UPDATE_ROLLBACK_IN_PROGRESS",
            Some("The following resource(s) failed"),
            None,
        );
        c.stack.as_mut().unwrap().status = "UPDATE_ROLLBACK_IN_PROGRESS".into();
        c.finish_rollback(at(-20));
    }
    s.poll();
    let reason = s.stored(&u).reason.unwrap();
    assert_eq!(reason.text, "volume is in use");
    assert_eq!(reason.resource.as_deref(), Some("Db/Volume"));
    assert!(
        s.w.trace.borrow().contains(&format!("look events {child}")),
        "asked by its ARN"
    );
}

#[test]
fn o9_never_two_current_ones() {
    let s = Scene::quiet();
    let u1 = s.prepared(1, "2.3.5");
    s.prepared(2, "2.4.0");
    s.point(Some(&u1));
    s.version();
    let states: Vec<String> = s
        .history()
        .iter()
        .map(|u| u["state"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(states, ["prepared", "superseded"]);
}

#[test]
fn o10_a_killed_process_leaves_nothing_pending_for_ever() {
    let s = Scene::quiet();
    let u = s.row_with(1, "2.4.0", State::Preparing, 180, ("", ""), |u| {
        u.change_set_id = None;
        u.change_set_created_at = None;
    });
    s.head(|h| {
        h.reserving = Some(u.id.clone());
        h.reserve_until = Some(plus_seconds(start(), -60).as_millisecond());
    });
    s.version();
    let now = s.stored(&u);
    assert_eq!(
        (now.status.clone(), code_of(&now)),
        (State::Failed, "prepare_lost")
    );
    assert_eq!(s.begin("2.4.0").code, 201);
    assert_eq!(s.made(2).status, State::Preparing);
}

#[test]
fn o10_begin_itself_clears_the_way() {
    let s = Scene::quiet();
    let u = s.row_with(1, "2.4.0", State::Preparing, 180, ("", ""), |u| {
        u.change_set_id = None;
        u.change_set_created_at = None;
    });
    assert_eq!(s.begin("2.4.0").code, 201, "without a look in between");
    assert_eq!(code_of(&s.stored(&u)), "prepare_lost");
}

#[test]
fn o12_rollback_complete_is_no_success() {
    for execution in ["EXECUTE_FAILED", "EXECUTE_COMPLETE"] {
        let s = Scene::quiet();
        let u = s.applying(300);
        s.execution(&u, execution);
        s.owned(&u, "UPDATE_ROLLBACK_COMPLETE", Some("2.3.0"), 298);
        s.poll();
        assert_eq!(s.stored(&u).status, State::RolledBack, "{execution}");
    }
}

#[test]
fn o13_a_failed_update_is_seen_and_the_version_is_the_old_one() {
    let s = Scene::quiet();
    let u = s.applying(300);
    s.run(&u, 298);
    s.w.cloud
        .borrow_mut()
        .fail_run(plus_seconds(start(), -100), "Api", "image not found");
    s.w.cloud.borrow_mut().finish_rollback(plus_seconds(start(), -20));
    let v = s.version();
    assert_eq!(v.text("/status/state"), "rolled_back");
    assert_eq!(v.text("/status/reason/text"), "image not found");
    assert_eq!(v.text("/current/release"), "2.3.0");
    assert_eq!(v.text("/update/to_release"), "2.4.0");
    assert_eq!(v.text("/update/from_release"), "2.3.0");
    assert_eq!(v.blockers(), Vec::<&str>::new(), "and it may be tried again");
}

#[test]
fn o14_the_second_wording_of_no_changes() {
    let s = Scene::quiet();
    let u = s.row(2, "2.4.0", State::Preparing, 40, ("FAILED", "UNAVAILABLE"));
    s.point(Some(&u));
    s.set(&u, |x| {
        x.set.reason = Some("No updates are to be performed.".into())
    });
    s.poll();
    assert_eq!(
        (s.stored(&u).status, code_of(&s.stored(&u))),
        (State::Discarded, "no_changes")
    );
}

#[test]
fn o15_a_write_that_was_done_and_sent_again_is_a_success() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    s.checked();
    s.w.fault("save", vec![Instead::Twice]);
    let a = s.apply(&u);
    assert_eq!(a.code, 202, "{a:?}");
    assert_eq!(s.stored(&u).status, State::Applying);
    assert_eq!(s.stored(&u).rev, 2, "written once");
    assert_eq!(s.w.count("act execute"), 1, "no second apply");
    // And so for a poll's single write.
    let s = Scene::quiet();
    let u = s.row(2, "2.4.0", State::Preparing, 40, ("CREATE_COMPLETE", "AVAILABLE"));
    s.point(Some(&u));
    s.w.fault("save", vec![Instead::Twice]);
    assert_eq!(s.poll(), json!({"state": "prepared", "wrote": true}));
    assert_eq!(s.stored(&u).rev, 2);
}

/// The same loss of a condition against somebody else's write is a loss.
#[test]
fn o15_somebody_elses_write_id_is_a_loss() {
    let s = Scene::quiet();
    let u = s.row(2, "2.4.0", State::Preparing, 40, ("CREATE_COMPLETE", "AVAILABLE"));
    s.point(Some(&u));
    let mut other = u.clone();
    other.rev = 2;
    other.last_write_id = Some("somebody".into());
    s.w.meanwhile("save", move |w| w.seed(&other));
    assert_eq!(s.poll_once()["wrote"], false);
    assert_eq!(s.stored(&u).last_write_id.as_deref(), Some("somebody"));
}
