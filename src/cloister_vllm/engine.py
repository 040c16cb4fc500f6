"""The contract of engines over vLLM's core. Requests wait here: the tenant with least service goes first, not the first
that came. No part of a prompt is reused; links and partitions are refused."""

import logging
from collections import deque
from dataclasses import dataclass
from typing import cast

from cloister.config import EngineSettings
from cloister.engine.base import Engine, EngineRequest
from cloister.errors import (
    CloisterError,
    InvalidRequest,
    PromptTooLong,
    ProtocolError,
    QueueFull,
    ServiceUnavailable,
    VaultLost,
    where_raised,
)
from cloister.fairness import ServiceMeter, payer_of
from cloister.messages.generation import Accepted, Failed, Stats, Tokens
from cloister.messages.lifecycle import failed
from cloister.messages.types import FinishReason
from cloister_vllm.arguments import unserved
from cloister_vllm.core import Core, Made

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Running:
    request: EngineRequest
    charged: bool = False


class VllmEngine(Engine):
    """A failed step ends all requests: what vLLM then holds is unknown, so the process is started again."""

    def __init__(self, core: Core, settings: EngineSettings) -> None:
        self._core, self._settings = core, settings
        self.max_context = core.max_context
        self._meter = ServiceMeter()
        self._waiting: dict[str, deque[EngineRequest]] = {}  # by payer
        self._running: dict[int, Running] = {}
        self._links: set[int] = set()
        self._steps = self._prompt_tokens = self._output_tokens = 0
        self._step_failed = False

    @property
    def meter(self) -> ServiceMeter:
        return self._meter

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def submit(self, request: EngineRequest) -> Accepted | Failed:
        try:
            self._check(request)
        except CloisterError as error:
            return failed(request.request_id, error)
        self._meter.arrive(request.tenant)
        self._waiting.setdefault(payer_of(request.tenant), deque()).append(request)
        return Accepted(request.request_id)

    def cancel(self, request_id: int) -> Tokens | None:
        if (running := self._running.pop(request_id, None)) is not None:
            self._core.abort(request_id)
            self._meter.leave(running.request.tenant)
        elif not self._leave_queue(request_id):
            return None
        return Tokens(request_id, finish="cancelled")

    def step(self, most: int | None = None) -> list[Tokens | Failed]:
        """One of vLLM's, which bounds it itself."""
        if not self.has_work:
            return []
        self._steps += 1
        try:
            messages = self._admit()
            for made in self._core.step():
                messages += self._message(made)
        except Exception as error:
            log.error("A step failed: %s.", where_raised(error))
            return self._fail_all(error)
        return messages

    def take_failure(self) -> bool:
        was, self._step_failed = self._step_failed, False
        return was

    def forget(self, tenant: str) -> None:
        """There is no page to drop: nothing is found again."""

    def stats(self) -> Stats:
        held = sum(-(-len(one.request.prompt) // self._core.block_tokens) for one in self._running.values())
        return Stats(
            running=len(self._running),
            waiting=self.waiting,
            blocks_total=self._core.blocks,
            blocks_free=max(0, self._core.blocks - held),
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
        )

    def attach_link(self, link: int, question: int, answer: int) -> None:
        """It counts as broken: a request over it fails."""
        if link in self._links:
            raise ProtocolError("A link of this number is attached.")
        self._links.add(link)

    def attach_exported_link(self, link: int, slot: int) -> None:
        self.attach_link(link, -1, -1)

    def detach_link(self, link: int) -> list[Failed]:
        self._links.discard(link)
        return []

    def _check(self, request: EngineRequest) -> None:
        params, vocabulary = request.params, self._core.vocabulary
        if request.partitions:
            raise VaultLost.because("link_malformed")
        if request.request_id in self._running or self._queued(request.request_id):
            raise InvalidRequest("A request of this id is under way.", param="request_id")
        if not request.prompt:
            raise InvalidRequest("The prompt is empty.", param="prompt", hint="Send at least one token.")
        if not 0 <= min(request.prompt) <= max(request.prompt) < vocabulary:
            raise InvalidRequest(f"The prompt has token ids outside the vocabulary of {vocabulary}.", param="prompt")
        if params.logit_bias and max(params.logit_bias) >= vocabulary:
            raise InvalidRequest(f"logit_bias has ids outside the vocabulary of {vocabulary}.", param="logit_bias")
        if len(request.prompt) >= self.max_context:
            raise PromptTooLong(
                f"The prompt has {len(request.prompt)} tokens; prompt and answer together may have {self.max_context}.",
                param="prompt",
                hint="Shorten the prompt.",
            )
        reuses = request.policy != "none" or request.answered > 0
        if found := unserved(params) or ("protection" if reuses else None):
            raise InvalidRequest(f"The engine vllm does not serve {found} here.", param=found, hint="Leave it out.")
        self._check_room(payer_of(request.tenant))

    def _check_room(self, payer: str) -> None:
        mine, limits = len(self._waiting.get(payer, ())), self._settings
        if self.waiting >= limits.max_waiting or mine >= limits.max_waiting_per_tenant:
            raise QueueFull("Too many requests are waiting.", retry_after=1)

    def _admit(self) -> list[Tokens | Failed]:
        refused: list[Tokens | Failed] = []
        while self._waiting and len(self._running) < self._settings.max_running:
            payer = min(self._waiting, key=lambda one: (self._meter.served(one), one))
            request = self._waiting[payer].popleft()
            if not self._waiting[payer]:
                del self._waiting[payer]
            most = min(request.params.max_tokens, self.max_context - len(request.prompt))
            try:
                self._core.add(request.request_id, request.prompt, request.params, most)
            except ValueError:  # vLLM's own validation; its words may have the prompt's
                self._meter.leave(request.tenant)
                refused.append(failed(request.request_id, InvalidRequest("vLLM refuses these parameters.")))
                continue
            self._running[request.request_id] = Running(request)
            self._meter.charge(request.tenant, inputs=len(request.prompt))
        return refused

    def _message(self, made: Made) -> list[Tokens | Failed]:
        if (running := self._running.get(made.number)) is None:  # cancelled
            return []
        request = running.request
        if not running.charged:
            running.charged = True
            self._prompt_tokens += len(request.prompt)
        self._output_tokens += len(made.tokens)
        self._meter.charge(request.tenant, outputs=len(made.tokens))
        if made.finish is not None:
            del self._running[made.number]
            self._meter.leave(request.tenant)
        if made.finish in ("failed", "cancelled"):
            return [failed(made.number, ServiceUnavailable("The engine ended this request.", hint="Try again."))]
        finish = cast("FinishReason | None", made.finish)
        return [Tokens(made.number, made.tokens, made.scores, finish=finish)]

    def _fail_all(self, error: Exception) -> list[Tokens | Failed]:
        self._step_failed = True
        lost = [one.request for one in self._running.values()]
        lost += [request for queue in self._waiting.values() for request in queue]
        self._running.clear()
        self._waiting.clear()
        for request in lost:
            self._meter.leave(request.tenant)
        return [failed(request.request_id, error) for request in lost]

    def _queued(self, request_id: int) -> bool:
        return any(one.request_id == request_id for each in self._waiting.values() for one in each)

    def _leave_queue(self, request_id: int) -> bool:
        for payer, queue in list(self._waiting.items()):
            for request in queue:
                if request.request_id == request_id:
                    queue.remove(request)
                    self._meter.leave(request.tenant)
                    if not queue:
                        del self._waiting[payer]
                    return True
        return False
