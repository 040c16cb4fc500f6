from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import InvalidRequest
from cloister.prompts.reading import CLOSING, OPENING, Marked, parse_confidential, shared_length

FRAGMENTS = [
    OPENING,
    CLOSING,
    "<confidential",
    "confidential>",
    "</",
    "<",
    ">",
    "conf",
    "idential>",
    "a",
    "é",
    "🙂",
    "\n",
]


def put_back(marked: Marked) -> str:
    pieces, at = [], 0
    for start, end in marked.spans:
        pieces += [marked.text[at:start], OPENING, marked.text[start:end], CLOSING]
        at = end
    return "".join(pieces) + marked.text[at:]


@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=12).map("".join))
def test_a_text_is_refused_or_loses_its_tags_and_nothing_else(text: str) -> None:
    try:
        marked = parse_confidential(text, param="prompt")
    except InvalidRequest:
        return
    assert put_back(marked) == text
    assert OPENING not in marked.text and CLOSING not in marked.text
    edges = [edge for span in marked.spans for edge in span]
    assert edges == sorted(edges) and all(0 <= edge <= len(marked.text) for edge in edges)


@given(st.lists(st.tuples(st.booleans(), st.text(alphabet="ab<>/c🙂 ", max_size=5)), max_size=8))
def test_pairs_are_always_understood(parts: list[tuple[bool, str]]) -> None:
    text = "".join(f"{OPENING}{words}{CLOSING}" if private else words for private, words in parts)
    marked = parse_confidential(text, param="prompt")
    assert marked.text == "".join(words for _, words in parts)
    assert [marked.text[start:end] for start, end in marked.spans] == [words for private, words in parts if private]
    assert marked.without_private("\ue000") == "".join(
        "\ue000" if private and words else words for private, words in parts
    )


@pytest.mark.parametrize(
    "text",
    [
        "<confidential>secret",
        "secret</confidential>",
        "</confidential>secret<confidential>",
        "<confidential>a<confidential>secret</confidential>b</confidential>",
        "<confidential>secret</confidential></confidential>",
        "<confidential>secret</confidential><confidential>",
        "<conf<confidential></confidential>idential>secret",
        "<confidential>secret</conf<confidential></confidential>idential>",
    ],
)
@pytest.mark.parametrize("param", ["messages", "prompt"])
def test_what_does_not_pair_is_refused_without_being_quoted(text: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_confidential(text, param=param)
    assert caught.value.param == param and caught.value.hint
    assert "secret" not in str(caught.value) and caught.value.__cause__ is None


@pytest.mark.parametrize("text", ["", "plain", "<Confidential>", "< confidential>", "<confidential >", "confidential"])
def test_only_the_exact_tag_is_one(text: str) -> None:
    marked = parse_confidential(text, param="prompt")
    assert marked.text == text and not marked.spans and marked.first_private is None


def test_an_empty_pair_is_a_tag_with_nothing_private() -> None:
    marked = parse_confidential(f"a{OPENING}{CLOSING}b", param="prompt")
    assert marked.first_private is None and marked.spans == ((1, 1),)
    assert parse_confidential(f"a{OPENING}{CLOSING}b{OPENING}c{CLOSING}", param="prompt").first_private == 2


def test_many_tags_take_linear_work() -> None:
    """Quadratic work over two hundred thousand tags would not come back."""
    marked = parse_confidential(f"x{OPENING}y{CLOSING}" * 200_000 + "<confidential" * 200_000, param="prompt")
    assert len(marked.spans) == 200_000
    assert marked.without_private("").count("x") == 200_000


def test_representation_is_silent() -> None:
    assert "secret" not in repr(parse_confidential("secret", param="prompt"))


@pytest.mark.parametrize(("one", "other", "length"), [("", "a", 0), ("ab", "abc", 2), ("abd", "abc", 2), ([1], [1], 1)])
def test_shared_length(one: str, other: str, length: int) -> None:
    assert shared_length(one, other) == shared_length(other, one) == length
