//! The producer's side: the fixtures of the controller's event and of the HTTP requests, and what the function
//! makes of them. That the fixtures keep the JSON Schema is checked by `links_schema.py`, with a validator that
//! is in `.venv/` anyway: the one for Rust would change features of crates below the SDK and have all of them
//! compiled twice.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "tests: a panic is how they report, and the fixtures are files"
)]

use headgate_core::http::Request;
use headgate_core::links::edit::Config;
use headgate_core::links::event::{self, Outputs, Read};
use headgate_core::links::fake::{FakeWorld, block_on};
use headgate_core::links::handle::{Invocation, handle};
use headgate_core::links::run::World;
use headgate_core::time::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::PathBuf;

fn folder() -> PathBuf {
    let mut here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    while !here.join("events/link-details").is_dir() {
        assert!(here.pop(), "events/link-details is above the package");
    }
    here.join("events/link-details")
}

fn text(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap()
}

fn value(name: &str) -> Value {
    serde_json::from_str(&text(name)).unwrap()
}

/// Names of all fixtures, in order.
fn names() -> Vec<String> {
    let all = std::fs::read_dir(folder()).unwrap();
    let mut names: Vec<String> = all
        .map(|f| f.unwrap().file_name().into_string().unwrap())
        .collect();
    names.retain(|n| !n.ends_with(".schema.json") && n != "outputs.json");
    names.sort();
    names
}

#[test]
fn every_event_fixture_is_read() {
    let mut seen = 0;
    for name in names() {
        let event = value(&name);
        if event["detail-type"] == "Stage Completed" {
            event::read(&event["detail"].to_string()).unwrap_or_else(|r| panic!("{name}: {r:?}"));
            seen += 1;
        }
    }
    assert_eq!(seen, 9);
}

/// `links_bad_events.json` lists what a controller must not send; `links_schema.py` shows that the schema
/// refuses all of it. The function refuses the event, or only the link it is about.
#[test]
fn what_the_schema_refuses_is_refused_or_spoils_its_own_link_only() {
    let good = value("up1-published.json")["detail"].clone();
    let bad: Value = serde_json::from_str(include_str!("links_bad_events.json")).unwrap();
    for (kind, rejected) in [("rejected", true), ("one_link", false)] {
        let changes = bad[kind].as_array().unwrap();
        assert!(!changes.is_empty());
        for change in changes {
            let mut event = good.clone();
            *event.pointer_mut(change["at"].as_str().unwrap()).unwrap() = change["to"].clone();
            let text = event.to_string();
            let read = event::read(&text);
            assert_eq!(read.is_err(), rejected, "{change}: {read:?}");
        }
    }
}

#[test]
fn the_pointer_fixture_describes_its_object() {
    let detail = value("up1-outputs-ref.json")["detail"].to_string();
    let Ok(Read::Act(event)) = event::read(&detail) else {
        panic!("{detail}")
    };
    let Outputs::Pointer(pointer) = &event.outputs else {
        panic!("{detail}")
    };
    let object = std::fs::read(folder().join("outputs.json")).unwrap();
    assert_eq!(pointer.bytes, object.len() as u64);
    assert_eq!(pointer.sha256, headgate_core::http::hex(&Sha256::digest(&object)));
}

/// One life of a link, played from the fixtures as they are.
#[test]
fn the_fixtures_play_a_links_life() {
    let world = FakeWorld::default();
    let call = |name: &str| -> Result<Value, String> {
        let inv = Invocation {
            now: Timestamp::UNIX_EPOCH,
            has_time: || true,
            auth_is_local: false,
        };
        let w = World {
            table: &world,
            outputs: &world,
            buckets: &[],
        };
        let (answer, _) = block_on(handle(&w, inv, &text(name)));
        answer
            .map_err(|f| f.error_type)
            .map(|a| match a.get("body").and_then(Value::as_str) {
                Some(body) if !body.is_empty() => serde_json::from_str(body).unwrap(),
                _ => a,
            })
    };
    let outcome = |name: &str| {
        call(name).unwrap()["outcomes"]["0000000000000b01"]
            .as_str()
            .map(str::to_owned)
    };
    assert_eq!(call("put-link-aws-iam.json").unwrap()["phase"], "waiting");
    assert_eq!(call("await-dns-1.json").unwrap()["event"], "StageIgnored");
    assert_eq!(
        call("up1-stage-failed.json").unwrap()["event"],
        "StageNotSucceeded"
    );
    assert_eq!(outcome("up1-first-link.json").as_deref(), Some("Published"));
    let shown = call("get-link-jwt.json").unwrap();
    assert_eq!(
        (&shown["phase"], &shown["status"]),
        (&json!("dns_ready"), &json!("pending"))
    );
    let host = "vpce-0a1b2c3d4e5f60718-k3x9q2wz.vpce-svc-0f3a5c7e9b1d2f4a6.us-east-1.vpce.amazonaws.com";
    assert_eq!(shown["connect"]["host"], host);
    assert_eq!(shown["connect"]["endpoint_id"], "vpce-0a1b2c3d4e5f60718");
    assert!(
        shown["message"]
            .as_str()
            .unwrap()
            .contains("network is being rebuilt")
    );
    assert_eq!(outcome("up1-published.json").as_deref(), Some("Duplicate"));
    assert_eq!(outcome("ansible-settled.json").as_deref(), Some("Settled"));
    assert_eq!(call("get-link-jwt.json").unwrap()["phase"], "ready");
    // Edited in between: the converge that pinned the first generation stamps nothing any more.
    assert_eq!(call("put-link-azure-iam.json").unwrap()["generation"], 2);
    assert_eq!(
        outcome("converge-settled.json").as_deref(),
        Some("StaleGeneration")
    );
    assert_eq!(call("put-link-gcp-iam.json").unwrap()["generation"], 3);
    assert_eq!(
        call("list-links-jwt.json").unwrap()["links"][0]["provider"],
        "gcp"
    );
    assert_eq!(
        call("list-links-iam.json").unwrap()["links"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(call("delete-link-jwt.json").unwrap()["statusCode"], 204);
    assert_eq!(outcome("up1-failed-link.json").as_deref(), Some("LinkGone"));
    assert_eq!(outcome("up1-azure.json").as_deref(), Some("LinkGone"));
    assert_eq!(call("up1-outputs-ref.json").unwrap_err(), "Link.Rejected");
    assert_eq!(call("unknown.json").unwrap_err(), "Headgate.UnknownEvent");
}

#[test]
fn every_request_fixture_is_a_request_and_its_body_a_configuration() {
    for name in names() {
        let event = value(&name);
        if event.get("requestContext").is_some() {
            let request = Request::parse(&event).unwrap();
            assert_eq!(
                request.segments()[0],
                "data-planes",
                "the stage is stripped: {name}"
            );
            if request.method == "PUT" {
                let config = Config::read(&request.body).unwrap();
                assert!(name.contains(config.provider.as_str()), "{name}");
            }
        }
    }
}
