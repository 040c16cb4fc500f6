"""The atheris harness of the log's parsers, run briefly."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloister.transparency.checkpoint import Checkpoint
from cloister.transparency.merkle import write_bundle
from cloister.transparency.note import Note, SigningKey
from cloister.transparency.proof import ReleaseProof, write_proof
from tests.fuzz.harness import fuzz
from tests.transparency.node import manifest

KEY = SigningKey.generate("log.example")
TREE = Checkpoint("log.example", 1, bytes(32)).text
# One good input for each of the harness's parsers, in their order, to begin with.
SEEDS = (
    str(Note("text\n", (KEY.sign("text\n"),))).encode(),
    str(Note(TREE, (KEY.sign(TREE),))).encode(),
    TREE.encode()[:-1],
    str(KEY.verifier).encode(),
    KEY.sign("text\n").line.encode()[:-1],
    manifest(1),
    b"\2" + write_bundle([b"one", b"two"]),
    bytes(96),
    write_proof(ReleaseProof(manifest=manifest(1), checkpoint=str(Note(TREE, (KEY.sign(TREE),))))),
)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("runs", [6000, pytest.param(400000, marks=pytest.mark.release)])
def test_parsers_under_atheris(tmp_path: Path, runs: int) -> None:
    fuzz("transparency_parsers.py", runs, 2048, tmp_path, [bytes([at]) + seed for at, seed in enumerate(SEEDS)])
