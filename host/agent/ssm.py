"""The part of SSM that Headgate speaks, over one box: Run Command with the real document, run by /bin/sh.

JSON 1.1 as the AWS SDKs send it. Unlike a mock it checks the document's patterns, runs the script, keeps the two time-outs apart and cuts the
output; and it can be told to misbehave in the ways that real hosts do.
"""
import json
import os
import re
import tempfile
import threading
import time
import uuid

TERMINAL = ("Success", "Failed", "TimedOut", "Cancelled")
# What a rule may do to the commands that match it.
EFFECTS = ("throttle", "refuse_connection", "drop_reply", "hold", "lose", "double", "hide", "delay_ms", "report_timed_out", "kill_before")


class Refused(Exception):
    def __init__(self, kind, message, status=400):
        super().__init__(message)
        self.kind, self.status = kind, status


class DropReply(Exception):
    """Close the connection without an answer."""


class Ssm:
    def __init__(self, box, document_file, document_name, node, old_agent=False):
        with open(document_file, encoding="utf-8") as f:
            self.document = json.load(f)
        self.box, self.name, self.node, self.old_agent = box, document_name, node, old_agent
        self.lock = threading.RLock()
        self.commands = {}
        self.rules = []
        self.counts = {}
        self.threads = []
        step = self.document["mainSteps"][0]
        if self.document["schemaVersion"] != "2.2" or step["action"] != "aws:runShellScript":
            raise ValueError("the document is not a schema 2.2 aws:runShellScript document")
        self.script = "\n".join(step["inputs"]["runCommand"]) + "\n"
        self.step_seconds = int(step["inputs"]["timeoutSeconds"])

    # ------------------------------------------------------------------ rules

    def rule_for(self, parameters):
        """Takes the first rule that matches; `times` says for how many commands it holds (default 1)."""
        for rule in self.rules:
            if rule["times"] > 0 and all(parameters.get(k) == str(v) for k, v in rule["match"].items()):
                rule["times"] -= 1
                return dict(rule["effects"])
        return {}

    def add_rule(self, match, effects, times=1):
        unknown = set(effects) - set(EFFECTS) | set(match) - set(self.document["parameters"])
        if unknown:
            raise Refused("ValidationException", f"unknown: {sorted(unknown)}; effects are {EFFECTS}, matches the document's parameters")
        with self.lock:
            self.rules.append({"match": match, "effects": effects, "times": times})

    # ------------------------------------------------------------------ operations

    def call(self, operation, body):
        with self.lock:
            self.counts[operation] = self.counts.get(operation, 0) + 1
        handler = getattr(self, "do_" + operation, None)
        if handler is None:
            raise Refused("UnknownOperationException", f"{operation} is not part of this stand-in")
        return handler(body)

    def parameters(self, given):
        wanted = self.document["parameters"]
        faults = [f"{k} is not a parameter of the document" for k in given if k not in wanted]
        values = {}
        for name, rule in wanted.items():
            value = given.get(name, [rule["default"]] if "default" in rule else None)
            if not isinstance(value, list) or len(value) != 1 or not isinstance(value[0], str):
                faults.append(f"{name} needs one string")
            elif not re.fullmatch(rule["allowedPattern"].removeprefix("^").removesuffix("$"), value[0]):
                faults.append(f"{name} does not match {rule['allowedPattern']}")
            else:
                values[name] = value[0]
        if faults:
            raise Refused("InvalidParameters", "; ".join(faults))
        return values

    def do_SendCommand(self, body):
        document = body.get("DocumentName", "")
        if document != self.name and not document.endswith(":document/" + self.name):
            raise Refused("InvalidDocument", f"no document {document}")
        nodes = body.get("InstanceIds") or [v for t in body.get("Targets", []) if t["Key"] == "InstanceIds" for v in t["Values"]]
        if nodes != [self.node]:
            raise Refused("InvalidInstanceId", f"the only managed node is {self.node}")
        seconds = body.get("TimeoutSeconds", 3600)
        if not isinstance(seconds, int) or not 30 <= seconds <= 2592000:
            raise Refused("ValidationException", "TimeoutSeconds must be between 30 and 2592000")
        if len(body.get("Comment", "")) > 100:
            raise Refused("ValidationException", "Comment is longer than 100 characters")
        values = self.parameters(body.get("Parameters", {}))
        with self.lock:
            effects = self.rule_for(values)
            if "throttle" in effects:
                raise Refused("ThrottlingException", "Rate exceeded")
            if "refuse_connection" in effects:
                raise DropReply
            command = {
                "id": str(uuid.uuid4()), "parameters": values, "comment": body.get("Comment", ""), "at": time.time(), "timeout": seconds,
                "status": "Pending", "details": "Pending", "code": -1, "stdout": "", "stderr": "", "effects": effects,
                "hidden": int(effects.get("hide", 0)), "runs": [], "started": None, "ended": None,
            }
            self.commands[command["id"]] = command
            if effects.get("lose"):
                command["status"], command["details"] = "Pending", "Pending"
            elif not effects.get("hold"):
                self.deliver(command)
        if "drop_reply" in effects:
            raise DropReply
        return {"Command": self.command_view(command)}

    def deliver(self, command):
        thread = threading.Thread(target=self.work, args=(command,), daemon=True)
        self.threads.append(thread)
        thread.start()

    def work(self, command):
        effects = command["effects"]
        if effects.get("delay_ms"):
            time.sleep(effects["delay_ms"] / 1000)
        for _ in range(2 if effects.get("double") else 1):
            self.run_once(command)

    def run_once(self, command):
        with self.lock:
            if command["status"] == "Pending":
                command.update(status="InProgress", details="InProgress", started=time.time())
        values, text = command["parameters"], self.script
        env = self.box.environment() if "kill_before" not in command["effects"] else self.box.shim_environment(command["effects"]["kill_before"])
        if self.old_agent:
            text = re.sub(r"\{\{ *(\w+) *\}\}", lambda m: values[m[1]], text)
        else:
            env.update({f"SSM_{k}": v for k, v in values.items()})
        with tempfile.NamedTemporaryFile("w", suffix=".sh", dir=self.box.root, delete=False) as f:
            f.write(text)
        try:
            status, out, err = self.box.execute(["/bin/sh", f.name], env, self.step_seconds)
        finally:
            os.unlink(f.name)
        with self.lock:
            command["runs"].append({"status": status, "stdout": out, "stderr": err})
            if command["status"] in TERMINAL:
                return  # the first end is what is shown
            end = ("TimedOut", "Execution Timed Out") if status is None else ("Success",) * 2 if status == 0 else ("Failed",) * 2
            if command["effects"].get("report_timed_out"):
                command.update(status="TimedOut", details="Delivery Timed Out", code=-1)
            else:
                command.update(status=end[0], details=end[1], code=137 if status is None else status, stdout=out[:24000], stderr=err[:8000])
            command["ended"] = time.time()

    def find(self, command_id):
        command = self.commands.get(command_id)
        if command is None:
            raise Refused("InvalidCommandId", "no such command")
        return command

    def invocation(self, command_id, node):
        """The command, or None as long as it is not visible yet."""
        command = self.commands.get(command_id)
        if command is None or node not in (None, self.node):
            return None
        if command["hidden"] > 0:
            command["hidden"] -= 1
            return None
        return command

    def do_GetCommandInvocation(self, body):
        with self.lock:
            command = self.invocation(body.get("CommandId"), body.get("InstanceId", ""))
            if command is None:
                raise Refused("InvocationDoesNotExist", "")
            return {
                "CommandId": command["id"], "InstanceId": self.node, "Comment": command["comment"], "DocumentName": self.name, "DocumentVersion": "1",
                "PluginName": self.document["mainSteps"][0]["name"], "ResponseCode": command["code"],
                "ExecutionStartDateTime": iso(command["started"]), "ExecutionEndDateTime": iso(command["ended"]), "ExecutionElapsedTime": "",
                "Status": command["status"], "StatusDetails": command["details"],
                "StandardOutputContent": command["stdout"], "StandardOutputUrl": "", "StandardErrorContent": command["stderr"], "StandardErrorUrl": "",
            }

    def do_ListCommandInvocations(self, body):
        with self.lock:
            ids = [body["CommandId"]] if "CommandId" in body else [c["id"] for c in self.newest()]
            found = [c for c in (self.invocation(i, body.get("InstanceId")) for i in ids) if c]
            views = []
            for c in found:
                view = {
                    "CommandId": c["id"], "InstanceId": self.node, "Comment": c["comment"], "DocumentName": self.name, "DocumentVersion": "1",
                    "RequestedDateTime": c["at"], "Status": c["status"], "StatusDetails": c["details"], "CommandPlugins": [],
                }
                if body.get("Details"):
                    view["CommandPlugins"] = [{
                        "Name": self.document["mainSteps"][0]["name"], "Status": c["status"], "StatusDetails": c["details"],
                        "ResponseCode": c["code"], "Output": c["stdout"][:2500],
                    }]
                views.append(view)
            return {"CommandInvocations": views}

    def do_ListCommands(self, body):
        with self.lock:
            if body.get("InstanceId") not in (None, self.node):
                raise Refused("InvalidInstanceId", "no such node")
            found = [c for c in self.newest() if body.get("CommandId") in (None, c["id"])]
            for rule in body.get("Filters", []):
                if rule["key"] == "Status":
                    found = [c for c in found if c["status"] == rule["value"]]
                elif rule["key"] == "InvokedAfter":
                    found = [c for c in found if iso(c["at"]) > rule["value"]]
                elif rule["key"] == "DocumentName":
                    found = [c for c in found if rule["value"].rsplit("/", 1)[-1] == self.name]
            first = int(body.get("NextToken") or 0)
            size = body.get("MaxResults", 50)
            answer = {"Commands": [self.command_view(c) for c in found[first:first + size]]}
            if len(found) > first + size:
                answer["NextToken"] = str(first + size)
            return answer

    def do_CancelCommand(self, body):
        """Best effort, as in real life: a command that runs goes on running."""
        with self.lock:
            command = self.find(body.get("CommandId"))
            if command["status"] == "Pending":
                command.update(status="Cancelled", details="Cancelled", ended=time.time())
            elif command["status"] == "InProgress":
                command.update(status="Cancelling", details="Cancelling")
            return {}

    def do_DescribeInstanceInformation(self, _body):
        return {"InstanceInformationList": [{
            "InstanceId": self.node, "PingStatus": "Online", "LastPingDateTime": time.time(), "AgentVersion": "3.3.2299.0" if self.old_agent else "3.3.3572.0",
            "IsLatestVersion": True, "PlatformType": "Linux", "PlatformName": "Debian GNU/Linux", "ResourceType": "ManagedInstance",
        }]}

    def newest(self):
        return sorted(self.commands.values(), key=lambda c: c["at"], reverse=True)

    def command_view(self, c):
        return {
            "CommandId": c["id"], "DocumentName": self.name, "DocumentVersion": "1", "Comment": c["comment"], "RequestedDateTime": c["at"],
            "ExpiresAfter": c["at"] + c["timeout"] + self.step_seconds, "InstanceIds": [self.node], "Targets": [],
            "Parameters": {k: [v] for k, v in c["parameters"].items()}, "Status": c["status"], "StatusDetails": c["details"],
            "TargetCount": 1, "CompletedCount": int(c["status"] in TERMINAL), "ErrorCount": int(c["status"] == "Failed"),
            "DeliveryTimedOutCount": 0, "TimeoutSeconds": c["timeout"],
        }

    # ------------------------------------------------------------------ control

    def release(self, order=None):
        """Delivers held commands one after another, each to its end, in the order given (ids), or all as they were sent."""
        with self.lock:
            held = [c for c in sorted(self.commands.values(), key=lambda c: c["at"]) if c["effects"].get("hold") and not c["runs"]]
            chosen = held if order is None else [self.find(i) for i in order]
        for command in chosen:
            self.work(command)
        return [c["id"] for c in chosen]

    def settle(self, command_id, status, details):
        """Says of a lost or held command how it ended, without running it."""
        with self.lock:
            self.find(command_id).update(status=status, details=details, ended=time.time())

    def drain(self):
        """Waits until everything that was delivered has ended."""
        while self.threads:
            self.threads.pop().join()

    def log(self):
        with self.lock:
            return [{k: c[k] for k in ("id", "parameters", "comment", "status", "details", "code", "effects", "runs")}
                    for c in sorted(self.commands.values(), key=lambda c: c["at"])]

    def forget(self):
        with self.lock:
            self.rules.clear()
            self.counts.clear()
            self.commands.clear()


def iso(seconds):
    return "" if seconds is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"
