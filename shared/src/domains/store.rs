//! The registry in the table: keys, conditional writes as data, reading (spec/domains.md 1.3, 2.6).

use super::model::{Generation, Port, Product, ProvisionError, Registry, State};
use super::names::{Domain, Slug};
use crate::http::hex;
use crate::store::{Attr, Cond, Item, Key, Op, Query, Row, Versioned, Write};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// Sort key of the registry record.
pub const REG: &str = "REG";
/// Sort key of the product row.
pub const PRODUCT: &str = "PRODUCT";

/// Partition of a domain.
pub fn domain_pk(domain: &Domain) -> String {
    format!("DOMAIN#{domain}")
}

/// Key of the registry record.
pub fn registry_key(domain: &Domain) -> Key {
    Key::new(domain_pk(domain), REG)
}

/// Key of the product row.
pub fn product_key(domain: &Domain) -> Key {
    Key::new(domain_pk(domain), PRODUCT)
}

/// Key of a slug's tombstone.
pub fn slug_key(slug: &Slug) -> Key {
    Key::new(format!("SLUG#{slug}"), "-")
}

/// Partition of a cell's ports.
pub fn ports_pk(cell: &str) -> String {
    format!("PORTS#{cell}")
}

/// Sort key of a port: five digits, so that the order of text is the order of numbers.
pub fn port_sk(port: u16) -> String {
    format!("{port:05}")
}

/// Key of a port's tombstone.
pub fn port_key(cell: &str, port: Port) -> Key {
    Key::new(ports_pk(cell), port_sk(port.0))
}

/// Key of the sweep's place in the cell's list.
pub fn cursor_key(cell: &str) -> Key {
    Key::new(format!("SWEEP#{cell}"), "CURSOR")
}

/// The ports of a cell after `after`, lowest first.
pub fn ports_query(cell: &str, after: Option<String>, limit: Option<u32>) -> Query {
    Query {
        pk: ports_pk(cell),
        sk_prefix: String::new(),
        descending: false,
        limit,
        after,
    }
}

/// Registry and product row of a domain, in one read.
pub fn domain_query(domain: &Domain) -> Query {
    Query {
        pk: domain_pk(domain),
        sk_prefix: String::new(),
        descending: false,
        limit: None,
        after: None,
    }
}

/// Which domain owns a slug or a port.
pub fn owner_of(tombstone: &Item) -> Option<&str> {
    tombstone.get("domain")?.as_str()
}

/// The port of a port item.
pub fn port_of(item: &Item) -> Option<u16> {
    item.get("sk")?.as_str()?.parse().ok()
}

/// A registry record from its item.
///
/// # Errors
/// It can not be read, or a newer version of Headgate wrote it and this one must not judge it.
pub fn registry(item: Item) -> Result<Registry, ProvisionError> {
    read::<Registry>(item)
}

/// A product row from its item.
///
/// # Errors
/// As for [`registry`].
pub fn product(item: Item) -> Result<Product, ProvisionError> {
    read::<Product>(item)
}

fn read<T: Row>(item: Item) -> Result<T, ProvisionError> {
    let v = Versioned::<T>::read(item).map_err(|e| {
        ProvisionError::Unavailable(format!(
            "{e}. Nothing was changed; an operator has to look at the row."
        ))
    })?;
    if v.is_newer() {
        return Err(ProvisionError::Unavailable(
            "The row was written by a newer version of Headgate; this one leaves it alone. Finish the deployment.".into(),
        ));
    }
    Ok(v.row)
}

fn fields<T: Row>(row: &T) -> Map<String, Value> {
    match serde_json::to_value(row) {
        Ok(Value::Object(m)) => m,
        _ => Map::new(),
    }
}

/// Never rewrites what a newer version has written (contract 5).
fn not_newer<T: Row>() -> Cond {
    Cond::Le("schema".into(), Attr::n(T::SCHEMA))
}

fn state_is(state: State) -> Cond {
    Cond::Eq("state".into(), Attr::s(state.as_str()))
}

fn generation_is(generation: Generation) -> Cond {
    Cond::Eq("generation".into(), Attr::n(generation))
}

/// The row is where it was read: generation, state **and** owner (F8: the generation alone is not enough).
pub fn as_read(row: &Registry) -> Cond {
    let owner = match &row.owner {
        Some(o) => Cond::Eq("owner".into(), Attr::s(&o.0)),
        None => Cond::Absent("owner".into()),
    };
    Cond::All(vec![
        generation_is(row.generation),
        state_is(row.state),
        owner,
        not_newer::<Registry>(),
    ])
}

/// Attributes that belong to whoever works on the row. They are written with every change, also when they seem
/// to be the same: recording a command changes neither generation nor state nor owner, so a take-over that
/// read the row just before it would leave a command behind that is not its own (found by the explorer).
const TIED: [&str; 5] = ["owner", "lease_until", "command_id", "command_op", "adoptions"];

/// Changes a row from what was read to what was decided. Of the others only attributes that differ are
/// written, so that those this build does not know, and those that somebody else writes meanwhile, stay.
pub fn change(before: &Registry, next: &Registry) -> Write {
    Write {
        key: registry_key(&before.domain),
        op: difference(before, next, &TIED),
        when: as_read(before),
    }
}

fn difference<T: Row>(before: &T, next: &T, always: &[&str]) -> Op {
    let (old, new) = (fields(before), fields(next));
    let (mut set, mut remove) = (Vec::new(), Vec::new());
    for f in T::FIELDS {
        match (old.get(*f), new.get(*f)) {
            (a, b) if a == b && !always.contains(f) => {}
            (_, Some(v)) if !v.is_null() => set.push(((*f).to_owned(), Attr::from_json(v))),
            _ => remove.push((*f).to_owned()),
        }
    }
    Op::Update {
        set,
        remove,
        add: Vec::new(),
    }
}

/// Position of each write in [`allocation`].
pub const AT_ROW: usize = 0;
/// The slug's tombstone.
pub const AT_SLUG: usize = 1;
/// The port's tombstone.
pub const AT_PORT: usize = 2;

/// S2a: the row and its two tombstones, all new or nothing.
pub fn allocation(row: &Registry) -> Vec<Write> {
    let tombstone = || {
        Item::from([
            ("domain".to_owned(), Attr::s(row.domain.as_str())),
            ("schema".to_owned(), Attr::n(Registry::SCHEMA)),
        ])
    };
    vec![
        Write::put(
            registry_key(&row.domain),
            Versioned::fresh(row.clone()).item_for(row),
            Cond::NotExists,
        ),
        Write::put(slug_key(&row.slug), tombstone(), Cond::NotExists),
        Write::put(port_key(&row.cell, row.port), tombstone(), Cond::NotExists),
    ]
}

/// The domain is not claimed.
pub fn unclaimed(domain: &Domain) -> Write {
    Write::check(product_key(domain), Cond::NotExists)
}

/// The product row as it was read goes; or it is still not there.
pub fn unclaim(domain: &Domain, product: Option<&Product>) -> Write {
    match product {
        None => unclaimed(domain),
        Some(p) => Write {
            key: product_key(domain),
            op: Op::Delete,
            when: Cond::All(vec![
                generation_is(p.generation),
                Cond::Eq("execution".into(), Attr::s(&p.execution)),
                not_newer::<Product>(),
            ]),
        },
    }
}

/// F9: the insert is one transaction with the check that the instance is active at the generation it was
/// provisioned for. The same write clears the error of an earlier later step.
pub fn insertion(product: &Product) -> Vec<Write> {
    vec![
        Write {
            key: registry_key(&product.domain),
            op: Op::Update {
                set: vec![("updated_at".into(), Attr::n(product.created_at))],
                remove: vec!["saga_error".into()],
                add: Vec::new(),
            },
            when: Cond::All(vec![
                generation_is(product.generation),
                state_is(State::Active),
                not_newer::<Registry>(),
            ]),
        },
        Write::put(
            product_key(&product.domain),
            Versioned::fresh(product.clone()).item_for(product),
            Cond::Any(vec![
                Cond::NotExists,
                Cond::All(vec![
                    Cond::Eq("execution".into(), Attr::s(&product.execution)),
                    generation_is(product.generation),
                    not_newer::<Product>(),
                ]),
            ]),
        ),
    ]
}

/// Changes a product row of the same instance.
pub fn change_product(before: &Product, next: &Product) -> Write {
    Write {
        key: product_key(&before.domain),
        op: difference(before, next, &[]),
        when: Cond::All(vec![
            generation_is(before.generation),
            Cond::Eq("execution".into(), Attr::s(&before.execution)),
            not_newer::<Product>(),
        ]),
    }
}

/// Attributes beside the lifecycle (`saga`, `saga_error`): written under the generation as read, so that
/// state, generation, owner and host stay as they are.
pub fn note(before: &Registry, next: &Registry) -> Write {
    Write {
        key: registry_key(&before.domain),
        op: difference(before, next, &[]),
        when: Cond::All(vec![generation_is(before.generation), not_newer::<Registry>()]),
    }
}

/// Where the sweep goes on.
pub fn cursor(cell: &str, before: Option<&str>, after: &str) -> Write {
    let item = Item::from([
        ("after".to_owned(), Attr::s(after)),
        ("schema".to_owned(), Attr::n(1)),
    ]);
    let when = match before {
        None => Cond::NotExists,
        Some(b) => Cond::Eq("after".into(), Attr::s(b)),
    };
    Write::put(cursor_key(cell), item, when)
}

/// Token of a transaction: the same for the same invocation, generation and content, at most 36 characters.
/// Only a help against doubled sends; what is right is decided by re-reading (spec/domains.md 2.6).
pub fn token(parts: &[&str]) -> String {
    let hex = hex(&Sha256::digest(parts.join("\n").as_bytes()));
    hex.get(..32).unwrap_or(&hex).to_owned()
}
