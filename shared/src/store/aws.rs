//! The DynamoDB adapter: turns [`Write`]s and [`Cond`]s into expressions. Makes no decision.

use super::{Attr, Cond, Conflict, Item, Key, Op, Page, Query, Table, Write, WriteError};
use crate::boot::call_error;
use crate::error::{CallError, Class};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::{
    AttributeValue, CancellationReason, ConditionCheck, Delete, Put, ReturnValuesOnConditionCheckFailure,
    TransactWriteItem, Update,
};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use std::collections::BTreeMap;

/// The table of this installation.
#[derive(Debug, Clone)]
pub struct DynamoTable {
    client: Client,
    name: String,
}

impl DynamoTable {
    /// A table reached through a client made once at cold start.
    pub fn new(client: Client, name: impl Into<String>) -> Self {
        Self {
            client,
            name: name.into(),
        }
    }
}

#[expect(
    clippy::disallowed_types,
    reason = "the SDK's own map type, at the adapter only"
)]
type SdkMap<V> = std::collections::HashMap<String, V>;
type SdkItem = SdkMap<AttributeValue>;

fn to_sdk(a: &Attr) -> AttributeValue {
    match a {
        Attr::S(s) => AttributeValue::S(s.clone()),
        Attr::N(n) => AttributeValue::N(n.clone()),
        Attr::Bool(b) => AttributeValue::Bool(*b),
        Attr::Null => AttributeValue::Null(true),
        Attr::L(l) => AttributeValue::L(l.iter().map(to_sdk).collect()),
        Attr::M(m) => AttributeValue::M(m.iter().map(|(k, v)| (k.clone(), to_sdk(v))).collect()),
        Attr::Ss(s) => AttributeValue::Ss(s.iter().cloned().collect()),
        Attr::Ns(s) => AttributeValue::Ns(s.iter().cloned().collect()),
        Attr::B(b) => AttributeValue::B(Blob::new(b.clone())),
        Attr::Bs(s) => AttributeValue::Bs(s.iter().map(|b| Blob::new(b.clone())).collect()),
    }
}

fn of_sdk(v: &AttributeValue) -> Attr {
    match v {
        AttributeValue::S(s) => Attr::S(s.clone()),
        AttributeValue::N(n) => Attr::N(n.clone()),
        AttributeValue::Bool(b) => Attr::Bool(*b),
        AttributeValue::L(l) => Attr::L(l.iter().map(of_sdk).collect()),
        AttributeValue::M(m) => Attr::M(m.iter().map(|(k, v)| (k.clone(), of_sdk(v))).collect()),
        AttributeValue::Ss(s) => Attr::Ss(s.iter().cloned().collect()),
        AttributeValue::Ns(s) => Attr::Ns(s.iter().cloned().collect()),
        AttributeValue::B(b) => Attr::B(b.clone().into_inner()),
        AttributeValue::Bs(s) => Attr::Bs(s.iter().map(|b| b.clone().into_inner()).collect()),
        // Null, and any type DynamoDB may add: nothing we could keep.
        _ => Attr::Null,
    }
}

fn item_to_sdk(item: &Item) -> SdkItem {
    item.iter().map(|(k, v)| (k.clone(), to_sdk(v))).collect()
}

fn item_of_sdk(item: &SdkItem) -> Item {
    item.iter().map(|(k, v)| (k.clone(), of_sdk(v))).collect()
}

fn key_to_sdk(key: &Key) -> SdkItem {
    SdkItem::from([
        ("pk".to_owned(), AttributeValue::S(key.pk.clone())),
        ("sk".to_owned(), AttributeValue::S(key.sk.clone())),
    ])
}

/// An expression under construction. Every name is a placeholder, so that no reserved word can bite.
#[derive(Debug, Default)]
struct Expr {
    names: BTreeMap<String, String>,
    values: BTreeMap<String, AttributeValue>,
}

impl Expr {
    fn path(&mut self, path: &str) -> String {
        let parts: Vec<String> = path
            .split('.')
            .map(|p| {
                let placeholder = format!("#{p}");
                self.names.insert(placeholder.clone(), p.to_owned());
                placeholder
            })
            .collect();
        parts.join(".")
    }

    fn value(&mut self, v: &Attr) -> String {
        let placeholder = format!(":v{}", self.values.len());
        self.values.insert(placeholder.clone(), to_sdk(v));
        placeholder
    }

    fn compare(&mut self, p: &str, op: &str, v: &Attr) -> String {
        let (p, v) = (self.path(p), self.value(v));
        format!("{p} {op} {v}")
    }

    fn join(&mut self, conds: &[Cond], with: &str) -> Option<String> {
        let parts: Vec<String> = conds
            .iter()
            .filter_map(|c| self.cond(c))
            .map(|c| format!("({c})"))
            .collect();
        if parts.is_empty() {
            None
        } else {
            Some(parts.join(with))
        }
    }

    fn cond(&mut self, c: &Cond) -> Option<String> {
        Some(match c {
            Cond::Always => return None,
            Cond::NotExists => format!("attribute_not_exists({})", self.path("pk")),
            Cond::Exists => format!("attribute_exists({})", self.path("pk")),
            Cond::Rev(0) => {
                let (pk, rev) = (self.path("pk"), self.path("rev"));
                let zero = self.value(&Attr::n(0));
                format!("attribute_exists({pk}) AND (attribute_not_exists({rev}) OR {rev} = {zero})")
            }
            Cond::Rev(n) => self.compare("rev", "=", &Attr::n(n)),
            Cond::Absent(p) => format!("attribute_not_exists({})", self.path(p)),
            Cond::Present(p) => format!("attribute_exists({})", self.path(p)),
            Cond::Eq(p, v) => self.compare(p, "=", v),
            Cond::Ne(p, v) => self.compare(p, "<>", v),
            Cond::Lt(p, v) => self.compare(p, "<", v),
            Cond::Le(p, v) => self.compare(p, "<=", v),
            Cond::Gt(p, v) => self.compare(p, ">", v),
            Cond::Ge(p, v) => self.compare(p, ">=", v),
            Cond::All(c) => return self.join(c, " AND "),
            // An empty `Any` holds for nothing; `pk` is always there.
            Cond::Any(c) if c.is_empty() => format!("attribute_not_exists({})", self.path("pk")),
            Cond::Any(c) => return self.join(c, " OR "),
            Cond::Not(c) => format!("NOT ({})", self.cond(c)?),
        })
    }

    fn update(&mut self, set: &[(String, Attr)], remove: &[String], add: &[(String, i64)]) -> String {
        let mut clauses = Vec::new();
        if !set.is_empty() {
            let parts: Vec<String> = set.iter().map(|(p, v)| self.compare(p, "=", v)).collect();
            clauses.push(format!("SET {}", parts.join(", ")));
        }
        if !remove.is_empty() {
            let parts: Vec<String> = remove.iter().map(|p| self.path(p)).collect();
            clauses.push(format!("REMOVE {}", parts.join(", ")));
        }
        if !add.is_empty() {
            let parts: Vec<String> = add
                .iter()
                .map(|(p, n)| self.compare(p, "", &Attr::n(n)))
                .collect();
            clauses.push(format!("ADD {}", parts.join(", ")));
        }
        clauses.join(" ")
    }

    fn names(&self) -> Option<SdkMap<String>> {
        (!self.names.is_empty()).then(|| self.names.clone().into_iter().collect())
    }

    fn values(&self) -> Option<SdkItem> {
        (!self.values.is_empty()).then(|| self.values.clone().into_iter().collect())
    }
}

fn malformed(action: &str, e: impl std::fmt::Display) -> CallError {
    CallError::new(Class::Refused, action, "Malformed", &e.to_string())
}

fn transact_item(table: &str, w: &Write) -> Result<TransactWriteItem, CallError> {
    let action = "dynamodb:TransactWriteItems";
    let old = ReturnValuesOnConditionCheckFailure::AllOld;
    let mut x = Expr::default();
    let key = Some(key_to_sdk(&w.key));
    let item = TransactWriteItem::builder();
    Ok(match &w.op {
        Op::Put(i) => {
            let cond = x.cond(&w.when);
            let put = Put::builder()
                .table_name(table)
                .set_item(Some(item_to_sdk(i)))
                .set_condition_expression(cond)
                .set_expression_attribute_names(x.names())
                .set_expression_attribute_values(x.values())
                .return_values_on_condition_check_failure(old);
            item.put(put.build().map_err(|e| malformed(action, e))?)
        }
        Op::Update { set, remove, add } => {
            let update = x.update(set, remove, add);
            let cond = x.cond(&w.when);
            let update = Update::builder()
                .table_name(table)
                .set_key(key)
                .update_expression(update)
                .set_condition_expression(cond)
                .set_expression_attribute_names(x.names())
                .set_expression_attribute_values(x.values())
                .return_values_on_condition_check_failure(old);
            item.update(update.build().map_err(|e| malformed(action, e))?)
        }
        Op::Delete => {
            let cond = x.cond(&w.when);
            let delete = Delete::builder()
                .table_name(table)
                .set_key(key)
                .set_condition_expression(cond)
                .set_expression_attribute_names(x.names())
                .set_expression_attribute_values(x.values())
                .return_values_on_condition_check_failure(old);
            item.delete(delete.build().map_err(|e| malformed(action, e))?)
        }
        Op::Check => {
            let cond = x.cond(&w.when);
            let check = ConditionCheck::builder()
                .table_name(table)
                .set_key(key)
                .set_condition_expression(cond)
                .set_expression_attribute_names(x.names())
                .set_expression_attribute_values(x.values())
                .return_values_on_condition_check_failure(old);
            item.condition_check(check.build().map_err(|e| malformed(action, e))?)
        }
    }
    .build())
}

/// The conflicts of a cancelled transaction, or None when it was cancelled for another reason.
/// Reasons come in the order of the writes; the code of one without an error is the text `None`
/// (spec/updates.md 3.2).
fn conflicts(reasons: &[CancellationReason]) -> Option<Vec<Conflict>> {
    let failed: Vec<Conflict> = reasons
        .iter()
        .enumerate()
        .filter(|(_, r)| r.code() == Some("ConditionalCheckFailed"))
        .map(|(index, r)| Conflict {
            index,
            old: r.item().map(item_of_sdk),
        })
        .collect();
    (!failed.is_empty()).then_some(failed)
}

/// What came of a single write. `failed` tells the failed condition, with the item that is there, from every other
/// error; our own write id there means that the write was done and its answer lost.
fn outcome<O, E: ProvideErrorMetadata>(
    w: &Write,
    action: &str,
    sent: Result<O, SdkError<E, HttpResponse>>,
    failed: impl Fn(&E) -> Option<Option<&SdkItem>>,
) -> Result<(), WriteError> {
    let Err(e) = sent else { return Ok(()) };
    let Some(old) = e.as_service_error().and_then(failed) else {
        return Err(call_error(action, &e).into());
    };
    let old = old.map(item_of_sdk);
    if w.already_done(old.as_ref()) {
        return Ok(());
    }
    Err(WriteError::Conflict(vec![Conflict { index: 0, old }]))
}

impl DynamoTable {
    async fn write_one(&self, w: &Write) -> Result<(), WriteError> {
        let mut x = Expr::default();
        let old = ReturnValuesOnConditionCheckFailure::AllOld;
        match &w.op {
            Op::Put(item) => {
                let cond = x.cond(&w.when);
                let sent = self
                    .client
                    .put_item()
                    .table_name(&self.name)
                    .set_item(Some(item_to_sdk(item)))
                    .set_condition_expression(cond)
                    .set_expression_attribute_names(x.names())
                    .set_expression_attribute_values(x.values())
                    .return_values_on_condition_check_failure(old)
                    .send()
                    .await;
                use aws_sdk_dynamodb::operation::put_item::PutItemError as E;
                outcome(w, "dynamodb:PutItem", sent, |e| match e {
                    E::ConditionalCheckFailedException(c) => Some(c.item()),
                    _ => None,
                })
            }
            Op::Update { set, remove, add } => {
                let update = x.update(set, remove, add);
                let cond = x.cond(&w.when);
                let sent = self
                    .client
                    .update_item()
                    .table_name(&self.name)
                    .set_key(Some(key_to_sdk(&w.key)))
                    .update_expression(update)
                    .set_condition_expression(cond)
                    .set_expression_attribute_names(x.names())
                    .set_expression_attribute_values(x.values())
                    .return_values_on_condition_check_failure(old)
                    .send()
                    .await;
                use aws_sdk_dynamodb::operation::update_item::UpdateItemError as E;
                outcome(w, "dynamodb:UpdateItem", sent, |e| match e {
                    E::ConditionalCheckFailedException(c) => Some(c.item()),
                    _ => None,
                })
            }
            Op::Delete => {
                let cond = x.cond(&w.when);
                let sent = self
                    .client
                    .delete_item()
                    .table_name(&self.name)
                    .set_key(Some(key_to_sdk(&w.key)))
                    .set_condition_expression(cond)
                    .set_expression_attribute_names(x.names())
                    .set_expression_attribute_values(x.values())
                    .return_values_on_condition_check_failure(old)
                    .send()
                    .await;
                use aws_sdk_dynamodb::operation::delete_item::DeleteItemError as E;
                outcome(w, "dynamodb:DeleteItem", sent, |e| match e {
                    E::ConditionalCheckFailedException(c) => Some(c.item()),
                    _ => None,
                })
            }
            // A lone check changes nothing, and DynamoDB has no single call for it.
            Op::Check => self.write_all(std::slice::from_ref(w), "").await,
        }
    }

    async fn write_all(&self, writes: &[Write], token: &str) -> Result<(), WriteError> {
        let action = "dynamodb:TransactWriteItems";
        let items = writes
            .iter()
            .map(|w| transact_item(&self.name, w))
            .collect::<Result<Vec<_>, CallError>>()?;
        // TransactionConflict means that someone else was writing at that moment: worth one more try
        // (spec/updates.md 3.2). ConditionalCheckFailed is not: re-read.
        for attempt in 0..2 {
            let sent = self
                .client
                .transact_write_items()
                .set_transact_items(Some(items.clone()))
                .set_client_request_token((!token.is_empty()).then(|| token.to_owned()))
                .send()
                .await;
            use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError as E;
            let Err(e) = sent else { return Ok(()) };
            let Some(E::TransactionCanceledException(c)) = e.as_service_error() else {
                return Err(call_error(action, &e).into());
            };
            let reasons = c.cancellation_reasons();
            if let Some(failed) = conflicts(reasons) {
                let done = failed.iter().all(|f| {
                    writes
                        .get(f.index)
                        .is_some_and(|w| w.already_done(f.old.as_ref()))
                });
                return if done {
                    Ok(())
                } else {
                    Err(WriteError::Conflict(failed))
                };
            }
            let code = reasons
                .iter()
                .filter_map(|r| r.code())
                .find(|c| *c != "None")
                .unwrap_or("None");
            if code == "TransactionConflict" && attempt == 0 {
                continue;
            }
            let class = match code {
                "TransactionConflict" | "ThrottlingError" | "ProvisionedThroughputExceeded" => {
                    Class::Throttled
                }
                _ => Class::Refused,
            };
            let text = reasons
                .iter()
                .filter_map(|r| r.message())
                .next()
                .unwrap_or("transaction cancelled");
            return Err(CallError::new(class, action, code, text).into());
        }
        Err(CallError::new(
            Class::Throttled,
            action,
            "TransactionConflict",
            "others are writing",
        )
        .into())
    }
}

impl Table for DynamoTable {
    async fn get(&self, key: &Key) -> Result<Option<Item>, CallError> {
        self.client
            .get_item()
            .table_name(&self.name)
            .set_key(Some(key_to_sdk(key)))
            .consistent_read(true)
            .send()
            .await
            .map(|o| o.item().map(item_of_sdk))
            .map_err(|e| call_error("dynamodb:GetItem", &e))
    }

    async fn query(&self, q: &Query) -> Result<Page, CallError> {
        let mut x = Expr::default();
        let mut cond = x.compare("pk", "=", &Attr::s(&q.pk));
        if !q.sk_prefix.is_empty() {
            let (sk, v) = (x.path("sk"), x.value(&Attr::s(&q.sk_prefix)));
            cond = format!("{cond} AND begins_with({sk}, {v})");
        }
        let start = q.after.as_ref().map(|sk| key_to_sdk(&Key::new(&q.pk, sk)));
        let limit = q.limit.and_then(|l| i32::try_from(l).ok());
        let out = self
            .client
            .query()
            .table_name(&self.name)
            .key_condition_expression(cond)
            .set_expression_attribute_names(x.names())
            .set_expression_attribute_values(x.values())
            .scan_index_forward(!q.descending)
            .set_limit(limit)
            .set_exclusive_start_key(start)
            .consistent_read(true)
            .send()
            .await
            .map_err(|e| call_error("dynamodb:Query", &e))?;
        let next = out
            .last_evaluated_key()
            .map(item_of_sdk)
            .and_then(|i| Key::of(&i))
            .map(|k| k.sk);
        Ok(Page {
            items: out.items().iter().map(item_of_sdk).collect(),
            next,
        })
    }

    async fn write(&self, writes: &[Write], token: &str) -> Result<(), WriteError> {
        match writes {
            [] => Ok(()),
            [one] => self.write_one(one).await,
            many => self.write_all(many, token).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_become_expressions_with_placeholders_only() {
        let mut x = Expr::default();
        let c = Cond::All(vec![
            Cond::Rev(0),
            Cond::Any(vec![
                Cond::Absent("reserving".into()),
                Cond::Lt("reserve_until".into(), Attr::n(5)),
            ]),
            Cond::Eq("status".into(), Attr::s("prepared")),
        ]);
        assert_eq!(
            x.cond(&c).unwrap(),
            "(attribute_exists(#pk) AND (attribute_not_exists(#rev) OR #rev = :v0)) AND \
             ((attribute_not_exists(#reserving)) OR (#reserve_until < :v1)) AND (#status = :v2)"
        );
        assert_eq!(x.values.len(), 3);
        assert_eq!(x.names["#status"], "status");
    }

    #[test]
    fn attributes_round_trip_sets_and_binary_included() {
        let a = Attr::M(BTreeMap::from([
            (
                "a".into(),
                Attr::L(vec![Attr::Null, Attr::Bool(true), Attr::N("1e3".into())]),
            ),
            ("b".into(), Attr::Ss(["x".to_owned()].into())),
            ("c".into(), Attr::Bs([vec![0u8, 255]].into())),
        ]));
        assert_eq!(of_sdk(&to_sdk(&a)), a);
    }
}
