"""The frontends by number, which is part of their requests' ids. Of a message it reads the request id."""

import itertools
from typing import Protocol

import msgspec
from msgspec.structs import replace

from cloister.controller.requests import frontend_of, local
from cloister.messages.controller_frontend import View
from cloister.messages.generation import Accepted, Failed, Tokens


class Frontend(Protocol):
    def send(self, message: msgspec.Struct) -> None: ...
    def send_soon(self, message: msgspec.Struct) -> None: ...


class Frontends:
    def __init__(self) -> None:
        self._by_number: dict[int, Frontend] = {}
        self._numbers = itertools.count(1)

    def add(self, frontend: Frontend) -> int:
        number = next(self._numbers)
        self._by_number[number] = frontend
        return number

    def remove(self, number: int) -> None:
        self._by_number.pop(number, None)

    def tell(self, message: Accepted | Tokens | Failed | View) -> None:
        if frontend := self._by_number.get(frontend_of(message.request_id)):
            # A step brings tokens for many requests: the frontend is woken once for all of them.
            frontend.send_soon(replace(message, request_id=local(message.request_id)))

    def send(self, number: int, message: msgspec.Struct) -> None:
        if frontend := self._by_number.get(number):
            frontend.send(message)
