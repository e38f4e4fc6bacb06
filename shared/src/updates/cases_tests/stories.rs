//! Whole trajectories as stories for a reviewer: what was done, every request it made, and what people then see.
//! The `.snap` files hold them; a changed request or answer shows up as a diff.

use super::*;

/// A story under way.
struct Story {
    s: Scene,
    told: String,
    heard: usize,
}

impl Story {
    fn new() -> Self {
        let s = Scene::quiet();
        s.once.set(true);
        s.checked();
        Self {
            s,
            told: String::new(),
            heard: 0,
        }
    }

    /// Ids, ARNs and the stack in short, so that lines can be read.
    fn short(&self, text: &str) -> String {
        let mut out = text.replace(STACK_ARN, "STACK");
        for seq in 1..5 {
            if let Some(u) = self.s.w.row(seq) {
                out = out
                    .replace(&set_arn(&u.change_set_name), &format!("SET{seq}"))
                    .replace(&u.id, &format!("U{seq}"));
            }
        }
        out
    }

    fn requests(&mut self) {
        let lines: Vec<String> = self.s.w.trace.borrow().iter().skip(self.heard).cloned().collect();
        self.heard += lines.len();
        for l in lines {
            self.told += &format!("    {}\n", self.short(&l));
        }
    }

    /// Somebody does something at so many seconds after the start.
    fn then<T>(&mut self, at: i64, what: &str, act: impl FnOnce(&Scene) -> T) -> T {
        self.s.at(at);
        self.told += &format!("{at:>5} s  {what}\n");
        let out = act(&self.s);
        self.requests();
        out
    }

    /// A person does something over HTTP: the code, and the state or the refusal.
    fn asks(&mut self, at: i64, what: &str, act: impl FnOnce(&Scene) -> Answer) {
        let a = self.then(at, what, act);
        let told = match a.text("/code") {
            "" => format!("{} {}", a.code, a.text("/state")),
            code => format!("{} {code}: {}", a.code, a.text("/detail")),
        };
        self.told += &format!("         answer {}\n", self.short(&told));
    }

    /// What GET /version shows.
    fn look(&mut self, at: i64) {
        let v = self.then(at, "GET /version", Scene::version);
        let st = v.at("/status");
        self.told += &format!(
            "         shown  {}: {}\n",
            v.text("/status/label"),
            v.text("/status/summary")
        );
        for part in ["reason", "needs_admin"] {
            if let Some(text) = st[part]["text"].as_str() {
                self.told += &format!("         {part}: {text}\n");
            }
        }
        if let Some(p) = st["progress"]["step"].as_str() {
            self.told += &format!("         step   {p}\n");
        }
        if let Some(by) = v.at("/update/applied_by").as_str() {
            self.told += &format!("         run by {by}\n");
        }
        for code in v.flags("/status") {
            self.told += &format!("         flag   {code}\n");
        }
        for code in v.blockers() {
            self.told += &format!("         blocks {code}\n");
        }
    }

    fn end(mut self) -> String {
        self.told += "stored\n";
        for seq in (1..5).rev() {
            if let Some(u) = self.s.w.row(seq) {
                let line = format!(
                    "    U{seq} {} to {} rev {} {}{}",
                    u.status.as_str(),
                    u.to_release,
                    u.rev,
                    code_of(&u),
                    u.superseded_by
                        .as_deref()
                        .map(|b| format!(" by {b}"))
                        .unwrap_or_default(),
                );
                self.told += &format!("{}\n", self.short(line.trim_end()));
            }
        }
        let pending = self.s.w.head().pending.unwrap_or_else(|| "nobody".into());
        self.told += &format!("    pending {}\n", self.short(&pending));
        self.told
    }
}

fn make(s: &Scene, seq: u64) {
    s.w.cloud.borrow_mut().make(&s.made(seq).change_set_name);
}

#[test]
fn story_of_an_update_that_works() {
    let mut t = Story::new();
    t.look(0);
    t.asks(10, "ana begins 2.4.0", |s| s.begin("2.4.0"));
    t.look(15);
    t.then(40, "CloudFormation has made the change set", |s| make(s, 1));
    t.look(41);
    t.asks(100, "ana gives the OK", |s| s.apply(&s.made(1)));
    t.then(110, "CloudFormation works on it", |s| {
        s.w.cloud
            .borrow_mut()
            .resource_event(s.now(), "Api", "UPDATE_IN_PROGRESS", None);
    });
    t.look(111);
    t.then(200, "CloudFormation is done", |s| {
        let mut c = s.w.cloud.borrow_mut();
        c.resource_event(s.now(), "Api", "UPDATE_COMPLETE", None);
        c.succeed(s.now());
    });
    t.look(201);
    t.then(500, "the schedule polls", Scene::poll_once);
    insta::assert_snapshot!(t.end());
}

#[test]
fn story_of_a_rollback() {
    let mut t = Story::new();
    t.asks(0, "ana begins 2.4.0", |s| s.begin("2.4.0"));
    t.then(30, "CloudFormation has made the change set", |s| make(s, 1));
    t.then(31, "the schedule polls", Scene::poll_once);
    t.asks(60, "ana gives the OK", |s| s.apply(&s.made(1)));
    t.then(90, "a resource fails", |s| {
        s.w.cloud
            .borrow_mut()
            .fail_run(s.now(), "Api", "image not found (RequestToken: 1-2-3)");
    });
    t.look(91);
    t.asks(92, "bob begins 2.5.0", |s| s.begin("2.5.0"));
    t.then(150, "the rollback ends", |s| {
        s.w.cloud.borrow_mut().finish_rollback(s.now())
    });
    t.look(151);
    insta::assert_snapshot!(t.end());
}

#[test]
fn story_of_a_run_in_the_console() {
    let mut t = Story::new();
    t.asks(0, "ana begins 2.4.0", |s| s.begin("2.4.0"));
    t.then(30, "CloudFormation has made the change set", |s| make(s, 1));
    t.look(31);
    t.then(60, "somebody executes it in the console", |s| {
        let arn = set_arn(&s.made(1).change_set_name);
        s.w.cloud
            .borrow_mut()
            .start_run(&arn, "Console-ExecuteChangeSet-1", s.now())
            .unwrap();
    });
    t.asks(62, "ana gives the OK", |s| s.apply(&s.made(1)));
    t.look(63);
    t.then(120, "CloudFormation is done", |s| {
        s.w.cloud.borrow_mut().succeed(s.now())
    });
    t.then(300, "the schedule polls", Scene::poll_once);
    t.look(301);
    insta::assert_snapshot!(t.end());
}

#[test]
fn story_of_a_newer_update_that_takes_its_place() {
    let mut t = Story::new();
    t.asks(0, "ana begins 2.3.5", |s| s.begin("2.3.5"));
    t.then(30, "CloudFormation has made the change set", |s| make(s, 1));
    t.look(31);
    t.asks(60, "bob begins 2.4.0", |s| s.begin("2.4.0"));
    t.asks(61, "ana gives the OK to the older one", |s| s.apply(&s.made(1)));
    t.then(90, "CloudFormation has made the change set", |s| make(s, 2));
    t.look(91);
    insta::assert_snapshot!(t.end());
}

#[test]
fn story_of_an_execute_that_never_took() {
    let mut t = Story::new();
    t.asks(0, "ana begins 2.4.0", |s| s.begin("2.4.0"));
    t.then(30, "CloudFormation has made the change set", |s| make(s, 1));
    t.look(31);
    t.asks(60, "ana gives the OK and the request is lost on its way", |s| {
        s.w.fault("act execute", vec![Instead::Before(timed_out(EXECUTE))]);
        s.apply(&s.made(1))
    });
    t.look(180);
    t.look(181);
    t.asks(200, "ana gives the OK again", |s| s.apply(&s.made(1)));
    t.look(205);
    insta::assert_snapshot!(t.end());
}
