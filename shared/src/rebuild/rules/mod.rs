//! The rules, one small function each, with the id that spec/rebuild.md gives it.
//!
//! One file per family. A rule looks at the context and writes findings; it knows nothing of other rules. The list
//! [`all`] is what runs, and what the table in `docs/rebuild-rules.md` is made from.

use jiff::Timestamp;

use super::decide::{CERT_WINDOW, Ctx};
use super::phase::Phase;
use super::verdict::Out;

mod build;
mod certificate;
mod cover;
mod cutover;
mod handoff;
mod input;
mod never;
mod rollback;
mod shape;
mod work;

/// One rule.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    /// Its id in the specification.
    pub(crate) id: &'static str,
    /// The phases in which it is judged.
    pub(crate) phases: &'static [Phase],
    /// The codes of its own that it may report. Missing or unreadable evidence comes on top.
    pub(crate) codes: &'static [&'static str],
    /// What it demands, in a sentence.
    pub(crate) what: &'static str,
    /// The check.
    pub(crate) check: fn(&Ctx<'_>, &mut Out),
}

/// A rule in a table.
const fn rule(
    id: &'static str,
    phases: &'static [Phase],
    codes: &'static [&'static str],
    what: &'static str,
    check: fn(&Ctx<'_>, &mut Out),
) -> Rule {
    Rule {
        id,
        phases,
        codes,
        what,
        check,
    }
}

/// Every rule, in the order in which they run.
pub(crate) fn all() -> Vec<Rule> {
    [
        input::RULES,
        shape::RULES,
        cover::RULES,
        never::RULES,
        handoff::RULES,
        certificate::RULES,
        build::RULES,
        cutover::RULES,
        work::RULES,
        rollback::RULES,
    ]
    .concat()
}

/// When the 72-hour window closes, while the certificate is still pending (2.11 row 14).
pub(crate) fn pending_window_close(ctx: &Ctx<'_>) -> Option<Timestamp> {
    let arn = ctx.certificate_arn()?;
    let cert = certificate::describe(ctx, &arn).ok()?;
    if cert.status != "PENDING_VALIDATION" {
        return None;
    }
    cert.created_at?.checked_add(CERT_WINDOW).ok()
}
