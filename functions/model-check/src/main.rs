//! The model check: may this release run here? Cold start only; every rule is in `headgate_core::release_check`.

use headgate_core::release_check::api;
use headgate_core::updates::api::{Invocation, misconfigured};
use headgate_core::updates::aws::Clients;
use headgate_core::{boot, config, error::Failure, telemetry, time};
use lambda_runtime::{Error, LambdaEvent, service_fn};
use serde_json::Value;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let (level, format) = config::logging(&config::from_process);
    telemetry::init(level.as_deref(), format.as_deref());
    let cfg = match config::ModelCheck::read(&config::from_process) {
        Ok(cfg) => cfg,
        Err(e) => {
            tracing::error!(code = "configuration_error", "{e}");
            let e = &e;
            return lambda_runtime::run(service_fn(move |event: LambdaEvent<Value>| async move {
                misconfigured(e, &event.payload)
            }))
            .await;
        }
    };
    let clients =
        Clients::new(&boot::sdk_config().await, &cfg.install).with_models(cfg.models_parameter.clone());
    Box::pin(clients.warm_up(&cfg.install.pk())).await;
    let (clients, cfg) = (&clients, &cfg);
    lambda_runtime::run(service_fn(move |event: LambdaEvent<Value>| async move {
        let inv = Invocation {
            now: time::now(),
            request_id: event.context.request_id,
            seed: time::new_uuid(),
        };
        let answer = Box::pin(api::handle(&clients.world(), cfg, &inv, &event.payload)).await;
        if let Err(Failure { error_type, message }) = &answer {
            tracing::error!(error_type, "{message}");
        }
        answer
    }))
    .await
}
