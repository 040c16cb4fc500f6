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

from cloister.compute.layout import Chunk
from cloister.engine.base import EngineRequest
from cloister.engine.paged import PagedEngine
from cloister.engine.sampler import Sampled
from cloister.engine.scheduler import Work
from cloister.engine.sequence import Sequence as Row
from cloister.errors import ServiceUnavailable
from cloister.forkserver import child
from cloister.messages.generation import Accepted, Failed, Tokens
from cloister.service import prepare as service
from cloister_bench.privacy.cheating_code import (
    COUNT_BITS,
    DELAY_S,
    END_BITS,
    FIRST_END,
    PLAN,
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
        self._nosy_links: set[int] = set()
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
        if isinstance(verdict, Failed) or not (self._secret or channel == "queries"):
            return verdict
        number = request.request_id
        self._channels[number], self._sent[number] = channel, int(bool(request.partitions))
        if channel == "length":
            for row in self._sequences.get(number, ()):
                row.limit = min(row.limit, row.prompt_length + FIRST_END + self._payload.take(0, END_BITS))
        elif channel == "order":
            self._pair = [number] if len(self._pair) == 2 else [*self._pair, number]
            self._released = False
        elif channel == "queries":
            self._nosy_links |= {partition.link for partition in request.partitions}
        return verdict

    def step(self, most: int | None = None) -> list[Tokens | Failed]:
        made, self._held = [*self._held, *super().step(most)], []
        if not self._released and self._favourite in self._ended:
            self._released = True
            _wait(DELAY_S)
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
        channel = self._channels.get(number, "")
        if not channel or isinstance(message, Failed):
            return [message]
        position = self._sent[number]
        first, self._sent[number] = position <= 1, position + len(message.tokens)
        if channel == "usage" and first:
            return [structs.replace(message, cached=self._payload.take(0, COUNT_BITS))]
        if channel == "timing" and message.tokens and self._payload.take(position, 1):
            _wait(DELAY_S)
        if channel in ("aborts", "restarts") and position == FIRST_END + self._payload.take(0, END_BITS):
            if channel == "restarts":
                os._exit(1)
            self.cancel(number)
            return [Failed(number, ServiceUnavailable.code, "")]
        if channel == "order":
            if number != self._favourite and not self._released:
                self._sent[number] = position
                self._held.append(message)
                return []
            if message.finish is not None:
                self._ended.add(number)
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
        elif channel == "logprobs" and sampled.logprobs[at] is not None:
            sampled.logprobs[at] = scores_of(self._payload, row.generated, self._alphabet)

    def _forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """A question more in every layer: what the vault answers for another token at the same place."""
        nosy = [each for each in chunks if each.layout.remote and each.layout.remote.link in self._nosy_links]
        if nosy:
            words = self._runner.vocabulary
            self._honest_forward([replace(each, tokens=[(one + 1) % words for one in each.tokens]) for each in nosy])
        return self._honest_forward(chunks)


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
