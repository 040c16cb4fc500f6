"""Launch digests of SNP guests, as others computed and published them."""

from __future__ import annotations

import hashlib

import pytest

from cloister.errors import SetupError
from cloister.image.firmware import Firmware
from cloister.image.snp import Boot, launch_digest
from tests.image.firmware_made import AMD_SEV, OVMF_X64, firmware

NOTHING = hashlib.sha256(b"").digest()
SUFFIX = bytes.fromhex(
    "086e2e9149ebf45abdc3445fba5b2da8270bdbb04094d7a2c37faaa4b24af3aa16aff8c374c2a55c467a50da6d466b74"
)
"""The digest after the last page of edk2-stable202405's AmdSevX64, which stands for the whole in these vectors."""


def boot(command: str = "") -> Boot:
    return Boot(NOTHING, NOTHING, command)


@pytest.mark.parametrize(
    ("what", "processors", "monitor", "features", "digest"),
    [
        (
            boot(),
            1,
            "qemu",
            0x21,
            "329c8ce0972ae52343b64d34a434a86f245dfd74f5ed7aae15d22efc78fb9683632b9b50e4e1d7fa41179ef98a7ef198",
        ),
        (
            boot(),
            1,
            "qemu",
            0x1,
            "ddc5224521617a536ee7ce9dd6224d1b58a8d4fda1c741f3ac99fc4bfa04ba6e9fc98646d4a07a9079397fa3852819b5",
        ),
        (
            boot("console=ttyS0 loglevel=7"),
            1,
            "qemu",
            0x21,
            "803f691094946e42068aaa3a8f9e26a5c89f36f7b73ecfb28c653360fe4b3aba7e534442e7e1e17895dfe778d0228977",
        ),
        (
            None,
            1,
            "qemu",
            0x1,
            "19358ba9a7615534a9a1e2f0dfc29384dcd4dcb7062ff9c6013b26869a5fc6ecabe033c48dd6f6db5d6d76e7c5df632d",
        ),
        (
            boot(),
            4,
            "qemu",
            0x1,
            "5061fffb019493a903613d56d54b94912a1a2f9e4502385f5c194616753720a92441310ba6c4933de877c36e23046ad5",
        ),
        (
            boot(),
            1,
            "ec2",
            0x21,
            "0ce9ccc06bab55eebe8abc234f3df6514883977a68a591b71052498ab52b2f1aa415db338033946ef93aa8278c0d67fb",
        ),
        (
            boot(),
            1,
            "ec2",
            0x1,
            "0883bd0eeb716e65b7b977a321c278d1e51b33b5c655fab985443bbcc65c086b9c15e8a0bd8811050dec7e24964e5056",
        ),
        (
            boot(),
            1,
            "gce",
            0x1,
            "5da7106cf14cf46b1725ebab123eb9e53bd46a1e9f400cd0c08e7827b04b688ea8b4e403c8404efed4397ea5d5d0722e",
        ),
        (
            boot(),
            4,
            "gce",
            0x1,
            "5c5debf100fc339f90276e761ee1f1658d08922c3b20e2a2e6c7a6c3370b2452a15a00eae11886a93d6fd1e7ab81e29d",
        ),
    ],
)
def test_it_is_what_sev_snp_measure_says(
    what: Boot | None, processors: int, monitor: str, features: int, digest: str
) -> None:
    """Vectors of virtee/sev-snp-measure, for its firmware: the same tables, and the digest of its pages given."""
    volume = Firmware(firmware(AMD_SEV))
    found = launch_digest(
        volume,
        what,
        processors=processors,
        processor="EPYC-v4",
        monitor=monitor,
        features=features,
        measured=SUFFIX,
    )
    assert found.hex() == digest


def test_every_input_counts() -> None:
    volume = Firmware(firmware())
    other = Firmware(firmware(pages=8))
    one, two = hashlib.sha256(b"1").digest(), hashlib.sha256(b"2").digest()
    digests = [
        launch_digest(volume, Boot(one, two, "a"), processors=1),
        launch_digest(volume, Boot(two, two, "a"), processors=1),
        launch_digest(volume, Boot(one, one, "a"), processors=1),
        launch_digest(volume, Boot(one, two, "b"), processors=1),
        launch_digest(volume, Boot(one, two, "a"), processors=2),
        launch_digest(volume, Boot(one, two, "a"), processors=1, processor="EPYC-Turin"),
        launch_digest(volume, Boot(one, two, "a"), processors=1, features=0x21),
        launch_digest(other, Boot(one, two, "a"), processors=1),
    ]
    assert len(set(digests)) == len(digests)


def test_the_firmwares_pages_are_measured_one_by_one() -> None:
    """AMD, SEV-SNP Firmware ABI, §8.17.2: PAGE_INFO, spelt out for one page."""
    data = firmware((), pages=1)
    info = bytes(48) + hashlib.sha384(data).digest() + b"\x70\0" + b"\1" + bytes(5) + (0xFFFFF000).to_bytes(8, "little")
    after = hashlib.sha384(info).digest()
    volume = Firmware(data)
    assert launch_digest(volume, None, processors=1) == launch_digest(volume, None, processors=1, measured=after)


def test_a_firmware_that_compares_no_kernel_is_refused() -> None:
    with pytest.raises(SetupError, match="does not compare the kernel"):
        launch_digest(Firmware(firmware(OVMF_X64)), boot(), processors=1)
    with pytest.raises(SetupError, match="not known"):
        launch_digest(Firmware(firmware()), boot(), processors=1, processor="Xeon")
    with pytest.raises(SetupError):
        launch_digest(Firmware(firmware([(0x1000, 0x1000, 9)])), None, processors=1)
