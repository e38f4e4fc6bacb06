#!/usr/bin/env python3
"""A small stand-in for one AT Protocol instance: what the host script and Caddy ask, and faults to switch on.

It reads the same environment as a real one and refuses to start without the same secrets. Faults and accounts are files, so that a test can
change them while it runs: STANDIN_DIR/faults/<slug> (a JSON list) and STANDIN_DIR/accounts/<slug> (a JSON object handle -> DID).
Faults: "exit" (dies at once), "wrong_did", "unhealthy" (503), "mute" (describeServer is 404), "no_handles".
"""
import base64
import hashlib
import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NEEDED = ("PDS_BLOBSTORE_DISK_LOCATION", "PDS_PLC_ROTATION_KEY_K256_PRIVATE_KEY_HEX", "PDS_JWT_SECRET", "PDS_ADMIN_PASSWORD")


def read_json(kind, fallback):
    slug = os.environ["PDS_HOSTNAME"].split(".")[0]
    try:
        with open(os.path.join(os.environ.get("STANDIN_DIR", "/nonexistent"), kind, slug), encoding="utf-8") as f:
            return json.load(f)
    except FileNotFoundError:
        return fallback


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def send(self, status, body, kind="application/json"):
        data = body.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        faults = read_json("faults", [])
        path = self.path.split("?")[0]
        host = self.headers.get("host", "").split(":")[0].lower()
        if path == "/xrpc/_health":
            self.send(503 if "unhealthy" in faults else 200, "{}")
        elif path == "/xrpc/com.atproto.server.describeServer" and "mute" not in faults:
            did = "did:web:somebody.else" if "wrong_did" in faults else os.environ["PDS_SERVICE_DID"]
            handles = [] if "no_handles" in faults else os.environ["PDS_SERVICE_HANDLE_DOMAINS"].split(",")
            self.send(200, json.dumps({"did": did, "availableUserDomains": handles, "inviteCodeRequired": True}))
        elif path == "/.well-known/atproto-did":
            did = read_json("accounts", {}).get(host)
            self.send(200, did, "text/plain") if did else self.send(404, "no such account", "text/plain")
        elif path == "/xrpc/com.atproto.sync.subscribeRepos" and self.headers.get("upgrade", "").lower() == "websocket":
            self.websocket()
        else:
            self.send(404, '{"error":"NotFound"}')

    def websocket(self):
        """Takes the upgrade and then holds the line open until the other side goes."""
        key = self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("upgrade", "websocket")
        self.send_header("connection", "Upgrade")
        self.send_header("sec-websocket-accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.close_connection = True
        while self.connection.recv(4096):
            pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


def main():
    for name in NEEDED:
        if not os.environ.get(name):
            sys.exit(f"{name} is missing")
    if "exit" in read_json("faults", []):
        sys.exit("told to die")
    data = os.environ["PDS_DATA_DIRECTORY"]
    os.makedirs(data, exist_ok=True)
    with open(os.path.join(data, "starts"), "a", encoding="utf-8") as f:
        f.write("start\n")
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    Server(("127.0.0.1", int(os.environ["PDS_PORT"])), Handler).serve_forever()


if __name__ == "__main__":
    main()
