"""NVIDIA's reference manifests (TCG RIM, SWID tags ISO/IEC 19770-2); only what the XML signature covers is read."""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from lxml import etree  # type: ignore[import-untyped]
from signxml.algorithms import DigestAlgorithm, SignatureMethod
from signxml.verifier import SignatureConfiguration, VerifyResult, XMLVerifier

from cloister.attest.chain import find_chain, read_certificates
from cloister.checks import Examination
from cloister.errors import EvidenceInvalid

MAX_MANIFEST_BYTES = 262144
MAX_INDEX = 255
MAX_ALTERNATIVES = 64
_SWID: Final = "{http://standards.iso.org/iso/19770/-2/2015/schema.xsd}"
_SHA384: Final = "{http://www.w3.org/2001/04/xmlenc#sha384}"
_DSIG: Final = "{http://www.w3.org/2000/09/xmldsig#}"


@dataclass(frozen=True)
class Manifest:
    """What one manifest accepts: values by index, counted from 0. An index without values is not to be compared."""

    version: str  # Of the driver (`550.144.03`) or of the VBIOS (`96.00.5E.00.01`).
    product: str
    golden: Mapping[int, frozenset[bytes]]
    chain: tuple[x509.Certificate, ...]


def verify_manifest(data: bytes, roots: frozenset[str], at: datetime, found: Examination) -> Manifest | None:
    """The manifest, if its signature and chain hold, with a check for each; EvidenceInvalid if it is malformed."""
    certificates = read_certificates(_embedded_chain(data))
    chain = find_chain(certificates, roots, at, found)
    if chain is None:
        found.skipped("signature", "the manifest's certificate is not to be trusted")
        return None
    signed = _signed_part(data, chain[0], at)
    if not found.check("signature", signed is not None, "the manifest is not signed by its certificate's key"):
        return None
    return _read_signed(signed, chain)


def _embedded_chain(data: bytes) -> bytes:
    """The certificates beside the signature, as PEM. They prove nothing until the chain is followed."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise EvidenceInvalid(f"A reference manifest may have at most {MAX_MANIFEST_BYTES} bytes.")
    try:
        root = etree.fromstring(data, parser=_parser())
        if root.getroottree().docinfo.doctype or root.tag != f"{_SWID}SoftwareIdentity":
            raise ValueError("another document")
        texts = [one.text or "" for one in root.iterfind(f"./{_DSIG}Signature//{_DSIG}X509Certificate")]
        if not texts:
            raise EvidenceInvalid("The reference manifest carries no certificate beside a signature.")
        ders = (base64.b64decode("".join(text.split()), validate=True) for text in texts)
        return b"".join(x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM) for der in ders)
    except EvidenceInvalid:
        raise
    except Exception as wrong:  # two libraries with more ways to refuse than they name
        hint = "It is NVIDIA's signed XML (SoftwareIdentity), of a driver or a VBIOS."
        raise EvidenceInvalid(f"The reference manifest does not decode ({type(wrong).__name__}).", hint=hint) from None


def _parser() -> Any:
    return etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)


def _signed_part(data: bytes, leaf: x509.Certificate, at: datetime) -> Any:
    key = leaf.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        return None
    expected = SignatureConfiguration(
        location="./",
        signature_methods=frozenset({SignatureMethod.ECDSA_SHA384}),
        digest_algorithms=frozenset({DigestAlgorithm.SHA384}),
        # `find_chain` checks the certificate's dates.
        verification_time=max(leaf.not_valid_before_utc, min(at, leaf.not_valid_after_utc)),
    )
    try:
        result = XMLVerifier().verify(data, x509_cert=leaf, parser=_parser(), expect_config=expected)
    except Exception:  # as above; whatever it is, nothing was verified
        return None
    return result.signed_xml if isinstance(result, VerifyResult) else None


def _read_signed(root: Any, chain: tuple[x509.Certificate, ...]) -> Manifest:
    metas = list(root.iterfind(f"./{_SWID}Meta"))
    if root.tag != f"{_SWID}SoftwareIdentity" or len(metas) != 1:
        raise EvidenceInvalid("The reference manifest names no single version.")
    version, product = metas[0].get("colloquialVersion", ""), metas[0].get("product", "")
    golden: dict[int, frozenset[bytes]] = {}
    for resource in root.iterfind(f"./{_SWID}Payload/{_SWID}Resource[@type='Measurement']"):
        index = _number(resource.get("index"), MAX_INDEX)
        if index in golden:
            raise EvidenceInvalid("The reference manifest repeats a measurement.")
        if resource.get("active") == "True":
            golden[index] = _values(resource)
    if not version or not golden:
        raise EvidenceInvalid("The reference manifest names no version, or no measurement.")
    return Manifest(version, product, golden, chain)


def _values(resource: Any) -> frozenset[bytes]:
    count, size = _number(resource.get("alternatives"), MAX_ALTERNATIVES), _number(resource.get("size"), 64)
    texts = [resource.get(f"{_SHA384}Hash{at}", "") for at in range(count)]
    if not count or not all(re.fullmatch(f"[0-9a-fA-F]{{{2 * size}}}", text) for text in texts):
        raise EvidenceInvalid("A measurement of the reference manifest has no values, or not of the size it names.")
    return frozenset(bytes.fromhex(text) for text in texts)


def _number(text: str | None, most: int) -> int:
    if text is None or not re.fullmatch("[0-9]{1,3}", text) or int(text) > most:
        raise EvidenceInvalid("A number of the reference manifest is missing or too large.")
    return int(text)
