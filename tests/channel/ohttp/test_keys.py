"""Key configurations: bounded, one id for one key, what is foreign is skipped."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.channel.ohttp.keys import SUITES, KeyConfiguration, Suite, read_keys, write_keys
from cloister.errors import ChannelBroken

ONE = KeyConfiguration(7, bytes(range(32)))
OTHER = KeyConfiguration(8, bytes(range(32, 64)), (Suite(1, 1),))


def test_several_configurations_come_back() -> None:
    assert read_keys(write_keys((ONE, OTHER))) == (ONE, OTHER)


def test_every_client_picks_the_same_suite_whatever_the_order() -> None:
    assert KeyConfiguration(1, bytes(32), SUITES).suite == SUITES[0] == KeyConfiguration(1, bytes(32)).suite
    assert OTHER.suite == Suite(1, 1)


def test_what_is_foreign_is_skipped() -> None:
    foreign = struct.pack(">HBH", 70, 1, 0x0010) + bytes(67)
    unknown = KeyConfiguration(9, bytes(32), (Suite(77, 1),))
    assert read_keys(foreign + write_keys((unknown, ONE))) == (ONE,)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        write_keys((ONE,))[:-1],
        write_keys((ONE,)) + b"\0",
        write_keys((ONE,)) + b"\0\0",
        write_keys((ONE, KeyConfiguration(7, bytes(32)))),  # two keys with one id
        write_keys((ONE, ONE)),
        write_keys((KeyConfiguration(1, bytes(32), (Suite(77, 1),)),)),
        b"".join(write_keys((KeyConfiguration(number, bytes(32)),)) for number in range(17)),
        bytes(8193),
        struct.pack(">H", 43) + ONE.encode()[:-4],  # suites that end early
        struct.pack(">H", 3) + b"\1\0\x20",
    ],
)
def test_a_document_that_is_malformed_or_too_long_is_refused(document: bytes) -> None:
    with pytest.raises(ChannelBroken):
        read_keys(document)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (read_keys, KeyConfiguration.decode):
        try:
            read(data)
        except ChannelBroken:
            continue


def test_what_cannot_be_written_is_refused() -> None:
    for wrong in (KeyConfiguration(256, bytes(32)), KeyConfiguration(1, b""), KeyConfiguration(1, bytes(32), ())):
        with pytest.raises(ChannelBroken):
            wrong.encode()
