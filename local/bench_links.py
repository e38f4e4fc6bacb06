"""`./bench link-updates`: how near link-details comes to what eight updates in flight allow, and what memory it needs."""

import hashlib
import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from local.prepare import target_dir
from local.say import Stop

PLANE = "0e8f3a0000000055"
IN_FLIGHT = 8
DELAY = 0.025
LINKS = 600
MANY = 10_000
RUNS = 15
RSS_MAX_MB = 64
SHARE_MIN = 0.9
DETAILS = {"service_name": "vpce-svc-0f3a5c7e9b1d2f4a6", "dns_entries": [
    {"dns_name": "vpce-0a1b2c3d4e5f60718-k3x9q2wz.vpce-svc-0f3a5c7e9b1d2f4a6.us-east-1.vpce.amazonaws.com"}]}


class Endpoint:
    """DynamoDB that takes a fixed time for every update and says that it was done; S3 with one object."""

    def __init__(self):
        self.delay = 0.0
        self.object = b""
        self.updates = 0
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            # One write for head and body.
            wbufsize = 65536

            def do_GET(self):  # noqa: N802
                self._send(outer.object, "binary/octet-stream")

            def do_POST(self):  # noqa: N802
                self.rfile.read(int(self.headers.get("content-length", 0)))
                if "UpdateItem" in self.headers.get("x-amz-target", ""):
                    outer.take()
                self._send(b"{}", "application/x-amz-json-1.0")

            def _send(self, body: bytes, kind: str):
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def take(self) -> None:
        """One update."""
        with self._lock:
            self.updates += 1
            self._now += 1
            self.most = max(self.most, self._now)
        if self.delay:
            time.sleep(self.delay)
        with self._lock:
            self._now -= 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def _identifier(number: int) -> str:
    return f"{number:016x}"


def _outputs(links: int) -> dict:
    return {"link_results": [{"id": _identifier(n), "status": "provisioned", "details": DETAILS} for n in range(links)]}


def _event(links: int, **where) -> dict:
    detail = {
        "schema": 1, "data_plane_id": PLANE, "converge_id": "bench", "converge_seq": 7, "stage": "PulumiUp1",
        "result": "succeeded", "completed_at": "2026-09-10T12:00:40Z",
        "pinned_links": [{"id": _identifier(n), "generation": 1} for n in range(links)], **where,
    }
    return {"source": "dataplane.controller", "detail-type": "Stage Completed", "detail": detail}


def _invoke(endpoint: Endpoint, event: dict) -> tuple[float, float]:
    """Two invocations of a fresh process: seconds of the second, warm one; peak resident memory in MB."""
    from local.bench import Runtime, _peak_rss

    with Runtime(event, 600) as runtime:
        environment = {
            "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{runtime.server.server_address[1]}",
            "AWS_LAMBDA_FUNCTION_NAME": "link-details", "AWS_LAMBDA_FUNCTION_VERSION": "1",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512", "AWS_REGION": "eu-central-1",
            "AWS_ACCESS_KEY_ID": "123456789012", "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{endpoint.port}",
            "TABLE_NAME": "headgate", "OUTPUTS_BUCKETS": "outputs",
        }
        binary: Path = target_dir() / "release" / "link-details"
        process = subprocess.Popen([binary], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            if not runtime.done.wait(600):
                raise Stop(f"link-details did not answer twice; it said {[a[:300] for a in runtime.answers]}")
            for answer in runtime.answers:
                published = [o for o in json.loads(answer).get("outcomes", {}).values() if o == "Published"]
                if len(published) != len(event["detail"]["pinned_links"]):
                    raise Stop(f"link-details published {len(published)} links: {answer[:300]!r}")
            return runtime.asked[2] - runtime.asked[1], _peak_rss(process.pid)
        finally:
            process.kill()
            process.wait()


def _reference(endpoint: Endpoint) -> float:
    """Seconds of eight bare clients that share the same number of requests."""
    body = b"x" * 900
    left = list(range(LINKS))

    def client():
        connection = http.client.HTTPConnection("127.0.0.1", endpoint.port)
        while True:
            try:
                left.pop()
            except IndexError:
                return
            connection.request("POST", "/", body, {"x-amz-target": "DynamoDB_20120810.UpdateItem"})
            connection.getresponse().read()

    threads = [threading.Thread(target=client) for _ in range(IN_FLIGHT)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def link_updates(_functions: list[str]) -> list[str]:
    """Row 5: updates in flight and memory of an event with many links."""
    allowed = LINKS / IN_FLIGHT * DELAY
    with Endpoint() as endpoint:
        endpoint.delay = DELAY
        inline = _event(LINKS, outputs=_outputs(LINKS))
        taken, bare = [], []
        for number in range(RUNS):
            taken.append(_invoke(endpoint, inline)[0])
            bare.append(_reference(endpoint))
            print(f"\r{number + 1} of {RUNS}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        most = endpoint.most
        endpoint.delay = 0.0
        endpoint.object = json.dumps(_outputs(MANY)).encode()
        pointer = {"bucket": "outputs", "key": "many.json", "version_id": None, "bytes": len(endpoint.object),
                   "sha256": hashlib.sha256(endpoint.object).hexdigest()}
        _, peak = _invoke(endpoint, _event(MANY, outputs_ref=pointer))
    share = allowed / statistics.median(taken)
    beside = statistics.median(b / t for b, t in zip(bare, taken))
    low, _, high = statistics.quantiles([allowed / t for t in taken], n=4)
    verdict = "as wanted" if share >= SHARE_MIN and most == IN_FLIGHT and peak <= RSS_MAX_MB else "NOT AS WANTED"
    return [
        f"| {LINKS} links, {DELAY * 1000:.0f} ms an update | share of what {IN_FLIGHT} in flight allow | ratio to {IN_FLIGHT} bare clients |"
        f" most in flight | peak RSS, {MANY} links by pointer | |",
        "|---|---|---|---|---|---|",
        f"| link-details | {share:.3f} ({low:.3f}-{high:.3f}) | {beside:.3f} | {most} | {peak:.1f} MB | {verdict} |",
    ]
