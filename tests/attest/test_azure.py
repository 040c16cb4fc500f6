"""The verdict on Azure's confidential VMs, with paravisors and vTPMs of our own."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.attest.azure.hcl import read_hcl, read_tpm_quote
from cloister.attest.azure.verify import AzurePolicy, verify_azure
from cloister.attest.snp import SnpPolicy
from cloister.attest.tdx import Launch, TdxPolicy
from cloister.checks import Outcome, Verdict
from cloister.errors import EvidenceInvalid
from tests.attest.azure_made import NONCE, PCRS, MadeVm, base64url, tpm_message
from tests.attest.snp_maker import AT, Chip, rsa_key
from tests.fuzz.tdx_made import NOW, MadePlatform

VM = MadeVm()
CHAIN = (VM.chip.ask, VM.chip.ark)
LIST = VM.chip.revocation_list(99)
SNP = SnpPolicy(measurements=("aa" * 48,))
TDX = TdxPolicy(launches=(Launch(mrtd="11" * 48, rtmr0="30" * 48, rtmr1="31" * 48, rtmr2="32" * 48),))
GUEST = {"7": (PCRS[7].hex(),)}
PLATFORM = MadePlatform()


def verify(document: Any = None, nonce: bytes | None = NONCE, **policy: Any) -> Verdict:
    evidence = document if isinstance(document, bytes) else json.dumps(document or VM.document()).encode()
    rules = AzurePolicy(**{"pcrs": GUEST} | policy)
    roots = VM.chip.roots
    return verify_azure(evidence, (*CHAIN, LIST), None, nonce, at=AT, policy=rules, snp=SNP, tdx=TDX, snp_roots=roots)


def broken(verdict: Verdict) -> list[str]:
    assert not verdict.passed
    return [check.name for check in verdict.broken]


def test_a_vm_in_order_passes_and_tells_its_pcrs() -> None:
    verdict = verify()
    assert verdict.passed, verdict.broken
    assert verdict.claims["pcrs"]["7"] == PCRS[7].hex()
    assert verdict.claims["vm_configuration"]["secure-boot"] == "True"
    names = [check.name for check in verdict.checks if check.outcome is Outcome.PASS]
    assert {"runtime data", "vtpm key", "tpm quote", "nonce", "pcrs quoted", "report signature"} <= set(names)


def test_nothing_passes_that_the_policy_does_not_name() -> None:
    assert verify(pcrs={}).incomplete and broken(verify(pcrs={})) == ["pcrs"]
    evidence, rules = json.dumps(VM.document()).encode(), AzurePolicy(pcrs=GUEST)
    nobody = {"policy": rules, "snp": SnpPolicy(), "tdx": TDX, "snp_roots": VM.chip.roots}
    assert broken(verify_azure(evidence, (*CHAIN, LIST), None, NONCE, at=AT, **nobody)) == ["launch"]
    named = nobody | {"snp": SNP}
    assert broken(verify_azure(evidence, CHAIN, None, NONCE, at=AT, **named)) == ["revocation"]
    revoked = VM.chip.revocation_list(2)
    assert broken(verify_azure(evidence, (*CHAIN, revoked), None, NONCE, at=AT, **named)) == ["revocation"]


def test_runtime_data_the_report_is_not_over_is_refused() -> None:
    thief = MadeVm(VM.chip, rsa_key("thief"))
    genuine = read_hcl(VM.hcl()).report
    forged = VM.document(hcl_report=base64url(thief.hcl(report=genuine)), tpm_quote=thief.quote())
    assert broken(verify(forged)) == ["runtime data"]
    told = VM.runtime(**{"vm-configuration": {"secure-boot": False}})
    assert broken(verify(VM.document(hcl_report=base64url(VM.hcl(told, genuine))))) == ["runtime data"]


def test_a_report_of_the_guest_itself_is_refused() -> None:
    """Above VMPL 0 the guest, not the paravisor, has chosen the report data."""
    document = VM.document(hcl_report=base64url(VM.hcl(vmpl=2)))
    assert broken(verify(document)) == ["vmpl"]
    lax = {"snp": msgspec.structs.replace(SNP, vmpl=(0, 2)), "tdx": TDX, "snp_roots": VM.chip.roots}
    evidence, rules = json.dumps(document).encode(), AzurePolicy(pcrs=GUEST)
    assert broken(verify_azure(evidence, (*CHAIN, LIST), None, NONCE, at=AT, policy=rules, **lax)) == ["vmpl"]


def test_quotes_of_other_keys_and_other_nonces_are_refused() -> None:
    assert broken(verify(VM.document(tpm_quote=VM.quote(key=rsa_key("thief"))))) == ["tpm quote"]
    assert broken(verify(nonce=NONCE[:-1])) == ["nonce"]
    altered = VM.quote() | {"message": tpm_message(NONCE + b"!").hex()}
    assert broken(verify(VM.document(tpm_quote=altered), NONCE + b"!")) == ["tpm quote"]
    silent = next(check for check in verify(nonce=None).checks if check.name == "nonce")
    assert silent.outcome is Outcome.SKIP and not silent.required


@pytest.mark.parametrize("nonce", [NONCE, None])
def test_without_a_quote_of_the_vtpm_nothing_is_new(nonce: bytes | None) -> None:
    document = VM.document()
    del document["tpm_quote"]
    for verdict in (verify(document, nonce), verify(VM.hcl(), nonce)):
        assert verdict.incomplete and "tpm quote" in broken(verdict)


@pytest.mark.parametrize(
    "keys",
    [
        [],
        [{"kid": "HCLEkPub", "kty": "RSA", "e": "AQAB", "n": "AQAB"}],
        [{"kid": "HCLAkPub", "kty": "RSA", "e": "AQAB", "n": "AQAB"}],
        [{"kid": "HCLAkPub", "kty": "EC", "x": "AQAB"}],
        [{"kid": "HCLAkPub", "kty": "RSA", "e": "!", "n": "!"}],
        json.loads(VM.runtime())["keys"] * 2,
    ],
)
def test_runtime_data_must_name_one_strong_key(keys: Any) -> None:
    document = VM.document(hcl_report=base64url(VM.hcl(VM.runtime(keys=keys))))
    assert broken(verify(document)) == ["vtpm key", "tpm quote"]


def test_pcrs_must_be_those_quoted_and_those_the_policy_names() -> None:
    assert verify(pcrs={"7": (PCRS[7].hex().upper(),), "14": ("ff" * 32, PCRS[14].hex())}).passed
    assert broken(verify(pcrs={"7": ("ff" * 32,)})) == ["pcrs"]
    swapped = VM.document(tpm_quote=VM.quote(pcrs=(PCRS[1], PCRS[0], *PCRS[2:])))
    assert broken(verify(swapped)) == ["pcrs quoted", "pcrs"]
    assert broken(verify(swapped, pcrs={"0": (PCRS[1].hex(),)})) == ["pcrs quoted", "pcrs"]
    some = (0, 4, 7)
    for values in (PCRS, tuple(PCRS[index] for index in some)):
        document = VM.document(tpm_quote=VM.quote(tpm_message(NONCE, some), values))
        assert verify(document, pcrs={"4": (PCRS[4].hex(),)}).passed
        assert broken(verify(document, pcrs={"5": (PCRS[5].hex(),)})) == ["pcrs"]
    assert "pcrs quoted" in broken(verify(VM.document(tpm_quote=VM.quote(pcrs=PCRS[:2]))))


def test_the_hardwares_own_checks_stay() -> None:
    other = MadeVm(Chip())
    assert "report signature" in broken(verify(VM.document(hcl_report=base64url(other.hcl()))))
    assert "debug" in broken(verify(VM.document(hcl_report=base64url(VM.hcl(policy=0x30000 | 1 << 19)))))


def tdx_document(**changes: Any) -> dict[str, Any]:
    bound = hashlib.sha256(VM.runtime()).digest() + bytes(32)
    hcl = VM.hcl(report=bytes(128) + bound, kind=4)
    quote = PLATFORM.quote(report_data=bound)
    return {"hcl_report": base64url(hcl), "tpm_quote": VM.quote(), "td_quote": base64url(quote)} | changes


def verify_td(document: Any) -> Verdict:
    evidence, collateral = json.dumps(document).encode(), PLATFORM.collateral()
    rules, roots = AzurePolicy(pcrs=GUEST), PLATFORM.roots
    return verify_azure(evidence, (), collateral, NONCE, at=NOW, policy=rules, snp=SNP, tdx=TDX, tdx_roots=roots)


def test_tdx_needs_a_quote_over_the_same_runtime_data() -> None:
    verdict = verify_td(tdx_document())
    assert verdict.passed, verdict.broken
    assert broken(verify_td(tdx_document(td_quote=base64url(PLATFORM.quote())))) == ["runtime data"]
    assert broken(verify_td(tdx_document(td_quote=None))) == ["quote"]
    other = PLATFORM.quote(report_data=hashlib.sha256(VM.runtime()).digest() + bytes(32), mrtd=b"\x12" * 48)
    assert broken(verify_td(tdx_document(td_quote=base64url(other)))) == ["launch"]


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, b"X"), (1216, b"\xff"), (1224, b"\x03"), (1228, b"\x09"), (1232, b"\xff\xff"), (1236, b"["), (2599, b"\x01")],
)
def test_malformed_hcl_reports_are_named(at: int, value: bytes) -> None:
    hcl = VM.hcl()
    with pytest.raises(EvidenceInvalid):
        read_hcl(hcl[:at] + value + hcl[at + len(value) :])


@pytest.mark.parametrize(
    "data", [b"HCLA", b"{}", b"[]", b'{"hcl_report": "!"}', b'{"hcl_report": [256]}', b" " * 300_000]
)
def test_malformed_evidence_is_named(data: bytes) -> None:
    with pytest.raises(EvidenceInvalid):
        verify(data)


@pytest.mark.parametrize("parts", [{"magic": b"\xffTCX"}, {"kind": 0x8017}, {"banks": 2}, {"bank": 4}])
def test_only_quotes_over_one_sha256_bank_are_read(parts: dict[str, Any]) -> None:
    with pytest.raises(EvidenceInvalid):
        read_tpm_quote(tpm_message(NONCE, **parts))
    with pytest.raises(EvidenceInvalid):
        read_tpm_quote(tpm_message(NONCE) + b"\0")


@pytest.mark.parametrize("pcrs", [{"24": ("00" * 32,)}, {"0": ()}, {"0": ("00",)}, {"x": ("00" * 32,)}])
def test_a_mistyped_policy_is_refused(pcrs: Any) -> None:
    with pytest.raises(ValueError, match="pcrs"):
        AzurePolicy(pcrs=pcrs)


HCL, MESSAGE, DOCUMENT = VM.hcl(), tpm_message(NONCE), json.dumps(VM.document()).encode()


@settings(max_examples=60)
@given(st.binary(min_size=1, max_size=64), st.integers(0, 4000))
def test_no_bytes_make_it_fail_otherwise(data: bytes, at: int) -> None:
    for whole, read in ((HCL, read_hcl), (MESSAGE, read_tpm_quote), (DOCUMENT, verify)):
        place = at % len(whole)
        for evidence in (data, whole[:place] + data + whole[place + len(data) :]):
            with contextlib.suppress(EvidenceInvalid):
                read(evidence)
