from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cloister.errors import ServiceUnavailable, SetupError
from cloister_bench.gpu.plan import FULL, Case, Plan
from cloister_bench.gpu.results import Results
from cloister_bench.gpu.run import Bench, Session, SessionLost
from tests.cloister_bench.gpu.fakes import rows_of

CASE_S = 10.0


class Silent:
    def begin(self, part: str, total: int) -> None: ...

    def advance(self, what: str) -> None: ...

    def say(self, what: str) -> None: ...


class Machine:
    """Sessions that take ten seconds for a case, on a clock of their own."""

    def __init__(self, failing: tuple[str, ...] = (), lost: tuple[str, ...] = ()) -> None:
        self.now, self.started, self.open, self.failing, self.lost = 0.0, [], 0, failing, lost

    def start(self, case: Case) -> FakeSession:
        self.started.append(case.part)
        self.open += 1
        return FakeSession(self)


class FakeSession:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def measure(self, case: Case) -> Iterator[dict[str, Any]]:
        self._machine.now += CASE_S
        if case.part in self._machine.failing:
            raise ServiceUnavailable("it was told so")
        rows = rows_of(case)
        if case.part in self._machine.lost:
            yield next(rows)
            raise SessionLost("gone")
        yield from rows

    def close(self) -> None:
        self._machine.open -= 1


def measured(plan: Plan, machine: Machine) -> tuple[Results, list[int]]:
    results, saved = Results(plan, "GPU"), []
    Bench(results, machine.start, Silent(), lambda: saved.append(len(results.rows)), lambda: machine.now).run()
    assert machine.open == 0, "no process is left"
    return results, saved


def test_all_cases_are_measured_with_one_process_and_one_for_each_peer() -> None:
    machine = Machine()
    results, saved = measured(FULL, machine)
    assert not results.failed and not results.left_out
    assert len(machine.started) == 1 + [case.part for case in FULL.cases()].count("transformers")
    assert set(range(1, len(results.rows) + 1)) <= set(saved), "every number is saved when it is there"


def test_no_case_begins_after_its_time_and_those_left_out_are_said() -> None:
    plan = replace(FULL, minutes=1.0)
    results, _ = measured(plan, Machine())
    begun = 60 / CASE_S
    assert len(results.left_out) == len(plan.cases()) - begun
    assert results.left_out[0] == "requests, 32 users, 512 tokens"
    assert results.document()["left_out"] == results.left_out and {row["part"] for row in results.rows} >= {"requests"}


def test_the_minutes_count_from_the_commands_start() -> None:
    machine, results = Machine(), Results(replace(FULL, minutes=1.0), "GPU")
    machine.now = 45.0  # the kernels were compiled
    Bench(results, machine.start, Silent(), lambda: None, lambda: machine.now, begun=0.0).run()
    assert len(results.plan.cases()) - len(results.left_out) == 2


def test_a_case_that_fails_costs_that_case_alone() -> None:
    machine = Machine(failing=("requests",))
    results, _ = measured(FULL, machine)
    assert {each["reason"] for each in results.failed} == {"it was told so"}
    assert machine.started == ["floor", *["transformers"] * 3]
    assert results.document()["obfuscated"], "what comes after it is measured"


def test_a_process_that_is_lost_is_replaced_and_keeps_its_rows() -> None:
    machine = Machine(lost=("requests",))
    results, _ = measured(FULL, machine)
    assert len(results.failed) == 3 and machine.started[:3] == ["floor", "requests", "steps"], "another process goes on"
    assert len(results.document()["requests"]) == 3


CASE = Case("steps", 8)


def test_a_session_passes_rows_on_and_survives_what_a_case_raises() -> None:
    def prepare() -> Any:
        def measure(case: Case) -> Iterator[dict[str, Any]]:
            if case.users == 1:
                raise SetupError("too few users")
            yield from rows_of(case)

        return measure

    session = Session(prepare)
    try:
        assert list(session.measure(CASE)) == list(rows_of(CASE))
        with pytest.raises(ServiceUnavailable, match="too few users"):
            list(session.measure(replace(CASE, users=1)))
        assert list(session.measure(CASE))
    finally:
        session.close()


def test_a_session_that_breaks_or_is_silent_is_lost(tmp_path: Any) -> None:
    import os
    import time

    def breaking() -> Any:
        raise RuntimeError("CUDA error: unspecified launch failure")

    def hanging() -> Any:
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(600)

    for prepare, why in ((breaking, "launch failure"), (hanging, "does not answer")):
        session = Session(prepare, silent_s=0.5, ended_s=0.1)
        with pytest.raises(SessionLost, match=why):
            list(session.measure(CASE))
        session.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
