"""How a generation keeps its cache: one public record, agreed on by all parties before anything is computed.

A party decodes `CachePlan` and nothing else, so it serves the two methods named there. Subclasses may name others.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import msgspec

from cloister.errors import InvalidRequest

if TYPE_CHECKING:
    from cloister.config import MpcCache

ALONE = 2
"""The first two layers attend to other tokens than their neighbours (Figure 8), so they share with none."""


class PlanError(InvalidRequest, ValueError):
    """A plan that cannot be carried out. A ValueError too, so that a decoder of messages refuses it as malformed."""

    code = "cache_plan_invalid"


class CachePlan(msgspec.Struct, frozen=True):
    """Settings of a method and of its parts; each part can be switched for the ablation. The defaults are MPCache's."""

    method: Literal["mpcache", "full"] = "mpcache"
    budget: float = 0.1  # tokens of the prompt read per step, pinned ones included, as a fraction of it
    at_least: int = 64  # but never fewer tokens than these
    shared_layers: int = 2  # adjacent layers with one selection (§4.4); 1: every layer selects
    window: float = 0.2  # the last queries whose attention decides the eviction (§4.2), as a fraction of the prompt
    static_keep: float = 0.5  # kept by the eviction for selection, as a fraction of the prompt; 1: no eviction
    granularity: int = 4  # adjacent tokens the eviction keeps or drops together; 1 as in the paper
    always: float = 0.25  # share of the budget for what the eviction scored highest, read at every step
    pinned_first: int = 16  # of the bucket: its padding is below 16, so the first token is always among them
    pinned_last: int = 16
    clusters: tuple[int, ...] = (16,)  # tokens per cluster, coarse level first; two levels in the paper: (32, 16)
    ratios: tuple[float, ...] = ()  # share of clusters that each level but the last passes on
    alpha: float = 0.6  # Equation 2
    similarity: Literal["linear", "max", "average"] = "linear"  # Equation 2, Equation 1, the mean key (Figure 7)
    together: Literal["sum", "max"] = "sum"  # queries of heads that share keys: summed, or the largest of each
    ranking: Literal["shuffle", "top_k"] = "shuffle"  # revealed ranks of shuffled clusters, or Algorithm 2
    gather: Literal["scores", "keys"] = "scores"  # what of the chosen clusters is taken out of the body

    def __post_init__(self) -> None:
        """Plans come from others too: refuses what cannot be computed, or would compute without end."""
        sizes = (self.granularity, *self.clusters)
        if not (0 < self.budget <= 1 and 0 < self.window <= 1 and 0 < self.static_keep <= 1 and 0 <= self.always <= 1):
            raise PlanError("a share of the prompt lies outside 0 to 1")
        if not self.clusters or any(size < 1 or size > 256 for size in sizes):
            raise PlanError("clusters and runs hold 1 to 256 tokens")
        if any(coarse % fine for coarse, fine in pairwise(self.clusters)) or max(sizes[:2]) % min(sizes[:2]):
            raise PlanError("each level's clusters, and runs, must divide evenly")
        if len(self.ratios) != len(self.clusters) - 1 or any(not 0 < ratio <= 1 for ratio in self.ratios):
            raise PlanError("every level but the last needs a ratio between 0 and 1")
        if self.shared_layers < 1 or min(self.pinned_first, self.pinned_last, self.at_least) < 0:
            raise PlanError("counts of layers and tokens cannot be negative")

    def tokens_read(self, prompt_tokens: int) -> int:
        """How much of a prompt the budget allows to read at every step."""
        return min(prompt_tokens, max(round(self.budget * prompt_tokens), self.at_least))


RECOMMENDED = CachePlan(shared_layers=1, window=0.03, always=0.3, clusters=(8,), similarity="average")
"""Of the settings tried on SmolLM2-135M at 1024 tokens (docs/bench/mpc-quality.md), it loses little and selects among
few. Sharing a selection between layers, or larger clusters, cost more quality than they save."""

PLANS: dict[MpcCache, CachePlan] = {"full": CachePlan(method="full"), "mpcache": RECOMMENDED}
"""What can be served, by its name in settings. The full cache is the default: with our own functions it took less time
on every link and at every length that was measured (docs/bench/mpc.md), sends fewer messages, and loses no quality.
MPCache sends fewer bytes, so it pays only where bandwidth is what a token waits for."""


def leader(layer: int, plan: CachePlan) -> int:
    """The layer whose eviction and choice `layer` uses (§4.4): itself, or the first of its run of `shared_layers`.

    Both or neither: a choice names clusters of what the eviction kept, and means nothing where other tokens were kept.
    """
    if layer < ALONE or plan.method != "mpcache":
        return layer
    return layer - (layer - ALONE) % plan.shared_layers
