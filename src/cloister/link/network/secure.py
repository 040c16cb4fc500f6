"""A connection on which both sides know who speaks, and nobody else what is said.

Both hold one secret. Each sends an ephemeral X25519 key (RFC 7748) and proves that it knows the secret, the listening
side first; from the secret, the shared value and the transcript, HKDF-SHA256 (RFC 5869) makes one key per direction.
Whoever learns the secret later cannot read what was recorded. Records are sealed with ChaCha20-Poly1305 (RFC 8439):

    length of the plaintext (4 bytes) | kind (1 byte: a record, or the end) | ciphertext | tag (16 bytes)

The head is authenticated too, and the nonce is the record's number, so that a record altered, repeated, left out or
moved does not open. Every such thing is a ProtocolError, and the connection is dead from then on. The channel knows
bytes, not what they mean.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
import threading
from contextlib import suppress
from time import monotonic
from typing import Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from cloister.errors import ProtocolError
from cloister.link.network.secret import SECRET_BYTES

Side = Literal["near", "far"]

GREETING = b"cloister-link/1\n"
KEY_BYTES = 32
PROOF_BYTES = 32
TAG_BYTES = 16
MAX_RECORD_BYTES = 16 * 1024 * 1024
"""No channel may be made for longer records than this."""

_HEAD = struct.Struct("<IB")
_NONCE = struct.Struct("<4xQ")
_RECORD, _END = 0, 1


class CutOff(ProtocolError):
    """The connection is gone without an end that was agreed on: the other side died, or somebody cut the line."""


def meet(connection: socket.socket, secret: bytes, side: Side, limit: int, patience_s: float = 10.0) -> SecureChannel:
    """Prove to each other who we are. Nothing but keys and proofs is sent before; both sides must agree on `limit`."""
    if len(secret) != SECRET_BYTES:
        raise ProtocolError(f"The shared secret must have {SECRET_BYTES} bytes.")
    end = monotonic() + patience_s
    try:
        keys = (_greet if side == "near" else _be_greeted)(connection, secret, end)
        connection.settimeout(None)
    except TimeoutError:
        raise ProtocolError("The other side of a link did not introduce itself in time.") from None
    except OSError:
        raise ProtocolError("The connection broke before both sides had introduced themselves.") from None
    ours, theirs = keys if side == "near" else reversed(keys)
    return SecureChannel(connection, ours, theirs, limit)


def _greet(connection: socket.socket, secret: bytes, end: float) -> tuple[bytes, bytes]:
    private = X25519PrivateKey.generate()
    greeting = GREETING + private.public_key().public_bytes_raw()
    _send(connection, greeting, end)
    reply = _read(connection, len(greeting), end)
    to_far, to_near, near_proof, far_proof = _derive(private, secret, greeting, reply, reply)
    if not hmac.compare_digest(_read(connection, PROOF_BYTES, end), far_proof):
        raise ProtocolError("The other side of a link does not know the key.")
    _send(connection, near_proof, end)
    return to_far, to_near


def _be_greeted(connection: socket.socket, secret: bytes, end: float) -> tuple[bytes, bytes]:
    private = X25519PrivateKey.generate()
    reply = GREETING + private.public_key().public_bytes_raw()
    greeting = _read(connection, len(reply), end)
    to_far, to_near, near_proof, far_proof = _derive(private, secret, greeting, reply, greeting)
    _send(connection, reply + far_proof, end)
    if not hmac.compare_digest(_read(connection, PROOF_BYTES, end), near_proof):
        raise ProtocolError("The other side of a link does not know the key.")
    return to_far, to_near


def _derive(
    private: X25519PrivateKey, secret: bytes, greeting: bytes, reply: bytes, theirs: bytes
) -> tuple[bytes, bytes, bytes, bytes]:
    """The keys of both directions, and what each side says to prove that it has them."""
    if not theirs.startswith(GREETING):
        raise ProtocolError("The other side of a link speaks another protocol or another version of it.")
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(theirs[len(GREETING) :]))
    except ValueError:  # a key of small order: the shared value would be zero
        raise ProtocolError("The other side of a link sent a key that is none.") from None
    transcript = hashlib.sha256(greeting + reply).digest()
    made = HKDF(SHA256(), length=4 * KEY_BYTES, salt=transcript, info=GREETING).derive(secret + shared)
    to_far, to_near, proves_near, proves_far = (made[at : at + KEY_BYTES] for at in range(0, len(made), KEY_BYTES))
    return (
        to_far,
        to_near,
        hmac.digest(proves_near, b"near" + transcript, "sha256"),
        hmac.digest(proves_far, b"far" + transcript, "sha256"),
    )


class SecureChannel:
    """Made by `meet`. Any thread may send; one receives."""

    def __init__(self, connection: socket.socket, sealing: bytes, opening: bytes, limit: int) -> None:
        if not 0 < limit <= MAX_RECORD_BYTES:
            raise ProtocolError("A link's records would be longer than is allowed.")
        self._connection = connection
        self._limit = limit
        self._dead = False
        self._sending = threading.Lock()
        self._seal = ChaCha20Poly1305(sealing)
        self._sent = 0
        self._plain = memoryview(bytearray(limit))
        self._out = memoryview(bytearray(_HEAD.size + limit + TAG_BYTES))
        self._open = ChaCha20Poly1305(opening)
        self._opened = 0
        self._in = memoryview(bytearray(2 * (_HEAD.size + limit + TAG_BYTES)))
        self._begin = self._filled = 0
        self._text = memoryview(bytearray(limit))
        self._text_bytes = 0
        self._nothing = bytes(limit)

    def send(self, *parts: bytes | bytearray | memoryview) -> None:
        """One record made of these parts."""
        self._send(_RECORD, parts)

    def end(self) -> None:
        """Say, so that nobody else could have, that no record follows."""
        self._send(_END, ())
        self._dead = True

    def receive(self) -> memoryview | None:
        """The next record, valid until the next call; None once the other side ended. Wipes the one before."""
        self.forget()
        length, kind = self._await_record()
        head = bytes(self._in[self._begin : self._begin + _HEAD.size])
        body = self._begin + _HEAD.size
        until = body + length + TAG_BYTES
        try:
            self._open.decrypt_into(_NONCE.pack(self._opened), self._in[body:until], head, self._text[:length])
        except InvalidTag:
            raise self._die("A record on a link was altered, repeated, left out or moved.") from None
        self._opened += 1
        self._begin = until
        self._text_bytes = length
        if kind == _RECORD:
            return self._text[:length]
        if kind != _END or length:
            raise self._die("A record on a link is of no known kind.")
        self._dead = True
        return None

    def forget(self) -> None:
        """Overwrite the record received last."""
        self._text[: self._text_bytes] = self._nothing[: self._text_bytes]
        self._text_bytes = 0

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

    def _send(self, kind: int, parts: tuple[bytes | bytearray | memoryview, ...]) -> None:
        with self._sending:
            if self._dead:
                raise ProtocolError("The link has ended.")
            length = 0
            for part in parts:
                until = length + len(part)
                if until > self._limit:
                    self._plain[:length] = self._nothing[:length]
                    raise self._die("A record would be longer than the link carries.")
                self._plain[length:until] = part
                length = until
            _HEAD.pack_into(self._out, 0, length, kind)
            until = _HEAD.size + length + TAG_BYTES
            head = bytes(self._out[: _HEAD.size])
            self._seal.encrypt_into(_NONCE.pack(self._sent), self._plain[:length], head, self._out[_HEAD.size : until])
            self._sent += 1
            self._plain[:length] = self._nothing[:length]
            try:
                self._connection.sendall(self._out[:until])
            except OSError:
                raise self._die("The connection broke.", CutOff) from None

    def _await_record(self) -> tuple[int, int]:
        """Read until the next record is whole; its length and kind, neither of which is to be believed yet."""
        if self._dead:
            raise ProtocolError("The link has ended.")
        while True:
            have = self._filled - self._begin
            need = _HEAD.size
            if have >= need:
                length, kind = _HEAD.unpack_from(self._in, self._begin)
                if length > self._limit:
                    raise self._die("A record is longer than the link carries.")
                need += length + TAG_BYTES
                if have >= need:
                    return length, kind
            if not have:
                self._begin = self._filled = 0
            elif self._begin + need > len(self._in):
                self._in[:have] = bytes(self._in[self._begin : self._filled])
                self._begin, self._filled = 0, have
            try:
                received = self._connection.recv_into(self._in[self._filled :])
            except OSError:
                raise self._die("The connection broke.", CutOff) from None
            if not received:
                raise self._die("The connection was cut off.", CutOff)
            self._filled += received

    def _die(self, why: str, kind: type[ProtocolError] = ProtocolError) -> ProtocolError:
        self._dead = True
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        return kind(why)


def _send(connection: socket.socket, data: bytes, end: float) -> None:
    connection.settimeout(max(end - monotonic(), 0.001))
    connection.sendall(data)


def _read(connection: socket.socket, size: int, end: float) -> bytes:
    """Exactly so many bytes, all of them before `end`."""
    data = b""
    while len(data) < size:
        connection.settimeout(max(end - monotonic(), 0.001))
        more = connection.recv(size - len(data))
        if not more:
            raise ProtocolError("The other side of a link hung up before it had introduced itself.")
        data += more
    return data
