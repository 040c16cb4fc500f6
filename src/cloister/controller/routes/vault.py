"""Common to the levels with a vault: the prompt waits for a vault, is assigned to it, and is read there."""

import msgspec

from cloister.controller.requests import Request
from cloister.controller.routes.base import Route
from cloister.controller.sessions import SessionKey
from cloister.controller.vault_side import PendingRequest
from cloister.errors import CloisterError, LevelUnavailable, ProtocolError, QueueFull, VaultLost
from cloister.levels import LEVELS
from cloister.messages.controller_vault import PromptAccepted
from cloister.messages.generation import Accepted, Cancel, Failed, Tokens


class VaultRoute(Route):
    def assign(self, asked: PendingRequest) -> None:
        """QueueFull if no vault is free for it."""
        ask = asked.ask
        try:
            self.check()
            key = SessionKey.of(ask.tenant, ask.group, ask.session, keep=ask.keep)
            session = self.node.sessions.join(key, asked.seeds, keep=ask.keep)
        except QueueFull:
            raise
        except CloisterError as reason:
            for request_id in asked.seeds:
                self.node.requests.refuse(request_id, reason)
            return
        for request_id, params in asked.params.items():
            self.node.requests.add(
                Request(
                    request_id,
                    ask.tenant,
                    self.level,
                    params,
                    "vault",
                    session,
                    salt=ask.salt,
                    obfuscation=ask.obfuscation,
                )
            )
        session.vault.send(asked.assignment)

    def check(self) -> None:
        """Raise why this level is not served now, if there is a reason."""
        if self.level.name not in self.node.serving().levels:
            raise LevelUnavailable(f"This server does not offer the level {self.level.name}.", param="protection")

    def cancel(self, request: Request) -> None:
        if request.session is not None:
            request.session.vault.send(Cancel(request.request_id))

    def from_vault(self, request: Request, message: msgspec.Struct) -> None:
        match message:
            case PromptAccepted():
                self.check_sequences(request, message.sequences)
                self.node.requests.prompt_accepted(request, message.prompt_tokens, message.sequences)
            case Failed():
                self.advance(request, message)
            case _:
                raise ProtocolError("A vault sent a message out of turn.")

    def check_sequences(self, request: Request, sequences: int) -> None:
        if sequences != 1:
            raise ProtocolError("At this level a request has one sequence.")

    def advance(self, request: Request, message: Accepted | Tokens | Failed) -> None:
        """A vault that answered the service late or wrongly is ended."""
        self.node.requests.advance(request, message)
        if isinstance(message, Failed) and message.code == VaultLost.code and request.session is not None:
            self.node.sessions.end(request.session)


class IsolatedRoute(VaultRoute):
    """The vault decodes alone: the service gets no message about the request."""

    level = LEVELS["isolated"]

    def from_vault(self, request: Request, message: msgspec.Struct) -> None:
        if isinstance(message, Tokens):
            self.advance(request, message)
        else:
            super().from_vault(request, message)
