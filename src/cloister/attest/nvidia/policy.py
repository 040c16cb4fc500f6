"""What a client asks of a node's GPUs, and the checks of driver and VBIOS that reports and tokens share."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta, Struct

from cloister.checks import Examination

Architecture = Literal["HOPPER", "BLACKWELL", "LS10"]
"""LS10 is the NVSwitch that ties GPUs together; it reports in the same form."""

VERSION = "[0-9]+([.][0-9]+)*"


class GpuPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """Defaults accept any confidential GPU of NVIDIA that is what it says, and NVIDIA's own service."""

    architectures: tuple[Architecture, ...] = ("HOPPER", "BLACKWELL")
    min_gpus: Annotated[int, Meta(ge=1, le=64)] = 1
    min_driver: Annotated[str, Meta(pattern=f"^({VERSION})?$")] = ""
    """Such as `550.90.07`."""
    vbios: tuple[str, ...] = ()
    """The VBIOS versions accepted, such as `96.00.9F.00.01`; empty: any."""
    require_fwid: bool = False
    """Refuse a report that does not name its firmware (older drivers); one that names another is refused always."""
    measurements: dict[str, tuple[str, ...]] = {}
    """For reports: accepted values (hex) by index of the measurement, as NVIDIA's reference manifests list them."""
    issuers: tuple[str, ...] = ("https://nras.attestation.nvidia.com",)
    """For tokens: who may have issued them."""
    leeway_seconds: Annotated[int, Meta(ge=0, le=3600)] = 0
    """For tokens: how far clocks may differ."""

    def __post_init__(self) -> None:
        if not re.fullmatch(f"({VERSION})?", self.min_driver):
            raise ValueError("min_driver is a version such as 550.90.07")
        for index, values in self.measurements.items():
            hexadecimal = values and all(re.fullmatch("([0-9a-fA-F]{2})+", one) for one in values)
            if not hexadecimal or not re.fullmatch("[0-9]{1,3}", index):
                raise ValueError("measurements: hexadecimal values by the number of the measurement")

    def accepts_driver(self, version: str) -> bool:
        """Whether this driver is at least the oldest one accepted."""
        if not self.min_driver:
            return True
        return bool(re.fullmatch(VERSION, version)) and _numbers(version) >= _numbers(self.min_driver)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part[:9]) for part in version.split("."))


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
