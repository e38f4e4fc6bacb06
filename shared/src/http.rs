//! HTTP API requests (payload 2.0) and answers: parsing, problem documents, entity tags, cursors.
//!
//! Functions route by method and raw path with the stage stripped, not by route key (contract 4).

use crate::caller::{Caller, Refusal};
use crate::error::CallError;
use crate::status::{Blocker, NeedsAdmin};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Largest body (contract 4).
pub const BODY_MAX: usize = 1024 * 1024;

/// What the retry-after header says when AWS is in trouble, in seconds.
const RETRY_AFTER: &str = "5";

/// A request as it came through the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Upper-case method.
    pub method: String,
    /// Path without the stage, percent-encoding kept.
    pub path: String,
    /// Query parameters, decoded; the last of a repeated one.
    pub query: BTreeMap<String, String>,
    /// Headers, names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Decoded body.
    pub body: Vec<u8>,
    /// Request id of the gateway.
    pub request_id: String,
    authorizer: Option<Value>,
}

impl Request {
    /// Reads a payload 2.0 event. The body is decoded, never logged.
    ///
    /// # Errors
    /// The event lacks what a request must have, or its body is not the base64 it claims to be.
    pub fn parse(event: &Value) -> Result<Self, String> {
        let text = |p: &str| event.pointer(p).and_then(Value::as_str);
        let method = text("/requestContext/http/method").ok_or("requestContext.http.method is missing")?;
        let raw = text("/rawPath")
            .or_else(|| text("/requestContext/http/path"))
            .ok_or("rawPath is missing")?;
        let stage = text("/requestContext/stage").unwrap_or("$default");
        let path = match raw.strip_prefix('/').and_then(|r| r.strip_prefix(stage)) {
            Some(rest) if stage != "$default" && (rest.is_empty() || rest.starts_with('/')) => rest,
            _ => raw,
        };
        let path = match path.trim_end_matches('/') {
            "" => "/".to_owned(),
            p => p.to_owned(),
        };
        let map = |name: &str| -> BTreeMap<String, String> {
            let object = event.get(name).and_then(Value::as_object);
            object
                .into_iter()
                .flatten()
                .filter_map(|(k, v)| v.as_str().map(|v| (k.clone(), v.to_owned())))
                .collect()
        };
        let headers = map("headers")
            .into_iter()
            .map(|(k, v)| (k.to_ascii_lowercase(), v))
            .collect();
        let body = event.get("body").and_then(Value::as_str).unwrap_or("");
        let body = if event.get("isBase64Encoded").and_then(Value::as_bool) == Some(true) {
            STANDARD
                .decode(body)
                .map_err(|_| "the body is not valid base64")?
        } else {
            body.as_bytes().to_vec()
        };
        Ok(Self {
            method: method.to_ascii_uppercase(),
            path,
            query: map("queryStringParameters"),
            headers,
            body,
            request_id: text("/requestContext/requestId").unwrap_or("-").to_owned(),
            authorizer: event
                .pointer("/requestContext/authorizer")
                .filter(|a| !a.is_null())
                .cloned(),
        })
    }

    /// The path's segments, percent-decoded. A segment that is not valid UTF-8 keeps its encoding.
    pub fn segments(&self) -> Vec<String> {
        self.path
            .split('/')
            .filter(|s| !s.is_empty())
            .map(percent_decode)
            .collect()
    }

    /// Who is calling.
    ///
    /// # Errors
    /// A problem answer: 401 or 400.
    pub fn caller(&self, auth_is_local: bool) -> Result<Caller, Response> {
        let actor = self.headers.get("x-headgate-actor").map(String::as_str);
        Caller::of(self.authorizer.as_ref(), actor, auth_is_local).map_err(Response::from)
    }

    /// The body as a JSON object.
    ///
    /// # Errors
    /// A problem answer: 413 over 1 MiB, 400 when it is not a JSON object.
    pub fn json_object(&self) -> Result<Map<String, Value>, Response> {
        self.check_size()?;
        match serde_json::from_slice::<Value>(&self.body) {
            Ok(Value::Object(m)) => Ok(m),
            Ok(_) => Err(invalid(&[("body", "must be a JSON object")])),
            Err(e) => {
                let text = if self.body.is_empty() {
                    "is empty; a JSON object is expected".to_owned()
                } else {
                    format!("is not JSON: line {}, column {}", e.line(), e.column())
                };
                Err(invalid(&[("body", &text)]))
            }
        }
    }

    /// Refuses a body over the limit.
    ///
    /// # Errors
    /// A 413 problem answer.
    pub fn check_size(&self) -> Result<(), Response> {
        if self.body.len() <= BODY_MAX {
            return Ok(());
        }
        Err(Problem::new(
            413,
            "body_too_large",
            "The body is too large",
            "A body may have 1 MiB at most. Nothing was changed.",
        )
        .into())
    }

    /// `limit` and `cursor` of a list.
    ///
    /// # Errors
    /// A 400 problem answer that lists every bad parameter.
    pub fn paging(&self, default: u32, max: u32) -> Result<(u32, Option<String>), Response> {
        let mut bad = Vec::new();
        let limit = match self.query.get("limit") {
            None => default,
            Some(l) => match l.parse::<u32>() {
                Ok(n) if (1..=max).contains(&n) => n,
                _ => {
                    bad.push(("limit", format!("must be a whole number from 1 to {max}")));
                    default
                }
            },
        };
        let cursor = self.query.get("cursor").map(|c| cursor_decode(c));
        if cursor == Some(None) {
            bad.push((
                "cursor",
                "is not one that this API gave; start again without it".to_owned(),
            ));
        }
        if bad.is_empty() {
            return Ok((limit, cursor.flatten()));
        }
        let bad: Vec<(&str, &str)> = bad.iter().map(|(f, t)| (*f, t.as_str())).collect();
        Err(invalid(&bad))
    }
}

fn percent_decode(s: &str) -> String {
    let mut out = Vec::with_capacity(s.len());
    let mut bytes = s.bytes();
    while let Some(b) = bytes.next() {
        if b == b'%' {
            let hex: Vec<u8> = bytes.clone().take(2).collect();
            let byte = std::str::from_utf8(&hex)
                .ok()
                .filter(|h| h.len() == 2 && h.bytes().all(|b| b.is_ascii_hexdigit()));
            if let Some(v) = byte.and_then(|h| u8::from_str_radix(h, 16).ok()) {
                out.push(v);
                bytes.nth(1);
                continue;
            }
        }
        out.push(b);
    }
    String::from_utf8(out).unwrap_or_else(|_| s.to_owned())
}

/// An opaque cursor for a sort key.
pub fn cursor_encode(sk: &str) -> String {
    URL_SAFE_NO_PAD.encode(format!("1:{sk}"))
}

/// The sort key of a cursor this API gave.
pub fn cursor_decode(cursor: &str) -> Option<String> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
    String::from_utf8(bytes)
        .ok()?
        .strip_prefix("1:")
        .map(str::to_owned)
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Body text; empty for 204 and 304.
    pub body: String,
}

impl Response {
    /// A JSON answer.
    pub fn json(status: u16, body: &Value) -> Self {
        let headers = BTreeMap::from([("content-type".to_owned(), "application/json".to_owned())]);
        Self {
            status,
            headers,
            body: body.to_string(),
        }
    }

    /// An answer without a body.
    pub fn empty(status: u16) -> Self {
        Self {
            status,
            headers: BTreeMap::new(),
            body: String::new(),
        }
    }

    /// The same with a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.insert(name.to_owned(), value.into());
        self
    }

    /// Adds what every answer carries: the request id, no caching by others, and for a GET the weak entity
    /// tag, answering 304 when the caller has it already.
    #[must_use]
    pub fn finish(mut self, request: &Request) -> Self {
        if request.method == "GET" && self.status == 200 {
            // A domain whose times are part of what it says brings a tag of its own.
            let tag = self
                .headers
                .get("etag")
                .cloned()
                .unwrap_or_else(|| weak_etag(&self.body));
            let known = request
                .headers
                .get("if-none-match")
                .is_some_and(|h| etag_matches(h, &tag));
            if known {
                let retry = self.headers.remove("retry-after");
                self = Self::empty(304);
                self.headers.extend(retry.map(|r| ("retry-after".to_owned(), r)));
            }
            self = self.header("etag", tag);
        }
        self.header("x-request-id", &request.request_id)
            .header("cache-control", "no-store")
    }

    /// The same for a request that could not be read, or that nobody may answer: only the id.
    #[must_use]
    pub fn finish_unread(self, event: &Value) -> Self {
        let id = event
            .pointer("/requestContext/requestId")
            .and_then(Value::as_str)
            .unwrap_or("-");
        self.header("x-request-id", id)
            .header("cache-control", "no-store")
    }

    /// The shape the gateway expects.
    pub fn to_event(&self) -> Value {
        json!({"statusCode": self.status, "headers": self.headers, "body": self.body, "isBase64Encoded": false})
    }
}

/// A weak tag of a JSON body. `observed_at` and `stale_after` are left out: they move with every read, while
/// what they are about stays the same.
pub fn weak_etag(body: &str) -> String {
    fn strip(v: &mut Value) {
        match v {
            Value::Object(m) => {
                m.retain(|k, _| k != "observed_at" && k != "stale_after");
                m.values_mut().for_each(strip);
            }
            Value::Array(a) => a.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let stable = match serde_json::from_str::<Value>(body) {
        Ok(mut v) => {
            strip(&mut v);
            v.to_string()
        }
        Err(_) => body.to_owned(),
    };
    let hex = hex(&Sha256::digest(stable.as_bytes()));
    format!("W/\"{}\"", hex.get(..32).unwrap_or(&hex))
}

/// Weak comparison against an `if-none-match` list.
fn etag_matches(header: &str, tag: &str) -> bool {
    let bare = |t: &str| t.trim().trim_start_matches("W/").to_owned();
    header.split(',').any(|t| t.trim() == "*" || bare(t) == bare(tag))
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut s, b| {
            let _ = write!(s, "{b:02x}");
            s
        })
}

/// An RFC 9457 problem document under construction.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    status: u16,
    code: String,
    body: Map<String, Value>,
    headers: Vec<(&'static str, String)>,
}

impl Problem {
    /// `code` is stable; `title` and `detail` are for people: what happened, why, what to do next.
    pub fn new(status: u16, code: &str, title: &str, detail: impl Into<String>) -> Self {
        let mut body = Map::new();
        body.insert("type".into(), json!(format!("urn:headgate:problem:{code}")));
        body.insert("title".into(), json!(title));
        body.insert("status".into(), json!(status));
        body.insert("code".into(), json!(code));
        body.insert("detail".into(), json!(detail.into()));
        Self {
            status,
            code: code.to_owned(),
            body,
            headers: Vec::new(),
        }
    }

    /// A 409 from a blocker: same code, same text.
    pub fn blocked(b: &Blocker) -> Self {
        let p = Self::new(409, &b.code, "This can not be done now", &b.text);
        match &b.needs_admin {
            Some(n) => p.needs_admin(n),
            None => p,
        }
    }

    /// 503: AWS is in trouble or was too slow.
    pub fn aws_unavailable(e: &CallError, what: &str) -> Self {
        let detail = format!(
            "{what}: {} answered {}. Nothing is lost; try again in a moment.",
            e.action, e.code
        );
        Self::new(503, "aws_unavailable", "AWS did not do what was asked", detail)
            .with("action", json!(e.action))
            .retry_after(RETRY_AFTER)
    }

    /// What only the admin can do.
    #[must_use]
    pub fn needs_admin(self, n: &NeedsAdmin) -> Self {
        let v = serde_json::to_value(n).unwrap_or(Value::Null);
        self.with("needs_admin", v)
    }

    /// A named extra.
    #[must_use]
    pub fn with(mut self, name: &str, value: Value) -> Self {
        self.body.insert(name.to_owned(), value);
        self
    }

    /// A retry-after header, in seconds.
    #[must_use]
    pub fn retry_after(mut self, seconds: &str) -> Self {
        self.headers.push(("retry-after", seconds.to_owned()));
        self
    }

    /// The stable code.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// HTTP status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The document.
    pub fn body(&self) -> &Map<String, Value> {
        &self.body
    }
}

impl From<Problem> for Response {
    fn from(p: Problem) -> Self {
        let mut r = Response::json(p.status, &Value::Object(p.body))
            .header("content-type", "application/problem+json");
        for (name, value) in p.headers {
            r = r.header(name, value);
        }
        r
    }
}

impl From<Refusal> for Response {
    fn from(r: Refusal) -> Self {
        match r {
            Refusal::Unauthenticated => Problem::new(
                401,
                "unauthenticated",
                "Nobody is signed in",
                "The request carries no identity that the gateway has checked. Sign in and try again.",
            )
            .into(),
            Refusal::Forbidden(scope) => Problem::new(
                403,
                "forbidden",
                "You may not do this",
                format!("Your sign-in lacks the scope {scope}. Ask an admin of this install for it."),
            )
            .with("scope", json!(scope))
            .into(),
            Refusal::BadActor => invalid(&[("x-headgate-actor", "must be 1 to 128 printable characters")]),
        }
    }
}

/// 400 with every bad field.
pub fn invalid(fields: &[(&str, &str)]) -> Response {
    let list: Vec<String> = fields.iter().map(|(f, t)| format!("{f} {t}")).collect();
    let errors: Vec<Value> = fields
        .iter()
        .map(|(f, t)| json!({"field": f, "text": t}))
        .collect();
    let detail = format!("{}. Nothing was changed.", list.join("; "));
    Problem::new(400, "invalid_request", "The request is not valid", detail)
        .with("errors", json!(errors))
        .into()
}

/// 404 for an unknown route or id.
pub fn not_found(what: &str) -> Response {
    Problem::new(404, "not_found", "Not found", format!("There is no {what} here.")).into()
}

/// 405 with the methods that are allowed.
pub fn wrong_method(allow: &str) -> Response {
    let p = Problem::new(
        405,
        "method_not_allowed",
        "Wrong method",
        format!("This address takes {allow} only."),
    );
    Response::from(p).header("allow", allow)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(path: &str, stage: &str) -> Value {
        json!({"version": "2.0", "rawPath": path, "headers": {"If-None-Match": "x"},
               "requestContext": {"stage": stage, "requestId": "r", "http": {"method": "get"}}})
    }

    #[test]
    fn the_stage_is_stripped_and_only_as_a_whole_segment() {
        for (path, stage, want) in [
            ("/prod/version", "prod", "/version"),
            ("/version", "$default", "/version"),
            ("/production/version", "prod", "/production/version"),
            ("/prod", "prod", "/"),
            ("/updates/", "$default", "/updates"),
        ] {
            assert_eq!(
                Request::parse(&event(path, stage)).unwrap().path,
                want,
                "{path} {stage}"
            );
        }
    }

    #[test]
    fn a_tag_ignores_when_it_was_read_but_not_what_was_read() {
        let a = weak_etag(r#"{"state":"idle","status":{"observed_at":"1","stale_after":"2"}}"#);
        let b = weak_etag(r#"{"state":"idle","status":{"observed_at":"3","stale_after":"4"}}"#);
        let c = weak_etag(r#"{"state":"prepared","status":{"observed_at":"3"}}"#);
        assert!(a == b && a != c && a.starts_with("W/\""));
        assert!(etag_matches(&format!("\"zz\", {a}"), &a) && !etag_matches("\"zz\"", &a));
    }

    #[test]
    fn a_known_tag_answers_304_without_a_body() {
        let mut r = Request::parse(&event("/version", "$default")).unwrap();
        let first = Response::json(200, &json!({"a": 1})).finish(&r);
        r.headers
            .insert("if-none-match".into(), first.headers["etag"].clone());
        let second = Response::json(200, &json!({"a": 1})).finish(&r);
        assert_eq!((second.status, second.body.as_str()), (304, ""));
        assert_eq!(second.headers["etag"], first.headers["etag"]);
    }

    #[test]
    fn segments_are_decoded_and_nothing_panics() {
        let mut r = Request::parse(&event("/updates/a%2Fb%", "$default")).unwrap();
        assert_eq!(r.segments(), ["updates", "a/b%"]);
        r.path = "/%ff%zz/%".into();
        assert_eq!(r.segments().len(), 2);
    }

    #[test]
    fn a_cursor_round_trips_and_a_foreign_one_is_refused() {
        assert_eq!(
            cursor_decode(&cursor_encode("UPDATE#1")).as_deref(),
            Some("UPDATE#1")
        );
        assert_eq!(cursor_decode("garbage!"), None);
        let mut r = Request::parse(&event("/updates", "$default")).unwrap();
        r.query = BTreeMap::from([("limit".into(), "0".into()), ("cursor".into(), "?".into())]);
        let p = r.paging(20, 100).unwrap_err();
        assert!(p.status == 400 && p.body.contains("limit") && p.body.contains("cursor"));
    }
}
