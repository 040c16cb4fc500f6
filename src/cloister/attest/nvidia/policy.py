from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

from cloister.attest.nvidia.spdm import Architecture
from cloister.checks import Examination

VERSION = "[0-9]+([.][0-9]+)*"
SWITCH: Architecture = "LS10"


class GpuPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """Defaults accept any confidential GPU of NVIDIA whose firmware is known good."""

    architectures: tuple[Architecture, ...] = ("HOPPER", "BLACKWELL")
    min_gpus: Annotated[int, Meta(ge=1, le=64)] = 1  # NVSwitches (LS10) count only if nothing else is accepted
    min_driver: Annotated[str, Meta(pattern=f"^({VERSION})?$")] = ""  # Such as `550.90.07`.
    vbios: tuple[str, ...] = ()  # The VBIOS versions accepted, such as `96.00.9F.00.01`; empty: any.
    require_fwid: bool = False  # of reports by older drivers; other firmware is always refused
    measurements: dict[str, tuple[str, ...]] = {}  # hex by index from 0, as manifests count; SPDM's is one more
    allow_unmeasured: bool = False  # relaxation: firmware compared with neither measurements nor manifests
    allow_unseen: bool = False  # Relaxation: accept a node in a TEE that computes on a GPU and shows no evidence of it.
    require_ocsp: bool = False  # for each certificate that NVIDIA issued to a GPU or a manifest

    def __post_init__(self) -> None:
        if not re.fullmatch(f"({VERSION})?", self.min_driver):
            raise ValueError("min_driver is a version such as 550.90.07")
        for index, values in self.measurements.items():
            hexadecimal = values and all(re.fullmatch("([0-9a-fA-F]{2})+", one) for one in values)
            if not hexadecimal or not re.fullmatch("[0-9]{1,3}", index):
                raise ValueError("measurements: hexadecimal values by the number of the measurement")

    def relaxations(self) -> tuple[str, ...]:
        return tuple(name for name in ("allow_unmeasured", "allow_unseen") if getattr(self, name))

    def counted(self, known: list[Architecture | None]) -> int:
        if set(self.architectures) == {SWITCH}:
            return len(known)
        return sum(one != SWITCH for one in known)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part[:9]) for part in version.split("."))


def examine_versions(
    driver: str, vbios: str, policy: GpuPolicy, found: Examination, known: Architecture | None = None
) -> None:
    """Add the checks `driver` and `vbios`. A switch has no driver."""
    if policy.min_driver and known != SWITCH:
        ok = bool(re.fullmatch(VERSION, driver)) and _numbers(driver) >= _numbers(policy.min_driver)
        found.check("driver", ok, f"{driver or 'unknown'} is older than {policy.min_driver}", driver)
    else:
        reason = "a switch has none" if known == SWITCH else "the policy names no floor"
        found.skipped("driver", reason, required=False)
    if policy.vbios:
        accepted = vbios.upper() in {one.upper() for one in policy.vbios}
        found.check("vbios", accepted, f"{vbios or 'unknown'} is not one the policy accepts", vbios)
    else:
        found.skipped("vbios", "the policy names none", required=False)
