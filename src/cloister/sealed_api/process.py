"""The sealed API's life: read its files, rehearse, leave the host, seal itself off, and answer until the end. The
controller sends no request before the seal."""

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

MEMORY_BYTES = 1 << 30  # its limit after the seal: every answer under way is bounded, and so is their number

_LENGTH = struct.Struct("<I")


class SealedApiClient(ControllerClient):
    """This process's end of the socket to the controller: a Backend. `serve_with` sets the request handler."""

    receives = ToSealedApi
    beat_s = 0.15

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._handle_sealed: Callable[[Serve | BytesTaken | CancelSealed], None] | None = None
        super().__init__(reader, writer)

    def serve_with(self, handle: Callable[[Serve | BytesTaken | CancelSealed], None]) -> None:
        self._handle_sealed = handle

    def _dispatch(self, message: msgspec.Struct) -> None:
        if isinstance(message, Serve | BytesTaken | CancelSealed) and self._handle_sealed is not None:
            self._handle_sealed(message)
        else:
            super()._dispatch(message)


def serve(control: socket.socket) -> None:
    try:
        start = _first_message(control)
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
    app.state.prompts.start()
    exchanges = Exchanges(app, client.send)
    client.serve_with(exchanges.handle)
    logging.getLogger().addHandler(_Reporter(client))
    seal(Profile("sealed_api", _needed_descriptors(), MEMORY_BYTES, allow_degraded=start.allow_degraded))
    client.send(SealedApiReady())
    await gone.wait()
    os._exit(0)


def _first_message(control: socket.socket) -> StartFrontend | None:
    """The controller's first message, without a byte of the next: the event loop reads those. None at the end."""
    head = control.recv(_LENGTH.size, socket.MSG_WAITALL)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise ProtocolError("The controller's first message is too long.")
    body = control.recv(length, socket.MSG_WAITALL)
    messages = FrameReader[StartFrontend](StartFrontend).feed(head + body)
    if len(messages) != 1 or messages[0].version != VERSION:
        raise ProtocolError("The sealed API was started by a controller of another version.")
    return messages[0]


def _needed_descriptors() -> set[int]:
    """Sockets (the control socket, the loop's own) and the loop's epoll. There is no /proc here to list them."""
    found: set[int] = set()
    for number in range(3, 256):
        try:
            kind = stat.S_IFMT(os.fstat(number).st_mode)
        except OSError:
            continue
        if kind in (stat.S_IFSOCK, 0):  # an epoll has no file type
            found.add(number)
    return found


class _Reporter(logging.Handler):
    """Reports each log record to the controller by its kind alone: this process cannot write anywhere."""

    def __init__(self, client: SealedApiClient) -> None:
        super().__init__(logging.WARNING)
        self._client = client

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("cloister"):
            return  # libraries put their input into their messages
        named = record.getMessage().removeprefix("Unexpected ").split(" ", 1)[0].rstrip(".")
        self._client.send(ErrorReport(next((kind for kind in get_args(ErrorKind) if kind == named), "other")))
