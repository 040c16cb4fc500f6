"""The JSON in which other people hand out reports and quotes: what is inside, or a clear word why it cannot be used.

    dstack      {"quote": hex, "event_log": …, "vm_config": …}, also {"intel_quote": …}
    CoCo        {"quote": base64, "cc_eventlog": …}; {"attestation_report": {…}} holds no report that could be checked
    GCP         {"tdCcel": {"tdQuote": …}}, {"sevSnpAttestation": {"report": …, "auxBlob": …}}
    Tinfoil     {"format": "https://tinfoil.sh/predicate/…", "body": base64 of gzip}, also in an ATC bundle
    Nitro       {"attestation_doc": base64}, as enclaves' own servers answer

Verifies nothing. An event log inside is handed on: a quote's registers tell whether it is true. Anything else beside
the report is not evidence: its names are listed, so that nobody takes it for checked.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from cloister.checks import decode_evidence
from cloister.errors import EvidenceInvalid

Kind = Literal["snp", "tdx", "nitro"]
MAX_INSIDE_BYTES = 65536
_TOKEN = re.compile(rb"eyJ[\w-]+\.[\w-]+\.[\w-]*")
_TINFOIL = re.compile(r"https://tinfoil\.sh/predicate/(sev-snp|tdx)-guest/v[12]")
_KNOWN = "Envelopes of dstack, CoCo, GCP and Tinfoil are known, and bare reports: binary, hex or base64."


@dataclass(frozen=True)
class Envelope:
    """What was inside. `beside` names what else there was, all of it unchecked."""

    maker: str
    kind: Kind
    report: bytes
    certificates: tuple[bytes, ...] = ()
    beside: tuple[str, ...] = ()
    event_log: bytes | None = None
    """In a form that `cloister.attest.tdx.event_log` reads, or refuses."""


def open_envelope(data: bytes) -> Envelope | None:
    """The envelope's contents; None if this is not JSON at all. EvidenceInvalid says what is wrong with an envelope."""
    text = data.strip()
    if _TOKEN.fullmatch(text):
        raise EvidenceInvalid(
            "This is a token (JWT): an attestation service's word on evidence, not the machine's own.",
            hint="Ask for the report or quote that it was made from.",
        )
    if not text.startswith(b"{"):
        return None
    fields = decode_evidence(text, dict[str, Any], "The envelope", hint="It begins like JSON. Is the file whole?")
    for wanted, read in _READERS:
        if wanted in fields:
            return read(fields)
    names = ", ".join(ascii(name)[:32] for name in list(fields)[:8])
    raise EvidenceInvalid(f"This is JSON of a kind that is not known here; it has {names or 'nothing'}.", hint=_KNOWN)


def _tinfoil(fields: dict[str, Any]) -> Envelope:
    found = _TINFOIL.fullmatch(str(fields.get("format")))
    if found is None:
        raise EvidenceInvalid("The envelope's format is not one of Tinfoil's that are known here.", hint=_KNOWN)
    body = _bytes(fields, "body")
    kind: Kind = "snp" if found[1] == "sev-snp" else "tdx"
    report = _unpacked(body) if body.startswith(b"\x1f\x8b") else body
    return Envelope("Tinfoil", kind, report, beside=_beside(fields, "format", "body"))


def _tinfoil_bundle(fields: dict[str, Any]) -> Envelope:
    inner = _tinfoil(_object(fields, "enclaveAttestationReport"))
    leaf = (_bytes(fields, "vcek"),) if fields.get("vcek") else ()
    return Envelope("Tinfoil", inner.kind, inner.report, leaf, _beside(fields, "enclaveAttestationReport", "vcek"))


def _gcp_tdx(fields: dict[str, Any]) -> Envelope:
    inside = _object(fields, "tdCcel")
    beside = (*_beside(inside, "tdQuote", "ccelData"), *_beside(fields, "tdCcel"))
    return Envelope("GCP", "tdx", _bytes(inside, "tdQuote"), (), beside, _log(inside, "ccelData"))


def _gcp_snp(fields: dict[str, Any]) -> Envelope:
    inside = _object(fields, "sevSnpAttestation")
    table = (_bytes(inside, "auxBlob"),) if inside.get("auxBlob") else ()
    return Envelope("GCP", "snp", _bytes(inside, "report"), table, _beside(fields, "sevSnpAttestation"))


def _intel_quote(fields: dict[str, Any]) -> Envelope:
    beside = _beside(fields, "intel_quote", "quote", "event_log")
    return Envelope("dstack", "tdx", _bytes(fields, "intel_quote"), (), beside, _log(fields, "event_log"))


def _quote(fields: dict[str, Any]) -> Envelope:
    if isinstance(fields["quote"], dict):
        fields = _object(fields, "quote")
    maker, name = ("CoCo", "cc_eventlog") if "cc_eventlog" in fields else ("dstack", "event_log")
    return Envelope(maker, "tdx", _bytes(fields, "quote"), (), _beside(fields, "quote", name), _log(fields, name))


def _nitro(fields: dict[str, Any]) -> Envelope:
    name = "attestation_doc" if "attestation_doc" in fields else "attestation_document"
    return Envelope("Nitro", "nitro", _bytes(fields, name), beside=_beside(fields, name))


def _azure(fields: dict[str, Any]) -> Envelope:
    raise EvidenceInvalid(
        "This is evidence of an Azure VM: the report speaks for its paravisor, the vTPM's quote for the guest.",
        hint="--kind azure checks both.",
    )


def _taken_apart(maker: str) -> Callable[[dict[str, Any]], Envelope]:
    def refuse(fields: dict[str, Any]) -> Envelope:
        raise EvidenceInvalid(
            f"{maker} has taken the SEV-SNP report apart into fields: the bytes AMD's key signed are not there.",
            hint="Ask for the raw report of 1,184 bytes (snpguest report, or go-sev-guest with -outform bin).",
        )

    return refuse


_READERS: tuple[tuple[str, Callable[[dict[str, Any]], Envelope]], ...] = (
    ("enclaveAttestationReport", _tinfoil_bundle),
    ("format", _tinfoil),
    ("hcl_report", _azure),
    ("tdCcel", _gcp_tdx),
    ("sevSnpAttestation", _gcp_snp),
    ("intel_quote", _intel_quote),
    ("quote", _quote),
    ("attestation_doc", _nitro),
    ("attestation_document", _nitro),
    ("attestation_report", _taken_apart("CoCo")),
    ("certificateChain", _taken_apart("go-sev-guest")),
)
"""The field each envelope is known by, in the order they are looked for."""


def _object(fields: dict[str, Any], name: str) -> dict[str, Any]:
    value = fields[name]
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise EvidenceInvalid(f"The envelope's {name} is not an object.")
    return value


def _bytes(fields: dict[str, Any], name: str) -> bytes:
    """Text in hex or base64 (also its URL form)."""
    text = fields.get(name)
    if not isinstance(text, str) or not text:
        raise EvidenceInvalid(f"The envelope's {name} is not text.")
    packed = "".join(text.split())
    digits = packed.removeprefix("0x")
    if len(digits) % 2 == 0 and re.fullmatch("[0-9a-fA-F]+", digits):
        return bytes.fromhex(digits)
    letters = packed.rstrip("=").translate(str.maketrans("-_", "+/"))
    try:
        return base64.b64decode(letters + "=" * (-len(letters) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise EvidenceInvalid(f"The envelope's {name} is neither hex nor base64.") from None


def _log(fields: dict[str, Any], name: str) -> bytes | None:
    """An event log: JSON, as text or as it is, or packed bytes; None if there is none, or an empty one."""
    value = fields.get(name)
    if isinstance(value, list):
        return json.dumps(value).encode()
    if isinstance(value, str) and value.lstrip().startswith("["):
        return value.encode("utf-8", "surrogatepass")
    return None if value in (None, "") else _bytes(fields, name)


def _unpacked(packed: bytes) -> bytes:
    """What gzip packed, if it is not too much."""
    reader = zlib.decompressobj(wbits=31)
    try:
        inside = reader.decompress(packed, MAX_INSIDE_BYTES)
    except zlib.error:
        raise EvidenceInvalid("The envelope's body does not unpack.") from None
    if not reader.eof or reader.unused_data:
        raise EvidenceInvalid("The envelope's body is too large, cut off, or has something after it.")
    return inside


def _beside(fields: dict[str, Any], *read: str) -> tuple[str, ...]:
    return tuple(ascii(name)[1:-1][:32] for name in fields if name not in read)[:16]
