"""What is measured, and how often."""

from dataclasses import dataclass
from typing import Literal, get_args

from cloister_bench.mpc.baselines import BASELINES
from cloister_mpc.cache.plan import PLANS, CachePlan
from cloister_mpc.functions.bundle import EXACT, LEAN, Functions

VARIANTS: dict[str, tuple[CachePlan, Functions]] = {
    "full_library": (PLANS["full"], EXACT),
    "full": (PLANS["full"], LEAN),
    "mpcache": (PLANS["mpcache"], LEAN),
}
"""What is measured on shares. The full cache as it is served is what MPCache must beat; the first shows what the
library's own functions would cost."""

Part = Literal["lengths", "quality"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True, slots=True)
class Plan:
    """Bytes and messages need one run, seconds `repeats`."""

    lengths: tuple[int, ...] = (256, 512, 1024, 2048)
    ways: tuple[str, ...] = tuple(VARIANTS)
    repeats: int = 3
    new_tokens: int = 32
    quality_samples: int = 4
    quality_budgets: tuple[float, ...] = (0.05, 0.1, 0.2)
    quality_methods: tuple[str, ...] = ("mpcache", *BASELINES)
    quick: bool = False


FULL = Plan()
QUICK = Plan(  # to see that all works, and about how it stands
    lengths=(1024, 256),
    repeats=1,
    quality_samples=1,
    quality_budgets=(0.1,),
    quality_methods=("mpcache", "snapkv", "streaming"),
    quick=True,
)
