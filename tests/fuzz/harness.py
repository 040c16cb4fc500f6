"""How the tests run an atheris harness of this folder, briefly or, before a release, twenty times as long."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest


def fuzz(harness: str, runs: int, longest: int, folder: Path, seeds: Sequence[bytes] = ()) -> None:
    """Run it so often on inputs of at most so many bytes, made of these seeds; it must come to its end."""
    pytest.importorskip("atheris", reason="atheris is not installed")
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds):
        (corpus / str(number)).write_bytes(seed)
    options = (f"-runs={runs}", "-seed=1", f"-max_len={longest}", f"-artifact_prefix={folder}/")
    run = subprocess.run(
        [sys.executable, Path(__file__).parent / harness, *([corpus] if seeds else []), *options],
        capture_output=True,
        text=True,
        timeout=1100,
        cwd=folder,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert f"Done {runs} runs" in run.stderr
