//! A self-hosted install for one test, and the updater in front of it.

use headgate_tests::{
    FakeCloudFormation, FakeS3, Function, FunctionBuilder, HttpCall, HttpReply, Parameter, Plan, ScriptedAws,
    Table,
};
use serde_json::{Value, json};

pub(crate) const BUCKET: &str = "releases";
pub(crate) const KEY: &str = "releases.json";

/// The stack `install` at 2.3.0 with a table of its own.
pub(crate) struct Install {
    pub(crate) table: Table,
    pub(crate) aws: ScriptedAws,
    pub(crate) cfn: FakeCloudFormation,
    pub(crate) s3: FakeS3,
    pub(crate) stack: String,
}

/// Address of a release's template.
pub(crate) fn template_url(release: &str) -> String {
    format!("https://releases.example.com/{release}/template.yaml")
}

impl Install {
    pub(crate) fn new() -> Self {
        let table = Table::create();
        let aws = ScriptedAws::start();
        let cfn = FakeCloudFormation::new();
        let s3 = FakeS3::new();
        aws.forward("dynamodb", table.endpoint());
        cfn.serve(&aws);
        s3.serve(&aws);
        let plan = |release: &str| {
            let secret = Parameter {
                no_echo: true,
                ..Parameter::with_default("AdminPassword", "hunter2")
            };
            Plan::release(release)
                .parameter(Parameter::with_default("Size", "small"))
                .parameter(secret)
        };
        let stack = cfn.install("install", &plan("2.3.0"));
        for release in ["2.2.0", "2.3.0", "2.3.5", "2.4.0", "2.5.0", "3.0.0", "3.1.0-rc.1"] {
            let changing = plan(release)
                .parameter(Parameter::with_default("Colour", "blue"))
                .change("Modify", "Api", "AWS::Lambda::Function")
                .change("Add", "Queue", "AWS::SQS::Queue")
                .change("Remove", "Data", "AWS::DynamoDB::Table")
                .replacing("True", "Delete");
            cfn.release(&template_url(release), changing);
        }
        s3.put(BUCKET, KEY, releases().to_string());
        Self {
            table,
            aws,
            cfn,
            s3,
            stack,
        }
    }

    /// The updater with a complete environment, not started.
    pub(crate) fn builder(&self) -> FunctionBuilder {
        Function::named("updater")
            .aws(&self.aws, &self.table.account)
            .env("TABLE_NAME", &self.table.name)
            .env("STACK_NAME", "install")
            .env("RELEASES_URI", &format!("s3://{BUCKET}/{KEY}"))
    }

    /// The updater, its init over.
    pub(crate) fn updater(&self) -> Function {
        let function = self.builder().start();
        function.ready();
        function
    }

    /// Stores a model check of that release in that state, started a minute ago.
    pub(crate) fn check(&self, release: &str, state: &str) {
        let started = headgate_tests::ago(60);
        self.table.put(&json!({
            "pk": "INSTALL#install", "sk": format!("CHECK#{release}"), "schema": 1, "rev": 1,
            "release": release, "state": state, "attempt": 1, "build_id": "check:1",
            "build_status": if state == "pending" { "IN_PROGRESS" } else { "SUCCEEDED" },
            "started_at": started, "checked_at": started,
            "template_sha256": "a".repeat(64), "models": [],
            "reason": {"code": "x", "text": "because"},
        }));
    }

    /// Time goes by, for the table and for CloudFormation.
    pub(crate) fn later(&self, seconds: i64) {
        self.table.age(seconds);
        self.cfn.age(seconds);
    }

    /// The update rows, newest first.
    pub(crate) fn rows(&self) -> Vec<Value> {
        let mut rows: Vec<Value> = self
            .table
            .items()
            .into_iter()
            .filter(|item| item["sk"].as_str().is_some_and(|sk| sk.starts_with("UPDATE#0")))
            .collect();
        rows.reverse();
        rows
    }

    /// The head row.
    pub(crate) fn head(&self) -> Value {
        self.table
            .get("INSTALL#install", "UPDATE#HEAD")
            .unwrap_or_default()
    }

    /// Writes to CloudFormation so far: create, execute, delete.
    pub(crate) fn cloudformation_writes(&self) -> (usize, usize, usize) {
        let traffic = self.aws.traffic();
        let count = |operation: &str| traffic.of("cloudformation", operation);
        (
            count("CreateChangeSet"),
            count("ExecuteChangeSet"),
            count("DeleteChangeSet"),
        )
    }

    /// The name of the change set of the newest update.
    pub(crate) fn newest_set(&self) -> String {
        self.cfn.change_sets().last().expect("a change set").arn.clone()
    }

    /// A prepared update to that release: its id.
    pub(crate) fn prepare(&self, function: &Function, release: &str) -> String {
        let begun = begin(function, release);
        begun.expect(201);
        self.cfn.make(&self.newest_set());
        let version = get(function, "/version");
        assert_eq!(version.text("/update/state"), "prepared", "{version:?}");
        version.text("/update/id").to_owned()
    }

    /// An update to that release that runs: its id.
    pub(crate) fn run(&self, function: &Function, release: &str) -> String {
        self.check(release, "passed");
        let id = self.prepare(function, release);
        apply(function, &id).expect(202);
        self.cfn.start_run(&self.newest_set());
        id
    }
}

pub(crate) fn releases() -> Value {
    let entry = |release: &str, requires: Option<&str>| {
        let mut entry = json!({
            "release": release, "template_url": template_url(release), "template_sha256": "a".repeat(64),
            "released_at": "2026-11-01T00:00:00Z",
        });
        if let Some(requires) = requires {
            entry["requires"] = json!(requires);
        }
        entry
    };
    json!({"schema": 1, "releases": [
        entry("2.4.0", Some("2.2.0")), entry("2.2.0", None), entry("2.3.0", None), entry("2.3.5", None),
        entry("2.5.0", None), entry("3.0.0", Some("2.5.0")), entry("3.1.0-rc.1", None),
    ]})
}

/// Sends a request and reads the reply.
pub(crate) fn call(function: &Function, request: &HttpCall) -> HttpReply {
    let reply = HttpReply::from_answer(&function.invoke(request.event()).answer());
    assert!(
        !reply.header("x-request-id").is_empty(),
        "no x-request-id: {reply:?}"
    );
    reply
}

pub(crate) fn get(function: &Function, path: &str) -> HttpReply {
    call(function, &HttpCall::get(path))
}

pub(crate) fn version(function: &Function) -> HttpReply {
    let reply = get(function, "/version");
    reply.expect(200);
    reply
}

pub(crate) fn begin(function: &Function, release: &str) -> HttpReply {
    call(
        function,
        &HttpCall::post("/updates").json(&json!({"release": release})),
    )
}

pub(crate) fn apply(function: &Function, id: &str) -> HttpReply {
    call(function, &HttpCall::post(&format!("/updates/{id}/apply")))
}

pub(crate) fn discard(function: &Function, id: &str) -> HttpReply {
    call(function, &HttpCall::post(&format!("/updates/{id}/discard")))
}

/// Runs the cases a few at a time: each has an install of its own, and most of its time is the SDK waiting
/// before a repeat.
pub(crate) fn side_by_side<C: Send>(cases: Vec<C>, run: impl Fn(C) + Sync) {
    let cases = std::sync::Mutex::new(cases.into_iter());
    let next = || cases.lock().unwrap().next();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(case) = next() {
                    run(case);
                }
            });
        }
    });
}

/// An event of `events/updater`, or of the named function's folder.
macro_rules! event {
    ($name:literal) => {
        crate::install::event!("updater", $name)
    };
    ($function:literal, $name:literal) => {
        serde_json::from_str::<serde_json::Value>(include_str!(concat!(
            "../../events/",
            $function,
            "/",
            $name,
            ".json"
        )))
        .unwrap()
    };
}
pub(crate) use event;
