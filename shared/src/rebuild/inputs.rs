//! The files a gate reads beside the plan: manifest, states, decisions, evidence, batch, answer, prior verdicts
//! (spec/rebuild.md 3.2 to 3.4, 2.10).

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::Value;

use super::json::{self, NULL};
use super::names;

/// One fault in an input document, with the path at which it sits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) path: String,
    pub(crate) what: String,
}

#[derive(Default)]
struct Faults(Vec<Fault>);

impl Faults {
    fn add(&mut self, path: &str, what: &str) {
        self.0.push(Fault {
            path: path.to_owned(),
            what: what.to_owned(),
        });
    }

    /// Text at a path; absent and null are None, any other type is a fault.
    fn text(&mut self, root: &Value, path: &str) -> Option<String> {
        match json::at(root, path) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(_) => {
                self.add(path, "must be text");
                None
            }
        }
    }

    fn need_text(&mut self, root: &Value, path: &str) -> String {
        match json::at(root, path) {
            Some(Value::String(text)) if !text.is_empty() => text.clone(),
            _ => {
                self.add(path, "must be given as text that is not empty");
                String::new()
            }
        }
    }

    fn text_map(&mut self, root: &Value, path: &str) -> BTreeMap<String, String> {
        let mut out = BTreeMap::new();
        match json::at(root, path) {
            None | Some(Value::Null) => {}
            Some(Value::Object(map)) => {
                for (key, value) in map {
                    match value.as_str() {
                        Some(text) => {
                            out.insert(key.clone(), text.to_owned());
                        }
                        None if value.is_null() => {}
                        None => self.add(&format!("{path}.{key}"), "must be text"),
                    }
                }
            }
            Some(_) => self.add(path, "must be an object of texts"),
        }
        out
    }

    fn text_list(&mut self, root: &Value, path: &str) -> Vec<String> {
        match json::at(root, path) {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(items)) if items.iter().all(Value::is_string) => items
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
            Some(_) => {
                self.add(path, "must be a list of texts");
                Vec::new()
            }
        }
    }
}

/// How a gated value is compared (2.11 row 24, 3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compare {
    Exact,
    Set,
    Json,
    Env,
    Ref,
    Dns,
}

/// One gated path of a manifest entry.
#[derive(Debug, Clone)]
pub(crate) struct Gated {
    pub(crate) before: Option<Value>,
    pub(crate) after: Option<Value>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) compare: Compare,
}

/// What a manifest says about one address of a phase.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    pub(crate) action: String,
    pub(crate) import_id: Option<String>,
    pub(crate) gated: BTreeMap<String, Gated>,
    pub(crate) allow_paths: BTreeSet<String>,
}

/// The entry of one phase (or phase and use).
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) root: Option<String>,
    /// None = every address of the state except the forget list.
    pub(crate) addresses: Option<BTreeMap<String, Gate>>,
    pub(crate) forget: BTreeSet<String>,
}

impl Entry {
    /// The gate of an address.
    pub(crate) fn gate(&self, address: &str) -> Option<&Gate> {
        self.addresses.as_ref()?.get(address)
    }

    /// Addresses with the given type prefix and action.
    pub(crate) fn addresses_of<'e>(&'e self, kind: &'e str) -> impl Iterator<Item = &'e str> {
        let all = self.addresses.iter().flat_map(|map| map.keys());
        all.map(String::as_str)
            .filter(move |address| type_of(address) == kind)
    }
}

/// The resource type in an address (`aws_lb` of `aws_lb.app`).
pub(crate) fn type_of(address: &str) -> &str {
    address.split('.').next().unwrap_or(address)
}

/// The certificate validation record that the manifest binds.
#[derive(Debug, Clone)]
pub(crate) struct Validation {
    pub(crate) outcome: Option<String>,
    pub(crate) address: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) value: Option<String>,
    pub(crate) decision: Option<String>,
    pub(crate) provenance: Option<String>,
}

/// Where background work is switched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Worker {
    pub(crate) switch: bool,
    pub(crate) env: String,
    pub(crate) off: String,
    pub(crate) on: String,
    pub(crate) lock: Option<String>,
    pub(crate) idle_check: Option<String>,
}

/// The manifest of a run (3.3).
#[derive(Debug, Clone)]
pub(crate) struct Manifest {
    pub(crate) run_id: Option<String>,
    pub(crate) account: String,
    pub(crate) region: String,
    pub(crate) app: Option<String>,
    pub(crate) env: Option<String>,
    pub(crate) service_arn: Option<String>,
    pub(crate) host: Option<String>,
    pub(crate) new_host: Option<String>,
    pub(crate) zone_id: String,
    pub(crate) zone_name: String,
    pub(crate) dns_target: Option<String>,
    pub(crate) roots: BTreeMap<String, Option<String>>,
    pub(crate) files: BTreeMap<String, String>,
    pub(crate) evidence: BTreeMap<String, String>,
    pub(crate) previous_sha256: Option<String>,
    pub(crate) cert_address: String,
    pub(crate) cert_domain: String,
    pub(crate) allow_old_issued: bool,
    pub(crate) validation: Option<Validation>,
    pub(crate) worker: Option<Worker>,
    pub(crate) image: Option<String>,
    pub(crate) min: Option<i64>,
    pub(crate) max: Option<i64>,
    pub(crate) sequence: Vec<(i64, i64)>,
    pub(crate) rollback: BTreeMap<(i64, i64), Vec<(i64, i64)>>,
    pub(crate) handoff_stacks: Vec<String>,
    pub(crate) phases: BTreeMap<String, Entry>,
}

impl Manifest {
    /// The name that clients use: the host, or `new_host` where there is no custom domain.
    pub(crate) fn name(&self) -> Option<&str> {
        self.host.as_deref().or(self.new_host.as_deref())
    }

    /// Whether the service has a custom domain.
    pub(crate) fn has_custom_domain(&self) -> bool {
        self.host.is_some()
    }

    /// Reads a manifest, listing every fault.
    pub(crate) fn read(root: &Value) -> Result<Manifest, Vec<Fault>> {
        let mut f = Faults::default();
        if !root.is_object() {
            f.add("", "must be an object");
            return Err(f.0);
        }
        if root.get("schema").and_then(Value::as_u64) != Some(1) {
            f.add("schema", "must be 1, the only schema this version reads");
            return Err(f.0);
        }
        let account = f.need_text(root, "account");
        if account.len() != 12 || !account.bytes().all(|b| b.is_ascii_digit()) {
            f.add("account", "must be 12 digits");
        }
        let (host, new_host) = (f.text(root, "host"), f.text(root, "new_host"));
        if host.is_none() && new_host.is_none() {
            f.add("host", "host or new_host must be given");
        }
        let manifest = Manifest {
            run_id: f.text(root, "run_id"),
            account,
            region: f.need_text(root, "region"),
            app: f.text(root, "app"),
            env: f.text(root, "env"),
            service_arn: f.text(root, "service_arn"),
            host,
            new_host,
            zone_id: names::zone_id(&f.need_text(root, "zone.id")).to_owned(),
            zone_name: f.need_text(root, "zone.name"),
            dns_target: f.text(root, "dns_target"),
            roots: roots(root, &mut f),
            files: f.text_map(root, "files"),
            evidence: f.text_map(root, "evidence"),
            previous_sha256: f.text(root, "previous_sha256"),
            cert_address: f.need_text(root, "certificate.address"),
            cert_domain: f.need_text(root, "certificate.domain_name"),
            allow_old_issued: json::at(root, "certificate.allow_old_issued") == Some(&Value::Bool(true)),
            validation: validation(root, &mut f),
            worker: worker(root, "worker", &mut f),
            image: f.text(root, "image"),
            min: json::at(root, "scaling.min").and_then(Value::as_i64),
            max: json::at(root, "scaling.max").and_then(Value::as_i64),
            sequence: sequence(root, &mut f),
            rollback: rollback(root, &mut f),
            handoff_stacks: f.text_list(root, "handoff_stacks"),
            phases: phases(root, &mut f),
        };
        if f.0.is_empty() { Ok(manifest) } else { Err(f.0) }
    }
}

fn roots(root: &Value, f: &mut Faults) -> BTreeMap<String, Option<String>> {
    let mut out = BTreeMap::new();
    match root.get("roots") {
        None | Some(Value::Null) => {}
        Some(Value::Object(map)) => {
            for key in map.keys() {
                out.insert(key.clone(), f.text(root, &format!("roots.{key}.lineage")));
            }
        }
        Some(_) => f.add("roots", "must be an object"),
    }
    out
}

fn validation(root: &Value, f: &mut Faults) -> Option<Validation> {
    match root.get("validation") {
        None | Some(Value::Null) => return None,
        Some(Value::Object(_)) => {}
        Some(_) => {
            f.add("validation", "must be an object or null");
            return None;
        }
    }
    let outcome = f.text(root, "validation.outcome");
    if outcome
        .as_deref()
        .is_some_and(|o| !matches!(o, "absent" | "owned" | "unowned" | "blocked"))
    {
        f.add("validation.outcome", "must be absent, owned, unowned or blocked");
    }
    Some(Validation {
        outcome,
        address: f.text(root, "validation.address"),
        name: f.text(root, "validation.name"),
        value: f.text(root, "validation.value"),
        decision: f.text(root, "validation.decision"),
        provenance: f.text(root, "validation.provenance"),
    })
}

fn worker(root: &Value, path: &str, f: &mut Faults) -> Option<Worker> {
    let map = match json::at(root, path) {
        None | Some(Value::Null) => return None,
        Some(value) => value,
    };
    let switch = match map.get("mode").and_then(Value::as_str) {
        Some("switch") => true,
        Some("none") => false,
        _ => {
            f.add(&format!("{path}.mode"), "must be none or switch");
            return None;
        }
    };
    let mut need = |key: &str| {
        let path = format!("{path}.{key}");
        if !switch {
            return String::new();
        }
        match json::at(root, &path) {
            // An off value may be empty text.
            Some(Value::String(text)) if key != "env" || !text.is_empty() => text.clone(),
            _ => {
                f.add(&path, "must be given as text when mode is switch");
                String::new()
            }
        }
    };
    let (env, off, on) = (need("env"), need("off"), need("on"));
    if switch && !env.is_empty() && off == on {
        f.add(&format!("{path}.on"), "must differ from off");
    }
    let text = |key: &str| map.get(key).and_then(Value::as_str).map(str::to_owned);
    Some(Worker {
        switch,
        env,
        off,
        on,
        lock: text("lock"),
        idle_check: text("idle_check"),
    })
}

fn pair(value: &Value) -> Option<(i64, i64)> {
    match value.as_array()?.as_slice() {
        [a, b] => Some((weight(a)?, weight(b)?)),
        _ => None,
    }
}

/// A Route 53 weight: an integer 0..=255 (CU-8).
pub(crate) fn weight(value: &Value) -> Option<i64> {
    value.as_i64().filter(|w| (0..=255).contains(w))
}

fn sequence(root: &Value, f: &mut Faults) -> Vec<(i64, i64)> {
    match json::at(root, "weights.sequence") {
        None | Some(Value::Null) => vec![(100, 0), (90, 10), (50, 50), (10, 90), (0, 100)],
        Some(Value::Array(items)) => {
            let pairs: Vec<_> = items.iter().filter_map(pair).collect();
            if pairs.len() != items.len() || pairs.len() < 2 {
                f.add(
                    "weights.sequence",
                    "must be a list of at least two pairs of integers 0 to 255",
                );
            }
            pairs
        }
        Some(_) => {
            f.add("weights.sequence", "must be a list of pairs");
            Vec::new()
        }
    }
}

fn rollback(root: &Value, f: &mut Faults) -> BTreeMap<(i64, i64), Vec<(i64, i64)>> {
    let mut out = BTreeMap::new();
    match json::at(root, "weights.rollback") {
        None | Some(Value::Null) => {
            for from in [(90, 10), (50, 50), (10, 90)] {
                out.insert(from, vec![(100, 0)]);
            }
            out.insert((0, 100), vec![(100, 100), (100, 0)]);
        }
        Some(Value::Object(map)) => {
            for (key, path) in map {
                let from = key
                    .split_once(',')
                    .and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
                let steps: Option<Vec<_>> = path
                    .as_array()
                    .map(|items| items.iter().filter_map(pair).collect());
                match (from, steps) {
                    (Some(from), Some(steps))
                        if !steps.is_empty() && path.as_array().map(Vec::len) == Some(steps.len()) =>
                    {
                        out.insert(from, steps);
                    }
                    _ => f.add(
                        &format!("weights.rollback.{key}"),
                        "must be \"a,b\" with a list of pairs",
                    ),
                }
            }
        }
        Some(_) => f.add("weights.rollback", "must be an object"),
    }
    out
}

fn phases(root: &Value, f: &mut Faults) -> BTreeMap<String, Entry> {
    let mut out = BTreeMap::new();
    match root.get("phases") {
        None | Some(Value::Null) => {}
        Some(Value::Object(map)) => {
            for (key, value) in map {
                if let Some(entry) = entry(value, &format!("phases.{key}"), f) {
                    out.insert(key.clone(), entry);
                }
            }
        }
        Some(_) => f.add("phases", "must be an object"),
    }
    out
}

fn entry(value: &Value, path: &str, f: &mut Faults) -> Option<Entry> {
    if !value.is_object() {
        f.add(path, "must be an object");
        return None;
    }
    let addresses = match value.get("addresses") {
        Some(Value::String(word)) if word == "all-in-state" => None,
        Some(Value::Object(map)) => {
            let mut out = BTreeMap::new();
            for (address, gate_value) in map {
                let path = format!("{path}.addresses.{address}");
                if let Some(gate) = gate(gate_value, &path, f) {
                    out.insert(address.clone(), gate);
                }
            }
            Some(out)
        }
        None | Some(Value::Null) => Some(BTreeMap::new()),
        Some(_) => {
            f.add(
                &format!("{path}.addresses"),
                "must be an object or \"all-in-state\"",
            );
            return None;
        }
    };
    if let Some(word) = value.get("allow_noop")
        && !matches!(word.as_str(), Some("state"))
        && !word.is_null()
    {
        f.add(&format!("{path}.allow_noop"), "must be \"state\"");
    }
    let root = value.get("root").and_then(Value::as_str).map(str::to_owned);
    if root
        .as_deref()
        .is_some_and(|r| !matches!(r, "m5a" | "infra_rebuild" | "alb"))
    {
        f.add(&format!("{path}.root"), "must be m5a, infra_rebuild or alb");
    }
    let forget = f.text_list(value, "forget").into_iter().collect();
    Some(Entry {
        root,
        addresses,
        forget,
    })
}

fn gate(value: &Value, path: &str, f: &mut Faults) -> Option<Gate> {
    let action = match value.get("action").and_then(Value::as_str) {
        Some(a @ ("create" | "update" | "import" | "forget" | "delete" | "no-op")) => a.to_owned(),
        _ => {
            f.add(
                &format!("{path}.action"),
                "must be create, update, import, forget, delete or no-op",
            );
            return None;
        }
    };
    let mut gated = BTreeMap::new();
    match value.get("gated") {
        None | Some(Value::Null) => {}
        Some(Value::Object(map)) => {
            for (key, item) in map {
                let at = format!("{path}.gated.{key}");
                let Some(object) = item.as_object() else {
                    f.add(&at, "must be an object with before, after, env or compare");
                    continue;
                };
                let env = f.text_map(item, "env");
                let compare = match object.get("compare").map(Value::as_str) {
                    None | Some(Some("exact")) if !env.is_empty() => Compare::Env,
                    None | Some(Some("exact")) => Compare::Exact,
                    Some(Some("set")) => Compare::Set,
                    Some(Some("json")) => Compare::Json,
                    Some(Some("env")) => Compare::Env,
                    Some(Some("ref")) => Compare::Ref,
                    Some(Some("dns" | "dns-set")) => Compare::Dns,
                    Some(_) => {
                        f.add(
                            &format!("{at}.compare"),
                            "must be exact, set, json, env, ref, dns or dns-set",
                        );
                        continue;
                    }
                };
                let gated_value = Gated {
                    before: object.get("before").cloned(),
                    after: object.get("after").cloned(),
                    env,
                    compare,
                };
                gated.insert(key.clone(), gated_value);
            }
        }
        Some(_) => f.add(&format!("{path}.gated"), "must be an object"),
    }
    let import_id = value.get("import_id").and_then(Value::as_str).map(str::to_owned);
    if action == "import" && import_id.is_none() {
        f.add(&format!("{path}.import_id"), "must be given for an import");
    }
    let allow_paths = f.text_list(value, "allow_paths").into_iter().collect();
    Some(Gate {
        action,
        import_id,
        gated,
        allow_paths,
    })
}

/// One resource of a state.
#[derive(Debug, Clone)]
pub(crate) struct StateItem {
    /// None when the state came as a list of addresses.
    pub(crate) values: Option<Value>,
    pub(crate) data: bool,
}

/// The resources of one root's state, by address.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    pub(crate) items: BTreeMap<String, StateItem>,
    /// Whether values are known: `terraform show -json`, not a list.
    pub(crate) has_values: bool,
    pub(crate) lineage: Option<String>,
}

impl State {
    /// Reads `terraform show -json`, or the output of `terraform state list`, told apart by the first character
    /// (2.11 row 19).
    pub(crate) fn read(text: &str) -> Result<State, String> {
        if text.trim_start().starts_with('{') {
            let root: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
            return State::from_json(&root);
        }
        let mut state = State::default();
        for (number, line) in text
            .lines()
            .map(str::trim)
            .enumerate()
            .filter(|(_, line)| !line.is_empty())
        {
            let plain = |c: char| c.is_ascii_alphanumeric() || "_-.[]\"/:@".contains(c);
            if !line.contains('.') || !line.chars().all(plain) {
                return Err(format!("line {} is no resource address", number + 1));
            }
            let data = line.starts_with("data.") || line.contains(".data.");
            state
                .items
                .insert(line.to_owned(), StateItem { values: None, data });
        }
        Ok(state)
    }

    fn from_json(root: &Value) -> Result<State, String> {
        if root.get("resource_changes").is_some() || root.get("planned_values").is_some() {
            return Err("this is a plan, not a state".into());
        }
        if !root.get("format_version").is_some_and(Value::is_string) {
            return Err("no format_version: not the output of `terraform show -json`".into());
        }
        let mut state = State {
            has_values: true,
            ..State::default()
        };
        state.lineage = root.get("lineage").and_then(Value::as_str).map(str::to_owned);
        let Some(values) = root.get("values").filter(|v| !v.is_null()) else {
            return Ok(state);
        };
        let module = values.get("root_module").ok_or("values has no root_module")?;
        walk(module, &mut state.items)?;
        Ok(state)
    }

    /// Whether an address is in the state.
    pub(crate) fn has(&self, address: &str) -> bool {
        self.items.contains_key(address)
    }

    /// Managed addresses.
    pub(crate) fn managed(&self) -> impl Iterator<Item = &str> {
        self.items
            .iter()
            .filter(|(_, item)| !item.data)
            .map(|(address, _)| address.as_str())
    }

    /// The values of an address; null when it is absent or values are not known.
    pub(crate) fn values(&self, address: &str) -> &Value {
        self.items
            .get(address)
            .and_then(|item| item.values.as_ref())
            .unwrap_or(&NULL)
    }

    /// Addresses and values of one type.
    pub(crate) fn of_type<'s>(&'s self, kind: &'s str) -> impl Iterator<Item = (&'s str, &'s Value)> {
        self.items
            .iter()
            .filter(move |(address, item)| !item.data && type_of(address) == kind)
            .map(|(address, item)| (address.as_str(), item.values.as_ref().unwrap_or(&NULL)))
    }

    /// The text at a path of the only, or first, resource of a type.
    pub(crate) fn first_text(&self, kind: &str, path: &str) -> Option<String> {
        self.of_type(kind)
            .find_map(|(_, values)| json::str_at(values, path))
            .map(str::to_owned)
    }
}

fn walk(module: &Value, out: &mut BTreeMap<String, StateItem>) -> Result<(), String> {
    for resource in module
        .get("resources")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let address = resource
            .get("address")
            .and_then(Value::as_str)
            .ok_or("a resource without an address")?;
        let data = resource.get("mode").and_then(Value::as_str) != Some("managed");
        let values = resource.get("values").cloned().unwrap_or(Value::Null);
        if out
            .insert(
                address.to_owned(),
                StateItem {
                    values: Some(values),
                    data,
                },
            )
            .is_some()
        {
            return Err(format!("{address} is listed twice"));
        }
    }
    for child in module
        .get("child_modules")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        walk(child, out)?;
    }
    Ok(())
}

/// The operator's decisions (2.10).
#[derive(Debug, Clone)]
pub(crate) struct Decisions(pub(crate) Value);

impl Decisions {
    /// The text of a decision; None when absent or null.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        json::str_at(&self.0, path)
    }

    /// The background-work decision; Err lists what is wrong with it.
    pub(crate) fn worker(&self) -> Result<Option<Worker>, Vec<Fault>> {
        let mut f = Faults::default();
        let worker = worker(&self.0, "background_work", &mut f);
        if f.0.is_empty() { Ok(worker) } else { Err(f.0) }
    }
}

/// `cert-requested.json` (3.4).
#[derive(Debug, Clone)]
pub(crate) struct CertRequested {
    pub(crate) certificate_arn: String,
    pub(crate) created_at: Option<Timestamp>,
    pub(crate) zone_id: String,
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) value: String,
    pub(crate) outcome: String,
}

impl CertRequested {
    /// Reads the file, listing every fault.
    pub(crate) fn read(root: &Value) -> Result<CertRequested, Vec<Fault>> {
        let mut f = Faults::default();
        if root.get("kind").and_then(Value::as_str) != Some("cert-requested") {
            f.add("kind", "must be cert-requested");
        }
        let out = CertRequested {
            certificate_arn: f.need_text(root, "certificate_arn"),
            created_at: root.get("certificate_created_at").and_then(names::time),
            zone_id: names::zone_id(&f.need_text(root, "record.zone_id")).to_owned(),
            name: f.need_text(root, "record.name"),
            kind: f.need_text(root, "record.type"),
            value: f.need_text(root, "record.value"),
            outcome: f.need_text(root, "outcome"),
        };
        if !matches!(out.outcome.as_str(), "absent" | "owned" | "unowned" | "blocked") {
            f.add("outcome", "must be absent, owned, unowned or blocked");
        }
        if f.0.is_empty() { Ok(out) } else { Err(f.0) }
    }
}

/// One change of a Route 53 batch.
#[derive(Debug, Clone)]
pub(crate) struct BatchChange {
    pub(crate) action: String,
    pub(crate) record: Record,
}

/// A Route 53 record set, from a batch or from ListResourceRecordSets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) ttl: Option<i64>,
    pub(crate) values: Vec<String>,
    pub(crate) set_identifier: Option<String>,
    pub(crate) weight: Option<i64>,
    /// DNS name and zone id of an alias target.
    pub(crate) alias: Option<(String, String)>,
    /// Routing other than simple or weighted (Failover, Region, GeoLocation, ...).
    pub(crate) other_routing: bool,
}

impl Record {
    /// Reads one `ResourceRecordSet`.
    pub(crate) fn read(value: &Value) -> Option<Record> {
        let map = value.as_object()?;
        let text = |key: &str| map.get(key).and_then(Value::as_str).map(str::to_owned);
        let values = match map.get("ResourceRecords") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(items)) => items
                .iter()
                .map(|r| r.get("Value")?.as_str().map(str::to_owned))
                .collect::<Option<Vec<_>>>()?,
            Some(_) => return None,
        };
        let alias = match map.get("AliasTarget") {
            None | Some(Value::Null) => None,
            Some(target) => Some((
                target.get("DNSName")?.as_str()?.to_owned(),
                names::zone_id(target.get("HostedZoneId")?.as_str()?).to_owned(),
            )),
        };
        let weight = match map.get("Weight") {
            None | Some(Value::Null) => None,
            Some(value) => Some(weight(value)?),
        };
        let other = [
            "Failover",
            "Region",
            "GeoLocation",
            "GeoProximityLocation",
            "CidrRoutingConfig",
            "MultiValueAnswer",
        ];
        Some(Record {
            name: text("Name")?,
            kind: text("Type")?,
            ttl: map.get("TTL").and_then(Value::as_i64),
            values,
            set_identifier: text("SetIdentifier").filter(|s| !s.is_empty()),
            weight,
            alias,
            other_routing: other
                .iter()
                .any(|key| map.get(*key).is_some_and(|v| !v.is_null())),
        })
    }

    /// Whether it is the plain form: no set identifier, weight, alias or other routing.
    pub(crate) fn is_simple(&self) -> bool {
        self.set_identifier.is_none() && self.weight.is_none() && self.alias.is_none() && !self.other_routing
    }

    /// The only value, when there is exactly one.
    pub(crate) fn only_value(&self) -> Option<&str> {
        match self.values.as_slice() {
            [one] => Some(one),
            _ => None,
        }
    }
}

/// A Route 53 change batch. The file may hold the batch alone or the whole request with the zone id.
#[derive(Debug, Clone)]
pub(crate) struct Batch {
    pub(crate) zone_id: Option<String>,
    pub(crate) changes: Vec<BatchChange>,
}

impl Batch {
    /// Reads a batch; Err says what is wrong.
    pub(crate) fn read(root: &Value) -> Result<Batch, String> {
        let zone_id = root
            .get("HostedZoneId")
            .and_then(Value::as_str)
            .map(|id| names::zone_id(id).to_owned());
        let batch = root.get("ChangeBatch").unwrap_or(root);
        let list = batch
            .get("Changes")
            .and_then(Value::as_array)
            .ok_or("no list Changes: not a Route 53 change batch")?;
        let mut changes = Vec::new();
        for (i, item) in list.iter().enumerate() {
            let action = item
                .get("Action")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned();
            let record = item.get("ResourceRecordSet").and_then(Record::read);
            let record = record.ok_or_else(|| format!("Changes.{i}.ResourceRecordSet can't be read"))?;
            changes.push(BatchChange { action, record });
        }
        Ok(Batch { zone_id, changes })
    }
}

/// A verdict given earlier in the run, as far as order rules need it.
#[derive(Debug, Clone)]
pub(crate) struct Prior {
    pub(crate) phase: String,
    pub(crate) use_: Option<String>,
    pub(crate) rollback: bool,
    pub(crate) passed: bool,
    pub(crate) run_id: Option<String>,
    pub(crate) checked_at: Option<Timestamp>,
    pub(crate) expires_at: Option<Timestamp>,
    /// When the person applied what this verdict allowed; None while not recorded.
    pub(crate) applied_at: Option<Timestamp>,
    pub(crate) manifest_sha256: Option<String>,
    pub(crate) facts: Value,
}

impl Prior {
    /// Reads a verdict object (3.5).
    pub(crate) fn read(root: &Value) -> Option<Prior> {
        let text = |key: &str| root.get(key).and_then(Value::as_str).map(str::to_owned);
        let inputs = root.get("inputs").and_then(Value::as_array).into_iter().flatten();
        let manifest = inputs.filter(|i| i.get("kind").and_then(Value::as_str) == Some("manifest"));
        let manifest_sha256 = manifest
            .filter_map(|i| i.get("sha256")?.as_str())
            .next()
            .map(str::to_owned);
        let phase = text("phase")?;
        // A plan phase may be recorded as "import:7a".
        let (phase, use_) = match phase.split_once(':') {
            Some((phase, use_)) => (phase.to_owned(), Some(use_.to_owned())),
            None => (phase, text("use")),
        };
        Some(Prior {
            phase,
            use_,
            rollback: text("direction").as_deref() == Some("rollback"),
            passed: text("verdict").as_deref() == Some("PASS"),
            run_id: text("run_id"),
            checked_at: root.get("checked_at").and_then(names::time),
            expires_at: root.get("expires_at").and_then(names::time),
            applied_at: root.get("applied_at").and_then(names::time),
            manifest_sha256: manifest_sha256.or_else(|| text("manifest_sha256")),
            facts: root.get("facts").cloned().unwrap_or(Value::Null),
        })
    }
}
