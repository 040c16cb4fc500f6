"""The contract of a route, and the state that all routes share."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from cloister.controller.requests import Request, Requests
from cloister.controller.service import Service
from cloister.controller.sessions import Sessions
from cloister.errors import ProtocolError, ServiceUnavailable
from cloister.levels import Level, PolicyName
from cloister.messages.controller_frontend import Serving


@dataclass
class Node:
    requests: Requests
    sessions: Sessions
    serving: Callable[[], Serving]
    service: Service | None = None

    def working_service(self) -> Service:
        if self.service is None:
            raise ServiceUnavailable("The service is restarting.", hint="Try again in a few seconds.")
        return self.service

    def send(self, message: msgspec.Struct) -> None:
        """To the service, if there is one."""
        if self.service is not None:
            self.service.send(message)


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
