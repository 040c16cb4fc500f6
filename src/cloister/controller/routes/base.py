"""What all routes share, and the contract of a route."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from cloister.controller.requests import Request, Requests
from cloister.controller.service import Service
from cloister.controller.sessions import Sessions
from cloister.controller.verification import Verification
from cloister.errors import ProtocolError, ServiceUnavailable
from cloister.levels import Level, PolicyName
from cloister.messages.controller_frontend import Serving


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


class Route(ABC):
    """The way of one level's requests. A message out of turn raises ProtocolError, which ends its sender."""

    level: Level
    policy: PolicyName = "none"  # which cached prompts its requests may find at the service

    def __init__(self, node: Node) -> None:
        self.node = node

    @abstractmethod
    def cancel(self, request: Request) -> None:
        """The request is no longer under way: tell the process that generates for it."""

    def from_service(self, request: Request, message: msgspec.Struct) -> None:
        raise ProtocolError("The service speaks of a request it does not have.")

    def from_vault(self, request: Request, message: msgspec.Struct) -> None:
        raise ProtocolError("A vault speaks of a request it does not have.")
