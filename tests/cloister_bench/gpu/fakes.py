"""Measurements of a GPU that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cloister_bench.gpu.plan import FULL, Case
from cloister_bench.gpu.results import PHASES, Results
from cloister_bench.gpu.shapes import SHAPES, step_bytes

RATE = 4.0e12
Row = dict[str, Any]


def rows_of(case: Case) -> Iterator[Row]:
    """As a session would find them: eight processes cost 4%, one 2%, one for each user 20%."""
    about = {"part": case.part, **case.labels()}
    open_ms = 1.2e3 * step_bytes(SHAPES[case.shape], case.users, case.prompt + 40) / RATE
    phases = dict.fromkeys(PHASES, open_ms / len(PHASES))
    if case.part == "floor":
        yield {**about, "bytes_per_second": RATE, "gpu": "none", "torch": "none"}
    elif case.part == "transformers":
        yield {**about, "design": "transformers", "answer": case.answer, "tokens_per_s": 100.0, "ttft_ms": 40.0}
    elif case.part == "variants":
        for fakes in (0, *case.lambdas):
            if case.users * fakes > 1000:
                yield {**about, "part": "not offered", "what": f"obfuscated, λ = {fakes}", "reason": "too many rows"}
            else:
                ratio = 1 + 0.009 * fakes
                yield {**about, "lambda": fakes, "ms": ratio * open_ms, "ratio": ratio, "same_bits": True}
    elif case.part == "requests":
        yield {**about, "design": "open", "answer": case.answer, "tokens_per_s": 180.0, "ttft_ms": 20.0}
        for count in case.settings():
            row = {"design": "partitioned", "processes": count, "answer": case.answer, "tokens_per_s": 140.0}
            yield {**about, **row, "ratio": 140 / 180, "ttft_ms": 30.0, "same_tokens": True}
    else:
        yield {**about, "design": "open", "ms": open_ms, "phases_ms": phases}
        for count in case.settings():
            ratio = 1.2 if count == case.users > 8 else 1.02 if count == 1 else 1.04
            row = {"design": "partitioned", "processes": count, "ms": ratio * open_ms, "ratio": ratio}
            yield {**about, **row, "phases_ms": phases, "same_bits": True}
        if case.part == "steps":
            for processes, mb in ((1, 100.0), (8, 684.0)):
                yield {"part": "memory", "shape": case.shape, "processes": processes, "mb": mb}


def results() -> Results:
    made = Results(FULL, "GPU")
    for case in FULL.cases():
        for row in rows_of(case):
            made.add(row)
    return made
