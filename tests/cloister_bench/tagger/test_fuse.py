"""Taggers that were trained apart, in one file: its logits are the weighted mean of theirs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cloister.detection.tagger import CATEGORIES, Tagger
from cloister.detection.words import BUCKETS, FEATURES, split

MODULE = "cloister_bench.tagger.fuse"
TEXT = "Ada met Bo in the old town, twice."
UNITS = 4


def made(seed: int, nets: int, layers: int, buckets: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    arrays = {
        "table": draw.integers(-127, 127, (buckets, nets * UNITS)).astype(np.int8),
        "scale": np.full(nets * UNITS, 0.01, dtype=np.float32),
        "out": draw.normal(size=(nets, UNITS, len(CATEGORIES))).astype(np.float16),
        "out_bias": draw.normal(size=len(CATEGORIES)).astype(np.float16),
        "dilations": 2 ** np.arange(layers),
    }
    for number in range(layers):
        arrays[f"kernel{number}"] = draw.normal(size=(nets, 5 * UNITS, UNITS)).astype(np.float16) / 4
        arrays[f"bias{number}"] = draw.normal(size=(nets, UNITS)).astype(np.float16)
    return arrays


def first_form(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array[0] if array.ndim > 1 and name != "table" else array for name, array in arrays.items()}


def logits(arrays: dict[str, np.ndarray]) -> np.ndarray:
    return Tagger(arrays)._logits(split(TEXT))


def test_logits_are_the_weighted_mean_of_files_of_both_forms(tmp_path: Path) -> None:
    new, old = made(1, 3, 3, BUCKETS), made(2, 1, 2, BUCKETS // 2)
    np.savez(tmp_path / "new.npz", **new)
    np.savez(tmp_path / "old.npz", **first_form(old), thresholds=np.array([0.1, 0.9]))
    parts = [f"{tmp_path}/old.npz=0.25", f"{tmp_path}/new.npz:0,2=0.75"]
    subprocess.run([sys.executable, "-m", MODULE, "--out", tmp_path / "fused.npz", *parts], check=True, timeout=60)
    with np.load(tmp_path / "fused.npz") as loaded:
        fused = dict(loaded)
    assert "thresholds" not in fused, "they are chosen anew"
    two = {name: array[[0, 2]] if array.ndim == 3 or name.startswith("bias") else array for name, array in new.items()}
    two["table"] = np.delete(new["table"], range(UNITS, 2 * UNITS), axis=1)
    two["scale"] = new["scale"][: 2 * UNITS]
    whole = old | {"table": np.repeat(old["table"], 2, axis=0), "features": np.array([FEATURES - 1])}
    assert logits(fused) == pytest.approx(0.75 * logits(two) + 0.25 * logits(whole), abs=0.02)


def test_a_table_in_fewer_steps_says_about_the_same(tmp_path: Path) -> None:
    new = made(3, 2, 2, BUCKETS)
    np.savez(tmp_path / "new.npz", **new)
    command = [sys.executable, "-m", MODULE, "--levels", "15", "--out", tmp_path / "fused.npz", f"{tmp_path}/new.npz=1"]
    subprocess.run(command, check=True, timeout=60)
    with np.load(tmp_path / "fused.npz") as loaded:
        fused = dict(loaded)
    assert np.abs(fused["table"]).max() == 15
    assert logits(fused) == pytest.approx(logits(new), abs=0.6)
    assert np.corrcoef(logits(fused).ravel(), logits(new).ravel())[0, 1] > 0.99
