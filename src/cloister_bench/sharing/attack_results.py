"""The document of `bench sharing-attack`, its targets, tables and figure. Measures nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean

from cloister.prefix.public_pages import attack_gain
from cloister_bench.sharing import attackers as by
from cloister_bench.sharing.attackers import IDENTITIES, MARKING, SIGNALS, VOTERS, voters
from cloister_bench.sharing.families import CANDIDATES
from cloister_bench.sharing.world import Setting
from cloister_bench.suite import documents
from cloister_bench.suite.documents import Document, Panel, Row, Table, Target

GUESSING = 1 / CANDIDATES
POPULAR = f"sent by {by.CROWD}"
BEYOND = (*(voters(number) for number in IDENTITIES if number > VOTERS), POPULAR, MARKING)  # not what is promised
MOST_GAIN = 0.01


@dataclass(frozen=True, slots=True)
class Plan:
    families: tuple[str, ...]
    trials: int
    seed: int
    setting: Setting


def gain(policy: str, *attackers: str, signal: str = "clock") -> Callable[[Document], float | None]:
    """The largest of all families, above guessing: of these attackers, or of all that a promise is made for."""

    def chosen(row: Row) -> bool:
        named = row["attacker"] in attackers if attackers else row["attacker"] not in BEYOND
        return row["policy"] == policy and named

    def measured(document: Document) -> float | None:
        return max((row[signal] - GUESSING for row in filter(chosen, document["offline"])), default=None)

    return measured


HELD = ("counted", "registered", "partition", "none")
TARGETS = (
    *(Target(f"{name}, gain", MOST_GAIN, gain(name), "at most") for name in HELD),
    Target("counted, gain from marked prompts", MOST_GAIN, gain("counted", MARKING, signal="count"), "at most"),
    Target("global, gain of the plain attacker", 0.7, gain("global", "plain")),
    Target("noise off: gain of voters", 0.1, gain(by.NO_NOISE_NAME)),
    Target("grid off, T 0: gain by time", 0.2, gain(by.NO_GRID_NAME, signal="time")),
    Target("veto off: gain from a popular text", 0.7, gain(by.NO_VETO_NAME, POPULAR)),
)


@dataclass
class Results(documents.Results):
    plan: Plan
    offline: dict[str, by.Rates] = field(default_factory=dict)  # by family
    targets = TARGETS

    def numbers(self) -> Document:
        offline = []
        for family, rates in self.offline.items():
            for (policy, attacker), (of, *right) in rates.items():
                shares = {signal: round(one / of, 5) for signal, one in zip(SIGNALS, right, strict=True)}
                offline.append({"family": family, "policy": policy, "attacker": attacker, "of": int(of), **shares})
        return {"guessing": GUESSING, "offline": offline}

    def remarks(self) -> Document:
        setting = self.plan.setting
        return {"bound": {str(one): attack_gain(one, setting.epsilon, setting.threshold) for one in IDENTITIES}}


def tables(document: Document) -> list[Table]:
    rows: list[Row] = document["offline"]
    kinds = dict.fromkeys((row["policy"], row["attacker"]) for row in rows)
    summed = [_summed([row for row in rows if (row["policy"], row["attacker"]) == kind]) for kind in kinds]
    means = {f"by {signal}": signal for signal in SIGNALS}
    columns = {"policy": "policy", "attacker": "attacker", "trials": "of", **means, "most": "most"}
    title = f"Secrets found, mean of all families, and most (guessing: {GUESSING})"
    return [Table.of(title, summed, columns, 2), documents.targets_table(document["targets"])]


def _summed(rows: list[Row]) -> Row:
    means = {signal: round(fmean(row[signal] for row in rows), 4) for signal in SIGNALS}
    most = max(row[signal] for signal in SIGNALS for row in rows)
    return {**rows[0], **means, "most": most, "of": sum(row["of"] for row in rows)}


def _drawn(document: Document) -> list[Row]:
    """Voters of `counted` by an exact clock, with noise and without."""
    rows: list[Row] = document["offline"]
    found: list[Row] = []
    for policy in ("counted", by.NO_NOISE_NAME):
        for number in (*IDENTITIES, document["plan"]["setting"]["threshold"] + by.SPARE):
            shares = [row["clock"] for row in rows if (row["policy"], row["attacker"]) == (policy, voters(number))]
            drawn = {"mean of families": fmean(shares), "most": max(shares)} if shares else {}
            found += [{"voters": number, "share": one, "by": f"{policy}, {of}"} for of, one in drawn.items()]
    return found


FIGURES = {
    "sharing-attack": documents.charts(
        _drawn,
        "share of secrets found by an exact clock (dashed: guessing)",
        Panel("voters", "share", "by", "over the attacker's identities", limit=GUESSING),
        panel=(10.0, 3.4),
    )
}
