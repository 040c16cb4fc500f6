"""Closed-loop users: each sends its next request, which no cache can answer, when its last has ended. Knows a server
by its address only."""

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from secrets import token_hex
from statistics import median
from typing import Any

import msgspec

from cloister.addresses import HttpAddress
from cloister.errors import ProtocolError
from cloister_bench.connection import Connection

FIRST_ID, END_ID = 1000, 20000  # ordinary tokens in the common vocabularies


@dataclass(frozen=True, slots=True)
class Workload:
    """`timeout_s` bounds each request. `protection` None: the server's default level. With `sessions` a user keeps its
    vault; without, every request has a fresh one. The same seed gives the same prompts, in any order of users."""

    input_tokens: int = 64
    output_tokens: int = 64
    requests_per_user: int = 4
    warmup: int = 1
    seed: int = 0
    timeout_s: float = 300.0
    protection: str | None = None
    sessions: bool = False

    def request(self, model: str, session: str | None, *names: object) -> bytes:
        """For exactly `output_tokens` tokens (`ignore_eos`). Unset options are not sent: a server may not know them."""
        return msgspec.json.encode(
            {
                "model": model,
                "max_tokens": self.output_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
                **self._prompt(Random(":".join(map(str, (self.seed, *names))))),
                **({} if self.protection is None else {"protection": self.protection}),
                **({} if session is None else {"session": session}),
            }
        )

    def _prompt(self, random: Random) -> dict[str, Any]:
        """Token ids: the count is exact."""
        return {"prompt": [random.randrange(FIRST_ID, END_ID) for _ in range(self.input_tokens)]}


class _Choice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None

    @property
    def bears_tokens(self) -> bool:
        """An empty piece of text is half a character, so a token, unless it only announces the end."""
        return bool(self.text) or self.finish_reason is None


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_EVENT = msgspec.json.Decoder(_Event)


class BrokenAnswer(Exception):
    """Its text is the kind of failure."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Times are on the clock of `perf_counter`."""

    sent: float
    first_token: float
    last_token: float
    output_tokens: int

    @property
    def seconds_per_token(self) -> float:
        """After the first one."""
        return (self.last_token - self.first_token) / max(1, self.output_tokens - 1)


def read_answer(sent: float, arrivals: Sequence[tuple[float, bytes]]) -> Answer:
    """An event counts from the arrival of its last byte."""
    times: list[float] = []
    usage, done, rest = _Usage(), False, b""
    for now, piece in [*arrivals, (arrivals[-1][0] if arrivals else sent, b"\n")]:
        *lines, rest = (rest + piece).split(b"\n")
        for payload in (line[5:].strip() for line in lines if line.startswith(b"data:")):
            if payload == b"[DONE]":
                done = True
                continue
            try:
                event = _EVENT.decode(payload)
            except msgspec.MsgspecError:
                raise BrokenAnswer("malformed event") from None
            if event.error is not None:
                raise BrokenAnswer("error in stream")
            usage = event.usage or usage
            if any(choice.bears_tokens for choice in event.choices):
                times.append(now)
    if not done:
        raise BrokenAnswer("not a stream" if not times else "ended without [DONE]")
    if not times:
        raise BrokenAnswer("no tokens")
    tokens = usage.completion_tokens or len(times)
    return Answer(sent, times[0], times[-1], tokens)


@dataclass(frozen=True, slots=True)
class RunReport:
    """Medians in milliseconds, None where nothing was measured. `answer_ms`: from asking to an answer's last token."""

    output_tokens_per_s: float = 0.0
    ttft_ms: float | None = None
    token_ms: float | None = None
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
        _median_ms(a.seconds_per_token for a in answers if a.output_tokens > 1),
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


def measure(address: HttpAddress, keys: Sequence[str | None], model: str, load: Workload, users: int) -> RunReport:
    """The users have these API keys, in turn."""
    crowd = [Connection(address, keys[number % len(keys)], load.timeout_s) for number in range(users)]
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
                errors.append(str(broken))
                if str(broken) == "timeout":
                    return  # the next would most likely wait as long

    def leave(number: int) -> None:
        if sessions[number] is not None:
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
