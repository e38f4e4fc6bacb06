//! Task actions in the order of the workflow, routes and the schedule, through the function's own entry.

use super::cases::{now, row, up};
use crate::config::DomainProvisioner;
use crate::domains::api::{Invocation, handle};
use crate::domains::fake::{Mem, cell, drive, used_port};
use crate::domains::model::{Generation, State, SweepPolicy};
use crate::error::Failure;
use crate::http::weak_etag;
use crate::store::{Attr, Item};
use crate::time::Timestamp;
use serde_json::{Value, json};

fn cfg() -> DomainProvisioner {
    DomainProvisioner {
        table: "t".into(),
        cell: cell(),
        node: "mi-0".into(),
        document: "d".into(),
        saga: "arn:aws:states:eu-west-1:1:stateMachine:domain-create".into(),
        zone: None,
        resolver: None,
        auth_is_local: true,
    }
}

fn call(m: &Mem, cfg: &DomainProvisioner, event: &Value) -> Result<Value, Failure> {
    let at = now(m);
    let n = m.log.borrow().len();
    let inv = Invocation {
        now: Timestamp::from_millisecond(at).unwrap(),
        request_id: format!("q{n}"),
        deadline: Timestamp::from_millisecond(at + 120_000).unwrap(),
        seed: uuid::Uuid::from_u128(n as u128 + 1),
    };
    drive(handle(m, cfg, &inv, event)).expect("nothing was to crash")
}

const EXECUTION: &str = "arn:aws:states:eu-west-1:1:execution:domain-create:x";

fn task(m: &Mem, cfg: &DomainProvisioner, action: &str, more: Value) -> Result<Value, Failure> {
    let mut event = json!({"action": action, "domain": "A.com.", "execution": EXECUTION, "attempt": 0});
    for (k, v) in more.as_object().unwrap() {
        event[k] = v.clone();
    }
    call(m, cfg, &event)
}

fn http(
    m: &Mem,
    cfg: &DomainProvisioner,
    method: &str,
    path: &str,
    body: &Value,
    key: Option<&str>,
) -> (u16, Value, Value) {
    let headers = key.map_or(json!({}), |k| json!({"idempotency-key": k}));
    let event = json!({"version": "2.0", "rawPath": path, "headers": headers, "body": body.to_string(),
        "requestContext": {"stage": "$default", "requestId": "g", "http": {"method": method}}});
    let r = call(m, cfg, &event).unwrap();
    let body = serde_json::from_str(r["body"].as_str().unwrap()).unwrap_or(Value::Null);
    (
        u16::try_from(r["statusCode"].as_u64().unwrap()).unwrap(),
        body,
        r["headers"].clone(),
    )
}

fn get(m: &Mem, cfg: &DomainProvisioner) -> Value {
    http(m, cfg, "GET", "/domains/a.com", &json!({}), None).1
}

fn set_all(m: &Mem) {
    let mut cloud = m.cloud.borrow_mut();
    for (kind, name, value) in [
        ("MX", "a.com", "10 a-com.pds1.example.test"),
        ("TXT", "a.com", "v=spf1 mx ~all"),
        (
            "CNAME",
            "hg1._domainkey.a.com",
            "hg1._domainkey.a-com.pds1.example.test",
        ),
        ("TXT", "_dmarc.a.com", "v=DMARC1; p=none"),
        ("CNAME", "*.a.com", "a-com.pds1.example.test"),
    ] {
        cloud.dns.insert((kind.into(), name.into()), vec![value.into()]);
    }
}

#[test]
fn the_saga_step_by_step_to_live() {
    let (m, c) = (Mem::new(), cfg());
    assert_eq!(
        task(&m, &c, "validate", json!({})).unwrap(),
        json!({"domain": "a.com", "slug": "a-com"})
    );
    let p = task(&m, &c, "ensure_provisioned", json!({})).unwrap();
    assert_eq!(
        p,
        json!({"origin": "a-com.pds1.example.test", "port": 20000, "server_did": "did:web:a-com.pds1.example.test",
               "generation": 1, "outcome": "created"})
    );
    m.sim.borrow_mut().running.insert(EXECUTION.into());
    assert_eq!(get(&m, &c)["status"]["state"], "creating");
    assert_eq!(
        task(&m, &c, "request_certificate", json!({})).unwrap(),
        json!({"skipped": true})
    );
    let done = task(&m, &c, "insert", json!({"instance": p, "certificate": null})).unwrap();
    assert_eq!(done["outcome"], "inserted");
    assert_eq!(
        task(&m, &c, "publish_dns", json!({})).unwrap(),
        json!({"published": false})
    );
    let look = task(&m, &c, "verify_dns", json!({"polls": 0})).unwrap();
    assert_eq!(
        look,
        json!({"complete": false, "again": true, "polls": 1, "wait": 300})
    );
    let v = get(&m, &c);
    assert_eq!(v["status"]["state"], "waiting_dns");
    assert!(
        v["status"]["needs_admin"]["text"]
            .as_str()
            .unwrap()
            .contains("MX a.com")
    );
    assert_eq!(v["dns_records"].as_array().unwrap().len(), 5);
    set_all(&m);
    // A query that fails keeps the last answer.
    m.cloud.borrow_mut().dns_down = true;
    assert_eq!(
        task(&m, &c, "verify_dns", json!({"polls": 1})).unwrap()["complete"],
        false
    );
    m.cloud.borrow_mut().dns_down = false;
    let look = task(&m, &c, "verify_dns", json!({"polls": 863})).unwrap();
    assert_eq!((&look["complete"], &look["again"]), (&json!(true), &json!(false)));
    let v = get(&m, &c);
    assert_eq!(
        (&v["status"]["state"], &v["status"]["stale_after"]),
        (&json!("live"), &Value::Null)
    );
    // Live already: 200, and nothing is started.
    let (status, v, _) = http(&m, &c, "POST", "/domains", &json!({"domain": "a.com"}), None);
    assert_eq!((status, &v["domain"]), (200, &json!("a.com")));
    assert!(m.cloud.borrow().started.is_empty());
}

#[test]
fn waiting_for_dns_ends_as_a_state_and_the_sweep_goes_on_looking() {
    let (m, c) = (Mem::new(), cfg());
    let p = task(&m, &c, "ensure_provisioned", json!({})).unwrap();
    task(&m, &c, "insert", json!({"instance": p})).unwrap();
    let look = task(&m, &c, "verify_dns", json!({"polls": 863})).unwrap();
    assert_eq!(
        (&look["complete"], &look["again"]),
        (&json!(false), &json!(false))
    );
    set_all(&m);
    let tick = json!({"source": "aws.scheduler", "detail-type": "Scheduled Event"});
    let swept = call(&m, &c, &tick).unwrap();
    for list in ["rolled_back", "retired", "reported", "alarms"] {
        assert_eq!(swept[list], json!([]), "{list}");
    }
    assert_eq!(get(&m, &c)["status"]["state"], "live");
}

#[test]
fn a_certificate_is_asked_once_and_its_records_are_shown() {
    let (m, mut c) = (Mem::new(), cfg());
    c.cell.names.certificate_for = Some("autoconfig".into());
    task(&m, &c, "ensure_provisioned", json!({})).unwrap();
    let asked = task(&m, &c, "request_certificate", json!({})).unwrap();
    assert_eq!((&asked["skipped"], &asked["wait"]), (&json!(false), &json!(30)));
    let arn = asked["certificate"]["arn"].as_str().unwrap().to_owned();
    // A second request within the hour is the same one.
    assert_eq!(task(&m, &c, "request_certificate", json!({})).unwrap(), asked);
    assert_eq!(m.cloud.borrow().certificates[&arn].0.len(), 32);
    let poll = |polls: u64| {
        task(
            &m,
            &c,
            "poll_certificate",
            json!({"certificate": asked["certificate"], "polls": polls}),
        )
    };
    // The records are not there at first.
    assert_eq!(poll(0).unwrap()["status"], "PENDING");
    m.cloud
        .borrow_mut()
        .certificates
        .get_mut(&arn)
        .unwrap()
        .1
        .validation = vec![(
        "_x.autoconfig.a.com".into(),
        "CNAME".into(),
        "_y.acm-validations.aws".into(),
    )];
    let polled = poll(20).unwrap();
    assert_eq!((&polled["polls"], &polled["wait"]), (&json!(21), &json!(300)));
    m.sim.borrow_mut().running.insert(EXECUTION.into());
    let text = get(&m, &c)["status"]["needs_admin"]["text"].clone();
    assert!(text.as_str().unwrap().contains("_x.autoconfig.a.com"), "{text}");
}

#[test]
fn c04_a_later_failure_is_recorded_with_its_first_cause() {
    let (m, mut c) = (Mem::new(), cfg());
    c.cell.names.certificate_for = Some("autoconfig".into());
    task(&m, &c, "ensure_provisioned", json!({})).unwrap();
    let asked = task(&m, &c, "request_certificate", json!({})).unwrap();
    let arn = asked["certificate"]["arn"].as_str().unwrap().to_owned();
    m.cloud.borrow_mut().certificates.get_mut(&arn).unwrap().1.status = "VALIDATION_TIMED_OUT".into();
    let e = task(
        &m,
        &c,
        "poll_certificate",
        json!({"certificate": asked["certificate"], "polls": 1}),
    )
    .unwrap_err();
    assert_eq!(e.error_type, "Domain.CertificateFailed");
    let cause = json!({"errorType": e.error_type, "errorMessage": e.message}).to_string();
    let noted = task(
        &m,
        &c,
        "record_failure",
        json!({"step": "certificate", "error": {"Error": e.error_type, "Cause": cause}}),
    );
    assert_eq!(noted.unwrap()["outcome"], "recorded");
    let v = get(&m, &c);
    assert_eq!(v["status"]["state"], "create_failed");
    assert!(v["status"]["summary"].as_str().unwrap().contains("kept"));
    assert_eq!(v["status"]["reason"]["text"], json!(e.message));
    assert_eq!(v["saga"]["error"]["step"], "certificate");
    assert!(up(&m, "a-com") && row(&m).generation == Generation(1));
}

#[test]
fn records_are_published_as_one_stack_where_the_zone_holds_the_domain() {
    let (m, mut c) = (Mem::new(), cfg());
    c.zone = Some("Z1".into());
    m.cloud.borrow_mut().zone = "a.com.".into();
    // A foreign MX stays.
    let mx = ("MX".to_owned(), "a.com".to_owned());
    m.cloud
        .borrow_mut()
        .dns
        .insert(mx.clone(), vec!["10 mail.other.net".into()]);
    let p = task(&m, &c, "ensure_provisioned", json!({})).unwrap();
    task(&m, &c, "insert", json!({"instance": p})).unwrap();
    assert_eq!(
        task(&m, &c, "publish_dns", json!({})).unwrap_err().error_type,
        "Provision.InProgress"
    );
    let made = m.cloud.borrow().stacks["headgate-dns-a-com"].1.clone();
    assert_eq!(made["Resources"].as_object().unwrap().len(), 4);
    assert_eq!(
        task(&m, &c, "publish_dns", json!({})).unwrap_err().error_type,
        "Provision.InProgress"
    );
    m.cloud.borrow_mut().settle();
    assert_eq!(
        task(&m, &c, "publish_dns", json!({})).unwrap(),
        json!({"published": true})
    );
    let v = get(&m, &c);
    assert_eq!(v["status"]["state"], "waiting_dns");
    assert!(
        v["status"]["needs_admin"]["text"]
            .as_str()
            .unwrap()
            .contains("mail.other.net")
    );
    assert_eq!(v["dns_records"][0]["foreign"], true);
    assert_eq!(m.cloud.borrow().dns[&mx], ["10 mail.other.net"]);
    // A creation that was rolled back is cleared before the next try; one that is stuck is for a person.
    for (status, error) in [
        ("ROLLBACK_COMPLETE", "Provision.InProgress"),
        ("DELETE_FAILED", "Domain.DnsFailed"),
    ] {
        m.cloud
            .borrow_mut()
            .stacks
            .insert("headgate-dns-a-com".into(), (status.into(), json!({})));
        assert_eq!(
            task(&m, &c, "publish_dns", json!({})).unwrap_err().error_type,
            error
        );
    }
    // In a zone of somebody else nothing is published.
    m.cloud.borrow_mut().zone = "other.net.".into();
    assert_eq!(
        task(&m, &c, "publish_dns", json!({})).unwrap(),
        json!({"published": false})
    );
}

#[test]
fn task_errors_have_the_names_that_the_workflow_matches() {
    let (m, c) = (Mem::new(), cfg());
    let bad = call(&m, &c, &json!({"action": "validate", "domain": "a_b.com"})).unwrap_err();
    assert_eq!(bad.error_type, "Provision.InvalidDomain");
    for event in [
        json!({"action": "nonsense", "domain": "a.com", "execution": "e"}),
        json!({"action": "ensure_provisioned", "domain": "a.com"}),
        json!({"action": "validate"}),
        json!({"action": "insert", "domain": "a.com", "execution": "e", "instance": {"origin": 1}}),
    ] {
        assert_eq!(
            call(&m, &c, &event).unwrap_err().error_type,
            "Provision.InvalidInput",
            "{event}"
        );
    }
    m.sim
        .borrow_mut()
        .sick
        .insert("a-com".into(), "crash_loop".into());
    let e = task(&m, &c, "ensure_provisioned", json!({})).unwrap_err();
    assert_eq!(
        (e.error_type.as_str(), e.message.as_str()),
        (
            "Provision.ActivationFailed",
            "The instance did not come up: crash_loop."
        )
    );
    assert_eq!(
        task(&m, &c, "abort", json!({})).unwrap()["outcome"],
        "nothing_to_do"
    );
    let v = get(&m, &c);
    assert_eq!(
        (&v["status"]["state"], &v["status"]["reason"]["code"]),
        (&json!("create_failed"), &json!("crash_loop"))
    );
    assert!(call(&m, &c, &json!({"source": "aws.s3", "detail-type": "x"})).is_err());
}

#[test]
fn a_post_starts_one_saga_and_answers_the_running_one() {
    let (m, c) = (Mem::new(), cfg());
    let post = |key: Option<&str>| http(&m, &c, "POST", "/domains", &json!({"domain": "a.com"}), key);
    let (status, first, headers) = post(Some("k"));
    assert_eq!((status, &headers["location"]), (202, &json!("/domains/a.com")));
    assert_eq!(first["status"]["state"], "creating");
    let operation = first["operation"].as_str().unwrap().to_owned();
    assert!(operation.contains(":execution:domain-create:a-com-"));
    // The same key is the same saga, also when it has ended.
    m.sim.borrow_mut().running.clear();
    assert_eq!(post(Some("k")).1["operation"], json!(operation));
    assert_ne!(post(Some("other")).1["operation"], json!(operation));
    // Without a key: the one that runs.
    task(&m, &c, "ensure_provisioned", json!({"execution": operation})).unwrap();
    m.sim.borrow_mut().running.insert(operation.clone());
    let n = m.cloud.borrow().started.len();
    assert_eq!(post(None).1["operation"], json!(operation));
    assert_eq!(m.cloud.borrow().started.len(), n);
    // None runs: a new one, noted in the row; the old error is cleared.
    m.sim.borrow_mut().running.clear();
    let fresh = post(None).1["operation"].as_str().unwrap().to_owned();
    assert_ne!(fresh, operation);
    assert_eq!(row(&m).saga.as_deref(), Some(fresh.as_str()));
}

#[test]
fn a_post_is_refused_with_a_reason() {
    let (m, mut c) = (Mem::new(), cfg());
    let post = |c: &DomainProvisioner, body: Value| {
        let (status, v, _) = http(&m, c, "POST", "/domains", &body, None);
        (status, v["code"].as_str().unwrap_or("").to_owned(), v)
    };
    let (status, code, v) = post(&c, json!({"domain": "127.0.0.1"}));
    assert_eq!(
        (status, code.as_str(), v["errors"].as_array().unwrap().len()),
        (400, "domain_invalid", 1)
    );
    for body in [json!({}), json!({"domain": 1}), json!([])] {
        assert_eq!(post(&c, body).1, "invalid_request");
    }
    let key = http(
        &m,
        &c,
        "POST",
        "/domains",
        &json!({"domain": "a.com"}),
        Some("a\nb"),
    );
    assert_eq!((key.0, &key.1["code"]), (400, &json!("invalid_request")));
    m.sim.borrow_mut().table.seed(Item::from([
        ("pk".into(), Attr::s("SLUG#a-com")),
        ("sk".into(), Attr::s("-")),
        ("domain".into(), Attr::s("secret.com")),
    ]));
    let (status, code, v) = post(&c, json!({"domain": "a.com"}));
    assert_eq!((status, code.as_str()), (409, "slug_conflict"));
    assert!(!v.to_string().contains("secret"));
    c.cell.suffix = None;
    let (status, code, v) = post(&c, json!({"domain": "b.com"}));
    assert_eq!(
        (status, code.as_str(), &v["variable"]),
        (422, "not_configured", &json!("ORIGIN_SUFFIX"))
    );
    assert!(m.cloud.borrow().started.is_empty());
}

#[test]
fn a_delete_retires_and_says_so() {
    let (m, c) = (Mem::new(), cfg());
    let delete = || http(&m, &c, "DELETE", "/domains/a.com", &json!({}), None);
    assert_eq!(delete().0, 404);
    let p = task(&m, &c, "ensure_provisioned", json!({})).unwrap();
    task(&m, &c, "insert", json!({"instance": p})).unwrap();
    let (status, v, _) = delete();
    assert_eq!(
        (status, &v["state"], &v["superseded"]),
        (202, &json!("retired"), &json!(false))
    );
    let (status, v, _) = delete();
    assert_eq!((status, &v["code"]), (410, &json!("already_retired")));
    assert_eq!(get(&m, &c)["status"]["state"], "retired");
    // Busy: somebody creates it again.
    m.held.set(true);
    task(&m, &c, "ensure_provisioned", json!({})).unwrap_err();
    let (status, v, headers) = delete();
    assert_eq!((status, &v["code"]), (409, &json!("domain_busy")));
    assert!(headers["retry-after"].as_str().unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!(get(&m, &c)["status"]["progress"]["step"], "starting");
    // A host that does not answer: recorded, 202, and the sweep finishes it.
    m.held.set(false);
    m.pass(2_000);
    task(&m, &c, "ensure_provisioned", json!({})).unwrap();
    m.held.set(true);
    let began = now(&m);
    let (status, v, _) = delete();
    assert_eq!((status, &v["status"]["state"]), (202, &json!("retiring")));
    assert!(now(&m) - began <= 15_000, "the gateway gives up at 29 s");
}

#[test]
fn the_list_is_paged_and_routes_are_told_apart() {
    let (m, c) = (Mem::new(), cfg());
    for name in ["a.com", "b.com", "c.com"] {
        let event = json!({"action": "ensure_provisioned", "domain": name, "execution": name});
        call(&m, &c, &event).unwrap();
    }
    // A tombstone without a row is passed over.
    m.sim
        .borrow_mut()
        .table
        .seed(used_port("pds1.eu", 20_003, "gone.com"));
    let event = |path: &str, query: Value| {
        json!({"version": "2.0", "rawPath": path, "queryStringParameters": query, "headers": {},
               "requestContext": {"stage": "$default", "requestId": "g", "http": {"method": "GET"}}})
    };
    let page = |query: Value| {
        let r = call(&m, &c, &event("/domains", query)).unwrap();
        serde_json::from_str::<Value>(r["body"].as_str().unwrap()).unwrap()
    };
    let first = page(json!({"limit": "2"}));
    let names = |v: &Value| {
        v["domains"]
            .as_array()
            .unwrap()
            .iter()
            .map(|d| d["domain"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&first), [json!("a.com"), json!("b.com")]);
    let second = page(json!({"limit": "2", "cursor": first["next_cursor"]}));
    assert_eq!(
        (names(&second), &second["next_cursor"]),
        (vec![json!("c.com")], &Value::Null)
    );
    assert_eq!(page(json!({"cursor": "x"}))["code"], "invalid_request");
    for (method, path, status) in [
        ("PUT", "/domains", 405),
        ("POST", "/domains/a.com", 405),
        ("GET", "/nothing", 404),
        ("GET", "/domains/d.com", 404),
        ("GET", "/domains/d_.com", 400),
        ("GET", "/domains/A.COM", 200),
    ] {
        assert_eq!(
            http(&m, &c, method, path, &json!({}), None).0,
            status,
            "{method} {path}"
        );
    }
    // Reading changes nothing, and the tag says so.
    let (a, b) = (get(&m, &c), get(&m, &c));
    assert_eq!(weak_etag(&a.to_string()), weak_etag(&b.to_string()));
}

#[test]
fn the_schedule_answers_what_it_did() {
    let (m, mut c) = (Mem::new(), cfg());
    c.cell.sweep = SweepPolicy::Retire;
    task(&m, &c, "ensure_provisioned", json!({})).unwrap();
    m.pass(crate::domains::decide::SAGA_MAX + 1);
    let tick = json!({"source": "aws.events", "detail-type": "Scheduled Event"});
    let swept = call(&m, &c, &tick).unwrap();
    assert_eq!(swept["retired"], json!(["a.com"]));
    assert_eq!(row(&m).state, State::Retired);
}

/// Every file of `events/domain-provisioner`, through the real entry, in an order in which it makes sense.
#[test]
fn every_event_file_is_understood() {
    let (m, mut c) = (Mem::new(), cfg());
    c.auth_is_local = false;
    let files = [
        (
            include_str!("../../../../events/domain-provisioner/task-validate.json"),
            0,
        ),
        (
            include_str!("../../../../events/domain-provisioner/create-domain-jwt.json"),
            202,
        ),
        (
            include_str!("../../../../events/domain-provisioner/create-domain-iam.json"),
            202,
        ),
        (
            include_str!("../../../../events/domain-provisioner/task-ensure-provisioned.json"),
            0,
        ),
        (
            include_str!("../../../../events/domain-provisioner/task-abort.json"),
            0,
        ),
        (
            include_str!("../../../../events/domain-provisioner/task-request-certificate.json"),
            0,
        ),
        (
            include_str!("../../../../events/domain-provisioner/task-insert.json"),
            0,
        ),
        (
            include_str!("../../../../events/domain-provisioner/task-publish-dns.json"),
            0,
        ),
        (
            include_str!("../../../../events/domain-provisioner/task-verify-dns.json"),
            0,
        ),
        (
            include_str!("../../../../events/domain-provisioner/task-record-failure.json"),
            0,
        ),
        (
            include_str!("../../../../events/domain-provisioner/get-domain-jwt.json"),
            200,
        ),
        (
            include_str!("../../../../events/domain-provisioner/get-domain-iam.json"),
            200,
        ),
        (
            include_str!("../../../../events/domain-provisioner/list-domains-jwt.json"),
            200,
        ),
        (
            include_str!("../../../../events/domain-provisioner/list-domains-iam.json"),
            200,
        ),
        (
            include_str!("../../../../events/domain-provisioner/schedule.json"),
            0,
        ),
        (
            include_str!("../../../../events/domain-provisioner/delete-domain-jwt.json"),
            202,
        ),
        (
            include_str!("../../../../events/domain-provisioner/delete-domain-iam.json"),
            410,
        ),
    ];
    for (file, status) in files {
        let event: Value = serde_json::from_str(file).unwrap();
        let answer = call(&m, &c, &event).unwrap_or_else(|e| panic!("{e:?} for {file}"));
        assert_eq!(
            answer["statusCode"].as_u64().unwrap_or(0),
            status,
            "{answer} for {file}"
        );
    }
    let unknown =
        serde_json::from_str(include_str!("../../../../events/domain-provisioner/unknown.json")).unwrap();
    assert_eq!(
        call(&m, &c, &unknown).unwrap_err().error_type,
        "Headgate.UnknownEvent"
    );
    let poll = serde_json::from_str(include_str!(
        "../../../../events/domain-provisioner/task-poll-certificate.json"
    ))
    .unwrap();
    assert_eq!(
        call(&m, &c, &poll).unwrap_err().error_type,
        "Provision.Unavailable"
    );
    // Nobody, and somebody who may only read.
    let mut event: Value = serde_json::from_str(include_str!(
        "../../../../events/domain-provisioner/create-domain-jwt.json"
    ))
    .unwrap();
    event["requestContext"]["authorizer"]["jwt"]["claims"]["scope"] = json!("headgate/read");
    assert_eq!(call(&m, &c, &event).unwrap()["statusCode"], 403);
    event["requestContext"]["authorizer"] = Value::Null;
    assert_eq!(call(&m, &c, &event).unwrap()["statusCode"], 401);
}
