"""The document of sides that were measured in turn, with one table and one figure."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from cloister_bench.suite import documents
from cloister_bench.suite.documents import Document, Drawing, Panel, Row, Table, charts
from cloister_bench.suite.measurement import Measured, summary


@dataclass
class Comparison(documents.Results):
    """`base`: the level or server that the others are compared with."""

    base: str = field(default="open", kw_only=True)
    measured: Measured = field(default_factory=Measured, kw_only=True)

    def numbers(self) -> Document:
        """Only of rounds in which at least one request was answered."""
        sides = self.measured.rounds.items()
        found = Measured({side: {at: run for at, run in runs.items() if run.output_tokens} for side, runs in sides})
        runs: list[Row] = [
            {"side": point.side, **summary(point, found, self.base), "session": point.session}
            for point, rounds in found.rounds.items()
            if rounds
        ]
        return {"base": self.base, "runs": runs}

    def remarks(self) -> Document:
        return {"cores": len(os.sched_getaffinity(0))}


def tables(document: Document) -> list[Table]:
    base = document["base"]
    columns = {"side": "side", "users": "users", "tokens/s": "tokens_per_s", f"of {base}'s": f"ratio_to_{base}"}
    columns |= {"first": "ttft_ms", "next": "between_tokens_ms"}
    return [
        Table.of(f"{document['model']}; first and next token in ms", document["runs"], {**columns, "errors": "errors"})
    ]


def figures(name: str) -> Mapping[str, Drawing]:
    drawn = (("tokens_per_s", "output tokens/s"), ("ttft_ms", "first token, ms"))
    panels = (Panel("users", key, "side", title, log="xy", labels={"xlabel": "users at once"}) for key, title in drawn)
    return {
        name: charts(
            lambda document: [run for run in document["runs"] if run["tokens_per_s"]],
            "{input_tokens} tokens in, {output_tokens} out",
            *panels,
            grid=(1, 2),
        )
    }
