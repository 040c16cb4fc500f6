"""Mutual TLS 1.3 (RFC 8446) of two bridges, records of a bounded length; keys are ephemeral (App. E.1), no session is
resumed. Anything altered, repeated, missing or cut short is a ProtocolError, and ends the channel."""

import os
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from time import monotonic

from cloister.errors import ProtocolError
from cloister.messages.network_link import Credentials

PROTOCOL = "cloister-link/3"
MAX_RECORD_BYTES = 16 * 1024 * 1024  # no channel may be made for longer records than this

MAX_SENT_BYTES = 1 << 38  # of one connection: AES-GCM is safe for 2^24.5 full records under one key (RFC 8446, 5.5)

_HEAD = struct.Struct("<I")
_READ_BYTES = 1 << 16
_OTHER_KEY = "The other side of a link does not know the key: both machines need the same key file."
_OP_CLEANSE_PLAINTEXT = 0x2  # OpenSSL 3: what was handed to us is overwritten in OpenSSL's buffer; `ssl` has no name


class CutOff(ProtocolError):
    """The connection ended without an agreed end: the other side died, or the line was cut."""


def establish(
    connection: socket.socket, credentials: Credentials, limit: int, patience_s: float = 10.0
) -> "SecureChannel":
    channel = SecureChannel(connection, credentials, limit)
    try:
        channel.shake_hands(monotonic() + patience_s)
    except TimeoutError:
        raise ProtocolError("The other side of a link did not introduce itself in time.") from None
    except OSError:
        raise ProtocolError("The connection broke before both sides had introduced themselves.") from None
    return channel


class SecureChannel:
    """Any thread may send; one receives. Gets buffers once the peer has proved itself: unproved ones are many."""

    def __init__(
        self, connection: socket.socket, credentials: Credentials, limit: int, context: ssl.SSLContext | None = None
    ) -> None:
        """`context`: what `context_for` made of the credentials, where many channels share it."""
        if not 0 < limit <= MAX_RECORD_BYTES:
            raise ProtocolError("A link's records would be longer than is allowed.")
        self._connection = connection
        self._credentials = credentials
        self._dead = self._ended = False
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        listens = credentials.role == "vault_host"
        context = context or context_for(credentials)
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=listens)
        self._tls_lock = threading.Lock()  # one thread at a time may use an SSL object
        self._sending = threading.Lock()
        self._sent = 0
        self._limit = limit
        self._filled = 0

    def _make_room(self) -> None:
        self._out = memoryview(bytearray(_HEAD.size + self._limit))
        self._sealed = memoryview(bytearray(_READ_BYTES))
        self._record = memoryview(bytearray(_HEAD.size + self._limit))
        self._zeros = bytes(_HEAD.size + self._limit)

    @property
    def connection(self) -> socket.socket:
        return self._connection

    def shake_hands(self, end: float) -> None:
        done, received = False, b""
        while not done:
            done = self.advance(received)
            if (left := end - monotonic()) <= 0:
                raise TimeoutError
            self._connection.settimeout(left)
            self._connection.sendall(self.unsent())
            if not done:
                received = self._receive_some()
        self._connection.settimeout(None)

    def _receive_some(self) -> bytes:
        with suppress(ConnectionError):
            if received := self._connection.recv(_READ_BYTES):
                return received
        raise self._die("The connection was cut off.", CutOff)

    def advance(self, received: bytes = b"") -> bool:
        """One step of the handshake; whether the other side has now proved itself. What is to be said is `unsent`."""
        self._incoming.write(received)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as reason:
            with suppress(OSError):
                self._connection.send(self.unsent())  # the alert that says why
            raise ProtocolError(_in_our_words(reason)) from None
        try:
            self._check_peer()
        except ProtocolError:
            self._outgoing.read()  # a wrong peer gets no reply
            raise
        self._make_room()
        return True

    def unsent(self) -> bytes:
        return self._outgoing.read()

    def abandon(self) -> None:
        """Forget the keys: in a forked process, those of other channels."""
        del self._tls, self._incoming, self._outgoing

    def send(self, *parts: bytes | bytearray | memoryview) -> None:
        with self._sending:
            self._check_alive()
            until = _HEAD.size + sum(map(len, parts))
            self._sent += until
            if until > len(self._out):
                raise self._die("A record would be longer than the link carries.")
            if self._sent > MAX_SENT_BYTES:
                raise self._die("The link has carried as much as one connection may.")
            _HEAD.pack_into(self._out, 0, until - _HEAD.size)
            at = _HEAD.size
            for part in parts:
                self._out[at : at + len(part)] = part
                at += len(part)
            try:
                with self._tls_lock:  # not while we wait for the connection: receiving must go on
                    self._tls.write(self._out[:until])
                    sealed = self._outgoing.read()
                self._connection.sendall(sealed)
            except OSError:
                raise self._die("The connection broke.", CutOff) from None
            finally:
                self._out[:until] = self._zeros[:until]

    def end(self) -> None:
        """Say, authenticated, that no record follows."""
        with self._sending, self._tls_lock:
            self._check_alive()
            self._dead = self._ended = True
            with suppress(ssl.SSLError):  # it would wait for the other side's end too
                self._tls.unwrap()
            with suppress(OSError):
                self._connection.sendall(self._outgoing.read())

    def receive(self) -> memoryview | None:
        """The next record, valid until the next call; None once either side ended. Wipes the one before."""
        self.forget()
        with self._tls_lock:  # a thread that ends the link has sent the end by then
            if self._ended:
                return None
        self._check_alive()
        needed = _HEAD.size
        while self._filled < needed:
            if not self._incoming.pending and not self._tls.pending():  # to try anyway costs an exception
                self._read_connection()
            try:
                with self._tls_lock:
                    if self._ended:
                        return None
                    # `read` gives a count, although it is typed as bytes.
                    read = int(self._tls.read(needed - self._filled, self._record[self._filled : needed]))
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                raise self._die("A record on a link was altered, repeated, left out or moved.") from None
            if not read and self._filled:
                raise self._die("The link ended in the middle of a record.")
            if not read:
                self._dead = True
                return None
            self._filled += read
            if self._filled == _HEAD.size:
                needed += _HEAD.unpack_from(self._record)[0]
                if needed > len(self._record):
                    raise self._die("A record is longer than the link carries.")
        return self._record[_HEAD.size : needed]

    def forget(self) -> None:
        self._record[: self._filled] = self._zeros[: self._filled]
        self._filled = 0

    def hung_up(self) -> bool:
        try:
            return not self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    @property
    def peer_hash(self) -> bytes:
        return sha256(self._tls.getpeercert(binary_form=True) or b"").digest()

    def _check_peer(self) -> None:
        """The accepted certificate, in this protocol. A server with none pinned yet may only ask for evidence."""
        ours = self._credentials
        if ours.role == "vault_host" and self._tls.getpeercert(binary_form=True) != ours.peer:
            raise ProtocolError(_OTHER_KEY)
        if ours.pinned and self.peer_hash != ours.pinned:
            raise ProtocolError("The vault host is not the one whose evidence was checked.")
        if self._tls.selected_alpn_protocol() != PROTOCOL:
            raise ProtocolError("The other side of a link speaks another protocol or another version of it.")

    def _check_alive(self) -> None:
        if self._dead:
            raise ProtocolError("The link has ended.")

    def _read_connection(self) -> None:
        try:
            received = self._connection.recv_into(self._sealed)
        except ConnectionError:
            received = 0
        if self._ended:  # by us, and the other side hung up
            return
        if not received:
            raise self._die("The connection was cut off.", CutOff)
        with self._tls_lock:
            self._incoming.write(self._sealed[:received])

    def _die(self, why: str, kind: type[ProtocolError] = ProtocolError) -> ProtocolError:
        self._dead = True
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        return kind(why)


def context_for(credentials: Credentials) -> ssl.SSLContext:
    """Accepts the other role's certificate, or one that it signed."""
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
    """`ssl` reads keys from files: one in memory, overwritten afterwards."""
    descriptor = os.memfd_create("cloister-credentials", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.pwrite(descriptor, bytes(len(content)), 0)
        os.close(descriptor)


def _in_our_words(reason: ssl.SSLError) -> str:
    if isinstance(reason, ssl.SSLCertVerificationError) or reason.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return _OTHER_KEY
    if "ALERT" in (reason.reason or ""):
        return "The other side of a link refused us: it has another key or another version."
    return "The other side of a link speaks another protocol or another version of it."
