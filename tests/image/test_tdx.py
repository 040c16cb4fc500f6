"""A TD's registers: against real quotes where their parts are known, else against the published steps."""

from __future__ import annotations

import hashlib
import struct

import pytest

from cloister.errors import SetupError
from cloister.image.firmware import Firmware
from cloister.image.tdx import as_handed_over, authenticode, mrtd, rtmr1, rtmr1_of, rtmr2, rtmr2_of
from tests.image.firmware_made import firmware

REAL = [
    (
        "0761fbfa317a42d8edbe9e404178d102adc059cface98c5e07d1d535371c145c3497fd2a19b8398568b8c8a6f95e0a86",
        "a1b79d76021970f57c45c4a7c395f780bab37011a4df27fe44e8559bd1abb4d6e52f12f866d1d08405448eb797a5970f",
        "4027cb4ec64dbc24b6d98d9470daeefc749bbb6a9b011762d215f6ed3eb833d58fd72d9ad850958f72878182e6f61924",
        "63e06e29cf98f2fce71abd3a9629dff48457b47c010b64e11f7a2b42dd99bfa14ee35660b3f5d3fc376261d6ba9a6d6b",
        "1e31b59d605df7ee8160cf7966be9bafa6d0e1905de7e09695a24cd9748e71a603a51fae1297619fa0c30517addbcd07",
    ),
    (
        "ac7e632dcf5cd2a1fe5c1f41f4d9b8219570e64ed3c61038fdbf25404e6f542ffd57f276bc5076307efaf882e6d64177",
        "2023546e7f3b9d1228e274f70c44d481162540f8452544520a796a52f06879709b81a824a26792a7822327504b0d2aee",
        "786280842b7364287a3a70d96f7e309252857beb45fb1f91314a2ea863db0adc04c8431ecbf29a966405604631a5aab8",
        "4fe4f7710134a61d7def357add6ac50bdbfeee5032a4c100375e207216ffe42a3bd5822b24e679f91501fff795b81521",
        "4c1b739ed451a637b0f82642e48a5ea83925d23633c72e7385c8e9aca4175e133ed1625b7d92eb39edf509c27ff392dc",
    ),
]
"""Two quotes of dstack's TDs (QEMU 9.2.1 and 8.2.2): kernel, RTMR1; command line, initrd, RTMR2."""


@pytest.mark.parametrize(("kernel", "first", "command", "initrd", "second"), REAL)
def test_the_registers_of_real_tds_follow_from_their_parts(
    kernel: str, first: str, command: str, initrd: str, second: str
) -> None:
    assert rtmr1_of(bytes.fromhex(kernel)).hex() == first
    assert rtmr2_of(bytes.fromhex(command), bytes.fromhex(initrd)).hex() == second


def test_the_command_line_is_measured_as_the_efi_stub_sees_it() -> None:
    seen = "console=ttyS0 initrd=initrd\0".encode("utf-16-le")
    assert rtmr2("console=ttyS0", bytes(48)) == rtmr2_of(hashlib.sha384(seen).digest(), bytes(48))
    with pytest.raises(SetupError):
        rtmr2("vga=791", bytes(48))


def operation(name: bytes, address: int) -> bytes:
    return name.ljust(16, b"\0") + struct.pack("<Q", address) + bytes(104)


def test_mrtd_is_the_module_s_own_sequence() -> None:
    """Intel, TDX Module ABI, TDH.MEM.PAGE.ADD and TDH.MR.EXTEND: a measured section, an added one, one for later."""
    base = 0xFFFFC000
    sections = [(0, 0x2000, base, 0x2000, 0, 1), (0, 0, 0x810000, 0x1000, 3, 0), (0, 0, 0x900000, 0x1000, 4, 2)]
    data = firmware(tdx=sections)
    pages = [operation(b"MEM.PAGE.ADD", base + page) for page in (0, 0x1000)]
    contents = [
        b"".join(
            operation(b"MR.EXTEND", base + page + at) + data[page + at : page + at + 256] for at in range(0, 4096, 256)
        )
        for page in (0, 0x1000)
    ]
    rest = operation(b"MEM.PAGE.ADD", 0x810000)
    each = b"".join(add + content for add, content in zip(pages, contents, strict=True))
    assert mrtd(Firmware(data)) == hashlib.sha384(each + rest).digest()
    assert mrtd(Firmware(data), pages_first=True) == hashlib.sha384(b"".join(pages + contents) + rest).digest()


def bz_image(*, flags: int = 2, signature: bytes = b"") -> bytes:
    """A kernel with an EFI stub: headers of 0x400 bytes, two sections, perhaps a signature."""
    made = bytearray(0x400)
    struct.pack_into("<I", made, 0x3C, 0x80)
    struct.pack_into("<4sHH12xHH", made, 0x80, b"PE\0\0", 0x8664, 2, 0xA0 + 24, 0)
    struct.pack_into("<H", made, 0x98, 0x20B)
    struct.pack_into("<I", made, 0x98 + 60, 0x400)
    struct.pack_into("<I", made, 0x98 + 64, 0xDEADBEEF)  # the checksum
    struct.pack_into("<II", made, 0x98 + 112 + 32, 0x1400 if signature else 0, len(signature))
    for number, place in enumerate((0xC00, 0x400)):  # not in order
        struct.pack_into("<II", made, 0x98 + 0xB8 + 40 * number + 16, 0x800, place)
    struct.pack_into("<4sH", made, 0x202, b"HdrS", 0x20F)
    made[0x211] = 1
    struct.pack_into("<I", made, 0x22C, 0x7FFFFFFF)
    struct.pack_into("<H", made, 0x236, flags)
    return bytes(made) + b"\1" * 0x800 + b"\2" * 0x800 + signature


def test_a_kernels_digest_leaves_out_checksum_and_signature() -> None:
    plain, signed = bz_image(), bz_image(signature=b"s" * 64)
    head = plain[: 0x98 + 64] + plain[0x98 + 68 : 0x98 + 144] + plain[0x98 + 152 : 0x400]
    assert authenticode(plain) == hashlib.sha384(head + b"\1" * 0x800 + b"\2" * 0x800).digest()
    assert authenticode(signed) == authenticode(plain)
    assert authenticode(plain[:-1] + b"x") != authenticode(plain)
    assert authenticode(plain + b"more") != authenticode(plain)
    for wrong in (b"", plain[:0x100], plain[:-1], plain.replace(b"PE\0\0", b"NE\0\0")):
        with pytest.raises(SetupError):
            authenticode(wrong)


def test_the_kernel_is_measured_as_qemu_hands_it_over() -> None:
    kernel = bz_image()
    handed = as_handed_over(kernel, 0x100000, 4 << 30)
    place, size = struct.unpack_from("<II", handed, 0x218)
    assert (place, size) == ((0x80000000 - 0x28000 - 1 - 0x100000) & ~0xFFF, 0x100000)
    assert handed[0x210:0x212] == b"\xb0\x81" and struct.unpack_from("<H4xI", handed, 0x224 - 0)[0] == 0xFE00
    assert struct.unpack_from("<I", handed, 0x228)[0] == 0x20000
    assert as_handed_over(kernel, 0x100000, 64 << 30) == handed, "more memory changes nothing"
    assert as_handed_over(kernel, 0x100000, 1 << 30) != handed
    assert rtmr1(kernel, 0x100000, 4 << 30) == rtmr1_of(authenticode(handed))
    for wrong in (b"", bytes(0x2000), kernel.replace(b"HdrS\x0f", b"HdrS\x01")):
        with pytest.raises(SetupError):
            as_handed_over(wrong, 1, 4 << 30)
    with pytest.raises(SetupError, match="larger"):
        as_handed_over(kernel, 0x7FFFFFF0, 4 << 30)
