"""A report: 1,184 bytes, the first 672 signed (ABI specification 56860, table 23); and its policy. Verifies nothing."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag
from types import MappingProxyType
from typing import Annotated, Final, Literal, Self

from msgspec import Meta, Struct, field
from msgspec.structs import asdict, replace

from cloister.checks import check_digits
from cloister.errors import EvidenceInvalid

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
    """The product of a certificate's productName, whatever its stepping (`Milan-B0`)."""
    return _BY_NAME.get(name.partition("-")[0].lower())


class Tcb(Struct, frozen=True, forbid_unknown_fields=True):
    """Security patch levels: those of a machine, or the oldest that a policy accepts. `fmc` exists since Turin."""

    bootloader: Level = 0
    tee: Level = 0
    snp: Level = 0
    microcode: Level = 0
    fmc: Level = 0

    @classmethod
    def unpack(cls, packed: bytes, product: Product) -> Self:
        """The eight bytes of a report (TCB_VERSION, ABI specification §2.2)."""
        if product == "Turin":
            return cls(fmc=packed[0], bootloader=packed[1], tee=packed[2], snp=packed[3], microcode=packed[7])
        return cls(bootloader=packed[0], tee=packed[1], snp=packed[6], microcode=packed[7])

    def below(self, floor: Self) -> list[str]:
        least = asdict(floor)
        return [f"{name} {mine} < {least[name]}" for name, mine in asdict(self).items() if mine < least[name]]

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in asdict(self).items())


REPORT_BYTES = 1184
SIGNED_BYTES = 0x2A0
VERSIONS = range(2, 6)
ECDSA_P384_SHA384 = 1
SigningKey = Literal["vcek", "vlek", "none", "unknown"]
_SIGNING_KEYS: dict[int, SigningKey] = {0: "vcek", 1: "vlek", 7: "none"}
_LAYOUT = struct.Struct("<IIQ16s16sII8sQI4x64s48s32s48s48s64x8s3s21x64s8s3sx3sx176x144s")
_CPUID_SINCE = 3


class GuestPolicy(IntFlag):
    """What the guest's owner demanded of the firmware at launch (ABI specification, table 9)."""

    SMT = 1 << 16
    ALWAYS = 1 << 17
    MIGRATION_AGENT = 1 << 18
    DEBUG = 1 << 19
    SINGLE_SOCKET = 1 << 20
    WITHOUT_MEANING = (1 << 64) - (1 << 26)


class PlatformInfo(IntFlag):
    """How the platform is set up (ABI specification, table 24)."""

    SMT = 1 << 0
    CIPHERTEXT_HIDING = 1 << 4
    ALIAS_CHECK_COMPLETE = 1 << 5  # The firmware looked for memory that answers at two addresses.


@dataclass(frozen=True)
class Report:
    """The specification's names in the order of `_LAYOUT`. TCBs stay packed: their layout depends on the product."""

    signed: bytes
    version: int
    guest_svn: int
    policy: int
    family_id: bytes
    image_id: bytes
    vmpl: int
    signature_algorithm: int
    current_tcb: bytes
    platform_info: int
    key_flags: int
    report_data: bytes
    measurement: bytes
    host_data: bytes
    id_key_digest: bytes
    author_key_digest: bytes
    reported_tcb: bytes
    cpuid: bytes  # Family, model, stepping; since version 3.
    chip_id: bytes
    committed_tcb: bytes
    current_firmware: bytes  # Build, minor, major.
    committed_firmware: bytes
    signature: bytes

    @property
    def signing_key(self) -> SigningKey:
        return _SIGNING_KEYS.get(self.key_flags >> 2 & 7, "unknown")

    @property
    def has_cpuid(self) -> bool:
        return self.version >= _CPUID_SINCE

    @property
    def product(self) -> Product | None:
        return product_of_cpuid(self.cpuid[0], self.cpuid[1]) if self.has_cpuid else None


def read_report(data: bytes) -> Report:
    if len(data) != REPORT_BYTES:
        raise EvidenceInvalid(f"An SEV-SNP report has {REPORT_BYTES} bytes; this has {len(data)}.")
    report = Report(data[:SIGNED_BYTES], *_LAYOUT.unpack_from(data))
    if report.version not in VERSIONS:
        raise EvidenceInvalid(
            f"SEV-SNP reports of version {report.version} are not known here; {VERSIONS[0]} to {VERSIONS[-1]} are.",
            hint="Is this a report of an SEV-SNP guest? If its firmware is newer than this program, update it.",
        )
    # The rest of the signature's field is not signed: it must not hide anything.
    if any(data[_LAYOUT.size :]):
        raise EvidenceInvalid("The bytes after the report's signature are not zero.")
    return report


_ANSWER_HEAD = 32  # MSG_REPORT_RSP: status, size of the report, 24 reserved bytes


def unwrap_report(data: bytes) -> tuple[bytes, bytes]:
    if data[:4] == bytes(4) and data[4:8] == REPORT_BYTES.to_bytes(4, "little"):
        data = data[_ANSWER_HEAD:]
    table = data[REPORT_BYTES:]
    return data[:REPORT_BYTES], table if any(table) else b""


FLOORS_DATE = "2026-01"  # AMD publishes bulletins and no status, so the floors below age with the release
_FLOORS: Final[Mapping[Product, Tcb]] = {
    "Milan": Tcb(snp=0x18),  # AMD-SB-3019
    "Genoa": Tcb(snp=0x1B),  # AMD-SB-3020
    "Turin": Tcb(snp=0x04),  # AMD-SB-3020
}
_MICROCODE: Final[Mapping[tuple[int, int, int], int]] = {
    (0x19, 0x01, 1): 0xDB,  # Milan, AMD-SB-3019
    (0x19, 0x11, 1): 0x56,  # Genoa, AMD-SB-3027
    (0x19, 0x11, 2): 0x51,  # Genoa-X, AMD-SB-3027
    (0x1A, 0x02, 1): 0x51,  # Turin, AMD-SB-3027
}
"""By family, model and stepping, which reports name since version 3. Other processors have a floor of firmware only."""


def shipped_floor(report: Report, product: Product) -> Tcb:
    floor = _FLOORS[product]
    family, model, stepping = report.cpuid
    microcode = _MICROCODE.get((family, model, stepping)) if report.has_cpuid else None
    return floor if microcode is None else replace(floor, microcode=microcode)


class SnpPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """An absent list asks nothing, an empty one accepts nothing. Without `measurements` nothing passes."""

    measurements: tuple[str, ...] = ()  # Launch digests.
    host_data: tuple[str, ...] | None = None
    family_ids: tuple[str, ...] | None = None
    image_ids: tuple[str, ...] | None = None
    id_key_digests: tuple[str, ...] | None = None
    author_key_digests: tuple[str, ...] | None = None
    chip_ids: tuple[str, ...] | None = None
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
        check_digits(self, measurements=96, id_key_digests=96, author_key_digests=96)
        check_digits(self, host_data=64, family_ids=32, image_ids=32, chip_ids=128)

    def relaxations(self) -> tuple[str, ...]:
        allowed = [name for name, value in asdict(self).items() if name.startswith("allow_") and value]
        return (*allowed, *(f"vmpl {level}" for level in self.vmpl if level))
