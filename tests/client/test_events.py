"""A streamed answer is cut into positions: events that say something, however the bytes are cut."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.client.obfuscating_transport import EventStream, MalformedStream, spoken
from tests.client.wire import ERROR, LAST, SILENCE, WORD, event

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"total_tokens":3}}\n\n'
TOOL = b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}\n\n'
TEXT = b'data: {"choices":[{"index":0,"text":"so","finish_reason":null}]}\n\n'


def read(*pieces: bytes) -> EventStream:
    stream = EventStream()
    count = sum(stream.feed(piece) for piece in pieces)
    stream.finish()
    assert count == len(stream.pieces)
    return stream


def test_an_event_that_says_nothing_is_no_position_and_goes_with_the_next() -> None:
    stream = read(ROLE + b": a comment\n\n" + WORD + SILENCE + SILENCE + TOOL + TEXT + SILENCE)
    assert stream.pieces == [ROLE + b": a comment\n\n" + WORD, SILENCE + SILENCE + TOOL, TEXT]
    assert stream.rest == SILENCE


def test_nothing_from_an_end_on_is_in_a_position() -> None:
    late = event("word ", "stop")
    stream = read(WORD + late + WORD + USAGE + b"data: [DONE]\n\n")
    assert stream.pieces == [WORD, b"", b""] and stream.rest == late + WORD + USAGE + b"data: [DONE]\n\n"
    assert read(WORD, b"data: [DONE]\n\n").rest == b"data: [DONE]\n\n"


@given(st.lists(st.integers(0, 400), max_size=12), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_it_does_not_matter_how_bytes_are_cut_or_lines_end(cuts: list[int], newline: bytes) -> None:
    body = (ROLE + WORD + SILENCE + WORD + LAST).replace(b"\n", newline)
    places = [0, *sorted(cut for cut in cuts if cut < len(body)), len(body)]
    stream = read(*(body[a:b] for a, b in pairwise(places)))
    assert len(stream.pieces) == 2 and stream.body == body
    assert spoken(body, streamed=True) == ["word word "]


def test_an_error_is_noticed_and_nonsense_refused() -> None:
    assert read(WORD, ERROR, WORD).error == ERROR
    for wrong in (b"{", b"7", b'{"choices":7}', b'{"choices":[7]}'):
        with pytest.raises(MalformedStream):
            read(b"data: %b\n\n" % wrong)
    assert json.loads(WORD[6:])["choices"]
