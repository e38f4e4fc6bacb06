//! The one table: items, keys, conditions and writes as data.
//!
//! Each domain builds its transactions as plain values ([`Write`] with a [`Cond`]); one adapter turns them
//! into DynamoDB expressions (`store/aws.rs`), and one evaluator applies them in memory for tests
//! (`store/memory.rs`). So a condition is written once, and what the tests check is what runs.

#[cfg(feature = "aws")]
pub mod aws;
#[cfg(any(test, feature = "fakes"))]
pub mod memory;

use crate::error::CallError;
use crate::time::Timestamp;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// One DynamoDB attribute value. Kept whole, sets and binary included, so that attributes this build does
/// not know survive a write unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Attr {
    /// String.
    S(String),
    /// Number, in the text DynamoDB gave.
    N(String),
    /// Boolean.
    Bool(bool),
    /// Null.
    Null,
    /// List.
    L(Vec<Attr>),
    /// Map.
    M(BTreeMap<String, Attr>),
    /// String set.
    Ss(BTreeSet<String>),
    /// Number set.
    Ns(BTreeSet<String>),
    /// Binary.
    B(Vec<u8>),
    /// Binary set.
    Bs(BTreeSet<Vec<u8>>),
}

/// A whole item, keys included.
pub type Item = BTreeMap<String, Attr>;

impl Attr {
    /// A string attribute.
    pub fn s(v: impl Into<String>) -> Self {
        Attr::S(v.into())
    }

    /// A number attribute.
    pub fn n(v: impl std::fmt::Display) -> Self {
        Attr::N(v.to_string())
    }

    /// The string, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        if let Attr::S(s) = self { Some(s) } else { None }
    }

    /// The whole number, if it is one.
    pub fn as_u64(&self) -> Option<u64> {
        if let Attr::N(n) = self {
            n.parse().ok()
        } else {
            None
        }
    }

    /// As JSON. Sets become arrays and binary becomes null: only attributes a domain knows are read this
    /// way, and no domain stores sets or binary.
    pub fn to_json(&self) -> Value {
        match self {
            Attr::S(s) => Value::String(s.clone()),
            Attr::N(n) => serde_json::from_str(n).unwrap_or(Value::Null),
            Attr::Bool(b) => Value::Bool(*b),
            Attr::Null | Attr::B(_) | Attr::Bs(_) => Value::Null,
            Attr::L(l) => Value::Array(l.iter().map(Attr::to_json).collect()),
            Attr::M(m) => Value::Object(m.iter().map(|(k, v)| (k.clone(), v.to_json())).collect()),
            Attr::Ss(s) | Attr::Ns(s) => Value::Array(s.iter().map(|v| Value::String(v.clone())).collect()),
        }
    }

    /// From JSON; every JSON value has an attribute.
    pub fn from_json(v: &Value) -> Self {
        match v {
            Value::Null => Attr::Null,
            Value::Bool(b) => Attr::Bool(*b),
            Value::Number(n) => Attr::N(n.to_string()),
            Value::String(s) => Attr::S(s.clone()),
            Value::Array(a) => Attr::L(a.iter().map(Attr::from_json).collect()),
            Value::Object(o) => Attr::M(o.iter().map(|(k, v)| (k.clone(), Attr::from_json(v))).collect()),
        }
    }
}

/// Primary key of an item.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Partition key.
    pub pk: String,
    /// Sort key.
    pub sk: String,
}

impl Key {
    /// A key from its two parts.
    pub fn new(pk: impl Into<String>, sk: impl Into<String>) -> Self {
        Self {
            pk: pk.into(),
            sk: sk.into(),
        }
    }

    /// The key of an item, if it has one.
    pub fn of(item: &Item) -> Option<Self> {
        Some(Self::new(item.get("pk")?.as_str()?, item.get("sk")?.as_str()?))
    }
}

/// A condition on one item. Paths are attribute names joined by dots (no attribute of ours has a dot).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Cond {
    /// No condition. Only for writes that are right whatever is there; say why where it is used.
    Always,
    /// The item is not there.
    NotExists,
    /// The item is there.
    Exists,
    /// The item's `rev` is the one that was read; an item without `rev` counts as 0 (spec/updates.md 1.1).
    Rev(u64),
    /// The attribute is absent.
    Absent(String),
    /// The attribute is present.
    Present(String),
    /// The attribute equals the value.
    Eq(String, Attr),
    /// The attribute is present and differs, or is absent.
    Ne(String, Attr),
    /// The attribute is less than the value (same type).
    Lt(String, Attr),
    /// The attribute is at most the value.
    Le(String, Attr),
    /// The attribute is greater than the value.
    Gt(String, Attr),
    /// The attribute is at least the value.
    Ge(String, Attr),
    /// All hold.
    All(Vec<Cond>),
    /// At least one holds.
    Any(Vec<Cond>),
    /// It does not hold.
    Not(Box<Cond>),
}

/// What a write does to its item.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Op {
    /// Replace the item; it must contain its key.
    Put(Item),
    /// Change single attributes, leaving all others as they are.
    Update {
        /// Attributes (dotted paths) to set.
        set: Vec<(String, Attr)>,
        /// Attributes to remove.
        remove: Vec<String>,
        /// Numbers to add to (an absent one counts as 0).
        add: Vec<(String, i64)>,
    },
    /// Remove the item.
    Delete,
    /// Only check the condition.
    Check,
}

/// One write with its condition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Write {
    /// Which item.
    pub key: Key,
    /// What happens to it.
    pub op: Op,
    /// Under which condition.
    pub when: Cond,
}

impl Write {
    /// Replace the item under a condition. The key attributes are filled in.
    pub fn put(key: Key, mut item: Item, when: Cond) -> Self {
        item.insert("pk".into(), Attr::s(&key.pk));
        item.insert("sk".into(), Attr::s(&key.sk));
        Self {
            key,
            op: Op::Put(item),
            when,
        }
    }

    /// Check a condition on an item that the transaction does not change.
    pub fn check(key: Key, when: Cond) -> Self {
        Self {
            key,
            op: Op::Check,
            when,
        }
    }

    /// The `last_write_id` this write would store, if any.
    pub fn write_id(&self) -> Option<&str> {
        match &self.op {
            Op::Put(item) => item.get("last_write_id")?.as_str(),
            Op::Update { set, .. } => set.iter().find(|(p, _)| p == "last_write_id")?.1.as_str(),
            Op::Delete | Op::Check => None,
        }
    }

    /// Was this very write already committed? True when the item that failed our condition carries our own
    /// write id: the answer of the first try was lost and the SDK tried again (spec/updates.md 3.4, O15).
    pub fn already_done(&self, old: Option<&Item>) -> bool {
        let (Some(id), Some(old)) = (self.write_id(), old) else {
            return false;
        };
        old.get("last_write_id").and_then(Attr::as_str) == Some(id)
    }
}

/// Which items of one partition to read. Always strongly consistent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Query {
    /// Partition.
    pub pk: String,
    /// Sort keys start with this; empty for all.
    pub sk_prefix: String,
    /// Newest (greatest sort key) first.
    pub descending: bool,
    /// At most this many items a page.
    pub limit: Option<u32>,
    /// Continue after this sort key (exclusive).
    pub after: Option<String>,
}

/// One page of a query.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Page {
    /// Items in key order (or reverse).
    pub items: Vec<Item>,
    /// Sort key to continue after, if there is more.
    pub next: Option<String>,
}

/// Why a write did not happen.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum WriteError {
    /// A condition did not hold. One entry per write: the failed ones with the item that is there.
    #[error("the row changed since it was read")]
    Conflict(Vec<Conflict>),
    /// The call failed; see [`CallError::effect_unknown`].
    #[error(transparent)]
    Call(#[from] CallError),
}

/// The write whose condition failed, and what is there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Conflict {
    /// Index into the writes.
    pub index: usize,
    /// The item that is there now, if any and if it was returned.
    pub old: Option<Item>,
}

/// The seam to the table. Reads are strongly consistent; several writes are one transaction.
#[expect(
    async_fn_in_trait,
    reason = "used with generics on one thread; no Send bound is wanted"
)]
pub trait Table {
    /// One item.
    async fn get(&self, key: &Key) -> Result<Option<Item>, CallError>;
    /// One page of a partition.
    async fn query(&self, query: &Query) -> Result<Page, CallError>;
    /// All writes or none. `token` makes a repeated transaction harmless for ten minutes.
    async fn write(&self, writes: &[Write], token: &str) -> Result<(), WriteError>;
}

/// A type stored as an item.
pub trait Row: Serialize + DeserializeOwned + Clone {
    /// Version of the stored shape this build writes. An item with a greater one is read as far as possible
    /// and never rewritten (contract 5).
    const SCHEMA: u64;
    /// Every attribute this type reads or writes, so that unknown ones can be told apart. A test compares it
    /// with a fully filled value.
    const FIELDS: &'static [&'static str];
}

/// A row together with the item it was read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned<T> {
    /// What this build understands of it.
    pub row: T,
    /// The item as read; empty for a row that is not stored yet.
    pub raw: Item,
}

impl<T: Row> Versioned<T> {
    /// A row that is not stored yet.
    pub fn fresh(row: T) -> Self {
        Self {
            row,
            raw: Item::new(),
        }
    }

    /// Reads an item.
    ///
    /// # Errors
    /// The item lacks what the type needs; the text names the key and the field, never a value.
    pub fn read(item: Item) -> Result<Self, String> {
        let fields = T::FIELDS
            .iter()
            .filter_map(|f| item.get(*f).map(|a| ((*f).to_owned(), a.to_json())))
            .collect::<serde_json::Map<_, _>>();
        let row = serde_json::from_value(Value::Object(fields)).map_err(|e| {
            let key = Key::of(&item).map_or_else(|| "?".to_owned(), |k| format!("{} {}", k.pk, k.sk));
            format!("the stored row {key} can not be read: {e}")
        })?;
        Ok(Self { row, raw: item })
    }

    /// Was it written by a newer version, whose meaning this build may not know? Then it is never rewritten.
    pub fn is_newer(&self) -> bool {
        self.raw
            .get("schema")
            .and_then(Attr::as_u64)
            .is_some_and(|s| s > T::SCHEMA)
    }

    /// The item to store for `next`: attributes that did not change keep the exact value that was read
    /// (nested unknown fields included), and attributes this build does not know stay.
    pub fn item_for(&self, next: &T) -> Item {
        let mut item = self.raw.clone();
        let before = if self.raw.is_empty() {
            serde_json::Map::new()
        } else {
            fields_of(&self.row)
        };
        let after = fields_of(next);
        for field in T::FIELDS {
            let (old, new) = (before.get(*field), after.get(*field));
            if old == new && item.contains_key(*field) {
                continue;
            }
            match new {
                None | Some(Value::Null) => {
                    item.remove(*field);
                }
                Some(v) => {
                    item.insert((*field).to_owned(), Attr::from_json(v));
                }
            }
        }
        item.insert("schema".into(), Attr::n(T::SCHEMA));
        item
    }
}

fn fields_of<T: Serialize>(row: &T) -> serde_json::Map<String, Value> {
    match serde_json::to_value(row) {
        Ok(Value::Object(m)) => m,
        _ => serde_json::Map::new(),
    }
}

/// Epoch seconds for the `ttl` attribute, `days` from `now`.
pub fn ttl(now: Timestamp, days: i64) -> i64 {
    now.as_second().saturating_add(days.saturating_mul(86_400))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Sample {
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        note: Option<serde_json::Map<String, Value>>,
        #[serde(default)]
        rev: u64,
    }

    impl Row for Sample {
        const SCHEMA: u64 = 1;
        const FIELDS: &'static [&'static str] = &["name", "note", "rev"];
    }

    fn stored() -> Item {
        let mut m = BTreeMap::new();
        m.insert("code".into(), Attr::s("x"));
        m.insert("later".into(), Attr::Ss(BTreeSet::from(["a".into()])));
        Item::from([
            ("pk".into(), Attr::s("P")),
            ("sk".into(), Attr::s("S")),
            ("name".into(), Attr::s("n")),
            ("note".into(), Attr::M(m)),
            ("rev".into(), Attr::n(3)),
            ("future".into(), Attr::B(vec![1, 2])),
            ("schema".into(), Attr::n(1)),
        ])
    }

    #[test]
    fn unknown_attributes_survive_a_write_nested_ones_too() {
        let v = Versioned::<Sample>::read(stored()).unwrap();
        let mut next = v.row.clone();
        next.name = "m".into();
        next.rev = 4;
        let item = v.item_for(&next);
        assert_eq!(item["future"], Attr::B(vec![1, 2]));
        assert_eq!(item["note"], stored()["note"]);
        assert_eq!(
            (item["name"].clone(), item["rev"].clone()),
            (Attr::s("m"), Attr::n(4))
        );
    }

    #[test]
    fn a_cleared_field_is_removed_and_nothing_else() {
        let v = Versioned::<Sample>::read(stored()).unwrap();
        let item = v.item_for(&Sample {
            note: None,
            ..v.row.clone()
        });
        assert!(!item.contains_key("note") && item.contains_key("future"));
    }

    #[test]
    fn a_newer_schema_is_told_apart() {
        let mut item = stored();
        item.insert("schema".into(), Attr::n(2));
        assert!(Versioned::<Sample>::read(item).unwrap().is_newer());
        assert!(!Versioned::<Sample>::read(stored()).unwrap().is_newer());
    }

    #[test]
    fn a_row_without_its_fields_names_the_key_and_no_value() {
        let mut item = stored();
        item.insert("name".into(), Attr::L(vec![Attr::s("secret")]));
        let text = Versioned::<Sample>::read(item).unwrap_err();
        assert!(text.contains("P S") && !text.contains("secret"), "{text}");
    }
}
