//! link-details as Lambda runs it: the controller's events in, rows in a real table, the API for who waits for
//! the name, and every fault on the way.

use headgate_tests::{
    Answer, Caller, FakeS3, Function, FunctionBuilder, HttpCall, HttpReply, Outcome, ScriptedAws, Table,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::install::{call, event, get};

const PLANE: &str = "0e8f3a0000000055";
const BUCKET: &str = "outputs-of-planes";
const LINK: &str = "/data-planes/0e8f3a0000000055/private-links/0000000000000b01";

struct Plane {
    table: Table,
    aws: ScriptedAws,
    s3: FakeS3,
}

impl Plane {
    fn new() -> Self {
        let (table, aws, s3) = (Table::create(), ScriptedAws::start(), FakeS3::new());
        aws.forward("dynamodb", table.endpoint());
        s3.serve(&aws);
        Self { table, aws, s3 }
    }

    fn builder(&self) -> FunctionBuilder {
        Function::named("link-details")
            .aws(&self.aws, &self.table.account)
            .env("TABLE_NAME", &self.table.name)
            .env("OUTPUTS_BUCKETS", BUCKET)
    }

    fn function(&self) -> Function {
        let function = self.builder().start();
        function.ready();
        function
    }

    /// Links 1 to `n`, pending at generation 1.
    fn links(&self, n: usize) {
        for i in 1..=n {
            self.table.put(&json!({
                "pk": format!("PLANE#{PLANE}"), "sk": format!("LINK#{}", id(i)), "schema": 1, "id": id(i),
                "config": r#"{"region":"r","az_ids":["a"],"service_name":"s"}"#, "provider": "aws",
                "service_identity": "s", "generation": 1, "status": "pending",
            }));
        }
    }

    fn link(&self, n: usize) -> Value {
        self.table
            .get(&format!("PLANE#{PLANE}"), &format!("LINK#{}", id(n)))
            .unwrap_or_default()
    }
}

fn id(n: usize) -> String {
    format!("{n:016x}")
}

fn put(function: &Function, config: &str) -> HttpReply {
    call(function, &HttpCall::new("PUT", LINK).body(config))
}

const DETAILS: &str = r#"{ "dns_entries":[{"dns_name":"vpce-0a1b2c3d4e5f60718-k3x9q2wz.svc.us-east-1.vpce.amazonaws.com"}], "z":9007199254740993.10,"a":"\u00e9 \ud800" }"#;

fn results(n: usize) -> String {
    let all: Vec<String> = (1..=n)
        .map(|i| {
            format!(
                r#"{{"id":"{}","status":"provisioned","details":{DETAILS}}}"#,
                id(i)
            )
        })
        .collect();
    format!(r#"{{"link_results":[{}],"hmac_keys":"hunter2"}}"#, all.join(","))
}

fn stage(stage: &str, n: usize, outputs: &str) -> Vec<u8> {
    let pins: Vec<String> = (1..=n)
        .map(|i| format!(r#"{{"id":"{}","generation":1}}"#, id(i)))
        .collect();
    format!(
        r#"{{"source":"dataplane.controller","detail-type":"Stage Completed","ssh_key":"hunter2","detail":{{"schema":1,"data_plane_id":"{PLANE}","converge_id":"c","converge_seq":7,"stage":"{stage}","result":"succeeded","completed_at":"2026-09-10T12:00:40Z","bastion_tunnel_private_key":"hunter2","pinned_links":[{}],{outputs}}}}}"#,
        pins.join(",")
    )
    .into_bytes()
}

fn inline(n: usize) -> Vec<u8> {
    stage("PulumiUp1", n, &format!(r#""outputs":{}"#, results(n)))
}

fn pointer(key: &str, version: &str, object: &[u8]) -> String {
    let sha: String = Sha256::digest(object)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    format!(
        r#""outputs_ref":{{"bucket":"{BUCKET}","key":"{key}","version_id":{version},"bytes":{},"sha256":"{sha}"}}"#,
        object.len()
    )
}

fn deliver(function: &Function, event: &[u8]) -> Outcome {
    function.begin(event).outcome()
}

/// The outcome of every link, in the order of ids.
fn outcomes(outcome: Outcome) -> Vec<String> {
    let answer = outcome.answer();
    let map = answer["outcomes"]
        .as_object()
        .unwrap_or_else(|| panic!("{answer}"));
    map.values().map(|v| v.as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_name_is_readable_while_pending_and_an_edit_in_between_is_not_stamped() {
    let plane = Plane::new();
    let f = plane.function();
    let config = r#"{"region":"us-east-1","az_ids":["use1-az1"],"service_name":"svc-a"}"#;
    assert_eq!(put(&f, config).expect(201).text("/phase"), "waiting");
    let mut published = event!("link-details", "up1-published");
    published["detail"]["completed_at"] = json!(headgate_tests::ago(60));
    f.invoke(&published).answer();
    let ready = get(&f, LINK);
    assert_eq!(
        (ready.text("/phase"), ready.text("/status")),
        ("dns_ready", "pending")
    );
    assert_eq!(ready.text("/connect/endpoint_id"), "vpce-0a1b2c3d4e5f60718");
    assert!(
        ready.text("/support_text").contains(ready.text("/connect/host")),
        "{ready:?}"
    );
    assert_eq!(
        (ready.at("/observed_at"), ready.header("retry-after")),
        (&Value::Null, "60")
    );
    // Edited while the converge runs: what that converge says later is about another configuration.
    let edited = config.replace("use1-az1", "use1-az2");
    assert_eq!(put(&f, &edited).expect(200).at("/generation"), &json!(2));
    let settled = f.invoke(&event!("link-details", "ansible-settled"));
    assert_eq!(
        settled.answer()["outcomes"]["0000000000000b01"],
        "StaleGeneration"
    );
    assert_eq!(get(&f, LINK).text("/phase"), "waiting");
    // Set back by a third edit, the next converge (its event pins generation 3) settles it.
    assert_eq!(put(&f, config).expect(200).at("/generation"), &json!(3));
    let mut next = event!("link-details", "ansible-settled");
    next["detail"]["pinned_links"][0]["generation"] = json!(3);
    next["detail"]["outputs"]["link_results"][0]["generation"] = json!(3);
    assert_eq!(
        f.invoke(&next).answer()["outcomes"]["0000000000000b01"],
        "Settled"
    );
    let done = get(&f, LINK);
    assert_eq!(
        (done.text("/phase"), done.text("/observed_at")),
        ("ready", "2026-09-10T12:11:05Z")
    );
    assert_eq!(done.header("retry-after"), "");
    call(&f, &HttpCall::new("DELETE", LINK)).expect(204);
    call(&f, &HttpCall::new("DELETE", LINK)).expect(204);
    get(&f, LINK).expect_problem(404, "not_found");
}

#[test]
fn details_keep_their_bytes_and_no_secret_is_logged_or_stored() {
    let plane = Plane::new();
    plane.links(1);
    let f = plane.builder().env("AWS_LAMBDA_LOG_LEVEL", "TRACE").start();
    assert_eq!(outcomes(deliver(&f, &inline(1))), ["Published"]);
    assert_eq!(plane.link(1)["details"], DETAILS);
    let answer = f
        .invoke(HttpCall::get(&format!("/data-planes/{PLANE}/private-links")).event())
        .answer();
    assert!(answer["body"].as_str().unwrap().contains(DETAILS), "{answer}");
    let refused = String::from_utf8(inline(1))
        .unwrap()
        .replace(r#""schema":1"#, r#""schema":"hunter2""#);
    let (kind, message) = deliver(&f, refused.as_bytes()).error();
    assert!(
        kind == "Link.Rejected" && !message.contains("hunter2"),
        "{message}"
    );
    let other = String::from_utf8(inline(1))
        .unwrap()
        .replace("Stage Completed", "Stage Started");
    assert_eq!(deliver(&f, other.as_bytes()).error().0, "Headgate.UnknownEvent");
    assert_eq!(f.logged("hunter2"), 0, "{:?}", f.logs());
    assert!(
        !plane
            .table
            .items()
            .iter()
            .any(|i| i.to_string().contains("hunter2"))
    );
    assert_eq!(
        (
            f.logged("\"LinksPublished\":1.0"),
            f.logged("\"LinkRejects\":1.0")
        ),
        (1, 1)
    );
}

#[test]
fn a_partly_written_event_is_retried_and_ends_as_duplicate() {
    let plane = Plane::new();
    plane.links(3);
    let f = plane.function();
    // The SDK tries each of them three times.
    plane.aws.next_n(3, "dynamodb", "UpdateItem", Answer::Throttled);
    plane.aws.always("dynamodb", "UpdateItem", Answer::Throttled);
    let (kind, message) = deliver(&f, &inline(3)).error();
    assert_eq!(kind, "Link.Retry");
    assert!(
        (1..=3).all(|n| message.contains(&format!("{}=Unwritten", id(n)))),
        "{message}"
    );
    plane.aws.clear("dynamodb", "UpdateItem");
    // One write lands and its answer is lost: the SDK's own retry meets its token.
    plane.aws.next("dynamodb", "UpdateItem", Answer::lost());
    let mut first = outcomes(deliver(&f, &inline(3)));
    first.sort();
    assert_eq!(first, ["Duplicate", "Published", "Published"]);
    assert_eq!(outcomes(deliver(&f, &inline(3))), ["Duplicate"; 3]);
    assert!((1..=3).all(|n| plane.link(n)["w_order"] == json!(71)));
}

#[test]
fn the_pointer_is_followed_to_the_version_it_names_and_checked() {
    let plane = Plane::new();
    plane.links(1);
    let f = plane.function();
    let (old, new) = (results(1).into_bytes(), results(0).into_bytes());
    plane.s3.put(BUCKET, "k", old.clone());
    let send = |outputs: &str| deliver(&f, &stage("PulumiUp1", 1, outputs));
    assert_eq!(send(&pointer("gone", "null", &old)).error().0, "Link.Retry");
    assert_eq!(send(&pointer("k", "\"v9\"", &old)).error().0, "Link.Retry");
    assert_eq!(send(&pointer("k", "\"v1\"", &new)).error().0, "Link.Rejected");
    let elsewhere = pointer("k", "null", &old).replace(BUCKET, "elsewhere");
    assert_eq!(send(&elsewhere).error().0, "Link.Rejected");
    plane.aws.next_n(3, "s3", "GetObject", Answer::ServerError);
    assert_eq!(send(&pointer("k", "null", &old)).error().0, "Link.Retry");
    plane.aws.next("s3", "GetObject", Answer::AccessDenied);
    assert_eq!(send(&pointer("k", "null", &old)).error().0, "Link.Retry");
    plane
        .aws
        .next("s3", "GetObject", Answer::Cut(Box::new(Answer::Behind)));
    assert_eq!(send(&pointer("k", "null", &old)).error().0, "Link.Retry");
    assert_eq!(plane.link(1).get("details"), None);
    assert_eq!(outcomes(send(&pointer("k", "\"v1\"", &old))), ["Published"]);
    plane.s3.put(BUCKET, "k", new.clone());
    assert_eq!(send(&pointer("k", "null", &old)).error().0, "Link.Rejected");
    assert_eq!(outcomes(send(&pointer("k", "\"v2\"", &new))), ["NoObservation"]);
}

/// Ten thousand links through the pointer: every one is written once, eight requests are under way together,
/// never more, and the process stays within 64 MB.
#[test]
fn ten_thousand_links_in_bounded_memory_with_eight_in_flight() {
    const LINKS: usize = 10_000;
    let plane = Plane::new();
    let object = results(LINKS).into_bytes();
    plane.s3.put(BUCKET, "big", object.clone());
    plane.aws.always("dynamodb", "UpdateItem", Answer::ok(json!({})));
    // The first eight are answered only when all of them have come.
    plane.aws.meet(&[("dynamodb", "UpdateItem"); 8]);
    let f = plane.builder().timeout_seconds(900).start();
    let mark = plane.aws.mark();
    let event = stage("PulumiUp1", LINKS, &pointer("big", "null", &object));
    let answer = f
        .begin(&event)
        .outcome_within(headgate_tests::PATIENCE * 5)
        .answer();
    let map = answer["outcomes"].as_object().unwrap();
    assert_eq!(
        (map.len(), map.values().filter(|o| *o == "Published").count()),
        (LINKS, LINKS)
    );
    let traffic = plane.aws.since(mark);
    assert_eq!(traffic.of("dynamodb", "UpdateItem"), LINKS);
    // Arrivals and answers in their order: how many were under way at once.
    let mut moments: Vec<(u64, i32)> = Vec::new();
    for record in traffic.0.iter().filter(|r| r.call.operation == "UpdateItem") {
        moments.push((record.arrived, 1));
        moments.extend(record.answered.map(|at| (at, -1)));
    }
    moments.sort_unstable();
    let mut now = 0;
    let most = moments
        .iter()
        .map(|(_, step)| {
            now += step;
            now
        })
        .max();
    assert_eq!(most, Some(8));
    if let Some(peak) = f.peak_rss_kb() {
        assert!(peak <= 64 * 1024, "{peak} kB");
    }
}

#[test]
fn without_time_left_nothing_is_started() {
    let plane = Plane::new();
    plane.links(2);
    let f = plane.builder().timeout_seconds(3).start();
    f.ready();
    let mark = plane.aws.mark();
    let (kind, message) = deliver(&f, &inline(2)).error();
    assert!(kind == "Link.Retry" && message.contains("2 of 2"), "{message}");
    assert_eq!(plane.aws.since(mark).total(), 0);
}

#[test]
fn the_door_of_links_is_shut_without_a_hint() {
    let plane = Plane::new();
    let f = plane.function();
    let config = r#"{"region":"us-east-1","az_ids":["use1-az1"],"service_name":"svc-a"}"#;
    put(&f, config).expect(201);
    let other = LINK.replace("0b01", "0b02");
    let list = format!("/data-planes/{PLANE}/private-links");
    let as_scope = |call: HttpCall, scope: &str| call.caller(&Caller::jwt("sam@example.com", scope));
    call(&f, &HttpCall::get(&list).caller(&Caller::Nobody)).expect_problem(401, "unauthenticated");
    let (there, absent) = (
        as_scope(HttpCall::get(LINK), "x"),
        as_scope(HttpCall::get(&other), "x"),
    );
    assert_eq!(
        call(&f, &there).expect_problem(404, "not_found").body,
        call(&f, &absent).body
    );
    assert_eq!(
        call(&f, &as_scope(HttpCall::get(&list), "x")).expect(200).body,
        json!({"links": []})
    );
    for path in [LINK, other.as_str()] {
        let refused = as_scope(
            HttpCall::new("PUT", path).body(config),
            "headgate/read headgate/links",
        );
        call(&f, &refused).expect_problem(403, "forbidden");
    }
    let sam = as_scope(HttpCall::get(LINK), "headgate/links");
    let seen = call(&f, &sam);
    let again = call(&f, &sam.header("if-none-match", seen.expect(200).header("etag")));
    assert_eq!((again.status, &again.body), (304, &Value::Null));
    let dashboard = HttpCall::get(&list).caller(&Caller::dashboard()).stage("live");
    assert_eq!(
        call(&f, &dashboard).expect(200).at("/links/0/id"),
        &json!("0000000000000b01")
    );
}

#[test]
fn a_table_in_trouble_is_said_and_a_missing_variable_too() {
    let plane = Plane::new();
    let f = plane.function();
    plane.aws.next_n(3, "dynamodb", "GetItem", Answer::ServerError);
    get(&f, LINK).expect_problem(503, "aws_unavailable");
    plane.aws.next_n(3, "dynamodb", "Query", Answer::Throttled);
    let list = get(&f, &format!("/data-planes/{PLANE}/private-links"));
    list.expect_problem(503, "aws_unavailable");
    assert_eq!(list.header("retry-after"), "5");
    let unset = plane.builder().without("TABLE_NAME").start();
    let told = get(&unset, LINK);
    assert!(
        told.expect_problem(500, "configuration_error")
            .text("/detail")
            .contains("TABLE_NAME")
    );
    assert_eq!(deliver(&unset, &inline(1)).error().0, "configuration_error");
}

/// How near the function comes to what eight updates in flight allow, against an endpoint that takes 25 ms for
/// each. A measurement for ./bench, which builds for release: the figure is the last line of the output.
#[test]
#[ignore = "a measurement: ./bench runs it"]
#[expect(
    clippy::disallowed_methods,
    reason = "it measures time, against an endpoint with a fixed delay"
)]
fn bench_eight_updates_in_flight() {
    use std::time::{Duration, Instant};
    const LINKS: usize = 2_000;
    const DELAY: Duration = Duration::from_millis(25);
    let plane = Plane::new();
    let slow = Answer::with(|_| {
        std::thread::sleep(DELAY);
        Answer::ok(json!({}))
    });
    plane.aws.always("dynamodb", "UpdateItem", slow);
    let f = plane.builder().timeout_seconds(900).start();
    // Connections are made first: a warm function is what is measured.
    assert_eq!(outcomes(deliver(&f, &inline(16))).len(), 16);
    let event = inline(LINKS);
    let began = Instant::now();
    assert_eq!(outcomes(deliver(&f, &event)).len(), LINKS);
    let took = began.elapsed();
    let allowed = DELAY * u32::try_from(LINKS / 8).unwrap();
    let share = allowed.as_secs_f64() / took.as_secs_f64();
    println!(
        "links_in_flight_share {:.1} % ({LINKS} links, {took:.2?} instead of {allowed:.2?})",
        share * 100.0
    );
    assert!(share >= 0.9, "{share}");
}
