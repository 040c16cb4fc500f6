"""Steps of a very small model on real parties; what is kept when a part fails, where measurements are made up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("spu", reason="generation on shares needs the distribution cloister-mpc")

from cloister.errors import PartyLost
from cloister_bench.mpc.cost import Cost, total
from cloister_bench.mpc.parties import Parties
from cloister_bench.mpc.steps import VARIANTS, Bench, Plan, Results, programs_of
from tests.cloister_bench.mpc.fakes import cost
from tests.cloister_mpc.local import SHAPE

PLAN = Plan()
TINY = replace(SHAPE, layers=4, context=512, rotation=(1.0, 0.5), scales=(1.0, 1.0, 0.5, 0.5))


class Told:
    def __init__(self) -> None:
        self.parts: list[str] = []

    def begin(self, part: str, total: int) -> None:
        self.parts.append(part)

    def advance(self, what: str) -> None: ...

    def say(self, what: str) -> None: ...


def bench(plan: Plan = PLAN, shape: Any = SHAPE, told: Told | None = None) -> Bench:
    return Bench(Results(plan, "small"), shape, told or Told(), lambda: None)


def test_every_length_is_in_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    def steps(bench: Bench, parties: Parties, seq: int) -> dict[str, Cost]:
        return {name: cost(megabytes=seq / 100, messages=seq // 16) for name in VARIANTS}

    monkeypatch.setattr(Bench, "steps", steps)
    told = Told()
    made = bench(told=told)
    made.run()
    document = made._results.document()
    assert told.parts == ["lengths"] and document["failed"] == []
    costs = {(run["method"], run["seq"]) for run in document["runs"]}
    assert costs == {(name, seq) for name in VARIANTS for seq in (256, 512, 1024, 2048)}


def test_a_failure_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(bench: Bench, parties: Parties, seq: int) -> dict[str, Cost]:
        raise PartyLost("A party ended.")

    monkeypatch.setattr(Bench, "steps", lose)
    made = bench()
    made.run()
    assert made._results.document()["failed"] == [{"part": "lengths", "reason": "A party ended."}]


def whole_step(made: Bench, parties: Parties, name: str, seq: int) -> Cost:
    """All programs of a step in sequence, none counted twice."""
    order: Sequence[Any] = [program for program, times in programs_of(made._programs(name, seq)) for _ in range(times)]
    assert [program.name.rsplit("_", 1)[0] for program in order] == ["embed", *["step"] * 4, "rescale", "head"]
    return total(parties.cost_of(program) for program in order)


@pytest.mark.release
def test_composed_kinds_of_programs_make_the_whole_step_and_mpcache_sends_less() -> None:
    made = bench(Plan(repeats=1, new_tokens=16), TINY)
    with Parties(profile=True) as parties:
        found = made.steps(parties, 512)
        whole = whole_step(made, parties, "mpcache", 512)
    assert found["mpcache"].bytes == pytest.approx(whole.bytes, rel=0.1)
    assert found["mpcache"].messages == pytest.approx(whole.messages, rel=0.1)
    assert found["mpcache"].cpu > 0 and found["mpcache"].bytes < found["full"].bytes < found["full_library"].bytes
