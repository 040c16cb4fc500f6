"""The policy for an SEV-SNP machine, and the patch levels below which AMD's own bulletins call one vulnerable."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import asdict, replace

from cloister.attest.snp.report import Product, Report, Tcb

FLOORS_DATE = "2026-01"  # AMD publishes bulletins and no status, so the floors below age with the release

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
"""By family, model and stepping, which reports name since version 3. Other processors have a floor of firmware only."""


def shipped_floor(report: Report, product: Product) -> Tcb:
    floor = _FLOORS[product]
    family, model, stepping = report.cpuid
    microcode = _MICROCODE.get((family, model, stepping)) if report.has_cpuid else None
    return floor if microcode is None else replace(floor, microcode=microcode)


Hex16 = Annotated[str, Meta(pattern=r"\A[0-9a-fA-F]{32}\Z")]
Hex32 = Annotated[str, Meta(pattern=r"\A[0-9a-fA-F]{64}\Z")]
Hex48 = Annotated[str, Meta(pattern=r"\A[0-9a-fA-F]{96}\Z")]
Hex64 = Annotated[str, Meta(pattern=r"\A[0-9a-fA-F]{128}\Z")]


class SnpPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """An absent list asks nothing, an empty one accepts nothing. Without `measurements` nothing passes."""

    measurements: tuple[Hex48, ...] = ()  # Launch digests.
    host_data: tuple[Hex32, ...] | None = None
    family_ids: tuple[Hex16, ...] | None = None
    image_ids: tuple[Hex16, ...] | None = None
    id_key_digests: tuple[Hex48, ...] | None = None
    author_key_digests: tuple[Hex48, ...] | None = None
    chip_ids: tuple[Hex64, ...] | None = None
    csp_ids: tuple[str, ...] | None = None  # Whose VLEK is accepted.

    products: tuple[Product, ...] = ("Milan", "Genoa", "Turin")
    signing_keys: tuple[Literal["vcek", "vlek"], ...] = ("vcek", "vlek")
    vmpl: tuple[Annotated[int, Meta(ge=0, le=3)], ...] = (0,)  # above 0 runs what was not measured: a relaxation
    minimum_guest_svn: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)] = 0
    minimum_tcb: Tcb = Tcb()  # for every product; both add to the floors that ship with the release
    minimum_tcb_of: dict[Product, Tcb] = field(default_factory=dict)

    allow_debug: bool = False
    allow_migration_agent: bool = False
    allow_hidden_chip_id: bool = False  # relaxation: the certificate's cannot be compared then
    allow_old_tcb: bool = False  # below the shipped floors; levels that are all zero never pass
    allow_missing_revocation_list: bool = False
    require_smt_off: bool = False
    require_single_socket: bool = False
    require_ciphertext_hiding: bool = False
    require_alias_check: bool = False
    require_committed_firmware: bool = False  # Refuse firmware that its owner may still roll back.

    def __post_init__(self) -> None:
        # msgspec heeds patterns when it converts, not when it is called; a mistyped value must not just never match.
        for name, digits in _DIGITS.items():
            if not all(re.fullmatch(f"[0-9a-fA-F]{{{digits}}}", value) for value in getattr(self, name) or ()):
                raise ValueError(f"{name}: each has {digits} hexadecimal digits")

    def relaxations(self) -> tuple[str, ...]:
        allowed = [name for name, value in asdict(self).items() if name.startswith("allow_") and value]
        return (*allowed, *(f"vmpl {level}" for level in self.vmpl if level))


_DIGITS = {
    **{"measurements": 96, "id_key_digests": 96, "author_key_digests": 96},
    **{"host_data": 64, "family_ids": 32, "image_ids": 32, "chip_ids": 128},
}
