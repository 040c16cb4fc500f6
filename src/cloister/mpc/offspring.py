"""The life of a party's two children (engine and tunnel): `python -m cloister.mpc.… FD`, hardened before anything else.

They end with the party; they print nothing but the type and place of an error of ours, and SPU's own words go nowhere.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

import msgspec

from cloister.errors import ProtocolError
from cloister.process.blocking import BlockingEndpoint
from cloister.process.hardening import begin_child

T = TypeVar("T")


class Superior:
    """The party, as its child sees it: messages of one union, in order."""

    def __init__(self, control: socket.socket, union: object) -> None:
        self._endpoint: BlockingEndpoint[msgspec.Struct] = BlockingEndpoint(control, union)
        self.send = self._endpoint.send

    def receive(self) -> msgspec.Struct:
        """The next message; EOFError when the party is gone."""
        if (message := self._endpoint.next()) is None:
            raise EOFError
        return message


def live(role: str, serve: Callable[[Superior], None], union: object) -> NoReturn:
    """From the first to the last moment of a child."""
    control = begin_child(role)
    status = 0
    try:
        serve(Superior(control, union))
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
