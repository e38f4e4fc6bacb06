"""The local AWS: one ministack on 127.0.0.1, all of its files under `.local/<port>/`.

For a test run by hand: `.venv/bin/python -m local.ministack` starts one, prints
`HEADGATE_TEST_AWS=http://127.0.0.1:PORT` and runs until Ctrl-C; `--port-file F` also writes that address to F
once it answers.
"""

import argparse
import os
import shutil
import socket
import sys
import time
import urllib.error
from pathlib import Path

from local import guard
from local.prepare import WORK
from local.say import Stop, direct, note, step

REGION = "eu-central-1"
# The account of the local stack. ministack takes a 12-digit access key id as the account.
ACCOUNT = "123456789012"
READY_SECONDS = 30.0


class Ministack:
    """A running local AWS. Use as a context manager."""

    def __init__(self, port: int = 0):
        """Starts on the given port, or on a free one, and returns once it answers."""
        if port and not _is_free(port):
            raise Stop(f"port {port} is taken: choose another with --port N, or leave it out.", 2)
        # A free port can be taken between the look and the start: then the next one is tried.
        for _ in range(3):
            self.port = port or _free_port()
            self.url = f"http://127.0.0.1:{self.port}"
            self.folder = WORK / str(self.port)
            self.log = self.folder / "ministack.log"
            self._group = self._start()
            if self._answers():
                return
            self._group.stop()
        raise Stop(f"the local AWS did not start; its log: {self.log}")

    def _start(self) -> guard.Group:
        shutil.rmtree(self.folder, ignore_errors=True)
        scratch = self.folder / "scratch"
        for name in ("tmp", "home", "state", "s3"):
            (scratch / name).mkdir(parents=True)
        env = {
            # A short list, so that nothing of the caller's (profiles, credentials, proxies) reaches a function.
            **{name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ},
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self.port),
            "AWS_ENDPOINT_URL": self.url,
            "MINISTACK_REGION": REGION,
            "MINISTACK_ACCOUNT_ID": ACCOUNT,
            "AWS_ACCESS_KEY_ID": ACCOUNT,
            "AWS_SECRET_ACCESS_KEY": "local",
            "HOME": str(scratch / "home"),
            "TMPDIR": str(scratch / "tmp"),
            "STATE_DIR": str(scratch / "state"),
            "S3_DATA_DIR": str(scratch / "s3"),
            # It looks after containers of its own kind; there are none of ours, and others are not its business.
            "DOCKER_HOST": f"unix://{scratch}/no-docker.sock",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        with open(self.log, "wb") as log:
            return guard.Group(
                [sys.executable, "-m", "ministack"], cwd=self.folder, env=env, output=log, scratch=scratch
            )

    def _answers(self) -> bool:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and self._group.ended() is None:
            try:
                with direct.open(f"{self.url}/_ministack/health", timeout=2):
                    return self._group.ended() is None
            except (urllib.error.URLError, OSError):
                time.sleep(0.03)
        return False

    def ended(self) -> bool:
        """Has it stopped by itself?"""
        return self._group.ended() is not None

    def stop(self) -> None:
        """Stops it and every function process it started. Its log stays."""
        self._group.stop()

    def forget(self) -> None:
        """Deletes the log too: nobody needs it after a good end or a Ctrl-C."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, _error, _trace):
        self.stop()
        if kind is None or not issubclass(kind, Exception):
            self.forget()

    def client(self, service: str):
        """A boto3 client for one service of it."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            service,
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id=ACCOUNT,
            aws_secret_access_key="local",
            config=Config(retries={"max_attempts": 1}, s3={"addressing_style": "path"}, proxies={}),
        )


def _is_free(port: int) -> bool:
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main() -> int:
    """A local AWS for tests run by hand, until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m local.ministack", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--port-file", type=Path, help="file to write the address to once it answers")
    chosen = parser.parse_args()
    with step("starting the local AWS"):
        aws = Ministack(chosen.port)
    with aws:
        if chosen.port_file:
            # In one move, so that a reader never sees half an address.
            half = chosen.port_file.with_suffix(".half")
            half.write_text(aws.url)
            half.replace(chosen.port_file)
        print(f"HEADGATE_TEST_AWS={aws.url}", flush=True)
        while not aws.ended():
            time.sleep(0.2)
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Stop as stop:
        note(str(stop))
        sys.exit(stop.code)
    except KeyboardInterrupt:
        note("stopped.")
