"""Cross-layer index sharing (§4.4): which layer evicts and selects for which. A pure function of public numbers."""

from __future__ import annotations

ALONE = 2
"""The first two layers attend to other tokens than their neighbours (Figure 8), so they share with none."""


def leader(layer: int, shared_layers: int) -> int:
    """The layer whose eviction and choice `layer` uses: itself, or the first of its run of `shared_layers`."""
    if layer < ALONE:
        return layer
    return layer - (layer - ALONE) % shared_layers


def leads(layer: int, shared_layers: int) -> bool:
    return leader(layer, shared_layers) == layer
