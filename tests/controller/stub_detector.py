"""A detector that a test has the controller start: `python -m tests.controller.stub_detector FD`.

What it does with a text is what the text says: `public`, `die`, `hang`, `lie`, `short` or `stranger`; or it is an
opening that it was told of: `opening`.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import Any

from cloister.messages.controller_detector import (
    Classify,
    DetectorReady,
    KnowOpenings,
    Label,
    Labels,
    LoadRules,
    RulesLoaded,
    StartDetector,
    ToDetector,
)
from cloister.messages.frames import FrameReader, encode_frame
from cloister.messages.lifecycle import Ping, Pong


def main() -> None:
    controller = socket.socket(fileno=int(sys.argv[1]))
    frames: FrameReader[Any] = FrameReader(ToDetector)
    while data := controller.recv(1 << 16):
        for message in frames.feed(data):
            for said in replies(message):
                controller.sendall(encode_frame((said,)))


known: list[str] = []


def replies(message: Any) -> list[Any]:
    match message:
        case StartDetector():
            return [DetectorReady()]
        case Ping():
            return [Pong()]
        case LoadRules():
            return [RulesLoaded("heron" in message.rules, 1, "" if "heron" in message.rules else "form")]
        case KnowOpenings():
            known[:] = message.openings
        case Classify(text="opening"):
            code = Label.PUBLIC if "opening" in known else Label.PRIVATE
            return [labels(message.request_id, bytes([code]) * len(message.ends))]
        case Classify(text="die"):
            os._exit(1)
        case Classify(text="hang"):
            time.sleep(600)
        case Classify(text="lie"):
            return [labels(message.request_id, bytes([Label.PRIVATE, Label.PUBLIC]))]
        case Classify(text="short"):
            return [labels(message.request_id, b"\x02")]
        case Classify(text="stranger"):
            return [labels(message.request_id + 1, b"\x02" * len(message.ends))]
        case Classify():
            return [labels(message.request_id, bytes([Label.PUBLIC]) * len(message.ends))]
    return []


def labels(request_id: int, codes: bytes) -> Labels:
    return Labels(request_id, codes, bytes(len(codes)), b"\xff" * len(codes))


if __name__ == "__main__":
    main()
