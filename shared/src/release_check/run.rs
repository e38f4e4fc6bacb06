//! The shell of the model check: view, start, report intake. Generic over the world of `updates`, whose table
//! and install it shares.

use super::decide::{self, Context, Judgement, Start};
use super::model::{Check, Report, State};
use crate::error::{CallError, Class};
use crate::http::hex;
use crate::release::{self, Listed, ReleaseList};
use crate::store::{Cond, Item, Key, Op, Row, Versioned, Write, WriteError};
use crate::updates::model::{Act, BuildRead, Fact, Look, Seen, StartBuild};
use crate::updates::run::{Call, Refused, World, read_list, write_id};
use crate::updates::store::{check_key, report_key};

/// Where the list and the models come from, and what could not be read.
#[derive(Debug, Clone)]
pub struct Known {
    /// The stored check as it is now.
    pub check: Option<Check>,
    /// The row the judgement is about, for the condition of the next write: never a later one.
    pub stored: Option<Versioned<Check>>,
    /// What is known of it.
    pub judgement: Judgement,
    /// The build, if it was asked.
    pub build: Option<BuildRead>,
    /// The release's entry in the list.
    pub listed: Option<Listed>,
    /// Why the list could not be read.
    pub list_error: Option<CallError>,
    /// Was anything written?
    pub wrote: bool,
}

async fn read<W: World, T: Row>(w: &W, key: &Key) -> Result<Option<Versioned<T>>, CallError> {
    match w.get(key).await? {
        None => Ok(None),
        Some(item) => Versioned::read(item)
            .map(Some)
            .map_err(|t| CallError::new(Class::Refused, "dynamodb:GetItem", "MalformedRow", &t)),
    }
}

/// The conditional write of one record: the revision that was read, or nothing there.
fn put<T: Row>(key: Key, old: Option<&Versioned<T>>, rev: u64, next: &T) -> Write {
    let (item, when) = match old {
        Some(o) => (o.item_for(next), Cond::Rev(rev)),
        None => (Versioned::fresh(next.clone()).item_for(next), Cond::NotExists),
    };
    Write::put(key, item, when)
}

/// Stores a check and gives it as it is stored now. None when somebody else was faster: then what is there is
/// shown, and the decision is not tried again.
async fn save<W: World>(
    w: &W,
    call: &Call<'_>,
    old: Option<&Versioned<Check>>,
    next: &Check,
    what: &str,
) -> Result<Option<Versioned<Check>>, CallError> {
    if old.is_some_and(Versioned::is_newer) {
        return Ok(None);
    }
    let rev = old.map_or(0, |o| o.row.rev);
    let id = write_id(call, what);
    let row = Check {
        rev: rev + 1,
        last_write_id: Some(id.clone()),
        ..next.clone()
    };
    let write = put(check_key(call.pk, &row.release), old, rev, &row);
    let raw = match &write.op {
        Op::Put(item) => item.clone(),
        _ => Item::new(),
    };
    match w.save(&[write], &id).await {
        Ok(()) => Ok(Some(Versioned { row, raw })),
        Err(WriteError::Conflict(_)) => Ok(None),
        Err(WriteError::Call(e)) => Err(e),
    }
}

fn list_of(seen: Option<Seen>) -> Result<ReleaseList, CallError> {
    match seen {
        Some(Seen::Releases(read)) => read.and_then(read_list),
        _ => Err(CallError::new(
            Class::Unavailable,
            "s3:GetObject",
            "Malformed",
            "the list was not read",
        )),
    }
}

/// model_check_view: brings the stored check up to date and says what is known. A read never starts a build.
///
/// # Errors
/// The table can not be read.
pub async fn view<W: World>(w: &W, call: &Call<'_>, release: &str) -> Result<Known, CallError> {
    let release = release::canonical(release);
    let stored: Option<Versioned<Check>> = read(w, &check_key(call.pk, &release)).await?;
    bring_up_to_date(w, call, &release, stored).await
}

async fn bring_up_to_date<W: World>(
    w: &W,
    call: &Call<'_>,
    release: &str,
    stored: Option<Versioned<Check>>,
) -> Result<Known, CallError> {
    let check = stored.as_ref().map(|v| &v.row);
    // The build first, the report second: see Context.
    let mut looks = vec![Look::Releases];
    let pending = check.is_some_and(|c| c.state == State::Pending);
    let waits = check.is_some_and(|c| matches!(c.state, State::Pending | State::Stalled));
    if let (true, Some(c)) = (pending, check) {
        looks.push(match &c.build_id {
            Some(id) => Look::Build(id.clone()),
            None => Look::FindBuild {
                release: release.to_owned(),
                attempt: c.attempt,
            },
        });
    }
    if waits {
        looks.push(Look::Models);
    }
    let mut seen = w.look(&looks).await.into_iter();
    let list = list_of(seen.next());
    let (mut build, mut models) = (None, None);
    for s in seen {
        match s {
            Seen::Build(b) => build = Some(b),
            Seen::Models(m) => models = Some(m),
            _ => {}
        }
    }
    let report: Option<Versioned<Report>> = if waits {
        read(w, &report_key(call.pk, release)).await?
    } else {
        None
    };
    let listed = list.as_ref().ok().and_then(|l| l.find(release)).cloned();
    let cx = Context {
        check,
        report: report.as_ref().map(|r| &r.row),
        build: build.as_ref(),
        listed: listed.as_ref(),
        models: models.as_ref(),
        now: call.now,
    };
    let judgement = decide::judge(&cx);
    let mut known = Known {
        check: check.cloned(),
        stored: stored.clone(),
        build: build.clone(),
        listed,
        list_error: list.err(),
        wrote: false,
        judgement,
    };
    if let Some(next) = known.judgement.next.clone() {
        match save(w, call, stored.as_ref(), &next, "view").await {
            Ok(Some(now_stored)) => {
                known.check = Some(now_stored.row.clone());
                known.stored = Some(now_stored);
                known.wrote = true;
            }
            Ok(None) => {
                // Somebody else was faster: show what is there.
                let now_there: Option<Versioned<Check>> = read(w, &check_key(call.pk, release)).await?;
                let state = match now_there.as_ref().map(|v| &v.row.state) {
                    None | Some(State::Unknown(_)) => "not_started",
                    Some(State::Pending) => "pending",
                    Some(State::Passed) => "passed",
                    Some(State::Failed) => "failed",
                    Some(State::Stalled) => "stalled",
                };
                known.check = now_there.as_ref().map(|v| v.row.clone());
                known.stored = now_there;
                known.judgement = Judgement {
                    state,
                    next: None,
                    ..known.judgement
                };
            }
            Err(e) => {
                // What was learned is shown all the same; the next view stores it.
                known.check = Some(next);
                known.judgement.flags.push(crate::status::read_flag(&e));
            }
        }
    }
    Ok(known)
}

/// What start_verify brought.
#[derive(Debug, Clone)]
pub enum Started {
    /// It passed already.
    Passed(Known),
    /// It runs: refused, with the progress.
    Running(Known),
    /// A new attempt was started, or could not be: the record says which.
    New(Known),
}

/// start_verify (spec/updates.md 2.4): attempt before build, build id after.
///
/// # Errors
/// The release is not listed, the list can not be read, or the table is in trouble.
pub async fn start_verify<W: World>(w: &W, call: &Call<'_>, release: &str) -> Result<Started, Refused> {
    let release = release::canonical(release);
    let stored: Option<Versioned<Check>> = read(w, &check_key(call.pk, &release)).await?;
    let known = bring_up_to_date(w, call, &release, stored).await?;
    let Some(listed) = known.listed.clone() else {
        return Err(match &known.list_error {
            Some(error) if error.passing() => Refused::Aws {
                error: error.clone(),
                what: "the release list could not be read",
            },
            Some(error) => Refused::Conflict {
                blocker: crate::updates::run::releases_unreadable(error),
                extras: vec![],
            },
            None => Refused::ReleaseUnknown(release),
        });
    };
    // What was judged is what is written over: reading the row again here could overwrite a verdict that came in
    // between with a new attempt.
    let stored = known.stored.clone();
    let mut build = known.build.clone();
    let check = stored.as_ref().map(|v| v.row.clone());
    if let (None, Some(id)) = (
        &build,
        check
            .as_ref()
            .filter(|c| c.state == State::Stalled)
            .and_then(|c| c.build_id.clone()),
    ) {
        // Stalled by its age: the build may still run, and then it is stopped first.
        if let Some(Seen::Build(b)) = w.look(&[Look::Build(id)]).await.into_iter().next() {
            build = Some(b);
        }
    }
    match decide::start(
        &release,
        check.as_ref(),
        &known.judgement,
        build.as_ref(),
        &listed,
        call.now,
    ) {
        Start::Passed => Ok(Started::Passed(known)),
        Start::Running => Ok(Started::Running(known)),
        Start::New { next, stop } => {
            if let Some(id) = stop {
                // Best effort: a build that can not be stopped ends by its own time-out, and its report is old.
                let _ = w.act(&Act::StopBuild(id)).await;
            }
            let next = Check {
                release: release.clone(),
                ..*next
            };
            // From here on only what was written here counts: reading it again could read a newer attempt, and the
            // build id of this one would then be written over it.
            let Some(attempt) = save(w, call, stored.as_ref(), &next, "attempt").await? else {
                let now_there: Option<Versioned<Check>> = read(w, &check_key(call.pk, &release)).await?;
                let known = bring_up_to_date(w, call, &release, now_there).await?;
                return Ok(if known.judgement.state == "passed" {
                    Started::Passed(known)
                } else {
                    Started::Running(known)
                });
            };
            let act = Act::StartBuild(Box::new(StartBuild {
                release: release.clone(),
                attempt: next.attempt,
                template_url: listed.template_url.clone(),
                template_sha256: listed.template_sha256.clone(),
                models: listed.models.clone().unwrap_or_default(),
                token: token(&release, next.attempt, next.started_at),
            }));
            let after = match w.act(&act).await {
                Ok(Fact::Started(id)) => Some(Check {
                    build_id: Some(id),
                    build_status: Some("IN_PROGRESS".into()),
                    step: Some("SUBMITTED".into()),
                    ..next.clone()
                }),
                // Whether it runs can not be told: the next view finds the build by its attempt.
                Ok(_) => None,
                Err(e) if e.effect_unknown() => None,
                Err(e) => Some(decide::start_failed(&next, &e, call.now)),
            };
            let shown = match after {
                None => next,
                Some(record) => {
                    // Lost to a report that was faster: then that is what counts.
                    let _ = save(w, call, Some(&attempt), &record, "started").await;
                    record
                }
            };
            let state = if shown.state == State::Stalled {
                "stalled"
            } else {
                "pending"
            };
            let judgement = Judgement {
                state,
                next: None,
                flags: vec![],
                asked: true,
            };
            Ok(Started::New(Known {
                check: Some(shown),
                judgement,
                wrote: true,
                ..known
            }))
        }
    }
}

/// idempotencyToken: release, attempt and the moment of the attempt, at most 64 characters. CodeBuild keeps a
/// token for five minutes; the moment keeps two installs that share a project apart.
fn token(release: &str, attempt: u64, at: Option<crate::time::Timestamp>) -> String {
    use sha2::{Digest, Sha256};
    let text = format!("{release}/{attempt}/{}", at.map_or(0, |t| t.as_millisecond()));
    hex(&Sha256::digest(text.as_bytes()))
}

/// What became of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// Stored and judged.
    Stored(&'static str),
    /// It says nothing new.
    Known,
    /// It does not count: no check asked for it, or it is a failure of an older attempt.
    Ignored,
}

/// Report intake: `Release Check Reported` becomes the release record, and the check is judged at once.
///
/// # Errors
/// The table is in trouble: EventBridge delivers again.
pub async fn take_report<W: World>(w: &W, call: &Call<'_>, report: &Report) -> Result<Taken, CallError> {
    let check: Option<Versioned<Check>> = read(w, &check_key(call.pk, &report.release)).await?;
    let Some(c) = &check else {
        return Ok(Taken::Ignored);
    };
    if !decide::counts(&c.row, report, c.row.template_sha256.as_deref()) {
        return Ok(Taken::Ignored);
    }
    for _ in 0..3 {
        let old: Option<Versioned<Report>> = read(w, &report_key(call.pk, &report.release)).await?;
        if let Some(o) = &old {
            // Repeats and older attempts never replace what is there; a pass of an old one only a failure.
            let older = o.row.attempt > report.attempt && o.row.verdict == "passed";
            if o.row.same_as(report) || older || o.is_newer() {
                break;
            }
        }
        let rev = old.as_ref().map_or(0, |o| o.row.rev);
        let id = write_id(call, "report");
        let next = Report {
            rev: rev + 1,
            last_write_id: Some(id.clone()),
            ..report.clone()
        };
        match w
            .save(
                &[put(
                    report_key(call.pk, &report.release),
                    old.as_ref(),
                    rev,
                    &next,
                )],
                &id,
            )
            .await
        {
            Ok(()) => break,
            Err(WriteError::Conflict(_)) => {}
            Err(WriteError::Call(e)) => return Err(e),
        }
    }
    let known = bring_up_to_date(w, call, &report.release, check).await?;
    Ok(if known.wrote {
        Taken::Stored(known.judgement.state)
    } else {
        Taken::Known
    })
}
