"""`./run` and `./test`: reads the arguments, makes sure of `.venv/`, goes on with its interpreter."""

import argparse
import os
import signal
import sys

from local.prepare import VENV, cargo, venv_python
from local.say import Stop, note


def arguments() -> argparse.Namespace:
    """The arguments of `./run` and `./test`."""
    parser = argparse.ArgumentParser(
        prog="./run", usage="./run [demo] [--port N]", description="Headgate on a local AWS, with nothing but Rust and Python."
    )
    parser.add_argument("what", nargs="?", choices=["serve", "demo", "test"], default="serve", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help="port of the local AWS on 127.0.0.1 (default: a free one)")
    chosen = parser.parse_args()
    if not 0 <= chosen.port <= 65535:
        parser.error(f"--port {chosen.port}: a port is 1 to 65535")
    return chosen


def ended(number: int, _frame) -> None:
    """SIGTERM and SIGHUP end a run like Ctrl-C does: in order, with everything stopped."""
    raise SystemExit(128 + number)


def main() -> int:
    chosen = arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ended)
    # Also where a script started this in the background: there, a shell has the signal ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    cargo()
    python = venv_python()
    if not VENV.samefile(sys.prefix):
        os.execv(python, [str(python), "-m", "local", *sys.argv[1:]])
    # Only now: these need the packages of .venv/.
    if chosen.what == "test":
        from local import check

        return check.main()
    from local import demo, serve

    return demo.main(chosen.port) if chosen.what == "demo" else serve.main(chosen.port)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Stop as stop:
        note(str(stop))
        sys.exit(stop.code)
    except KeyboardInterrupt:
        note("stopped.")
        sys.exit(130)
