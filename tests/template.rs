//! template.yaml against the code: what cfn-lint can not know (it has a run of its own in ./test).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::collections::{BTreeMap, BTreeSet};

use headgate_tests::source;
use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::{Map, Value, json};

/// Functions by package, with the variables contract 3 requires of each (without a default).
const REQUIRED: [(&str, &[&str]); 5] = [
    ("updater", &["TABLE_NAME", "STACK_NAME", "RELEASES_URI"]),
    (
        "model-check",
        &[
            "TABLE_NAME",
            "STACK_NAME",
            "RELEASES_URI",
            "RELEASE_CHECK_PROJECT",
        ],
    ),
    ("link-details", &["TABLE_NAME"]),
    ("rebuild-gate", &["TABLE_NAME", "EVIDENCE_BUCKET"]),
    ("domain-provisioner", &["TABLE_NAME", "SAGA_ARN"]),
];

/// Routes of contract 4 by package and the scope each needs.
const ROUTES: [(&str, &str, &str); 19] = [
    ("updater", "GET /version", "headgate/read"),
    ("updater", "GET /updates", "headgate/read"),
    ("updater", "GET /updates/{id}", "headgate/read"),
    ("updater", "POST /updates", "headgate/write"),
    ("updater", "POST /updates/{id}/apply", "headgate/write"),
    ("updater", "POST /updates/{id}/discard", "headgate/write"),
    ("model-check", "GET /model-check", "headgate/read"),
    ("model-check", "POST /model-check", "headgate/write"),
    ("model-check", "GET /setup-checks", "headgate/read"),
    ("model-check", "GET /preflight", "headgate/read"),
    (
        "link-details",
        "PUT /data-planes/{dp}/private-links/{id}",
        "headgate/write",
    ),
    (
        "link-details",
        "DELETE /data-planes/{dp}/private-links/{id}",
        "headgate/write",
    ),
    (
        "rebuild-gate",
        "POST /rebuilds/{run}/gates/{phase}",
        "headgate/write",
    ),
    ("rebuild-gate", "GET /rebuilds/{run}", "headgate/read"),
    ("rebuild-gate", "POST /rebuilds/{run}/answers", "headgate/write"),
    ("domain-provisioner", "POST /domains", "headgate/write"),
    ("domain-provisioner", "GET /domains/{domain}", "headgate/read"),
    ("domain-provisioner", "GET /domains", "headgate/read"),
    ("domain-provisioner", "DELETE /domains/{domain}", "headgate/write"),
];

/// Set for Lambda itself or for the TLS library, not read by config.rs.
const NOT_OURS: [&str; 3] = ["SSL_CERT_FILE", "AWS_LAMBDA_LOG_FORMAT", "AWS_LAMBDA_LOG_LEVEL"];

/// The template with short tags in their long form.
fn template() -> Value {
    let text = std::fs::read_to_string(source::root().join("template.yaml")).expect("template.yaml");
    let documents = Yaml::load_from_str(&text).expect("YAML");
    long_form(&documents[0])
}

fn long_form(node: &Yaml<'_>) -> Value {
    match node {
        Yaml::Value(Scalar::Null) => Value::Null,
        Yaml::Value(Scalar::Boolean(flag)) => json!(flag),
        Yaml::Value(Scalar::Integer(number)) => json!(number),
        Yaml::Value(Scalar::FloatingPoint(number)) => json!(number.into_inner()),
        Yaml::Value(Scalar::String(text)) => json!(text),
        Yaml::Sequence(items) => items.iter().map(long_form).collect(),
        Yaml::Mapping(fields) => Value::Object(
            fields
                .iter()
                .map(|(key, value)| (key.as_str().expect("a text key").to_owned(), long_form(value)))
                .collect(),
        ),
        Yaml::Tagged(tag, inner) => {
            let name = match tag.suffix.as_str() {
                "Ref" => "Ref".to_owned(),
                "Condition" => "Condition".to_owned(),
                other => format!("Fn::{other}"),
            };
            json!({name: long_form(inner)})
        }
        other => panic!("template.yaml: {other:?} is no value"),
    }
}

fn resources(template: &Value) -> &Map<String, Value> {
    template["Resources"].as_object().expect("Resources")
}

fn of_type<'a>(template: &'a Value, kind: &str) -> Vec<(&'a str, &'a Value)> {
    let all = resources(template).iter();
    all.filter(|(_, resource)| resource["Type"] == kind)
        .map(|(name, r)| (name.as_str(), r))
        .collect()
}

/// Package by logical id of its function.
fn functions(template: &Value) -> BTreeMap<String, String> {
    let functions = of_type(template, "AWS::Serverless::Function");
    let package = |function: &Value| {
        let binary = function
            .pointer("/Metadata/BuildProperties/Binary")
            .and_then(Value::as_str);
        binary.expect("Metadata.BuildProperties.Binary").to_owned()
    };
    functions
        .into_iter()
        .map(|(id, function)| (id.to_owned(), package(function)))
        .collect()
}

/// The names of `functions/`.
fn packages() -> Vec<String> {
    let folder = std::fs::read_dir(source::root().join("functions")).unwrap();
    let mut names: Vec<String> = folder
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert!(!names.is_empty());
    names
}

/// Every text anywhere below a value.
fn texts(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Value::Object(fields) => fields.values().for_each(|field| texts(field, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A value or a list of them, with `Fn::If` resolved to all its branches.
fn branches(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().flat_map(branches).collect(),
        Value::Object(fields) => match fields.get("Fn::If").and_then(Value::as_array) {
            Some(choice) => choice.iter().skip(1).flat_map(branches).collect(),
            None => vec![value],
        },
        _ => vec![value],
    }
}

/// The policy statements of a role, those under a condition included.
fn statements(role: &Value) -> Vec<&Value> {
    let policies = role["Properties"]["Policies"].as_array().expect("Policies");
    let all = policies
        .iter()
        .flat_map(|policy| branches(&policy["PolicyDocument"]["Statement"]));
    all.filter(|statement| statement.get("Effect").is_some())
        .collect()
}

fn actions(statement: &Value) -> Vec<&str> {
    branches(&statement["Action"])
        .into_iter()
        .filter_map(Value::as_str)
        .collect()
}

fn role_of<'a>(template: &'a Value, function: &Value) -> &'a Value {
    let target = function["Properties"]["Role"]["Fn::GetAtt"]
        .as_str()
        .expect("a role of its own");
    &template["Resources"][target.split('.').next().unwrap()]
}

#[test]
fn each_package_is_one_function() {
    let template = template();
    let mut built: Vec<String> = functions(&template).into_values().collect();
    built.sort();
    assert_eq!(
        built,
        packages(),
        "one function per folder of functions/, and no other"
    );
    for (id, function) in of_type(&template, "AWS::Serverless::Function") {
        assert_eq!(function["Metadata"]["BuildMethod"], "rust-cargolambda", "{id}");
    }
    let globals = &template["Globals"]["Function"];
    assert_eq!(globals["Runtime"], "provided.al2023");
    assert_eq!(globals["Handler"], "bootstrap");
    assert!(globals["Architectures"].is_array());
}

#[test]
fn every_variable_is_one_that_the_code_reads_and_every_required_one_is_set() {
    let template = template();
    let config = std::fs::read_to_string(source::root().join("shared/src/config.rs")).unwrap();
    let global = template
        .pointer("/Globals/Function/Environment/Variables")
        .and_then(Value::as_object)
        .unwrap();
    for (id, package) in functions(&template) {
        let own = template["Resources"][&id]
            .pointer("/Properties/Environment/Variables")
            .and_then(Value::as_object);
        let names: BTreeSet<&str> = global
            .keys()
            .chain(own.into_iter().flat_map(Map::keys))
            .map(String::as_str)
            .collect();
        for name in &names {
            let read = NOT_OURS.contains(name) || config.contains(&format!("\"{name}\""));
            assert!(read, "{id}: {name} is not a variable of shared/src/config.rs");
        }
        let (_, required) = REQUIRED
            .iter()
            .find(|(known, _)| *known == package)
            .expect("a package of contract 1");
        for name in *required {
            assert!(
                names.contains(name),
                "{id}: {name} is required (contract 3) and not set"
            );
        }
        // Only the local stack turns the caller check off.
        assert!(!names.contains("HEADGATE_AUTH"), "{id}");
    }
}

#[test]
fn every_route_of_the_contract_asks_for_its_scope() {
    let template = template();
    let built: BTreeSet<String> = functions(&template).into_values().collect();
    let mut routes = BTreeMap::new();
    for (id, route) in of_type(&template, "AWS::ApiGatewayV2::Route") {
        let key = route["Properties"]["RouteKey"]
            .as_str()
            .expect("RouteKey")
            .to_owned();
        let mut integration = Vec::new();
        texts(&route["Properties"]["Target"], &mut integration);
        let integration = integration[0]
            .trim_start_matches("integrations/${")
            .trim_end_matches('}')
            .to_owned();
        let mut uri = Vec::new();
        texts(
            &template["Resources"][&integration]["Properties"]["IntegrationUri"],
            &mut uri,
        );
        let function = uri[0].split('.').next().unwrap().to_owned();
        let properties = &route["Properties"];
        assert_eq!(
            properties["AuthorizationType"],
            json!({"Fn::If": ["AuthByJwt", "JWT", "AWS_IAM"]}),
            "{id}"
        );
        assert!(properties["AuthorizerId"].is_object(), "{id}");
        let scopes: Vec<String> = branches(&properties["AuthorizationScopes"])
            .into_iter()
            .filter_map(|scope| scope.as_str().map(str::to_owned))
            .collect();
        routes.insert(key, (function, scopes));
    }
    let by_id = functions(&template);
    for (package, key, scope) in ROUTES.iter().filter(|(package, _, _)| built.contains(*package)) {
        let (function, scopes) = routes.get(*key).unwrap_or_else(|| panic!("no route {key}"));
        assert_eq!(by_id.get(function).map(String::as_str), Some(*package), "{key}");
        assert_eq!(scopes, &[(*scope).to_owned()], "{key}");
    }
    for (key, (_, scopes)) in &routes {
        let fits = match key.split(' ').next().unwrap() {
            // Who may read links is decided row by row, so that ids can not be probed (contract 4).
            "GET" if key.starts_with("GET /data-planes/") => true,
            "GET" => scopes == &["headgate/read"],
            "$default" => true,
            _ => scopes == &["headgate/write"],
        };
        assert!(fits, "{key}: {scopes:?}");
    }
}

#[test]
fn every_function_may_do_what_it_does_and_nothing_broad() {
    let template = template();
    for (id, function) in of_type(&template, "AWS::Serverless::Function") {
        let role = role_of(&template, function);
        assert!(
            role["Properties"].get("ManagedPolicyArns").is_none(),
            "{id}: rights are written out"
        );
        for statement in statements(role) {
            assert_eq!(statement["Effect"], "Allow", "{id}");
            for action in actions(statement) {
                assert!(!action.contains('*'), "{id}: {action}");
                let anywhere = branches(&statement["Resource"])
                    .iter()
                    .any(|resource| **resource == "*");
                // These know no narrower resource.
                let excused = [
                    "cloudformation:GetTemplateSummary",
                    "cloudformation:ValidateTemplate",
                ];
                assert!(!anywhere || excused.contains(&action), "{id}: {action} on *");
            }
            if actions(statement)
                .iter()
                .any(|action| action.starts_with("dynamodb:"))
            {
                let keys = &statement["Condition"]["ForAllValues:StringEquals"]["dynamodb:LeadingKeys"];
                let likes = &statement["Condition"]["ForAllValues:StringLike"]["dynamodb:LeadingKeys"];
                assert!(
                    keys.is_array() || likes.is_array(),
                    "{id}: rows of its own partitions only"
                );
            }
        }
    }
}

/// Names of IAM actions in the code of the functions, from the places that name the action of a call.
fn actions_in_code() -> BTreeMap<String, String> {
    let services = [
        "cloudformation",
        "codebuild",
        "ssm",
        "s3",
        "acm",
        "ecs",
        "states",
        "route53",
    ];
    let mut found = BTreeMap::new();
    for (path, text) in source::rust_files("shared/src") {
        if !path.ends_with("aws.rs") {
            continue;
        }
        for literal in text.split('"').skip(1).step_by(2) {
            let Some((service, action)) = literal.split_once(':') else {
                continue;
            };
            let named = action.starts_with(|c: char| c.is_ascii_uppercase())
                && action.chars().all(|c| c.is_ascii_alphanumeric());
            if services.contains(&service) && named {
                found.insert(literal.to_owned(), path.clone());
            }
        }
    }
    assert!(
        found.len() > 5,
        "the code names its actions elsewhere now: {found:?}"
    );
    found
}

#[test]
fn every_call_the_updates_make_is_allowed_to_somebody() {
    let template = template();
    let allowed: BTreeSet<&str> = of_type(&template, "AWS::Serverless::Function")
        .into_iter()
        .flat_map(|(_, function)| statements(role_of(&template, function)))
        .flat_map(actions)
        .collect();
    let domains: Vec<&str> = packages()
        .iter()
        .map(|package| match package.as_str() {
            "updater" | "model-check" => "shared/src/updates/",
            "link-details" => "shared/src/links/",
            "rebuild-gate" => "shared/src/rebuild/",
            _ => "shared/src/domains/",
        })
        .collect();
    for (action, path) in actions_in_code() {
        if domains.iter().any(|domain| path.starts_with(domain)) {
            assert!(
                allowed.contains(action.as_str()),
                "{action} ({path}) is allowed to no function"
            );
        }
    }
}

#[test]
fn every_function_has_a_log_a_time_limit_and_alarms() {
    let template = template();
    let alarms = of_type(&template, "AWS::CloudWatch::Alarm");
    for (id, function) in of_type(&template, "AWS::Serverless::Function") {
        let timeout = function["Properties"]["Timeout"]
            .as_i64()
            .or(template["Globals"]["Function"]["Timeout"].as_i64());
        // Above a route's own budget of 8 s, and for a route below the 30 s that the gateway waits.
        assert!(
            timeout.is_some_and(|seconds| (10..=900).contains(&seconds)),
            "{id}: {timeout:?}"
        );
        let log = function["Properties"]["LoggingConfig"]["LogGroup"]["Ref"]
            .as_str()
            .expect("a log group of its own");
        let retention = &template["Resources"][log]["Properties"]["RetentionInDays"];
        assert!(
            retention.is_object() || retention.is_number(),
            "{id}: logs are kept for ever"
        );
        for metric in ["Errors", "Throttles"] {
            let found = alarms.iter().any(|(_, alarm)| {
                let properties = &alarm["Properties"];
                properties["Namespace"] == "AWS/Lambda"
                    && properties["MetricName"] == metric
                    && properties["Dimensions"][0]["Value"] == json!({"Ref": id})
            });
            assert!(found, "{id} has no alarm on {metric}");
        }
    }
    for (id, alarm) in &alarms {
        assert!(
            alarm["Properties"]["AlarmDescription"]
                .as_str()
                .is_some_and(|text| text.len() > 30),
            "{id}"
        );
        assert_eq!(alarm["Properties"]["TreatMissingData"], "notBreaching", "{id}");
        assert!(
            alarm["Properties"]["AlarmActions"].is_object(),
            "{id}: nobody hears it"
        );
    }
    let metrics: Vec<&Value> = alarms
        .iter()
        .map(|(_, alarm)| &alarm["Properties"]["MetricName"])
        .collect();
    assert!(metrics.contains(&&json!("StateAgeSeconds")), "contract 6");
}

/// Every queue that takes what a function could not has an alarm (contract 6, "dead-letter depth").
#[test]
fn every_dead_letter_queue_has_an_alarm() {
    let template = template();
    let alarms = of_type(&template, "AWS::CloudWatch::Alarm");
    for (id, queue) in of_type(&template, "AWS::SQS::Queue") {
        let watched = alarms.iter().any(|(_, alarm)| {
            let mut named = Vec::new();
            texts(&alarm["Properties"]["Dimensions"], &mut named);
            named.iter().any(|text| text.split('.').next() == Some(id))
        });
        assert!(watched, "{id}: nobody hears of what is in it");
        let days = queue["Properties"]["MessageRetentionPeriod"]
            .as_i64()
            .unwrap_or(0)
            / 86_400;
        assert!(days >= 7, "{id}: kept for {days} days");
    }
}

#[test]
fn the_table_is_as_the_contract_says() {
    let template = template();
    let tables = of_type(&template, "AWS::DynamoDB::Table");
    assert_eq!(tables.len(), 1, "one table");
    let (_, table) = tables[0];
    assert_eq!(
        (&table["DeletionPolicy"], &table["UpdateReplacePolicy"]),
        (&json!("Retain"), &json!("Retain"))
    );
    let properties = &table["Properties"];
    assert_eq!(properties["BillingMode"], "PAY_PER_REQUEST");
    assert_eq!(properties["DeletionProtectionEnabled"], true);
    assert_eq!(
        properties["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"],
        true
    );
    assert_eq!(properties["SSESpecification"]["SSEEnabled"], true);
    assert_eq!(
        properties["TimeToLiveSpecification"],
        json!({"AttributeName": "ttl", "Enabled": true})
    );
    let keys: Vec<&Value> = properties["KeySchema"]
        .as_array()
        .unwrap()
        .iter()
        .map(|key| &key["AttributeName"])
        .collect();
    assert_eq!(keys, [&json!("pk"), &json!("sk")]);
}

/// The trigger of contract 4.3 that the local AWS can not fire (spec/local.md, mind 5).
#[test]
fn the_updater_is_woken_by_the_schedule_and_by_its_stack() {
    let template = template();
    let id = functions(&template)
        .into_iter()
        .find(|(_, package)| package == "updater")
        .expect("the updater")
        .0;
    let events: Vec<&Value> = template["Resources"][&id]["Properties"]["Events"]
        .as_object()
        .unwrap()
        .values()
        .collect();
    let schedule = events
        .iter()
        .find(|event| event["Type"] == "Schedule" || event["Type"] == "ScheduleV2");
    assert_eq!(
        schedule.expect("a schedule")["Properties"]["Schedule"],
        "rate(5 minutes)"
    );
    let rule = events
        .iter()
        .find(|event| event["Type"] == "EventBridgeRule")
        .expect("a rule");
    let pattern = &rule["Properties"]["Pattern"];
    assert_eq!(pattern["source"], json!(["aws.cloudformation"]));
    assert_eq!(
        pattern["detail-type"],
        json!(["CloudFormation Stack Status Change"])
    );
    let mut stack = Vec::new();
    texts(&pattern["detail"]["stack-id"], &mut stack);
    assert!(
        stack
            .iter()
            .any(|text| text.contains("stack/${InstallStackName}/")),
        "only its own stack: {stack:?}"
    );
}
