//! The clients of link-details, and the S3 adapter, which reads an object piece by piece. Makes no decision.

use super::event::Pointer;
use super::run::{Intake, Outputs, OutputsError};
use crate::boot::call_error;
use crate::config::LinkDetails;
use crate::error::{CallError, Class};
use crate::store::aws::DynamoTable;
use crate::store::{Key, Table};
use aws_config::SdkConfig;
use aws_sdk_s3::Client;

const ACTION: &str = "s3:GetObject";

/// Clients made once at cold start.
#[derive(Debug, Clone)]
pub struct Clients {
    /// The one table.
    pub table: DynamoTable,
    /// Outputs kept in S3.
    pub outputs: S3Outputs,
}

impl Clients {
    /// Clients for the configured table.
    pub fn new(sdk: &SdkConfig, cfg: &LinkDetails) -> Self {
        let s3 = aws_sdk_s3::config::Builder::from(sdk)
            .force_path_style(cfg.s3_path_style)
            .build();
        Self {
            table: DynamoTable::new(aws_sdk_dynamodb::Client::new(sdk), &cfg.table),
            outputs: S3Outputs::new(Client::from_conf(s3)),
        }
    }

    /// The first call to AWS, made during init, where connecting costs least (spec/style.md 5.3). Its answer
    /// does not matter; the key is one that the function may read.
    pub async fn warm_up(&self) {
        let _ = self.table.get(&Key::new("PLANE#", "WARM")).await;
    }
}

/// Outputs kept in S3.
#[derive(Debug, Clone)]
pub struct S3Outputs {
    client: Client,
}

impl S3Outputs {
    /// Through a client made once at cold start.
    pub fn new(client: Client) -> Self {
        Self { client }
    }
}

impl Outputs for S3Outputs {
    async fn read(&self, pointer: &Pointer) -> Result<Vec<u8>, OutputsError> {
        let mut object = self
            .client
            .get_object()
            .bucket(&pointer.bucket)
            .key(&pointer.key)
            .set_version_id(pointer.version_id.clone())
            .send()
            .await
            .map_err(|e| call_error(ACTION, &e))?;
        let mut intake = Intake::new(pointer);
        loop {
            match object.body.try_next().await {
                Ok(Some(piece)) => intake.push(&piece)?,
                Ok(None) => return intake.finish(),
                Err(_) => {
                    let text = "the object's bytes stopped coming";
                    return Err(CallError::new(Class::Unavailable, ACTION, "Dispatch", text).into());
                }
            }
        }
    }
}
