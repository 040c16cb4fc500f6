"""Texts with secrets: the notes of clinical dialogues (shared/data/clinical), marked by rules, cut near the secret. The
paper had them marked by hosted tools (§9.3); rules find fewer secrets, and surely."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from cloister.errors import SetupError
from cloister.obfuscation.tags import Category, Span, TaggedText

FILES = ("mts_dialog_val.csv", "mts_dialog_train.csv")
NEAR = 300

_MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_DRUGS = (
    "aspirin ibuprofen acetaminophen lisinopril metformin atenolol metoprolol amlodipine simvastatin prednisone "
    "insulin warfarin albuterol amoxicillin omeprazole furosemide gabapentin morphine codeine penicillin"
)
RULES: dict[Category, re.Pattern[str]] = {
    Category.NAME: re.compile(r"\b(?:Mr|Mrs|Ms|Dr)\. [A-Z][a-z]+\b"),
    Category.AGE: re.compile(r"\b\d{2}(?=[- ]years?[- ]old)"),
    Category.DATE: re.compile(
        rf"\b{_MONTH}(?: \d{{1,2}})?(?:,? (?:19|20)\d\d)?\b|\b\d{{1,2}}/\d{{1,2}}/(?:\d\d){{1,2}}\b"
    ),
    Category.MEDICATION: re.compile(rf"\b(?:{'|'.join(_DRUGS.split())})\b", re.IGNORECASE),
}


def clinical_texts(shared: Path | None, most: int) -> dict[Category, list[TaggedText]]:
    """Each with one secret, at most `most` of a category; SetupError where the data is not here."""
    folder = (shared or Path("shared")) / "data" / "clinical"
    if not any((folder / name).is_file() for name in FILES):
        raise SetupError(f"There are no clinical dialogues in {folder}.", hint="Say where they are with --shared DIR.")
    found: dict[Category, list[TaggedText]] = {category: [] for category in RULES}
    seen: set[str] = set()
    for note in _notes(folder):
        for category, rule in RULES.items():
            match = rule.search(note)
            if match and len(found[category]) < most and match[0].casefold() not in seen:
                seen.add(match[0].casefold())
                found[category].append(_near(note, match.start(), match.end(), category))
    return found


def other_notes(shared: Path | None, texts: dict[Category, list[TaggedText]]) -> list[str]:
    used = [text.text for those in texts.values() for text in those]
    notes = _notes((shared or Path("shared")) / "data" / "clinical")
    return [note for note in notes if not any(text in note for text in used)]


def _notes(folder: Path) -> Iterator[str]:
    for name in FILES:
        if (folder / name).is_file():
            with (folder / name).open(newline="", encoding="utf-8") as file:
                yield from (" ".join(row["section_text"].split()) for row in csv.DictReader(file))


def _near(note: str, start: int, end: int, category: Category) -> TaggedText:
    first = 0 if start <= NEAR else note.index(" ", start - NEAR, start) + 1
    last = len(note) if len(note) - end <= NEAR else note.rindex(" ", end, end + NEAR)
    return TaggedText(note[first:last], (Span(start - first, end - first, category),))
