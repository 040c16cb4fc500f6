"""A client, or a local parties, that a test has the controller start: `python -m tests.controller.stub_mpc_client FD`.

What it does with a prompt is what the prompt says: `answer`, `die`, `lie` or `keep`.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

from cloister.messages.controller_vault import AssignPrompt, PromptAccepted
from cloister.messages.frames import FrameReader, encode_frame
from cloister.messages.generation import Tokens
from cloister.messages.lifecycle import Ping, Pong, StartFailed
from cloister.messages.types import VERSION
from cloister_mpc.controller_messages import (
    LocalPartiesReady,
    MpcClientReady,
    StartLocalParties,
    StartMpcClient,
    ToMpcClient,
)


def main() -> None:
    controller = socket.socket(fileno=int(sys.argv[1]))
    frames: FrameReader[Any] = FrameReader(ToMpcClient | StartLocalParties)
    while data := controller.recv(1 << 16):
        for message in frames.feed(data):
            for said in replies(message):
                controller.sendall(encode_frame((said,)))


def replies(message: Any) -> list[Any]:
    match message:
        case Ping():
            return [Pong()]
        case StartLocalParties():
            if message.name == "broken":
                return [StartFailed("model_unsupported", "This model cannot be dealt.", "Choose another.")]
            place = Path(message.folder) / "parties.toml"
            place.write_text("")
            return [LocalPartiesReady(str(place))]
        case StartMpcClient():
            assert Path(message.parties).name == "parties.toml" and message.cache == "full"
            return [MpcClientReady(VERSION)]
        case AssignPrompt(prompt=b"die"):
            os._exit(1)
        case AssignPrompt(prompt=b"lie"):
            return [Tokens(message.request_id, (1,))]
        case AssignPrompt(prompt=b"answer"):
            return [PromptAccepted(message.request_id, 1), Tokens(message.request_id, (1,), finish="stop")]
    return []


if __name__ == "__main__":
    main()
