"""Atheris harness: whatever bytes come as evidence of GPUs, or beside it, there is a verdict or EvidenceInvalid.

Run it by hand for as long as you like: `python tests/fuzz/nvidia_evidence.py -max_total_time=600`.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))

with atheris.instrument_imports(include=["cloister.attest.nvidia"]):
    from cloister.attest.nvidia.reports import GpuPolicy, References, verify_gpu_reports
    from cloister.errors import EvidenceInvalid

from tests.fuzz.nvidia_made import NONCE, NOW, MadeGpu, MadeManifests, ocsp_answer, swid_tag

GPU = MadeGpu("GB100")
REPORT, CHAIN, EVIDENCE = GPU.report(), GPU.chain, GPU.evidence()
SIGNER = MadeManifests()
MANIFEST = SIGNER.sign(swid_tag("590.12", {1: (b"\2" * 48,)}))
ANSWER = ocsp_answer(GPU.certificates[1], GPU.certificates[2], GPU.root)
POLICY = GpuPolicy(min_driver="1", allow_unmeasured=True)


def spliced(whole: bytes, data: bytes) -> bytes:
    """The first two bytes say where the rest is laid over something genuine."""
    at = int.from_bytes(data[:2], "big") % len(whole)
    return whole[:at] + data[2:] + whole[at + len(data) - 2 :]


def reports(evidence: bytes, chain: bytes = CHAIN, manifests: tuple[bytes, ...] = (), ocsp: bytes = ANSWER) -> bool:
    known = References(manifests, (ocsp,), SIGNER.roots)
    verdict = verify_gpu_reports(evidence, NONCE, at=NOW, policy=POLICY, chain=chain, references=known, roots=GPU.roots)
    return verdict.passed


def altered_report(data: bytes) -> None:
    report = spliced(REPORT, data)
    if reports(report) and report != REPORT:
        raise RuntimeError("an altered report passed")


WAYS = [
    reports,
    altered_report,
    lambda data: reports(spliced(EVIDENCE, data)),
    lambda data: reports(REPORT, spliced(CHAIN, data)),
    lambda data: reports(REPORT, manifests=(data,)),
    lambda data: reports(REPORT, manifests=(spliced(MANIFEST, data),)),
    lambda data: reports(REPORT, ocsp=data),
    lambda data: reports(REPORT, ocsp=spliced(ANSWER, data)),
]


def one_input(data: bytes) -> None:
    if len(data) > 3:
        with contextlib.suppress(EvidenceInvalid):
            WAYS[data[0] % len(WAYS)](data[1:])


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
