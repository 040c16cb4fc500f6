"""What bridges say once TLS stands. Another model or version would give wrong answers without an error."""

import hashlib
import mmap

import msgspec

from cloister.errors import ProtocolError, VaultLost
from cloister.link.memory import LinkShape
from cloister.link.network.address import Address
from cloister.link.network.records import HANDSHAKE, KIND, kind_of
from cloister.link.network.tls import SecureChannel
from cloister.messages import network_link as wire
from cloister.messages.types import VERSION


def digest_of(weights: int) -> bytes:
    """SHA-256 of the sealed weights: model, precision, format and packing at once."""
    with mmap.mmap(weights, 0, prot=mmap.PROT_READ) as content:
        return hashlib.sha256(content).digest()


def request_for(model: bytes, shape: LinkShape) -> wire.VaultRequest:
    return wire.VaultRequest(VERSION, model, shape.heads, shape.dim, shape.layers, shape.capacity)


def shape_of(request: wire.VaultRequest) -> LinkShape:
    return LinkShape(request.heads, request.dim, request.layers, request.capacity)


def ask_for_vault(channel: SecureChannel, request: wire.VaultRequest, address: Address) -> None:
    _send(channel, request)
    answer = _receive(channel, wire.VaultGranted | wire.VaultRefused)
    if isinstance(answer, wire.VaultRefused):
        raise VaultLost(f"The vault host at {address} refuses: {answer.message}")


def ask_for_evidence(channel: SecureChannel, nonce: bytes) -> bytes:
    """The vault host's evidence over this nonce, unchecked."""
    _send(channel, wire.EvidenceRequest(nonce))
    document = b""
    while True:
        part = _receive(channel, wire.EvidencePart)
        assert isinstance(part, wire.EvidencePart)
        document += part.data
        if len(document) > wire.MAX_DOCUMENT_BYTES:
            raise ProtocolError("A vault host's evidence is too long.")
        if part.last:
            return document


def show_evidence(channel: SecureChannel, document: bytes) -> None:
    for at in range(0, max(1, len(document)), wire.MAX_PART_BYTES):
        after = at + wire.MAX_PART_BYTES
        _send(channel, wire.EvidencePart(document[at:after], after >= len(document)))


def next_request(channel: SecureChannel) -> wire.VaultRequest | wire.EvidenceRequest | None:
    record = channel.receive()
    return None if record is None else _decoded(record, wire.VaultRequest | wire.EvidenceRequest)  # type: ignore[return-value]


def check_request(channel: SecureChannel, theirs: wire.VaultRequest, ours: wire.VaultRequest) -> None:
    if theirs == ours:
        return
    if theirs.version != ours.version:
        why = "it runs another version of Cloister."
    else:
        why = "it serves another model, or the same in another precision or format."
    _send(channel, wire.VaultRefused(why))
    channel.end()
    raise ProtocolError("A server wanted another model or version than is here.")


def grant_vault(channel: SecureChannel) -> None:
    _send(channel, wire.VaultGranted())


def _send(channel: SecureChannel, message: msgspec.Struct) -> None:
    channel.send(KIND.pack(HANDSHAKE), msgspec.msgpack.encode(message))


def _receive(channel: SecureChannel, union: object) -> object:
    return _decoded(channel.receive(), union)


def _decoded(record: memoryview | None, union: object) -> object:
    if record is None or kind_of(record) != HANDSHAKE:
        raise ProtocolError("The other side of a link said something else than what it wants or has.")
    try:
        return msgspec.msgpack.decode(record[KIND.size :], type=union)
    except msgspec.MsgspecError:
        raise ProtocolError("The other side's handshake does not decode.") from None
