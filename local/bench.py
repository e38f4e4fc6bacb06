"""`./bench`: how fast the functions are, beside a hello-world function of the same workspace, in one run.

Machines are noisy, so a figure is a ratio of two things run alternately, as median and spread of at least 15 runs.
The raw numbers go to `.local/bench/`. Standard library only; `openssl` makes the key of the local TLS endpoint.
"""

import argparse
import json
import os
import platform
import shutil
import ssl
import statistics
import subprocess
import sys
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from local import guard
from local.bench_links import link_updates
from local.prepare import ROOT, WORK, cargo, target_dir
from local.say import Stop, note, step

RUNS = 21
FOLDER = WORK / "bench"
FUNCTIONS = ["updater", "model-check", "link-details"]
HELLO = "hello"


class Runtime:
    """A Lambda Runtime API that hands out two events and notes when the function first asks for one."""

    def __init__(self, event: dict, deadline_seconds: int = 30):
        self._event = json.dumps(event).encode()
        self.asked: list[float] = []
        self.answers: list[bytes] = []
        self.done = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Small answers must not wait for an acknowledgement.
            disable_nagle_algorithm = True

            def do_GET(self):  # noqa: N802
                outer.asked.append(time.perf_counter())
                if len(outer.asked) > 2:
                    outer.done.set()
                    time.sleep(5)
                    return
                self.send_response(200)
                self.send_header("lambda-runtime-aws-request-id", f"r-{len(outer.asked)}")
                self.send_header("lambda-runtime-deadline-ms", str(int((time.time() + deadline_seconds) * 1000)))
                self.send_header("lambda-runtime-invoked-function-arn", "arn:aws:lambda:x:1:function:f")
                self.send_header("content-length", str(len(outer._event)))
                self.end_headers()
                self.wfile.write(outer._event)

            def do_POST(self):  # noqa: N802
                outer.answers.append(self.rfile.read(int(self.headers.get("content-length", 0))))
                self.send_response(202)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


class Table:
    """A DynamoDB endpoint over TLS that knows nothing and says so at once."""

    def __init__(self, folder: Path):
        key, certificate = _certificate(folder)
        self.certificate = certificate

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):  # noqa: N802
                self.rfile.read(int(self.headers.get("content-length", 0)))
                body = b'{"Items":[],"Count":0,"ScannedCount":0}' if "Query" in self.headers.get("x-amz-target", "") else b"{}"
                self.send_response(200)
                self.send_header("content-type", "application/x-amz-json-1.0")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://localhost:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def _certificate(folder: Path) -> tuple[Path, Path]:
    if not shutil.which("openssl"):
        raise Stop("openssl is missing: it makes the key of the local TLS endpoint that ./bench measures over.", 2)
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
               "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate]
    made = subprocess.run(list(map(str, command)), capture_output=True, check=False)
    if made.returncode:
        raise Stop(f"openssl could not make a certificate: {made.stderr.decode()[-300:]}")
    return key, certificate


EVENTS = {
    "updater": {"source": "aws.scheduler", "detail-type": "Scheduled Event"},
    "model-check": {"source": "aws.codebuild", "detail-type": "CodeBuild Build State Change", "detail": {}},
    "link-details": {"requestContext": {"http": {"method": "GET"}, "requestId": "r", "stage": "$default"},
                     "rawPath": "/data-planes/0011223344556677/private-links"},
    HELLO: {"hello": "world"},
}


def one(binary: Path, name: str, table: Table) -> dict:
    """One cold start: seconds from exec to the first /next, CPU seconds and peak RSS to the second answer."""
    with Runtime(EVENTS[name]) as runtime:
        port = runtime.server.server_address[1]
        environment = {
            "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{port}",
            "AWS_LAMBDA_FUNCTION_NAME": name,
            "AWS_LAMBDA_FUNCTION_VERSION": "1",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
            "AWS_REGION": "eu-central-1",
            "AWS_ACCESS_KEY_ID": "123456789012",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_ENDPOINT_URL": table.url,
            "SSL_CERT_FILE": str(table.certificate),
            "HEADGATE_AUTH": "local",
            "TABLE_NAME": "headgate",
            "STACK_NAME": "shop",
            "RELEASES_URI": "s3://releases/list.json",
            "RELEASE_CHECK_PROJECT": "check",
        }
        began = time.perf_counter()
        process = subprocess.Popen([binary], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if not runtime.done.wait(20):
            process.kill()
            process.wait()
            raise Stop(f"{name} did not answer twice; it said {runtime.answers}")
        peak = _peak_rss(process.pid)
        process.kill()
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
        return {"first_next": runtime.asked[0] - began, "cpu": usage.ru_utime + usage.ru_stime, "rss": peak}


def _peak_rss(pid: int) -> float:
    """Peak resident memory in MB. wait4's figure would include the moment before exec."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def cold_start(functions: list[str]) -> list[str]:
    """Rows 1 and 2: cold start, CPU and memory of each function beside hello-world."""
    folder = target_dir() / "release"
    samples: dict[str, list[dict]] = {name: [] for name in [HELLO, *functions]}
    with Table(FOLDER) as table:
        for name in samples:
            one(folder / name, name, table)  # the first run of each fills caches and is not counted
        for number in range(RUNS):
            for name in samples:
                samples[name].append(one(folder / name, name, table))
            print(f"\r{number + 1} of {RUNS}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    (FOLDER / "cold-start.json").write_text(json.dumps({"machine": machine(), "runs": samples}, indent=1))
    lines = ["| function | exec to first /next, ratio to hello | CPU to 2nd answer, ratio | peak RSS | zip |",
             "|---|---|---|---|---|"]
    for name in functions:
        start = _ratio(samples, name, "first_next")
        cpu = _ratio(samples, name, "cpu")
        rss = statistics.median(s["rss"] for s in samples[name])
        lines.append(f"| {name} | {start} | {cpu} | {rss:.1f} MB | {_zip(folder / name):.2f} MB |")
    rss = statistics.median(s["rss"] for s in samples[HELLO])
    first = statistics.median(s["first_next"] for s in samples[HELLO]) * 1000
    lines.append(f"| {HELLO} | 1 ({first:.1f} ms here) | 1 | {rss:.1f} MB | {_zip(folder / HELLO):.2f} MB |")
    return lines


def _ratio(samples: dict[str, list[dict]], name: str, what: str) -> str:
    """Median of the ratios of neighbouring runs, with the quartiles."""
    ratios = sorted(a[what] / max(b[what], 1e-9) for a, b in zip(samples[name], samples[HELLO]))
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def _zip(binary: Path) -> float:
    packed = FOLDER / f"{binary.name}.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.write(binary, "bootstrap")
    return packed.stat().st_size / 1e6


def machine() -> str:
    """What it ran on."""
    model = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), "unknown processor")
    return f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"


ROWS = {"cold-start": cold_start, "link-updates": link_updates}


def main() -> int:
    """Builds the release binaries and runs the chosen row, or all."""
    parser = argparse.ArgumentParser(prog="./bench", description=__doc__)
    parser.add_argument("name", nargs="?", choices=sorted(ROWS), help="one row (default: all)")
    chosen = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    functions = [f for f in FUNCTIONS if (ROOT / "functions" / f).exists()]
    packages = [word for name in [*functions, "headgate-tests"] for word in ("-p", name)]
    with step("building the release binaries (some minutes the first time)"):
        if guard.run([cargo(), "build", "--locked", "--release", "--bins", *packages], cwd=ROOT):
            raise Stop("the build failed; cargo says why above.")
    print(f"\nOn: {machine()}. Median of {RUNS} runs, run alternately; quartiles in parentheses.\n")
    for name, row in ROWS.items():
        if chosen.name in (None, name):
            print(f"## {name}\n")
            print("\n".join(row(functions)), end="\n\n", flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Stop as stop:
        note(str(stop))
        sys.exit(stop.code)
    except KeyboardInterrupt:
        note("stopped.")
        sys.exit(130)
