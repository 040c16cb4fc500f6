"""What is measured, with which numbers. Nothing is measured here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cloister.bench.mpc.ways import WAYS

Part = Literal[
    "lengths", "ablation", "gathering", "hierarchies", "sharing", "necessity", "two_party", "composition", "quality"
]
PARTS: tuple[Part, ...] = (
    "lengths",
    "composition",
    "ablation",
    "gathering",
    "hierarchies",
    "sharing",
    "necessity",
    "two_party",
    "quality",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole measurement. Bytes and messages need one run; `repeats` is for the seconds.

    `wanted` lengths of `none` are those it is reported at; it is measured at `short` ones, and extrapolated.
    """

    lengths: tuple[int, ...] = (256, 512, 1024, 2048)
    ways: tuple[str, ...] = tuple(WAYS)
    repeats: int = 3
    short: tuple[int, ...] = (32, 64, 128)
    ablation_seq: int = 1024
    gathering_seq: int = 1024
    shared_layers: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    necessity: tuple[int, ...] = (6, 16)
    two_party_seq: int = 1024
    two_party_ways: tuple[str, ...] = ("full", "longcache", "mpcache_paper", "mpcache")
    operators_seq: int = 1024
    composition_seq: int = 256
    new_tokens: int = 32
    quick: bool = False


FULL = Plan()
QUICK = Plan(  # to see that all works, and about how it stands
    lengths=(256, 1024),
    ways=("full_naive", "full", "full_lean", "snapkv", "streaming", "mpcache_paper", "mpcache"),
    repeats=1,
    short=(16, 32),
    shared_layers=(1, 2, 4),
    necessity=(6,),
    two_party_seq=256,
    two_party_ways=("full", "mpcache"),
    quick=True,
)
