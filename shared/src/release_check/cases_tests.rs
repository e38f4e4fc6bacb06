//! T51-T57 and O11 of spec/updates.md, and the mapping of 2.3 in full, through the shell over the fake world.

use super::api;
use super::decide::{self, Context, judge};
use super::model::{Check, Model, Report, State};
use super::run::{self, Started, Taken};
use crate::config;
use crate::error::{CallError, Class};
use crate::status::Reason;
use crate::store::{Attr, Versioned};
use crate::time::{Timestamp, plus_seconds};
use crate::updates::api::Invocation;
use crate::updates::fake::{FakeWorld, Instead, PK, STACK, digest_of, now_or_never, update};
use crate::updates::model::{Build, BuildRead, Head, Seen, State as UpdateState};
use crate::updates::run::{Call, Refused};
use crate::updates::store::{check_key, report_key};
use serde_json::{Value, json};
use uuid::Uuid;

fn t0() -> Timestamp {
    "2026-11-30T10:00:00Z".parse().unwrap()
}

fn call(now: Timestamp) -> Call<'static> {
    Call {
        pk: PK,
        stack: STACK,
        role_arn: None,
        now,
        request_id: "req-1",
        actor: "ana",
        seed: Uuid::from_u128(7),
    }
}

fn cfg() -> config::ModelCheck {
    let vars = [
        ("TABLE_NAME", "t"),
        ("STACK_NAME", STACK),
        ("RELEASES_URI", "s3://bucket/releases.json"),
        ("RELEASE_CHECK_PROJECT", "release-check"),
        ("HEADGATE_AUTH", "local"),
    ];
    config::ModelCheck::read(&|n| vars.iter().find(|(k, _)| *k == n).map(|(_, v)| (*v).to_owned())).unwrap()
}

fn http(
    w: &FakeWorld,
    now: Timestamp,
    method: &str,
    path: &str,
    query: Value,
    body: Option<Value>,
) -> (u64, Value) {
    let event = json!({"version": "2.0", "rawPath": path, "queryStringParameters": query,
        "requestContext": {"stage": "$default", "requestId": "r", "http": {"method": method}},
        "body": body.map(|b| b.to_string())});
    let inv = Invocation {
        now,
        request_id: "r".into(),
        seed: Uuid::from_u128(9),
    };
    let answer = now_or_never(api::handle(w, &cfg(), &inv, &event)).unwrap();
    let body = answer["body"].as_str().unwrap();
    (
        answer["statusCode"].as_u64().unwrap(),
        serde_json::from_str(body).unwrap_or(Value::Null),
    )
}

fn stored(w: &FakeWorld) -> Check {
    let item = w.table.borrow().get(&check_key(PK, "2.4.0")).unwrap();
    Versioned::<Check>::read(item).unwrap().row
}

/// A world with a check of 2.4.0 started at `t0`, its build running.
fn started() -> (FakeWorld, String) {
    let w = FakeWorld::new(t0());
    let got = now_or_never(run::start_verify(&w, &call(t0()), "2.4.0")).unwrap();
    assert!(matches!(got, Started::New(_)));
    let id = stored(&w).build_id.unwrap();
    (w, id)
}

fn phase(w: &FakeWorld, id: &str, phase: &str) {
    let mut cloud = w.cloud.borrow_mut();
    cloud
        .builds
        .iter_mut()
        .find(|b| b.build.id == id)
        .unwrap()
        .build
        .phase = phase.into();
}

fn report(attempt: u64, verdict: &str, digest: &str, reason: Option<&str>) -> Report {
    let detail = json!({"release": "2.4.0", "attempt": attempt, "verdict": verdict, "template_sha256": digest,
        "reason": reason, "models": [{"id": "m1", "ok": true}]});
    Report::parse(&detail, t0()).unwrap()
}

fn view(w: &FakeWorld, now: Timestamp) -> run::Known {
    now_or_never(run::view(w, &call(now), "2.4.0")).unwrap()
}

fn take(w: &FakeWorld, now: Timestamp, r: &Report) -> Taken {
    now_or_never(run::take_report(w, &call(now), r)).unwrap()
}

#[test]
fn no_record_is_not_started_and_a_read_never_starts_a_build() {
    let w = FakeWorld::new(t0());
    let (status, body) = http(&w, t0(), "GET", "/model-check", json!({"release": "2.4.0"}), None);
    assert_eq!((status, body["state"].as_str()), (200, Some("not_started")));
    assert!(w.cloud.borrow().builds.is_empty() && w.count("save") == 0 && w.count("act") == 0);
}

#[test]
fn t51_pending_carries_its_progress() {
    let (w, id) = started();
    phase(&w, &id, "BUILD");
    let now = plus_seconds(t0(), 12 * 60);
    let (_, v) = http(&w, now, "GET", "/model-check", json!({"release": "v2.4.0"}), None);
    assert_eq!(v["state"], "pending");
    assert_eq!(v["status"]["progress"]["step"], "BUILD");
    assert_eq!(v["build_status"], "IN_PROGRESS");
    assert_eq!(v["started_at"], "2026-11-30T10:00:00Z");
    assert_eq!(v["status"]["stale_after"], "2026-11-30T10:30:00Z");
    assert_eq!(v["status"]["source"], "codebuild");
    // Fixpoint: nothing new, nothing written.
    let before = w.count("save");
    view(&w, now);
    assert_eq!(w.count("save"), before);
}

#[test]
fn t52_a_verified_release_is_never_still_checking() {
    let (w, id) = started();
    w.cloud.borrow_mut().end_build(&id, "SUCCEEDED", None);
    // The report record is there, but nobody has judged it yet.
    let r = report(1, "passed", &digest_of("2.4.0"), None);
    let key = report_key(PK, "2.4.0");
    let mut item = Versioned::fresh(r.clone()).item_for(&r);
    item.insert("pk".into(), Attr::s(key.pk));
    item.insert("sk".into(), Attr::s(key.sk));
    w.table.borrow_mut().seed(item);
    let k = view(&w, plus_seconds(t0(), 300));
    assert_eq!((k.judgement.state, stored(&w).state), ("passed", State::Passed));
    assert_eq!(stored(&w).template_sha256, Some(digest_of("2.4.0")));
}

#[test]
fn t53_o11_ended_without_a_report_is_stalled_and_restarts_at_once() {
    for status in ["SUCCEEDED", "FAILED", "FAULT", "TIMED_OUT", "STOPPED"] {
        let (w, id) = started();
        w.cloud.borrow_mut().end_build(&id, status, None);
        let now = plus_seconds(t0(), 300);
        let k = view(&w, now);
        assert_eq!(k.judgement.state, "stalled");
        let reason = stored(&w).reason.unwrap();
        assert_eq!(reason.code, "build_ended");
        assert_eq!(
            reason.text,
            format!("the release check build ended ({status}) without reporting")
        );
        let again = now_or_never(run::start_verify(&w, &call(now), "2.4.0")).unwrap();
        assert!(matches!(again, Started::New(_)), "no 30-minute wait");
        assert_eq!((stored(&w).attempt, stored(&w).state), (2, State::Pending));
        assert_eq!(w.cloud.borrow().builds.len(), 2);
        assert_eq!(w.count("act stop-build"), 0, "an ended build is not stopped");
    }
}

#[test]
fn t54_exactly_thirty_minutes_is_still_pending() {
    for (age, state) in [
        (29 * 60 + 59, "pending"),
        (30 * 60, "pending"),
        (30 * 60 + 1, "stalled"),
    ] {
        let (w, id) = started();
        phase(&w, &id, "QUEUED");
        let k = view(&w, plus_seconds(t0(), age));
        assert_eq!(k.judgement.state, state, "{age}");
        if state == "stalled" {
            let r = stored(&w).reason.unwrap();
            assert_eq!(r.code, "older_than_30_minutes");
            assert!(
                r.text.contains("QUEUED") && r.text.contains("IN_PROGRESS"),
                "{}",
                r.text
            );
        }
    }
}

#[test]
fn past_thirty_minutes_the_old_build_is_stopped_before_the_new_one_starts() {
    let (w, id) = started();
    let now = plus_seconds(t0(), 31 * 60);
    now_or_never(run::start_verify(&w, &call(now), "2.4.0")).unwrap();
    let trace = w.trace.borrow();
    let stop = trace
        .iter()
        .position(|l| *l == format!("act stop-build {id}"))
        .unwrap();
    let start = trace
        .iter()
        .rposition(|l| l.starts_with("act start-build"))
        .unwrap();
    assert!(stop < start);
}

#[test]
fn t55_a_failed_release_check_holds_the_update_with_its_reason() {
    let (w, id) = started();
    w.cloud.borrow_mut().end_build(&id, "FAILED", None);
    let taken = take(
        &w,
        plus_seconds(t0(), 60),
        &report(1, "failed", &digest_of("2.4.0"), Some("image digest differs")),
    );
    assert_eq!(taken, Taken::Stored("stalled"));
    let c = stored(&w);
    assert_eq!(
        (c.state, c.reason.unwrap().text.as_str()),
        (State::Stalled, "image digest differs")
    );
    let u = update(1, "2.4.0", UpdateState::Prepared, 60, t0());
    w.seed(&u);
    w.seed_head(&Head {
        pending: Some(u.id.clone()),
        next_seq: 2,
        rev: 1,
        ..Head::default()
    });
    w.cloud
        .borrow_mut()
        .put_set(&u.change_set_name, "2.4.0", "CREATE_COMPLETE", "AVAILABLE", t0());
    let refused = now_or_never(crate::updates::run::apply(
        &w,
        &call(plus_seconds(t0(), 90)),
        &u.id,
    ))
    .unwrap_err();
    let Refused::Conflict { blocker, .. } = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(blocker.code, "model_check_stalled");
    assert!(blocker.text.contains("image digest differs"), "{}", blocker.text);
    assert_eq!(w.count("act execute"), 0);
}

#[test]
fn t56_the_passing_check_is_stored_with_the_update() {
    let (w, _) = started();
    take(
        &w,
        plus_seconds(t0(), 60),
        &report(1, "passed", &digest_of("2.4.0"), None),
    );
    let u = update(1, "2.4.0", UpdateState::Prepared, 60, t0());
    w.seed(&u);
    w.seed_head(&Head {
        pending: Some(u.id.clone()),
        next_seq: 2,
        rev: 1,
        ..Head::default()
    });
    w.cloud
        .borrow_mut()
        .put_set(&u.change_set_name, "2.4.0", "CREATE_COMPLETE", "AVAILABLE", t0());
    now_or_never(crate::updates::run::apply(
        &w,
        &call(plus_seconds(t0(), 90)),
        &u.id,
    ))
    .unwrap();
    let row = w.row(1).unwrap();
    assert_eq!(
        (row.status, row.applied_by.as_deref()),
        (UpdateState::Applying, Some("ana"))
    );
    let check = row.model_check.unwrap();
    assert_eq!(
        (check["state"].as_str(), check["release"].as_str()),
        (Some("passed"), Some("2.4.0"))
    );
    assert_eq!(check["checked_at"], "2026-11-30T10:01:00Z");
    assert_eq!(w.count("act execute"), 1);
    assert!(
        w.trace
            .borrow()
            .iter()
            .any(|l| l.ends_with(&format!("token=apply-{}-1", u.id)))
    );
}

#[test]
fn every_verdict_but_a_pass_refuses_apply_with_its_own_code() {
    let cases = [
        (None, "model_check_not_started"),
        (Some("pending"), "model_check_pending"),
        (Some("failed"), "model_check_failed"),
        (Some("stalled"), "model_check_stalled"),
        (Some("a-newer-word"), "model_check_not_started"),
    ];
    for (state, code) in cases {
        let w = FakeWorld::new(t0());
        if let Some(state) = state {
            w.seed_check("2.4.0", state, Some("why"));
        }
        let u = update(1, "2.4.0", UpdateState::Prepared, 60, t0());
        w.seed(&u);
        w.seed_head(&Head {
            pending: Some(u.id.clone()),
            next_seq: 2,
            rev: 1,
            ..Head::default()
        });
        w.cloud
            .borrow_mut()
            .put_set(&u.change_set_name, "2.4.0", "CREATE_COMPLETE", "AVAILABLE", t0());
        let refused = now_or_never(crate::updates::run::apply(&w, &call(t0()), &u.id)).unwrap_err();
        let Refused::Conflict { blocker, .. } = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(blocker.code, code);
        assert_eq!(w.count("act execute"), 0);
    }
}

#[test]
fn t57_a_stalled_check_is_a_warning_in_setup_and_the_only_blocker_in_the_preflight() {
    let (w, id) = started();
    w.cloud.borrow_mut().end_build(&id, "STOPPED", None);
    let now = plus_seconds(t0(), 300);
    view(&w, now);
    w.cloud.borrow_mut().releases = crate::updates::fake::release_list(&[("2.3.0", None), ("2.4.0", None)]);
    let (status, setup) = http(&w, now, "GET", "/setup-checks", json!(null), None);
    assert_eq!(status, 200);
    let checks = setup["checks"].as_array().unwrap();
    let ids: Vec<&str> = checks.iter().map(|c| c["id"].as_str().unwrap()).collect();
    assert_eq!(
        ids,
        [
            "stack",
            "permissions",
            "releases",
            "release_check_project",
            "model_check"
        ]
    );
    let loud: Vec<&Value> = checks.iter().filter(|c| c["level"] != "ok").collect();
    assert_eq!(loud.len(), 1, "{loud:?}");
    assert_eq!(
        (loud[0]["id"].as_str(), loud[0]["level"].as_str()),
        (Some("model_check"), Some("warning"))
    );
    assert!(loud[0]["reason"]["text"].as_str().unwrap().contains("STOPPED"));
    let (_, p) = http(&w, now, "GET", "/preflight", json!({"release": "2.4.0"}), None);
    let codes: Vec<&str> = p["blockers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|b| b["code"].as_str().unwrap())
        .collect();
    assert_eq!(
        (p["ready"].as_bool(), codes),
        (Some(false), vec!["model_check_stalled"])
    );
    assert_eq!(p["warnings"], json!([]));
    assert!(p["blockers"][0]["text"].as_str().unwrap().contains("STOPPED"));
}

#[test]
fn the_preflight_is_ready_when_nothing_holds_the_release_and_names_all_that_does() {
    let (w, _) = started();
    take(&w, t0(), &report(1, "passed", &digest_of("2.4.0"), None));
    let (_, p) = http(&w, t0(), "GET", "/preflight", json!({"release": "2.4.0"}), None);
    assert_eq!(
        (p["ready"].as_bool(), p["blockers"].clone()),
        (Some(true), json!([]))
    );
    w.cloud.borrow_mut().stack.as_mut().unwrap().status = "UPDATE_ROLLBACK_FAILED".into();
    let (_, p) = http(&w, t0(), "GET", "/preflight", json!({"release": "2.3.0"}), None);
    let codes: Vec<&str> = p["blockers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|b| b["code"].as_str().unwrap())
        .collect();
    assert_eq!(
        codes,
        [
            "stack_rollback_failed",
            "release_installed",
            "model_check_not_started"
        ]
    );
    let (status, p) = http(&w, t0(), "GET", "/preflight", json!({"release": "9.9.9"}), None);
    assert_eq!((status, p["code"].as_str()), (404, Some("release_unknown")));
}

#[test]
fn start_answers_202_then_409_with_progress_then_200() {
    let w = FakeWorld::new(t0());
    let body = || Some(json!({"release": "2.4.0"}));
    let (status, v) = http(&w, t0(), "POST", "/model-check", json!(null), body());
    assert_eq!(
        (status, v["state"].as_str(), v["attempt"].as_u64()),
        (202, Some("pending"), Some(1))
    );
    let (status, v) = http(&w, t0(), "POST", "/model-check", json!(null), body());
    assert_eq!((status, v["code"].as_str()), (409, Some("check_running")));
    assert!(v["progress"]["step"].is_string());
    take(&w, t0(), &report(1, "passed", &digest_of("2.4.0"), None));
    let (status, v) = http(&w, t0(), "POST", "/model-check", json!(null), body());
    assert_eq!((status, v["state"].as_str()), (200, Some("passed")));
    let (status, v) = http(
        &w,
        t0(),
        "POST",
        "/model-check",
        json!(null),
        Some(json!({"release": "7.0.0"})),
    );
    assert_eq!((status, v["code"].as_str()), (404, Some("release_unknown")));
    for bad in [json!({}), json!({"release": 1}), json!({"release": "newest"})] {
        let (status, v) = http(&w, t0(), "POST", "/model-check", json!(null), Some(bad));
        assert_eq!((status, v["errors"][0]["field"].as_str()), (400, Some("release")));
    }
}

#[test]
fn a_check_that_can_not_be_started_is_stalled_with_the_words_of_aws() {
    let cases = [
        (Class::Denied, "AccessDeniedException", Some("grant_permission")),
        (
            Class::Refused,
            "ResourceNotFoundException",
            Some("restore_check_project"),
        ),
        (Class::Throttled, "ThrottlingException", None),
    ];
    for (class, code, admin) in cases {
        let w = FakeWorld::new(t0());
        let e = CallError::new(class, "codebuild:StartBuild", code, "no, said AWS");
        w.fault("start-build", vec![Instead::Before(e)]);
        let (status, v) = http(
            &w,
            t0(),
            "POST",
            "/model-check",
            json!(null),
            Some(json!({"release": "2.4.0"})),
        );
        assert_eq!((status, v["state"].as_str()), (202, Some("stalled")));
        assert_eq!(v["status"]["reason"]["code"], "start_failed");
        assert!(
            v["status"]["reason"]["text"]
                .as_str()
                .unwrap()
                .contains("no, said AWS")
        );
        assert_eq!(v["status"]["needs_admin"]["code"].as_str(), admin);
        assert_eq!(stored(&w).state, State::Stalled);
    }
}

#[test]
fn a_start_whose_answer_is_lost_finds_its_build_by_the_attempt() {
    let w = FakeWorld::new(t0());
    let lost = CallError::new(Class::TimedOut, "codebuild:StartBuild", "Timeout", "no answer");
    w.fault("start-build", vec![Instead::After(lost.clone())]);
    now_or_never(run::start_verify(&w, &call(t0()), "2.4.0")).unwrap();
    assert_eq!(stored(&w).build_id, None);
    assert_eq!(view(&w, plus_seconds(t0(), 10)).judgement.state, "pending");
    assert_eq!(stored(&w).build_id.as_deref(), Some("release-check:2.4.0-1"));
    // And one that never arrived is not pending for ever.
    let w = FakeWorld::new(t0());
    w.fault("start-build", vec![Instead::Before(lost)]);
    now_or_never(run::start_verify(&w, &call(t0()), "2.4.0")).unwrap();
    assert_eq!(view(&w, plus_seconds(t0(), 120)).judgement.state, "pending");
    assert_eq!(view(&w, plus_seconds(t0(), 121)).judgement.state, "stalled");
    assert_eq!(stored(&w).reason.unwrap().code, "start_lost");
}

#[test]
fn reports_count_by_attempt_and_digest() {
    let good = digest_of("2.4.0");
    // A failure of an old attempt does not count, a pass for the same digest does.
    for (verdict, digest, outcome, state) in [
        ("failed", good.as_str(), Taken::Ignored, State::Pending),
        ("passed", good.as_str(), Taken::Stored("passed"), State::Passed),
        ("passed", &"0".repeat(64), Taken::Ignored, State::Pending),
    ] {
        let (w, id) = started();
        w.cloud.borrow_mut().end_build(&id, "FAILED", None);
        now_or_never(run::start_verify(&w, &call(plus_seconds(t0(), 60)), "2.4.0")).unwrap();
        assert_eq!(
            take(&w, plus_seconds(t0(), 61), &report(1, verdict, digest, None)),
            outcome
        );
        assert_eq!(stored(&w).state, state, "{verdict} {digest}");
    }
    // An attempt nobody started, and a release nobody checked, are ignored.
    let (w, _) = started();
    assert_eq!(take(&w, t0(), &report(2, "passed", &good, None)), Taken::Ignored);
    assert_eq!(
        take(&FakeWorld::new(t0()), t0(), &report(1, "passed", &good, None)),
        Taken::Ignored
    );
    // The same report twice writes once.
    let r = report(1, "passed", &good, None);
    assert_eq!(take(&w, t0(), &r), Taken::Stored("passed"));
    let saves = w.count("save");
    assert_eq!(take(&w, t0(), &r), Taken::Known);
    assert_eq!(w.count("save"), saves);
    // A verdict stands: a later failure of the same attempt does not take it back.
    assert_eq!(
        take(&w, t0(), &report(1, "failed", &good, Some("late"))),
        Taken::Known
    );
    assert_eq!(stored(&w).state, State::Passed);
}

#[test]
fn a_pass_of_another_template_or_without_a_model_is_failed_and_named() {
    let (w, _) = started();
    take(&w, t0(), &report(1, "passed", &"a".repeat(64), None));
    let c = stored(&w);
    assert_eq!(
        (c.state, c.reason.clone().unwrap().code.as_str()),
        (State::Failed, "digest_differs")
    );
    assert!(c.reason.unwrap().text.contains(&"a".repeat(64)));
    let (w, _) = started();
    w.cloud.borrow_mut().models = vec!["m1".into(), "m2".into()];
    take(&w, t0(), &report(1, "passed", &digest_of("2.4.0"), None));
    let c = stored(&w);
    assert_eq!(
        (c.state, c.reason.clone().unwrap().code.as_str()),
        (State::Failed, "models_not_ok")
    );
    assert!(c.reason.unwrap().text.contains("m2 is not in the report"));
    // After failed a new attempt starts at once.
    let again = now_or_never(run::start_verify(&w, &call(plus_seconds(t0(), 1)), "2.4.0")).unwrap();
    assert!(matches!(again, Started::New(_)));
}

#[test]
fn a_template_published_anew_makes_the_old_pass_void() {
    let (w, _) = started();
    take(&w, t0(), &report(1, "passed", &digest_of("2.4.0"), None));
    let list = String::from_utf8(w.cloud.borrow().releases.clone()).unwrap();
    w.cloud.borrow_mut().releases = list.replace(&digest_of("2.4.0"), &"b".repeat(64)).into_bytes();
    let k = view(&w, t0());
    assert_eq!(
        (k.judgement.state, k.judgement.flags[0].code.as_str()),
        ("not_started", "template_changed")
    );
}

#[test]
fn trouble_of_codebuild_is_honest_and_200() {
    for class in [
        Class::Throttled,
        Class::Denied,
        Class::TimedOut,
        Class::Unavailable,
    ] {
        let (w, _) = started();
        let e = CallError::new(class, "codebuild:BatchGetBuilds", "X", "y");
        w.answer("look build", vec![Seen::Build(BuildRead::Failed(e))]);
        let (status, v) = http(
            &w,
            plus_seconds(t0(), 60),
            "GET",
            "/model-check",
            json!({"release": "2.4.0"}),
            None,
        );
        assert_eq!((status, v["state"].as_str()), (200, Some("pending")));
        let want = if class == Class::Denied {
            "needs_permission"
        } else {
            "stale_read"
        };
        assert_eq!(v["status"]["flags"][0]["code"], want);
        assert_eq!(v["status"]["source"], "stored");
    }
    // The bound counts all the same.
    let (w, _) = started();
    let e = CallError::new(Class::Throttled, "codebuild:BatchGetBuilds", "X", "y");
    w.answer("look build", vec![Seen::Build(BuildRead::Failed(e))]);
    assert_eq!(view(&w, plus_seconds(t0(), 1801)).judgement.state, "stalled");
    // A build CodeBuild has forgotten is stalled, not pending.
    let (w, _) = started();
    w.cloud.borrow_mut().builds.clear();
    assert_eq!(view(&w, plus_seconds(t0(), 5)).judgement.state, "stalled");
    assert_eq!(stored(&w).reason.unwrap().code, "build_not_found");
}

#[test]
fn two_who_start_at_once_make_one_build() {
    let w = FakeWorld::new(t0());
    // The other one's attempt is stored between our read and our write: seed it by a conflicting record.
    now_or_never(run::start_verify(&w, &call(t0()), "2.4.0")).unwrap();
    let other = Call {
        request_id: "req-2",
        seed: Uuid::from_u128(8),
        ..call(t0())
    };
    let second = now_or_never(run::start_verify(&w, &other, "2.4.0")).unwrap();
    assert!(matches!(second, Started::Running(_)));
    assert_eq!(w.cloud.borrow().builds.len(), 1);
}

#[test]
fn events_are_hints_and_a_bad_report_lists_its_faults() {
    let (w, id) = started();
    w.cloud.borrow_mut().end_build(&id, "FAULT", None);
    let inv = Invocation {
        now: plus_seconds(t0(), 60),
        request_id: "r".into(),
        seed: Uuid::from_u128(9),
    };
    let vars = json!([{"name": "HEADGATE_RELEASE", "value": "2.4.0"}]);
    let event = json!({"source": "aws.codebuild", "detail-type": "CodeBuild Build State Change",
        "detail": {"build-status": "SUCCEEDED", "additional-information": {"environment": {"environment-variables": vars}}}});
    let a = now_or_never(api::handle(&w, &cfg(), &inv, &event)).unwrap();
    // The event says SUCCEEDED; CodeBuild itself says FAULT, and that counts.
    assert_eq!(a, json!({"state": "stalled", "wrote": true}));
    let bad = json!({"source": "headgate.release-check", "detail-type": "Release Check Reported",
        "detail": {"release": "2.4.0", "attempt": 0, "verdict": "maybe"}});
    let e = now_or_never(api::handle(&w, &cfg(), &inv, &bad)).unwrap_err();
    assert_eq!(e.error_type, "ModelCheck.BadReport");
    assert!(e.message.contains("attempt") && e.message.contains("verdict"));
    let unknown = json!({"source": "aws.ec2", "detail-type": "x"});
    assert_eq!(
        now_or_never(api::handle(&w, &cfg(), &inv, &unknown))
            .unwrap_err()
            .error_type,
        "Headgate.UnknownEvent"
    );
}

/// Every CodeBuild status x phase x report x age x stored state, against 2.3 written out by hand.
#[test]
fn the_mapping_of_2_3_in_full() {
    let statuses = [
        "SUCCEEDED",
        "FAILED",
        "FAULT",
        "TIMED_OUT",
        "STOPPED",
        "IN_PROGRESS",
        "A_NEW_WORD",
    ];
    let phases = [
        "SUBMITTED",
        "QUEUED",
        "PROVISIONING",
        "DOWNLOAD_SOURCE",
        "INSTALL",
        "PRE_BUILD",
        "BUILD",
        "POST_BUILD",
        "UPLOAD_ARTIFACTS",
        "FINALIZING",
        "COMPLETED",
        "A_NEW_PHASE",
    ];
    let ages = [0, 1799, 1800, 1801, 7200];
    let states = [
        State::Pending,
        State::Stalled,
        State::Passed,
        State::Failed,
        State::Unknown("held".into()),
    ];
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum R {
        None,
        Passed,
        OtherDigest,
        Failed,
        OldPassed,
        OldFailed,
        Future,
    }
    let reports = [
        R::None,
        R::Passed,
        R::OtherDigest,
        R::Failed,
        R::OldPassed,
        R::OldFailed,
        R::Future,
    ];
    let listed =
        crate::release::ReleaseList::parse(&crate::updates::fake::release_list(&[("2.4.0", None)])).unwrap();
    let listed = listed.find("2.4.0").unwrap().clone();
    let models = Ok(vec!["m1".to_owned()]);
    let mut seen = std::collections::BTreeMap::new();
    for state in &states {
        for status in statuses {
            for phase in phases {
                for r in reports {
                    for age in ages {
                        let check = Check {
                            release: "2.4.0".into(),
                            state: state.clone(),
                            attempt: 2,
                            build_id: Some("p:1".into()),
                            build_status: None,
                            step: None,
                            started_at: Some(t0()),
                            checked_at: None,
                            template_sha256: Some(digest_of("2.4.0")),
                            models: vec![],
                            reason: None,
                            needs_admin: None,
                            rev: 1,
                            last_write_id: None,
                        };
                        let report = match r {
                            R::None => None,
                            R::Passed => Some((2, "passed", digest_of("2.4.0"))),
                            R::OtherDigest => Some((2, "passed", "c".repeat(64))),
                            R::Failed => Some((2, "failed", digest_of("2.4.0"))),
                            R::OldPassed => Some((1, "passed", digest_of("2.4.0"))),
                            R::OldFailed => Some((1, "failed", digest_of("2.4.0"))),
                            R::Future => Some((3, "passed", digest_of("2.4.0"))),
                        };
                        let report = report.map(|(a, v, d)| Report {
                            release: "2.4.0".into(),
                            verdict: v.into(),
                            attempt: a,
                            build_id: None,
                            template_sha256: Some(d),
                            models: vec![Model {
                                id: "m1".into(),
                                ok: true,
                                reason: None,
                            }],
                            reason: Some(Reason::new("x", "said no")),
                            reported_at: None,
                            rev: 1,
                            last_write_id: None,
                        });
                        let build = BuildRead::Seen(Box::new(Build {
                            id: "p:1".into(),
                            status: status.into(),
                            phase: phase.into(),
                            complete: false,
                            message: None,
                        }));
                        let now = plus_seconds(t0(), age);
                        let j = judge(&Context {
                            check: Some(&check),
                            report: report.as_ref(),
                            build: Some(&build),
                            listed: Some(&listed),
                            models: Some(&models),
                            now,
                        });
                        let ended =
                            ["SUCCEEDED", "FAILED", "FAULT", "TIMED_OUT", "STOPPED"].contains(&status);
                        let want = match (state, r) {
                            (State::Passed, _) => ("passed", None),
                            (State::Failed, _) => ("failed", None),
                            (State::Unknown(_), _) => ("not_started", None),
                            (_, R::Passed | R::OldPassed) => ("passed", None),
                            (_, R::OtherDigest) => ("failed", Some("digest_differs")),
                            (_, R::Failed) => ("stalled", Some("release_check_failed")),
                            (State::Stalled, _) => ("stalled", None),
                            (State::Pending, _) if ended => ("stalled", Some("build_ended")),
                            (State::Pending, _) if age > 1800 => ("stalled", Some("older_than_30_minutes")),
                            (State::Pending, _) => ("pending", None),
                        };
                        let code = j
                            .next
                            .as_ref()
                            .and_then(|c| c.reason.as_ref())
                            .map(|r| r.code.as_str());
                        assert_eq!((j.state, code), want, "{state:?} {status} {phase} {r:?} {age}");
                        *seen.entry(j.state).or_insert(0) += 1;
                        // Judging what was just stored changes nothing any more.
                        if let Some(next) = &j.next {
                            let again = judge(&Context {
                                check: Some(next),
                                report: report.as_ref(),
                                build: Some(&build),
                                listed: Some(&listed),
                                models: Some(&models),
                                now,
                            });
                            assert_eq!(
                                (again.state, again.next.is_none() || next.state == State::Stalled),
                                (j.state, true)
                            );
                        }
                    }
                }
            }
        }
    }
    assert_eq!(seen.len(), 5, "{seen:?}");
    assert_eq!(seen.values().sum::<i32>(), 5 * 7 * 12 * 7 * 5);
    let _ = decide::CHECK_BOUND_S;
}
