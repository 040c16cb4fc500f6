"""`mpc`: the prompt goes to the process that deals shares to the parties, not to a vault and not to the service."""

from __future__ import annotations

from typing import Protocol

import msgspec

from cloister.controller.external_level import ExternalRoute
from cloister.controller.requests import Request
from cloister.controller.routes.base import Node
from cloister.controller.vault_queue import PendingRequest
from cloister.errors import CloisterError, LevelUnavailable, ProtocolError, VaultLost
from cloister.levels import LEVELS
from cloister.messages.controller_vault import AssignPrompt, PromptAccepted
from cloister.messages.generation import Cancel, Failed, Tokens


class MpcClient(Protocol):
    def assign(self, prompt: AssignPrompt) -> None:
        """Give it a prompt; ServiceUnavailable while it is not up."""

    def send(self, message: msgspec.Struct) -> None: ...


class MpcRoute(ExternalRoute):
    """Frontend → MPC client → frontend. The client may only speak of requests it has."""

    level = LEVELS["mpc"]

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._client: MpcClient | None = None

    def open(self, client: MpcClient) -> None:
        """There is a client, or a keeper that starts one when it is asked for."""
        self._client = client

    def ask(self, asked: PendingRequest) -> None:
        ask = asked.ask
        try:
            if self._client is None:
                raise LevelUnavailable("This server does not offer the level mpc.", param="protection")
            self._client.assign(asked.assignment)
        except CloisterError as reason:
            for request_id in asked.seeds:
                self.node.requests.refuse(request_id, reason)
        else:
            for request_id, params in asked.params.items():
                self.node.requests.add(Request(request_id, ask.tenant, self.level, params, "mpc"))

    def cancel(self, request: Request) -> None:
        assert self._client is not None
        self._client.send(Cancel(request.request_id))

    def handle(self, message: msgspec.Struct) -> None:
        """A message of the client about a request, which may have been cancelled a moment ago."""
        if not isinstance(message, PromptAccepted | Tokens | Failed):
            raise ProtocolError("The client sent a message out of turn.")
        request = self.node.requests.get(message.request_id)
        if request is None or request.holder != "mpc":
            return
        if isinstance(message, PromptAccepted):
            self.node.requests.prompt_accepted(request, message.prompt_tokens)
        else:
            self.node.requests.advance(request, message)

    def client_gone(self) -> None:
        for request in self.node.requests.held_by("mpc"):
            self.node.requests.fail(request, VaultLost.because("vault_lost"))
