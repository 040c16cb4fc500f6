"""The verdict on GPUs' own reports, with self-made GPUs under a root of our own."""

from __future__ import annotations

import base64
import contextlib
import json
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from cloister.attest.nvidia.reports import GpuPolicy, verify_gpu_reports
from cloister.attest.nvidia.spdm import certified_fwid, read_bundle, read_report
from cloister.checks import Outcome, Verdict
from cloister.errors import EvidenceInvalid
from tests.fuzz.nvidia_made import FWID, NONCE, NOW, MadeGpu, der, p384, tcb_info

GPU = MadeGpu()
EVIDENCE = GPU.evidence()
REPORT = GPU.report()


def verify(
    evidence: bytes = EVIDENCE,
    nonce: bytes | None = NONCE,
    *,
    at: datetime = NOW,
    chain: bytes | None = None,
    gpu: MadeGpu = GPU,
    **policy: Any,
) -> Verdict:
    """Without a word on measurements, unless the test is about them."""
    rules = GpuPolicy(**({"allow_unmeasured": True} | policy))
    return verify_gpu_reports(evidence, nonce, at=at, policy=rules, chain=chain, roots=gpu.roots)


def broken(verdict: Verdict) -> list[str]:
    assert not verdict.passed
    return [check.name.removeprefix("gpu 0: ") for check in verdict.broken]


@pytest.mark.parametrize(
    ("chip", "architecture"), [("GH100", "HOPPER"), ("GB100", "BLACKWELL"), ("GB202", "BLACKWELL")]
)
def test_hopper_and_blackwell_pass(chip: str, architecture: str) -> None:
    gpu = MadeGpu(chip)
    verdict = verify(gpu.evidence(), gpu=gpu, require_fwid=True)
    assert verdict.passed, verdict.broken
    (claims,) = verdict.claims["gpus"]
    assert claims["architecture"] == architecture
    assert (claims["driver_version"], claims["vbios_version"]) == ("590.12", "96.00.A5.00.01")
    assert claims["fwid"] == FWID.hex()


def test_the_real_root_is_the_default() -> None:
    verdict = verify_gpu_reports(EVIDENCE, NONCE, at=NOW, policy=GpuPolicy(allow_unmeasured=True))
    assert "certificate chain" in broken(verdict)


@pytest.mark.parametrize(
    "form",
    [
        REPORT,
        REPORT.hex().encode(),
        REPORT.hex().upper().encode() + b"\n",
        base64.b64encode(REPORT),
        base64.encodebytes(REPORT),
    ],
)
def test_a_bare_report_comes_in_any_writing_with_its_chain_beside_it(form: bytes) -> None:
    assert verify(form, chain=GPU.chain).passed
    without = verify(form)
    assert without.incomplete
    assert broken(without) == ["certificate chain", "signature"]


@pytest.mark.parametrize(
    "evidence",
    [
        [GPU.entry() | {"certificate": GPU.chain.decode()}],
        [GPU.entry() | {"evidence": REPORT.hex()}],
        [GPU.entry() | {"firmware_version": "something a newer tool says"}],
    ],
)
def test_other_forms_of_json_pass(evidence: Any) -> None:
    assert verify(json.dumps(evidence).encode()).passed


def test_the_chain_may_come_in_any_order() -> None:
    chain = b"".join(one.public_bytes(Encoding.PEM) for one in reversed(GPU.certificates))
    assert verify(REPORT, chain=chain).passed


def test_several_gpus_are_all_examined_and_all_must_pass() -> None:
    other = MadeGpu("GB100", root=GPU.root)
    both = json.dumps([GPU.entry(), other.entry()]).encode()
    verdict = verify(both, min_gpus=2)
    assert verdict.passed, verdict.broken
    assert [one["architecture"] for one in verdict.claims["gpus"]] == ["HOPPER", "BLACKWELL"]
    stale = json.dumps([GPU.entry(), other.entry(bytes(32))]).encode()
    assert broken(verify(stale)) == ["gpu 1: nonce"]
    assert broken(verify(both, min_gpus=3)) == ["gpu count"]


def test_one_gpu_cannot_stand_for_two() -> None:
    twice = json.dumps([GPU.entry(), GPU.entry()]).encode()
    assert broken(verify(twice, min_gpus=2)) == ["gpus distinct"]


def test_the_nonce_must_be_the_one_asked_with() -> None:
    assert broken(verify(nonce=bytes(32))) == ["nonce"]
    assert broken(verify(nonce=NONCE[:31])) == ["nonce"]
    skipped = next(check for check in verify(nonce=None).checks if check.name == "gpu 0: nonce")
    assert skipped.outcome is Outcome.SKIP and not skipped.required


def test_what_the_bundle_says_beside_the_report_must_be_true() -> None:
    for name, value, check in (("nonce", "00" * 32, "stated nonce"), ("arch", "BLACKWELL", "architecture")):
        assert broken(verify(json.dumps([GPU.entry() | {name: value}]).encode())) == [check]


def test_other_architectures_are_refused() -> None:
    assert broken(verify(architectures=("BLACKWELL",))) == ["architecture"]
    for chip in ("BF3", "GA100"):
        assert "architecture" in broken(verify(MadeGpu(chip).report(), chain=(gpu := MadeGpu(chip)).chain, gpu=gpu))
    switch = MadeGpu("LS_10")
    assert verify(switch.report(), chain=switch.chain, gpu=switch, architectures=("LS10",)).passed
    assert broken(verify(switch.report(), chain=switch.chain, gpu=switch)) == ["architecture", "gpu count"]
    assert broken(verify(switch.report(), chain=switch.chain, gpu=switch, architectures=("LS10", "HOPPER"))) == [
        "gpu count"
    ]


@pytest.mark.parametrize("chip", ["GH100", "GB100"])
def test_firmware_must_be_what_the_certificate_was_issued_for(chip: str) -> None:
    gpu = MadeGpu(chip)
    assert broken(verify(gpu.report(opaque={20: bytes(48)}), chain=gpu.chain, gpu=gpu)) == ["firmware"]


def test_a_report_that_names_no_firmware_passes_unless_asked_for() -> None:
    older = GPU.report(opaque={20: None})
    assert verify(older, chain=GPU.chain).passed
    assert broken(verify(older, chain=GPU.chain, require_fwid=True)) == ["firmware"]
    assert broken(verify(GPU.report(opaque={20: b""}), chain=GPU.chain)) == ["firmware"]


def test_versions_are_held_to_the_policy() -> None:
    assert verify(min_driver="590.12", vbios=("96.00.a5.00.01",)).passed
    assert verify(min_driver="550.90.07").passed
    assert broken(verify(min_driver="590.12.1")) == ["driver"]
    assert broken(verify(min_driver="600")) == ["driver"]
    assert broken(verify(vbios=("96.00.9F.00.01",))) == ["vbios"]
    odd = GPU.report(opaque={3: b"five\0"})
    assert broken(verify(odd, chain=GPU.chain, min_driver="1")) == ["driver"]


def test_measurements_are_held_to_the_policy_and_counted_as_manifests_count() -> None:
    for relaxed in (True, False):
        assert verify(measurements={"0": ("01" * 48,), "1": ("ff" * 48, "02" * 48)}, allow_unmeasured=relaxed).passed
        assert broken(verify(measurements={"1": ("ff" * 48,)}, allow_unmeasured=relaxed)) == ["measurements"]
        assert broken(verify(measurements={"9": ("01" * 48,)}, allow_unmeasured=relaxed)) == ["measurements"]


def test_a_report_compared_with_nothing_passes_only_where_the_policy_says_so() -> None:
    strict = verify(allow_unmeasured=False)
    assert strict.incomplete and broken(strict) == ["measurements"]
    shown = next(check for check in verify(allow_unmeasured=True).checks if check.name == "gpu 0: measurements")
    assert shown.outcome is Outcome.SKIP and shown.allowed_by == "allow_unmeasured"
    assert GpuPolicy(allow_unmeasured=True, allow_unseen=True).relaxations() == (*("allow_unmeasured", "allow_unseen"),)
    assert GpuPolicy().relaxations() == ()


def test_one_nul_after_a_report_is_no_part_of_it() -> None:
    assert verify(REPORT + b"\0", chain=GPU.chain).passed
    assert verify((REPORT + b"\0").hex().encode(), chain=GPU.chain).passed


def test_certificates_are_judged_at_the_time_given() -> None:
    assert broken(verify(at=NOW + timedelta(days=800))) == ["certificate dates"]
    assert broken(verify(at=NOW - timedelta(days=800))) == ["certificate dates"]


def test_another_gpus_signature_or_chain_is_refused() -> None:
    other = MadeGpu(root=GPU.root)
    assert broken(verify(REPORT, chain=other.chain)) == ["signature"]
    assert "certificate chain" in broken(verify(REPORT, chain=MadeGpu().chain))
    leaf, _, root = GPU.certificates
    mixed = b"".join(one.public_bytes(Encoding.PEM) for one in (leaf, other.certificates[1], root))
    assert "certificate chain" in broken(verify(REPORT, chain=mixed))


def test_a_key_of_another_curve_signs_nothing() -> None:
    gpu = MadeGpu(key=ec.generate_private_key(ec.SECP256R1()))
    assert broken(verify(gpu.report(), chain=gpu.chain, gpu=gpu)) == ["signature"]


def test_a_leaf_issues_nobody_and_authorities_keep_to_their_limits() -> None:
    short = MadeGpu(path_length=0)
    assert "certificate chain" in broken(verify(short.report(), chain=short.chain, gpu=short))
    strange = MadeGpu()
    leaf, maker = "GH100 A01 GSP FMC LF", "GH100 A01 GSP BROM"
    odd = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\5\0")
    made = strange.certificate(leaf, strange.key, maker, strange.authority, ca=False, extra=odd, critical=True)
    chain = b"".join(one.public_bytes(Encoding.PEM) for one in (made, *strange.certificates[1:]))
    assert "certificate chain" in broken(verify(strange.report(), chain=chain, gpu=strange))
    # A leaf that calls itself a leaf cannot stand in the middle.
    thief = p384()
    forged = strange.certificate(leaf, thief, leaf, strange.key, ca=False)
    chain = b"".join(one.public_bytes(Encoding.PEM) for one in (forged, *strange.certificates))
    assert "certificate chain" in broken(verify(strange.report(), chain=chain, gpu=strange))


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.release)])
def test_every_byte_of_a_report_matters(every: int) -> None:
    for at in range(0, len(REPORT), every):
        altered = bytearray(REPORT)
        altered[at] ^= 1 << at % 8
        with contextlib.suppress(EvidenceInvalid):
            assert not verify(bytes(altered), chain=GPU.chain).passed, at


@pytest.mark.parametrize(
    ("evidence", "says"),
    [
        (b"", "neither|ends early|no SPDM"),
        (b"[]", "no GPU"),
        (b"{}", "neither hex nor base64"),
        (b"[1]", "does not decode"),
        (b"[" * 100_000, "does not decode"),
        (b'[{"evidence": "!!"}]', "neither hex nor base64"),
        (b'[{"evidence": "ffff"}]', "ends early"),
        (b"\xff\xfe", "neither hex nor base64"),
        (REPORT[:-1], "ends early"),
        (REPORT + b"\0\0", "add up"),
        (REPORT + b"\1", "add up"),
        (b"\x11\xe0\x00" + REPORT[3:], "no signature"),
        (b"\x11\xe0\x01" + b"\0" * 100, "no SPDM"),
        (b" " * 300_000, "at most"),
        (json.dumps([GPU.entry()] * 65).encode()[:200_000], "does not decode|at most"),
        (json.dumps([GPU.entry() | {"certificate": "AAAA"}]).encode(), "certificate chain"),
    ],
)
def test_malformed_evidence_is_named(evidence: bytes, says: str) -> None:
    with pytest.raises(EvidenceInvalid, match=says):
        verify(evidence)


@pytest.mark.parametrize(("at", "value"), [(41, 2), (41, 4), (45, 2), (46, 2), (47, 50), (100, 1)])
def test_measurements_that_do_not_add_up_are_malformed(at: int, value: int) -> None:
    report = bytearray(REPORT)
    report[at] = value
    with pytest.raises(EvidenceInvalid):
        read_report(bytes(report))


@pytest.mark.parametrize(
    "policy",
    [
        {"min_driver": "new"},
        {"measurements": {"a": ["00"]}},
        {"measurements": {"1": []}},
        {"architectures": ["AMPERE"]},
    ],
)
def test_a_mistyped_policy_is_refused(policy: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(policy, GpuPolicy)


@given(st.binary(max_size=512), st.integers(0, len(REPORT)))
def test_no_bytes_make_it_fail_otherwise(data: bytes, at: int) -> None:
    for evidence in (data, b"[" + data, REPORT[:at] + data, REPORT[:at] + data + REPORT[at + len(data) :]):
        with contextlib.suppress(EvidenceInvalid):
            read_bundle(evidence, None)


def test_a_digest_outside_of_the_list_of_digests_is_not_the_firmwares() -> None:
    """Such as in the model's name, which comes before it."""

    def found(value: bytes) -> bytes | None:
        extension = x509.UnrecognizedExtension(x509.ObjectIdentifier("2.23.133.5.4.1.1"), value)
        leaf: Any = SimpleNamespace(extensions=[SimpleNamespace(oid=extension.oid, value=extension)])
        return certified_fwid(leaf)

    other = der(0x30, bytes.fromhex("0609608648016503040202"), der(4, bytes(48)))
    honest = tcb_info(FWID).value
    assert found(honest) == FWID
    assert found(der(0x30, der(0x81, other), honest[2:])) == FWID
    assert found(der(0x30, der(0x81, other))) is None
