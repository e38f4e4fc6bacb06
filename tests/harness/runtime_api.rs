//! Lambda around a built function: a Runtime API on 127.0.0.1 and the function's process.
//!
//! The process gets a cleared environment and what the test gives it, so nothing of the machine (profiles,
//! proxies, credentials) leaks into a test.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::http::{Reply, Request, Response, Server};
use super::scripted::ScriptedAws;
use crate::PATIENCE;

/// What became of an invocation.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The function's answer.
    Answered(Value),
    /// The function reported an error, as Step Functions and EventBridge see it.
    Failed { error_type: String, message: String },
    /// The process ended before it answered.
    Died,
}

impl Outcome {
    /// The answer; fails the test for anything else.
    pub fn answer(self) -> Value {
        match self {
            Self::Answered(value) => value,
            other => panic!("expected an answer, got {other:?}"),
        }
    }

    /// Error type and message; fails the test for anything else.
    pub fn error(self) -> (String, String) {
        match self {
            Self::Failed { error_type, message } => (error_type, message),
            other => panic!("expected an error, got {other:?}"),
        }
    }
}

#[derive(Default)]
struct State {
    queue: VecDeque<(String, Vec<u8>)>,
    outcomes: BTreeMap<String, Outcome>,
    running: BTreeSet<String>,
    invocations: u64,
    polls: u64,
    init_error: Option<Outcome>,
    /// Pipes of the process that are still open; none left means it ended.
    pipes: usize,
    logs: Vec<String>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// What to start, and with which environment.
#[derive(Debug, Clone)]
pub struct FunctionBuilder {
    program: PathBuf,
    name: String,
    env: BTreeMap<String, String>,
    timeout_seconds: u64,
}

impl FunctionBuilder {
    /// Sets a variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Removes a variable.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.env.remove(name);
        self
    }

    /// Sends every AWS call to the scripted endpoint; the account is the access key id.
    #[must_use]
    pub fn aws(self, aws: &ScriptedAws, account: &str) -> Self {
        self.env("AWS_ENDPOINT_URL", &aws.url())
            .env("AWS_ACCESS_KEY_ID", account)
    }

    /// How long Lambda would let an invocation run; the function sees it as its deadline. Default 30.
    #[must_use]
    pub fn timeout_seconds(mut self, seconds: u64) -> Self {
        self.timeout_seconds = seconds;
        self
    }

    /// Starts the process; it may still be initialising when this returns.
    pub fn start(self) -> Function {
        let shared = Arc::new(Shared::default());
        let server = {
            let shared = Arc::clone(&shared);
            let (name, timeout) = (self.name.clone(), self.timeout_seconds);
            Server::start(move |request| shared.serve(&request, &name, timeout))
        };
        // Before the process exists: none left means it ended.
        shared.state.lock().unwrap().pipes = 2;
        let mut child = Command::new(&self.program)
            .env_clear()
            .env("AWS_LAMBDA_RUNTIME_API", server.authority())
            .envs(&self.env)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", self.program.display()));
        shared.drain(child.stdout.take().expect("piped"));
        shared.drain(child.stderr.take().expect("piped"));
        Function {
            shared,
            child: Mutex::new(child),
            _server: server,
        }
    }
}

/// A running function. The process is killed when this is dropped.
pub struct Function {
    shared: Arc<Shared>,
    child: Mutex<Child>,
    _server: Server,
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Function")
            .field("child", &self.child)
            .finish_non_exhaustive()
    }
}

/// An invocation under way.
#[derive(Debug)]
pub struct Invocation<'a> {
    function: &'a Function,
    id: String,
}

impl Function {
    /// The built function of that package, with the variables Lambda always sets.
    // The names are Lambda's: https://docs.aws.amazon.com/lambda/latest/dg/configuration-envvars.html
    pub fn named(package: &str) -> FunctionBuilder {
        Self::program(&built(package), package)
    }

    /// Any program that speaks the Runtime API.
    pub fn program(program: &Path, name: &str) -> FunctionBuilder {
        let builder = FunctionBuilder {
            program: program.into(),
            name: name.into(),
            env: BTreeMap::new(),
            timeout_seconds: 30,
        };
        builder
            .env("AWS_LAMBDA_FUNCTION_NAME", name)
            .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "256")
            .env("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST")
            .env("AWS_LAMBDA_LOG_GROUP_NAME", &format!("/aws/lambda/{name}"))
            .env("AWS_LAMBDA_LOG_STREAM_NAME", "2026/12/01/[$LATEST]0")
            .env("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand")
            .env("AWS_REGION", "eu-central-1")
            .env("AWS_DEFAULT_REGION", "eu-central-1")
            .env("AWS_ACCESS_KEY_ID", "123456789012")
            .env("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("RUST_BACKTRACE", "1")
    }

    /// Blocks until the function asked for its first event, that is until its init is over.
    pub fn ready(&self) -> &Self {
        let state = self.shared.wait(|state| state.polls > 0 || state.ended());
        assert!(
            state.polls > 0,
            "the function ended in its init: {:?}\n{}",
            state.init_error,
            state.logs.join("\n")
        );
        drop(state);
        self
    }

    /// One event in, its outcome back.
    pub fn invoke(&self, event: &Value) -> Outcome {
        self.begin(event.to_string().as_bytes()).outcome()
    }

    /// The same with bytes that need not be JSON.
    pub fn invoke_bytes(&self, event: &[u8]) -> Outcome {
        self.begin(event).outcome()
    }

    /// Hands out an event and returns at once.
    pub fn begin(&self, event: &[u8]) -> Invocation<'_> {
        let mut state = self.shared.state.lock().unwrap();
        state.invocations += 1;
        let id = format!("00000000-0000-4000-8000-{:012}", state.invocations);
        state.queue.push_back((id.clone(), event.to_vec()));
        drop(state);
        self.shared.changed.notify_all();
        Invocation { function: self, id }
    }

    /// Ends the process now, as Lambda does at a time-out.
    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        drop(child.kill());
        drop(child.wait());
        drop(child);
        drop(self.shared.wait(State::ended));
    }

    /// The error the function reported instead of starting, if it did.
    pub fn init_error(&self) -> Option<Outcome> {
        self.shared.state.lock().unwrap().init_error.clone()
    }

    /// What the process wrote so far, both streams, line by line.
    pub fn logs(&self) -> Vec<String> {
        self.shared.state.lock().unwrap().logs.clone()
    }

    /// Everything the process wrote: ends it first, because a line may still be on its way after the answer.
    pub fn last_words(&self) -> Vec<String> {
        self.kill();
        self.logs()
    }

    /// How many lines hold the text; ends the process first, as [`Self::last_words`].
    pub fn logged(&self, text: &str) -> usize {
        self.last_words()
            .iter()
            .filter(|line| line.contains(text))
            .count()
    }

    /// Peak resident set in kilobytes, from the kernel; `None` where there is no `/proc`.
    pub fn peak_rss_kb(&self) -> Option<u64> {
        let id = self.child.lock().unwrap().id();
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    }
}

impl Invocation<'_> {
    /// Blocks until the function answered, failed or died.
    pub fn outcome(self) -> Outcome {
        self.outcome_within(PATIENCE)
    }

    /// The same for an invocation that has much to do; nothing is decided by the bound.
    pub fn outcome_within(self, patience: Duration) -> Outcome {
        let state = self.function.shared.wait_within(patience, |state| {
            state.outcomes.contains_key(&self.id) || state.ended()
        });
        state.outcomes.get(&self.id).cloned().unwrap_or_else(|| {
            eprintln!("the function died; its last words:\n{}", state.logs.join("\n"));
            Outcome::Died
        })
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap();
        drop(child.kill());
        drop(child.wait());
        if std::thread::panicking() {
            eprintln!("--- the function's log\n{}\n---", self.logs().join("\n"));
        }
    }
}

impl State {
    fn ended(&self) -> bool {
        self.pipes == 0
    }
}

impl Shared {
    fn wait(&self, ready: impl Fn(&State) -> bool) -> std::sync::MutexGuard<'_, State> {
        self.wait_within(PATIENCE, ready)
    }

    fn wait_within(
        &self,
        patience: Duration,
        ready: impl Fn(&State) -> bool,
    ) -> std::sync::MutexGuard<'_, State> {
        let state = self.state.lock().unwrap();
        let (state, timed_out) = self
            .changed
            .wait_timeout_while(state, patience, |state| !ready(state))
            .unwrap();
        assert!(
            !timed_out.timed_out(),
            "the function did not answer; its log:\n{}",
            state.logs.join("\n")
        );
        state
    }

    fn drain(self: &Arc<Self>, pipe: impl Read + Send + 'static) {
        let shared = Arc::clone(self);
        std::thread::spawn(move || {
            let mut reader = BufReader::new(pipe);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                shared.state.lock().unwrap().logs.push(text);
                shared.changed.notify_all();
                line.clear();
            }
            shared.state.lock().unwrap().pipes -= 1;
            shared.changed.notify_all();
        });
    }

    fn serve(&self, request: &Request, name: &str, timeout_seconds: u64) -> Reply {
        let path = request.path();
        let parts: Vec<&str> = path
            .trim_start_matches("/2018-06-01/runtime/")
            .split('/')
            .collect();
        match (request.method.as_str(), parts.as_slice()) {
            ("GET", ["invocation", "next"]) => {
                let mut state = self.state.lock().unwrap();
                state.polls += 1;
                self.changed.notify_all();
                // Unbounded: an idle function waits as long as its test runs. The thread ends with the test.
                let mut state = self
                    .changed
                    .wait_while(state, |state| state.queue.is_empty() && !state.ended())
                    .unwrap();
                let Some((id, event)) = state.queue.pop_front() else {
                    return Reply::Drop;
                };
                state.running.insert(id.clone());
                drop(state);
                let now = SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default()
                    .as_millis();
                let deadline = now + u128::from(timeout_seconds) * 1000;
                let arn = format!("arn:aws:lambda:eu-central-1:123456789012:function:{name}");
                Reply::Send(
                    Response::new(200, "application/json", event)
                        .with("lambda-runtime-aws-request-id", &id)
                        .with("lambda-runtime-deadline-ms", &deadline.to_string())
                        .with("lambda-runtime-invoked-function-arn", &arn)
                        .with(
                            "lambda-runtime-trace-id",
                            "Root=1-00000000-000000000000000000000000;Sampled=0",
                        ),
                )
            }
            ("POST", ["invocation", id, "response"]) => {
                let outcome = match serde_json::from_slice(&request.body) {
                    Ok(value) => Outcome::Answered(value),
                    Err(error) => Outcome::Failed {
                        error_type: "Runtime.InvalidResponse".into(),
                        message: format!("the answer is not JSON: {error}"),
                    },
                };
                self.finish(id, outcome)
            }
            ("POST", ["invocation", id, "error"]) => self.finish(id, failure(&request.body)),
            ("POST", ["init", "error"]) => {
                self.state.lock().unwrap().init_error = Some(failure(&request.body));
                self.changed.notify_all();
                accepted()
            }
            // As the real one answers an unknown path.
            _ => Reply::Send(Response::new(
                404,
                "application/json",
                "{\"errorType\":\"NotFound\"}",
            )),
        }
    }

    fn finish(&self, id: &str, outcome: Outcome) -> Reply {
        let mut state = self.state.lock().unwrap();
        if !state.running.remove(id) {
            return Reply::Send(Response::new(
                400,
                "application/json",
                "{\"errorType\":\"InvalidRequestID\"}",
            ));
        }
        state.outcomes.insert(id.to_owned(), outcome);
        drop(state);
        self.changed.notify_all();
        accepted()
    }
}

fn accepted() -> Reply {
    Reply::Send(Response::new(202, "application/json", "{\"status\":\"OK\"}"))
}

fn failure(body: &[u8]) -> Outcome {
    let error: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let field = |name: &str| {
        error
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    Outcome::Failed {
        error_type: field("errorType"),
        message: field("errorMessage"),
    }
}

/// The path of a package's binary, brought up to date with cargo once per test process.
///
/// `HEADGATE_BIN_DIR` names a folder of binaries that are up to date already (`./test` has just built them, or
/// they are release builds): then nothing is built.
fn built(package: &str) -> PathBuf {
    static BUILT: OnceLock<Mutex<BTreeMap<String, PathBuf>>> = OnceLock::new();
    if let Some(folder) = std::env::var_os("HEADGATE_BIN_DIR") {
        return PathBuf::from(folder).join(package);
    }
    let mut built = BUILT.get_or_init(Mutex::default).lock().unwrap();
    if let Some(path) = built.get(package) {
        return path.clone();
    }
    // .../target/debug/deps/TEST-hash
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test.parent().and_then(Path::parent).expect("target/PROFILE/deps");
    let target = profile.parent().expect("target");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Not part of the test build on purpose: there, feature unification would compile the test fakes into the
    // function.
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--package", package, "--target-dir"])
        .arg(target)
        .current_dir(super::source::root())
        .status()
        .expect("run cargo");
    assert!(status.success(), "cargo build --package {package} failed");
    let path = target.join("debug").join(package);
    built.insert(package.to_owned(), path.clone());
    path
}
