//! The table in memory, for tests: the same conditions, evaluated here.
//!
//! Its agreement with DynamoDB is checked by the function tests, which run the same writes against a real
//! table with the real expressions.

use super::{Attr, Cond, Conflict, Item, Key, Op, Page, Query, Write, WriteError};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// All items by key. Cloneable and hashable, so that an explorer can branch on it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct MemoryTable {
    /// The items.
    pub items: BTreeMap<Key, Item>,
}

impl MemoryTable {
    /// One item.
    pub fn get(&self, key: &Key) -> Option<Item> {
        self.items.get(key).cloned()
    }

    /// Stores an item without any condition: a test's starting state.
    pub fn seed(&mut self, item: Item) {
        if let Some(key) = Key::of(&item) {
            self.items.insert(key, item);
        }
    }

    /// One page of a partition.
    pub fn query(&self, q: &Query) -> Page {
        let mut found: Vec<&Item> = self
            .items
            .iter()
            .filter(|(k, _)| k.pk == q.pk && k.sk.starts_with(&q.sk_prefix))
            .filter(|(k, _)| match &q.after {
                None => true,
                Some(a) if q.descending => k.sk < *a,
                Some(a) => k.sk > *a,
            })
            .map(|(_, i)| i)
            .collect();
        if q.descending {
            found.reverse();
        }
        let limit = q.limit.map_or(usize::MAX, |l| l as usize);
        let more = found.len() > limit;
        let items: Vec<Item> = found.into_iter().take(limit).cloned().collect();
        let next = items.last().filter(|_| more).and_then(Key::of).map(|k| k.sk);
        Page { items, next }
    }

    /// All writes or none.
    ///
    /// # Errors
    /// The writes whose condition failed, with what is there.
    pub fn write(&mut self, writes: &[Write]) -> Result<(), WriteError> {
        let failed: Vec<Conflict> = writes
            .iter()
            .enumerate()
            .filter(|(_, w)| !holds(&w.when, self.items.get(&w.key)))
            .map(|(index, w)| Conflict {
                index,
                old: self.items.get(&w.key).cloned(),
            })
            .collect();
        if !failed.is_empty() {
            return Err(WriteError::Conflict(failed));
        }
        for w in writes {
            match &w.op {
                Op::Put(item) => {
                    self.items.insert(w.key.clone(), item.clone());
                }
                Op::Delete => {
                    self.items.remove(&w.key);
                }
                Op::Check => {}
                Op::Update { set, remove, add } => {
                    let item = self.items.entry(w.key.clone()).or_insert_with(|| {
                        Item::from([
                            ("pk".into(), Attr::s(&w.key.pk)),
                            ("sk".into(), Attr::s(&w.key.sk)),
                        ])
                    });
                    for (path, value) in set {
                        put_path(item, path, Some(value.clone()));
                    }
                    for path in remove {
                        put_path(item, path, None);
                    }
                    for (path, n) in add {
                        let old = at(item, path).and_then(number).unwrap_or(0);
                        put_path(item, path, Some(Attr::n(old + i128::from(*n))));
                    }
                }
            }
        }
        Ok(())
    }
}

fn number(a: &Attr) -> Option<i128> {
    if let Attr::N(n) = a { n.parse().ok() } else { None }
}

fn at<'a>(item: &'a Item, path: &str) -> Option<&'a Attr> {
    let mut parts = path.split('.');
    let mut here = item.get(parts.next()?)?;
    for p in parts {
        let Attr::M(m) = here else { return None };
        here = m.get(p)?;
    }
    Some(here)
}

fn put_path(item: &mut Item, path: &str, value: Option<Attr>) {
    match path.split_once('.') {
        None => {
            match value {
                Some(v) => item.insert(path.to_owned(), v),
                None => item.remove(path),
            };
        }
        Some((head, rest)) => {
            if let Some(Attr::M(m)) = item.get_mut(head) {
                put_path(m, rest, value);
            }
        }
    }
}

fn compare(a: &Attr, b: &Attr) -> Option<Ordering> {
    match (a, b) {
        (Attr::S(x), Attr::S(y)) => Some(x.cmp(y)),
        (Attr::N(_), Attr::N(_)) => Some(number(a)?.cmp(&number(b)?)),
        _ => None,
    }
}

/// Does the condition hold for the item that is (not) there?
pub fn holds(cond: &Cond, item: Option<&Item>) -> bool {
    let get = |p: &str| item.and_then(|i| at(i, p));
    let order = |p: &str, v: &Attr| get(p).and_then(|a| compare(a, v));
    match cond {
        Cond::Always => true,
        Cond::NotExists => item.is_none(),
        Cond::Exists => item.is_some(),
        Cond::Rev(0) => item.is_some() && get("rev").is_none_or(|a| *a == Attr::n(0)),
        Cond::Rev(n) => get("rev") == Some(&Attr::n(n)),
        Cond::Absent(p) => get(p).is_none(),
        Cond::Present(p) => get(p).is_some(),
        Cond::Eq(p, v) => get(p) == Some(v),
        Cond::Ne(p, v) => get(p) != Some(v),
        Cond::Lt(p, v) => order(p, v) == Some(Ordering::Less),
        Cond::Le(p, v) => matches!(order(p, v), Some(Ordering::Less | Ordering::Equal)),
        Cond::Gt(p, v) => order(p, v) == Some(Ordering::Greater),
        Cond::Ge(p, v) => matches!(order(p, v), Some(Ordering::Greater | Ordering::Equal)),
        Cond::All(c) => c.iter().all(|c| holds(c, item)),
        Cond::Any(c) => c.iter().any(|c| holds(c, item)),
        Cond::Not(c) => !holds(c, item),
    }
}
