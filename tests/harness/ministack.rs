//! A DynamoDB table on the local AWS.

use jiff::SignedDuration;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use super::http::{self, Request};

/// Base URL of the running local AWS; fails the test with the way to run it when there is none.
pub fn ministack() -> String {
    match std::env::var("HEADGATE_TEST_AWS") {
        Ok(base) if !base.is_empty() => base,
        _ => panic!(
            "this test needs the local AWS: run ./test, or start ministack and set HEADGATE_TEST_AWS=http://127.0.0.1:PORT"
        ),
    }
}

/// A table of its own for one test: the local AWS keeps accounts apart, and the account is the access key id.
#[derive(Debug, Clone)]
pub struct Table {
    base: String,
    pub account: String,
    pub name: String,
}

impl Table {
    /// Creates Headgate's table (`pk`, `sk`) in a fresh account.
    pub fn create() -> Self {
        let table = Self {
            base: ministack(),
            account: fresh_account(),
            name: "headgate".into(),
        };
        let key = |name: &str, kind: &str| json!({"AttributeName": name, "KeyType": kind});
        let text = |name: &str| json!({"AttributeName": name, "AttributeType": "S"});
        table.call(
            "CreateTable",
            &json!({
                "TableName": table.name,
                "BillingMode": "PAY_PER_REQUEST",
                "KeySchema": [key("pk", "HASH"), key("sk", "RANGE")],
                "AttributeDefinitions": [text("pk"), text("sk")],
            }),
        );
        table
    }

    /// The endpoint, for [`crate::ScriptedAws::forward`].
    pub fn endpoint(&self) -> &str {
        &self.base
    }

    /// One DynamoDB operation; fails the test when it is refused.
    pub fn call(&self, operation: &str, input: &Value) -> Value {
        let scope = format!(
            "AWS4-HMAC-SHA256 Credential={}/20261201/eu-central-1/dynamodb/aws4_request, \
             SignedHeaders=host, Signature=0",
            self.account
        );
        let request = Request::new("POST", "/", input.to_string())
            .with("content-type", "application/x-amz-json-1.0")
            .with("x-amz-target", &format!("DynamoDB_20120810.{operation}"))
            .with("authorization", &scope);
        let response = http::send(&self.base, &request)
            .unwrap_or_else(|error| panic!("the local AWS at {}: {error}", self.base));
        let text = String::from_utf8_lossy(&response.body);
        assert!(response.status == 200, "{operation}: {} {text}", response.status);
        serde_json::from_str(&text).expect("JSON from DynamoDB")
    }

    /// Stores an item given as plain JSON.
    pub fn put(&self, item: &Value) {
        let item = to_item(item);
        self.call("PutItem", &json!({"TableName": self.name, "Item": item}));
    }

    /// An item as plain JSON.
    pub fn get(&self, pk: &str, sk: &str) -> Option<Value> {
        let key = json!({"pk": {"S": pk}, "sk": {"S": sk}});
        let answer = self.call(
            "GetItem",
            &json!({"TableName": self.name, "Key": key, "ConsistentRead": true}),
        );
        answer.get("Item").map(from_item)
    }

    /// Every item as plain JSON, by key.
    pub fn items(&self) -> Vec<Value> {
        let answer = self.call("Scan", &json!({"TableName": self.name, "ConsistentRead": true}));
        let mut items: Vec<Value> = answer["Items"]
            .as_array()
            .expect("Items")
            .iter()
            .map(from_item)
            .collect();
        items.sort_by_key(|item| (item["pk"].to_string(), item["sk"].to_string()));
        items
    }

    /// Moves every time in the table into the past: the same as time going by. Texts in RFC 3339 and the
    /// numbers of `reserve_until` and `lease_until` (epoch milliseconds) are times.
    pub fn age(&self, seconds: i64) {
        for mut item in self.items() {
            super::cloudformation::shift(&mut item, SignedDuration::from_secs(seconds));
            for name in ["reserve_until", "lease_until"] {
                if let Some(time) = item.get(name).and_then(Value::as_i64) {
                    item[name] = json!(time - seconds * 1000);
                }
            }
            self.put(&item);
        }
    }

    /// Deletes the table, for tests of a table that is not there.
    pub fn delete(&self) {
        self.call("DeleteTable", &json!({"TableName": self.name}));
    }
}

/// Twelve digits that no other test of this or another process uses.
fn fresh_account() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    let process = u64::from(std::process::id());
    let mixed = u64::try_from(nanos % 1_000_000_000).unwrap_or_default() * 1_000
        + (process * 31 + NEXT.fetch_add(1, Ordering::Relaxed)) % 1_000;
    format!("{:012}", 100_000_000_000 + mixed % 900_000_000_000)
}

/// Plain JSON as DynamoDB attributes.
pub fn to_item(value: &Value) -> Value {
    let fields = value.as_object().expect("an item is an object");
    Value::Object(
        fields
            .iter()
            .map(|(name, inner)| (name.clone(), to_attribute(inner)))
            .collect(),
    )
}

fn to_attribute(value: &Value) -> Value {
    match value {
        Value::Null => json!({"NULL": true}),
        Value::Bool(flag) => json!({"BOOL": flag}),
        Value::Number(number) => json!({"N": number.to_string()}),
        Value::String(text) => json!({"S": text}),
        Value::Array(items) => json!({"L": items.iter().map(to_attribute).collect::<Vec<_>>()}),
        Value::Object(_) => json!({"M": to_item(value)}),
    }
}

/// DynamoDB attributes as plain JSON.
pub fn from_item(item: &Value) -> Value {
    let fields = item.as_object().expect("an item is an object");
    Value::Object(
        fields
            .iter()
            .map(|(name, inner)| (name.clone(), from_attribute(inner)))
            .collect(),
    )
}

fn from_attribute(attribute: &Value) -> Value {
    let (kind, value) = attribute
        .as_object()
        .and_then(|fields| fields.iter().next())
        .expect("a typed attribute");
    match kind.as_str() {
        "N" => {
            let text = value.as_str().unwrap_or_default();
            text.parse::<i64>()
                .map(Value::from)
                .or_else(|_| text.parse::<f64>().map(Value::from))
                .unwrap()
        }
        "L" => Value::Array(value.as_array().unwrap().iter().map(from_attribute).collect()),
        "M" => from_item(value),
        "NULL" => Value::Null,
        _ => value.clone(),
    }
}
