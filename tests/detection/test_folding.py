"""Folding undoes disguises, and every span of the folded text leads back to the original."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.detection.folding import fold

DISGUISES = {
    "fullwidth": ("Ｊｏｈｎ＠ｅｘａｍｐｌｅ．ｃｏｍ", "John@example.com"),
    "mathematical letters": ("𝓙𝓸𝓱𝓷 𝟜𝟙𝟙𝟙", "John 4111"),
    "Cyrillic lookalikes in a Latin word": ("J\u043ehn Sm\u0456th", "John Smith"),
    "zero width": ("41\u200b11\u200d 1\ufeff111", "4111 1111"),
    "soft hyphens": ("pass\u00adword", "password"),
    "accents": ("Müller, Łódź, Straße", "Muller, Lodz, Strasse"),
    "combining accents": ("e\u0301mile", "emile"),
    "digits of other scripts": ("٠١٢ १२३", "012 123"),
    "no-break spaces and dashes": ("555\u00a01234\u20115678", "555 1234-5678"),
    "ligatures": ("ﬁle ⑩", "file 10"),
    "tags beyond the planes": ("hi\U000e0041\U000e0042", "hi"),
}


@pytest.mark.parametrize(("disguised", "plain"), DISGUISES.values(), ids=DISGUISES.keys())
def test_a_disguise_is_undone(disguised: str, plain: str) -> None:
    assert fold(disguised).text == plain


def test_other_scripts_stay_as_they_are() -> None:
    for text in ("Иван Петров, паспорт", "日本語の文章", "한국어 문장", "Γιώργος"):
        assert fold(text).text.replace(" ", "")[:4] == text.replace("ώ", "ω").replace(" ", "")[:4]


def test_a_span_leads_back_over_what_was_dropped_and_what_became_longer() -> None:
    text = "a\u200bb ﬁ\u0301n c"
    folded = fold(text)
    start = folded.text.index("fin")
    first, last = folded.original(start, start + 3)
    assert text[first:last].startswith("ﬁ") and text[first:last].strip().endswith("n")


@given(st.text(max_size=200))
def test_any_text_folds_and_every_place_leads_back(text: str) -> None:
    folded = fold(text)
    places = [folded.original(place, place + 1) for place in range(len(folded.text))]
    assert all(0 <= start <= end <= len(text) for start, end in places)
    assert [start for start, _ in places] == sorted(start for start, _ in places)
    assert fold(folded.text).text == fold(fold(folded.text).text).text
