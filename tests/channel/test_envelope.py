"""The envelope: every length is checked, and nothing but an envelope decodes."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.channel import envelope as module
from cloister.channel.envelope import MAX_PROMPTS, Envelope
from cloister.errors import ChannelBroken

part = st.binary(min_size=528, max_size=700)
envelopes = st.builds(
    Envelope,
    st.binary(min_size=8, max_size=8),
    st.binary(min_size=32, max_size=32),
    part,
    st.lists(part, max_size=4).map(tuple),
)
SMALL = Envelope(b"k" * 8, b"e" * 32, bytes(528), (bytes(528), bytes(1040)))


@given(envelopes)
def test_round_trip(envelope: Envelope) -> None:
    assert Envelope.decode(envelope.encode()) == envelope


def test_every_truncation_and_every_appended_byte_is_refused() -> None:
    encoded = SMALL.encode()
    for length in range(len(encoded)):
        with pytest.raises(ChannelBroken):
            Envelope.decode(encoded[:length])
    with pytest.raises(ChannelBroken, match="goes on"):
        Envelope.decode(encoded + b"\0")


def test_another_version_says_what_to_do() -> None:
    encoded = bytearray(SMALL.encode())
    encoded[4] = 2
    with pytest.raises(ChannelBroken, match=r"version 2.*Update the client"):
        Envelope.decode(bytes(encoded))


def test_plain_json_is_told_from_an_envelope() -> None:
    with pytest.raises(ChannelBroken, match="not a sealed request"):
        Envelope.decode(b'{"model": "x", "messages": [' + b" " * 100)


@pytest.mark.parametrize("length", [0, 1, 527, 2**31, 2**32 - 1])
def test_a_part_that_announces_a_length_that_cannot_be(length: int) -> None:
    encoded = bytearray(SMALL.encode())
    struct.pack_into(">I", encoded, 47, length)
    with pytest.raises(ChannelBroken):
        Envelope.decode(bytes(encoded))


@pytest.mark.parametrize("count", [0, MAX_PROMPTS + 2, 65535])
def test_too_few_or_too_many_parts(count: int) -> None:
    encoded = bytearray(SMALL.encode())
    struct.pack_into(">H", encoded, 45, count)
    with pytest.raises(ChannelBroken, match="at most 128 prompts"):
        Envelope.decode(bytes(encoded))
    with pytest.raises(ChannelBroken, match="at most 128 prompts"):
        Envelope(b"k" * 8, b"e" * 32, bytes(528), (b"",) * (MAX_PROMPTS + 1)).encode()


def test_too_large_is_refused_by_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = SMALL.encode()
    monkeypatch.setattr(module, "MAX_ENVELOPE_BYTES", len(encoded) - 1)
    with pytest.raises(ChannelBroken, match="at most"):
        SMALL.encode()
    with pytest.raises(ChannelBroken, match="at most"):
        Envelope.decode(encoded)


@given(st.binary(max_size=1500), st.booleans())
def test_anything_decodes_or_is_channel_broken(data: bytes, like_one: bool) -> None:
    data = SMALL.encode()[:47] + data if like_one else data
    with contextlib.suppress(ChannelBroken):
        assert Envelope.decode(data).encode() == data
