"""Measurements of a GPU that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cloister_bench.gpu.model import step_bytes
from cloister_bench.gpu.plan import FULL, Case
from cloister_bench.gpu.results import Results

RATE = 4.0e12
Row = dict[str, Any]


def rows_of(case: Case) -> Iterator[Row]:
    """As a session would find them: eight processes cost 4%, one 2%."""
    about = {"part": case.part, **case.labels()}
    open_ms = 1.2e3 * step_bytes(case.users, case.prompt + 40) / RATE
    if case.part == "floor":
        yield {**about, "bytes_per_second": RATE, "gpu": "none", "torch": "none"}
    elif case.part == "transformers":
        yield {**about, "design": "transformers", "answer": case.answer, "tokens_per_s": 100.0, "ttft_ms": 40.0}
    elif case.part == "obfuscated":
        for fakes in (0, *case.lambdas):
            if case.users * fakes > 500:
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
        yield {**about, "design": "open", "ms": open_ms}
        for count in case.settings():
            ratio = 1.02 if count == 1 else 1.04
            row = {"design": "partitioned", "processes": count, "ms": ratio * open_ms, "ratio": ratio}
            yield {**about, **row, "same_bits": True}
        for processes, mb in ((1, 100.0), (8, 684.0)):
            yield {"part": "memory", "processes": processes, "mb": mb}


def results() -> Results:
    made = Results(FULL, "GPU")
    for case in FULL.cases():
        for row in rows_of(case):
            made.add(row)
    return made
