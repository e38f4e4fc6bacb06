//! CloudFormation, the release list and the table in memory, for tests: a model that moves only when told to.
//!
//! [`Cloud`] is a plain value (cloneable, hashable), so that an explorer can branch on it. [`FakeWorld`] puts
//! it behind [`World`], counts calls, keeps a trace, and can throttle, deny, time out or lose an answer.

use super::model::*;
use super::run::World;
use super::store;
use crate::error::{CallError, Class};
use crate::store::memory::MemoryTable;
use crate::store::{Attr, Item, Key, Page, Query, Versioned, Write, WriteError};
use crate::time::{Timestamp, plus_seconds};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

/// ARN of the fake stack.
pub const STACK_ARN: &str = "arn:aws:cloudformation:eu-west-1:123456789012:stack/shop/1111";
/// Its name.
pub const STACK: &str = "shop";
/// Partition of the fake install.
pub const PK: &str = "INSTALL#shop";

/// A change set and what CloudFormation knows beside its description.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FakeSet {
    /// As described.
    pub set: ChangeSet,
    /// Release it goes to: the `Version` output after a good run.
    pub release: String,
    /// Was it deleted, by us, by an admin, or by another run?
    pub deleted: bool,
    /// How often its execution began. Never more than 1 on AWS.
    pub runs: u32,
}

/// CloudFormation and S3 as one value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cloud {
    /// The stack; None: it does not exist.
    pub stack: Option<Stack>,
    /// Every change set ever made, deleted ones too.
    pub sets: Vec<FakeSet>,
    /// Events of stacks, newest first.
    pub events: BTreeMap<String, Vec<Event>>,
    /// The release list.
    pub releases: Vec<u8>,
    /// Template summaries by address.
    pub templates: BTreeMap<String, TemplateSummary>,
    /// Findings by change-set ARN.
    pub findings: BTreeMap<String, Vec<Finding>>,
    /// Every build ever started.
    pub builds: Vec<FakeBuild>,
    /// Models this install has configured.
    pub models: Vec<String>,
}

/// A build of the release check and what it was started for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FakeBuild {
    /// As described.
    pub build: Build,
    /// Release.
    pub release: String,
    /// Attempt.
    pub attempt: u64,
    /// idempotencyToken.
    pub token: String,
}

impl Default for Cloud {
    fn default() -> Self {
        Self::quiet("2.3.0")
    }
}

/// Refuses with a code and a text.
fn refuse(action: &str, code: &str, text: &str) -> CallError {
    CallError::new(Class::Refused, action, code, text)
}

impl Cloud {
    /// A quiet stack at a release, UPDATE_COMPLETE by an operation long ago, with releases 2.3.0 to 2.5.0 listed.
    pub fn quiet(release: &str) -> Self {
        let stack = Stack {
            arn: STACK_ARN.into(),
            status: "UPDATE_COMPLETE".into(),
            outputs: BTreeMap::from([("Version".into(), release.into())]),
            parameters: ["DomainName".to_owned(), "DbPassword".to_owned()].into(),
            updated_at: Timestamp::from_second(1_000).ok(),
            change_set_id: Some(format!("{STACK_ARN}/old-set")),
            ..Stack::default()
        };
        Self {
            stack: Some(stack),
            sets: Vec::new(),
            events: BTreeMap::new(),
            releases: release_list(&[("2.3.0", None), ("2.3.5", None), ("2.4.0", None), ("2.5.0", None)]),
            templates: BTreeMap::new(),
            findings: BTreeMap::new(),
            builds: Vec::new(),
            models: Vec::new(),
        }
    }

    /// The live set with this ARN or name.
    pub fn set(&mut self, name_or_arn: &str) -> Option<&mut FakeSet> {
        self.sets
            .iter_mut()
            .find(|s| s.set.arn == name_or_arn || s.set.name == name_or_arn)
    }

    /// Puts a set there, as if CloudFormation had made it.
    pub fn put_set(
        &mut self,
        name: &str,
        release: &str,
        status: &str,
        execution: &str,
        at: Timestamp,
    ) -> String {
        let arn = set_arn(name);
        self.sets.push(FakeSet {
            set: ChangeSet {
                arn: arn.clone(),
                name: name.into(),
                status: status.into(),
                execution: execution.into(),
                created_at: Some(at),
                description: Some(format!(
                    "Headgate update {} to release {release}",
                    name.trim_start_matches("upd-")
                )),
                ..ChangeSet::default()
            },
            release: release.into(),
            deleted: false,
            runs: 0,
        });
        arn
    }

    /// The set becomes ready to run.
    pub fn make(&mut self, name: &str) {
        if let Some(s) = self.set(name).filter(|s| !s.deleted) {
            s.set.status = "CREATE_COMPLETE".into();
            s.set.execution = "AVAILABLE".into();
        }
    }

    /// The set could not be made.
    pub fn fail_to_make(&mut self, name: &str, reason: &str) {
        if let Some(s) = self.set(name).filter(|s| !s.deleted) {
            s.set.status = "FAILED".into();
            s.set.execution = "UNAVAILABLE".into();
            s.set.reason = Some(reason.into());
        }
    }

    /// Appends an event of the root stack itself.
    pub fn root_event(&mut self, at: Timestamp, status: &str, reason: Option<&str>, token: Option<&str>) {
        let e = Event {
            stack_arn: STACK_ARN.into(),
            logical_id: STACK.into(),
            physical_id: Some(STACK_ARN.into()),
            kind: "AWS::CloudFormation::Stack".into(),
            status: status.into(),
            reason: reason.map(Into::into),
            at,
            token: token.map(Into::into),
            operation_id: None,
            hook: None,
        };
        self.events.entry(STACK_ARN.into()).or_default().insert(0, e);
    }

    /// Appends an event of a resource of the root stack.
    pub fn resource_event(&mut self, at: Timestamp, id: &str, status: &str, reason: Option<&str>) {
        let e = Event {
            stack_arn: STACK_ARN.into(),
            logical_id: id.into(),
            physical_id: Some(format!("{id}-1")),
            kind: "AWS::Lambda::Function".into(),
            status: status.into(),
            reason: reason.map(Into::into),
            at,
            token: None,
            operation_id: None,
            hook: None,
        };
        self.events.entry(STACK_ARN.into()).or_default().insert(0, e);
    }

    fn stack_mut(&mut self) -> Option<&mut Stack> {
        self.stack.as_mut()
    }

    /// Starts to run a set. Executing one removes all others (spec/updates.md 4.1 item 3). `token` is the
    /// ClientRequestToken every event of the run carries; a console run has one of its own.
    ///
    /// # Errors
    /// The set is not there, or can not be run, with CloudFormation's codes and words.
    pub fn start_run(&mut self, arn: &str, token: &str, now: Timestamp) -> Result<(), CallError> {
        let action = "cloudformation:ExecuteChangeSet";
        let busy = self
            .stack
            .as_ref()
            .is_some_and(|s| super::tables::is_busy(&s.status));
        let Some(s) = self.set(arn).filter(|s| !s.deleted) else {
            return Err(CallError::new(
                Class::NotFound,
                action,
                "ChangeSetNotFound",
                "ChangeSet does not exist",
            ));
        };
        if s.set.status != "CREATE_COMPLETE" || s.set.execution != "AVAILABLE" {
            let text = format!(
                "ChangeSet [{arn}] cannot be executed in its current execution status of [{}]",
                s.set.execution
            );
            return Err(refuse(action, "InvalidChangeSetStatus", &text));
        }
        if busy {
            return Err(refuse(
                action,
                "InvalidChangeSetStatus",
                "An operation on this ChangeSet is in progress.",
            ));
        }
        s.set.execution = "EXECUTE_IN_PROGRESS".into();
        s.runs += 1;
        for other in self.sets.iter_mut().filter(|o| o.set.arn != arn && o.runs == 0) {
            other.deleted = true;
        }
        if let Some(st) = self.stack_mut() {
            st.status = "UPDATE_IN_PROGRESS".into();
            st.reason = Some("User Initiated".into());
            st.change_set_id = Some(arn.to_owned());
            st.updated_at = Some(now);
        }
        self.root_event(now, "UPDATE_IN_PROGRESS", Some("User Initiated"), Some(token));
        Ok(())
    }

    /// The set that runs now.
    pub fn running(&self) -> Option<&FakeSet> {
        self.sets
            .iter()
            .find(|s| s.set.execution == "EXECUTE_IN_PROGRESS")
    }

    fn token_of_run(&self) -> Option<String> {
        let events = self.events.get(STACK_ARN)?;
        events
            .iter()
            .find(|e| e.is_root() && e.status == "UPDATE_IN_PROGRESS")?
            .token
            .clone()
    }

    fn end_run(&mut self, now: Timestamp, status: &str, execution: &str, release: Option<String>) {
        let token = self.token_of_run();
        let arn = self.running().map(|s| s.set.arn.clone());
        if let Some(s) = arn.as_deref().and_then(|a| self.set(a)) {
            s.set.execution = execution.into();
        }
        if let Some(st) = self.stack_mut() {
            st.status = status.into();
            st.reason = None;
            if let Some(r) = release {
                st.outputs.insert("Version".into(), r);
            }
        }
        self.root_event(now, status, None, token.as_deref());
    }

    /// The running set ends well: the stack reports its release.
    pub fn succeed(&mut self, now: Timestamp) {
        let release = self.running().map(|s| s.release.clone());
        self.end_run(now, "UPDATE_COMPLETE", "EXECUTE_COMPLETE", release);
    }

    /// A resource of the running set fails and the stack starts to roll back.
    pub fn fail_run(&mut self, now: Timestamp, resource: &str, reason: &str) {
        let token = self.token_of_run();
        self.resource_event(now, resource, "UPDATE_FAILED", Some(reason));
        if let Some(st) = self.stack_mut() {
            st.status = "UPDATE_ROLLBACK_IN_PROGRESS".into();
            st.reason = Some(format!(
                "The following resource(s) failed to update: [{resource}]. "
            ));
        }
        let text = format!("The following resource(s) failed to update: [{resource}]. ");
        self.root_event(now, "UPDATE_ROLLBACK_IN_PROGRESS", Some(&text), token.as_deref());
    }

    /// The rollback ends well.
    pub fn finish_rollback(&mut self, now: Timestamp) {
        self.end_run(now, "UPDATE_ROLLBACK_COMPLETE", "EXECUTE_FAILED", None);
    }

    /// The rollback fails.
    pub fn fail_rollback(&mut self, now: Timestamp) {
        self.end_run(now, "UPDATE_ROLLBACK_FAILED", "EXECUTE_FAILED", None);
    }

    /// Somebody deletes a set in the console. A set that runs or ran can not be deleted.
    pub fn console_delete(&mut self, arn: &str) {
        if let Some(s) = self.set(arn).filter(|s| s.runs == 0) {
            s.deleted = true;
        }
    }

    /// Somebody updates the stack without a change set: sets stay, as OBSOLETE.
    pub fn foreign_update(&mut self, now: Timestamp) {
        for s in self.sets.iter_mut().filter(|s| !s.deleted && s.runs == 0) {
            s.set.execution = "OBSOLETE".into();
        }
        if let Some(st) = self.stack_mut() {
            st.status = "UPDATE_COMPLETE".into();
            st.updated_at = Some(now);
            st.change_set_id = Some(format!("{STACK_ARN}/foreign"));
        }
        self.root_event(now, "UPDATE_IN_PROGRESS", Some("User Initiated"), Some("foreign"));
        self.root_event(now, "UPDATE_COMPLETE", None, Some("foreign"));
    }

    /// Answers a look.
    pub fn look(&self, look: &Look) -> Seen {
        let set = |s: Option<&FakeSet>| {
            Seen::Set(match s {
                Some(s) => SetRead::Seen(Box::new(s.set.clone())),
                None => SetRead::NotFound,
            })
        };
        match look {
            Look::Stack(_) => Seen::Stack(match &self.stack {
                Some(s) => StackRead::Seen(Box::new(s.clone())),
                None => StackRead::Missing,
            }),
            Look::SetByArn(arn) => set(self.sets.iter().find(|s| s.set.arn == *arn && !s.deleted)),
            // By name a set that ran is no longer found (spec/updates.md 4.1 item 4).
            Look::SetByName { name, .. } => set(self.sets.iter().find(|s| {
                let ran = matches!(s.set.execution.as_str(), "EXECUTE_COMPLETE" | "EXECUTE_FAILED");
                s.set.name == *name && !s.deleted && !ran
            })),
            Look::Events { stack, since } => {
                let all = self.events.get(stack).cloned().unwrap_or_default();
                Seen::Events(Ok(all.into_iter().filter(|e| e.at >= *since).collect()))
            }
            Look::Findings(arn) => Seen::Findings(Ok(self.findings.get(arn).cloned().unwrap_or_default())),
            Look::Releases => Seen::Releases(Ok(self.releases.clone())),
            Look::Template(url) => Seen::Template(Ok(self.templates.get(url).cloned().unwrap_or_default())),
            Look::Build(id) => Seen::Build(match self.builds.iter().find(|b| b.build.id == *id) {
                Some(b) => BuildRead::Seen(Box::new(b.build.clone())),
                None => BuildRead::NotFound,
            }),
            Look::FindBuild { release, attempt } => {
                let found = self
                    .builds
                    .iter()
                    .find(|b| b.release == *release && b.attempt == *attempt);
                Seen::Build(match found {
                    Some(b) => BuildRead::Seen(Box::new(b.build.clone())),
                    None => BuildRead::NotFound,
                })
            }
            Look::Models => Seen::Models(Ok(self.models.clone())),
            Look::Project => Seen::Project(Ok(true)),
        }
    }

    /// Does an act.
    ///
    /// # Errors
    /// As CloudFormation refuses.
    pub fn act(&mut self, act: &Act, now: Timestamp) -> Result<Fact, CallError> {
        match act {
            Act::Create(c) => {
                let action = "cloudformation:CreateChangeSet";
                if self.sets.iter().any(|s| s.set.name == c.name && !s.deleted) {
                    return Ok(Fact::Exists(format!("ChangeSet {} already exists", c.name)));
                }
                let Some(stack) = &self.stack else {
                    return Err(refuse(action, "ValidationError", "Stack does not exist"));
                };
                if super::tables::gate(&stack.status).is_some() {
                    // spec/updates.md 4.1 item 14.
                    let text = format!(
                        "Stack:{STACK_ARN} is in {} state and can not be updated.",
                        stack.status
                    );
                    return Err(refuse(action, "ValidationError", &text));
                }
                let release = c.description.rsplit(' ').next().unwrap_or("").to_owned();
                let arn = self.put_set(&c.name, &release, "CREATE_PENDING", "UNAVAILABLE", now);
                if let Some(s) = self.set(&arn) {
                    s.set.description = Some(c.description.clone());
                }
                Ok(Fact::Made(arn))
            }
            Act::Execute { arn, token } => {
                let again = self.set(arn).is_some_and(|s| s.runs > 0) && {
                    let events = self.events.get(STACK_ARN).cloned().unwrap_or_default();
                    events.iter().any(|e| e.token.as_deref() == Some(token))
                };
                if again {
                    // The same ClientRequestToken is accepted again (spec/updates.md 3.4).
                    return Ok(Fact::Done);
                }
                match self.start_run(arn, token, now) {
                    // As the adapter reads it: the set is running already, so it has started.
                    Err(e) if e.message.contains("EXECUTE_IN_PROGRESS") => Ok(Fact::Done),
                    other => other.map(|()| Fact::Done),
                }
            }
            Act::Delete { arn } => self.delete(arn),
            Act::DeleteByName { name, .. } => {
                match self
                    .sets
                    .iter()
                    .find(|s| s.set.name == *name && !s.deleted && s.runs == 0)
                {
                    Some(s) => {
                        let arn = s.set.arn.clone();
                        self.delete(&arn)
                    }
                    None => Ok(Fact::Done),
                }
            }
            Act::StartBuild(b) => {
                // The same token gives the same build (spec/updates.md 3.4).
                if let Some(old) = self.builds.iter().find(|o| o.token == b.token) {
                    return Ok(Fact::Started(old.build.id.clone()));
                }
                let id = format!("release-check:{}-{}", b.release, b.attempt);
                self.builds.push(FakeBuild {
                    build: Build {
                        id: id.clone(),
                        status: "IN_PROGRESS".into(),
                        phase: "QUEUED".into(),
                        ..Build::default()
                    },
                    release: b.release.clone(),
                    attempt: b.attempt,
                    token: b.token.clone(),
                });
                Ok(Fact::Started(id))
            }
            Act::StopBuild(id) => {
                self.end_build(id, "STOPPED", None);
                Ok(Fact::Done)
            }
        }
    }

    /// A build ends with a status, and maybe a text.
    pub fn end_build(&mut self, id: &str, status: &str, message: Option<&str>) {
        if let Some(b) = self
            .builds
            .iter_mut()
            .find(|b| b.build.id == id && !b.build.complete)
        {
            b.build.status = status.into();
            b.build.phase = "COMPLETED".into();
            b.build.complete = true;
            b.build.message = message.map(Into::into);
        }
    }

    fn delete(&mut self, arn: &str) -> Result<Fact, CallError> {
        let Some(s) = self.set(arn) else {
            return Ok(Fact::Done);
        };
        if s.runs > 0 || s.set.execution.starts_with("EXECUTE") {
            let text = format!(
                "An operation on this ChangeSet is in progress or done: [{}]",
                s.set.execution
            );
            return Err(refuse(
                "cloudformation:DeleteChangeSet",
                "InvalidChangeSetStatus",
                &text,
            ));
        }
        s.deleted = true;
        Ok(Fact::Done)
    }
}

/// ARN of a set of this name.
pub fn set_arn(name: &str) -> String {
    format!("arn:aws:cloudformation:eu-west-1:123456789012:changeSet/{name}/1")
}

/// A release list as it stands in S3.
pub fn release_list(releases: &[(&str, Option<&str>)]) -> Vec<u8> {
    let list: Vec<serde_json::Value> = releases
        .iter()
        .map(|(r, requires)| {
            let mut v = serde_json::json!({
                "release": r, "template_url": format!("https://releases.example/{r}.yaml"),
                "template_sha256": digest_of(r), "released_at": "2026-11-01T00:00:00Z"});
            if let (Some(req), Some(o)) = (requires, v.as_object_mut()) {
                o.insert("requires".into(), (*req).into());
            }
            v
        })
        .collect();
    serde_json::json!({"schema": 1, "releases": list})
        .to_string()
        .into_bytes()
}

/// The digest a release has in the fake list.
pub fn digest_of(release: &str) -> String {
    use sha2::{Digest, Sha256};
    crate::http::hex(&Sha256::digest(release.as_bytes()))
}

/// What the next answer of a kind shall be instead of the model's.
#[derive(Debug, Clone)]
pub enum Instead {
    /// The call fails before it has any effect.
    Before(CallError),
    /// The call has its effect, and then its answer is lost or an error.
    After(CallError),
    /// A write is done, its answer is lost, and the SDK sends it again: the second try meets the first one's item.
    Twice,
}

/// What somebody else does just before a request is served.
pub type Other = Box<dyn FnOnce(&FakeWorld)>;

/// Somebody else's turns, by a word of the trace line before which each happens, once.
#[derive(Default)]
pub struct Meanwhile(Vec<(String, Other)>);

impl std::fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|(word, _)| word))
            .finish()
    }
}

/// The fake behind the seam.
#[derive(Debug)]
pub struct FakeWorld {
    /// The table.
    pub table: RefCell<MemoryTable>,
    /// CloudFormation and S3.
    pub cloud: RefCell<Cloud>,
    /// The moment: what CloudFormation's clock says.
    pub now: Cell<Timestamp>,
    /// Every request in order, one readable line each.
    pub trace: RefCell<Vec<String>>,
    /// Answers to looks that replace the model's: by a word of the trace line, used while they last.
    pub looks: RefCell<Vec<(String, VecDeque<Seen>)>>,
    /// Faults of acts and writes, by a word of the trace line, used while they last.
    pub faults: RefCell<Vec<(String, VecDeque<Instead>)>>,
    /// Round trips left; None: no bound.
    pub budget: Cell<Option<u32>>,
    /// What others do in between.
    pub others: RefCell<Meanwhile>,
}

impl FakeWorld {
    /// A world with a quiet stack and an empty table.
    pub fn new(now: Timestamp) -> Self {
        Self {
            table: RefCell::default(),
            cloud: RefCell::new(Cloud::default()),
            now: Cell::new(now),
            trace: RefCell::default(),
            looks: RefCell::default(),
            faults: RefCell::default(),
            budget: Cell::new(None),
            others: RefCell::default(),
        }
    }

    /// Lets somebody else act just before the first request whose trace line contains `word`.
    pub fn meanwhile(&self, word: &str, other: impl FnOnce(&FakeWorld) + 'static) {
        self.others.borrow_mut().0.push((word.into(), Box::new(other)));
    }

    /// Stores a row as it is.
    pub fn seed(&self, row: &Update) {
        let mut item = Versioned::fresh(row.clone()).item_for(row);
        let key = store::update_key(PK, row.seq);
        item.insert("pk".into(), Attr::s(key.pk));
        item.insert("sk".into(), Attr::s(key.sk));
        self.table.borrow_mut().seed(item);
    }

    /// Stores the head as it is.
    pub fn seed_head(&self, head: &Head) {
        let mut item = Versioned::fresh(head.clone()).item_for(head);
        item.insert("pk".into(), Attr::s(PK));
        item.insert("sk".into(), Attr::s(store::HEAD_SK));
        self.table.borrow_mut().seed(item);
    }

    /// Stores a model check for a release.
    pub fn seed_check(&self, release: &str, state: &str, reason: Option<&str>) {
        let key = store::check_key(PK, release);
        let mut item = Item::from([
            ("pk".into(), Attr::s(key.pk)),
            ("sk".into(), Attr::s(key.sk)),
            ("release".into(), Attr::s(release)),
            ("state".into(), Attr::s(state)),
            ("template_sha256".into(), Attr::s(digest_of(release))),
            ("checked_at".into(), Attr::s("2026-11-30T10:00:00Z")),
            ("rev".into(), Attr::n(1)),
            ("schema".into(), Attr::n(1)),
        ]);
        if state == "pending" {
            item.insert("started_at".into(), Attr::s(self.now.get().to_string()));
        }
        if let Some(r) = reason {
            item.insert(
                "reason".into(),
                Attr::M(BTreeMap::from([("text".into(), Attr::s(r))])),
            );
        }
        self.table.borrow_mut().seed(item);
    }

    /// The stored row of this sequence number.
    pub fn row(&self, seq: u64) -> Option<Update> {
        let item = self.table.borrow().get(&store::update_key(PK, seq))?;
        Versioned::<Update>::read(item).ok().map(|v| v.row)
    }

    /// The stored head.
    pub fn head(&self) -> Head {
        let item = self.table.borrow().get(&store::head_key(PK));
        item.and_then(|i| Versioned::<Head>::read(i).ok())
            .map(|v| v.row)
            .unwrap_or_default()
    }

    /// Lines of the trace that begin with a word.
    pub fn count(&self, word: &str) -> usize {
        self.trace.borrow().iter().filter(|l| l.starts_with(word)).count()
    }

    /// Replaces the answers of looks whose trace line contains `word`.
    pub fn answer(&self, word: &str, answers: Vec<Seen>) {
        self.looks.borrow_mut().push((word.into(), answers.into()));
    }

    /// Makes acts and writes fail whose trace line contains `word`.
    pub fn fault(&self, word: &str, faults: Vec<Instead>) {
        self.faults.borrow_mut().push((word.into(), faults.into()));
    }

    fn log(&self, line: String) {
        if let Some(n) = self.budget.get() {
            self.budget.set(Some(n.saturating_sub(1)));
        }
        let due = {
            let mut others = self.others.borrow_mut();
            let at = others.0.iter().position(|(w, _)| line.contains(w.as_str()));
            at.map(|i| others.0.remove(i).1)
        };
        if let Some(other) = due {
            other(self);
        }
        self.trace.borrow_mut().push(line);
    }

    fn instead(&self, line: &str) -> Option<Instead> {
        let mut faults = self.faults.borrow_mut();
        faults
            .iter_mut()
            .find(|(w, q)| line.contains(w.as_str()) && !q.is_empty())
            .and_then(|(_, q)| q.pop_front())
    }

    fn answered(&self, line: &str) -> Option<Seen> {
        let mut looks = self.looks.borrow_mut();
        looks
            .iter_mut()
            .find(|(w, q)| line.contains(w.as_str()) && !q.is_empty())
            .and_then(|(_, q)| q.pop_front())
    }
}

/// One readable line for a look.
pub fn look_line(look: &Look) -> String {
    match look {
        Look::Stack(s) => format!("look stack {s}"),
        Look::SetByArn(a) => format!("look set {a}"),
        Look::SetByName { name, .. } => format!("look set-by-name {name}"),
        Look::Events { stack, .. } => format!("look events {stack}"),
        Look::Findings(a) => format!("look findings {a}"),
        Look::Releases => "look releases".into(),
        Look::Template(u) => format!("look template {u}"),
        Look::Build(id) => format!("look build {id}"),
        Look::FindBuild { release, attempt } => format!("look find-build {release} {attempt}"),
        Look::Models => "look models".into(),
        Look::Project => "look project".into(),
    }
}

/// One readable line for an act.
pub fn act_line(act: &Act) -> String {
    match act {
        Act::Create(c) => format!("act create {} token={}", c.name, c.token),
        Act::Execute { arn, token } => format!("act execute {arn} token={token}"),
        Act::Delete { arn } => format!("act delete {arn}"),
        Act::DeleteByName { name, .. } => format!("act delete-by-name {name}"),
        Act::StartBuild(b) => format!("act start-build {} attempt={}", b.release, b.attempt),
        Act::StopBuild(id) => format!("act stop-build {id}"),
    }
}

/// One readable line for a transaction.
pub fn save_line(writes: &[Write]) -> String {
    let parts: Vec<String> = writes
        .iter()
        .map(|w| {
            let what = match &w.op {
                crate::store::Op::Put(i) => {
                    i.get("status").and_then(Attr::as_str).unwrap_or("put").to_owned()
                }
                crate::store::Op::Update { .. } => "update".into(),
                crate::store::Op::Delete => "delete".into(),
                crate::store::Op::Check => "check".into(),
            };
            format!("{}={what}", w.key.sk)
        })
        .collect();
    format!("save {}", parts.join(" "))
}

/// As the adapter judges lost conditions: our own write id in every item there means that it was done.
fn judge(writes: &[Write], answer: Result<(), WriteError>) -> Result<(), WriteError> {
    match answer {
        Err(WriteError::Conflict(lost))
            if lost.iter().all(|c| {
                writes
                    .get(c.index)
                    .is_some_and(|w| w.already_done(c.old.as_ref()))
            }) =>
        {
            Ok(())
        }
        other => other,
    }
}

impl World for FakeWorld {
    async fn query(&self, q: &Query) -> Result<Page, CallError> {
        let line = format!("query {}", q.sk_prefix);
        self.log(line.clone());
        if let Some(Instead::Before(e) | Instead::After(e)) = self.instead(&line) {
            return Err(e);
        }
        Ok(self.table.borrow().query(q))
    }

    async fn get(&self, key: &Key) -> Result<Option<Item>, CallError> {
        let line = format!("get {}", key.sk);
        self.log(line.clone());
        if let Some(Instead::Before(e) | Instead::After(e)) = self.instead(&line) {
            return Err(e);
        }
        Ok(self.table.borrow().get(key))
    }

    async fn save(&self, writes: &[Write], _token: &str) -> Result<(), WriteError> {
        let line = save_line(writes);
        self.log(line.clone());
        match self.instead(&line) {
            Some(Instead::Before(e)) => Err(WriteError::Call(e)),
            Some(Instead::After(e)) => {
                self.table.borrow_mut().write(writes)?;
                Err(WriteError::Call(e))
            }
            Some(Instead::Twice) => {
                self.table.borrow_mut().write(writes)?;
                let again = self.table.borrow_mut().write(writes);
                judge(writes, again)
            }
            None => self.table.borrow_mut().write(writes),
        }
    }

    async fn look(&self, looks: &[Look]) -> Vec<Seen> {
        looks
            .iter()
            .map(|l| {
                let line = look_line(l);
                self.log(line.clone());
                self.answered(&line)
                    .unwrap_or_else(|| self.cloud.borrow().look(l))
            })
            .collect()
    }

    async fn act(&self, act: &Act) -> Result<Fact, CallError> {
        let line = act_line(act);
        self.log(line.clone());
        match self.instead(&line) {
            Some(Instead::Before(e)) => Err(e),
            Some(Instead::After(e)) => {
                let _ = self.cloud.borrow_mut().act(act, self.now.get());
                Err(e)
            }
            Some(Instead::Twice) | None => self.cloud.borrow_mut().act(act, self.now.get()),
        }
    }

    fn time_left(&self) -> bool {
        self.budget.get() != Some(0)
    }
}

/// Runs a future that never waits for anything but the fake.
pub fn now_or_never<F: Future>(f: F) -> F::Output {
    let mut f = std::pin::pin!(f);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match f.as_mut().poll(&mut cx) {
        std::task::Poll::Ready(v) => v,
        std::task::Poll::Pending => unreachable!("the fake answers at once"),
    }
}

/// A row as begin leaves it, `age` seconds old, with its set named after it.
pub fn update(seq: u64, release: &str, status: State, age: i64, now: Timestamp) -> Update {
    let id = store::id_for(
        uuid::Uuid::from_u128(0x0192_f000_0000_7000_8000_0000_0000_0000),
        seq,
    );
    let name = format!("upd-{id}");
    let at = plus_seconds(now, -age);
    Update {
        id,
        seq,
        rev: 1,
        status,
        from_release: Some("2.3.0".into()),
        to_release: release.into(),
        template_url: Some(format!("https://releases.example/{release}.yaml")),
        template_sha256: Some(digest_of(release)),
        parameters: Some("previous".into()),
        change_set_id: Some(set_arn(&name)),
        change_set_name: name,
        change_set_created_at: Some(at),
        started_by: "ana".into(),
        started_at: at,
        applied_by: None,
        applied_at: None,
        attempted_by: None,
        apply_token: None,
        operation_id: None,
        model_check: None,
        summary: Some(Summary::default()),
        reason: None,
        needs_admin: None,
        warnings: vec![],
        superseded_by: None,
        progress: None,
        finished_at: None,
        change_set_cleanup: Cleanup::None,
        observed_at: Some(at),
        last_write_id: None,
        stack_missed_at: None,
        settling_since: None,
        reason_pending: false,
        ttl: None,
    }
}
