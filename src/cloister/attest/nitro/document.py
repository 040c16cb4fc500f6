"""An attestation document taken apart, and the policy for it. Checks only the form.

AWS, "Nitro Enclaves attestation process": a COSE_Sign1 (RFC 9052 §4.2; the tag 18 may be there or not) signed with
ES384, whose payload is a CBOR map of at most ten known fields.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, TypeVar

from msgspec import Meta, Struct

from cloister.attest.cbor import Cbor, read_cbor
from cloister.errors import EvidenceInvalid

MAX_DOCUMENT_BYTES = 32768
MAX_CERTIFICATE_BYTES = 2048
MAX_FIELD_BYTES = 4096
PCR_BYTES = 48
USUAL_AGE_S = 300.0
ES384 = -35
_TAG_SIGN1 = b"\xd2"
_HEADER_ALGORITHM = 1
_NEEDED = ("module_id", "digest", "timestamp", "pcrs", "certificate", "cabundle")
_FREE = ("public_key", "user_data", "nonce")
_YEAR_2200_MS = 7_258_118_400_000

_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class Document:
    """What the Nitro hypervisor says of one enclave; `signed` is what `signature` is over."""

    module_id: str
    time: datetime
    pcrs: dict[int, bytes]
    certificate: bytes
    """DER, of the key that signed."""
    cabundle: tuple[bytes, ...]
    """DER, root first."""
    public_key: bytes | None
    user_data: bytes | None
    nonce: bytes | None
    signed: bytes
    signature: bytes


def read_document(data: bytes) -> Document:
    """The document, or EvidenceInvalid."""
    if len(data) > MAX_DOCUMENT_BYTES:
        raise EvidenceInvalid(f"A Nitro document may have at most {MAX_DOCUMENT_BYTES} bytes.")
    match read_cbor(data.removeprefix(_TAG_SIGN1)):
        case [bytes(protected), dict(unprotected), bytes(payload), bytes(signature)]:
            pass
        case _:
            raise EvidenceInvalid(
                "This is not a COSE_Sign1 message.", hint="A Nitro document is binary, or base64 of it."
            )
    if read_cbor(protected) != {_HEADER_ALGORITHM: ES384} or len(signature) != 96:
        raise EvidenceInvalid("The Nitro document is not signed with ES384.")
    if unprotected:
        raise EvidenceInvalid("The Nitro document has a header that nobody signed.")
    signed = b"\x84\x6aSignature1" + _bytes(protected) + _bytes(b"") + _bytes(payload)
    return _read_payload(read_cbor(payload), signed, signature)


def _bytes(value: bytes) -> bytes:
    """A CBOR byte string."""
    size = len(value)
    head = bytes([0x40 + size]) if size < 24 else b"\x58" + bytes([size]) if size < 256 else b"\x59"
    return head + (size.to_bytes(2, "big") if size >= 256 else b"") + value


def _read_payload(payload: Cbor, signed: bytes, signature: bytes) -> Document:
    if not isinstance(payload, dict):
        raise EvidenceInvalid("The Nitro document's payload is not a map.")
    if "nitrotpm_pcrs" in payload:
        raise EvidenceInvalid(
            "This document is of a NitroTPM (an EC2 instance), not of a Nitro enclave.",
            hint="Its PCRs mean other things; only enclaves are verified here.",
        )
    strange = [name for name in payload if name not in (*_NEEDED, *_FREE)]
    missing = [name for name in _NEEDED if name not in payload]
    if strange or missing:
        raise EvidenceInvalid("The Nitro document has fields that are not known, or lacks some that it must have.")
    module, digest = _field(payload, "module_id", str), _field(payload, "digest", str)
    if digest != "SHA384":
        raise EvidenceInvalid("The Nitro document's PCRs are not SHA384.")
    if not re.fullmatch(r"[\x21-\x7e]{1,256}", module):
        raise EvidenceInvalid("The Nitro document's module id is not a name.")
    moment = _field(payload, "timestamp", int)
    if not 0 < moment < _YEAR_2200_MS:
        raise EvidenceInvalid("The Nitro document's timestamp is none.")
    free = {name: _free(payload, name) for name in _FREE}
    return Document(
        module,
        datetime.fromtimestamp(moment / 1000, UTC),
        _pcrs(_field(payload, "pcrs", dict)),
        _certificate(payload["certificate"]),
        tuple(_certificate(each) for each in _field(payload, "cabundle", list)),
        signed=signed,
        signature=signature,
        **free,
    )


def _field(payload: dict[int | str, Cbor], name: str, kind: type[_Kind]) -> _Kind:
    value = payload[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise EvidenceInvalid(f"The Nitro document's {name} is of another kind.")
    return value


def _free(payload: dict[int | str, Cbor], name: str) -> bytes | None:
    """What the enclave put in; AWS writes null, or nothing, where it put nothing in."""
    value = payload.get(name)
    if value is None:
        return None
    if not isinstance(value, bytes) or len(value) > MAX_FIELD_BYTES:
        raise EvidenceInvalid(f"The Nitro document's {name} is not bytes, or too many.")
    return value


def _pcrs(values: dict[int | str, Cbor]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for index, value in values.items():
        if not isinstance(index, int) or not 0 <= index < 32 or not isinstance(value, bytes) or len(value) != PCR_BYTES:
            raise EvidenceInvalid("The Nitro document has a PCR that is none.")
        found[index] = value
    return found


def _certificate(value: Cbor) -> bytes:
    if not isinstance(value, bytes) or not 0 < len(value) <= MAX_CERTIFICATE_BYTES:
        raise EvidenceInvalid("The Nitro document has a certificate that is none.")
    return value


Pcr = Annotated[str, Meta(pattern=r"\A[0-9a-fA-F]{96}\Z")]


class Enclave(Struct, frozen=True, forbid_unknown_fields=True):
    """One enclave that is accepted, whole. PCR0 is its image, PCR1 kernel and boot, PCR2 the application; PCR3 the
    parent's role, PCR4 the parent instance, PCR8 who signed the image.
    """

    pcr0: Pcr
    pcr1: Pcr
    pcr2: Pcr
    pcr3: Pcr | None = None
    pcr4: Pcr | None = None
    pcr8: Pcr | None = None

    def __post_init__(self) -> None:
        # msgspec heeds patterns when it converts, not when it is called; a mistyped value must not just never match.
        if not all(re.fullmatch("[0-9a-fA-F]{96}", value) for value in self.named().values()):
            raise ValueError("a PCR has 96 hexadecimal digits")

    def named(self) -> dict[int, str]:
        """The PCRs it names, by index."""
        values = {int(name.removeprefix("pcr")): getattr(self, name) for name in self.__struct_fields__}
        return {index: value for index, value in values.items() if value is not None}

    def differences(self, document: Document) -> list[str]:
        """The PCRs in which a document is not of this enclave."""
        named = self.named().items()
        return [f"PCR{index}" for index, value in named if document.pcrs.get(index) != bytes.fromhex(value)]


class NitroPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """Without `enclaves` nothing passes. A list that is absent asks nothing; an empty one accepts nothing."""

    enclaves: tuple[Enclave, ...] = ()
    module_ids: tuple[str, ...] | None = None
    max_age_s: Annotated[float, Meta(gt=0, le=3 * 3600)] = USUAL_AGE_S
    """How old a document may be; AWS's certificates live for three hours. More than usual is a relaxation."""
    allow_debug: bool = False
    """An enclave whose console its parent reads; AWS gives it PCRs of zeros."""

    def relaxations(self) -> tuple[str, ...]:
        older = [f"max_age_s {self.max_age_s:.0f}"] if self.max_age_s > USUAL_AGE_S else []
        return (*(["allow_debug"] if self.allow_debug else []), *older)
