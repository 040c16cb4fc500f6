"""Requests that no cache can answer, and when each token of an answer came. With T tokens in C chunks a gap counts as
gap * (C - 1) / (T - 1): the mean is exact."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import msgspec

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


class _Details(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_EVENT = msgspec.json.Decoder(_Event)


class BrokenAnswer(Exception):
    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Answer:
    """Times are on the clock of `perf_counter`, gaps in seconds per token."""

    sent: float
    first_token: float
    last_token: float
    output_tokens: int
    gaps: list[float]
    cached_tokens: int = 0


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
    cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else 0
    gaps = inter_token_gaps(times, tokens)
    return Answer(sent, times[0], times[-1], tokens, gaps, cached)


def inter_token_gaps(times: Sequence[float], tokens: int) -> list[float]:
    """Seconds between tokens, of which several may come at one time."""
    share = (len(times) - 1) / (tokens - 1) if tokens > len(times) else 1.0
    return [(later - earlier) * share for earlier, later in pairwise(times)]
