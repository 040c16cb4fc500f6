"""What a client asks of a TDX node. Nothing here is read from anywhere: see `cloister.attest.policy` for the file."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta, Struct

Status = Literal[
    "UpToDate",
    "SWHardeningNeeded",
    "ConfigurationNeeded",
    "ConfigurationAndSWHardeningNeeded",
    "OutOfDate",
    "OutOfDateConfigurationNeeded",
    "TDRelaunchAdvised",
    "TDRelaunchAdvisedConfigurationNeeded",
]
"""Intel's words for a platform's TCB. `Revoked` is not among them: nobody can accept that."""

Register = Annotated[str, Meta(pattern="^[0-9a-fA-F]{96}$")]
"""A measurement of 48 bytes in hex."""

REGISTERS = ("mrtd", "rtmr0", "rtmr1", "rtmr2", "rtmr3", "mrseam", "mrconfigid", "mrowner", "mrownerconfig")


class TdxPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """Every list of registers names the values accepted; an empty one accepts any and the check shows as skipped."""

    accepted_statuses: tuple[Status, ...] = ("UpToDate",)
    refused_advisories: tuple[str, ...] = ()
    """Intel's advisories (`INTEL-SA-…`) that must not apply to the platform."""
    accepted_advisories: tuple[str, ...] | None = None
    """If given, no advisory may apply but these."""
    min_tcb_evaluation: Annotated[int, Meta(ge=0)] = 0
    """Collateral older than this `tcbEvaluationDataNumber` is refused, even if it has not expired."""
    min_tee_tcb_svn: Annotated[str, Meta(pattern="^([0-9a-fA-F]{32})?$")] = ""
    """Hex of 16 bytes, each a floor of its own."""
    require_sept_ve_disable: bool = False
    """dcap-qvl asks for SEPT_VE_DISABLE whenever there is collateral; this refuses its absence by name, always."""
    mrtd: tuple[Register, ...] = ()
    rtmr0: tuple[Register, ...] = ()
    rtmr1: tuple[Register, ...] = ()
    rtmr2: tuple[Register, ...] = ()
    rtmr3: tuple[Register, ...] = ()
    mrseam: tuple[Register, ...] = ()
    mrconfigid: tuple[Register, ...] = ()
    mrowner: tuple[Register, ...] = ()
    mrownerconfig: tuple[Register, ...] = ()

    def __post_init__(self) -> None:
        # msgspec checks patterns on what it decodes, not on what is called; a mistyped register must not be a quiet
        # "never matches".
        for name in REGISTERS:
            if not all(re.fullmatch("[0-9a-fA-F]{96}", value) for value in getattr(self, name)):
                raise ValueError(f"{name}: a register has 96 hexadecimal digits")
        if not re.fullmatch("([0-9a-fA-F]{32})?", self.min_tee_tcb_svn):
            raise ValueError("min_tee_tcb_svn has 32 hexadecimal digits")
