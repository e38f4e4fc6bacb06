//! CloudFormation as the updater meets it, with every lifecycle stepped by the test.
//!
//! Behind a [`ScriptedAws`] it answers the real Query/XML protocol for the operations the updater uses, with
//! the error codes and texts of spec/updates.md 3.4, 4.1 and table D. Nothing moves by itself: a change set
//! stays `CREATE_PENDING` until [`FakeCloudFormation::make`], an accepted execute stays `AVAILABLE` until
//! [`FakeCloudFormation::start_run`], and so on. Where the spec calls the facts uncertain (section 8), this
//! fake picks one of the answers and the test may write the other one with [`FakeCloudFormation::edit`].
//!
//! Change sets are named by ARN or, while that is unambiguous, by name; stacks by ARN or name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::protocol::Call;
use super::scripted::{Answer, ScriptedAws};

/// A template parameter.
#[derive(Debug, Clone, Default)]
pub struct Parameter {
    pub key: String,
    pub default: Option<String>,
    pub no_echo: bool,
}

impl Parameter {
    /// A parameter without a default.
    pub fn required(key: &str) -> Self {
        Self {
            key: key.into(),
            ..Self::default()
        }
    }

    /// A parameter with a default.
    pub fn with_default(key: &str, default: &str) -> Self {
        Self {
            default: Some(default.into()),
            ..Self::required(key)
        }
    }
}

/// What a template would do to the stack.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The `Version` output after the run; none when the template has no such output.
    pub version: Option<String>,
    pub parameters: Vec<Parameter>,
    /// `Changes` as DescribeChangeSet shows them; see [`Plan::change`].
    pub changes: Vec<Value>,
    /// Capabilities without which CreateChangeSet is refused.
    pub capabilities: Vec<String>,
}

impl Plan {
    /// A release whose only visible effect is its `Version` output.
    pub fn release(version: &str) -> Self {
        Self {
            version: Some(version.into()),
            ..Self::default()
        }
    }

    /// Adds a change of a resource.
    #[must_use]
    pub fn change(mut self, action: &str, logical_id: &str, kind: &str) -> Self {
        self.changes.push(json!({
            "Type": "Resource",
            "ResourceChange": {"Action": action, "LogicalResourceId": logical_id, "ResourceType": kind,
                               "Scope": [], "Details": []},
        }));
        self
    }

    /// Says of the change added last that it replaces the resource (`True`, `Conditional`), and what becomes
    /// of the old one (`Delete`, `ReplaceAndDelete`, `Retain`, ...).
    #[must_use]
    pub fn replacing(mut self, replacement: &str, policy_action: &str) -> Self {
        let change = self.changes.last_mut().expect("a change to speak of");
        change["ResourceChange"]["Replacement"] = json!(replacement);
        change["ResourceChange"]["PolicyAction"] = json!(policy_action);
        self
    }

    /// Adds a parameter.
    #[must_use]
    pub fn parameter(mut self, parameter: Parameter) -> Self {
        self.parameters.push(parameter);
        self
    }
}

/// A change set as CloudFormation knows it.
#[derive(Debug, Clone)]
pub struct ChangeSet {
    pub name: String,
    pub arn: String,
    pub stack: String,
    pub status: String,
    pub execution_status: String,
    pub status_reason: Option<String>,
    pub description: String,
    pub client_token: String,
    pub template_url: String,
    pub role_arn: String,
    /// The request's `Parameters`.
    pub parameters: Value,
    /// The whole request, for what the test wants to see of it.
    pub request: Value,
    /// Set by the execute that was accepted.
    pub execute_token: Option<String>,
    pub created: Timestamp,
    pub changes: Vec<Value>,
    plan: Plan,
    accepted: bool,
    deleted: bool,
    events: Vec<Value>,
}

#[derive(Debug)]
struct Stack {
    name: String,
    arn: String,
    /// Fields of `Stack` as DescribeStacks shows them; null means absent.
    shown: Value,
    parameters: Vec<(Parameter, String)>,
    /// Oldest first.
    events: Vec<Value>,
    running: Option<String>,
    operation: String,
    token: Option<String>,
}

#[derive(Debug)]
struct World {
    stacks: Vec<Stack>,
    sets: Vec<ChangeSet>,
    plans: BTreeMap<String, Plan>,
    last_time: Timestamp,
    serial: u64,
    page: usize,
    limit: usize,
}

/// The fake; clones share the same world.
#[derive(Debug, Clone)]
pub struct FakeCloudFormation(Arc<Mutex<World>>);

type Outcome = Result<Value, Answer>;

impl Default for FakeCloudFormation {
    fn default() -> Self {
        Self::new()
    }
}

/// Setting the scene, and looking at it.
impl FakeCloudFormation {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(World {
            stacks: Vec::new(),
            sets: Vec::new(),
            plans: BTreeMap::new(),
            last_time: Timestamp::UNIX_EPOCH,
            serial: 0,
            page: 100,
            limit: 1000,
        })))
    }

    /// Answers for the service `cloudformation`.
    pub fn serve(&self, aws: &ScriptedAws) {
        let fake = self.clone();
        aws.serve("cloudformation", move |call| fake.answer(call));
    }

    /// Pages of this many changes and events (1 MB on AWS).
    pub fn page_size(&self, items: usize) {
        self.world().page = items;
    }

    /// Refuses more change sets than this on a stack.
    pub fn change_set_limit(&self, sets: usize) {
        self.world().limit = sets;
    }

    /// A stack that was installed at this release; its ARN.
    pub fn install(&self, name: &str, plan: &Plan) -> String {
        self.world().install(name, plan, None)
    }

    /// What the template at that URL would do.
    pub fn release(&self, template_url: &str, plan: Plan) {
        self.world().plans.insert(template_url.into(), plan);
    }

    /// Every change set ever made, in order, deleted ones included.
    pub fn change_sets(&self) -> Vec<ChangeSet> {
        self.world().sets.clone()
    }

    /// One change set.
    pub fn change_set(&self, set: &str) -> ChangeSet {
        self.world().set(set).clone()
    }

    /// True once it was deleted (or removed by the run of another).
    pub fn is_deleted(&self, set: &str) -> bool {
        self.world().set(set).deleted
    }

    /// The stack's status word.
    pub fn status(&self, stack: &str) -> String {
        self.world().stack(stack).shown["StackStatus"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// What DescribeStacks says now; as an [`Answer::Ok`] later on it is a stale read.
    pub fn describe_stack(&self, stack: &str) -> Value {
        self.world()
            .describe_stacks(&json!({"StackName": stack}))
            .expect("an existing stack")
    }

    /// What DescribeChangeSet says now, first page.
    pub fn describe_change_set(&self, set: &str) -> Value {
        let mut world = self.world();
        let arn = world.set(set).arn.clone();
        world
            .describe_change_set(&json!({"ChangeSetName": arn}))
            .expect("an existing change set")
    }

    /// Changes a field of the stack as DescribeStacks shows it; null takes it away.
    pub fn edit(&self, stack: &str, field: &str, value: Value) {
        self.world().stack(stack).shown[field] = value;
    }

    /// Moves everything that happened so far into the past: the same as time going by.
    pub fn age(&self, seconds: i64) {
        let mut world = self.world();
        let by = SignedDuration::from_secs(seconds);
        for set in &mut world.sets {
            set.created -= by;
            set.events.iter_mut().for_each(|event| shift(event, by));
        }
        for stack in &mut world.stacks {
            shift(&mut stack.shown, by);
            stack.events.iter_mut().for_each(|event| shift(event, by));
        }
        world.last_time -= by;
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().expect("no panic while the world was held")
    }

    fn answer(&self, call: &Call) -> Answer {
        let mut world = self.world();
        let params = &call.params;
        let outcome = match call.operation.as_str() {
            "DescribeStacks" => world.describe_stacks(params),
            "CreateChangeSet" => world.create_change_set(params),
            "DescribeChangeSet" => world.describe_change_set(params),
            "ExecuteChangeSet" => world.execute_change_set(params),
            "DeleteChangeSet" => world.delete_change_set(params),
            "ListChangeSets" => world.list_change_sets(params),
            "DescribeStackEvents" => world.describe_stack_events(params),
            "DescribeEvents" => world.describe_events(params),
            "GetTemplateSummary" => world.get_template_summary(params),
            "GetTemplate" => world.get_template(params),
            _ => return Answer::Behind,
        };
        outcome.map_or_else(|refusal| refusal, Answer::Ok)
    }
}

/// Making a change set.
impl FakeCloudFormation {
    /// CloudFormation works on it.
    pub fn begin_making(&self, set: &str) {
        self.set_words(set, "CREATE_IN_PROGRESS", "UNAVAILABLE");
    }

    /// Complete, but not executable yet.
    pub fn almost_made(&self, set: &str) {
        self.set_words(set, "CREATE_COMPLETE", "UNAVAILABLE");
    }

    /// Ready to be run.
    pub fn make(&self, set: &str) {
        self.set_words(set, "CREATE_COMPLETE", "AVAILABLE");
    }

    /// Could not be made.
    pub fn fail_making(&self, set: &str, reason: &str) {
        self.set_words(set, "FAILED", "UNAVAILABLE");
        let mut world = self.world();
        let set = world.set(set);
        set.status_reason = Some(reason.into());
        set.changes.clear();
    }

    /// Failed because it would change nothing.
    pub fn no_changes(&self, set: &str) {
        self.fail_making(
            set,
            "The submitted information didn't contain changes. Submit different information to create a change set.",
        );
    }

    /// The same as templates with a transform word it.
    pub fn no_updates(&self, set: &str) {
        self.fail_making(set, "No updates are to be performed.");
    }

    /// An early-validation finding that only DescribeEvents tells.
    pub fn validation_error(&self, set: &str, logical_id: &str, path: &str, reason: &str) {
        let mut world = self.world();
        let (id, time) = (world.uuid(), world.now());
        let set = world.set(set);
        set.events.push(json!({
            "EventId": id, "StackId": set.stack, "OperationType": "CREATE_CHANGESET",
            "OperationStatus": "FAILED", "EventType": "VALIDATION_ERROR", "LogicalResourceId": logical_id,
            "Timestamp": time, "ValidationFailureMode": "FAIL",
            "ValidationName": "AWS::EarlyValidation::PropertyValidation", "ValidationStatus": "FAILED",
            "ValidationStatusReason": reason, "ValidationPath": path,
        }));
    }

    /// Sets both status words, known or not.
    pub fn set_words(&self, set: &str, status: &str, execution_status: &str) {
        let mut world = self.world();
        let set = world.set(set);
        set.status = status.into();
        set.execution_status = execution_status.into();
    }

    /// Somebody deletes it in the console.
    pub fn console_delete(&self, set: &str) {
        let mut world = self.world();
        let arn = world.set(set).arn.clone();
        world
            .delete_change_set(&json!({"ChangeSetName": arn}))
            .expect("a set that may be deleted");
    }

    /// Somebody makes a change set of their own; its ARN.
    pub fn console_create(&self, stack: &str, name: &str, template_url: &str) -> String {
        let mut world = self.world();
        let request = json!({"StackName": stack, "ChangeSetName": name, "TemplateURL": template_url});
        let made = world.create_change_set(&request).expect("a set that may be made");
        made["Id"].as_str().expect("Id").to_owned()
    }
}

/// Running one.
impl FakeCloudFormation {
    /// The execute that was accepted takes effect: the stack is `UPDATE_IN_PROGRESS`, every other set is gone.
    pub fn start_run(&self, set: &str) {
        let mut world = self.world();
        let set = world.set(set);
        assert!(set.accepted, "nobody executed {}", set.name);
        let arn = set.arn.clone();
        world.start_run(&arn);
    }

    /// Somebody executes it in the console, and it starts.
    pub fn console_execute(&self, set: &str) {
        let mut world = self.world();
        let token = format!("Console-ExecuteChangeSet-{}", world.uuid());
        let arn = world.set(set).arn.clone();
        let request = json!({"ChangeSetName": arn, "ClientRequestToken": token});
        world
            .execute_change_set(&request)
            .expect("a set that may be executed");
        world.start_run(&arn);
    }

    /// An event of a resource in the running operation.
    pub fn resource(&self, stack: &str, logical_id: &str, kind: &str, status: &str, reason: Option<&str>) {
        let mut world = self.world();
        let parent = world.stack(stack).arn.clone();
        let nested = format!("-{logical_id}-1ABC");
        let child = world
            .stacks
            .iter()
            .find(|child| child.shown["ParentId"] == *parent && child.name.ends_with(&nested))
            .map(|child| child.arn.clone());
        let id = child.unwrap_or_else(|| format!("{logical_id}-physical"));
        world.event(stack, logical_id, &id, kind, status, reason);
    }

    /// New resources are live, old ones are being removed.
    pub fn clean_up(&self, stack: &str) {
        let mut world = self.world();
        world.settle_outputs(stack);
        world.finish_set(stack, "EXECUTE_COMPLETE");
        world.stack_status(stack, "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", None);
    }

    /// The run ends well; the outputs are those of its template.
    pub fn complete_run(&self, stack: &str) {
        let mut world = self.world();
        world.settle_outputs(stack);
        world.finish_set(stack, "EXECUTE_COMPLETE");
        world.stack_status(stack, "UPDATE_COMPLETE", None);
        world.stack(stack).running = None;
    }

    /// A resource fails, another is cancelled, and the automatic rollback begins under an operation of its
    /// own.
    pub fn fail_run(&self, stack: &str, logical_id: &str, kind: &str, reason: &str) {
        self.resource(stack, logical_id, kind, "UPDATE_FAILED", Some(reason));
        self.resource(
            stack,
            "Neighbour",
            "AWS::SQS::Queue",
            "UPDATE_FAILED",
            Some("Resource update cancelled"),
        );
        let mut world = self.world();
        world.begin_operation(stack, "ROLLBACK");
        let summary = format!("The following resource(s) failed to update: [{logical_id}]. ");
        world.stack_status(stack, "UPDATE_ROLLBACK_IN_PROGRESS", Some(&summary));
    }

    /// The rollback ends well.
    pub fn roll_back(&self, stack: &str) {
        let mut world = self.world();
        world.finish_set(stack, "EXECUTE_FAILED");
        world.stack_status(stack, "UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS", None);
        world.stack_status(stack, "UPDATE_ROLLBACK_COMPLETE", None);
        world.stack(stack).running = None;
    }

    /// The rollback itself fails.
    pub fn fail_rollback(&self, stack: &str, logical_id: &str, kind: &str, reason: &str) {
        self.resource(stack, logical_id, kind, "UPDATE_FAILED", Some(reason));
        let mut world = self.world();
        world.finish_set(stack, "EXECUTE_FAILED");
        let summary = format!("The following resource(s) failed to update: [{logical_id}]. ");
        world.stack_status(stack, "UPDATE_ROLLBACK_FAILED", Some(&summary));
    }

    /// The admin continues a failed rollback, and it ends well.
    pub fn continue_rollback(&self, stack: &str) {
        let mut world = self.world();
        world.begin_operation(stack, "CONTINUE_ROLLBACK");
        world.stack_status(stack, "UPDATE_ROLLBACK_IN_PROGRESS", Some("User Initiated"));
        drop(world);
        self.roll_back(stack);
    }

    /// Stays where it failed: rollback was disabled.
    pub fn pause(&self, stack: &str, logical_id: &str, kind: &str, reason: &str) {
        self.resource(stack, logical_id, kind, "UPDATE_FAILED", Some(reason));
        let mut world = self.world();
        world.finish_set(stack, "EXECUTE_FAILED");
        let summary = format!("The following resource(s) failed to update: [{logical_id}]. ");
        world.stack_status(stack, "UPDATE_FAILED", Some(&summary));
    }

    /// A nested stack below a running one; its ARN. Its events share the parent's operation.
    pub fn nested(&self, parent: &str, logical_id: &str) -> String {
        let mut world = self.world();
        let parent_arn = world.stack(parent).arn.clone();
        let name = format!("{}-{logical_id}-1ABC", world.stack(parent).name);
        let child = world.install(&name, &Plan::default(), Some(&parent_arn));
        let kind = "AWS::CloudFormation::Stack";
        world.event(parent, logical_id, &child, kind, "UPDATE_IN_PROGRESS", None);
        let (operation, token) = (
            world.stack(parent).operation.clone(),
            world.stack(parent).token.clone(),
        );
        let stack = world.stack(&child);
        stack.operation = operation;
        stack.token = token;
        world.stack_status(&child, "UPDATE_IN_PROGRESS", None);
        child
    }
}

/// What others do to the stack.
impl FakeCloudFormation {
    /// An operation without a change set begins (UpdateStack): the sets stay, obsolete.
    pub fn begin_direct_update(&self, stack: &str) {
        let mut world = self.world();
        let arn = world.stack(stack).arn.clone();
        for set in world
            .sets
            .iter_mut()
            .filter(|set| set.stack == arn && set.is_waiting())
        {
            set.execution_status = "OBSOLETE".into();
        }
        world.stack(stack).token = None;
        world.begin_operation(stack, "UPDATE_STACK");
        let now = world.now();
        let shown = &mut world.stack(stack).shown;
        shown["LastUpdatedTime"] = now;
        // Uncertain on AWS whether the id of the last run stays (spec section 8); here it goes.
        shown["ChangeSetId"] = Value::Null;
        world.stack_status(stack, "UPDATE_IN_PROGRESS", Some("User Initiated"));
    }

    /// It ends; the stack then reports that release.
    pub fn end_direct_update(&self, stack: &str, version: Option<&str>) {
        let mut world = self.world();
        if let Some(version) = version {
            world.stack(stack).shown["Outputs"] = outputs(Some(version));
        }
        world.stack_status(stack, "UPDATE_COMPLETE", None);
    }

    /// Somebody deletes the stack.
    pub fn begin_delete(&self, stack: &str) {
        let mut world = self.world();
        world.begin_operation(stack, "DELETE_STACK");
        world.stack_status(stack, "DELETE_IN_PROGRESS", Some("User Initiated"));
    }

    /// It is gone: only its ARN still finds it.
    pub fn end_delete(&self, stack: &str) {
        let mut world = self.world();
        world.stack_status(stack, "DELETE_COMPLETE", None);
        let now = world.now();
        world.stack(stack).shown["DeletionTime"] = now;
    }

    /// Sets the stack's status word without an event, known or not.
    pub fn set_status(&self, stack: &str, word: &str) {
        self.edit(stack, "StackStatus", json!(word));
    }
}

/// Moves every time in the value back.
pub fn shift(value: &mut Value, by: SignedDuration) {
    match value {
        Value::String(text) => {
            if let Ok(time) = text.parse::<Timestamp>() {
                *text = format!("{:.3}", time - by);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| shift(item, by)),
        Value::Object(fields) => fields.values_mut().for_each(|field| shift(field, by)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn refuse(status: u16, code: &str, message: impl AsRef<str>) -> Answer {
    Answer::error(status, code, message.as_ref())
}

fn invalid(message: impl AsRef<str>) -> Answer {
    refuse(400, "ValidationError", message)
}

fn not_found(set: &str) -> Answer {
    refuse(
        404,
        "ChangeSetNotFound",
        format!("ChangeSet [{set}] does not exist"),
    )
}

fn outputs(version: Option<&str>) -> Value {
    version.map_or(
        Value::Null,
        |version| json!([{"OutputKey": "Version", "OutputValue": version}]),
    )
}

fn text<'a>(params: &'a Value, name: &str) -> &'a str {
    params.get(name).and_then(Value::as_str).unwrap_or_default()
}

impl ChangeSet {
    /// Neither run nor running nor deleted.
    fn is_waiting(&self) -> bool {
        !self.deleted && !self.accepted && !self.execution_status.starts_with("EXECUTE_")
    }

    /// The words a caller sees in a refusal: an accepted execute counts at once.
    fn effective_execution_status(&self) -> &str {
        if self.accepted && self.execution_status == "AVAILABLE" {
            "EXECUTE_IN_PROGRESS"
        } else {
            &self.execution_status
        }
    }
}

impl World {
    /// CloudFormation's clock: the real one, never twice the same.
    fn tick(&mut self) -> Timestamp {
        let earliest = self.last_time + SignedDuration::from_millis(1);
        self.last_time = Timestamp::now().max(earliest);
        self.last_time
    }

    fn now(&mut self) -> Value {
        let now = self.tick();
        json!(format!("{now:.3}"))
    }

    fn uuid(&mut self) -> String {
        self.serial += 1;
        format!("{:08x}-ce7d-41f0-8de9-0242ac120002", self.serial)
    }

    fn set(&mut self, set: &str) -> &mut ChangeSet {
        let found = self
            .sets
            .iter_mut()
            .rev()
            .find(|known| known.arn == set || known.name == set);
        found.unwrap_or_else(|| panic!("no change set {set}"))
    }

    fn stack(&mut self, stack: &str) -> &mut Stack {
        let found = self
            .stacks
            .iter_mut()
            .rev()
            .find(|known| known.arn == stack || known.name == stack);
        found.unwrap_or_else(|| panic!("no stack {stack}"))
    }

    /// By ARN whatever became of it, by name while it exists.
    fn find_stack(&self, stack: &str) -> Option<&Stack> {
        self.stacks.iter().rev().find(|known| {
            known.arn == stack || (known.name == stack && known.shown["StackStatus"] != "DELETE_COMPLETE")
        })
    }

    /// Position of the change set a request names, as AWS resolves it (spec/updates.md 4.1 items 4, 5).
    fn resolve_set(&self, params: &Value) -> Result<usize, Answer> {
        let (name, stack) = (text(params, "ChangeSetName"), text(params, "StackName"));
        if name.starts_with("arn:") {
            let found = self.sets.iter().rposition(|set| set.arn == name && !set.deleted);
            return found.ok_or_else(|| not_found(name));
        }
        if stack.is_empty() {
            return Err(invalid(
                "StackName must be specified if ChangeSetName is not specified as an ARN.",
            ));
        }
        let Some(stack) = self.find_stack(stack) else {
            return Err(invalid(format!("Stack [{stack}] does not exist")));
        };
        let found = self.sets.iter().rposition(|set| {
            let ran = ["EXECUTE_COMPLETE", "EXECUTE_FAILED"].contains(&set.execution_status.as_str());
            set.stack == stack.arn && set.name == name && !set.deleted && !ran
        });
        found.ok_or_else(|| not_found(name))
    }

    fn install(&mut self, name: &str, plan: &Plan, parent: Option<&str>) -> String {
        let arn = format!(
            "arn:aws:cloudformation:eu-central-1:123456789012:stack/{name}/{}",
            self.uuid()
        );
        let now = self.now();
        let operation = self.uuid();
        let parameters = plan
            .parameters
            .iter()
            .map(|p| (p.clone(), p.default.clone().unwrap_or_default()))
            .collect();
        self.stacks.push(Stack {
            name: name.into(),
            arn: arn.clone(),
            shown: json!({
                "StackId": arn, "StackName": name, "ChangeSetId": Value::Null, "CreationTime": now,
                "LastUpdatedTime": Value::Null, "DeletionTime": Value::Null,
                "RollbackConfiguration": {}, "StackStatus": "CREATE_COMPLETE",
                "StackStatusReason": Value::Null, "DisableRollback": false, "NotificationARNs": [],
                "Capabilities": ["CAPABILITY_IAM"], "Outputs": outputs(plan.version.as_deref()),
                "RoleARN": Value::Null, "Tags": [], "EnableTerminationProtection": false,
                "ParentId": parent, "RootId": parent,
                "DriftInformation": {"StackDriftStatus": "NOT_CHECKED"},
                "DeploymentConfig": Value::Null, "DetailedStatus": Value::Null,
                "LastOperations": [{"OperationType": "CREATE_STACK", "OperationId": operation}],
            }),
            parameters,
            events: Vec::new(),
            running: None,
            operation,
            token: None,
        });
        self.stack_status(&arn, "CREATE_IN_PROGRESS", Some("User Initiated"));
        self.stack_status(&arn, "CREATE_COMPLETE", None);
        arn
    }

    fn event(
        &mut self,
        stack: &str,
        logical_id: &str,
        physical_id: &str,
        kind: &str,
        status: &str,
        reason: Option<&str>,
    ) {
        let (id, now) = (self.uuid(), self.now());
        let stack = self.stack(stack);
        stack.events.push(json!({
            "StackId": stack.arn, "EventId": id, "StackName": stack.name, "OperationId": stack.operation,
            "LogicalResourceId": logical_id, "PhysicalResourceId": physical_id, "ResourceType": kind,
            "Timestamp": now, "ResourceStatus": status, "ResourceStatusReason": reason,
            "ClientRequestToken": stack.token,
        }));
    }

    /// The stack's own status, with the root event that goes with it.
    fn stack_status(&mut self, stack: &str, status: &str, reason: Option<&str>) {
        let (name, arn) = (self.stack(stack).name.clone(), self.stack(stack).arn.clone());
        self.event(&arn, &name, &arn, "AWS::CloudFormation::Stack", status, reason);
        let shown = &mut self.stack(&arn).shown;
        shown["StackStatus"] = json!(status);
        shown["StackStatusReason"] = json!(reason);
    }

    fn begin_operation(&mut self, stack: &str, kind: &str) {
        let id = self.uuid();
        let stack = self.stack(stack);
        stack.operation.clone_from(&id);
        let mut operations = vec![json!({"OperationType": kind, "OperationId": id})];
        operations.extend(
            stack.shown["LastOperations"]
                .as_array()
                .cloned()
                .unwrap_or_default(),
        );
        stack.shown["LastOperations"] = json!(operations);
    }

    fn start_run(&mut self, arn: &str) {
        let set = self.set(arn);
        set.execution_status = "EXECUTE_IN_PROGRESS".into();
        let (stack_arn, token) = (set.stack.clone(), set.execute_token.clone());
        let parameters = set.plan.parameters.clone();
        // Executing one deletes all others (spec/updates.md 4.1 item 3).
        for other in &mut self.sets {
            if other.stack == stack_arn && other.arn != arn && other.is_waiting() {
                other.deleted = true;
            }
        }
        self.begin_operation(&stack_arn, "UPDATE_STACK");
        let now = self.now();
        let stack = self.stack(&stack_arn);
        stack.token = token;
        stack.running = Some(arn.into());
        stack.shown["ChangeSetId"] = json!(arn);
        stack.shown["LastUpdatedTime"] = now;
        let before = std::mem::take(&mut stack.parameters);
        for parameter in parameters {
            let kept = before
                .iter()
                .find(|(old, _)| old.key == parameter.key)
                .map(|(_, v)| v.clone());
            let value = kept.or_else(|| parameter.default.clone()).unwrap_or_default();
            stack.parameters.push((parameter, value));
        }
        self.stack_status(&stack_arn, "UPDATE_IN_PROGRESS", Some("User Initiated"));
    }

    fn running_set(&mut self, stack: &str) -> Option<&mut ChangeSet> {
        let arn = self.stack(stack).running.clone()?;
        Some(self.set(&arn))
    }

    fn finish_set(&mut self, stack: &str, word: &str) {
        if let Some(set) = self.running_set(stack) {
            set.execution_status = word.into();
        }
    }

    fn settle_outputs(&mut self, stack: &str) {
        if let Some(version) = self.running_set(stack).map(|set| set.plan.version.clone()) {
            self.stack(stack).shown["Outputs"] = outputs(version.as_deref());
        }
    }

    fn describe_stacks(&mut self, params: &Value) -> Outcome {
        let name = text(params, "StackName");
        let shown = |stack: &Stack| {
            let mut shown = stack.shown.clone();
            let parameters = stack.parameters.iter().map(|(parameter, value)| {
                let value = if parameter.no_echo { "****" } else { value };
                json!({"ParameterKey": parameter.key, "ParameterValue": value})
            });
            shown["Parameters"] = parameters.collect();
            shown
        };
        if name.is_empty() {
            let existing = self
                .stacks
                .iter()
                .filter(|stack| stack.shown["StackStatus"] != "DELETE_COMPLETE");
            return Ok(json!({"Stacks": existing.map(shown).collect::<Vec<_>>()}));
        }
        match self.find_stack(name) {
            Some(stack) => Ok(json!({"Stacks": [shown(stack)]})),
            None => Err(invalid(format!("Stack with id {name} does not exist"))),
        }
    }

    fn create_change_set(&mut self, params: &Value) -> Outcome {
        let (name, token, url) = (
            text(params, "ChangeSetName"),
            text(params, "ClientToken"),
            text(params, "TemplateURL"),
        );
        let stack_name = text(params, "StackName");
        let Some(stack) = self.find_stack(stack_name) else {
            return Err(invalid(format!("Stack [{stack_name}] does not exist")));
        };
        let (stack_arn, status) = (
            stack.arn.clone(),
            stack.shown["StackStatus"].as_str().unwrap_or_default().to_owned(),
        );
        let legal = name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.len() <= 128
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        if !legal {
            return Err(invalid(format!(
                "1 validation error detected: Value '{name}' at 'changeSetName' failed to satisfy constraint: \
                 Member must satisfy regular expression pattern: [a-zA-Z][-a-zA-Z0-9]*"
            )));
        }
        if text(params, "ChangeSetType") == "CREATE" {
            return Err(invalid(format!(
                "Stack [{stack_name}] already exists and cannot be created again with the changeSet [{name}]."
            )));
        }
        let twin = self.sets.iter().rev().find(|set| {
            set.stack == stack_arn
                && set.name == name
                && !set.deleted
                && !["EXECUTE_COMPLETE", "EXECUTE_FAILED"].contains(&set.execution_status.as_str())
        });
        if let Some(twin) = twin {
            let same = !token.is_empty()
                && twin.client_token == token
                && twin.template_url == url
                && twin.parameters == params["Parameters"];
            if same {
                return Ok(json!({"Id": twin.arn, "StackId": twin.stack}));
            }
            let attribute = match () {
                () if twin.template_url != url => "Template",
                () if twin.parameters != params["Parameters"] => "Parameters",
                () => "ClientToken",
            };
            return Err(refuse(
                400,
                "AlreadyExistsException",
                format!(
                    "ChangeSet {} cannot be created due to a mismatch with existing attribute {attribute}",
                    twin.arn
                ),
            ));
        }
        let updatable = [
            "CREATE_COMPLETE",
            "UPDATE_COMPLETE",
            "UPDATE_ROLLBACK_COMPLETE",
            "IMPORT_COMPLETE",
            "IMPORT_ROLLBACK_COMPLETE",
            "UPDATE_FAILED",
        ];
        if !updatable.contains(&status.as_str()) {
            return Err(invalid(format!(
                "Stack:{stack_arn} is in {status} state and can not be updated."
            )));
        }
        let kept = self
            .sets
            .iter()
            .filter(|set| set.stack == stack_arn && !set.deleted)
            .count();
        if kept >= self.limit {
            return Err(refuse(
                400,
                "LimitExceededException",
                format!("ChangeSet limit exceeded for stack {stack_arn}"),
            ));
        }
        let plan = self.plan_of(url)?;
        Self::check_capabilities(&plan, params)?;
        self.check_parameters(&stack_arn, &plan, params)?;
        let arn = format!(
            "arn:aws:cloudformation:eu-central-1:123456789012:changeSet/{name}/{}",
            self.uuid()
        );
        let created = self.tick();
        self.sets.push(ChangeSet {
            name: name.into(),
            arn: arn.clone(),
            stack: stack_arn.clone(),
            status: "CREATE_PENDING".into(),
            execution_status: "UNAVAILABLE".into(),
            status_reason: None,
            description: text(params, "Description").into(),
            client_token: token.into(),
            template_url: url.into(),
            role_arn: text(params, "RoleARN").into(),
            parameters: params["Parameters"].clone(),
            request: params.clone(),
            execute_token: None,
            created,
            changes: plan.changes.clone(),
            plan,
            accepted: false,
            deleted: false,
            events: Vec::new(),
        });
        Ok(json!({"Id": arn, "StackId": stack_arn}))
    }

    fn plan_of(&self, url: &str) -> Result<Plan, Answer> {
        self.plans.get(url).cloned().ok_or_else(|| {
            invalid(
                "S3 error: The specified key does not exist.\nFor more information check \
                 http://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html",
            )
        })
    }

    fn check_capabilities(plan: &Plan, params: &Value) -> Result<(), Answer> {
        let mut given: Vec<&str> = params["Capabilities"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        if given.contains(&"CAPABILITY_NAMED_IAM") {
            // It includes the plain one.
            given.push("CAPABILITY_IAM");
        }
        let needed = plan.capabilities.iter().map(String::as_str);
        let missing: Vec<&str> = needed.filter(|needed| !given.contains(needed)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(refuse(
            400,
            "InsufficientCapabilitiesException",
            format!("Requires capabilities : [{}]", missing.join(", ")),
        ))
    }

    fn check_parameters(&mut self, stack: &str, plan: &Plan, params: &Value) -> Result<(), Answer> {
        let known: Vec<String> = self
            .stack(stack)
            .parameters
            .iter()
            .map(|(parameter, _)| parameter.key.clone())
            .collect();
        let given: Vec<&Value> = params["Parameters"].as_array().into_iter().flatten().collect();
        for parameter in &given {
            let key = text(parameter, "ParameterKey");
            if !plan.parameters.iter().any(|in_template| in_template.key == key) {
                return Err(invalid(format!(
                    "Parameters: [{key}] do not exist in the template"
                )));
            }
            if text(parameter, "UsePreviousValue") == "true" && !known.iter().any(|old| old == key) {
                return Err(invalid(format!(
                    "Invalid input for parameter key {key}. Cannot specify usePreviousValue as true for a \
                     parameter key not in the previous template"
                )));
            }
        }
        let valueless: Vec<&str> = plan
            .parameters
            .iter()
            .filter(|parameter| {
                parameter.default.is_none()
                    && !given
                        .iter()
                        .any(|value| text(value, "ParameterKey") == parameter.key)
            })
            .map(|parameter| parameter.key.as_str())
            .collect();
        if valueless.is_empty() {
            return Ok(());
        }
        Err(invalid(format!(
            "Parameters: [{}] must have values",
            valueless.join(", ")
        )))
    }

    fn describe_change_set(&mut self, params: &Value) -> Outcome {
        let at = self.resolve_set(params)?;
        let set = &self.sets[at];
        let stack = self
            .find_stack(&set.stack)
            .map(|stack| stack.name.clone())
            .unwrap_or_default();
        let start: usize = text(params, "NextToken").parse().unwrap_or(0);
        let end = (start + self.page).min(set.changes.len());
        let made = set.status == "CREATE_COMPLETE";
        let next = (made && end < set.changes.len()).then(|| end.to_string());
        let shown = if made {
            &set.changes[start.min(end)..end]
        } else {
            &[]
        };
        Ok(json!({
            "ChangeSetName": set.name, "ChangeSetId": set.arn, "StackId": set.stack, "StackName": stack,
            "Description": (!set.description.is_empty()).then_some(&set.description),
            "Parameters": set.parameters, "CreationTime": format!("{:.3}", set.created),
            "ExecutionStatus": set.execution_status, "Status": set.status,
            "StatusReason": set.status_reason, "NotificationARNs": [], "RollbackConfiguration": {},
            "Capabilities": set.request["Capabilities"], "Tags": [], "Changes": shown, "NextToken": next,
            "IncludeNestedStacks": text(&set.request, "IncludeNestedStacks") == "true",
            "OnStackFailure": set.request["OnStackFailure"],
        }))
    }

    fn execute_change_set(&mut self, params: &Value) -> Outcome {
        let at = self.resolve_set(params)?;
        let token = text(params, "ClientRequestToken");
        let busy = {
            let stack = self.sets[at].stack.clone();
            let status = self.stack(&stack).shown["StackStatus"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            status.ends_with("_IN_PROGRESS").then_some(status)
        };
        let set = &self.sets[at];
        if !token.is_empty() {
            if set.execute_token.as_deref() == Some(token) {
                return Ok(json!({}));
            }
            if self
                .sets
                .iter()
                .any(|other| other.execute_token.as_deref() == Some(token))
            {
                return Err(refuse(
                    400,
                    "TokenAlreadyExistsException",
                    format!("Token {token} was already used by another operation"),
                ));
            }
        }
        let refused = |text: String| Err(refuse(400, "InvalidChangeSetStatus", text));
        if set.status != "CREATE_COMPLETE" {
            return refused(format!(
                "ChangeSet [{}] cannot be executed in its current status of [{}]",
                set.arn, set.status
            ));
        }
        if set.effective_execution_status() != "AVAILABLE" {
            return refused(format!(
                "ChangeSet [{}] cannot be executed in its current execution status of [{}]",
                set.arn,
                set.effective_execution_status()
            ));
        }
        if let Some(status) = busy {
            return refused(format!(
                "ChangeSet [{}] cannot be executed in its current stack status of [{status}]",
                set.arn
            ));
        }
        let token = if token.is_empty() {
            self.uuid()
        } else {
            token.to_owned()
        };
        let set = &mut self.sets[at];
        set.accepted = true;
        set.execute_token = Some(token);
        Ok(json!({}))
    }

    fn delete_change_set(&mut self, params: &Value) -> Outcome {
        let at = match self.resolve_set(params) {
            Ok(at) => at,
            // A set that is not there is deleted (measured on AWS, spec/updates.md 4.1 item 5).
            Err(Answer::Error { ref code, .. }) if code == "ChangeSetNotFound" => return Ok(json!({})),
            Err(other) => return Err(other),
        };
        let set = &mut self.sets[at];
        let refused = |what: String| {
            Err(refuse(
                400,
                "InvalidChangeSetStatus",
                format!("ChangeSet [{}] cannot be deleted in its current {what}", set.arn),
            ))
        };
        if set.effective_execution_status().starts_with("EXECUTE_") {
            return refused(format!(
                "execution status of [{}]",
                set.effective_execution_status()
            ));
        }
        if set.status == "CREATE_IN_PROGRESS" {
            return refused(format!("status of [{}]", set.status));
        }
        set.deleted = true;
        set.status = "DELETE_COMPLETE".into();
        Ok(json!({}))
    }

    fn list_change_sets(&mut self, params: &Value) -> Outcome {
        let name = text(params, "StackName");
        let Some(stack) = self.find_stack(name) else {
            return Err(invalid(format!("Stack [{name}] does not exist")));
        };
        let summaries: Vec<Value> = self
            .sets
            .iter()
            .filter(|set| set.stack == stack.arn && set.is_waiting())
            .map(|set| {
                json!({
                    "StackId": set.stack, "StackName": stack.name, "ChangeSetId": set.arn,
                    "ChangeSetName": set.name, "ExecutionStatus": set.execution_status,
                    "Status": set.status, "StatusReason": set.status_reason,
                    "CreationTime": format!("{:.3}", set.created), "Description": set.description,
                })
            })
            .collect();
        Ok(json!({"Summaries": summaries}))
    }

    /// Newest first; the token is the event to go on with, because new ones may come in between.
    fn events_page(&self, events: &[Value], token: &str) -> (Vec<Value>, Option<String>) {
        let newest_first: Vec<&Value> = events.iter().rev().collect();
        let start = newest_first
            .iter()
            .position(|event| event["EventId"] == token)
            .unwrap_or(0);
        let page = newest_first[start..]
            .iter()
            .take(self.page)
            .map(|event| (*event).clone())
            .collect();
        let next = newest_first
            .get(start + self.page)
            .and_then(|event| event["EventId"].as_str());
        (page, next.map(str::to_owned))
    }

    fn describe_stack_events(&mut self, params: &Value) -> Outcome {
        let name = text(params, "StackName");
        let Some(stack) = self.find_stack(name) else {
            return Err(invalid(format!("Stack [{name}] does not exist")));
        };
        let (page, next) = self.events_page(&stack.events, text(params, "NextToken"));
        Ok(json!({"StackEvents": page, "NextToken": next}))
    }

    fn describe_events(&mut self, params: &Value) -> Outcome {
        let (set, stack) = (text(params, "ChangeSetName"), text(params, "StackName"));
        let failed_only = params.pointer("/Filters/FailedEvents").and_then(Value::as_str) == Some("true");
        let events: Vec<Value> = if set.is_empty() {
            let operation = text(params, "OperationId");
            let source: Vec<&Stack> = if stack.is_empty() {
                self.stacks.iter().collect()
            } else {
                let found = self.find_stack(stack);
                vec![found.ok_or_else(|| invalid(format!("Stack [{stack}] does not exist")))?]
            };
            source
                .iter()
                .flat_map(|stack| &stack.events)
                .filter(|event| operation.is_empty() || event["OperationId"] == operation)
                .filter(|event| {
                    let failed = event["ResourceStatus"]
                        .as_str()
                        .is_some_and(|s| s.ends_with("_FAILED"));
                    !failed_only || failed
                })
                .map(|event| {
                    let mut event = event.clone();
                    event["EventType"] = json!("STACK_EVENT");
                    event
                })
                .collect()
        } else {
            if !set.starts_with("arn:") {
                // The bare name was refused (spec/updates.md 4.4 item 32).
                return Err(invalid("ChangeSetName must be an ARN"));
            }
            let at = self.resolve_set(params)?;
            self.sets[at].events.clone()
        };
        let (page, next) = self.events_page(&events, text(params, "NextToken"));
        Ok(json!({"OperationEvents": page, "NextToken": next}))
    }

    fn get_template_summary(&mut self, params: &Value) -> Outcome {
        let (stack, url) = (text(params, "StackName"), text(params, "TemplateURL"));
        let (parameters, capabilities): (Vec<Parameter>, Vec<String>) = if url.is_empty() {
            let Some(stack) = self.find_stack(stack) else {
                return Err(invalid(format!("Stack with id {stack} does not exist")));
            };
            (
                stack
                    .parameters
                    .iter()
                    .map(|(parameter, _)| parameter.clone())
                    .collect(),
                Vec::new(),
            )
        } else {
            let plan = self.plan_of(url)?;
            (plan.parameters, plan.capabilities)
        };
        let parameters: Vec<Value> = parameters
            .iter()
            .map(|parameter| {
                json!({"ParameterKey": parameter.key, "DefaultValue": parameter.default,
                       "ParameterType": "String", "NoEcho": parameter.no_echo, "ParameterConstraints": {}})
            })
            .collect();
        Ok(
            json!({"Parameters": parameters, "Capabilities": capabilities, "ResourceTypes": [],
                  "Version": "2010-09-09", "DeclaredTransforms": []}),
        )
    }

    fn get_template(&mut self, params: &Value) -> Outcome {
        let set = text(params, "ChangeSetName");
        let stack_name = text(params, "StackName");
        let parameters: Vec<Parameter> = if set.is_empty() {
            let Some(stack) = self.find_stack(stack_name) else {
                return Err(invalid(format!("Stack with id {stack_name} does not exist")));
            };
            stack
                .parameters
                .iter()
                .map(|(parameter, _)| parameter.clone())
                .collect()
        } else {
            let at = self.resolve_set(params)?;
            self.sets[at].plan.parameters.clone()
        };
        let declared: serde_json::Map<String, Value> = parameters
            .into_iter()
            .map(|parameter| (parameter.key, json!({"Type": "String"})))
            .collect();
        let body = json!({"AWSTemplateFormatVersion": "2010-09-09", "Parameters": declared,
                          "Resources": {"Nothing": {"Type": "AWS::CloudFormation::WaitConditionHandle"}}});
        Ok(json!({"TemplateBody": body.to_string(), "StagesAvailable": ["Original", "Processed"]}))
    }
}
