//! The door: who may come in, and what is refused before anything is asked or written.

use headgate_tests::{Caller, Function, HttpCall, HttpReply};
use serde_json::{Value, json};

use crate::install::{Install, call, event, get, version};

/// Every route of contract 4.3 and the scope it needs.
fn routes(id: &str) -> Vec<(HttpCall, &'static str)> {
    vec![
        (HttpCall::get("/version"), "headgate/read"),
        (HttpCall::get("/updates"), "headgate/read"),
        (HttpCall::get(&format!("/updates/{id}")), "headgate/read"),
        (
            HttpCall::post("/updates").json(&json!({"release": "2.4.0"})),
            "headgate/write",
        ),
        (HttpCall::post(&format!("/updates/{id}/apply")), "headgate/write"),
        (
            HttpCall::post(&format!("/updates/{id}/discard")),
            "headgate/write",
        ),
    ]
}

const SOME_ID: &str = "0193786a-6d7f-7c3b-8a55-3f0a1f6d5b10";

#[test]
fn nobody_and_the_wrong_scope_stay_outside() {
    let install = Install::new();
    let updater = install.updater();
    let mark = install.aws.mark();
    let nameless = Caller::Jwt {
        email: None,
        sub: String::new(),
        scope: "headgate/read headgate/write".into(),
    };
    for (request, needed) in routes(SOME_ID) {
        for caller in [
            &Caller::Nobody,
            &nameless,
            &Caller::Iam {
                user_arn: String::new(),
            },
        ] {
            call(&updater, &request.clone().caller(caller)).expect_problem(401, "unauthenticated");
        }
        let other = if needed == "headgate/read" {
            "headgate/write"
        } else {
            "headgate/read"
        };
        for scope in [
            "",
            "openid email",
            "headgate",
            "headgate/readx headgate/writex",
            "headgate/links",
            other,
        ] {
            let refused = call(
                &updater,
                &request.clone().caller(&Caller::jwt("eve@example.com", scope)),
            );
            refused.expect_problem(403, "forbidden");
            assert!(refused.text("/detail").contains(needed), "{scope}: {refused:?}");
        }
    }
    assert_eq!(
        install.aws.since(mark).total(),
        0,
        "{:?}",
        install.aws.since(mark).names()
    );
    assert_eq!(install.table.items(), [] as [Value; 0]);
}

#[test]
fn the_right_scope_and_the_backend_come_in() {
    let install = Install::new();
    let updater = install.updater();
    for (request, needed) in routes(SOME_ID) {
        for caller in [Caller::jwt("ana@example.com", needed), Caller::dashboard()] {
            let reply = call(&updater, &request.clone().caller(&caller));
            assert!(![401, 403].contains(&reply.status), "{caller:?}: {reply:?}");
        }
    }
}

#[test]
fn the_recorded_name_is_who_the_gateway_says() {
    let sub_only = Caller::Jwt {
        email: None,
        sub: "sub-1".into(),
        scope: "headgate/write".into(),
    };
    let cases: [(Caller, Option<&str>, &str); 6] = [
        (Caller::ana(), None, "ana@example.com"),
        (Caller::ana(), Some("mallory"), "ana@example.com"),
        (sub_only, None, "sub-1"),
        (Caller::dashboard(), None, "dashboard"),
        (
            Caller::dashboard(),
            Some("Ana Müller"),
            "Ana Müller (via dashboard)",
        ),
        (
            Caller::Iam {
                user_arn: "arn:aws:iam::123456789012:user/ops/bob".into(),
            },
            Some("ana"),
            "ana (via bob)",
        ),
    ];
    for (caller, actor, recorded) in cases {
        let install = Install::new();
        let updater = install.updater();
        let mut request = HttpCall::post("/updates")
            .json(&json!({"release": "2.4.0"}))
            .caller(&caller);
        if let Some(actor) = actor {
            request = request.header("x-headgate-actor", actor);
        }
        let reply = call(&updater, &request);
        reply.expect(201);
        assert_eq!(reply.text("/started_by"), recorded);
        assert_eq!(install.rows()[0]["started_by"], recorded);
    }
}

#[test]
fn an_actor_that_is_no_name_is_refused() {
    let install = Install::new();
    let updater = install.updater();
    let long = "x".repeat(129);
    for actor in ["", "a\nb", "tab\there", "nul\0", &long] {
        let request = HttpCall::post("/updates")
            .json(&json!({"release": "2.4.0"}))
            .caller(&Caller::dashboard())
            .header("x-headgate-actor", actor);
        call(&updater, &request).expect_problem(400, "invalid_request");
    }
    assert_eq!(install.table.items(), [] as [Value; 0]);
}

#[test]
fn the_local_stack_may_turn_the_check_off() {
    let install = Install::new();
    let updater = install.builder().env("HEADGATE_AUTH", "local").start();
    call(&updater, &HttpCall::get("/version").caller(&Caller::Nobody)).expect(200);
}

#[test]
fn every_event_file_is_understood() {
    let install = Install::new();
    let updater = install.updater();
    let statuses = [
        (event!("get-version-jwt"), 200),
        (event!("get-version-iam"), 200),
        (event!("list-updates-jwt"), 200),
        (event!("list-updates-iam"), 200),
        (event!("get-update-jwt"), 404),
        (event!("get-update-iam"), 404),
        (event!("apply-jwt"), 404),
        (event!("apply-iam"), 404),
        (event!("discard-jwt"), 404),
        (event!("discard-iam"), 404),
        (event!("begin-jwt"), 201),
        (event!("begin-iam"), 409),
    ];
    for (event, status) in statuses {
        let reply = HttpReply::from_answer(&updater.invoke(&event).answer());
        assert_eq!(reply.status, status, "{} {reply:?}", event["rawPath"]);
    }
    assert_eq!(install.rows()[0]["started_by"], "ana@example.com");
}

#[test]
fn routes_are_found_by_method_and_path() {
    let install = Install::new();
    let updater = install.updater();
    for path in [
        "/",
        "/versions",
        "/version/x",
        "/updates/a/b/c",
        "/updates/x/applyx",
        "/%ff",
        "//",
        "/VERSION",
    ] {
        let reply = get(&updater, path);
        assert_eq!((reply.status, reply.text("/code")), (404, "not_found"), "{path}");
    }
    for (method, path, allow) in [
        ("POST", "/version", "GET"),
        ("DELETE", "/updates", "GET, POST"),
        ("PUT", "/updates/x", "GET"),
        ("GET", "/updates/x/apply", "POST"),
        ("GET", "/updates/x/discard", "POST"),
    ] {
        let reply = call(&updater, &HttpCall::new(method, path));
        reply.expect_problem(405, "method_not_allowed");
        assert_eq!(reply.header("allow"), allow, "{method} {path}");
    }
    // A named stage is not part of the route; a trailing slash is not either.
    call(&updater, &HttpCall::get("/version").stage("live")).expect(200);
    get(&updater, "/version/").expect(200);
}

#[test]
fn a_bad_body_is_refused_with_every_fault_and_nothing_is_written() {
    let install = Install::new();
    let updater = install.updater();
    let post = || HttpCall::post("/updates");
    let mark = install.aws.mark();
    let bad = [
        post(),
        post().body(""),
        post().body("{"),
        post().body("{\"release\": "),
        post().body("[]"),
        post().body("null"),
        post().body("\"2.4.0\""),
        post().body("\u{0}\u{1}\u{fffd}"),
        post().json(&json!({})),
        post().json(&json!({"release": null})),
        post().json(&json!({"release": 2.4})),
        post().json(&json!({"release": ""})),
        post().json(&json!({"release": ["2.4.0"]})),
        post().json(&json!({"release": "not a version"})),
        post().json(&json!({"release": "x".repeat(10_000)})),
        post().body("bm90IGpzb24=").base64(),
    ];
    for request in &bad {
        let reply = call(&updater, request);
        let shown = request.event()["body"].to_string();
        assert_eq!(reply.status, 400, "{}: {reply:?}", &shown[..shown.len().min(80)]);
        reply.expect_problem(400, "invalid_request");
        assert!(
            reply
                .at("/errors")
                .as_array()
                .is_some_and(|errors| !errors.is_empty()),
            "{reply:?}"
        );
    }
    // 2 MB, plain and base64.
    let big = format!(
        "{{\"release\": \"2.4.0\", \"pad\": \"{}\"}}",
        "x".repeat(2 * 1024 * 1024)
    );
    let reply = call(&updater, &post().body(&big));
    assert_eq!(reply.status, 413, "{}", reply.text("/code"));
    assert_eq!(reply.header("content-type"), "application/problem+json");
    let big_base64 = "QUFB".repeat(700_000);
    assert_eq!(call(&updater, &post().body(&big_base64).base64()).status, 413);
    // The limit holds on routes that need no body, too.
    for path in ["apply", "discard"] {
        let reply = call(
            &updater,
            &HttpCall::post(&format!("/updates/{SOME_ID}/{path}")).body(&big),
        );
        assert_eq!(reply.status, 413, "{path}: {}", reply.text("/code"));
    }
    // Not base64 although it says so.
    assert_eq!(call(&updater, &post().body("###").base64()).status, 400);
    let writes = install.aws.since(mark).0.iter().any(|record| {
        ["PutItem", "UpdateItem", "TransactWriteItems", "CreateChangeSet"]
            .contains(&record.call.operation.as_str())
    });
    assert!(!writes, "{:?}", install.aws.since(mark).names());
    assert_eq!(install.table.items(), [] as [Value; 0]);
}

#[test]
fn an_unknown_id_is_not_found_whatever_it_looks_like() {
    let install = Install::new();
    let updater = install.updater();
    install.prepare(&updater, "2.4.0");
    let before = install.table.items();
    let long = "a".repeat(2000);
    for id in [
        SOME_ID,
        "1",
        "HEAD",
        "UPDATE%23HEAD",
        "0000000001",
        "..%2F..%2Fversion",
        "%00",
        "%F0%9F%90%9F",
        &long,
    ] {
        for request in [
            HttpCall::get(&format!("/updates/{id}")),
            HttpCall::post(&format!("/updates/{id}/apply")),
            HttpCall::post(&format!("/updates/{id}/discard")),
        ] {
            let reply = call(&updater, &request);
            assert_eq!(
                (reply.status, reply.text("/code")),
                (404, "not_found"),
                "{id}: {reply:?}"
            );
        }
    }
    assert_eq!(install.table.items(), before);
    assert_eq!(install.cloudformation_writes(), (1, 0, 0));
}

#[test]
fn bad_paging_is_refused() {
    let install = Install::new();
    let updater = install.updater();
    for query in [
        "limit=0",
        "limit=-1",
        "limit=x",
        "limit=1000000",
        "cursor=%00",
        "cursor=bm9wZQ",
    ] {
        get(&updater, &format!("/updates?{query}")).expect_problem(400, "invalid_request");
    }
    let both = get(&updater, "/updates?limit=x&cursor=!");
    assert_eq!(both.at("/errors").as_array().map(Vec::len), Some(2), "{both:?}");
}

/// What a function without a usable environment answers to a request and to an event.
fn unconfigured(updater: &Function) -> (HttpReply, (String, String)) {
    let reply = call(updater, &HttpCall::get("/version"));
    (reply, updater.invoke(&event!("tick-events")).error())
}

#[test]
fn a_missing_or_malformed_variable_is_named_in_every_answer() {
    let install = Install::new();
    let cases: [(&str, Option<&str>, &str); 8] = [
        ("TABLE_NAME", None, "table"),
        ("TABLE_NAME", Some(""), "table"),
        ("STACK_NAME", None, "stack"),
        ("STACK_NAME", Some("not a stack!"), "stack"),
        ("RELEASES_URI", None, "s3://bucket/key"),
        (
            "RELEASES_URI",
            Some("https://example.com/hunter2"),
            "s3://bucket/key",
        ),
        ("CHANGE_SET_ROLE_ARN", Some("admin"), "ARN"),
        ("HEADGATE_AUTH", Some("off"), "local"),
    ];
    for (name, value, form) in cases {
        let mark = install.aws.mark();
        let builder = install.builder();
        let updater = match value {
            Some(value) => builder.env(name, value).start(),
            None => builder.without(name).start(),
        };
        let (reply, (kind, message)) = unconfigured(&updater);
        reply.expect_problem(500, "configuration_error");
        for text in [reply.text("/detail"), &message] {
            assert!(text.contains(name) && text.contains(form), "{name}: {text}");
            assert!(!text.contains("hunter2"), "{text}");
        }
        assert!(
            kind.to_lowercase()
                .replace(['_', '.'], "")
                .contains("configurationerror"),
            "{kind}"
        );
        let words = updater.last_words();
        let logged = words.iter().filter(|line| line.contains(name)).count();
        assert_eq!(logged, 1, "logged once: {words:#?}");
        assert_eq!(
            install.aws.since(mark).total(),
            0,
            "{:?}",
            install.aws.since(mark).names()
        );
    }
}

#[test]
fn every_fault_of_the_environment_is_listed_at_once() {
    let install = Install::new();
    let updater = install
        .builder()
        .without("TABLE_NAME")
        .env("RELEASES_URI", "s3://")
        .start();
    let (reply, _) = unconfigured(&updater);
    let detail = reply.text("/detail");
    assert!(
        detail.contains("TABLE_NAME") && detail.contains("RELEASES_URI"),
        "{detail}"
    );
}

#[test]
fn no_value_of_the_stack_reaches_an_answer_the_table_or_the_log() {
    let install = Install::new();
    let updater = install.updater();
    install.run(&updater, "2.4.0");
    let seen = [version(&updater).body, get(&updater, "/updates").body];
    for text in [
        json!(seen).to_string(),
        json!(install.table.items()).to_string(),
        updater.last_words().join("\n"),
    ] {
        for secret in ["hunter2", "secret-of-the-test", "Bearer "] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
}
