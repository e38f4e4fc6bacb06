//! HTTP API requests (payload 2.0) for the functions, made from the files of `events/`.

use serde_json::{Value, json};

/// Who asks.
#[derive(Debug, Clone)]
pub enum Caller {
    /// The authorizer left nothing: an open route, or a misconfigured API.
    Nobody,
    /// A JWT authorizer let this person through.
    Jwt {
        email: Option<String>,
        sub: String,
        scope: String,
    },
    /// An IAM authorizer let this ARN through.
    Iam { user_arn: String },
}

impl Caller {
    /// A person with these scopes (space separated).
    pub fn jwt(email: &str, scope: &str) -> Self {
        Self::Jwt {
            email: Some(email.into()),
            sub: "6f1d3c52".into(),
            scope: scope.into(),
        }
    }

    /// A person who may read and write.
    pub fn ana() -> Self {
        Self::jwt("ana@example.com", "headgate/read headgate/write")
    }

    /// The dashboard's backend.
    pub fn dashboard() -> Self {
        let arn = "arn:aws:sts::123456789012:assumed-role/dashboard-backend/dashboard";
        Self::Iam { user_arn: arn.into() }
    }

    fn authorizer(&self) -> Value {
        match self {
            Self::Nobody => Value::Null,
            Self::Jwt { email, sub, scope } => {
                let mut claims = json!({"sub": sub, "scope": scope});
                if let Some(email) = email {
                    claims["email"] = json!(email);
                }
                json!({"jwt": {"claims": claims, "scopes": Value::Null}})
            }
            Self::Iam { user_arn } => json!({"iam": {"userArn": user_arn, "accountId": "123456789012"}}),
        }
    }
}

/// A request in the making.
#[derive(Debug, Clone)]
pub struct HttpCall(Value);

impl HttpCall {
    /// A request as API Gateway would send it, by [`Caller::ana`].
    pub fn new(method: &str, path: &str) -> Self {
        let mut event: Value =
            serde_json::from_str(include_str!("../../events/updater/get-version-jwt.json")).expect("JSON");
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        event["rawPath"] = json!(path);
        event["rawQueryString"] = json!(query);
        event["requestContext"]["http"]["method"] = json!(method);
        event["requestContext"]["http"]["path"] = json!(path);
        // The functions must not route by these (contract 4).
        event["routeKey"] = json!("$default");
        event["requestContext"]["routeKey"] = json!("$default");
        let parameters: Vec<_> = super::http::parse_form(query);
        if !parameters.is_empty() {
            event["queryStringParameters"] = parameters
                .into_iter()
                .map(|(name, value)| (name, Value::String(value)))
                .collect();
        }
        Self(event).caller(&Caller::ana())
    }

    pub fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    pub fn post(path: &str) -> Self {
        Self::new("POST", path)
    }

    /// Sends a JSON body.
    #[must_use]
    pub fn json(self, body: &Value) -> Self {
        self.header("content-type", "application/json")
            .body(&body.to_string())
    }

    /// Sends this text as the body.
    #[must_use]
    pub fn body(mut self, body: &str) -> Self {
        self.0["body"] = json!(body);
        self
    }

    /// Says that the body is base64, as API Gateway does for binary types.
    #[must_use]
    pub fn base64(mut self) -> Self {
        self.0["isBase64Encoded"] = json!(true);
        self
    }

    /// Sets a header; API Gateway sends names in lower case.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.0["headers"][name.to_ascii_lowercase()] = json!(value);
        self
    }

    #[must_use]
    pub fn caller(mut self, caller: &Caller) -> Self {
        let context = self.0["requestContext"].as_object_mut().expect("requestContext");
        match caller.authorizer() {
            Value::Null => drop(context.remove("authorizer")),
            authorizer => drop(context.insert("authorizer".into(), authorizer)),
        }
        self
    }

    /// Served by a named stage, whose name API Gateway puts before the path.
    #[must_use]
    pub fn stage(mut self, stage: &str) -> Self {
        let path = format!("/{stage}{}", self.0["rawPath"].as_str().expect("rawPath"));
        self.0["requestContext"]["stage"] = json!(stage);
        self.0["requestContext"]["http"]["path"] = json!(path);
        self.0["rawPath"] = json!(path);
        self
    }

    /// The event.
    pub fn event(&self) -> &Value {
        &self.0
    }
}

/// What the function told API Gateway.
#[derive(Debug, Clone)]
pub struct HttpReply {
    pub status: u64,
    pub headers: Value,
    /// Parsed when it is JSON, else the text; null when empty.
    pub body: Value,
}

impl HttpReply {
    /// Reads a function's answer; fails the test when it is not an HTTP API response.
    pub fn from_answer(answer: &Value) -> Self {
        let status = answer["statusCode"]
            .as_u64()
            .unwrap_or_else(|| panic!("not an HTTP response: {answer}"));
        let text = answer.get("body").and_then(Value::as_str).unwrap_or_default();
        assert_ne!(answer["isBase64Encoded"], json!(true), "Headgate answers in text");
        let body = if text.is_empty() {
            Value::Null
        } else {
            serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.into()))
        };
        Self {
            status,
            headers: answer.get("headers").cloned().unwrap_or_default(),
            body,
        }
    }

    /// A header, whatever its case; empty when absent.
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .as_object()
            .and_then(|headers| headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)))
            .and_then(|(_, value)| value.as_str())
            .unwrap_or_default()
    }

    /// The value at a JSON pointer; null when absent.
    pub fn at(&self, pointer: &str) -> &Value {
        self.body.pointer(pointer).unwrap_or(&Value::Null)
    }

    /// The text at a JSON pointer; empty when absent or not text.
    pub fn text(&self, pointer: &str) -> &str {
        self.at(pointer).as_str().unwrap_or_default()
    }

    /// Fails unless this is a problem document (RFC 9457) of that status and code.
    pub fn expect_problem(&self, status: u64, code: &str) -> &Self {
        assert_eq!((self.status, self.text("/code")), (status, code), "{self:?}");
        assert_eq!(
            self.header("content-type"),
            "application/problem+json",
            "{self:?}"
        );
        assert_eq!(self.at("/status"), &json!(status), "{self:?}");
        assert_eq!(
            self.text("/type"),
            format!("urn:headgate:problem:{code}"),
            "{self:?}"
        );
        for field in ["/title", "/detail"] {
            assert!(!self.text(field).is_empty(), "{field} is empty: {self:?}");
        }
        self
    }

    /// Fails unless the status is this one.
    pub fn expect(&self, status: u64) -> &Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }
}
