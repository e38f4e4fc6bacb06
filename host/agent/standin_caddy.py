#!/usr/bin/env python3
"""A stand-in for Caddy where it is not installed: the three commands zds-host and the agent use, over the same map files.

`run` serves the probe door (routing by Host) and the admin door (`POST /load`), `validate` refuses what Caddy would refuse in a map file,
`reload` validates and tells the running one. No TLS, no ask endpoint: tests of those need the real Caddy and say that they are skipped.
"""
import glob
import http.client
import os
import re
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LINE = re.compile(r"~(\(\?i\)\^[a-z0-9.\\\[\]+-]+\$) (127\.0\.0\.1:\d+) (origin|handle)")


def routes(config):
    found = []
    for name in sorted(glob.glob(os.path.join(os.path.dirname(config), "maps", "*.map"))):
        with open(name, encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                match = LINE.fullmatch(line.strip())
                if not match:
                    sys.exit(f"Error: adapting config using caddyfile: {name}:{number}: unexpected line")
                found.append((re.compile(match[1]), match[2]))
    return found


class Router(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    table = []

    def log_message(self, *args):
        pass

    def do_GET(self):
        host = self.headers.get("host", "").split(":")[0]
        upstream = next((u for pattern, u in Router.table if pattern.search(host)), None)
        status, data, kind = 421, b"no instance answers for this name", "text/plain"
        if upstream:
            line = http.client.HTTPConnection(upstream, timeout=5)
            try:
                line.request("GET", self.path, headers={"Host": host})
                answer = line.getresponse()
                status, data, kind = answer.status, answer.read(), answer.getheader("content-type", "")
            except OSError:
                status, data = 502, b""
            finally:
                line.close()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        Router.table = routes(self.rfile.read(int(self.headers["content-length"])).decode())
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()


def main():
    verb, config = sys.argv[1], sys.argv[sys.argv.index("--config") + 1]
    admin = os.environ["ZDS_CADDY_ADMIN"]
    table = routes(config)
    if verb == "reload":
        urllib.request.urlopen(f"http://{admin}/load", data=config.encode(), timeout=10).read()
    elif verb == "run":
        Router.table = table
        threading.Thread(target=ThreadingHTTPServer(("127.0.0.1", int(admin.split(":")[1])), Router).serve_forever, daemon=True).start()
        ThreadingHTTPServer(("127.0.0.1", int(os.environ["ZDS_PROBE_PORT"])), Router).serve_forever()


if __name__ == "__main__":
    main()
