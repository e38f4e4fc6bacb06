//! The command as a person and a CI job use it: files in, a report on stdout, an exit status.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // helpers of tests stand outside #[test]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn fixture(name: &str) -> String {
    format!(
        "{}/../shared/tests/fixtures/plans/{name}",
        env!("CARGO_MANIFEST_DIR")
    )
}

fn read(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(fixture(name)).unwrap()).unwrap()
}

fn headgate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_headgate"))
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// A folder of this test's own.
fn folder(test: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

fn write(path: &Path, value: &Value) -> String {
    std::fs::write(path, value.to_string()).unwrap();
    path.display().to_string()
}

fn stdout(out: &Output) -> String {
    String::from_utf8(out.stdout.clone()).unwrap()
}

fn stderr(out: &Output) -> String {
    String::from_utf8(out.stderr.clone()).unwrap()
}

#[track_caller]
fn status(out: &Output, want: i32) {
    assert_eq!(out.status.code(), Some(want), "{}{}", stdout(out), stderr(out));
}

const NOW: &str = "2026-11-30T22:55:00Z";

fn cert_request<'a>(manifest: &'a str, plan: &'a str, more: &[&'a str]) -> Output {
    let mut args = vec![
        "gate",
        "cert-request",
        "--manifest",
        manifest,
        "--plan",
        plan,
        "--now",
        NOW,
    ];
    args.extend(more);
    headgate(&args)
}

#[test]
fn a_pass_is_0_and_a_fail_is_1() {
    let manifest = fixture("sample-manifest.demo.json");
    let out = cert_request(&manifest, &fixture("cert_request__create_only.json"), &["--json"]);
    status(&out, 0);
    let verdict: Value = serde_json::from_str(&stdout(&out)).unwrap();
    assert_eq!(verdict["verdict"], "PASS");
    assert_eq!(verdict["checked_at"], NOW);
    let out = cert_request(&manifest, &fixture("cert_request__extra_san.json"), &["--json"]);
    status(&out, 1);
    let verdict: Value = serde_json::from_str(&stdout(&out)).unwrap();
    assert!(
        verdict["failures"]
            .as_array()
            .unwrap()
            .iter()
            .any(|f| f["code"] == "CERT_SANS")
    );
}

#[test]
fn indeterminate_is_5_and_says_where_the_file_is_cut() {
    let dir = folder("cut");
    let text = std::fs::read_to_string(fixture("cert_request__create_only.json")).unwrap();
    let plan = dir.join("plan.json");
    std::fs::write(&plan, &text[..2000]).unwrap();
    let out = cert_request(&fixture("sample-manifest.demo.json"), plan.to_str().unwrap(), &[]);
    status(&out, 5);
    assert!(
        stdout(&out).contains("EVID_UNREADABLE") && stdout(&out).contains("line 1 column"),
        "{}",
        stdout(&out)
    );
    std::fs::write(&plan, "").unwrap();
    status(
        &cert_request(&fixture("sample-manifest.demo.json"), plan.to_str().unwrap(), &[]),
        5,
    );
}

#[test]
fn wait_is_3() {
    let dir = folder("wait");
    let prior = write(
        &dir.join("prior.json"),
        &json!({"verdict": "PASS", "phase": "prepare", "direction": "forward", "run_id": "demo-1",
        "checked_at": "2026-11-30T22:50:00Z", "expires_at": "2026-11-30T23:50:00Z", "applied_at": "2026-11-30T22:54:00Z", "facts": {"old_ttl": 300}}),
    );
    let pre = write(
        &dir.join("pre.json"),
        &json!({"verdict": "PASS", "phase": "pre-create", "direction": "forward", "run_id": "demo-1",
        "checked_at": "2026-11-30T22:50:00Z", "expires_at": "2026-11-30T23:50:00Z"}),
    );
    let (prior, pre) = (format!("prior={prior}"), format!("prior={pre}"));
    let out = cert_request(
        &fixture("sample-manifest.demo.json"),
        &fixture("cert_request__create_only.json"),
        &["--input", &prior, "--input", &pre],
    );
    status(&out, 3);
    assert!(stdout(&out).contains("WAIT_TTL"));
}

#[test]
fn bad_input_and_usage_are_2_and_write_nothing() {
    let dir = folder("bad");
    let (report, evidence) = (dir.join("report.md"), dir.join("evidence.json"));
    let writes = [
        "--report",
        report.to_str().unwrap(),
        "--evidence",
        evidence.to_str().unwrap(),
    ];
    let broken = dir.join("manifest.json");
    std::fs::write(&broken, "{").unwrap();
    let plan = fixture("cert_request__create_only.json");
    let good = fixture("sample-manifest.demo.json");
    let calls: Vec<Vec<&str>> = vec![
        vec![
            "gate",
            "cert-request",
            "--manifest",
            broken.to_str().unwrap(),
            "--plan",
            &plan,
        ],
        vec!["gate", "cert-request", "--manifest", "/does/not/exist.json"],
        vec![
            "gate",
            "cert-request",
            "--manifest",
            &good,
            "--plan",
            "/does/not/exist.json",
        ],
        vec!["gate", "cert-request", "--manifest", &good, "--now", "yesterday"],
        vec!["gate", "cert-request", "--manifest", &good, "--input", "plan"],
        vec!["gate", "cert-request", "--manifest", &good, "--input", "secret=x"],
        vec![
            "gate",
            "cert-request",
            "--manifest",
            &good,
            "--plan",
            &plan,
            "--input",
            "plan=x.json",
        ],
        vec![
            "gate",
            "cert-request",
            "--manifest",
            &good,
            "--files",
            "/does/not/exist",
        ],
        vec!["gate", "cert-request", "--manifest", "-", "--plan", "-"],
        vec![
            "gate",
            "cert-request",
            "--manifest",
            &good,
            "--json",
            "--format",
            "sarif",
        ],
        vec!["gate", "cert-request"],
        vec!["explain", "NO_SUCH_CODE"],
        vec![],
    ];
    for call in calls {
        let gates = call.first() == Some(&"gate");
        let args: Vec<&str> = if gates {
            call.iter().chain(&writes).copied().collect()
        } else {
            call
        };
        let out = headgate(&args);
        status(&out, 2);
        assert!(stdout(&out).is_empty() && !stderr(&out).is_empty(), "{args:?}");
    }
    assert!(!report.exists() && !evidence.exists());
    // A request that can be formed is judged, also with an unknown phase or manifest schema.
    status(&headgate(&["gate", "begin", "--manifest", &good]), 1);
}

#[test]
fn the_evidence_of_a_verify_phase_feeds_the_next_gate() {
    let dir = folder("evidence");
    let describe = {
        let mut output = read("live-acm-describe-certificate-pending.json");
        output["Certificate"]["CreatedAt"] = json!("2026-11-30T12:55:00Z");
        output
    };
    let arn = describe["Certificate"]["CertificateArn"].clone();
    let live = json!({"schema": 1, "kind": "live", "run_id": "demo-1", "account": "123456789012", "region": "us-east-1", "captured_at": NOW, "reads": [
        {"call": "acm:DescribeCertificate", "input": {"CertificateArn": arn}, "output": describe},
        {"call": "route53:ListResourceRecordSets", "input": {"HostedZoneId": "EZ0JI8MSQ83ZHYFNBWKT2A"}, "output": read("live-route53-records-before-rebuild.json")}]});
    let live = write(&dir.join("live.json"), &live);
    let evidence = dir.join("cert-requested.json");
    let report = dir.join("report.md");
    let (m5a, rebuild) = (
        fixture("state-m5a-initial.json"),
        fixture("state-infra-rebuild-after-2a.json"),
    );
    let out = headgate(&[
        "gate",
        "cert-requested",
        "--manifest",
        &fixture("sample-manifest.demo.json"),
        "--state-m5a",
        &m5a,
        "--state-rebuild",
        &rebuild,
        "--live",
        &live,
        "--now",
        NOW,
        "--evidence",
        evidence.to_str().unwrap(),
        "--report",
        report.to_str().unwrap(),
        "--format",
        "markdown",
    ]);
    status(&out, 0);
    let text = std::fs::read_to_string(&report).unwrap();
    assert_eq!(text, stdout(&out));
    assert!(
        text.contains("window_closes_at") && text.contains("2026-12-03T12:55:00Z"),
        "{text}"
    );

    let mut manifest = read("sample-manifest.demo.json");
    let bytes = std::fs::read(&evidence).unwrap();
    manifest["evidence"] = json!({"cert_requested": headgate_core::rebuild::sha256_hex(&bytes)});
    let manifest = write(&dir.join("manifest.json"), &manifest);
    let plan = fixture("rebuild__create_all_absent_outcome.json");
    let args = [
        "gate",
        "rebuild",
        "--manifest",
        &manifest,
        "--plan",
        &plan,
        "--state-rebuild",
        &rebuild,
        "--cert-requested",
        evidence.to_str().unwrap(),
        "--live",
        &live,
        "--now",
        "2026-11-30T22:56:00Z",
    ];
    status(&headgate(&args), 0);
    // The manifest of another evidence file is refused.
    std::fs::write(&evidence, [bytes.as_slice(), b" "].concat()).unwrap();
    let out = headgate(&args);
    status(&out, 1);
    assert!(stdout(&out).contains("ORDER_STAGE_NOT_GENERATED"));
}

#[test]
fn an_answer_that_is_missing_is_4() {
    let dir = folder("answer");
    let mut manifest = read("sample-manifest.demo.json");
    manifest["host"] = Value::Null;
    manifest["new_host"] = json!("new.example.com");
    manifest["worker"] = json!({"mode": "none"});
    let manifest = write(&dir.join("manifest.json"), &manifest);
    let service = json!({"Service": {"ServiceArn": "arn:aws:apprunner:us-east-1:123456789012:service/x/1", "Status": "RUNNING"}});
    let live = json!({"schema": 1, "kind": "live", "account": "123456789012", "region": "us-east-1", "captured_at": NOW, "reads": [
        {"call": "apprunner:DescribeService", "input": {"ServiceArn": "arn:aws:apprunner:us-east-1:123456789012:service/x/1"}, "output": service}]});
    let live = write(&dir.join("live.json"), &live);
    let state = fixture("state-infra-rebuild-after-step3.json");
    let out = headgate(&[
        "gate",
        "rolled-back",
        "--manifest",
        &manifest,
        "--state-rebuild",
        &state,
        "--live",
        &live,
        "--now",
        NOW,
    ]);
    status(&out, 4);
    assert!(stdout(&out).contains("RB_ANSWER_REQUIRED"), "{}", stdout(&out));
}

#[test]
fn generated_files_are_looked_for_beside_the_manifest() {
    let dir = folder("files");
    std::fs::create_dir(dir.join("staged")).unwrap();
    std::fs::write(dir.join("staged/taskdef-on.tf"), "resource").unwrap();
    let mut manifest = read("sample-manifest.demo.json");
    manifest["files"] = json!({"staged/taskdef-on.tf": headgate_core::rebuild::sha256_hex(b"resource")});
    manifest["phases"]["taskdef-on"] =
        json!({"root": "infra_rebuild", "addresses": {"aws_ecs_task_definition.on": {"action": "create"}}});
    let manifest = write(&dir.join("manifest.json"), &manifest);
    let decisions = dir.join("decisions.yml");
    std::fs::write(&decisions, "background_work:\n  mode: switch\n  env: WORKER_ENABLED\n  off: 'false'\n  on: 'true'\n  stops_boot_migrations: true\n  lock: queue\n").unwrap();
    let plan = fixture("taskdef_on__create_only.json");
    let args = [
        "gate",
        "taskdef-on",
        "--manifest",
        &manifest,
        "--plan",
        &plan,
        "--decisions",
        decisions.to_str().unwrap(),
        "--now",
        "2026-11-30T23:10:00Z",
    ];
    status(&headgate(&args), 0);
    std::fs::write(dir.join("staged/taskdef-on.tf"), "edited").unwrap();
    let out = headgate(&args);
    status(&out, 1);
    assert!(stdout(&out).contains("MANIFEST_FILE_HASH"));
    std::fs::remove_dir_all(dir.join("staged")).unwrap();
    let out = headgate(&args);
    status(&out, 1);
    assert!(stdout(&out).contains("EVID_MISSING"));
}

#[test]
fn ci_formats_are_well_formed() {
    let manifest = fixture("sample-manifest.demo.json");
    let plan = fixture("cert_request__plus_log_group.json");
    let out = cert_request(&manifest, &plan, &["--format", "sarif"]);
    status(&out, 1);
    let sarif: Value = serde_json::from_str(&stdout(&out)).unwrap();
    let results = sarif["runs"][0]["results"].as_array().unwrap();
    assert!(
        results
            .iter()
            .any(|r| r["ruleId"] == "CERT_REQUEST_EXTRA_CHANGE" && r["level"] == "error")
    );
    let described = sarif["runs"][0]["tool"]["driver"]["rules"].as_array().unwrap();
    assert!(
        results
            .iter()
            .all(|r| described.iter().any(|d| d["id"] == r["ruleId"]))
    );
    let out = cert_request(&manifest, &plan, &["--format", "junit"]);
    let xml = stdout(&out);
    assert!(xml.starts_with("<?xml") && xml.trim_end().ends_with("</testsuites>"));
    assert!(xml.contains("<failure type=\"CERT_REQUEST_EXTRA_CHANGE\"") && xml.contains("<skipped"));
    assert_eq!(
        xml.matches("<testcase").count(),
        xml.matches("</testcase>").count() + xml.matches("\"/>\n").count()
    );
    // No colour where nobody looks.
    assert!(!stdout(&cert_request(&manifest, &plan, &[])).contains('\u{1b}'));
}

#[test]
fn stdin_and_help_and_explain() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_headgate"))
        .args([
            "gate",
            "cert-request",
            "--manifest",
            &fixture("sample-manifest.demo.json"),
            "--plan",
            "-",
            "--now",
            NOW,
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let plan = std::fs::read(fixture("cert_request__create_only.json")).unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), &plan).unwrap();
    status(&child.wait_with_output().unwrap(), 0);
    for args in [
        vec!["--help"],
        vec!["gate", "--help"],
        vec!["--version"],
        vec!["explain"],
        vec!["explain", "cert_sans"],
        vec!["explain", "rebuild"],
        vec!["completions", "bash"],
    ] {
        let out = headgate(&args);
        status(&out, 0);
        assert!(!stdout(&out).is_empty());
    }
    let text = stdout(&headgate(&["explain", "CERT_TOO_OLD"]));
    assert!(text.contains("why") && text.contains("rollback-rebuild") && text.contains("RBD-11"));
}

#[test]
fn a_skeleton_manifest_is_one_that_the_gate_reads() {
    let dir = folder("skeleton");
    let decisions = write(
        &dir.join("decisions.json"),
        &json!({"schema": 1, "background_work": {"mode": "switch", "env": "W", "off": "0", "on": "1"}}),
    );
    let made = dir.join("manifest.json");
    let out = headgate(&[
        "manifest",
        "new",
        "--state-m5a",
        &fixture("state-m5a-initial.json"),
        "--state-rebuild",
        &fixture("state-infra-rebuild-after-2a.json"),
        "--decisions",
        &decisions,
        "--run-id",
        "r1",
        "--out",
        made.to_str().unwrap(),
    ]);
    status(&out, 0);
    assert!(stderr(&out).contains("zone.name"));
    let mut manifest: Value = serde_json::from_str(&std::fs::read_to_string(&made).unwrap()).unwrap();
    assert_eq!(
        (&manifest["account"], &manifest["host"]),
        (&json!("123456789012"), &json!("api.example.com"))
    );
    manifest["zone"]["name"] = json!("example.com");
    let made = write(&dir.join("complete.json"), &manifest);
    let plan = fixture("steady__m5a_noop.json");
    let out = headgate(&[
        "gate",
        "steady",
        "--use",
        "m5a",
        "--manifest",
        &made,
        "--plan",
        &plan,
        "--now",
        "2026-11-30T23:15:00Z",
    ]);
    status(&out, 0);
}
