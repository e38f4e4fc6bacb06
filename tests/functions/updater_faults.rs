//! When AWS does not answer, or answers and the answer is lost; when the process dies; when two come at once;
//! when an older or a newer build left its rows.

use headgate_tests::{Answer, Function, Gate, HttpCall, HttpReply};
use serde_json::{Value, json};

use crate::install::{Install, apply, begin, discard, event, get, side_by_side, version};

const CFN: &str = "cloudformation";

fn flags(reply: &HttpReply) -> Vec<&str> {
    let flags = reply.at("/status/flags").as_array();
    flags
        .into_iter()
        .flatten()
        .filter_map(|flag| flag["code"].as_str())
        .collect()
}

// --- lost answers of CloudFormation (spec/updates.md 3.4)

#[test]
fn a_create_whose_answer_is_lost_once_is_made_once() {
    let install = Install::new();
    let updater = install.updater();
    install.aws.next(CFN, "CreateChangeSet", Answer::lost());
    let begun = begin(&updater, "2.4.0");
    begun.expect(201);
    assert_eq!(install.cfn.change_sets().len(), 1);
    assert_eq!(begun.text("/change_set/arn"), install.newest_set());
}

#[test]
fn o02_a_create_whose_answer_is_lost_for_good_is_adopted() {
    let install = Install::new();
    let updater = install.updater();
    install.aws.always(CFN, "CreateChangeSet", Answer::lost());
    let begun = begin(&updater, "2.4.0");
    begun.expect(201);
    assert_eq!(begun.text("/state"), "preparing");
    assert_eq!(install.cfn.change_sets().len(), 1);
    install.aws.clear(CFN, "CreateChangeSet");
    let set = install.newest_set();
    install.cfn.make(&set);
    let adopted = version(&updater);
    assert_eq!(adopted.text("/update/state"), "prepared");
    assert_eq!(adopted.text("/update/id"), begun.text("/id"));
    assert_eq!(adopted.text("/update/change_set/arn"), set);
    assert_eq!(install.cfn.change_sets().len(), 1);
}

#[test]
fn o10_a_create_that_never_arrived_ends_and_the_older_plan_stays() {
    let install = Install::new();
    let updater = install.updater();
    let older = install.prepare(&updater, "2.4.0");
    install.aws.always(CFN, "CreateChangeSet", Answer::Drops);
    let begun = begin(&updater, "2.5.0");
    begun.expect(201);
    install.aws.clear(CFN, "CreateChangeSet");
    // An intent blocks another begin, but the older plan is the one to show.
    begin(&updater, "2.5.0").expect_problem(409, "update_preparing");
    assert_eq!(version(&updater).text("/update/id"), older);
    install.later(121);
    let seen = version(&updater);
    assert_eq!(
        (seen.text("/update/id"), seen.text("/update/state")),
        (older.as_str(), "prepared")
    );
    let lost = get(&updater, &format!("/updates/{}", begun.text("/id")));
    assert_eq!(
        (lost.text("/state"), lost.text("/reason/code")),
        ("failed", "prepare_lost")
    );
    begin(&updater, "2.5.0").expect(201);
}

#[test]
fn a_create_throttled_to_the_end_is_tried_later() {
    let install = Install::new();
    let updater = install.updater();
    let older = install.prepare(&updater, "2.4.0");
    install.aws.always(CFN, "CreateChangeSet", Answer::Throttled);
    let refused = begin(&updater, "2.5.0");
    refused.expect_problem(503, "aws_unavailable");
    assert!(!refused.header("retry-after").is_empty());
    let newest = &install.rows()[0];
    assert_eq!(
        (&newest["status"], &newest["reason"]["code"]),
        (&json!("failed"), &json!("prepare_lost"))
    );
    assert_eq!(version(&updater).text("/update/id"), older);
    install.aws.clear(CFN, "CreateChangeSet");
    begin(&updater, "2.5.0").expect(201);
}

#[test]
fn t06_a_create_that_is_refused_costs_the_older_plan_nothing() {
    let install = Install::new();
    let updater = install.updater();
    let older = install.prepare(&updater, "2.4.0");
    install.cfn.change_set_limit(1);
    let refused = begin(&updater, "2.5.0");
    refused.expect_problem(422, "change_set_refused");
    assert!(
        refused.text("/detail").contains("ChangeSet limit exceeded"),
        "{refused:?}"
    );
    let newest = &install.rows()[0];
    assert_eq!(
        (&newest["status"], &newest["reason"]["code"]),
        (&json!("failed"), &json!("prepare_failed"))
    );
    let seen = version(&updater);
    assert_eq!(
        (seen.text("/update/id"), seen.text("/update/state")),
        (older.as_str(), "prepared")
    );
    assert_eq!(install.cloudformation_writes().2, 0);
}

#[test]
fn a_create_that_is_denied_names_the_permission() {
    let install = Install::new();
    let updater = install.updater();
    install.aws.always(CFN, "CreateChangeSet", Answer::AccessDenied);
    let refused = begin(&updater, "2.4.0");
    refused.expect_problem(422, "change_set_refused");
    assert!(
        refused
            .body
            .to_string()
            .contains("cloudformation:CreateChangeSet"),
        "{refused:?}"
    );
    assert_eq!(install.rows()[0]["status"], "failed");
    assert_eq!(version(&updater).text("/status/state"), "failed");
}

#[test]
fn an_execute_whose_answer_is_lost_runs_once() {
    for fault in ["once", "for good"] {
        let install = Install::new();
        let updater = install.updater();
        install.check("2.4.0", "passed");
        let id = install.prepare(&updater, "2.4.0");
        if fault == "once" {
            install.aws.next(CFN, "ExecuteChangeSet", Answer::lost());
        } else {
            install.aws.always(CFN, "ExecuteChangeSet", Answer::lost());
        }
        apply(&updater, &id).expect(202);
        assert_eq!(version(&updater).text("/status/state"), "applying", "{fault}");
        install.cfn.start_run(&install.newest_set());
        install.cfn.complete_run("install");
        assert_eq!(version(&updater).text("/status/state"), "updated", "{fault}");
        assert_eq!(install.cfn.change_sets().len(), 1);
    }
}

#[test]
fn t25_t26_an_execute_that_never_arrived_goes_back_after_the_grace() {
    let install = Install::new();
    let updater = install.updater();
    install.check("2.4.0", "passed");
    let id = install.prepare(&updater, "2.4.0");
    install.aws.always(CFN, "ExecuteChangeSet", Answer::Drops);
    apply(&updater, &id).expect(202);
    install.aws.clear(CFN, "ExecuteChangeSet");
    let before = install.rows();
    assert_eq!(
        version(&updater).text("/status/state"),
        "applying",
        "inside the grace"
    );
    assert_eq!(install.rows(), before, "inside the grace nothing is written");
    install.later(121);
    let attempts = install.cloudformation_writes().1;
    let back = version(&updater);
    assert_eq!(back.text("/status/state"), "prepared");
    assert_eq!(back.text("/update/reason/code"), "execute_not_started");
    assert_eq!(
        install.cloudformation_writes().1,
        attempts,
        "a poll never executes"
    );
    // The admin decides: the next apply has a token of its own.
    apply(&updater, &id).expect(202);
    let token = install
        .cfn
        .change_set(&install.newest_set())
        .execute_token
        .unwrap();
    assert_eq!(token, format!("apply-{id}-2"));
}

#[test]
fn an_execute_that_is_refused_ends_the_grace_at_once() {
    let install = Install::new();
    let updater = install.updater();
    install.check("2.4.0", "passed");
    let id = install.prepare(&updater, "2.4.0");
    install.aws.always(CFN, "ExecuteChangeSet", Answer::AccessDenied);
    let refused = apply(&updater, &id);
    assert_ne!(refused.status, 202, "{refused:?}");
    assert!(
        refused
            .body
            .to_string()
            .contains("cloudformation:ExecuteChangeSet"),
        "{refused:?}"
    );
    assert_eq!(version(&updater).text("/update/state"), "prepared");
    install.aws.clear(CFN, "ExecuteChangeSet");
    apply(&updater, &id).expect(202);
}

#[test]
fn a_plan_deleted_behind_an_apply_is_resolved_again() {
    let install = Install::new();
    let updater = install.updater();
    install.check("2.4.0", "passed");
    let id = install.prepare(&updater, "2.4.0");
    let cfn = install.cfn.clone();
    let set = install.newest_set();
    // Deleted between the fresh read and the execute.
    install.aws.next(
        CFN,
        "ExecuteChangeSet",
        Answer::with(move |_| {
            cfn.console_delete(&set);
            Answer::Behind
        }),
    );
    let refused = apply(&updater, &id);
    assert!(refused.status == 409 || refused.status == 202, "{refused:?}");
    assert_eq!(version(&updater).text("/status/state"), "idle");
    let row = get(&updater, &format!("/updates/{id}"));
    assert_eq!(
        (row.text("/state"), row.text("/reason/code")),
        ("discarded", "change_set_deleted")
    );
}

#[test]
fn a_delete_whose_answer_is_lost_is_still_a_discard() {
    for fault in [Answer::lost(), Answer::Throttled, Answer::ServerError] {
        let install = Install::new();
        let updater = install.updater();
        let id = install.prepare(&updater, "2.4.0");
        install.aws.always(CFN, "DeleteChangeSet", fault.clone());
        let first = discard(&updater, &id);
        assert!(first.status == 200 || first.status == 503, "{fault:?}: {first:?}");
        install.aws.clear(CFN, "DeleteChangeSet");
        if first.status == 503 {
            let again = discard(&updater, &id);
            assert!(
                again.status == 200 || again.text("/code") == "already_closed",
                "{fault:?}: {again:?}"
            );
        }
        version(&updater);
        let row = get(&updater, &format!("/updates/{id}"));
        assert_eq!(row.text("/state"), "discarded", "{fault:?}");
        assert!(install.cfn.is_deleted(&install.newest_set()), "{fault:?}");
    }
}

// --- reads that fail

#[test]
fn t46_t47_a_read_that_fails_answers_from_what_is_stored() {
    let install = Install::new();
    let updater = install.updater();
    let id = install.prepare(&updater, "2.4.0");
    let before = install.table.items();
    for operation in ["DescribeChangeSet", "DescribeStacks"] {
        for (fault, flag) in [
            (Answer::Throttled, "stale_read"),
            (Answer::ServerError, "stale_read"),
            (Answer::Malformed, "stale_read"),
            (Answer::Drops, "stale_read"),
            (Answer::AccessDenied, "needs_permission"),
        ] {
            install.aws.always(CFN, operation, fault.clone());
            let seen = version(&updater);
            assert_eq!(
                (seen.text("/update/id"), seen.text("/status/state")),
                (id.as_str(), "prepared")
            );
            assert!(flags(&seen).contains(&flag), "{operation} {fault:?}: {seen:?}");
            if flag == "needs_permission" {
                let action = format!("cloudformation:{operation}");
                let flags = seen.at("/status/flags").as_array().unwrap();
                assert!(flags.iter().any(|flag| flag["action"] == *action), "{seen:?}");
            }
            if operation == "DescribeChangeSet" {
                assert_eq!(seen.text("/status/source"), "stored", "{fault:?}: {seen:?}");
            }
            assert_eq!(
                install.table.items(),
                before,
                "{operation} {fault:?}: nothing is written"
            );
            install.aws.clear(CFN, operation);
        }
    }
    assert_eq!(
        flags(&version(&updater)),
        [] as [&str; 0],
        "and all is well again"
    );
}

#[test]
fn a_read_that_never_answers_is_given_up() {
    let install = Install::new();
    let updater = install.updater();
    let id = install.prepare(&updater, "2.4.0");
    install.aws.always(CFN, "DescribeChangeSet", Answer::NeverAnswers);
    install.aws.always(CFN, "DescribeStacks", Answer::NeverAnswers);
    install.aws.always("s3", "GetObject", Answer::NeverAnswers);
    let seen = version(&updater);
    assert_eq!(
        (seen.text("/update/id"), seen.text("/status/state")),
        (id.as_str(), "prepared")
    );
    assert!(flags(&seen).contains(&"stale_read"), "{seen:?}");
}

#[test]
fn a_release_list_that_may_not_be_read_names_the_permission() {
    let install = Install::new();
    let updater = install.updater();
    install.aws.always("s3", "GetObject", Answer::AccessDenied);
    let seen = version(&updater);
    assert_eq!(seen.text("/blockers/0/code"), "releases_unreadable", "{seen:?}");
    assert!(
        seen.at("/blockers").to_string().contains("s3:GetObject"),
        "{seen:?}"
    );
    assert_eq!(seen.text("/current/release"), "2.3.0", "the rest is shown");
    install.aws.always("s3", "GetObject", Answer::Throttled);
    assert_eq!(version(&updater).text("/blockers/0/code"), "releases_unreadable");
    begin(&updater, "2.4.0").expect_problem(503, "aws_unavailable");
    assert_eq!(install.rows().len(), 0);
}

#[test]
fn events_that_may_not_be_read_do_not_hide_the_state() {
    let install = Install::new();
    let updater = install.updater();
    install.run(&updater, "2.4.0");
    install
        .aws
        .always(CFN, "DescribeStackEvents", Answer::AccessDenied);
    let seen = version(&updater);
    assert_eq!(seen.text("/status/state"), "applying");
    assert!(flags(&seen).contains(&"needs_permission"), "{seen:?}");
    install.cfn.complete_run("install");
    assert_eq!(version(&updater).text("/status/state"), "updated");
}

#[test]
fn o06_a_cause_that_can_not_be_read_does_not_hold_the_result() {
    let install = Install::new();
    let updater = install.updater();
    install.run(&updater, "2.4.0");
    install.aws.always(CFN, "DescribeStackEvents", Answer::Throttled);
    install.aws.always(CFN, "DescribeEvents", Answer::Throttled);
    install
        .cfn
        .fail_run("install", "Api", "AWS::Lambda::Function", "no such runtime");
    install.cfn.roll_back("install");
    assert_eq!(version(&updater).text("/update/state"), "rolled_back");
    install
        .aws
        .clear(CFN, "DescribeStackEvents")
        .clear(CFN, "DescribeEvents");
    // The reason is filled in later, by a poll.
    updater.invoke(&event!("tick-events")).answer();
    let seen = version(&updater);
    assert!(
        seen.text("/update/reason/text").contains("no such runtime"),
        "{seen:?}"
    );
}

#[test]
fn t48_a_stack_that_is_missed_twice_is_gone() {
    let install = Install::new();
    let updater = install.updater();
    install.run(&updater, "2.4.0");
    version(&updater);
    let missing = Answer::error(400, "ValidationError", "Stack with id install does not exist");
    install.aws.always(CFN, "DescribeStacks", missing.clone());
    let once = version(&updater);
    assert_eq!(once.text("/status/state"), "applying");
    assert!(flags(&once).contains(&"stack_not_seen"), "{once:?}");
    assert_eq!(
        version(&updater).text("/update/state"),
        "applying",
        "a second miss at once is still the same miss"
    );
    install.later(61);
    let gone = version(&updater);
    assert_eq!(
        (gone.text("/update/state"), gone.text("/update/reason/code")),
        ("failed", "stack_gone")
    );
}

#[test]
fn t48_a_good_read_clears_a_miss() {
    let install = Install::new();
    let updater = install.updater();
    install.run(&updater, "2.4.0");
    version(&updater);
    let missing = Answer::error(400, "ValidationError", "Stack with id install does not exist");
    install.aws.next(CFN, "DescribeStacks", missing.clone());
    version(&updater);
    install.later(61);
    assert_eq!(version(&updater).text("/status/state"), "applying");
    assert_eq!(install.rows()[0].get("stack_missed_at"), None);
    install.aws.next(CFN, "DescribeStacks", missing);
    assert_eq!(
        version(&updater).text("/update/state"),
        "applying",
        "the first of a new pair"
    );
}

#[test]
fn a_stale_read_of_the_stack_takes_nothing_back() {
    let install = Install::new();
    let updater = install.updater();
    install.check("2.4.0", "passed");
    let before = install.cfn.describe_stack("install");
    let id = install.prepare(&updater, "2.4.0");
    apply(&updater, &id).expect(202);
    install.cfn.start_run(&install.newest_set());
    assert_eq!(version(&updater).text("/status/state"), "applying");
    install.aws.next(CFN, "DescribeStacks", Answer::ok(before));
    assert_eq!(version(&updater).text("/status/state"), "applying");
    install.cfn.complete_run("install");
    assert_eq!(version(&updater).text("/status/state"), "updated");
}

// --- the table

#[test]
fn o15_a_commit_whose_answer_is_lost_is_a_success() {
    // Every request to the table on the way from begin to apply, its effect done, its answer lost.
    for n in 1..40 {
        let install = Install::new();
        let updater = install.updater();
        install.check("2.4.0", "passed");
        install.aws.nth(n, "dynamodb", Answer::lost());
        begin(&updater, "2.4.0").expect(201);
        install.cfn.make(&install.newest_set());
        let prepared = version(&updater);
        assert_eq!(prepared.text("/update/state"), "prepared", "answer {n} lost");
        apply(&updater, prepared.text("/update/id")).expect(202);
        assert_eq!(install.cloudformation_writes(), (1, 1, 0), "answer {n} lost");
        assert_eq!(install.rows().len(), 1, "answer {n} lost");
        if !install.aws.nth_done() {
            install.aws.forget_nth();
            assert!(n > 3, "the course asks the table only {n} times");
            return;
        }
    }
    panic!("the course never ended");
}

#[test]
fn a_table_that_can_not_be_reached_refuses_writes_and_loses_nothing() {
    let install = Install::new();
    let updater = install.updater();
    install.check("2.4.0", "passed");
    let id = install.prepare(&updater, "2.4.0");
    let writes = install.cloudformation_writes();
    for fault in [
        Answer::ServerError,
        Answer::Drops,
        Answer::Throttled,
        Answer::AccessDenied,
    ] {
        install.aws.from_nth(1, "dynamodb", fault.clone());
        for refused in [
            begin(&updater, "2.5.0"),
            apply(&updater, &id),
            discard(&updater, &id),
        ] {
            refused.expect_problem(503, "aws_unavailable");
            assert!(!refused.header("retry-after").is_empty(), "{fault:?}");
        }
        let blind = get(&updater, "/version");
        assert!(blind.status == 200 || blind.status == 503, "{fault:?}: {blind:?}");
        // A poll that could not look must not look like one that found nothing.
        let poll = updater.invoke(&event!("tick-events"));
        assert!(
            !matches!(&poll, headgate_tests::Outcome::Answered(a) if a["state"] == "idle"),
            "{fault:?}: {poll:?}"
        );
        install.aws.forget_nth();
    }
    assert_eq!(
        install.cloudformation_writes(),
        writes,
        "nothing was done that could not be recorded"
    );
    apply(&updater, &id).expect(202);
}

#[test]
fn a_table_that_is_not_there_is_said_and_not_guessed_around() {
    let install = Install::new();
    let updater = install.updater();
    install.table.delete();
    for reply in [
        get(&updater, "/version"),
        get(&updater, "/updates"),
        begin(&updater, "2.4.0"),
    ] {
        reply.expect_problem(503, "aws_unavailable");
    }
    assert_eq!(install.cloudformation_writes(), (0, 0, 0));
}

// --- every point of the course

/// What a person and a schedule do until the install is at 2.4.0: polls, time, and the button.
fn carry_on(install: &Install, updater: &Function, what: &str) {
    // Past every bound of an intent (120 s).
    install.later(130);
    for _ in 0..8 {
        let seen = version(updater);
        let id = seen.text("/update/id").to_owned();
        match seen.text("/status/state") {
            "updated" => return check_the_end(install, updater, what),
            "preparing" => {
                if install.cfn.change_set(&install.newest_set()).status == "CREATE_PENDING" {
                    install.cfn.make(&install.newest_set());
                } else {
                    install.later(130);
                }
            }
            "prepared" => drop(apply(updater, &id)),
            "applying" => {
                let set = install.cfn.change_set(seen.text("/update/change_set/arn"));
                if set.execute_token.is_some() {
                    install.cfn.start_run(&set.arn);
                    install.cfn.complete_run("install");
                } else {
                    install.later(130);
                }
            }
            _ => drop(begin(updater, "2.4.0")),
        }
    }
    panic!("{what}: it does not come to an end: {:#?}", install.rows());
}

fn check_the_end(install: &Install, updater: &Function, what: &str) {
    let rows = install.rows();
    let open = ["preparing", "prepared", "applying"];
    let states: Vec<&str> = rows.iter().map(|row| row["status"].as_str().unwrap()).collect();
    assert_eq!(
        states.iter().filter(|state| **state == "updated").count(),
        1,
        "{what}: {states:?}"
    );
    assert!(
        !states.iter().any(|state| open.contains(state)),
        "{what}: {states:?}"
    );
    assert_eq!(install.head().get("pending"), None, "{what}: {}", install.head());
    let sets = install.cfn.change_sets();
    assert_eq!(
        sets.iter().filter(|set| set.execute_token.is_some()).count(),
        1,
        "{what}: executed once"
    );
    for set in &sets {
        let ran = set.execution_status == "EXECUTE_COMPLETE";
        assert!(
            ran || install.cfn.is_deleted(&set.arn),
            "{what}: {} is left over",
            set.name
        );
    }
    // And then it is quiet: a poll writes nothing, whatever is left to clean up is cleaned up.
    for _ in 0..2 {
        updater.invoke(&event!("tick-events")).answer();
    }
    let (before, mark) = (install.table.items(), install.aws.mark());
    updater.invoke(&event!("tick-events")).answer();
    assert_eq!(install.table.items(), before, "{what}");
    assert_eq!(
        install.aws.since(mark).total(),
        1,
        "{what}: {:?}",
        install.aws.since(mark).names()
    );
}

/// The requests that begin, and then apply, make when all is well.
fn course(part: &str) -> (Install, Function, HttpCall) {
    let install = Install::new();
    install.check("2.4.0", "passed");
    let updater = install.updater();
    let request = if part == "begin" {
        HttpCall::post("/updates").json(&json!({"release": "2.4.0"}))
    } else {
        let id = install.prepare(&updater, "2.4.0");
        HttpCall::post(&format!("/updates/{id}/{part}"))
    };
    (install, updater, request)
}

fn requests_of(part: &str) -> usize {
    let (install, updater, request) = course(part);
    let mark = install.aws.mark();
    updater.invoke(request.event()).answer();
    let total = install.aws.since(mark).total();
    assert!(total >= 4, "{part}: {:?}", install.aws.since(mark).names());
    total
}

#[test]
fn dying_at_any_request_of_begin_leaves_nothing_wrong_behind() {
    die_everywhere("begin");
}

#[test]
fn dying_at_any_request_of_apply_leaves_nothing_wrong_behind() {
    die_everywhere("apply");
}

#[test]
fn dying_at_any_request_of_discard_leaves_nothing_wrong_behind() {
    die_everywhere("discard");
}

fn die_everywhere(part: &str) {
    let requests = 1..=requests_of(part);
    let moments = [("before", Answer::Drops), ("after", Answer::Behind)];
    let cases = requests.flat_map(|n| moments.clone().map(|(when, inner)| (n, when, inner)));
    side_by_side(cases.collect(), |(n, when, inner)| {
        let (install, updater, request) = course(part);
        let gate = Gate::new();
        install
            .aws
            .nth(n, "*", Answer::Late(gate.clone(), Box::new(inner)));
        let invocation = updater.begin(request.event().to_string().as_bytes());
        gate.reached();
        updater.kill();
        gate.open();
        assert_eq!(invocation.outcome(), headgate_tests::Outcome::Died);
        drop(updater);
        let what = format!(
            "{part} died {when} request {n} ({})",
            install.aws.traffic().names().join(" ")
        );
        carry_on(&install, &install.updater(), &what);
    });
}

#[test]
fn an_outage_from_any_request_of_begin_on_leaves_nothing_wrong_behind() {
    fail_everywhere("begin");
}

#[test]
fn an_outage_from_any_request_of_apply_on_leaves_nothing_wrong_behind() {
    fail_everywhere("apply");
}

#[test]
fn an_outage_from_any_request_of_discard_on_leaves_nothing_wrong_behind() {
    fail_everywhere("discard");
}

fn fail_everywhere(part: &str) {
    let requests = requests_of(part);
    let mut cases = Vec::new();
    for service in ["dynamodb", CFN] {
        for n in 1..=requests {
            for fault in [Answer::ServerError, Answer::lost()] {
                cases.push((service, n, fault));
            }
        }
    }
    side_by_side(cases, |(service, n, fault)| {
        let (install, updater, request) = course(part);
        install.aws.from_nth(n, service, fault.clone());
        let reply = HttpReply::from_answer(&updater.invoke(request.event()).answer());
        let fine = (200..300).contains(&reply.status) || [409, 422, 503].contains(&reply.status);
        let what = format!("{part}: {service} {fault:?} from request {n} on");
        assert!(fine, "{what}: {reply:?}");
        install.aws.forget_nth();
        carry_on(&install, &updater, &what);
    });
}

// --- rows of other builds

#[test]
fn rows_of_an_older_build_are_read_and_unknown_attributes_survive() {
    let install = Install::new();
    let updater = install.updater();
    let id = install.prepare(&updater, "2.4.0");
    let mut row = install.rows()[0].clone();
    // As an older build may have left it, and with something of a newer one.
    row.as_object_mut().unwrap().remove("rev");
    row["approved_in"] = json!({"ticket": "OPS-1", "votes": [1, 2]});
    install.table.put(&row);
    let mut head = install.head();
    head["colour"] = json!("blue");
    install.table.put(&head);
    assert_eq!(version(&updater).text("/update/id"), id);
    discard(&updater, &id).expect(200);
    let after = &install.rows()[0];
    assert_eq!(after["approved_in"], json!({"ticket": "OPS-1", "votes": [1, 2]}));
    assert_eq!(
        (&after["status"], &after["rev"]),
        (&json!("discarded"), &json!(1))
    );
    assert_eq!(install.head()["colour"], "blue");
}

#[test]
fn t10_a_pointer_left_on_the_older_is_repaired() {
    let install = Install::new();
    let updater = install.updater();
    let newest = install.prepare(&updater, "2.5.0");
    // An older build wrote both rows and left the pointer on the older.
    let older_set =
        install
            .cfn
            .console_create("install", "upd-older", &crate::install::template_url("2.4.0"));
    install.cfn.make(&older_set);
    let mut newer = install.rows()[0].clone();
    let mut older = newer.clone();
    newer["seq"] = json!(2);
    newer["sk"] = json!("UPDATE#0000000002");
    older["id"] = json!("0193786a-0000-7000-8000-000000000000");
    older["to_release"] = json!("2.4.0");
    older["change_set_name"] = json!("upd-older");
    older["change_set_id"] = json!(older_set);
    let mut head = install.head();
    head["pending"] = older["id"].clone();
    head["next_seq"] = json!(3);
    for item in [&newer, &older, &head] {
        install.table.put(item);
    }
    let seen = version(&updater);
    assert_eq!(
        (seen.text("/update/id"), seen.text("/update/state")),
        (newest.as_str(), "prepared")
    );
    assert!(install.cfn.is_deleted(&older_set));
    let rows = install.rows();
    assert_eq!(rows[1]["status"], "superseded");
    assert_eq!(rows[1]["superseded_by"], json!(newest));
    assert_eq!(install.head()["pending"], json!(newest));
    let before = install.table.items();
    version(&updater);
    assert_eq!(install.table.items(), before, "a second reconcile writes nothing");
}

#[test]
fn t12_history_never_shows_two_waiting() {
    let install = Install::new();
    let updater = install.updater();
    let newest = install.prepare(&updater, "2.5.0");
    // An older build left an open row below the pending one.
    let mut newer = install.rows()[0].clone();
    let mut older = newer.clone();
    newer["seq"] = json!(2);
    newer["sk"] = json!("UPDATE#0000000002");
    older["id"] = json!("0193786a-0000-7000-8000-000000000000");
    install.table.put(&newer);
    install.table.put(&older);
    let (before, mark) = (install.table.items(), install.aws.mark());
    let history = get(&updater, "/updates");
    let shown: Vec<_> = history
        .at("/updates")
        .as_array()
        .unwrap()
        .iter()
        .map(|u| u["state"].clone())
        .collect();
    assert_eq!(shown, ["prepared", "superseded"]);
    assert_eq!(history.text("/updates/1/superseded_by"), newest);
    assert_eq!(install.table.items(), before, "a view writes nothing");
    assert_eq!(install.aws.since(mark).to(CFN), 0, "and asks nobody");
}

#[test]
fn a_row_of_a_newer_build_is_shown_and_never_rewritten() {
    let install = Install::new();
    let updater = install.updater();
    let id = install.prepare(&updater, "2.4.0");
    let mut row = install.rows()[0].clone();
    row["schema"] = json!(99);
    row["status"] = json!("awaiting_second_approval");
    install.table.put(&row);
    let before = install.table.items();
    let seen = get(&updater, "/version");
    assert!(seen.status < 500, "{seen:?}");
    get(&updater, "/updates").expect(200);
    updater.invoke(&event!("tick-events"));
    for refused in [
        apply(&updater, &id),
        discard(&updater, &id),
        begin(&updater, "2.5.0"),
    ] {
        assert!((400..=503).contains(&refused.status), "{refused:?}");
    }
    let kept: Vec<Value> = install.table.items();
    assert_eq!(kept, before, "never rewritten");
    assert_eq!(install.cloudformation_writes(), (1, 0, 0));
}
