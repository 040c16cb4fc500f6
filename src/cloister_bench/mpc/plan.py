"""What is measured, and how often: the variants of generation that are compared (a cache's plan and a choice of
functions, by the names the JSON uses). Nothing is measured here.

Baselines and the paper's own settings run on the tuned functions, so that only the cache differs. `full_naive` and
`full_lean` are the full cache on the other two, to tell what functions give from what eviction gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from msgspec.structs import replace

from cloister_mpc.cache.plan import RECOMMENDED, CachePlan

StaticName = Literal["streaming", "snapkv", "h2o", "tova"]
BaselineName = Literal["none", "full_naive", "longcache", "infllm", StaticName]
STATIC: tuple[StaticName, ...] = get_args(StaticName)


class BaselinePlan(CachePlan, frozen=True, kw_only=True):
    """`full_naive` and `none` read the whole cache; without a cache (`none`) the prefill runs again for every token."""

    method: BaselineName  # type: ignore[assignment]  # a party decodes CachePlan, and so refuses these names


@dataclass(frozen=True, slots=True)
class Variant:
    """What is computed at every step."""

    name: str
    plan: CachePlan
    functions: Literal["lean", "tuned", "naive"] = "tuned"


# §5.4 and Appendix F.2: 75% evicted token by token, two levels of clusters, half of them dropped at the first.
PAPER = CachePlan(
    method="mpcache",
    static_keep=0.25,
    granularity=1,
    always=0.0,
    clusters=(32, 16),
    ratios=(0.5,),
    ranking="top_k",
    gather="keys",
)
OURS = RECOMMENDED


BASELINES: tuple[BaselineName, ...] = ("longcache", "infllm", "h2o", "snapkv", "tova", "streaming")


VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant("none", BaselinePlan(method="none")),
        Variant("full_naive", BaselinePlan(method="full_naive"), "naive"),
        Variant("full", CachePlan(method="full")),
        Variant("full_lean", CachePlan(method="full"), "lean"),
        # As published: secret top-k, equality tests, keys and values gathered; no layer shares its selection.
        *(
            Variant(name, BaselinePlan(method=name, ranking="top_k", gather="keys", shared_layers=1))
            for name in BASELINES
        ),
        Variant("mpcache_paper", PAPER),
        Variant("mpcache", OURS, "lean"),
    )
}


def ablation() -> list[Variant]:
    """Figure 11 step by step, then the steps the paper does not have. Each adds one thing to the one before it."""
    token_wise = replace(PAPER, static_keep=1.0, clusters=(1,), ratios=(), similarity="max", shared_layers=1)
    evicting = replace(token_wise, static_keep=PAPER.static_keep)
    clustered = replace(evicting, clusters=PAPER.clusters, ratios=PAPER.ratios)
    linear = replace(clustered, similarity="linear")
    sharing = replace(linear, shared_layers=PAPER.shared_layers)
    shuffled = replace(sharing, ranking="shuffle")
    scored = replace(shuffled, gather="scores")
    return [
        Variant("full cache, tuned functions", CachePlan(method="full")),
        Variant("dynamic selection, token by token", token_wise),
        Variant("+ static eviction", evicting),
        Variant("+ clusters, two levels", clustered),
        Variant("+ linear similarity, reordered", linear),
        Variant("+ one selection for two layers", sharing),
        Variant("+ revealed ranks of shuffled clusters", shuffled),
        Variant("+ scores gathered, not keys", scored),
        Variant("+ lean functions", scored, "lean"),
        Variant("+ our eviction and clusters", OURS, "lean"),
    ]


def hierarchies() -> list[Variant]:
    """Table 6: two levels, of 32 or 64 and of 16 tokens, with 20% of the evicted cache's tokens selected."""
    base = replace(PAPER, budget=0.2, static_keep=0.5)
    return [
        Variant(f"s{coarse}({ratio:g}) s16", replace(base, clusters=(coarse, 16), ratios=(ratio,)))
        for coarse in (32, 64)
        for ratio in (0.9, 0.7, 0.5, 0.3)
    ]


Part = Literal[
    "lengths", "composition", "ablation", "gathering", "hierarchies", "sharing", "necessity", "two_party", "quality"
]
PARTS: tuple[Part, ...] = get_args(Part)
QualityMethod: TypeAlias = Literal["mpcache"] | BaselineName


@dataclass(frozen=True, slots=True)
class Plan:
    """Bytes and messages need one run, seconds `repeats`. What has not begun by `seconds` is reported as left out."""

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
