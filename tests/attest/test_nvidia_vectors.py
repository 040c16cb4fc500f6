"""Real reports of Hopper GPUs."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from cloister.attest.chain import key_fingerprint
from cloister.attest.nvidia.reports import NVIDIA_ROOTS, GpuPolicy, verify_gpu_reports
from cloister.errors import EvidenceInvalid

AT = datetime(2025, 6, 11, tzinfo=UTC)
UNMEASURED = GpuPolicy(allow_unmeasured=True)
NONCE = bytes.fromhex("e97b23a1718095a0e9e35edca810768c70a6a5a389b705e753b197912bc11576")


@pytest.fixture(scope="module")
def vectors(shared: Path) -> Path:
    return shared / "vectors" / "nvidia"


def test_the_pinned_root_is_nvidias(vectors: Path) -> None:
    root = x509.load_pem_x509_certificate((vectors / "nvtrust_verifier_device_root.pem").read_bytes())
    assert {key_fingerprint(root)} == NVIDIA_ROOTS


def test_hopper_evidence_passes(vectors: Path) -> None:
    evidence = (vectors / "hopper_evidence.json").read_bytes()
    policy = GpuPolicy(
        allow_unmeasured=True,
        require_fwid=True,
        min_driver="590.12",
        vbios=("96.00.A5.00.01",),
        architectures=("HOPPER",),
    )
    verdict = verify_gpu_reports(evidence, NONCE, at=AT, policy=policy)
    assert verdict.passed, verdict.broken
    assert verdict.claims["gpus"][0]["chip"] == "GH100 A01 GSP FMC LF"
    assert not verify_gpu_reports(evidence, bytes(32), at=AT, policy=policy).passed
    assert not verify_gpu_reports(evidence, NONCE, at=datetime(2020, 1, 1, tzinfo=UTC), policy=policy).passed


def test_a_report_is_compared_with_the_golden_values_of_nvidias_manifest(vectors: Path) -> None:
    """The 535.86.09 report, and five of the VBIOS manifest's values for 96.00.5E.00.01 by the index it gives them."""
    chain = (vectors / "hopperCertChain.txt").read_bytes()
    report = (vectors / "hopperAttestationReport.txt").read_bytes()
    golden = {
        "1": ("c3f65ef79a19c029868cd7ce54b10e44f192444edb3506dde29cef2aac4e916c90a4f438e55aa7581a9e384c74d82db6",),
        "2": ("c23e539823255226ef4798b03be55ab38793f768ba4c71c853fd9b475729144df89b3139854cfcb299ddd2498381a50a",),
        "4": ("568b89291a34cece03b12aaa352d9afe273610307525b8443e90faa78d82ecfa9c7827d8f7915c35b2fab972e1086686",),
        "5": ("c9e4fe668e9dc269a4657146b5e28a22347cde18a4b0e79d8146532f27ebc386f304400ea5d4bf4159b5a6916dd4564e",),
        "9": ("7f3e9382785513c1932dfcc9e87f6ef6bf5fefe88144c6ea48539e65f937013dd7349144e5f439dcea401dac26e5c098",),
    }
    assert verify_gpu_reports(report, None, at=AT, policy=GpuPolicy(measurements=golden), chain=chain).passed
    shifted = {str(int(index) + 1): values for index, values in golden.items()}
    verdict = verify_gpu_reports(report, None, at=AT, policy=GpuPolicy(measurements=shifted), chain=chain)
    assert [check.name for check in verdict.broken] == ["gpu 0: measurements"]
    assert verify_gpu_reports(report, None, at=AT, policy=GpuPolicy(), chain=chain).incomplete


def test_every_changed_field_of_the_evidence_is_refused(vectors: Path) -> None:
    (entry,) = json.loads((vectors / "hopper_evidence.json").read_bytes())
    changes = {"arch": "BLACKWELL", "nonce": "00" * 32}
    changes |= {name: entry[name][:40] + "AAAA" + entry[name][44:] for name in ("evidence", "certificate")}
    for name, value in changes.items():
        data = json.dumps([entry | {name: value}]).encode()
        try:
            assert not verify_gpu_reports(data, NONCE, at=AT, policy=UNMEASURED).passed, name
        except EvidenceInvalid:
            continue


def test_a_bare_report_passes_with_its_chain_and_a_wrong_signature_fails(vectors: Path) -> None:
    chain = (vectors / "hopperCertChain.txt").read_bytes()
    report = (vectors / "hopperAttestationReport.txt").read_bytes()
    assert verify_gpu_reports(report, None, at=AT, policy=UNMEASURED, chain=chain).passed
    assert verify_gpu_reports(report, None, at=AT, policy=UNMEASURED).incomplete
    wrong = (vectors / "hopperAttestationReportInvalidSignature.txt").read_bytes()
    verdict = verify_gpu_reports(wrong, None, at=AT, policy=UNMEASURED, chain=chain)
    assert "gpu 0: signature" in [check.name for check in verdict.broken]


@pytest.mark.parametrize("sampled", [150, pytest.param(600, marks=pytest.mark.release)])
def test_every_sampled_bit_of_report_and_chain_matters(vectors: Path, sampled: int) -> None:
    chain = (vectors / "hopperCertChain.txt").read_bytes()
    report = bytes.fromhex((vectors / "hopperAttestationReport.txt").read_text().strip())
    chance = random.Random(4)

    def passes(report: bytes, chain: bytes) -> bool:
        try:
            return verify_gpu_reports(report, None, at=AT, policy=UNMEASURED, chain=chain).passed
        except EvidenceInvalid:
            return False

    assert passes(report, chain)
    places = {at * 8 + at % 8 for at in range(64)} | set(chance.sample(range(len(report) * 8), sampled))
    for place in places:
        altered = bytearray(report)
        altered[place // 8] ^= 1 << place % 8
        assert not passes(bytes(altered), chain), f"bit {place % 8} of byte {place // 8} of the report"
    for place in chance.sample(range(len(chain.rstrip()) * 8), sampled):
        altered = bytearray(chain)
        altered[place // 8] ^= 1 << place % 8
        assert not passes(report, bytes(altered)), f"bit {place % 8} of byte {place // 8} of the chain"
