"""The private-link part of `./run demo`: the controller's events go over the local event bus, as on a real account."""

import json
import time
from datetime import datetime, timedelta, timezone

from local.install import Installation
from local.prepare import ROOT
from local.say import Stop
from local.story import PATIENCE_SECONDS, Story, check, differences, line

PLANE = "0e8f3a0000000055"
LINK = "0000000000000b01"
PATH = f"/data-planes/{PLANE}/private-links/{LINK}"
EVENTS = ROOT / "events" / "link-details"


def tell(story: Story, installation: Installation) -> None:
    """PulumiUp1 completes -> the name is readable while pending; an edit is not stamped; Ansible -> provisioned."""
    print("\n# A private link: its DNS name can be handed out ten minutes before the converge ends.")
    config = {"region": "us-east-1", "az_ids": ["use1-az1"], "service_name": "com.amazonaws.vpce.us-east-1.vpce-svc-a"}
    _says(story, "PUT", config, http=201, generation=1, phase="waiting", status="pending", connect=None)
    _says(story, "PUT", config, http=200, generation=1)
    _send(installation, "up1-published", converge=41, generation=1)
    _until(story, phase="dns_ready", status="pending", observed_at=None,
           connect__host=lambda h: h.startswith("vpce-") and "us-east-1a" not in h,
           connect__endpoint_id="vpce-0a1b2c3d4e5f60718")
    print("\n# Somebody edits the link while that converge still runs: its end is about another configuration.")
    config["az_ids"] = ["use1-az2"]
    _says(story, "PUT", config, http=200, generation=2, phase="waiting", connect=None)
    outcome = _deliver(installation, "ansible-settled", converge=41, generation=1)
    if outcome != "StaleGeneration":
        raise Stop(f"NOT AS EXPECTED: the old converge's Ansible stage is {outcome}, expected StaleGeneration")
    _says(story, "GET", http=200, generation=2, phase="waiting", status="pending", details=None)
    print("\n# The next converge: name first, then confirmed; a redelivery changes nothing.")
    _send(installation, "up1-published", converge=42, generation=2)
    _until(story, phase="dns_ready", generation=2)
    _send(installation, "ansible-settled", converge=42, generation=2)
    ready = _until(story, phase="ready", status="provisioned", error=None)
    outcome = _deliver(installation, "up1-published", converge=42, generation=2)
    if outcome != "Superseded":
        raise Stop(f"NOT AS EXPECTED: the late PulumiUp1 is {outcome}, expected Superseded")
    _says(story, "GET", http=200, observed_at=ready["observed_at"], phase="ready")


def _says(story: Story, method: str, body: dict | None = None, *, http: int, **wanted) -> dict:
    code, answer = story.call(method, PATH, body)
    _show(method, code, answer)
    check(f"{method} {PATH}", code, answer, http, wanted)
    return answer


def _until(story: Story, **wanted) -> dict:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        code, answer = story.call("GET", PATH)
        ended = time.monotonic() > deadline
        if ended or (code == 200 and not differences(answer, wanted)):
            _show("GET", code, answer)
            check(f"GET {PATH}", code, answer, 200, wanted)
            return answer
        time.sleep(0.1)


def _show(method: str, code: int, answer: dict) -> None:
    if "phase" in answer:
        host = (answer["connect"] or {}).get("host")
        said = f"generation {answer['generation']} {answer['status']}, {answer['phase']}: {host or answer['message']}"
    else:
        said = f"{answer.get('code')}: {answer.get('detail')}"
    line(method, f"private-links/..{LINK[-4:]}", f"{code} {said}")


def _event(name: str, converge: int, generation: int) -> dict:
    """A fixture of `events/link-details/`, as of now: the name of an old one would count as stalled."""
    event = json.loads((EVENTS / f"{name}.json").read_text())
    detail = event["detail"]
    minutes = {"PulumiUp1": 2, "Ansible": 1}[detail["stage"]]
    at = datetime.now(timezone.utc) - timedelta(minutes=minutes)
    detail["converge_seq"] = converge
    detail["completed_at"] = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    for part in (*detail["pinned_links"], *detail["outputs"]["link_results"]):
        part["generation"] = generation
    return event


def _told(name: str, converge: int, generation: int, said: str) -> None:
    stage = {"up1-published": "PulumiUp1", "ansible-settled": "Ansible"}[name]
    line("event", f"{stage} of converge {converge}", f"pinned generation {generation}: {said}")


def _send(installation: Installation, name: str, *, converge: int, generation: int) -> None:
    """Puts the event on the bus; the rule of the template brings it to the function."""
    event = _event(name, converge, generation)
    entry = {"Source": event["source"], "DetailType": event["detail-type"], "Detail": json.dumps(event["detail"])}
    sent = installation.aws.client("events").put_events(Entries=[entry])
    if sent["FailedEntryCount"]:
        raise Stop(f"the event bus refused the event {name}: {sent['Entries']}")
    _told(name, converge, generation, "put on the bus")


def _deliver(installation: Installation, name: str, *, converge: int, generation: int) -> str:
    """Invokes the function as the rule does, to see the outcome: what must change nothing leaves no other trace."""
    event = _event(name, converge, generation)
    function = installation.outputs["LinkDetailsName"]
    sent = installation.aws.client("lambda").invoke(FunctionName=function, Payload=json.dumps(event).encode())
    answer = json.loads(sent["Payload"].read())
    if "FunctionError" in sent:
        raise Stop(f"the function failed on events/link-details/{name}.json: {answer}")
    outcome = answer["outcomes"].get(LINK)
    _told(name, converge, generation, outcome)
    return outcome
