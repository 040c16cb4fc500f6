"""`open` and `shared`: the frontend reads the prompt, the service gets its tokens and decodes. No vault is involved."""

import asyncio
from collections.abc import Callable

import msgspec

from cloister.controller.node import Node
from cloister.controller.requests import Request
from cloister.controller.routes.base import Route
from cloister.controller.service import Service
from cloister.controller.sharing import Sharing
from cloister.errors import ServiceUnavailable
from cloister.levels import LEVELS, PolicyName
from cloister.messages.controller_frontend import SubmitTokens
from cloister.messages.controller_service import GeneratePrompt
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


PATIENCE_S = 1.0  # then a request finds of other tenants' blocks only what is registered


class SharedRoute(OpenRoute):
    """Other tenants may find cached blocks that are public by the policy (sharing.Sharing). Where a detector has a
    veto, a request waits until its prompt is read. `is_read`: does a detector read now?"""

    level = LEVELS["shared"]

    def __init__(self, node: Node, sharing: Sharing, is_read: Callable[[], bool]) -> None:
        super().__init__(node, sharing.policy)
        self._sharing, self._is_read = sharing, is_read
        self._held: dict[int, tuple[GeneratePrompt, asyncio.TimerHandle]] = {}

    def hand_over(self, service: Service, order: GeneratePrompt, *, examined: bool) -> None:
        if order.salt or not self._sharing.labels:
            super().hand_over(service, order, examined=examined)
        elif not self._sharing.waits:
            passed = (order.public or len(order.prompt)) if examined else 0
            service.send_together(order, self._sharing.label(order, passed))
        elif not examined or not self._is_read():
            service.send_together(order, self._sharing.label(order, 0))
        else:
            loop = asyncio.get_running_loop()
            self._held[order.request_id] = order, loop.call_later(PATIENCE_S, self.serve, order.request_id)

    def serve_all_of(self, tenant: str) -> None:
        """Before ForgetTenant follows."""
        for order, _ in list(self._held.values()):
            if order.tenant == tenant:
                self.serve(order.request_id)

    def cancel(self, request: Request) -> None:
        if not self._took(request.request_id):
            super().cancel(request)

    def serve(self, request_id: int, passed: int = 0) -> None:
        """`passed`: the first tokens in which a detector found nothing private."""
        order = self._took(request_id)
        if order is not None and request_id in self.node.requests and self.node.service is not None:
            self.node.service.send_together(order, self._sharing.label(order, passed))

    def _took(self, request_id: int) -> GeneratePrompt | None:
        held = self._held.pop(request_id, None)
        if held is None:
            return None
        held[1].cancel()
        return held[0]
