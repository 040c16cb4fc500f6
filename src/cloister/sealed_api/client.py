"""The sealed API's own end of the socket to the controller: beside tokens it hears of sealed requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from cloister.backend.client import ControllerClient
from cloister.messages.front import Leave, Taken
from cloister.messages.sealed_api import Serve, ToSealedApi


class SealedApiClient(ControllerClient):
    """A Backend; `serve_with` says who takes sealed requests."""

    hears = ToSealedApi
    beat_s = 0.15

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._hear: Callable[[Serve | Taken | Leave], None] | None = None
        super().__init__(reader, writer)

    def serve_with(self, hear: Callable[[Serve | Taken | Leave], None]) -> None:
        self._hear = hear

    def _dispatch(self, message: msgspec.Struct) -> None:
        if isinstance(message, Serve | Taken | Leave) and self._hear is not None:
            self._hear(message)
        else:
            super()._dispatch(message)
