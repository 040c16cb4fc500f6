"""The document of `bench levels`, and the README's table in Markdown."""

from dataclasses import dataclass, field
from typing import Any

from cloister.levels import LEVELS, OPEN, Level, default_of
from cloister_bench.comparison import Comparison
from cloister_bench.levels.plan import SERVED, Plan
from cloister_bench.suite.documents import Document, Row, Table, number

HEADS = ("level", "the provider's service sees", "other tenants learn", "a plain call", "with a named session")
SEEN_MORE = {"obfuscated": " ([how](docs/obfuscation.md))"}  # the README's links behind a level's words
LEARNT_MORE = {"shared": " ([prefix cache](docs/prefix-cache.md))"}


@dataclass
class Results(Comparison):
    plan: Plan
    quick: bool = False
    mpc: dict[str, Any] = field(default_factory=dict)

    def numbers(self) -> Document:
        return {**super().numbers(), "mpc": dict(self.mpc)}

    def remarks(self) -> Document:
        return {"quick": self.quick, **super().remarks()}


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
