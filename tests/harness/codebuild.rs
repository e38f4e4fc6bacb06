//! CodeBuild as the release check meets it: builds that go on, end or vanish when the test says so.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::protocol::Call;
use super::scripted::{Answer, ScriptedAws};

/// A build as CodeBuild knows it.
#[derive(Debug, Clone)]
pub struct Build {
    /// `project:uuid`
    pub id: String,
    pub status: String,
    pub phase: String,
    /// Environment variables of the request.
    pub variables: Vec<(String, String)>,
    pub token: String,
    /// The whole request.
    pub request: Value,
    message: Option<String>,
    started: f64,
    forgotten: bool,
}

impl Build {
    /// An environment variable of the build; empty when absent.
    pub fn variable(&self, name: &str) -> &str {
        self.variables
            .iter()
            .find(|(key, _)| key == name)
            .map_or("", |(_, value)| value.as_str())
    }
}

#[derive(Debug, Default)]
struct World {
    project: String,
    builds: Vec<Build>,
}

/// One project and its builds; clones share them.
#[derive(Debug, Clone)]
pub struct FakeCodeBuild(Arc<Mutex<World>>);

impl FakeCodeBuild {
    /// A project of that name, without builds.
    pub fn new(project: &str) -> Self {
        Self(Arc::new(Mutex::new(World {
            project: project.into(),
            builds: Vec::new(),
        })))
    }

    /// Answers for the service `codebuild`.
    pub fn serve(&self, aws: &ScriptedAws) {
        let fake = self.clone();
        aws.serve("codebuild", move |call| fake.answer(call));
    }

    /// Every build ever started, in order.
    pub fn builds(&self) -> Vec<Build> {
        self.world().builds.clone()
    }

    /// The newest build.
    pub fn newest(&self) -> Build {
        self.world().builds.last().expect("a build").clone()
    }

    /// The newest build is in this phase now.
    pub fn phase(&self, phase: &str) {
        self.world().builds.last_mut().expect("a build").phase = phase.into();
    }

    /// The newest build ends with this status, its failing phase with that text.
    pub fn end(&self, status: &str, message: Option<&str>) {
        let mut world = self.world();
        let build = world.builds.last_mut().expect("a build");
        build.status = status.into();
        build.phase = "COMPLETED".into();
        build.message = message.map(str::to_owned);
    }

    /// CodeBuild does not know the builds so far any more.
    pub fn forget(&self) {
        self.world()
            .builds
            .iter_mut()
            .for_each(|build| build.forgotten = true);
    }

    /// The project is gone.
    pub fn remove_project(&self) {
        self.world().project = String::new();
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().expect("no panic while the world was held")
    }

    fn answer(&self, call: &Call) -> Answer {
        let mut world = self.world();
        match call.operation.as_str() {
            "StartBuild" => world.start(&call.params),
            "StopBuild" => world.stop(call.text("/id")),
            "BatchGetBuilds" => {
                let ids: Vec<&str> = call.params["ids"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .collect();
                let known = |id: &&str| world.find(id).is_some();
                let (found, missing): (Vec<&str>, Vec<&str>) = ids.into_iter().partition(known);
                let builds: Vec<Value> = found.iter().filter_map(|id| world.find(id)).map(shown).collect();
                Answer::ok(json!({"builds": builds, "buildsNotFound": missing}))
            }
            "ListBuildsForProject" if call.text("/projectName") != world.project => world.no_project(call),
            "ListBuildsForProject" => {
                let ids: Vec<&str> = world
                    .builds
                    .iter()
                    .rev()
                    .filter(|build| !build.forgotten)
                    .map(|b| b.id.as_str())
                    .collect();
                Answer::ok(json!({"ids": ids}))
            }
            "BatchGetProjects" => {
                let names: Vec<&Value> = call.params["names"].as_array().into_iter().flatten().collect();
                let (found, missing): (Vec<&Value>, Vec<&Value>) =
                    names.into_iter().partition(|name| **name == *world.project);
                let projects: Vec<Value> = found.iter().map(|name| json!({"name": name})).collect();
                Answer::ok(json!({"projects": projects, "projectsNotFound": missing}))
            }
            _ => Answer::Behind,
        }
    }
}

impl World {
    fn find(&self, id: &str) -> Option<&Build> {
        self.builds
            .iter()
            .find(|build| build.id == id && !build.forgotten)
    }

    fn no_project(&self, call: &Call) -> Answer {
        let name = call.text("/projectName");
        let arn = format!("arn:aws:codebuild:eu-central-1:123456789012:project/{name}");
        Answer::error(
            400,
            "ResourceNotFoundException",
            &format!("Project cannot be found: {arn}"),
        )
    }

    fn start(&mut self, request: &Value) -> Answer {
        let text = |name: &str| request[name].as_str().unwrap_or_default().to_owned();
        if text("projectName") != self.project {
            let arn = format!(
                "arn:aws:codebuild:eu-central-1:123456789012:project/{}",
                text("projectName")
            );
            let message = format!("Project cannot be found: {arn}");
            return Answer::error(400, "ResourceNotFoundException", &message);
        }
        let token = text("idempotencyToken");
        if let Some(twin) = self
            .builds
            .iter()
            .find(|build| !token.is_empty() && build.token == token)
        {
            // The same token within five minutes: the same build, or an error for other parameters.
            return if twin.request == *request {
                Answer::ok(json!({"build": shown(twin)}))
            } else {
                Answer::error(
                    400,
                    "InvalidInputException",
                    "The request parameters do not match the previous request with the same token",
                )
            };
        }
        let variables = request["environmentVariablesOverride"]
            .as_array()
            .into_iter()
            .flatten();
        let variables = variables
            .map(|v| {
                let field = |name: &str| v[name].as_str().unwrap_or_default().to_owned();
                (field("name"), field("value"))
            })
            .collect();
        let number = self.builds.len() + 1;
        self.builds.push(Build {
            id: format!("{}:00000000-0000-4000-8000-{number:012}", self.project),
            status: "IN_PROGRESS".into(),
            phase: "SUBMITTED".into(),
            variables,
            token,
            request: request.clone(),
            message: None,
            started: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs_f64(),
            forgotten: false,
        });
        Answer::ok(json!({"build": self.builds.last().map(shown)}))
    }

    fn stop(&mut self, id: &str) -> Answer {
        let Some(build) = self
            .builds
            .iter_mut()
            .find(|build| build.id == id && !build.forgotten)
        else {
            return Answer::error(400, "ResourceNotFoundException", "Build cannot be found");
        };
        if build.status == "IN_PROGRESS" {
            build.status = "STOPPED".into();
            build.phase = "COMPLETED".into();
        }
        Answer::ok(json!({"build": shown(build)}))
    }
}

fn shown(build: &Build) -> Value {
    let ended = build.status != "IN_PROGRESS";
    let phases: Vec<Value> = build
        .message
        .iter()
        .map(|message| {
            let context = json!({"statusCode": "COMMAND_EXECUTION_ERROR", "message": message});
            json!({"phaseType": "BUILD", "phaseStatus": "FAILED", "contexts": [context]})
        })
        .collect();
    let variables: Vec<Value> = build
        .variables
        .iter()
        .map(|(name, value)| json!({"name": name, "value": value, "type": "PLAINTEXT"}))
        .collect();
    json!({
        "id": build.id,
        "arn": format!("arn:aws:codebuild:eu-central-1:123456789012:build/{}", build.id),
        "projectName": build.id.split(':').next(),
        "buildStatus": build.status, "currentPhase": build.phase, "buildComplete": ended,
        "startTime": build.started, "phases": phases,
        "environment": {"type": "LINUX_CONTAINER", "image": "i", "computeType": "BUILD_GENERAL1_SMALL",
                        "environmentVariables": variables},
    })
}
