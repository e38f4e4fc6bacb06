//! One invocation of link-details: a stage event or an HTTP request, told apart by shape; what is logged and
//! counted about it. No body is ever logged, and no value of an event repeated.

use super::api;
use super::model::Outcome;
use super::run::{self, Outputs, Processed, Stop, World};
use crate::config::ConfigError;
use crate::error::Failure;
use crate::http::{self, Problem, Request, Response};
use crate::store::Table;
use crate::telemetry::Metric;
use crate::time::Timestamp;
use crate::trigger;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Links named in one log line; more are counted only.
const NAMED: usize = 50;

/// The keys that tell the shape. The rest is skipped, and `detail` stays text, so that details keep their
/// bytes.
#[derive(Deserialize)]
struct Peek<'a> {
    #[serde(borrow)]
    source: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "detail-type")]
    detail_type: Option<Cow<'a, str>>,
    #[serde(borrow)]
    detail: Option<&'a RawValue>,
    #[serde(borrow, rename = "requestContext")]
    request_context: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct PeekContext<'a> {
    #[serde(borrow)]
    http: Option<&'a RawValue>,
}

/// Who asked, as far as it is known before anything is read.
enum Shape<'a> {
    Http,
    Stage(&'a str),
    Other(&'static str),
}

fn shape(payload: &str) -> Shape<'_> {
    let Ok(peek) = serde_json::from_str::<Peek<'_>>(payload) else {
        return Shape::Other("its shape is none of those it takes");
    };
    let context = peek
        .request_context
        .and_then(|c| serde_json::from_str::<PeekContext<'_>>(c.get()).ok());
    if context.is_some_and(|c| c.http.is_some()) {
        return Shape::Http;
    }
    match (peek.source.as_deref(), peek.detail_type.as_deref()) {
        (Some("dataplane.controller"), Some("Stage Completed")) => {
            Shape::Stage(peek.detail.map_or("null", RawValue::get))
        }
        (Some(_), Some(_)) => Shape::Other("it is another event"),
        _ => Shape::Other("its shape is none of those it takes"),
    }
}

/// What one invocation brings beside its payload.
#[derive(Debug)]
pub struct Invocation<F> {
    /// The moment of the call; used for HTTP only.
    pub now: Timestamp,
    /// Is there time to start one more update?
    pub has_time: F,
    /// Is the caller check off (local stack only)?
    pub auth_is_local: bool,
}

/// Answers one invocation; the second part is what to count.
///
/// # Errors
/// An event this function does not take, or one that has to be delivered again or never succeeds
/// ([`run::answer`]).
pub async fn handle<T: Table, O: Outputs, F: Fn() -> bool>(
    world: &World<'_, T, O>,
    inv: Invocation<F>,
    payload: &str,
) -> (Result<Value, Failure>, Vec<Metric>) {
    match shape(payload) {
        Shape::Http => {
            let answer = answer_http(world.table, payload, inv.auth_is_local, inv.now).await;
            (Ok(answer.to_event()), vec![])
        }
        Shape::Stage(detail) => {
            let result = Box::pin(run::process(world, detail, inv.has_time)).await;
            log(&result);
            (run::answer(&result), metrics(&result))
        }
        Shape::Other(why) => (Err(trigger::unknown(why)), vec![]),
    }
}

async fn answer_http<T: Table>(table: &T, payload: &str, auth_is_local: bool, now: Timestamp) -> Response {
    let event = serde_json::from_str::<Value>(payload).unwrap_or(Value::Null);
    match Request::parse(&event) {
        Ok(request) => {
            let response = api::respond(table, &request, auth_is_local, now).await;
            let (method, status) = (request.method.as_str(), response.status);
            tracing::info!(method, status, request.id = request.request_id, "answered");
            response
        }
        Err(why) => http::invalid(&[("request", &why)]).finish_unread(&event),
    }
}

/// The answer to every call of a function whose environment is not right.
///
/// # Errors
/// `configuration_error` for a call that is no HTTP request.
pub fn misconfigured(e: &ConfigError, payload: &str) -> Result<Value, Failure> {
    match shape(payload) {
        Shape::Http => {
            let title = "Headgate is not set up correctly";
            let problem = Problem::new(500, "configuration_error", title, e.to_string());
            let event = serde_json::from_str::<Value>(payload).unwrap_or(Value::Null);
            Ok(Response::from(problem).finish_unread(&event).to_event())
        }
        Shape::Stage(_) | Shape::Other(_) => Err(Failure::new("configuration_error", e.to_string())),
    }
}

fn counts(p: &Processed) -> BTreeMap<Outcome, usize> {
    p.outcomes.values().fold(BTreeMap::new(), |mut counts, o| {
        *counts.entry(*o).or_default() += 1;
        counts
    })
}

/// One line per event: ids, generations' token, counts and outcomes; nothing of the body.
fn log(result: &Result<Processed, Stop>) {
    match result {
        Ok(p) => {
            let counts: Vec<String> = counts(p).iter().map(|(o, n)| format!("{o}={n}")).collect();
            let links: Vec<String> = p
                .outcomes
                .iter()
                .take(NAMED)
                .map(|(id, o)| format!("{id}={o}"))
                .collect();
            let (plane, stage, order) = match &p.stamp {
                Some(s) => (s.plane.to_string(), s.stage.as_str(), s.order),
                None => (String::new(), "", 0),
            };
            tracing::info!(
                event = p.event,
                plane,
                stage,
                order,
                counts = counts.join(" "),
                links = links.join(" "),
                unreadable = p.unreadable,
                "stage event"
            );
        }
        Err(Stop::Reject(r)) => tracing::error!(faults = r.0.join("; "), "stage event rejected"),
        Err(Stop::Unread(e)) => {
            tracing::warn!(
                action = e.action,
                code = e.code,
                "outputs not read; the event is retried"
            );
        }
    }
}

/// What contract 6 counts.
fn metrics(result: &Result<Processed, Stop>) -> Vec<Metric> {
    let p = match result {
        Err(Stop::Reject(_)) => return vec![Metric::count("LinkRejects", 1.0)],
        Err(Stop::Unread(e)) => return vec![aws_errors("s3", e.class.as_str(), 1)],
        Ok(p) => p,
    };
    let sum = |is: fn(Outcome) -> bool| p.outcomes.values().filter(|o| is(**o)).count() as f64;
    let mut metrics = vec![Metric::count("LinksPublished", sum(Outcome::wrote))];
    let rejects = sum(Outcome::is_fault);
    if rejects > 0.0 {
        metrics.push(Metric::count("LinkRejects", rejects));
    }
    metrics.extend(
        p.errors
            .iter()
            .map(|(class, n)| aws_errors("dynamodb", class.as_str(), *n)),
    );
    metrics
}

fn aws_errors(service: &str, class: &str, n: usize) -> Metric {
    Metric::count("AwsErrors", n as f64)
        .by("service", service)
        .by("class", class)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::cases;
    use crate::links::fake::{FakeWorld, Trouble, block_on};
    use serde_json::json;

    fn call(world: &FakeWorld, payload: &str) -> (Result<Value, Failure>, Vec<Metric>) {
        let inv = Invocation {
            now: Timestamp::UNIX_EPOCH,
            has_time: || true,
            auth_is_local: true,
        };
        block_on(handle(
            &World {
                table: world,
                outputs: world,
                buckets: &[],
            },
            inv,
            payload,
        ))
    }

    fn envelope(detail: &str) -> String {
        format!(
            r#"{{"version":"0","id":"e","source":"dataplane.controller","detail-type":"Stage Completed","detail":{detail}}}"#
        )
    }

    #[test]
    fn the_event_of_t01_goes_in_and_its_bytes_come_out_over_http() {
        let case = cases::all().into_iter().find(|c| c.id == "T01").unwrap();
        let w = FakeWorld::default();
        w.table.borrow_mut().seed(case.before().remove(0));
        let (answer, metrics) = call(&w, &envelope(&case.events()[0].0));
        assert_eq!(answer.unwrap()["outcomes"]["0000000000000b01"], "Published");
        assert_eq!(metrics, [Metric::count("LinksPublished", 1.0)]);
        let get = json!({"rawPath": format!("/data-planes/{}/private-links/0000000000000b01", case.plane),
            "requestContext":{"http":{"method":"GET"},"stage":"$default"}});
        let (answer, _) = call(&w, &get.to_string());
        let answer = answer.unwrap();
        assert_eq!(answer["statusCode"], 200);
        assert!(
            answer["body"].as_str().unwrap().contains(cases::details("D1")),
            "{answer}"
        );
    }

    #[test]
    fn other_shapes_are_refused_without_a_word_of_their_content() {
        let w = FakeWorld::default();
        for payload in [
            "null",
            "[]",
            r#"{"source":"dataplane.controller","detail-type":"Stage Started","detail":{"key":"hunter2"}}"#,
            r#"{"source":"aws.events","detail-type":"Scheduled Event"}"#,
            r#"{"detail":{"key":"hunter2"}}"#,
            r#"{"source":7,"detail-type":"Stage Completed"}"#,
            r#"{"requestContext":{"key":"hunter2"}}"#,
        ] {
            let failure = call(&w, payload).0.unwrap_err();
            assert_eq!(failure.error_type, "Headgate.UnknownEvent", "{payload}");
            assert!(!failure.message.contains("hunter2"));
        }
        for detail in ["null", "7", r#""hunter2""#, r#"{"schema":"hunter2"}"#] {
            let (answer, metrics) = call(&w, &envelope(detail));
            let failure = answer.unwrap_err();
            assert_eq!(failure.error_type, "Link.Rejected", "{detail}");
            assert!(!failure.message.contains("hunter2"));
            assert_eq!(metrics, [Metric::count("LinkRejects", 1.0)]);
        }
    }

    #[test]
    fn faults_and_trouble_are_counted() {
        let event = |id: &str| {
            cases::all().into_iter().find(|c| c.id == id).unwrap().events()[0]
                .0
                .clone()
        };
        let w = FakeWorld::default();
        let (_, metrics) = call(&w, &envelope(&event("T25")));
        assert_eq!(
            metrics,
            [
                Metric::count("LinksPublished", 0.0),
                Metric::count("LinkRejects", 1.0)
            ]
        );
        w.trouble.borrow_mut().push_back(Trouble::Throttled);
        let (answer, metrics) = call(&w, &envelope(&event("T01")));
        assert_eq!(answer.unwrap_err().error_type, "Link.Retry");
        let errors = Metric::count("AwsErrors", 1.0)
            .by("service", "dynamodb")
            .by("class", "throttled");
        assert_eq!(metrics, [Metric::count("LinksPublished", 0.0), errors]);
    }

    #[test]
    fn a_missing_variable_is_told_to_whoever_asks() {
        let e = ConfigError(vec!["TABLE_NAME is not set.".into()]);
        let http = misconfigured(&e, r#"{"requestContext":{"http":{}}}"#).unwrap();
        assert_eq!(http["statusCode"], 500);
        assert!(http["body"].as_str().unwrap().contains("TABLE_NAME"));
        assert_eq!(
            misconfigured(&e, &envelope("{}")).unwrap_err().error_type,
            "configuration_error"
        );
    }
}
