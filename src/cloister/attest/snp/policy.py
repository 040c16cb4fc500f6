"""What a reader demands of an SEV-SNP report. Made to be converted from a TOML table; unknown keys are refused."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from cloister.attest.snp.product import Product, Tcb

Hex16 = Annotated[str, Meta(pattern=r"\A[0-9a-fA-F]{32}\Z")]
Hex32 = Annotated[str, Meta(pattern=r"\A[0-9a-fA-F]{64}\Z")]
Hex48 = Annotated[str, Meta(pattern=r"\A[0-9a-fA-F]{96}\Z")]
Hex64 = Annotated[str, Meta(pattern=r"\A[0-9a-fA-F]{128}\Z")]


class SnpPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """Lists name what is accepted; an empty list asks nothing, and its check shows as skipped.

    Whoever trusts the software inside must name `measurements`: without them any guest on a real chip passes.
    """

    measurements: tuple[Hex48, ...] = ()
    """Launch digests."""
    host_data: tuple[Hex32, ...] = ()
    family_ids: tuple[Hex16, ...] = ()
    image_ids: tuple[Hex16, ...] = ()
    id_key_digests: tuple[Hex48, ...] = ()
    author_key_digests: tuple[Hex48, ...] = ()
    chip_ids: tuple[Hex64, ...] = ()
    csp_ids: tuple[str, ...] = ()
    """Whose VLEK is accepted."""

    products: tuple[Product, ...] = ("Milan", "Genoa", "Turin")
    signing_keys: tuple[Literal["vcek", "vlek"], ...] = ("vcek", "vlek")
    vmpl: tuple[Annotated[int, Meta(ge=0, le=3)], ...] = (0, 1, 2, 3)
    minimum_guest_svn: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)] = 0
    minimum_tcb: Tcb = Tcb()
    """For every product; `minimum_tcb_of` adds to it for one."""
    minimum_tcb_of: dict[Product, Tcb] = field(default_factory=dict)

    allow_debug: bool = False
    allow_migration_agent: bool = False
    allow_smt: bool = True
    allow_hidden_chip_id: bool = False
    """Some hosts let the firmware hide the chip's number; the certificate's then cannot be compared with it."""
    require_single_socket: bool = False
    require_ciphertext_hiding: bool = False
    require_alias_check: bool = False
    require_committed_firmware: bool = False
    """Refuse firmware that its owner may still roll back."""
    require_revocation_list: bool = False

    def __post_init__(self) -> None:
        # msgspec heeds patterns when it converts, not when it is called; a mistyped value must not just never match.
        for name, digits in _DIGITS.items():
            if not all(re.fullmatch(f"[0-9a-fA-F]{{{digits}}}", value) for value in getattr(self, name)):
                raise ValueError(f"{name}: each has {digits} hexadecimal digits")


_DIGITS = {
    **{"measurements": 96, "id_key_digests": 96, "author_key_digests": 96},
    **{"host_data": 64, "family_ids": 32, "image_ids": 32, "chip_ids": 128},
}
