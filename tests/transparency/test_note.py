"""Signed notes: what is read is written back, and nothing that is not one is read."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import EvidenceInvalid
from cloister.transparency.note import (
    MAX_NOTE_CHARACTERS,
    MAX_SIGNATURES,
    Note,
    Signature,
    exact_base64,
    is_name,
    read_note,
)

GOOD = "one line\nanother\n\n— a.example c29tZXRoaW5n\n"


def test_a_note_is_read() -> None:
    note = read_note(GOOD)
    assert note == Note("one line\nanother\n", (Signature("a.example", b"some", b"thing"),))
    assert str(note) == GOOD


def test_an_empty_line_belongs_to_the_text_if_another_follows() -> None:
    assert read_note("one\n\ntwo\n\n— a c29tZXRoaW5n\n").text == "one\n\ntwo\n"


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "\n",
        "text\n",
        "text\n\n",
        "\n\n— a c29tZXRoaW5n\n",
        "text\n— a c29tZXRoaW5n\n",
        GOOD.removesuffix("\n"),
        GOOD + "\n",
        GOOD + "more\n",
        GOOD.replace("— ", "- "),
        GOOD.replace("— ", "—"),
        GOOD.replace("a.example", ""),
        GOOD.replace("a.example", "a+b"),
        GOOD.replace("a.example ", "a.example"),
        GOOD.replace("a.example", "a\u00a0b"),
        GOOD.replace("c29tZXRoaW5n", "c29tZXRoaW5"),
        GOOD.replace("c29tZXRoaW5n", "c29tZQ=="),
        GOOD.replace("c29tZXRoaW5n", "c29tZXRoaW5n "),
        GOOD.replace("c29tZXRoaW5n", "c29tZ_RoaW5n"),
        GOOD.replace("line", "li\tne"),
        GOOD.replace("line", "li\0ne"),
        GOOD.replace("line", "li\r\nne"),
        GOOD.replace("line", "li\ud800ne"),
        GOOD.replace("a.example", "a\ud800"),
        "x" * MAX_NOTE_CHARACTERS + GOOD,
        "text\n\n" + "— a c29tZXRoaW5n\n" * (MAX_SIGNATURES + 1),
    ],
)
def test_what_is_no_note_is_refused(wrong: str) -> None:
    with pytest.raises(EvidenceInvalid):
        read_note(wrong)


def test_base64_has_one_writing_only() -> None:
    assert exact_base64("TQ==") == b"M"
    for stray in ("TR==", "TQ=", "TQ", "TQ==\n", "TQ== ", "T Q==", "TQé=", "____"):
        assert exact_base64(stray) is None


def test_names() -> None:
    assert is_name("example.com/log") and is_name("日本")
    assert not any(is_name(wrong) for wrong in ("", "a b", "a\nb", "a+b", "a\u2003b", "a\x1bb"))


NOTES = st.builds(
    lambda body, lines: (
        f"{body}\n\n" + "".join(f"— {name} {base64.b64encode(value).decode()}\n" for name, value in lines)
    ),
    st.text(),
    st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=9)), max_size=4),
)


@given(st.text() | NOTES)
def test_anything_is_read_back_the_same_or_refused(data: str) -> None:
    try:
        note = read_note(data)
    except EvidenceInvalid:
        return
    assert str(note) == data
