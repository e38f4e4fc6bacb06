//! A typed reader for Terraform plan JSON, format 1.x (spec/rebuild.md 3.1).
//!
//! The document is read in one pass that skips what no rule needs (`planned_values` above all) and keeps the
//! values of a change as slices of the input; they are parsed when a rule looks at them. So a plan of hundreds of
//! megabytes costs about one skip over its bytes. Known, unknown and sensitive stay apart: a value is never read
//! without its mask.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

use super::json::{self, NULL};

/// The provider that every resource of a gated root must come from (G-10).
pub(crate) const AWS_PROVIDER: &str = "registry.terraform.io/hashicorp/aws";

#[derive(Deserialize)]
struct Document<'a> {
    #[serde(borrow)]
    format_version: Option<Cow<'a, str>>,
    #[serde(borrow)]
    terraform_version: Option<Cow<'a, str>>,
    planned_values: Option<IgnoredAny>,
    #[serde(borrow)]
    configuration: Option<Configuration<'a>>,
    #[serde(borrow, default)]
    resource_changes: Option<Vec<RawChange<'a>>>,
    #[serde(borrow, default)]
    resource_drift: Option<Vec<RawChange<'a>>>,
    #[serde(default)]
    output_changes: Option<BTreeMap<String, OutputChange>>,
    #[serde(borrow, default)]
    prior_state: Option<PriorState<'a>>,
    #[serde(default)]
    checks: Option<Vec<Check>>,
    #[serde(default)]
    variables: Option<BTreeMap<String, Value>>,
    #[serde(borrow)]
    timestamp: Option<Cow<'a, str>>,
    applyable: Option<bool>,
    complete: Option<bool>,
    errored: Option<bool>,
    #[serde(borrow, default)]
    deferred_changes: Option<&'a RawValue>,
    #[serde(borrow, default)]
    deferred_action_invocations: Option<&'a RawValue>,
    #[serde(borrow, default)]
    action_invocations: Option<&'a RawValue>,
    /// Only a state document has it.
    values: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct RawChange<'a> {
    #[serde(borrow)]
    address: Cow<'a, str>,
    #[serde(borrow, default)]
    previous_address: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    module_address: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    mode: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "type", default)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    provider_name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    deposed: Option<Cow<'a, str>>,
    #[serde(borrow)]
    change: RawChangeBody<'a>,
}

#[derive(Deserialize)]
struct RawChangeBody<'a> {
    #[serde(borrow)]
    actions: Vec<Cow<'a, str>>,
    #[serde(borrow, default)]
    before: Option<&'a RawValue>,
    #[serde(borrow, default)]
    after: Option<&'a RawValue>,
    #[serde(borrow, default)]
    after_unknown: Option<&'a RawValue>,
    #[serde(borrow, default)]
    before_sensitive: Option<&'a RawValue>,
    #[serde(borrow, default)]
    after_sensitive: Option<&'a RawValue>,
    #[serde(default)]
    importing: Option<Value>,
    #[serde(borrow, default)]
    generated_config: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct OutputChange {
    #[serde(default)]
    actions: Vec<String>,
}

/// One entry of `checks`.
#[derive(Debug, Deserialize)]
pub(crate) struct Check {
    #[serde(default)]
    address: Value,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    instances: Vec<CheckInstance>,
}

#[derive(Debug, Deserialize)]
struct CheckInstance {
    #[serde(default)]
    status: Option<String>,
}

impl Check {
    /// How Terraform names the checked thing.
    pub(crate) fn name(&self) -> &str {
        json::str_at(&self.address, "to_display").unwrap_or("check")
    }

    /// Every status in the entry, its own first.
    pub(crate) fn statuses(&self) -> impl Iterator<Item = Option<&str>> {
        std::iter::once(self.status.as_deref()).chain(self.instances.iter().map(|i| i.status.as_deref()))
    }
}

#[derive(Deserialize)]
struct PriorState<'a> {
    #[serde(borrow, default)]
    values: Option<StateValues<'a>>,
}

#[derive(Deserialize)]
struct StateValues<'a> {
    #[serde(borrow, default)]
    root_module: Option<StateModule<'a>>,
}

#[derive(Deserialize)]
struct StateModule<'a> {
    #[serde(borrow, default)]
    resources: Option<Vec<StateResource<'a>>>,
    #[serde(borrow, default)]
    child_modules: Option<Vec<StateModule<'a>>>,
}

#[derive(Deserialize)]
struct StateResource<'a> {
    #[serde(borrow, default)]
    address: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    mode: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Configuration<'a> {
    #[serde(default)]
    provider_config: Option<BTreeMap<String, ProviderConfig>>,
    #[serde(borrow, default)]
    root_module: Option<ConfigModule<'a>>,
}

/// One entry of `configuration.provider_config`.
#[derive(Debug, Deserialize)]
pub(crate) struct ProviderConfig {
    #[serde(default)]
    pub(crate) full_name: Option<String>,
    #[serde(default)]
    pub(crate) alias: Option<String>,
    #[serde(default)]
    pub(crate) expressions: Value,
}

#[derive(Deserialize)]
struct ConfigModule<'a> {
    #[serde(borrow, default)]
    resources: Option<Vec<RawConfigResource<'a>>>,
    #[serde(default)]
    module_calls: Option<BTreeMap<String, IgnoredAny>>,
}

#[derive(Deserialize)]
struct RawConfigResource<'a> {
    #[serde(borrow)]
    address: Cow<'a, str>,
    #[serde(borrow, default)]
    mode: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    provider_config_key: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    expressions: Option<&'a RawValue>,
    #[serde(borrow, default)]
    depends_on: Option<Vec<Cow<'a, str>>>,
    #[serde(borrow, default)]
    provisioners: Option<&'a RawValue>,
}

/// A value parsed when first looked at.
#[derive(Debug, Default)]
struct Lazy<'a> {
    raw: Option<&'a RawValue>,
    value: OnceCell<Value>,
}

impl<'a> Lazy<'a> {
    fn new(raw: Option<&'a RawValue>) -> Self {
        Lazy {
            raw,
            value: OnceCell::new(),
        }
    }

    /// The value; a slice that can't be parsed (nested too deep) sets `broken`, and the plan is refused.
    fn get(&self, broken: &Cell<bool>) -> &Value {
        self.value.get_or_init(|| match self.raw {
            None => Value::Null,
            Some(raw) => serde_json::from_str(raw.get()).unwrap_or_else(|_| {
                broken.set(true);
                Value::Null
            }),
        })
    }
}

/// What Terraform says it will do with one resource (G-14).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Nothing.
    NoOp,
    /// Create.
    Create,
    /// Read a data source during apply.
    Read,
    /// Change in place.
    Update,
    /// Delete.
    Delete,
    /// Drop from the state without touching the object.
    Forget,
    /// Delete and create in either order, or create and forget.
    Replace,
    /// None of the known arrays.
    Unknown,
}

impl Action {
    fn of(actions: &[Cow<'_, str>]) -> Action {
        let words: Vec<&str> = actions.iter().map(AsRef::as_ref).collect();
        match words.as_slice() {
            ["no-op"] => Action::NoOp,
            ["create"] => Action::Create,
            ["read"] => Action::Read,
            ["update"] => Action::Update,
            ["delete"] => Action::Delete,
            ["forget"] => Action::Forget,
            ["delete", "create"] | ["create", "delete"] | ["create", "forget"] => Action::Replace,
            _ => Action::Unknown,
        }
    }

    /// The word in a manifest and in a report.
    pub fn as_str(self) -> &'static str {
        match self {
            Action::NoOp => "no-op",
            Action::Create => "create",
            Action::Read => "read",
            Action::Update => "update",
            Action::Delete => "delete",
            Action::Forget => "forget",
            Action::Replace => "replace",
            Action::Unknown => "unknown",
        }
    }

    /// Whether the object, or its old form, is gone afterwards.
    pub(crate) fn deletes(self) -> bool {
        matches!(self, Action::Delete | Action::Replace)
    }
}

/// One entry of `resource_changes` or `resource_drift`.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    pub(crate) address: Cow<'a, str>,
    pub(crate) previous_address: Option<Cow<'a, str>>,
    pub(crate) module_address: Option<Cow<'a, str>>,
    pub(crate) mode: Option<Cow<'a, str>>,
    pub(crate) kind: Option<Cow<'a, str>>,
    pub(crate) name: Option<Cow<'a, str>>,
    pub(crate) provider_name: Option<Cow<'a, str>>,
    pub(crate) deposed: Option<Cow<'a, str>>,
    pub(crate) action: Action,
    pub(crate) action_words: Vec<Cow<'a, str>>,
    pub(crate) importing: Option<Value>,
    pub(crate) has_generated_config: bool,
    before: Lazy<'a>,
    after: Lazy<'a>,
    after_unknown: Lazy<'a>,
    before_sensitive: Lazy<'a>,
    after_sensitive: Lazy<'a>,
    broken: std::rc::Rc<Cell<bool>>,
}

impl<'a> Change<'a> {
    fn new(raw: RawChange<'a>, broken: &std::rc::Rc<Cell<bool>>) -> Self {
        let body = raw.change;
        Change {
            address: raw.address,
            previous_address: raw.previous_address,
            module_address: raw.module_address,
            mode: raw.mode,
            kind: raw.kind,
            name: raw.name,
            provider_name: raw.provider_name,
            deposed: raw.deposed,
            action: Action::of(&body.actions),
            action_words: body.actions,
            importing: body.importing,
            has_generated_config: body
                .generated_config
                .is_some_and(|raw| !matches!(raw.get(), "\"\"" | "null")),
            before: Lazy::new(body.before),
            after: Lazy::new(body.after),
            after_unknown: Lazy::new(body.after_unknown),
            before_sensitive: Lazy::new(body.before_sensitive),
            after_sensitive: Lazy::new(body.after_sensitive),
            broken: broken.clone(),
        }
    }

    /// The resource type, empty when the plan does not say it.
    pub(crate) fn kind(&self) -> &str {
        self.kind.as_deref().unwrap_or("")
    }

    /// The object before; null on a create.
    pub(crate) fn before(&self) -> &Value {
        self.before.get(&self.broken)
    }

    /// The object after, without the leaves that are unknown; null on a delete and a forget.
    pub(crate) fn after(&self) -> &Value {
        self.after.get(&self.broken)
    }

    /// The mask of unknown leaves.
    pub(crate) fn after_unknown(&self) -> &Value {
        self.after_unknown.get(&self.broken)
    }

    /// Whether nothing at or under a path, nor an ancestor of it, is unknown.
    pub(crate) fn known(&self, path: &str) -> bool {
        !json::masked(self.after_unknown(), path)
    }

    /// Whether Terraform marks the value at a path as sensitive.
    pub(crate) fn marked(&self, path: &str) -> bool {
        json::masked(self.before_sensitive.get(&self.broken), path)
            || json::masked(self.after_sensitive.get(&self.broken), path)
    }

    /// Whether the value at a path must not be shown: Terraform marks it, or our own list does (A-8, 6.3).
    pub(crate) fn hidden(&self, path: &str) -> bool {
        self.marked(path) || super::verdict::is_secret_path(path)
    }

    /// The value before at a path; null when absent.
    pub(crate) fn b(&self, path: &str) -> &Value {
        json::at(self.before(), path).unwrap_or(&NULL)
    }

    /// The value after at a path; null when absent. Ask [`Change::known`] first.
    pub(crate) fn a(&self, path: &str) -> &Value {
        json::at(self.after(), path).unwrap_or(&NULL)
    }

    /// Leaf paths that change.
    pub(crate) fn changed(&self) -> Vec<String> {
        json::changed_paths(self.before(), self.after(), self.after_unknown())
    }

    /// Whether the entry imports an object.
    pub(crate) fn is_import(&self) -> bool {
        self.importing.is_some()
    }

    /// Whether the plan shows no object on either side: a thing found missing on refresh (IM-7).
    pub(crate) fn is_null(&self) -> bool {
        self.before().is_null() && self.after().is_null()
    }
}

/// One resource of the configuration.
#[derive(Debug)]
pub(crate) struct ConfigResource<'a> {
    pub(crate) address: Cow<'a, str>,
    pub(crate) mode: Option<Cow<'a, str>>,
    pub(crate) provider_config_key: Option<Cow<'a, str>>,
    pub(crate) depends_on: Vec<Cow<'a, str>>,
    pub(crate) has_provisioners: bool,
    expressions: Lazy<'a>,
    broken: std::rc::Rc<Cell<bool>>,
}

impl ConfigResource<'_> {
    /// The expression object at a dotted path of arguments; null when the argument is not set.
    pub(crate) fn expression(&self, path: &str) -> &Value {
        json::at(self.expressions.get(&self.broken), path).unwrap_or(&NULL)
    }

    /// The references of an expression, most specific first.
    pub(crate) fn references(&self, path: &str) -> Vec<&str> {
        match self.expression(path).get("references").and_then(Value::as_array) {
            Some(items) => items.iter().filter_map(Value::as_str).collect(),
            None => Vec::new(),
        }
    }

    /// Whether an expression refers to one resource and to nothing else (RBD-9).
    pub(crate) fn refers_only_to(&self, path: &str, address: &str) -> bool {
        let refs = self.references(path);
        !refs.is_empty()
            && refs.iter().all(|r| {
                r.strip_prefix(address)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
            })
    }
}

/// A plan, read.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) format_version: Option<Cow<'a, str>>,
    pub(crate) terraform_version: Option<Cow<'a, str>>,
    pub(crate) has_planned_values: bool,
    pub(crate) has_configuration: bool,
    pub(crate) has_state_values: bool,
    pub(crate) timestamp: Option<Cow<'a, str>>,
    pub(crate) applyable: Option<bool>,
    pub(crate) complete: Option<bool>,
    pub(crate) errored: Option<bool>,
    pub(crate) changes: Vec<Change<'a>>,
    /// Where an address stands in `changes`, its first occurrence (G-16 refuses a second).
    index: BTreeMap<String, usize>,
    pub(crate) drift: Vec<Change<'a>>,
    pub(crate) changed_outputs: Vec<String>,
    pub(crate) prior_data: Vec<String>,
    pub(crate) prior_addresses: BTreeSet<Cow<'a, str>>,
    pub(crate) checks: Vec<Check>,
    pub(crate) deferred: Vec<&'static str>,
    pub(crate) invocations: Vec<&'static str>,
    pub(crate) providers: BTreeMap<String, ProviderConfig>,
    pub(crate) variables: BTreeMap<String, Value>,
    pub(crate) config: Vec<ConfigResource<'a>>,
    pub(crate) module_calls: Vec<String>,
    broken: std::rc::Rc<Cell<bool>>,
}

/// Why a document could not be read as a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PlanFault {
    /// Not JSON, or cut short: nothing can be said about it.
    Unreadable(String),
    /// JSON, but not of the shape of a plan.
    NotAPlan(String),
}

impl<'a> Plan<'a> {
    /// Reads a plan. The text says where in the document the fault is.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Plan<'a>, PlanFault> {
        let text = std::str::from_utf8(bytes)
            .map_err(|e| PlanFault::Unreadable(format!("not UTF-8 text after byte {}", e.valid_up_to())))?;
        match serde_json::from_str::<Document<'a>>(text) {
            Ok(document) => Ok(Plan::new(document)),
            Err(error) => match serde_json::from_str::<IgnoredAny>(text) {
                Ok(_) => Err(PlanFault::NotAPlan(error.to_string())),
                Err(error) => Err(PlanFault::Unreadable(error.to_string())),
            },
        }
    }

    fn new(doc: Document<'a>) -> Plan<'a> {
        let broken = std::rc::Rc::new(Cell::new(false));
        let (mut prior_data, mut prior_addresses) = (Vec::new(), BTreeSet::new());
        let root = doc.prior_state.and_then(|s| s.values).and_then(|v| v.root_module);
        root.into_iter()
            .for_each(|m| walk_state(m, &mut prior_data, &mut prior_addresses));
        let has_configuration = doc.configuration.is_some();
        let (providers, module) = match doc.configuration {
            Some(c) => (c.provider_config.unwrap_or_default(), c.root_module),
            None => (BTreeMap::new(), None),
        };
        let (resources, calls) = match module {
            Some(m) => (
                m.resources.unwrap_or_default(),
                m.module_calls.unwrap_or_default(),
            ),
            None => (Vec::new(), BTreeMap::new()),
        };
        let filled =
            |raw: Option<&RawValue>| raw.is_some_and(|raw| !matches!(raw.get().trim(), "[]" | "{}" | "null"));
        let mut deferred = Vec::new();
        if filled(doc.deferred_changes) {
            deferred.push("deferred_changes");
        }
        let mut invocations = Vec::new();
        if filled(doc.deferred_action_invocations) {
            invocations.push("deferred_action_invocations");
        }
        if filled(doc.action_invocations) {
            invocations.push("action_invocations");
        }
        let changes = read_changes(doc.resource_changes, &broken);
        let mut index = BTreeMap::new();
        for (i, change) in changes.iter().enumerate() {
            index.entry(change.address.to_string()).or_insert(i);
        }
        let changed_outputs = doc.output_changes.unwrap_or_default().into_iter();
        Plan {
            format_version: doc.format_version,
            terraform_version: doc.terraform_version,
            has_planned_values: doc.planned_values.is_some(),
            has_configuration,
            has_state_values: doc.values.is_some(),
            timestamp: doc.timestamp,
            applyable: doc.applyable,
            complete: doc.complete,
            errored: doc.errored,
            changes,
            index,
            drift: read_changes(doc.resource_drift, &broken),
            changed_outputs: changed_outputs
                .filter(|(_, c)| c.actions != ["no-op"])
                .map(|(name, _)| name)
                .collect(),
            prior_data,
            prior_addresses,
            checks: doc.checks.unwrap_or_default(),
            deferred,
            invocations,
            providers,
            variables: doc.variables.unwrap_or_default(),
            config: resources
                .into_iter()
                .map(|raw| config_resource(raw, &broken))
                .collect(),
            module_calls: calls.into_keys().collect(),
            broken,
        }
    }

    /// The change of an address.
    pub(crate) fn change(&self, address: &str) -> Option<&Change<'a>> {
        self.index.get(address).and_then(|i| self.changes.get(*i))
    }

    /// The drift entry of an address.
    pub(crate) fn drift(&self, address: &str) -> Option<&Change<'a>> {
        self.drift.iter().find(|c| c.address == address)
    }

    /// The configuration of an address.
    pub(crate) fn config(&self, address: &str) -> Option<&ConfigResource<'a>> {
        self.config.iter().find(|c| c.address == address)
    }

    /// Changes of one resource type.
    pub(crate) fn of_type(&self, kind: &str) -> impl Iterator<Item = &Change<'a>> {
        self.changes.iter().filter(move |c| c.kind() == kind)
    }

    /// Whether a value that a rule looked at could not be parsed.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// The constant region of the AWS provider, through one input variable if need be; None when it is not said.
    pub(crate) fn provider_region(&self) -> Option<&str> {
        let region = self.providers.get("aws")?.expressions.get("region")?;
        if let Some(text) = region.get("constant_value") {
            return text.as_str();
        }
        let reference = region.get("references")?.as_array()?.first()?.as_str()?;
        self.variables
            .get(reference.strip_prefix("var.")?)?
            .get("value")?
            .as_str()
    }
}

fn read_changes<'a>(raw: Option<Vec<RawChange<'a>>>, broken: &std::rc::Rc<Cell<bool>>) -> Vec<Change<'a>> {
    raw.unwrap_or_default()
        .into_iter()
        .map(|raw| Change::new(raw, broken))
        .collect()
}

fn config_resource<'a>(raw: RawConfigResource<'a>, broken: &std::rc::Rc<Cell<bool>>) -> ConfigResource<'a> {
    ConfigResource {
        address: raw.address,
        mode: raw.mode,
        provider_config_key: raw.provider_config_key,
        depends_on: raw.depends_on.unwrap_or_default(),
        has_provisioners: raw.provisioners.is_some_and(|raw| raw.get() != "[]"),
        expressions: Lazy::new(raw.expressions),
        broken: broken.clone(),
    }
}

fn walk_state<'a>(module: StateModule<'a>, data: &mut Vec<String>, addresses: &mut BTreeSet<Cow<'a, str>>) {
    for resource in module.resources.unwrap_or_default() {
        let address = resource.address.unwrap_or_default();
        if resource.mode.as_deref() != Some("managed") {
            data.push(address.to_string());
        }
        addresses.insert(address);
    }
    for child in module.child_modules.unwrap_or_default() {
        walk_state(child, data, addresses);
    }
}
