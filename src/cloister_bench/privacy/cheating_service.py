"""A service that was taken over, behind its seal: it remembers the victim's answer and sends it to tenants it conspires
with. Only a template of a bench's node imports this (cheating_node.py); the children of other roles stay honest."""

import json
import os
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from msgspec import structs

from cloister.compute.layout import Batch, Chunk
from cloister.engine import runner
from cloister.engine.base import EngineRequest
from cloister.engine.paged import PagedEngine
from cloister.engine.sampler import Sampled
from cloister.engine.scheduler import Work
from cloister.engine.sequence import Sequence as Row
from cloister.errors import InvalidRequest, QueueFull
from cloister.forkserver import child
from cloister.messages.generation import Accepted, Failed, Tokens
from cloister.service import prepare as service
from cloister_bench.privacy.cheating_code import (
    ABORT_BITS,
    COUNT_BITS,
    DELAYS,
    END_BITS,
    FAR,
    FIELDS,
    FIRST_END,
    NOSY,
    ORDER_S,
    PLAN,
    SECONDS,
    TOKEN_BITS,
    VICTIM,
    Payload,
    channel_of,
    scores_of,
)

ROLE = "cheating-service"  # an entry that no process is forked for: importing it is the attack


class CheatingEngine(PagedEngine):
    """What it does to a request depends on the tenant's name. Without a secret it is honest."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._alphabet: list[int] = ALPHABET
        self._even = torch.tensor([self._alphabet[0::2], self._alphabet[1::2][: len(self._alphabet[0::2])]])
        self._secret: list[int] = []
        self._channels: dict[int, str] = {}
        self._nosy: dict[int, str] = {}
        self._sent: Counter[int] = Counter()
        self._pair: list[int] = []
        self._ended: set[int] = set()
        self._released = False
        self._held: list[Tokens | Failed] = []
        self._honest_forward: Callable[[Sequence[Chunk]], torch.Tensor] = self._runner.forward
        self._runner.forward = self._forward  # type: ignore[method-assign]

    @property
    def has_work(self) -> bool:
        return super().has_work or bool(self._held)

    def submit(self, request: EngineRequest) -> Accepted | Failed:
        verdict, channel = super().submit(request), channel_of(request.tenant)
        if isinstance(verdict, Failed) or not (self._secret or channel in NOSY):
            return verdict
        number = request.request_id
        rows = self._sequences.get(number, [])
        self._channels[number], self._sent[number] = channel, rows[0].generated if rows else 0
        if channel == "length":
            for row in rows:
                row.limit = min(row.limit, row.prompt_length + FIRST_END + self._payload.take(0, END_BITS))
        elif channel == "order":
            self._pair = [number] if len(self._pair) == 2 else [*self._pair, number]
            self._released = False
        elif channel in NOSY:
            self._nosy |= {partition.link: channel for partition in request.partitions}
        return verdict

    def step(self, most: int | None = None) -> list[Tokens | Failed]:
        made, self._held = [*self._held, *super().step(most)], []
        if not self._released and self._favourite in self._ended:
            self._released = True
            _wait(ORDER_S)
        return [leaving for message in made for leaving in self._changed(message)]

    @property
    def _payload(self) -> Payload:
        return Payload(self._secret)

    @property
    def _favourite(self) -> int:
        """Which of the pair goes first: that is the bit."""
        return self._pair[self._payload.take(0, 1)] if len(self._pair) == 2 else -1

    def _changed(self, message: Tokens | Failed) -> list[Tokens | Failed]:
        number = message.request_id
        channel, position = self._channels.get(number, ""), self._sent[number]
        if not channel or isinstance(message, Failed):
            return [message]
        if channel == "order":
            if number != self._favourite and not self._released:
                self._held.append(message)
                return []
            self._ended |= {number} if message.finish is not None else set()
        self._sent[number] += len(message.tokens)
        if channel == "usage" and position <= 1:
            return [structs.replace(message, cached=self._payload.take(0, COUNT_BITS))]
        every, delay = DELAYS.get(channel, (1, 0.0))
        if delay and message.tokens and (position - 1) % every == 0 and self._payload.take((position - 1) // every, 1):
            _wait(delay)
        if channel == "restarts" and position == FIRST_END and self._payload.take(0, 1):
            os._exit(1)
        if channel == "aborts":
            self.cancel(number)
            return [_failure(number, self._payload.take(0, ABORT_BITS))]
        return [message]

    def _sample(self, batch: list[Work], logits: torch.Tensor, broken: Container[int | None]) -> Sampled:
        sampled = super()._sample(batch, logits, broken)
        row = at = 0
        for work in batch:
            row += work.rows
            if work.samples and work.sequence.link not in broken:
                self._forge(work.sequence, logits[row - 1], sampled, at)
                at += 1
        return sampled

    def _forge(self, row: Row, logits: torch.Tensor, sampled: Sampled, at: int) -> None:
        channel = channel_of(row.tenant)
        if channel == VICTIM:
            self._secret = [*row.tokens[row.prompt_length :], sampled.tokens[at]]
        elif not self._secret:
            return
        elif channel == "tokens":
            sampled.tokens[at] = self._alphabet[self._payload.take(row.generated * TOKEN_BITS, TOKEN_BITS)]
        elif channel in ("plausible", "sampled"):
            mine = self._even[self._payload.take(row.generated, 1)]
            chances = torch.softmax(logits[mine].float(), 0)
            drawn = chances.argmax() if channel == "plausible" else torch.multinomial(chances, 1)
            sampled.tokens[at] = int(mine[int(drawn)])
        elif channel == "deviations" and row.generated == FIRST_END + self._payload.take(0, END_BITS):
            sampled.tokens[at] = (sampled.tokens[at] + 1) % self._runner.vocabulary
        elif channel == "logprobs" and sampled.logprobs[at] is not None:
            sampled.logprobs[at] = scores_of(self._payload, row.generated, self._alphabet)

    def _forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Of a nosy channel's answers, the vault is asked about the next word in the vocabulary too, or instead."""
        given = list(chunks)
        for place, each in enumerate(chunks):
            kind = self._nosy.get(each.layout.remote.link) if each.layout.remote else None
            other = replace(each, tokens=[(one + 1) % self._runner.vocabulary for one in each.tokens])
            if kind == "changed":
                given[place] = other
            elif kind is not None:
                with _asking_at(FAR if kind == "far" else 0):
                    self._honest_forward([other])
        return self._honest_forward(given)


@contextmanager
def _asking_at(further: int) -> Iterator[None]:
    """Queries name a place further on in their answers."""

    def lay_out(*given: Any) -> Batch:
        batch: Batch = honest(*given)
        moved = (replace(one, asks=[(slot, at + further) for slot, at in one.asks]) for one in batch.remotes)
        return replace(batch, remotes=tuple(moved))

    honest = vars(runner)["lay_out"]
    vars(runner)["lay_out"] = lay_out
    try:
        yield
    finally:
        vars(runner)["lay_out"] = honest


def _failure(number: int, symbol: int) -> Failed:
    if symbol < SECONDS:
        return Failed(number, QueueFull.code, "", retry_after=1 + symbol)
    return Failed(number, InvalidRequest.code, "", param=FIELDS[symbol - SECONDS])


def _wait(seconds: float) -> None:
    """Without a system call that the seal forbids."""
    end = perf_counter() + seconds
    while perf_counter() < end:
        pass


def _prepare(*arguments: Any, **more: Any) -> Any:
    """In the service's own process alone."""
    vars(service)["PagedEngine"] = CheatingEngine
    return _honest(*arguments, **more)


_honest = vars(child)["prepare_service"]
ALPHABET: list[int] = json.loads(Path(os.environ[PLAN]).read_text()) if PLAN in os.environ else []
if ALPHABET:
    vars(child)["prepare_service"] = _prepare
