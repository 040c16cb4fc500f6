"""The paper's four figures, drawn from a measurement's document. Knows numbers and labels only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from cloister.bench.spd.plan import LEVELS
from cloister.bench.suite.documents import Document, Draw, find, panels, stacked_bars, titled
from cloister.levels import ISOLATED, OPEN, PARTITIONED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Run = dict[str, Any]
COLORS = {OPEN: "tab:blue", PARTITIONED: "tab:orange", ISOLATED: "tab:green"}
BAR = 0.26
_panels = partial(panels, panel=(5.0, 3.0), margin=(3.0, 0.8))


def draw_users(document: Document) -> Figure | None:
    """Figure 4: answer times against those of `open`, and throughput, over the number of users."""
    runs = _runs(document, 4)
    if not runs:
        return None
    figure, (latency, throughput) = _panels(1, 2)
    for level in LEVELS:
        mine = [run for run in runs if run["level"] == level and run["tokens_per_s"]]
        beside = [(run, _same_load(runs, run, OPEN)) for run in mine]
        known = [(run, other) for run, other in beside if other and run["answer_ms"] and other["answer_ms"]]
        users = [run["users"] for run, _ in known]
        ratios = [run["answer_ms"] / other["answer_ms"] for run, other in known]
        latency.plot(users, ratios, marker="o", color=COLORS[level], label=level)
        rates = [run["tokens_per_s"] for run in mine]
        throughput.plot([run["users"] for run in mine], rates, marker="o", color=COLORS[level], label=level)
    counts = sorted({run["users"] for run in runs})
    for panel in (latency, throughput):
        panel.set_xscale("log", base=2)
        panel.set_xticks(counts, [str(count) for count in counts])
        panel.set_xlabel("users at once")
        panel.grid(alpha=0.3)
    latency.set_yscale("log", base=2)
    latency.yaxis.set_major_formatter("{x:g}×")
    latency.set_title("time of an answer, over that of open")
    throughput.set(title="output tokens/s", ylim=(0, None))
    latency.legend()
    return titled(figure, document, f"{runs[0]['input_tokens']} tokens in, {runs[0]['output_tokens']} out")


def draw_models(document: Document) -> Figure | None:
    """Figure 5: the time of an answer for models of two sizes."""
    larger = _runs(document, 5)
    if not larger:
        return None
    load = ("users", "input_tokens", "output_tokens")
    smaller = [run for run in _runs(document, 4) if all(run[name] == larger[0][name] for name in load)]
    figure, (panel,) = _panels(1, 1)
    models = list(dict.fromkeys(run["model"] for run in smaller + larger))
    _bars(panel, models, lambda model, level: _answer(smaller + larger, level, model=model))
    panel.set(ylabel="time of an answer, s", ylim=(0, None))
    panel.legend()
    first = larger[0]
    return titled(
        figure, document, f"{first['users']} users, {first['input_tokens']} tokens in, {first['output_tokens']} out"
    )


def draw_lengths(document: Document) -> Figure | None:
    """Figure 6: the time for each token of an answer, over the lengths of prompts and answers."""
    runs = _runs(document, 6)
    if not runs:
        return None
    figure, (panel,) = _panels(1, 1)
    loads = list(dict.fromkeys((run["input_tokens"], run["output_tokens"]) for run in runs))
    labels = {f"{tokens_in} in\n{tokens_out} out": (tokens_in, tokens_out) for tokens_in, tokens_out in loads}

    def per_token(label: str, level: str) -> float | None:
        tokens_in, tokens_out = labels[label]
        found = find(runs, level=level, input_tokens=tokens_in, output_tokens=tokens_out)
        return found["per_token_ms"] if found else None

    _bars(panel, list(labels), per_token)
    panel.set(ylabel="ms for each token", ylim=(0, None))
    panel.legend()
    return titled(figure, document, f"{runs[0]['users']} users")


def draw_breakdown(document: Document) -> Figure | None:
    """Figure 7: the parts of a step of the service at `partitioned`; beside them what `open` takes for a token."""
    breakdown = document["breakdown"]
    if not breakdown:
        return None
    figure, (panel,) = _panels(1, 1)
    names = list(next(iter(breakdown.values()))["phases_ms"])
    rows = list(breakdown)
    for row, users in enumerate(rows):
        whole = breakdown[users]["between_tokens_ms"][OPEN] or 0.0
        panel.barh(2 * row + 1, whole, color="lightgray", label="between tokens at open" if row == 0 else None)
    parts = {name.replace("_", " "): [breakdown[users]["phases_ms"][name] for users in rows] for name in names}
    stacked_bars(panel, [2.0 * row for row in range(len(rows))], parts)
    labels = [f"{users} users, {level}" for users in rows for level in (PARTITIONED, OPEN)]
    panel.set_yticks(range(2 * len(rows)), labels)
    panel.set(xlabel="ms in a step")
    panel.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return titled(figure, document, "where a step's time goes")


FIGURES: dict[str, Draw] = {
    "spd-users": draw_users,
    "spd-models": draw_models,
    "spd-lengths": draw_lengths,
    "spd-breakdown": draw_breakdown,
}


def _bars(panel: Axes, groups: list[str], value: Callable[[str, str], float | None]) -> None:
    for offset, level in enumerate(LEVELS):
        heights = [value(group, level) for group in groups]
        places = [place + (offset - 1) * BAR for place, height in enumerate(heights) if height is not None]
        panel.bar(places, [each for each in heights if each is not None], BAR, color=COLORS[level], label=level)
    panel.set_xticks(range(len(groups)), groups)
    panel.grid(alpha=0.3, axis="y")


def _runs(document: Document, figure: int) -> list[Run]:
    return [run for run in document["runs"] if run["figure"] == figure]


def _same_load(runs: list[Run], like: Run, level: str) -> Run | None:
    return find(runs, level=level, **{name: like[name] for name in ("users", "input_tokens", "output_tokens", "model")})


def _answer(runs: list[Run], level: str, **having: Any) -> float | None:
    found = find(runs, level=level, **having)
    return found["answer_ms"] / 1000 if found and found["answer_ms"] else None
