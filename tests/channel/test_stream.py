"""The answer's stream: whole and in order, or ChannelBroken; and sizes that tell nothing of a token."""

from __future__ import annotations

import struct
from itertools import permutations

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from cloister.channel import stream as module
from cloister.channel.sealing import ChannelKey, address_to
from cloister.channel.stream import MAX_FRAME_DATA, SALT_BYTES, Frame, FrameKind, StreamOpener, StreamSealer
from cloister.errors import ChannelBroken

KEY, ENC = bytes(range(32)), bytes(range(32, 64))


def sealer() -> StreamSealer:
    return StreamSealer(bytearray(KEY), ENC)


def opener() -> StreamOpener:
    return StreamOpener(bytearray(KEY), ENC)


def pieces_of(sealed: bytes) -> tuple[bytes, list[bytes]]:
    """The salt and the frames of a sealed stream."""
    frames, at = [], SALT_BYTES
    while at < len(sealed):
        (length,) = struct.unpack_from(">I", sealed, at)
        frames.append(sealed[at : at + 4 + length])
        at += 4 + length
    return sealed[:SALT_BYTES], frames


def sealed_answer(*data: bytes) -> bytes:
    one = sealer()
    return one.head(b"head") + b"".join(one.data(piece) for piece in data) + one.end()


def read(sealed: bytes) -> list[Frame]:
    one = opener()
    frames = one.feed(sealed)
    one.finish()
    return frames


@given(st.binary(max_size=300), st.lists(st.binary(max_size=1500), max_size=6), st.data())
def test_any_data_comes_back_however_the_bytes_are_cut(head: bytes, data: list[bytes], cuts: st.DataObject) -> None:
    one, other = sealer(), opener()
    sealed = one.head(head) + b"".join(one.data(piece) for piece in data) + one.end()
    at, frames = 0, []
    while at < len(sealed):
        left = len(sealed) - at
        size = cuts.draw(st.just(left) | st.integers(1, left) | st.just(1))
        frames += other.feed(sealed[at : at + size])
        at += size
    other.finish()
    assert frames[0] == Frame(FrameKind.HEAD, head)
    assert b"".join(frame.data for frame in frames[1:]) == b"".join(data)
    assert [frame.kind for frame in frames[1:-1]] == [FrameKind.DATA] * sum(map(bool, data))
    assert frames[-1] == Frame(FrameKind.END, b"")


def test_byte_by_byte() -> None:
    one = opener()
    sealed = sealed_answer(b"hello", b"world")
    frames = [frame for at in range(len(sealed)) for frame in one.feed(sealed[at : at + 1])]
    one.finish()
    assert [frame.data for frame in frames] == [b"head", b"hello", b"world", b""]


def test_large_data_goes_into_several_frames_and_several_pieces_into_one() -> None:
    one = sealer()
    start = one.head(b"")
    large = bytes(range(256)) * 1024
    sealed = start + one.data(large) + one.data(b"a", b"bc", b"", b"d") + one.data() + one.data(b"") + one.end()
    frames = read(sealed)
    assert b"".join(frame.data for frame in frames[1:-2]) == large
    assert max(len(frame.data) for frame in frames) == MAX_FRAME_DATA
    assert frames[-2] == Frame(FrameKind.DATA, b"abcd")


def test_every_flipped_bit_is_seen() -> None:
    sealed = sealed_answer(b"hello")
    for bit in range(len(sealed) * 8):
        altered = bytearray(sealed)
        altered[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ChannelBroken):
            read(bytes(altered))


def test_truncation_at_every_byte_is_seen() -> None:
    sealed = sealed_answer(b"hello", b"world")
    for length in range(len(sealed)):
        with pytest.raises(ChannelBroken):
            read(sealed[:length])
    assert read(sealed)


def test_any_other_order_of_frames_is_seen() -> None:
    salt, frames = pieces_of(sealed_answer(b"one", b"two", b"three"))
    for order in permutations(frames):
        if list(order) != frames:
            with pytest.raises(ChannelBroken):
                read(salt + b"".join(order))


@pytest.mark.parametrize("index", range(5))
def test_a_frame_left_out_or_repeated_is_seen(index: int) -> None:
    salt, frames = pieces_of(sealed_answer(b"one", b"two", b"three"))
    with pytest.raises(ChannelBroken):
        read(salt + b"".join(frames[:index] + frames[index + 1 :]))
    with pytest.raises(ChannelBroken):
        read(salt + b"".join([*frames[:index], frames[index], *frames[index:]]))


def test_frames_of_another_stream_of_the_same_request_are_seen() -> None:
    """Even a repeated request, with the very same keys, makes a stream under another key."""
    salt, frames = pieces_of(sealed_answer(b"one", b"two"))
    other_salt, others = pieces_of(sealed_answer(b"one", b"two"))
    assert salt != other_salt
    for index in range(len(frames)):
        mixed = [*frames[:index], others[index], *frames[index + 1 :]]
        with pytest.raises(ChannelBroken):
            read(salt + b"".join(mixed))
    with pytest.raises(ChannelBroken):
        read(other_salt + b"".join(frames))


def test_a_stream_opens_with_its_own_request_only() -> None:
    sealed = sealed_answer(b"hello")
    for wrong in (StreamOpener(bytearray(32), ENC), StreamOpener(bytearray(KEY), bytes(32))):
        with pytest.raises(ChannelBroken):
            wrong.feed(sealed)


def test_data_after_the_end_is_seen_at_once_or_later() -> None:
    sealed = sealed_answer(b"hello")
    with pytest.raises(ChannelBroken, match="follows"):
        opener().feed(sealed + b"\0")
    later = opener()
    later.feed(sealed)
    with pytest.raises(ChannelBroken, match="follows"):
        later.feed(b"\0")
    with pytest.raises(ChannelBroken):
        later.finish()


def test_end_missing() -> None:
    one, other = sealer(), opener()
    assert [frame.data for frame in other.feed(one.head(b"h") + one.data(b"hello"))] == [b"h", b"hello"]
    assert not other.ended
    with pytest.raises(ChannelBroken, match="authenticated end"):
        other.finish()


def test_a_broken_stream_stays_broken() -> None:
    one = opener()
    sealed = sealed_answer(b"hello")
    with pytest.raises(ChannelBroken):
        one.feed(bytes(len(sealed)))
    with pytest.raises(ChannelBroken):
        one.feed(sealed)
    with pytest.raises(ChannelBroken):
        one.finish()


@pytest.mark.parametrize("length", [0, 1, 527, (1 << 16) + 17, 2**32 - 1])
def test_a_length_that_cannot_be_is_refused_before_anything_is_waited_for(length: int) -> None:
    with pytest.raises(ChannelBroken, match="length that cannot be"):
        opener().feed(bytes(SALT_BYTES) + struct.pack(">I", length))


def frame_of(number: int, plaintext: bytes, salt: bytes) -> bytes:
    """A frame that authenticates, whatever it says: what a node with a fault could send."""
    aead = module._stream_aead(bytearray(KEY), ENC, salt)
    assert isinstance(aead, AESGCM)
    sealed = aead.encrypt(number.to_bytes(12, "big"), plaintext.ljust(512, b"\0"), None)
    return struct.pack(">I", len(sealed)) + sealed


@pytest.mark.parametrize(
    "frames",
    [
        [struct.pack(">BI", 2, 0)],
        [struct.pack(">BI", 3, 0)],
        [struct.pack(">BI", 0, 0)],
        [struct.pack(">BI", 4, 0)],
        [struct.pack(">BI", 1, 508)],
        [struct.pack(">BI", 1, 2**32 - 1)],
        [struct.pack(">BI", 1, 0), struct.pack(">BI", 1, 0)],
        [struct.pack(">BI", 1, 0), struct.pack(">BI", 3, 1)],
    ],
)
def test_authentic_nonsense_is_refused_too(frames: list[bytes]) -> None:
    salt = bytes(SALT_BYTES)
    with pytest.raises(ChannelBroken):
        opener().feed(salt + b"".join(frame_of(number, plaintext, salt) for number, plaintext in enumerate(frames)))


def test_the_sealer_keeps_the_order() -> None:
    with pytest.raises(ChannelBroken):
        sealer().data(b"x")
    with pytest.raises(ChannelBroken):
        sealer().end()
    one = sealer()
    one.head(b"")
    with pytest.raises(ChannelBroken):
        one.head(b"")
    one.end()
    for late in (one.end, lambda: one.data(b"x")):
        with pytest.raises(ChannelBroken):
            late()
    with pytest.raises(ChannelBroken, match="at most"):
        sealer().head(bytes(MAX_FRAME_DATA + 1))


def test_frames_of_one_bucket_have_one_size() -> None:
    one = sealer()
    one.head(b"")
    small = {len(one.data(bytes(length))) for length in range(1, 508)}
    assert small == {4 + 512 + 16}
    assert {len(one.data(bytes(length))) for length in range(508, 1020)} == {4 + 1024 + 16}
    assert len(one.end()) == 4 + 512 + 16


def test_every_size_is_one_of_few() -> None:
    one = sealer()
    one.head(b"")
    sizes = {len(one.data(bytes(length))) for length in range(1, MAX_FRAME_DATA + 1, 101)}
    assert sizes == {4 + 16 + (1 << power) for power in range(9, 17)}


def test_keys_are_erased() -> None:
    key = bytearray(KEY)
    one = StreamSealer(key, ENC)
    assert key == bytes(32)
    sealed = one.head(b"") + one.end()
    assert one._aead is None
    opening, unread = bytearray(KEY), bytearray(KEY)
    other = StreamOpener(opening, ENC)
    other.feed(sealed)
    assert opening == bytes(32) and other._aead is None and other.ended
    StreamOpener(unread, ENC).close()
    assert unread == bytes(32)


def test_from_a_nodes_key_to_a_whole_answer() -> None:
    node = ChannelKey.generate()
    enc, mine = address_to(node.public)
    one, other = StreamSealer(node.accept(enc).response, enc), StreamOpener(mine.response, enc)
    frames = other.feed(one.head(b"h") + one.data(b"hello") + one.end())
    other.finish()
    assert [frame.data for frame in frames] == [b"h", b"hello", b""]


@given(st.binary(max_size=3000))
def test_any_bytes_are_channel_broken(data: bytes) -> None:
    with pytest.raises(ChannelBroken):
        read(data)
