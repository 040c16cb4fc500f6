"""What a TD report itself must say: attributes, measurements, the asker's data. Knows nothing of signatures."""

from __future__ import annotations

import hmac

from cloister.attest.tdx.policy import REGISTERS, TdxPolicy
from cloister.attest.tdx.quote import TdReport
from cloister.checks import Examination

# Intel TDX module ABI, ATTRIBUTES: bits 7:0 put a TD under debug in one way or another.
UNDER_DEBUG = 0xFF
SEPT_VE_DISABLE = 1 << 28
MIGRATABLE = 1 << 29


def examine_report(report: TdReport, policy: TdxPolicy, report_data: bytes | None, found: Examination) -> None:
    """Add the checks of the report to the others."""
    _examine_attributes(report, policy, found)
    _examine_module(report, policy, found)
    values = dict(zip(("rtmr0", "rtmr1", "rtmr2", "rtmr3"), report.rtmrs, strict=True))
    for name in REGISTERS:
        accepted: tuple[str, ...] = getattr(policy, name)
        value: str = (values.get(name) or getattr(report, name)).hex()
        if not accepted:
            found.skipped(name, "the policy names none", required=False)
        else:
            known = value in {one.lower() for one in accepted}
            found.check(name, known, f"{value} is not one the policy accepts", value)
    if report_data is None:
        found.skipped("report data", "nothing to compare with was given", required=False)
    else:
        same = hmac.compare_digest(report.report_data, report_data)
        found.check("report data", same, "the report speaks for another nonce, channel key, release or GPU")


def _examine_attributes(report: TdReport, policy: TdxPolicy, found: Examination) -> None:
    attributes = report.td_attributes
    found.check("debug", not attributes & UNDER_DEBUG, "the TD runs under debug: its host reads its memory")
    if policy.require_sept_ve_disable:
        found.check(
            "sept ve disable",
            bool(attributes & SEPT_VE_DISABLE),
            "the host may take pages from the TD and make it fault (SEPT_VE_DISABLE is off)",
        )
    else:
        found.skipped("sept ve disable", "the policy does not ask for it by name", required=False)
    found.check("migration", not attributes & MIGRATABLE, "the TD can be migrated by a TD that is not attested")
    if report.version != "1.0":
        found.check("service td", not any(report.mrservicetd), "a service TD that is not attested is bound to this one")


def _examine_module(report: TdReport, policy: TdxPolicy, found: Examination) -> None:
    found.check(
        "tdx module",
        not any(report.mrsignerseam) and not any(report.seam_attributes),
        "the TDX module is not one signed by Intel, or has attributes",
    )
    if not policy.min_tee_tcb_svn:
        found.skipped("tee tcb svn", "the policy names no floor", required=False)
        return
    floor = bytes.fromhex(policy.min_tee_tcb_svn)
    found.check(
        "tee tcb svn",
        all(have >= want for have, want in zip(report.tee_tcb_svn, floor, strict=True)),
        f"{report.tee_tcb_svn.hex()} lies below {floor.hex()}",
    )
