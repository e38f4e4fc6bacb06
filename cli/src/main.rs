//! `headgate`: the rebuild gates on local files, without AWS and without a network.
//!
//! The report goes to stdout, everything else to stderr. Exit status: 0 PASS, 1 FAIL, 2 bad input or usage, 3 WAIT,
//! 4 NEEDS_ANSWER, 5 INDETERMINATE.

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use headgate_core::rebuild::{self, Files, Input, Inputs, Judgement, Request, Word, report};
use jiff::Timestamp;
use serde_json::Value;

/// Gates in front of every step of an infrastructure rebuild: PASS, or exactly why not.
#[derive(Debug, Parser)]
#[command(name = "headgate", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Judge one phase on local files.
    Gate(Box<GateArgs>),
    /// Say what a code means, why it exists and how to recover; or what a phase needs and which rules judge it.
    Explain {
        /// A code (CERT_SANS) or a phase (rebuild, import:7a). Without it: all codes.
        what: Option<String>,
    },
    /// Work with manifests.
    #[command(subcommand)]
    Manifest(ManifestCommand),
    /// Print the completion script of a shell.
    Completions {
        /// bash, zsh, fish, elvish or powershell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Subcommand)]
enum ManifestCommand {
    /// Write a manifest skeleton from states and decisions; what nobody knows yet is null and named on stderr.
    New(NewArgs),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
    Junit,
    Sarif,
    Markdown,
}

#[derive(Debug, Args)]
struct GateArgs {
    /// The phase, e.g. rebuild or import (or import:7a).
    phase: String,
    /// The manifest.
    #[arg(long, value_name = "FILE")]
    manifest: PathBuf,
    /// The plan: `terraform show -json PLANFILE`.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// The use of a phase that has several, e.g. 7a.
    #[arg(long = "use", value_name = "USE")]
    use_: Option<String>,
    /// The step of a cutover, from 1.
    #[arg(long, value_name = "N")]
    step: Option<i64>,
    /// The way back.
    #[arg(long)]
    rollback: bool,
    /// Any other input by its name; may be repeated.
    #[arg(long, value_name = "KIND=FILE")]
    input: Vec<String>,
    /// Where the generated files are. Default: the manifest's own folder.
    #[arg(long, value_name = "DIR")]
    files: Option<PathBuf>,
    /// The run; default: the manifest's.
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,
    /// The time to judge at, RFC 3339; default: now.
    #[arg(long, value_name = "RFC3339")]
    now: Option<String>,
    /// The same as --format json.
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// The form of the report on stdout.
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Also write the report as Markdown.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the evidence that a passing verify phase produces.
    #[arg(long, value_name = "FILE")]
    evidence: Option<PathBuf>,
    #[command(flatten)]
    short: Shorthands,
}

#[derive(Debug, Args)]
struct Shorthands {
    /// The M5a root's state.
    #[arg(long, value_name = "FILE")]
    state_m5a: Option<PathBuf>,
    /// The infra-rebuild root's state.
    #[arg(long, value_name = "FILE")]
    state_rebuild: Option<PathBuf>,
    /// The operator's decisions, JSON or YAML.
    #[arg(long, value_name = "FILE")]
    decisions: Option<PathBuf>,
    /// cert-requested.json.
    #[arg(long, value_name = "FILE")]
    cert_requested: Option<PathBuf>,
    /// Live reads taken elsewhere.
    #[arg(long, value_name = "FILE")]
    live: Option<PathBuf>,
    /// The operator's answer.
    #[arg(long, value_name = "FILE")]
    answer: Option<PathBuf>,
    /// The Route 53 change batch.
    #[arg(long, value_name = "FILE")]
    dns_batch: Option<PathBuf>,
    /// handoff-complete.json.
    #[arg(long, value_name = "FILE")]
    handoff: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct NewArgs {
    /// The M5a root's state, `terraform show -json`.
    #[arg(long, value_name = "FILE")]
    state_m5a: PathBuf,
    /// The infra-rebuild root's state, once there is one.
    #[arg(long, value_name = "FILE")]
    state_rebuild: Option<PathBuf>,
    /// The operator's decisions, JSON or YAML.
    #[arg(long, value_name = "FILE")]
    decisions: Option<PathBuf>,
    /// A name for the run.
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,
    /// Where to write it; default: stdout.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// A fault of the call itself, in a sentence: exit status 2.
#[derive(Debug)]
struct Usage(String);

impl From<rebuild::BadInput> for Usage {
    fn from(bad: rebuild::BadInput) -> Self {
        Usage(bad.0)
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            // Help and version are no fault.
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let done = match cli.command {
        Command::Gate(args) => gate(&args),
        Command::Explain { what } => explain(what.as_deref()),
        Command::Manifest(ManifestCommand::New(args)) => manifest_new(&args),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "headgate", &mut std::io::stdout());
            Ok(0)
        }
    };
    match done {
        Ok(status) => ExitCode::from(status),
        Err(Usage(text)) => {
            let _ = writeln!(std::io::stderr(), "headgate: Gate.BadInput: {text}");
            ExitCode::from(2)
        }
    }
}

/// Exit status of a verdict (contract 4.6).
const fn status(word: Word) -> u8 {
    match word {
        Word::Pass => 0,
        Word::Fail => 1,
        Word::Wait => 3,
        Word::NeedsAnswer => 4,
        Word::Indeterminate => 5,
    }
}

/// Reads named files; `-` is stdin, which can be read once.
#[derive(Debug, Default)]
struct Reader {
    stdin_used: bool,
}

impl Reader {
    fn read(&mut self, path: &Path) -> Result<Vec<u8>, Usage> {
        if path == Path::new("-") {
            if self.stdin_used {
                return Err(Usage("Only one input can be read from stdin (-).".into()));
            }
            self.stdin_used = true;
            let mut bytes = Vec::new();
            let done = std::io::stdin().lock().read_to_end(&mut bytes);
            return done
                .map(|_| bytes)
                .map_err(|e| Usage(format!("stdin can't be read: {e}.")));
        }
        std::fs::read(path).map_err(|e| Usage(format!("{} can't be read: {e}.", path.display())))
    }
}

/// The names under `inputs` of a request, as far as one file can be given for each.
const KINDS: [&str; 16] = [
    "plan",
    "manifest",
    "state_m5a",
    "state_rebuild",
    "state_alb",
    "decisions",
    "cert_requested",
    "handoff",
    "taskdef_on",
    "taskdef_off",
    "live_revision",
    "dns_batch",
    "live",
    "answer",
    "prior",
    "files",
];

/// Which file is which input, in the order given.
fn named(args: &GateArgs) -> Result<Vec<(String, PathBuf)>, Usage> {
    let mut out: Vec<(String, PathBuf)> = vec![("manifest".into(), args.manifest.clone())];
    let short = &args.short;
    let flags = [
        ("plan", &args.plan),
        ("state_m5a", &short.state_m5a),
        ("state_rebuild", &short.state_rebuild),
        ("decisions", &short.decisions),
        ("cert_requested", &short.cert_requested),
        ("live", &short.live),
        ("answer", &short.answer),
        ("dns_batch", &short.dns_batch),
        ("handoff", &short.handoff),
    ];
    out.extend(
        flags
            .into_iter()
            .filter_map(|(kind, path)| Some((kind.to_owned(), path.clone()?))),
    );
    for item in &args.input {
        let Some((kind, path)) = item.split_once('=') else {
            return Err(Usage(format!("--input {item} must be KIND=FILE.")));
        };
        let kind = kind.replace('-', "_");
        if !KINDS.contains(&kind.as_str()) || kind == "files" {
            return Err(Usage(format!(
                "There is no input {kind}; known are {}.",
                KINDS.join(", ")
            )));
        }
        out.push((kind, path.into()));
    }
    for (i, (kind, _)) in out.iter().enumerate() {
        if kind != "prior" && out.iter().skip(i + 1).any(|(other, _)| other == kind) {
            return Err(Usage(format!("The input {kind} is given twice.")));
        }
    }
    Ok(out)
}

fn gate(args: &GateArgs) -> Result<u8, Usage> {
    let now = match &args.now {
        Some(text) => text
            .parse::<Timestamp>()
            .map_err(|_| Usage(format!("--now {text} must be a time like 2026-11-30T22:00:00Z.")))?,
        None => headgate_core::time::now(),
    };
    let mut reader = Reader::default();
    let mut items = Vec::new();
    for (kind, path) in named(args)? {
        let bytes = reader.read(&path)?;
        items.push(Input::new(&kind, &path.display().to_string(), bytes));
    }
    let files = files(args, &items)?;
    let request = Request {
        run_id: args.run_id.clone(),
        phase: args.phase.clone(),
        use_: args.use_.clone(),
        step: args.step,
        direction: if args.rollback { "rollback" } else { "forward" }.into(),
    };
    let inputs = Inputs {
        items,
        files,
        live_is_attested: true,
        ..Inputs::default()
    };
    let mut judged = rebuild::judge(&request, &inputs, now)?;
    write_evidence(args, &mut judged)?;
    if let Some(path) = &args.report {
        judged.verdict.report = Some(path.display().to_string());
        write(path, report::markdown(&judged.verdict).as_bytes())?;
    }
    let format = if args.json {
        Format::Json
    } else {
        args.format.unwrap_or(Format::Text)
    };
    print(&render(&judged, format)?)?;
    Ok(status(judged.verdict.verdict))
}

fn write_evidence(args: &GateArgs, judged: &mut Judgement) -> Result<(), Usage> {
    let Some(path) = &args.evidence else { return Ok(()) };
    let Some(evidence) = &judged.evidence else {
        let why = if judged.verdict.verdict == Word::Pass {
            "this phase produces none"
        } else {
            "the gate did not pass"
        };
        let _ = writeln!(std::io::stderr(), "headgate: no evidence was written: {why}.");
        return Ok(());
    };
    let text = serde_json::to_string_pretty(evidence).map_err(|e| Usage(e.to_string()))?;
    write(path, format!("{text}\n").as_bytes())?;
    judged.verdict.evidence = Some(path.display().to_string());
    Ok(())
}

fn render(judged: &Judgement, format: Format) -> Result<String, Usage> {
    let json =
        |value: Result<String, serde_json::Error>| value.map(|t| t + "\n").map_err(|e| Usage(e.to_string()));
    Ok(match format {
        Format::Text => report::text(&judged.verdict, std::io::stdout().is_terminal()),
        Format::Json => json(serde_json::to_string_pretty(&judged.verdict))?,
        Format::Junit => report::junit(&judged.verdict),
        Format::Sarif => json(serde_json::to_string_pretty(&report::sarif(&judged.verdict)))?,
        Format::Markdown => report::markdown(&judged.verdict),
    })
}

/// A reader that stopped reading (`| head`) is no fault of the gate.
fn print(text: &str) -> Result<(), Usage> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Usage(format!("stdout can't be written: {e}.")))
        }
        _ => Ok(()),
    }
}

/// Writes a file whole or not at all.
fn write(path: &Path, bytes: &[u8]) -> Result<(), Usage> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let done = std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, path));
    done.map_err(|e| {
        let _ = std::fs::remove_file(&part);
        Usage(format!("{} can't be written: {e}.", path.display()))
    })
}

/// The hashes of the generated files that the manifest names, under --files or the manifest's own folder (2.11 row 18).
fn files(args: &GateArgs, items: &[Input]) -> Result<Option<Files>, Usage> {
    let folder = match &args.files {
        Some(dir) if dir.is_dir() => dir.clone(),
        Some(dir) => return Err(Usage(format!("--files {} is not a folder.", dir.display()))),
        None if args.manifest == Path::new("-") => return Ok(None),
        None => args.manifest.parent().map(Path::to_path_buf).unwrap_or_default(),
    };
    let manifest = items
        .iter()
        .find(|i| i.kind == "manifest")
        .and_then(|i| i.bytes.as_ref().ok());
    let manifest: Option<Value> = manifest.and_then(|bytes| serde_json::from_slice(bytes).ok());
    let names = manifest
        .as_ref()
        .and_then(|m| m.get("files"))
        .and_then(Value::as_object);
    let mut out = Files::new();
    for name in names.into_iter().flat_map(|map| map.keys()) {
        // A name may not lead out of the folder.
        let plain = Path::new(name)
            .components()
            .all(|c| matches!(c, std::path::Component::Normal(_)));
        let bytes = if plain {
            std::fs::read(folder.join(name)).ok()
        } else {
            None
        };
        out.insert(name.clone(), bytes.map(|b| rebuild::sha256_hex(&b)));
    }
    // Files that were explicitly given and are not there are missing; a folder taken by default may hold none.
    let found = out.values().any(Option::is_some);
    Ok((found || (args.files.is_some() && !out.is_empty())).then_some(out))
}

fn explain(what: Option<&str>) -> Result<u8, Usage> {
    let Some(what) = what else {
        let width = rebuild::codes::CODES
            .iter()
            .map(|c| c.code.len())
            .max()
            .unwrap_or(0);
        let lines: Vec<String> = rebuild::codes::CODES
            .iter()
            .map(|c| format!("{:width$}  {}", c.code, c.meaning))
            .collect();
        print(&(lines.join("\n") + "\n"))?;
        return Ok(0);
    };
    let text = report::explain_code(&what.to_ascii_uppercase())
        .or_else(|| report::explain_phase(&what.to_ascii_lowercase()));
    match text {
        Some(text) => print(&text).map(|()| 0),
        None => Err(Usage(format!(
            "{what} is neither a code nor a phase; `headgate explain` lists the codes."
        ))),
    }
}

fn manifest_new(args: &NewArgs) -> Result<u8, Usage> {
    let mut reader = Reader::default();
    let mut text = |path: &Path| {
        let bytes = reader.read(path)?;
        String::from_utf8(bytes).map_err(|_| Usage(format!("{} is not text.", path.display())))
    };
    let m5a = text(&args.state_m5a)?;
    let rebuild_state = args.state_rebuild.as_deref().map(&mut text).transpose()?;
    let decisions = args.decisions.as_deref().map(&mut text).transpose()?;
    let now = headgate_core::time::now();
    let made = rebuild::skeleton(
        &m5a,
        rebuild_state.as_deref(),
        decisions.as_deref(),
        args.run_id.as_deref(),
        now,
    )?;
    let json = serde_json::to_string_pretty(&made.manifest).map_err(|e| Usage(e.to_string()))? + "\n";
    match &args.out {
        Some(path) => write(path, json.as_bytes())?,
        None => print(&json)?,
    }
    for field in &made.missing {
        let _ = writeln!(std::io::stderr(), "headgate: to be filled in: {field}");
    }
    Ok(0)
}
