"""What the policy demands of a report's own words: bits, versions and values. Who signed them is checked elsewhere."""

from __future__ import annotations

from dataclasses import astuple

from cloister.attest.snp.policy import SnpPolicy
from cloister.attest.snp.product import Product
from cloister.attest.snp.report import Report
from cloister.attest.snp.tcb import Tcb
from cloister.checks import Examination

_HOST = 0xFFFFFFFF  # the VMPL of a report that the host asked for, not the guest


def check_demands(examination: Examination, report: Report, product: Product | None, policy: SnpPolicy) -> None:
    """Add one check for each demand."""
    _check_guest_policy(examination, report, policy)
    _check_platform(examination, report, policy)
    _check_tcb(examination, report, product, policy)
    _check_values(examination, report, policy)
    level = "the host" if report.vmpl == _HOST else f"VMPL {report.vmpl}"
    examination.check("vmpl", report.vmpl in policy.vmpl, f"asked for by {level}, which is not accepted", level)
    if policy.minimum_guest_svn:
        enough = report.guest_svn >= policy.minimum_guest_svn
        examination.check("guest svn", enough, f"{report.guest_svn} < {policy.minimum_guest_svn}")


def _check_guest_policy(examination: Examination, report: Report, policy: SnpPolicy) -> None:
    guest = report.policy
    examination.check("guest policy", guest.known, f"{guest.bits:#x} has bits set or clear that have no meaning")
    examination.check(
        "debug", policy.allow_debug or not guest.debug, "the host may read the guest's memory: debugging is on"
    )
    examination.check(
        "migration agent",
        policy.allow_migration_agent or not guest.migration_agent,
        "the guest may be moved by an agent whose own report this is not",
    )
    smt = guest.smt or report.smt_enabled
    examination.check("smt", policy.allow_smt or not smt, "another thread may share the guest's cores")
    if policy.require_single_socket:
        examination.check("single socket", guest.single_socket, "the guest may run on several sockets")


def _check_platform(examination: Examination, report: Report, policy: SnpPolicy) -> None:
    if policy.require_ciphertext_hiding:
        examination.check("ciphertext hiding", report.ciphertext_hiding, "the host may read the memory's ciphertext")
    if policy.require_alias_check:
        examination.check("alias check", report.alias_check_complete, "the firmware did not look for aliased memory")
    if policy.require_committed_firmware:
        committed = report.current_firmware == report.committed_firmware and report.current_tcb == report.committed_tcb
        examination.check("committed firmware", committed, "the firmware may still be rolled back")


def _check_tcb(examination: Examination, report: Report, product: Product | None, policy: SnpPolicy) -> None:
    floors = [policy.minimum_tcb.tcb]
    if product in policy.minimum_tcb_of:
        floors.append(policy.minimum_tcb_of[product].tcb)
    elif product is None:
        floors += [floor.tcb for floor in policy.minimum_tcb_of.values()]
    if not any(any(astuple(floor)) for floor in floors):
        examination.skipped("tcb floor", "the policy has none", required=False)
        return
    if product is None:
        examination.skipped("tcb floor", "the product is not known, and so not the TCB's layout")
        return
    reported = Tcb.unpack(report.reported_tcb, product)
    old = [each for floor in floors for each in reported.below(floor)]
    examination.check("tcb floor", not old, ", ".join(dict.fromkeys(old)), str(reported))


def _check_values(examination: Examination, report: Report, policy: SnpPolicy) -> None:
    for name, value, accepted in (
        ("measurement", report.measurement, policy.measurements),
        ("host data", report.host_data, policy.host_data),
        ("family id", report.family_id, policy.family_ids),
        ("image id", report.image_id, policy.image_ids),
        ("id key", report.id_key_digest, policy.id_key_digests),
        ("author key", report.author_key_digest, policy.author_key_digests),
        ("accepted chip", report.chip_id, policy.chip_ids),
    ):
        if accepted:
            known = value.hex() in [each.lower() for each in accepted]
            examination.check(name, known, f"{value.hex()} is not accepted", value.hex())
        elif name == "measurement":
            examination.skipped(name, "the policy names none: any guest on a real chip passes", required=False)
