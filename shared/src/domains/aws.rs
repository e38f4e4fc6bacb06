//! SSM, Step Functions, ACM, CloudFormation, Route 53 and public DNS behind the seams. Makes no decision.

use super::dns::Answer;
use super::later::{CertificateSeen, Later, Started};
use super::model::{CommandStatus, HostCommand, Invocation, Millis};
use super::resolve::{self, Read};
use super::run::{Clock, Host, Sagas};
use crate::boot::call_error;
use crate::config::DomainProvisioner;
use crate::error::{CallError, Class};
use crate::store::aws::DynamoTable;
use crate::store::{Item, Key, Page, Query, Table, Write, WriteError};
use crate::time;
use aws_config::SdkConfig;
use aws_sdk_acm::Client as Acm;
use aws_sdk_cloudformation::Client as CloudFormation;
use aws_sdk_route53::Client as Route53;
use aws_sdk_sfn::Client as Sfn;
use aws_sdk_ssm::Client as Ssm;
use aws_sdk_ssm::types::{CommandFilter, CommandFilterKey, CommandInvocationStatus as Status};
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use aws_smithy_types::retry::RetryConfig;
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// Delivery time-out of a command in seconds, the least SSM takes (spec/domains.md 1.13).
const DELIVERY_TIMEOUT: i32 = 30;
/// Pages of commands looked through for a comment.
const FIND_PAGES: usize = 5;
/// One DNS exchange.
const DNS_TIMEOUT: Duration = Duration::from_secs(2);

/// Clients made once at cold start.
#[derive(Debug, Clone)]
pub struct Clients {
    table: DynamoTable,
    ssm: Ssm,
    sfn: Sfn,
    acm: Acm,
    cfn: CloudFormation,
    route53: Route53,
    node: String,
    document: String,
    saga: String,
    resolvers: Vec<String>,
}

impl Clients {
    /// Clients for the configured table, host and saga.
    pub fn new(sdk: &SdkConfig, cfg: &DomainProvisioner) -> Self {
        let resolvers = match &cfg.resolver {
            Some(r) => vec![r.clone()],
            None => resolve::resolvers(&std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default()),
        };
        Self {
            table: DynamoTable::new(aws_sdk_dynamodb::Client::new(sdk), &cfg.table),
            ssm: Ssm::new(sdk),
            sfn: Sfn::new(sdk),
            acm: Acm::new(sdk),
            cfn: CloudFormation::new(sdk),
            route53: Route53::new(sdk),
            node: cfg.node.clone(),
            document: cfg.document.clone(),
            saga: cfg.saga.clone(),
            resolvers,
        }
    }

    /// The first call to AWS, made during init, where connecting costs least (spec/style.md 5.3). Its answer
    /// does not matter.
    pub async fn warm_up(&self) {
        let _ = self.table.get(&Key::new("WARM", "-")).await;
    }

    /// ARN of the saga's execution with this name (Step Functions developer guide, "ARNs").
    fn execution_arn(&self, name: &str) -> String {
        format!(
            "{}:{name}",
            self.saga.replacen(":stateMachine:", ":execution:", 1)
        )
    }
}

impl Table for Clients {
    async fn get(&self, key: &Key) -> Result<Option<Item>, CallError> {
        self.table.get(key).await
    }

    async fn query(&self, query: &Query) -> Result<Page, CallError> {
        self.table.query(query).await
    }

    async fn write(&self, writes: &[Write], token: &str) -> Result<(), WriteError> {
        self.table.write(writes, token).await
    }
}

impl Clock for Clients {
    fn now(&self) -> Millis {
        time::now().as_millisecond()
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the pause between two looks at a host command, bounded by the invocation's own time; the shell \
                  decides when to look again"
    )]
    async fn pause(&self, millis: Millis) {
        tokio::time::sleep(Duration::from_millis(u64::try_from(millis).unwrap_or(0))).await;
    }
}

impl Host for Clients {
    async fn send(&self, command: &HostCommand) -> Result<String, CallError> {
        let action = "ssm:SendCommand";
        let parameters = command.parameters().map_err(|bad| {
            let text = format!("the document would refuse {}", bad.join(", "));
            CallError::new(Class::Refused, action, "InvalidParameters", &text)
        })?;
        let mut call = self
            .ssm
            .send_command()
            .instance_ids(&self.node)
            .document_name(&self.document)
            .comment(command.comment())
            .timeout_seconds(DELIVERY_TIMEOUT);
        for (name, value) in parameters {
            call = call.parameters(name, vec![value]);
        }
        // There is no client token: an SDK retry after a lost answer would send it twice.
        let once = aws_sdk_ssm::config::Config::builder().retry_config(RetryConfig::disabled());
        let sent = call
            .customize()
            .config_override(once)
            .send()
            .await
            .map_err(|e| call_error(action, &e))?;
        let id = sent.command().and_then(|c| c.command_id());
        id.map(str::to_owned).ok_or_else(|| {
            CallError::new(
                Class::Unavailable,
                action,
                "Malformed",
                "no command id in the answer",
            )
        })
    }

    async fn look(&self, command_id: &str) -> Result<Invocation, CallError> {
        let call = self
            .ssm
            .get_command_invocation()
            .command_id(command_id)
            .instance_id(&self.node);
        match call.send().await {
            Ok(seen) => Ok(Invocation {
                status: match seen.status() {
                    Some(Status::Success) => CommandStatus::Success,
                    Some(Status::Failed) => CommandStatus::Failed,
                    Some(Status::TimedOut) => CommandStatus::TimedOut,
                    Some(Status::Cancelled) => CommandStatus::Cancelled,
                    // Pending, InProgress, Delayed, Cancelling, and whatever may come: not at its end.
                    _ => CommandStatus::Waiting,
                },
                details: seen.status_details().unwrap_or("").to_owned(),
                stdout: seen.standard_output_content().unwrap_or("").to_owned(),
            }),
            Err(e) if e.code() == Some("InvocationDoesNotExist") => Ok(Invocation {
                status: CommandStatus::NotVisible,
                details: "InvocationDoesNotExist".into(),
                stdout: String::new(),
            }),
            Err(e) => Err(call_error("ssm:GetCommandInvocation", &e)),
        }
    }

    async fn find(&self, comment: &str) -> Result<Option<String>, CallError> {
        let mut next = None;
        let ours = CommandFilter::builder()
            .key(CommandFilterKey::DocumentName)
            .value(&self.document)
            .build()
            .map_err(|e| CallError::new(Class::Refused, "ssm:ListCommands", "Malformed", &e.to_string()))?;
        // Newest first, as SSM lists them.
        for _ in 0..FIND_PAGES {
            let page = self
                .ssm
                .list_commands()
                .instance_id(&self.node)
                .filters(ours.clone())
                .max_results(50)
                .set_next_token(next)
                .send()
                .await
                .map_err(|e| call_error("ssm:ListCommands", &e))?;
            let hit = page.commands().iter().find(|c| c.comment() == Some(comment));
            if let Some(id) = hit.and_then(|c| c.command_id()) {
                return Ok(Some(id.to_owned()));
            }
            next = page.next_token().filter(|t| !t.is_empty()).map(str::to_owned);
            if next.is_none() {
                break;
            }
        }
        Ok(None)
    }
}

impl Sagas for Clients {
    async fn running(&self, execution: &str) -> Result<bool, CallError> {
        use aws_sdk_sfn::types::ExecutionStatus;
        match self
            .sfn
            .describe_execution()
            .execution_arn(execution)
            .send()
            .await
        {
            Ok(e) => Ok(*e.status() == ExecutionStatus::Running),
            // Gone after 90 days, or never an execution (a test, a person's call).
            Err(e) if matches!(e.code(), Some("ExecutionDoesNotExist" | "InvalidArn")) => Ok(false),
            Err(e) => Err(call_error("states:DescribeExecution", &e)),
        }
    }
}

impl Later for Clients {
    async fn start(&self, name: &str, input: &Value) -> Result<Started, CallError> {
        let call = self
            .sfn
            .start_execution()
            .state_machine_arn(&self.saga)
            .name(name)
            .input(input.to_string());
        match call.send().await {
            Ok(started) => Ok(Started::Now(started.execution_arn().to_owned())),
            Err(e) if e.code() == Some("ExecutionAlreadyExists") => {
                Ok(Started::Before(self.execution_arn(name)))
            }
            Err(e) => Err(call_error("states:StartExecution", &e)),
        }
    }

    async fn request_certificate(&self, name: &str, token: &str) -> Result<String, CallError> {
        let action = "acm:RequestCertificate";
        let made = self
            .acm
            .request_certificate()
            .domain_name(name)
            .validation_method(aws_sdk_acm::types::ValidationMethod::Dns)
            .idempotency_token(token)
            .send()
            .await
            .map_err(|e| call_error(action, &e))?;
        made.certificate_arn()
            .map(str::to_owned)
            .ok_or_else(|| CallError::new(Class::Unavailable, action, "Malformed", "no ARN in the answer"))
    }

    async fn certificate(&self, arn: &str) -> Result<CertificateSeen, CallError> {
        let action = "acm:DescribeCertificate";
        let seen = self
            .acm
            .describe_certificate()
            .certificate_arn(arn)
            .send()
            .await
            .map_err(|e| call_error(action, &e))?;
        let Some(c) = seen.certificate() else {
            return Err(CallError::new(
                Class::Unavailable,
                action,
                "Malformed",
                "no certificate in the answer",
            ));
        };
        let options = c.domain_validation_options();
        let validation: Vec<_> = options
            .iter()
            .filter_map(|o| o.resource_record())
            .map(|r| {
                let name = r.name().trim_end_matches('.').to_owned();
                (name, r.r#type().as_str().to_owned(), r.value().to_owned())
            })
            .collect();
        Ok(CertificateSeen {
            status: c.status().map_or("UNKNOWN", |s| s.as_str()).to_owned(),
            reason: c.failure_reason().map(|r| r.as_str().to_owned()),
            complete: !options.is_empty() && validation.len() == options.len(),
            validation,
        })
    }

    async fn lookup(&self, kind: &str, name: &str) -> Answer {
        for server in &self.resolvers {
            if let Some(answer) = ask(server, kind, name).await
                && answer != Answer::Unknown
            {
                return answer;
            }
        }
        Answer::Unknown
    }

    async fn zone_name(&self, zone: &str) -> Result<String, CallError> {
        let seen = self.route53.get_hosted_zone().id(zone).send().await;
        let seen = seen.map_err(|e| call_error("route53:GetHostedZone", &e))?;
        Ok(seen.hosted_zone().map_or("", |z| z.name()).to_owned())
    }

    async fn stack(&self, name: &str) -> Result<Option<String>, CallError> {
        match self.cfn.describe_stacks().stack_name(name).send().await {
            Ok(seen) => {
                let status = seen.stacks().first().and_then(|s| s.stack_status());
                Ok(status.map(|s| s.as_str().to_owned()))
            }
            // CloudFormation has no code of its own for it (API reference, DescribeStacks).
            Err(e)
                if e.code() == Some("ValidationError")
                    && e.message().is_some_and(|m| m.contains("does not exist")) =>
            {
                Ok(None)
            }
            Err(e) => Err(call_error("cloudformation:DescribeStacks", &e)),
        }
    }

    async fn create_stack(&self, name: &str, template: &Value, token: &str) -> Result<(), CallError> {
        let call = self
            .cfn
            .create_stack()
            .stack_name(name)
            .template_body(template.to_string())
            .client_request_token(token);
        match call.send().await {
            Ok(_) => Ok(()),
            // Somebody, perhaps we, was first: the next look says what became of it.
            Err(e) if e.code() == Some("AlreadyExistsException") => Ok(()),
            Err(e) => Err(call_error("cloudformation:CreateStack", &e)),
        }
    }

    async fn delete_stack(&self, name: &str, token: &str) -> Result<(), CallError> {
        let call = self
            .cfn
            .delete_stack()
            .stack_name(name)
            .client_request_token(token);
        call.send()
            .await
            .map(|_| ())
            .map_err(|e| call_error("cloudformation:DeleteStack", &e))
    }
}

/// One question to one resolver, over UDP and, when the answer does not fit, TCP. None: no answer.
async fn ask(server: &str, kind: &str, name: &str) -> Option<Answer> {
    let id = u16::try_from(time::new_uuid().as_u128() & 0xffff).unwrap_or(1);
    let question = resolve::question(id, name, kind)?;
    match tokio::time::timeout(DNS_TIMEOUT, over_udp(server, id, kind, &question)).await {
        Ok(Some(Read::Answer(answer))) => Some(answer),
        Ok(Some(Read::Truncated)) => {
            let read = tokio::time::timeout(DNS_TIMEOUT, over_tcp(server, id, kind, &question)).await;
            match read {
                Ok(Some(Read::Answer(answer))) => Some(answer),
                _ => None,
            }
        }
        _ => None,
    }
}

async fn over_udp(server: &str, id: u16, kind: &str, question: &[u8]) -> Option<Read> {
    let any = if server.starts_with('[') {
        "[::]:0"
    } else {
        "0.0.0.0:0"
    };
    let socket = UdpSocket::bind(any).await.ok()?;
    socket.connect(server).await.ok()?;
    socket.send(question).await.ok()?;
    let mut buffer = [0u8; 4096];
    loop {
        let n = socket.recv(&mut buffer).await.ok()?;
        match resolve::answer(id, kind, buffer.get(..n)?) {
            // Not ours: somebody else's, or a forged one. The right one may still come.
            Read::Foreign => {}
            read => return Some(read),
        }
    }
}

async fn over_tcp(server: &str, id: u16, kind: &str, question: &[u8]) -> Option<Read> {
    let mut stream = TcpStream::connect(server).await.ok()?;
    let length = u16::try_from(question.len()).ok()?;
    stream.write_all(&length.to_be_bytes()).await.ok()?;
    stream.write_all(question).await.ok()?;
    let mut length = [0u8; 2];
    stream.read_exact(&mut length).await.ok()?;
    let mut body = vec![0u8; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut body).await.ok()?;
    Some(resolve::answer(id, kind, &body))
}
