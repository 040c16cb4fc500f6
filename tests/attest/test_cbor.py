from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.attest.cbor import MAX_DEPTH, MAX_ITEMS, read_cbor
from cloister.errors import EvidenceInvalid
from tests.attest.nitro_maker import encode, head

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 64), (1 << 64) - 1) | st.binary(max_size=300) | st.text(max_size=40),
    lambda inside: (
        st.lists(inside, max_size=4) | st.dictionaries(st.integers(0, 300) | st.text(max_size=5), inside, max_size=4)
    ),
    max_leaves=10,
)


@settings(max_examples=100)
@given(VALUES)
def test_what_was_written_is_read(value: Any) -> None:
    with suppress(EvidenceInvalid):  # nested too deep
        assert read_cbor(encode(value)) == value


@settings(max_examples=100)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(EvidenceInvalid):
        read_cbor(data)


def test_indefinite_arrays_and_maps_are_read() -> None:
    assert read_cbor(b"\xbf\x01\x9f\x02\x03\xff\xff") == {1: [2, 3]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01\x01",  # more than one value
        b"\x18\x17",  # 23 in a longer form
        b"\x19\x00\xff",
        b"\x1a\x00\x00\xff\xff",
        b"\x1b\x00\x00\x00\x00\xff\xff\xff\xff",
        b"\x1c",  # a head without meaning
        b"\x1f",
        b"\x5f\x41\x00\xff",  # a byte string in pieces
        b"\x62\xff\xff",  # no UTF-8
        b"\x42\x00",  # cut off
        b"\x5b\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xa2\x01\x01\x01\x02",  # a key twice
        b"\xbf\x01\x01\x01\x02\xff",
        b"\xa1\x41\x00\x01",  # a key of bytes
        b"\xa1\xf5\x01",
        b"\xbf\x01\xff",  # a key without a value
        b"\x9f\x01",  # no end
        b"\xff",
        b"\xc1\x00",  # a tag
        b"\xf7",  # undefined
        b"\xf9\x00\x00",  # a float
        b"\x81" * MAX_DEPTH + b"\x01",
        head(4, MAX_ITEMS) + b"\x01" * MAX_ITEMS,
        b"\x9f" * 100_000,
    ],
)
def test_what_no_document_has_is_refused(data: bytes) -> None:
    with pytest.raises(EvidenceInvalid):
        read_cbor(data)
