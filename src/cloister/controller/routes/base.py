"""The contract of a route."""

from abc import ABC, abstractmethod

import msgspec

from cloister.controller.node import Node
from cloister.controller.requests import Request
from cloister.errors import ProtocolError
from cloister.levels import Level, PolicyName


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
