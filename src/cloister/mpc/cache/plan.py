"""How a generation keeps its cache: one frozen record, public, agreed on by all parties before anything is computed."""

from __future__ import annotations

from typing import Literal

import msgspec

from cloister.mpc.cache.base import Method
from cloister.mpc.cache.full import FullCache

MethodName = Literal[
    "mpcache", "full", "full_naive", "none", "longcache", "infllm", "h2o", "snapkv", "tova", "streaming"
]


class CachePlan(msgspec.Struct, frozen=True):
    """Settings of a method and of its parts; each part can be switched for the ablation. The defaults are MPCache's."""

    method: MethodName = "mpcache"
    budget: float = 0.1  # tokens of the prompt read per step, pinned ones included, as a fraction of it
    shared_layers: int = 2  # adjacent layers with one selection (§4.4); 1: each selects for itself
    window: float = 0.2  # the last queries whose attention decides the eviction (§4.2), as a fraction of the prompt
    static_keep: float = 0.5  # kept by the eviction for selection, as a fraction of the prompt; 1: no eviction
    granularity: int = 4  # adjacent tokens the eviction keeps or drops together; 1 as in the paper
    always: float = 0.25  # share of the budget for what the eviction scored highest, read at every step
    pinned_first: int = 16  # of the bucket: its padding is below 16, so the first token is always among them
    pinned_last: int = 16
    clusters: tuple[int, ...] = (16,)  # tokens per cluster, coarse level first; two levels in the paper: (32, 16)
    ratios: tuple[float, ...] = ()  # share of clusters each level but the last passes on
    alpha: float = 0.6  # Equation 2
    similarity: Literal["linear", "max", "average"] = "linear"  # Equation 2, Equation 1, the mean key (Figure 7)
    ranking: Literal["shuffle", "top_k"] = "shuffle"  # revealed ranks of shuffled clusters, or Algorithm 2
    gather: Literal["scores", "keys"] = "scores"  # what of the chosen clusters is taken out of the body
    selection: Literal["each", "ahead"] = "each"  # with this step's queries, or with those of the step before


def make_method(plan: CachePlan, prompt_tokens: int, new_tokens: int) -> Method:
    """The plan's method for a prompt of `prompt_tokens` (a bucket) and room for `new_tokens` generated ones."""
    match plan.method:
        case "full" | "full_naive" | "none":
            return FullCache(new_tokens, name=plan.method)
    raise NotImplementedError(plan.method)
