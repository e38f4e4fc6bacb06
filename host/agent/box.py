"""One throw-away host: the product's script, unit and Caddyfile in a directory, with real systemd and Caddy where the machine has them.

Used by the host agent; nothing of it is deployed.
"""
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
HOST = os.path.dirname(HERE)

# Commands of zds-host that change something: where a kill can leave a half-done state. Reading commands in between add none, nor
# does sync: a kill finds the same files before and after it.
EFFECTS = ("mkdir", "chmod", "mv", "rm", "cp", "ln", "caddy", "systemctl")
SYSTEMCTL_EFFECTS = "enable disable start stop reset-failed"


def free_range(size):
    """First port of a run of free ports below the kernel's own range; other jobs on the machine use ports too."""
    chooser = random.SystemRandom()
    for _ in range(200):
        first = chooser.randrange(20000, 30000 - size)
        held = []
        try:
            for port in range(first, first + size):
                s = socket.socket()
                held.append(s)
                s.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
        finally:
            for s in held:
                s.close()
    raise RuntimeError("no run of free ports between 20000 and 29999")


def wait_for(what, probe, seconds=20):
    """Polls until probe() answers something true; the bound only ends a hopeless wait."""
    limit = time.monotonic() + seconds
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > limit:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.02)


def listening(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def executable(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(path, 0o755)


class Box:
    def __init__(self, root, systemd, caddy):
        self.root, self.systemd, self.caddy = root, systemd, caddy
        self.process = None
        self.lock = threading.Lock()
        self.running = set()
        # All of them below the kernel's own range: Caddy stops and starts again, and its ports must not be taken in between.
        self.port_low = free_range(105)
        self.ports = {name: self.port_low + 100 + i for i, name in enumerate(("http", "https", "probe", "ask", "admin"))}
        self.lay()

    # ------------------------------------------------------------------ files

    def path(self, *parts):
        return os.path.join(self.root, *parts)

    def lay(self):
        """What install.sh does on a real host, under the root; plus wrappers that record systemctl and caddy."""
        for name in ("etc/caddy/maps", "etc/zds", "bin", "shims", "standin/faults", "standin/accounts", "home", "systemctl"):
            os.makedirs(self.path(name), exist_ok=True)
        shutil.copy(os.path.join(HOST, "caddy/Caddyfile"), self.path("etc/caddy/Caddyfile"))
        self.settings = {
            "ZDS_CADDY_ADMIN": f"127.0.0.1:{self.ports['admin']}",
            "ZDS_HTTP_PORT": str(self.ports["http"]),
            "ZDS_HTTPS_PORT": str(self.ports["https"]),
            "ZDS_PROBE_PORT": str(self.ports["probe"]),
            "ZDS_ASK_PORT": str(self.ports["ask"]),
            "ZDS_TLS_ISSUER": "internal",
        }
        with open(self.path("etc/zds/host.env"), "w", encoding="utf-8") as f:
            f.writelines(f"{k}={v}\n" for k, v in self.settings.items())
        log = self.path("calls.log")
        record = f'#!/bin/sh\nprintf "%s\\n" "${{0##*/}} $*" >>"{log}"\n'
        systemctl = "/usr/bin/systemctl --user" if self.systemd else f'"{sys.executable}" -S -E "{HERE}/fake_systemctl.py"'
        caddy = self.caddy or f'"{sys.executable}" -S -E "{HERE}/standin_caddy.py"'
        executable(self.path("bin/systemctl"), f'{record}exec {systemctl} "$@"\n')
        executable(self.path("bin/caddy"), f'{record}exec {caddy} "$@"\n')
        for name in EFFECTS:
            # Dies, with the whole process group, right before its n-th effect: a kill at that very point of the unchanged script.
            only = f'case " {SYSTEMCTL_EFFECTS} " in *" $verb "*) ;; *) exec "$real" "$@" ;; esac\n' if name == "systemctl" else ""
            real = self.path("bin", name) if name in ("caddy", "systemctl") else shutil.which(name)
            executable(self.path("shims", name), f'''#!/bin/sh
real="{real}"
verb=
for word in "$@"; do case $word in -*) ;; *) verb=$word; break ;; esac; done
{only}read -r n <"$ZDS_SHIM_STATE/count"
n=$((n + 1))
echo "$n" >"$ZDS_SHIM_STATE/count"
echo "{name} $*" >>"$ZDS_SHIM_STATE/effects"
[ "$n" != "$ZDS_SHIM_KILL" ] || kill -9 0
exec "$real" "$@"
''')
        if self.systemd:
            units = self.path("home/config/systemd/user")
            os.makedirs(os.path.join(units, "zds@.service.d"), exist_ok=True)
            shutil.copy(os.path.join(HOST, "systemd/zds@.service"), units)
            with open(os.path.join(units, "zds@.service.d/90-test.conf"), "w", encoding="utf-8") as f:
                f.write(f"""[Service]
EnvironmentFile=
EnvironmentFile={self.root}/var/lib/zds/secrets/%i.env
EnvironmentFile={self.root}/var/lib/zds/env/%i.env
Environment=STANDIN_DIR={self.root}/standin
ExecStart=
ExecStart={sys.executable} -S -E {HERE}/instance.py
RestartSec=200ms
""")

    def environment(self, **more):
        env = {
            "PATH": f"{self.path('bin')}:{os.environ.get('PATH', '/usr/bin:/bin')}",
            "ZDS_ROOT": self.root,
            "ZDS_HOST_BIN": os.path.join(HOST, "zds-host"),
            "HOME": self.path("home"),
            "XDG_CONFIG_HOME": self.path("home/config"),
            "XDG_DATA_HOME": self.path("home/data"),
        }
        if "XDG_RUNTIME_DIR" in os.environ:
            env["XDG_RUNTIME_DIR"] = os.environ["XDG_RUNTIME_DIR"]
        env.update({k: str(v) for k, v in more.items()})
        return env

    # ------------------------------------------------------------------ Caddy

    def start_caddy(self):
        if self.process and self.process.poll() is None:
            return
        with open(self.path("caddy.log"), "ab") as log:
            self.process = subprocess.Popen(
                [self.path("bin/caddy"), "run", "--config", self.path("etc/caddy/Caddyfile"), "--adapter", "caddyfile"],
                env=self.environment(**self.settings), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        wait_for("Caddy", lambda: listening(self.ports["probe"]) and listening(self.ports["admin"]))

    def stop_caddy(self):
        if self.process:
            try:
                os.killpg(self.process.pid, signal.SIGTERM)
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
            except ProcessLookupError:
                self.process.wait()
            self.process = None

    # ------------------------------------------------------------------ running

    def execute(self, argv, env, seconds=60):
        """Runs argv in its own process group, as the SSM agent does. Answers (status or None when the time was up, stdout, stderr)."""
        child = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 start_new_session=True, cwd=self.root)
        with self.lock:
            self.running.add(child.pid)
        try:
            out, err = child.communicate(timeout=seconds)
            return child.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            out, err = child.communicate()
            return None, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
        finally:
            with self.lock:
                self.running.discard(child.pid)

    def shim_environment(self, kill_at):
        """Environment in which the script dies before its kill_at-th effect (0: only counts)."""
        state = self.path(f"shim-{os.urandom(4).hex()}")
        os.makedirs(state)
        with open(os.path.join(state, "count"), "w", encoding="utf-8") as f:
            f.write("0\n")
        env = self.environment(ZDS_SHIM_STATE=state, ZDS_SHIM_KILL=kill_at)
        env["PATH"] = f"{self.path('shims')}:{env['PATH']}"
        return env

    def run(self, args, kill_at=None, env=None):
        """zds-host with these arguments, as a person would call it. With kill_at also the list of effects."""
        full = self.environment() if kill_at is None else self.shim_environment(kill_at)
        full.update({k: str(v) for k, v in (env or {}).items()})
        status, out, err = self.execute(["/bin/sh", os.path.join(HOST, "zds-host"), *map(str, args)], full)
        answer = {"status": status, "stdout": out, "stderr": err}
        if kill_at is not None:
            effects = os.path.join(full["ZDS_SHIM_STATE"], "effects")
            lines = []
            if os.path.exists(effects):
                with open(effects, encoding="utf-8") as f:
                    lines = f.read().splitlines()
            answer["effects"] = lines
            shutil.rmtree(full["ZDS_SHIM_STATE"])
        return answer

    # ------------------------------------------------------------------ looking and clearing

    def calls(self):
        try:
            with open(self.path("calls.log"), encoding="utf-8") as f:
                return f.read().splitlines()
        except FileNotFoundError:
            return []

    def fault(self, slug, faults):
        with open(self.path("standin/faults", slug), "w", encoding="utf-8") as f:
            json.dump(faults, f)

    def units(self):
        status, out, _ = self.execute(
            [self.path("bin/systemctl"), "list-units", "--all", "--plain", "--no-legend", "--no-pager", "zds@*.service"], self.environment())
        return [line.split()[0] for line in out.splitlines() if line.strip()] if status == 0 else []

    def reset(self):
        """An empty host again: nothing runs, nothing is stored; Caddy runs without routes."""
        with self.lock:
            running = list(self.running)
        for pid in running:
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        wait_for("commands to end", lambda: not self.running)
        systemctl = [self.path("bin/systemctl"), "--no-ask-password"]
        units = self.units()
        for verb in ("stop", "disable", "reset-failed"):
            for unit in units:
                self.execute([*systemctl, verb, unit], self.environment())
        shutil.rmtree(self.path("var"), ignore_errors=True)
        for name in ("etc/caddy/maps", "standin/faults", "standin/accounts", "systemctl"):
            shutil.rmtree(self.path(name))
            os.makedirs(self.path(name))
        shutil.rmtree(self.path("etc/caddy/.zds-stage"), ignore_errors=True)
        shutil.copy(os.path.join(HOST, "caddy/Caddyfile"), self.path("etc/caddy/Caddyfile"))
        self.start_caddy()
        self.execute([self.path("bin/caddy"), "reload", "--config", self.path("etc/caddy/Caddyfile"), "--adapter", "caddyfile"],
                     self.environment(**self.settings))
        if os.path.exists(self.path("calls.log")):
            os.remove(self.path("calls.log"))

    def close(self):
        try:
            self.reset()
        finally:
            self.stop_caddy()
