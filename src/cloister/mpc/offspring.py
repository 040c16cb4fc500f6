"""The life of a party's two children (engine and tunnel): `python -m cloister.mpc.… FD`, hardened before anything else.

They end with the party; they print nothing but the type and place of an error of ours, and SPU's own words go nowhere.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

import msgspec

from cloister.errors import ProtocolError
from cloister.messages.frames import FrameReader, encode_frame
from cloister.process.hardening import die_with_parent, forbid_core_dumps, hide_tracebacks

T = TypeVar("T")


class Superior:
    """The party, as its child sees it: messages of one union, in order."""

    def __init__(self, control: socket.socket, union: object) -> None:
        self._control = control
        self._reader: FrameReader[msgspec.Struct] = FrameReader(union)
        self._waiting: list[msgspec.Struct] = []

    def receive(self) -> msgspec.Struct:
        """The next message; EOFError when the party is gone."""
        while not self._waiting:
            data = self._control.recv(1 << 18)
            if not data:
                raise EOFError
            self._waiting = self._reader.feed(data)
        return self._waiting.pop(0)

    def send(self, message: msgspec.Struct) -> None:
        self._control.sendall(encode_frame((message,)))


def live(serve: Callable[[Superior], None], union: object) -> NoReturn:
    """From the first to the last moment of a child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the party decides
    hide_tracebacks()
    forbid_core_dumps()
    die_with_parent()
    status = 0
    try:
        serve(Superior(socket.socket(fileno=int(sys.argv[1])), union))
    except EOFError:
        pass
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    sys.stderr.flush()
    os._exit(status)


def decode_settings(settings: bytes, kind: type[T]) -> T:
    """Settings as a party passes them on."""
    try:
        return msgspec.json.decode(settings, type=kind)
    except msgspec.MsgspecError:
        raise ProtocolError("Settings do not decode.") from None
