"""The envelope: every length is checked, and nothing but an envelope decodes; so with what is inside."""

from __future__ import annotations

import contextlib
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.channel import envelope as module
from cloister.channel.envelope import MAX_HEADERS, MAX_PROMPTS, Envelope, InnerHead, InnerRequest
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
    encoded[4] = 1
    with pytest.raises(ChannelBroken, match=r"version 1.*Update the client"):
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


name = st.from_regex(r"[A-Za-z][A-Za-z-]{0,20}", fullmatch=True)
value = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
headers = st.lists(st.tuples(name, value), max_size=5).map(tuple)


@given(st.sampled_from(["GET", "POST", "DELETE"]), headers, st.binary(max_size=300))
def test_request_round_trip(method: str, headers: tuple[tuple[str, str], ...], body: bytes) -> None:
    request = InnerRequest(method, "/v1/chat/completions?x=1", headers, body)
    assert InnerRequest.decode(request.encode()) == request


@given(st.integers(100, 599), headers)
def test_head_round_trip(status: int, headers: tuple[tuple[str, str], ...]) -> None:
    head = InnerHead(status, headers)
    assert InnerHead.decode(head.encode()) == head


@pytest.mark.parametrize(
    "wrong",
    [
        InnerRequest("get", "/"),
        InnerRequest("GET\n", "/"),
        InnerRequest("GET", "v1"),
        InnerRequest("GET", "/v1 HTTP/1.1\r\nX: y"),
        InnerRequest("GET", "/v1\n"),
        InnerRequest("GET", "/" + "a" * 2048),
        InnerRequest("GET", "/", (("a b", "c"),)),
        InnerRequest("GET", "/", (("a\n", "c"),)),
        InnerRequest("GET", "/", (("", "c"),)),
        InnerRequest("GET", "/", (("a", "c\r\nX: y"),)),
        InnerRequest("GET", "/", (("a", "c\n"),)),
        InnerRequest("GET", "/", (("a", "c" * 8193),)),
        InnerRequest("GET", "/", (("a", "b"),) * (MAX_HEADERS + 1)),
    ],
)
def test_what_is_no_request_is_refused(wrong: InnerRequest) -> None:
    with pytest.raises(ChannelBroken):
        InnerRequest.decode(wrong.encode())


def test_wrong_types_and_more_fields_are_refused() -> None:
    for wrong in (["GET", "/", [], "text", 1], ["GET", "/", [], 5], {"method": "GET"}, [200], "GET"):
        with pytest.raises(ChannelBroken):
            InnerRequest.decode(msgspec.msgpack.encode(wrong))
    for status in (99, 600, "200", None):
        with pytest.raises(ChannelBroken):
            InnerHead.decode(msgspec.msgpack.encode([status, []]))


def test_oversized_is_refused_unread() -> None:
    with pytest.raises(ChannelBroken, match="at most"):
        InnerHead.decode(bytes(1 << 17))


def test_a_request_never_shows_its_body() -> None:
    assert "secret" not in repr(InnerRequest("POST", "/", (("authorization", "secret"),), b"secret"))


@given(st.binary(max_size=200))
def test_any_bytes_decode_inside_or_are_channel_broken(data: bytes) -> None:
    for kind in (InnerRequest, InnerHead):
        with contextlib.suppress(ChannelBroken):
            assert kind.decode(kind.decode(data).encode()) == kind.decode(data)
