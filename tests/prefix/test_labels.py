"""Who waits for a label: each request its own, so many, and no longer than anything can come of it."""

from __future__ import annotations

import gc

import pytest

from cloister.prefix import radix as module
from cloister.prefix.radix import Labels
from tests.prefix.keys import PAGE_TOKENS, key_of, pages


def test_a_label_is_for_the_key_that_waits_for_it_alone() -> None:
    """A number that comes again is another request."""
    labels, first, second = Labels(), key_of(pages(1, 2), number=0), key_of(pages(3, 4), "b", number=0)
    labels.expect(first)
    labels.expect(second)
    assert labels.add(0, 2 * PAGE_TOKENS) == (first, 2)
    assert labels.public_pages(second) == 0 and labels.public_pages(first) == 2


def test_what_was_said_of_a_key_is_known_as_long_as_the_key_and_no_longer() -> None:
    """A sequence that is preempted looks again, with the same key."""
    labels, key = Labels(), key_of(pages(1, 2), number=0)
    labels.expect(key)
    labels.add(0, PAGE_TOKENS)
    labels.expect(key)
    assert labels.public_pages(key) == 1 and not labels._waiting
    del key
    gc.collect()
    assert not labels._public


def test_the_oldest_of_too_many_stay_private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNLABELLED", 2)
    labels = Labels()
    for number in range(3):
        labels.expect(key_of(pages(1), number=number))
    assert [labels.add(number, PAGE_TOKENS) is None for number in range(3)] == [True, False, False]
