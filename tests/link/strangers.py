"""Strangers who connect and hold on: silent, with half a TLS hello, or with a whole one and nothing after."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cloister.link.network.address import Address

MANY = 96  # a multiple of three
"""More than any place keeps of them."""

GARBAGE = b"GET / HTTP/1.1\r\n\r\n"
HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01"


@contextmanager
def strangers(address: Address, count: int = MANY) -> Iterator[list[socket.socket]]:
    """Those who hold on, as long as they are let; who sent garbage is refused first and has left by then."""
    openings = (b"", HALF_A_HELLO, whole_hello())
    came: list[socket.socket] = []
    try:
        for number in range(count):
            came.append(address.connect(30))
            with suppress(OSError):
                came[-1].sendall(openings[number % len(openings)])
            if number == 0:
                with address.connect(30) as rude:
                    rude.sendall(GARBAGE)
                    assert closes(rude)
        with suppress(ConnectionError):
            came[-1].recv(1)  # a whole hello is answered or refused once all before it have been taken in
        yield came
    finally:
        for one in came:
            one.close()


def whole_hello() -> bytes:
    """What a TLS client without a certificate says first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    said = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), said).do_handshake()
    return said.read()


def closes(one: socket.socket, patience_s: float = 60) -> bool:
    """Whether the other end hangs up in time, after whatever it says."""
    one.settimeout(patience_s)
    try:
        while one.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True
