"""The request and the answer's head that travel inside the sealed channel: HTTP's parts, typed and bounded, as msgpack.

Credentials travel in here too. This module does not know what paths exist or what a body says.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from cloister.channel.sealing import MAX_PLAINTEXT_BYTES
from cloister.channel.stream import MAX_FRAME_DATA
from cloister.errors import ChannelBroken

MAX_HEADERS = 64

Method = Annotated[str, Meta(pattern=r"^[A-Z]{3,7}\Z")]
Path = Annotated[str, Meta(pattern=r"^/[!-~]*\Z", max_length=2048)]
HeaderName = Annotated[str, Meta(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}\Z")]
HeaderValue = Annotated[str, Meta(pattern=r"^[^\x00-\x08\x0a-\x1f\x7f]*\Z", max_length=8192)]
Headers = Annotated[tuple[tuple[HeaderName, HeaderValue], ...], Meta(max_length=MAX_HEADERS)]


class InnerRequest(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An HTTP request. `path` has the query in it; no header can hide another in a line of its own."""

    method: Method
    path: Path
    headers: Headers = ()
    body: Annotated[bytes, Meta(max_length=MAX_PLAINTEXT_BYTES)] = b""

    def __repr__(self) -> str:
        return f"InnerRequest({len(self.body)} bytes)"  # never what a user wrote

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> InnerRequest:
        """The request, or ChannelBroken."""
        return _decoded(_request, data, MAX_PLAINTEXT_BYTES)


class InnerHead(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What an HTTP answer begins with."""

    status: Annotated[int, Meta(ge=100, le=599)]
    headers: Headers = ()

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> InnerHead:
        """The head, or ChannelBroken."""
        return _decoded(_head, data, MAX_FRAME_DATA)


Inner = TypeVar("Inner", InnerRequest, InnerHead)
_request: msgspec.msgpack.Decoder[InnerRequest] = msgspec.msgpack.Decoder(InnerRequest)
_head: msgspec.msgpack.Decoder[InnerHead] = msgspec.msgpack.Decoder(InnerHead)


def _decoded(decoder: msgspec.msgpack.Decoder[Inner], data: bytes, limit: int) -> Inner:
    if len(data) > limit:
        raise ChannelBroken(f"A sealed message may have at most {limit} bytes, not {len(data)}.")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):  # ValueError: text that is not UTF-8
        raise ChannelBroken(
            "A sealed message does not decode.", hint="Client and node may be of other versions."
        ) from None
