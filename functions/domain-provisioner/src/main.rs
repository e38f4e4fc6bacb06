//! The domain provisioner: creates, watches and retires the instance behind a hosted domain.
//! Cold start only; every rule is in `headgate_core::domains`.

use headgate_core::domains::api::{self, Invocation};
use headgate_core::domains::aws::Clients;
use headgate_core::{boot, config, error::Failure, telemetry, time};
use lambda_runtime::{Error, LambdaEvent, service_fn};
use serde_json::Value;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let (level, format) = config::logging(&config::from_process);
    telemetry::init(level.as_deref(), format.as_deref());
    let cfg = match config::DomainProvisioner::read(&config::from_process) {
        Ok(cfg) => cfg,
        Err(e) => {
            tracing::error!(code = "configuration_error", "{e}");
            let e = &e;
            return lambda_runtime::run(service_fn(move |event: LambdaEvent<Value>| async move {
                api::misconfigured(e, &event.payload)
            }))
            .await;
        }
    };
    let clients = Clients::new(&boot::sdk_config().await, &cfg);
    Box::pin(clients.warm_up()).await;
    let (clients, cfg) = (&clients, &cfg);
    lambda_runtime::run(service_fn(move |event: LambdaEvent<Value>| async move {
        let deadline = i64::try_from(event.context.deadline).unwrap_or(i64::MAX);
        let inv = Invocation {
            now: time::now(),
            request_id: event.context.request_id,
            deadline: time::Timestamp::from_millisecond(deadline).unwrap_or(time::Timestamp::MAX),
            seed: time::new_uuid(),
        };
        // Boxed: the whole state machine of a call is some 20 KB, which the runtime would move about.
        let answer = Box::pin(api::handle(clients, cfg, &inv, &event.payload)).await;
        if let Err(Failure { error_type, message }) = &answer {
            tracing::error!(error_type, "{message}");
        }
        answer
    }))
    .await
}
