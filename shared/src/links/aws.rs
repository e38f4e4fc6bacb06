//! The S3 adapter: reads an object piece by piece. Makes no decision.

use super::event::Pointer;
use super::run::{Intake, Outputs, OutputsError};
use crate::boot::call_error;
use crate::error::{CallError, Class};
use aws_sdk_s3::Client;

const ACTION: &str = "s3:GetObject";

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
