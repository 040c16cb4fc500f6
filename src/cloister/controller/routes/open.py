"""`open`: the frontend reads the prompt, the service gets its tokens and decodes. No vault hears of it."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from cloister.controller.requests import Request
from cloister.controller.routes.base import Node, Route
from cloister.controller.service import Service
from cloister.errors import ProtocolError, ServiceUnavailable
from cloister.levels import LEVELS, PolicyName
from cloister.messages.generation import Accepted, Failed, Submit, Tokens


class OpenRoute(Route):
    """Frontend → service → frontend. `policy` says whose computed prompts a request may find."""

    level = LEVELS["open"]

    def __init__(self, node: Node, policy: PolicyName) -> None:
        super().__init__(node)
        self.policy = policy

    def submit(self, message: Submit) -> None:
        if message.partitions or message.policy != "none" or message.background:
            raise ProtocolError("A frontend sent a message out of turn.")
        try:
            service = self.node.working_service()
        except ServiceUnavailable as reason:
            self.node.requests.refuse(message.request_id, reason)
            return
        request = Request(message.request_id, message.tenant, self.level, message.params, "service")
        request.shown = message.prompt
        self.node.requests.add(request)
        self.node.requests.read(request, len(message.prompt))
        self.hand_over(service, replace(message, policy=self.policy, examined=False), examined=message.examined)

    def hand_over(self, service: Service, submit: Submit, *, examined: bool) -> None:
        """Give the service what it is to compute; whether a detector reads the prompt."""
        service.send(submit)

    def cancel(self, request: Request) -> None:
        if self.node.service is not None:
            self.node.service.cancel(request.request_id, lambda: None)

    def from_service(self, request: Request, message: msgspec.Struct) -> None:
        assert isinstance(message, Accepted | Tokens | Failed)
        self.node.requests.advance(request, message)
