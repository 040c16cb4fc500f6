"""The controller's handle on the unsealer: sealed weights become a folder in memory, for as long as this is open.

All children inherit the folder's descriptor, for it has no path. The controller itself never looks inside.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec

from cloister.controller.memory_folder import path_of
from cloister.errors import ProtocolError, ServiceUnavailable
from cloister.messages.generation import VERSION
from cloister.messages.sealed_weights import FromUnsealer, Locked, Packed, Unseal, Unsealed
from cloister.models.source import ModelFolder
from cloister.process.child import inherit_everywhere
from cloister.process.handle import ModuleHandle


class Unsealing:
    """`unseal`, have the weights packed, then `lock`."""

    def __init__(self) -> None:
        self._handle = ModuleHandle(
            "unsealer",
            "cloister.controller.unsealer",
            FromUnsealer,
            Unsealed,
            hear=self._receive,
            on_end=self._ended,
            lost=_lost(),
        )
        self._locked: asyncio.Future[None] | None = None
        self._descriptor: int | None = None

    async def unseal(self, name: str, path: Path, provider: str, content_key: bytearray) -> ModelFolder:
        """The model, decrypted into memory. The key is erased here."""
        try:
            self._handle.send(Unseal(VERSION, str(path), provider, bytes(content_key)))
        finally:
            content_key[:] = bytes(len(content_key))
        await self._handle.ready
        self._descriptor = self._handle.endpoint.take_descriptor()
        inherit_everywhere(self._descriptor)
        return ModelFolder(name, path_of(self._descriptor), {})

    async def lock(self) -> None:
        """The parameters' files go: the packed weights are the only copy. The rest cannot be changed any more."""
        self._locked = asyncio.get_running_loop().create_future()
        self._handle.send(Packed())
        if not self._handle.endpoint.open:
            raise _lost()
        await self._locked
        await self._handle.ends()

    async def close(self) -> None:
        """The folder is gone when its last reader is."""
        await self._handle.close()
        if self._descriptor is not None:
            inherit_everywhere(None)
            os.close(self._descriptor)
            self._descriptor = None

    def _receive(self, message: msgspec.Struct) -> None:
        if not isinstance(message, Locked) or self._locked is None or self._locked.done():
            raise ProtocolError("The unsealer sent a message out of turn.")
        self._locked.set_result(None)

    def _ended(self) -> None:
        if self._locked is not None and not self._locked.done():
            self._locked.set_exception(_lost())


def _lost() -> ServiceUnavailable:
    return ServiceUnavailable(
        "The process that unseals the weights ended.",
        hint="Perhaps memory ran out: while they are packed the weights must fit into it twice.",
    )
