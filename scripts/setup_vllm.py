"""Makes .venv-vllm, the environment in which the engine vllm runs: vLLM wants an older transformers than Cloister does.

Runs with the system's Python and its standard library alone, after `scripts/setup.py --vllm`. Packages are pinned in
constraints-vllm.txt and installed without their dependencies: vLLM names torchvision, torchaudio and torchcodec, whose
builds on PyPI need CUDA and keep transformers from starting on a CPU; it runs without them.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-vllm"
PINS = ROOT / "constraints-vllm.txt"
HALF = ROOT / "src" / "cloister_vllm"
ROOM_NEEDED = 5 * 1024**3
QUIET = ("--quiet", "--no-input", "--disable-pip-version-check", "--root-user-action=ignore", "--no-compile")


def main() -> int:
    stamp, wanted = VENV / ".installed", wanted_stamp()
    if stamp.is_file() and stamp.read_text() == wanted:
        return 0
    VENV.mkdir(exist_ok=True)
    with (VENV / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if shutil.disk_usage(VENV).free < ROOM_NEEDED:
            print(f"Too little room on the disk: vLLM takes {ROOM_NEEDED / 1024**3:.0f} GB.", file=sys.stderr)
            return 1
        for what, command in steps():
            print(f"{what}…", flush=True)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                last = "\n".join((done.stderr + done.stdout).strip().splitlines()[-5:])
                print(f"\nThis failed; run the same command again to go on:\n{last}", file=sys.stderr)
                return 1
        stamp.write_text(wanted)
    return 0


def steps() -> list[tuple[str, list[str]]]:
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", *QUIET]
    return [
        ("Making a virtual environment in .venv-vllm", [sys.executable, "-m", "venv", str(VENV)]),
        # torch first and by this exact pin: package indexes that carry a CPU build give it for no other spelling.
        ("Installing PyTorch", [*pip, "--no-deps", "torch==2.13.0"]),
        ("Installing vLLM and what it needs (3 GB)", [*pip, "--no-deps", "-r", str(PINS)]),
        ("Installing the engine's half of Cloister", [*pip, "--no-deps", "-e", str(ROOT), "-e", str(HALF)]),
    ]


def wanted_stamp() -> str:
    digest = hashlib.sha256(sys.version.encode() + str(ROOT).encode())
    for source in (PINS, HALF / "pyproject.toml", Path(__file__)):
        digest.update(source.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
