"""A measurement's document as tables."""

from __future__ import annotations

from cloister.bench.suite.results import Document
from cloister.bench.suite.tables import Table, number, targets_table

COLUMNS = ("load", "level", "tokens/s", "of open's", "answer, ms", "first token, ms")


def tables(document: Document) -> list[Table]:
    """One for each model, where a step's time goes, and the targets."""
    models: dict[str, list[list[str]]] = {}
    for run in document["runs"]:
        load = f"{run['users']} × {run['input_tokens']}/{run['output_tokens']}"  # users × tokens in/tokens out
        numbers = (run[name] for name in ("tokens_per_s", "ratio_to_open", "answer_ms", "ttft_ms"))
        models.setdefault(run["model"], []).append([load, run["level"], *map(number, numbers)])
    runs = [Table(model, COLUMNS, rows) for model, rows in models.items()]
    return [*runs, _breakdown(document), targets_table(document["targets"])]


def _breakdown(document: Document) -> Table:
    breakdown = document["breakdown"]
    names = next(iter(breakdown.values()))["phases_ms"] if breakdown else ()
    rows = [
        [name.replace("_", " "), *(f"{each['phases_ms'][name]:.3f}" for each in breakdown.values())] for name in names
    ]
    rows += [["whole step", *(f"{each['step_ms']:.3f}" for each in breakdown.values())]] if breakdown else []
    return Table("A step of the service at partitioned, ms", ("", *(f"{users} users" for users in breakdown)), rows)
