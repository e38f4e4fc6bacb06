//! The harness tests itself: what a test of a function relies on, tried with the clients the functions use.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_cloudformation::error::ProvideErrorMetadata;
use aws_sdk_cloudformation::types::{
    ChangeSetStatus, ExecutionStatus, Parameter as SdkParameter, StackStatus,
};
use aws_sdk_dynamodb::config::Credentials;
use aws_sdk_dynamodb::types::AttributeValue;
use headgate_tests::http::{self, Request};
use headgate_tests::{
    Answer, Caller, FakeCloudFormation, FakeS3, Function, HttpCall, Outcome, Parameter, Plan, ScriptedAws,
    Table,
};
use serde_json::{Value, json};

const URL: &str = "https://releases.example.com/2.4.0/template.yaml";

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

/// A client configuration for that account, with at most this many attempts and hardly a wait between them.
async fn sdk(aws: &ScriptedAws, account: &str, attempts: u32) -> SdkConfig {
    let retry = RetryConfig::standard()
        .with_max_attempts(attempts)
        .with_initial_backoff(Duration::from_millis(1))
        .with_max_backoff(Duration::from_millis(1));
    aws_config::defaults(BehaviorVersion::latest())
        .region(Region::new("eu-central-1"))
        .endpoint_url(aws.url())
        .credentials_provider(Credentials::new(account, "secret", None, None, "test"))
        .retry_config(retry)
        .load()
        .await
}

async fn cloudformation(aws: &ScriptedAws, attempts: u32) -> aws_sdk_cloudformation::Client {
    aws_sdk_cloudformation::Client::new(&sdk(aws, "123456789012", attempts).await)
}

fn hello() -> Function {
    Function::program(Path::new(env!("CARGO_BIN_EXE_hello")), "hello").start()
}

// --- the fake Runtime API

#[test]
fn a_function_answers_fails_and_dies() {
    let function = hello();
    function.ready();
    assert_eq!(
        function.invoke(&json!({"a": [1, null]})),
        Outcome::Answered(json!({"a": [1, null]}))
    );
    assert_eq!(
        function.invoke(&json!({"fail": "no luck"})).error(),
        ("Hello.Failed".to_owned(), "no luck".to_owned())
    );
    // It goes on after an error.
    assert_eq!(function.invoke(&json!(7)).answer(), json!(7));
    assert_eq!(function.invoke(&json!({"die": 3})), Outcome::Died);
    assert_eq!(
        function.invoke(&json!(8)),
        Outcome::Died,
        "a dead function stays dead"
    );
}

#[test]
fn a_killed_function_is_dead_at_once() {
    let function = hello();
    function.ready().kill();
    assert_eq!(function.invoke(&json!(1)), Outcome::Died);
}

#[test]
fn an_event_that_is_not_json_is_the_functions_to_refuse() {
    let function = hello();
    let (kind, message) = function.invoke_bytes(b"{\"release\": ").error();
    assert!(!kind.is_empty() && !message.is_empty(), "{kind}: {message}");
    assert_eq!(function.invoke(&json!(1)).answer(), json!(1));
}

#[test]
fn the_environment_is_what_the_test_gives() {
    // Without its name the runtime can not start: nothing of the machine filled it in.
    let function = Function::program(Path::new(env!("CARGO_BIN_EXE_hello")), "hello")
        .without("AWS_LAMBDA_FUNCTION_NAME")
        .start();
    assert_eq!(function.invoke(&json!(1)), Outcome::Died);
    let words = function.last_words();
    assert!(
        words.iter().any(|line| line.contains("AWS_LAMBDA_FUNCTION_NAME")),
        "{words:?}"
    );
}

// --- the scripted endpoint

#[test]
fn answers_come_from_the_queue_then_the_standing_one_then_from_behind() {
    let aws = ScriptedAws::start();
    let stack = |name: &str| json!({"Stacks": [{"StackName": name, "CreationTime": "2026-11-30T10:00:00Z", "StackStatus": "UPDATE_COMPLETE"}]});
    let behind = stack("behind");
    aws.serve("cloudformation", move |_| Answer::ok(behind.clone()));
    aws.next("cloudformation", "DescribeStacks", Answer::ok(stack("first")));
    aws.next("cloudformation", "DescribeStacks", Answer::Behind);
    aws.always("cloudformation", "DescribeStacks", Answer::ok(stack("standing")));
    block_on(async {
        let client = cloudformation(&aws, 1).await;
        let mut seen = Vec::new();
        for _ in 0..4 {
            let answer = client
                .describe_stacks()
                .stack_name("install")
                .send()
                .await
                .unwrap();
            seen.push(answer.stacks()[0].stack_name().unwrap().to_owned());
        }
        assert_eq!(seen, ["first", "behind", "standing", "standing"]);
    });
    let traffic = aws.traffic();
    assert_eq!((traffic.total(), traffic.depth()), (4, 4));
    assert_eq!(traffic.of("cloudformation", "DescribeStacks"), 4);
    let call = traffic.calls("cloudformation", "DescribeStacks")[0];
    assert_eq!(
        (call.text("/StackName"), call.account.as_str()),
        ("install", "123456789012")
    );
}

#[test]
fn faults_reach_the_sdk_as_what_they_are() {
    let aws = ScriptedAws::start();
    aws.next("cloudformation", "DescribeStacks", Answer::Throttled)
        .next("cloudformation", "DescribeStacks", Answer::AccessDenied)
        .next("cloudformation", "DescribeStacks", Answer::ServerError)
        .next(
            "cloudformation",
            "DescribeStacks",
            Answer::error(400, "ValidationError", "Stack <x> & co does not exist"),
        );
    block_on(async {
        let client = cloudformation(&aws, 1).await;
        let mut codes = Vec::new();
        for _ in 0..4 {
            let error = client.describe_stacks().stack_name("x").send().await.unwrap_err();
            let status = error.raw_response().unwrap().status().as_u16();
            codes.push(format!(
                "{status} {} {}",
                error.code().unwrap(),
                error.message().unwrap()
            ));
        }
        assert_eq!(
            codes,
            [
                "400 Throttling Rate exceeded",
                "403 AccessDenied User: arn:aws:sts::123456789012:assumed-role/fn/fn is not authorized to perform: cloudformation:DescribeStacks",
                "500 InternalFailure We encountered an internal error.",
                "400 ValidationError Stack <x> & co does not exist",
            ]
        );
        // Faults below the service.
        aws.next("cloudformation", "DescribeStacks", Answer::Malformed)
            .next("cloudformation", "DescribeStacks", Answer::Drops)
            .next(
                "cloudformation",
                "DescribeStacks",
                Answer::Cut(Box::new(Answer::ok(json!({"Stacks": []})))),
            );
        for fault in ["malformed", "dropped", "cut"] {
            let error = client.describe_stacks().stack_name("x").send().await.unwrap_err();
            assert!(
                error.as_service_error().is_none_or(|e| e.meta().code().is_none()),
                "{fault}: {error:?}"
            );
        }
    });
}

#[test]
fn an_endpoint_that_never_answers_makes_the_caller_give_up() {
    let aws = ScriptedAws::start();
    aws.always("cloudformation", "DescribeStacks", Answer::NeverAnswers);
    block_on(async {
        let timeouts = TimeoutConfig::builder()
            .operation_timeout(Duration::from_millis(300))
            .build();
        let config = sdk(&aws, "123456789012", 1)
            .await
            .into_builder()
            .timeout_config(timeouts)
            .build();
        let client = aws_sdk_cloudformation::Client::new(&config);
        let error = client.describe_stacks().stack_name("x").send().await.unwrap_err();
        assert!(
            matches!(error, aws_sdk_cloudformation::error::SdkError::TimeoutError(_)),
            "{error:?}"
        );
    });
    assert_eq!(aws.traffic().total(), 1);
}

#[test]
fn a_throttled_request_is_repeated_and_every_attempt_counts() {
    let aws = ScriptedAws::start();
    aws.next_n(2, "cloudformation", "DescribeStacks", Answer::Throttled)
        .next(
            "cloudformation",
            "DescribeStacks",
            Answer::ok(json!({"Stacks": []})),
        );
    block_on(async {
        cloudformation(&aws, 3)
            .await
            .describe_stacks()
            .stack_name("x")
            .send()
            .await
            .unwrap();
    });
    assert_eq!(aws.traffic().total(), 3);
}

#[test]
fn a_lost_answer_has_had_its_effect() {
    let aws = ScriptedAws::start();
    let fake = FakeCloudFormation::new();
    fake.serve(&aws);
    fake.install("install", &Plan::release("2.3.0"));
    fake.release(URL, Plan::release("2.4.0"));
    aws.next("cloudformation", "CreateChangeSet", Answer::lost());
    block_on(async {
        let client = cloudformation(&aws, 1).await;
        let request = client
            .create_change_set()
            .stack_name("install")
            .change_set_name("upd-1")
            .client_token("1")
            .template_url(URL);
        let error = request.clone().send().await.unwrap_err();
        assert!(error.as_service_error().is_none(), "{error:?}");
        assert_eq!(fake.change_sets().len(), 1, "it was made");
        // The same again: the same answer, no second set.
        let again = request.send().await.unwrap();
        assert_eq!(again.id(), Some(fake.change_set("upd-1").arn.as_str()));
        assert_eq!(fake.change_sets().len(), 1);
    });
}

#[test]
fn a_gate_holds_a_request_before_its_effect_and_an_answer_after_it() {
    let aws = ScriptedAws::start();
    let store = FakeS3::new();
    store.serve(&aws);
    let put = |key: &str| {
        http::send(
            &aws.url(),
            &Request::new("PUT", &format!("/bucket/{key}"), key)
                .with("authorization", "Credential=1/2/3/s3/x"),
        )
        .unwrap()
        .status
    };
    let before = aws.hold("s3", "PutObject");
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| put("held"));
        before.reached();
        assert_eq!(store.get("bucket", "held"), None);
        before.open();
        assert_eq!(sender.join().unwrap(), 200);
    });
    let after = headgate_tests::Gate::new();
    aws.next("s3", "PutObject", Answer::late(&after));
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| put("late"));
        after.reached();
        assert_eq!(store.get("bucket", "late").as_deref(), Some(b"late".as_slice()));
        after.open();
        assert_eq!(sender.join().unwrap(), 200);
    });
}

#[test]
fn depth_is_the_longest_chain_of_round_trips() {
    let aws = ScriptedAws::start();
    aws.always(
        "cloudformation",
        "DescribeStacks",
        Answer::ok(json!({"Stacks": []})),
    );
    aws.always(
        "cloudformation",
        "DescribeStackEvents",
        Answer::ok(json!({"StackEvents": []})),
    );
    block_on(async {
        let client = cloudformation(&aws, 1).await;
        let stacks = || client.describe_stacks().stack_name("x").send();
        let events = || client.describe_stack_events().stack_name("x").send();
        stacks().await.unwrap();
        let mark = aws.mark();
        aws.meet(&[
            ("cloudformation", "DescribeStacks"),
            ("cloudformation", "DescribeStackEvents"),
        ]);
        let (first, second) = tokio::join!(stacks(), events());
        first.unwrap();
        second.unwrap();
        assert_eq!(aws.since(mark).depth(), 1);
        stacks().await.unwrap();
        assert_eq!((aws.since(mark).total(), aws.since(mark).depth()), (3, 2));
        assert_eq!(aws.traffic().depth(), 3);
    });
}

#[test]
fn objects_are_read_and_written_by_the_real_client() {
    let aws = ScriptedAws::start();
    let store = FakeS3::new();
    store.serve(&aws);
    store.put("releases", "a/list.json", "{}");
    block_on(async {
        let client = aws_sdk_s3::Client::new(&sdk(&aws, "123456789012", 1).await);
        let object = client
            .get_object()
            .bucket("releases")
            .key("a/list.json")
            .send()
            .await
            .unwrap();
        assert_eq!(object.version_id(), Some("v1"));
        assert_eq!(object.body.collect().await.unwrap().into_bytes().as_ref(), b"{}");
        let missing = client
            .get_object()
            .bucket("releases")
            .key("none")
            .send()
            .await
            .unwrap_err();
        assert!(
            missing.as_service_error().unwrap().is_no_such_key(),
            "{missing:?}"
        );
        let put = |key: &str| {
            let body = aws_sdk_s3::primitives::ByteStream::from_static(b"evidence");
            client
                .put_object()
                .bucket("evidence")
                .key(key)
                .if_none_match("*")
                .body(body)
                .send()
        };
        put("e").await.unwrap();
        let again = put("e").await.unwrap_err();
        assert_eq!(again.code(), Some("PreconditionFailed"));
    });
    assert_eq!(
        store.get("evidence", "e").as_deref(),
        Some(b"evidence".as_slice())
    );
}

#[test]
fn a_fault_can_be_planned_for_the_nth_request() {
    let aws = ScriptedAws::start();
    aws.always(
        "cloudformation",
        "DescribeStacks",
        Answer::ok(json!({"Stacks": []})),
    );
    aws.nth(2, "cloudformation", Answer::AccessDenied)
        .nth(3, "*", Answer::ServerError);
    block_on(async {
        let client = cloudformation(&aws, 1).await;
        let mut codes = Vec::new();
        for _ in 0..4 {
            let answer = client.describe_stacks().stack_name("x").send().await;
            codes.push(
                answer
                    .err()
                    .and_then(|error| error.code().map(str::to_owned))
                    .unwrap_or_default(),
            );
        }
        assert_eq!(codes, ["", "AccessDenied", "InternalFailure", ""]);
    });
    assert!(aws.nth_done());
}

#[test]
fn time_goes_by_in_both_worlds() {
    let table = Table::create();
    table.put(&json!({"pk": "a", "sk": "1", "at": "2026-11-30T10:00:00Z", "reserve_until": 5_000, "release": "2.4.0"}));
    table.age(60);
    let aged = json!({"pk": "a", "sk": "1", "at": "2026-11-30T09:59:00.000Z", "reserve_until": -55_000, "release": "2.4.0"});
    assert_eq!(table.get("a", "1"), Some(aged));

    let fake = FakeCloudFormation::new();
    fake.install("install", &Plan::release("2.3.0"));
    let created = |fake: &FakeCloudFormation| {
        let shown = fake.describe_stack("install");
        shown["Stacks"][0]["CreationTime"]
            .as_str()
            .unwrap()
            .parse::<jiff::Timestamp>()
            .unwrap()
    };
    let before = created(&fake);
    fake.age(60);
    assert_eq!(before.duration_since(created(&fake)).as_secs(), 60);
}

#[test]
fn a_request_without_a_plan_is_a_complaint() {
    let aws = ScriptedAws::start();
    let request = Request::new("POST", "/", "{\"projectName\": \"check\"}")
        .with("x-amz-target", "CodeBuild_20161006.StartBuild");
    let answer = http::send(&aws.url(), &request).unwrap();
    assert_eq!(answer.status, 400);
    assert!(String::from_utf8_lossy(&answer.body).contains("UnplannedRequest"));
    let complaints = aws.take_complaints();
    assert_eq!(
        complaints,
        ["nobody planned for codebuild.StartBuild {\"projectName\":\"check\"}"]
    );
}

#[test]
fn every_protocol_is_told_apart() {
    let aws = ScriptedAws::start();
    let signed = |service: &str| {
        format!(
            "AWS4-HMAC-SHA256 Credential=111122223333/20261201/eu-central-1/{service}/aws4_request, SignedHeaders=host, Signature=0"
        )
    };
    let form = "application/x-www-form-urlencoded";
    let batch = "<?xml version=\"1.0\"?><ChangeResourceRecordSetsRequest xmlns=\"https://route53.amazonaws.com/doc/2013-04-01/\"><ChangeBatch><Comment>a &amp; b</Comment><Changes><Change><Action>UPSERT</Action></Change><Change><Action>DELETE</Action></Change></Changes></ChangeBatch></ChangeResourceRecordSetsRequest>";
    let cases = [
        (
            Request::new("POST", "/", "{\"Names\":[\"a\"]}").with("x-amz-target", "AmazonSSM.GetParameters"),
            "ssm",
            "GetParameters",
            json!({"Names": ["a"]}),
        ),
        (
            Request::new("POST", "/", "Action=DescribeTargetHealth&Version=1&TargetGroupArn=arn%3Aa&Targets.member.1.Id=x&Targets.member.2.Id=y+z")
                .with("content-type", form),
            "elasticloadbalancing",
            "DescribeTargetHealth",
            json!({"TargetGroupArn": "arn:a", "Targets": [{"Id": "x"}, {"Id": "y z"}]}),
        ),
        (
            Request::new("POST", "/", "Action=DescribeNetworkInterfaces&Version=1&Filter.1.Name=n&Filter.1.Value.1=v").with("content-type", form),
            "ec2",
            "DescribeNetworkInterfaces",
            json!({"Filter": [{"Name": "n", "Value": ["v"]}]}),
        ),
        (
            Request::new("GET", "/releases/a%20b/list.json?versionId=v2", ""),
            "s3",
            "GetObject",
            json!({"versionId": "v2", "Bucket": "releases", "Key": "a b/list.json"}),
        ),
        (
            Request::new("POST", "/2013-04-01/hostedzone/Z1/rrset", batch),
            "route53",
            "ChangeResourceRecordSets",
            json!({"Id": "Z1", "ChangeBatch": {"Comment": "a & b", "Changes": {"Change": [{"Action": "UPSERT"}, {"Action": "DELETE"}]}}}),
        ),
    ];
    for (request, service, operation, params) in cases {
        aws.next(service, operation, Answer::Throttled);
        let answer = http::send(&aws.url(), &request.with("authorization", &signed(service))).unwrap();
        assert!(answer.status >= 400, "{service}: {}", answer.status);
        let traffic = aws.traffic();
        let call = &traffic.0.last().unwrap().call;
        assert_eq!(
            (call.service.as_str(), call.operation.as_str()),
            (service, operation)
        );
        assert_eq!(call.params, params, "{service}");
        assert_eq!(call.account, "111122223333");
    }
}

#[test]
fn dynamodb_answers_and_errors_are_typed() {
    let aws = ScriptedAws::start();
    aws.next(
        "dynamodb",
        "GetItem",
        Answer::ok(json!({"Item": {"pk": {"S": "a"}, "rev": {"N": "3"}}})),
    )
    .next(
        "dynamodb",
        "PutItem",
        Answer::error(
            400,
            "ConditionalCheckFailedException",
            "The conditional request failed",
        ),
    );
    block_on(async {
        let client = aws_sdk_dynamodb::Client::new(&sdk(&aws, "111122223333", 1).await);
        let key = AttributeValue::S("a".into());
        let answer = client
            .get_item()
            .table_name("t")
            .key("pk", key.clone())
            .send()
            .await
            .unwrap();
        assert_eq!(answer.item().unwrap()["rev"], AttributeValue::N("3".into()));
        let error = client
            .put_item()
            .table_name("t")
            .item("pk", key)
            .send()
            .await
            .unwrap_err();
        assert!(
            error
                .as_service_error()
                .unwrap()
                .is_conditional_check_failed_exception(),
            "{error:?}"
        );
    });
    assert_eq!(aws.traffic().names(), ["dynamodb.GetItem", "dynamodb.PutItem"]);
    assert_eq!(
        aws.traffic().calls("dynamodb", "GetItem")[0].params["Key"],
        json!({"pk": {"S": "a"}})
    );
}

#[test]
fn a_request_passes_through_to_a_real_table_and_its_answer_can_be_lost() {
    let table = Table::create();
    let aws = ScriptedAws::start();
    aws.forward("dynamodb", table.endpoint());
    table.put(&json!({"pk": "a", "sk": "1", "rev": 1, "nested": {"list": ["x", true, null]}}));
    block_on(async {
        let client = aws_sdk_dynamodb::Client::new(&sdk(&aws, &table.account, 2).await);
        let text = |text: &str| AttributeValue::S(text.into());
        let number = |n: i32| AttributeValue::N(n.to_string());
        aws.next("dynamodb", "UpdateItem", Answer::lost());
        // Committed, answer lost, repeated by the SDK: the repeat meets its own write (spec/updates.md 3.4).
        let error = client
            .update_item()
            .table_name(&table.name)
            .key("pk", text("a"))
            .key("sk", text("1"))
            .update_expression("SET rev = :new")
            .condition_expression("rev = :old")
            .expression_attribute_values(":new", number(2))
            .expression_attribute_values(":old", number(1))
            .send()
            .await
            .unwrap_err();
        assert!(
            error
                .as_service_error()
                .unwrap()
                .is_conditional_check_failed_exception(),
            "{error:?}"
        );
    });
    assert_eq!(aws.traffic().of("dynamodb", "UpdateItem"), 2);
    let stored = json!({"pk": "a", "sk": "1", "rev": 2, "nested": {"list": ["x", true, null]}});
    assert_eq!(table.get("a", "1"), Some(stored));
}

#[test]
fn tests_do_not_see_each_others_tables() {
    let (first, second) = (Table::create(), Table::create());
    first.put(&json!({"pk": "a", "sk": "1"}));
    assert_eq!((first.items().len(), second.items().len()), (1, 0));
}

// --- the fake CloudFormation

/// A stack at 2.3.0, a release 2.4.0, and a client.
async fn install() -> (
    ScriptedAws,
    FakeCloudFormation,
    aws_sdk_cloudformation::Client,
    String,
) {
    let aws = ScriptedAws::start();
    let fake = FakeCloudFormation::new();
    fake.serve(&aws);
    let old = Plan::release("2.3.0").parameter(Parameter::with_default("Size", "small"));
    let arn = fake.install("install", &old);
    let new = Plan::release("2.4.0")
        .parameter(Parameter::with_default("Size", "small"))
        .parameter(Parameter::with_default("Colour", "blue"))
        .change("Modify", "Api", "AWS::Lambda::Function")
        .change("Remove", "Data", "AWS::DynamoDB::Table")
        .replacing("Conditional", "ReplaceAndDelete")
        .change("Add", "Queue", "AWS::SQS::Queue");
    fake.release(URL, new);
    let client = cloudformation(&aws, 1).await;
    (aws, fake, client, arn)
}

async fn create(client: &aws_sdk_cloudformation::Client, name: &str) -> String {
    let answer = client
        .create_change_set()
        .stack_name("install")
        .change_set_name(name)
        .client_token(name)
        .description(name)
        .template_url(URL)
        .parameters(
            SdkParameter::builder()
                .parameter_key("Size")
                .use_previous_value(true)
                .build(),
        )
        .send()
        .await
        .unwrap();
    answer.id().unwrap().to_owned()
}

#[test]
fn an_update_goes_through_its_states() {
    block_on(async {
        let (_aws, fake, client, stack) = install().await;
        fake.page_size(2);
        let set = create(&client, "upd-1").await;
        let describe = || client.describe_change_set().change_set_name(&set).send();
        let status = || async {
            client
                .describe_stacks()
                .stack_name(&stack)
                .send()
                .await
                .unwrap()
                .stacks()[0]
                .clone()
        };
        let made = describe().await.unwrap();
        assert_eq!(made.status(), Some(&ChangeSetStatus::CreatePending));
        assert_eq!(made.execution_status(), Some(&ExecutionStatus::Unavailable));

        fake.make(&set);
        let other = create(&client, "upd-2").await;
        let made = describe().await.unwrap();
        assert_eq!(made.execution_status(), Some(&ExecutionStatus::Available));
        assert_eq!((made.changes().len(), made.next_token().is_some()), (2, true));
        let page = client
            .describe_change_set()
            .change_set_name(&set)
            .next_token(made.next_token().unwrap())
            .send()
            .await
            .unwrap();
        assert_eq!((page.changes().len(), page.next_token()), (1, None));
        let change = made.changes()[1].resource_change().unwrap();
        assert_eq!(change.replacement().unwrap().as_str(), "Conditional");
        assert_eq!(change.policy_action().unwrap().as_str(), "ReplaceAndDelete");

        // Accepted, but nothing shows yet; the same token again is accepted, another one is not.
        let execute = |token: &str| {
            client
                .execute_change_set()
                .change_set_name(&set)
                .client_request_token(token)
                .send()
        };
        execute("apply-1-1").await.unwrap();
        execute("apply-1-1").await.unwrap();
        let error = execute("apply-1-2").await.unwrap_err();
        assert_eq!(error.code(), Some("InvalidChangeSetStatus"));
        assert!(
            error
                .message()
                .unwrap()
                .contains("current execution status of [EXECUTE_IN_PROGRESS]")
        );
        assert_eq!(
            describe().await.unwrap().execution_status(),
            Some(&ExecutionStatus::Available)
        );

        fake.start_run(&set);
        let running = status().await;
        assert_eq!(running.stack_status(), Some(&StackStatus::UpdateInProgress));
        assert_eq!(running.change_set_id(), Some(set.as_str()));
        assert_eq!(
            running.last_operations()[0].operation_type().unwrap().as_str(),
            "UPDATE_STACK"
        );
        assert!(fake.is_deleted(&other), "a run deletes the others");

        fake.resource("install", "Api", "AWS::Lambda::Function", "UPDATE_COMPLETE", None);
        fake.clean_up("install");
        fake.complete_run("install");
        let done = status().await;
        assert_eq!(done.stack_status(), Some(&StackStatus::UpdateComplete));
        assert_eq!(done.outputs()[0].output_value(), Some("2.4.0"));
        let parameters: Vec<_> = done
            .parameters()
            .iter()
            .map(|p| p.parameter_key().unwrap())
            .collect();
        assert_eq!(parameters, ["Size", "Colour"]);
        // By ARN it can still be read, by name no more.
        assert_eq!(
            describe().await.unwrap().execution_status(),
            Some(&ExecutionStatus::ExecuteComplete)
        );
        let by_name = client
            .describe_change_set()
            .change_set_name("upd-1")
            .stack_name("install")
            .send()
            .await;
        assert!(
            by_name
                .unwrap_err()
                .into_service_error()
                .is_change_set_not_found_exception()
        );

        // Events, newest first, in pages.
        let mut statuses = Vec::new();
        let mut token = None;
        loop {
            let page = client
                .describe_stack_events()
                .stack_name(&stack)
                .set_next_token(token)
                .send()
                .await
                .unwrap();
            for event in page.stack_events() {
                statuses.push(format!(
                    "{} {} {}",
                    event.logical_resource_id().unwrap(),
                    event.resource_status().unwrap().as_str(),
                    event.client_request_token().unwrap_or("-")
                ));
            }
            token = page.next_token().map(str::to_owned);
            if token.is_none() {
                break;
            }
        }
        assert_eq!(
            statuses,
            [
                "install UPDATE_COMPLETE apply-1-1",
                "install UPDATE_COMPLETE_CLEANUP_IN_PROGRESS apply-1-1",
                "Api UPDATE_COMPLETE apply-1-1",
                "install UPDATE_IN_PROGRESS apply-1-1",
                "install CREATE_COMPLETE -",
                "install CREATE_IN_PROGRESS -",
            ]
        );
    });
}

#[test]
fn a_failed_run_rolls_back_under_an_operation_of_its_own() {
    block_on(async {
        let (_aws, fake, client, stack) = install().await;
        let set = create(&client, "upd-1").await;
        fake.make(&set);
        fake.console_execute(&set);
        let child = fake.nested("install", "Jobs");
        fake.resource(
            &child,
            "Worker",
            "AWS::Lambda::Function",
            "UPDATE_FAILED",
            Some("no such image"),
        );
        fake.fail_run(
            "install",
            "Jobs",
            "AWS::CloudFormation::Stack",
            "Embedded stack was not updated",
        );
        assert_eq!(fake.status("install"), "UPDATE_ROLLBACK_IN_PROGRESS");
        fake.roll_back("install");
        let shown = client.describe_stacks().stack_name(&stack).send().await.unwrap();
        let shown = &shown.stacks()[0];
        assert_eq!(shown.stack_status(), Some(&StackStatus::UpdateRollbackComplete));
        assert_eq!(shown.outputs()[0].output_value(), Some("2.3.0"));
        let kinds: Vec<_> = shown
            .last_operations()
            .iter()
            .map(|operation| operation.operation_type().unwrap().as_str())
            .collect();
        assert_eq!(kinds, ["ROLLBACK", "UPDATE_STACK", "CREATE_STACK"]);
        let events = client
            .describe_stack_events()
            .stack_name(&stack)
            .send()
            .await
            .unwrap();
        let started = events.stack_events().iter().find(|event| {
            event.resource_status_reason() == Some("User Initiated") && event.client_request_token().is_some()
        });
        assert!(
            started
                .unwrap()
                .client_request_token()
                .unwrap()
                .starts_with("Console-ExecuteChangeSet-")
        );
        let operations: std::collections::BTreeSet<_> = events
            .stack_events()
            .iter()
            .filter(|event| event.client_request_token().is_some())
            .map(|event| event.operation_id().unwrap())
            .collect();
        assert_eq!(operations.len(), 2);
        let child = client
            .describe_stack_events()
            .stack_name(&child)
            .send()
            .await
            .unwrap();
        assert_eq!(
            child.stack_events()[0].resource_status_reason(),
            Some("no such image")
        );
        let set = client
            .describe_change_set()
            .change_set_name(&set)
            .send()
            .await
            .unwrap();
        assert_eq!(set.execution_status(), Some(&ExecutionStatus::ExecuteFailed));
    });
}

#[test]
fn refusals_have_the_codes_and_texts_of_aws() {
    block_on(async {
        let (_aws, fake, client, stack) = install().await;
        let set = create(&client, "upd-1").await;
        let create_again = |name: &str, url: &str, token: &str| {
            client
                .create_change_set()
                .stack_name("install")
                .change_set_name(name)
                .template_url(url)
                .client_token(token)
                .send()
        };
        macro_rules! refused {
            ($call:expr, $code:expr, $text:expr) => {{
                let error = $call.await.unwrap_err();
                assert_eq!(error.code(), Some($code), "{error:?}");
                assert!(error.message().unwrap().contains($text), "{error:?}");
            }};
        }
        refused!(
            create_again("upd-1", URL, "other"),
            "AlreadyExistsException",
            "mismatch with existing attribute"
        );
        refused!(
            create_again("2-4-0", URL, ""),
            "ValidationError",
            "regular expression"
        );
        refused!(
            create_again("upd-9", "https://nowhere.example.com/t", ""),
            "ValidationError",
            "S3 error"
        );
        let missing = client
            .create_change_set()
            .stack_name("none")
            .change_set_name("a")
            .template_url(URL)
            .send();
        refused!(missing, "ValidationError", "Stack [none] does not exist");
        refused!(
            client.describe_stacks().stack_name("none").send(),
            "ValidationError",
            "Stack with id none does not exist"
        );
        refused!(
            client
                .describe_change_set()
                .change_set_name("upd-7")
                .stack_name("install")
                .send(),
            "ChangeSetNotFound",
            "does not exist"
        );
        refused!(
            client.describe_change_set().change_set_name("upd-1").send(),
            "ValidationError",
            "StackName"
        );

        fake.no_changes(&set);
        refused!(
            client.execute_change_set().change_set_name(&set).send(),
            "InvalidChangeSetStatus",
            "current status of [FAILED]"
        );
        fake.set_words(&set, "CREATE_COMPLETE", "OBSOLETE");
        refused!(
            client.execute_change_set().change_set_name(&set).send(),
            "InvalidChangeSetStatus",
            "current execution status of [OBSOLETE]"
        );
        // Deleting is repeatable; then it is not found, by ARN either.
        for _ in 0..2 {
            client
                .delete_change_set()
                .change_set_name(&set)
                .send()
                .await
                .unwrap();
        }
        refused!(
            client.describe_change_set().change_set_name(&set).send(),
            "ChangeSetNotFound",
            "does not exist"
        );
        refused!(
            client.execute_change_set().change_set_name(&set).send(),
            "ChangeSetNotFound",
            "does not exist"
        );

        fake.change_set_limit(0);
        refused!(
            create_again("upd-2", URL, ""),
            "LimitExceededException",
            "ChangeSet limit exceeded for stack"
        );
        fake.change_set_limit(10);
        fake.begin_direct_update("install");
        refused!(
            create_again("upd-2", URL, ""),
            "ValidationError",
            "is in UPDATE_IN_PROGRESS state and can not be updated"
        );
        fake.end_direct_update("install", Some("9.9.9"));

        let second = create(&client, "upd-2").await;
        fake.make(&second);
        fake.begin_direct_update("install");
        assert_eq!(
            fake.change_set(&second).execution_status,
            "OBSOLETE",
            "the set stays in place"
        );
        fake.end_direct_update("install", None);

        fake.begin_delete("install");
        fake.end_delete("install");
        refused!(
            client.describe_stacks().stack_name("install").send(),
            "ValidationError",
            "does not exist"
        );
        let gone = client.describe_stacks().stack_name(&stack).send().await.unwrap();
        assert_eq!(
            gone.stacks()[0].stack_status(),
            Some(&StackStatus::DeleteComplete)
        );
        refused!(
            client
                .describe_change_set()
                .change_set_name("upd-2")
                .stack_name("install")
                .send(),
            "ValidationError",
            "Stack [install] does not exist"
        );
    });
}

#[test]
fn details_of_a_failed_plan_come_by_arn_only() {
    block_on(async {
        let (_aws, fake, client, _) = install().await;
        let set = create(&client, "upd-1").await;
        fake.fail_making(
            &set,
            "The following hook(s)/validation failed: [AWS::EarlyValidation::PropertyValidation]",
        );
        fake.validation_error(
            &set,
            "Api",
            "/Resources/Api/Properties/Runtime",
            "no such runtime",
        );
        fake.validation_error(&set, "Queue", "/Resources/Queue/Properties/Fifo", "not a boolean");
        let events = client
            .describe_events()
            .change_set_name(&set)
            .send()
            .await
            .unwrap();
        assert_eq!(events.operation_events().len(), 2);
        assert_eq!(
            events.operation_events()[0].event_type().unwrap().as_str(),
            "VALIDATION_ERROR"
        );
        let by_name = client
            .describe_events()
            .change_set_name("upd-1")
            .stack_name("install")
            .send()
            .await;
        assert_eq!(by_name.unwrap_err().code(), Some("ValidationError"));
    });
}

#[test]
fn parameters_are_checked_as_aws_checks_them() {
    block_on(async {
        let (_aws, fake, client, _) = install().await;
        fake.release(
            "https://r.example.com/t",
            Plan::release("3.0.0").parameter(Parameter::required("Key")),
        );
        let request = || {
            client
                .create_change_set()
                .stack_name("install")
                .change_set_name("upd-3")
                .template_url("https://r.example.com/t")
        };
        let previous = |key: &str| {
            SdkParameter::builder()
                .parameter_key(key)
                .use_previous_value(true)
                .build()
        };
        let text = |error: &dyn ProvideErrorMetadata| error.message().unwrap_or_default().to_owned();
        let error = request().send().await.unwrap_err();
        assert_eq!(text(&error), "Parameters: [Key] must have values");
        let error = request().parameters(previous("Size")).send().await.unwrap_err();
        assert_eq!(text(&error), "Parameters: [Size] do not exist in the template");
        let error = request().parameters(previous("Key")).send().await.unwrap_err();
        assert!(text(&error).contains("not in the previous template"), "{error:?}");
        let given = SdkParameter::builder()
            .parameter_key("Key")
            .parameter_value("k")
            .build();
        request().parameters(given).send().await.unwrap();
        let summary = client
            .get_template_summary()
            .template_url("https://r.example.com/t")
            .send()
            .await
            .unwrap();
        assert_eq!(summary.parameters()[0].parameter_key(), Some("Key"));
    });
}

// --- events

#[test]
fn requests_are_made_from_the_event_files() {
    let call = HttpCall::post("/updates/1/apply?dry=a%20b")
        .caller(&Caller::dashboard())
        .json(&json!({"x": 1}))
        .stage("live");
    let event = call.event();
    assert_eq!(event["rawPath"], "/live/updates/1/apply");
    assert_eq!(event["rawQueryString"], "dry=a%20b");
    assert_eq!(event["queryStringParameters"], json!({"dry": "a b"}));
    assert_eq!(event["requestContext"]["http"]["method"], "POST");
    assert_eq!(
        event["requestContext"]["authorizer"]["iam"]["accountId"],
        "123456789012"
    );
    assert_eq!(event["body"], "{\"x\":1}");
    assert_eq!(
        HttpCall::get("/version").caller(&Caller::Nobody).event()["requestContext"].get("authorizer"),
        None::<&Value>
    );
}
