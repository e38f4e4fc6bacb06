//! Names as AWS writes them: DNS names, ARNs, times.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde_json::Value;

/// A DNS name as it is compared: lower case, no trailing dot, `\052` read as `*` (A-10, spec 3.6).
pub(crate) fn dns(name: &str) -> String {
    let name = name.strip_suffix('.').unwrap_or(name);
    name.replace("\\052", "*").to_ascii_lowercase()
}

/// Whether two strings are the same DNS name.
pub(crate) fn dns_eq(a: &str, b: &str) -> bool {
    dns(a) == dns(b)
}

/// Whether `name` is `zone` or lies under it.
pub(crate) fn within(name: &str, zone: &str) -> bool {
    let (name, zone) = (dns(name), dns(zone));
    name == zone || name.strip_suffix(&zone).is_some_and(|rest| rest.ends_with('.'))
}

/// Whether a certificate name covers a host: equal, or `*.` in place of exactly one label.
pub(crate) fn covers(pattern: &str, host: &str) -> bool {
    let (pattern, host) = (dns(pattern), dns(host));
    if pattern == host {
        return true;
    }
    match (pattern.strip_prefix("*."), host.split_once('.')) {
        (Some(parent), Some((label, rest))) => !label.is_empty() && label != "*" && parent == rest,
        _ => false,
    }
}

/// Labels from the root down, the order in which Route 53 lists records.
pub(crate) fn route53_order(name: &str) -> Vec<String> {
    dns(name).split('.').rev().map(str::to_owned).collect()
}

/// The parts of an ARN that bind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arn<'a> {
    pub(crate) region: &'a str,
    pub(crate) account: &'a str,
    pub(crate) resource: &'a str,
}

/// Reads `arn:partition:service:region:account:resource`.
pub(crate) fn arn(text: &str) -> Option<Arn<'_>> {
    let mut parts = text.splitn(6, ':');
    if parts.next() != Some("arn") {
        return None;
    }
    let (_partition, _service) = (parts.next()?, parts.next()?);
    let (region, account, resource) = (parts.next()?, parts.next()?, parts.next()?);
    Some(Arn {
        region,
        account,
        resource,
    })
}

/// A Route 53 zone id without the `/hostedzone/` that the API puts before it.
pub(crate) fn zone_id(id: &str) -> &str {
    id.rsplit('/').next().unwrap_or(id)
}

/// Whether an image is pinned: `repo@sha256:` and 64 lower-case hex digits (HO-6).
pub(crate) fn is_digest(image: &str) -> bool {
    match image.split_once("@sha256:") {
        Some((repo, hex)) => {
            !repo.is_empty() && hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        }
        None => false,
    }
}

/// A time as AWS tools and evidence files write it: RFC 3339, the same with a space for the `T`, or epoch seconds
/// (spec 7).
pub(crate) fn time(value: &Value) -> Option<Timestamp> {
    match value {
        Value::String(text) => time_text(text),
        Value::Number(number) => {
            let seconds = number.as_f64()?;
            if !seconds.is_finite() || seconds.abs() > 1.0e11 {
                return None;
            }
            // Milliseconds are exact in an f64 at this size; AWS sends no finer ones.
            #[expect(clippy::cast_possible_truncation, reason = "bounded above")]
            Timestamp::from_millisecond((seconds * 1000.0).round() as i64).ok()
        }
        _ => None,
    }
}

/// [`time`] for text.
pub(crate) fn time_text(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    if let Ok(stamp) = text.parse::<Timestamp>() {
        return Some(stamp);
    }
    let with_t = text.replacen(' ', "T", 1);
    if let Ok(stamp) = with_t.parse::<Timestamp>() {
        return Some(stamp);
    }
    // No zone at all: AWS means UTC.
    with_t
        .parse::<DateTime>()
        .ok()
        .and_then(|civil| TimeZone::UTC.to_timestamp(civil).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_compare_without_dot_and_case() {
        assert!(dns_eq("API.example.com.", "api.example.com"));
        assert!(dns_eq("\\052.example.com.", "*.example.com"));
        assert!(within("a.b.example.com", "example.com."));
        assert!(!within("badexample.com", "example.com"));
    }

    #[test]
    fn a_wildcard_covers_one_label() {
        assert!(covers("*.example.com", "api.example.com."));
        assert!(!covers("*.example.com", "a.b.example.com"));
        assert!(!covers("*.example.com", "example.com"));
    }

    #[test]
    fn three_forms_of_time() {
        let want: Timestamp = "2026-11-30T22:52:57Z".parse().unwrap();
        assert_eq!(time(&json!("2026-11-30T22:52:57Z")), Some(want));
        assert_eq!(time(&json!("2026-11-30 22:52:57+00:00")), Some(want));
        assert_eq!(time(&json!(1_796_079_177)), Some(want));
        assert_eq!(time(&json!("soon")), None);
        assert_eq!(time(&json!(1.0e300)), None);
    }

    #[test]
    fn digests_are_exact() {
        let hex = "a".repeat(64);
        assert!(is_digest(&format!("repo@sha256:{hex}")));
        assert!(!is_digest(&format!("repo@sha256:{}", "A".repeat(64))));
        assert!(!is_digest("repo:latest"));
    }
}
