"""The document of `bench levels`, its table and figure, and the README's table in Markdown."""

import os
from dataclasses import dataclass, field
from typing import Any

from cloister.levels import LEVELS, OPEN, Level, default_of
from cloister_bench.levels.plan import SERVED, Plan, Side
from cloister_bench.suite import documents
from cloister_bench.suite.documents import Document, Panel, Row, Table, charts, number
from cloister_bench.suite.measurement import Measured, summary

HEADS = ("level", "the provider's service sees", "other tenants learn", "a plain call", "with a named session")
SEEN_MORE = {"obfuscated": " ([how](docs/obfuscation.md))"}  # the README's links behind a level's words
LEARNT_MORE = {"shared": " ([prefix cache](docs/prefix-cache.md))"}


@dataclass
class Results(documents.Results):
    plan: Plan
    quick: bool = False
    measured: Measured = field(default_factory=Measured)
    mpc: dict[str, Any] = field(default_factory=dict)

    def numbers(self) -> Document:
        sides = self.measured.rounds.items()
        found = Measured({side: {at: run for at, run in runs.items() if run.output_tokens} for side, runs in sides})
        runs = [run_entry(side, found) for side, rounds in found.rounds.items() if rounds and isinstance(side, Side)]
        return {"runs": runs, "mpc": dict(self.mpc)}

    def remarks(self) -> Document:
        return {"quick": self.quick, "cores": len(os.sched_getaffinity(0)), "seconds": round(self.seconds, 1)}


def run_entry(side: Side, measured: Measured) -> Row:
    name = f"{side.level}, session" if side.session else side.level
    return {"side": name, **summary(side, measured, OPEN), "session": side.session}


COLUMNS = {"level": "side", "users": "users", "tokens/s": "tokens_per_s", "of open's": "ratio_to_open"}
COLUMNS |= {"first token, ms": "ttft_ms", "rounds": "rounds", "errors": "errors"}


def tables(document: Document) -> list[Table]:
    return [Table.of(document["model"], document["runs"], COLUMNS)]


def readme_table(document: Document) -> str:
    title = "{model}, {plan[input_tokens]} tokens in, {plan[output_tokens]} out, {cores} cores".format_map(document)
    return Table(title, HEADS, [_row(level, document) for level in LEVELS.values()]).markdown()


def _row(level: Level, document: Document) -> list[str]:
    default = " (default)" if level.name == default_of(LEVELS) else ""
    seen = level.service_sees + SEEN_MORE.get(level.name, "")
    learnt = level.others_learn + LEARNT_MORE.get(level.name, "")
    if level.name in SERVED:
        runs = [run for run in document["runs"] if run["level"] == level.name]
        plain, kept = (_cell([run for run in runs if run["session"] is session]) for session in (False, True))
        kept = kept if level.uses_vault else "the same"
    else:
        plain, kept = _mpc_cell(document["mpc"]), "–"
    return [f"`{level.name}`{default}", seen, learnt, plain, kept]


def _cell(runs: list[Row]) -> str:
    if not runs:
        return "not measured"
    is_open = runs[0]["level"] == OPEN
    rates = _each(runs, "tokens_per_s", ".3g") if is_open else _each(runs, "ratio_to_open", ".2f")
    what = f"{_each(runs, 'users', 'd')} users: {rates} {'tokens/s' if is_open else 'of `open`'}"
    return f"{what}; first token {_each(runs, 'ttft_ms', ',.0f')} ms"


def _each(runs: list[Row], key: str, form: str) -> str:
    return " / ".join("-" if run[key] is None else format(run[key], form) for run in runs)


def _mpc_cell(mpc: Row) -> str:
    if "seconds_per_token" not in mpc:
        return mpc.get("reason") or "not measured"
    each, first, start = (number(mpc[key]) for key in ("seconds_per_token", "first_token_s", "first_request_s"))
    return f"1 user: {each} s for each token, {first} s for the first; {start} s with the parties' start"


FIGURES = {
    "levels": charts(
        lambda document: [run for run in document["runs"] if run["tokens_per_s"]],
        "{input_tokens} tokens in, {output_tokens} out",
        *(
            Panel("users", key, "side", title, log="xy", labels={"xlabel": "users at once"})
            for key, title in (("tokens_per_s", "output tokens/s"), ("ttft_ms", "first token, ms"))
        ),
        grid=(1, 2),
    )
}
