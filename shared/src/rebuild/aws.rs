//! The clients of rebuild-gate: the table and the evidence bucket. Makes no decision.

use aws_config::SdkConfig;
use aws_sdk_s3::Client;
use aws_sdk_s3::primitives::ByteStream;

use super::run::Objects;
use crate::boot::call_error;
use crate::config::{RebuildGate, S3Uri};
use crate::error::{CallError, Class};
use crate::store::aws::DynamoTable;
use crate::store::{Key, Table};

/// Largest object that is read: plans of some hundred megabytes are real, a whole bucket is not.
const OBJECT_MAX: i64 = 512 * 1024 * 1024;

/// Clients made once at cold start.
#[derive(Debug, Clone)]
pub struct Clients {
    /// The one table.
    pub table: DynamoTable,
    /// The evidence bucket.
    pub objects: S3Objects,
}

impl Clients {
    /// Clients for the configured table and bucket.
    pub fn new(sdk: &SdkConfig, cfg: &RebuildGate) -> Self {
        let s3 = aws_sdk_s3::config::Builder::from(sdk)
            .force_path_style(cfg.s3_path_style)
            .build();
        Self {
            table: DynamoTable::new(aws_sdk_dynamodb::Client::new(sdk), &cfg.table),
            objects: S3Objects {
                client: Client::from_conf(s3),
            },
        }
    }

    /// The first call to AWS, made during init, where connecting costs least. Its answer does not matter.
    pub async fn warm_up(&self) {
        let _ = self.table.get(&Key::new("REBUILD#", "WARM")).await;
    }
}

/// The evidence bucket in S3.
#[derive(Debug, Clone)]
pub struct S3Objects {
    client: Client,
}

impl Objects for S3Objects {
    async fn get(&self, at: &S3Uri, version: Option<&str>) -> Result<Option<Vec<u8>>, CallError> {
        const ACTION: &str = "s3:GetObject";
        let call = self
            .client
            .get_object()
            .bucket(&at.bucket)
            .key(&at.key)
            .set_version_id(version.map(str::to_owned));
        let object = match call.send().await {
            Ok(object) => object,
            Err(e) => {
                let e = call_error(ACTION, &e);
                return if e.class == Class::NotFound {
                    Ok(None)
                } else {
                    Err(e)
                };
            }
        };
        if object.content_length().is_some_and(|n| n > OBJECT_MAX) {
            return Err(CallError::new(
                Class::Refused,
                ACTION,
                "TooLarge",
                "the object is larger than any plan",
            ));
        }
        match object.body.collect().await {
            Ok(bytes) => Ok(Some(bytes.to_vec())),
            Err(_) => Err(CallError::new(
                Class::Unavailable,
                ACTION,
                "Dispatch",
                "the object's bytes stopped coming",
            )),
        }
    }

    async fn put(&self, at: &S3Uri, bytes: Vec<u8>, content_type: &str) -> Result<(), CallError> {
        let call = self
            .client
            .put_object()
            .bucket(&at.bucket)
            .key(&at.key)
            .content_type(content_type);
        let done = call.body(ByteStream::from(bytes)).send().await;
        done.map(|_| ()).map_err(|e| call_error("s3:PutObject", &e))
    }
}
