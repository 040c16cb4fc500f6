"""A share as it travels: a head that says how large the secret is, and the bytes. No pickle, no protobuf of others.

What kind of share a party takes follows from its own protocol; a peer only chooses sizes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from spu import libspu

from cloister.errors import ProtocolError
from cloister.messages.mpc import CHUNK_BYTES, DataType, ShareHead
from cloister.mpc.config import PartiesConfig, Protocol

_STORAGE: dict[Protocol, str] = {
    "aby3": "aby3.AShr<FM64>",
    "cheetah": "cheetah.AShr<FM64>",
    "semi2k": "semi2k.AShr<FM64>",
}
_TYPES: dict[DataType, libspu.DataType] = {
    "float32": libspu.DataType.DT_F32,
    "int32": libspu.DataType.DT_I32,
    "int64": libspu.DataType.DT_I64,
}
_NAMES = {number: name for name, number in _TYPES.items()}
_KINDS: dict[Protocol, libspu.ProtocolKind] = {
    "aby3": libspu.ProtocolKind.ABY3,
    "cheetah": libspu.ProtocolKind.CHEETAH,
    "semi2k": libspu.ProtocolKind.SEMI2K,
}
_BEAVERS = {
    "multi_party": libspu.RuntimeConfig.BeaverType.MultiParty,
    "trusted_first_party": libspu.RuntimeConfig.BeaverType.TrustedFirstParty,
}
FRACTION_BITS = 18


def spu_config(config: PartiesConfig) -> libspu.RuntimeConfig:
    """The engine's settings: nothing is traced, profiled or dumped, so that nothing of a secret is in any log."""
    made = libspu.RuntimeConfig(
        protocol=_KINDS[config.protocol], field=libspu.FieldType.FM64, fxp_fraction_bits=FRACTION_BITS
    )
    made.beaver_type = _BEAVERS[config.beaver]
    return made


def storage(protocol: Protocol) -> str:
    """What shares of this protocol are called by SPU."""
    return _STORAGE[protocol]


def share_of(head: ShareHead, kind: str, content: bytes) -> libspu.Share:
    """The share SPU takes."""
    meta = libspu.ValueMeta()
    meta.data_type = _TYPES[head.dtype]
    meta.is_complex = False
    meta.visibility = libspu.Visibility.VIS_SECRET
    meta.shape = list(head.dims)
    meta.storage_type = kind
    chunk = libspu.ValueChunk()
    chunk.total_bytes = len(content)
    chunk.chunk_offset = 0
    chunk.content = content
    share = libspu.Share()
    share.meta = meta.SerializeToString()
    share.share_chunks = [chunk.SerializeToString()]
    return share


def content_of(share: libspu.Share) -> bytes:
    """The share's bytes."""
    parts = []
    for serialised in share.share_chunks:
        chunk = libspu.ValueChunk()
        chunk.ParseFromString(serialised)
        parts.append(chunk.content)
    return b"".join(parts)


def described(name: str, share: libspu.Share) -> tuple[ShareHead, str]:
    """Head and kind of a share that SPU made; raises where it is not a secret one."""
    meta = libspu.ValueMeta()
    meta.ParseFromString(share.meta)
    if meta.visibility != libspu.Visibility.VIS_SECRET or meta.data_type not in _NAMES:
        raise ProtocolError("A result is not a secret of a type that travels.")
    return ShareHead(name, _NAMES[meta.data_type], tuple(meta.shape.dims)), str(meta.storage_type)


def pieces(content: bytes | memoryview) -> Iterator[bytes]:
    """The bytes, in chunks as messages carry them."""
    view = memoryview(content)
    for start in range(0, len(view), CHUNK_BYTES):
        yield bytes(view[start : start + CHUNK_BYTES])


_KIND = re.compile(r"([a-z0-9]+)\.(?:AShr<FM64>|BShr<PT_U(8|16|32|64|128),\d{1,3}>)")
_PARTS = {"aby3": 2, "cheetah": 1, "semi2k": 1}


def result_size(head: ShareHead, kind: str, protocol: Protocol) -> int:
    """How many bytes a result's share must have; raises for kinds of share that are none of the protocol's."""
    found = _KIND.fullmatch(kind)
    if found is None or found[1] != protocol:
        raise ProtocolError("A result is not a share of this protocol.")
    return math.prod(head.dims) * (int(found[2]) // 8 if found[2] else 8) * _PARTS[protocol]
