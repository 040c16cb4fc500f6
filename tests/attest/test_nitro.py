"""Nitro documents of our own making, one thing wrong with each; AWS's root; real documents where there are some."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.attest.chain import key_fingerprint
from cloister.attest.nitro import Enclave, NitroPolicy, verify_nitro
from cloister.attest.nitro.document import read_document
from cloister.attest.nitro.verify import AWS_ROOTS
from cloister.checks import Outcome, Verdict
from cloister.errors import EvidenceInvalid
from tests.attest.nitro_maker import NOW, PCRS, Hypervisor, certificate, encode, p384

HYPERVISOR = Hypervisor()
DOCUMENT = HYPERVISOR.document()
NAMED = {"pcr0": "10" * 48, "pcr1": "11" * 48, "pcr2": "12" * 48}


def verify(
    document: bytes = DOCUMENT,
    *,
    at: datetime = NOW + timedelta(seconds=5),
    nonce: bytes | None = b"nonce",
    user_data: bytes | None = None,
    hypervisor: Hypervisor = HYPERVISOR,
    **policy: Any,
) -> Verdict:
    rules = msgspec.convert({"enclaves": [NAMED]} | policy, NitroPolicy)
    return verify_nitro(document, at=at, policy=rules, nonce=nonce, user_data=user_data, roots=hypervisor.roots)


def broken(verdict: Verdict) -> list[str]:
    assert not verdict.passed
    return [check.name for check in verdict.broken]


@pytest.mark.parametrize("indefinite", [True, False])
@pytest.mark.parametrize("tagged", [True, False])
def test_a_good_document_passes_and_says_what_it_is(indefinite: bool, tagged: bool) -> None:
    verdict = verify(HYPERVISOR.document(indefinite=indefinite, tagged=tagged), user_data=b"user data")
    assert verdict.passed, verdict.broken
    assert verdict.claims["module_id"].startswith("i-") and verdict.claims["user_data"] == b"user data".hex()
    assert verdict.claims["pcrs"] == {str(index): value.hex() for index, value in PCRS.items() if any(value)}


def test_without_a_named_enclave_nothing_passes() -> None:
    verdict = verify(enclaves=[])
    assert verdict.incomplete and broken(verdict) == ["launch"]


@pytest.mark.parametrize("register", ["pcr0", "pcr1", "pcr2", "pcr3", "pcr4", "pcr8"])
def test_an_enclave_is_accepted_whole(register: str) -> None:
    other = {"pcr0": "aa" * 48, "pcr1": "ab" * 48, "pcr2": "ac" * 48}
    assert verify(enclaves=[other, NAMED]).passed
    assert broken(verify(enclaves=[NAMED | {register: "ff" * 48}])) == ["launch"]
    mixed = [other | {"pcr0": NAMED["pcr0"]}, NAMED | {"pcr0": other["pcr0"]}]
    assert broken(verify(enclaves=mixed)) == ["launch"]
    assert verify(enclaves=[NAMED | {"pcr3": "00" * 48, "pcr4": "14" * 48}]).passed


def test_an_enclave_under_debug_fails_unless_that_is_let_go() -> None:
    for zero in (0, 1, 2):
        document = HYPERVISOR.document(pcrs=PCRS | {zero: bytes(48)})
        enclaves = [NAMED | {f"pcr{zero}": "00" * 48}]
        assert broken(verify(document, enclaves=enclaves)) == ["debug"]
        verdict = verify(document, enclaves=enclaves, allow_debug=True)
        assert verdict.passed
        assert [check.allowed_by for check in verdict.checks if check.allowed_by] == ["allow_debug"]
    assert "debug" in broken(verify(HYPERVISOR.document(pcrs={4: b"\x14" * 48})))


def test_a_document_is_fresh_for_a_while() -> None:
    assert verify(at=NOW + timedelta(seconds=299)).passed and verify(at=NOW - timedelta(seconds=59)).passed
    assert broken(verify(at=NOW + timedelta(seconds=301))) == ["freshness"]
    assert broken(verify(at=NOW - timedelta(seconds=61))) == ["freshness"]
    assert broken(verify(at=NOW + timedelta(seconds=61), max_age_s=60)) == ["freshness"]
    older = verify(at=NOW + timedelta(seconds=900), max_age_s=1000)
    assert older.passed and [each.allowed_by for each in older.checks if each.allowed_by] == ["max_age_s 1000"]
    assert broken(verify(at=NOW + timedelta(seconds=1001), max_age_s=1000)) == ["freshness"]
    assert NitroPolicy(max_age_s=1000).relaxations() == ("max_age_s 1000",)


def test_certificates_are_judged_at_the_documents_time() -> None:
    short = Hypervisor(leaf_days=0.125)
    late = NOW + timedelta(hours=4)
    document = short.document(timestamp=int(late.timestamp() * 1000))
    assert broken(verify(document, at=late, hypervisor=short)) == ["certificate dates"]
    assert verify(short.document(), at=NOW, hypervisor=short).passed


def test_nonce_user_data_and_module_are_compared_where_asked() -> None:
    assert broken(verify(nonce=b"other")) == broken(verify(nonce=b"")) == ["nonce"]
    assert broken(verify(HYPERVISOR.document(nonce=None))) == ["nonce"]
    assert broken(verify(HYPERVISOR.document(nonce=...))) == ["nonce"]
    assert broken(verify(user_data=b"other")) == ["user data"]
    assert verify(nonce=None).passed
    assert verify(module_ids=["i-0123456789abcdef0-enc0123456789abcdef"]).passed
    assert broken(verify(module_ids=["i-other"])) == broken(verify(module_ids=[])) == ["module id"]


def test_a_chain_that_is_not_awss_is_not_believed() -> None:
    verdict = verify_nitro(DOCUMENT, at=NOW, policy=NitroPolicy(), nonce=None)
    assert "certificate chain" in [check.name for check in verdict.checks if check.outcome is Outcome.FAIL]
    other = Hypervisor()
    for cabundle in (
        [other.root, HYPERVISOR.zone],
        [HYPERVISOR.root],
        [HYPERVISOR.root, other.zone],
        [HYPERVISOR.root, HYPERVISOR.zone, other.zone],
        [HYPERVISOR.zone],
    ):
        assert "certificate chain" in broken(verify(HYPERVISOR.document(cabundle=cabundle)))


def test_another_key_or_curve_does_not_sign_for_the_certificate() -> None:
    theirs = Hypervisor(HYPERVISOR.root_key, HYPERVISOR.zone_key)
    assert broken(verify(theirs.document(certificate=HYPERVISOR.leaf))) == ["document signature"]
    leaf = certificate("e", ec.generate_private_key(ec.SECP256R1()), "zone", HYPERVISOR.zone_key, ca=False)
    assert broken(verify(HYPERVISOR.document(certificate=leaf))) == ["document signature"]
    # An authority in the leaf's place, and the leaf among the authorities.
    swapped = HYPERVISOR.document(certificate=HYPERVISOR.zone, cabundle=[HYPERVISOR.root, HYPERVISOR.leaf])
    assert broken(verify(swapped)) == ["document signature"]
    below = certificate("deep", p384(), "enclave", HYPERVISOR.key, ca=False)
    assert "certificate chain" in broken(verify(HYPERVISOR.document(certificate=below)))


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.release)])
def test_every_sampled_bit_counts(every: int) -> None:
    for place in range(0, len(DOCUMENT), every):
        changed = bytearray(DOCUMENT)
        changed[place] ^= 1 << place % 8
        with suppress(EvidenceInvalid):
            assert not verify(bytes(changed)).passed, place


@pytest.mark.parametrize(
    "changes",
    [
        {"protected": encode({1: -7})},
        {"protected": encode({1: -35, 4: b"kid"})},
        {"protected": b""},
        {"unprotected": {1: -35}},
        {"payload": encode([1])},
        {"payload": b""},
        {"digest": "SHA256"},
        {"digest": ...},
        {"module_id": ""},
        {"module_id": "two words"},
        {"module_id": b"bytes"},
        {"timestamp": -1},
        {"timestamp": 0},
        {"timestamp": 1 << 60},
        {"timestamp": True},
        {"pcrs": {}, "certificate": b""},
        {"pcrs": {32: bytes(48)}},
        {"pcrs": {"0": bytes(48)}},
        {"pcrs": {0: bytes(32)}},
        {"pcrs": [bytes(48)]},
        {"certificate": b"x"},
        {"certificate": HYPERVISOR.leaf + b"\0"},
        {"certificate": bytes(3000)},
        {"cabundle": HYPERVISOR.root},
        {"cabundle": ["root"]},
        {"cabundle": ...},
        {"nonce": bytes(5000)},
        {"user_data": "text"},
        {"extra": 1},
    ],
)
def test_what_is_no_document_is_a_typed_error(changes: dict[str, Any]) -> None:
    with pytest.raises(EvidenceInvalid):
        verify(HYPERVISOR.document(**changes))


def test_a_nitro_tpms_document_is_named() -> None:
    with pytest.raises(EvidenceInvalid, match="NitroTPM"):
        verify(HYPERVISOR.document(pcrs=..., nitrotpm_pcrs=PCRS))


@pytest.mark.parametrize("data", [b"", b"hello", b"\x84", bytes(40000), encode([1, 2, 3, 4]), encode({})])
def test_what_is_not_cose_is_a_typed_error(data: bytes) -> None:
    with pytest.raises(EvidenceInvalid):
        read_document(data)


@settings(max_examples=50)
@given(st.integers(0, len(DOCUMENT) - 1), st.binary(min_size=1, max_size=40))
def test_spliced_documents_never_pass(place: int, piece: bytes) -> None:
    spliced = DOCUMENT[:place] + piece + DOCUMENT[place + len(piece) :]
    with suppress(EvidenceInvalid):
        assert spliced == DOCUMENT or not verify(spliced).passed


def test_a_mistyped_policy_is_refused() -> None:
    for wrong in ({"enclaves": [{"pcr0": "aa" * 48}]}, {"enclaves": [NAMED | {"pcr8": "aa"}]}, {"max_age_s": 0}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, NitroPolicy)
    with pytest.raises(ValueError):
        Enclave(pcr0="aa", pcr1="aa" * 48, pcr2="aa" * 48)
    assert NitroPolicy().relaxations() == () and NitroPolicy(allow_debug=True).relaxations() == ("allow_debug",)


AWS_ROOT_G1 = b"""-----BEGIN CERTIFICATE-----
MIICETCCAZagAwIBAgIRAPkxdWgbkK/hHUbMtOTn+FYwCgYIKoZIzj0EAwMwSTEL
MAkGA1UEBhMCVVMxDzANBgNVBAoMBkFtYXpvbjEMMAoGA1UECwwDQVdTMRswGQYD
VQQDDBJhd3Mubml0cm8tZW5jbGF2ZXMwHhcNMTkxMDI4MTMyODA1WhcNNDkxMDI4
MTQyODA1WjBJMQswCQYDVQQGEwJVUzEPMA0GA1UECgwGQW1hem9uMQwwCgYDVQQL
DANBV1MxGzAZBgNVBAMMEmF3cy5uaXRyby1lbmNsYXZlczB2MBAGByqGSM49AgEG
BSuBBAAiA2IABPwCVOumCMHzaHDimtqQvkY4MpJzbolL//Zy2YlES1BR5TSksfbb
48C8WBoyt7F2Bw7eEtaaP+ohG2bnUs990d0JX28TcPQXCEPZ3BABIeTPYwEoCWZE
h8l5YoQwTcU/9KNCMEAwDwYDVR0TAQH/BAUwAwEB/zAdBgNVHQ4EFgQUkCW1DdkF
R+eWw5b6cp3PmanfS5YwDgYDVR0PAQH/BAQDAgGGMAoGCCqGSM49BAMDA2kAMGYC
MQCjfy+Rocm9Xue4YnwWmNJVA44fA0P5W2OpYow9OYCVRaEevL8uO1XYru5xtMPW
rfMCMQCi85sWBbJwKKXdS6BptQFuZbT73o/gBh1qUxl/nNr12UO8Yfwr6wPLb+6N
IwLz3/Y=
-----END CERTIFICATE-----
"""
PUBLISHED = "641a0321a3e244efe456463195d606317ed7cdcc3c1756e09893f3c68f79bb5b"


def test_the_pinned_key_is_that_of_the_certificate_aws_publishes() -> None:
    root = x509.load_pem_x509_certificate(AWS_ROOT_G1)
    assert hashlib.sha256(root.public_bytes(Encoding.DER)).hexdigest() == PUBLISHED
    assert {key_fingerprint(root)} == AWS_ROOTS


def test_real_documents_verify_at_their_time(shared: Path) -> None:
    files = sorted((shared / "vectors" / "nitro").glob("*.bin"))
    if not files:
        pytest.skip("the vectors have no Nitro documents")
    for file in files:
        data = file.read_bytes()
        read = read_document(data)
        enclave = Enclave(**{f"pcr{index}": read.pcrs[index].hex() for index in (0, 1, 2)})
        policy = NitroPolicy(enclaves=(enclave,), allow_debug=not any(read.pcrs[0]))
        verdict = verify_nitro(data, at=read.time, policy=policy, nonce=read.nonce)
        assert verdict.passed, (file.name, verdict.broken)
