//! Cold start: the SDK configuration, made once; and the one place that classifies SDK errors.

use crate::error::{CallError, Class};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use aws_smithy_types::retry::RetryConfig;
use aws_smithy_types::timeout::TimeoutConfig;
use std::time::Duration;

/// Longest time for one call, tries included (spec/updates.md 1.7: "each CFN call 3 s").
pub const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// The SDK configuration for all clients of a function. Region and retries are explicit, profile files are
/// not needed. `AWS_ENDPOINT_URL[_SERVICE]` is honoured, so the shipped binary needs no test code.
pub async fn sdk_config() -> aws_config::SdkConfig {
    aws_config::defaults(aws_config::BehaviorVersion::latest())
        .retry_config(
            RetryConfig::standard()
                .with_max_attempts(3)
                .with_initial_backoff(Duration::from_millis(50))
                .with_max_backoff(Duration::from_millis(400)),
        )
        .timeout_config(
            TimeoutConfig::builder()
                .connect_timeout(Duration::from_millis(1_000))
                .operation_attempt_timeout(Duration::from_millis(2_500))
                .operation_timeout(CALL_TIMEOUT)
                .build(),
        )
        .load()
        .await
}

/// Codes that mean "asked too often" (spec/updates.md table D; smithy's own list for the other services).
const THROTTLING: [&str; 9] = [
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "TooManyRequestsException",
    "ProvisionedThroughputExceededException",
    "SlowDown",
    "PriorRequestNotComplete",
];

/// Codes that mean "you may not".
const DENIED: [&str; 10] = [
    "AccessDenied",
    "AccessDeniedException",
    "UnauthorizedOperation",
    "AuthorizationError",
    "NotAuthorized",
    "UnrecognizedClientException",
    "InvalidClientTokenId",
    "ExpiredToken",
    "ExpiredTokenException",
    "SignatureDoesNotMatch",
];

/// Classifies a failed SDK call by its code and HTTP status; never by its message. `action` is the IAM
/// action of the call. What "not found" means is told apart by each domain's adapter.
pub fn call_error<E: ProvideErrorMetadata>(action: &str, e: &SdkError<E, HttpResponse>) -> CallError {
    match e {
        SdkError::ConstructionFailure(_) => CallError::new(
            Class::Refused,
            action,
            "Malformed",
            "the request could not be built",
        ),
        SdkError::TimeoutError(_) => CallError::new(Class::TimedOut, action, "Timeout", "no answer in time"),
        SdkError::DispatchFailure(d) if d.is_timeout() => {
            CallError::new(Class::TimedOut, action, "Timeout", "no answer in time")
        }
        SdkError::DispatchFailure(_) => CallError::new(
            Class::Unavailable,
            action,
            "Dispatch",
            "the service could not be reached",
        ),
        SdkError::ResponseError(_) => CallError::new(
            Class::Unavailable,
            action,
            "Malformed",
            "the answer could not be read",
        ),
        SdkError::ServiceError(s) => {
            let status = s.raw().status().as_u16();
            let code = s.err().code().unwrap_or("Unknown");
            let message = s.err().message().unwrap_or("no text");
            CallError::new(classify(code, status), action, code, message)
        }
        _ => CallError::new(Class::Unavailable, action, "Unknown", "the call failed"),
    }
}

/// The class of a service's answer from its code and HTTP status.
pub fn classify(code: &str, status: u16) -> Class {
    if THROTTLING.contains(&code) || status == 429 {
        Class::Throttled
    } else if DENIED.contains(&code) || status == 401 || status == 403 {
        Class::Denied
    } else if status >= 500 || status == 408 {
        Class::Unavailable
    } else if status == 404 {
        Class::NotFound
    } else if (200..300).contains(&status) {
        // An error made from a success answer is one that could not be read.
        Class::Unavailable
    } else {
        Class::Refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_come_from_code_first_and_status_second() {
        let cases = [
            ("Throttling", 400, Class::Throttled),
            ("RequestLimitExceeded", 503, Class::Throttled),
            ("AccessDenied", 403, Class::Denied),
            ("AccessDeniedException", 400, Class::Denied),
            ("InternalFailure", 500, Class::Unavailable),
            ("ChangeSetNotFound", 404, Class::NotFound),
            ("ValidationError", 400, Class::Refused),
            ("Whatever", 200, Class::Unavailable),
        ];
        for (code, status, class) in cases {
            assert_eq!(classify(code, status), class, "{code} {status}");
        }
    }
}
