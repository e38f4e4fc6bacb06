"""The JSON Schema of the controller's event: every fixture keeps it, and everything in links_bad_events.json breaks it.

Run by ./test with the Python of .venv/: `.venv/bin/python tests/links_schema.py`. Exits 1 and says what is wrong.
"""

import copy
import json
import sys
from pathlib import Path

from jsonschema import Draft202012Validator

ROOT = Path(__file__).resolve().parent.parent
EVENTS = ROOT / "events" / "link-details"


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


def set_at(event, pointer, value):
    *parents, last = pointer.strip("/").split("/")
    for name in parents:
        event = event[int(name)] if isinstance(event, list) else event[name]
    event[int(last) if isinstance(event, list) else last] = value


def main():
    schema = load(EVENTS / "stage-completed.schema.json")
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    faults = []
    stages = 0
    for path in sorted(EVENTS.glob("*.json")):
        event = load(path)
        if event.get("detail-type") == "Stage Completed":
            stages += 1
            faults += [f"{path.name}: {e.json_path}: {e.message}" for e in validator.iter_errors(event["detail"])]
    if stages < 9:
        faults.append(f"only {stages} stage events in {EVENTS.name}: this check looks at too little")
    good = load(EVENTS / "up1-published.json")["detail"]
    changes = load(ROOT / "tests" / "links_bad_events.json")
    for change in changes["rejected"] + changes["one_link"]:
        event = copy.deepcopy(good)
        set_at(event, change["at"], change["to"])
        if validator.is_valid(event):
            faults.append(f"the schema accepts {json.dumps(change)}")
    for fault in faults:
        print(fault)
    print(f"links_schema: {stages} fixtures, {len(changes['rejected'] + changes['one_link'])} bad events, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
