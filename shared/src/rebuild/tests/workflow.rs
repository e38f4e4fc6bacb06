//! `statemachines/rebuild.asl.yaml`: what it refuses, what it bounds, and its paths played with scripted gates.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::rebuild::{PHASES, Phase, yaml};

fn machine() -> Value {
    let path = format!("{}/../statemachines/rebuild.asl.yaml", env!("CARGO_MANIFEST_DIR"));
    yaml::parse(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value.get(key).and_then(Value::as_str).unwrap_or("")
}

/// Where a Choice goes for one variable of the item.
fn choose<'v>(state: &'v Value, variables: &dyn Fn(&str) -> Value) -> &'v str {
    fn holds(rule: &Value, variables: &dyn Fn(&str) -> Value) -> bool {
        if let Some(all) = rule.get("And").and_then(Value::as_array) {
            return all.iter().all(|r| holds(r, variables));
        }
        let value = variables(text(rule, "Variable"));
        if let Some(want) = rule.get("StringEquals") {
            return value == *want;
        }
        value.as_f64().unwrap() < rule["NumericLessThan"].as_f64().unwrap()
    }
    let rule = state["Choices"]
        .as_array()
        .unwrap()
        .iter()
        .find(|r| holds(r, variables));
    rule.map_or_else(|| text(state, "Default"), |r| text(r, "Next"))
}

/// The items of a path.
fn items(machine: &Value, path: &str) -> Option<Vec<Value>> {
    let next = choose(&machine["States"]["ChoosePath"], &|_| Value::from(path));
    let state = &machine["States"][next];
    (text(state, "Type") == "Pass").then(|| {
        assert_eq!(
            (text(state, "Next"), text(state, "ResultPath")),
            ("Steps", "$.items")
        );
        state["Result"].as_array().unwrap().clone()
    })
}

/// Plays one item: each gate call takes the next verdict. Whether it passed, and the human tasks asked for.
fn play(machine: &Value, item: &Value, verdicts: &mut dyn FnMut() -> String) -> (bool, Vec<String>) {
    let states: &Map<String, Value> = machine["States"]["Steps"]["ItemProcessor"]["States"]
        .as_object()
        .unwrap();
    let (mut at, mut tries, mut verdict, mut asked) = ("Bring", 0i64, String::new(), Vec::new());
    for _ in 0..1000 {
        let state = &states[at];
        match text(state, "Type") {
            "Succeed" => return (true, asked),
            "Fail" => return (false, asked),
            "Choice" => {
                at = choose(state, &|variable| match variable {
                    "$.answer.verdict" => Value::from(verdict.clone()),
                    "$.tries" => Value::from(tries),
                    "$.gate.do" => item["do"].clone(),
                    other => panic!("{other}"),
                });
                continue;
            }
            "Task" if at == "Gate" => verdict = verdicts(),
            "Task" => asked.push(at.to_owned()),
            "Pass" => tries += 1,
            "Wait" => assert!(state["Seconds"].as_i64().unwrap() <= 300),
            other => panic!("{other}"),
        }
        at = text(state, "Next");
    }
    panic!("the machine does not end");
}

const PATHS: [&str; 12] = [
    "build",
    "build-adopting-record",
    "cutover-weighted",
    "cutover-switch",
    "background-work",
    "hand-over",
    "back-background-work",
    "back-after-hand-over",
    "back-weights",
    "back-weights-from-0-100",
    "back-switch",
    "destroy",
];

#[test]
fn the_paths_name_real_gates_and_together_every_one() {
    let machine = machine();
    let mut seen = BTreeSet::new();
    for path in PATHS {
        for item in items(&machine, path).unwrap() {
            let phase = Phase::parse(text(&item, "phase")).unwrap_or_else(|| panic!("{item}"));
            let use_ = item["use"].as_str();
            assert!(
                use_.is_none_or(|u| phase.uses().contains(&u)) && (use_.is_some() || phase.uses().is_empty()),
                "{item}"
            );
            assert!(
                ["forward", "rollback"].contains(&text(&item, "direction"))
                    && !text(&item, "bring").is_empty()
            );
            assert!(
                text(&item, "direction") == "forward" || phase.has_rollback(),
                "{item}"
            );
            seen.insert(phase);
        }
    }
    // A shared load balancer's root and the retirement are not on these paths.
    let left: Vec<&Phase> = PHASES.iter().filter(|p| !seen.contains(*p)).collect();
    assert_eq!(left, [&Phase::PrepareAlb, &Phase::Retire]);
    assert!(items(&machine, "retire").is_none() && items(&machine, "anything").is_none());
    let refused = choose(&machine["States"]["ChoosePath"], &|_| Value::from("retire"));
    assert_eq!(text(&machine["States"][refused], "Type"), "Fail");
}

#[test]
fn the_happy_path_and_the_ways_back_pass_gate_by_gate() {
    let machine = machine();
    for path in PATHS {
        for item in items(&machine, path).unwrap() {
            let (passed, asked) = play(&machine, &item, &mut || "PASS".to_owned());
            let want: &[&str] = if text(&item, "do").is_empty() {
                &["Bring"]
            } else {
                &["Bring", "Do"]
            };
            assert!(passed && asked == want, "{item}");
        }
    }
    // From (0,100) through (100,100).
    let back = items(&machine, "back-weights-from-0-100").unwrap();
    let cuts: Vec<&str> = back
        .iter()
        .filter(|i| text(i, "phase") == "cutover")
        .map(|i| text(i, "bring"))
        .collect();
    assert!(cuts[0].contains("(100,100)") && cuts[1].contains("(100,0)"));
    // The stage before 2b, 2b before step 3 (S5); 8a before 8b.
    let order: Vec<String> = items(&machine, "build-adopting-record")
        .unwrap()
        .iter()
        .map(|i| text(i, "phase").to_owned())
        .collect();
    let place = |phase: &str| order.iter().position(|p| p == phase).unwrap();
    assert!(place("cert-requested") < place("import") && place("import") < place("rebuild"));
}

#[test]
fn nothing_but_pass_proceeds() {
    let machine = machine();
    let item = &items(&machine, "build").unwrap()[3];
    for word in [
        "FAIL",
        "INDETERMINATE",
        "NEEDS_ANSWER",
        "WAIT",
        "",
        "pass",
        "PASSED",
    ] {
        let mut calls = 0;
        let (passed, asked) = play(&machine, item, &mut || {
            calls += 1;
            word.to_owned()
        });
        assert!(!passed && !asked.contains(&"Do".to_owned()), "{word}");
        let most = if word == "WAIT" { 61 } else { 4 };
        assert!(calls <= most, "{word} {calls}");
    }
    // A wait that ends passes; each try brings fresh inputs.
    let mut words = ["WAIT", "WAIT", "INDETERMINATE", "PASS"].into_iter();
    let (passed, asked) = play(&machine, item, &mut || words.next().unwrap().to_owned());
    assert!(passed && asked == ["Bring", "Bring", "Bring", "Bring", "Do"]);
}

#[test]
fn no_error_is_caught_into_a_pass() {
    let machine = machine();
    let states = machine["States"]["Steps"]["ItemProcessor"]["States"]
        .as_object()
        .unwrap();
    assert_eq!(machine["States"]["Steps"]["MaxConcurrency"], 1);
    for (name, state) in states {
        assert!(state.get("Catch").is_none(), "{name}");
        for retry in state.get("Retry").and_then(Value::as_array).into_iter().flatten() {
            let errors = retry["ErrorEquals"].as_array().unwrap();
            assert!(
                errors.iter().all(|e| e != "States.ALL" && e != "Gate.BadInput"),
                "{name}"
            );
        }
        for key in ["Next", "Default"] {
            assert!(
                state
                    .get(key)
                    .is_none_or(|n| states.contains_key(n.as_str().unwrap())),
                "{name}"
            );
        }
    }
}
