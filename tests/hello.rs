//! The smallest function there is: it answers with what it was asked.
//!
//! `./bench` compares the cold start of the others with it, and the harness tests itself on it: an event
//! `{"fail": TEXT}` is an error of type `Hello.Failed`, `{"die": CODE}` ends the process.

use lambda_runtime::{Diagnostic, Error, LambdaEvent, service_fn};
use serde_json::Value;

async fn hello(event: LambdaEvent<Value>) -> Result<Value, Diagnostic> {
    if let Some(text) = event.payload.get("fail").and_then(Value::as_str) {
        return Err(Diagnostic {
            error_type: "Hello.Failed".into(),
            error_message: text.into(),
        });
    }
    if let Some(code) = event.payload.get("die").and_then(Value::as_i64) {
        std::process::exit(i32::try_from(code).unwrap_or(1));
    }
    Ok(event.payload)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    lambda_runtime::run(service_fn(hello)).await
}
