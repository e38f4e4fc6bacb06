//! link-details: a private link's DNS details in its row as soon as they are final, and the API for who reads
//! and edits links. Cold start only; every rule is in `headgate_core::links`.

use headgate_core::links::aws::Clients;
use headgate_core::links::handle::{self, Invocation};
use headgate_core::links::run::World;
use headgate_core::{boot, config, telemetry, time};
use lambda_runtime::{Error, LambdaEvent, service_fn};
use serde_json::value::RawValue;

/// Time kept back for the last calls and the answer: a call takes 3 s at most (`boot::CALL_TIMEOUT`).
const MARGIN_MS: i64 = 4_000;

/// The payload as text: details of links are opaque and keep their bytes.
type Event = LambdaEvent<Box<RawValue>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let (level, format) = config::logging(&config::from_process);
    telemetry::init(level.as_deref(), format.as_deref());
    let cfg = match config::LinkDetails::read(&config::from_process) {
        Ok(cfg) => cfg,
        Err(e) => {
            tracing::error!(code = "configuration_error", "{e}");
            let e = &e;
            return lambda_runtime::run(service_fn(move |event: Event| async move {
                handle::misconfigured(e, event.payload.get())
            }))
            .await;
        }
    };
    let clients = Clients::new(&boot::sdk_config().await, &cfg);
    Box::pin(clients.warm_up()).await;
    let (clients, cfg) = (&clients, &cfg);
    lambda_runtime::run(service_fn(move |event: Event| async move {
        let deadline = i64::try_from(event.context.deadline).unwrap_or(i64::MAX);
        let inv = Invocation {
            now: time::now(),
            has_time: || time::now().as_millisecond().saturating_add(MARGIN_MS) < deadline,
            auth_is_local: cfg.auth_is_local,
        };
        let world = World {
            table: &clients.table,
            outputs: &clients.outputs,
            buckets: &cfg.outputs_buckets,
        };
        let (answer, metrics) = Box::pin(handle::handle(&world, inv, event.payload.get())).await;
        telemetry::emit(&metrics, time::now());
        if let Err(failure) = &answer {
            tracing::error!(error_type = failure.error_type, "{failure}");
        }
        answer
    }))
    .await
}
