"""Ends what was started, and nothing else, however its starter ends.

A command runs in a process group of its own under a small guard process. The guard's standard input is a pipe
from the starter: when that closes (a normal end, Ctrl-C, SIGTERM, a crash, even SIGKILL) the guard ends the
group it made, by the group's id. Standard library only.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

# How long a group may take to end by itself before it is killed, in seconds.
PATIENCE = 3.0


class Group:
    """A command and everything it starts. Use as a context manager."""

    def __init__(self, command, *, cwd, env=None, output=None, scratch: Path | None = None):
        """Starts `command`. `output` takes both its output streams; `scratch` is a folder deleted at its end."""
        self._guard = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), str(scratch or ""), *map(str, command)],
            cwd=cwd,
            env=env,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            # Ctrl-C in a terminal goes to the starter only, which then ends this in an orderly way.
            start_new_session=True,
        )

    def ended(self) -> int | None:
        """Exit status, or None while it runs."""
        return self._guard.poll()

    def wait(self) -> int:
        """Waits for the end of the command and gives its exit status."""
        return self._guard.wait()

    def stop(self) -> None:
        """Ends the command and waits until it is gone. Harmless when it has ended already."""
        self._guard.stdin.close()
        try:
            self._guard.wait(timeout=2 * PATIENCE)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def run(command, *, cwd, env=None, output=None) -> int:
    """Runs a command to its end under a guard and gives its exit status."""
    with Group(command, cwd=cwd, env=env, output=output) as group:
        return group.wait()


def lines(command, *, cwd, env=None):
    """Runs a command under a guard: yields its output line by line, and its exit status at last."""
    reading, writing = os.pipe()
    with open(reading, encoding="utf-8", errors="replace") as output:
        with Group(command, cwd=cwd, env=env, output=writing) as group:
            os.close(writing)
            for line in output:
                yield line.rstrip("\n")
            yield group.wait()


def _end(group: int, child: subprocess.Popen) -> None:
    """Asks the group to end, then kills what is left of it."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(group, how)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + PATIENCE
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)


def main(scratch: str, command: list[str]) -> int:
    """The guard: runs the command until it ends or the starter is gone."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Only the pipe decides, so that there is one way to end.
        signal.signal(ignored, signal.SIG_IGN)

    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, process_group=0, restore_signals=True, preexec_fn=_default_signals
    )
    starter = sys.stdin.fileno()
    while child.poll() is None:
        readable, _, _ = select.select([starter], [], [], 0.05)
        if readable and not os.read(starter, 1):
            break
    _end(child.pid, child)
    if scratch:
        shutil.rmtree(scratch, ignore_errors=True)
    code = child.wait()
    return code if code >= 0 else 128 - code


def _default_signals() -> None:
    """What the guard ignores, its command must not."""
    for default in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(default, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
