"""Which parts are measured, on which parties, and what is kept when one fails. What is measured is made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("spu", reason="generation on shares needs the distribution cloister-mpc")

from cloister.errors import PartyLost
from cloister_bench.mpc import run as module
from cloister_bench.mpc.cost import Cost
from cloister_bench.mpc.meter import Part, Step
from cloister_bench.mpc.plan import FULL, PARTS, VARIANTS, Variant
from cloister_bench.mpc.quality import QualityRow
from cloister_bench.mpc.results import FIGURES, Results
from cloister_bench.mpc.run import Bench
from cloister_bench.suite.documents import draw_figures
from tests.cloister_bench.mpc.fakes import cost
from tests.cloister_mpc.local import SHAPE


class FakeParties:
    open = 0

    def __enter__(self) -> FakeParties:
        FakeParties.open += 1
        return self

    def __exit__(self, *_: object) -> None:
        FakeParties.open -= 1


class FakeMeter:
    """Costs grow with the sequence; a share of it for whoever evicts."""

    def __init__(self, parties: FakeParties, shape: object, *, repeats: int, new_tokens: int) -> None:
        self.parties, self.shape = parties, shape

    def step(self, variant: Variant, seq: int) -> Step:
        read = seq / 10 if variant.plan.method == "mpcache" else seq
        return Step((Part("step_1", 30, cost(read / 100, seq // 16)),))

    def steps(self, variants: Sequence[Variant], seq: int) -> list[Step]:
        return [self.step(variant, seq) for variant in variants]

    def whole_step(self, variant: Variant, seq: int) -> list[Cost]:
        return [part.cost for part in self.step(variant, seq).parts for _ in range(part.times)]


class Told:
    def __init__(self) -> None:
        self.parts: list[str] = []

    def begin(self, part: str, total: int) -> None:
        self.parts.append(part)

    def advance(self, what: str) -> None: ...

    def say(self, what: str) -> None: ...


@pytest.fixture(autouse=True)
def without_parties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Parties", FakeParties)
    monkeypatch.setattr(module, "Meter", FakeMeter)


def judged(say: Callable[[str], None]) -> list[QualityRow]:
    return [QualityRow("mpcache", 0.1, "retrieval", 0.99, 1.0), QualityRow("snapkv", 0.1, "retrieval", 0.9, 1.0)]


def measured(plan: Any = FULL, parts: Sequence[Any] = PARTS) -> tuple[dict[str, Any], Told]:
    results, told, saved = Results(plan, "small"), Told(), []
    Bench(results, SHAPE, told, lambda: saved.append(results.document()), quality=judged).run(parts)
    assert saved and FakeParties.open == 0
    return saved[-1], told


def test_every_part_is_in_the_document(tmp_path: Path) -> None:
    document, told = measured()
    assert set(told.parts) == set(PARTS) and document["failed"] == [] == document["left_out"]
    costs = {(run["method"], run["protocol"], run["seq"]) for run in document["runs"]}
    assert costs >= {(name, "aby3", seq) for name in VARIANTS for seq in (256, 512, 1024, 2048)}
    assert document["composition"][0]["deviation"]["megabytes"] == 0.0
    assert {row["method"] for row in document["operators"]} == {"full", "full_lean", "mpcache"}
    assert {"method": "full", "budget": 1.0, "task": "retrieval", "score": 1.0, "full_score": 1.0} in document[
        "quality"
    ]
    assert [row["met"] for row in document["targets"] if row["name"].startswith("quality")] == [True, True]
    assert len(draw_figures(document, tmp_path, FIGURES)) == 2


def test_a_part_that_fails_is_noted_and_the_next_has_new_parties(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(meter: FakeMeter, variant: Variant, seq: int) -> list[Cost]:
        raise PartyLost("A party ended.")

    monkeypatch.setattr(FakeMeter, "whole_step", lose)
    document, _ = measured(parts=("composition", "quality"))
    assert document["failed"] == [{"part": "composition", "reason": "A party ended."}]
    assert document["quality"]


def test_what_has_no_time_left_is_said_to_be_left_out() -> None:
    document, told = measured(replace(FULL, seconds=0.0))
    assert told.parts == [] and document["left_out"] == list(PARTS) and document["runs"] == []
