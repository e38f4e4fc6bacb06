"""`./test`: everything that must be green, to the end even when something fails, and one closing line."""

import os
import re
import sys

from local import expand, guard
from local.install import RELEASES
from local.ministack import Ministack
from local.prepare import ROOT, VENV, build, cargo, functions
from local.say import Stop, note, step

RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed")
PASSED_TEST = re.compile(r"^test .* \.\.\. ok$")


class Tally:
    """How many checks passed and failed."""

    def __init__(self):
        self.passed = 0
        self.failed: list[str] = []

    def count(self, name: str, code: int) -> None:
        """One check by its exit status."""
        if code == 0:
            self.passed += 1
        else:
            self.failed.append(name)
            note(f"FAILED: {name}")


def main() -> int:
    """Runs every step; 0 if all passed."""
    tally = Tally()
    python = sys.executable
    own_env = {**os.environ, "PYTHONPYCACHEPREFIX": str(ROOT / ".local" / "pycache")}
    steps = [
        ("cargo fmt", [cargo(), "fmt", "--all", "--", "--check", "-l"], None),
        ("python", [python, "-W", "error", "-m", "compileall", "-q", "-f", "local"], own_env),
        ("the event's schema", [python, "tests/links_schema.py"], own_env),
        ("release check", [python, "-m", "unittest", "discover", "-q", "-s", "local/tests", "-t", "."], own_env),
        ("cfn-lint", [VENV / "bin" / "cfn-lint", expand.TEMPLATE, *sorted(RELEASES.glob("*.yaml"))], None),
        # The lints are arguments of clippy, not RUSTFLAGS: those would rebuild everything for the next step.
        ("cargo clippy", [cargo(), "clippy", "--locked", "--workspace", "--all-targets", "--all-features", "--",
                          "-D", "warnings"], None),
    ]
    for name, command, env in steps:
        with step(name):
            tally.count(name, guard.run(command, cwd=ROOT, env=env))
    _cargo_test(tally)
    with step("./run demo"):
        # On a port of its own, as a person would call it.
        tally.count("./run demo", guard.run([ROOT / "run", "demo"], cwd=ROOT))
    if tally.failed:
        note(f"failed: {', '.join(tally.failed)}")
    print(f"{tally.passed} passed, {len(tally.failed)} failed", flush=True)
    return 1 if tally.failed else 0


def _cargo_test(tally: Tally) -> None:
    """All tests of the workspace, with a local AWS for those that need one."""
    try:
        # What the function tests start: the functions, built by the very command of ./run so that its features
        # are the same and the demo finds them made, and the hello-world one of the tests.
        binaries = build(functions())
        build(["headgate-tests"])
        with step("starting a local AWS for the tests"):
            aws = Ministack()
    except Stop as stop:
        note(str(stop))
        tally.count("cargo test", 1)
        return
    with aws, step("cargo test (passed tests are counted, not shown)"):
        env = {**os.environ, "HEADGATE_TEST_AWS": aws.url, "HEADGATE_BIN_DIR": str(binaries)}
        before = len(tally.failed)
        command = [cargo(), "test", "--locked", "--workspace", "--no-fail-fast"]
        for line in guard.lines(command, cwd=ROOT, env=env):
            if isinstance(line, int):
                # Nothing was counted as failed and yet it failed: it did not compile, or a test program crashed.
                if line and len(tally.failed) == before:
                    tally.count("cargo test", line)
            elif found := RESULT.match(line):
                tally.passed += int(found[1])
                tally.failed += ["cargo test"] * int(found[2])
                if int(found[1]) + int(found[2]):
                    print(line, flush=True)
            elif line and not PASSED_TEST.match(line):
                print(line, flush=True)
