"""The short way of a streamed body: past ASGI's layers, to whoever writes it down.

Between an endpoint and its connection lie a dozen calls of an ASGI stack, and every streamed token would make them all.
A server that can do better puts a Wire into the request's scope. An answer's start, first piece, errors and end still
go the common way, so that every layer sees them; what comes between is bytes, and nobody's affair.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import MutableMapping
from typing import Any

SCOPE = "cloister.wire"


class Wire(ABC):
    """Takes pieces of a body that has begun and has not ended, in the order they are written in."""

    @property
    @abstractmethod
    def free(self) -> bool:
        """Whether a piece may be written now. If not, ASGI's `send` takes it, and waits as long as it must."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Send a piece, which is not empty."""


def wire_of(scope: MutableMapping[str, Any]) -> Wire | None:
    """The request's wire, if its server has one."""
    wire = scope.get(SCOPE)
    return wire if isinstance(wire, Wire) else None
