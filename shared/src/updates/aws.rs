//! CloudFormation, S3 and the table behind [`World`]. Makes no decision: words are handed on raw.

use super::model::*;
use super::run::World;
use crate::boot::call_error;
use crate::config::{S3Uri, Updater};
use crate::error::{CallError, Class};
use crate::store::aws::DynamoTable;
use crate::store::{Item, Key, Page, Query, Table, Write, WriteError};
use crate::time::{Timestamp, instant};
use aws_config::SdkConfig;
use aws_sdk_cloudformation::Client as CloudFormation;
use aws_sdk_cloudformation::types as cfn;
use aws_sdk_s3::Client as S3;
use aws_smithy_types::DateTime;
use std::time::{Duration, Instant};

/// How long one request may take in all (spec/updates.md 1.7), and the part of it in which a further round
/// trip of [`crate::boot::CALL_TIMEOUT`] may still begin.
const ROUTE_BUDGET: Duration = Duration::from_secs(8);
/// Pages of changes or events read at most; a list cut there says so in nothing but its length, which the
/// counts of a summary never reach.
const PAGES_MAX: usize = 40;
/// Largest release list, in bytes.
const RELEASES_MAX: i64 = 4 * 1024 * 1024;

/// Clients made once at cold start.
#[derive(Debug, Clone)]
pub struct Clients {
    table: DynamoTable,
    cfn: CloudFormation,
    s3: S3,
    releases: S3Uri,
}

impl Clients {
    /// Clients for the configured table, stack and list.
    pub fn new(sdk: &SdkConfig, cfg: &Updater) -> Self {
        let s3 = aws_sdk_s3::config::Builder::from(sdk)
            .force_path_style(cfg.s3_path_style)
            .build();
        Self {
            table: DynamoTable::new(aws_sdk_dynamodb::Client::new(sdk), &cfg.table),
            cfn: CloudFormation::new(sdk),
            s3: S3::from_conf(s3),
            releases: cfg.releases.clone(),
        }
    }

    /// The first call to AWS, made during init, where connecting costs least (spec/style.md 5.3). Its answer
    /// does not matter.
    pub async fn warm_up(&self, pk: &str) {
        let _ = self.table.get(&super::store::head_key(pk)).await;
    }

    /// The world of one invocation.
    pub fn world(&self) -> AwsWorld<'_> {
        AwsWorld {
            c: self,
            began: instant(),
        }
    }
}

/// The world of one invocation: the clients and its budget.
#[derive(Debug)]
pub struct AwsWorld<'a> {
    c: &'a Clients,
    began: Instant,
}

fn ts(t: Option<&DateTime>) -> Option<Timestamp> {
    Timestamp::from_millisecond(t?.to_millis().ok()?).ok()
}

fn text(v: Option<&str>) -> String {
    v.unwrap_or_default().to_owned()
}

/// "does not exist" has no code of its own: a ValidationError whose message says so (table D). Asking by ARN,
/// a deleted stack answers DELETE_COMPLETE, so this matters only for names.
fn is_missing_stack(e: &CallError) -> bool {
    e.code == "ValidationError" && e.message.contains("does not exist")
}

fn is_missing_set(e: &CallError) -> bool {
    matches!(
        e.code.as_str(),
        "ChangeSetNotFound" | "ChangeSetNotFoundException"
    )
}

impl World for AwsWorld<'_> {
    async fn query(&self, q: &Query) -> Result<Page, CallError> {
        self.c.table.query(q).await
    }

    async fn get(&self, key: &Key) -> Result<Option<Item>, CallError> {
        self.c.table.get(key).await
    }

    async fn save(&self, writes: &[Write], token: &str) -> Result<(), WriteError> {
        self.c.table.write(writes, token).await
    }

    async fn look(&self, looks: &[Look]) -> Vec<Seen> {
        // One round trip for all: they do not depend on each other.
        futures_util::future::join_all(looks.iter().map(|l| self.c.one(l))).await
    }

    async fn act(&self, act: &Act) -> Result<Fact, CallError> {
        match act {
            Act::Create(c) => self.c.create(c).await,
            Act::Execute { arn, token } => self.c.execute(arn, token).await,
            Act::Delete { arn } => self.c.delete(None, arn).await,
            Act::DeleteByName { stack, name } => self.c.delete(Some(stack), name).await,
        }
    }

    fn time_left(&self) -> bool {
        self.began.elapsed() + crate::boot::CALL_TIMEOUT <= ROUTE_BUDGET
    }
}

impl Clients {
    async fn one(&self, look: &Look) -> Seen {
        match look {
            Look::Stack(name) => Seen::Stack(self.stack(name).await),
            Look::SetByArn(arn) => Seen::Set(self.set(None, arn).await),
            Look::SetByName { stack, name } => Seen::Set(self.set(Some(stack), name).await),
            Look::Events { stack, since } => Seen::Events(self.events(stack, *since).await),
            Look::Findings(arn) => Seen::Findings(self.findings(arn).await),
            Look::Releases => Seen::Releases(self.releases().await),
            Look::Template(url) => Seen::Template(self.template(url).await),
        }
    }

    async fn stack(&self, name: &str) -> StackRead {
        // Never without StackName: that would list the whole account (spec/updates.md 4.6 item 54).
        match self.cfn.describe_stacks().stack_name(name).send().await {
            Ok(out) => match out.stacks().first() {
                Some(s) => StackRead::Seen(Box::new(stack_of(s))),
                None => StackRead::Missing,
            },
            Err(e) => {
                let e = call_error("cloudformation:DescribeStacks", &e);
                if is_missing_stack(&e) {
                    StackRead::Missing
                } else {
                    StackRead::Failed(e)
                }
            }
        }
    }

    async fn set(&self, stack: Option<&str>, name: &str) -> SetRead {
        let mut set: Option<ChangeSet> = None;
        let mut token: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let sent = self
                .cfn
                .describe_change_set()
                .change_set_name(name)
                .set_stack_name(stack.map(str::to_owned))
                .set_next_token(token.take())
                .send()
                .await;
            let out = match sent {
                Ok(out) => out,
                Err(e) => {
                    let e = call_error("cloudformation:DescribeChangeSet", &e);
                    let gone = is_missing_set(&e) || is_missing_stack(&e);
                    return if gone {
                        SetRead::NotFound
                    } else {
                        SetRead::Failed(e)
                    };
                }
            };
            let whole = set.get_or_insert_with(|| ChangeSet {
                arn: text(out.change_set_id()),
                name: text(out.change_set_name()),
                status: out.status().map(|s| s.as_str().to_owned()).unwrap_or_default(),
                execution: out
                    .execution_status()
                    .map(|s| s.as_str().to_owned())
                    .unwrap_or_default(),
                reason: out.status_reason().map(str::to_owned),
                created_at: ts(out.creation_time()),
                description: out.description().map(str::to_owned),
                changes: Vec::new(),
            });
            whole.changes.extend(
                out.changes()
                    .iter()
                    .filter_map(|c| c.resource_change())
                    .map(change_of),
            );
            token = out.next_token().map(str::to_owned);
            if token.is_none() {
                break;
            }
        }
        set.map_or(SetRead::NotFound, |s| SetRead::Seen(Box::new(s)))
    }

    async fn events(&self, stack: &str, since: Timestamp) -> Result<Vec<Event>, CallError> {
        let mut list = Vec::new();
        let mut token: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let out = self
                .cfn
                .describe_stack_events()
                .stack_name(stack)
                .set_next_token(token.take())
                .send()
                .await
                .map_err(|e| call_error("cloudformation:DescribeStackEvents", &e))?;
            for e in out.stack_events() {
                let event = event_of(e);
                // Newest first: the rest is older still.
                if event.at < since {
                    return Ok(list);
                }
                list.push(event);
            }
            token = out.next_token().map(str::to_owned);
            if token.is_none() {
                break;
            }
        }
        Ok(list)
    }

    async fn findings(&self, arn: &str) -> Result<Vec<Finding>, CallError> {
        let filter = cfn::EventFilter::builder().failed_events(true).build();
        let mut list = Vec::new();
        let mut token: Option<String> = None;
        for _ in 0..PAGES_MAX {
            // By ARN: the bare name was refused (spec/updates.md 4.4 item 32).
            let out = self
                .cfn
                .describe_events()
                .change_set_name(arn)
                .filters(filter.clone())
                .set_next_token(token.take())
                .send()
                .await
                .map_err(|e| call_error("cloudformation:DescribeEvents", &e))?;
            for e in out.operation_events() {
                let why = e
                    .validation_status_reason()
                    .or(e.hook_status_reason())
                    .or(e.resource_status_reason());
                let Some(why) = why else { continue };
                list.push(Finding {
                    resource: e.logical_resource_id().unwrap_or("the template").to_owned(),
                    path: e.validation_path().map(str::to_owned),
                    text: why.to_owned(),
                });
            }
            token = out.next_token().map(str::to_owned);
            if token.is_none() {
                break;
            }
        }
        Ok(list)
    }

    async fn releases(&self) -> Result<Vec<u8>, CallError> {
        let action = "s3:GetObject";
        let out = self
            .s3
            .get_object()
            .bucket(&self.releases.bucket)
            .key(&self.releases.key)
            .send()
            .await
            .map_err(|e| call_error(action, &e))?;
        if out.content_length().is_some_and(|n| n > RELEASES_MAX) {
            return Err(CallError::new(
                Class::Refused,
                action,
                "MalformedList",
                "the release list is over 4 MiB",
            ));
        }
        let body = out.body.collect().await;
        body.map(|b| b.to_vec()).map_err(|_| {
            CallError::new(
                Class::Unavailable,
                action,
                "Malformed",
                "the release list ended early",
            )
        })
    }

    async fn template(&self, url: &str) -> Result<TemplateSummary, CallError> {
        let out = self
            .cfn
            .get_template_summary()
            .template_url(url)
            .send()
            .await
            .map_err(|e| call_error("cloudformation:GetTemplateSummary", &e))?;
        let parameters = out
            .parameters()
            .iter()
            .filter_map(|p| p.parameter_key())
            .map(str::to_owned)
            .collect();
        let capabilities = out.capabilities().iter().map(|c| c.as_str().to_owned()).collect();
        Ok(TemplateSummary {
            parameters,
            capabilities,
        })
    }

    async fn create(&self, c: &CreateSet) -> Result<Fact, CallError> {
        let action = "cloudformation:CreateChangeSet";
        let parameters: Vec<cfn::Parameter> = c
            .parameters
            .iter()
            .map(|p| {
                cfn::Parameter::builder()
                    .parameter_key(p)
                    .use_previous_value(true)
                    .build()
            })
            .collect();
        let capabilities: Vec<cfn::Capability> = c.capabilities.iter().map(|c| c.as_str().into()).collect();
        // Tags, notification topics and rollback triggers are left out: an empty list would clear them
        // (spec/updates.md 4.2 item 19).
        let sent = self
            .cfn
            .create_change_set()
            .stack_name(&c.stack)
            .change_set_name(&c.name)
            .change_set_type(cfn::ChangeSetType::Update)
            .client_token(&c.token)
            .description(&c.description)
            .template_url(&c.template_url)
            .set_parameters((!parameters.is_empty()).then_some(parameters))
            .set_capabilities((!capabilities.is_empty()).then_some(capabilities))
            .set_role_arn(c.role_arn.clone())
            .send()
            .await;
        match sent {
            Ok(out) => match out.id() {
                Some(arn) => Ok(Fact::Made(arn.to_owned())),
                None => Err(CallError::new(
                    Class::Unavailable,
                    action,
                    "Malformed",
                    "the answer names no change set",
                )),
            },
            Err(e) => {
                let e = call_error(action, &e);
                if e.code.starts_with("AlreadyExists") {
                    Ok(Fact::Exists(e.message))
                } else {
                    Err(e)
                }
            }
        }
    }

    async fn execute(&self, arn: &str, token: &str) -> Result<Fact, CallError> {
        // Rollback on, said outright: the API's own default is documented both ways (4.2 item 21).
        let sent = self
            .cfn
            .execute_change_set()
            .change_set_name(arn)
            .client_request_token(token)
            .disable_rollback(false)
            .retain_except_on_create(true)
            .send()
            .await;
        match sent {
            Ok(_) => Ok(Fact::Done),
            Err(e) => {
                let e = call_error("cloudformation:ExecuteChangeSet", &e);
                // The same set is running already: started (spec/updates.md 3.4).
                let started =
                    e.code.starts_with("InvalidChangeSetStatus") && e.message.contains("EXECUTE_IN_PROGRESS");
                if started { Ok(Fact::Done) } else { Err(e) }
            }
        }
    }

    async fn delete(&self, stack: Option<&str>, name: &str) -> Result<Fact, CallError> {
        let sent = self
            .cfn
            .delete_change_set()
            .change_set_name(name)
            .set_stack_name(stack.map(str::to_owned))
            .send()
            .await;
        match sent {
            Ok(_) => Ok(Fact::Done),
            Err(e) => {
                let e = call_error("cloudformation:DeleteChangeSet", &e);
                if is_missing_set(&e) || is_missing_stack(&e) {
                    Ok(Fact::Done)
                } else {
                    Err(e)
                }
            }
        }
    }
}

fn stack_of(s: &cfn::Stack) -> Stack {
    let outputs = s
        .outputs()
        .iter()
        .filter_map(|o| Some((o.output_key()?.to_owned(), o.output_value()?.to_owned())))
        // Only the one we decide on is kept: other outputs may be nobody's business.
        .filter(|(k, _)| k == "Version")
        .collect();
    let watching = s
        .rollback_configuration()
        .and_then(|r| r.monitoring_time_in_minutes());
    Stack {
        arn: text(s.stack_id()),
        status: s
            .stack_status()
            .map(|s| s.as_str().to_owned())
            .unwrap_or_default(),
        reason: s.stack_status_reason().map(str::to_owned),
        change_set_id: s.change_set_id().map(str::to_owned),
        updated_at: ts(s.last_updated_time()),
        outputs,
        parameters: s
            .parameters()
            .iter()
            .filter_map(|p| p.parameter_key())
            .map(str::to_owned)
            .collect(),
        capabilities: s.capabilities().iter().map(|c| c.as_str().to_owned()).collect(),
        monitoring_minutes: watching.and_then(|m| u64::try_from(m).ok()),
        operations: s
            .last_operations()
            .iter()
            .filter_map(|o| o.operation_id())
            .map(str::to_owned)
            .collect(),
        express: s
            .deployment_config()
            .and_then(|d| d.mode())
            .is_some_and(|m| m.as_str() == "EXPRESS"),
    }
}

fn change_of(c: &cfn::ResourceChange) -> PlannedChange {
    let details = c
        .details()
        .iter()
        .filter_map(|d| d.target())
        .filter_map(|t| {
            let attribute = t.attribute().map(|a| a.as_str().to_owned())?;
            Some(match t.name() {
                Some(n) => format!("{attribute}.{n}"),
                None => attribute,
            })
        })
        .collect();
    PlannedChange {
        logical_id: text(c.logical_resource_id()),
        kind: text(c.resource_type()),
        action: c.action().map(|a| a.as_str().to_owned()).unwrap_or_default(),
        replacement: c.replacement().map(|r| r.as_str().to_owned()),
        policy_action: c.policy_action().map(|p| p.as_str().to_owned()),
        details,
    }
}

fn event_of(e: &cfn::StackEvent) -> Event {
    let hook = e.hook_type().map(|kind| Hook {
        kind: kind.to_owned(),
        status: e.hook_status().map(|s| s.as_str().to_owned()).unwrap_or_default(),
        reason: e.hook_status_reason().map(str::to_owned),
    });
    Event {
        stack_arn: text(e.stack_id()),
        logical_id: text(e.logical_resource_id()),
        physical_id: e
            .physical_resource_id()
            .filter(|p| !p.is_empty())
            .map(str::to_owned),
        kind: text(e.resource_type()),
        status: e
            .resource_status()
            .map(|s| s.as_str().to_owned())
            .unwrap_or_default(),
        reason: e.resource_status_reason().map(str::to_owned),
        at: ts(e.timestamp()).unwrap_or(Timestamp::MIN),
        token: e.client_request_token().map(str::to_owned),
        operation_id: e.operation_id().map(str::to_owned),
        hook,
    }
}
