"""The launch digest of an SEV-SNP guest (Firmware ABI §8.17; APM vol. 2, table B-4): firmware, its table, registers."""

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from cloister.errors import SetupError
from cloister.image.firmware import PAGE, Firmware

NORMAL, VMSA, ZERO, UNMEASURED, SECRETS, CPUID = range(1, 7)  # Types of pages; only of the first two the content counts
MEMORY, SECRETS_PAGE, CPUID_PAGE, CALLING_AREA, KERNEL_HASHES = 1, 2, 3, 4, 0x10  # sections of the firmware's table
VMSA_ADDRESS = 0xFFFF_FFFF_F000
FIRST_INSTRUCTION = 0xFFFF_FFF0
SNP_ACTIVE = 1
MAX_PROCESSORS = 1024
PROCESSORS = {
    **{"EPYC": (23, 1, 2), "EPYC-Rome": (23, 49, 0), "EPYC-Milan": (25, 1, 1)},
    **{"EPYC-Genoa": (25, 17, 0), "EPYC-Turin": (26, 0, 0)},
}
"""QEMU's names (`-cpu EPYC-Milan-v2`), versions aside: family, model, stepping."""


@dataclass(frozen=True)
class Monitor:
    """What a virtual machine monitor puts into a processor's first registers. `signature`: its own CPUID signature."""

    code: int = 0x9B
    first_code: int = 0x9B
    stack: int = 0x93
    task: int = 0x8B
    pat: int = 0x0007_0406_0007_0406
    signature: int | None = None
    mxcsr: int = 0x1F80
    fcw: int = 0x37F
    cpuid_last: bool = False
    memory: int = ZERO


MONITORS = {
    "qemu": Monitor(),
    "ec2": Monitor(first_code=0x9A, stack=0x92, task=0x83, signature=0x600, mxcsr=0, fcw=0, cpuid_last=True),
    "gce": Monitor(pat=0x0007_0106, signature=0x600, mxcsr=0, fcw=0, memory=UNMEASURED),
}


@dataclass(frozen=True)
class Boot:
    """What the firmware starts: QEMU's `-kernel` and `-initrd` by their SHA-256, `-append`; with `kernel-hashes=on`."""

    kernel: bytes
    initrd: bytes
    command: str

    def page(self, offset: int) -> bytes:
        """QEMU's table of hashes (target/i386/sev.c), as one page."""
        hashed = (
            ("97d02dd8-bd20-4c94-aa78-e7714d36ab2a", hashlib.sha256(self.command.encode() + b"\0").digest()),
            ("44baf731-3a2f-4bd7-9af1-41e29169781d", self.initrd),
            ("4de79437-abd2-427f-b835-d5b172d2045b", self.kernel),
        )
        entries = b"".join(_entry(guid, digest) for guid, digest in hashed)
        table = bytes(offset) + _entry("9438d606-4f22-4cc9-b479-a793d411fd21", entries)
        if len(table) > PAGE:
            raise SetupError("The firmware leaves no room for the hashes of what it starts.")
        return table.ljust(PAGE, b"\0")


def launch_digest(
    firmware: Firmware,
    boot: Boot | None,
    *,
    processors: int,
    processor: str = "EPYC",
    monitor: str = "qemu",
    features: int = SNP_ACTIVE,
    measured: bytes | None = None,
) -> bytes:
    """`measured`: the digest after the firmware's own pages, where that is known already."""
    if not 1 <= processors <= MAX_PROCESSORS:
        raise SetupError(f"A guest has between 1 and {MAX_PROCESSORS} processors.")
    if boot is not None and KERNEL_HASHES not in {section.kind for section in firmware.snp_sections}:
        message = "This firmware does not compare the kernel with a measured hash: its launch digest would not name it."
        raise SetupError(message, hint="Build OVMF from OvmfPkg/AmdSev/AmdSevX64.dsc.")
    set_up = MONITORS[monitor]
    digest = bytes(48) if measured is None else measured
    for offset in range(0, len(firmware.data) if measured is None else 0, PAGE):
        content = hashlib.sha384(firmware.data[offset : offset + PAGE]).digest()
        digest = _extended(digest, NORMAL, firmware.address + offset, content)
    for kind, address, content in _prepared(firmware, boot, set_up):
        digest = _extended(digest, kind, address, content)
    signature = set_up.signature or _signature(processor)
    for number in range(processors):
        begins = firmware.reset_address if number else FIRST_INSTRUCTION
        page = _registers(set_up, begins, signature, features)
        digest = _extended(digest, VMSA, VMSA_ADDRESS, hashlib.sha384(page).digest())
    return digest


def _prepared(firmware: Firmware, boot: Boot | None, set_up: Monitor) -> Iterator[tuple[int, int, bytes]]:
    nothing = bytes(48)
    for section in sorted(firmware.snp_sections, key=lambda each: set_up.cpuid_last and each.kind == CPUID_PAGE):
        pages = range(section.address, section.address + section.size, PAGE)
        if section.kind == MEMORY:
            yield from ((set_up.memory, address, nothing) for address in pages)
        elif section.kind == SECRETS_PAGE:
            yield SECRETS, section.address, nothing
        elif section.kind == CPUID_PAGE:
            yield CPUID, section.address, nothing
        elif section.kind == KERNEL_HASHES and boot is not None:
            page = boot.page(firmware.hashes_address % PAGE)
            yield NORMAL, section.address, hashlib.sha384(page).digest()
        elif section.kind in (CALLING_AREA, KERNEL_HASHES):
            yield from ((ZERO, address, nothing) for address in pages)
        else:
            raise SetupError(f"The firmware asks for memory of a kind ({section.kind}) that is not known here.")


def _extended(digest: bytes, kind: int, address: int, content: bytes) -> bytes:
    """PAGE_INFO: what the firmware of the chip hashes for a page. No page is for migration or open to other VMPLs."""
    return hashlib.sha384(digest + content + struct.pack("<HBB4xQ", 0x70, kind, 0, address)).digest()


def _entry(guid: str, data: bytes) -> bytes:
    return UUID(guid).bytes_le + struct.pack("<H", 18 + len(data)) + data


def _signature(processor: str) -> int:
    """What CPUID 1 answers in EAX."""
    try:
        family, model, stepping = PROCESSORS[processor.rsplit("-v", 1)[0].removesuffix("-IBPB")]
    except KeyError:
        hint = f"Known are {', '.join(PROCESSORS)}."
        raise SetupError(f"The processor {processor} is not known here.", hint=hint) from None
    return (family - 15) << 20 | (model >> 4) << 16 | 15 << 8 | (model & 15) << 4 | stepping


def _registers(set_up: Monitor, begins: int, signature: int, features: int) -> bytes:
    """A processor's save area as it starts, at 16 bits (APM vol. 2, tables B-4 and 14-1)."""
    page = bytearray(PAGE)
    code = set_up.first_code if begins == FIRST_INSTRUCTION else set_up.code
    segments = {
        **dict.fromkeys((0x00, 0x30, 0x40, 0x50), (0, 0x93, 0xFFFF, 0)),
        0x10: (0xF000, code, 0xFFFF, begins & 0xFFFF_0000),
        0x20: (0, set_up.stack, 0xFFFF, 0),
        **dict.fromkeys((0x60, 0x80), (0, 0, 0xFFFF, 0)),
        0x70: (0, 0x82, 0xFFFF, 0),
        0x90: (0, set_up.task, 0xFFFF, 0),
    }
    for offset, segment in segments.items():
        struct.pack_into("<HHIQ", page, offset, *segment)
    numbers = {
        **{0xD0: 0x1000, 0x148: 0x40, 0x158: 0x10, 0x160: 0x400, 0x168: 0xFFFF_0FF0},  # EFER, CR4, CR0, DR7, DR6
        **{0x170: 0x2, 0x178: begins & 0xFFFF, 0x268: set_up.pat, 0x310: signature},  # RFLAGS, RIP, PAT, RDX
        **{0x3B0: features, 0x3E8: 0x1},  # SEV_FEATURES, XCR0
    }
    for offset, number in numbers.items():
        struct.pack_into("<Q", page, offset, number)
    struct.pack_into("<I", page, 0x408, set_up.mxcsr)
    struct.pack_into("<H", page, 0x410, set_up.fcw)
    return bytes(page)
