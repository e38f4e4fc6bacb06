"""What a run needs and a fresh machine lacks: `.venv/` and the function binaries. Standard library only."""

import fcntl
import hashlib
import os
import shutil
import sys
from pathlib import Path

from local import guard
from local.say import Stop, step

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".local"
VENV = ROOT / ".venv"
REQUIREMENTS = ROOT / "local" / "requirements.txt"


def venv_python() -> Path:
    """The interpreter of `.venv/`, made first unless it fits the requirements already (about 20 s)."""
    python = VENV / "bin" / "python"
    stamp = VENV / "made-for"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()
    WORK.mkdir(exist_ok=True)
    with open(WORK / "venv.lock", "w") as lock:
        # Two first runs at once: the second waits here and then finds it made.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if python.exists() and stamp.exists() and stamp.read_text() == wanted:
            return python
        with step("making .venv with the local AWS (20 s, once)"):
            quiet = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_QUIET": "1"}
            if guard.run([sys.executable, "-m", "venv", "--clear", VENV], cwd=ROOT, env=quiet):
                raise Stop("Python's venv module does not work here: install it (Debian, Ubuntu: python3-venv).", 2)
            pip = [python, "-m", "pip", "install", "-r", REQUIREMENTS]
            if guard.run(pip, cwd=ROOT, env=quiet):
                raise Stop("the packages of local/requirements.txt could not be installed; pip says why above.", 2)
            stamp.write_text(wanted)
    return python


def cargo() -> str:
    """The cargo command."""
    found = shutil.which("cargo") or shutil.which("cargo", path=Path.home() / ".cargo" / "bin")
    if not found:
        raise Stop("Rust is missing: install it from https://rustup.rs and try again.", 2)
    return found


def target_dir() -> Path:
    """Where cargo puts what it builds."""
    return Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()


def functions() -> list[str]:
    """Packages of the functions, each with a binary of its name."""
    return sorted(manifest.parent.name for manifest in ROOT.glob("functions/*/Cargo.toml"))


def build(packages: list[str]) -> Path:
    """Builds the functions (dev profile, for this machine) and gives the folder of their binaries."""
    chosen = [word for package in packages for word in ("-p", package)]
    with step(f"building {', '.join(packages)} (2 minutes the first time)"):
        if guard.run([cargo(), "build", "--locked", "--bins", *chosen], cwd=ROOT):
            raise Stop("the build failed; cargo says why above.")
    return target_dir() / "debug"
