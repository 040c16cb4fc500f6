"""How often each attacker is right, by policy (SafeKV Figure 6); first tokens and throughput (Figures 11 and 12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloister_bench.suite.documents import Document, Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAR = 0.36


def _bars(axes: Axes, policies: list[str], rates: list[Document], offset: float, label: str) -> None:
    shares = [rate["share"] for rate in rates]
    errors = [
        [max(0.0, rate["share"] - rate["low"]) for rate in rates],
        [max(0.0, rate["high"] - rate["share"]) for rate in rates],
    ]
    places = [place + offset * BAR for place in range(len(policies))]
    axes.bar(places, shares, BAR, yerr=errors, capsize=3, label=label)
    axes.set_xticks(range(len(policies)), policies)
    axes.set(ylim=(0, 1.05))


def draw_attack(document: Document, axes: tuple[Axes, ...]) -> str:
    policies = list(document["attack"])
    for offset, by in ((-0.5, "by time"), (0.5, "by count")):
        _bars(axes[0], policies, [document["attack"][policy][by] for policy in policies], offset, by)
    axes[0].axhline(document["guessing"], color="gray", linestyle=":", label="guessing")
    axes[0].set(ylabel="share of secrets found")
    axes[0].legend(fontsize="small")
    return "an attacker that lists candidates"


def draw_adaptive(document: Document, axes: tuple[Axes, ...]) -> str:
    policies = list(document["adaptive"])
    for offset, by, label in ((-0.5, "parts", "adaptive"), (0.5, "blind", "blind")):
        _bars(axes[0], policies, [document["adaptive"][policy][by] for policy in policies], offset, label)
    axes[0].set(ylabel="share of a secret's parts found")
    axes[0].legend(fontsize="small")
    return "an attacker that goes on part by part"


def draw_workloads(document: Document, axes: tuple[Axes, ...]) -> str:
    workloads = document["workloads"]
    policies = list(dict.fromkeys(policy for rows in workloads.values() for policy in rows))
    width = 0.8 / max(1, len(policies))
    shown = (("mean_ms", "first token, ms (mean, line to p95)"), ("tokens_per_s", "tokens/s"))
    for panel, (of, title) in zip(axes, shown, strict=True):
        for index, policy in enumerate(policies):
            rows = [rows.get(policy, {}) for rows in workloads.values()]
            places = [place + (index - (len(policies) - 1) / 2) * width for place in range(len(rows))]
            values = [row.get(of) or 0.0 for row in rows]
            panel.bar(places, values, width, label=policy)
            if of == "mean_ms":
                panel.vlines(places, values, [row.get("p95_ms") or 0.0 for row in rows], color="gray", linewidth=0.8)
        panel.set_xticks(range(len(workloads)), list(workloads), fontsize="small")
        panel.set(title=title, ylim=(0, None))
    axes[1].legend(fontsize="small")
    return "policies of sharing"


FIGURES = {
    "sharing-attack": Drawing(lambda document: document if document["attack"] else None, draw_attack),
    "sharing-adaptive": Drawing(lambda document: document if document["adaptive"] else None, draw_adaptive),
    "sharing-workloads": Drawing(lambda document: document if document["workloads"] else None, draw_workloads, (1, 2)),
}
