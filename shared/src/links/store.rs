//! The writes of private links as data: the guard (spec/links.md 3.4), the updates (3.6), and the editor's
//! transactions (contract 4.5). One adapter turns them into expressions, one evaluator applies them in
//! memory, so the condition that is tested is the one that runs.

use super::decide::{Observation, Seen};
use super::edit::Config;
use super::event::Stamp;
use super::model::{Generation, LinkId, LinkStatus, PlaneId, Provider, Row, SCHEMA};
use crate::store::{Attr, Cond, Item, Key, Op, Write};
use crate::time::Timestamp;

/// Sort keys of links start with this.
pub const LINK_PREFIX: &str = "LINK#";
const IDENTITY_PREFIX: &str = "IDENTITY#";

/// Attributes that hold what was observed; gone after a real change of the configuration.
const OBSERVED: [&str; 6] = [
    "details",
    "details_at",
    "details_stage",
    "error",
    "observed_at",
    "w_network",
];

/// Partition of a plane.
pub fn partition(plane: PlaneId) -> String {
    format!("PLANE#{plane}")
}

/// Key of a link.
pub fn link_key(plane: PlaneId, id: LinkId) -> Key {
    Key::new(partition(plane), format!("{LINK_PREFIX}{id}"))
}

/// Key of the item that keeps one service from being linked twice on a plane (1.3).
pub fn identity_key(plane: PlaneId, provider: Provider, identity: &str) -> Key {
    Key::new(
        partition(plane),
        format!("{IDENTITY_PREFIX}{}#{identity}", provider.as_str()),
    )
}

/// Does the write claim a service for a link?
pub fn is_claim(write: &Write) -> bool {
    write.key.sk.starts_with(IDENTITY_PREFIX) && matches!(write.op, Op::Update { .. })
}

/// Key of the item that remembers the last generation of a deleted link, so that a link made again under the
/// same id starts above it, and an event of the old one that is delivered (or redriven) at any later time
/// finds a greater generation.
pub fn gone_key(plane: PlaneId, id: LinkId) -> Key {
    Key::new(partition(plane), format!("GONE#{id}"))
}

/// Which form of an early success is tried (3.6). The other observations have one form only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The row is not failed.
    Usual,
    /// The row is failed: it becomes pending (D3).
    FromFailed,
}

impl Form {
    /// The form that fits a row with this status.
    pub fn fitting(status: LinkStatus) -> Self {
        match status {
            LinkStatus::Failed => Form::FromFailed,
            LinkStatus::Pending | LinkStatus::Provisioned => Form::Usual,
        }
    }
}

/// No newer version has written the item (contract 5).
fn not_newer() -> Cond {
    Cond::Any(vec![
        Cond::Absent("schema".into()),
        Cond::Le("schema".into(), Attr::n(SCHEMA)),
    ])
}

/// The guard (3.4): the link is there, at the pinned generation, and no newer or equal write of this
/// generation has landed. (`Exists` is implied by the equality and kept for the reader.)
fn guard(generation: Generation, order: u64) -> Vec<Cond> {
    vec![
        Cond::Exists,
        Cond::Eq("generation".into(), Attr::n(generation)),
        Cond::Any(vec![
            Cond::Absent("w_gen".into()),
            Cond::Ne("w_gen".into(), Attr::n(generation)),
            Cond::Lt("w_order".into(), Attr::n(order)),
        ]),
        not_newer(),
    ]
}

/// The update for one observation (3.6). Never a put: that would bring a deleted link back.
pub fn observe(stamp: &Stamp, id: LinkId, seen: &Observation<'_>, form: Form) -> Write {
    let at = Attr::s(stamp.at.to_string());
    let mut when = guard(seen.generation, stamp.order);
    let mut set = vec![
        ("w_gen".to_owned(), Attr::n(seen.generation)),
        ("w_order".to_owned(), Attr::n(stamp.order)),
        ("w_converge".to_owned(), Attr::s(&stamp.converge_id)),
    ];
    let mut remove: Vec<String> = Vec::new();
    let with_details = |set: &mut Vec<(String, Attr)>, details: &str| {
        set.push(("details".into(), Attr::s(details)));
        set.push(("details_at".into(), at.clone()));
        set.push(("details_stage".into(), Attr::s(stamp.stage.as_str())));
    };
    let mut rebuild = false;
    match &seen.seen {
        Seen::Early { details } => {
            let failed = Attr::s(LinkStatus::Failed.as_str());
            with_details(&mut set, details);
            rebuild = stamp.network_rebuild;
            match form {
                Form::Usual => when.push(Cond::Ne("status".into(), failed)),
                Form::FromFailed => {
                    when.push(Cond::Eq("status".into(), failed));
                    set.push(("status".into(), Attr::s(LinkStatus::Pending.as_str())));
                    remove.extend(["error".into(), "observed_at".into()]);
                }
            }
        }
        Seen::Settled { details } => {
            set.push(("status".into(), Attr::s(LinkStatus::Provisioned.as_str())));
            set.push(("observed_at".into(), at.clone()));
            remove.push("error".into());
            if let Some(details) = details {
                with_details(&mut set, details);
            }
        }
        Seen::Failed { error, details } => {
            set.push(("status".into(), Attr::s(LinkStatus::Failed.as_str())));
            set.push(("error".into(), Attr::s(error.as_ref())));
            set.push(("observed_at".into(), at.clone()));
            match details {
                Some(details) => with_details(&mut set, details),
                None => remove.extend(["details".into(), "details_at".into(), "details_stage".into()]),
            }
        }
    }
    if rebuild {
        set.push(("w_network".into(), Attr::Bool(true)));
    } else {
        remove.push("w_network".into());
    }
    Write {
        key: link_key(stamp.plane, id),
        op: Op::Update {
            set,
            remove,
            add: vec![],
        },
        when: Cond::All(when),
    }
}

/// Who edits what, when.
#[derive(Debug, Clone, Copy)]
pub struct Edit<'a> {
    /// The plane.
    pub plane: PlaneId,
    /// The link.
    pub id: LinkId,
    /// Name recorded in the row (contract 4).
    pub actor: &'a str,
    /// Time of the call.
    pub now: Timestamp,
}

impl Edit<'_> {
    /// The service is claimed for this link.
    fn ours(&self) -> Cond {
        Cond::Eq("link".into(), Attr::s(self.id.to_string()))
    }

    fn claim(&self, config: &Config) -> Write {
        Write {
            key: identity_key(self.plane, config.provider, &config.identity),
            op: Op::Update {
                set: vec![
                    ("schema".into(), Attr::n(SCHEMA)),
                    ("link".into(), Attr::s(self.id.to_string())),
                ],
                remove: vec![],
                add: vec![],
            },
            when: Cond::Any(vec![Cond::NotExists, self.ours()]),
        }
    }

    fn release(&self, row: &Row) -> Write {
        Write {
            key: identity_key(self.plane, row.provider, &row.service_identity),
            op: Op::Delete,
            when: self.ours(),
        }
    }

    /// The generation a deleted link of this id had is still the one that was read.
    fn still_gone(gone: Option<Generation>) -> Cond {
        match gone {
            None => Cond::NotExists,
            Some(g) => Cond::Eq("generation".into(), Attr::n(g)),
        }
    }

    /// A new link. `gone` is the last generation of a deleted link with this id.
    pub fn create(&self, config: &Config, gone: Option<Generation>) -> Vec<Write> {
        let now = Attr::s(self.now.to_string());
        let item = Item::from([
            ("schema".into(), Attr::n(SCHEMA)),
            ("id".into(), Attr::s(self.id.to_string())),
            ("data_plane_id".into(), Attr::s(self.plane.to_string())),
            ("config".into(), Attr::s(&config.text)),
            ("provider".into(), Attr::s(config.provider.as_str())),
            ("service_identity".into(), Attr::s(&config.identity)),
            (
                "generation".into(),
                Attr::n(gone.map_or(1, |g| g.saturating_add(1))),
            ),
            ("status".into(), Attr::s(LinkStatus::Pending.as_str())),
            ("created_at".into(), now.clone()),
            ("updated_at".into(), now),
            ("updated_by".into(), Attr::s(self.actor)),
        ]);
        vec![
            Write::put(link_key(self.plane, self.id), item, Cond::NotExists),
            self.claim(config),
            Write::check(gone_key(self.plane, self.id), Self::still_gone(gone)),
        ]
    }

    /// A real change of the configuration (1.3): one generation more, and nothing observed of it yet. The
    /// writer's token stays; it is scoped to the generation. `claimed`: the row's service is claimed for it.
    pub fn change(&self, row: &Row, config: &Config, claimed: bool) -> Vec<Write> {
        let set = vec![
            ("schema".into(), Attr::n(SCHEMA)),
            ("config".into(), Attr::s(&config.text)),
            ("provider".into(), Attr::s(config.provider.as_str())),
            ("service_identity".into(), Attr::s(&config.identity)),
            ("generation".into(), Attr::n(row.generation.saturating_add(1))),
            ("status".into(), Attr::s(LinkStatus::Pending.as_str())),
            ("updated_at".into(), Attr::s(self.now.to_string())),
            ("updated_by".into(), Attr::s(self.actor)),
        ];
        let remove = OBSERVED.iter().map(|a| (*a).to_owned()).collect();
        let link = Write {
            key: link_key(self.plane, self.id),
            op: Op::Update {
                set,
                remove,
                add: vec![],
            },
            when: self.unchanged(row),
        };
        let mut writes = vec![link, self.claim(config)];
        let moved = (row.provider, &row.service_identity) != (config.provider, &config.identity);
        if claimed && moved {
            writes.push(self.release(row));
        }
        writes
    }

    /// The link and its claim go; its generation is remembered.
    pub fn delete(&self, row: &Row, gone: Option<Generation>, claimed: bool) -> Vec<Write> {
        let last = gone.map_or(row.generation, |g| g.max(row.generation));
        let set = vec![
            ("schema".into(), Attr::n(SCHEMA)),
            ("generation".into(), Attr::n(last)),
            ("deleted_at".into(), Attr::s(self.now.to_string())),
            ("deleted_by".into(), Attr::s(self.actor)),
        ];
        let link = Write {
            key: link_key(self.plane, self.id),
            op: Op::Delete,
            when: self.unchanged(row),
        };
        let mut writes = vec![
            link,
            Write {
                key: gone_key(self.plane, self.id),
                op: Op::Update {
                    set,
                    remove: vec![],
                    add: vec![],
                },
                when: Self::still_gone(gone),
            },
        ];
        if claimed {
            writes.push(self.release(row));
        }
        writes
    }

    /// The link still has the configuration that was read. What the writer observed meanwhile may differ.
    fn unchanged(&self, row: &Row) -> Cond {
        Cond::All(vec![
            Cond::Eq("generation".into(), Attr::n(row.generation)),
            Cond::Eq("config".into(), Attr::s(&row.config)),
            not_newer(),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::edit::Config;

    #[test]
    fn the_writer_never_touches_what_the_user_owns_and_never_puts() {
        let stamp = Stamp {
            plane: PlaneId::parse("0e8f3a0000000055").unwrap(),
            converge_id: "c".into(),
            stage: crate::links::model::Stage::PulumiUp1,
            order: 71,
            at: Timestamp::UNIX_EPOCH,
            network_rebuild: false,
        };
        let id = LinkId::parse("0000000000000b01").unwrap();
        for seen in [
            Seen::Early { details: "{}" },
            Seen::Settled { details: Some("{}") },
            Seen::Settled { details: None },
            Seen::Failed {
                error: "x".into(),
                details: None,
            },
            Seen::Failed {
                error: "x".into(),
                details: Some("1"),
            },
        ] {
            for form in [Form::Usual, Form::FromFailed] {
                let w = observe(
                    &stamp,
                    id,
                    &Observation {
                        generation: 1,
                        seen: seen.clone(),
                    },
                    form,
                );
                let Op::Update { set, remove, .. } = &w.op else {
                    panic!("{w:?}")
                };
                let names: Vec<&str> = set
                    .iter()
                    .map(|(n, _)| n.as_str())
                    .chain(remove.iter().map(String::as_str))
                    .collect();
                for owned in [
                    "config",
                    "generation",
                    "provider",
                    "service_identity",
                    "created_at",
                    "updated_at",
                    "schema",
                ] {
                    assert!(!names.contains(&owned), "{owned} in {names:?}");
                }
                let once: std::collections::BTreeSet<&str> = names.iter().copied().collect();
                assert_eq!(
                    once.len(),
                    names.len(),
                    "DynamoDB refuses a path named twice: {names:?}"
                );
            }
        }
    }

    #[test]
    fn a_change_that_keeps_the_service_does_not_release_its_claim() {
        let edit = Edit {
            plane: PlaneId::parse("0e8f3a0000000055").unwrap(),
            id: LinkId::parse("0000000000000b01").unwrap(),
            actor: "ana",
            now: Timestamp::UNIX_EPOCH,
        };
        let one = Config::read(br#"{"region":"r","az_ids":["a"],"service_name":"s"}"#).unwrap();
        let two = Config::read(br#"{"region":"r2","az_ids":["a"],"service_name":"s"}"#).unwrap();
        let other = Config::read(br#"{"region":"r","az_ids":["a"],"service_name":"t"}"#).unwrap();
        let Op::Put(item) = &edit.create(&one, Some(4))[0].op else {
            panic!()
        };
        let row = Row::read(item).unwrap();
        assert_eq!(row.generation, 5, "above the deleted link of the same id");
        assert_eq!(edit.change(&row, &two, true).len(), 2);
        assert_eq!(edit.change(&row, &other, true).len(), 3);
    }
}
