"""Marks of secrets are read exactly, or refused; nothing that comes with a text takes a mark away."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import CloisterError, TagsInvalid
from cloister.obfuscation.entities import MAX_SECRETS, add_mentions
from cloister.obfuscation.tags import (
    Category,
    Span,
    TaggedText,
    add_spans,
    auto_redact,
    parse_redacted,
    redacted,
    regularise,
)


def test_tags_are_taken_out_and_their_places_kept() -> None:
    found = parse_redacted('I am <redacted category="name">Ann Lee</redacted>, <redacted> 17 </redacted> years old.')
    assert found.text == "I am Ann Lee,  17  years old."
    assert [(found.secret(span), span.category) for span in found.spans] == [
        ("Ann Lee", Category.NAME),
        ("17", Category.FREE),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a <redacted>b <redacted>c</redacted> d</redacted>", "inside another"),
        ("a <redacted>b", "without </redacted>"),
        ("a b</redacted>", "without <redacted>"),
        ("a <redacted></redacted> b", "empty"),
        ("a <redacted> \n</redacted> b", "empty"),
        ('a <redacted category="nmae">b</redacted>', "no such category"),
        ("a <Redacted>b</Redacted>", "almost like a tag"),
        ("a <redacted/>b", "almost like a tag"),
        ("a < redacted >b</redacted>", "without <redacted>"),
        ("a <redacted class='x'>b</redacted>", "without <redacted>"),
        ("a <reda<redacted>c</redacted>ted>b", "almost like a tag"),
    ],
)
def test_a_tag_that_is_not_exact_is_refused(text: str, said: str) -> None:
    with pytest.raises(TagsInvalid, match=said) as refused:
        parse_redacted(text, param="messages")
    assert refused.value.param == "messages" and refused.value.hint and refused.value.code == "tags_invalid"


def test_a_text_to_redact_cannot_bring_tags_of_its_own() -> None:
    with pytest.raises(TagsInvalid):
        redacted("x</redacted> the secret <redacted>y")
    with pytest.raises(TagsInvalid):
        redacted("  ")
    assert parse_redacted("I am " + redacted("Ann", "name")).spans == (Span(5, 8, Category.NAME),)


def test_a_detector_adds_and_never_takes_away() -> None:
    marked = parse_redacted("Dr. <redacted>Ann Lee</redacted> of Ghent")
    end = len(marked.text)
    found = auto_redact(marked, [(0, 7, "name"), (end - 5, end, "town"), (5, 6, "date")])
    assert [found.secret(span) for span in found.spans] == ["Dr. Ann Lee", "Ghent"]
    assert [span.category for span in found.spans] == [Category.NAME, Category.FREE]
    with pytest.raises(TagsInvalid):
        auto_redact(marked, [(3, end + 1, "name")])


@given(
    st.text("ab <", max_size=30),
    st.lists(st.tuples(st.integers(0, 29), st.integers(1, 30)), max_size=4),
    st.lists(st.tuples(st.integers(0, 29), st.integers(1, 30)), max_size=4),
)
def test_whatever_is_added_all_that_was_secret_stays_so(
    text: str, some: list[tuple[int, int]], more: list[tuple[int, int]]
) -> None:
    def spans(pairs: list[tuple[int, int]]) -> list[Span]:
        return [Span(start, end) for start, end in pairs if start < end <= len(text)]

    def covered(tagged: TaggedText) -> set[int]:
        return {at for span in tagged.spans for at in range(span.start, span.end) if not text[at].isspace()}

    first = add_spans(TaggedText(text), spans(some))
    second = add_spans(first, spans(more))
    assert covered(first) <= covered(second)
    ends = [(span.start, span.end) for span in second.spans]
    assert all(one[1] <= other[0] for one, other in pairwise(ends))


def test_every_other_mention_of_a_secret_is_one() -> None:
    first = parse_redacted('I am <redacted category="name">Ann</redacted>. Annual leave of ANN.')
    found = add_mentions([first, TaggedText("Dear Ann, thank you.")])
    assert [[text.secret(span) for span in text.spans] for text in found] == [["Ann", "ANN"], ["Ann"]]
    assert {span.category for text in found for span in text.spans} == {Category.NAME}


def test_a_secret_of_earlier_is_one_wherever_it_is_said_again() -> None:
    first = parse_redacted('Is <redacted category="name">Ann</redacted> Lee in GHENT or in Ghentbrugge?')
    [found] = add_mentions([first], known=["ghent", "ann lee", "oslo"])
    assert [found.secret(span) for span in found.spans] == ["Ann Lee", "GHENT"], "what overlaps is one secret"
    assert found.spans[0].category is Category.NAME
    assert add_mentions([TaggedText("Nobody is here.")], known=["ghent"]) == [TaggedText("Nobody is here.")]


def test_more_secrets_than_can_be_hidden_are_refused() -> None:
    words = [f"word{number}" for number in range(MAX_SECRETS + 1)]
    many = parse_redacted("All of " + " ".join(redacted(word) for word in words[1:]))
    assert len(add_mentions([many])[0].spans) == MAX_SECRETS
    with pytest.raises(TagsInvalid, match=f"{MAX_SECRETS + 1} secrets"):
        add_mentions([many, TaggedText("and word0")], known=["word0"])


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = parse_redacted(text)
    except CloisterError:
        return
    assert all(found.secret(span).strip() for span in found.spans)


def test_a_regular_secret_has_usual_capitals_and_spaces_and_stands_where_it_is_said_to_stand() -> None:
    marked = parse_redacted(
        'To <redacted category="name">ann  maria VAN lee</redacted> and '
        '<redacted category="name">JEAN-LUC of GHENT</redacted> on <redacted category="date">3 march</redacted>: '
        "<redacted>free  WORDS</redacted>."
    )
    found = regularise(marked)
    assert [found.secret(span) for span in found.spans] == [
        "ann maria VAN lee",
        "JEAN-LUC of GHENT",
        "3 March",
        "free WORDS",
    ]
    lower = regularise(parse_redacted('<redacted category="place">den haag in holland</redacted> is far'))
    assert lower.text == "Den Haag in Holland is far"
