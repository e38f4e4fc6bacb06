"""Starts a host agent for a test class and talks to it."""
import http.client
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request

HOST = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SUFFIX = ".pds1.example.test"


def agent(mode, *more):
    """(process, info), or a reason (str) why that mode is not possible here."""
    process = subprocess.Popen([sys.executable, os.path.join(HOST, "agent/host_agent.py"), "--stdin", "--mode", mode, *more],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    if not line:
        _, reason = process.communicate()
        return reason.strip() or "the host agent did not start"
    return process, json.loads(line)


class Client:
    def __init__(self, info):
        self.info = info
        self.root = info["root"]
        self.low = int(info["port_range"].split("-")[0])

    # ---- SSM, as the SDK sends it

    def ssm(self, operation, **body):
        request = urllib.request.Request(
            self.info["endpoint"] + "/", json.dumps(body).encode(),
            {"X-Amz-Target": "AmazonSSM." + operation, "Content-Type": "application/x-amz-json-1.1"})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as e:
            raise SsmError(json.load(e)) from None

    def send(self, op, slug="a-com", generation=1, port=None, **more):
        parameters = {k: [str(v)] for k, v in {
            "Op": op, "Slug": slug, "Port": port or self.low, "Generation": generation, "Origin": slug + SUFFIX,
            "HandleDomains": "." + slug.replace("-", "."), **more.pop("parameters", {})}.items()}
        return self.ssm("SendCommand", DocumentName=self.info["document"], InstanceIds=[self.info["node"]], Parameters=parameters,
                        TimeoutSeconds=30, Comment=f"zds {slug} g{generation} {op}", **more)["Command"]["CommandId"]

    def look(self, command):
        return self.ssm("GetCommandInvocation", CommandId=command, InstanceId=self.info["node"])

    # ---- control

    def control(self, what, **body):
        request = urllib.request.Request(f"{self.info['endpoint']}/_control/{what}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def read(self, what):
        with urllib.request.urlopen(f"{self.info['endpoint']}/_control/{what}", timeout=30) as answer:
            return json.load(answer)

    def run(self, op, slug="a-com", generation=1, port=None, origin=None, handles=None, kill_before=None, env=None):
        """zds-host itself; answers its exit status and the parsed line (None when there is none)."""
        got = self.control("run", args=[op, slug, port or self.low, generation, origin or slug + SUFFIX, handles or "." + slug.replace("-", ".")],
                           kill_before=kill_before, env=env)
        lines = got["stdout"].splitlines()
        assert len(lines) <= 1, got
        return Answer(got["status"], json.loads(lines[0]) if lines else None, got.get("effects", []), got["stderr"])

    def calls(self, command):
        """Recorded calls that begin with these words."""
        return [c for c in self.read("calls")["calls"] if all(w in c.split() for w in command.split())]

    # ---- the world

    def get(self, port, path, host, timeout=10):
        """(status, body) of http://127.0.0.1:port/path asked as host."""
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        try:
            line.request("GET", path, headers={"Host": host})
            answer = line.getresponse()
            return answer.status, answer.read().decode()
        finally:
            line.close()

    def did_through_caddy(self, host):
        """DID that Caddy's loopback door leads to, or the status when it leads nowhere."""
        status, body = self.get(self.info["ports"]["probe"], "/xrpc/com.atproto.server.describeServer", host)
        return json.loads(body)["did"] if status == 200 else status

    def path(self, *parts):
        return os.path.join(self.root, *parts)

    def text(self, *parts):
        with open(self.path(*parts), encoding="utf-8") as f:
            return f.read()

    def map(self, slug):
        return self.path("etc/caddy/maps", slug + ".map")

    def starts(self, slug="a-com"):
        """How often the instance's process was started."""
        return self.text("var/lib/zds", slug, "starts").count("\n")

    def active(self, slug="a-com"):
        got = self.control("systemctl", args=["show", "-p", "ActiveState", "-p", "MainPID", f"zds@{slug}.service"])["stdout"]
        values = dict(line.split("=", 1) for line in got.split())
        return values["ActiveState"], values["MainPID"]

    def listens(self, port):
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", port)) == 0


class Answer:
    def __init__(self, status, line, effects, stderr):
        self.status, self.line, self.effects, self.stderr = status, line, effects, stderr

    def __getitem__(self, key):
        return (self.line or {}).get(key)

    def __repr__(self):
        return f"{self.status} {self.line} {self.stderr[-600:]}"


class SsmError(Exception):
    def __init__(self, body):
        super().__init__(f"{body['__type']}: {body['message']}")
        self.kind = body["__type"]
