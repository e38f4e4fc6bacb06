//! rebuild-gate: PASS, or exactly why not, before and after every step of a rebuild. Cold start only; every rule is
//! in `headgate_core::rebuild`.

use headgate_core::rebuild::api;
use headgate_core::rebuild::aws::Clients;
use headgate_core::rebuild::run::World;
use headgate_core::{boot, config, telemetry, time};
use lambda_runtime::{Error, LambdaEvent, service_fn};
use serde_json::Value;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let (level, format) = config::logging(&config::from_process);
    telemetry::init(level.as_deref(), format.as_deref());
    let cfg = match config::RebuildGate::read(&config::from_process) {
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
        let world = World {
            table: &clients.table,
            objects: &clients.objects,
            bucket: &cfg.evidence_bucket,
        };
        let answer = Box::pin(api::handle(&world, cfg, time::now(), &event.payload)).await;
        if let Err(failure) = &answer {
            tracing::error!(error_type = failure.error_type, "{failure}");
        }
        answer
    }))
    .await
}
