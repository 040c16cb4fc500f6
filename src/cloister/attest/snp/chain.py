"""From the key that signed a report up to AMD's root: which certificates those are, and what the lowest one says.

Finds; it does not judge (verify.py does).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1
from cryptography.hazmat.primitives.hashes import SHA384

from cloister.attest.chain import ecdsa_signed
from cloister.attest.snp.certificate import Certificate
from cloister.attest.snp.product import Product, Tcb, product_of_name
from cloister.attest.snp.report import Report

LEAF_NAMES = {"vcek": "SEV-VCEK", "vlek": "SEV-VLEK"}
_HWID_BYTES = (8, 64)  # Turin's chips have eight, those before sixty-four


@dataclass(frozen=True)
class Chain:
    """The certificates found; None where there is none to be had."""

    leaf: Certificate | None
    intermediate: Certificate | None
    root: Certificate | None


def find_chain(report: Report, certificates: Sequence[Certificate], pinned: Mapping[Product, str]) -> Chain:
    """Pick, of certificates in any order, those that belong together; the right one where several would do."""
    kind = LEAF_NAMES.get(report.signing_key)
    leaf = _choose([one for one in certificates if one.common_name == kind], lambda one: signed_by(report, one))
    intermediate = leaf and _choose(
        [one for one in certificates if one.subject == leaf.issuer], lambda one: leaf.issued_by(one)
    )
    root = intermediate and _choose(
        [one for one in certificates if one.subject == intermediate.issuer],
        lambda one: one.fingerprint in pinned.values(),
    )
    return Chain(leaf, intermediate, root)


def signed_by(report: Report, leaf: Certificate) -> bool:
    """ECDSA over P-384 with SHA-384 of the report's first part."""
    return ecdsa_signed(leaf.key, SECP384R1, SHA384(), (report.r, report.s), report.signed)


def authority_name(report: Report, product: Product) -> str:
    """The common name of the key between leaf and root: ASK for a VCEK, ASVK for a VLEK."""
    return f"SEV-VLEK-{product}" if report.signing_key == "vlek" else f"SEV-{product}"


def product_in(leaf: Certificate) -> Product | None:
    """What the certificate says of its chip."""
    return product_of_name(_text(leaf.extensions.get("2", b"")))


def provider_in(leaf: Certificate) -> str:
    """Whose VLEK this is."""
    return _text(leaf.extensions.get("5", b""))


def tcb_in(leaf: Certificate, product: Product) -> Tcb | None:
    """The patch levels the key was derived for; None unless all are there."""
    parts = {"bootloader": "3.1", "tee": "3.2", "snp": "3.3", "microcode": "3.8"}
    if product == "Turin":
        parts["fmc"] = "3.9"
    levels = {name: _level(leaf.extensions.get(number, b"")) for name, number in parts.items()}
    found = {name: level for name, level in levels.items() if level is not None}
    return Tcb(**found) if len(found) == len(parts) else None


def chip_in(leaf: Certificate) -> bytes | None:
    """The chip's number: bare bytes in the certificates there are, an OCTET STRING as others may have it."""
    value = leaf.extensions.get("4", b"")
    if len(value) - 2 in _HWID_BYTES and value[:2] == bytes([0x04, len(value) - 2]):
        value = value[2:]
    return value if len(value) in _HWID_BYTES else None


def _choose(candidates: Sequence[Certificate], right: Callable[[Certificate], bool]) -> Certificate | None:
    return next(filter(right, candidates), candidates[0] if candidates else None)


def _level(value: bytes) -> int | None:
    """A DER INTEGER from 0 to 255."""
    if len(value) == 3 and value[:2] == b"\x02\x01" and value[2] < 0x80:
        return value[2]
    if len(value) == 4 and value[:3] == b"\x02\x02\x00" and value[3] >= 0x80:
        return value[3]
    return None


def _text(value: bytes) -> str:
    """A short DER string (IA5, UTF-8 or printable); empty if it is none."""
    if len(value) < 2 or value[0] not in (0x16, 0x0C, 0x13) or value[1] >= 0x80 or value[1] != len(value) - 2:
        return ""
    return value[2:].decode("ascii", "replace")
