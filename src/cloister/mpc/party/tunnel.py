"""A party's tunnel: carries the engines' link over mutual TLS. Started anew for every epoch, ends with it.

SPU's own link cannot be asked to insist on TLS: its port takes plaintext beside it, from anybody. So the engine speaks
through sockets in a private folder only, and this process between those and the network: to each peer over a connection
whose certificate is that party's, beginning with the epoch's key. It sees the link's bytes, which are masked shares;
which of two other parties sent a message is the engine's own header's word (the protocols assume it honest).

    engine ─ to-1.sock ─▶ tunnel ══ TLS ══▶ tunnel of party 1 ─ engine.sock ─▶ engine of party 1
"""

from __future__ import annotations

import hmac
import os
import selectors
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from cloister.errors import CloisterError, ProtocolError
from cloister.link.network.address import Address, without_delay
from cloister.messages.mpc import Established, Listening, StartTunnel, ToTunnel
from cloister.mpc.certificates import Credentials, Role, check_pin, client_tls, require, role_of, server_tls
from cloister.mpc.config import PartiesConfig
from cloister.mpc.party.worker import decode_settings, live
from cloister.process.blocking import BlockingEndpoint

MOST_HANDSHAKES = 16
HANDSHAKE_S = 10.0
_READ = 1 << 18
_ENOUGH = 1 << 22


class Tunnel:
    """`run` carries until the process ends."""

    def __init__(self, start: StartTunnel) -> None:
        self._config = decode_settings(start.settings, PartiesConfig)
        self._rank = start.rank
        self._key = start.key
        self._folder = Path(start.folder)
        place = self._config.party[start.rank]
        own = Credentials(self._config.path(place.certificate), self._config.path(place.key))
        authority = self._config.path(self._config.authority)
        self._server_tls = server_tls(authority, own)
        self._client_tls = client_tls(authority, own)
        self._handshakes = threading.Semaphore(MOST_HANDSHAKES)
        self.pairs = Pairs()

    def listen(self) -> None:
        """Listen on the network, and on one socket per peer for the engine."""
        listener = Address.parse(self._config.party[self._rank].link).listen()
        threading.Thread(target=self._welcome, args=(listener, self._admit), daemon=True).start()
        for rank in range(len(self._config.party)):
            if rank == self._rank:
                continue
            inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            inner.bind(str(self._folder / f"to-{rank}.sock"))
            inner.listen()
            dial = self._dialler(rank)
            threading.Thread(target=self._welcome, args=(inner, dial), daemon=True).start()

    def _welcome(self, listener: socket.socket, receive: Callable[[socket.socket], None]) -> None:
        while True:
            connection, _ = listener.accept()
            if not self._handshakes.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._handle, args=(connection, receive), daemon=True).start()

    def _handle(self, connection: socket.socket, receive: Callable[[socket.socket], None]) -> None:
        try:
            receive(connection)
        except (OSError, CloisterError):  # a stranger, or a peer that is not up yet: its connection is all it loses
            connection.close()
        finally:
            self._handshakes.release()

    def _admit(self, connection: socket.socket) -> None:
        """Another party's tunnel connects: who is it, and is it of this epoch?"""
        connection.settimeout(HANDSHAKE_S)
        secure = self._server_tls.wrap_socket(without_delay(connection), server_side=True)
        try:
            role = role_of(secure)
            others = [str(rank) for rank in range(len(self._config.party)) if rank != self._rank]
            if role.kind != "party" or role.name not in others:
                raise ProtocolError("Only other parties may connect.")
            check_pin(secure, self._config.party[int(role.name)].fingerprint)
            if not hmac.compare_digest(_receive_exactly(secure, len(self._key)), self._key):
                raise ProtocolError("A connection of another epoch.")
            engine = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            engine.connect(str(self._folder / "engine.sock"))
        except BaseException:
            secure.close()
            raise
        self.pairs.add(engine, secure)

    def _dialler(self, rank: int) -> Callable[[socket.socket], None]:
        place = self._config.party[rank]

        def dial(inner: socket.socket) -> None:
            outer = Address.parse(place.link).connect(HANDSHAKE_S)
            secure = self._client_tls.wrap_socket(outer)
            try:
                require(secure, Role("party", str(rank)), place.fingerprint)
                secure.sendall(self._key)
            except BaseException:
                secure.close()
                raise
            self.pairs.add(inner, secure)

        return dial


class Pairs:
    """All pairs of sockets that are carried between, in one loop: a TLS connection belongs to one thread."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._new: list[tuple[socket.socket, ssl.SSLSocket]] = []
        self._established = False

    def add(self, plain: socket.socket, secure: ssl.SSLSocket) -> None:
        """From any thread."""
        plain.setblocking(False)
        secure.setblocking(False)
        self._new.append((plain, secure))
        self._woken.send(b"+")

    def establish(self) -> None:
        """From now on the end of one pair ends the loop."""
        self._established = True

    def run(self) -> None:
        """Until a pair ends, once established."""
        while True:
            for key, events in self._selector.select():
                if key.data is None:
                    self._wake.recv(4096)
                    while self._new:
                        self._begin(*self._new.pop())
                elif not key.data.move(key.fileobj, events) and self._established:
                    return

    def _begin(self, plain: socket.socket, secure: ssl.SSLSocket) -> None:
        pair = _Pair(self._selector, plain, secure)
        for end in (plain, secure):
            self._selector.register(end, selectors.EVENT_READ, pair)
        pair.move(secure, selectors.EVENT_READ)  # TLS may have read ahead during its handshake


class _Pair:
    def __init__(self, selector: selectors.BaseSelector, plain: socket.socket, secure: ssl.SSLSocket) -> None:
        self._selector = selector
        there, back = _Way(plain, secure), _Way(secure, plain)
        self._ends = (plain, secure)
        self._from: dict[object, _Way] = {plain: there, secure: back}
        self._into: dict[object, _Way] = {plain: back, secure: there}
        self._events = dict.fromkeys(self._ends, selectors.EVENT_READ)

    def move(self, end: object, events: int) -> bool:
        """Move what this end is ready for; False when the pair has ended."""
        try:
            if events & selectors.EVENT_READ:
                self._from[end].pull()
            if events & selectors.EVENT_WRITE:
                self._into[end].push()
            for each in self._ends:
                reading = 0 if self._from[each].full else selectors.EVENT_READ
                self._watch(each, reading | (selectors.EVENT_WRITE if self._into[each].waiting else 0))
        except (OSError, EOFError):
            for each in self._ends:
                with suppress(KeyError, ValueError):
                    self._selector.unregister(each)
                each.close()
            return False
        return True

    def _watch(self, end: socket.socket, events: int) -> None:
        before, self._events[end] = self._events[end], events
        if events == before:
            return
        if not events:  # there is something to wait for at the other end
            self._selector.unregister(end)
        elif before:
            self._selector.modify(end, events, self)
        else:
            self._selector.register(end, events, self)


_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class _Way:
    """One direction. What the sink does not take waits in a buffer; while that is full, nothing is read."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self._source, self._sink = source, sink
        self._buffer = bytearray()

    @property
    def full(self) -> bool:
        return len(self._buffer) >= _ENOUGH

    @property
    def waiting(self) -> bool:
        return bool(self._buffer)

    def pull(self) -> None:
        """Read what is there and pass it on."""
        try:
            while True:
                data = self._source.recv(_READ)
                if not data:
                    raise EOFError
                self._buffer += data
                # What TLS has decrypted already, the selector does not know of.
                if not isinstance(self._source, ssl.SSLSocket) or not self._source.pending():
                    break
        except _NOT_NOW:
            pass
        self.push()

    def push(self) -> None:
        try:
            while self._buffer:
                del self._buffer[: self._sink.send(bytes(memoryview(self._buffer)[:_READ]))]
        except _NOT_NOW:
            pass


def _receive_exactly(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        part = connection.recv(count - len(received))
        if not part:
            raise ProtocolError("A connection ended in its handshake.")
        received += part
    return received


def serve(party: BlockingEndpoint[msgspec.Struct]) -> None:
    """The tunnel's whole life."""
    start = party.next()
    if not isinstance(start, StartTunnel):
        raise ProtocolError("A tunnel is told its settings first.")
    tunnel = Tunnel(start)
    tunnel.listen()
    party.send(Listening())

    def hear() -> None:
        with suppress(OSError, CloisterError):
            while isinstance(party.next(), Established):
                tunnel.pairs.establish()
        os._exit(0)

    threading.Thread(target=hear, daemon=True).start()
    tunnel.pairs.run()
    os._exit(0)


if __name__ == "__main__":
    live("mpc-tunnel", serve, ToTunnel)
