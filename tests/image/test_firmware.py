"""Firmware is somebody else's file: its tables are read, or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import SetupError
from cloister.image.firmware import Firmware
from cloister.image.snp import launch_digest
from cloister.image.tdx import mrtd
from tests.image.firmware_made import AMD_SEV, firmware

SECTION = (0, 0x1000, 0xFFFFC000, 0x1000, 0, 1)
GOOD = firmware(tdx=[SECTION])


def test_its_tables_say_what_it_asks_for() -> None:
    made = Firmware(GOOD)
    assert [(each.address, each.size, each.kind) for each in made.snp_sections] == list(AMD_SEV)
    assert [each.address for each in made.tdx_sections] == [0xFFFFC000]
    assert (made.reset_address, made.hashes_address, made.address) == (0x80B004, 0x810C00, 0xFFFFC000)


@pytest.mark.parametrize("data", [b"", bytes(4096), GOOD[:-1], GOOD[4096:] + bytes(4096), bytes(100)])
def test_what_is_no_firmware_is_refused(data: bytes) -> None:
    with pytest.raises(SetupError):
        Firmware(data)


@given(st.integers(len(GOOD) - 2600, len(GOOD) - 1), st.integers(0, 255))
def test_a_damaged_table_is_refused_or_measured_otherwise(place: int, value: int) -> None:
    data = GOOD[:place] + bytes([value]) + GOOD[place + 1 :]
    try:
        made = Firmware(data)
        if sum(each.size for each in (*made.snp_sections, *made.tdx_sections)) > 1 << 20:
            return
        launch_digest(made, None, processors=1)
        mrtd(made)
    except SetupError:
        return
