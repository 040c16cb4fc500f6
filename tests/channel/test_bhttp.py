"""Binary HTTP: what is written is read, however it comes; every cut but the ones RFC 9292 §3.8 allows is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.channel import bhttp
from cloister.channel.bhttp import Decoder, Message, RequestHead, ResponseHead, Trailers, decode, encode, varint
from cloister.errors import ChannelBroken

MOST = 1 << 16
names = st.from_regex(r"\A[a-z0-9-]{1,12}\Z")
values = st.text(st.characters(min_codepoint=33, max_codepoint=255, exclude_characters="\x7f"), max_size=40)
fields = st.lists(st.tuples(names, values), max_size=5).map(tuple)
requests = st.builds(
    RequestHead,
    st.sampled_from(["GET", "POST", "DELETE"]),
    st.sampled_from(["https", "http"]),
    st.sampled_from(["", "node.example", "[::1]:8000"]),
    st.from_regex(r"\A/[a-z0-9/?=&.-]{0,40}\Z"),
    fields,
)
responses = st.builds(ResponseHead, st.integers(200, 599), fields)
informational = st.lists(st.builds(ResponseHead, st.integers(100, 199), fields), max_size=3).map(tuple)
content = st.binary(max_size=300)
messages = st.builds(Message, requests, content, fields, st.just(()))
messages |= st.builds(Message, responses, content, fields, informational)

REQUEST = Message(RequestHead("POST", "https", "a.example", "/v1", (("a", "b"), ("cc", ""))), b"body", (("t", "u"),))
RESPONSE = Message(ResponseHead(200, (("a", "b"),)), b"body", (("t", "u"),), (ResponseHead(103, (("l", "m"),)),))


@given(messages, st.booleans(), st.integers(0, 40))
def test_what_is_written_is_read(message: Message, known: bool, padding: int) -> None:
    assert decode(encode(message, known=known, padding=padding), MOST) == message


@given(messages, st.booleans(), st.data())
@settings(max_examples=50)
def test_it_is_read_however_it_is_cut(message: Message, known: bool, cuts: st.DataObject) -> None:
    data, decoder, events = encode(message, known=known), Decoder(MOST), []
    while data:
        size = cuts.draw(st.integers(1, len(data)))
        events += decoder.feed(data[:size])
        data = data[size:]
    events += decoder.finish()
    assert b"".join(one for one in events if isinstance(one, bytes)) == message.content
    assert events[0] == (message.informational[0] if message.informational else message.head)
    assert [one.fields for one in events if isinstance(one, Trailers)] == [message.trailers][: len(message.trailers)]


def test_the_example_of_rfc_9458_is_read_and_its_missing_sections_are_empty() -> None:
    data = bytes.fromhex("00034745540568747470730b6578616d706c652e636f6d012f")
    assert decode(data, 0) == Message(RequestHead("GET", "https", "example.com", "/"))
    assert decode(bytes.fromhex("0140c8"), 0) == Message(ResponseHead(200))


def test_the_example_of_rfc_9292_is_read() -> None:
    """§5.1, Figure 10: known-length encoding of a request."""
    head = RequestHead(
        "GET",
        "https",
        "",
        "/hello.txt",
        (
            ("user-agent", "curl/7.16.3 libcurl/7.16.3 OpenSSL/0.9.7l zlib/1.2.3"),
            ("host", "www.example.com"),
            ("accept-language", "en, mi"),
        ),
    )
    data = encode(Message(head))
    assert data.startswith(bytes.fromhex("00034745540568747470 73000a2f68656c6c6f2e747874406c0a757365722d6167656e74"))
    assert decode(data, 0).head == head


@pytest.mark.parametrize("message", [REQUEST, RESPONSE], ids=["request", "response"])
@pytest.mark.parametrize("known", [True, False], ids=["known", "indeterminate"])
def test_every_cut_is_refused_but_before_a_section(message: Message, known: bool) -> None:
    """A cut before a section reads as if the rest were empty (§3.8): the seal around the message refuses that one."""
    data = encode(message, known=known)
    read = {}
    for size in range(len(data)):
        try:
            read[size] = decode(data[:size], MOST)
        except ChannelBroken:
            continue
    bare = message._replace(content=b"", trailers=())
    assert [one for one in read.values() if one.head.headers] == [bare, message._replace(trailers=())]
    assert all(not one.content for one in read.values() if not one.head.headers) and len(read) == 3


@pytest.mark.parametrize(
    "data",
    [
        b"\x04",  # a framing that is not known
        b"\x00\x03get\x05https\x00\x01/",  # a method in lower case
        b"\x00\x03GET\x05https\x00\x01a",  # a path that is none
        b"\x00\x03GET\x05https\x00\x05/ a b",
        b"\x01\x63",  # status 99… as one byte, 35
        b"\x01\x42\x58",  # 600
        b"\x01\x40\x64\x00" * 10,  # informational heads without end
        b"\x01\x40\xc8\x04\x01A\x01b",  # a name in upper case
        b"\x01\x40\xc8\x06\x02:a\x02bc",  # a pseudo-field
        b"\x01\x40\xc8\x04\x00\x02ab",  # no name
        b"\x01\x40\xc8\x05\x01a\x02b\n",
        b"\x01\x40\xc8\x05\x01a\x02 b",
        b"\x01\x40\xc8\x03\x01a\x02bc",  # a field longer than its section
        b"\x01\x40\xc8\x04\x02a\x01b",
        b"\x01\x40\xc8\x80\x01\x00\x01",  # a section of 64 KiB and a byte
        b"\x01\x40\xc8\x00\x80\x01\x00\x01",  # content of as much
        b"\x03\x40\xc8\x00\x80\x01\x00\x01",
        b"\x01\x40\xc8\x00\x00\x00\x00\x01",  # padding that is not zero
        b"\x03\x40\xc8\x00\x00\x00\x01",
        b"\x03\x40\xc8" + b"\x01a\x01b" * 129 + b"\x00",
        b"",
    ],
)
def test_what_http_does_not_allow_is_refused(data: bytes) -> None:
    with pytest.raises(ChannelBroken):
        decode(data, MOST)


def test_a_writer_refuses_what_a_reader_would() -> None:
    for head in (
        RequestHead("GET", "https", "", "no path"),
        RequestHead("GET", "https", "", "/", (("A", "b"),)),
        RequestHead("GET", "https", "", "/", (("a", "b\r\nc: d"),)),
        RequestHead("GET", "https", "", "/", (("a", "\u0151"),)),
        ResponseHead(99),
        ResponseHead(103),
    ):
        with pytest.raises(ChannelBroken):
            encode(Message(head))


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        read = decode(data, MOST)
    except ChannelBroken:
        return
    assert decode(encode(read), MOST) == read


def test_numbers_have_quics_lengths() -> None:
    """RFC 9000 §A.1."""
    examples = {37: "25", 15293: "7bbd", 494878333: "9d7f3e7d", 151288809941952652: "c2197c5eff14e88c"}
    assert {number: varint(number).hex() for number in examples} == examples
    with pytest.raises(ChannelBroken):
        varint(1 << 62)


def test_a_message_shows_nothing_of_its_content() -> None:
    assert "body" not in repr(REQUEST)
    assert bhttp.chunk(b"") == b""
