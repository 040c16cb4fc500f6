"""Traces: the two public formats, a synthetic one, scaling. Small files stand for the public ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import SetupError
from cloister_bench.capacity.traces import JITTER_S, MOST_LINE_BYTES, Request, read_trace, scaled, shrunk, synthetic

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:17:50.0000000,9,0
"""
MOONCAKE = "".join(
    json.dumps({"timestamp": at, "input_length": 10 + at, "output_length": 5, "hash_ids": [0, 1]}) + "\n"
    for at in (0, 1500, 3000)
)


def written(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text)
    return path


def test_azure(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, AZURE))
    assert [(round(each.at, 3), each.prompt, each.output) for each in trace.requests] == [
        (0.0, 374, 44),
        (4.315, 396, 109),
        (123.319, 9, 1),
    ]
    assert len(read_trace(tmp_path / "trace", minutes=2).requests) == 2


def test_mooncake(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, MOONCAKE))
    assert trace.requests == [Request(0, 10, 5), Request(1.5, 1510, 5), Request(3.0, 3010, 5)] and trace.seconds == 3.0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no trace"),
        ("a,b,c\n1,2,3\n", "no trace"),
        (AZURE + "2023-11-16 18:19:00,1\n", "line 5"),
        (AZURE + "2023-11-16 18:19:00,-1,1\n", "line 5"),
        (AZURE + "2023-11-16 18:10:00,1,1\n", "times go back"),
        (AZURE + "x" * (MOST_LINE_BYTES + 1), "more than"),
        (MOONCAKE + '{"timestamp": 9}\n', "line 4"),
        (MOONCAKE + '{"timestamp": 4000, "input_length": 1e30, "output_length": 1}\n', "line 4"),
        (MOONCAKE + "[" * 9000 + "\n", "line 4"),
        (AZURE[:75], "too few"),
    ],
)
def test_what_is_no_trace_is_an_error_with_its_place(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(SetupError, match=why):
        read_trace(written(tmp_path, text))


def test_an_absent_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot be read"):
        read_trace(tmp_path / "none")


@given(st.floats(0.05, 30.0), st.integers(0, 9))
def test_scaling_keeps_order_lengths_and_time(factor: float, seed: int) -> None:
    trace = synthetic(2.0, 300, 50, 20, seed=1)
    made = list(scaled(trace, factor * trace.per_second, seed))
    wanted = factor * len(trace.requests)
    assert abs(len(made) - wanted) <= 4 * max(len(trace.requests), 1) ** 0.5 + 1
    assert made == sorted(made, key=lambda each: each.at) and all(0 <= each.at <= trace.seconds for each in made)
    assert {each[1:] for each in made} <= {each[1:] for each in trace.requests}


def test_copies_stay_near_their_time() -> None:
    trace = synthetic(1.0, 400, 50, 20)
    lone = trace._replace(requests=[Request(0.0, 1, 1), Request(200.0, 7, 7), Request(399.0, 1, 1)])
    made = [each for each in scaled(lone, 100 * lone.per_second) if each.prompt == 7]
    assert len(made) == 100 and all(abs(each.at - 200) <= JITTER_S for each in made)
    assert len({each.at for each in made}) == 100


def test_a_synthetic_trace_has_its_means() -> None:
    trace = synthetic(5.0, 2000, 100, 30, seed=2)
    assert trace.per_second == pytest.approx(5.0, rel=0.05)
    assert sum(each.prompt for each in trace.requests) / len(trace.requests) == pytest.approx(100, rel=0.05)
    small = shrunk(trace, 10, 1.0, 200)
    assert len(small.requests) == 200 and small.per_second == pytest.approx(1.0, rel=0.02)
    assert small.requests[0].prompt == max(1, round(trace.requests[0].prompt / 10))


def test_the_public_traces_are_read_where_they_are(shared: Path) -> None:
    azure = shared / "data/chat/AzureLLMInferenceTrace_conv.csv"
    mooncake = shared / "data/chat/mooncake_conversation_trace.jsonl"
    if not azure.exists() or not mooncake.exists():
        pytest.skip("the public traces are not here")
    assert len(read_trace(azure).requests) == 19_366 and len(read_trace(mooncake).requests) == 12_031
