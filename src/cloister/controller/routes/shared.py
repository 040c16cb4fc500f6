"""`shared`: as `open`, and other tenants may find cached blocks in which a detector found nothing private (SafeKV). A
request waits until a detector has read its whole prompt: it finds others' blocks only as far as its own prompt is
public. The wait does not depend on what the cache holds."""

import asyncio
from collections.abc import Callable

from cloister.controller.requests import Request
from cloister.controller.routes.base import Node
from cloister.controller.routes.open import OpenRoute
from cloister.controller.service import Service
from cloister.levels import LEVELS
from cloister.messages.controller_service import GeneratePrompt, PublicPrefix

PATIENCE_S = 1.0  # then a request is served without other tenants' blocks


class SharedRoute(OpenRoute):
    """`is_read`: does a detector read prompts now?"""

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
