"""The verdict on a Nitro document: one named check for each thing that could be wrong with it.

Certificates are judged at the document's own time, because they live for hours; the document's age is a check of its
own, at the reader's time. Nothing says whether a certificate was revoked: AWS's lists are not read.
"""

from __future__ import annotations

import hmac
from datetime import datetime, timedelta

from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1
from cryptography.hazmat.primitives.hashes import SHA384

from cloister.attest.chain import ecdsa_signed, find_chain, read_der
from cloister.attest.nitro.document import USUAL_AGE_S, Document, NitroPolicy, read_document
from cloister.checks import Examination, Verdict

AWS_ROOTS = frozenset({"f2caf5ecc6190b4a8399b78bc58a2bbcd0382375db8a1bfd78a82743874fd225"})
"""The key of `aws.nitro-enclaves`, root G1: the certificate whose SHA-256 AWS publishes as 64:1A:03:21:…:79:BB:5B."""
CLOCKS_MAY_DIFFER = timedelta(minutes=1)
_OF_THE_IMAGE = (0, 1, 2)


def verify_nitro(
    document: bytes,
    *,
    at: datetime,
    policy: NitroPolicy,
    nonce: bytes | None,
    user_data: bytes | None = None,
    roots: frozenset[str] = AWS_ROOTS,
) -> Verdict:
    """Check a document. `nonce` and `user_data` are what it must carry; None if nobody asked. EvidenceInvalid if it is
    malformed. `roots` are fingerprints of keys (SHA-256 of SubjectPublicKeyInfo).
    """
    read = read_document(document)
    found = Examination()
    _claim(found, read)
    _check_signature(found, read, roots)
    _check_age(found, read, at, policy)
    _check_enclave(found, read, policy)
    _compare(found, "nonce", read.nonce, nonce)
    _compare(found, "user data", read.user_data, user_data)
    return found.verdict()


def _claim(found: Examination, document: Document) -> None:
    found.claim("tee", "nitro")
    found.claim("module_id", document.module_id)
    found.claim("time", document.time.isoformat())
    found.claim("pcrs", {str(index): value.hex() for index, value in sorted(document.pcrs.items()) if any(value)})
    for name in ("public_key", "user_data", "nonce"):
        value: bytes | None = getattr(document, name)
        found.claim(name, None if value is None else value.hex())


def _check_signature(found: Examination, document: Document, roots: frozenset[str]) -> None:
    certificates = [read_der(each) for each in (document.certificate, *document.cabundle)]
    chain = find_chain(certificates, roots, document.time, found)
    if chain is None:
        found.skipped("document signature", "the certificate is not to be trusted")
    elif chain[0] != certificates[0]:
        found.failed("document signature", "the certificate that should have signed is an authority's")
    else:
        signed = ecdsa_signed(chain[0].public_key(), SECP384R1, SHA384(), document.signature, document.signed)
        found.check("document signature", signed, "not made by the certificate's key: the document was altered")


def _check_age(found: Examination, document: Document, at: datetime, policy: NitroPolicy) -> None:
    age, when = at - document.time, f"{document.time:%Y-%m-%d %H:%M:%S}"
    young = -CLOCKS_MAY_DIFFER <= age <= timedelta(seconds=min(policy.max_age_s, USUAL_AGE_S))
    relaxed = not young and timedelta() < age <= timedelta(seconds=policy.max_age_s)
    reason = f"made {when}, which is {age.total_seconds():.0f} s ago"
    found.check("freshness", young, reason, when, allowed_by=f"max_age_s {policy.max_age_s:.0f}" if relaxed else "")


def _check_enclave(found: Examination, document: Document, policy: NitroPolicy) -> None:
    measured = all(any(document.pcrs.get(index, b"")) for index in _OF_THE_IMAGE)
    allowed = "allow_debug" if policy.allow_debug else ""
    found.check("debug", measured, "PCRs of the image are zero: the enclave runs under debug", allowed_by=allowed)
    if not policy.enclaves:
        found.skipped("launch", "the policy names no [[nitro.enclaves]]: any enclave could be this one")
    else:
        wrong = min((each.differences(document) for each in policy.enclaves), key=len)
        found.check("launch", not wrong, f"not one the policy accepts: the nearest differs in {', '.join(wrong)}")
    if policy.module_ids is not None:
        known = document.module_id in policy.module_ids
        found.check("module id", known, f"{document.module_id} is not one the policy accepts", document.module_id)


def _compare(found: Examination, name: str, value: bytes | None, asked: bytes | None) -> None:
    if asked is None:
        found.skipped(name, "nothing to compare with was given", required=False)
    else:
        same = value is not None and hmac.compare_digest(value, asked)
        found.check(name, same, "the document was made for another, or for none")
