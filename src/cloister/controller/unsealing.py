"""The controller's handle on the unsealer: sealed weights become a folder in memory, for as long as this is open.

All children inherit the folder's descriptor, for it has no path. The controller itself never looks inside.
"""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import msgspec

from cloister.controller.memory_folder import path_of
from cloister.errors import ProtocolError, ServiceUnavailable, error_from_code
from cloister.messages.generation import VERSION
from cloister.messages.lifecycle import StartFailed
from cloister.messages.unsealing import FromUnsealer, Locked, Packed, Unseal, Unsealed
from cloister.models.source import ModelFolder
from cloister.process.child import inherit_everywhere, run_module
from cloister.process.endpoint import Channel
from cloister.process.hardening import WIPE_FREED_MEMORY


class Unsealing:
    """`unseal`, have the weights packed, then `lock`."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._process = run_module("cloister.controller.unsealer", theirs, **WIPE_FREED_MEMORY)
        self._channel = Channel(ours, FromUnsealer, self._receive, self._ended)
        self._said: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._descriptor: int | None = None

    async def unseal(self, name: str, path: Path, provider: str, content_key: bytearray) -> ModelFolder:
        """The model, decrypted into memory. The key is erased here."""
        try:
            self._channel.send(Unseal(VERSION, str(path), provider, bytes(content_key)))
        finally:
            content_key[:] = bytes(len(content_key))
        await self._said
        assert self._descriptor is not None
        inherit_everywhere(self._descriptor)
        return ModelFolder(name, path_of(self._descriptor), {})

    async def lock(self) -> None:
        """The parameters' files go: the packed weights are the only copy. The rest cannot be changed any more."""
        self._said = asyncio.get_running_loop().create_future()
        self._channel.send(Packed())
        await self._said
        await asyncio.to_thread(self._process.wait)

    async def close(self) -> None:
        """The folder is gone when its last reader is."""
        self._channel.close()
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        if self._descriptor is not None:
            inherit_everywhere(None)
            os.close(self._descriptor)
            self._descriptor = None

    def _receive(self, message: msgspec.Struct) -> None:
        if self._said.done():
            raise ProtocolError("The unsealer sent a message out of turn.")
        match message:
            case StartFailed():
                self._said.set_exception(error_from_code(message.code, message.message, hint=message.hint))
                return
            case Unsealed() if self._descriptor is None:
                self._descriptor = self._channel.take_descriptor()
            case Locked() if self._descriptor is not None:
                pass
            case _:
                raise ProtocolError("The unsealer sent a message out of turn.")
        self._said.set_result(None)

    def _ended(self) -> None:
        if not self._said.done():
            self._said.set_exception(
                ServiceUnavailable(
                    "The process that unseals the weights ended.",
                    hint="Perhaps memory ran out: while they are packed the weights must fit into it twice.",
                )
            )
            self._said.exception()  # nobody may be waiting yet
