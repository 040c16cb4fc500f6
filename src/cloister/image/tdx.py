"""A TD's MRTD (TDH.MEM.PAGE.ADD, TDH.MR.EXTEND), RTMR1 (OVMF before edk2-stable202505) and RTMR2. RTMR0 is taken from
the event log of a machine whose quote was verified."""

import hashlib
import struct
from collections.abc import Iterable, Iterator

from cloister.checks import Reader
from cloister.errors import EvidenceInvalid, SetupError
from cloister.image.firmware import PAGE, Firmware, TdxSection

CHUNK = 256
EXTEND, LATER = 1, 2  # Attributes of a section: its content is measured; its pages are added when the TD runs already.
ACPI_BYTES = 0x28000
MANY = 0xB000_0000  # Bytes of memory from which on QEMU's q35 leaves but 2 GiB of it below 4 GiB.
MOST_BELOW = 0x8000_0000
INITRD_ARGUMENT = " initrd=initrd"  # OVMF adds it to a command line that comes with an initrd.
_LEFT = (b"Exit Boot Services Invocation", b"Exit Boot Services Returned with Success")
_STARTED = (b"Calling EFI Application from Boot Option", bytes(4), *_LEFT)


def mrtd(firmware: Firmware, *, pages_first: bool = False) -> bytes:
    """`pages_first`: all pages of a section are added before any is measured, as QEMU 8 with Intel's patches did."""
    whole = hashlib.sha384()
    for section in firmware.tdx_sections:
        addresses = range(section.address, section.address + section.size, PAGE)
        passes: Iterable[Iterable[int]] = [addresses] if pages_first else [(address,) for address in addresses]
        for some in passes:
            for address in some:
                if not section.attributes & LATER:
                    whole.update(_operation(b"MEM.PAGE.ADD", address))
            for address in some:
                if section.attributes & EXTEND:
                    for piece in _measured(firmware, section, address):
                        whole.update(piece)
    return whole.digest()


def _measured(firmware: Firmware, section: TdxSection, address: int) -> Iterator[bytes]:
    for place in range(address, address + PAGE, CHUNK):
        offset = place - section.address
        there = firmware.data[section.offset : section.offset + section.raw_size][offset : offset + CHUNK]
        yield _operation(b"MR.EXTEND", place) + there.ljust(CHUNK, b"\0")


def _operation(name: bytes, address: int) -> bytes:
    return struct.pack("<16sQ104x", name, address)


def rtmr1(kernel: bytes, initrd_bytes: int, memory_bytes: int) -> bytes:
    return rtmr1_of(authenticode(as_handed_over(kernel, initrd_bytes, memory_bytes)))


def rtmr1_of(kernel_digest: bytes) -> bytes:
    return extended((kernel_digest, *(hashlib.sha384(event).digest() for event in _STARTED)))


def rtmr2(command: str, initrd_digest: bytes) -> bytes:
    if "vga=" in command:
        raise SetupError("QEMU writes vga= into the kernel, which changes RTMR1.", hint="Leave it out.")
    measured = (command + INITRD_ARGUMENT).encode("utf-16-le") + b"\0\0"
    return rtmr2_of(hashlib.sha384(measured).digest(), initrd_digest)


def rtmr2_of(command_digest: bytes, initrd_digest: bytes) -> bytes:
    return extended((command_digest, initrd_digest))


def extended(digests: Iterable[bytes]) -> bytes:
    """From zeros, RTMR = SHA-384(RTMR ‖ digest) for each event."""
    register = bytes(48)
    for digest in digests:
        register = hashlib.sha384(register + digest).digest()
    return register


def as_handed_over(kernel: bytes, initrd_bytes: int, memory_bytes: int) -> bytes:
    """With what QEMU writes into its setup header (Linux, Documentation/arch/x86/boot.rst; QEMU, x86_load_linux)."""
    if len(kernel) < PAGE or kernel[0x202:0x206] != b"HdrS":
        raise SetupError("This is no bzImage of Linux.", hint="Name the file that QEMU gets as -kernel.")
    protocol, flags = struct.unpack_from("<H", kernel, 0x206)[0], kernel[0x211]
    if protocol < 0x20C or not flags & 1:
        raise SetupError("This kernel is too old: its boot protocol is before 2.12.")
    handed = bytearray(kernel)
    handed[0x210] = 0xB0  # who loads it: QEMU
    handed[0x211] |= 0x80  # it may use a heap, which ends where the command line begins
    struct.pack_into("<H", handed, 0x224, 0x20000 - 0x10000 - 0x200)
    struct.pack_into("<I", handed, 0x228, 0x20000)
    if initrd_bytes:
        below = MOST_BELOW if memory_bytes >= MANY else memory_bytes
        anywhere = struct.unpack_from("<H", kernel, 0x236)[0] & 2  # XLF_CAN_BE_LOADED_ABOVE_4G
        highest = 0xFFFF_FFFF if anywhere else struct.unpack_from("<I", kernel, 0x22C)[0]
        highest = min(highest, below - ACPI_BYTES - 1)
        if initrd_bytes >= highest:
            raise SetupError("The initrd is larger than the memory that may hold it.")
        struct.pack_into("<II", handed, 0x218, (highest - initrd_bytes) & ~0xFFF, initrd_bytes)
    return bytes(handed)


def authenticode(image: bytes) -> bytes:
    """SHA-384 of a PE image without its checksum and signatures (Microsoft, Authenticode PE Signature Format)."""
    try:
        header = struct.unpack_from("<I", image, 0x3C)[0]
        sections, optional_size = struct.unpack_from("<2xH12xH", image, header + 4)
        optional = header + 24
        checksum = optional + 64
        directories = optional + (112 if image[optional : optional + 2] == b"\x0b\x02" else 96)
        signatures = directories + 4 * 8
        head = struct.unpack_from("<I", image, optional + 60)[0]
        signed = struct.unpack_from("<I", image, signatures + 4)[0]
        headers = (optional + optional_size + 40 * number for number in range(sections))
        placed = sorted(struct.unpack_from("<II", image, at + 16)[::-1] for at in headers)
    except struct.error:
        raise _no_image() from None
    if image[header : header + 4] != b"PE\0\0" or head > len(image) or signatures + 8 > head:
        raise _no_image()
    whole = hashlib.sha384(image[:checksum] + image[checksum + 4 : signatures] + image[signatures + 8 : head])
    hashed = head
    for offset, size in placed:
        if offset + size > len(image):
            raise _no_image()
        whole.update(image[offset : offset + size])
        hashed += size
    whole.update(image[hashed : max(hashed, len(image) - signed)])
    return whole.digest()


def _no_image() -> SetupError:
    return SetupError("The kernel is no whole PE image.", hint="It needs an EFI stub: CONFIG_EFI_STUB.")


MAX_LOG_BYTES = 1 << 20
_REGISTERS, _NO_ACTION, _SHA384, _DIGEST_BYTES = 4, 3, 0x000C, 48


def rtmr0_of(log: bytes) -> bytes:
    """From zeros, RTMR0 = SHA-384(RTMR0 ‖ digest) for each of its events (TDG.MR.RTMR.EXTEND)."""
    events = [digest for index, digest in _events(log) if index == 0]
    if not events:
        raise SetupError("The event log has no event of RTMR0.", hint="It is /sys/firmware/acpi/tables/data/CCEL.")
    return extended(events)


def _events(data: bytes) -> list[tuple[int, bytes]]:
    """Register and digest of each event. The first event names the algorithms."""
    padding = len(data) - len(data.rstrip(data[-1:])) if data[-1:] in (b"\xff", b"\0") else 0
    log, events = Reader(data, "The event log"), []
    sizes = _digest_sizes(log)
    while log.left > padding:
        register, kind = log.number(4), log.number(4)
        digests: dict[int, bytes] = {}
        for _ in range(log.number(4)):
            algorithm = log.number(2)
            if algorithm not in sizes or algorithm in digests:
                raise EvidenceInvalid("An event of the log has digests that the log does not announce.")
            digests[algorithm] = log.take(sizes[algorithm])
        log.take(log.number(4))
        if kind == _NO_ACTION:
            continue
        if not 1 <= register <= _REGISTERS or _SHA384 not in digests:
            raise EvidenceInvalid("The event log is not of a TD's registers.")
        events.append((register - 1, digests[_SHA384]))
    return events


def _digest_sizes(log: Reader) -> dict[int, int]:
    _, kind, _, size = log.number(4), log.number(4), log.take(20), log.number(4)
    spec = Reader(log.take(size), "The event log")
    if kind != _NO_ACTION or spec.take(16) != b"Spec ID Event03\0":
        raise EvidenceInvalid("The event log does not begin as TCG's do.", hint="It is a CCEL table.")
    spec.take(8)
    sizes = {spec.number(2): spec.number(2) for _ in range(min(spec.number(4), 16))}
    if sizes.get(_SHA384) != _DIGEST_BYTES:
        raise EvidenceInvalid("The event log has no SHA-384 digests.")
    return sizes
