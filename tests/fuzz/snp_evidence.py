"""Atheris harness: whatever a report and its certificates hold, there is a verdict that does not pass, or one error.

Run it by hand for as long as you like: `python tests/fuzz/snp_evidence.py -max_total_time=600`.
"""

from __future__ import annotations

import contextlib
import sys
from datetime import UTC, datetime
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))

with atheris.instrument_imports(include=["cloister.attest"]):
    from cloister.attest.attester import verify_software
    from cloister.attest.snp import SnpPolicy, verify_snp
    from cloister.attest.snp.certificate import read_bundle, read_table
    from cloister.attest.snp.report import unwrap_report
    from cloister.errors import EvidenceInvalid

from tests.attest import snp_maker as maker

AT = maker.AT
CHIP = maker.Chip("Turin")
REPORT, CERTIFICATES, ROOTS = CHIP.report(5), CHIP.certificates, CHIP.roots
TABLE = maker.table({maker.VCEK: CERTIFICATES[0], maker.ASK: CERTIFICATES[1], maker.ARK: CERTIFICATES[2]})
CRL = CHIP.revocation_list(9)
POLICY = SnpPolicy(measurements=("aa" * 48,))


def patched(original: bytes, data: bytes) -> bytes:
    """The original with some bytes replaced: place, value, place, value…; cut off where the data says so."""
    changed = bytearray(original)
    for at in range(0, len(data) - 2, 3):
        changed[int.from_bytes(data[at : at + 2], "big") % len(changed)] ^= data[at + 2]
    return bytes(changed[: -data[-1]] if data and data[-1] > 250 else changed)


def judge(report: bytes, certificates: list[bytes]) -> None:
    verdict = verify_snp(report, certificates, at=AT, policy=POLICY, report_data=None, roots=ROOTS)
    genuine = report == REPORT and CRL in certificates and all(each in certificates for each in CERTIFICATES)
    assert genuine or not verdict.passed


INPUTS = [
    lambda data: judge(*(lambda report, table: (report, [table]))(*unwrap_report(data))),
    lambda data: judge(patched(REPORT, data), [*CERTIFICATES, CRL]),
    lambda data: judge(REPORT, [patched(CERTIFICATES[0], data), *CERTIFICATES[1:], CRL]),
    lambda data: judge(REPORT, [CERTIFICATES[0], patched(CERTIFICATES[1], data), CERTIFICATES[2], CRL]),
    lambda data: judge(REPORT, [*CERTIFICATES, patched(CRL, data)]),
    lambda data: read_bundle([patched(TABLE, data)]),
    lambda data: read_bundle([data]),
    read_table,
    lambda data: verify_software(data, at=datetime(2026, 1, 1, tzinfo=UTC), allowed=True, report_data=None),
]


def one_input(data: bytes) -> None:
    if data:
        with contextlib.suppress(EvidenceInvalid):
            INPUTS[data[0] % len(INPUTS)](data[1:])


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
