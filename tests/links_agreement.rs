//! Private links on a real table with the real expressions: the numbered cases, the editor, and random
//! courses of events and edits. The table in memory and DynamoDB must agree on every answer and on every
//! whole item.
//!
//! Needs the local AWS: `./test` starts it and sets HEADGATE_TEST_AWS.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "tests: a panic is how they report, and the address of the local AWS is in the environment"
)]

use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};
use headgate_core::boot;
use headgate_core::config::LinkDetails;
use headgate_core::http::Request;
use headgate_core::links::aws::Clients;
use headgate_core::links::cases::{self, BUCKET, Case};
use headgate_core::links::fake::{FakeWorld, block_on};
use headgate_core::links::run::{self, World};
use headgate_core::links::{api, store};
use headgate_core::store::{Attr, Cond, Item, Key, Query, Table, Write};
use headgate_core::time::Timestamp;
use serde_json::json;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

/// A table and a bucket that no other test uses.
struct Local {
    clients: Clients,
    s3: aws_sdk_s3::Client,
    bucket: String,
}

fn run_async<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

impl Local {
    async fn start() -> Self {
        let base = std::env::var("HEADGATE_TEST_AWS")
            .ok()
            .filter(|b| !b.is_empty())
            .unwrap_or_else(|| {
                panic!(
                    "this test needs the local AWS: run ./test, or start ministack and set \
                 HEADGATE_TEST_AWS=http://127.0.0.1:PORT"
                )
            });
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!(
            "links-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let keys = aws_sdk_dynamodb::config::Credentials::new("000000000000", "local", None, None, "tests");
        let sdk = boot::sdk_config()
            .await
            .into_builder()
            .endpoint_url(base)
            .region(aws_sdk_dynamodb::config::Region::new("us-east-1"))
            .credentials_provider(aws_sdk_dynamodb::config::SharedCredentialsProvider::new(keys))
            // A hang is a failure, a busy machine is not.
            .timeout_config(
                aws_sdk_dynamodb::config::timeout::TimeoutConfig::builder()
                    .operation_timeout(std::time::Duration::from_secs(60))
                    .build(),
            )
            .build();
        let attribute = |n: &str| {
            AttributeDefinition::builder()
                .attribute_name(n)
                .attribute_type(ScalarAttributeType::S)
                .build()
                .unwrap()
        };
        let key = |n: &str, k| {
            KeySchemaElement::builder()
                .attribute_name(n)
                .key_type(k)
                .build()
                .unwrap()
        };
        aws_sdk_dynamodb::Client::new(&sdk)
            .create_table()
            .table_name(&name)
            .billing_mode(BillingMode::PayPerRequest)
            .attribute_definitions(attribute("pk"))
            .attribute_definitions(attribute("sk"))
            .key_schema(key("pk", KeyType::Hash))
            .key_schema(key("sk", KeyType::Range))
            .send()
            .await
            .unwrap();
        let cfg = LinkDetails {
            table: name.clone(),
            outputs_buckets: vec![],
            auth_is_local: true,
            s3_path_style: true,
        };
        let s3 = aws_sdk_s3::config::Builder::from(&sdk)
            .force_path_style(true)
            .build();
        let s3 = aws_sdk_s3::Client::from_conf(s3);
        s3.create_bucket().bucket(&name).send().await.unwrap();
        Self {
            clients: Clients::new(&sdk, &cfg),
            s3,
            bucket: name,
        }
    }

    async fn put_object(&self, key: &str, bytes: Vec<u8>) {
        self.s3
            .put_object()
            .bucket(&self.bucket)
            .key(key)
            .body(bytes.into())
            .send()
            .await
            .unwrap();
    }
}

async fn items<T: Table>(table: &T, pk: &str) -> Vec<Item> {
    let query = Query {
        pk: pk.to_owned(),
        sk_prefix: String::new(),
        descending: false,
        limit: None,
        after: None,
    };
    let page = table.query(&query).await.unwrap();
    assert_eq!(page.next, None);
    page.items
}

fn find(id: &str) -> Case {
    cases::all().into_iter().find(|c| c.id == id).unwrap()
}

/// The case on DynamoDB and S3, then in memory; both as the spec says, so both the same.
fn case(id: &str) {
    let case = find(id);
    run_async(async {
        let local = Local::start().await;
        let mut fake = FakeWorld::default();
        for (_, object) in case.events() {
            if let Some((key, bytes)) = object {
                local.put_object(&key, bytes.clone()).await;
                fake.objects.insert((BUCKET.to_owned(), key, None), bytes);
            }
        }
        case.play_in(&local.clients.table, &local.clients.outputs, &local.bucket)
            .await
            .unwrap();
        case.play(&fake, &fake).await.unwrap();
        let pk = store::partition(case.plane);
        assert_eq!(items(&local.clients.table, &pk).await, items(&fake, &pk).await);
    });
}

headgate_core::link_cases!(case);

/// The case of the reader on both tables: the whole answer is the same.
fn reader(id: &str) {
    let reader = cases::readers().into_iter().find(|r| r.id == id).unwrap();
    run_async(async {
        let local = Local::start().await;
        let real = reader.play(&local.clients.table).await.unwrap();
        assert_eq!(real, reader.play(&FakeWorld::default()).await.unwrap());
    });
}

headgate_core::link_readers!(reader);

const PLANE: &str = "0e8f3a0000000055";

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// A stage event about one of three links: mostly at the generation the row has, by converges that slowly grow.
fn event(dice: &mut Dice, world: &FakeWorld, step: u64) -> String {
    let id = format!("{:016x}", 1 + dice.roll(3));
    let row = world.item(&Key::new(format!("PLANE#{PLANE}"), format!("LINK#{id}")));
    let stored = row
        .and_then(|r| r.get("generation").and_then(Attr::as_u64))
        .unwrap_or(1);
    let generation = (stored + [1, 1, 1, 1, 0, 2][dice.roll(6) as usize]).saturating_sub(1);
    // Beyond 2^53 once the rank is added.
    let seq = 1_788_955_240_123_456 + step / 8 + dice.roll(3);
    let stage = ["PulumiUp1", "Ansible", "Converge"][dice.roll(3) as usize];
    let details = ["null", r#"{"z":1e400, "a":"\ud800 é"}"#, r#"{"dns_entries":[]}"#][dice.roll(3) as usize];
    let (status, error) =
        [("provisioned", "null"), ("failed", "\"no\""), ("failed", "null")][dice.roll(3) as usize];
    format!(
        r#"{{"schema":1,"data_plane_id":"{PLANE}","converge_id":"c{seq}","converge_seq":{seq},"stage":"{stage}","result":"succeeded","completed_at":"2026-09-10T12:00:{:02}Z","network":{{"uses_private_network":true,"was":{}}},"pinned_links":[{{"id":"{id}","generation":{generation}}}],"outputs":{{"link_results":[{{"id":"{id}","status":"{status}","details":{details},"error":{error}}}]}}}}"#,
        seq % 60,
        dice.roll(2) == 0
    )
}

fn edit(dice: &mut Dice) -> Request {
    let path = format!("/data-planes/{PLANE}/private-links/{:016x}", 1 + dice.roll(3));
    let (service, zone) = (dice.roll(3), dice.roll(2));
    let body = match dice.roll(3) {
        0 => format!(r#"{{"service_name":"svc-{service}","location":"z{zone}"}}"#),
        _ => format!(r#"{{"region":"r","az_ids":["z{zone}"],"service_name":"svc-{service}"}}"#),
    };
    let method = if dice.roll(5) == 0 { "DELETE" } else { "PUT" };
    Request::parse(&json!({"rawPath": path, "body": body, "requestContext": {"http": {"method": method}}}))
        .unwrap()
}

/// Four hundred events and edits on three links that fight for three services.
#[test]
fn random_courses_of_events_and_edits_agree_after_every_step() {
    run_async(async {
        let local = Local::start().await;
        let fake = FakeWorld::default();
        let pk = format!("PLANE#{PLANE}");
        let mut dice = Dice(3477);
        let mut seen = std::collections::BTreeSet::new();
        for step in 0..400 {
            if dice.roll(6) == 0 {
                let request = edit(&mut dice);
                let now = Timestamp::UNIX_EPOCH;
                let real = api::respond(&local.clients.table, &request, true, now).await;
                let memory = block_on(api::respond(&fake, &request, true, now));
                assert_eq!(real, memory, "step {step}");
                seen.insert(format!("{} {}", request.method, real.status));
            } else {
                let event = event(&mut dice, &fake, step);
                let (table, outputs) = (&local.clients.table, &local.clients.outputs);
                let real = run::process(
                    &World {
                        table,
                        outputs,
                        buckets: &[],
                    },
                    &event,
                    || true,
                )
                .await;
                let world = World {
                    table: &fake,
                    outputs: &fake,
                    buckets: &[],
                };
                let memory = block_on(run::process(&world, &event, || true));
                assert_eq!(real, memory, "step {step}");
                seen.extend(real.unwrap().outcomes.values().map(ToString::to_string));
            }
            assert_eq!(
                items(&local.clients.table, &pk).await,
                items(&fake, &pk).await,
                "step {step}"
            );
        }
        // The course went everywhere, or it would prove nothing.
        let want = [
            "DELETE 204",
            "Duplicate",
            "FailedRecorded",
            "LinkGone",
            "NoObservation",
            "PUT 200",
            "PUT 201",
            "PUT 409",
            "Published",
            "RowBehind",
            "Settled",
            "StaleGeneration",
            "Superseded",
        ];
        assert_eq!(seen.iter().map(String::as_str).collect::<Vec<_>>(), want);
    });
}

/// A row of a newer version is left alone by the real expression too.
#[test]
fn a_row_of_a_newer_version_is_never_rewritten() {
    run_async(async {
        let local = Local::start().await;
        let case = find("T01");
        let mut item = case.before().remove(0);
        item.insert("schema".into(), Attr::n(2));
        let key = Key::of(&item).unwrap();
        let put = Write::put(key.clone(), item.clone(), Cond::Always);
        local.clients.table.write(&[put], "").await.unwrap();
        let (table, outputs) = (&local.clients.table, &local.clients.outputs);
        let world = World {
            table,
            outputs,
            buckets: &[],
        };
        let result = run::process(&world, &case.events()[0].0, || true).await;
        assert_eq!(run::answer(&result).unwrap_err().error_type, "Link.Retry");
        assert_eq!(table.get(&key).await.unwrap(), Some(item));
    });
}

/// A version that is not there (yet) is tried again; it is no reason to reject the event.
#[test]
fn an_object_or_bucket_that_is_not_there_is_retried() {
    run_async(async {
        let local = Local::start().await;
        let (table, outputs) = (&local.clients.table, &local.clients.outputs);
        let buckets = [local.bucket.clone(), "nowhere-at-all".to_owned()];
        for bucket in &buckets {
            let event = find("T32").events()[0]
                .0
                .replace(&format!("\"{BUCKET}\""), &format!("\"{bucket}\""));
            let result = run::process(
                &World {
                    table,
                    outputs,
                    buckets: &buckets,
                },
                &event,
                || true,
            )
            .await;
            let failure = run::answer(&result).unwrap_err();
            assert_eq!(failure.error_type, "Link.Retry", "{failure}");
        }
    });
}
