from __future__ import annotations

import pytest

from cloister.obfuscation import conversation
from cloister.obfuscation.conversation import Answers, turn_of

TURN = turn_of([("user", "hello")])


def test_only_the_last_answers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "MAX_REMEMBERED", 3)
    answers = Answers()
    for number in range(5):
        answers.remember(TURN, [f"real {number}", f"other {number}"])
    assert [answers.find(TURN, f"real {number}") is not None for number in range(5)] == [False, False, True, True, True]
    answers.remember(TURN, ["real 2", "another"])
    assert answers.find(TURN, "real 3"), "what is told again takes no more room"
    assert answers.find(TURN, "real 2") == ("real 2", "another")


def test_long_answers_are_kept_in_smaller_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "MAX_CHARACTERS", 100)
    answers = Answers()
    for number in range(20):
        answers.remember(TURN, [f"{number:02}" * 10, "x" * 20])
        assert sum(len(text) for texts in answers._known.values() for text in texts) <= 100
    assert answers.find(TURN, "19" * 10) and answers.find(TURN, "18" * 10) and not answers.find(TURN, "17" * 10)
    answers.remember(TURN, ["y" * 101])
    assert not answers._known, "one that is too long is not kept at all"
    answers.remember(TURN, ["short", "too"])
    assert answers.find(TURN, "short"), "and what went takes no room"


def test_another_conversation_does_not_find_them() -> None:
    answers = Answers()
    answers.remember(TURN, ["yes", "no"])
    assert answers.find(TURN, " yes ") == ("yes", "no") and answers.find(TURN, "no") is None
    assert answers.find(turn_of([("user", "hello!")]), "yes") is None
    assert "yes" not in repr(answers)
