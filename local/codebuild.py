"""CodeBuild for the local stack: builds that take as long as they are told to, and run the real script.

ministack's own CodeBuild says SUCCEEDED at once and runs nothing. This endpoint, chosen by
`AWS_ENDPOINT_URL_CODEBUILD`, runs `release-check/release-check.sh` with the environment StartBuild was given, so
the report on the event bus is a real one. A build can be held back, and it can be killed.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from local.ministack import ACCOUNT, REGION, Ministack
from local.prepare import ROOT

SCRIPT = ROOT / "release-check" / "release-check.sh"


class CodeBuild:
    """The endpoint. Use as a context manager."""

    def __init__(self, aws: Ministack):
        self._aws = aws
        self._builds: dict[str, dict] = {}
        self._held: set[str] = set()
        self._lock = threading.Lock()
        self._running: dict[str, subprocess.Popen] = {}
        self._bin = _tools(aws.folder / "bin")
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = True
        self._server = server
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        with self._lock:
            running = list(self._running.values())
        for process in running:
            process.kill()
            process.wait()

    def hold(self, release: str) -> None:
        """Builds of this release stay in their phase until `let_go` or `kill`."""
        with self._lock:
            self._held.add(release)

    def let_go(self, release: str) -> None:
        """A held build of this release goes on."""
        with self._lock:
            self._held.discard(release)
            waiting = [b for b in self._builds.values() if _variable(b, "HEADGATE_RELEASE") == release]
        for build in waiting:
            if not build["buildComplete"]:
                self._go(build)

    def kill(self, release: str) -> None:
        """The running build of this release dies without a word, as when its host is lost."""
        with self._lock:
            self._held.discard(release)
            for build in self._builds.values():
                if _variable(build, "HEADGATE_RELEASE") == release and not build["buildComplete"]:
                    self._end(build, "FAULT")

    def answer(self, operation: str, body: dict) -> dict:
        """One call of the API."""
        if operation == "StartBuild":
            return {"build": self._start(body)}
        if operation == "BatchGetBuilds":
            found = [self._builds[i] for i in body["ids"] if i in self._builds]
            return {"builds": found, "buildsNotFound": [i for i in body["ids"] if i not in self._builds]}
        if operation == "ListBuildsForProject":
            return {"ids": list(reversed(self._builds))}
        if operation == "BatchGetProjects":
            return {"projects": [{"name": n} for n in body["names"]], "projectsNotFound": []}
        if operation == "StopBuild":
            with self._lock:
                build = self._builds[body["id"]]
                if not build["buildComplete"]:
                    self._end(build, "STOPPED")
            return {"build": build}
        raise KeyError(operation)

    def _start(self, body: dict) -> dict:
        token = body.get("idempotencyToken")
        with self._lock:
            for build in self._builds.values():
                if token and build["token"] == token:
                    return build
            number = len(self._builds) + 1
            build = {
                "id": f"{body['projectName']}:{number:08d}",
                "projectName": body["projectName"],
                "buildStatus": "IN_PROGRESS",
                "currentPhase": "BUILD",
                "buildComplete": False,
                "startTime": time.time(),
                "environment": {"environmentVariables": body.get("environmentVariablesOverride", []),
                                "type": "ARM_CONTAINER", "image": "local", "computeType": "BUILD_GENERAL1_SMALL"},
                "phases": [],
                "token": token,
            }
            self._builds[build["id"]] = build
            held = _variable(build, "HEADGATE_RELEASE") in self._held
        if not held:
            self._go(build)
        return build

    def _go(self, build: dict) -> None:
        threading.Thread(target=self._run, args=(build,), daemon=True).start()

    def _run(self, build: dict) -> None:
        """The real script, as a build would run it."""
        environment = {
            **{v["name"]: v["value"] for v in build["environment"]["environmentVariables"]},
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "CODEBUILD_BUILD_ID": build["id"],
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self._aws.url,
            "AWS_ACCESS_KEY_ID": ACCOUNT,
            "AWS_SECRET_ACCESS_KEY": "local",
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self._bin.parent),
        }
        with self._lock:
            if build["buildComplete"]:
                return
            process = subprocess.Popen(
                ["bash", str(SCRIPT)], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            self._running[build["id"]] = process
        output, _ = process.communicate()
        (self._bin.parent / f"build-{build['id'].replace(':', '-')}.log").write_bytes(output)
        with self._lock:
            self._running.pop(build["id"], None)
            if not build["buildComplete"]:
                self._end(build, "SUCCEEDED" if process.returncode == 0 else "FAILED")

    def _end(self, build: dict, status: str) -> None:
        build["buildStatus"] = status
        build["currentPhase"] = "COMPLETED"
        build["buildComplete"] = True
        if process := self._running.pop(build["id"], None):
            process.kill()


def _variable(build: dict, name: str) -> str | None:
    return next((v["value"] for v in build["environment"]["environmentVariables"] if v["name"] == name), None)


def _tools(folder: Path) -> Path:
    """`aws`, and `curl` where the machine has none: what the build image brings and a fresh machine may lack."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("aws", "curl"):
        if name == "curl" and shutil.which("curl"):
            continue
        tool = folder / name
        tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m local.tools {name} "$@"\n')
        tool.chmod(0o755)
    return folder


def _handler(endpoint: CodeBuild):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):  # noqa: N802, the name http.server calls
            body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
            operation = self.headers.get("x-amz-target", "").rsplit(".", 1)[-1]
            try:
                status, answer = 200, endpoint.answer(operation, body)
            except KeyError as error:
                status, answer = 400, {"__type": "InvalidInputException", "message": f"no {error}"}
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/x-amz-json-1.1")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    return Handler
