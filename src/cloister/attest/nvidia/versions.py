"""The checks of driver and VBIOS, as a report or a token names them."""

from __future__ import annotations

from cloister.attest.nvidia.policy import GpuPolicy
from cloister.checks import Examination


def examine_versions(driver: str, vbios: str, policy: GpuPolicy, found: Examination) -> None:
    """Add the checks `driver` and `vbios` to the others."""
    if policy.min_driver:
        ok = policy.accepts_driver(driver)
        found.check("driver", ok, f"{driver or 'unknown'} is older than {policy.min_driver}", driver)
    else:
        found.skipped("driver", "the policy names no floor", required=False)
    if policy.vbios:
        known = vbios.upper() in {one.upper() for one in policy.vbios}
        found.check("vbios", known, f"{vbios or 'unknown'} is not one the policy accepts", vbios)
    else:
        found.skipped("vbios", "the policy names none", required=False)
