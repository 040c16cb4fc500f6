"""The inner request and head: typed, bounded, and no line can hide in a header."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.channel.envelope import MAX_HEADERS, InnerHead, InnerRequest
from cloister.errors import ChannelBroken

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
def test_anything_decodes_or_is_channel_broken(data: bytes) -> None:
    for kind in (InnerRequest, InnerHead):
        with contextlib.suppress(ChannelBroken):
            assert kind.decode(kind.decode(data).encode()) == kind.decode(data)
