"""What two bridges check once TLS stands: that both sides have the same model and version, and that there is a vault.
Otherwise a vault's answers would be wrong, and nobody would notice."""

from __future__ import annotations

import hashlib
import mmap

import msgspec

from cloister.errors import ProtocolError, VaultLost
from cloister.link.memory import LinkShape
from cloister.link.network.address import Address
from cloister.link.network.records import HANDSHAKE, KIND, kind_of
from cloister.link.network.tls import SecureChannel
from cloister.messages.bridge import VaultGranted, VaultRefused, VaultRequest
from cloister.messages.generation import VERSION


def digest_of(weights: int) -> bytes:
    """SHA-256 of the sealed weights: model, precision, format and packing at once."""
    with mmap.mmap(weights, 0, prot=mmap.PROT_READ) as content:
        return hashlib.sha256(content).digest()


def request_for(model: bytes, shape: LinkShape) -> VaultRequest:
    return VaultRequest(VERSION, model, shape.heads, shape.dim, shape.layers, shape.capacity)


def shape_of(request: VaultRequest) -> LinkShape:
    return LinkShape(request.heads, request.dim, request.layers, request.capacity)


def ask_for_vault(channel: SecureChannel, request: VaultRequest, address: Address) -> None:
    """The server bridge's half; returns when there is a vault."""
    _say(channel, request)
    answer = _hear(channel, VaultGranted | VaultRefused)
    if isinstance(answer, VaultRefused):
        raise VaultLost(f"The vault host at {address} refuses: {answer.message}")


def check_request(channel: SecureChannel, ours: VaultRequest) -> None:
    """The vault bridge's half; returns if the server wants what we have."""
    theirs = _hear(channel, VaultRequest)
    if theirs == ours:
        return
    if isinstance(theirs, VaultRequest) and theirs.version != ours.version:
        why = "it runs another version of Cloister."
    else:
        why = "it serves another model, or the same in another precision or format."
    _say(channel, VaultRefused(why))
    channel.end()
    raise ProtocolError("A server wanted another model or version than is here.")


def grant_vault(channel: SecureChannel) -> None:
    _say(channel, VaultGranted())


def _say(channel: SecureChannel, message: msgspec.Struct) -> None:
    channel.send(KIND.pack(HANDSHAKE), msgspec.msgpack.encode(message))


def _hear(channel: SecureChannel, union: object) -> object:
    record = channel.receive()
    if record is None or kind_of(record) != HANDSHAKE:
        raise ProtocolError("The other side of a link said something else than what it wants or has.")
    try:
        return msgspec.msgpack.decode(record[KIND.size :], type=union)
    except msgspec.MsgspecError:
        raise ProtocolError("The other side's handshake does not decode.") from None
