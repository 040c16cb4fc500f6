"""Exchanges: what is altered, cut, moved, repeated or of another exchange is refused, in both forms and directions."""

from __future__ import annotations

from itertools import permutations

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from pyhpke.keys.x25519_key import X25519Key

from cloister.channel.ohttp import encapsulation
from cloister.channel.ohttp.chunks import CHUNK_BYTES, ChunkOpener, ChunkSealer
from cloister.channel.ohttp.encapsulation import (
    ENTROPY_BYTES,
    HEADER_BYTES,
    Chain,
    ExchangeKeys,
    Form,
    Header,
    decapsulate,
    encapsulate,
    open_request,
    open_response,
    request_chain,
    response_chain,
    response_nonce,
    seal_request,
    seal_response,
)
from cloister.channel.ohttp.keys import SUITES, KeyConfiguration, Suite
from cloister.errors import ChannelBroken

PRIVATE = X25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = PRIVATE.public_key().public_bytes_raw()
suites = pytest.mark.parametrize("suite", SUITES)


def exchange(suite: Suite, form: Form) -> tuple[Header, ExchangeKeys, ExchangeKeys]:
    """Its header, the client's keys, and the gateway's."""
    header, keys = encapsulate(KeyConfiguration(3, PUBLIC, (suite,)), form)
    return header, keys, decapsulate(X25519Key(PRIVATE), Header.decode(header.encode()), form)


def response_sealer(header: Header, keys: ExchangeKeys) -> ChunkSealer:
    nonce = response_nonce(header)
    return ChunkSealer(response_chain(header, keys, nonce), nonce)


def response_opener(header: Header, keys: ExchangeKeys) -> ChunkOpener:
    return ChunkOpener(lambda nonce: response_chain(header, keys, nonce), ENTROPY_BYTES[header.aead])


@suites
def test_a_whole_message_comes_back_and_an_altered_one_does_not(suite: Suite) -> None:
    header, mine, theirs = exchange(suite, Form.WHOLE)
    sealed = seal_request(header, mine, b"request")
    answer = seal_response(header, theirs, b"response")
    assert open_request(header, theirs, sealed) == b"request" and open_response(header, mine, answer) == b"response"
    for place in range(len(answer)):
        broken = bytearray(answer)
        broken[place] ^= 1
        with pytest.raises(ChannelBroken):
            open_response(header, mine, bytes(broken))
        with pytest.raises(ChannelBroken):
            open_response(header, mine, answer[:place])
    for place in range(HEADER_BYTES, len(sealed)):
        with pytest.raises(ChannelBroken):
            open_request(header, theirs, sealed[:place])


@suites
def test_the_forms_and_exchanges_do_not_mix(suite: Suite) -> None:
    header, mine, _ = exchange(suite, Form.WHOLE)
    chunked = decapsulate(X25519Key(PRIVATE), header, Form.CHUNKED)
    with pytest.raises(ChannelBroken):
        open_request(header, chunked, seal_request(header, mine, b"request"))
    other = decapsulate(X25519Key(PRIVATE), header._replace(key_id=4), Form.WHOLE)
    with pytest.raises(ChannelBroken):
        open_request(header, other, seal_request(header, mine, b"request"))
    _, another, _ = exchange(suite, Form.WHOLE)
    with pytest.raises(ChannelBroken):
        open_request(header, another, seal_request(header, mine, b"request"))


@given(st.lists(st.binary(max_size=40_000), max_size=4), st.binary(max_size=40_000), st.data())
@settings(max_examples=40, deadline=None)
def test_chunks_come_back_however_the_bytes_are_cut(pieces: list[bytes], last: bytes, cuts: st.DataObject) -> None:
    header, mine, theirs = exchange(SUITES[0], Form.CHUNKED)
    sealer, opener = response_sealer(header, theirs), response_opener(header, mine)
    stream = b"".join(sealer.seal(piece) for piece in pieces) + sealer.end(last)
    found = b""
    while stream:
        size = cuts.draw(st.integers(1, len(stream)))
        found += opener.feed(stream[:size])
        stream = stream[size:]
    assert found + opener.finish() == b"".join(pieces) + last


def chunks_of(stream: bytes, begins: int) -> list[bytes]:
    """Chunks of less than 16,384 bytes of a stream; the last one has the zero before it."""
    found, at = [], begins
    while stream[at]:
        width = 1 << (stream[at] >> 6)
        length = width + (int.from_bytes(stream[at : at + width], "big") & (1 << 8 * width - 2) - 1)
        found.append(stream[at : at + length])
        at += length
    return [*found, stream[at:]]


@suites
def test_a_stream_that_is_cut_reordered_repeated_or_of_another_user_breaks(suite: Suite) -> None:
    header, mine, theirs = exchange(suite, Form.CHUNKED)
    other, _, others = exchange(suite, Form.CHUNKED)
    one, foreign = response_sealer(header, theirs), response_sealer(other, others)
    stream = one.seal(b"first") + one.seal(b"second") + one.end(b"last")
    strange = foreign.seal(b"first") + foreign.seal(b"second") + foreign.end(b"last")
    size = ENTROPY_BYTES[header.aead]
    begins, chunks, elsewhere = stream[:size], chunks_of(stream, size), chunks_of(strange, size)

    def breaks(data: bytes) -> None:
        opener = response_opener(header, mine)
        with pytest.raises(ChannelBroken):
            opener.feed(data)
            opener.finish()
        with pytest.raises(ChannelBroken):
            opener.feed(b"")
        with pytest.raises(ChannelBroken):
            opener.finish()

    for order in permutations(chunks):
        if list(order) != chunks:
            breaks(begins + b"".join(order))
    for left_out in range(3):
        breaks(begins + b"".join(chunk for place, chunk in enumerate(chunks) if place != left_out))
        breaks(begins + b"".join(elsewhere[place] if place == left_out else chunks[place] for place in range(3)))
        breaks(begins + b"".join((*chunks[: left_out + 1], *chunks[left_out:])))
    for end in range(len(stream)):
        breaks(stream[:end])
    breaks(strange)
    breaks(stream + b"more")


def test_a_chunk_that_ends_nothing_is_not_taken_for_the_last() -> None:
    """A relay that puts a zero before an inner chunk: the AAD of the last one is another."""
    header, mine, theirs = exchange(SUITES[0], Form.CHUNKED)
    sealer = response_sealer(header, theirs)
    begins = sealer.seal(b"")
    first = sealer.seal(b"all of it")
    opener = response_opener(header, mine)
    opener.feed(begins + b"\0" + first[1:])
    with pytest.raises(ChannelBroken):
        opener.finish()


@pytest.mark.parametrize("wrong", [b"\x05short", b"\x10" + bytes(16), b"\x80\x01\x00\x11" + bytes(70_000)])
def test_a_chunk_with_an_impossible_length_is_refused(wrong: bytes) -> None:
    header, mine, _ = exchange(SUITES[0], Form.CHUNKED)
    with pytest.raises(ChannelBroken):
        response_opener(header, mine).feed(bytes(32) + wrong)


def test_a_chunk_without_content_that_is_not_the_last_is_refused() -> None:
    header, mine, theirs = exchange(SUITES[0], Form.CHUNKED)
    nonce = response_nonce(header)
    empty = response_chain(header, theirs, nonce).seal(b"")
    with pytest.raises(ChannelBroken):
        response_opener(header, mine).feed(nonce + bytes((len(empty),)) + empty)


def test_the_last_chunk_is_bounded() -> None:
    header, mine, _ = exchange(SUITES[0], Form.CHUNKED)
    with pytest.raises(ChannelBroken):
        response_opener(header, mine).feed(bytes(32) + b"\0" + bytes(70_000))


def test_chunks_have_the_size_that_every_receiver_takes() -> None:
    header, _, theirs = exchange(SUITES[0], Form.CHUNKED)
    sealer = ChunkSealer(request_chain(header, theirs), b"")
    assert len(chunks_of(sealer.end(bytes(3 * CHUNK_BYTES)), 0)) == 3
    with pytest.raises(ChannelBroken):
        sealer.seal(b"after the end")


def test_a_key_seals_no_more_than_it_may() -> None:
    chain = Chain(1, bytes(16), bytes(12), most=2)
    assert chain.seal(b"") != chain.seal(b"")
    with pytest.raises(ChannelBroken):
        chain.seal(b"")
    assert encapsulation.MAX_SEALS <= 1 << 32


@pytest.mark.parametrize("place", range(1, 7))
def test_a_header_with_other_algorithms_is_refused(place: int) -> None:
    header, _, _ = exchange(SUITES[0], Form.WHOLE)
    wrong = bytearray(header.encode())
    wrong[place] ^= 0x80
    with pytest.raises(ChannelBroken):
        Header.decode(bytes(wrong))


def test_a_header_that_is_cut_and_a_point_of_low_order_are_refused() -> None:
    header, _, _ = exchange(SUITES[0], Form.WHOLE)
    with pytest.raises(ChannelBroken):
        Header.decode(header.encode()[:-1])
    with pytest.raises(ChannelBroken):
        decapsulate(X25519Key(PRIVATE), header._replace(enc=bytes(32)), Form.WHOLE)
    with pytest.raises(ChannelBroken):
        encapsulate(KeyConfiguration(1, bytes(32)), Form.WHOLE)


def test_keys_show_nothing() -> None:
    _, keys, _ = exchange(SUITES[0], Form.WHOLE)
    assert keys.request_key.hex() not in repr(keys)
