//! Telling a function's triggers apart by shape (contract 1). Anything else is refused, with no body logged.

use crate::error::Failure;
use serde_json::Value;

/// What invoked the function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape<'a> {
    /// HTTP API request, payload 2.0.
    Http,
    /// EventBridge event: source, detail-type and detail.
    Event {
        /// `source`.
        source: &'a str,
        /// `detail-type`.
        detail_type: &'a str,
    },
    /// Step Functions task input: an object with this member.
    Task,
}

/// The shape of an invocation. `task_key` names the member that makes an object a task input for this
/// function; None if it takes no tasks.
///
/// # Errors
/// `Headgate.UnknownEvent`, saying which shapes are understood.
pub fn shape<'a>(event: &'a Value, task_key: Option<&str>) -> Result<Shape<'a>, Failure> {
    if event.pointer("/requestContext/http").is_some() {
        return Ok(Shape::Http);
    }
    let text = |k: &str| event.get(k).and_then(Value::as_str);
    if let (Some(source), Some(detail_type)) = (text("source"), text("detail-type")) {
        return Ok(Shape::Event { source, detail_type });
    }
    if task_key.is_some_and(|k| event.get(k).is_some()) {
        return Ok(Shape::Task);
    }
    Err(unknown("its shape is none of those it takes"))
}

/// Is this the schedule? Both schedulers mean "look again now".
pub fn is_schedule(source: &str, detail_type: &str) -> bool {
    matches!(source, "aws.scheduler" | "aws.events") && detail_type == "Scheduled Event"
}

/// The refusal of an event this function does not take.
pub fn unknown(why: &str) -> Failure {
    Failure::new(
        "Headgate.UnknownEvent",
        format!(
            "This function was invoked with an event it does not know: {why}. It takes HTTP API requests (payload \
             2.0) and the events named in the contract. Nothing was done; check the rule or the caller."
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn shapes_are_told_apart_and_others_refused() {
        let http = json!({"requestContext": {"http": {}}});
        assert_eq!(shape(&http, None), Ok(Shape::Http));
        let ev = json!({"source": "aws.events", "detail-type": "Scheduled Event"});
        assert!(matches!(shape(&ev, None), Ok(Shape::Event { .. })));
        let task = json!({"action": "validate"});
        assert_eq!(shape(&task, Some("action")), Ok(Shape::Task));
        for bad in [
            json!(null),
            json!([]),
            json!("x"),
            json!({"detail": {"password": "s"}}),
            task,
        ] {
            let e = shape(&bad, None).unwrap_err();
            assert_eq!(e.error_type, "Headgate.UnknownEvent");
            assert!(!e.message.contains("password"));
        }
    }
}
