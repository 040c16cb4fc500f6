"""Plans: enough nodes, not one too many; machines that were measured; commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloister.errors import SetupError
from cloister_bench.capacity.machine import MOST_BYTES, Step, decode_machine, find_machine, mean_profile, packaged_names
from cloister_bench.capacity.measure import resident_bytes, split
from cloister_bench.capacity.node import Level
from cloister_bench.capacity.plan import Aims, Planner
from cloister_bench.capacity.traces import synthetic
from tests.cli.conftest import Run
from tests.cloister_bench.capacity.profiles import OPEN, PARTITIONED, machine, profile


def planner(**more: Any) -> Planner:
    aims = Aims(**{"users": 600, "levels": {PARTITIONED: 1.0}, "per_hour": 20.0, "first_s": 3.0, **more})
    return Planner(machine(), synthetic(aims.per_second, 600, 80, 30), aims)


def test_it_finds_enough_nodes_and_not_one_too_many() -> None:
    planned = planner()
    nodes = planned.find()
    verdicts = {each["nodes"]: each["good"] for each in planned.tried}
    assert verdicts[nodes] and verdicts.get(nodes - 1) is False and nodes > 3
    report = planned.report(nodes, planned.simulate(nodes))
    assert report["first_p99_s"] <= 3.0 and report["busy"] <= 0.7 and report["away"] == 1
    assert report["retried"] > 0, "one node is away"
    assert report["node_bytes"] > machine().memory.node  # type: ignore[union-attr]


def test_more_users_need_more_nodes_and_a_price_is_multiplied() -> None:
    few, many = planner(), planner(users=1800, price_per_hour=2.0)
    at_few, at_many = few.find(), many.find()
    assert at_many > 1.8 * at_few
    assert many.report(at_many, many.simulate(at_many))["price_per_hour"] == 2.0 * at_many


def test_a_target_out_of_reach_is_an_error() -> None:
    with pytest.raises(SetupError, match="99th percentile"):
        planner(first_s=0.06, users=60).find()


def test_steps_are_interpolated_and_extended() -> None:
    made = profile(steps=(Step(1, 0.1), Step(5, 0.3)), context_s=0.001)
    found = [made.step_s(rows) for rows in (1, 3, 5, 9)]
    assert found == pytest.approx([0.1, 0.2, 0.3, 0.5]) and made.step_s(1, 100) == pytest.approx(0.2)
    assert profile(steps=(Step(2, 0.1),)).step_s(4) == pytest.approx(0.2)


@pytest.mark.parametrize("in_vault", [True, False])
@pytest.mark.parametrize(("piece_s", "token_s"), [(0.02, 0.004), (0.01, 0.001)])
def test_what_a_piece_takes_is_found_from_long_and_short_turns(piece_s: float, token_s: float, in_vault: bool) -> None:
    """A machine whose pieces are known gives them back."""
    one = 0.03
    made = Level(
        PARTITIONED if in_vault else OPEN,
        profile(piece_s=piece_s, token_s=token_s, steps=(Step(1, one),)),
        machine(),
    )
    alone, beside = (token_s + piece_s / size for size in (made.long, made.short))
    assert split(alone, beside, one, in_vault) == pytest.approx((piece_s, token_s), rel=0.2)


def test_profiles_come_back_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    made = machine()
    assert decode_machine(made.encode()) == made
    wrong = [b"{}", b"[", made.encode().replace(b'"toy"', b'""'), made.encode().replace(b'"levels": {', b'"x": {')]
    falling = made.encode().replace(b'"rows": 8', b'"rows": 64')
    for data in (*wrong, falling, made.encode().replace(b'"token_s": 0.004', b'"token_s": -1')):
        with pytest.raises(SetupError, match="no profile of a machine"):
            decode_machine(data)
    (tmp_path / "large").write_bytes(b" " * (MOST_BYTES + 1))
    for name in ("large", "absent"):
        with pytest.raises(SetupError):
            find_machine(str(tmp_path / name))
    with pytest.raises(SetupError, match="not measured at the level isolated"):
        made.profile("isolated")


def test_packaged_profiles_are_whole_and_say_where_they_come_from() -> None:
    assert packaged_names()
    for name in packaged_names():
        found = find_machine(name)
        assert found.source and found.noise and found.measured and found.profile(OPEN)


def test_memory_of_a_process_is_seen() -> None:
    import os

    assert resident_bytes(os.getpid()) > 10 << 20 and resident_bytes(2**22 + 1) == 0


def test_the_command_plans_writes_and_draws(run: Run, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_bytes(machine().encode())
    where = ("--machine", str(tmp_path / "m.json"), "--minutes", "10", "--prompt-tokens", "80", "--output-tokens", "30")
    shown = run("plan", "--users", "300", *where, "--json", str(tmp_path / "o.json"), "--plot-dir", str(tmp_path))
    assert shown.exit_code == 0, shown.output
    document = json.loads((tmp_path / "o.json").read_text())
    assert document["nodes"] > 1 and "first token, 99th percentile" in shown.stdout
    assert document["curve"][-1]["share"] == 1.0 and (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    fixed = run(
        "plan", "nodes", "--users", "300", *where, "--nodes", "2", "--levels", "open=0.5,partitioned=0.5", "--json", "-"
    )
    assert json.loads(fixed.stdout)["nodes"] == 2 and json.loads(fixed.stdout)["tried"] == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--levels", "open=0.4"), "do not make 1"),
        (("--levels", "open=x,partitioned=1"), "do not make 1"),
        (("--levels", "nothing"), "There is no level"),
        (("--levels", "isolated"), "not measured at the level isolated"),
        (("--model", "other"), "was measured with toy"),
        (("--trace", "/nowhere"), "cannot be read"),
        (("--machine", "/nowhere"), "cannot be read"),
    ],
)
def test_wrong_use_is_a_line_or_two(run: Run, tmp_path: Path, words: tuple[str, ...], why: str) -> None:
    (tmp_path / "m.json").write_bytes(machine().encode())
    result = run("plan", "--users", "30", "--machine", str(tmp_path / "m.json"), "--minutes", "1", *words)
    assert result.exit_code == 2 and why in result.stderr and "Traceback" not in result.stderr


def test_every_command_has_an_example(run: Run) -> None:
    for words in ((), ("nodes",), ("measure",), ("check",)):
        assert "cloister plan" in run("plan", *words, "--help").stdout


def test_the_mean_of_two_measurements() -> None:
    one, other = profile(token_s=0.002, steps=(Step(1, 0.1),)), profile(token_s=0.004, steps=(Step(1, 0.3),))
    assert mean_profile(one, other).token_s == pytest.approx(0.003)
    assert mean_profile(one, other).steps == (Step(1, 0.2),)
