import json

import pytest

from cloister_bench.load import BrokenAnswer, read_answer


def data(document: object) -> bytes:
    return b"data: " + (document if isinstance(document, str) else json.dumps(document)).encode() + b"\n\n"


def text(piece: str, finish: str | None = None) -> bytes:
    return data({"choices": [{"index": 0, "text": piece, "finish_reason": finish}]})


def usage(prompt: int, completion: int) -> bytes:
    return data({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


DONE = data("[DONE]")


def test_one_token_in_each_chunk() -> None:
    answer = read_answer(1.0, [(2.0, text("a")), (2.5, text("b")), (3.5, text("c", "length") + usage(7, 3) + DONE)])
    assert (answer.sent, answer.first_token, answer.last_token) == (1.0, 2.0, 3.5)
    assert (answer.output_tokens, answer.seconds_per_token) == (3, 0.75)


def test_several_tokens_in_a_chunk_are_counted_from_usage() -> None:
    answer = read_answer(0.0, [(1.0, text("ab")), (2.0, text("cd")), (3.0, text("ef") + usage(1, 5) + DONE)])
    assert (answer.output_tokens, answer.seconds_per_token) == (5, 0.5)


def test_an_event_counts_from_the_arrival_of_its_last_byte() -> None:
    event = text("a")
    answer = read_answer(0.0, [(1.0, event[:9]), (2.0, event[9:]), (3.0, usage(1, 1) + DONE)])
    assert answer.first_token == 2.0


def test_ends_are_no_tokens_but_half_characters_are() -> None:
    answer = read_answer(0.0, [(1.0, text("")), (2.0, text("é")), (3.0, text("", "stop") + DONE)])
    assert (answer.first_token, answer.last_token, answer.output_tokens) == (1.0, 2.0, 2)


def test_comments_carriage_returns_and_a_missing_last_newline_are_fine() -> None:
    body = b": hello\r\n" + text("a").replace(b"\n", b"\r\n") + b"data: [DONE]"
    assert read_answer(0.0, [(1.0, body)]).output_tokens == 1


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (text("a"), "ended without [DONE]"),
        (b'{"choices": []}', "not a stream"),
        (b"", "not a stream"),
        (DONE, "no tokens"),
        (data({"error": {"message": "x"}}) + DONE, "error in stream"),
        (b"data: {oops\n\n", "malformed event"),
    ],
)
def test_what_is_not_a_whole_answer_is_named(body: bytes, kind: str) -> None:
    with pytest.raises(BrokenAnswer) as broken:
        read_answer(0.0, [(1.0, body)] if body else [])
    assert str(broken.value) == kind
