"""The document of `bench sharing-attack`, its targets, tables and figure. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from cloister.prefix.evidence import attack_gain
from cloister_bench.sharing import attackers as by
from cloister_bench.sharing.attackers import IDENTITIES, MARKING, SIGNALS, VOTERS, voters
from cloister_bench.sharing.families import CANDIDATES
from cloister_bench.sharing.world import Setting
from cloister_bench.suite import documents
from cloister_bench.suite.documents import Document, Row, Table, Target

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GUESSING = 1 / CANDIDATES
POPULAR = f"sent by {by.CROWD}"
BEYOND = (*(voters(number) for number in IDENTITIES if number > VOTERS), POPULAR, MARKING)  # not what is promised
SHOWN = ("plain", "7 voters", "over restarts", "12 voters", POPULAR)
MOST_GAIN = 0.01
NOT_TRIED = {"clock": 0.0, "low": 0.0, "high": 0.0}


@dataclass(frozen=True, slots=True)
class Plan:
    families: tuple[str, ...]
    trials: int
    http: int
    seed: int
    setting: Setting


def gain(
    policy: str, signal: str, *attackers: str, but: tuple[str, ...] = (), family: str = "", least: bool = False
) -> Callable[[Document], float | None]:
    """The largest (or `least`) of all families, above guessing."""

    def chosen(row: Row) -> bool:
        named = row["attacker"] in attackers or (not attackers and row["attacker"] not in but)
        return row["policy"] == policy and named and family in ("", row["family"])

    def measured(document: Document) -> float | None:
        gains = [row[signal] - GUESSING for row in filter(chosen, document["offline"])]
        return (min if least else max)(gains, default=None)

    return measured


def _small(name: str, measured: Callable[[Document], float | None]) -> Target:
    return Target(name, MOST_GAIN, measured, "at most")


TARGETS = (
    *(
        _small(f"counted, up to {VOTERS} identities, gain by {one}", gain("counted", one, but=BEYOND))
        for one in SIGNALS
    ),
    *(_small(f"{name}, gain", gain(name, "clock", but=BEYOND)) for name in ("registered", "partition", "none")),
    _small("counted, gain from a prompt marked by its account", gain("counted", "count", MARKING)),
    Target("global, least gain of the plain attacker", 0.7, gain("global", "count", "plain", least=True)),
    Target("noise off: gain of voters", 0.1, gain(by.NO_NOISE_NAME, "clock")),
    Target("grid off, T 0: gain by time", 0.2, gain(by.NO_GRID_NAME, "time")),
    _small("grid off, T 0: gain by count", gain(by.NO_GRID_NAME, "count")),
    Target("veto off: least gain from a popular text", 0.7, gain(by.NO_VETO_NAME, "clock", POPULAR, least=True)),
    _small("veto on: gain from popular identifiers", gain("counted", "clock", POPULAR, family="identifiers")),
)


@dataclass
class Results(documents.Results):
    plan: Plan
    offline: dict[str, by.Rates] = field(default_factory=dict)  # by family
    http: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # [trials, right] by setting and signal
    targets = TARGETS

    def numbers(self) -> Document:
        offline, http = [], []
        for family, rates in self.offline.items():
            for (policy, attacker), (of, *right) in rates.items():
                shares = {signal: round(one / of, 5) for signal, one in zip(SIGNALS, right, strict=True)}
                low, high = documents.wilson(right[-1], int(of))  # of the exact clock
                row = {"family": family, "policy": policy, "attacker": attacker, "of": int(of), **shares}
                offline.append({**row, "low": round(low, 4), "high": round(high, 4)})
        for policy, signals in self.http.items():
            for signal, (of, one) in signals.items():
                http.append({"policy": policy, "signal": signal, **documents.rate_of(one, int(of))})
        return {"guessing": GUESSING, "offline": offline, "http": http}

    def remarks(self) -> Document:
        setting = self.plan.setting
        bound = {str(one): attack_gain(one, setting.epsilon, setting.threshold) for one in IDENTITIES}
        return {"bound": bound, "seconds": round(self.seconds, 1)}


def tables(document: Document) -> list[Table]:
    rows: list[Row] = document["offline"]
    kinds = dict.fromkeys((row["policy"], row["attacker"]) for row in rows)
    summed = [_summed([row for row in rows if (row["policy"], row["attacker"]) == kind]) for kind in kinds]
    means = {f"by {signal}": signal for signal in SIGNALS}
    columns = {"policy": "policy", "attacker": "attacker", "trials": "of", **means, "most": "most", "in": "in"}
    families: dict[str, Row] = {}
    shown = {one: one for one in ("family", *SHOWN)}
    for row in rows:
        if row["policy"] == "counted" and row["attacker"] in SHOWN:
            found = families.setdefault(row["family"], {"family": row["family"], **dict.fromkeys(SHOWN, "-")})
            found[row["attacker"]] = f"{row['clock']:.4f} ±{(row['high'] - row['low']) / 2:.3f}"
    http: dict[str, str | documents.Cell] = {
        "policy": "policy",
        "by": "signal",
        "trials": "of",
        "found": documents.rate_cell,
    }
    every = [
        Table.of(f"Secrets found, mean of all families, and most (guessing: {GUESSING})", summed, columns, 2),
        Table.of("Secrets found under counted, by an exact clock", families.values(), shown),
        Table.of("Over HTTP", document["http"], http, 2),
    ]
    return [*(table for table in every if table.rows), documents.targets_table(document["targets"])]


def _summed(rows: list[Row]) -> Row:
    means = {signal: round(fmean(row[signal] for row in rows), 4) for signal in SIGNALS}
    most, family = max((max(row[signal] for signal in SIGNALS), row["family"]) for row in rows)
    named = {"most": f"{most:.4f}", "in": family if most > GUESSING else "-"}
    return {**rows[0], **means, **named, "of": sum(row["of"] for row in rows)}


def draw_attack(document: Document, axes: tuple[Axes, ...]) -> str:
    rows: list[Row] = document["offline"]
    for policy, style in (("counted", "o-"), (by.NO_NOISE_NAME, "s--")):
        shares: dict[int, list[float]] = {}
        for number in (*IDENTITIES, document["plan"]["setting"]["threshold"] + by.SPARE):
            if found := [row["clock"] for row in rows if (row["policy"], row["attacker"]) == (policy, voters(number))]:
                shares[number] = found
        axes[0].plot(list(shares), list(map(fmean, shares.values())), style, label=f"{policy}, mean of families")
        axes[0].plot(list(shares), list(map(max, shares.values())), style, label=f"{policy}, most", alpha=0.5)
    axes[0].set(xlabel="identities of the attacker", ylabel="share of secrets found", ylim=(0, 1.05))
    families = list(dict.fromkeys(row["family"] for row in rows))
    series, errors = {}, {}
    for policy, attacker in (("counted", voters(VOTERS)), ("global", "plain")):
        each = [documents.find(rows, family=one, policy=policy, attacker=attacker) or NOT_TRIED for one in families]
        series[f"{policy}, {attacker}"] = [row["clock"] for row in each]
        low, high = [row["clock"] - row["low"] for row in each], [row["high"] - row["clock"] for row in each]
        errors[f"{policy}, {attacker}"] = [[max(0.0, one) for one in side] for side in (low, high)]
    documents.grouped_bars(axes[1], families, series, errors)
    axes[1].tick_params(axis="x", rotation=60)
    for panel in axes:
        panel.axhline(GUESSING, color="gray", linestyle=":", label="guessing")
        panel.legend(fontsize="x-small")
    return "one of four secrets, by an exact clock"


FIGURES = {"sharing-attack": documents.Drawing(lambda one: one if one["offline"] else None, draw_attack, (1, 2))}
