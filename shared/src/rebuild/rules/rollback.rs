//! The way back: `rolled-back` before the destroy, and the destroy itself (spec 2.9).

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::build::{self, switched};
use super::{Rule, certificate, rule};
use crate::rebuild::decide::Ctx;
use crate::rebuild::inputs::type_of;
use crate::rebuild::json as j;
use crate::rebuild::live::Gap;
use crate::rebuild::names;
use crate::rebuild::phase::Phase;
use crate::rebuild::plan::{Action, Change};
use crate::rebuild::verdict::{Finding, LeftBehind, MustKeep, Out};

use Phase::*;

const BACK: &[Phase] = &[RolledBack];
const DESTROY: &[Phase] = &[RollbackRebuild];

pub(super) const RULES: &[Rule] = &[
    rule(
        "RK-1",
        BACK,
        &["RB_WORK_NOT_RETURNED"],
        "Background work is back in App Runner and off in ECS.",
        rk_1,
    ),
    rule(
        "RK-2",
        BACK,
        &["RB_DNS_NOT_RETURNED"],
        "The host is the simple CNAME to App Runner again.",
        rk_2,
    ),
    rule("RK-3", BACK, &["APPRUNNER_STATUS"], "App Runner runs.", rk_3),
    rule(
        "RK-4",
        BACK,
        &["RB_REQUESTCOUNT_UNAVAILABLE"],
        "Without a custom domain: the requests since start are counted and shown.",
        rk_4,
    ),
    rule(
        "RK-5",
        BACK,
        &["RB_ANSWER_REQUIRED"],
        "Without a custom domain: an explicit answer is needed whatever the count.",
        rk_5,
    ),
    rule(
        "RK-6",
        BACK,
        &["RB_OPERATOR_STOP", "RB_ANSWER_STALE"],
        "The answer is bound to what was shown, is fresh, and says proceed.",
        rk_6,
    ),
    rule(
        "RK-7",
        BACK,
        &["RB_START_TIME_UNKNOWN"],
        "The count starts when start was applied.",
        rk_7,
    ),
    rule(
        "RB-1",
        DESTROY,
        &["ORDER_PREREQUISITE"],
        "rolled-back passed in this run a moment ago.",
        rb_1,
    ),
    rule(
        "RB-2",
        DESTROY,
        &["VALIDATION_RECORD_DELETE"],
        "The created validation record is not deleted.",
        rb_2,
    ),
    rule(
        "RB-3",
        DESTROY,
        &["FORGET_MISSING", "ADDR_FORGET_OUTSIDE_MANIFEST"],
        "Log group and created validation record are forgotten where they are in the state, and nothing else is.",
        rb_3,
    ),
    rule(
        "RB-4",
        DESTROY,
        &["ADDR_MISSING", "ADDR_DELETE_OUTSIDE_MANIFEST"],
        "Everything else in the state is deleted, and nothing more.",
        rb_4,
    ),
    rule(
        "RB-6",
        DESTROY,
        &[],
        "The report lists what must be kept and what is left behind.",
        rb_6,
    ),
    rule(
        "RB-8",
        DESTROY,
        &["ADDR_MISSING", "WARN_CERT_ORPHANED"],
        "A timed-out certificate may be missing from the plan; its orphan is reported.",
        rb_8,
    ),
    rule(
        "RB-9",
        DESTROY,
        &[
            "ADDR_UNEXPECTED",
            "ADDR_CREATE_OUTSIDE_MANIFEST",
            "ADDR_IMPORT_OUTSIDE_MANIFEST",
        ],
        "Nothing is created, changed, imported or replaced.",
        rb_9,
    ),
    rule(
        "RB-10",
        DESTROY,
        &["ADDR_UNEXPECTED"],
        "A record that infra-rebuild does not own does not appear.",
        rb_10,
    ),
    rule(
        "RB-11",
        DESTROY,
        &["ADDR_DELETE_OUTSIDE_MANIFEST"],
        "A record is deleted only if it is the one of new_host, without a custom domain.",
        rb_11,
    ),
    rule(
        "RB-13",
        DESTROY,
        &["CERT_IN_USE_ELSEWHERE"],
        "Nobody else uses the certificate.",
        rb_13,
    ),
    rule(
        "RB-14",
        DESTROY,
        &["WARN_FORGOTTEN_RECORD_ABSENT"],
        "Whether the forgotten record is still live is told.",
        rb_14,
    ),
];

// ---------------------------------------------------------------------------------------------- rolled-back

fn rk_1(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(worker) = switched(ctx) else { return };
    let finding = |text: String| Finding::new("RB_WORK_NOT_RETURNED", text).path(worker.env.as_str());
    if let Some(service) = out.read(super::handoff::service(ctx)) {
        let env = "SourceConfiguration.ImageRepository.ImageConfiguration.RuntimeEnvironmentVariables";
        let seen = j::at(service, env)
            .and_then(|e| e.get(&worker.env))
            .and_then(Value::as_str);
        if seen != Some(&worker.on) {
            out.fail(finding("App Runner does not do the background work.".into()).want(worker.on.as_str()));
        }
    }
    // Before step 3 there is no service that could work.
    let Some(state) = &ctx.state_rebuild else { return };
    if state.of_type("aws_ecs_service").next().is_none() {
        return;
    }
    let Some(service) = build::ecs_service(ctx, out) else {
        return;
    };
    let arn = j::str_at(service, "taskDefinition").unwrap_or("");
    let Some(definition) = out.read(build::task_definition(ctx, arn)) else {
        return;
    };
    let containers = definition
        .get("containerDefinitions")
        .and_then(|d| j::containers(d).ok());
    let off = containers.as_ref().and_then(Value::as_array).is_some_and(|list| {
        let values: Vec<_> = list
            .iter()
            .filter_map(|c| c.get("environment")?.get(&worker.env))
            .collect();
        !values.is_empty() && values.iter().all(|v| v.as_str() == Some(&worker.off))
    });
    if !off {
        out.fail(
            finding("ECS still does background work.".into())
                .at(arn)
                .want(worker.off.as_str()),
        );
    }
}

fn rk_2(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(host) = ctx.m.host.as_deref() else { return };
    let Some(records) = out.read(ctx.live.records(&ctx.m.zone_id, host)) else {
        return;
    };
    let target = ctx.m.dns_target.as_deref().unwrap_or("");
    let fine = match records.as_slice() {
        [one] => {
            one.kind == "CNAME"
                && one.is_simple()
                && !target.is_empty()
                && one.only_value().is_some_and(|v| names::dns_eq(v, target))
        }
        _ => false,
    };
    if !fine {
        let seen: Vec<Value> = records
            .iter()
            .map(|r| json!({"type": r.kind, "set_identifier": r.set_identifier, "values": r.values}))
            .collect();
        let text = "The host does not lead to App Runner by its simple CNAME.";
        out.fail(
            Finding::new("RB_DNS_NOT_RETURNED", text)
                .path(host)
                .want(target)
                .saw(json!(seen)),
        );
    }
}

fn rk_3(ctx: &Ctx<'_>, out: &mut Out) {
    if let Some(service) = out.read(super::handoff::service(ctx)) {
        super::work::running(service, out);
    }
}

/// Whether the rules about clients of the new name apply.
fn has_new_clients(ctx: &Ctx<'_>) -> bool {
    !ctx.m.has_custom_domain()
}

/// When start was applied, as far as is known.
enum Started {
    /// At this time.
    At(Timestamp),
    /// The service never left zero: the window is empty (RK-9).
    Never,
    /// There is a record, and it has no PASS of start (RK-7).
    Unknown,
    /// There is no record; the count's own window is taken (2.11 row 17).
    NoRecord,
}

fn started(ctx: &Ctx<'_>) -> Started {
    if let Some(start) = ctx.prior_of("start", None, None).filter(|p| p.passed)
        && let Some(at) = start.applied_at.or(start.checked_at)
    {
        return Started::At(at);
    }
    let never = ctx.state_rebuild.as_ref().is_some_and(|state| {
        let mut targets = state.of_type("aws_appautoscaling_target");
        state.has_values && state.of_type("aws_ecs_service").next().is_none()
            || targets.any(|(_, v)| v.get("max_capacity").and_then(Value::as_i64) == Some(0))
    });
    match (never, ctx.knows_order()) {
        (true, true) => Started::Never,
        (false, true) => Started::Unknown,
        // Without the record a state at zero may be an old one; a count that was read is looked at.
        (true, false) if !ctx.live.any("cloudwatch:GetMetricData") => Started::Never,
        (_, false) => Started::NoRecord,
    }
}

/// The requests that reached the load balancer since start.
struct Requests {
    total: f64,
    shown: Value,
}

/// Points by time, and the window that was asked for.
struct Series {
    points: Vec<(Timestamp, f64)>,
    from: Option<Timestamp>,
    to: Option<Timestamp>,
}

/// One metric of GetMetricData, over all pages, or why it can't be told.
fn metric(ctx: &Ctx<'_>, name: &str, dimension: Option<&str>) -> Result<Series, String> {
    const CALL: &str = "cloudwatch:GetMetricData";
    let entries = ctx.live.inputs_and_outputs(CALL);
    let (mut points, mut from, mut to) = (Vec::new(), None, None);
    let mut found = false;
    for (input, page) in &entries {
        let queries = input
            .get("MetricDataQueries")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        let mut id = None;
        for query in queries {
            if j::str_at(query, "MetricStat.Metric.MetricName") != Some(name) {
                continue;
            }
            let dimensions = j::at(query, "MetricStat.Metric.Dimensions")
                .and_then(Value::as_array)
                .map(Vec::as_slice)
                .unwrap_or_default();
            let of_lb = match dimensions {
                [one] => {
                    j::str_at(one, "Name") == Some("LoadBalancer")
                        && (dimension.is_none() || j::str_at(one, "Value") == dimension)
                }
                _ => false,
            };
            let right = j::str_at(query, "MetricStat.Metric.Namespace") == Some("AWS/ApplicationELB")
                && j::str_at(query, "MetricStat.Stat") == Some("Sum");
            if !of_lb || !right {
                return Err(format!(
                    "the query for {name} is not the Sum over this load balancer"
                ));
            }
            id = j::str_at(query, "Id").map(str::to_owned);
        }
        let results = page
            .get("MetricDataResults")
            .and_then(Value::as_array)
            .ok_or("no MetricDataResults")?;
        for result in results {
            let label = || j::str_at(result, "Label").or_else(|| j::str_at(result, "Id"));
            let mine = match &id {
                Some(id) => j::str_at(result, "Id") == Some(id),
                // The query was not recorded: go by the label, or by there being one result only.
                None => {
                    label().is_some_and(|l| l.eq_ignore_ascii_case(name))
                        || (results.len() == 1 && name == "RequestCount")
                }
            };
            if !mine {
                continue;
            }
            found = true;
            let status = j::str_at(result, "StatusCode").unwrap_or("none");
            // A page before the last may be partial; what counts is that the last one is complete.
            let complete = status == "Complete"
                || (status == "PartialData" && page.get("NextToken").is_some_and(|t| !t.is_null()));
            if !complete {
                return Err(format!("the query for {name} is {status}"));
            }
            let list = |key: &str| {
                result
                    .get(key)
                    .and_then(Value::as_array)
                    .map(Vec::as_slice)
                    .unwrap_or_default()
            };
            let (times, values) = (list("Timestamps"), list("Values"));
            if times.len() != values.len() {
                return Err("times and values differ in number".into());
            }
            for (time, value) in times.iter().zip(values) {
                let time = names::time(time).ok_or("a time can't be read")?;
                let value = value
                    .as_f64()
                    .filter(|v| v.is_finite() && *v >= 0.0)
                    .ok_or("a value can't be read")?;
                points.push((time, value));
            }
        }
        from = input.get("StartTime").and_then(names::time).or(from);
        to = input.get("EndTime").and_then(names::time).or(to);
    }
    if found {
        Ok(Series { points, from, to })
    } else {
        Err(format!("no result for {name}"))
    }
}

/// The dimension of the run's load balancer: `app/<name>/<id>`.
fn dimension(ctx: &Ctx<'_>) -> Option<String> {
    build::lb_arn(ctx)?
        .split_once(":loadbalancer/")
        .map(|(_, rest)| rest.to_owned())
}

/// A count, without a fraction where it has none.
fn number(value: f64) -> Value {
    #[expect(clippy::cast_possible_truncation, reason = "bounded by the comparison")]
    if value.fract() == 0.0 && value.abs() < 9.0e15 {
        json!(value as i64)
    } else {
        json!(value)
    }
}

fn requests(ctx: &Ctx<'_>) -> Result<Requests, Gap> {
    let started = started(ctx);
    let lb = build::lb_arn(ctx);
    if matches!(started, Started::Never) {
        let note = "0 by construction: the service never left zero";
        let shown = json!({"alb_arn": lb, "window_start": null, "window_end": ctx.now.to_string(),
            "request_count": 0, "last_hour": 0, "last_24_hours": 0, "note": note});
        return Ok(Requests { total: 0.0, shown });
    }
    const CALL: &str = "cloudwatch:GetMetricData";
    // Denied, throttled or cut short.
    ctx.live.pages(CALL, &[])?;
    let bad = |why: String| Gap::Malformed(format!("{CALL}: {why}"));
    let Series { points, from, to } = metric(ctx, "RequestCount", dimension(ctx).as_deref()).map_err(bad)?;
    let start = match started {
        Started::At(at) => Some(at),
        _ => from,
    };
    if let (Started::At(at), Some(from)) = (&started, from)
        && from.duration_since(*at) > SignedDuration::from_mins(1)
    {
        return Err(Gap::Malformed(format!(
            "{CALL}: the window begins after start was applied"
        )));
    }
    if to.is_some_and(|to| ctx.now.duration_since(to) > SignedDuration::from_mins(20)) {
        return Err(Gap::Malformed(format!("{CALL}: the window ends too early")));
    }
    let since = |age: SignedDuration| {
        let edge = ctx.now.checked_sub(age).unwrap_or(Timestamp::MIN);
        points
            .iter()
            .filter(|(t, _)| *t >= edge)
            .map(|(_, v)| v)
            .sum::<f64>()
    };
    let total: f64 = points.iter().map(|(_, v)| v).sum();
    let mut shown = json!({
        "alb_arn": lb, "window_start": start.map(|t| t.to_string()), "window_end": to.unwrap_or(ctx.now).to_string(),
        "request_count": number(total), "last_hour": number(since(SignedDuration::from_hours(1))),
        "last_24_hours": number(since(SignedDuration::from_hours(24))),
        "note": if points.is_empty() { "0 (no datapoints): the load balancer publishes nothing while no request flows" }
            else { "a lower bound: health checks and requests rejected before a target was chosen are not counted" },
    });
    for name in [
        "HTTPCode_ELB_4XX_Count",
        "HTTPCode_ELB_5XX_Count",
        "NewConnectionCount",
    ] {
        if let (Ok(Series { points, .. }), Some(map)) = (
            metric(ctx, name, dimension(ctx).as_deref()),
            shown.as_object_mut(),
        ) {
            map.insert(name.into(), number(points.iter().map(|(_, v)| v).sum()));
        }
    }
    Ok(Requests { total, shown })
}

fn rk_4(ctx: &Ctx<'_>, out: &mut Out) {
    if !has_new_clients(ctx) {
        return;
    }
    match requests(ctx) {
        Ok(requests) => {
            out.facts.insert("requests".into(), requests.shown);
        }
        Err(Gap::Missing(read)) => out.gap(Gap::Missing(read)),
        Err(gap) => {
            let (why, denied) = match gap {
                Gap::Failed { call, code, .. } => {
                    let denied = crate::rebuild::verdict::is_denial(&code);
                    (format!("{call}: {code}"), denied)
                }
                Gap::Truncated(why) => (format!("{why} was not read to its end"), false),
                Gap::Malformed(why) | Gap::Missing(why) => (why, false),
            };
            let text = format!("How many requests the new name had can't be told: {why}.");
            let mut finding =
                Finding::new("RB_REQUESTCOUNT_UNAVAILABLE", text).path("cloudwatch:GetMetricData");
            finding.needs_admin = denied;
            out.cannot(finding);
        }
    }
}

/// The question that the operator answers (3.4).
const QUESTION: &str = "rollback-destroy-new-host";

fn rk_5(ctx: &Ctx<'_>, out: &mut Out) {
    if !has_new_clients(ctx) {
        return;
    }
    let answered = ctx
        .documents
        .get("answer")
        .is_some_and(|a| matches!(j::str_at(a, "answer"), Some("proceed" | "stop")));
    if !answered {
        let count = requests(ctx)
            .map(|r| r.shown.get("request_count").cloned().unwrap_or(Value::Null))
            .unwrap_or(Value::Null);
        let text = format!(
            "Clients of {} lose the service when infra-rebuild is destroyed. Requests since start: {count}. Answer proceed or stop.",
            ctx.m.new_host.as_deref().unwrap_or("the new host"),
        );
        out.facts.insert("question".into(), json!(QUESTION));
        out.ask(
            Finding::new("RB_ANSWER_REQUIRED", text)
                .path("answer")
                .want("proceed or stop")
                .saw(count),
        );
    }
}

/// How much the count may have grown since the answer: 1 % of what was shown, and 10 requests at least.
fn tolerance(shown: f64) -> f64 {
    (shown * 0.01).max(10.0)
}

fn rk_6(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(answer) = ctx.documents.get("answer").filter(|_| has_new_clients(ctx)) else {
        return;
    };
    match j::str_at(answer, "answer") {
        Some("stop") => {
            let text = "The operator said stop.";
            out.fail(
                Finding::new("RB_OPERATOR_STOP", text)
                    .path("answer")
                    .saw(j::str_at(answer, "operator")),
            );
            return;
        }
        Some("proceed") => {}
        _ => return, // RK-5
    }
    let stale = |text: &str| Finding::new("RB_ANSWER_STALE", text).path("answer");
    if j::str_at(answer, "question") != Some(QUESTION)
        || (ctx.run_id.is_some() && j::str_at(answer, "run_id") != ctx.run_id.as_deref())
    {
        out.fail(stale("The answer is to another question or of another run."));
    }
    if j::str_at(answer, "operator").is_none_or(str::is_empty) {
        out.fail(stale("The answer does not say who gave it."));
    }
    let lb = build::lb_arn(ctx);
    if lb.is_some() && j::str_at(answer, "shown.alb_arn") != lb.as_deref() {
        out.fail(
            stale("The answer is about another load balancer.")
                .want(lb)
                .saw(j::str_at(answer, "shown.alb_arn")),
        );
    }
    match answer.get("answered_at").and_then(names::time) {
        Some(at) if ctx.now.duration_since(at) <= SignedDuration::from_mins(60) => {}
        Some(at) => out.fail(stale("The answer is older than 60 minutes.").saw(at.to_string())),
        None => out.fail(stale("The answer does not say when it was given.")),
    }
    let Some(shown) = j::at(answer, "shown.request_count").and_then(Value::as_f64) else {
        out.fail(stale("The answer does not say which count was shown."));
        return;
    };
    if let Ok(requests) = requests(ctx) {
        let window = j::str_at(answer, "shown.window_start").and_then(names::time_text);
        let start = requests.shown.get("window_start").and_then(names::time);
        if requests.total > shown + tolerance(shown) {
            let text = "More requests came since the answer than the tolerance allows.";
            out.fail(stale(text).want(number(shown)).saw(number(requests.total)));
        }
        if start.is_some() && window != start {
            out.fail(
                stale("The answer is about another window.")
                    .want(start.map(|t| t.to_string()))
                    .saw(window.map(|t| t.to_string())),
            );
        }
    }
}

fn rk_7(ctx: &Ctx<'_>, out: &mut Out) {
    if !has_new_clients(ctx) {
        return;
    }
    match started(ctx) {
        Started::Unknown => {
            let text = "The run's record has no PASS of start, so since when requests count is unknown; that is not zero.";
            out.fail(Finding::new("RB_START_TIME_UNKNOWN", text).path("prior"));
        }
        Started::NoRecord => out.skip(),
        Started::At(_) | Started::Never => {}
    }
}

// ---------------------------------------------------------------------------------------------- rollback-rebuild

fn rb_1(ctx: &Ctx<'_>, out: &mut Out) {
    if !ctx.knows_order() {
        out.skip();
        return;
    }
    let text = match ctx.prior_of("rolled-back", None, None) {
        None => "The destroy needs a PASS of rolled-back in this run, and there is none.",
        Some(prior) if !prior.passed => "The last rolled-back of this run did not pass.",
        Some(prior) if prior.expires_at.is_none_or(|end| end <= ctx.now) => {
            "The PASS of rolled-back has expired: run it again."
        }
        Some(_) => return,
    };
    out.fail(Finding::new("ORDER_PREREQUISITE", text).path("rolled-back"));
}

/// Whether a change is of the validation record, by its address or by its name.
fn is_validation_record(ctx: &Ctx<'_>, change: &Change<'_>) -> bool {
    if change.kind() != "aws_route53_record" {
        return false;
    }
    let name = change.b("name").as_str();
    let stated = ctx.m.validation.as_ref().and_then(|v| v.name.as_deref());
    let evidence = ctx.cert.as_ref().map(|c| c.name.as_str());
    *change.address == *ctx.validation_address()
        || [stated, evidence]
            .into_iter()
            .flatten()
            .any(|n| name.is_some_and(|name| names::dns_eq(n, name)))
}

fn rb_2(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in plan
        .changes
        .iter()
        .filter(|c| c.action.deletes() && is_validation_record(ctx, c))
    {
        // N1 says the same of a record whose name it knows.
        if !out.has("VALIDATION_RECORD_DELETE", &change.address) {
            let text = "The validation record that infra-rebuild created must be forgotten, never deleted.";
            out.fail(Finding::new("VALIDATION_RECORD_DELETE", text).at(&*change.address));
        }
    }
}

/// Addresses that must be forgotten: the manifest's, where they are in the state.
fn must_forget<'c>(ctx: &'c Ctx<'_>) -> Vec<&'c str> {
    let (Some(entry), Some(state)) = (ctx.entry(), &ctx.state_rebuild) else {
        return Vec::new();
    };
    entry
        .forget
        .iter()
        .map(String::as_str)
        .filter(|a| state.has(a))
        .collect()
}

fn rb_3(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for address in must_forget(ctx) {
        let action = plan.change(address).map(|c| c.action);
        if action != Some(Action::Forget) {
            let text = "The resource must be forgotten (removed, destroy = false) and is not.";
            let seen = action.map(Action::as_str);
            out.fail(
                Finding::new("FORGET_MISSING", text)
                    .at(address)
                    .want("forget")
                    .saw(seen),
            );
        }
    }
    let listed = ctx.entry().map(|e| e.forget.clone()).unwrap_or_default();
    for change in plan.changes.iter().filter(|c| c.action == Action::Forget) {
        // The manifest can't widen the two: a log group and the validation record.
        let may = change.kind() == "aws_cloudwatch_log_group" || *change.address == *ctx.validation_address();
        if !may || !listed.contains(&*change.address) {
            let text = "Only the log group and the created validation record may be forgotten.";
            out.fail(
                Finding::new("ADDR_FORGET_OUTSIDE_MANIFEST", text)
                    .at(&*change.address)
                    .want("delete")
                    .saw("forget"),
            );
        }
    }
}

/// Whether any entry of the manifest for the infra-rebuild root lists an address.
fn is_listed(ctx: &Ctx<'_>, address: &str) -> bool {
    let own = ctx.entry().and_then(|e| e.addresses.as_ref());
    if let Some(map) = own {
        return map.contains_key(address);
    }
    *address == *ctx.m.cert_address
        || ctx.m.phases.values().any(|e| {
            e.root.as_deref() != Some("m5a") && e.root.as_deref() != Some("alb") && e.gate(address).is_some()
        })
}

fn rb_4(ctx: &Ctx<'_>, out: &mut Out) {
    let (Some(plan), Some(state)) = (ctx.plan(), &ctx.state_rebuild) else {
        return;
    };
    let forget = must_forget(ctx);
    for address in state
        .managed()
        .filter(|a| !forget.contains(a) && **a != *ctx.m.cert_address)
    {
        let action = plan.change(address).map(|c| c.action);
        if action != Some(Action::Delete) {
            let text = "The resource is in the state and the plan does not delete it.";
            out.fail(
                Finding::new("ADDR_MISSING", text)
                    .at(address)
                    .want("delete")
                    .saw(action.map(Action::as_str)),
            );
        }
    }
    for change in plan.changes.iter().filter(|c| c.action == Action::Delete) {
        if !state.has(&change.address) || !is_listed(ctx, &change.address) {
            let text = "The plan deletes something that the recorded state or the manifest does not hold.";
            out.fail(
                Finding::new("ADDR_DELETE_OUTSIDE_MANIFEST", text)
                    .at(&*change.address)
                    .saw("delete"),
            );
        }
    }
}

fn rb_6(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in &plan.changes {
        match (change.kind(), change.action) {
            ("aws_route53_record", Action::Forget) => {
                let text = |path: &str| change.b(path).as_str().unwrap_or("").to_owned();
                let values = change
                    .b("records")
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str);
                out.must_keep.insert(MustKeep {
                    zone_id: text("zone_id"),
                    name: text("name"),
                    value: values.collect::<Vec<_>>().join(", "),
                    reason: "unowned from now on; do not delete: ACM reuses it; renewal of every certificate on this \
                             name depends on it"
                        .into(),
                });
            }
            ("aws_cloudwatch_log_group", Action::Forget) => {
                out.left_behind.insert(LeftBehind {
                    kind: "log group".into(),
                    id: change.b("name").as_str().unwrap_or(&change.address).to_owned(),
                    action: "kept with its logs; delete it by hand when nobody needs them".into(),
                });
            }
            ("aws_ecs_task_definition", Action::Delete) => {
                out.left_behind.insert(LeftBehind {
                    kind: "task definition".into(),
                    id: change.b("arn").as_str().unwrap_or(&change.address).to_owned(),
                    action:
                        "stays registered (skip_destroy); deregister it by hand when no rollback needs it"
                            .into(),
                });
            }
            _ => {}
        }
    }
}

fn rb_8(ctx: &Ctx<'_>, out: &mut Out) {
    let (Some(plan), Some(state)) = (ctx.plan(), &ctx.state_rebuild) else {
        return;
    };
    let address = ctx.m.cert_address.as_str();
    if !state.has(address) {
        return;
    }
    let action = plan.change(address).map(|c| c.action);
    if action == Some(Action::Delete) {
        return;
    }
    let missing = |text: &str| {
        Finding::new("ADDR_MISSING", text)
            .at(address)
            .want("delete")
            .saw(action.map(Action::as_str))
    };
    let drifted = plan.drift(address).is_some_and(|d| d.action == Action::Delete);
    if action.is_some() || !drifted {
        out.fail(missing(
            "The certificate is in the state and the plan does not delete it.",
        ));
        return;
    }
    let arn = j::str_at(state.values(address), "arn").map(str::to_owned);
    let in_drift = || {
        plan.drift(address)
            .and_then(|d| d.b("arn").as_str().map(str::to_owned))
    };
    let Some(arn) = arn.or_else(in_drift) else {
        out.fail(missing(
            "The certificate looks deleted, and its ARN is not known.",
        ));
        return;
    };
    let Some(certificate) = out.read(certificate::describe(ctx, &arn)) else {
        return;
    };
    if certificate.status == "VALIDATION_TIMED_OUT" {
        let text = "The certificate timed out, so the provider no longer sees it and will not delete it.";
        out.warn(
            Finding::new("WARN_CERT_ORPHANED", text)
                .at(address)
                .saw(arn.as_str()),
        );
        out.left_behind.insert(LeftBehind {
            kind: "certificate".into(),
            id: arn,
            action: "timed out and unmanaged; delete it by hand (acm DeleteCertificate)".into(),
        });
    } else {
        out.fail(
            missing("The certificate looks deleted to Terraform but has not timed out.")
                .path(certificate.status),
        );
    }
}

fn rb_9(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in &plan.changes {
        let code = match change.action {
            _ if change.is_import() => "ADDR_IMPORT_OUTSIDE_MANIFEST",
            Action::Create => "ADDR_CREATE_OUTSIDE_MANIFEST",
            Action::Update | Action::Replace | Action::Read | Action::Unknown | Action::NoOp => {
                "ADDR_UNEXPECTED"
            }
            Action::Delete | Action::Forget => continue,
        };
        let text = "The rollback only deletes and forgets.";
        out.fail(
            Finding::new(code, text)
                .at(&*change.address)
                .saw(change.action.as_str()),
        );
    }
}

fn rb_10(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    let by_rebuild = ctx
        .documents
        .get("cert_requested")
        .and_then(|d| j::str_at(d, "owner"))
        == Some("infra_rebuild");
    if !matches!(ctx.outcome(), Some("owned" | "unowned")) || by_rebuild {
        return;
    }
    for change in plan.changes.iter().filter(|c| is_validation_record(ctx, c)) {
        let text =
            "By its outcome the validation record is not infra-rebuild's, so it must not be in this plan.";
        out.fail(
            Finding::new("ADDR_UNEXPECTED", text)
                .at(&*change.address)
                .saw(change.action.as_str()),
        );
    }
}

fn rb_11(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in plan
        .of_type("aws_route53_record")
        .filter(|c| c.action == Action::Delete && !is_validation_record(ctx, c))
    {
        let new_host = ctx.m.new_host.as_deref().filter(|_| has_new_clients(ctx));
        let mine =
            new_host.is_some_and(|host| change.b("name").as_str().is_some_and(|n| names::dns_eq(n, host)));
        if !mine {
            let text = "Only the record of new_host may be deleted here.";
            out.fail(
                Finding::new("ADDR_DELETE_OUTSIDE_MANIFEST", text)
                    .at(&*change.address)
                    .saw(change.b("name").clone()),
            );
        }
    }
}

fn rb_13(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(state) = &ctx.state_rebuild else { return };
    if !state.has(&ctx.m.cert_address) {
        return;
    }
    let Some(arn) = j::str_at(state.values(&ctx.m.cert_address), "arn")
        .map(str::to_owned)
        .or_else(|| ctx.certificate_arn())
    else {
        let text = "The certificate's ARN is needed: give the state with values.";
        out.fail(Finding::new("EVID_MISSING", text).path("state_rebuild"));
        return;
    };
    let Some(certificate) = out.read(certificate::describe(ctx, &arn)) else {
        return;
    };
    let own: Vec<&str> = state
        .items
        .keys()
        .filter(|a| type_of(a) == "aws_lb")
        .filter_map(|a| j::str_at(state.values(a), "arn"))
        .collect();
    let others: Vec<&String> = certificate
        .in_use_by
        .iter()
        .filter(|user| !own.contains(&user.as_str()))
        .collect();
    if !others.is_empty() {
        let text =
            "Something besides this root's load balancer uses the certificate; deleting it would block.";
        out.fail(
            Finding::new("CERT_IN_USE_ELSEWHERE", text)
                .at(ctx.m.cert_address.as_str())
                .saw(json!(others)),
        );
    }
}

fn rb_14(ctx: &Ctx<'_>, out: &mut Out) {
    let Some(plan) = ctx.plan() else { return };
    for change in plan
        .of_type("aws_route53_record")
        .filter(|c| c.action == Action::Forget)
    {
        let name = change.b("name").as_str().unwrap_or("");
        match ctx.live.records(&ctx.m.zone_id, name) {
            Ok(records) if records.is_empty() => {
                let text = format!(
                    "{name} is forgotten, and it is not live any more: certificates on the name can't renew."
                );
                out.warn(Finding::new("WARN_FORGOTTEN_RECORD_ABSENT", text).at(&*change.address));
            }
            Ok(_) => {}
            // Only a remark rests on the read, so its absence does not change the verdict.
            Err(Gap::Missing(_)) => out.skip(),
            Err(gap) => out.gap(gap),
        }
    }
}
