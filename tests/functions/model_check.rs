//! The built model check (contract 4.4, spec/updates.md 2), with a CodeBuild that goes on when the test says so.

use headgate_tests::{
    Answer, Caller, FakeCodeBuild, Function, FunctionBuilder, Gate, HttpCall, HttpReply, Outcome, ago,
};
use serde_json::{Value, json};

use crate::install::{Install, apply, begin, call, event, get, releases, side_by_side, version};

const BUILD: &str = "codebuild";

/// An install with a check project and two configured models.
struct Checked {
    install: Install,
    codebuild: FakeCodeBuild,
}

impl Checked {
    fn new() -> Self {
        let install = Install::new();
        let codebuild = FakeCodeBuild::new("release-check");
        codebuild.serve(&install.aws);
        let parameter = json!({"Name": "models", "Type": "StringList", "Value": "m1, m2", "Version": 1});
        install
            .aws
            .always("ssm", "GetParameter", Answer::ok(json!({"Parameter": parameter})));
        Self { install, codebuild }
    }

    fn builder(&self) -> FunctionBuilder {
        Function::named("model-check")
            .aws(&self.install.aws, &self.install.table.account)
            .env("TABLE_NAME", &self.install.table.name)
            .env("STACK_NAME", "install")
            .env("RELEASES_URI", "s3://releases/releases.json")
            .env("RELEASE_CHECK_PROJECT", "release-check")
            .env("MODELS_PARAMETER", "models")
    }

    fn function(&self) -> Function {
        let function = self.builder().start();
        function.ready();
        function
    }

    /// The updater, which starts checks of this project.
    fn updater(&self) -> Function {
        let function = self
            .install
            .builder()
            .env("RELEASE_CHECK_PROJECT", "release-check")
            .start();
        function.ready();
        function
    }

    fn record(&self) -> Value {
        self.install
            .table
            .get("INSTALL#install", "CHECK#2.4.0")
            .unwrap_or_default()
    }
}

fn view(function: &Function) -> HttpReply {
    let reply = get(function, "/model-check?release=2.4.0");
    reply.expect(200);
    reply
}

fn start(function: &Function) -> HttpReply {
    call(function, &start_request())
}

fn start_request() -> HttpCall {
    HttpCall::post("/model-check").json(&json!({"release": "2.4.0"}))
}

/// The report of an attempt.
fn report(verdict: &str, attempt: u64, models: &[(&str, bool)]) -> Value {
    let mut event = event!("model-check", "report-passed");
    event["detail"]["verdict"] = json!(verdict);
    event["detail"]["attempt"] = json!(attempt);
    event["detail"]["reason"] = if verdict == "passed" {
        Value::Null
    } else {
        json!("image digest differs")
    };
    event["detail"]["models"] = models
        .iter()
        .map(|(id, ok)| json!({"id": id, "ok": ok, "reason": if *ok { Value::Null } else { json!("no quota") }}))
        .collect();
    event
}

const GOOD: [(&str, bool); 2] = [("m1", true), ("m2", true)];

fn flags(reply: &HttpReply) -> Vec<&str> {
    let flags = reply.at("/status/flags").as_array();
    flags
        .into_iter()
        .flatten()
        .filter_map(|flag| flag["code"].as_str())
        .collect()
}

#[test]
fn a_read_never_starts_a_build() {
    let checked = Checked::new();
    let function = checked.function();
    let seen = view(&function);
    assert_eq!(seen.text("/state"), "not_started");
    assert_eq!(checked.install.aws.traffic().to(BUILD), 0);
    assert_eq!(checked.install.table.items(), [] as [Value; 0]);
}

#[test]
fn t51_t52_from_start_to_passed_and_into_the_update() {
    let checked = Checked::new();
    let (function, updater) = (checked.function(), checked.install.updater());
    let id = checked.install.prepare(&updater, "2.4.0");
    let started = start(&function);
    started.expect(202);
    assert_eq!(
        (started.text("/state"), started.at("/attempt")),
        ("pending", &json!(1))
    );
    let build = checked.codebuild.newest();
    assert_eq!(build.variable("HEADGATE_RELEASE"), "2.4.0");
    assert_eq!(build.variable("HEADGATE_ATTEMPT"), "1");
    assert_eq!(build.variable("HEADGATE_TEMPLATE_SHA256"), "a".repeat(64));
    assert!(build.token.len() <= 64 && !build.token.is_empty());
    for bound in ["timeoutInMinutesOverride", "queuedTimeoutInMinutesOverride"] {
        let minutes = build.request[bound].as_u64().unwrap();
        assert!((25..=30).contains(&minutes), "{bound}: {minutes}");
    }
    apply(&updater, &id).expect_problem(409, "model_check_pending");

    checked.codebuild.phase("BUILD");
    let running = view(&function);
    assert_eq!(running.text("/state"), "pending");
    assert_eq!(running.text("/build_status"), "IN_PROGRESS");
    assert_eq!(running.text("/status/progress/step"), "BUILD");
    assert_eq!(running.text("/status/source"), "codebuild");
    assert!(!running.text("/status/since").is_empty() && !running.text("/status/stale_after").is_empty());
    let refused = start(&function);
    refused.expect_problem(409, "check_running");
    assert_eq!(refused.text("/progress/step"), "BUILD");

    let taken = function.invoke(&report("passed", 1, &GOOD)).answer();
    assert_eq!(taken, json!({"outcome": "stored", "state": "passed"}));
    checked.codebuild.end("SUCCEEDED", None);
    let passed = view(&function);
    assert_eq!(
        (passed.text("/state"), passed.text("/status/state")),
        ("passed", "passed")
    );
    assert_eq!(passed.at("/status/stale_after"), &Value::Null);
    assert_eq!(passed.at("/models").as_array().map(Vec::len), Some(2));
    let again = start(&function);
    again.expect(200);
    assert_eq!(checked.codebuild.builds().len(), 1);

    // T56: the passing check is stored with the update.
    let applied = apply(&updater, &id);
    applied.expect(202);
    assert_eq!(applied.text("/model_check/state"), "passed");
    assert_eq!(applied.text("/model_check/release"), "2.4.0");
    assert!(!applied.text("/model_check/checked_at").is_empty(), "{applied:?}");
    assert_eq!(checked.install.cloudformation_writes().1, 1);
}

#[test]
fn t52_a_release_that_was_verified_since_is_never_still_checking() {
    for state in ["pending", "stalled"] {
        let checked = Checked::new();
        let function = checked.function();
        checked.install.check("2.4.0", state);
        // The report is stored, but nobody has judged it.
        checked.install.table.put(&json!({
            "pk": "INSTALL#install", "sk": "RELEASE#2.4.0", "schema": 1, "rev": 1, "release": "2.4.0",
            "verdict": "passed", "attempt": 1, "build_id": "check:1", "template_sha256": "a".repeat(64),
            "models": [{"id": "m1", "ok": true}, {"id": "m2", "ok": true}], "reported_at": ago(10),
        }));
        assert_eq!(view(&function).text("/state"), "passed", "{state}");
        assert_eq!(checked.record()["state"], "passed", "{state}");
    }
}

#[test]
fn t53_o11_a_build_that_ended_without_a_report_is_stalled_and_starts_anew_at_once() {
    for status in ["SUCCEEDED", "FAILED", "FAULT", "TIMED_OUT", "STOPPED"] {
        let checked = Checked::new();
        let function = checked.function();
        start(&function).expect(202);
        checked.codebuild.end(status, Some("exit status 137"));
        let stalled = view(&function);
        assert_eq!(stalled.text("/state"), "stalled", "{status}");
        let text = stalled.text("/status/reason/text");
        assert!(
            text.contains(&format!("ended ({status}) without reporting")),
            "{text}"
        );
        let again = start(&function);
        again.expect(202);
        assert_eq!(
            (again.text("/state"), again.at("/attempt")),
            ("pending", &json!(2)),
            "{status}"
        );
        assert_eq!(checked.codebuild.builds().len(), 2);
        assert_ne!(
            checked.codebuild.builds()[0].token,
            checked.codebuild.builds()[1].token
        );
    }
}

#[test]
fn a_build_event_makes_the_answer_faster_and_nothing_else() {
    let checked = Checked::new();
    let function = checked.function();
    let tick = event!("model-check", "build-state-change");
    // Nothing was started: the event is no state to store.
    function.invoke(&tick).answer();
    assert_eq!(checked.install.table.items(), [] as [Value; 0]);
    start(&function).expect(202);
    // The event says FAILED, CodeBuild says it runs: CodeBuild is believed.
    assert_eq!(function.invoke(&tick).answer()["state"], "pending");
    checked.codebuild.end("FAILED", None);
    assert_eq!(function.invoke(&tick).answer()["state"], "stalled");
    assert_eq!(checked.record()["state"], "stalled");
}

#[test]
fn t54_a_check_is_bounded_to_30_minutes_and_its_build_is_stopped() {
    let checked = Checked::new();
    let function = checked.function();
    start(&function).expect(202);
    checked.codebuild.phase("QUEUED");
    checked.install.later(30 * 60 - 20);
    assert_eq!(view(&function).text("/state"), "pending");
    start(&function).expect_problem(409, "check_running");
    checked.install.later(21);
    let stalled = view(&function);
    assert_eq!(stalled.text("/state"), "stalled");
    assert_eq!(stalled.text("/status/reason/code"), "older_than_30_minutes");
    assert!(
        stalled.text("/status/reason/text").contains("QUEUED"),
        "{stalled:?}"
    );
    start(&function).expect(202);
    let builds = checked.codebuild.builds();
    let statuses: Vec<&str> = builds.iter().map(|build| build.status.as_str()).collect();
    assert_eq!(statuses, ["STOPPED", "IN_PROGRESS"]);
}

#[test]
fn t55_t57_a_failed_release_check_holds_the_update_and_shows_where_it_should() {
    let checked = Checked::new();
    let (function, updater) = (checked.function(), checked.install.updater());
    let id = checked.install.prepare(&updater, "2.4.0");
    start(&function).expect(202);
    let taken = function.invoke(&report("failed", 1, &[])).answer();
    assert_eq!(taken["state"], "stalled", "{taken}");
    let stalled = view(&function);
    assert_eq!(stalled.text("/status/reason/text"), "image digest differs");
    let refused = apply(&updater, &id);
    refused.expect_problem(409, "model_check_stalled");
    assert!(
        refused.text("/detail").contains("image digest differs"),
        "{refused:?}"
    );

    let setup = get(&function, "/setup-checks");
    setup.expect(200);
    let lines = setup.at("/checks").as_array().unwrap();
    let ids: Vec<&str> = lines.iter().map(|line| line["id"].as_str().unwrap()).collect();
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
    let levels: Vec<&str> = lines.iter().map(|line| line["level"].as_str().unwrap()).collect();
    assert_eq!(levels, ["ok", "ok", "ok", "ok", "warning"], "{setup:?}");
    assert!(
        lines[4]["reason"]["text"]
            .as_str()
            .unwrap()
            .contains("image digest differs"),
        "{setup:?}"
    );

    let preflight = get(&function, "/preflight?release=2.4.0");
    preflight.expect(200);
    assert_eq!(preflight.at("/ready"), &json!(false));
    let blockers = preflight.at("/blockers").as_array().unwrap();
    assert_eq!(blockers.len(), 1, "nothing else blocks: {preflight:?}");
    assert_eq!(blockers[0]["code"], "model_check_stalled");
    assert!(
        blockers[0]["text"]
            .as_str()
            .unwrap()
            .contains("image digest differs")
    );
}

#[test]
fn a_preflight_is_ready_when_nothing_holds() {
    let checked = Checked::new();
    let function = checked.function();
    checked.install.check("2.4.0", "passed");
    let ready = get(&function, "/preflight?release=2.4.0");
    assert_eq!(
        (ready.at("/ready"), ready.at("/blockers")),
        (&json!(true), &json!([])),
        "{ready:?}"
    );
    let far = get(&function, "/preflight?release=3.0.0");
    let codes: Vec<&Value> = far
        .at("/blockers")
        .as_array()
        .unwrap()
        .iter()
        .map(|b| &b["code"])
        .collect();
    assert_eq!(
        codes,
        [&json!("release_too_far"), &json!("model_check_not_started")],
        "{far:?}"
    );
    checked
        .install
        .cfn
        .set_status("install", "UPDATE_ROLLBACK_FAILED");
    let blocked = get(&function, "/preflight?release=2.4.0");
    assert_eq!(
        blocked.text("/blockers/0/code"),
        "stack_rollback_failed",
        "{blocked:?}"
    );
    assert!(blocked.at("/blockers/0/needs_admin").is_object(), "{blocked:?}");
    get(&function, "/preflight?release=9.9.9").expect_problem(404, "release_unknown");
}

#[test]
fn every_configured_model_must_be_reported_ok() {
    for (models, wanted) in [
        (vec![("m1", true)], "m2 is not in the report"),
        (vec![("m1", true), ("m2", false)], "m2: no quota"),
        (vec![], "m1"),
    ] {
        let checked = Checked::new();
        let function = checked.function();
        start(&function).expect(202);
        assert_eq!(
            function.invoke(&report("passed", 1, &models)).answer()["state"],
            "failed"
        );
        let failed = view(&function);
        assert_eq!(failed.text("/state"), "failed");
        assert!(failed.text("/status/reason/text").contains(wanted), "{failed:?}");
        // After a no, a new attempt starts at once.
        assert_eq!(start(&function).at("/attempt"), &json!(2));
    }
    // A model nobody configured does not matter.
    let checked = Checked::new();
    let function = checked.function();
    start(&function).expect(202);
    let models = [("m1", true), ("m2", true), ("m3", false)];
    assert_eq!(
        function.invoke(&report("passed", 1, &models)).answer()["state"],
        "passed"
    );
}

#[test]
fn a_pass_of_another_template_is_a_no() {
    let checked = Checked::new();
    let function = checked.function();
    start(&function).expect(202);
    let mut other = report("passed", 1, &GOOD);
    other["detail"]["template_sha256"] = json!("b".repeat(64));
    assert_eq!(function.invoke(&other).answer()["state"], "failed");
    let failed = view(&function);
    assert_eq!(failed.text("/status/reason/code"), "digest_differs");
    assert!(
        failed.text("/status/reason/text").contains(&"b".repeat(64)),
        "{failed:?}"
    );
}

#[test]
fn a_plan_of_another_template_than_the_checked_one_is_not_applied() {
    let checked = Checked::new();
    let (function, updater) = (checked.function(), checked.install.updater());
    let id = checked.install.prepare(&updater, "2.4.0");
    // The release is published again with another template, and that one passes.
    let mut list = releases();
    list["releases"][0]["template_sha256"] = json!("c".repeat(64));
    checked
        .install
        .s3
        .put("releases", "releases.json", list.to_string());
    start(&function).expect(202);
    let mut passed = report("passed", 1, &GOOD);
    passed["detail"]["template_sha256"] = json!("c".repeat(64));
    assert_eq!(function.invoke(&passed).answer()["state"], "passed");
    apply(&updater, &id).expect_problem(409, "model_check_failed");
    assert_eq!(checked.install.cloudformation_writes().1, 0);
}

#[test]
fn late_reports_of_an_old_attempt_help_but_never_hurt() {
    let checked = Checked::new();
    let function = checked.function();
    start(&function).expect(202);
    checked.codebuild.end("FAILED", None);
    start(&function).expect(202);
    assert_eq!(checked.record()["attempt"], 2);
    let late = function.invoke(&report("failed", 1, &[])).answer();
    assert_eq!(late["outcome"], "ignored");
    assert_eq!(view(&function).text("/state"), "pending");
    let late = function.invoke(&report("passed", 1, &GOOD)).answer();
    assert_eq!(late["state"], "passed", "{late}");
    // And a failure that comes after it changes nothing.
    function.invoke(&report("failed", 1, &[])).answer();
    assert_eq!(view(&function).text("/state"), "passed");
}

#[test]
fn a_report_nobody_asked_for_is_ignored_and_a_broken_one_refused() {
    let checked = Checked::new();
    let function = checked.function();
    assert_eq!(
        function.invoke(&report("passed", 1, &GOOD)).answer()["outcome"],
        "ignored"
    );
    start(&function).expect(202);
    assert_eq!(
        function.invoke(&report("passed", 7, &GOOD)).answer()["outcome"],
        "ignored",
        "a future attempt"
    );
    let before = checked.install.table.items();
    for (field, value) in [
        ("verdict", json!("perhaps")),
        ("attempt", json!(0)),
        ("attempt", json!("x")),
        ("release", json!("latest")),
        ("release", Value::Null),
        ("template_sha256", json!("zz")),
        ("models", json!("m1")),
        ("models", json!([{"ok": true}])),
    ] {
        let mut broken = report("passed", 1, &GOOD);
        broken["detail"][field] = value.clone();
        let (kind, message) = function.invoke(&broken).error();
        assert_eq!(kind, "ModelCheck.BadReport", "{field} {value}: {message}");
        assert!(message.contains(field), "{message}");
    }
    let mut all = report("perhaps", 0, &GOOD);
    all["detail"]["release"] = json!("x");
    let (_, message) = function.invoke(&all).error();
    assert!(
        ["verdict", "attempt", "release"]
            .iter()
            .all(|field| message.contains(field)),
        "{message}"
    );
    assert_eq!(checked.install.table.items(), before);
    // The same report twice says nothing new.
    assert_eq!(
        function.invoke(&report("passed", 1, &GOOD)).answer()["outcome"],
        "stored"
    );
    let stored = checked.install.table.items();
    function.invoke(&report("passed", 1, &GOOD)).answer();
    assert_eq!(checked.install.table.items(), stored);
}

#[test]
fn codebuild_in_trouble_is_said_and_changes_nothing() {
    let checked = Checked::new();
    let function = checked.function();
    start(&function).expect(202);
    checked.codebuild.phase("BUILD");
    view(&function);
    let before = checked.record();
    for (fault, flag) in [
        (Answer::Throttled, "stale_read"),
        (Answer::ServerError, "stale_read"),
        (Answer::Malformed, "stale_read"),
        (Answer::AccessDenied, "needs_permission"),
    ] {
        checked.install.aws.always(BUILD, "BatchGetBuilds", fault.clone());
        let seen = view(&function);
        assert_eq!(
            (seen.text("/state"), seen.text("/status/progress/step")),
            ("pending", "BUILD"),
            "{fault:?}"
        );
        assert!(flags(&seen).contains(&flag), "{fault:?}: {seen:?}");
        assert_eq!(seen.text("/status/source"), "stored", "{fault:?}");
        assert_eq!(checked.record(), before, "{fault:?}");
    }
    // The bound counts all the same.
    checked.install.later(30 * 60);
    assert_eq!(view(&function).text("/state"), "stalled");
}

#[test]
fn a_build_codebuild_does_not_know_is_stalled() {
    let checked = Checked::new();
    let function = checked.function();
    start(&function).expect(202);
    checked.codebuild.forget();
    let seen = view(&function);
    assert_eq!(
        (seen.text("/state"), seen.text("/status/reason/code")),
        ("stalled", "build_not_found")
    );
    start(&function).expect(202);
}

#[test]
fn models_that_can_not_be_read_are_no_verdict() {
    let checked = Checked::new();
    let function = checked.function();
    start(&function).expect(202);
    checked
        .install
        .aws
        .always("ssm", "GetParameter", Answer::AccessDenied);
    function.invoke(&report("passed", 1, &GOOD)).answer();
    let seen = view(&function);
    assert_eq!(seen.text("/state"), "pending", "neither a yes nor a no");
    assert!(flags(&seen).contains(&"needs_permission"), "{seen:?}");
    let parameter = json!({"Name": "models", "Type": "String", "Value": "m1", "Version": 2});
    checked
        .install
        .aws
        .always("ssm", "GetParameter", Answer::ok(json!({"Parameter": parameter})));
    assert_eq!(view(&function).text("/state"), "passed");
}

// --- starting

#[test]
fn a_start_whose_answer_is_lost_is_one_build_and_found_again() {
    let checked = Checked::new();
    let function = checked.function();
    checked.install.aws.always(BUILD, "StartBuild", Answer::lost());
    let started = start(&function);
    started.expect(202);
    assert_eq!(started.text("/state"), "pending");
    checked.install.aws.clear(BUILD, "StartBuild");
    assert_eq!(checked.codebuild.builds().len(), 1);
    checked.codebuild.phase("BUILD");
    let found = view(&function);
    assert_eq!(found.text("/build_id"), checked.codebuild.newest().id);
    assert_eq!(found.text("/status/progress/step"), "BUILD");
    start(&function).expect_problem(409, "check_running");
    assert_eq!(checked.codebuild.builds().len(), 1);
}

#[test]
fn a_start_that_never_arrived_ends_after_its_bound() {
    let checked = Checked::new();
    let function = checked.function();
    checked.install.aws.always(BUILD, "StartBuild", Answer::Drops);
    start(&function).expect(202);
    checked.install.aws.clear(BUILD, "StartBuild");
    assert_eq!(
        view(&function).text("/state"),
        "pending",
        "it may still be on its way"
    );
    checked.install.later(121);
    assert_eq!(view(&function).text("/state"), "stalled");
    start(&function).expect(202);
    assert_eq!(checked.codebuild.builds().len(), 1);
}

#[test]
fn a_start_that_is_refused_is_stalled_with_the_text_of_aws() {
    let missing = Answer::error(400, "ResourceNotFoundException", "Project cannot be found");
    let limit = Answer::error(
        400,
        "AccountLimitExceededException",
        "Cannot have more than 1 builds in queue",
    );
    for (fault, text, admin) in [
        (Answer::AccessDenied, "codebuild:StartBuild", true),
        (missing, "Project cannot be found", true),
        (limit, "Cannot have more than 1 builds in queue", false),
    ] {
        let checked = Checked::new();
        let function = checked.function();
        checked.install.aws.always(BUILD, "StartBuild", fault.clone());
        start(&function);
        let stalled = view(&function);
        assert_eq!(
            (stalled.text("/state"), stalled.text("/status/reason/code")),
            ("stalled", "start_failed")
        );
        assert!(stalled.body.to_string().contains(text), "{stalled:?}");
        assert_eq!(
            stalled.at("/status/needs_admin").is_object(),
            admin,
            "{fault:?}: {stalled:?}"
        );
        checked.install.aws.clear(BUILD, "StartBuild");
        start(&function).expect(202);
    }
}

#[test]
fn begin_starts_the_check_and_never_fails_because_of_it() {
    for fault in [
        None,
        Some(Answer::AccessDenied),
        Some(Answer::Throttled),
        Some(Answer::Drops),
    ] {
        let checked = Checked::new();
        let updater = checked.updater();
        if let Some(fault) = &fault {
            checked.install.aws.always(BUILD, "StartBuild", fault.clone());
        }
        let begun = begin(&updater, "2.4.0");
        begun.expect(201);
        let state = if matches!(fault, None | Some(Answer::Drops)) {
            "pending"
        } else {
            "stalled"
        };
        assert_eq!(
            checked.record()["state"],
            state,
            "{fault:?}: {}",
            checked.record()
        );
        assert_eq!(checked.codebuild.builds().len(), usize::from(fault.is_none()));
    }
    // One that has passed is not started again.
    let checked = Checked::new();
    let updater = checked.updater();
    checked.install.check("2.4.0", "passed");
    begin(&updater, "2.4.0").expect(201);
    assert_eq!(checked.codebuild.builds().len(), 0);
}

#[test]
fn two_who_start_at_once_start_one_build() {
    let checked = Checked::new();
    let (first, second) = (checked.function(), checked.function());
    // Both have read before either writes its attempt.
    checked
        .install
        .aws
        .meet(&[("dynamodb", "PutItem"), ("dynamodb", "PutItem")]);
    let request = start_request().event().to_string();
    let starts = [first.begin(request.as_bytes()), second.begin(request.as_bytes())];
    let replies = starts.map(|start| HttpReply::from_answer(&start.outcome().answer()));
    let mut statuses = [replies[0].status, replies[1].status];
    statuses.sort_unstable();
    assert_eq!(statuses, [202, 409], "{replies:?}");
    assert_eq!(checked.codebuild.builds().len(), 1);
}

#[test]
fn a_report_in_the_middle_of_a_view_is_not_lost() {
    let checked = Checked::new();
    let (viewer, taker) = (checked.function(), checked.function());
    start(&viewer).expect(202);
    // The viewer has seen the build ended and is about to read the report, when the report comes.
    checked.codebuild.end("SUCCEEDED", None);
    let gate = Gate::new();
    checked
        .install
        .aws
        .next(BUILD, "BatchGetBuilds", Answer::late(&gate));
    let looking = viewer.begin(
        HttpCall::get("/model-check?release=2.4.0")
            .event()
            .to_string()
            .as_bytes(),
    );
    gate.reached();
    assert_eq!(
        taker.invoke(&report("passed", 1, &GOOD)).answer()["state"],
        "passed"
    );
    gate.open();
    let seen = HttpReply::from_answer(&looking.outcome().answer());
    assert_eq!(seen.text("/state"), "passed", "{seen:?}");
    assert_eq!(checked.record()["state"], "passed");
}

#[test]
fn dying_at_any_request_of_a_start_leaves_nothing_wrong_behind() {
    let requests = {
        let checked = Checked::new();
        let function = checked.function();
        let mark = checked.install.aws.mark();
        start(&function).expect(202);
        checked.install.aws.since(mark).total()
    };
    assert!(requests >= 4, "{requests}");
    let moments = [("before", Answer::Drops), ("after", Answer::Behind)];
    let cases = (1..=requests).flat_map(|n| moments.clone().map(|(when, inner)| (n, when, inner)));
    side_by_side(cases.collect(), |(n, when, inner)| {
        let checked = Checked::new();
        let function = checked.function();
        let gate = Gate::new();
        checked
            .install
            .aws
            .nth(n, "*", Answer::Late(gate.clone(), Box::new(inner)));
        let invocation = function.begin(start_request().event().to_string().as_bytes());
        gate.reached();
        function.kill();
        gate.open();
        assert_eq!(invocation.outcome(), Outcome::Died);
        let what = format!(
            "died {when} request {n} ({})",
            checked.install.aws.traffic().names().join(" ")
        );
        let function = checked.function();
        checked.install.later(130);
        let seen = view(&function);
        if seen.text("/state") != "pending" {
            start(&function).expect(202);
        }
        let record = checked.record();
        let attempt = record["attempt"].as_u64().unwrap();
        let counted = attempt.to_string();
        let attempts: Vec<_> = checked.codebuild.builds();
        let of_this = attempts
            .iter()
            .filter(|b| b.variable("HEADGATE_ATTEMPT") == counted);
        assert_eq!(
            of_this.count(),
            1,
            "{what}: one build of the attempt that counts: {record}"
        );
        assert_eq!(
            function.invoke(&report("passed", attempt, &GOOD)).answer()["state"],
            "passed",
            "{what}"
        );
        assert_eq!(view(&function).text("/state"), "passed", "{what}");
    });
}

// --- the door

#[test]
fn nobody_and_the_wrong_scope_stay_outside() {
    let checked = Checked::new();
    let function = checked.function();
    let mark = checked.install.aws.mark();
    for (request, needed, other) in [
        (
            HttpCall::get("/model-check?release=2.4.0"),
            "headgate/read",
            "headgate/write",
        ),
        (start_request(), "headgate/write", "headgate/read"),
        (HttpCall::get("/setup-checks"), "headgate/read", "headgate/links"),
        (
            HttpCall::get("/preflight?release=2.4.0"),
            "headgate/read",
            "headgate/write",
        ),
    ] {
        call(&function, &request.clone().caller(&Caller::Nobody)).expect_problem(401, "unauthenticated");
        let refused = call(&function, &request.caller(&Caller::jwt("eve@example.com", other)));
        refused.expect_problem(403, "forbidden");
        assert!(refused.text("/detail").contains(needed), "{refused:?}");
    }
    assert_eq!(checked.install.aws.since(mark).total(), 0);
}

#[test]
fn bad_requests_are_refused_and_nothing_is_written() {
    let checked = Checked::new();
    let function = checked.function();
    for path in [
        "/model-check",
        "/model-check?release=",
        "/model-check?release=latest",
        "/preflight",
        "/preflight?release=x",
    ] {
        get(&function, path).expect_problem(400, "invalid_request");
    }
    for body in ["", "{", "[]", "{}", "{\"release\": 2}", "{\"release\": \"x\"}"] {
        call(&function, &HttpCall::post("/model-check").body(body)).expect_problem(400, "invalid_request");
    }
    let unknown = HttpCall::post("/model-check").json(&json!({"release": "9.9.9"}));
    call(&function, &unknown).expect_problem(404, "release_unknown");
    call(&function, &HttpCall::new("DELETE", "/model-check")).expect_problem(405, "method_not_allowed");
    call(&function, &HttpCall::post("/preflight")).expect_problem(405, "method_not_allowed");
    get(&function, "/updates").expect_problem(404, "not_found");
    let big = format!(
        "{{\"release\": \"2.4.0\", \"pad\": \"{}\"}}",
        "x".repeat(2 * 1024 * 1024)
    );
    assert_eq!(
        call(&function, &HttpCall::post("/model-check").body(&big)).status,
        413
    );
    for event in [
        event!("unknown"),
        event!("stack-status-change"),
        json!({}),
        Value::Null,
    ] {
        assert_eq!(
            function.invoke(&event).error().0,
            "Headgate.UnknownEvent",
            "{event}"
        );
    }
    assert_eq!(checked.install.table.items(), [] as [Value; 0]);
    assert_eq!(checked.codebuild.builds().len(), 0);
}

#[test]
fn every_event_file_is_understood() {
    let checked = Checked::new();
    let function = checked.function();
    for (event, status) in [
        (event!("model-check", "get-model-check-jwt"), 200),
        (event!("model-check", "get-model-check-iam"), 200),
        (event!("model-check", "setup-checks-jwt"), 200),
        (event!("model-check", "setup-checks-iam"), 200),
        (event!("model-check", "preflight-jwt"), 200),
        (event!("model-check", "preflight-iam"), 200),
        (event!("model-check", "start-model-check-jwt"), 202),
        (event!("model-check", "start-model-check-iam"), 409),
    ] {
        let reply = HttpReply::from_answer(&function.invoke(&event).answer());
        assert_eq!(reply.status, status, "{} {reply:?}", event["rawPath"]);
    }
    function
        .invoke(&event!("model-check", "build-state-change"))
        .answer();
    function.invoke(&event!("model-check", "report-failed")).answer();
    assert_eq!(checked.record()["state"], "stalled");
    function.invoke(&event!("model-check", "report-passed")).answer();
}

#[test]
fn a_missing_project_is_a_configuration_error() {
    let checked = Checked::new();
    let function = checked
        .builder()
        .without("RELEASE_CHECK_PROJECT")
        .without("TABLE_NAME")
        .start();
    let reply = get(&function, "/model-check?release=2.4.0");
    reply.expect_problem(500, "configuration_error");
    let detail = reply.text("/detail");
    assert!(
        detail.contains("RELEASE_CHECK_PROJECT") && detail.contains("TABLE_NAME"),
        "{detail}"
    );
}

#[test]
fn setup_names_what_is_wrong() {
    let checked = Checked::new();
    let function = checked.function();
    let levels = || {
        let setup = get(&function, "/setup-checks");
        setup.expect(200);
        let lines = setup.at("/checks").as_array().unwrap().clone();
        lines
            .into_iter()
            .map(|line| (line["id"].as_str().unwrap().to_owned(), line))
            .collect::<std::collections::BTreeMap<_, _>>()
    };
    assert!(
        levels().values().all(|line| line["level"] == "ok"),
        "{:?}",
        levels()
    );
    checked.codebuild.remove_project();
    let lines = levels();
    assert_eq!(lines["release_check_project"]["level"], "error");
    assert!(lines["release_check_project"]["needs_admin"].is_object());
    checked.install.s3.put("releases", "releases.json", "nonsense");
    assert_eq!(levels()["releases"]["level"], "error");
    checked
        .install
        .aws
        .always("cloudformation", "DescribeStacks", Answer::AccessDenied);
    let lines = levels();
    assert_eq!(
        (&lines["stack"]["level"], &lines["permissions"]["level"]),
        (&json!("error"), &json!("error"))
    );
    assert!(
        lines["permissions"]["summary"]
            .as_str()
            .unwrap()
            .contains("cloudformation:DescribeStacks")
    );
    // It looks and changes nothing.
    let writes = ["PutItem", "UpdateItem", "TransactWriteItems", "DeleteItem"];
    let wrote = checked
        .install
        .aws
        .traffic()
        .0
        .iter()
        .any(|record| writes.contains(&record.call.operation.as_str()));
    assert!(!wrote);
}

#[test]
fn a_setup_check_does_not_touch_an_update() {
    let checked = Checked::new();
    let (function, updater) = (checked.function(), checked.install.updater());
    begin(&updater, "2.4.0").expect(201);
    checked.install.cfn.make(&checked.install.newest_set());
    let before = checked.install.table.items();
    get(&function, "/setup-checks").expect(200);
    get(&function, "/preflight?release=2.4.0").expect(200);
    assert_eq!(checked.install.table.items(), before);
    assert_eq!(version(&updater).text("/update/state"), "prepared");
}
