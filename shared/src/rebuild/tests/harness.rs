//! The base case: the demo service of the fixtures, with everything valid. A test changes what it is about.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::Mutex;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use crate::rebuild::decide::judge_with;
use crate::rebuild::rules::{self, Rule};
use crate::rebuild::{Files, Input, Inputs, Judgement, Request, Word};

/// One file of the fixtures, parsed.
pub(super) fn fixture(name: &str) -> Value {
    static READ: Mutex<BTreeMap<String, Value>> = Mutex::new(BTreeMap::new());
    let mut read = READ.lock().unwrap();
    read.entry(name.to_owned())
        .or_insert_with(|| serde_json::from_str(&fixture_text(&format!("{name}.json"))).unwrap())
        .clone()
}

/// Stands for SHA-256 in tests, which hash some megabytes a thousand times: as long, and as good as different.
fn hash(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    format!("{:064x}", hasher.finish())
}

pub(super) fn fixture_text(name: &str) -> String {
    let path = format!("{}/tests/fixtures/plans/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

pub(super) const ACCOUNT: &str = "123456789012";
pub(super) const ZONE: &str = "EZ0JI8MSQ83ZHYFNBWKT2A";
pub(super) const HOST: &str = "api.example.com";
pub(super) const CERT: &str =
    "arn:aws:acm:us-east-1:123456789012:certificate/79985de7-02dc-4d59-a061-d40cfdc7ddb9";
pub(super) const VALIDATION: &str = "_d930b28be6c5927595552b219965053e.api.example.com.";
pub(super) const LB_NAME: &str = "demo-test-api-1.us-east-1.elb.amazonaws.com";
pub(super) const LB: &str =
    "arn:aws:elasticloadbalancing:us-east-1:123456789012:loadbalancer/app/demo-test-api/20476dd465f9266d";
pub(super) const SERVICE: &str =
    "arn:aws:apprunner:us-east-1:123456789012:service/demo-test-api/7e931ebf027a4842b3e298a9fb694bf4";
pub(super) const TD: &str = "arn:aws:ecs:us-east-1:123456789012:task-definition/demo-test-api";
const TARGET_GROUP: &str =
    "arn:aws:elasticloadbalancing:us-east-1:123456789012:targetgroup/demo-test-api/a353b41be352dd0b";
const LISTENER: &str = "arn:aws:elasticloadbalancing:us-east-1:123456789012:listener/app/demo-test-api/20476dd465f9266d/f70d14317dc9a58d";
pub(super) const EXEC_ROLE: &str = "arn:aws:iam::123456789012:role/demo-test-api-exec";
pub(super) const TASK_ROLE: &str = "arn:aws:iam::123456789012:role/demo-test-api-InstanceRole";
pub(super) const SECRET: &str = "arn:aws:secretsmanager:us-east-1:123456789012:secret:db-AbCdEf";
pub(super) const ENV: &str = "source_configuration.0.image_repository.0.image_configuration.0.runtime_environment_variables.WORKER_ENABLED";

/// A gate call in the making.
#[derive(Clone)]
pub(super) struct Case {
    pub(super) request: Request,
    pub(super) docs: BTreeMap<&'static str, Value>,
    pub(super) raw: BTreeMap<&'static str, Vec<u8>>,
    pub(super) prior: Vec<Value>,
    pub(super) live: Value,
    pub(super) files: Option<Files>,
    pub(super) now: Timestamp,
    pub(super) bind: bool,
    pub(super) record: bool,
    pub(super) plan_file_sha256: Option<String>,
    pub(super) expected_hash: Option<(&'static str, String)>,
}

impl Case {
    /// A case of a phase (`import:7a` names phase and use), with no plan.
    pub(super) fn new(phase: &str) -> Case {
        let now: Timestamp = "2026-11-30T23:40:00Z".parse().unwrap();
        let mut docs = BTreeMap::new();
        docs.insert("manifest", manifest());
        docs.insert("decisions", decisions());
        docs.insert("cert_requested", fixture("sample-cert-requested.absent"));
        docs.insert("state_m5a", fixture("state-m5a-initial"));
        docs.insert("state_rebuild", fixture("state-infra-rebuild-after-step3"));
        let (name, use_) = phase
            .split_once(':')
            .map_or((phase, None), |(p, u)| (p, Some(u.to_owned())));
        let mut case = Case {
            request: Request {
                phase: name.to_owned(),
                use_,
                ..Request::default()
            },
            docs,
            raw: BTreeMap::new(),
            prior: Vec::new(),
            live: Value::Null,
            files: None,
            now,
            bind: true,
            record: false,
            plan_file_sha256: None,
            expected_hash: None,
        };
        case.files = Some(files());
        case.live = live(now);
        case.records("before-rebuild");
        case
    }

    /// A case of a plan phase, a few minutes after the plan was made.
    pub(super) fn plan(phase: &str, plan: &str) -> Case {
        let mut case = Case::new(phase);
        let plan = fixture(plan);
        let at: Timestamp = plan["timestamp"].as_str().unwrap().parse().unwrap();
        case.docs.insert("plan", plan);
        case.at(at + SignedDuration::from_mins(5));
        match case.request.phase.as_str() {
            "cert-request" => {
                case.docs.remove("state_rebuild");
                case.docs.remove("cert_requested");
            }
            "rebuild" => case.state_rebuild("after-2a"),
            "import" => case.outcome("unowned"),
            "cutover" => {
                case.state_m5a("after-7a");
                case.records("after-convert");
            }
            "start" | "worker-on" | "steady" => case.state_rebuild("after-8a"),
            "taskdef-off" => {
                case.state_rebuild("after-8a");
                case.docs.insert("live_revision", revision("live-revision", 5));
                case.running(5);
            }
            _ => {}
        }
        match (case.request.phase.as_str(), case.request.use_.as_deref()) {
            ("worker-on", _) => {
                case.docs.insert("taskdef_on", revision("taskdef-on", 2));
                case.running(1);
            }
            ("import", Some("7a")) => {
                case.outcome("absent");
                case.records("after-convert");
            }
            ("import", Some("7a-revert")) => {
                case.outcome("absent");
                case.state_m5a("after-7a");
                case.records("after-revert");
            }
            _ => {}
        }
        case
    }

    /// Sets the clock, and takes the live reads now.
    pub(super) fn at(&mut self, now: Timestamp) {
        self.now = now;
        self.live["captured_at"] = json!(now.to_string());
        self.certificate("PENDING_VALIDATION", SignedDuration::from_hours(10));
    }

    /// Live DNS is the simple record.
    pub(super) fn with_simple_record(mut self) -> Case {
        self.records("before-convert");
        self
    }

    pub(super) fn rollback(mut self) -> Case {
        self.request.direction = "rollback".into();
        self
    }

    pub(super) fn state_rebuild(&mut self, when: &str) {
        self.docs
            .insert("state_rebuild", fixture(&format!("state-infra-rebuild-{when}")));
    }

    pub(super) fn state_m5a(&mut self, when: &str) {
        self.docs
            .insert("state_m5a", fixture(&format!("state-m5a-{when}")));
    }

    /// Sets the outcome of the validation record everywhere it is written.
    pub(super) fn outcome(&mut self, outcome: &str) {
        let name = if outcome == "absent" { "absent" } else { "unowned" };
        let mut evidence = fixture(&format!("sample-cert-requested.{name}"));
        evidence["outcome"] = json!(outcome);
        self.docs.insert("cert_requested", evidence);
        self.manifest()["validation"]["outcome"] = json!(outcome);
    }

    pub(super) fn manifest(&mut self) -> &mut Value {
        self.docs.get_mut("manifest").unwrap()
    }

    pub(super) fn doc(&mut self, kind: &'static str) -> &mut Value {
        self.docs.get_mut(kind).unwrap()
    }

    /// The change of an address in the plan.
    pub(super) fn change(&mut self, address: &str) -> &mut Value {
        let list = self.doc("plan")["resource_changes"].as_array_mut().unwrap();
        list.iter_mut()
            .find(|c| c["address"] == address)
            .unwrap_or_else(|| panic!("no {address}"))
    }

    pub(super) fn config(&mut self, address: &str) -> &mut Value {
        let list = self.doc("plan")["configuration"]["root_module"]["resources"]
            .as_array_mut()
            .unwrap();
        list.iter_mut()
            .find(|c| c["address"] == address)
            .unwrap_or_else(|| panic!("no {address}"))
    }

    /// Adds a change to the plan.
    pub(super) fn add(&mut self, address: &str, actions: Value, before: Value, after: Value) {
        let (kind, name) = address.split_once('.').unwrap();
        let change = json!({"address": address, "mode": "managed", "type": kind, "name": name,
            "provider_name": "registry.terraform.io/hashicorp/aws",
            "change": {"actions": actions, "before": before, "after": after, "after_unknown": {}}});
        self.doc("plan")["resource_changes"]
            .as_array_mut()
            .unwrap()
            .push(change);
    }

    /// Replaces a live read, or adds it.
    pub(super) fn read(&mut self, call: &str, input: Value, output: Value) {
        self.drop_read(call, &input);
        self.reads()
            .push(json!({"call": call, "input": input, "output": output}));
    }

    pub(super) fn read_fails(&mut self, call: &str, code: &str) {
        self.reads().retain(|r| r["call"] != call);
        self.reads()
            .push(json!({"call": call, "input": {}, "error": {"code": code, "message": "no"}}));
        // Keyed reads look for their own input.
        for input in [
            json!({"CertificateArn": CERT}),
            json!({"HostedZoneId": ZONE}),
            json!({"ServiceArn": SERVICE}),
        ] {
            self.reads()
                .push(json!({"call": call, "input": input, "error": {"code": code, "message": "no"}}));
        }
    }

    pub(super) fn no_read(&mut self, call: &str) {
        self.reads().retain(|r| r["call"] != call);
    }

    fn drop_read(&mut self, call: &str, input: &Value) {
        self.reads()
            .retain(|r| !(r["call"] == call && r["input"] == *input));
    }

    pub(super) fn reads(&mut self) -> &mut Vec<Value> {
        self.live["reads"].as_array_mut().unwrap()
    }

    /// The output of a read that is there.
    pub(super) fn output(&mut self, call: &str) -> &mut Value {
        let reads = self.live["reads"].as_array_mut().unwrap();
        &mut reads
            .iter_mut()
            .find(|r| r["call"] == call)
            .unwrap_or_else(|| panic!("no {call}"))["output"]
    }

    /// The live records of a fixture.
    pub(super) fn records(&mut self, when: &str) {
        let output = fixture(&format!("live-route53-records-{when}"));
        self.read(
            "route53:ListResourceRecordSets",
            json!({"HostedZoneId": ZONE}),
            output,
        );
    }

    /// Adds a live record.
    pub(super) fn record(&mut self, record: Value) {
        self.output("route53:ListResourceRecordSets")["ResourceRecordSets"]
            .as_array_mut()
            .unwrap()
            .push(record);
    }

    /// Adds the live validation record.
    pub(super) fn validation_record(&mut self) {
        let option = fixture("live-acm-describe-certificate-pending");
        let record = &option["Certificate"]["DomainValidationOptions"][0]["ResourceRecord"];
        self.record(json!({"Name": record["Name"], "Type": "CNAME", "TTL": 300, "ResourceRecords": [{"Value": record["Value"]}]}));
    }

    /// Sets live weights.
    pub(super) fn weights(&mut self, apprunner: i64, ecs: i64) {
        let records = self.output("route53:ListResourceRecordSets")["ResourceRecordSets"]
            .as_array_mut()
            .unwrap();
        for record in records {
            match record["SetIdentifier"].as_str() {
                Some("apprunner") => record["Weight"] = json!(apprunner),
                Some("ecs") => record["Weight"] = json!(ecs),
                _ => {}
            }
        }
    }

    /// The live certificate: status and age.
    pub(super) fn certificate(&mut self, status: &str, age: SignedDuration) {
        let mut output = fixture("live-acm-describe-certificate-pending");
        let created = self.now - age;
        output["Certificate"]["Status"] = json!(status);
        output["Certificate"]["CreatedAt"] = json!(created.to_string());
        self.read("acm:DescribeCertificate", json!({"CertificateArn": CERT}), output);
        if let Some(cert) = self.docs.get_mut("cert_requested") {
            cert["certificate_created_at"] = json!(created.to_string());
            cert["captured_at"] = json!((self.now - SignedDuration::from_mins(30)).to_string());
        }
    }

    /// The service runs a revision.
    pub(super) fn running(&mut self, revision: i64) {
        let arn = json!(format!("{TD}:{revision}"));
        let service = &mut self.output("ecs:DescribeServices")["services"][0];
        service["taskDefinition"] = arn.clone();
        service["deployments"][0]["taskDefinition"] = arn;
    }

    /// A service that runs its tasks.
    pub(super) fn started(&mut self) {
        let service = &mut self.output("ecs:DescribeServices")["services"][0];
        service["runningCount"] = json!(1);
        service["desiredCount"] = json!(1);
    }

    /// Without a custom domain.
    pub(super) fn new_host(&mut self, name: &str) {
        self.manifest()["host"] = Value::Null;
        self.manifest()["new_host"] = json!(name);
        self.doc("decisions")["new_host"] = json!(name);
        self.read(
            "apprunner:DescribeCustomDomains",
            json!({"ServiceArn": SERVICE}),
            json!({"CustomDomains": []}),
        );
    }

    pub(super) fn verdict(&mut self, phase: &str, direction: &str, word: &str) -> Value {
        let (phase, use_) = phase.split_once(':').map_or((phase, None), |(p, u)| (p, Some(u)));
        json!({"verdict": word, "phase": phase, "use": use_, "direction": direction, "run_id": "demo-1",
            "checked_at": (self.now - SignedDuration::from_mins(10)).to_string(),
            "expires_at": (self.now + SignedDuration::from_mins(50)).to_string(), "inputs": []})
    }

    /// Writes everything but the plan once, so that many mutations of the plan stay quick.
    pub(super) fn bake(&mut self) {
        for input in self.inputs().items {
            let kind = self
                .docs
                .keys()
                .copied()
                .chain(["live"])
                .find(|k| *k == input.kind);
            if let (Some(kind), Ok(bytes)) = (kind.filter(|k| *k != "plan"), input.bytes) {
                self.raw.insert(kind, bytes);
            }
        }
        self.docs.retain(|kind, _| *kind == "plan");
        self.live = Value::Null;
    }

    /// The inputs, with the manifest's hashes of evidence filled in.
    pub(super) fn inputs(&self) -> Inputs {
        let mut items = Vec::new();
        let mut docs = self.docs.clone();
        let mut evidence = Map::new();
        for kind in [
            "handoff",
            "cert_requested",
            "taskdef_on",
            "taskdef_off",
            "live_revision",
        ] {
            if let Some(document) = docs.get(kind) {
                evidence.insert(kind.into(), json!(hash(document.to_string().as_bytes())));
            }
        }
        if let (true, Some(manifest)) = (self.bind, docs.get_mut("manifest")) {
            manifest["evidence"] = Value::Object(evidence);
            if let Some(batch) = self.docs.get("dns_batch") {
                manifest["files"]["dns/batch.json"] = json!(hash(batch.to_string().as_bytes()));
            }
        }
        let mut files = self.files.clone();
        if let (Some(files), Some(batch)) = (&mut files, self.docs.get("dns_batch")) {
            files.insert("dns/batch.json".into(), Some(hash(batch.to_string().as_bytes())));
        }
        let mut push = |kind: &str, bytes: Vec<u8>| {
            let mut input = Input::unreadable(kind, &format!("file:{kind}"), "");
            input.sha256 = hash(&bytes);
            input.bytes = Ok(bytes);
            input.expected_sha256 = self
                .expected_hash
                .as_ref()
                .filter(|(k, _)| *k == kind)
                .map(|(_, h)| h.clone());
            items.push(input);
        };
        for (kind, document) in &docs {
            if !self.raw.contains_key(kind) {
                push(kind, document.to_string().into_bytes());
            }
        }
        for (kind, bytes) in &self.raw {
            push(kind, bytes.clone());
        }
        for prior in &self.prior {
            push("prior", prior.to_string().into_bytes());
        }
        if !self.live.is_null() {
            push("live", self.live.to_string().into_bytes());
        }
        Inputs {
            items,
            files,
            has_record: self.record,
            live_is_attested: true,
            plan_file_sha256: self.plan_file_sha256.clone(),
        }
    }

    pub(super) fn judge(&self) -> Judged {
        self.judge_with(&rules::all())
    }

    pub(super) fn judge_with(&self, rules: &[Rule]) -> Judged {
        Judged(judge_with(&self.request, &self.inputs(), self.now, rules).unwrap())
    }

    #[track_caller]
    pub(super) fn passes(&self) -> Judged {
        let judged = self.judge();
        assert_eq!(judged.0.verdict.verdict, Word::Pass, "{judged}");
        judged
    }

    #[track_caller]
    pub(super) fn fails(&self, codes: &[&str]) -> Judged {
        self.gives(Word::Fail, codes)
    }

    #[track_caller]
    pub(super) fn gives(&self, word: Word, codes: &[&str]) -> Judged {
        let judged = self.judge();
        assert_eq!(judged.0.verdict.verdict, word, "{judged}");
        for code in codes {
            assert!(judged.has(code), "{code} is missing: {judged}");
        }
        judged
    }
}

/// A judgement, with what tests ask of it.
pub(super) struct Judged(pub(super) Judgement);

impl Judged {
    pub(super) fn has(&self, code: &str) -> bool {
        self.0.verdict.failures.iter().any(|f| f.code == code)
    }

    pub(super) fn warns(&self, code: &str) -> bool {
        self.0.verdict.warnings.iter().any(|f| f.code == code)
    }

    /// Whether a rule itself found a code.
    pub(super) fn found(&self, rule: &str, code: &str) -> bool {
        let v = &self.0.verdict;
        v.failures
            .iter()
            .chain(&v.warnings)
            .any(|f| f.code == code && f.rule == rule)
    }

    #[track_caller]
    pub(super) fn only(&self, codes: &[&str]) {
        for failure in &self.0.verdict.failures {
            assert!(
                codes.contains(&failure.code),
                "{} is not expected: {self}",
                failure.code
            );
        }
    }
}

impl std::fmt::Display for Judged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.0.verdict.verdict.as_str())?;
        for x in &self.0.verdict.failures {
            writeln!(
                f,
                "  {} [{}] {:?} {:?} want {:?} saw {:?}: {}",
                x.code, x.rule, x.address, x.path, x.expected, x.actual, x.message
            )?;
        }
        for x in &self.0.verdict.warnings {
            writeln!(f, "  warn {} [{}] {:?}: {}", x.code, x.rule, x.address, x.message)?;
        }
        Ok(())
    }
}

fn files() -> Files {
    [("infra-rebuild/main.tf", "a1"), ("staged/taskdef-on.tf", "b2")]
        .iter()
        .map(|(name, hash)| ((*name).to_owned(), Some((*hash).to_owned())))
        .collect()
}

/// The sample manifest, with the phases and fields that it leaves out.
fn manifest() -> Value {
    let mut m = fixture("sample-manifest.demo");
    m["service_arn"] = json!(SERVICE);
    m["files"] = json!({"infra-rebuild/main.tf": "a1", "staged/taskdef-on.tf": "b2"});
    m["handoff_stacks"] = json!(["demo-test-api", "demo-test"]);
    m["roots"] = json!({"m5a": {"path": "m5a", "lineage": "l-m5a"}, "infra_rebuild": {"path": "infra-rebuild", "lineage": "l-ir"},
        "alb": {"path": "alb", "lineage": "l-alb"}});
    let trust = fixture("prepare__trust_and_ttl");
    let role = trust["resource_changes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|c| c["address"] == "aws_iam_role.instance")
        .unwrap();
    let update = json!({"action": "update"});
    let phases = &mut m["phases"];
    phases["prepare"] = json!({"root": "m5a", "addresses": {
        "aws_iam_role.instance": {"action": "update", "gated": {"assume_role_policy":
            {"before": role["change"]["before"]["assume_role_policy"], "after": role["change"]["after"]["assume_role_policy"], "compare": "json"}}},
        "aws_route53_record.domain": {"action": "update", "gated": {"ttl": {"before": 300, "after": 60}}}}});
    phases["prepare-alb"] = json!({"root": "alb", "addresses": {"aws_lb.app": update}});
    phases["import:7a-revert"] = json!({"root": "m5a", "addresses": {"aws_route53_record.domain":
        {"action": "import", "import_id": format!("{ZONE}_{HOST}_CNAME")}},
        "forget": ["aws_route53_record.apprunner", "aws_route53_record.ecs"]});
    phases["cutover"] = json!({"root": "m5a", "addresses": {"aws_route53_record.apprunner": update, "aws_route53_record.ecs": update}});
    phases["switch"] = json!({"root": "m5a", "addresses": {"aws_route53_record.domain": update}});
    phases["taskdef-on"] =
        json!({"root": "infra_rebuild", "addresses": {"aws_ecs_task_definition.on": {"action": "create"}}});
    phases["taskdef-off"] = json!({"root": "infra_rebuild", "addresses": {"aws_ecs_task_definition.off_live": {"action": "create"}}});
    phases["worker-off"] = json!({"root": "m5a", "addresses": {"aws_apprunner_service.app": {"action": "update",
        "gated": {ENV: {"before": "true", "after": "false"}}}}});
    phases["worker-on"] = json!({"root": "infra_rebuild", "addresses": {"aws_ecs_service.app": update}});
    let steady = |state: &str| {
        let state = fixture(state);
        let mut out = Map::new();
        for r in state["values"]["root_module"]["resources"].as_array().unwrap() {
            let mut gated = Map::new();
            for key in ["id", "arn"] {
                if r["values"][key].is_string() {
                    gated.insert(key.into(), json!({"before": r["values"][key]}));
                }
            }
            out.insert(
                r["address"].as_str().unwrap().into(),
                json!({"action": "no-op", "gated": gated}),
            );
        }
        out
    };
    phases["steady:m5a"] = json!({"root": "m5a", "addresses": steady("state-m5a-initial")});
    phases["steady:infra_rebuild"] =
        json!({"root": "infra_rebuild", "addresses": steady("state-infra-rebuild-after-8a")});
    m
}

fn decisions() -> Value {
    json!({"schema": 1, "validation_record": "import", "provenance": "asked every team on 2026-11-29",
        "background_work": {"mode": "switch", "env": "WORKER_ENABLED", "off": "false", "on": "true", "idle_check": "./idle.sh"},
        "safe_path": {"path": "/healthz", "status": 200}, "alb": {"mode": "shared", "rule_priority": 10}, "idle_timeout": 60,
        "env_sg": {"sg-a74f05c55fe3f3a9f": "join"}, "egress": {"subnets": ["subnet-9c05602775198018c"], "assign_public_ip": false}})
}

/// Evidence of a revision.
pub(super) fn revision(kind: &str, number: i64) -> Value {
    json!({"schema": 1, "kind": kind, "account": ACCOUNT, "region": "us-east-1", "arn": format!("{TD}:{number}"),
        "family": "demo-test-api", "revision": number,
        "manifest_sha256": "0000000000000000000000000000000000000000000000000000000000000000"})
}

fn definition(on: bool, number: i64) -> Value {
    let mut output = fixture(if on {
        "live-ecs-describe-task-definition-on"
    } else {
        "live-ecs-describe-task-definition-off"
    });
    output["taskDefinition"]["taskDefinitionArn"] = json!(format!("{TD}:{number}"));
    output["taskDefinition"]["revision"] = json!(number);
    output
}

/// Live reads in which everything is as it should be, before step 3 and with the service of step 3 at zero.
fn live(now: Timestamp) -> Value {
    let read =
        |call: &str, input: Value, output: Value| json!({"call": call, "input": input, "output": output});
    let list = fixture("live-acm-list-certificates");
    let image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/api@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    let service = json!({"Service": {"ServiceArn": SERVICE, "Status": "RUNNING", "SourceConfiguration": {"ImageRepository": {
        "ImageIdentifier": image, "ImageConfiguration": {"RuntimeEnvironmentVariables": {"LOG_LEVEL": "info", "WORKER_ENABLED": "true"}}}}}});
    let rule = |group: &str, source: Option<&str>, port: i64| {
        json!({"GroupId": group, "IsEgress": false, "IpProtocol": "tcp", "FromPort": port, "ToPort": port,
            "ReferencedGroupInfo": source.map(|s| json!({"GroupId": s}))})
    };
    let (task, lb) = ("sg-2838a624afc1a9fe0", "sg-61f0d0178c55e925d");
    let vpc = "vpc-cce3ccad94592aab3";
    let allowed = |action: &str, resource: &str| json!({"EvaluationResults": [{"EvalActionName": action, "EvalResourceName": resource, "EvalDecision": "allowed"}]});
    let reads = vec![
        read("sts:GetCallerIdentity", json!({}), json!({"Account": ACCOUNT})),
        read("acm:ListCertificates", json!({}), list),
        read(
            "acm:DescribeCertificate",
            json!({"CertificateArn": CERT}),
            fixture("live-acm-describe-certificate-pending"),
        ),
        read(
            "apprunner:DescribeService",
            json!({"ServiceArn": SERVICE}),
            service,
        ),
        read(
            "apprunner:DescribeCustomDomains",
            json!({"ServiceArn": SERVICE}),
            json!({"CustomDomains": [{"DomainName": HOST,
            "Status": "active", "CertificateValidationRecords": []}]}),
        ),
        read(
            "apprunner:ListOperations",
            json!({"ServiceArn": SERVICE}),
            json!({"OperationSummaryList": [{"Id": "o1",
            "Type": "UPDATE_SERVICE", "Status": "SUCCEEDED", "StartedAt": "2026-11-30T23:20:00Z", "EndedAt": "2026-11-30T23:22:00Z"}]}),
        ),
        read(
            "ecs:DescribeServices",
            json!({"cluster": "demo-test", "services": ["demo-test-api"]}),
            fixture("live-ecs-describe-services"),
        ),
        read(
            "ecs:DescribeTaskDefinition",
            json!({"taskDefinition": format!("{TD}:1")}),
            definition(false, 1),
        ),
        read(
            "ecs:DescribeTaskDefinition",
            json!({"taskDefinition": format!("{TD}:2")}),
            definition(true, 2),
        ),
        read(
            "ecs:DescribeTaskDefinition",
            json!({"taskDefinition": format!("{TD}:5")}),
            definition(true, 5),
        ),
        read(
            "application-autoscaling:DescribeScalableTargets",
            json!({"ServiceNamespace": "ecs"}),
            fixture("live-appautoscaling-describe-scalable-targets"),
        ),
        read(
            "elasticloadbalancing:DescribeListeners",
            json!({"LoadBalancerArn": LB}),
            fixture("live-elbv2-describe-listeners"),
        ),
        read(
            "elasticloadbalancing:DescribeListenerCertificates",
            json!({"ListenerArn": LISTENER}),
            fixture("live-elbv2-describe-listener-certificates"),
        ),
        read(
            "elasticloadbalancing:DescribeTargetHealth",
            json!({"TargetGroupArn": TARGET_GROUP}),
            json!({"TargetHealthDescriptions": [{"Target": {"Id": "10.0.0.5"}, "TargetHealth": {"State": "healthy"}}]}),
        ),
        read(
            "elasticloadbalancing:DescribeLoadBalancers",
            json!({"LoadBalancerArns": [LB]}),
            json!({"LoadBalancers": [
            {"LoadBalancerArn": LB, "DNSName": LB_NAME, "CanonicalHostedZoneId": "Z2P70J7EXAMPLE"}]}),
        ),
        read(
            "ec2:DescribeRouteTables",
            json!({}),
            json!({"RouteTables": [{"RouteTableId": "rtb-1", "VpcId": vpc,
            "Associations": [{"SubnetId": "subnet-9c05602775198018c"}, {"SubnetId": "subnet-ece167ebbe2097b48"}],
            "Routes": [{"DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": "nat-1", "State": "active"}]}]}),
        ),
        read(
            "ec2:DescribeNatGateways",
            json!({}),
            json!({"NatGateways": [{"NatGatewayId": "nat-1", "State": "available"}]}),
        ),
        read(
            "ec2:DescribeVpcAttribute",
            json!({"VpcId": vpc, "Attribute": "enableDnsSupport"}),
            json!({"VpcId": vpc, "EnableDnsSupport": {"Value": true}}),
        ),
        read(
            "ec2:DescribeVpcAttribute",
            json!({"VpcId": vpc, "Attribute": "enableDnsHostnames"}),
            json!({"VpcId": vpc, "EnableDnsHostnames": {"Value": true}}),
        ),
        read(
            "ec2:DescribeSecurityGroupRules",
            json!({}),
            json!({"SecurityGroupRules":
            [rule(task, Some(lb), 8080), rule(lb, None, 443), rule(lb, None, 80)]}),
        ),
        read(
            "iam:SimulatePrincipalPolicy",
            json!({"PolicySourceArn": EXEC_ROLE}),
            allowed("secretsmanager:GetSecretValue", SECRET),
        ),
        read(
            "iam:SimulatePrincipalPolicy",
            json!({"PolicySourceArn": TASK_ROLE}),
            allowed("s3:GetObject", "*"),
        ),
        read(
            "cloudwatch:DescribeAlarms",
            json!({}),
            json!({"MetricAlarms": [
            {"AlarmName": "alb-5xx", "Namespace": "AWS/ApplicationELB", "StateValue": "OK"},
            {"AlarmName": "apprunner-5xx", "Namespace": "AWS/AppRunner", "StateValue": "OK"}]}),
        ),
        read("cloudformation:DescribeStacks", json!({}), json!({"Stacks": []})),
        read(
            "route53:ListHostedZonesByName",
            json!({"DNSName": "example.com"}),
            json!({"IsTruncated": false, "HostedZones": [
            {"Id": format!("/hostedzone/{ZONE}"), "Name": "example.com.", "Config": {"PrivateZone": false}}]}),
        ),
        read(
            "route53:GetHostedZone",
            json!({"Id": ZONE}),
            json!({"HostedZone": {"Id": ZONE}, "DelegationSet": {"NameServers":
            ["ns-1.awsdns-01.com", "ns-2.awsdns-02.net"]}}),
        ),
    ];
    json!({"schema": 1, "kind": "live", "run_id": "demo-1", "account": ACCOUNT, "region": "us-east-1",
        "captured_at": now.to_string(), "reads": reads,
        "dns": [{"name": "example.com", "type": "NS", "answers": ["ns-1.awsdns-01.com.", "ns-2.awsdns-02.net."]}],
        "tls": [{"sni": HOST, "connect": format!("{LB_NAME}:443"), "names": [HOST]}],
        "http": [{"url": format!("https://{LB_NAME}/healthz"), "status": 200}]})
}

/// Request counts of the load balancer.
pub(super) fn request_count(values: &[f64], times: &[&str]) -> (Value, Value) {
    let input = json!({"StartTime": "2026-11-30T23:10:00Z", "EndTime": "2026-11-30T23:38:00Z", "MetricDataQueries": [{"Id": "m1",
        "MetricStat": {"Stat": "Sum", "Period": 60, "Metric": {"Namespace": "AWS/ApplicationELB", "MetricName": "RequestCount",
            "Dimensions": [{"Name": "LoadBalancer", "Value": "app/demo-test-api/20476dd465f9266d"}]}}}]});
    let output = json!({"MetricDataResults": [{"Id": "m1", "Label": "RequestCount", "StatusCode": "Complete",
        "Timestamps": times, "Values": values}]});
    (input, output)
}
