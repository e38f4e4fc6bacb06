//! The AWS wire protocols, both ways: a request becomes (service, operation, params), an answer becomes what
//! the SDK expects on that protocol.
//!
//! The service is the signing name in the SigV4 credential scope (`dynamodb`, `cloudformation`, `s3`, `ssm`,
//! `states`, `codebuild`, `acm`, `ecs`, `route53`, `elasticloadbalancing`, `sts`, `iam`, `ec2` ...), so every
//! service is named the same way whatever its protocol.

use serde_json::{Map, Value, json};

use super::http::{Request, Response, parse_form};

/// How a service talks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// `x-amz-target`, JSON both ways: DynamoDB, CodeBuild, SSM, Step Functions, ACM, ECS, EventBridge.
    Json,
    /// `Action=` form, XML back: CloudFormation, STS, ELBv2, IAM, SNS.
    Query,
    /// The same with its own names for lists and errors.
    Ec2,
    /// Path and verb, XML: S3.
    S3,
    /// Path and verb, XML, errors wrapped: Route 53.
    RestXml,
    /// Path and verb, JSON: Lambda, API Gateway, Scheduler.
    RestJson,
}

/// One AWS request, decoded.
#[derive(Debug, Clone)]
pub struct Call {
    /// Signing name.
    pub service: String,
    /// `DescribeStacks`, `GetItem`, ...; `VERB /path` where the protocol has no name for it.
    pub operation: String,
    /// The input. Query lists are arrays (`Parameters.member.1.X` is `Parameters[0].X`) and every scalar of a
    /// Query or XML request is a string. S3: `Bucket`, `Key`, the query parameters. Route 53: the id as `Id`,
    /// the query parameters, and the body.
    pub params: Value,
    pub protocol: Protocol,
    /// Access key id: on the local AWS a 12-digit one is the account.
    pub account: String,
    pub request: Request,
}

impl Call {
    /// `service.Operation`
    pub fn name(&self) -> String {
        format!("{}.{}", self.service, self.operation)
    }

    /// A text parameter by pointer (`/StackName`), empty when absent.
    pub fn text(&self, pointer: &str) -> &str {
        self.params
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// Decodes a request as one of the protocols; never fails, an odd request gets an odd name.
    pub fn decode(request: Request) -> Self {
        let (account, scope) = credential_scope(&request);
        if let Some(target) = request.header("x-amz-target") {
            let (prefix, operation) = target.split_once('.').unwrap_or(("", target));
            return Self {
                service: scope.unwrap_or_else(|| service_of_target(prefix)),
                operation: operation.into(),
                params: serde_json::from_slice(&request.body).unwrap_or(Value::Null),
                protocol: Protocol::Json,
                account,
                request,
            };
        }
        let form = request
            .header("content-type")
            .is_some_and(|kind| kind.starts_with("application/x-www-form-urlencoded"));
        if form {
            let fields = parse_form(&String::from_utf8_lossy(&request.body));
            let operation = fields
                .iter()
                .find(|(name, _)| name == "Action")
                .map(|f| f.1.clone())
                .unwrap_or_default();
            let service = scope.unwrap_or_else(|| "query".into());
            let protocol = if service == "ec2" {
                Protocol::Ec2
            } else {
                Protocol::Query
            };
            return Self {
                service,
                operation,
                params: unflatten(&fields),
                protocol,
                account,
                request,
            };
        }
        match scope.as_deref() {
            Some("s3") => Self::s3(request, account),
            Some("route53") => Self::route53(request, account),
            other => {
                let operation = format!("{} {}", request.method, request.path());
                let mut params = query_object(&request);
                if let Ok(Value::Object(body)) = serde_json::from_slice(&request.body) {
                    params.extend(body);
                }
                Self {
                    service: other.unwrap_or("unsigned").into(),
                    operation,
                    params: Value::Object(params),
                    protocol: Protocol::RestJson,
                    account,
                    request,
                }
            }
        }
    }

    fn s3(request: Request, account: String) -> Self {
        let path = request.path();
        let trimmed = path.trim_start_matches('/');
        let (bucket, key) = trimmed.split_once('/').unwrap_or((trimmed, ""));
        let mut params = query_object(&request);
        let has = |name: &str| params.contains_key(name);
        let operation = match (request.method.as_str(), bucket.is_empty(), key.is_empty()) {
            ("GET", true, _) => "ListBuckets",
            ("GET", _, true) if has("versions") => "ListObjectVersions",
            ("GET", _, true) if has("location") => "GetBucketLocation",
            ("GET", _, true) if has("versioning") => "GetBucketVersioning",
            ("GET", _, true) if has("list-type") => "ListObjectsV2",
            ("GET", _, true) => "ListObjects",
            ("HEAD", _, true) => "HeadBucket",
            ("PUT", _, true) => "CreateBucket",
            ("DELETE", _, true) => "DeleteBucket",
            ("POST", _, true) if has("delete") => "DeleteObjects",
            ("GET", _, false) => "GetObject",
            ("HEAD", _, false) => "HeadObject",
            ("PUT", _, false) if has("partNumber") => "UploadPart",
            ("PUT", _, false) if request.header("x-amz-copy-source").is_some() => "CopyObject",
            ("PUT", _, false) => "PutObject",
            ("DELETE", _, false) if has("uploadId") => "AbortMultipartUpload",
            ("DELETE", _, false) => "DeleteObject",
            ("POST", _, false) if has("uploads") => "CreateMultipartUpload",
            ("POST", _, false) if has("uploadId") => "CompleteMultipartUpload",
            _ => "Unknown",
        };
        params.insert("Bucket".into(), bucket.into());
        params.insert("Key".into(), key.into());
        Self {
            service: "s3".into(),
            operation: operation.into(),
            params: Value::Object(params),
            protocol: Protocol::S3,
            account,
            request,
        }
    }

    fn route53(request: Request, account: String) -> Self {
        let path = request.path();
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).skip(1).collect();
        let (operation, id) = match (request.method.as_str(), parts.as_slice()) {
            ("POST", ["hostedzone", id, "rrset"]) => ("ChangeResourceRecordSets", *id),
            ("GET", ["hostedzone", id, "rrset"]) => ("ListResourceRecordSets", *id),
            ("GET", ["hostedzone", id]) => ("GetHostedZone", *id),
            ("GET", ["hostedzonesbyname"]) => ("ListHostedZonesByName", ""),
            ("GET", ["hostedzone"]) => ("ListHostedZones", ""),
            ("POST", ["hostedzone"]) => ("CreateHostedZone", ""),
            ("GET", ["change", id]) => ("GetChange", *id),
            _ => ("Unknown", ""),
        };
        let mut params = query_object(&request);
        params.insert("Id".into(), id.into());
        if let Some(Value::Object(body)) = xml_to_value(&request.body) {
            params.extend(body);
        }
        Self {
            service: "route53".into(),
            operation: operation.into(),
            params: Value::Object(params),
            protocol: Protocol::RestXml,
            account,
            request,
        }
    }
}

/// Access key id and signing name of the `Authorization` header.
fn credential_scope(request: &Request) -> (String, Option<String>) {
    let credential = request
        .header("authorization")
        .and_then(|value| value.split_once("Credential="))
        .map(|(_, rest)| rest.split([',', ' ']).next().unwrap_or_default());
    let mut parts = credential.unwrap_or_default().split('/');
    let account = parts.next().unwrap_or_default().to_owned();
    (account, parts.nth(2).map(str::to_owned))
}

/// For a request that is not signed.
fn service_of_target(prefix: &str) -> String {
    let name = prefix.split('_').next().unwrap_or(prefix);
    let known = match name {
        "DynamoDB" => "dynamodb",
        "CodeBuild" => "codebuild",
        "AmazonSSM" => "ssm",
        "AWSStepFunctions" => "states",
        "CertificateManager" => "acm",
        "AWSEvents" => "events",
        _ if name.starts_with("AmazonEC2ContainerService") => "ecs",
        other => other,
    };
    known.to_owned()
}

fn query_object(request: &Request) -> Map<String, Value> {
    request
        .query()
        .into_iter()
        .map(|(name, value)| (name, Value::String(value)))
        .collect()
}

/// `A.member.1.B=c` (Query) and `A.1.B=c` (EC2) as nested objects and arrays.
fn unflatten(fields: &[(String, String)]) -> Value {
    let mut root = Value::Object(Map::new());
    for (name, value) in fields {
        if name == "Action" || name == "Version" {
            continue;
        }
        let mut at = &mut root;
        for part in name
            .split('.')
            .filter(|part| *part != "member" && *part != "entry")
        {
            if !at.is_object() {
                *at = json!({});
            }
            at = at.as_object_mut().unwrap().entry(part).or_insert(Value::Null);
        }
        *at = Value::String(value.clone());
    }
    listify(root)
}

/// Objects whose keys are all numbers are lists.
fn listify(value: Value) -> Value {
    let Value::Object(fields) = value else {
        return value;
    };
    let numbered = !fields.is_empty() && fields.keys().all(|key| key.parse::<u32>().is_ok());
    let mut fields: Vec<(String, Value)> = fields
        .into_iter()
        .map(|(key, inner)| (key, listify(inner)))
        .collect();
    if numbered {
        fields.sort_by_key(|(key, _)| key.parse::<u32>().unwrap_or_default());
        return Value::Array(fields.into_iter().map(|(_, inner)| inner).collect());
    }
    Value::Object(fields.into_iter().collect())
}

/// The root element's content; a repeated child is an array, text is a string. `None` for what is not XML.
pub fn xml_to_value(bytes: &[u8]) -> Option<Value> {
    fn content(node: roxmltree::Node<'_, '_>) -> Value {
        let children: Vec<_> = node.children().filter(roxmltree::Node::is_element).collect();
        if children.is_empty() {
            return Value::String(node.text().unwrap_or_default().to_owned());
        }
        let mut fields = Map::new();
        for child in children {
            let name = child.tag_name().name().to_owned();
            let value = content(child);
            match fields.get_mut(&name) {
                Some(Value::Array(list)) => list.push(value),
                Some(first) => *first = json!([first.clone(), value]),
                None => drop(fields.insert(name, value)),
            }
        }
        Value::Object(fields)
    }
    let text = std::str::from_utf8(bytes).ok()?;
    let document = roxmltree::Document::parse(text).ok()?;
    Some(content(document.root_element()))
}

/// Escapes text for XML. Control characters have no place in XML 1.0 and go as character references.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\r' => escaped.push_str("&#13;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Writes a value as XML. `list` names the element of a list's members; without it a list repeats its own
/// element (S3, Route 53). Null fields are left out, as AWS leaves them out.
fn to_xml(value: &Value, list: Option<&str>, out: &mut String) {
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields {
                match (inner, list) {
                    (Value::Null, _) => {}
                    (Value::Array(items), None) => {
                        for item in items {
                            element(name, item, list, out);
                        }
                    }
                    _ => element(name, inner, list, out),
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                element(list.unwrap_or("member"), item, list, out);
            }
        }
        Value::Null => {}
        Value::String(text) => out.push_str(&escape(text)),
        other => out.push_str(&other.to_string()),
    }
}

fn element(name: &str, value: &Value, list: Option<&str>, out: &mut String) {
    out.push_str(&format!("<{name}>"));
    to_xml(value, list, out);
    out.push_str(&format!("</{name}>"));
}

/// Marks every answer, so that a test can find it in a log.
const REQUEST_ID: &str = "00000000-0000-4000-8000-000000000001";

impl Protocol {
    /// A successful answer with this output. For S3 and Route 53 the value is one field: the root element.
    pub fn success(self, operation: &str, output: &Value) -> Response {
        let mut xml = String::new();
        let response = match self {
            Self::Json => Response::new(200, "application/x-amz-json-1.0", output.to_string().into_bytes()),
            Self::RestJson => Response::new(200, "application/json", output.to_string().into_bytes()),
            Self::Query => {
                to_xml(output, Some("member"), &mut xml);
                let body = format!(
                    "<{operation}Response><{operation}Result>{xml}</{operation}Result>\
                     <ResponseMetadata><RequestId>{REQUEST_ID}</RequestId></ResponseMetadata>\
                     </{operation}Response>"
                );
                Response::new(200, "text/xml", body)
            }
            Self::Ec2 => {
                to_xml(output, Some("item"), &mut xml);
                let body = format!(
                    "<{operation}Response><requestId>{REQUEST_ID}</requestId>{xml}</{operation}Response>"
                );
                Response::new(200, "text/xml", body)
            }
            Self::S3 | Self::RestXml => {
                to_xml(output, None, &mut xml);
                let head = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>";
                Response::new(200, "application/xml", format!("{head}{xml}"))
            }
        };
        response.with("x-amzn-requestid", REQUEST_ID)
    }

    /// An error answer.
    pub fn error(self, status: u16, code: &str, message: &str) -> Response {
        let kind = if status < 500 { "Sender" } else { "Receiver" };
        let escaped = escape(message);
        let fields = format!("<Code>{code}</Code><Message>{escaped}</Message>");
        let response = match self {
            Self::Json => {
                let body = json!({"__type": format!("com.amazonaws#{code}"), "message": message});
                Response::new(status, "application/x-amz-json-1.0", body.to_string())
            }
            Self::RestJson => Response::new(
                status,
                "application/json",
                json!({"message": message}).to_string(),
            )
            .with("x-amzn-errortype", code),
            Self::Query | Self::RestXml => Response::new(
                status,
                "text/xml",
                format!(
                    "<ErrorResponse><Error><Type>{kind}</Type>{fields}</Error>\
                     <RequestId>{REQUEST_ID}</RequestId></ErrorResponse>"
                ),
            ),
            Self::Ec2 => Response::new(
                status,
                "text/xml",
                format!(
                    "<Response><Errors><Error>{fields}</Error></Errors>\
                     <RequestID>{REQUEST_ID}</RequestID></Response>"
                ),
            ),
            Self::S3 => Response::new(
                status,
                "application/xml",
                format!("<Error>{fields}<RequestId>{REQUEST_ID}</RequestId></Error>"),
            ),
        };
        response.with("x-amzn-requestid", REQUEST_ID)
    }

    /// "Slow down", as the services of this protocol say it.
    pub fn throttled(self) -> Response {
        match self {
            Self::Query => self.error(400, "Throttling", "Rate exceeded"),
            Self::Ec2 => self.error(503, "RequestLimitExceeded", "Request limit exceeded."),
            Self::S3 => self.error(503, "SlowDown", "Please reduce your request rate."),
            Self::Json => self.error(400, "ThrottlingException", "Rate exceeded"),
            Self::RestXml => self.error(400, "Throttling", "Rate exceeded"),
            Self::RestJson => self.error(429, "ThrottlingException", "Rate exceeded"),
        }
    }

    /// "You may not", as the services of this protocol say it.
    pub fn access_denied(self, action: &str) -> Response {
        let message = format!(
            "User: arn:aws:sts::123456789012:assumed-role/fn/fn is not authorized to perform: {action}"
        );
        match self {
            Self::Query | Self::RestXml => self.error(403, "AccessDenied", &message),
            Self::S3 => self.error(403, "AccessDenied", "Access Denied"),
            Self::Ec2 => self.error(403, "UnauthorizedOperation", &message),
            Self::Json => self.error(400, "AccessDeniedException", &message),
            Self::RestJson => self.error(403, "AccessDeniedException", &message),
        }
    }

    /// A 200 whose body is cut off in the middle of a word.
    pub fn malformed(self) -> Response {
        match self {
            Self::Json | Self::RestJson => {
                Response::new(200, "application/x-amz-json-1.0", "{\"Item\": {\"sta")
            }
            Self::Query | Self::Ec2 | Self::S3 | Self::RestXml => {
                Response::new(200, "text/xml", "<DescribeStacksResponse><DescribeStacksRe")
            }
        }
    }
}
