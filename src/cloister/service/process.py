"""The service's loop: take messages, step the engine, send tokens. One thread; ends when the front hangs up."""

from __future__ import annotations

import logging
import select
import socket
from pathlib import Path

import msgspec
import torch

from cloister.config import EngineSettings
from cloister.engine.engine import Engine
from cloister.engine.model_runner import ModelRunner
from cloister.errors import CloisterError, ProtocolError
from cloister.hardening import where_raised
from cloister.kernels.choose import choose_kernels
from cloister.messages.frames import FrameReader, encode_frame
from cloister.messages.generation import VERSION, AskStats, Cancel, Ready, Submit
from cloister.messages.lifecycle import AnyToService, Start, StartFailed
from cloister.models.load import load_from_files
from cloister.models.source import open_folder

log = logging.getLogger(__name__)

RECEIVE_BYTES = 1 << 20


def serve(front: socket.socket) -> None:
    """Serve until the front closes its end."""
    reader: FrameReader[Start | Submit | Cancel | AskStats] = FrameReader(AnyToService)
    messages = _first_messages(front, reader)
    if not messages:
        return
    try:
        engine, ready = _build(messages.pop(0))
    except CloisterError as reason:
        front.sendall(encode_frame((StartFailed(reason.code, reason.message, reason.hint),)))
        return
    except Exception as wrong:
        front.sendall(
            encode_frame((StartFailed("internal_error", f"The service cannot start: {where_raised(wrong)}."),))
        )
        return
    front.sendall(encode_frame((ready,)))
    _loop(front, reader, engine, messages)


def _first_messages(
    front: socket.socket, reader: FrameReader[Start | Submit | Cancel | AskStats]
) -> list[Start | Submit | Cancel | AskStats]:
    while data := front.recv(RECEIVE_BYTES):
        if messages := reader.feed(data):
            return messages
    return []


def _build(start: object) -> tuple[Engine, Ready]:
    if not isinstance(start, Start) or start.version != VERSION:
        raise ProtocolError("The service was started by a front of another version.")
    torch.set_num_threads(1)  # the kernels have a team of their own; two teams would fight for the cores
    settings = EngineSettings.model_validate_json(start.settings)
    kernels = choose_kernels(settings)
    folder = open_folder(Path(start.path), start.name)
    decoder = load_from_files(folder, kernels, settings.max_context)
    runner = ModelRunner(decoder, settings)
    engine = Engine(runner, settings)
    ready = Ready(
        version=VERSION,
        vocabulary=runner.vocabulary,
        max_context=engine.max_context,
        kv_blocks=runner.num_blocks,
        block_tokens=runner.block_tokens,
        kernels=kernels.name,
    )
    return engine, ready


def _loop(
    front: socket.socket,
    reader: FrameReader[Start | Submit | Cancel | AskStats],
    engine: Engine,
    messages: list[Start | Submit | Cancel | AskStats],
) -> None:
    replies: list[msgspec.Struct] = []
    while True:
        for message in messages:
            match message:
                case Submit():
                    replies.append(engine.submit(message))
                case Cancel():
                    engine.cancel(message.request_id)
                case AskStats():
                    replies.append(engine.stats())
                case Start():
                    raise ProtocolError("The service is started already.")
        messages = []
        if engine.has_work:
            replies.extend(engine.step())
        if replies:
            front.sendall(encode_frame(tuple(replies)))
            replies.clear()
        readable, _, _ = select.select([front], [], [], 0 if engine.has_work else None)
        if readable:
            data = front.recv(RECEIVE_BYTES)
            if not data:
                return
            messages = reader.feed(data)
