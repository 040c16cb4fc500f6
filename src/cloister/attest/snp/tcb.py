"""The versions of what a guest must trust, packed into eight bytes: one layout until Genoa, another since Turin."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

from cloister.attest.snp.product import Product


@dataclass(frozen=True)
class Tcb:
    """Security patch levels, each 0 to 255. `fmc` exists since Turin."""

    bootloader: int = 0
    tee: int = 0
    snp: int = 0
    microcode: int = 0
    fmc: int = 0

    @classmethod
    def unpack(cls, packed: bytes, product: Product) -> Tcb:
        """The eight bytes of a report (TCB_VERSION, ABI specification §2.2)."""
        if product == "Turin":
            return cls(fmc=packed[0], bootloader=packed[1], tee=packed[2], snp=packed[3], microcode=packed[7])
        return cls(bootloader=packed[0], tee=packed[1], snp=packed[6], microcode=packed[7])

    def below(self, floor: Tcb) -> list[str]:
        """The components that are older than this floor."""
        return [
            f"{field.name} {mine} < {least}"
            for field, mine, least in zip(fields(self), astuple(self), astuple(floor), strict=True)
            if mine < least
        ]

    def as_json(self) -> dict[str, int]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.as_json().items())
