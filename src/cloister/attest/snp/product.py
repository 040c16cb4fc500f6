"""Which chip (the lines of processors with a root key of their own) and which versions of what a guest must trust."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

Product = Literal["Milan", "Genoa", "Turin"]
Level = Annotated[int, Meta(ge=0, le=255)]

# SHA-256 of the SubjectPublicKeyInfo of ARK-Milan, ARK-Genoa and ARK-Turin, computed from AMD's own certificates as the
# key distribution service gives them (kdsintf.amd.com/vcek/v1/{product}/cert_chain). VCEK and VLEK share the root.
AMD_ROOTS: Mapping[Product, str] = MappingProxyType(
    {
        "Milan": "9f056bee44377e29308cb5ffa895bdfb62d18881fa6bed8d6f075b0204089cb9",
        "Genoa": "429a69c9422aa258ee4d8db5fcda9c6470ef15f8cd5a9cebd6cbc7d90b863831",
        "Turin": "4f125410563a2ab9a50356f9243f6fe0b6f73de98603f53f90339c70e9d7ad08",
    }
)

_BY_NAME: Mapping[str, Product] = MappingProxyType(
    {"milan": "Milan", "genoa": "Genoa", "bergamo": "Genoa", "siena": "Genoa", "turin": "Turin"}
)


def product_of_cpuid(family: int, model: int) -> Product | None:
    """The product of a CPUID family and model (both with their extended parts), as reports have since version 3."""
    match family:
        case 0x19 if model <= 0x0F:
            return "Milan"
        case 0x19 if 0x10 <= model <= 0x1F or 0xA0 <= model <= 0xAF:
            return "Genoa"
        case 0x1A if model <= 0x11:
            return "Turin"
    return None


def product_of_name(name: str) -> Product | None:
    """The product of a certificate's productName, whose stepping (`Milan-B0`) does not matter here."""
    return _BY_NAME.get(name.partition("-")[0].lower())


class Tcb(Struct, frozen=True, forbid_unknown_fields=True):
    """Security patch levels: those of a machine, or the oldest that a policy accepts. `fmc` exists since Turin."""

    bootloader: Level = 0
    tee: Level = 0
    snp: Level = 0
    microcode: Level = 0
    fmc: Level = 0

    @classmethod
    def unpack(cls, packed: bytes, product: Product) -> Tcb:
        """The eight bytes of a report (TCB_VERSION, ABI specification §2.2)."""
        if product == "Turin":
            return cls(fmc=packed[0], bootloader=packed[1], tee=packed[2], snp=packed[3], microcode=packed[7])
        return cls(bootloader=packed[0], tee=packed[1], snp=packed[6], microcode=packed[7])

    def below(self, floor: Tcb) -> list[str]:
        """The components that are older than this floor."""
        least = floor.as_json()
        return [f"{name} {mine} < {least[name]}" for name, mine in self.as_json().items() if mine < least[name]]

    def as_json(self) -> dict[str, int]:
        return asdict(self)

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.as_json().items())
