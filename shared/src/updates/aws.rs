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
use aws_sdk_codebuild::Client as CodeBuild;
use aws_sdk_codebuild::types as cb;
use aws_sdk_s3::Client as S3;
use aws_sdk_ssm::Client as Ssm;
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
    codebuild: CodeBuild,
    ssm: Ssm,
    releases: S3Uri,
    project: Option<String>,
    models: Option<String>,
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
            codebuild: CodeBuild::new(sdk),
            ssm: Ssm::new(sdk),
            releases: cfg.releases.clone(),
            project: cfg.check_project.clone(),
            models: None,
        }
    }

    /// The same, with the parameter that lists the configured models.
    #[must_use]
    pub fn with_models(mut self, parameter: Option<String>) -> Self {
        self.models = parameter;
        self
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
            Act::StartBuild(b) => self.c.start_build(b).await,
            Act::StopBuild(id) => self.c.stop_build(id).await,
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
            Look::Build(id) => Seen::Build(self.build(id).await),
            Look::FindBuild { release, attempt } => Seen::Build(self.find_build(release, *attempt).await),
            Look::Models => Seen::Models(self.models().await),
            Look::Project => Seen::Project(self.has_project().await),
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

/// Minutes after which CodeBuild ends a build, or a wait in its queue, by itself: inside the 30 minutes of the
/// check (spec/updates.md 2.4).
const BUILD_MINUTES: i32 = 28;
/// Builds looked through for a lost id: one page of the newest.
const FIND_MAX: usize = 50;

impl Clients {
    fn no_project(action: &str) -> CallError {
        CallError::new(
            Class::NotFound,
            action,
            "NoProject",
            "RELEASE_CHECK_PROJECT is not configured",
        )
    }

    async fn builds(&self, ids: Vec<String>) -> Result<Vec<cb::Build>, CallError> {
        let sent = self.codebuild.batch_get_builds().set_ids(Some(ids)).send().await;
        let out = sent.map_err(|e| call_error("codebuild:BatchGetBuilds", &e))?;
        Ok(out.builds.unwrap_or_default())
    }

    async fn build(&self, id: &str) -> BuildRead {
        match self.builds(vec![id.to_owned()]).await {
            Ok(list) => match list.first() {
                Some(b) => BuildRead::Seen(Box::new(build_of(b))),
                None => BuildRead::NotFound,
            },
            Err(e) => BuildRead::Failed(e),
        }
    }

    async fn find_build(&self, release: &str, attempt: u64) -> BuildRead {
        let action = "codebuild:ListBuildsForProject";
        let Some(project) = &self.project else {
            return BuildRead::Failed(Self::no_project(action));
        };
        let listed = self
            .codebuild
            .list_builds_for_project()
            .project_name(project)
            .sort_order(cb::SortOrderType::Descending)
            .send()
            .await;
        let mut ids = match listed {
            Ok(out) => out.ids.unwrap_or_default(),
            Err(e) => return BuildRead::Failed(call_error(action, &e)),
        };
        ids.truncate(FIND_MAX);
        if ids.is_empty() {
            return BuildRead::NotFound;
        }
        let attempt = attempt.to_string();
        let of = |b: &cb::Build, name: &str| {
            let vars = b
                .environment()
                .map(|e| e.environment_variables())
                .unwrap_or_default();
            vars.iter()
                .find(|v| v.name() == name)
                .map(|v| v.value().to_owned())
        };
        match self.builds(ids).await {
            Ok(list) => {
                let ours = list.iter().find(|b| {
                    of(b, "HEADGATE_RELEASE").as_deref() == Some(release)
                        && of(b, "HEADGATE_ATTEMPT").as_deref() == Some(&attempt)
                });
                ours.map_or(BuildRead::NotFound, |b| BuildRead::Seen(Box::new(build_of(b))))
            }
            Err(e) => BuildRead::Failed(e),
        }
    }

    async fn models(&self) -> Result<Vec<String>, CallError> {
        let Some(name) = &self.models else {
            return Ok(Vec::new());
        };
        let out = self
            .ssm
            .get_parameter()
            .name(name)
            .send()
            .await
            .map_err(|e| call_error("ssm:GetParameter", &e))?;
        let value = out.parameter().and_then(|p| p.value()).unwrap_or_default();
        Ok(value
            .split(',')
            .map(str::trim)
            .filter(|m| !m.is_empty())
            .map(str::to_owned)
            .collect())
    }

    async fn has_project(&self) -> Result<bool, CallError> {
        let Some(project) = &self.project else {
            return Ok(false);
        };
        let out = self
            .codebuild
            .batch_get_projects()
            .names(project)
            .send()
            .await
            .map_err(|e| call_error("codebuild:BatchGetProjects", &e))?;
        Ok(!out.projects().is_empty())
    }

    async fn start_build(&self, b: &StartBuild) -> Result<Fact, CallError> {
        let action = "codebuild:StartBuild";
        let Some(project) = &self.project else {
            return Err(Self::no_project(action));
        };
        let variables = [
            ("HEADGATE_RELEASE", b.release.clone()),
            ("HEADGATE_ATTEMPT", b.attempt.to_string()),
            ("HEADGATE_TEMPLATE_URL", b.template_url.clone()),
            ("HEADGATE_TEMPLATE_SHA256", b.template_sha256.clone()),
            ("HEADGATE_MODELS", b.models.join(",")),
        ];
        let mut call = self
            .codebuild
            .start_build()
            .project_name(project)
            .idempotency_token(&b.token)
            .timeout_in_minutes_override(BUILD_MINUTES)
            .queued_timeout_in_minutes_override(BUILD_MINUTES);
        for (name, value) in variables {
            let v = cb::EnvironmentVariable::builder().name(name).value(value);
            let v = v.r#type(cb::EnvironmentVariableType::Plaintext).build();
            let v = v.map_err(|e| CallError::new(Class::Refused, action, "Malformed", &e.to_string()))?;
            call = call.environment_variables_override(v);
        }
        let out = call.send().await.map_err(|e| call_error(action, &e))?;
        match out.build_value().and_then(|b| b.id()) {
            Some(id) => Ok(Fact::Started(id.to_owned())),
            None => Err(CallError::new(
                Class::Unavailable,
                action,
                "Malformed",
                "the answer names no build",
            )),
        }
    }

    async fn stop_build(&self, id: &str) -> Result<Fact, CallError> {
        let sent = self.codebuild.stop_build().id(id).send().await;
        sent.map(|_| Fact::Done)
            .map_err(|e| call_error("codebuild:StopBuild", &e))
    }
}

fn build_of(b: &cb::Build) -> Build {
    let mut failed = b
        .phases()
        .iter()
        .filter_map(|p| p.contexts().iter().find_map(|c| c.message()));
    Build {
        id: text(b.id()),
        status: b
            .build_status()
            .map(|s| s.as_str().to_owned())
            .unwrap_or_default(),
        phase: text(b.current_phase()),
        complete: b.build_complete(),
        message: failed.rfind(|m| !m.is_empty()).map(str::to_owned),
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
