//! What a caller sees of a domain (spec/domains.md "What to build", contract 4.7). Pure.

use super::decide::SWEEP_GRACE;
use super::dns;
use super::later::records_of;
use super::model::{Millis, Product, Registry, RetireReason, State};
use crate::status::{Flag, NeedsAdmin, Progress, Reason, Status};
use crate::time::Timestamp;
use serde_json::{Value, json};

/// How long a look at the records is good for, in milliseconds: the sweep looks every five minutes.
const DNS_STALE: Millis = 15 * 60_000;

fn time(t: Millis) -> Option<Timestamp> {
    Timestamp::from_millisecond(t).ok()
}

/// The whole view of a domain. `saga_runs` is none when nobody could be asked.
pub fn domain(row: &Registry, product: Option<&Product>, saga_runs: Option<bool>, now: Millis) -> Value {
    let status = status(row, product, saga_runs, now);
    let certificate = product
        .and_then(|p| p.certificate.as_ref())
        .or(row.certificate.as_ref());
    json!({
        "domain": row.domain,
        "state": row.state,
        "slug": row.slug,
        "origin": row.origin,
        "port": row.port,
        "server_did": row.server_did,
        "generation": row.generation,
        "handle_domains": row.handle_domains,
        "certificate": certificate,
        "dns_records": records_of(row, product),
        "saga": {
            "execution": row.saga,
            "step": status.progress.as_ref().map(|p| p.step.clone()),
            "error": row.saga_error,
        },
        "status": status,
    })
}

/// The status of a domain that has no row yet, right after its saga was started.
pub fn starting(now: Millis) -> Status {
    let mut s = blank(
        "creating",
        "Creating",
        "The domain's instance is about to be created.",
        now,
    );
    s.progress = Some(Progress::step("validate"));
    s
}

fn blank(state: &str, label: &str, summary: impl Into<String>, now: Millis) -> Status {
    Status {
        state: state.into(),
        label: label.into(),
        summary: summary.into(),
        reason: None,
        needs_admin: None,
        since: None,
        observed_at: time(now),
        stale_after: None,
        source: "stored".into(),
        progress: None,
        flags: Vec::new(),
    }
}

fn first_cause(row: &Registry) -> Option<Reason> {
    let said = |code: &str, text: &str, at: Millis| {
        let mut r = Reason::new(code, text).from_source("headgate");
        r.at = time(at);
        r
    };
    match (&row.saga_error, &row.last_error) {
        (Some(e), _) if row.state == State::Active => Some(said(&e.code, &e.message, e.at)),
        (_, Some(e)) => Some(said(&e.code, &e.message, e.at)),
        _ => None,
    }
}

/// The one status of a domain.
pub fn status(row: &Registry, product: Option<&Product>, saga_runs: Option<bool>, now: Millis) -> Status {
    let mut s = match (row.state, product) {
        (State::Allocating | State::Starting, _) => creating(row, now),
        (State::Active, Some(p)) => claimed(row, p, now),
        (State::Active, None) if saga_runs == Some(false) => {
            let mut s = blank(
                "create_failed",
                "Not created",
                "A later step failed. The instance runs and is kept; create the domain again to go on from there.",
                now,
            );
            s.reason = first_cause(row);
            s
        }
        (State::Active, None) => {
            let mut s = blank(
                "creating",
                "Creating",
                "The instance is up; the domain is not inserted yet.",
                now,
            );
            let waits = row.certificate.as_ref().filter(|c| c.status != "ISSUED");
            s.progress = Some(Progress::step(if waits.is_some() {
                "certificate"
            } else {
                "insert"
            }));
            let to_set = waits.and_then(|c| dns::to_set(&c.validation));
            s.needs_admin = to_set.map(|t| NeedsAdmin::new("set_dns_records", t, None));
            s
        }
        (State::Retiring, _) if row.retire_reason == Some(RetireReason::Rollback) => {
            let text = if row.owner.is_some() {
                "The instance did not come up and is being stopped."
            } else {
                "The instance did not come up, and nothing of it is left running. Its label and port are kept for \
                 the next try."
            };
            let mut s = blank("create_failed", "Not created", text, now);
            s.reason = first_cause(row);
            s
        }
        (State::Retiring, _) => blank("retiring", "Retiring", "The instance is being stopped.", now),
        (State::Retired, _) => {
            let text = "The instance is stopped; its data is kept on the host. DNS records are left for you to remove.";
            blank("retired", "Retired", text, now)
        }
    };
    if super::decide::unfinished(row)
        && let Some(lease) = row.lease_until
    {
        s.stale_after = time(lease.saturating_add(SWEEP_GRACE));
        if lease.saturating_add(SWEEP_GRACE) <= now {
            s.flags.push(Flag::new(
                "stalled",
                "Nobody is at work on it any more; the sweep settles it within five minutes.",
            ));
        }
    }
    s.since = time(match row.state {
        State::Active => row.activated_at.unwrap_or(row.updated_at),
        State::Retired => row.retired_at.unwrap_or(row.updated_at),
        State::Allocating | State::Starting | State::Retiring => row.updated_at,
    });
    s
}

fn creating(row: &Registry, now: Millis) -> Status {
    let (step, text) = if row.state == State::Allocating {
        (
            "allocating",
            "A label and a port are taken; the host is about to be asked.",
        )
    } else {
        ("starting", "The host is starting the instance.")
    };
    let mut s = blank("creating", "Creating", text, now);
    s.progress = Some(Progress::step(step));
    s
}

fn claimed(row: &Registry, p: &Product, now: Millis) -> Status {
    let done = u64::try_from(p.dns_records.iter().filter(|r| r.ok).count()).unwrap_or(0);
    let total = u64::try_from(p.dns_records.len()).unwrap_or(0);
    let mut s = if p.dns_complete() && p.dns_checked_at.is_some() {
        let mut s = blank(
            "live",
            "Live",
            format!("The domain is live at {}.", row.origin),
            now,
        );
        s.stale_after = None;
        s
    } else {
        let text = format!("The instance is up; {done} of {total} DNS records are found.");
        let mut s = blank("waiting_dns", "Waiting for DNS", text, now);
        s.needs_admin = dns::to_set(&p.dns_records).map(|t| NeedsAdmin::new("set_dns_records", t, None));
        s.progress = Some(Progress {
            done: Some(done),
            total: Some(total),
            ..Progress::step("verify_dns")
        });
        s.stale_after = time(p.dns_checked_at.unwrap_or(p.created_at).saturating_add(DNS_STALE));
        s
    };
    s.observed_at = time(p.dns_checked_at.unwrap_or(now));
    s.source = "dns".into();
    if let Some(e) = &row.saga_error {
        s.flags
            .push(Flag::new("saga_error", format!("{}: {}", e.step, e.message)));
    }
    s
}
