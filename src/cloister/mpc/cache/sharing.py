"""Cross-layer index sharing (§4.4): which layer evicts and selects for which. A pure function of public numbers."""

from __future__ import annotations

from cloister.mpc.cache.plan import CachePlan

ALONE = 2
"""The first two layers attend to other tokens than their neighbours (Figure 8), so they share with none."""


def leader(layer: int, plan: CachePlan) -> int:
    """The layer whose eviction and choice `layer` uses: itself, or the first of its run of `plan.shared_layers`.

    Both or neither: a choice is of clusters of what the eviction kept, and means nothing where other tokens were kept.
    """
    if layer < ALONE or plan.method != "mpcache":
        return layer
    return layer - (layer - ALONE) % plan.shared_layers


def leads(layer: int, plan: CachePlan) -> bool:
    return leader(layer, plan) == layer
