//! Logs (JSON, one line per decision) and metrics (CloudWatch embedded metric format, namespace `Headgate`).

use crate::time::Timestamp;
use serde_json::{Map, Value, json};

/// Starts logging. Honours `AWS_LAMBDA_LOG_LEVEL` and `AWS_LAMBDA_LOG_FORMAT` (contract 3), given by the
/// caller so that this file reads no environment.
pub fn init(level: Option<&str>, format: Option<&str>) {
    use tracing_subscriber::filter::{LevelFilter, Targets};
    use tracing_subscriber::{layer::SubscriberExt, util::SubscriberInitExt};
    let level = match level.unwrap_or("INFO").to_ascii_uppercase().as_str() {
        "TRACE" => LevelFilter::TRACE,
        "DEBUG" => LevelFilter::DEBUG,
        "WARN" => LevelFilter::WARN,
        "ERROR" | "FATAL" => LevelFilter::ERROR,
        _ => LevelFilter::INFO,
    };
    // The runtime logs every error of a handler once more, in its own form; our line is the one.
    let filter = Targets::new()
        .with_default(level)
        .with_target("lambda_runtime", LevelFilter::OFF);
    let lines = tracing_subscriber::fmt::layer()
        .with_target(false)
        .with_ansi(false);
    let text = format.is_some_and(|f| f.eq_ignore_ascii_case("text"));
    let registry = tracing_subscriber::registry().with(filter);
    // A second call (a test) keeps the first subscriber.
    let _ = if text {
        registry.with(lines.without_time()).try_init()
    } else {
        let json = lines
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false);
        registry.with(json).try_init()
    };
}

/// One metric of a decision.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// Name, as in contract 6.
    pub name: &'static str,
    /// CloudWatch unit.
    pub unit: &'static str,
    /// Value.
    pub value: f64,
    /// Dimensions, beside none.
    pub dimensions: Vec<(&'static str, String)>,
}

impl Metric {
    /// A count.
    pub fn count(name: &'static str, value: f64) -> Self {
        Self {
            name,
            unit: "Count",
            value,
            dimensions: Vec::new(),
        }
    }

    /// A number of seconds.
    pub fn seconds(name: &'static str, value: f64) -> Self {
        Self {
            name,
            unit: "Seconds",
            value,
            dimensions: Vec::new(),
        }
    }

    /// The same with a dimension.
    #[must_use]
    pub fn by(mut self, name: &'static str, value: &str) -> Self {
        self.dimensions.push((name, value.to_owned()));
        self
    }
}

/// One line in embedded metric format (CloudWatch Logs user guide, "Specification: embedded metric format").
pub fn emf_line(metric: &Metric, now: Timestamp) -> String {
    let names: Vec<&str> = metric.dimensions.iter().map(|(n, _)| *n).collect();
    let mut line = Map::new();
    line.insert(
        "_aws".into(),
        json!({"Timestamp": now.as_millisecond(), "CloudWatchMetrics": [{
            "Namespace": "Headgate", "Dimensions": [names],
            "Metrics": [{"Name": metric.name, "Unit": metric.unit}]}]}),
    );
    for (n, v) in &metric.dimensions {
        line.insert((*n).to_owned(), json!(v));
    }
    line.insert(metric.name.to_owned(), json!(metric.value));
    Value::Object(line).to_string()
}

/// Writes metrics to standard output, where Lambda's log group picks them up.
#[expect(clippy::print_stdout, reason = "embedded metrics are log lines by definition")]
pub fn emit(metrics: &[Metric], now: Timestamp) {
    for m in metrics {
        println!("{}", emf_line(m, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_line_has_namespace_dimensions_and_value() {
        let m = Metric::count("AwsErrors", 2.0)
            .by("service", "cloudformation")
            .by("class", "throttled");
        let v: Value = serde_json::from_str(&emf_line(&m, Timestamp::UNIX_EPOCH)).unwrap();
        assert_eq!(v["_aws"]["CloudWatchMetrics"][0]["Namespace"], "Headgate");
        assert_eq!(v["_aws"]["CloudWatchMetrics"][0]["Dimensions"][0][1], "class");
        assert_eq!(
            (v["AwsErrors"].as_f64(), v["service"].as_str()),
            (Some(2.0), Some("cloudformation"))
        );
    }
}
