"""How often each attacker is right, by policy (SafeKV Figure 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloister.bench.suite.documents import Document, Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAR = 0.36


def draw_attack(document: Document, axes: tuple[Axes, ...]) -> str:
    policies = list(document["attack"])
    for offset, by in ((-0.5, "by time"), (0.5, "by count")):
        rates = [document["attack"][policy][by] for policy in policies]
        shares = [rate["share"] for rate in rates]
        errors = [
            [max(0.0, rate["share"] - rate["low"]) for rate in rates],
            [max(0.0, rate["high"] - rate["share"]) for rate in rates],
        ]
        places = [place + offset * BAR for place in range(len(policies))]
        axes[0].bar(places, shares, BAR, yerr=errors, capsize=3, label=by)
    axes[0].axhline(document["guessing"], color="gray", linestyle=":", label="guessing")
    axes[0].set_xticks(range(len(policies)), policies)
    axes[0].set(ylim=(0, 1.05), ylabel="share of secrets found")
    axes[0].legend(fontsize="small")
    return "an attacker that lists candidates"


FIGURES = {"sharing-attack": Drawing(lambda document: document if document["attack"] else None, draw_attack)}
