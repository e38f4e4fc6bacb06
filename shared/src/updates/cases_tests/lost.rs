//! Two at once (spec/updates.md 3.3) and lost answers (3.4), each line of the tables.

use super::*;

#[test]
fn two_pollers_see_prepared_and_one_wins() {
    let s = Scene::quiet();
    let u = s.row(2, "2.4.0", State::Preparing, 40, ("CREATE_COMPLETE", "AVAILABLE"));
    s.point(Some(&u));
    s.w.meanwhile("save", |w| {
        let event =
            json!({"source": "aws.cloudformation", "detail-type": "CloudFormation Stack Status Change"});
        let inv = Invocation {
            now: start(),
            request_id: "other".into(),
            seed: Uuid::from_u128(5),
        };
        let first = now_or_never(api::handle(w, &cfg(), &inv, &event)).unwrap();
        assert_eq!(first, json!({"state": "prepared", "wrote": true}));
    });
    // "event handler and schedule at once: same as two pollers".
    assert_eq!(
        s.poll_once(),
        json!({"state": "prepared", "wrote": false}),
        "the loser shows the winner's row"
    );
    assert_eq!(s.stored(&u).rev, 2);
    s.writes_nothing(|s| s.version());
}

#[test]
fn a_user_applies_twice() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    s.checked();
    let id = u.id.clone();
    s.w.meanwhile("save", move |w| {
        let call = Call {
            pk: PK,
            stack: STACK,
            role_arn: None,
            now: start(),
            request_id: "other-tab",
            actor: "bob@example.org",
            seed: Uuid::from_u128(6),
        };
        now_or_never(run::apply(w, &call, &id)).unwrap();
    });
    let a = s.apply(&u);
    assert_eq!(a.refusal(), (409, "update_applying"));
    a.detail_names(&["bob@example.org"]);
    assert_eq!(s.w.count("act execute"), 1);
    assert_eq!(s.stored(&u).applied_by.as_deref(), Some("bob@example.org"));
    // And one after the other.
    assert_eq!(s.apply(&u).refusal(), (409, "update_applying"));
    assert_eq!(s.w.count("act execute"), 1);
}

#[test]
fn two_users_begin() {
    for release in ["2.4.0", "2.5.0"] {
        let s = Scene::quiet();
        s.w.meanwhile("save", move |w| {
            let call = Call {
                pk: PK,
                stack: STACK,
                role_arn: None,
                now: start(),
                request_id: "b",
                actor: "bob@example.org",
                seed: Uuid::from_u128(0x0195_0000_0000_7000_8000_0000_0000_0000),
            };
            now_or_never(run::begin(w, &call, release)).unwrap();
        });
        let a = s.begin("2.4.0");
        assert_eq!(a.refusal(), (409, "update_preparing"));
        a.detail_names(&["bob@example.org", release]);
        assert_eq!(s.w.count("act create"), 1);
        assert!(s.w.row(2).is_none());
        assert_eq!(s.made(1).started_by, "bob@example.org");
    }
}

#[test]
fn a_user_applies_the_older_one_while_begin_replaces_it() {
    // TX-3 first: the OK for U1, whose look was before U2's set was made, is written after that and before U2 is
    // published.
    let s = Scene::quiet();
    let u1 = s.prepared(1, "2.3.5");
    s.point(Some(&u1));
    let mut ok = u1.clone();
    ok.rev += 1;
    ok.status = State::Applying;
    ok.applied_by = Some("bob@example.org".into());
    ok.applied_at = Some(start());
    ok.apply_token = Some(format!("apply-{}-1", u1.id));
    s.w.meanwhile("act create", move |w| {
        w.meanwhile("save", move |w| {
            w.seed(&ok);
            let (arn, token) = (set_arn(&ok.change_set_name), ok.apply_token.clone().unwrap());
            w.cloud.borrow_mut().start_run(&arn, &token, start()).unwrap();
        });
    });
    s.begin("2.4.0");
    let old = s.stored(&u1);
    assert_eq!(old.status, State::Applying);
    assert_eq!(old.applied_by.as_deref(), Some("bob@example.org"));
    // A delete on what begin had seen is refused by CloudFormation; nothing is lost by asking.
    assert!(!s.w.cloud.borrow().sets[0].deleted);
    s.at(130).version();
    assert_eq!(s.stored(&u1).status, State::Applying);
    assert_eq!(s.made(2).status, State::Expired);
    assert_eq!(s.w.head().pending.as_deref(), Some(u1.id.as_str()));
}

#[test]
fn begin_deletes_the_older_one_between_the_ok_and_its_execute() {
    // Delete first: TX-3 is written, then U1's set is deleted by a begin that still saw it prepared.
    let s = Scene::quiet();
    let u1 = s.prepared(1, "2.3.5");
    s.point(Some(&u1));
    s.w.seed_check("2.3.5", "passed", None);
    let (u1_arn, u2) = (
        set_arn(&u1.change_set_name),
        fake::update(2, "2.4.0", State::Preparing, 5, start()),
    );
    let new = u2.clone();
    s.w.meanwhile("act execute", move |w| {
        let mut c = w.cloud.borrow_mut();
        c.put_set(
            &new.change_set_name,
            "2.4.0",
            "CREATE_COMPLETE",
            "AVAILABLE",
            start(),
        );
        c.console_delete(&u1_arn);
        drop(c);
        w.seed(&new);
        let mut head = w.head();
        head.pending = Some(new.id.clone());
        head.rev += 1;
        w.seed_head(&head);
    });
    let a = s.apply(&u1);
    assert_eq!(a.refusal(), (409, "not_pending"));
    assert_eq!(a.text("/superseded_by"), u2.id);
    let old = s.stored(&u1);
    assert_eq!(old.status, State::Superseded);
    assert_eq!(old.superseded_by.as_deref(), Some(u2.id.as_str()));
    let v = s.version();
    assert_eq!(v.text("/update/id"), u2.id);
    assert_eq!(v.text("/update/state"), "prepared");
}

#[test]
fn a_pointer_written_by_an_old_version_without_rev() {
    let s = Scene::quiet();
    s.prepared(1, "2.3.5");
    let u2 = s.prepared(2, "2.4.0");
    let u1 = s.made(1);
    let key = crate::updates::store::head_key(PK);
    let mut item = s.w.table.borrow().get(&key).unwrap();
    item.remove("rev");
    item.insert("pending".into(), crate::store::Attr::s(&u1.id));
    s.w.table.borrow_mut().seed(item);
    // A row without rev as well.
    let row_key = crate::updates::store::update_key(PK, 1);
    let mut row = s.w.table.borrow().get(&row_key).unwrap();
    row.remove("rev");
    s.w.table.borrow_mut().seed(row);
    s.version();
    assert_eq!(s.w.head().pending.as_deref(), Some(u2.id.as_str()));
    assert_eq!(s.stored(&u1).status, State::Superseded);
    assert_eq!(s.stored(&u1).rev, 1, "a row without rev counts as 0");
    assert!(s.w.head().rev >= 1);
}

#[test]
fn create_answers_already_exists_and_the_set_is_ours() {
    let s = Scene::quiet();
    // The SDK's own second try meets the set that the first one made.
    s.w.meanwhile("act create", |w| {
        let row = w.row(1).unwrap();
        w.cloud.borrow_mut().put_set(
            &row.change_set_name,
            "2.4.0",
            "CREATE_PENDING",
            "UNAVAILABLE",
            start(),
        );
    });
    let a = s.begin("2.4.0");
    assert_eq!(a.code, 201, "{a:?}");
    let u = s.made(1);
    assert_eq!(u.change_set_id, Some(set_arn(&u.change_set_name)));
    assert_eq!(s.w.head().pending.as_deref(), Some(u.id.as_str()));
    assert_eq!(s.w.cloud.borrow().sets.len(), 1);
    assert_eq!(
        s.since(0, "look set-by-name"),
        [format!("look set-by-name {}", u.change_set_name)]
    );
    s.writes_nothing(|s| s.version());
}

#[test]
fn create_answers_already_exists_and_the_set_is_another() {
    let s = Scene::quiet();
    s.w.meanwhile("act create", |w| {
        let row = w.row(1).unwrap();
        let mut c = w.cloud.borrow_mut();
        let arn = c.put_set(
            &row.change_set_name,
            "2.4.0",
            "CREATE_COMPLETE",
            "AVAILABLE",
            start(),
        );
        c.set(&arn).unwrap().set.description = Some("made by hand".into());
    });
    let a = s.begin("2.4.0");
    assert_eq!(a.refusal(), (422, "change_set_refused"));
    assert_eq!(s.made(1).status, State::Failed);
    assert_eq!(code_of(&s.made(1)), "prepare_failed");
    assert_eq!(s.w.count("act delete"), 0, "what is not ours is left alone");
}

/// 1.8: throttled to the end is a 503, and its row is failed/prepare_lost.
#[test]
fn create_throttled_to_the_end() {
    let s = Scene::quiet();
    let u1 = s.prepared(1, "2.3.5");
    s.point(Some(&u1));
    s.w.fault("act create", vec![Instead::Before(throttled(CREATE))]);
    let a = s.begin("2.4.0");
    assert_eq!(a.refusal(), (503, "aws_unavailable"));
    assert!(a.headers.contains_key("retry-after"));
    let u2 = s.made(2);
    assert_eq!((u2.status.clone(), code_of(&u2)), (State::Failed, "prepare_lost"));
    assert_eq!(s.w.head().pending.as_deref(), Some(u1.id.as_str()));
    assert_eq!(s.stored(&u1), u1);
    // The next look makes sure that no set stays behind.
    s.version();
    assert_eq!(s.w.head().work.len(), 0);
    assert_eq!(s.begin("2.4.0").code, 201, "and the release can be begun at once");
}

/// 3.2 TX-2: somebody else holds the head, so our set is deleted and the row is failed/prepare_lost.
#[test]
fn a_publish_that_lost_its_reservation_cleans_up() {
    let s = Scene::quiet();
    s.w.meanwhile("act create", |w| {
        let mut head = w.head();
        head.reserving = Some("0192f000-0000-7000-8000-000000000063".into());
        head.rev += 1;
        w.seed_head(&head);
    });
    let a = s.begin("2.4.0");
    assert_eq!(a.refusal(), (409, "update_preparing"));
    let u = s.made(1);
    assert_eq!((u.status.clone(), code_of(&u)), (State::Failed, "prepare_lost"));
    assert_eq!(
        s.w.count(&format!("act delete {}", set_arn(&u.change_set_name))),
        1
    );
    assert_eq!(s.w.head().pending, None);
}

#[test]
fn execute_started_answer_lost() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    s.checked();
    s.w.fault("act execute", vec![Instead::After(timed_out(EXECUTE))]);
    let a = s.apply(&u);
    assert_eq!(a.code, 202, "{a:?}");
    assert_eq!(s.w.count("act execute"), 1);
    let v = s.at(3).version();
    assert_eq!(v.text("/update/applied_by"), "ana@example.org");
    assert_eq!(v.text("/status/progress/step"), "updating");
    s.w.cloud.borrow_mut().succeed(plus_seconds(start(), 60));
    s.at(70).version();
    let now = s.stored(&u);
    assert_eq!(now.status, State::Updated);
    assert_eq!(
        now.applied_by.as_deref(),
        Some("ana@example.org"),
        "not a console run"
    );
    assert_eq!(s.w.cloud.borrow().sets[0].runs, 1);
}

#[test]
fn execute_never_arrived() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    s.checked();
    s.w.fault("act execute", vec![Instead::Before(timed_out(EXECUTE))]);
    assert_eq!(s.apply(&u).code, 202);
    for seconds in [119, 120] {
        s.at(seconds).version();
        assert_eq!(s.stored(&u).status, State::Applying, "at {seconds} s");
    }
    let v = s.at(121).version();
    assert_eq!(s.stored(&u).status, State::Prepared);
    assert_eq!(v.text("/status/reason/code"), "execute_not_started");
    assert_eq!(s.w.count("act execute"), 1);
}

/// The run shows up after the grace: it is the run of the OK that was given.
#[test]
fn execute_that_took_after_the_grace_is_by_who_gave_the_ok() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    s.checked();
    s.w.fault("act execute", vec![Instead::Before(timed_out(EXECUTE))]);
    s.apply(&u);
    s.at(121).version();
    let token = s.stored(&u).apply_token.unwrap();
    s.w.cloud
        .borrow_mut()
        .start_run(&set_arn(&u.change_set_name), &token, plus_seconds(start(), 122))
        .unwrap();
    s.at(125).version();
    let now = s.stored(&u);
    assert_eq!(now.status, State::Applying);
    assert_eq!(now.applied_by.as_deref(), Some("ana@example.org"));
    assert_eq!(now.reason, None);
}

/// "treat that text as started": the set runs already with our token.
#[test]
fn execute_answers_that_it_is_running_already() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    s.checked();
    let (arn, token) = (set_arn(&u.change_set_name), format!("apply-{}-1", u.id));
    s.w.meanwhile("act execute", move |w| {
        w.cloud.borrow_mut().start_run(&arn, &token, start()).unwrap();
    });
    assert_eq!(s.apply(&u).code, 202);
    assert_eq!(s.stored(&u).status, State::Applying);
    assert_eq!(s.version().text("/update/applied_by"), "ana@example.org");
    assert_eq!(s.w.cloud.borrow().sets[0].runs, 1);
}

#[test]
fn delete_done_answer_lost() {
    let s = Scene::quiet();
    let u1 = s.prepared(1, "2.3.5");
    let u2 = s.prepared(2, "2.4.0");
    s.point(Some(&u2));
    s.w.fault(
        "act delete",
        vec![Instead::After(timed_out("cloudformation:DeleteChangeSet"))],
    );
    s.version();
    assert_eq!(s.stored(&u1).status, State::Superseded);
    assert_eq!(s.stored(&u1).superseded_by.as_deref(), Some(u2.id.as_str()));
    // A delete by hand, its answer lost as well.
    s.w.fault(
        "act delete",
        vec![Instead::After(timed_out("cloudformation:DeleteChangeSet"))],
    );
    assert_eq!(s.discard(&u2).code, 200);
    assert_eq!(s.stored(&u2).status, State::Discarded);
}

#[test]
fn delete_that_never_arrived_is_tried_again() {
    let s = Scene::quiet();
    let u1 = s.prepared(1, "2.3.5");
    let u2 = s.prepared(2, "2.4.0");
    s.point(Some(&u2));
    s.w.fault(
        "act delete",
        vec![Instead::Before(timed_out("cloudformation:DeleteChangeSet"))],
    );
    s.once.set(true);
    s.version();
    assert_eq!(s.stored(&u1).status, State::Prepared, "delete first, then mark");
    s.once.set(false);
    s.version();
    assert_eq!(s.stored(&u1).status, State::Superseded);
    assert_eq!(s.w.count("act delete"), 2);
    assert_eq!(s.stored(&u2).status, State::Prepared);
}

/// The clean-up of a closed row whose delete failed is tried again, three sets a call.
#[test]
fn clean_ups_are_retried_and_bounded() {
    let s = Scene::quiet();
    for seq in 1..=5 {
        let u = s.row_with(seq, "2.4.0", State::Failed, 600, ("FAILED", "UNAVAILABLE"), |u| {
            u.reason = Some(crate::status::Reason::new("prepare_failed", "x"));
            u.finished_at = Some(start());
            u.change_set_cleanup = Cleanup::Pending;
        });
        s.head(|h| {
            h.work.insert(u.id.clone());
        });
    }
    s.once.set(true);
    s.poll();
    assert_eq!(s.w.count("act delete"), 3, "at most three a call");
    assert_eq!(s.w.head().work.len(), 2);
    s.once.set(false);
    s.poll();
    assert_eq!(s.w.count("act delete"), 5);
    assert!(s.w.head().work.is_empty());
    assert!((1..=5).all(|n| s.made(n).change_set_cleanup == Cleanup::Done));
}

/// The OK was recorded but its answer was lost: nothing is started on an unknown state, and nothing stays wrong.
#[test]
fn the_ok_was_recorded_and_its_answer_lost() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    s.checked();
    s.w.fault(
        "save",
        vec![Instead::After(timed_out("dynamodb:TransactWriteItems"))],
    );
    let a = s.apply(&u);
    assert_eq!(a.refusal(), (503, "aws_unavailable"));
    assert_eq!(s.w.count("act execute"), 0);
    s.at(121).version();
    assert_eq!(s.stored(&u).status, State::Prepared);
    assert_eq!(code_of(&s.stored(&u)), "execute_not_started");
    assert_eq!(s.apply(&u).code, 202);
    assert_eq!(s.w.count("act execute"), 1);
}

#[test]
fn the_table_can_not_be_read_or_written() {
    let s = Scene::quiet();
    let u = s.row(2, "2.4.0", State::Preparing, 40, ("CREATE_COMPLETE", "AVAILABLE"));
    s.point(Some(&u));
    s.w.fault("query", vec![Instead::Before(timed_out("dynamodb:Query"))]);
    let a = s.http("GET", "/version", None);
    assert_eq!(a.refusal(), (503, "aws_unavailable"));
    s.w.fault("save", vec![Instead::Before(throttled("dynamodb:PutItem"))]);
    s.once.set(true);
    let v = s.version();
    assert_eq!(v.text("/update/state"), "preparing", "what is stored");
    assert!(v.flags("/status").contains(&"stale_read"));
    assert_eq!(s.stored(&u), u);
    s.once.set(false);
    assert_eq!(s.version().text("/update/state"), "prepared");
}

/// Out of budget: the stored state, flagged.
#[test]
fn out_of_time_shows_what_is_stored() {
    let s = Scene::quiet();
    let u = s.row(2, "2.4.0", State::Preparing, 40, ("CREATE_COMPLETE", "AVAILABLE"));
    s.point(Some(&u));
    s.w.budget.set(Some(1));
    s.once.set(true);
    let v = s.version();
    assert_eq!(v.text("/update/state"), "preparing");
    assert!(v.flags("/status").contains(&"stale_read"));
    assert_eq!(v.text("/status/source"), "stored");
    assert_eq!(s.stored(&u), u);
}

/// A begin that died before its row was written holds nobody longer than its reservation.
#[test]
fn a_reservation_without_a_row_holds_for_two_minutes() {
    let s = Scene::quiet();
    s.head(|h| {
        h.reserving = Some("0192f000-0000-7000-8000-000000000063".into());
        h.reserve_until = Some(plus_seconds(start(), 120).as_millisecond());
    });
    s.at(119);
    assert_eq!(
        s.writes_nothing(|s| s.begin("2.4.0")).refusal(),
        (409, "update_preparing")
    );
    s.at(120).version();
    assert_eq!(s.w.head().reserving, None);
    assert_eq!(s.begin("2.4.0").code, 201);
}

/// Throttled, nothing happened; whether an earlier try of the SDK got through is not known, so the poll decides.
#[test]
fn execute_throttled_to_the_end_waits_for_the_grace() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    s.checked();
    s.w.fault("act execute", vec![Instead::Before(throttled(EXECUTE))]);
    assert_eq!(s.apply(&u).code, 202);
    assert_eq!(s.stored(&u).status, State::Applying);
    s.at(121).version();
    assert_eq!(s.stored(&u).status, State::Prepared);
    assert_eq!(code_of(&s.stored(&u)), "execute_not_started");
}
