"""The certificate table a host hands its guests: GUIDs with offsets, then the certificates (GHCB specification).

It is what `auxblob` of the kernel's TSM reports holds. Knows nothing of what is in a certificate.
"""

from __future__ import annotations

import struct
from uuid import UUID

from cloister.errors import EvidenceInvalid

_ENTRY = struct.Struct("<16sII")
_MAX_ENTRIES = 32
_END = bytes(16)
_KNOWN = (
    UUID("63da758d-e664-4564-adc5-f4b93be8accd"),  # VCEK
    UUID("a8074bc2-a25a-483e-aae6-39c045a0b8a1"),  # VLEK
    UUID("4ab7b379-bbac-4fe4-a02f-05aef327c782"),  # ASK or ASVK
    UUID("c0b406a4-a803-4952-9743-3fb6014cd0ae"),  # ARK
    UUID("92f81bc3-5811-4d3d-97ff-d19f88dc67ea"),  # CRL
)
# Hosts exist that write a GUID's first three fields the other way round; no two of these can be confused.
_WANTED = {guid.bytes for guid in _KNOWN} | {guid.bytes_le for guid in _KNOWN}


def looks_like_table(blob: bytes) -> bool:
    """It begins with a GUID that such tables have."""
    return blob[:16] in _WANTED


def read_table(blob: bytes) -> list[bytes]:
    """The certificates and revocation lists in a table; entries of kinds not known are passed over."""
    found: list[bytes] = []
    for place in range(_MAX_ENTRIES):
        if len(blob) < (place + 1) * _ENTRY.size:
            raise EvidenceInvalid("The certificate table has no end, or this is neither a certificate nor a table.")
        guid, offset, length = _ENTRY.unpack_from(blob, place * _ENTRY.size)
        if guid == _END:
            return found
        if offset + length > len(blob):
            raise EvidenceInvalid("The certificate table points outside itself.")
        if guid in _WANTED and length:
            found.append(blob[offset : offset + length])
    raise EvidenceInvalid(f"The certificate table has more than {_MAX_ENTRIES} entries.")
