from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import ServiceUnavailable
from cloister.gateway.choice import Choice, Delta, Echo, StopStrings
from cloister.messages.generation import Tokens
from cloister.messages.types import SamplingParams, TokenLogprob
from tests.gateway.fakes import END, ByteTokenizer


def read(
    text: bytes, sizes: list[int], stops: list[str], *, finish: str = "stop", echo: str | None = None, take: bool = True
) -> Delta:
    """The text through a choice, in messages of these sizes; taken after each, or once at the end."""
    params = SamplingParams(logprobs=0, stop_tokens=(END,), max_tokens=1000)
    choice = Choice(0, params, ByteTokenizer(), StopStrings(stops), echo=echo and Echo(echo, (97, 98)))
    tokens = (*text, END) if finish == "stop" else tuple(text)
    whole = Delta("", [], None)
    start = 0
    for size in [*sizes, len(tokens)]:
        part = tokens[start : start + size]
        start += size
        last = start >= len(tokens)
        scores = tuple(TokenLogprob(-float(token)) for token in part)
        prompt_scores = (TokenLogprob(-98.0),) if echo is not None else None
        choice.push(Tokens(1, part, scores, prompt_scores, finish if last else None))  # type: ignore[arg-type]
        if take or last:
            delta = choice.take()
            assert whole.scores is not None and delta.scores is not None
            whole = Delta(whole.text + delta.text, whole.scores + delta.scores, delta.finish)
        if last:
            break
    return whole


texts = st.one_of(st.text("ab日é", max_size=20).map(str.encode), st.binary(max_size=20))
sizes = st.lists(st.integers(0, 5), max_size=20)
stop_lists = st.lists(st.text("ab日é", min_size=1, max_size=3), max_size=3)


@given(texts, sizes, stop_lists, st.sampled_from(["stop", "length"]))
def test_how_the_tokens_come_does_not_show(text: bytes, sizes: list[int], stops: list[str], finish: str) -> None:
    at_once = read(text, [], stops, finish=finish)
    assert read(text, sizes, stops, finish=finish) == at_once
    assert read(text, sizes, stops, finish=finish, take=False) == at_once


@pytest.mark.parametrize("stops", [[], ["b"]])
def test_a_cut_by_the_limit_shows_no_half_of_a_character(stops: list[str]) -> None:
    half = "a日".encode()[:-1]
    assert read(half, [1, 1], stops, finish="length").text == "a"
    assert read(half, [1, 1], stops, finish="stop").text == "a\ufffd"
    assert read("a日".encode(), [1, 1], stops, finish="length").text == "a日"


@given(texts, sizes)
def test_without_stop_strings_everything_is_shown_and_scored(text: bytes, sizes: list[int]) -> None:
    whole = read(text, sizes, [])
    assert whole.text == text.decode("utf-8", "replace") or b"\xef\xbf\xbd" in whole.text.encode()
    assert whole.scores is not None
    assert [scored.token for scored in whole.scores] == list(text)
    offsets = [scored.offset for scored in whole.scores]
    assert offsets == sorted(offsets) and all(offset <= len(whole.text) for offset in offsets)


@given(st.text("ab日é", max_size=20), sizes, stop_lists)
def test_scores_end_where_the_text_does(text: str, sizes: list[int], stops: list[str]) -> None:
    whole = read(text.encode(), sizes, stops)
    assert whole.scores is not None and whole.finish == "stop"
    assert bytes(scored.token for scored in whole.scores) == whole.text.encode()
    assert not any(stop in whole.text for stop in stops)


def test_scores_of_an_echo_may_come_in_pieces() -> None:
    params = SamplingParams(logprobs=0, max_tokens=1)
    choice = Choice(0, params, ByteTokenizer(), StopStrings([]), echo=Echo("abc", (97, 98, 99)))
    choice.push(Tokens(1, prompt_logprobs=(TokenLogprob(-1.0),)))
    assert choice.take().text == ""
    choice.push(Tokens(1, (100,), (TokenLogprob(-3.0),), (TokenLogprob(-2.0),), "length"))
    whole = choice.take()
    assert whole.text == "abcd" and [scored.logprob for scored in whole.scores or ()] == [None, -1.0, -2.0, -3.0]


def test_an_echo_comes_first_with_its_own_scores() -> None:
    whole = read(b"cd", [1, 1], ["b"], echo="ab")
    assert whole.text == "abcd"
    assert whole.scores is not None
    assert [(scored.token, scored.logprob, scored.offset) for scored in whole.scores] == [
        (97, None, 0), (98, -98.0, 1), (99, -99.0, 2), (100, -100.0, 3),
    ]  # fmt: skip


def test_a_request_the_service_gave_up_is_an_error_not_an_answer() -> None:
    with pytest.raises(ServiceUnavailable):
        read(b"ab", [1], [], finish="cancelled")
