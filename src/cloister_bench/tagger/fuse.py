"""One tagger of several that were trained apart: the weighted mean of their logits.

`python -m cloister_bench.tagger.fuse --out TAGGER.npz new.npz:0,2,3=0.9 old.npz=0.1`

FILE=WEIGHT takes all nets of a file, FILE:0,2=WEIGHT two of them, weighted by WEIGHT. It also reads the first form of
such files: one net, a table of half as many rows (a hash without its last bit), two layers, and no feature for how a
word is cased. It does not take over thresholds: `calibrate` chooses them. With --levels 15 it rounds the tables to
numbers of that size at most, which makes a smaller file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from cloister.detection.words import BUCKETS, FEATURES

Arrays = dict[str, np.ndarray]


def in_form(arrays: Arrays, dilations: np.ndarray) -> Arrays:
    """As files are now: a net in each row, rows for all buckets, all layers. A layer that is not there adds nothing."""
    arrays = dict(arrays)
    if arrays["out"].ndim == 2:
        layered = [name for name in arrays if name.startswith(("kernel", "bias")) or name == "out"]
        arrays |= {name: arrays[name][None] for name in layered}
        arrays["features"] = np.array([FEATURES - 1])
    nets, units = arrays["out"].shape[:2]
    arrays["table"] = np.repeat(arrays["table"], BUCKETS // len(arrays["table"]), axis=0)
    arrays.setdefault("features", np.full(nets, FEATURES))
    for number in range(len(arrays["dilations"]), len(dilations)):
        arrays[f"kernel{number}"] = np.zeros((nets, 5 * units, units), dtype=np.float16)
        arrays[f"bias{number}"] = np.zeros((nets, units), dtype=np.float16)
    if not (arrays["dilations"] == dilations[: len(arrays["dilations"])]).all():
        raise SystemExit("These taggers look at different distances.")
    return arrays


def chosen(arrays: Arrays, nets: list[int]) -> Arrays:
    """Some nets of a file; its bias stays, which is the mean of all."""
    table = arrays["table"].reshape(BUCKETS, len(arrays["out"]), -1)
    picked = {name: array[nets] for name, array in arrays.items() if name.startswith(("kernel", "bias"))}
    picked |= {"out": arrays["out"][nets], "features": arrays["features"][nets], "out_bias": arrays["out_bias"]}
    picked["table"] = table[:, nets].reshape(BUCKETS, -1)
    picked["scale"] = arrays["scale"].reshape(table.shape[1:])[nets].reshape(-1)
    return picked


def fused(parts: list[tuple[Arrays, float]], dilations: np.ndarray) -> Arrays:
    """Side by side. The tagger takes the plain mean, so the weights are multiplied into each net's last layer."""
    total, nets = sum(weight for _, weight in parts), sum(len(part["out"]) for part, _ in parts)
    joined = {
        name: np.concatenate([part[name] for part, _ in parts], axis=-1 if name in ("table", "scale") else 0)
        for name in parts[0][0]
        if name not in ("out", "out_bias")
    }
    outs = [part["out"].astype(np.float32) * (weight / total * nets / len(part["out"])) for part, weight in parts]
    bias = sum(part["out_bias"].astype(np.float32) * (weight / total) for part, weight in parts)
    return joined | {
        "out": np.concatenate(outs).astype(np.float16),
        "out_bias": np.asarray(bias, dtype=np.float16),
        "dilations": dilations,
    }


def rounded(arrays: Arrays, levels: int) -> Arrays:
    """The table in fewer steps."""
    table = arrays["table"].astype(np.float32)
    steps = np.abs(table).max(0) / levels
    scale = (arrays["scale"] * steps).astype(np.float32)
    return arrays | {"table": np.round(table / steps).astype(np.int8), "scale": scale}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--levels", type=int, default=127)
    parser.add_argument("parts", nargs="+", metavar="FILE[:NETS]=WEIGHT")
    arguments = parser.parse_args()
    read: list[tuple[Arrays, list[int], float]] = []
    for part in arguments.parts:
        name, _, weight = part.rpartition("=")
        file, _, nets = name.partition(":")
        with np.load(file, allow_pickle=False) as loaded:
            read.append((dict(loaded), [int(each) for each in nets.split(",") if each], float(weight)))
    dilations = max((arrays["dilations"] for arrays, _, _ in read), key=len)
    parts = []
    for arrays, nets, weight in read:
        formed = in_form(arrays, dilations)
        parts.append((chosen(formed, nets or list(range(len(formed["out"])))), weight))
    parts.sort(key=lambda part: -part[0]["features"].min())  # those that read fewer features come last
    np.savez_compressed(arguments.out, **rounded(fused(parts, dilations), arguments.levels))
    print(f"{arguments.out}: {arguments.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
