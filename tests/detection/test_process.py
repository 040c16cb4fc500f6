"""The detector's own messages: labels and nothing else, rules that change, and orders that make no sense."""

from __future__ import annotations

import msgspec
import pytest

from cloister.detection.pipeline import Pipeline, shipped_pipeline
from cloister.detection.process import Labeller
from cloister.detection.tagger import shipped_tagger
from cloister.errors import ProtocolError
from cloister.messages.controller_detector import (
    Classify,
    FromDetector,
    KnowOpenings,
    Label,
    LoadRules,
    StartDetector,
    ToDetector,
)

OWN = 'version = 1\n[[rule]]\nid = "own"\ncategory = "blacklist"\nwords = ["heron"]\n'


@pytest.fixture
def labeller() -> Labeller:
    shipped = shipped_pipeline()
    return Labeller(Pipeline(shipped.rules, None))


def test_labels_are_codes_for_every_block_and_are_inherited(labeller: Labeller) -> None:
    text = "Sort this list. My mail is sunny@example.org. Thank you very much."
    answer = labeller.classify(Classify(3, text, (16, 45, len(text))))
    assert answer.request_id == 3
    assert list(answer.labels) == [Label.PUBLIC, Label.PRIVATE, Label.PRIVATE]
    assert b"sunny" not in msgspec.msgpack.encode(answer)


def test_rules_change_and_broken_ones_leave_those_before(labeller: Labeller) -> None:
    text = "a grey heron"
    ask = Classify(1, text, (len(text),))
    assert list(labeller.classify(ask).labels) == [Label.PUBLIC]
    taken = labeller.load(LoadRules(OWN))
    assert taken.taken and list(labeller.classify(ask).labels) == [Label.PRIVATE]
    for wrong, rules in (("form", "version = 3"), ("pattern", OWN.replace('words = ["heron"]', 'pattern = "(h"'))):
        refused = labeller.load(LoadRules(rules))
        assert (refused.taken, refused.wrong, refused.rules) == (False, wrong, taken.rules)
        assert list(labeller.classify(ask).labels) == [Label.PRIVATE]
    labeller.load(LoadRules(""))
    assert list(labeller.classify(ask).labels) == [Label.PUBLIC]


def test_an_opening_is_nobodys_once_it_is_told() -> None:
    shipped, opening = shipped_pipeline(), "system\nYou are Margaret Brown, a helpful assistant\nuser\n"
    labeller, ask = Labeller(Pipeline(shipped.rules, shipped_tagger())), Classify(1, opening, (len(opening),))
    assert list(labeller.classify(ask).labels) == [Label.PRIVATE]
    assert labeller.handle(KnowOpenings((opening,))) is None
    assert list(labeller.classify(ask).labels) == [Label.PUBLIC]


@pytest.mark.parametrize("message", [Classify(1, "abc", (2,)), Classify(1, "abc", (2, 1, 3)), StartDetector()])
def test_an_order_that_makes_no_sense_ends_it(labeller: Labeller, message: ToDetector) -> None:
    with pytest.raises(ProtocolError):
        labeller.handle(message)


def test_what_it_says_has_no_room_for_text_but_before_any_text_came() -> None:
    """A field of text that is added later must be thought about here."""
    texts = {
        f"{message.__name__}.{name}"
        for message in FromDetector.__args__
        for name, kind in message.__annotations__.items()
        if "str" in str(kind) or "Name" in str(kind)
    }
    assert texts == {"StartFailed.code", "StartFailed.message", "StartFailed.hint"}


def test_a_text_is_not_shown_by_its_message() -> None:
    assert "heron" not in repr(Classify(1, "heron", (5,)))
