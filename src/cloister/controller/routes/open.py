"""`open` and `shared`: the frontend reads the prompt, the service gets its tokens and decodes. No vault is involved."""

import asyncio
from collections.abc import Callable

import msgspec

from cloister.controller.requests import Node, Request
from cloister.controller.routes.base import Route
from cloister.controller.service import Service
from cloister.errors import ServiceUnavailable
from cloister.levels import LEVELS, PolicyName
from cloister.messages.controller_frontend import SubmitTokens
from cloister.messages.controller_service import GeneratePrompt, PublicPrefix
from cloister.messages.generation import Accepted, Failed, Tokens


class OpenRoute(Route):
    level = LEVELS["open"]

    def __init__(self, node: Node, policy: PolicyName) -> None:
        super().__init__(node)
        self.policy = policy

    def submit(self, message: SubmitTokens) -> None:
        try:
            service = self.node.working_service()
        except ServiceUnavailable as reason:
            self.node.requests.refuse(message.request_id, reason)
            return
        request = Request(message.request_id, message.tenant, self.level, message.params, "service")
        request.shown = message.prompt
        self.node.requests.add(request)
        self.node.requests.read(request, len(message.prompt))
        head = message.request_id, message.tenant, message.prompt, message.params, message.public, message.salt
        self.hand_over(service, GeneratePrompt(*head, self.policy), examined=message.examined)

    def hand_over(self, service: Service, order: GeneratePrompt, *, examined: bool) -> None:
        """`examined`: a detector reads the prompt."""
        service.send(order)

    def cancel(self, request: Request) -> None:
        if self.node.service is not None:
            self.node.service.cancel(request.request_id, lambda: None)

    def from_service(self, request: Request, message: msgspec.Struct) -> None:
        assert isinstance(message, Accepted | Tokens | Failed)
        self.node.requests.advance(request, message)


PATIENCE_S = 1.0  # then a request is served without other tenants' blocks


class SharedRoute(OpenRoute):
    """Other tenants may find cached blocks in which a detector found nothing private (SafeKV). A request waits until
    its prompt is read: it finds others' blocks only as far as that is public. `is_read`: does a detector read now?"""

    level = LEVELS["shared"]

    def __init__(self, node: Node, is_read: Callable[[], bool]) -> None:
        super().__init__(node, "safekv")
        self._is_read = is_read
        self._held: dict[int, tuple[GeneratePrompt, asyncio.TimerHandle]] = {}

    def hand_over(self, service: Service, order: GeneratePrompt, *, examined: bool) -> None:
        if order.salt or not examined or not self._is_read():  # it finds no block of another tenant anyway
            super().hand_over(service, order, examined=examined)
            return
        loop = asyncio.get_running_loop()
        self._held[order.request_id] = order, loop.call_later(PATIENCE_S, self._serve, order.request_id)

    def labelled(self, label: PublicPrefix) -> None:
        if label.request_id in self._held:
            self._serve(label.request_id, label)
        elif self.node.service is not None:
            self.node.service.send(label)

    def serve_all_of(self, tenant: str) -> None:
        """Before ForgetTenant follows."""
        for order, _ in list(self._held.values()):
            if order.tenant == tenant:
                self._serve(order.request_id)

    def cancel(self, request: Request) -> None:
        if not self._took(request.request_id):
            super().cancel(request)

    def _serve(self, request_id: int, *label: PublicPrefix) -> None:
        order = self._took(request_id)
        if order is not None and request_id in self.node.requests and self.node.service is not None:
            self.node.service.send_together(order, *label)

    def _took(self, request_id: int) -> GeneratePrompt | None:
        held = self._held.pop(request_id, None)
        if held is None:
            return None
        held[1].cancel()
        return held[0]
