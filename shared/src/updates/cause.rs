//! Why a run failed: the root cause out of stack events (spec/updates.md 4.5). Pure.
//!
//! The search is bound to one operation. It begins at the root stack's own start event: the first one after
//! the change set was made, by CloudFormation's clock. Any other operation after that moment would have made
//! the set obsolete, so a set that ran was run by exactly that one, whoever started it. It ends where the
//! next operation starts; the automatic rollback, although an operation of its own, starts with no
//! "User Initiated" and so lies inside (items 40, 41).

use super::model::Event;
use crate::status::Reason;
use crate::time::Timestamp;
use std::collections::BTreeMap;

/// Longest text of a reason, in characters (item 46).
const TEXT_MAX: usize = 500;
/// How deep nested stacks are followed.
const DEPTH_MAX: usize = 6;

/// Events by stack ARN, as far as they were read; None for a stack whose events could not be read.
pub type EventsByStack = BTreeMap<String, Option<Vec<Event>>>;

/// The part of the root stack's events that belongs to one operation.
#[derive(Debug, Clone)]
pub struct Operation<'a> {
    /// Oldest first.
    pub events: Vec<&'a Event>,
    /// Did another operation start on the stack after it?
    pub followed: bool,
}

/// Is this an event that starts an operation a person or a tool asked for?
fn starts_operation(e: &Event) -> bool {
    e.is_root()
        && matches!(
            e.status.as_str(),
            "CREATE_IN_PROGRESS"
                | "UPDATE_IN_PROGRESS"
                | "DELETE_IN_PROGRESS"
                | "IMPORT_IN_PROGRESS"
                | "REVIEW_IN_PROGRESS"
        )
        && e.status != "REVIEW_IN_PROGRESS"
}

/// The operation that ran a change set made at `made_at`. `events` are newest first. None when its start is
/// not among them.
pub fn operation<'a>(events: &'a [Event], made_at: Timestamp, token: Option<&str>) -> Option<Operation<'a>> {
    let ascending: Vec<&Event> = events.iter().rev().collect();
    let ours = |e: &Event| token.is_some() && e.token.as_deref() == token;
    let start = ascending
        .iter()
        .position(|e| starts_operation(e) && ours(e))
        .or_else(|| {
            ascending
                .iter()
                .position(|e| starts_operation(e) && e.at >= made_at)
        })?;
    let begun = ascending.get(start)?;
    let rest = ascending.get(start + 1..).unwrap_or_default();
    // The same operation may show more than one start event; another one has another token or operation id.
    let other = |e: &&Event| {
        starts_operation(e)
            && (e.token != begun.token || e.operation_id != begun.operation_id || e.token.is_none())
    };
    let end = rest.iter().position(other);
    let inside = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
    let mut all = vec![*begun];
    all.extend(inside.iter().copied());
    Some(Operation {
        events: all,
        followed: end.is_some(),
    })
}

impl Operation<'_> {
    /// The event that began it.
    pub fn start(&self) -> Option<&Event> {
        self.events.first().copied()
    }

    /// The root stack's last own event with one of these statuses.
    fn last_root(&self, pred: impl Fn(&str) -> bool) -> Option<&Event> {
        self.events
            .iter()
            .rev()
            .copied()
            .find(|e| e.is_root() && pred(&e.status))
    }

    /// The root event that ended it.
    pub fn end(&self) -> Option<&Event> {
        self.last_root(|s| !s.ends_with("_IN_PROGRESS"))
    }

    /// The root event that began its rollback.
    pub fn rollback(&self) -> Option<&Event> {
        self.events.iter().copied().find(|e| {
            e.is_root()
                && matches!(
                    e.status.as_str(),
                    "UPDATE_ROLLBACK_IN_PROGRESS" | "ROLLBACK_IN_PROGRESS"
                )
        })
    }

    /// Resources whose removal failed after the new ones were live: leftovers, not the cause (item 42).
    pub fn leftovers(&self) -> Vec<String> {
        let Some(cleaning) = self.cleanup_start() else {
            return Vec::new();
        };
        let mut ids: Vec<String> = self
            .events
            .iter()
            .filter(|e| e.at >= cleaning && e.status == "DELETE_FAILED" && !e.is_root())
            .map(|e| e.logical_id.clone())
            .collect();
        ids.sort();
        ids.dedup();
        ids
    }

    fn cleanup_start(&self) -> Option<Timestamp> {
        self.events
            .iter()
            .find(|e| e.is_root() && e.status == "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS")
            .map(|e| e.at)
    }

    /// How many resources of the root stack are done, how many are being worked on, the latest of those, and the
    /// last event's time.
    pub fn progress(&self) -> (u64, u64, Option<String>, Option<Timestamp>) {
        let mut latest: BTreeMap<&str, &Event> = BTreeMap::new();
        let mut working: Option<&Event> = None;
        for e in self.events.iter().filter(|e| !e.is_root()) {
            latest.insert(&e.logical_id, e);
        }
        let mut in_progress = 0;
        for e in latest.values().filter(|e| e.status.ends_with("_IN_PROGRESS")) {
            in_progress += 1;
            if working.is_none_or(|w| e.at >= w.at) {
                working = Some(e);
            }
        }
        let done = latest
            .values()
            .filter(|e| e.status.ends_with("_COMPLETE"))
            .count() as u64;
        let resource = working.map(|e| e.logical_id.clone());
        (done, in_progress, resource, self.events.last().map(|e| e.at))
    }
}

/// What the search found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// The oldest real failure.
    Found(Box<Reason>),
    /// The events of this nested stack must be read first.
    NeedChild {
        /// ARN of the nested stack: it may be gone, and then only the ARN works (item 39).
        stack: String,
        /// Its part of the operation began here.
        since: Timestamp,
    },
    /// No failure among the events.
    Nothing,
}

struct Candidate {
    at: Timestamp,
    path: Vec<String>,
    kind: String,
    text: String,
}

/// The root cause of an operation. `children` holds the events of nested stacks read so far.
pub fn root_cause(op: &Operation<'_>, root_arn: &str, children: &EventsByStack) -> Cause {
    let mut found = Vec::new();
    if let Err((stack, since)) = collect(
        &op.events,
        root_arn,
        &[],
        children,
        op.cleanup_start(),
        &mut found,
    ) {
        return Cause::NeedChild { stack, since };
    }
    // The oldest; on a tie the one that came first in the operation, which the order of collection keeps.
    match found.into_iter().reduce(|a, b| if b.at < a.at { b } else { a }) {
        None => Cause::Nothing,
        Some(c) => {
            let mut r = Reason::new("root_cause", clean(&c.text)).from_source("cloudformation");
            r.resource = Some(c.path.join("/"));
            r.kind = Some(c.kind);
            r.handler_error_code = handler_code(&c.text);
            r.at = Some(c.at);
            Cause::Found(Box::new(r))
        }
    }
}

fn collect(
    events: &[&Event],
    stack_arn: &str,
    path: &[String],
    children: &EventsByStack,
    until: Option<Timestamp>,
    found: &mut Vec<Candidate>,
) -> Result<(), (String, Timestamp)> {
    for e in events {
        let own = e.is_root() || e.physical_id.as_deref() == Some(stack_arn);
        let late = until.is_some_and(|t| e.at >= t);
        if own || late || !e.status.ends_with("_FAILED") {
            continue;
        }
        let text = e.reason.clone().unwrap_or_default();
        // "Resource creation cancelled": another failure stopped it.
        if text.to_ascii_lowercase().contains("cancelled") {
            continue;
        }
        let mut here = path.to_vec();
        here.push(e.logical_id.clone());
        let nested = e.kind == "AWS::CloudFormation::Stack" && path.len() < DEPTH_MAX;
        if let (true, Some(child)) = (nested, e.physical_id.as_deref().filter(|p| p.starts_with("arn:"))) {
            let began = events
                .iter()
                .find(|s| s.logical_id == e.logical_id && s.status.ends_with("_IN_PROGRESS"))
                .map_or(e.at, |s| s.at);
            match children.get(child) {
                None => return Err((child.to_owned(), began)),
                Some(Some(read)) => {
                    let inner: Vec<&Event> = read.iter().rev().filter(|c| c.at >= began).collect();
                    let before = found.len();
                    collect(&inner, child, &here, children, None, found)?;
                    if found.len() > before {
                        continue;
                    }
                }
                // Its events can not be read: the parent's line is the best there is.
                Some(None) => {}
            }
        }
        let hook = events.iter().rev().find(|h| {
            h.logical_id == e.logical_id
                && h.at <= e.at
                && h.hook
                    .as_ref()
                    .is_some_and(|k| matches!(k.status.as_str(), "HOOK_COMPLETE_FAILED" | "HOOK_FAILED"))
        });
        let text = match hook.and_then(|h| h.hook.as_ref()) {
            None => text,
            Some(h) => {
                let why = h.reason.as_deref().unwrap_or("no reason given");
                format!("{text} (hook {}: {why})", h.kind)
            }
        };
        let text = if text.is_empty() {
            format!("{} without a reason", e.status)
        } else {
            text
        };
        found.push(Candidate {
            at: e.at,
            path: here,
            kind: e.kind.clone(),
            text,
        });
    }
    Ok(())
}

/// The reason of a failed run when no resource failed: a cancel by a user, else the stack's own words, else
/// the change set's (item 45).
pub fn fallback(
    op: Option<&Operation<'_>>,
    stack_reason: Option<&str>,
    set_reason: Option<&str>,
) -> Option<Reason> {
    let rollback = op
        .and_then(Operation::rollback)
        .and_then(|e| e.reason.as_deref().map(|r| (r, e.at)));
    if let Some((text, at)) = rollback
        && text.to_ascii_lowercase().contains("cancel")
    {
        let mut r = Reason::new(
            "cancelled_by_user",
            format!("The update was cancelled by a user: {}", clean(text)),
        );
        r.at = Some(at);
        return Some(r.from_source("cloudformation"));
    }
    let text = stack_reason.or(rollback.map(|r| r.0)).or(set_reason)?;
    Some(Reason::new("root_cause", clean(text)).from_source("cloudformation"))
}

/// `HandlerErrorCode` inside a reason text.
fn handler_code(text: &str) -> Option<String> {
    let rest = text.split("HandlerErrorCode: ").nth(1)?;
    let code: String = rest.chars().take_while(char::is_ascii_alphanumeric).collect();
    (!code.is_empty()).then_some(code)
}

/// A text fit to store and show: at most 500 characters, without account ids, request tokens and signed
/// addresses (item 46).
pub fn clean(text: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut skip_token = false;
    for word in text.split_whitespace() {
        if skip_token {
            skip_token = false;
            // Keep what closes the parenthesis the token stood in.
            let tail: String = word
                .chars()
                .skip_while(|c| c.is_ascii_alphanumeric() || *c == '-')
                .collect();
            words.push(format!("…{tail}"));
            continue;
        }
        if word
            .trim_start_matches(['(', '[', '{'])
            .eq_ignore_ascii_case("RequestToken:")
        {
            skip_token = true;
        }
        words.push(mask_account(&unsign(word)));
    }
    let joined = words.join(" ");
    if joined.chars().count() <= TEXT_MAX {
        return joined;
    }
    let cut: String = joined.chars().take(TEXT_MAX - 1).collect();
    format!("{cut}…")
}

/// Drops the query of a signed address.
fn unsign(word: &str) -> String {
    let lower = word.to_ascii_lowercase();
    let signed = lower.contains("x-amz-signature")
        || lower.contains("x-amz-credential")
        || lower.contains("signature=");
    match word.find('?') {
        Some(q) if signed => format!("{}?…", word.get(..q).unwrap_or_default()),
        _ => word.to_owned(),
    }
}

/// Masks every run of exactly twelve digits.
fn mask_account(word: &str) -> String {
    let mut out = String::with_capacity(word.len());
    let mut digits = String::new();
    let flush = |digits: &mut String, out: &mut String| {
        if digits.len() == 12 {
            out.push('…');
        } else {
            out.push_str(digits);
        }
        digits.clear();
    };
    for c in word.chars() {
        if c.is_ascii_digit() {
            digits.push(c);
        } else {
            flush(&mut digits, &mut out);
            out.push(c);
        }
    }
    flush(&mut digits, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "arn:aws:cloudformation:eu-west-1:123456789012:stack/shop/1";

    fn ts(s: i64) -> Timestamp {
        Timestamp::from_second(s).unwrap()
    }

    fn event(at: i64, logical: &str, status: &str, reason: Option<&str>) -> Event {
        Event {
            stack_arn: ROOT.into(),
            logical_id: logical.into(),
            physical_id: None,
            kind: "AWS::Lambda::Function".into(),
            status: status.into(),
            reason: reason.map(Into::into),
            at: ts(at),
            token: None,
            operation_id: None,
            hook: None,
        }
    }

    fn root(at: i64, status: &str, reason: Option<&str>) -> Event {
        let mut e = event(at, "shop", status, reason);
        e.kind = "AWS::CloudFormation::Stack".into();
        e.physical_id = Some(ROOT.into());
        e
    }

    /// Oldest first in, newest first out.
    fn list(mut events: Vec<Event>) -> Vec<Event> {
        events.reverse();
        events
    }

    fn cause(events: &[Event], made: i64) -> Cause {
        let op = operation(events, ts(made), None).unwrap();
        root_cause(&op, ROOT, &EventsByStack::new())
    }

    fn text(c: Cause) -> String {
        match c {
            Cause::Found(r) => r.text,
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn o07_a_cancelled_resource_is_not_the_cause() {
        let e = list(vec![
            root(10, "UPDATE_IN_PROGRESS", Some("User Initiated")),
            event(
                11,
                "Api",
                "UPDATE_FAILED",
                Some("Resource handler returned message: no (HandlerErrorCode: AlreadyExists)"),
            ),
            event(12, "A", "CREATE_FAILED", Some("Resource creation cancelled")),
            event(12, "B", "UPDATE_FAILED", Some("Resource update cancelled")),
            root(
                13,
                "UPDATE_ROLLBACK_IN_PROGRESS",
                Some("The following resource(s) failed to update: [Api]."),
            ),
            root(20, "UPDATE_ROLLBACK_COMPLETE", None),
        ]);
        let Cause::Found(r) = cause(&e, 5) else { panic!() };
        assert_eq!(r.resource.as_deref(), Some("Api"));
        assert_eq!(r.handler_error_code.as_deref(), Some("AlreadyExists"));
    }

    #[test]
    fn o05_the_failure_of_an_earlier_run_is_outside() {
        let e = list(vec![
            root(1, "UPDATE_IN_PROGRESS", Some("User Initiated")),
            event(2, "Old", "UPDATE_FAILED", Some("last month")),
            root(3, "UPDATE_ROLLBACK_COMPLETE", None),
            root(10, "UPDATE_IN_PROGRESS", Some("User Initiated")),
            event(11, "New", "UPDATE_FAILED", Some("today")),
            root(12, "UPDATE_ROLLBACK_IN_PROGRESS", None),
        ]);
        assert_eq!(text(cause(&e, 5)), "today");
    }

    #[test]
    fn the_search_ends_where_a_later_operation_starts() {
        let e = list(vec![
            root(10, "UPDATE_IN_PROGRESS", Some("User Initiated")),
            event(11, "Mine", "UPDATE_FAILED", Some("mine")),
            root(12, "UPDATE_ROLLBACK_COMPLETE", None),
            root(20, "UPDATE_IN_PROGRESS", Some("User Initiated")),
            event(21, "Theirs", "UPDATE_FAILED", Some("theirs")),
        ]);
        let op = operation(&e, ts(5), None).unwrap();
        assert!(op.followed);
        assert_eq!(op.end().unwrap().status, "UPDATE_ROLLBACK_COMPLETE");
        assert_eq!(text(cause(&e, 5)), "mine");
    }

    #[test]
    fn a_failed_update_and_its_rollback_are_two_operation_ids_and_one_search() {
        let mut e = vec![
            root(10, "UPDATE_IN_PROGRESS", Some("User Initiated")),
            event(11, "Api", "UPDATE_FAILED", Some("real")),
            root(12, "UPDATE_ROLLBACK_IN_PROGRESS", None),
            event(13, "Api", "UPDATE_COMPLETE", None),
            root(14, "UPDATE_ROLLBACK_COMPLETE", None),
        ];
        for (i, x) in e.iter_mut().enumerate() {
            x.operation_id = Some(if i < 2 { "op-1" } else { "op-2" }.into());
            x.token = (i < 2).then(|| "apply-1".to_owned());
        }
        let e = list(e);
        let op = operation(&e, ts(5), Some("apply-1")).unwrap();
        assert!(!op.followed);
        assert_eq!(text(root_cause(&op, ROOT, &EventsByStack::new())), "real");
    }

    #[test]
    fn o08_the_nested_cause_replaces_the_embedded_line_and_has_a_path() {
        let child = "arn:aws:cloudformation:eu-west-1:123456789012:stack/shop-Db/2";
        let mut begun = event(11, "Db", "UPDATE_IN_PROGRESS", None);
        let mut failed = event(
            14,
            "Db",
            "UPDATE_FAILED",
            Some("Embedded stack was not successfully updated"),
        );
        for e in [&mut begun, &mut failed] {
            e.kind = "AWS::CloudFormation::Stack".into();
        }
        failed.physical_id = Some(child.into());
        let e = list(vec![
            root(10, "UPDATE_IN_PROGRESS", Some("User Initiated")),
            begun,
            failed,
        ]);
        let op = operation(&e, ts(5), None).unwrap();
        let need = root_cause(&op, ROOT, &EventsByStack::new());
        assert_eq!(
            need,
            Cause::NeedChild {
                stack: child.into(),
                since: ts(11)
            }
        );
        let mut inner = event(13, "Cluster", "UPDATE_FAILED", Some("disk is full"));
        inner.stack_arn = child.into();
        let mut old = event(2, "Cluster", "UPDATE_FAILED", Some("last month"));
        old.stack_arn = child.into();
        let read = EventsByStack::from([(child.to_owned(), Some(list(vec![old, inner])))]);
        let Cause::Found(r) = root_cause(&op, ROOT, &read) else {
            panic!()
        };
        assert_eq!(
            (r.text.as_str(), r.resource.as_deref()),
            ("disk is full", Some("Db/Cluster"))
        );
        let unread = EventsByStack::from([(child.to_owned(), None)]);
        assert!(text(root_cause(&op, ROOT, &unread)).starts_with("Embedded stack"));
    }

    #[test]
    fn a_hook_is_named_with_the_failure_it_caused() {
        let mut hook = event(11, "Bucket", "CREATE_IN_PROGRESS", None);
        hook.hook = Some(Hook {
            kind: "Acme::Encryption::Hook".into(),
            status: "HOOK_COMPLETE_FAILED".into(),
            reason: Some("bucket is not encrypted".into()),
        });
        let e = list(vec![
            root(10, "UPDATE_IN_PROGRESS", Some("User Initiated")),
            hook,
            event(
                12,
                "Bucket",
                "CREATE_FAILED",
                Some("The following hook(s) failed: [Acme]"),
            ),
        ]);
        let t = text(cause(&e, 5));
        assert!(
            t.contains("Acme::Encryption::Hook") && t.contains("bucket is not encrypted"),
            "{t}"
        );
    }

    #[test]
    fn leftovers_of_the_clean_up_are_no_cause() {
        let e = list(vec![
            root(10, "UPDATE_IN_PROGRESS", Some("User Initiated")),
            event(11, "New", "CREATE_COMPLETE", None),
            root(12, "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", None),
            event(13, "Old", "DELETE_FAILED", Some("still in use")),
            root(14, "UPDATE_COMPLETE", None),
        ]);
        let op = operation(&e, ts(5), None).unwrap();
        assert_eq!(root_cause(&op, ROOT, &EventsByStack::new()), Cause::Nothing);
        assert_eq!(op.leftovers(), ["Old"]);
        assert_eq!(op.end().unwrap().at, ts(14));
    }

    #[test]
    fn a_cancel_reads_as_such_and_else_the_stack_speaks() {
        let e = list(vec![
            root(10, "UPDATE_IN_PROGRESS", Some("User Initiated")),
            root(
                12,
                "UPDATE_ROLLBACK_IN_PROGRESS",
                Some("Update CANCELLED by user request"),
            ),
        ]);
        let op = operation(&e, ts(5), None).unwrap();
        assert_eq!(
            fallback(Some(&op), Some("x"), None).unwrap().code,
            "cancelled_by_user"
        );
        assert_eq!(
            fallback(None, Some("role may not be assumed"), Some("y"))
                .unwrap()
                .text,
            "role may not be assumed"
        );
        assert_eq!(fallback(None, None, Some("y")).unwrap().text, "y");
        assert_eq!(fallback(None, None, None), None);
    }

    #[test]
    fn stored_texts_have_no_account_token_or_signature() {
        let t = clean(
            "User arn:aws:iam::123456789012:role/x may not (RequestToken: 1a-2b, HandlerErrorCode: AccessDenied) see \
             https://b.example/o?X-Amz-Signature=abc&x=1 at 1234567890123",
        );
        assert!(
            !t.contains("123456789012:") && !t.contains("1a-2b") && !t.contains("abc"),
            "{t}"
        );
        assert!(t.contains("AccessDenied") && t.contains("1234567890123"), "{t}");
        assert_eq!(clean(&"é".repeat(900)).chars().count(), 500);
    }

    use super::super::model::Hook;
}
