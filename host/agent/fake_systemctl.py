#!/usr/bin/env python3
"""The recorded runner: as much of systemctl as zds-host uses, for machines without systemd.

Exit statuses and states are those measured with systemd 252: start twice is 0, start of a process that dies at once is 0 and the unit
is then in auto-restart, stop of a stopped unit is 0, a missing environment file is 1. The instance runs for real.
"""
import json
import os
import signal
import subprocess
import sys
import time

ROOT = os.environ["ZDS_ROOT"]
STATE = os.path.join(ROOT, "systemctl")


def path(unit):
    return os.path.join(STATE, unit + ".json")


def load(unit):
    try:
        with open(path(unit), encoding="utf-8") as f:
            return json.load(f)
    except FileNotFoundError:
        return {"enabled": False, "pid": 0, "born": "", "restarts": 0}


def save(unit, state):
    tmp = path(unit) + ".tmp"
    with open(tmp, "w", encoding="utf-8") as f:
        json.dump(state, f)
    os.replace(tmp, path(unit))


def born(pid):
    """Start time of a living process, '' for a dead one or a zombie. Tells a reused pid apart."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            fields = f.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def alive(state):
    return bool(state["pid"]) and born(state["pid"]) == state["born"]


def words(state):
    if alive(state):
        return "active", "running"
    return ("activating", "auto-restart") if state["pid"] else ("inactive", "dead")


def start(unit):
    state = load(unit)
    if alive(state):
        return 0
    slug = unit[len("zds@"):-len(".service")]
    env = {"PATH": os.environ["PATH"], "STANDIN_DIR": os.path.join(ROOT, "standin")}
    for kind in ("secrets", "env"):
        try:
            with open(os.path.join(ROOT, "var/lib/zds", kind, slug + ".env"), encoding="utf-8") as f:
                env.update(line.rstrip("\n").split("=", 1) for line in f if "=" in line)
        except FileNotFoundError:
            return 1
    child = subprocess.Popen(
        [sys.executable, "-S", "-E", os.path.join(os.path.dirname(os.path.abspath(__file__)), "instance.py")],
        env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    state.update(pid=child.pid, born=born(child.pid))
    save(unit, state)
    return 0


def stop(unit):
    state = load(unit)
    if alive(state):
        os.kill(state["pid"], signal.SIGTERM)
        limit = time.monotonic() + 5
        while alive(state):
            if time.monotonic() > limit:
                os.kill(state["pid"], signal.SIGKILL)
            time.sleep(0.01)
    if os.path.exists(path(unit)):
        state.update(pid=0, born="")
        save(unit, state)
    return 0


def main():
    os.makedirs(STATE, exist_ok=True)
    args = [a for a in sys.argv[1:] if not a.startswith("-")]
    verb, unit = args[0], args[-1]
    if verb == "start":
        return start(unit)
    if verb == "stop":
        return stop(unit)
    if verb in ("enable", "disable"):
        state = load(unit)
        state["enabled"] = verb == "enable"
        save(unit, state)
    elif verb == "reset-failed":
        pass
    elif verb == "is-enabled":
        enabled = load(unit)["enabled"]
        print("enabled" if enabled else "disabled")
        return 0 if enabled else 1
    elif verb == "show":
        state = load(unit)
        active, sub = words(state)
        print(f"ActiveState={active}\nSubState={sub}\nMainPID={state['pid'] if alive(state) else 0}\nNRestarts=0")
    elif verb == "list-units":
        for name in sorted(os.listdir(STATE)):
            if name.endswith(".service.json"):
                active, sub = words(load(name[:-5]))
                print(f"{name[:-5]} loaded {active} {sub} AT Protocol instance")
    else:
        print(f"the recorded runner does not know {verb}", file=sys.stderr)
        return 64
    return 0


if __name__ == "__main__":
    sys.exit(main())
