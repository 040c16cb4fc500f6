"""A second engine under the contract: no model, no cache, no links. It answers a prompt with its own tokens."""

from __future__ import annotations

from collections import deque

from cloister.engine.base import Engine, EngineRequest
from cloister.errors import CloisterError, InvalidRequest, ProtocolError, VaultLost
from cloister.fairness import ServiceMeter
from cloister.messages.generation import Accepted, Failed, Stats, Tokens
from cloister.messages.lifecycle import failed


class EchoEngine(Engine):
    """One token a step for each request."""

    def __init__(self, max_context: int = 256) -> None:
        self.max_context = max_context
        self._meter = ServiceMeter()
        self._requests: dict[int, tuple[EngineRequest, deque[int]]] = {}
        self._links: set[int] = set()
        self._steps = self._outputs = 0

    @property
    def meter(self) -> ServiceMeter:
        return self._meter

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def submit(self, request: EngineRequest) -> Accepted | Failed:
        try:
            self._check(request)
        except CloisterError as error:
            return failed(request.request_id, error)
        self._meter.arrive(request.tenant)
        self._meter.charge(request.tenant, inputs=len(request.prompt))
        self._requests[request.request_id] = request, deque(request.prompt[: request.params.max_tokens])
        return Accepted(request.request_id)

    def _check(self, request: EngineRequest) -> None:
        if request.request_id in self._requests:
            raise InvalidRequest("A request of this id is under way.", param="request_id")
        if any(one.link not in self._links for one in request.partitions):
            raise VaultLost.because("vault_lost")
        if not request.partitions and not 0 < len(request.prompt) < self.max_context:
            raise InvalidRequest("The prompt is empty or too long.", param="prompt")

    def cancel(self, request_id: int) -> Tokens | None:
        return Tokens(request_id, finish="cancelled") if self._end(request_id) else None

    def step(self, most: int | None = None) -> list[Tokens | Failed]:
        self._steps += bool(self._requests)
        messages: list[Tokens | Failed] = []
        for request_id, (request, left) in list(self._requests.items()):
            token = left.popleft() if left else 0
            self._meter.charge(request.tenant, outputs=1)
            self._outputs += 1
            messages.append(Tokens(request_id, (token,), finish=None if left else "length"))
            if not left:
                self._end(request_id)
        return messages

    def take_failure(self) -> bool:
        return False

    def forget(self, tenant: str) -> None:
        return None

    def stats(self) -> Stats:
        running = len(self._requests)
        return Stats(running=running, waiting=0, blocks_total=0, blocks_free=0, steps=self._steps,
                     prompt_tokens=0, output_tokens=self._outputs, preemptions=0)  # fmt: skip

    def attach_link(self, link: int, question: int, answer: int) -> None:
        if link in self._links:
            raise ProtocolError("A link of this number is attached.")
        self._links.add(link)

    def attach_exported_link(self, link: int, slot: int) -> None:
        self.attach_link(link, -1, -1)

    def detach_link(self, link: int) -> list[Failed]:
        self._links.discard(link)
        lost = [
            number
            for number, (request, _) in self._requests.items()
            if any(one.link == link for one in request.partitions)
        ]
        for number in lost:
            self._end(number)
        return [failed(number, VaultLost.because("vault_lost")) for number in lost]

    def _end(self, request_id: int) -> bool:
        if (ended := self._requests.pop(request_id, None)) is None:
            return False
        self._meter.leave(ended[0].tenant)
        return True
