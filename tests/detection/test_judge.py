"""Tier 3's question: the words around it, two answers, and a margin that public must win by."""

from __future__ import annotations

import pytest

from cloister.detection.judge import AFTER, BEFORE, BETWEEN, MAX_CONTEXT, MAX_PASSAGE, Judge, form_of
from cloister.errors import SetupError
from cloister.messages.controller_detector import Label

WORDS = {" Yes": [5, 1], " No": [6], "Yes": [7], "No": [8], BEFORE: [10, 11], BETWEEN: [12], AFTER: [13]}
JUDGE = Judge(form_of(WORDS.__getitem__), margin=1.5)


def test_the_question_has_the_end_of_the_context_and_the_passage() -> None:
    context, passage = list(range(100, 100 + 2 * MAX_CONTEXT)), list(range(5000, 5000 + 2 * MAX_PASSAGE))
    asked = JUDGE.question(context, passage)
    assert asked.tokens == (10, 11, *context[-MAX_CONTEXT:], 12, *passage[:MAX_PASSAGE], 13)
    assert JUDGE.question([], [99]).tokens == (10, 11, 12, 99, 13)


def test_public_must_win_by_the_margin() -> None:
    params = JUDGE.question([], [99]).params
    assert params.max_tokens == 1 and params.temperature == 0
    assert set(params.logit_bias) == {5, 6} and params.logit_bias[5] - params.logit_bias[6] == 1.5


@pytest.mark.parametrize(
    ("answer", "label"), [([6], Label.PUBLIC), ([5], Label.PRIVATE), ([9], Label.PRIVATE), ([], 0), ([6, 6], 0)]
)
def test_only_the_one_public_answer_makes_public(answer: list[int], label: int) -> None:
    assert JUDGE.label(answer) == label


def test_a_vocabulary_without_two_answers_has_no_judge() -> None:
    others = {**WORDS, " Yes": [1], " No": [1]}
    assert Judge(form_of(others.__getitem__)).label([8]) is Label.PUBLIC
    with pytest.raises(SetupError):
        form_of(lambda _: [1])
