"""`open` and `shared`: the frontend reads the prompt, the service gets its tokens and decodes. No vault is involved."""

import asyncio
from collections.abc import Callable

import msgspec

from cloister.controller.requests import Request, params_of
from cloister.controller.routes.base import Node, Route
from cloister.controller.service import Service
from cloister.controller.sharing import Sharing
from cloister.errors import LevelUnavailable
from cloister.levels import LEVELS, PolicyName
from cloister.messages.controller_detector import Label, Labels
from cloister.messages.controller_frontend import SubmitTokens
from cloister.messages.controller_service import GeneratePrompt
from cloister.messages.generation import Accepted, Failed, Tokens
from cloister.messages.types import SamplingParams


class OpenRoute(Route):
    level = LEVELS["open"]

    def __init__(self, node: Node, policy: PolicyName) -> None:
        super().__init__(node)
        self.policy = policy
        self.unserved: Callable[[SamplingParams], str | None] = lambda params: None  # a field, with another engine

    def submit(self, message: SubmitTokens) -> None:
        """ServiceUnavailable if there is no service; LevelUnavailable for a field that its engine does not serve."""
        service = self.node.working_service()
        if (field := self.unserved(message.params)) is not None:
            reason = f"{field}: The engine of this server does not serve it."
            raise LevelUnavailable(reason, param=field, hint="Leave it out.")
        for request_id, params in params_of(message).items():
            request = Request(request_id, message.tenant, self.level, params, "service", shown=message.prompt)
            self.node.requests.add(request)
            self.node.requests.read(request, len(message.prompt))
            head = request_id, message.tenant, message.prompt, params, message.public, message.salt
            self.hand_over(service, GeneratePrompt(*head, self.policy), has_text=bool(message.ends))

    def hand_over(self, service: Service, order: GeneratePrompt, *, has_text: bool) -> None:
        """`has_text`: a detector can read the prompt."""
        service.send(order)

    def cancel(self, request: Request) -> None:
        if self.node.service is not None:
            self.node.service.cancel(request.request_id, lambda: None)

    def from_service(self, request: Request, message: msgspec.Struct) -> None:
        assert isinstance(message, Accepted | Tokens | Failed)
        self.node.requests.advance(request, message)


PATIENCE_S = 1.0  # then a request finds of other tenants' blocks only what is registered


class SharedRoute(OpenRoute):
    """Other tenants find public blocks (sharing.Sharing). A detector's veto comes to `labelled`; no text is kept."""

    level = LEVELS["shared"]

    def __init__(self, node: Node, sharing: Sharing) -> None:
        super().__init__(node, sharing.policy)
        self._sharing = sharing
        self.examine: Callable[..., None] | None = None  # DetectorKeeper.classify
        self._held: dict[int, tuple[GeneratePrompt, asyncio.TimerHandle]] = {}
        self._examined: dict[int, tuple[int, ...]] = {}  # answers to a prompt that a detector reads, by the first

    def submit(self, message: SubmitTokens) -> None:
        super().submit(message)
        if message.ends and self.examine is not None:
            self._examined[message.request_id] = tuple(params_of(message))
            self.examine(message.request_id, message.text, message.ends)

    def labelled(self, labels: Labels) -> None:
        """The detector's veto begins at the first block that is not public."""
        size = self.node.serving().block_tokens
        public = size * next((at for at, one in enumerate(labels.labels) if one != Label.PUBLIC), len(labels.labels))
        for each in self._examined.pop(labels.request_id, ()):
            if (request := self.node.requests.get(each)) is not None:
                request.labels = labels
            self.serve(each, public)

    def hand_over(self, service: Service, order: GeneratePrompt, *, has_text: bool) -> None:
        if order.salt or order.params.embed or not self._sharing.labels:  # an embedding finds and leaves no page
            super().hand_over(service, order, has_text=has_text)
        elif not self._sharing.waits:
            passed = (order.public or len(order.prompt)) if has_text else 0
            service.send_together(order, self._sharing.label(order, passed))
        elif not has_text or self.examine is None:
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
