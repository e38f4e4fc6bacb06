//! Two at once: users, pollers, the console (spec/updates.md 3.3), each brought to the very moment that hurts.

use headgate_tests::{Answer, Function, Gate, HttpCall, HttpReply, Invocation};
use serde_json::json;

use crate::install::{Install, apply, begin, discard, event, get, version};

const CFN: &str = "cloudformation";

fn start<'a>(function: &'a Function, request: &HttpCall) -> Invocation<'a> {
    function.begin(request.event().to_string().as_bytes())
}

fn reply(invocation: Invocation<'_>) -> HttpReply {
    HttpReply::from_answer(&invocation.outcome().answer())
}

fn begin_request(release: &str) -> HttpCall {
    HttpCall::post("/updates").json(&json!({"release": release}))
}

fn state(updater: &Function, id: &str) -> String {
    get(updater, &format!("/updates/{id}")).text("/state").to_owned()
}

/// Statuses of two replies, the smaller first, and the reply that was refused.
fn one_refused(replies: [HttpReply; 2], accepted: u64) -> HttpReply {
    let [first, second] = replies;
    let (won, lost) = if first.status == accepted {
        (first, second)
    } else {
        (second, first)
    };
    assert_eq!((won.status, lost.status), (accepted, 409), "{won:?} {lost:?}");
    lost
}

#[test]
fn two_who_begin_at_once_make_one_update() {
    let install = Install::new();
    let (first, second) = (install.updater(), install.updater());
    // Both have read before either reserves.
    install.aws.meet(&[
        ("dynamodb", "TransactWriteItems"),
        ("dynamodb", "TransactWriteItems"),
    ]);
    let (ana, bob) = (
        start(&first, &begin_request("2.4.0")),
        start(&second, &begin_request("2.5.0")),
    );
    let loser = one_refused([reply(ana), reply(bob)], 201);
    loser.expect_problem(409, "update_preparing");
    assert_eq!((install.rows().len(), install.cloudformation_writes().0), (1, 1));
    let winner = install.rows()[0]["to_release"].as_str().unwrap().to_owned();
    assert!(
        loser.text("/detail").contains(&winner),
        "names the winner: {loser:?}"
    );
}

#[test]
fn a_double_click_executes_once() {
    let install = Install::new();
    let (first, second) = (install.updater(), install.updater());
    install.check("2.4.0", "passed");
    let id = install.prepare(&first, "2.4.0");
    install.aws.meet(&[
        ("dynamodb", "TransactWriteItems"),
        ("dynamodb", "TransactWriteItems"),
    ]);
    let request = HttpCall::post(&format!("/updates/{id}/apply"));
    let clicks = [start(&first, &request), start(&second, &request)];
    one_refused(clicks.map(reply), 202).expect_problem(409, "update_applying");
    assert_eq!(install.cloudformation_writes().1, 1);
}

#[test]
fn t49_a_poll_never_writes_over_a_newer_state() {
    let install = Install::new();
    let (poller, user) = (install.updater(), install.updater());
    install.check("2.4.0", "passed");
    let id = install.prepare(&user, "2.4.0");
    // The poll has read `prepared` and seen the plan obsolete, when the user's apply gets in between.
    let set = install.newest_set();
    install.cfn.set_words(&set, "CREATE_COMPLETE", "OBSOLETE");
    let held = install.aws.hold("dynamodb", "TransactWriteItems");
    let poll = poller.begin(event!("tick-events").to_string().as_bytes());
    held.reached();
    install.cfn.set_words(&set, "CREATE_COMPLETE", "AVAILABLE");
    apply(&user, &id).expect(202);
    let applied = install.rows();
    held.open();
    let poll = poll.outcome().answer();
    assert_eq!(poll["state"], "applying", "it shows what is there: {poll}");
    assert_eq!(install.rows(), applied);
    assert_eq!(
        install.cloudformation_writes().2,
        0,
        "the plan that runs is not deleted"
    );
}

#[test]
fn two_pollers_write_once() {
    let install = Install::new();
    let (first, second) = (install.updater(), install.updater());
    begin(&first, "2.4.0").expect(201);
    install.cfn.make(&install.newest_set());
    let rev = install.rows()[0]["rev"].as_u64().unwrap();
    // Both have read the finished preparation before either writes it down.
    install
        .aws
        .meet(&[("dynamodb", "UpdateItem"), ("dynamodb", "UpdateItem")]);
    let mark = install.aws.mark();
    let tick = event!("tick-events").to_string();
    let polls = [first.begin(tick.as_bytes()), second.begin(tick.as_bytes())];
    let answers = polls.map(|poll| poll.outcome().answer());
    for answer in &answers {
        assert_eq!(
            answer["state"], "prepared",
            "the loser shows the winner's row: {answers:?}"
        );
    }
    assert_eq!(
        install.rows()[0]["rev"],
        json!(rev + 1),
        "{:?}",
        install.aws.since(mark).names()
    );
}

#[test]
fn an_apply_in_the_middle_of_a_begin_wins() {
    let install = Install::new();
    let (first, second) = (install.updater(), install.updater());
    install.check("2.4.0", "passed");
    let older = install.prepare(&first, "2.4.0");
    let set = install.newest_set();
    // The begin has reserved; the older plan is still the pending one, and its OK comes now.
    let held = install.aws.hold(CFN, "CreateChangeSet");
    let newer = start(&first, &begin_request("2.5.0"));
    held.reached();
    apply(&second, &older).expect(202);
    held.open();
    let newer = reply(newer);
    assert!([201, 409, 422].contains(&newer.status), "{newer:?}");
    assert!(!install.cfn.is_deleted(&set), "the plan that runs is not deleted");
    assert_eq!(install.cloudformation_writes().1, 1);
    assert_eq!(version(&first).text("/update/id"), older);
    install.cfn.start_run(&set);
    install.cfn.complete_run("install");
    version(&first);
    assert_eq!(state(&first, &older), "updated");
    // A set that was asked for a moment ago and is not found may be a stale read: only later is it gone.
    install.later(130);
    version(&first);
    let rows = install.rows();
    let open = rows
        .iter()
        .filter(|row| ["preparing", "prepared", "applying"].contains(&row["status"].as_str().unwrap()));
    assert_eq!(open.count(), 0, "{rows:#?}");
    if newer.status == 201 {
        assert_eq!(state(&first, newer.text("/id")), "expired");
    }
}

#[test]
fn a_console_run_in_the_middle_of_a_begin_is_seen() {
    for moment in ["before the set is made", "after the set is made"] {
        let install = Install::new();
        let updater = install.updater();
        let older = install.prepare(&updater, "2.4.0");
        let set = install.newest_set();
        let gate = Gate::new();
        if moment == "before the set is made" {
            let held = install.aws.hold(CFN, "CreateChangeSet");
            let newer = start(&updater, &begin_request("2.5.0"));
            held.reached();
            install.cfn.console_execute(&set);
            held.open();
            // CloudFormation refuses a plan for a busy stack.
            reply(newer).expect_problem(422, "change_set_refused");
        } else {
            install.aws.next(CFN, "CreateChangeSet", Answer::late(&gate));
            let newer = start(&updater, &begin_request("2.5.0"));
            gate.reached();
            install.cfn.console_execute(&set);
            gate.open();
            let newer = reply(newer);
            assert!([201, 409].contains(&newer.status), "{newer:?}");
        }
        let seen = version(&updater);
        assert_eq!(
            (seen.text("/update/id"), seen.text("/update/state")),
            (older.as_str(), "applying"),
            "{moment}"
        );
        assert_eq!(
            seen.text("/update/applied_by"),
            "someone in the AWS console",
            "{moment}"
        );
        install.cfn.complete_run("install");
        version(&updater);
        // A set that was asked for a moment ago and is not found may be a stale read: only later is it gone.
        install.later(130);
        version(&updater);
        let newest = install.rows()[0]["status"].as_str().unwrap().to_owned();
        let expected = if moment.starts_with("before") {
            "failed"
        } else {
            "expired"
        };
        assert_eq!(newest, expected, "{moment}");
        assert_eq!(state(&updater, &older), "updated", "{moment}");
    }
}

#[test]
fn a_discard_that_meets_an_apply_leaves_the_run_alone() {
    let install = Install::new();
    let (first, second) = (install.updater(), install.updater());
    install.check("2.4.0", "passed");
    let id = install.prepare(&first, "2.4.0");
    let held = install.aws.hold(CFN, "DeleteChangeSet");
    let thrown = start(&first, &HttpCall::post(&format!("/updates/{id}/discard")));
    held.reached();
    apply(&second, &id).expect(202);
    held.open();
    reply(thrown).expect_problem(409, "update_applying");
    install.cfn.start_run(&install.newest_set());
    install.cfn.complete_run("install");
    let done = version(&first);
    assert_eq!(
        (done.text("/update/id"), done.text("/update/state")),
        (id.as_str(), "updated")
    );
}

#[test]
fn an_apply_that_meets_a_discard_is_not_a_run() {
    let install = Install::new();
    let (first, second) = (install.updater(), install.updater());
    install.check("2.4.0", "passed");
    let id = install.prepare(&first, "2.4.0");
    // The apply has seen a good plan and is about to write its intent, when the plan is thrown away.
    let held = install.aws.hold("dynamodb", "TransactWriteItems");
    let applying = start(&first, &HttpCall::post(&format!("/updates/{id}/apply")));
    held.reached();
    discard(&second, &id).expect(200);
    held.open();
    reply(applying).expect_problem(409, "not_pending");
    assert_eq!(install.cloudformation_writes().1, 0, "never executed");
    assert_eq!(state(&first, &id), "discarded");
}

#[test]
fn a_check_that_is_withdrawn_in_the_last_moment_holds() {
    let install = Install::new();
    let updater = install.updater();
    install.check("2.4.0", "passed");
    let id = install.prepare(&updater, "2.4.0");
    let held = install.aws.hold("dynamodb", "TransactWriteItems");
    let applying = start(&updater, &HttpCall::post(&format!("/updates/{id}/apply")));
    held.reached();
    install.check("2.4.0", "failed");
    held.open();
    let refused = reply(applying);
    refused.expect_problem(409, "model_check_failed");
    assert_eq!(install.cloudformation_writes().1, 0, "never executed");
    assert_eq!(install.rows()[0]["status"], "prepared");
}

/// The intent is stored before the act (spec/style.md 2.4 item 3).
#[test]
fn the_intent_is_stored_before_cloudformation_is_asked() {
    let install = Install::new();
    let updater = install.updater();
    install.check("2.4.0", "passed");
    let before_act = |act: &str| {
        let names = install.aws.traffic().names();
        let act = names.iter().rposition(|name| name == act).unwrap();
        let write = names[..act]
            .iter()
            .rposition(|name| name == "dynamodb.TransactWriteItems");
        assert!(write.is_some(), "{names:?}");
    };
    let held = install.aws.hold(CFN, "CreateChangeSet");
    let begun = start(&updater, &begin_request("2.4.0"));
    held.reached();
    let row = install.rows()[0].clone();
    assert_eq!(row["status"], "preparing");
    let name = row["change_set_name"].as_str().unwrap();
    assert!(name.starts_with("upd-"), "{name}");
    held.open();
    let id = reply(begun).text("/id").to_owned();
    before_act("cloudformation.CreateChangeSet");

    install.cfn.make(&install.newest_set());
    version(&updater);
    let held = install.aws.hold(CFN, "ExecuteChangeSet");
    let applied = start(&updater, &HttpCall::post(&format!("/updates/{id}/apply")));
    held.reached();
    let row = install.rows()[0].clone();
    assert_eq!(
        (&row["status"], &row["applied_by"]),
        (&json!("applying"), &json!("ana@example.com"))
    );
    assert_eq!(row["apply_token"], json!(format!("apply-{id}-1")));
    held.open();
    reply(applied).expect(202);
}

/// The updater may be replaced by the update it runs: an old and a new process work on the same rows.
#[test]
fn a_process_that_is_replaced_in_the_middle_of_its_own_update_is_followed_by_the_next() {
    let install = Install::new();
    let old = install.updater();
    let id = install.run(&old, "2.4.0");
    version(&old);
    let new = install.updater();
    old.kill();
    assert_eq!(version(&new).text("/status/state"), "applying");
    install.cfn.complete_run("install");
    let done = version(&new);
    assert_eq!(
        (done.text("/update/id"), done.text("/update/state")),
        (id.as_str(), "updated")
    );
}
