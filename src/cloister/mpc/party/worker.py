"""How a party's two workers live (engine and tunnel): `python -m cloister.mpc.party.… FD`, hardened first of all.

They end with the party; they print nothing but the type and place of an error of ours, and SPU's own words go nowhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

import msgspec

from cloister.errors import ProtocolError
from cloister.process.blocking import BlockingEndpoint
from cloister.process.hardening import begin_child

T = TypeVar("T")


def live(role: str, serve: Callable[[BlockingEndpoint[msgspec.Struct]], None], union: object) -> NoReturn:
    """From the first to the last moment of a worker; `serve` gets the socket to its party."""
    control = begin_child(role)
    status = 0
    try:
        serve(BlockingEndpoint(control, union))
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
