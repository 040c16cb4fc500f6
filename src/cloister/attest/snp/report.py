"""The report itself: 1,184 bytes, of which the firmware signs the first 672 (ABI specification 56860, table 23); the
chips it may be of; and what a reader demands of it, to be converted from a TOML table, unknown keys refused.

Only reads; says nothing of whether a word of it is true.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import asdict

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


REPORT_BYTES = 1184
SIGNED_BYTES = 0x2A0
VERSIONS = range(2, 6)
ECDSA_P384_SHA384 = 1

SigningKey = Literal["vcek", "vlek", "none", "unknown"]
_SIGNING_KEYS: dict[int, SigningKey] = {0: "vcek", 1: "vlek", 7: "none"}
_NUMBER_BYTES = 72
_CPUID_SINCE = 3


@dataclass(frozen=True)
class GuestPolicy:
    """What the guest's owner demanded of the firmware at launch (ABI specification, table 9)."""

    bits: int

    @property
    def smt(self) -> bool:
        return self._bit(16)

    @property
    def migration_agent(self) -> bool:
        return self._bit(18)

    @property
    def debug(self) -> bool:
        return self._bit(19)

    @property
    def single_socket(self) -> bool:
        return self._bit(20)

    @property
    def known(self) -> bool:
        """Bit 17 is always one, and no bit above 25 has a meaning yet."""
        return self._bit(17) and not self.bits >> 26

    def _bit(self, place: int) -> bool:
        return bool(self.bits >> place & 1)


@dataclass(frozen=True)
class Report:
    """A report's fields under the names of the specification. TCBs stay packed: their layout depends on the product."""

    version: int
    guest_svn: int
    policy: GuestPolicy
    family_id: bytes
    image_id: bytes
    vmpl: int
    signature_algorithm: int
    current_tcb: bytes
    platform_info: int
    signing_key: SigningKey
    report_data: bytes
    measurement: bytes
    host_data: bytes
    id_key_digest: bytes
    author_key_digest: bytes
    reported_tcb: bytes
    cpuid: tuple[int, int, int] | None
    """Family, model, stepping; since version 3."""
    chip_id: bytes
    committed_tcb: bytes
    current_firmware: tuple[int, int, int]
    committed_firmware: tuple[int, int, int]
    """Major, minor, build."""
    r: int
    s: int
    signed: bytes

    @property
    def product(self) -> Product | None:
        """The product, where the report itself knows it."""
        return product_of_cpuid(self.cpuid[0], self.cpuid[1]) if self.cpuid else None

    @property
    def smt_enabled(self) -> bool:
        return bool(self.platform_info & 1)

    @property
    def ciphertext_hiding(self) -> bool:
        return bool(self.platform_info >> 4 & 1)

    @property
    def alias_check_complete(self) -> bool:
        """The firmware looked for memory that answers at two addresses."""
        return bool(self.platform_info >> 5 & 1)


def read_report(data: bytes) -> Report:
    """The report in these bytes, or EvidenceInvalid."""
    if len(data) != REPORT_BYTES:
        raise EvidenceInvalid(f"An SEV-SNP report has {REPORT_BYTES} bytes; this has {len(data)}.")
    version, guest_svn, policy = struct.unpack_from("<IIQ", data, 0)
    if version not in VERSIONS:
        raise EvidenceInvalid(
            f"SEV-SNP reports of version {version} are not known here; {VERSIONS[0]} to {VERSIONS[-1]} are.",
            hint="Is this a report of an SEV-SNP guest? If its firmware is newer than this program, update it.",
        )
    vmpl, algorithm = struct.unpack_from("<II", data, 0x30)
    platform_info, flags = struct.unpack_from("<QI", data, 0x40)
    # Nobody signs the rest of the signature's field, so it must not be a place where something can hide.
    if any(data[SIGNED_BYTES + 2 * _NUMBER_BYTES :]):
        raise EvidenceInvalid("The bytes after the report's signature are not zero.")
    return Report(
        version=version,
        guest_svn=guest_svn,
        policy=GuestPolicy(policy),
        family_id=data[0x10:0x20],
        image_id=data[0x20:0x30],
        vmpl=vmpl,
        signature_algorithm=algorithm,
        current_tcb=data[0x38:0x40],
        platform_info=platform_info,
        signing_key=_SIGNING_KEYS.get(flags >> 2 & 7, "unknown"),
        report_data=data[0x50:0x90],
        measurement=data[0x90:0xC0],
        host_data=data[0xC0:0xE0],
        id_key_digest=data[0xE0:0x110],
        author_key_digest=data[0x110:0x140],
        reported_tcb=data[0x180:0x188],
        cpuid=(data[0x188], data[0x189], data[0x18A]) if version >= _CPUID_SINCE else None,
        chip_id=data[0x1A0:0x1E0],
        committed_tcb=data[0x1E0:0x1E8],
        current_firmware=(data[0x1EA], data[0x1E9], data[0x1E8]),
        committed_firmware=(data[0x1EE], data[0x1ED], data[0x1EC]),
        r=int.from_bytes(data[SIGNED_BYTES : SIGNED_BYTES + _NUMBER_BYTES], "little"),
        s=int.from_bytes(data[SIGNED_BYTES + _NUMBER_BYTES : SIGNED_BYTES + 2 * _NUMBER_BYTES], "little"),
        signed=data[:SIGNED_BYTES],
    )


_ANSWER_HEAD = 32  # MSG_REPORT_RSP: status, size of the report, 24 reserved bytes
_AZURE_HEAD = 32  # what Azure's paravisor keeps in its vTPM: `HCLA`, version, sizes; then the report, then JSON
_AZURE = b"HCLA"


def unwrap_report(data: bytes) -> tuple[bytes, bytes]:
    """A report and the certificate table that came with it (empty if none did)."""
    if data.startswith(_AZURE):
        return data[_AZURE_HEAD : _AZURE_HEAD + REPORT_BYTES], b""
    if data[:4] == bytes(4) and data[4:8] == REPORT_BYTES.to_bytes(4, "little"):
        data = data[_ANSWER_HEAD:]
    table = data[REPORT_BYTES:]
    return data[:REPORT_BYTES], table if any(table) else b""


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
