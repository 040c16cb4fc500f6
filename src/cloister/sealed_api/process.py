"""The sealed API's life: read what it needs, rehearse, leave the host, seal itself off, and answer until the end.

As in every sealed process (cloister.process.sandbox), files are read while there are some, threads start before the
seal, and nothing of a user reaches this process before it is sealed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import msgspec

from cloister.backend.client import ControllerClient
from cloister.config import GatewaySettings
from cloister.errors import ProtocolError
from cloister.gateway.app import create_api
from cloister.keys import KeyRing
from cloister.messages.controller_frontend import BytesTaken, CancelSealed, StartFrontend
from cloister.messages.controller_sealed_api import ErrorKind, ErrorReport, SealedApiReady, Serve, ToSealedApi
from cloister.messages.frames import MAX_FRAME_BYTES, FrameReader, encode_frame
from cloister.messages.lifecycle import start_failed
from cloister.messages.types import VERSION
from cloister.models.source import open_folder
from cloister.process.sandbox.credentials import give_up_powers
from cloister.process.sandbox.layers import Profile
from cloister.process.sandbox.namespaces import empty_root, leave_host
from cloister.process.sandbox.seal import seal
from cloister.process.sandbox.seccomp import filter_program
from cloister.prompts.tokenizer import Tokenizer
from cloister.sealed_api.exchange import Exchanges
from cloister.sealed_api.rehearsal import rehearse

MEMORY_BYTES = 1 << 30
"""What it may take after the seal: every answer under way is bounded, and so is their number."""

_LENGTH = struct.Struct("<I")


class SealedApiClient(ControllerClient):
    """Our end of the socket to the controller: a Backend. `serve_with` says who takes sealed requests."""

    receives = ToSealedApi
    beat_s = 0.15

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._hear: Callable[[Serve | BytesTaken | CancelSealed], None] | None = None
        super().__init__(reader, writer)

    def serve_with(self, handle: Callable[[Serve | BytesTaken | CancelSealed], None]) -> None:
        self._hear = handle

    def _dispatch(self, message: msgspec.Struct) -> None:
        if isinstance(message, Serve | BytesTaken | CancelSealed) and self._hear is not None:
            self._hear(message)
        else:
            super()._dispatch(message)


def serve(control: socket.socket) -> None:
    """Serve until the controller hangs up."""
    try:
        start = _first_word(control)
        if start is None:
            return
        settings = GatewaySettings.model_validate_json(start.settings)
        tokenizer = Tokenizer(open_folder(Path(start.path), start.name))
        tokenizer.warm()
        asyncio.run(rehearse(tokenizer, start.name, settings))
        filter_program(receives_descriptors=False, own_pid=1, futexes=None)
        leave_host()
        empty_root()
        give_up_powers(())
        asyncio.run(_serve(control, start, settings, tokenizer))
    except Exception as wrong:
        control.setblocking(True)
        control.sendall(encode_frame((start_failed(wrong, "The sealed API cannot start"),)))


async def _serve(control: socket.socket, start: StartFrontend, settings: GatewaySettings, tokenizer: Tokenizer) -> None:
    client = await SealedApiClient.connect(control)
    keys = KeyRing.of(start.keys)
    client.when_keys_change(keys.admit)
    gone = asyncio.Event()
    client.when_gone(gone.set)
    await client.serving
    app = create_api(client, tokenizer, start.name, settings, start.created, keys)
    app.state.api.prompts.start()
    exchanges = Exchanges(app, client.send)
    client.serve_with(exchanges.handle)
    logging.getLogger().addHandler(_Reporter(client))
    seal(Profile("sealed_api", _needed_descriptors(), MEMORY_BYTES, allow_degraded=start.allow_degraded))
    client.send(SealedApiReady())
    await gone.wait()
    os._exit(0)


def _first_word(control: socket.socket) -> StartFrontend | None:
    """What the controller says first, and not a byte more: the rest is for the loop to read. None at the end."""
    head = control.recv(_LENGTH.size, socket.MSG_WAITALL)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise ProtocolError("The controller's first word is too long.")
    body = control.recv(length, socket.MSG_WAITALL)
    messages = FrameReader[StartFrontend](StartFrontend).feed(head + body)
    if len(messages) != 1 or messages[0].version != VERSION:
        raise ProtocolError("The sealed API was started by a controller of another version.")
    return messages[0]


def _needed_descriptors() -> set[int]:
    """Sockets (the control socket, the loop's own) and the loop's epoll. /proc, which would list them, is gone."""
    found: set[int] = set()
    for number in range(3, 256):
        try:
            kind = stat.S_IFMT(os.fstat(number).st_mode)
        except OSError:
            continue
        if kind in (stat.S_IFSOCK, 0):  # an epoll is a file of no kind
            found.add(number)
    return found


class _Reporter(logging.Handler):
    """What would be logged is told to the controller, by its kind alone: this process has no output of its own."""

    def __init__(self, client: SealedApiClient) -> None:
        super().__init__(logging.WARNING)
        self._client = client

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("cloister"):
            return  # others put what they were given into their messages
        named = record.getMessage().removeprefix("Unexpected ").split(" ", 1)[0].rstrip(".")
        self._client.send(ErrorReport(next((kind for kind in get_args(ErrorKind) if kind == named), "other")))
