"""The variants of generation that are compared: a cache's plan and a choice of functions, by the names the JSON uses.

Baselines and the paper's own settings run on the tuned functions, so that what differs is the cache. `full_naive` and
`full_lean` are the full cache on the other two, to tell what functions give from what eviction gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from cloister.bench.mpc.baselines.plan import BaselineName, BaselinePlan
from cloister.mpc.cache.plan import RECOMMENDED, CachePlan


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
    selection="each",
)
OURS = RECOMMENDED


BASELINES: tuple[BaselineName, ...] = ("longcache", "infllm", "h2o", "snapkv", "tova", "streaming")


def _baseline(name: BaselineName) -> Variant:
    """As published: secret top-k, equality tests, keys and values gathered; every layer for itself."""
    return Variant(name, BaselinePlan(method=name, ranking="top_k", gather="keys", shared_layers=1))


VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant("none", BaselinePlan(method="none")),
        Variant("full_naive", BaselinePlan(method="full_naive"), "naive"),
        Variant("full", CachePlan(method="full")),
        Variant("full_lean", CachePlan(method="full"), "lean"),
        *(_baseline(name) for name in BASELINES),
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
        Variant("(selection ahead, with the last step's queries)", replace(OURS, selection="ahead"), "lean"),
    ]


def hierarchies() -> list[Variant]:
    """Table 6: two levels, of 32 or 64 and of 16 tokens, with 20% of the evicted cache's tokens selected."""
    base = replace(PAPER, budget=0.2, static_keep=0.5)
    return [
        Variant(f"s{coarse}({ratio:g}) s16", replace(base, clusters=(coarse, 16), ratios=(ratio,)))
        for coarse in (32, 64)
        for ratio in (0.9, 0.7, 0.5, 0.3)
    ]
