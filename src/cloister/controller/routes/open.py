"""`open`: the frontend reads the prompt, the service gets its tokens and decodes. No vault is involved."""

import msgspec

from cloister.controller.requests import Request
from cloister.controller.routes.base import Node, Route
from cloister.controller.service import Service
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
