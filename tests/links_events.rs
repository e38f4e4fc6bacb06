//! The producer's side: the JSON Schema that a controller can check its events with, the fixtures, and what
//! the function makes of both. What the schema refuses the function refuses too, or takes link by link.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "tests: a panic is how they report, and the fixtures are files"
)]

use headgate_core::http::Request;
use headgate_core::links::event::{self, Outputs, Read};
use headgate_core::links::fake::{FakeWorld, block_on};
use headgate_core::links::handle::{Invocation, handle};
use headgate_core::links::run::World;
use headgate_core::links::{cases, edit::Config};
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

fn validator() -> jsonschema::Validator {
    jsonschema::validator_for(&value("stage-completed.schema.json")).unwrap()
}

fn is_stage(event: &Value) -> bool {
    event["detail-type"] == "Stage Completed"
}

#[test]
fn every_event_fixture_is_valid_and_is_read() {
    let validator = validator();
    let mut seen = 0;
    for name in names() {
        let event = value(&name);
        if is_stage(&event) {
            let errors: Vec<String> = validator
                .iter_errors(&event["detail"])
                .map(|e| e.to_string())
                .collect();
            assert!(errors.is_empty(), "{name}: {errors:?}");
            event::read(&event["detail"].to_string()).unwrap_or_else(|r| panic!("{name}: {r:?}"));
            seen += 1;
        }
    }
    assert_eq!(seen, 9);
}

#[test]
fn every_case_but_those_about_bad_results_is_valid() {
    let validator = validator();
    for case in cases::all() {
        for (event, _) in case.events() {
            // T24 and T25 are about elements a producer must not send; every inline event of the cases also
            // carries a key that is not link_results, to show that it is not read.
            // A half of a surrogate pair is JSON text, but no value a validator can hold.
            let mut detail: Value = serde_json::from_str(&event.replace(r"\ud800", "")).unwrap();
            let secret = detail.pointer("/outputs/hmac_keys").is_some();
            assert_eq!(
                validator.is_valid(&detail),
                !secret && !["T24", "T25"].contains(&case.id.as_str()),
                "{}",
                case.id
            );
            if let Some(outputs) = detail.pointer_mut("/outputs").and_then(Value::as_object_mut) {
                outputs.remove("hmac_keys");
            }
            assert_eq!(
                validator.is_valid(&detail),
                !["T24", "T25"].contains(&case.id.as_str()),
                "{}",
                case.id
            );
        }
    }
}

#[test]
fn what_the_schema_refuses_is_refused_or_spoils_its_own_link_only() {
    let validator = validator();
    let good = value("up1-published.json")["detail"].clone();
    let set = |path: &str, to: Value| {
        let mut event = good.clone();
        *event.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = to;
        event
    };
    let pointer = value("up1-outputs-ref.json")["detail"]["outputs_ref"].clone();
    for (path, to) in [
        ("/schema", json!(2)),
        ("/schema", json!("1")),
        ("/data_plane_id", json!("dp1")),
        ("/converge_id", json!("")),
        ("/converge_seq", json!(-1)),
        ("/converge_seq", json!("7")),
        ("/converge_seq", json!(1_844_674_407_370_955_162_u64)),
        ("/stage", Value::Null),
        ("/result", Value::Null),
        ("/completed_at", json!("yesterday")),
        ("/pinned_links", json!({})),
        ("/outputs_ref", pointer),
        ("/outputs_ref", json!({"bucket": "b"})),
    ] {
        let event = set(path, to);
        assert!(!validator.is_valid(&event), "{path}: {event}");
        assert!(event::read(&event.to_string()).is_err(), "{path}: {event}");
    }
    for (path, to) in [
        ("/pinned_links/0/id", json!("L1")),
        ("/pinned_links/0/generation", json!("1")),
        ("/outputs/link_results/0/id", json!(7)),
        ("/outputs/link_results/0/status", json!("deleting")),
        ("/outputs/link_results/0/generation", json!(1.5)),
        ("/outputs/link_results", json!("[secret]")),
    ] {
        let event = set(path, to);
        assert!(!validator.is_valid(&event), "{path}");
        assert!(
            matches!(event::read(&event.to_string()), Ok(Read::Act(_))),
            "{path}"
        );
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
