"""The ways of generating that are compared: a cache's plan and a choice of functions, by the names the JSON uses.

Baselines and the paper's own settings run on the tuned functions, so that what differs is the cache. `full_naive` and
`full_lean` are the full cache on the other two, to tell what functions give from what eviction gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from msgspec.structs import replace

from cloister.mpc.cache.plan import RECOMMENDED, CachePlan, MethodName

FunctionsName = Literal["lean", "tuned", "naive"]
WayName = Literal[
    "none",
    "full_naive",
    "full",
    "full_lean",
    "longcache",
    "infllm",
    "h2o",
    "snapkv",
    "tova",
    "streaming",
    "mpcache_paper",
    "mpcache",
]


@dataclass(frozen=True, slots=True)
class Way:
    """What is computed at every step."""

    name: str
    plan: CachePlan
    functions: FunctionsName = "tuned"


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


def _baseline(method: MethodName) -> CachePlan:
    """As published: secret top-k, equality tests, keys and values gathered; every layer for itself."""
    return CachePlan(method=method, ranking="top_k", gather="keys", shared_layers=1)


WAYS: dict[str, Way] = {
    way.name: way
    for way in (
        Way("none", CachePlan(method="none")),
        Way("full_naive", CachePlan(method="full_naive"), "naive"),
        Way("full", CachePlan(method="full")),
        Way("full_lean", CachePlan(method="full"), "lean"),
        Way("longcache", _baseline("longcache")),
        Way("infllm", _baseline("infllm")),
        Way("h2o", _baseline("h2o")),
        Way("snapkv", _baseline("snapkv")),
        Way("tova", _baseline("tova")),
        Way("streaming", _baseline("streaming")),
        Way("mpcache_paper", PAPER),
        Way("mpcache", OURS, "lean"),
    )
}
assert set(WAYS) == set(get_args(WayName))


def ablation() -> list[Way]:
    """Figure 11 step by step, then the steps the paper does not have. Each adds one thing to the one before it."""
    token_wise = replace(PAPER, static_keep=1.0, clusters=(1,), ratios=(), similarity="max", shared_layers=1)
    evicting = replace(token_wise, static_keep=PAPER.static_keep)
    clustered = replace(evicting, clusters=PAPER.clusters, ratios=PAPER.ratios)
    linear = replace(clustered, similarity="linear")
    sharing = replace(linear, shared_layers=PAPER.shared_layers)
    shuffled = replace(sharing, ranking="shuffle")
    scored = replace(shuffled, gather="scores")
    return [
        Way("full cache, tuned functions", CachePlan(method="full")),
        Way("dynamic selection, token by token", token_wise),
        Way("+ static eviction", evicting),
        Way("+ clusters, two levels", clustered),
        Way("+ linear similarity, reordered", linear),
        Way("+ one selection for two layers", sharing),
        Way("+ revealed ranks of shuffled clusters", shuffled),
        Way("+ scores gathered, not keys", scored),
        Way("+ lean functions", scored, "lean"),
        Way("+ our eviction and clusters", OURS, "lean"),
        Way("(selection ahead, with the last step's queries)", replace(OURS, selection="ahead"), "lean"),
    ]


def hierarchies() -> list[Way]:
    """Table 6: two levels, of 32 or 64 and of 16 tokens, with 20% of the evicted cache's tokens selected."""
    base = replace(PAPER, budget=0.2, static_keep=0.5)
    return [
        Way(f"s{coarse}({ratio:g}) s16", replace(base, clusters=(coarse, 16), ratios=(ratio,)))
        for coarse in (32, 64)
        for ratio in (0.9, 0.7, 0.5, 0.3)
    ]
