from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import ProtocolError
from cloister.messages.controller_service import GeneratePrompt, ToSealedService
from cloister.messages.frames import MAX_FRAME_BYTES, FrameReader, encode_frame, encode_frames
from cloister.messages.generation import Cancel
from cloister.messages.types import SamplingParams

submits = st.builds(
    GeneratePrompt,
    request_id=st.integers(0, 2**63 - 1),
    tenant=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    prompt=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20).map(tuple),
    params=st.builds(SamplingParams, temperature=st.floats(0, 100), seed=st.integers(0, 2**63 - 1)),
)
frames = st.lists(st.one_of(submits, st.builds(Cancel, st.integers(0, 2**63 - 1))), max_size=4).map(tuple)


@given(sent=st.lists(frames, max_size=5), piece=st.integers(1, 40))
def test_messages_survive_any_fragmentation(sent: list[tuple[msgspec.Struct, ...]], piece: int) -> None:
    wire = b"".join(encode_frame(frame) for frame in sent)
    reader: FrameReader[msgspec.Struct] = FrameReader(ToSealedService)
    received = [m for at in range(0, len(wire), piece) for m in reader.feed(wire[at : at + piece])]
    assert received == [message for frame in sent for message in frame]


@given(st.binary(min_size=4, max_size=200))
def test_garbage_is_a_protocol_error_or_waits_for_more(garbage: bytes) -> None:
    reader: FrameReader[msgspec.Struct] = FrameReader(ToSealedService)
    try:
        messages = reader.feed(garbage)
    except ProtocolError:
        return
    assert all(isinstance(message, msgspec.Struct) for message in messages)


def test_a_frame_that_announces_too_much_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolError, match="limit"):
        FrameReader(ToSealedService).feed((MAX_FRAME_BYTES + 1).to_bytes(4, "little"))


def test_too_long_a_message_is_never_sent() -> None:
    with pytest.raises(ProtocolError, match="exceeds"):
        encode_frame((GeneratePrompt(1, "t", tuple([2**31 - 1] * (MAX_FRAME_BYTES // 5 + 1)), SamplingParams()),))


@pytest.mark.parametrize(
    "message",
    [
        {"type": "submit", "request_id": 1, "tenant": "", "prompt": [1], "params": {}},
        {"type": "submit", "request_id": 1, "tenant": "t", "prompt": [1], "params": {}, "public": -1},
        {"type": "submit", "request_id": 1, "tenant": "t", "prompt": [-1], "params": {}},
        {"type": "submit", "request_id": 1, "tenant": "t", "prompt": [1], "params": {"temperature": -1.0}},
        {"type": "submit", "request_id": 1, "tenant": "t", "prompt": [1], "params": {}, "extra": 1},
        {"type": "unheard_of"},
    ],
)
def test_values_out_of_bounds_do_not_decode(message: dict[str, object]) -> None:
    body = msgspec.msgpack.encode((message,))
    with pytest.raises(ProtocolError):
        FrameReader(ToSealedService).feed(len(body).to_bytes(4, "little") + body)


def test_a_printed_message_says_nothing_of_its_content() -> None:
    shown = repr(GeneratePrompt(7, "some-tenant", (123456, 234567), SamplingParams()))
    assert "7" in shown and not any(secret in shown for secret in ("123456", "234567", "some-tenant"))


def test_what_does_not_fit_into_one_frame_goes_in_several() -> None:
    large = tuple(
        GeneratePrompt(number, "t", (2**31 - 1,) * (MAX_FRAME_BYTES // 16), SamplingParams()) for number in range(7)
    )
    wire = encode_frames((Cancel(9), *large, Cancel(10)))
    assert len(wire) > MAX_FRAME_BYTES
    assert FrameReader[msgspec.Struct](ToSealedService).feed(wire) == [Cancel(9), *large, Cancel(10)]
    assert encode_frames((Cancel(1), Cancel(2))) == encode_frame((Cancel(1), Cancel(2)))
    with pytest.raises(ProtocolError):
        encode_frames((Cancel(1), GeneratePrompt(1, "t", (2**31 - 1,) * (MAX_FRAME_BYTES // 4), SamplingParams())))


def test_what_was_read_is_not_kept_while_the_next_frame_comes() -> None:
    """A bytearray keeps the memory of what is deleted from its front; the reader's holds the unread rest alone."""
    first, second = (
        encode_frame((GeneratePrompt(1, "t", (1000,) * count, SamplingParams()),)) for count in (1000, 4000)
    )
    reader = FrameReader[msgspec.Struct](ToSealedService)
    rest = second[: len(second) // 2]
    assert len(reader.feed(first + rest)) == 1
    assert reader._buffer == rest and reader._buffer.__alloc__() <= len(rest) + 1
    assert len(reader.feed(second[len(rest) :])) == 1
    assert reader._buffer == b"" and reader._buffer.__alloc__() <= 1
