"""`./bench`: what a cold start costs, each figure beside that of a hello-world function built the same way.

Every run starts the real binary under a Runtime API of our own and an AWS endpoint that answers at once from
memory. Runs of the two binaries alternate, so that whatever else the machine does meets both; medians are
compared, and the ratios hold on any machine. Standard library only.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import sys
import threading
import time
import zipfile
from io import BytesIO
from pathlib import Path

from local import guard
from local.prepare import ROOT, cargo, target_dir
from local.say import Stop, note, step

HELLO = "hello"
# What is measured: package -> an event, and what its configuration needs. The event is an idle poll: the
# commonest call, one read of the table.
FUNCTIONS = {
    "updater": (
        "updater/tick-scheduler.json",
        {"TABLE_NAME": "headgate", "STACK_NAME": "install", "RELEASES_URI": "s3://vendor/releases.json"},
    ),
}
# Goals of the project: cold start and size against hello-world and in absolute terms.
COLD_START_RATIO, RSS_MB, ZIP_MB = 2.0, 15.0, 4.0
# A run that takes longer hangs, in seconds.
PATIENCE = 20.0

HEAD = {
    "pk": {"S": "INSTALL#install"},
    "sk": {"S": "UPDATE#HEAD"},
    "schema": {"N": "1"},
    "rev": {"N": "1"},
    "next_seq": {"N": "1"},
    "stack_arn": {"S": "arn:aws:cloudformation:eu-central-1:123456789012:stack/install/1"},
}


class Server:
    """A tiny HTTP/1.1 server: one thread per connection, each answer in one write."""

    def __init__(self, answer):
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """No further connections."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as reading:
            while request := reading.readline().decode():
                method, path, _ = request.split(" ", 2)
                headers = {}
                while (line := reading.readline().decode().strip()):
                    name, _, value = line.partition(":")
                    headers[name.lower()] = value.strip()
                body = reading.read(int(headers.get("content-length", 0)))
                answer = self._answer(method, path, headers, body)
                if answer is None:
                    return
                status, more, content = answer
                head = [f"HTTP/1.1 {status} -", f"content-length: {len(content)}", *more, "", ""]
                try:
                    connection.sendall("\r\n".join(head).encode() + content)
                except OSError:
                    return


def aws(_method, _path, headers, _body):
    """The table: only a head, nothing pending."""
    operation = headers.get("x-amz-target", "").rpartition(".")[2]
    answers = {"Query": {"Items": [HEAD], "Count": 1, "ScannedCount": 1}, "GetItem": {"Item": HEAD}}
    if operation not in answers:
        return 400, [], json.dumps({"__type": "AccessDeniedException", "message": f"{operation} is not answered"}).encode()
    return 200, ["content-type: application/x-amz-json-1.0"], json.dumps(answers[operation]).encode()


class Runtime:
    """The Runtime API of one process: hands out the event twice, then lets it wait."""

    def __init__(self, event: bytes):
        self._event = event
        self._asked = 0
        self.first_next: float | None = None
        self.answers: list[bytes] = []
        self.done = threading.Event()
        self._over = threading.Event()
        self.server = Server(self._answer)

    def _answer(self, method, path, _headers, body):
        if method == "GET":
            self.first_next = self.first_next or time.perf_counter()
            self._asked += 1
            if self._asked > 2:
                self.done.set()
                # The process now waits for a third event, which never comes.
                self._over.wait()
                return None
            deadline = int((time.time() + PATIENCE) * 1000)
            return 200, [f"lambda-runtime-aws-request-id: {self._asked}", f"lambda-runtime-deadline-ms: {deadline}",
                         "lambda-runtime-invoked-function-arn: arn:aws:lambda:eu-central-1:123456789012:function:f",
                         "content-type: application/json"], self._event
        self.answers.append(body)
        if "/error" in path:
            self.done.set()
        return 202, [], b"{}"


    def close(self) -> None:
        """The process is gone."""
        self._over.set()
        self.server.close()


def measure(binary: Path, event: bytes, env: dict[str, str]) -> dict[str, float]:
    """One life of the function: cold start in ms, CPU in ms and memory in MB up to the second answer."""
    runtime = Runtime(event)
    began = time.perf_counter()
    process = os.posix_spawn(binary, [str(binary)], {**env, "AWS_LAMBDA_RUNTIME_API": runtime.server.address},
                             file_actions=[(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)])
    ended = None
    try:
        if not runtime.done.wait(PATIENCE) or any(b"errorType" in a for a in runtime.answers):
            raise Stop(f"{binary.name} did not answer twice: {runtime.answers}")
        status = Path(f"/proc/{process}/status").read_text()
        peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    finally:
        os.kill(process, signal.SIGKILL)
        _, _, ended = os.wait4(process, 0)
        runtime.close()
    return {
        "cold_ms": (runtime.first_next - began) * 1000,
        "cpu_ms": (ended.ru_utime + ended.ru_stime) * 1000,
        "rss_mb": peak / 1024,
    }


def zip_mb(binary: Path) -> float:
    """Size of the deployed package."""
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.write(binary, "bootstrap")
    return len(packed.getvalue()) / 1e6


def main() -> int:
    """Builds, measures, prints the table; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="./bench", description="Cold start, CPU, memory and size of the functions.")
    parser.add_argument("--runs", type=int, default=40, help="lives of each function (default 40)")
    parser.add_argument("--dev", action="store_true", help="measure the quick dev builds; the goals are for release")
    chosen = parser.parse_args()
    if not sys.platform.startswith("linux"):
        raise Stop("./bench reads memory from /proc, so it needs Linux.", 2)
    profile = [] if chosen.dev else ["--release"]
    packages = [word for name in (*FUNCTIONS, "headgate-tests") for word in ("-p", name)]
    with step("building " + ("(dev)" if chosen.dev else "for release (some minutes the first time)")):
        if guard.run([cargo(), "build", "--locked", "--bins", *profile, *packages], cwd=ROOT):
            raise Stop("the build failed; cargo says why above.")
    folder = target_dir() / ("debug" if chosen.dev else "release")
    endpoint = Server(aws)
    common = {
        "AWS_ENDPOINT_URL": f"http://{endpoint.address}",
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
        "AWS_REGION": "eu-central-1",
        "AWS_LAMBDA_FUNCTION_NAME": "f",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        # As in template.yaml: one file of certificates, here an empty one, for the endpoint speaks plain HTTP.
        "SSL_CERT_FILE": os.devnull,
    }
    missed = 0
    for name, (event_file, env) in FUNCTIONS.items():
        event = (ROOT / "events" / event_file).read_bytes()
        lives: dict[str, list[dict[str, float]]] = {HELLO: [], name: []}
        with step(f"{name}: {chosen.runs} lives, each beside one of {HELLO}"):
            for _ in range(chosen.runs):
                for binary, found in lives.items():
                    found.append(measure(folder / binary, event, common | env))
        missed += report(name, folder, lives)
    return 0 if chosen.dev else int(missed > 0)


def report(name: str, folder: Path, lives: dict[str, list[dict[str, float]]]) -> int:
    """Prints the rows of one function; gives how many goals it misses."""
    mine, hello = ({key: statistics.median(life[key] for life in lives[of]) for key in ("cold_ms", "cpu_ms", "rss_mb")}
                   for of in (name, HELLO))
    size = zip_mb(folder / name)
    cold_ratio = mine["cold_ms"] / hello["cold_ms"]
    rows = [
        ("cold start: exec -> first /next", f"{mine['cold_ms']:.1f} ms", f"{hello['cold_ms']:.1f} ms",
         f"{cold_ratio:.2f} x", f"<= {COLD_START_RATIO:g} x", cold_ratio <= COLD_START_RATIO),
        ("CPU to the second answer", f"{mine['cpu_ms']:.1f} ms", f"{hello['cpu_ms']:.1f} ms",
         f"{mine['cpu_ms'] / hello['cpu_ms']:.2f} x", "", True),
        ("memory to the second answer", f"{mine['rss_mb']:.1f} MB", f"{hello['rss_mb']:.1f} MB",
         f"{mine['rss_mb'] / hello['rss_mb']:.2f} x", f"<= {RSS_MB:g} MB", mine["rss_mb"] <= RSS_MB),
        ("size of the zip", f"{size:.2f} MB", f"{zip_mb(folder / HELLO):.2f} MB", "", f"<= {ZIP_MB:g} MB", size <= ZIP_MB),
    ]
    print(f"{name:32} {'this':>10} {HELLO:>10} {'ratio':>8}  goal")
    for row, *cells, goal, reached in rows:
        this, that, ratio = cells
        print(f"{row:32} {this:>10} {that:>10} {ratio:>8}  {goal}{'' if reached else '  MISSED'}")
    return sum(not reached for *_, reached in rows)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Stop as stop:
        note(str(stop))
        sys.exit(stop.code)
    except KeyboardInterrupt:
        note("stopped.")
        sys.exit(130)
