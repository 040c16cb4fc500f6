"""Sequences of one request leave in step, however their tokens come, and nothing of them is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cloister.controller.requests import InStep
from cloister.messages.generation import Tokens
from cloister.messages.types import TokenLogprob

SEQUENCES, LENGTH = 3, 6
COMING = st.lists(st.tuples(st.integers(0, SEQUENCES - 1), st.integers(0, 3)), max_size=40)
"""Which sequence says something next, and how many tokens at once."""


def said(sequence: int, start: int, count: int) -> Tokens:
    tokens = tuple(100 * sequence + at for at in range(start, start + count))
    scores = tuple(TokenLogprob(-float(token), ()) for token in tokens)
    return Tokens(1, tokens, scores, sequence=sequence, cached=0 if start or not count else 5)


def coming(order: list[tuple[int, int]]) -> list[Tokens]:
    """All tokens of all sequences, in this order first and then one after the other."""
    have, messages = [0] * SEQUENCES, []
    for sequence, count in [*order, *((at, LENGTH) for at in range(SEQUENCES))]:
        count = min(count, LENGTH - have[sequence])
        messages.append(said(sequence, have[sequence], count))
        have[sequence] += count
    return messages


@given(COMING)
def test_no_position_leaves_before_all_have_it_and_it_leaves_at_once_then(order: list[tuple[int, int]]) -> None:
    step, came, left = InStep(SEQUENCES), [0] * SEQUENCES, [0] * SEQUENCES
    for message in coming(order):
        came[message.sequence] += len(message.tokens)
        for part in step.passed(message):
            left[part.sequence] += len(part.tokens)
        assert left == [min(came)] * SEQUENCES


@given(COMING, st.booleans())
def test_tokens_scores_and_what_is_said_once_are_as_they_came(order: list[tuple[int, int]], empty_end: bool) -> None:
    step, parts = InStep(SEQUENCES), []
    *messages, last = coming(order)
    if empty_end:
        messages, last = [*messages, last], Tokens(1, sequence=1)
    for message in messages:
        parts += step.passed(message)
    assert all(part.finish is None for part in parts)
    parts += step.passed(replace(last, finish="stop"))
    assert [part.finish for part in parts if part.finish] == ["stop"] and parts[-1].finish == "stop"
    for sequence in range(SEQUENCES):
        whole = said(sequence, 0, LENGTH)
        mine = [part for part in parts if part.sequence == sequence]
        assert tuple(token for part in mine for token in part.tokens) == whole.tokens
        assert tuple(score for part in mine for score in part.logprobs or ()) == whole.logprobs
        assert sum(part.cached for part in mine) == 5
