"""Accuracy by tier and set (SafeKV Figure 7), and which tier decides (Figure 9)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cloister_bench.detection.measure import TIERS
from cloister_bench.suite.documents import Document, Drawing, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAR = 0.26


def draw_accuracy(document: Document, axes: tuple[Axes, ...]) -> str:
    """Recall for every set that has private blocks; beside it, clean blocks held back."""
    for panel, key, title in zip(
        axes, ("recall", "held_clean"), ("private blocks held back", "clean blocks held back"), strict=True
    ):
        sets = [name for name, rates in document["datasets"].items() if rates["tier 1"][key]["of"] >= 20]
        for offset, tier in enumerate(TIERS):
            shares = [document["datasets"][name][tier][key]["share"] for name in sets]
            panel.bar([place + (offset - 1) * BAR for place in range(len(sets))], shares, BAR, label=tier)
        panel.set_xticks(range(len(sets)), sets, rotation=40, ha="right", fontsize="small")
        panel.set(title=title, ylim=(0, 1))
        panel.grid(alpha=0.3, axis="y")
    axes[0].axhline(0.98, color="gray", linestyle=":")
    axes[1].axhline(0.15, color="gray", linestyle=":")
    axes[0].legend(fontsize="small")
    return "accuracy of the tiers, by set"


def draw_decided(shares: Row, axes: tuple[Axes, ...]) -> str:
    axes[0].bar(list(shares), list(shares.values()))
    axes[0].set(ylim=(0, 1), ylabel="share of texts")
    return "which tier decides"


_figure = partial(Drawing, panel=(6.0, 3.4), margin=(1.0, 0.8))
FIGURES = {
    "detection-accuracy": _figure(
        lambda document: document if document["datasets"] else None, draw_accuracy, grid=(1, 2)
    ),
    "detection-tiers": _figure(lambda document: document["decided_by"], draw_decided),
}
