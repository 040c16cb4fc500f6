"""Verifiers fetch nothing: no test of this folder, or of `transparency`, may reach for another machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

HERE = ("127.0.0.1", "::1", "localhost")


@pytest.fixture(scope="module", autouse=True)
def nothing_is_fetched() -> Iterator[None]:
    """Attempts are counted, as an error might be caught."""
    connect, look_up = socket.socket.connect, socket.getaddrinfo
    elsewhere: list[Any] = []

    def check(host: Any) -> None:
        if host not in HERE:
            elsewhere.append(host)
            raise OSError("a verifier reached for the network")

    def watched_connect(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX:
            check(address[0])
        connect(self, address)

    def watched_look_up(host: Any, *more: Any, **named: Any) -> Any:
        check(host)
        return look_up(host, *more, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", watched_connect)
        patch.setattr(socket, "getaddrinfo", watched_look_up)
        yield
    assert not elsewhere
