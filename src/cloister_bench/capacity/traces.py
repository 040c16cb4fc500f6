"""When requests come, and how long they are: the public traces of Azure and Mooncake, and a synthetic one. Lengths and
times only: no trace has text. Files are read line by line; a line that is too long or no request is an error."""

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from math import floor, log
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple

from cloister.errors import SetupError
from cloister.files import needed

TraceName = Literal["azure", "mooncake"]
MOST_LINE_BYTES = 1 << 16
MOST_REQUESTS = 20_000_000
MOST_TOKENS = 10_000_000
JITTER_S = 15.0
_AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"


class Request(NamedTuple):
    at: float
    prompt: int
    output: int


class Trace(NamedTuple):
    """In order of time, from 0. `seconds`: how long it lasts."""

    name: str
    requests: list[Request]
    seconds: float

    @property
    def per_second(self) -> float:
        return len(self.requests) / self.seconds


def read_trace(path: Path, minutes: float | None = None) -> Trace:
    """Its first minutes. The format is found by the first line."""
    with needed(f"{path} cannot be read", "Give a trace of Azure (CSV) or Mooncake (JSONL)."):
        lines = _lines(path)
        first = next(lines, "")
    azure = first.startswith(_AZURE)
    if not azure and not first.startswith("{"):
        hint = f"Azure's begins with {_AZURE}; each line of Mooncake's is a JSON object."
        raise SetupError(f"{path.name} is no trace that is known here.", hint=hint)
    rows = _azure(path, lines) if azure else _mooncake(path, _with(first, lines))
    return trace_of(path.name, rows, minutes)


def trace_of(name: str, requests: Iterable[Request], minutes: float | None = None) -> Trace:
    """SetupError where times go back, or there are no requests."""
    end = float("inf") if minutes is None else 60 * minutes
    kept: list[Request] = []
    begun: float | None = None
    for number, request in enumerate(requests):
        begun = request.at if begun is None else begun
        at = request.at - begun
        if kept and at < kept[-1].at:
            raise SetupError(f"{name}: times go back at request {number + 1}.", hint="Sort the trace by time.")
        if at >= end:
            break
        if number >= MOST_REQUESTS:
            raise SetupError(f"{name} has more than {MOST_REQUESTS} requests.", hint="Take fewer --minutes.")
        kept.append(Request(at, request.prompt, request.output))
    if len(kept) < 2 or kept[-1].at <= 0:
        raise SetupError(f"{name} has too few requests to replay.", hint="Take more --minutes, or another trace.")
    return Trace(name, kept, end if end <= kept[-1].at * 1.05 else kept[-1].at)


def _lines(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        while line := file.readline(MOST_LINE_BYTES + 1):
            if len(line) > MOST_LINE_BYTES:
                raise SetupError(f"{path.name} has a line of more than {MOST_LINE_BYTES} bytes.", hint=_NO_TRACE)
            if text := line.decode("utf-8", "replace").strip():
                yield text


_NO_TRACE = "Is it a trace?"


def _with(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _azure(path: Path, lines: Iterator[str]) -> Iterator[Request]:
    """Microsoft's: local time with seven digits, prompt tokens, generated tokens."""
    for number, line in enumerate(lines, 2):
        try:
            when, prompt, output = line.split(",")
            yield _request(datetime.fromisoformat(when).timestamp(), prompt, output)
        except ValueError:
            raise _wrong(path, number) from None


def _mooncake(path: Path, lines: Iterator[str]) -> Iterator[Request]:
    """Milliseconds, and lengths. Its hashes of shared blocks are not used: `partitioned` shares nothing."""
    for number, line in enumerate(lines, 1):
        try:
            row: Any = json.loads(line)
            yield _request(float(row["timestamp"]) / 1000, row["input_length"], row["output_length"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise _wrong(path, number) from None


def _request(at: float, prompt: str | int, output: str | int) -> Request:
    lengths = int(prompt), int(output)
    if not 0 <= at < 1e11 or not all(0 <= each <= MOST_TOKENS for each in lengths):
        raise ValueError
    return Request(at, max(lengths[0], 1), max(lengths[1], 1))


def _wrong(path: Path, number: int) -> SetupError:
    return SetupError(f"{path.name}: line {number} is no request.", hint="Remove it, or take another trace.")


def synthetic(per_second: float, seconds: float, prompt: int, output: int, seed: int = 0) -> Trace:
    """Poisson arrivals; lengths are exponential around these means, at least 1."""
    random, at, made = Random(f"trace:{seed}"), 0.0, []
    while (at := at + random.expovariate(per_second)) < seconds:
        lengths = (1 + floor(-log(1 - random.random()) * (mean - 1)) for mean in (prompt, output))
        made.append(Request(at, *lengths))
        if len(made) > MOST_REQUESTS:
            raise SetupError(f"That is more than {MOST_REQUESTS} requests.", hint="Take fewer users or --minutes.")
    return Trace("synthetic", made, seconds)


def scaled(trace: Trace, per_second: float, seed: int = 0) -> Iterator[Request]:
    """As many requests a second on average, in order: each is repeated or left out, and a copy comes up to JITTER_S
    earlier or later, so that minutes stay as busy as they were and no two users ask at the same instant."""
    factor = per_second / trace.per_second
    if factor * len(trace.requests) > MOST_REQUESTS:
        raise SetupError(f"That is more than {MOST_REQUESTS} requests.", hint="Take fewer users or --minutes.")
    random = Random(f"scaled:{seed}")
    whole = floor(factor)
    waiting: list[Request] = []
    for request in trace.requests:
        copies = whole + (random.random() < factor - whole)
        first = factor == 1.0
        for copy in range(copies):
            moved = request.at if first and not copy else request.at + random.uniform(-JITTER_S, JITTER_S)
            at = abs(moved) if moved <= trace.seconds else 2 * trace.seconds - moved
            waiting.append(request._replace(at=at))
        if len(waiting) >= 1 << 16:
            waiting.sort()
            split = next((place for place, one in enumerate(waiting) if one.at > request.at - JITTER_S), 0)
            yield from waiting[:split]
            del waiting[:split]
    waiting.sort()
    yield from waiting


def shrunk(trace: Trace, lengths: float, per_second: float, requests: int) -> Trace:
    """Its first requests, with lengths divided, at another rate: for machines smaller than where it was recorded."""
    kept = trace.requests[:requests]
    slower = len(kept) / (max(kept[-1].at, 1e-3) * per_second)
    made = [
        Request(each.at * slower, max(1, round(each.prompt / lengths)), max(1, round(each.output / lengths)))
        for each in kept
    ]
    return Trace(trace.name, made, made[-1].at)
