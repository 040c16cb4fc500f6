"""How a generation keeps its cache: one public record, agreed on by all parties. A party decodes `CachePlan` alone."""

from typing import Literal

import msgspec

from cloister.errors import InvalidRequest


class PlanError(InvalidRequest, ValueError):
    """A plan that cannot be carried out. A ValueError too, so that a decoder of messages refuses it as malformed."""

    code = "cache_plan_invalid"


class CachePlan(msgspec.Struct, frozen=True):
    """Defaults by measurement (docs/mpc.md). One selection for several layers (§4.4) cost more than it saves."""

    method: Literal["mpcache", "full"] = "mpcache"
    budget: float = 0.1  # tokens of the prompt read per step, pinned ones included, as a fraction of it
    at_least: int = 64  # but never fewer tokens than these
    window: float = 0.03  # the last queries whose attention decides the eviction (§4.2), as a fraction of the prompt
    static_keep: float = 0.5  # kept by the eviction for selection, as a fraction of the prompt; 1: no eviction
    granularity: int = 4  # adjacent tokens the eviction keeps or drops together; 1 as in the paper
    always: float = 0.3  # share of the budget for what the eviction scored highest, read at every step
    pinned_first: int = 16  # of the bucket: its padding is below 16, so the first token is always among them
    pinned_last: int = 16
    cluster: int = 8  # tokens

    def __post_init__(self) -> None:
        """Plans come from others too: refuses what cannot be computed, or would compute without end."""
        sizes = (self.granularity, self.cluster)
        if not (0 < self.budget <= 1 and 0 < self.window <= 1 and 0 < self.static_keep <= 1 and 0 <= self.always <= 1):
            raise PlanError("a share of the prompt lies outside 0 to 1")
        if any(size < 1 or size > 256 for size in sizes):
            raise PlanError("clusters and runs hold 1 to 256 tokens")
        if max(sizes) % min(sizes):
            raise PlanError("clusters and runs must divide evenly")
        if min(self.pinned_first, self.pinned_last, self.at_least) < 0:
            raise PlanError("counts of tokens cannot be negative")

    def tokens_read(self, prompt_tokens: int) -> int:
        return min(prompt_tokens, max(round(self.budget * prompt_tokens), self.at_least))


PLANS: dict[str, CachePlan] = {"full": CachePlan(method="full"), "mpcache": CachePlan()}
"""By name in settings. Full, the default, took less time at every length (docs/bench/mpc.md), MPCache fewer bytes."""
