import json

import pytest

from cloister.compute.base import PHASES
from cloister_bench.spd.results import OTHER, STEPS, TARGETS, Results, breakdown_entry
from cloister_bench.suite.measurement import Measured, Point
from tests.cloister_bench.spd.fakes import PLAN, document, results, run


def test_the_document_is_as_promised() -> None:
    made = json.loads(json.dumps(document()))
    assert list(made)[:3] == ["runs", "breakdown", "memory"]
    first = made["runs"][0]
    promised = ["level", "users", "input_tokens", "output_tokens", "tokens_per_s", "ttft_ms", "ratio_to_open", "model"]
    assert set(first) >= set(promised)
    assert {(one["figure"], one["model"]) for one in made["runs"]} == {(4, "small"), (5, "large"), (6, "small")}
    assert all({"name", "target", "measured", "met"} <= set(target) for target in made["targets"])


def test_ratios_and_medians_of_a_run() -> None:
    runs = {(one["figure"], one["level"], one["users"]): one for one in document()["runs"]}
    assert runs[4, "open", 8]["ratio_to_open"] == 1.0
    assert runs[4, "partitioned", 8]["ratio_to_open"] == pytest.approx(0.9)
    assert runs[4, "partitioned", 8]["ratio_to_isolated"] == pytest.approx(4.5)
    assert runs[4, "partitioned", 8]["tokens_per_s"] == pytest.approx((720 + 360) / 2)
    assert runs[4, "partitioned", 8]["per_token_ms"] == pytest.approx(1000 / 0.9 / 64, rel=1e-3)
    assert runs[4, "partitioned", 32]["ratio_to_isolated"] is None, "isolated was not measured there"


def test_what_was_left_out_is_said_with_the_reason() -> None:
    made = results()
    late = Point("isolated", 16, 64, 64)
    made.measured["users"][1].left_out.append(late)
    skipped = [(one["figure"], one["users"], one["output_tokens"]) for one in made.document()["skipped"]]
    assert skipped == [(4, 32, 64), (6, 8, 512), (4, 16, 64)]
    assert all(one["reason"] for one in made.document()["skipped"])


def test_the_breakdown_adds_up_to_the_step() -> None:
    entry = breakdown_entry({"query": 1.0, "waiting": 0.5, "rest": 2.0, "step": 5.0}, 100, run(8, 1), run(8, 1, 7.0))
    assert entry["step_ms"] == 50.0 and entry["phases_ms"][OTHER] == 15.0
    assert sum(entry["phases_ms"].values()) == pytest.approx(50.0)
    assert entry["phases_ms"]["waiting_for_input_attention"] == 5.0 and entry["between_tokens_ms"]["open"] == 7.0
    assert breakdown_entry({}, 0, run(8, 1), run(8, 1))["step_ms"] == 0.0


def test_every_phase_of_the_kernels_has_a_name() -> None:
    assert tuple(STEPS) == PHASES


def test_targets_are_met_missed_or_not_measured() -> None:
    verdicts = [(target["measured"], target["met"]) for target in document()["targets"]]
    assert verdicts == [
        (0.9, True),
        (0.9, True),
        (4.5, True),
        (1.15, True),
        (30.0, True),
        (0.0, True),
        (60.0, False),
        (2500.0, True),
    ]
    nothing = Results(PLAN, "small").document()["targets"]
    assert len(nothing) == len(TARGETS)
    assert all(not one["met"] and one["measured"] is None and one["reason"] for one in nothing)


def test_fewer_idle_vaults_do_not_meet_the_target_of_many() -> None:
    made = results()
    made.memory["idle_vaults"] = 8
    assert made.document()["targets"][-1]["measured"] is None


def test_a_part_that_measured_nothing_leaves_no_runs() -> None:
    made = Results(PLAN, "small")
    made.measured["users"] = ("small", Measured())
    assert made.document()["runs"] == []
