"""Calls the API and prints each answer in one line; what was not as expected ends the demo."""

import json
import time
import urllib.error
import urllib.request

from local.install import Installation
from local.prepare import ROOT
from local.say import Stop, direct

# An answer that CloudFormation brings about must come within this time.
PATIENCE_SECONDS = 30.0


class Story:
    """One telling of the main job."""

    def __init__(self, installation: Installation):
        self._installation = installation

    def call(self, method: str, path: str, body: dict | None = None) -> tuple[int, dict]:
        """One HTTP call; gives status and body."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"} if data else {}
        request = urllib.request.Request(self._installation.api + path, data, headers, method=method)
        try:
            with direct.open(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read()
            try:
                return error.code, json.loads(text)
            except ValueError:
                raise Stop(f"{method} {path} answered {error.code} and no JSON: {text[:300]!r}") from error

    def says(self, method: str, path: str, body: dict | None = None, *, http: int, **wanted) -> dict:
        """Calls once, prints the answer, checks it (see `check`)."""
        code, answer = self.call(method, path, body)
        show(method, path, code, answer)
        check(f"{method} {path}", code, answer, http, wanted)
        return answer

    def until(self, path: str, **wanted) -> dict:
        """Reads again until the answer is as wanted, prints that one. Other answers on the way are not shown."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            code, answer = self.call("GET", path)
            if code == 200 and not differences(answer, wanted):
                show("GET", path, code, answer)
                return answer
            if time.monotonic() > deadline:
                show("GET", path, code, answer)
                check(f"GET {path}", code, answer, 200, wanted)
            time.sleep(0.1)

    def event(self, name: str, **wanted) -> dict:
        """Invokes the function with an event of `events/updater/`, as EventBridge would."""
        event = json.loads((ROOT / "events" / "updater" / f"{name}.json").read_text())
        lambda_ = self._installation.aws.client("lambda")
        function = self._installation.outputs["UpdaterName"]
        sent = lambda_.invoke(FunctionName=function, Payload=json.dumps(event).encode())
        answer = json.loads(sent["Payload"].read())
        if "FunctionError" in sent:
            raise Stop(f"the function failed on events/updater/{name}.json: {answer}")
        line("event", name, f"state {answer['state']}, wrote {str(answer['wrote']).lower()}")
        check(name, 200, answer, 200, wanted)
        return answer


def differences(answer: dict, wanted: dict) -> list[str]:
    """What is not as wanted. A name like `status__state` is a path; a callable is a test of the value."""
    wrong = []
    for name, value in wanted.items():
        got = answer
        for part in name.split("__"):
            got = got.get(part) if isinstance(got, dict) else None
        if callable(value):
            try:
                fits = bool(value(got))
            except (KeyError, TypeError, IndexError):
                fits = False
            if not fits:
                wrong.append(f"{name.replace('__', '.')} is {got!r}")
        elif got != value:
            wrong.append(f"{name.replace('__', '.')} is {got!r}, expected {value!r}")
    return wrong


def check(call: str, code: int, answer: dict, http: int, wanted: dict) -> None:
    """Ends the demo when an answer is not as it must be."""
    wrong = differences(answer, wanted)
    if code != http:
        wrong.insert(0, f"HTTP {code}, expected {http}")
    if wrong:
        raise Stop(f"NOT AS EXPECTED: {call}: {'; '.join(wrong)}\nheadgate: the whole answer: {json.dumps(answer)}")


def show(method: str, path: str, code: int, answer: dict) -> None:
    """One answer, one line."""
    parts = path.split("/")
    if len(parts) > 2 and len(parts[2]) > 12:
        # The end of an id is its number.
        parts[2] = f"..{parts[2][-4:]}"
    line(method, "/".join(parts), f"{code} {in_words(answer)}")


def in_words(answer: dict) -> str:
    """The gist of an answer."""
    if "code" in answer:
        return f"{answer['code']}: {answer['detail']}"
    if "ready" in answer:
        codes = [b["code"] for b in answer["blockers"]]
        return "ready: nothing holds this release." if answer["ready"] else f"held by {', '.join(codes)}"
    if "updates" in answer:
        return ", ".join(f"{u['to_release']} {u['state']}" for u in answer["updates"])
    status = answer["status"]
    text = f"{status['label']}: {status['summary']}"
    if who := (answer.get("update") or answer).get("applied_by"):
        text += f" OK by {who}."
    return text


def line(verb: str, what: str, text: str) -> None:
    """Prints one line of the story."""
    print(f"{verb:5} {what:22} -> {text}", flush=True)
