"""A connection of two bridges: mutual TLS 1.3 (RFC 8446), and records of a bounded length in it.

Each side accepts one certificate, the other role's (`credentials`). Keys are ephemeral: whoever learns the shared key
later cannot read what was recorded. There are no session tickets, no resumption and no older version. A record is its
length (4 bytes) and its bytes. Whatever is altered, repeated, left out, moved, cut short or too long is a
ProtocolError, and the channel is dead from then on. The channel knows bytes, not what they mean.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic

from cloister.errors import ProtocolError
from cloister.messages.bridge import Credentials

PROTOCOL = "cloister-link/2"
MAX_RECORD_BYTES = 16 * 1024 * 1024
"""No channel may be made for longer records than this."""

MAX_SENT_BYTES = 1 << 38
"""Of one connection: AES-GCM is safe for 2^24.5 full records under one key (RFC 8446, 5.5), and `ssl` updates none."""

_HEAD = struct.Struct("<I")
_READ_BYTES = 1 << 16
_OP_CLEANSE_PLAINTEXT = 0x2  # OpenSSL 3: what was handed to us is overwritten in OpenSSL's buffer; `ssl` has no name


class CutOff(ProtocolError):
    """The connection is gone without an end that was agreed on: the other side died, or somebody cut the line."""


def establish(
    connection: socket.socket, credentials: Credentials, limit: int, patience_s: float = 10.0
) -> SecureChannel:
    """Shake hands. Only the handshake is sent before the other side has proved itself; both agree on `limit`."""
    channel = SecureChannel(connection, credentials, limit)
    try:
        channel.shake_hands(monotonic() + patience_s)
        connection.settimeout(None)
    except TimeoutError:
        raise ProtocolError("The other side of a link did not introduce itself in time.") from None
    except ssl.SSLError as reason:
        raise ProtocolError(_in_our_words(reason)) from None
    except OSError:
        raise ProtocolError("The connection broke before both sides had introduced themselves.") from None
    return channel


class SecureChannel:
    """Made by `establish`. Any thread may send; one receives."""

    def __init__(self, connection: socket.socket, credentials: Credentials, limit: int) -> None:
        if not 0 < limit <= MAX_RECORD_BYTES:
            raise ProtocolError("A link's records would be longer than is allowed.")
        self._connection = connection
        self._peer = credentials.peer
        self._limit = limit
        self._dead = False
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        listens = credentials.role == "vault_host"
        self._tls = _context(credentials).wrap_bio(self._incoming, self._outgoing, server_side=listens)
        self._tls_lock = threading.Lock()  # one thread at a time may use an SSL object; never held while we wait
        self._sending = threading.Lock()
        self._sent = 0
        self._out = memoryview(bytearray(_HEAD.size + limit))
        self._in = memoryview(bytearray(_READ_BYTES))
        self._head = memoryview(bytearray(_HEAD.size))
        self._record = memoryview(bytearray(limit))
        self._record_bytes = 0
        self._zeros = bytes(_HEAD.size + limit)

    def shake_hands(self, end: float) -> None:
        """Until both have proved themselves, or until `end`."""
        done = False
        while not done:
            try:
                self._tls.do_handshake()
                self._check_peer()
                done = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                with suppress(OSError):
                    self._connection.sendall(self._outgoing.read())  # the alert that says why
                raise
            self._connection.settimeout(max(end - monotonic(), 0.001))
            self._connection.sendall(self._outgoing.read())
            if not done:
                self._read_connection()

    def _check_peer(self) -> None:
        """TLS has verified the certificate; it must be the very one, in this protocol."""
        if self._tls.getpeercert(binary_form=True) != self._peer:
            raise ProtocolError("The other side of a link does not know the key.")
        if self._tls.selected_alpn_protocol() != PROTOCOL:
            raise ProtocolError("The other side of a link speaks another protocol or another version of it.")

    def send(self, *parts: bytes | bytearray | memoryview) -> None:
        """One record made of these parts."""
        with self._sending:
            self._check_alive()
            length = sum(map(len, parts))
            if length > self._limit:
                raise self._die("A record would be longer than the link carries.")
            _HEAD.pack_into(self._out, 0, length)
            until = _HEAD.size
            for part in parts:
                self._out[until : until + len(part)] = part
                until += len(part)
            self._sent += until
            if self._sent > MAX_SENT_BYTES:
                raise self._die("The link has carried as much as one connection may.")
            try:
                with self._tls_lock:
                    written = self._tls.write(self._out[:until])
                    sealed = self._outgoing.read()
            except ssl.SSLError:
                raise self._die("TLS failed on a link.") from None
            finally:
                self._out[:until] = self._zeros[:until]
            if written != until:
                raise self._die("TLS took a part of a record only.")
            self._write_connection(sealed)

    def end(self) -> None:
        """Say, so that nobody else could have, that no record follows."""
        with self._sending:
            self._check_alive()
            with self._tls_lock:
                self._dead = True
                with suppress(ssl.SSLError):  # it would wait for the other side's end too
                    self._tls.unwrap()
                sealed = self._outgoing.read()
            self._write_connection(sealed)

    def receive(self) -> memoryview | None:
        """The next record, valid until the next call; None once either side ended. Wipes the one before."""
        self.forget()
        self._check_alive()
        if not self._fill(self._head, may_end=True):
            return None
        (length,) = _HEAD.unpack(self._head)
        if length > self._limit:
            raise self._die("A record is longer than the link carries.")
        self._record_bytes = length
        return self._record[:length] if self._fill(self._record[:length], may_end=False) else None

    def forget(self) -> None:
        """Overwrite the record received last."""
        self._record[: self._record_bytes] = self._zeros[: self._record_bytes]
        self._record_bytes = 0

    def hung_up(self) -> bool:
        """Whether the other side is gone, as far as can be known without reading on."""
        try:
            return not self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        self._dead = True
        self._connection.close()

    def _fill(self, room: memoryview, *, may_end: bool) -> bool:
        """Read until `room` is full; False if the link ended."""
        filled = 0
        while filled < len(room):
            if not self._incoming.pending and not self._tls.pending():  # to try anyway costs an exception
                self._read_connection()
            try:
                with self._tls_lock:
                    ended = self._dead
                    read = 0 if ended else int(self._tls.read(len(room) - filled, room[filled:]))  # a count, not bytes
            except ssl.SSLWantReadError:
                self._read_connection()
                continue
            except ssl.SSLError:
                raise self._die("A record on a link was altered, repeated, left out or moved.") from None
            if ended:
                with self._sending:  # until our end is sent
                    return False
            if not read and (filled or not may_end):
                raise self._die("The link ended in the middle of a record.")
            if not read:
                self._dead = True
                return False
            filled += read
        return True

    def _read_connection(self) -> None:
        try:
            received = self._connection.recv_into(self._in)
        except ConnectionError:
            received = 0
        if self._dead:  # we ended, and the other side hung up
            return
        if not received:
            raise self._die("The connection was cut off.", CutOff)
        with self._tls_lock:
            self._incoming.write(self._in[:received])

    def _write_connection(self, sealed: bytes) -> None:
        try:
            self._connection.sendall(sealed)
        except OSError:
            raise self._die("The connection broke.", CutOff) from None

    def _check_alive(self) -> None:
        if self._dead:
            raise ProtocolError("The link has ended.")

    def _die(self, why: str, kind: type[ProtocolError] = ProtocolError) -> ProtocolError:
        self._dead = True
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        return kind(why)


def _context(credentials: Credentials) -> ssl.SSLContext:
    if ssl.OPENSSL_VERSION_INFO < (3, 0):
        raise ProtocolError("The network link needs OpenSSL 3.")
    listens = credentials.role == "vault_host"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if listens else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # a certificate is pinned, wherever its holder runs
    context.verify_mode = ssl.CERT_REQUIRED
    context.options |= ssl.OP_NO_TICKET | _OP_CLEANSE_PLAINTEXT
    if listens:
        context.num_tickets = 0
    context.set_alpn_protocols([PROTOCOL])
    context.load_verify_locations(cadata=credentials.peer)
    with _as_file(credentials.own) as path:
        context.load_cert_chain(path)
    return context


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """`ssl` reads keys from files only: one in memory, that no other process can open, overwritten afterwards."""
    descriptor = os.memfd_create("cloister-credentials", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.pwrite(descriptor, bytes(len(content)), 0)
        os.close(descriptor)


def _in_our_words(reason: ssl.SSLError) -> str:
    if isinstance(reason, ssl.SSLCertVerificationError) or reason.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "The other side of a link does not know the key."
    if "ALERT" in (reason.reason or ""):
        return "The other side of a link refused us: it has another key or another version."
    return "The other side of a link speaks another protocol or another version of it."
