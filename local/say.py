"""Progress for people, on standard error: standard output carries only the answers."""

import contextlib
import sys
import time
import urllib.request

# Calls to 127.0.0.1 never go through a proxy, whatever the environment says.
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Stop(Exception):
    """An end that a person can understand from one plain line; carries that line."""

    def __init__(self, line: str, code: int = 1):
        super().__init__(line)
        self.code = code


def note(text: str) -> None:
    """One line of progress."""
    print(f"headgate: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(text: str):
    """A step that may take long: said when it begins, and with its time when it is done."""
    note(f"{text} ...")
    began = time.monotonic()
    yield
    note(f"{text}: done in {time.monotonic() - began:.1f} s")
