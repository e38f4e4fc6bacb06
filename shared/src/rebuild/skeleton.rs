//! A manifest skeleton from states and decisions (`headgate manifest new`). The operator completes it: Headgate
//! never invents what it can't know, so such fields are null and named.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::decide::{BadInput, parse_decisions};
use super::inputs::State;
use super::json as j;
use super::names;

/// A manifest in the making.
#[derive(Debug, Clone, PartialEq)]
pub struct Skeleton {
    /// The manifest.
    pub manifest: Value,
    /// Paths of what is still to be filled in.
    pub missing: Vec<String>,
}

/// Makes a skeleton.
///
/// # Errors
/// A state or the decisions can't be read, or the M5a state holds no App Runner service.
pub fn skeleton(
    state_m5a: &str,
    state_rebuild: Option<&str>,
    decisions: Option<&str>,
    run_id: Option<&str>,
    now: Timestamp,
) -> Result<Skeleton, BadInput> {
    let m5a = State::read(state_m5a).map_err(|e| BadInput(format!("The M5a state can't be read: {e}.")))?;
    let rebuild = match state_rebuild {
        Some(text) => Some(
            State::read(text)
                .map_err(|e| BadInput(format!("The infra-rebuild state can't be read: {e}.")))?,
        ),
        None => None,
    };
    let decided = match decisions {
        Some(text) => {
            parse_decisions(text).map_err(|e| BadInput(format!("The decisions can't be read: {e}.")))?
        }
        None => Value::Null,
    };
    let Some((service_address, service)) = m5a.of_type("aws_apprunner_service").next() else {
        return Err(BadInput(
            "The M5a state holds no App Runner service; give it as `terraform show -json`.".into(),
        ));
    };
    let arn = j::str_at(service, "arn");
    let parts = arn.and_then(names::arn);
    let record = m5a.of_type("aws_route53_record").find(|(_, v)| {
        j::str_at(v, "type") == Some("CNAME") && !j::str_at(v, "name").is_some_and(|n| n.starts_with('_'))
    });
    let host = record.and_then(|(_, v)| j::str_at(v, "name"));
    let new_host = if host.is_none() {
        j::str_at(&decided, "new_host")
    } else {
        None
    };
    let certificate = rebuild
        .as_ref()
        .and_then(|s| s.of_type("aws_acm_certificate").next());
    let name = host.or(new_host);
    let environment = format!(
        "{}.runtime_environment_variables",
        "source_configuration.0.image_repository.0.image_configuration.0"
    );
    let worker = match decided.get("background_work") {
        Some(work) if work.get("mode").and_then(Value::as_str) == Some("switch") => work.clone(),
        Some(work) => work.clone(),
        None => Value::Null,
    };
    let mut phases = Map::new();
    phases.insert("steady:m5a".into(), steady("m5a", &m5a));
    if let Some(state) = rebuild.as_ref().filter(|s| s.managed().next().is_some()) {
        phases.insert("steady:infra_rebuild".into(), steady("infra_rebuild", state));
    }
    let cert_address = certificate.map_or("aws_acm_certificate.app", |(address, _)| address);
    if let Some(name) = name {
        phases.insert(
            "cert-request".into(),
            json!({"root": "infra_rebuild", "addresses": {cert_address: {"action": "create",
            "gated": {"domain_name": {"after": name}, "validation_method": {"after": "DNS"},
                "subject_alternative_names": {"after": [name], "compare": "set"}}}}}),
        );
    }
    if let (Some(env), Some(off), Some(on)) = (
        j::str_at(&worker, "env"),
        j::str_at(&worker, "off"),
        j::str_at(&worker, "on"),
    ) {
        phases.insert(
            "worker-off".into(),
            json!({"root": "m5a", "addresses": {service_address: {"action": "update",
            "gated": {format!("{environment}.{env}"): {"before": on, "after": off}}}}}),
        );
    }
    phases.insert(
        "rollback-rebuild".into(),
        json!({"root": "infra_rebuild", "addresses": "all-in-state",
        "forget": ["aws_cloudwatch_log_group.app", "aws_route53_record.validation"]}),
    );
    let text = |v: &Value, path: &str| j::str_at(v, path).map(str::to_owned);
    let manifest = json!({
        "schema": 1, "tool_version": concat!("headgate ", env!("CARGO_PKG_VERSION")), "run_id": run_id, "generated_at": now.to_string(),
        "account": parts.as_ref().map(|p| p.account), "region": parts.as_ref().map(|p| p.region),
        "app": Value::Null, "env": Value::Null, "service_arn": arn, "host": host, "new_host": new_host,
        "zone": {"id": record.and_then(|(_, v)| j::str_at(v, "zone_id")), "name": Value::Null},
        "dns_target": record.and_then(|(_, v)| j::str_at(v, "records.0")),
        "roots": {"m5a": {"path": Value::Null, "lineage": m5a.lineage}, "infra_rebuild": {"path": Value::Null, "lineage": rebuild.as_ref().and_then(|s| s.lineage.clone())}},
        "files": {}, "evidence": {},
        "certificate": {"address": cert_address, "domain_name": name, "allow_old_issued": false},
        "validation": Value::Null,
        "worker": worker,
        "image": text(service, "source_configuration.0.image_repository.0.image_identifier"),
        "scaling": {"min": Value::Null, "max": Value::Null},
        "weights": {"sequence": [[100, 0], [90, 10], [50, 50], [10, 90], [0, 100]],
            "rollback": {"90,10": [[100, 0]], "50,50": [[100, 0]], "10,90": [[100, 0]], "0,100": [[100, 100], [100, 0]]}},
        "phases": phases,
    });
    let mut missing = Vec::new();
    for path in [
        "run_id",
        "account",
        "region",
        "app",
        "env",
        "service_arn",
        "zone.id",
        "zone.name",
        "dns_target",
        "certificate.domain_name",
        "worker",
        "image",
        "scaling.min",
        "scaling.max",
    ] {
        // Without a custom domain there is no target to adopt.
        if j::at(&manifest, path).is_none_or(Value::is_null) && !(path == "dns_target" && host.is_none()) {
            missing.push(path.to_owned());
        }
    }
    if name.is_none() {
        missing.push("host or new_host".into());
    }
    missing.push("files (name and SHA-256 of every generated file)".into());
    missing.push("phases (prepare, rebuild, start, import:7a, cutover, ... as generated)".into());
    Ok(Skeleton { manifest, missing })
}

/// The entry of steady for a root: every address with its physical ids (2.11 row 23).
fn steady(root: &str, state: &State) -> Value {
    let mut addresses = Map::new();
    for address in state.managed() {
        let mut gated = Map::new();
        for key in ["id", "arn"] {
            if let Some(text) = j::str_at(state.values(address), key) {
                gated.insert(key.into(), json!({"before": text}));
            }
        }
        addresses.insert(address.to_owned(), json!({"action": "no-op", "gated": gated}));
    }
    json!({"root": root, "addresses": addresses})
}
