"""The document of `bench sharing-attack`, its targets, tables and figure. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cloister.prefix.evidence import attack_gain
from cloister_bench.sharing.attack_offline import NO_GRID_NAME, NO_NOISE_NAME, NO_VETO_NAME, Rates
from cloister_bench.sharing.attackers import CROWD, IDENTITIES, MARKING, SIGNALS, SPARE, VOTERS, voters
from cloister_bench.sharing.families import CANDIDATES
from cloister_bench.suite import documents
from cloister_bench.suite.documents import Document, Drawing, Row, Table, Target, find, rate_of, targets_table, wilson

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GUESSING = 1 / CANDIDATES
POPULAR = f"sent by {CROWD}"
MOST_GAIN = 0.01


@dataclass(frozen=True, slots=True)
class Plan:
    families: tuple[str, ...]
    trials: int = 1800
    http: int = 0
    seed: int = 1
    epsilon: float = 1.0
    threshold: int = 12
    grid_ms: int = 100
    ms_per_token: float = 1.0


Chosen = Callable[[Row], bool]


def _gains(document: Document, policy: str, signal: str, attackers: Chosen) -> list[float]:
    rows = [row for row in document["offline"] if row["policy"] == policy and attackers(row)]
    return [row[signal] - GUESSING for row in rows]


def _largest(policy: str, signal: str, attackers: Chosen = lambda row: True) -> Callable[[Document], float | None]:
    return lambda document: max(_gains(document, policy, signal, attackers), default=None)


def _smallest(policy: str, signal: str, attackers: Chosen) -> Callable[[Document], float | None]:
    return lambda document: min(_gains(document, policy, signal, attackers), default=None)


def _of(*attackers: str) -> Chosen:
    return lambda row: row["attacker"] in attackers


def _promised(row: Row) -> bool:
    """Up to seven identities; what a crowd sent, or the victim marked, are other questions."""
    beyond = [voters(number) for number in IDENTITIES if number > VOTERS]
    return row["attacker"] not in (*beyond, POPULAR, MARKING)


TARGETS = (
    *(
        Target(f"counted, up to {VOTERS} identities, largest gain by {signal}", MOST_GAIN, measured, "at most")
        for signal in SIGNALS
        for measured in (_largest("counted", signal, _promised),)
    ),
    Target(
        "counted, marked by its account: largest gain", MOST_GAIN, _largest("counted", "count", _of(MARKING)), "at most"
    ),
    Target("partition, largest gain", MOST_GAIN, _largest("partition", "clock"), "at most"),
    Target("none, largest gain", MOST_GAIN, _largest("none", "clock"), "at most"),
    Target("registered, largest gain", MOST_GAIN, _largest("registered", "clock"), "at most"),
    Target("global loses: smallest gain, plain", 0.7, _smallest("global", "count", _of("plain"))),
    Target("safekv loses: largest gain, plain", 0.2, _largest("safekv", "count", _of("plain"))),
    Target("noise off: largest gain of the votes that pass T", 0.1, _largest(NO_NOISE_NAME, "clock")),
    Target("grid off, T 0: largest gain by time", 0.2, _largest(NO_GRID_NAME, "time")),
    Target("grid off, T 0: largest gain by count", MOST_GAIN, _largest(NO_GRID_NAME, "count"), "at most"),
    Target("veto off: smallest gain from a popular text", 0.7, _smallest(NO_VETO_NAME, "clock", _of(POPULAR))),
    Target(
        "veto on: gain from a popular text with identifiers",
        MOST_GAIN,
        _largest("counted", "clock", lambda row: row["attacker"] == POPULAR and row["family"] == "identifiers"),
        "at most",
    ),
)


@dataclass
class Results(documents.Results):
    plan: Plan
    offline: dict[str, Rates] = field(default_factory=dict)  # by family
    http: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # [right, trials] by setting and signal
    targets = TARGETS

    def numbers(self) -> Document:
        return {"guessing": GUESSING, "offline": list(self._offline()), "http": list(self._http())}

    def remarks(self) -> Document:
        bound = {str(one): attack_gain(one, self.plan.epsilon, self.plan.threshold) for one in IDENTITIES}
        return {"bound": bound, "seconds": round(self.seconds, 1)}

    def _offline(self) -> Iterable[Row]:
        for family, rates in self.offline.items():
            for policy, attackers in rates.items():
                for attacker, signals in attackers.items():
                    shares = {signal: round(right / trials, 5) for signal, (right, trials) in signals.items()}
                    of = int(signals["clock"][1])
                    low, high = wilson(signals["clock"][0], of)
                    row = {"family": family, "policy": policy, "attacker": attacker, "of": of, **shares}
                    yield {**row, "low": round(low, 4), "high": round(high, 4)}

    def _http(self) -> Iterable[Row]:
        for policy, signals in self.http.items():
            for signal, (right, trials) in signals.items():
                yield {"policy": policy, "signal": signal, **rate_of(right, int(trials))}


def tables(document: Document) -> list[Table]:
    rows: list[Row] = document["offline"]
    kinds = dict.fromkeys((row["policy"], row["attacker"]) for row in rows)
    summed = [_summed([row for row in rows if (row["policy"], row["attacker"]) == kind]) for kind in kinds]
    columns = {"policy": "policy", "attacker": "attacker", "trials": "of"}
    means = {f"by {signal}": signal for signal in SIGNALS}
    every = [
        Table.of(
            f"Secrets found, mean of all families (guessing: {GUESSING})",
            summed,
            {**columns, **means, "largest gain": "largest", "in": "worst"},
            2,
        ),
        Table.of(
            "Secrets found under counted, by an exact clock",
            [{"family": family} for family in dict.fromkeys(row["family"] for row in rows)],
            {
                "family": "family",
                **{name: _cell(document, name) for name in ("plain", "7 voters", "12 voters", POPULAR)},
            },
        ),
        Table.of(
            "Over HTTP",
            document["http"],
            {"policy": "policy", "by": "signal", "trials": "of", "found": lambda row: documents.rate_cell(row)},
            2,
        ),
    ]
    return [*(table for table in every if table.rows), targets_table(document["targets"])]


def _summed(rows: list[Row]) -> Row:
    means = {signal: round(sum(row[signal] for row in rows) / len(rows), 4) for signal in SIGNALS}
    worst = max(rows, key=lambda row: max(row[signal] for signal in SIGNALS))
    largest = max(worst[signal] for signal in SIGNALS) - GUESSING
    named = {"policy": rows[0]["policy"], "attacker": rows[0]["attacker"], "of": sum(row["of"] for row in rows)}
    return {**named, **means, "largest": f"{largest:+.4f}", "worst": worst["family"] if largest > 0 else "-"}


def _cell(document: Document, attacker: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        one = find(document["offline"], family=row["family"], policy="counted", attacker=attacker)
        return "-" if one is None else f"{one['clock']:.4f} ±{(one['high'] - one['low']) / 2:.3f}"

    return cell


def draw_attack(document: Document, axes: tuple[Axes, ...]) -> str:
    rows: list[Row] = document["offline"]
    by_votes, by_family = axes
    threshold = document["plan"]["threshold"]
    for policy, style in (("counted", "o-"), (NO_NOISE_NAME, "s--")):
        for name, chosen in (("mean", _mean), ("worst family", max)):
            known = {
                number: [row["clock"] for row in rows if (row["policy"], row["attacker"]) == (policy, voters(number))]
                for number in (*IDENTITIES, threshold + SPARE)
            }
            known = {number: shares for number, shares in known.items() if shares}
            by_votes.plot(list(known), [chosen(shares) for shares in known.values()], style, label=f"{policy}, {name}")
    by_votes.axhline(GUESSING, color="gray", linestyle=":", label="guessing")
    by_votes.set(xlabel="identities of the attacker", ylabel="share of secrets found", ylim=(0, 1.05))
    by_votes.legend(fontsize="x-small")
    families = list(dict.fromkeys(row["family"] for row in rows))
    shown = (("counted", voters(VOTERS)), ("safekv", "plain"), ("global", "plain"))
    found = {kind: [find(rows, family=one, policy=kind[0], attacker=kind[1]) for one in families] for kind in shown}
    series = {", ".join(kind): [row["clock"] if row else None for row in each] for kind, each in found.items()}
    errors = {
        ", ".join(kind): [
            [max(0.0, row["clock"] - row["low"]) if row else 0.0 for row in each],
            [max(0.0, row["high"] - row["clock"]) if row else 0.0 for row in each],
        ]
        for kind, each in found.items()
    }
    documents.grouped_bars(by_family, families, series, errors)
    by_family.tick_params(axis="x", rotation=60)
    by_family.axhline(GUESSING, color="gray", linestyle=":")
    by_family.legend(fontsize="x-small")
    return "one of four secrets, by an exact clock"


def _mean(shares: list[float]) -> float:
    return sum(shares) / len(shares)


FIGURES = {"sharing-attack": Drawing(lambda document: document if document["offline"] else None, draw_attack, (1, 2))}
