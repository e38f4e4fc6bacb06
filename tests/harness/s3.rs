//! Objects behind a [`ScriptedAws`]: enough of S3 for a release list and for evidence files.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::http::Response;
use super::protocol::Call;
use super::scripted::{Answer, ScriptedAws};

/// Buckets exist when they hold something.
#[derive(Debug, Clone, Default)]
pub struct FakeS3(Arc<Mutex<BTreeMap<(String, String), Object>>>);

#[derive(Debug, Clone)]
struct Object {
    body: Vec<u8>,
    version: u64,
}

impl FakeS3 {
    pub fn new() -> Self {
        Self::default()
    }

    /// Answers for the service `s3`.
    pub fn serve(&self, aws: &ScriptedAws) {
        let fake = self.clone();
        aws.serve("s3", move |call| fake.answer(call));
    }

    /// Stores an object.
    pub fn put(&self, bucket: &str, key: &str, body: impl Into<Vec<u8>>) {
        let mut objects = self.0.lock().unwrap();
        let slot = objects.entry((bucket.into(), key.into()));
        let object = slot.or_insert_with(|| Object {
            body: Vec::new(),
            version: 0,
        });
        object.body = body.into();
        object.version += 1;
    }

    /// Removes an object.
    pub fn remove(&self, bucket: &str, key: &str) {
        self.0
            .lock()
            .unwrap()
            .remove(&(bucket.to_owned(), key.to_owned()));
    }

    /// The current content.
    pub fn get(&self, bucket: &str, key: &str) -> Option<Vec<u8>> {
        self.0
            .lock()
            .unwrap()
            .get(&(bucket.to_owned(), key.to_owned()))
            .map(|object| object.body.clone())
    }

    fn answer(&self, call: &Call) -> Answer {
        let (bucket, key) = (call.text("/Bucket"), call.text("/Key"));
        let found = self
            .0
            .lock()
            .unwrap()
            .get(&(bucket.to_owned(), key.to_owned()))
            .cloned();
        match (call.operation.as_str(), found) {
            ("GetObject" | "HeadObject", Some(object)) => {
                let wanted = call.text("/versionId");
                if !wanted.is_empty() && wanted != object.version_id() {
                    return Answer::error(404, "NoSuchVersion", "The specified version does not exist.");
                }
                Answer::Raw(object.response())
            }
            ("HeadObject", None) => Answer::Raw(Response::new(404, "application/xml", "")),
            ("GetObject", None) => Answer::error(404, "NoSuchKey", "The specified key does not exist."),
            ("PutObject", found) => {
                if found.is_some() && call.request.header("if-none-match") == Some("*") {
                    let text = "At least one of the pre-conditions you specified did not hold";
                    return Answer::error(412, "PreconditionFailed", text);
                }
                self.put(bucket, key, call.request.body.clone());
                let stored = self
                    .0
                    .lock()
                    .unwrap()
                    .get(&(bucket.to_owned(), key.to_owned()))
                    .cloned();
                let mut response = stored.expect("just stored").response();
                response.body.clear();
                Answer::Raw(response)
            }
            ("DeleteObject", _) => {
                self.remove(bucket, key);
                Answer::Raw(Response {
                    status: 204,
                    ..Response::default()
                })
            }
            _ => Answer::Behind,
        }
    }
}

impl Object {
    fn version_id(&self) -> String {
        format!("v{}", self.version)
    }

    fn response(&self) -> Response {
        Response::new(200, "binary/octet-stream", self.body.clone())
            .with("etag", &format!("\"{}-{}\"", self.version, self.body.len()))
            .with("x-amz-version-id", &self.version_id())
    }
}
