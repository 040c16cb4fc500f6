"""Secrets are found as spans a substitute can stand for: whole words, with a category, the same in every piece."""

from __future__ import annotations

import pytest

from cloister.detection import redaction
from cloister.detection.redaction import Redaction, shipped_redaction
from cloister.detection.rules import RuleSet, read_rules
from cloister.obfuscation.tags import Category


@pytest.fixture(scope="module")
def detector() -> Redaction:
    return shipped_redaction()


def found(detector: Redaction, text: str) -> set[tuple[str, str]]:
    return {(text[start:end], category) for start, end, category in detector(text)}


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        ("I am Ann and I live in Ghent.", {("Ann", "name"), ("Ghent", "place")}),
        ("My name is Ann Lee and I live in Ghent.", {("Ann Lee", "name"), ("Ghent", "place")}),
        ("He was seen by Dr. Patel of Rochester.", {("Dr. Patel", "name")}),
        ("He is 64-year-old and was seen on May 3, 2011.", {("64", "age"), ("May 3, 2011", "date")}),
        ("Pay with 4111 1111 1111 1111, please.", {("4111 1111 1111 1111", "id")}),
        ("Write to ann@example.org.", {("ann@example.org", "id")}),
        ("The password is: hunter2", {("hunter2", "id")}),
        ("José Müller called.", {("José Müller", "name")}),
        ("How do I sort a list in Python?", set()),
        ("You are a helpful assistant.", set()),
        ("", set()),
    ],
)
def test_secrets_and_what_they_are(detector: Redaction, text: str, secrets: set[tuple[str, str]]) -> None:
    assert secrets <= found(detector, text) and bool(secrets) == bool(found(detector, text))
    assert {category for _, category in found(detector, text)} <= set(map(str, Category))


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("Seen on 06/19/07.", "06/19/07"),
        ("In August 2008 it began.", "August 2008"),
        ("Since March 3rd, yes.", "March 3rd"),
        ("At 5.11.19 it rained", "5.11.19"),
    ],
)
def test_a_date_in_part_is_a_secret(detector: Redaction, text: str, date: str) -> None:
    assert (date, "date") in found(detector, text)


@pytest.mark.parametrize("text", ["a march on Rome", "version 3.41.29", "13/45/99", "1/2/3/4", "You may.", "May 77 be"])
def test_what_is_no_date_is_not_marked_as_one(text: str) -> None:
    rule = 'version = 1\n[[rule]]\nid = "x"\ncategory = "identity"\npattern = \'abcde\'\nsecret = "match"\n'
    assert found(Redaction(RuleSet(read_rules(rule)), None), text) == set()


def test_known_medications_are_marked_as_such(detector: Redaction) -> None:
    knowing = shipped_redaction(frozenset({"metoprolol", "co-codamol"}))
    text = "Takes Metoprolol 25 mg and co-codamol daily, METOPROLOL too."
    marks = {"Metoprolol", "co-codamol", "METOPROLOL"}
    assert {words for words, category in found(knowing, text) if category == "medication"} == marks
    assert not any(category == "medication" for _, category in found(detector, text)), "without the list none is known"


def test_a_rule_that_only_says_that_a_secret_is_near_marks_nothing() -> None:
    rules = read_rules(
        'version = 1\n[[rule]]\nid = "near"\ncategory = "name"\npattern = \'my name is [a-z]\'\n'
        '[[rule]]\nid = "badge"\ncategory = "identity"\npattern = \'badge [a-z]\'\nsecret = "end"\n'
    )
    detector = Redaction(RuleSet(rule for rule in rules if rule.secret), None)
    assert detector("My name is Ann, badge X-77q!") == [(22, 27, "id")]


def test_what_begins_or_ends_within_a_word_is_the_whole_word() -> None:
    """Half of a word cannot be replaced; and what is left would tell the rest."""
    rule = 'version = 1\n[[rule]]\nid = "inner"\ncategory = "identity"\npattern = \'abcde\'\nsecret = "match"\n'
    inner = Redaction(RuleSet(read_rules(rule)), None)
    assert found(inner, "See xabcde1y now.") == {("xabcde1y", "id")}


def test_a_long_text_is_searched_in_pieces_that_find_the_same(
    detector: Redaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "Nothing of note was said by anybody on that day. " * 9 + "Sarah Connor of Ghent came. " + "It rained. " * 40
    whole = sorted(detector(text))
    assert ("Sarah Connor", "name") in found(detector, text)
    start = text.index("Sarah")
    for piece in (start + 3, start + 7, start, 64):  # the name is cut by the end of a piece
        monkeypatch.setattr(redaction, "PIECE", piece)
        pieces = list(detector.pieces(text))
        assert len(pieces) == -(-len(text) // piece)
        assert sorted(each for one in pieces for each in one) == whole
