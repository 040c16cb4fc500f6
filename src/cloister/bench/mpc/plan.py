"""What is measured, with which numbers. Nothing is measured here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from cloister.bench.mpc.baselines.plan import BaselineName
from cloister.bench.mpc.variants import VARIANTS

Part = Literal[
    "lengths", "composition", "ablation", "gathering", "hierarchies", "sharing", "necessity", "two_party", "quality"
]
PARTS: tuple[Part, ...] = get_args(Part)
QualityMethod: TypeAlias = Literal["mpcache"] | BaselineName


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole measurement. Bytes and messages need one run; `repeats` is for the seconds.

    `seconds` bounds it: what has not begun by then is not begun, and said to be left out.
    """

    lengths: tuple[int, ...] = (256, 512, 1024, 2048)
    ways: tuple[str, ...] = tuple(VARIANTS)
    repeats: int = 3
    ablation_seq: int = 1024
    gathering_seq: int = 1024
    shared_layers: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    necessity: tuple[int, ...] = (6, 16)
    two_party_seq: int = 1024
    two_party_ways: tuple[str, ...] = ("full", "longcache", "mpcache_paper", "mpcache")
    operators_seq: int = 1024
    composition_seq: int = 256
    new_tokens: int = 32
    parts: tuple[Part, ...] = PARTS
    seconds: float = 30 * 60.0
    quality_samples: int = 4
    quality_budgets: tuple[float, ...] = (0.05, 0.1, 0.2)
    quality_methods: tuple[QualityMethod, ...] = (
        "mpcache",
        "longcache",
        "infllm",
        "snapkv",
        "h2o",
        "tova",
        "streaming",
    )
    quick: bool = False


FULL = Plan()
QUICK = Plan(  # to see that all works, and about how it stands
    lengths=(1024, 256),
    ways=("full_naive", "full", "full_lean", "snapkv", "mpcache_paper", "mpcache"),
    repeats=1,
    parts=("lengths", "composition", "gathering", "ablation", "sharing", "quality"),
    seconds=240.0,
    shared_layers=(1, 2, 4),
    necessity=(6,),
    two_party_seq=256,
    two_party_ways=("full", "mpcache"),
    quality_samples=1,
    quality_budgets=(0.1,),
    quality_methods=("mpcache", "snapkv", "streaming"),
    quick=True,
)
