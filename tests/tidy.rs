//! The purity rules of ARCHITECTURE.md that the compiler can not enforce (spec/style.md 2.2 and 2.4, items 1
//! and 8). Each rule is also tried on a made-up file that breaks it.
#![allow(clippy::unwrap_used, reason = "tests")]

use headgate_tests::source;
use serde_json::Value;

/// Files that decide: same input, same output. Besides these every file of a `decide/` folder.
const PURE: [&str; 4] = ["model.rs", "decide.rs", "tables.rs", "cause.rs"];

/// What a deciding file may not name: SDK and runtime, log, clock, environment.
const IMPURE: [&str; 15] = [
    // The SDK's crates by name: Terraform's resource types begin with aws_ as well, and the gates judge those.
    "aws_sdk_",
    "aws_config",
    "aws_smithy_",
    "aws_types",
    "aws_runtime",
    "aws_sigv4",
    "aws_credential_types",
    "lambda_runtime",
    "tokio",
    "tracing",
    "std::env",
    "std::time",
    "time::now",
    "time::instant",
    "time::new_uuid",
];

const CLOCK: [&str; 6] = [
    "Timestamp::now(",
    "SystemTime::now(",
    "Instant::now(",
    "Zoned::now(",
    "Uuid::now_v7(",
    "Uuid::new_v4(",
];

const ENVIRONMENT: [&str; 2] = ["env::var", "env::set_var"];

const SDK: [&str; 4] = ["aws_sdk_", "aws_config", "aws_smithy_", "aws_types"];

/// The domains of the core crate: they may read each other's `model`, not each other's decisions or tables.
/// `updates` and `release_check` are one domain in two folders (one spec, one partition, one world): the check is
/// a gate of the update.
const DOMAINS: [(&str, &[&str]); 4] = [
    ("updates", &["updates", "release_check"]),
    ("links", &["links"]),
    ("rebuild", &["rebuild"]),
    ("domains", &["domains"]),
];

/// Code without comments and without its test modules, which may use whatever they like.
fn code(text: &str) -> Vec<(usize, &str)> {
    let mut lines = Vec::new();
    let mut closing: Option<String> = None;
    let mut gated = false;
    for (number, line) in text.lines().enumerate() {
        if let Some(brace) = &closing {
            if line == brace {
                closing = None;
            }
            continue;
        }
        let trimmed = line.trim_start();
        if trimmed.starts_with("#[cfg(test)]") || trimmed.starts_with("#[cfg(any(test") {
            gated = true;
            continue;
        }
        if gated && trimmed.starts_with("#[") {
            continue;
        }
        if std::mem::take(&mut gated) {
            if trimmed.ends_with('{') {
                let indent = &line[..line.len() - trimmed.len()];
                closing = Some(format!("{indent}}}"));
            }
            continue;
        }
        let line = line.split("//").next().unwrap_or_default();
        if !line.trim().is_empty() {
            lines.push((number + 1, line));
        }
    }
    lines
}

/// True where `word` stands in `line` as the start of a name, not inside another one.
fn names(line: &str, word: &str) -> bool {
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_'))
}

/// Every breach in a file, as `path:line: what`.
fn breaches(path: &str, text: &str) -> Vec<String> {
    let file = path.rsplit('/').next().unwrap_or(path);
    let folder = path
        .strip_prefix("shared/src/")
        .and_then(|rest| rest.split_once('/'))
        .map(|(folder, _)| folder);
    let domain = DOMAINS
        .into_iter()
        .find(|(_, folders)| folder.is_some_and(|folder| folders.contains(&folder)))
        .map(|(name, _)| name);
    let pure = domain.is_some() && (PURE.contains(&file) || path.contains("/decide/"));
    let mut found = Vec::new();
    let mut breach =
        |line: usize, word: &str, why: &str| found.push(format!("{path}:{line}: `{word}`: {why}"));
    for (number, line) in code(text) {
        for word in IMPURE.into_iter().filter(|word| pure && names(line, word)) {
            breach(
                number,
                word,
                "a deciding file knows no SDK, runtime, log, clock or environment",
            );
        }
        for word in CLOCK
            .into_iter()
            .filter(|word| path != "shared/src/time.rs" && names(line, word))
        {
            breach(
                number,
                word,
                "only shared/src/time.rs reads the clock and mints ids",
            );
        }
        for word in ENVIRONMENT
            .into_iter()
            .filter(|word| path != "shared/src/config.rs" && names(line, word))
        {
            breach(number, word, "only shared/src/config.rs reads the environment");
        }
        let may_name_sdk = path == "shared/src/boot.rs" || file == "aws.rs";
        for word in SDK.into_iter().filter(|word| !may_name_sdk && names(line, word)) {
            breach(
                number,
                word,
                "only boot.rs and files named aws.rs name an SDK crate",
            );
        }
        let others = DOMAINS
            .into_iter()
            .filter(|(name, _)| domain.is_some_and(|own| own != *name));
        for other in others.flat_map(|(_, folders)| folders) {
            for part in ["decide", "store", "run", "aws"] {
                let word = format!("{other}::{part}");
                if names(line, &word) {
                    breach(number, &word, "a domain reads another one's model only");
                }
            }
        }
    }
    found
}

#[test]
fn the_code_keeps_the_purity_rules() {
    let mut files = source::rust_files("shared/src");
    assert!(
        !files.is_empty(),
        "the core crate has moved: this test looks at nothing"
    );
    files.extend(source::rust_files("functions"));
    files.extend(source::rust_files("cli"));
    let found: Vec<String> = files
        .iter()
        .flat_map(|(path, text)| breaches(path, text))
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn each_purity_rule_can_fail() {
    let cases = [
        ("shared/src/updates/decide.rs", "use aws_sdk_dynamodb::Client;", 2),
        ("shared/src/updates/decide.rs", "    tracing::info!(\"x\");", 1),
        ("shared/src/updates/model.rs", "use std::time::Duration;", 1),
        (
            "shared/src/rebuild/decide/cutover.rs",
            "let now = crate::time::now();",
            1,
        ),
        ("shared/src/links/run.rs", "let t = jiff::Timestamp::now();", 1),
        (
            "functions/updater/src/main.rs",
            "let t = std::time::SystemTime::now();",
            1,
        ),
        ("shared/src/links/run.rs", "let v = std::env::var(\"X\");", 1),
        ("functions/updater/src/handler.rs", "use aws_sdk_s3::Client;", 1),
        ("shared/src/domains/run.rs", "use crate::updates::store::Row;", 1),
    ];
    for (path, line, count) in cases {
        assert_eq!(
            breaches(path, line).len(),
            count,
            "{path}: {line}: {:?}",
            breaches(path, line)
        );
    }
}

#[test]
fn the_purity_rules_let_pass_what_is_allowed() {
    let cases = [
        ("shared/src/updates/decide.rs", "// tokio is not for us"),
        (
            "shared/src/updates/decide.rs",
            "use crate::time::{Timestamp, older_than};",
        ),
        ("shared/src/updates/aws.rs", "use aws_sdk_cloudformation::Client;"),
        ("shared/src/boot.rs", "use aws_smithy_types::retry::RetryConfig;"),
        ("shared/src/time.rs", "let t = Timestamp::now();"),
        ("shared/src/config.rs", "std::env::var(name).ok()"),
        (
            "shared/src/release_check/run.rs",
            "use crate::updates::model::Row;",
        ),
        (
            "shared/src/updates/decide.rs",
            "#[cfg(test)]\nmod tests {\n    use std::time::Duration;\n}",
        ),
        ("shared/src/updates/run.rs", "let my_aws_sdk_name = 1;"),
    ];
    for (path, text) in cases {
        assert_eq!(breaches(path, text), [] as [&str; 0], "{path}: {text}");
    }
    // Code after a test module counts again.
    let text = "#[cfg(test)]\nmod tests {\n}\nuse tokio::time;";
    assert_eq!(breaches("shared/src/updates/model.rs", text).len(), 1);
}

/// Feature unification would compile the fakes into the shipped function.
#[test]
fn no_function_enables_the_fakes() {
    let root = source::root();
    let mut packages = 0;
    for entry in std::fs::read_dir(root.join("functions")).unwrap() {
        let manifest = entry.unwrap().path().join("Cargo.toml");
        let text = std::fs::read_to_string(&manifest).unwrap();
        let normal = text.split("[dev-dependencies]").next().unwrap_or_default();
        assert!(
            !normal.contains("fakes"),
            "{} enables the fakes",
            manifest.display()
        );
        packages += 1;
    }
    assert!(packages > 0);
}

/// `events/` is used by tests, by `cargo lambda invoke --data-file` and by the local run.
#[test]
fn every_event_file_is_one_json_object() {
    let mut folders = vec![source::root().join("events")];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let parsed: Result<Value, _> = serde_json::from_str(&text);
            assert!(
                parsed.as_ref().is_ok_and(Value::is_object),
                "{}: {parsed:?}",
                path.display()
            );
            files += 1;
        }
    }
    assert!(files >= 16, "{files} event files");
}
