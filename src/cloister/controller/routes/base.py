"""What all routes share, and the contract of a route."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from cloister.controller.requests import Request, Requests
from cloister.controller.service import Service
from cloister.controller.sessions import Session, Sessions
from cloister.controller.verification import Verification
from cloister.errors import ProtocolError, QuotaExceeded, ServiceUnavailable, VaultLost
from cloister.levels import Level, PolicyName
from cloister.messages.controller_frontend import Serving
from cloister.messages.generation import Cancel


@dataclass
class Node:
    """`routes` by level; `sessions` are of the vaults (vault_side)."""

    requests: Requests
    serving: Callable[[], Serving]
    verification: Verification
    service: Service | None = None
    routes: "dict[str, Route]" = field(default_factory=dict)
    sessions: Sessions = field(init=False)

    def working_service(self) -> Service:
        if self.service is None:
            raise ServiceUnavailable("The service is restarting.", hint="Try again in a few seconds.")
        return self.service

    def route_of(self, request: Request) -> "Route":
        return self.routes[request.level.name]

    def unlink(self, session: Session) -> None:
        """Its vault and the service misunderstood each other for good. Answers that are verified as at `all` go on."""
        held = [request for each in session.requests if (request := self.requests.get(each)) is not None]
        lone = {
            request.request_id
            for request in held
            if request.holder == "service" and self.verification.goes_alone(request)
        }
        if self.sessions.of_vault(session.vault) is not session or not (lone or self.verification.always):
            self.sessions.end(session)
            return
        session.vault.alone = True
        self.verification.deviations.note(session.key.owner, aborted=True)
        if self.service is not None:
            self.service.detach(session.vault.number)
        for request in held:
            if request.holder == "service" and request.request_id not in lone:
                if self.service is not None:
                    self.service.send(Cancel(request.request_id))
                self.requests.fail(request, VaultLost.because("vault_lost"))


class Route(ABC):
    """The way of one level's requests. A message out of turn raises ProtocolError, which ends its sender."""

    level: Level
    policy: PolicyName = "none"  # which cached prompts its requests may find at the service

    def __init__(self, node: Node) -> None:
        self.node = node

    @abstractmethod
    def cancel(self, request: Request) -> None:
        """The request is no longer under way: tell the process that generates for it."""

    def prompt_accepted(self, request: Request, prompt_tokens: int, sequences: int = 1) -> None:
        """A prompt that its tenant's quota does not cover, now that its length is known, goes no further."""
        try:
            self.node.requests.prompt_accepted(request, prompt_tokens, sequences)
        except QuotaExceeded as reason:
            self.cancel(request)
            self.node.requests.fail(request, reason)

    def from_service(self, request: Request, message: msgspec.Struct) -> None:
        raise ProtocolError("The service speaks of a request it does not have.")

    def from_vault(self, request: Request, message: msgspec.Struct) -> None:
        raise ProtocolError("A vault speaks of a request it does not have.")
