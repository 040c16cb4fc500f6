"""Arrays into shares, which travel as head and bytes. A peer chooses sizes alone; no pickle or protobuf is read."""

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from spu import Io, libspu

from cloister.errors import ProtocolError
from cloister_mpc.config import PARTIES, share_bytes
from cloister_mpc.functions.ring import FRACTION_BITS
from cloister_mpc.messages import CHUNK_BYTES, DataType, ShareHead

_TYPES: dict[DataType, libspu.DataType] = {
    "float32": libspu.DataType.DT_F32,
    "int32": libspu.DataType.DT_I32,
    "int64": libspu.DataType.DT_I64,
}
_NAMES = {number: name for name, number in _TYPES.items()}
ARITHMETIC = "aby3.AShr<FM64>"  # the kind of share that parties are dealt
_STORAGE = re.compile(r"aby3\.(?:AShr<FM64>|BShr<PT_U(8|16|32|64|128),\d{1,3}>)")


def runtime_config() -> libspu.RuntimeConfig:
    """What all parties and dealers must agree on. Nothing is traced, profiled or dumped: no log holds a secret."""
    kind, field = libspu.ProtocolKind.ABY3, libspu.FieldType.FM64
    return libspu.RuntimeConfig(protocol=kind, field=field, fxp_fraction_bits=FRACTION_BITS)


class Dealer:
    def __init__(self) -> None:
        self._io = Io(PARTIES, runtime_config())

    def deal(self, values: NDArray[np.generic]) -> list[libspu.Share]:
        """Fresh secret shares: integers stay integers, floats become fixed point."""
        shares: list[libspu.Share] = self._io.make_shares(_dense(values), libspu.Visibility.VIS_SECRET)
        return shares

    def publish(self, values: NDArray[np.generic]) -> libspu.Share:
        return self._io.make_shares(_dense(values), libspu.Visibility.VIS_PUBLIC)[0]

    def join(self, shares: Sequence[libspu.Share]) -> NDArray[np.generic]:
        values: NDArray[np.generic] = self._io.reconstruct(list(shares))
        return values


def _dense(values: NDArray[np.generic]) -> NDArray[np.generic]:
    return np.ascontiguousarray(values).reshape(values.shape)  # ascontiguousarray makes a row of a single number


def share_of(head: ShareHead, kind: str, content: bytes) -> libspu.Share:
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
    view = memoryview(content)
    for start in range(0, len(view), CHUNK_BYTES):
        yield bytes(view[start : start + CHUNK_BYTES])


def result_size(head: ShareHead, kind: str) -> int:
    """Bytes that a result's share must have; raises for a kind that is not the protocol's."""
    found = _STORAGE.fullmatch(kind)
    if found is None:
        raise ProtocolError("A result is not a share of this protocol.")
    return share_bytes(head, int(found[1]) // 8 if found[1] else 8)
