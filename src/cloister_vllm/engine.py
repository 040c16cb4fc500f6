"""The contract of engines over vLLM's core. Requests wait here: the tenant with least service goes first. One whose
prompt is in a vault waits until its whole answer has room: vLLM would compute a preempted one again, and a vault
answers each question once."""

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from cloister.compute.layout import Remote
from cloister.config import EngineSettings
from cloister.engine.base import Engine, EngineRequest
from cloister.errors import (
    CloisterError,
    InvalidRequest,
    ProtocolError,
    ServiceUnavailable,
    VaultLost,
    where_raised,
)
from cloister.fairness import ServiceMeter
from cloister.messages.generation import Accepted, Failed, Stats, Tokens
from cloister.messages.lifecycle import failed
from cloister.messages.types import FinishReason
from cloister_vllm.checks import check
from cloister_vllm.core import Core, Made
from cloister_vllm.queue import Queue
from cloister_vllm.reuse import Reuse

log = logging.getLogger(__name__)


@dataclass(slots=True, repr=False)
class Running:
    request: EngineRequest
    most: int
    charged: bool = False

    @property
    def link(self) -> int | None:
        return self.request.partitions[0].link if self.request.partitions else None

    @property
    def positions(self) -> int:
        """At its end."""
        return (1 if self.request.partitions else len(self.request.prompt)) + self.most


class VllmEngine(Engine):
    """A failed step ends all requests: what vLLM then holds is unknown, so the process is started again."""

    def __init__(self, core: Core, settings: EngineSettings) -> None:
        self._core, self._settings = core, settings
        self.max_context = core.max_context
        self._meter = ServiceMeter()
        self._queue = Queue(settings, self._meter)
        self._running: dict[int, Running] = {}
        self._links: dict[int, str] = {}  # why each is not to be asked
        self._reuse = Reuse(core.block_tokens)
        self._reserved = 0  # blocks, for the whole answers of requests that ask vaults
        self._steps = self._prompt_tokens = self._output_tokens = 0
        self._step_failed = False

    @property
    def meter(self) -> ServiceMeter:
        return self._meter

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._queue)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def submit(self, request: EngineRequest) -> Accepted | Failed:
        try:
            if request.request_id in self._running or request.request_id in self._queue:
                raise InvalidRequest("A request of this id is under way.", param="request_id")
            for partition in request.partitions:
                if reason := self._links.get(partition.link, "vault_lost"):
                    raise VaultLost.because(reason)
            check(request, self._core)
            self._queue.enter(request)
        except CloisterError as error:
            return failed(request.request_id, error)
        self._meter.arrive(request.tenant)
        return Accepted(request.request_id)

    def cancel(self, request_id: int) -> Tokens | None:
        if (running := self._running.get(request_id)) is not None:
            self._core.abort(request_id)
            self._end(running)
        elif (request := self._queue.leave(request_id)) is not None:
            self._forget(request)
        else:
            return None
        return Tokens(request_id, finish="cancelled")

    def step(self, most: int | None = None) -> list[Tokens | Failed]:
        """One of vLLM's, which bounds it itself."""
        if not self.has_work:
            return []
        self._steps += 1
        try:
            messages = self._admit()
            made = self._core.step()
            broken = self._core.broken()
            for each in made:
                if (running := self._running.get(each.number)) is not None and running.link not in broken:
                    messages += self._message(running, each)
        except Exception as error:
            log.error("A step failed: %s.", where_raised(error))
            return self._fail_all(error)
        for link, reason in broken.items():
            if link in self._links:
                self._links[link] = reason
            messages += self._fail_on(link, VaultLost.because(reason))
        return messages

    def take_failure(self) -> bool:
        was, self._step_failed = self._step_failed, False
        return was

    def label(self, request_id: int, public_tokens: int, registered: int = 0) -> None:
        self._reuse.label(request_id, public_tokens)

    def forget(self, tenant: str) -> None:
        """Its blocks stay until they are overwritten, and no request finds them again."""
        self._reuse.forget(tenant)

    def stats(self) -> Stats:
        held = sum(self._blocks_of(len(one.request.prompt) or 1) for one in self._running.values())
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
        """Until it is mapped it counts as malformed: the vault writes to it, so its content may be bad."""
        if link in self._links:
            raise ProtocolError("A link of this number is attached.")
        self._links[link] = "link_malformed"
        with suppress(CloisterError, OSError):
            self._core.attach(link, question, answer)
            self._links[link] = ""

    def attach_exported_link(self, link: int, slot: int) -> None:
        if link in self._links:
            raise ProtocolError("A link of this number is attached.")
        self._links[link] = "link_malformed"

    def detach_link(self, link: int) -> list[Failed]:
        if self._links.pop(link, None) is None:
            return []
        ended = self._fail_on(link, VaultLost.because("vault_lost"))
        self._core.detach(link)
        return ended

    def _fail_on(self, link: int, error: VaultLost) -> list[Failed]:
        lost = [one.request for one in self._running.values() if one.link == link]
        for request in lost:
            self._core.abort(request.request_id)
            self._end(self._running[request.request_id])
        for request in self._queue.leave_all_on(link):
            self._forget(request)
            lost.append(request)
        return [failed(request.request_id, error) for request in lost]

    def _blocks_of(self, positions: int) -> int:
        return -(-positions // self._core.block_tokens)

    def _admit(self) -> list[Tokens | Failed]:
        refused: list[Tokens | Failed] = []
        while len(self._running) < self._settings.max_running and (request := self._queue.first()) is not None:
            running = self._running_of(request)
            needed = self._blocks_of(running.positions) if request.partitions else 0
            if needed and self._reserved and self._reserved + needed > self._core.blocks:
                break
            self._queue.leave(request.request_id)
            try:
                self._core.add(self._reuse.job(request, self._remote(request), running.most))
            except ValueError:  # vLLM's own validation; its words may have the prompt's
                self._forget(request)
                refused.append(failed(request.request_id, InvalidRequest("vLLM refuses these parameters.")))
                continue
            self._running[request.request_id] = running
            self._reserved += needed
            self._meter.charge(request.tenant, inputs=len(request.prompt))
        return refused

    def _running_of(self, request: EngineRequest) -> Running:
        """Of an answer that a vault began, the first token is made, and counts."""
        began = 1 if request.partitions else 0
        return Running(request, min(request.params.max_tokens, self.max_context - len(request.prompt)) - began)

    def _remote(self, request: EngineRequest) -> Remote | None:
        return Remote(request.partitions[0].link, request.partitions[0].slot) if request.partitions else None

    def _message(self, running: Running, made: Made) -> list[Tokens | Failed]:
        request = running.request
        if not running.charged:
            running.charged = True
            self._prompt_tokens += len(request.prompt)
        self._output_tokens += len(made.tokens)
        self._meter.charge(request.tenant, outputs=len(made.tokens))
        if made.finish is not None:
            self._end(running)
        if made.finish in ("failed", "cancelled"):
            return [failed(made.number, ServiceUnavailable("The engine ended this request.", hint="Try again."))]
        finish = cast("FinishReason | None", made.finish)
        return [Tokens(made.number, made.tokens, made.scores, finish=finish)]

    def _end(self, running: Running) -> None:
        del self._running[running.request.request_id]
        if running.request.partitions:
            self._reserved -= self._blocks_of(running.positions)
        self._forget(running.request)

    def _forget(self, request: EngineRequest) -> None:
        self._reuse.ended(request.request_id)
        self._meter.leave(request.tenant)

    def _fail_all(self, error: Exception) -> list[Tokens | Failed]:
        self._step_failed = True
        lost = [one.request for one in self._running.values()]
        for one in list(self._running.values()):
            self._end(one)
        while (request := self._queue.first()) is not None:
            self._queue.leave(request.request_id)
            self._forget(request)
            lost.append(request)
        return [failed(request.request_id, error) for request in lost]
