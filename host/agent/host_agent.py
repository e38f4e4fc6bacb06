#!/usr/bin/env python3
"""Host agent for tests and the local run: an SSM endpoint on 127.0.0.1 that really runs the host side of Headgate.

    python3 host/agent/host_agent.py [--mode auto|systemd|recorded] [--port N] [--document NAME] [--node ID] [--root DIR] [--old-agent]

Once it is ready it prints one line of JSON: endpoint (for AWS_ENDPOINT_URL_SSM), mode, caddy, root, ports, what was left out and why. It ends, and
takes everything it started with it, on SIGTERM, SIGINT, `POST /_control/shutdown`, or when its standard input is closed (--stdin).

mode "systemd": real template units under `systemd --user` in private namespaces (root needed; nothing of the machine's own systemd is touched).
mode "recorded": a small systemctl that starts the same instances. "auto" takes the first that works and says which.
The network is the machine's, so instances and Caddy are reachable from outside. Control API: host/README.md.
"""
import argparse
import ctypes
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

from box import HOST, Box, wait_for
from ssm import DropReply, Refused, Ssm

NO_NAMESPACE = 97


# ---------------------------------------------------------------------------------------------------- HTTP

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body, kind="application/json"):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def local(self):
        """Refuses a page in somebody's browser that was led here by a DNS name."""
        if self.headers.get("host", "").split(":")[0] in ("127.0.0.1", "localhost"):
            return True
        self.answer(421, {"error": "only by 127.0.0.1"})
        return False

    def do_GET(self):
        if self.local():
            self.guarded(lambda: self.server.agent.read(self.path))

    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        if not self.local():
            return
        if self.path.startswith("/_control/"):
            self.guarded(lambda: self.server.agent.control(self.path[len("/_control/"):], json.loads(raw or b"{}")))
            return
        target = self.headers.get("x-amz-target", "")
        if not target.startswith("AmazonSSM."):
            self.answer(400, {"__type": "UnknownOperationException", "message": "not an SSM call"})
            return
        self.guarded(lambda: self.server.agent.ssm.call(target.removeprefix("AmazonSSM."), json.loads(raw or b"{}")), "application/x-amz-json-1.1")

    def guarded(self, act, kind="application/json"):
        try:
            self.answer(200, act(), kind)
        except DropReply:
            self.close_connection = True
            self.connection.close()
        except Refused as e:
            self.answer(e.status, {"__type": e.kind, "message": str(e)}, kind)
        except (KeyError, TypeError, ValueError) as e:
            self.answer(400, {"__type": "ValidationException", "message": f"{type(e).__name__}: {e}"}, kind)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception() if hasattr(sys, "exception") else sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Agent:
    def __init__(self, box, ssm, info):
        self.box, self.ssm, self.info = box, ssm, info
        self.stop = threading.Event()

    def read(self, path):
        if path == "/_control/info":
            return self.info
        if path == "/_control/commands":
            return {"commands": self.ssm.log(), "counts": self.ssm.counts}
        if path == "/_control/calls":
            return {"calls": self.box.calls()}
        raise Refused("NotFound", f"no {path}", 404)

    def control(self, what, body):
        if what == "rules":
            self.ssm.add_rule(body.get("match", {}), body["effects"], body.get("times", 1))
        elif what == "release":
            return {"released": self.ssm.release(body.get("order"))}
        elif what == "settle":
            self.ssm.settle(body["command"], body["status"], body.get("details", body["status"]))
        elif what == "drain":
            self.ssm.drain()
        elif what == "faults":
            self.box.fault(body["slug"], body["faults"])
        elif what == "accounts":
            with open(self.box.path("standin/accounts", body["slug"]), "w", encoding="utf-8") as f:
                json.dump(body["accounts"], f)
        elif what == "run":
            return self.box.run(body["args"], body.get("kill_before"), body.get("env"))
        elif what == "caddy":
            if body["state"] == "stopped":
                self.box.stop_caddy()
            else:
                self.box.start_caddy()
        elif what == "systemctl":
            status, out, err = self.box.execute([self.box.path("bin/systemctl"), *body["args"]], self.box.environment())
            return {"status": status, "stdout": out, "stderr": err}
        elif what == "reset":
            self.ssm.forget()
            self.box.reset()
            self.ssm.drain()
        elif what == "shutdown":
            self.stop.set()
        else:
            raise Refused("NotFound", f"no control {what}", 404)
        return {}


# ---------------------------------------------------------------------------------------------------- namespaces

def cgroup_parent():
    """Where a subtree of our own can be made: the v2 hierarchy, also where it is mounted beside v1."""
    for path in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup"):
        if os.path.exists(os.path.join(path, "cgroup.procs")) and os.path.exists(os.path.join(path, "cgroup.controllers")):
            return path
    return None


def try_systemd(argv):
    """Runs this program again inside private namespaces. Answers its status, or a reason (str) why that is not possible here."""
    if os.geteuid() != 0:
        return "not root"
    if not os.path.exists("/lib/systemd/systemd") or not shutil.which("unshare"):
        return "no systemd or no unshare on this machine"
    parent = cgroup_parent()
    if parent is None:
        return "no cgroup v2 hierarchy"
    group = os.path.join(parent, f"headgate-host-{os.getpid()}")
    try:
        os.mkdir(group)
    except OSError as e:
        return f"no cgroup of our own: {e.strerror}"

    def enter():
        # Should this process be killed, unshare goes with it, and with unshare (--kill-child) everything inside.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as f:
            f.write(str(os.getpid()))

    try:
        child = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--cgroup", "--uts",
             sys.executable, os.path.abspath(__file__), "--inside", *argv], preexec_fn=enter)
    except OSError as e:
        os.rmdir(group)
        return f"unshare: {e.strerror}"
    # unshare itself ignores both signals while it waits; the agent inside is told over the pipe of its standard input.
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: child_signal(group))
    status = child.wait()
    for path, _, _ in sorted(os.walk(group), reverse=True):
        try:
            os.rmdir(path)
        except OSError:
            pass
    return "the private namespaces or the user manager did not start" if status == NO_NAMESPACE else status


def child_signal(group):
    """SIGTERM for the agent inside: the process of the subtree that is not unshare and runs this file."""
    with open(os.path.join(group, "cgroup.procs"), encoding="ascii") as f:
        pids = [int(p) for p in f.read().split()]
    for pid in pids:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                words = f.read().split(b"\0")
        except OSError:
            continue
        if b"--inside" in words and not words[0].endswith(b"unshare"):
            os.kill(pid, signal.SIGTERM)


def enter_namespaces(root):
    """Inside: our own cgroup tree and /run, then a user manager. Leaves with NO_NAMESPACE when the machine does not allow it."""
    def sh(*argv):
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    try:
        sh("mount", "--make-rprivate", "/")
        with open("/proc/mounts", encoding="utf-8") as f:
            mounts = [line.split()[1] for line in f]
        for path in sorted((m for m in mounts if m.startswith("/sys/fs/cgroup")), reverse=True):
            sh("umount", path)
        sh("mount", "-t", "cgroup2", "none", "/sys/fs/cgroup")
        sh("mount", "-t", "tmpfs", "tmpfs", "/run")
        os.makedirs("/run/systemd/system")
        os.makedirs("/run/user/0")
        os.environ.update(XDG_RUNTIME_DIR="/run/user/0", HOME=os.path.join(root, "home"), XDG_CONFIG_HOME=os.path.join(root, "home/config"))
        os.makedirs(os.environ["XDG_CONFIG_HOME"], exist_ok=True)
        with open(os.path.join(root, "systemd.log"), "ab") as log:
            manager = subprocess.Popen(["/lib/systemd/systemd", "--user", "--unit=basic.target"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        def running():
            if manager.poll() is not None:
                raise OSError("the user manager ended")
            return subprocess.run(["systemctl", "--user", "is-system-running"], capture_output=True, text=True).stdout.strip() in ("running", "degraded")

        wait_for("systemd --user", running, 15)
        return manager
    except (OSError, subprocess.CalledProcessError, TimeoutError):
        sys.exit(NO_NAMESPACE)


# ---------------------------------------------------------------------------------------------------- main

def serve(options, left_out):
    root = options.root or tempfile.mkdtemp(prefix="headgate-host-")
    os.makedirs(root, exist_ok=True)
    root = os.path.realpath(root)
    manager = enter_namespaces(root) if options.inside else None
    caddy = None if options.no_caddy else shutil.which("caddy", path=os.environ.get("PATH", "") + ":/usr/bin:/usr/local/bin")
    left_out = list(left_out)
    if caddy is None:
        left_out.append("real Caddy: not installed, a stand-in routes (apt-get install caddy)")
    box = Box(root, systemd=options.inside, caddy=caddy)
    # Two copies of the same signal must not interrupt the clean-up.
    agent = Agent(box, None, None)
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: agent.stop.set())
    try:
        box.start_caddy()
        server = Server(("127.0.0.1", options.port), Handler)
        agent.ssm = Ssm(box, os.path.join(HOST, "zds-document.json"), options.document, options.node, options.old_agent)
        agent.info = {
            "endpoint": f"http://127.0.0.1:{server.server_address[1]}", "mode": "systemd" if options.inside else "recorded",
            "caddy": "real" if caddy else "stand-in", "left_out": left_out, "root": root, "document": options.document, "node": options.node,
            "ports": box.ports, "port_range": f"{box.port_low}-{box.port_low + 99}", "pid": os.getpid(),
        }
        server.agent = agent
        threading.Thread(target=server.serve_forever, daemon=True).start()
        if options.stdin:
            threading.Thread(target=lambda: (sys.stdin.buffer.read(), agent.stop.set()), daemon=True).start()
        print(json.dumps(agent.info), flush=True)
        agent.stop.wait()
        server.shutdown()
        server.server_close()
    finally:
        box.close()
        if manager is not None:
            subprocess.run(["systemctl", "--user", "exit"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            manager.wait(10)
        if not options.root and not options.keep:
            shutil.rmtree(root, ignore_errors=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description="SSM endpoint that runs Headgate's host side for real, for tests and the local run")
    parser.add_argument("--mode", choices=("auto", "systemd", "recorded"), default="auto")
    parser.add_argument("--port", type=int, default=0, help="of the endpoint; 0 takes a free one")
    parser.add_argument("--document", default="headgate-zds-host", help="name of the SSM document")
    parser.add_argument("--node", default="mi-0a1b2c3d4e5f60718", help="id of the managed node")
    parser.add_argument("--root", help="directory of the host's files (kept); default: a temporary one")
    parser.add_argument("--keep", action="store_true", help="keep the temporary directory")
    parser.add_argument("--old-agent", action="store_true", help="behave like an SSM agent that knows no ENV_VAR interpolation")
    parser.add_argument("--no-caddy", action="store_true", help="use the stand-in even where Caddy is installed")
    parser.add_argument("--stdin", action="store_true", help="end when standard input is closed")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    left_out = []
    if not options.inside and options.mode != "recorded":
        outcome = try_systemd(sys.argv[1:])
        if isinstance(outcome, int):
            return outcome
        if options.mode == "systemd":
            print(f"real systemd units are not possible here: {outcome}", file=sys.stderr)
            return 1
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, signal.SIG_DFL)
        left_out.append(f"real systemd units: {outcome}")
    return serve(options, left_out)


if __name__ == "__main__":
    sys.exit(main())
