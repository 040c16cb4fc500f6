"""The policy for an SEV-SNP machine, and the patch levels below which AMD's own bulletins call one vulnerable.

Every field that begins with `allow_` is a relaxation. Nothing here reads evidence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import asdict, replace

from cloister.attest.snp.report import Product, Report, Tcb

FLOORS_DATE = "2026-01"
"""When the floors below were last true. AMD publishes bulletins and no status, so they age with the release."""

_FLOORS: Final[Mapping[Product, Tcb]] = MappingProxyType(
    {
        "Milan": Tcb(snp=0x18),  # AMD-SB-3019
        "Genoa": Tcb(snp=0x1B),  # AMD-SB-3020
        "Turin": Tcb(snp=0x04),  # AMD-SB-3020
    }
)
_MICROCODE: Final[Mapping[tuple[int, int, int], int]] = MappingProxyType(
    {
        (0x19, 0x01, 1): 0xDB,  # Milan, AMD-SB-3019
        (0x19, 0x11, 1): 0x56,  # Genoa, AMD-SB-3027
        (0x19, 0x11, 2): 0x51,  # Genoa-X, AMD-SB-3027
        (0x1A, 0x02, 1): 0x51,  # Turin, AMD-SB-3027
    }
)
"""Microcode is numbered apart for each family, model and stepping, which reports name since version 3. Processors that
are not here have a floor of firmware only."""


def shipped_floor(report: Report, product: Product) -> Tcb:
    """The oldest patch levels that this release holds to be safe for this report's processor."""
    floor = _FLOORS[product]
    family, model, stepping = report.cpuid
    microcode = _MICROCODE.get((family, model, stepping)) if report.has_cpuid else None
    return floor if microcode is None else replace(floor, microcode=microcode)


Hex16 = Annotated[str, Meta(pattern=r"\A[0-9a-fA-F]{32}\Z")]
Hex32 = Annotated[str, Meta(pattern=r"\A[0-9a-fA-F]{64}\Z")]
Hex48 = Annotated[str, Meta(pattern=r"\A[0-9a-fA-F]{96}\Z")]
Hex64 = Annotated[str, Meta(pattern=r"\A[0-9a-fA-F]{128}\Z")]


class SnpPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """A list names what is accepted: an empty one accepts nothing. A list that is absent asks nothing, except
    `measurements`: any guest on a real chip could say what a release says, so without them nothing passes.
    """

    measurements: tuple[Hex48, ...] = ()
    """Launch digests."""
    host_data: tuple[Hex32, ...] | None = None
    family_ids: tuple[Hex16, ...] | None = None
    image_ids: tuple[Hex16, ...] | None = None
    id_key_digests: tuple[Hex48, ...] | None = None
    author_key_digests: tuple[Hex48, ...] | None = None
    chip_ids: tuple[Hex64, ...] | None = None
    csp_ids: tuple[str, ...] | None = None
    """Whose VLEK is accepted."""

    products: tuple[Product, ...] = ("Milan", "Genoa", "Turin")
    signing_keys: tuple[Literal["vcek", "vlek"], ...] = ("vcek", "vlek")
    vmpl: tuple[Annotated[int, Meta(ge=0, le=3)], ...] = (0,)
    """Software at a level above 0 is not what was measured at launch: accepting one is a relaxation."""
    minimum_guest_svn: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)] = 0
    minimum_tcb: Tcb = Tcb()
    """For every product; `minimum_tcb_of` adds to it for one. Both add to the floors that ship with the release."""
    minimum_tcb_of: dict[Product, Tcb] = field(default_factory=dict)

    allow_debug: bool = False
    allow_migration_agent: bool = False
    allow_hidden_chip_id: bool = False
    """Some hosts let the firmware hide the chip's number; the certificate's then cannot be compared with it."""
    allow_old_tcb: bool = False
    """Patch levels below the floors that ship with the release. No policy can accept levels that are all zero."""
    allow_missing_revocation_list: bool = False
    require_smt_off: bool = False
    require_single_socket: bool = False
    require_ciphertext_hiding: bool = False
    require_alias_check: bool = False
    require_committed_firmware: bool = False
    """Refuse firmware that its owner may still roll back."""

    def __post_init__(self) -> None:
        # msgspec heeds patterns when it converts, not when it is called; a mistyped value must not just never match.
        for name, digits in _DIGITS.items():
            if not all(re.fullmatch(f"[0-9a-fA-F]{{{digits}}}", value) for value in getattr(self, name) or ()):
                raise ValueError(f"{name}: each has {digits} hexadecimal digits")

    def relaxations(self) -> tuple[str, ...]:
        """What this policy lets go that the default does not."""
        allowed = [name for name, value in asdict(self).items() if name.startswith("allow_") and value]
        return (*allowed, *(f"vmpl {level}" for level in self.vmpl if level))


_DIGITS = {
    **{"measurements": 96, "id_key_digests": 96, "author_key_digests": 96},
    **{"host_data": 64, "family_ids": 32, "image_ids": 32, "chip_ids": 128},
}
