"""Atheris harness: whatever bytes come as GPU evidence, chain, token or keys, there is a verdict or EvidenceInvalid.

Run it by hand for as long as you like: `python tests/fuzz/nvidia_evidence.py -max_total_time=600`.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))

with atheris.instrument_imports(include=["cloister.attest.nvidia"]):
    from cloister.attest.nvidia import GpuPolicy, verify_gpu_reports, verify_gpu_token
    from cloister.errors import EvidenceInvalid

from tests.fuzz.nvidia_made import NONCE, NOW, MadeGpu, MadeService

GPU = MadeGpu("GB100")
REPORT, CHAIN, EVIDENCE = GPU.report(), GPU.chain, GPU.evidence()
SERVICE = MadeService()
BUNDLE, JWKS = SERVICE.bundle(), SERVICE.jwks()
POLICY = GpuPolicy(min_driver="1")


def spliced(whole: bytes, data: bytes) -> bytes:
    """The first two bytes say where the rest is laid over something genuine."""
    at = int.from_bytes(data[:2], "big") % len(whole)
    return whole[:at] + data[2:] + whole[at + len(data) - 2 :]


def reports(evidence: bytes, chain: bytes = CHAIN) -> bool:
    return verify_gpu_reports(evidence, NONCE, at=NOW, policy=POLICY, chain=chain, roots=GPU.roots).passed


def token(bundle: bytes, jwks: bytes = JWKS) -> bool:
    return verify_gpu_token(bundle, jwks, NONCE, at=NOW, policy=POLICY).passed


def altered_report(data: bytes) -> None:
    report = spliced(REPORT, data)
    if reports(report) and report != REPORT:
        raise RuntimeError("an altered report passed")


WAYS = [
    reports,
    altered_report,
    lambda data: reports(spliced(EVIDENCE, data)),
    lambda data: reports(REPORT, spliced(CHAIN, data)),
    lambda data: token(data),
    lambda data: token(spliced(BUNDLE, data)),
    lambda data: token(BUNDLE, data),
    lambda data: token(BUNDLE, spliced(JWKS, data)),
]


def one_input(data: bytes) -> None:
    if len(data) > 3:
        with contextlib.suppress(EvidenceInvalid):
            WAYS[data[0] % len(WAYS)](data[1:])


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
