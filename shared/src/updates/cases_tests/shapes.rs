//! The status table of "What to build", UPDATE of contract 4.3, and the refusals of apply and discard.

use super::*;

fn minutes(n: i64) -> Value {
    json!(plus_seconds(start(), n * 60).to_string())
}

fn expect(a: &Answer, state: &str, since: Value, stale_after: Value, source: &str) {
    assert_eq!(a.text("/status/state"), state, "{a:?}");
    assert_eq!(a.at("/status/since"), &since, "since of {state}");
    assert_eq!(
        a.at("/status/stale_after"),
        &stale_after,
        "stale_after of {state}"
    );
    assert_eq!(a.text("/status/source"), source, "source of {state}");
}

#[test]
fn status_idle() {
    let s = Scene::quiet();
    expect(&s.version(), "idle", Value::Null, minutes(30), "cloudformation");
    let finished = plus_seconds(start(), -5000);
    s.row_with(1, "2.3.5", State::Discarded, 6000, ("", ""), |u| {
        u.finished_at = Some(finished)
    });
    expect(
        &s.version(),
        "idle",
        json!(finished),
        minutes(30),
        "cloudformation",
    );
}

#[test]
fn status_preparing_and_stalled() {
    let s = Scene::quiet();
    let u = s.row(2, "2.4.0", State::Preparing, 0, ("CREATE_PENDING", "UNAVAILABLE"));
    s.point(Some(&u));
    s.at(60);
    let v = s.version();
    expect(&v, "preparing", minutes(0), minutes(15), "cloudformation");
    assert_eq!(v.at("/status/observed_at"), &minutes(1));
    s.at(20 * 60);
    expect(
        &s.version(),
        "stalled",
        minutes(15),
        minutes(50),
        "cloudformation",
    );
}

#[test]
fn status_prepared() {
    let s = Scene::quiet();
    s.pending_prepared();
    expect(
        &s.version(),
        "prepared",
        minutes(-10),
        minutes(30),
        "cloudformation",
    );
}

#[test]
fn status_applying_and_rolling_back() {
    let s = Scene::quiet();
    let u = s.applying(300);
    s.run(&u, 298);
    expect(
        &s.version(),
        "applying",
        minutes(-5),
        minutes(30),
        "cloudformation",
    );
    s.w.cloud
        .borrow_mut()
        .fail_run(plus_seconds(start(), -120), "Api", "no");
    expect(
        &s.version(),
        "rolling_back",
        minutes(-2),
        minutes(30),
        "cloudformation",
    );
    // Without the stack's own event: since the OK.
    let s = Scene::quiet();
    let u = s.applying(300);
    s.execution(&u, "EXECUTE_IN_PROGRESS");
    s.owned(&u, "UPDATE_ROLLBACK_IN_PROGRESS", Some("2.3.0"), 298);
    expect(
        &s.version(),
        "rolling_back",
        minutes(-5),
        minutes(30),
        "cloudformation",
    );
}

#[test]
fn status_of_closed_states() {
    for state in [State::Updated, State::RolledBack, State::Failed] {
        let s = Scene::quiet();
        s.row_with(1, "2.3.5", state.clone(), 6000, ("", ""), |u| {
            u.finished_at = Some(plus_seconds(start(), -300))
        });
        let v = s.version();
        expect(&v, state.as_str(), minutes(-5), Value::Null, "stored");
        assert_eq!(v.text("/status/label"), state.label());
    }
    for state in [State::Superseded, State::Discarded, State::Expired] {
        let s = Scene::quiet();
        let u = s.row_with(1, "2.3.5", state.clone(), 6000, ("", ""), |u| {
            u.finished_at = Some(plus_seconds(start(), -300));
        });
        let v = s.version();
        assert_eq!(
            v.text("/status/state"),
            "idle",
            "with none open, {state:?} is no result to show"
        );
        assert_eq!(v.text("/update/state"), state.as_str());
        expect(&s.one(&u), state.as_str(), minutes(-5), Value::Null, "stored");
    }
}

#[test]
fn status_source_is_stored_whenever_it_could_not_be_read_again() {
    for e in [throttled(DESCRIBE_SET), denied(DESCRIBE_SET)] {
        let s = Scene::quiet();
        let u = s.pending_prepared();
        s.w.answer("look set", vec![Seen::Set(SetRead::Failed(e)); 9]);
        let v = s.version();
        assert_eq!(v.text("/status/source"), "stored");
        assert_eq!(v.at("/status/observed_at"), &json!(u.observed_at));
        // 30 minutes after the last good read.
        assert_eq!(v.at("/status/stale_after"), &minutes(20));
    }
}

/// Flag `stale_read` or `needs_permission` about the stack means the same: what it says of the run is not known.
#[test]
fn status_source_is_stored_when_the_stack_could_not_be_read() {
    for (e, flag) in [
        (throttled(DESCRIBE_STACKS), "stale_read"),
        (denied(DESCRIBE_STACKS), "needs_permission"),
    ] {
        let s = Scene::quiet();
        let u = s.applying(300);
        s.run(&u, 298);
        s.once.set(true);
        s.version();
        let known = s.stored(&u);
        s.at(60)
            .w
            .answer("look stack", vec![Seen::Stack(StackRead::Failed(e.clone())); 9]);
        let v = s.version();
        assert!(v.flags("/status").contains(&flag), "{v:?}");
        assert_eq!(v.text("/status/source"), "stored", "{flag}");
        assert_eq!(v.at("/status/observed_at"), &json!(known.observed_at));
        let s = Scene::quiet();
        s.w.answer("look stack", vec![Seen::Stack(StackRead::Failed(e)); 9]);
        let v = s.version();
        assert_eq!(v.text("/status/state"), "idle");
        assert_eq!(v.text("/status/source"), "stored");
        assert!(v.flags("/status").contains(&flag));
    }
}

/// Contract 4.1, its example: the state is read, only the events are not.
#[test]
fn events_that_may_not_be_read_are_a_flag_and_the_state_is_still_read() {
    let s = Scene::quiet();
    let u = s.applying(300);
    s.run(&u, 298);
    s.w.answer(
        "look events",
        vec![Seen::Events(Err(denied(DESCRIBE_EVENTS))); 20],
    );
    let v = s.version();
    assert_eq!(v.flag("/status", "needs_permission")["action"], DESCRIBE_EVENTS);
    assert_eq!(v.text("/status/source"), "cloudformation");
    assert_eq!(v.text("/update/state"), "applying");
}

fn keys(v: &Value) -> Vec<&str> {
    v.as_object().unwrap().keys().map(String::as_str).collect()
}

const UPDATE_KEYS: [&str; 19] = [
    "id",
    "seq",
    "state",
    "status",
    "from_release",
    "to_release",
    "started_by",
    "started_at",
    "applied_by",
    "applied_at",
    "finished_at",
    "superseded_by",
    "change_set",
    "summary",
    "model_check",
    "reason",
    "needs_admin",
    "warnings",
    "links",
];

const STATUS_KEYS: [&str; 11] = [
    "state",
    "label",
    "summary",
    "reason",
    "needs_admin",
    "since",
    "observed_at",
    "stale_after",
    "source",
    "progress",
    "flags",
];

#[test]
fn update_has_every_field_of_contract_4_3() {
    let s = Scene::quiet();
    let u = s.row(
        2,
        "2.4.0",
        State::Preparing,
        600,
        ("CREATE_COMPLETE", "AVAILABLE"),
    );
    s.point(Some(&u));
    s.set(&u, |x| {
        let change = |id: &str, kind: &str, action: &str, replacement: Option<&str>, policy: Option<&str>| {
            PlannedChange {
                logical_id: id.into(),
                kind: kind.into(),
                action: action.into(),
                replacement: replacement.map(Into::into),
                policy_action: policy.map(Into::into),
                details: vec!["Properties.Code".into()],
            }
        };
        x.set.changes = vec![
            change("Api", "AWS::Lambda::Function", "Modify", Some("False"), None),
            change(
                "Table",
                "AWS::DynamoDB::Table",
                "Modify",
                Some("Conditional"),
                Some("ReplaceAndDelete"),
            ),
            change("Old", "AWS::S3::Bucket", "Remove", None, Some("Retain")),
            change("New", "AWS::SQS::Queue", "Add", None, None),
            change("In", "AWS::SQS::Queue", "Import", None, None),
            change("Maybe", "AWS::SQS::Queue", "Dynamic", None, None),
        ];
    });
    s.version();
    let a = s.one(&u);
    for k in UPDATE_KEYS {
        assert!(a.body.get(k).is_some(), "{k} is missing");
    }
    assert_eq!(keys(a.at("/status")), STATUS_KEYS);
    assert_eq!(keys(a.at("/change_set")), ["name", "arn", "created_at"]);
    assert_eq!(
        keys(a.at("/summary")),
        [
            "add",
            "modify",
            "remove",
            "import",
            "dynamic",
            "replacements",
            "data_loss"
        ]
    );
    assert_eq!(a.text("/id"), u.id);
    assert_eq!(a.at("/seq"), &json!(2));
    assert_eq!(a.text("/from_release"), "2.3.0");
    assert_eq!(a.text("/to_release"), "2.4.0");
    assert_eq!(a.text("/started_by"), "ana");
    assert_eq!(a.at("/started_at"), &minutes(-10));
    for null in [
        "applied_by",
        "applied_at",
        "finished_at",
        "superseded_by",
        "model_check",
        "reason",
        "needs_admin",
    ] {
        assert_eq!(a.body[null], Value::Null, "{null}");
    }
    assert_eq!(a.text("/change_set/name"), u.change_set_name);
    assert_eq!(a.text("/change_set/arn"), set_arn(&u.change_set_name));
    assert_eq!(a.at("/change_set/created_at"), &minutes(-10));
    assert_eq!(
        a.at("/summary"),
        &json!({"add": 1, "modify": 2, "remove": 1, "import": 1, "dynamic": 1,
                "replacements": ["Table"], "data_loss": ["Table"]})
    );
    assert_eq!(a.at("/warnings"), &json!([]));
    let console = a.text("/links/console");
    assert!(
        console.starts_with("https://eu-west-1.console.aws.amazon.com/cloudformation/"),
        "{console}"
    );
    assert!(console.contains("changeset"), "{console}");
    // 4.3.1: no property values.
    assert_eq!(a.at("/changes").as_array().unwrap().len(), 6);
    assert_eq!(
        a.at("/changes/1"),
        &json!({"logical_id": "Table", "type": "AWS::DynamoDB::Table", "action": "Modify",
                "replacement": "Conditional", "policy_action": "ReplaceAndDelete", "data_bearing": true,
                "details": ["Properties.Code"]})
    );
    // The list has the same objects, without changes.
    let listed = s.history();
    for k in UPDATE_KEYS {
        assert!(listed[0].get(k).is_some(), "{k} is missing in the list");
    }
    assert!(listed[0].get("changes").is_none());
}

#[test]
fn version_has_every_field_of_contract_4_3() {
    let s = Scene::quiet();
    let v = s.version();
    assert_eq!(
        keys(&v.body),
        [
            "installation",
            "current",
            "latest",
            "update",
            "status",
            "blockers"
        ]
    );
    assert_eq!(
        v.at("/installation"),
        &json!({"stack": STACK, "stack_arn": STACK_ARN, "region": "eu-west-1"})
    );
    assert_eq!(
        v.at("/current"),
        &json!({"release": "2.3.0", "stack_status": "UPDATE_COMPLETE", "observed_at": "2026-11-30T10:30:00Z"})
    );
    assert_eq!(v.text("/latest/release"), "2.5.0");
    assert_eq!(keys(v.at("/status")), STATUS_KEYS);
}

#[test]
fn latest_is_the_newest_release_pre_releases_aside_and_blockers_say_why_not() {
    let s = Scene::quiet();
    s.w.cloud.borrow_mut().releases = fake::release_list(&[
        ("2.3.0", None),
        ("2.4.0", None),
        ("2.10.0", Some("2.4.0")),
        ("3.0.0-rc.1", None),
    ]);
    let v = s.version();
    assert_eq!(v.text("/latest/release"), "2.10.0");
    assert_eq!(v.blockers(), ["release_too_far"]);
    assert!(v.text("/blockers/0/text").contains("2.4.0"));
    for bytes in [&b"{"[..], b"{\"schema\":2,\"releases\":[]}"] {
        let s = Scene::quiet();
        s.w.cloud.borrow_mut().releases = bytes.to_vec();
        let v = s.writes_nothing(|s| s.version());
        assert_eq!(v.at("/latest"), &Value::Null);
        assert_eq!(v.blockers(), ["releases_unreadable"]);
        assert_eq!(
            s.writes_nothing(|s| s.begin("2.4.0")).refusal(),
            (409, "releases_unreadable")
        );
    }
}

#[test]
fn apply_refusals() {
    // not_pending, with what is pending and what superseded it.
    let s = Scene::quiet();
    let u1 = s.row_with(1, "2.3.5", State::Superseded, 900, ("", ""), |u| {
        u.superseded_by = Some("x".into());
        u.finished_at = Some(start());
    });
    let u2 = s.pending_prepared();
    let a = s.writes_nothing(|s| s.apply(&u1));
    assert_eq!(a.refusal(), (409, "not_pending"));
    assert_eq!(a.text("/pending"), u2.id);
    assert_eq!(a.text("/superseded_by"), "x");
    // not_prepared.
    let s = Scene::quiet();
    s.checked();
    let u = s.row(
        2,
        "2.4.0",
        State::Preparing,
        60,
        ("CREATE_IN_PROGRESS", "UNAVAILABLE"),
    );
    s.point(Some(&u));
    assert_eq!(s.writes_nothing(|s| s.apply(&u)).refusal(), (409, "not_prepared"));
    // update_applying: it runs in the console.
    let s = Scene::quiet();
    s.checked();
    let u = s.pending_prepared();
    s.run(&u, 10);
    assert_eq!(s.apply(&u).refusal(), (409, "update_applying"));
    assert_eq!(s.w.count("act execute"), 0);
    // 503 when the change set or the stack can not be read: nothing is started on a guess.
    for (word, seen) in [
        ("look set", Seen::Set(SetRead::Failed(throttled(DESCRIBE_SET)))),
        (
            "look stack",
            Seen::Stack(StackRead::Failed(throttled(DESCRIBE_STACKS))),
        ),
    ] {
        let s = Scene::quiet();
        s.checked();
        let u = s.pending_prepared();
        s.w.answer(word, vec![seen; 9]);
        assert_eq!(
            s.writes_nothing(|s| s.apply(&u)).refusal(),
            (503, "aws_unavailable")
        );
    }
    // No such update.
    let s = Scene::quiet();
    let a = s.writes_nothing(|s| s.http("POST", "/updates/nonsense/apply", None));
    assert_eq!(a.refusal(), (404, "not_found"));
}

#[test]
fn discard_answers() {
    let s = Scene::quiet();
    let u = s.pending_prepared();
    let a = s.discard(&u);
    assert_eq!(a.code, 200);
    assert_eq!(a.text("/state"), "discarded");
    assert!(a.text("/reason/text").contains("ana@example.org"));
    assert_eq!(s.acts(), [format!("act delete {}", set_arn(&u.change_set_name))]);
    assert_eq!(s.w.head().pending, None);
    assert_eq!(
        s.writes_nothing(|s| s.discard(&u)).refusal(),
        (409, "already_closed")
    );
    s.writes_nothing(|s| s.version());
    // It runs: by us, and by the console between the look and the delete.
    let s = Scene::quiet();
    let u = s.applying(60);
    s.run(&u, 58);
    s.poll();
    assert_eq!(
        s.writes_nothing(|s| s.discard(&u)).refusal(),
        (409, "update_applying")
    );
    let s = Scene::quiet();
    let u = s.pending_prepared();
    let arn = set_arn(&u.change_set_name);
    s.w.meanwhile("act delete", move |w| {
        w.cloud
            .borrow_mut()
            .start_run(&arn, "Console-ExecuteChangeSet-1", start())
            .unwrap();
    });
    assert_eq!(s.discard(&u).refusal(), (409, "update_applying"));
    assert_eq!(s.stored(&u).status, State::Applying);
    assert_eq!(s.stored(&u).applied_by.as_deref(), Some(CONSOLE));
    // A request to make the set that may still be in flight: there is nothing to delete by its ARN yet.
    let s = Scene::quiet();
    let u = s.row_with(2, "2.4.0", State::Preparing, 20, ("", ""), |u| {
        u.change_set_id = None;
        u.change_set_created_at = None;
    });
    s.point(Some(&u));
    assert_eq!(
        s.writes_nothing(|s| s.discard(&u)).refusal(),
        (409, "update_preparing")
    );
    // A set that was deleted in the console a moment ago is discarded without another delete.
    let s = Scene::quiet();
    let u = s.pending_prepared();
    s.w.cloud
        .borrow_mut()
        .console_delete(&set_arn(&u.change_set_name));
    assert_eq!(s.discard(&u).refusal(), (409, "already_closed"));
    assert_eq!(code_of(&s.stored(&u)), "change_set_deleted");
}

#[test]
fn bad_input_gets_its_answer_and_writes_nothing() {
    let s = Scene::quiet();
    let post = |body: &str| {
        let claims = json!({"sub": "s", "email": "ana@example.org", "scope": "headgate/read headgate/write"});
        json!({"version": "2.0", "rawPath": "/updates", "body": body,
            "requestContext": {"stage": "$default", "requestId": "r", "http": {"method": "POST"},
                               "authorizer": {"jwt": {"claims": claims}}}})
    };
    for body in [
        "",
        "garbage",
        "[]",
        "{}",
        "{\"release\":5}",
        "{\"release\":\"newest\"}",
        "{\"release\":null}",
    ] {
        let a = s.writes_nothing(|s| s.raw(&post(body)));
        assert_eq!(a.refusal(), (400, "invalid_request"), "{body:?}");
        assert!(!a.at("/errors").as_array().unwrap().is_empty());
    }
    let big = s.writes_nothing(|s| s.raw(&post(&"x".repeat(2_000_000))));
    assert_eq!(big.code, 413);
    for (method, path, code) in [
        ("GET", "/updates/nonsense", 404),
        ("GET", "/nowhere", 404),
        ("DELETE", "/updates", 405),
        ("GET", "/updates/x/apply", 405),
        ("POST", "/version", 405),
    ] {
        let a = s.writes_nothing(|s| s.http(method, path, None));
        assert_eq!(a.code, code, "{method} {path}");
        assert_eq!(a.headers.contains_key("allow"), code == 405);
    }
    for event in [
        json!({}),
        json!({"source": "aws.ec2", "detail-type": "x"}),
        json!([1]),
    ] {
        let e = s.writes_nothing(|s| now_or_never(api::handle(&s.w, &cfg(), &s.invocation(), &event)));
        assert_eq!(e.unwrap_err().error_type, "Headgate.UnknownEvent");
    }
}

#[test]
fn only_a_caller_with_the_scope_gets_in() {
    let s = Scene::quiet();
    let event = |authorizer: Value, method: &str| {
        json!({"version": "2.0", "rawPath": if method == "GET" { "/version" } else { "/updates" },
            "body": "{\"release\":\"2.4.0\"}",
            "requestContext": {"stage": "$default", "requestId": "r", "http": {"method": method},
                               "authorizer": authorizer}})
    };
    let a = s.writes_nothing(|s| s.raw(&event(Value::Null, "GET")));
    assert_eq!(a.refusal(), (401, "unauthenticated"));
    let reader = json!({"jwt": {"claims": {"sub": "s", "scope": "headgate/read"}}});
    assert_eq!(s.raw(&event(reader.clone(), "GET")).code, 200);
    assert_eq!(
        s.writes_nothing(|s| s.raw(&event(reader, "POST"))).refusal(),
        (403, "forbidden")
    );
    let iam = json!({"iam": {"userArn": "arn:aws:sts::1:assumed-role/dashboard/backend"}});
    assert_eq!(s.raw(&event(iam, "POST")).code, 201);
    assert_eq!(s.made(1).started_by, "backend");
}

#[test]
fn history_pages_newest_first() {
    let s = Scene::quiet();
    for seq in 1..=5 {
        s.row_with(seq, "2.3.5", State::Discarded, 900, ("", ""), |u| {
            u.finished_at = Some(start())
        });
    }
    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let event = json!({"version": "2.0", "rawPath": "/updates",
            "queryStringParameters": if cursor.is_empty() { json!({"limit": "2"}) } else { json!({"limit": "2", "cursor": cursor}) },
            "requestContext": {"stage": "$default", "requestId": "r", "http": {"method": "GET"},
                "authorizer": {"jwt": {"claims": {"sub": "s", "scope": "headgate/read"}}}}});
        let a = s.raw(&event);
        assert_eq!(a.code, 200, "{a:?}");
        seen.extend(
            a.at("/updates")
                .as_array()
                .unwrap()
                .iter()
                .map(|u| u["seq"].as_u64().unwrap()),
        );
        match a.at("/next_cursor").as_str() {
            Some(c) => cursor = c.to_owned(),
            None => break,
        }
        assert!(seen.len() < 10);
    }
    assert_eq!(seen, [5, 4, 3, 2, 1]);
}
