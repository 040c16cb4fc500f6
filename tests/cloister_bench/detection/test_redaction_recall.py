"""Recall of `auto_redact` counts whole secrets: one half marked is missed, and a wrong category is seen."""

from __future__ import annotations

from cloister_bench.detection.data import Sample
from cloister_bench.detection.redaction_recall import CATEGORY, RedactionRecall, category_of, redaction_table

TEXT = "Ann Lee takes aspirin in Ghent, 5 May."


def sample(*secrets: tuple[str, str], text: str = TEXT) -> Sample:
    spans = tuple((text.index(secret), text.index(secret) + len(secret), kind) for secret, kind in secrets)
    return Sample("a", "en", 3, text, spans)


def test_a_secret_half_marked_is_not_whole_and_a_wrong_category_is_counted() -> None:
    at = TEXT.index
    marks = [(0, 3, "name"), (at("aspirin"), at(" in"), "name"), (at("Ghent"), at(","), "place")]
    recall = RedactionRecall(lambda text: marks)
    recall.add(sample(("Ann Lee", "PERSON"), ("aspirin", "clinical medication"), ("Ghent", "GPE"), ("May", "?")))
    rows = {row["category"]: row for row in recall.rows() if row["set"] == "all"}
    assert set(rows) == {"name", "medication", "place"}, "what is not known counts for nothing"
    shares = {name: [row[key]["share"] for key in ("whole", "touched", "named")] for name, row in rows.items()}
    assert shares == {"name": [0, 1, 1], "medication": [1, 1, 0], "place": [1, 1, 1]}
    assert len(redaction_table(recall.rows()).rows) == 3


def test_marks_in_a_clean_text_are_counted() -> None:
    recall = RedactionRecall(lambda text: [(0, 3, "name")] if text == TEXT else [])
    recall.add(sample())
    recall.add(sample(text="Nothing here."))
    assert recall.clean()["a"] | {"marked": 0.5} == {"texts": 2, "marked": 0.5, "marks": 1}


def test_labels_have_categories() -> None:
    assert (category_of("PERSON"), category_of("IBAN"), category_of("clinical age")) == ("name", "id", "age")
    assert len(set(CATEGORY.values())) == 7
