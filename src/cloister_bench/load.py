"""Closed-loop users: each sends its next request when its last has ended. Knows one server by its address only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from statistics import median

from cloister.addresses import HttpAddress
from cloister.errors import ProtocolError
from cloister_bench.connection import Connection
from cloister_bench.messages import Answer, BrokenAnswer, Workload, read_answer


@dataclass(frozen=True, slots=True)
class RunReport:
    """Medians in milliseconds, None where nothing was measured. `answer_ms`: from asking to an answer's last token."""

    output_tokens_per_s: float = 0.0
    ttft_ms: float | None = None
    itl_ms: float | None = None
    answer_ms: float | None = None
    errors_by_kind: dict[str, int] = field(default_factory=dict)
    output_tokens: int = 0

    @property
    def errors(self) -> int:
        return sum(self.errors_by_kind.values())

    @property
    def kinds_of_errors(self) -> str:
        return ", ".join(f"{count} × {kind}" for kind, count in self.errors_by_kind.items())


def summarise(answers: Sequence[Answer], errors: Sequence[str]) -> RunReport:
    """Throughput is every whole answer's tokens over the time from the first request sent to the last token."""
    wall = max((a.last_token for a in answers), default=0.0) - min((a.sent for a in answers), default=0.0)
    tokens = sum(a.output_tokens for a in answers)
    return RunReport(
        round(tokens / wall, 3) if wall > 0 else 0.0,
        _median_ms(a.first_token - a.sent for a in answers),
        _median_ms(gap for a in answers for gap in a.gaps),
        _median_ms(a.last_token - a.sent for a in answers),
        dict(Counter(errors)),
        tokens,
    )


def _median_ms(seconds: Iterable[float]) -> float | None:
    known = list(seconds)
    return round(1000 * median(known), 3) if known else None


def ask(connection: Connection, body: bytes) -> Answer:
    """A completion. Raises BrokenAnswer with the kind of failure, and nothing else."""
    try:
        exchange = connection.exchange("POST", "/v1/completions", body)
    except TimeoutError:
        raise BrokenAnswer("timeout") from None
    except OSError:
        raise BrokenAnswer("connection") from None
    except ProtocolError:
        raise BrokenAnswer("not HTTP") from None
    if exchange.status != 200:
        raise BrokenAnswer(f"HTTP {exchange.status}")
    return read_answer(exchange.sent, exchange.arrivals)


def ask_once(address: HttpAddress, api_key: str | None, body: bytes, timeout_s: float = 300.0) -> Answer:
    """On a new connection. Raises BrokenAnswer."""
    connection = Connection(address, api_key, timeout_s)
    try:
        return ask(connection, body)
    finally:
        connection.close()


def measure(address: HttpAddress, api_key: str | None, model: str, load: Workload, users: int) -> RunReport:
    crowd = [Connection(address, api_key, load.timeout_s) for _ in range(users)]
    name, leaving = f"bench-{token_hex(6)}", list[bool]()
    sessions = [f"{name}-{number}" if load.sessions else None for number in range(users)]
    answers: list[Answer] = []
    errors: list[str] = []

    def ask_in_turn(number: int, phase: str, requests: int) -> None:
        for turn in range(requests):
            if leaving:
                return
            body = load.request(model, sessions[number], users, phase, number, turn)
            try:
                answers.append(ask(crowd[number], body))
            except BrokenAnswer as broken:
                errors.append(broken.kind)
                if broken.kind == "timeout":
                    return  # the next would most likely wait as long

    def leave(number: int) -> None:
        if sessions[number] is not None and crowd[number].usable:
            with suppress(OSError, ProtocolError):
                crowd[number].exchange("DELETE", f"/v1/sessions/{sessions[number]}")

    numbers = range(users)
    with ThreadPoolExecutor(users) as threads:
        try:
            list(threads.map(lambda number: ask_in_turn(number, "warmup", load.warmup), numbers))
            answers.clear()
            errors.clear()
            list(threads.map(lambda number: ask_in_turn(number, "run", load.requests_per_user), numbers))
            list(threads.map(leave, numbers))
        finally:
            leaving.append(True)
            for connection in crowd:
                connection.close()
    return summarise(answers, errors)
