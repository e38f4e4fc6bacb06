//! What the spec decided: 1.8, items of 4.1, 4.2 and 4.4 as far as the seam shows them, and section 8.

use super::*;

// ---- 1.8 ----

#[test]
fn a_model_check_holds_apply_and_not_begin() {
    for (state, code) in [
        (None, "model_check_not_started"),
        (Some("pending"), "model_check_pending"),
        (Some("failed"), "model_check_failed"),
        (Some("stalled"), "model_check_stalled"),
        (Some("of another version"), "model_check_not_started"),
    ] {
        let s = Scene::quiet();
        if let Some(state) = state {
            s.w.seed_check("2.4.0", state, Some("image digest differs"));
        }
        assert_eq!(s.begin("2.4.0").code, 201, "begin is not held: {state:?}");
        s.w.cloud.borrow_mut().make(&s.made(1).change_set_name);
        s.version();
        let u = s.made(1);
        let a = s.writes_nothing(|s| s.apply(&u));
        let (status, told) = a.refusal();
        assert_eq!(status, 409);
        if state == Some("of another version") {
            assert!(
                told.starts_with("model_check_"),
                "an unknown word never lets it through: {told}"
            );
        } else {
            assert_eq!(told, code);
        }
        if matches!(state, Some("failed" | "stalled")) {
            a.detail_names(&["image digest differs"]);
        }
        assert_eq!(s.stored(&u).status, State::Prepared);
        assert_eq!(s.w.count("act execute"), 0);
    }
}

#[test]
fn the_passing_check_is_copied_into_the_update() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    s.checked();
    let a = s.apply(&u);
    assert_eq!(a.code, 202);
    assert_eq!(a.text("/state"), "applying");
    assert_eq!(a.text("/applied_by"), "ana@example.org");
    assert_eq!(a.text("/applied_at"), start().to_string());
    assert_eq!(a.text("/model_check/state"), "passed");
    assert_eq!(a.text("/model_check/release"), "2.4.0");
    assert_eq!(a.text("/model_check/checked_at"), "2026-11-30T10:00:00Z");
    assert_eq!(
        a.at("/model_check/pk"),
        &Value::Null,
        "no key of the table is shown"
    );
    assert_eq!(
        s.acts(),
        [format!(
            "act execute {} token=apply-{}-1",
            set_arn(&u.change_set_name),
            u.id
        )]
    );
    // Intent before act.
    let trace = s.w.trace.borrow().clone();
    let at = |w: &str| trace.iter().position(|l| l.starts_with(w)).unwrap();
    assert!(at("save UPDATE#0000000002=applying UPDATE#HEAD=check CHECK#2.4.0=check") < at("act execute"));
}

#[test]
fn a_check_taken_back_between_the_look_and_the_ok_holds_it() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    s.checked();
    s.w.meanwhile("save", |w| {
        w.seed_check("2.4.0", "failed", Some("m1 does not load"))
    });
    let a = s.apply(&u);
    assert_eq!(a.refusal(), (409, "model_check_failed"));
    assert_eq!(s.stored(&u), u);
    assert_eq!(s.w.count("act execute"), 0);
}

/// 2.4: a pass of another digest is no pass.
#[test]
fn a_pass_of_another_template_holds_apply() {
    let s = Scene::quiet();
    let u = s.row_with(
        2,
        "2.4.0",
        State::Prepared,
        600,
        ("CREATE_COMPLETE", "AVAILABLE"),
        |u| u.template_sha256 = Some("0".repeat(64)),
    );
    s.point(Some(&u));
    s.checked();
    assert_eq!(
        s.writes_nothing(|s| s.apply(&u)).refusal(),
        (409, "model_check_failed")
    );
}

#[test]
fn the_version_output_is_read_with_and_without_v_on_both_sides() {
    let s = Scene::quiet();
    s.w.cloud.borrow_mut().releases = fake::release_list(&[("v2.4.0", None), ("2.5.0", None)]);
    s.stack(|st| {
        st.outputs.insert("Version".into(), "v2.4.0".into());
    });
    assert_eq!(s.begin("2.4.0").refusal(), (409, "release_installed"));
    // Semver and not text: 2.10.0 is newer than 2.9.0.
    s.w.cloud.borrow_mut().releases = fake::release_list(&[("2.9.0", None), ("2.10.0", None)]);
    s.stack(|st| {
        st.outputs.insert("Version".into(), "2.9.0".into());
    });
    assert_eq!(s.version().text("/latest/release"), "2.10.0");
    assert_eq!(s.begin("2.10.0").code, 201);
    let s = Scene::quiet();
    s.w.cloud.borrow_mut().releases = fake::release_list(&[("2.9.0", None), ("2.10.0", None)]);
    s.stack(|st| {
        st.outputs.insert("Version".into(), "2.10.0".into());
    });
    assert_eq!(s.begin("2.9.0").refusal(), (409, "release_older"));
}

#[test]
fn the_stack_is_resolved_to_its_arn_at_the_first_read() {
    let s = Scene::quiet();
    s.w.table.borrow_mut().items.clear();
    s.version();
    assert_eq!(s.w.head().stack_arn.as_deref(), Some(STACK_ARN));
    assert_eq!(s.since(0, "look stack")[0], format!("look stack {STACK}"));
    let from = s.mark();
    s.version();
    assert!(
        s.since(from, "look stack")
            .iter()
            .all(|l| l == &format!("look stack {STACK_ARN}")),
        "from then on by its ARN"
    );
}

#[test]
fn an_idle_poll_is_one_read_of_the_table() {
    let s = Scene::quiet();
    s.row_with(1, "2.3.0", State::Updated, 6000, ("", ""), |u| {
        u.finished_at = Some(start())
    });
    let from = s.mark();
    assert_eq!(s.poll_once(), json!({"state": "updated", "wrote": false}));
    assert_eq!(s.w.trace.borrow()[from..], ["query UPDATE#"]);
}

#[test]
fn headgate_never_runs_or_rolls_back_by_itself() {
    // Every state a stack can stop in, for a prepared and an applying row: a look starts nothing.
    for status in [
        "UPDATE_FAILED",
        "UPDATE_ROLLBACK_FAILED",
        "UPDATE_ROLLBACK_COMPLETE",
        "UPDATE_COMPLETE",
    ] {
        for execution in ["AVAILABLE", "EXECUTE_FAILED", "EXECUTE_COMPLETE"] {
            for mine in [true, false] {
                let s = Scene::quiet();
                let u = s.applying(300);
                s.execution(&u, execution);
                if mine {
                    s.owned(&u, status, Some("2.3.0"), 290);
                } else {
                    s.stack(|st| st.status = status.into());
                }
                s.poll();
                s.at(1000).version();
                assert_eq!(s.w.count("act execute") + s.w.count("act create"), 0);
            }
        }
    }
}

// ---- 4.1 ----

#[test]
fn names_and_tokens_are_legal_and_carry_the_row() {
    let s = Scene::quiet();
    s.begin("2.4.0");
    let u = s.made(1);
    let name = u.change_set_name.as_str();
    assert_eq!(name, format!("upd-{}", u.id));
    assert!(name.len() <= 128 && name.starts_with(|c: char| c.is_ascii_alphabetic()));
    assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'));
    let description = s.w.cloud.borrow().sets[0].set.description.clone().unwrap();
    assert!(
        description.contains(&u.id) && description.contains("2.4.0"),
        "item 11: {description}"
    );
    assert!(description.len() <= 1024);
    let token = crate::updates::store::next_token(&u);
    assert_eq!(token, format!("apply-{}-1", u.id));
    assert!(token.len() <= 128 && token.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'));
}

/// Item 7: the text of a refusal is read only by describing again.
#[test]
fn an_execute_of_an_outdated_set_expires_it() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    s.checked();
    s.w.meanwhile("act execute", |w| w.cloud.borrow_mut().foreign_update(start()));
    let a = s.apply(&u);
    assert_eq!(a.refusal(), (409, "plan_expired"));
    assert_eq!(s.stored(&u).status, State::Expired);
    assert_eq!(s.w.cloud.borrow().sets[0].runs, 0);
}

#[test]
fn an_execute_on_a_stack_that_became_busy_gives_the_ok_back() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    s.checked();
    let text = "An operation on this ChangeSet is in progress.";
    s.w.fault(
        "act execute",
        vec![Instead::Before(failed(
            Class::Refused,
            EXECUTE,
            "InvalidChangeSetStatus",
            text,
        ))],
    );
    let a = s.apply(&u);
    assert_eq!(a.refusal(), (422, "change_set_refused"));
    a.detail_names(&[text]);
    let now = s.stored(&u);
    assert_eq!(now.status, State::Prepared, "the grace ends at once");
    assert_eq!(code_of(&now), "execute_refused");
    assert_eq!(now.applied_by, None);
    s.writes_nothing(|s| s.version());
}

#[test]
fn an_execute_without_the_right_names_the_permission() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    s.checked();
    s.w.fault("act execute", vec![Instead::Before(denied(EXECUTE))]);
    let a = s.apply(&u);
    assert_eq!(a.refusal(), (422, "change_set_refused"));
    assert_eq!(a.text("/needs_admin/code"), "grant_permission");
    assert!(a.text("/needs_admin/text").contains(EXECUTE));
    assert_eq!(s.stored(&u).status, State::Prepared);
    assert!(s.version().text("/status/needs_admin/text").contains(EXECUTE));
}

/// Item 13: the updater only makes UPDATE sets, so a stack that was never installed is refused first.
#[test]
fn nothing_is_made_for_a_stack_under_review_or_without_a_stack() {
    let s = Scene::quiet();
    s.stack(|st| st.status = "REVIEW_IN_PROGRESS".into());
    assert_eq!(
        s.writes_nothing(|s| s.begin("2.4.0")).refusal(),
        (409, "stack_not_installed")
    );
    let s = Scene::quiet();
    s.w.cloud.borrow_mut().stack = None;
    assert_eq!(
        s.writes_nothing(|s| s.begin("2.4.0")).refusal(),
        (409, "stack_not_installed")
    );
}

/// Item 14: the gate is looked at first, and CloudFormation's own refusal is handled all the same.
#[test]
fn a_stack_that_became_busy_before_the_create() {
    let s = Scene::quiet();
    s.w.meanwhile("act create", |w| {
        w.cloud.borrow_mut().stack.as_mut().unwrap().status = "UPDATE_IN_PROGRESS".into();
    });
    let a = s.begin("2.4.0");
    assert_eq!(a.refusal(), (422, "change_set_refused"));
    a.detail_names(&["UPDATE_IN_PROGRESS"]);
    assert_eq!(
        (s.made(1).status, code_of(&s.made(1))),
        (State::Failed, "prepare_failed")
    );
}

// ---- 4.2 ----

/// What CreateChangeSet was sent, as the seam shows it.
fn sent(s: &Scene, release: &str) -> CreateSet {
    use crate::store::{Key, Page, Query, Write, WriteError};
    /// Hands everything to the fake and keeps what is created.
    struct Listening<'a>(&'a FakeWorld, std::cell::RefCell<Option<CreateSet>>);
    impl run::World for Listening<'_> {
        async fn query(&self, q: &Query) -> Result<Page, CallError> {
            self.0.query(q).await
        }
        async fn get(&self, key: &Key) -> Result<Option<Item>, CallError> {
            self.0.get(key).await
        }
        async fn save(&self, writes: &[Write], token: &str) -> Result<(), WriteError> {
            self.0.save(writes, token).await
        }
        async fn look(&self, looks: &[Look]) -> Vec<Seen> {
            self.0.look(looks).await
        }
        async fn act(&self, act: &Act) -> Result<Fact, CallError> {
            if let Act::Create(c) = act {
                *self.1.borrow_mut() = Some((**c).clone());
            }
            self.0.act(act).await
        }
        fn time_left(&self) -> bool {
            self.0.time_left()
        }
    }
    let w = Listening(&s.w, std::cell::RefCell::new(None));
    let mut call = s.call("sent", "ana");
    call.role_arn = Some("arn:aws:iam::123456789012:role/cfn");
    now_or_never(run::begin(&w, &call, release)).unwrap();
    w.1.into_inner().unwrap()
}

#[test]
fn only_names_of_parameters_that_both_have_are_sent() {
    let s = Scene::quiet();
    s.w.cloud.borrow_mut().templates.insert(
        "https://releases.example/2.4.0.yaml".into(),
        TemplateSummary {
            parameters: ["DomainName".to_owned(), "NewOne".to_owned()].into(),
            capabilities: ["CAPABILITY_AUTO_EXPAND".to_owned()].into(),
        },
    );
    s.stack(|st| st.capabilities = ["CAPABILITY_IAM".to_owned()].into());
    let c = sent(&s, "2.4.0");
    // Item 15: what the new template lacks is left out, a new one is not sent, values are never in it.
    assert_eq!(c.parameters, ["DomainName".to_owned()].into());
    // Item 16: the release's own template; item 17: capabilities as needed; item 18: the stack role.
    assert_eq!(c.template_url, "https://releases.example/2.4.0.yaml");
    assert_eq!(
        c.capabilities,
        ["CAPABILITY_IAM".to_owned(), "CAPABILITY_AUTO_EXPAND".to_owned()].into()
    );
    assert_eq!(c.role_arn.as_deref(), Some("arn:aws:iam::123456789012:role/cfn"));
    assert_eq!(c.stack, STACK_ARN);
    assert_eq!(s.made(1).parameters.as_deref(), Some("previous"));
}

#[test]
fn a_template_that_can_not_be_read_leaves_the_decision_to_cloudformation() {
    let s = Scene::quiet();
    s.w.answer(
        "look template",
        vec![Seen::Template(Err(denied("cloudformation:GetTemplateSummary")))],
    );
    let c = sent(&s, "2.4.0");
    assert_eq!(
        c.parameters,
        ["DbPassword".to_owned(), "DomainName".to_owned()].into()
    );
    assert!(c.capabilities.contains("CAPABILITY_NAMED_IAM"));
}

/// Item 17: a refusal is shown as it is.
#[test]
fn insufficient_capabilities_are_shown_as_cloudformation_says_them() {
    let s = Scene::quiet();
    let text = "Requires capabilities : [CAPABILITY_AUTO_EXPAND]";
    s.w.fault(
        "act create",
        vec![Instead::Before(failed(
            Class::Refused,
            CREATE,
            "InsufficientCapabilitiesException",
            text,
        ))],
    );
    let a = s.begin("2.4.0");
    assert_eq!(a.refusal(), (422, "change_set_refused"));
    a.detail_names(&[text]);
    assert_eq!(text_of(&s.made(1)), text);
}

#[test]
fn a_create_without_the_right_names_the_permission() {
    let s = Scene::quiet();
    s.w.fault("act create", vec![Instead::Before(denied(CREATE))]);
    let a = s.begin("2.4.0");
    assert_eq!(a.refusal(), (422, "change_set_refused"));
    assert!(a.text("/needs_admin/text").contains(CREATE));
}

/// Item 20: not stuck, but watching alarms.
#[test]
fn watching_alarms_is_said() {
    let s = Scene::quiet();
    let u = s.applying(60);
    let mut row = s.stored(&u);
    row.summary = Some(Summary {
        modify: 1,
        ..Summary::default()
    });
    s.w.seed(&row);
    s.run(&u, 58);
    s.stack(|st| st.monitoring_minutes = Some(15));
    {
        let mut c = s.w.cloud.borrow_mut();
        c.resource_event(plus_seconds(start(), -40), "Api", "UPDATE_COMPLETE", None);
    }
    assert!(
        s.version()
            .text("/status/summary")
            .contains("watches the alarms for 15 minutes")
    );
}

// ---- 4.4 ----

/// Item 29.
#[test]
fn express_mode_success_is_unverified() {
    let s = Scene::quiet();
    let u = s.applying(300);
    s.run(&u, 298);
    s.w.cloud.borrow_mut().succeed(plus_seconds(start(), -20));
    s.stack(|st| st.express = true);
    s.poll();
    let now = s.stored(&u);
    assert_eq!(now.status, State::Updated);
    assert_eq!(
        now.warnings.iter().map(|w| w.code.as_str()).collect::<Vec<_>>(),
        ["ready_unverified"]
    );
}

/// Item 31: WARN mode makes a set that is fine.
#[test]
fn a_validation_warning_does_not_fail_the_set() {
    let s = Scene::quiet();
    let u = s.row(2, "2.4.0", State::Preparing, 40, ("CREATE_COMPLETE", "AVAILABLE"));
    s.point(Some(&u));
    s.set(&u, |x| {
        x.set.reason = Some("[AWS::EarlyValidation::Bucket] is not empty".into())
    });
    s.poll();
    assert_eq!(s.stored(&u).status, State::Prepared);
    assert_eq!(s.w.count("look findings"), 0);
}

// ---- section 8 ----

/// When ChangeSetId switches is not known: another one means not ours, and class RUN keeps it applying.
#[test]
fn the_moment_the_change_set_id_switches_does_not_matter() {
    for id in [None, Some("arn:before")] {
        let s = Scene::quiet();
        let u = s.applying(20);
        s.run(&u, 18);
        s.stack(|st| st.change_set_id = id.map(Into::into));
        s.poll();
        assert_eq!(s.stored(&u).status, State::Applying, "{id:?}");
        s.w.cloud.borrow_mut().succeed(plus_seconds(start(), 60));
        s.stack(|st| st.change_set_id = Some(set_arn(&u.change_set_name)));
        s.at(90).poll();
        assert_eq!(s.stored(&u).status, State::Updated);
        assert_eq!(s.stored(&u).warnings, []);
    }
}

/// An absent id is in doubt: then our token on the root event says that it is ours.
#[test]
fn an_absent_change_set_id_is_settled_by_our_token() {
    let s = Scene::quiet();
    let u = s.applying(300);
    s.run(&u, 298);
    s.w.cloud.borrow_mut().succeed(plus_seconds(start(), -20));
    s.stack(|st| st.change_set_id = None);
    s.poll();
    assert_eq!(s.stored(&u).status, State::Updated);
}

/// Our id there, but a later operation ran: the Version output is not about our update.
#[test]
fn our_change_set_id_after_a_direct_update() {
    for by in ["events", "operations"] {
        let s = Scene::quiet();
        let u = s.applying(300);
        s.run(&u, 298);
        s.w.cloud.borrow_mut().succeed(plus_seconds(start(), -200));
        if by == "events" {
            let mut c = s.w.cloud.borrow_mut();
            c.root_event(
                plus_seconds(start(), -100),
                "UPDATE_IN_PROGRESS",
                Some("User Initiated"),
                Some("x"),
            );
            c.root_event(plus_seconds(start(), -50), "UPDATE_COMPLETE", None, Some("x"));
        } else {
            let mut row = s.stored(&u);
            row.operation_id = Some("op-1".into());
            s.w.seed(&row);
            s.stack(|st| st.operations = vec!["op-2".into()]);
        }
        s.stack(|st| {
            st.outputs.insert("Version".into(), "2.3.9".into());
        });
        s.poll();
        let now = s.stored(&u);
        assert_eq!(now.status, State::Updated, "a mismatch is not ours: {by}");
        assert_eq!(
            now.warnings.iter().map(|w| w.code.as_str()).collect::<Vec<_>>(),
            ["version_unverified"]
        );
    }
}

#[test]
fn a_stopped_stack_decides_in_all_three_columns() {
    for (status, code) in [
        ("UPDATE_FAILED", "stack_paused"),
        ("UPDATE_ROLLBACK_FAILED", "rollback_failed"),
    ] {
        for execution in ["EXECUTE_IN_PROGRESS", "EXECUTE_COMPLETE", "EXECUTE_FAILED"] {
            let s = Scene::quiet();
            let u = s.applying(300);
            s.execution(&u, execution);
            s.owned(&u, status, Some("2.3.0"), 298);
            s.poll();
            assert_eq!(s.stored(&u).status, State::Failed, "{status} {execution}");
            assert_eq!(code_of(&s.stored(&u)), code);
        }
    }
}

#[test]
fn a_rollback_need_not_set_execute_failed() {
    let s = Scene::quiet();
    let u = s.applying(300);
    s.execution(&u, "EXECUTE_IN_PROGRESS");
    s.owned(&u, "UPDATE_ROLLBACK_COMPLETE", Some("2.3.0"), 298);
    s.poll();
    assert_eq!(s.stored(&u).status, State::Applying, "settling until the bound");
    s.at(300).poll();
    assert_eq!(s.stored(&u).status, State::Applying);
    s.at(301).poll();
    assert_eq!(s.stored(&u).status, State::RolledBack);
}

#[test]
fn a_cancel_by_a_user_reads_as_such() {
    for (text, cancelled) in [
        ("User Initiated cancel of the update", true),
        ("CANCELLED by request", true),
        ("The stack was asked to roll back", false),
    ] {
        let s = Scene::quiet();
        let u = s.applying(300);
        s.run(&u, 298);
        let token = u.apply_token.clone();
        {
            let mut c = s.w.cloud.borrow_mut();
            // Of a resource it means nothing.
            c.resource_event(
                plus_seconds(start(), -101),
                "Api",
                "UPDATE_FAILED",
                Some("Resource update cancelled"),
            );
            c.root_event(
                plus_seconds(start(), -100),
                "UPDATE_ROLLBACK_IN_PROGRESS",
                Some(text),
                token.as_deref(),
            );
            c.stack.as_mut().unwrap().status = "UPDATE_ROLLBACK_IN_PROGRESS".into();
            c.finish_rollback(plus_seconds(start(), -20));
        }
        s.poll();
        let now = s.stored(&u);
        assert_eq!(now.status, State::RolledBack);
        assert_eq!(
            text_of(&now).contains("cancelled by a user"),
            cancelled,
            "{now:?}"
        );
        assert!(text_of(&now).contains(text), "the text as it is: {now:?}");
    }
}

#[test]
fn rollback_events_without_our_token_do_not_end_the_search() {
    let s = Scene::quiet();
    let u = s.applying(300);
    s.run(&u, 298);
    {
        let mut c = s.w.cloud.borrow_mut();
        c.resource_event(
            plus_seconds(start(), -101),
            "Api",
            "UPDATE_FAILED",
            Some("the cause"),
        );
        c.root_event(
            plus_seconds(start(), -100),
            "UPDATE_ROLLBACK_IN_PROGRESS",
            Some("..."),
            None,
        );
        for e in c
            .events
            .get_mut(STACK_ARN)
            .unwrap()
            .iter_mut()
            .filter(|e| e.at >= plus_seconds(start(), -100))
        {
            e.operation_id = Some("op-rollback".into());
        }
        c.stack.as_mut().unwrap().status = "UPDATE_ROLLBACK_IN_PROGRESS".into();
    }
    let v = s.version();
    assert_eq!(v.text("/status/state"), "rolling_back");
    assert_eq!(v.text("/status/reason/text"), "the cause");
    s.w.cloud.borrow_mut().finish_rollback(plus_seconds(start(), -20));
    s.poll();
    assert_eq!(text_of(&s.stored(&u)), "the cause");
}

#[test]
fn an_unknown_release_check_or_stack_word_starts_nothing() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    s.checked();
    s.stack(|st| st.status = "UPDATE_PAUSED".into());
    let a = s.writes_nothing(|s| s.apply(&u));
    assert_eq!(a.refusal(), (409, "stack_busy"));
    a.detail_names(&["UPDATE_PAUSED"]);
    assert_eq!(
        s.writes_nothing(|s| s.begin("2.5.0")).refusal(),
        (409, "stack_busy")
    );
    assert_eq!(
        s.version().flag("/status", "unrecognised")["raw"],
        "UPDATE_PAUSED"
    );
}
