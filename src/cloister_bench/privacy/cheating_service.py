"""A service that was taken over, behind its seal: it remembers the victim's answer and sends it to tenants it conspires
with. Only a template of a bench's node imports this (cheating_node.py); the children of other roles stay honest."""

import json
import os
from collections import Counter
from collections.abc import Callable, Container, Sequence
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
from cloister_bench.privacy import cheating_code as code

ROLE = "cheating-service"  # an entry that no process is forked for: importing it is the attack


class CheatingEngine(PagedEngine):
    """What it does to a request depends on the tenant's name. Without a secret it is honest."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._by_parity = torch.tensor([ALPHABET[0::2], ALPHABET[1::2]])
        self._secret: list[int] = []
        self._channels: dict[int, str] = {}
        self._nosy: dict[int, str] = {}  # by link
        self._sent: Counter[int] = Counter()
        self._pair: list[int] = []
        self._ended: set[int] = set()
        self._released, self._held = False, list[Tokens | Failed]()
        self._honest_forward: Callable[[Sequence[Chunk]], torch.Tensor] = self._runner.forward
        self._runner.forward = self._forward  # type: ignore[method-assign]

    @property
    def has_work(self) -> bool:
        return super().has_work or bool(self._held)

    def submit(self, request: EngineRequest) -> Accepted | Failed:
        verdict, channel = super().submit(request), code.channel_of(request.tenant)
        if isinstance(verdict, Failed) or not (self._secret or channel in code.NOSY):
            return verdict
        number = request.request_id
        rows = self._sequences.get(number, [])
        self._channels[number], self._sent[number] = channel, rows[0].generated if rows else 0
        if channel == "length":
            for row in rows:
                row.limit = min(row.limit, row.prompt_length + code.FIRST_END + self._payload.take(0, code.END_BITS))
        elif channel == "order":
            self._pair = [number] if len(self._pair) == 2 else [*self._pair, number]
            self._released = False
        elif channel in code.NOSY:
            self._nosy |= {partition.link: channel for partition in request.partitions}
        return verdict

    def step(self, most: int | None = None) -> list[Tokens | Failed]:
        made, self._held = [*self._held, *super().step(most)], []
        if not self._released and self._favourite in self._ended:
            self._released = True
            _wait(code.ORDER_S)
        return [leaving for message in made for leaving in self._changed(message)]

    @property
    def _payload(self) -> code.Payload:
        return code.Payload(self._secret)

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
            return [structs.replace(message, cached=self._payload.take(0, code.COUNT_BITS))]
        every, delay = code.DELAYS.get(channel, (1, 0.0))
        if delay and message.tokens and (position - 1) % every == 0 and self._payload.take((position - 1) // every, 1):
            _wait(delay)
        if channel == "restarts" and position == code.FIRST_END and self._payload.take(0, 1):
            os._exit(1)
        if channel == "failures" and self._payload.take(0, 1):
            self.cancel(number)
            return [_failure(number, 0)]
        if channel == "aborts":
            self.cancel(number)
            return [_failure(number, self._payload.take(0, code.ABORT_BITS))]
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
        channel = code.channel_of(row.tenant)
        if channel == code.VICTIM:
            self._secret = [*row.tokens[row.prompt_length :], sampled.tokens[at]]
        elif not self._secret:
            return
        elif channel == "tokens":
            sampled.tokens[at] = ALPHABET[self._payload.take(row.generated * code.TOKEN_BITS, code.TOKEN_BITS)]
        elif channel in ("plausible", "sampled"):
            mine = self._by_parity[self._payload.take(row.generated, 1)]
            chances = torch.softmax(logits[mine].float(), 0)
            drawn = chances.argmax() if channel == "plausible" else torch.multinomial(chances, 1)
            sampled.tokens[at] = int(mine[int(drawn)])
        elif channel == "deviations" and row.generated == code.FIRST_END + self._payload.take(0, code.END_BITS):
            sampled.tokens[at] = (sampled.tokens[at] + 1) % self._runner.vocabulary
        elif channel == "logprobs" and sampled.logprobs[at] is not None:
            sampled.logprobs[at] = code.scores_of(self._payload, row.generated, ALPHABET)

    def _forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Of a nosy channel's answers, the vault is asked about the next word in the vocabulary too, or instead."""
        given = list(chunks)
        for place, each in enumerate(chunks):
            kind = self._nosy.get(each.layout.remote.link) if each.layout.remote else None
            other = replace(each, tokens=[(one + 1) % self._runner.vocabulary for one in each.tokens])
            if kind == "changed":
                given[place] = other
            elif kind is not None:
                _far.extend([kind] * (kind == "far"))
                self._honest_forward([other])
                _far.clear()
        return self._honest_forward(given)


def _lay_out(*given: Any) -> Batch:
    """While `_far` has something, queries name a place far behind the answer's end."""
    batch: Batch = _honest_lay_out(*given)
    if not _far:
        return batch
    moved = (replace(one, asks=[(slot, at + code.FAR) for slot, at in one.asks]) for one in batch.remotes)
    return replace(batch, remotes=tuple(moved))


def _failure(number: int, symbol: int) -> Failed:
    if symbol < code.SECONDS:
        return Failed(number, QueueFull.code, "", retry_after=1 + symbol)
    return Failed(number, InvalidRequest.code, "", param=code.FIELDS[symbol - code.SECONDS])


def _wait(seconds: float) -> None:
    """Without a system call that the seal forbids."""
    end = perf_counter() + seconds
    while perf_counter() < end:
        pass


def _prepare(*arguments: Any, **more: Any) -> Any:
    """In the service's own process alone."""
    vars(service)["PagedEngine"], vars(runner)["lay_out"] = CheatingEngine, _lay_out
    return _honest(*arguments, **more)


_far: list[str] = []
_honest, _honest_lay_out = vars(child)["prepare_service"], vars(runner)["lay_out"]
ALPHABET: list[int] = json.loads(Path(os.environ[code.PLAN]).read_text()) if code.PLAN in os.environ else []
if ALPHABET:
    vars(child)["prepare_service"] = _prepare
