//! A verdict in the forms that people and CI systems read (spec/rebuild.md 3.5).

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::codes;
use super::phase::Phase;
use super::rules;
use super::verdict::{Finding, Verdict, Word};

/// A value on one line; text without quotes.
fn line(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn place(finding: &Finding) -> String {
    match (&finding.address, &finding.path) {
        (Some(address), Some(path)) if !path.is_empty() => format!("{address} {path}"),
        (Some(address), _) => address.clone(),
        (None, Some(path)) => path.clone(),
        (None, None) => String::new(),
    }
}

fn title(verdict: &Verdict) -> String {
    let mut out = verdict.phase.clone();
    if let Some(use_) = &verdict.use_ {
        let _ = write!(out, " {use_}");
    }
    if let Some(step) = verdict.step {
        let _ = write!(out, " step {step}");
    }
    if verdict.direction == "rollback" {
        out.push_str(" rollback");
    }
    out
}

/// What the word means for the person at the keyboard.
fn meaning(word: Word) -> &'static str {
    match word {
        Word::Pass => "go ahead",
        Word::Fail => "do not go on",
        Word::Wait => "not yet; ask again later",
        Word::NeedsAnswer => "an explicit answer is needed",
        Word::Indeterminate => "it could not be judged; do not go on",
    }
}

fn facts(verdict: &Verdict) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for (key, value) in &verdict.facts {
        match value {
            Value::Object(map) => out.extend(map.iter().map(|(k, v)| (format!("{key}.{k}"), line(v)))),
            other => out.push((key.clone(), line(other))),
        }
    }
    out
}

/// The report for a terminal: aligned, and coloured when asked.
pub fn text(verdict: &Verdict, colour: bool) -> String {
    let paint = |code: &str, text: &str| {
        if colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    };
    let hue = match verdict.verdict {
        Word::Pass => "32;1",
        Word::Fail | Word::Indeterminate => "31;1",
        Word::Wait | Word::NeedsAnswer => "33;1",
    };
    let word = verdict.verdict;
    let mut out = format!(
        "{} {} ({})\n",
        paint(hue, word.as_str()),
        title(verdict),
        meaning(word)
    );
    let run = verdict.run_id.as_deref().unwrap_or("-");
    let _ = writeln!(
        out,
        "  run {run}, checked {}, holds until {}",
        verdict.checked_at, verdict.expires_at
    );
    if !verdict.summary.is_empty() {
        let parts: Vec<String> = verdict.summary.iter().map(|(k, n)| format!("{n} {k}")).collect();
        let _ = writeln!(out, "  plan: {}", parts.join(", "));
    }
    let width = verdict
        .failures
        .iter()
        .chain(&verdict.warnings)
        .map(|f| f.code.len())
        .max()
        .unwrap_or(0);
    let mut list = |head: &str, findings: &[Finding], hue: &str| {
        if findings.is_empty() {
            return;
        }
        let _ = writeln!(out, "\n{head}");
        for f in findings {
            let code = format!("{:width$}", f.code);
            let _ = writeln!(out, "  {}  {}", paint(hue, &code), place(f));
            let pad = " ".repeat(width + 4);
            let _ = writeln!(out, "{pad}{} [{}]", f.message, f.rule);
            if let Some(value) = &f.expected {
                let _ = writeln!(out, "{pad}expected  {}", line(value));
            }
            if let Some(value) = &f.actual {
                let _ = writeln!(out, "{pad}seen      {}", line(value));
            }
            if let Some(hint) = f.hint {
                let _ = writeln!(out, "{pad}hint      {hint}");
            }
            if !f.recovery.is_empty() {
                let _ = writeln!(out, "{pad}then      {}", f.recovery);
            }
        }
    };
    list("Reasons", &verdict.failures, "31");
    list("Remarks", &verdict.warnings, "33");
    let facts = facts(verdict);
    if !facts.is_empty() {
        let width = facts.iter().map(|(k, _)| k.len()).max().unwrap_or(0);
        let _ = writeln!(out, "\nFigures");
        for (key, value) in facts {
            let _ = writeln!(out, "  {key:width$}  {value}");
        }
    }
    if !verdict.must_keep.is_empty() {
        let _ = writeln!(out, "\nKeep");
        for keep in &verdict.must_keep {
            let _ = writeln!(
                out,
                "  {} = {} (zone {}): {}",
                keep.name, keep.value, keep.zone_id, keep.reason
            );
        }
    }
    if !verdict.left_behind.is_empty() {
        let _ = writeln!(out, "\nLeft behind");
        for left in &verdict.left_behind {
            let _ = writeln!(out, "  {} {}: {}", left.kind, left.id, left.action);
        }
    }
    if !verdict.attested.is_empty() {
        let _ = writeln!(
            out,
            "\nDecided from live reads taken elsewhere (attested): {}",
            verdict.attested.join(", ")
        );
    }
    out
}

/// Text in a table cell.
fn cell(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('|', "\\|")
        .replace(['\n', '\r'], " ")
        .replace('<', "&lt;")
}

/// The human report.
pub fn markdown(verdict: &Verdict) -> String {
    let mut out = format!("# {}: {}\n\n", title(verdict), verdict.verdict.as_str());
    let _ = writeln!(
        out,
        "{}. Run {}, checked {}, holds until {}.\n",
        meaning(verdict.verdict),
        cell(verdict.run_id.as_deref().unwrap_or("-")),
        verdict.checked_at,
        verdict.expires_at
    );
    if !verdict.failures.is_empty() {
        out.push_str(
            "## Reasons\n\n| code | where | what | expected | seen | then |\n|---|---|---|---|---|---|\n",
        );
        for f in &verdict.failures {
            let show = |v: &Option<Value>| v.as_ref().map(|v| cell(&line(v))).unwrap_or_default();
            let _ = writeln!(
                out,
                "| `{}` ({}) | {} | {} | {} | {} | {} |",
                f.code,
                f.rule,
                cell(&place(f)),
                cell(&f.message),
                show(&f.expected),
                show(&f.actual),
                cell(&f.recovery)
            );
        }
        out.push('\n');
    }
    if !verdict.warnings.is_empty() {
        out.push_str("## Remarks\n\n");
        for f in &verdict.warnings {
            let _ = writeln!(
                out,
                "- `{}` {} {} {}",
                f.code,
                cell(&place(f)),
                cell(&f.message),
                cell(&f.recovery)
            );
        }
        out.push('\n');
    }
    let facts = facts(verdict);
    if !facts.is_empty() {
        out.push_str("## Figures\n\n| what | value |\n|---|---|\n");
        facts.iter().for_each(|(k, v)| {
            let _ = writeln!(out, "| {} | {} |", cell(k), cell(v));
        });
        out.push('\n');
    }
    if !verdict.must_keep.is_empty() {
        out.push_str("## Keep\n\n| zone | name | value | why |\n|---|---|---|---|\n");
        for k in &verdict.must_keep {
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} |",
                cell(&k.zone_id),
                cell(&k.name),
                cell(&k.value),
                cell(&k.reason)
            );
        }
        out.push('\n');
    }
    if !verdict.left_behind.is_empty() {
        out.push_str("## Left behind\n\n");
        for l in &verdict.left_behind {
            let _ = writeln!(out, "- {} `{}`: {}", l.kind, cell(&l.id), cell(&l.action));
        }
        out.push('\n');
    }
    if !verdict.attested.is_empty() {
        let _ = writeln!(
            out,
            "Decided from live reads taken elsewhere (attested): {}.\n",
            verdict.attested.join(", ")
        );
    }
    out.push_str("## Inputs\n\n| input | from | SHA-256 |\n|---|---|---|\n");
    for i in &verdict.inputs {
        let _ = writeln!(out, "| {} | {} | `{}` |", cell(&i.kind), cell(&i.uri), i.sha256);
    }
    out
}

/// Text in XML, without the control characters that XML can't hold.
fn xml(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\t' | '\n' => out.push(c),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// JUnit XML: one test case per rule of the phase, failed where the rule has a finding.
pub fn junit(verdict: &Verdict) -> String {
    let phase = Phase::parse(verdict.phase.split(':').next().unwrap_or(""));
    let mut ids: Vec<&str> = Vec::new();
    let all = rules::all();
    ids.extend(
        all.iter()
            .filter(|r| phase.is_some_and(|p| r.phases.contains(&p)))
            .map(|r| r.id),
    );
    for finding in &verdict.failures {
        if !ids.contains(&finding.rule) {
            ids.push(finding.rule);
        }
    }
    let failed = ids
        .iter()
        .filter(|id| verdict.failures.iter().any(|f| f.rule == **id))
        .count();
    let name = xml(&format!("headgate {}", title(verdict)));
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"{name}\" tests=\"{}\" failures=\"{failed}\" timestamp=\"{}\">\n",
        ids.len(),
        verdict.checked_at
    );
    let unjudged = verdict
        .warnings
        .iter()
        .find(|w| w.code == "WARN_NOT_CHECKED")
        .and_then(|w| w.actual.as_ref());
    let skipped = |id: &str| {
        unjudged
            .and_then(Value::as_array)
            .is_some_and(|list| list.iter().any(|v| v == id))
    };
    for id in ids {
        let what = all.iter().find(|r| r.id == id).map_or("", |r| r.what);
        let case = xml(&format!("{id} {what}"));
        let findings: Vec<&Finding> = verdict.failures.iter().filter(|f| f.rule == id).collect();
        if findings.is_empty() && skipped(id) {
            let class = xml(&verdict.phase);
            let _ = writeln!(
                out,
                "<testcase classname=\"{class}\" name=\"{case}\"><skipped message=\"rests on the run's record\"/></testcase>"
            );
            continue;
        }
        if findings.is_empty() {
            let _ = writeln!(
                out,
                "<testcase classname=\"{}\" name=\"{case}\"/>",
                xml(&verdict.phase)
            );
            continue;
        }
        let _ = writeln!(
            out,
            "<testcase classname=\"{}\" name=\"{case}\">",
            xml(&verdict.phase)
        );
        for f in findings {
            let mut body = place(f);
            if let Some(value) = &f.expected {
                let _ = write!(body, "\nexpected: {}", line(value));
            }
            if let Some(value) = &f.actual {
                let _ = write!(body, "\nseen: {}", line(value));
            }
            let _ = write!(body, "\n{}", f.recovery);
            let _ = writeln!(
                out,
                "<failure type=\"{}\" message=\"{}\">{}</failure>",
                f.code,
                xml(&f.message),
                xml(&body)
            );
        }
        out.push_str("</testcase>\n");
    }
    out.push_str("</testsuite>\n</testsuites>\n");
    out
}

/// SARIF 2.1.0.
pub fn sarif(verdict: &Verdict) -> Value {
    let plan = verdict
        .inputs
        .iter()
        .find(|i| i.kind == "plan")
        .or_else(|| verdict.inputs.first());
    let uri = plan.map_or("manifest", |i| i.uri.as_str());
    let mut codes: Vec<&str> = verdict
        .failures
        .iter()
        .chain(&verdict.warnings)
        .map(|f| f.code)
        .collect();
    codes.sort_unstable();
    codes.dedup();
    let described: Vec<Value> = codes
        .iter()
        .map(|code| {
            let entry = codes::find(code);
            let text = |f: fn(&codes::Code) -> &'static str| entry.map_or("", f);
            json!({"id": code, "shortDescription": {"text": text(|c| c.meaning)},
                "fullDescription": {"text": text(|c| c.why)}, "help": {"text": text(|c| c.recovery)}})
        })
        .collect();
    let result = |f: &Finding, level: &str| {
        let mut text = f.message.clone();
        if let Some(value) = &f.expected {
            let _ = write!(text, " Expected: {}.", line(value));
        }
        if let Some(value) = &f.actual {
            let _ = write!(text, " Seen: {}.", line(value));
        }
        json!({"ruleId": f.code, "level": level, "message": {"text": text},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": uri}},
                "logicalLocations": [{"fullyQualifiedName": place(f)}]}],
            "properties": {"rule": f.rule, "recovery": f.recovery}})
    };
    let results: Vec<Value> = verdict
        .failures
        .iter()
        .map(|f| result(f, "error"))
        .chain(verdict.warnings.iter().map(|f| result(f, "warning")))
        .collect();
    json!({"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [{
        "tool": {"driver": {"name": "headgate", "informationUri": "https://headgate.invalid", "rules": described}},
        "properties": {"verdict": verdict.verdict.as_str(), "phase": verdict.phase},
        "results": results}]})
}

/// What a code means, why it exists, how to recover, and which rules raise it; None for an unknown code.
pub fn explain_code(code: &str) -> Option<String> {
    let entry = codes::find(code)?;
    let mut out = format!(
        "{}\n\n  {}\n\n  why   {}\n  then  {}\n",
        entry.code, entry.meaning, entry.why, entry.recovery
    );
    let rules: Vec<_> = rules::all()
        .into_iter()
        .filter(|r| r.codes.contains(&code))
        .collect();
    if !rules.is_empty() {
        out.push_str("\n  raised by\n");
        for rule in rules {
            let phases: Vec<&str> = rule.phases.iter().map(|p| p.as_str()).collect();
            let phases = if phases.len() == super::PHASES.len() {
                "every phase".to_owned()
            } else {
                phases.join(", ")
            };
            let _ = writeln!(out, "    {:7} {} ({phases})", rule.id, rule.what);
        }
    }
    Some(out)
}

/// What a phase needs and which rules judge it; None for an unknown phase.
pub fn explain_phase(name: &str) -> Option<String> {
    let (name, use_) = name.split_once(':').map_or((name, None), |(n, u)| (n, Some(u)));
    let phase = Phase::parse(name)?;
    let mut out = format!("{phase} (runbook step {})\n", phase.runbook_step());
    if !phase.uses().is_empty() {
        let _ = writeln!(out, "  uses    {}", phase.uses().join(", "));
    }
    let inputs = super::needed_inputs(phase, use_, false);
    let _ = writeln!(
        out,
        "  inputs  manifest{}",
        inputs.iter().map(|i| format!(", {i}")).collect::<String>()
    );
    let reads = super::needed_reads(phase, use_);
    if !reads.is_empty() {
        out.push_str("\n  live reads\n");
        for (call, input, when) in reads {
            let _ = writeln!(out, "    {call:48} {input:24} {when}");
        }
    }
    out.push_str("\n  rules\n");
    for rule in rules::all().iter().filter(|r| r.phases.contains(&phase)) {
        let _ = writeln!(out, "    {:7} {}", rule.id, rule.what);
    }
    Some(out)
}
