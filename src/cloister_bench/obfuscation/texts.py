"""Secrets in their texts. The rule, fixed before any result: all labelled spans of four sources (notes of MTS-Dialog's
training file that earlier measurements did not reach, Presidio's sentences, PII-Anon's documents, résumés made here of
values from every second Presidio sentence), cut near the secret, shuffled by `SEED`, the sources in turn. The first
`USED` of each category, and their values, are for tuning. The validation file of MTS-Dialog comes last."""

from __future__ import annotations

import csv
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

from cloister.errors import SetupError
from cloister.obfuscation.tags import Category, Span, TaggedText
from cloister_bench.words import read_words

SEED, BEFORE, AFTER = 36, 160, 80  # characters kept before and after the secrets
NOTES, LATER = "mts_dialog_train.csv", "mts_dialog_val.csv"
TWICE, USED = 2, 50  # a value may come so often

# Notes of the training file that the measurements before this one used.
_REACHED = {
    0, 1, 2, 11, 14, 16, 23, 28, 36, 40, 52, 79, 96, 112, 117, 119, 122, 141, 172, 182, 186, 193, 199, 209, 223,
    226, 234, 244, 246, 247, 257, 297, 300, 307, 324, 337, 338, 370, 583, 616, 625, 643, 682, 708, 799, 818, 856,
    903, 1011, 1017, 1155,
}  # fmt: skip
_MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_DATE = rf"\b{_MONTH}(?: \d{{1,2}})?(?:,? (?:of )?(?:19|20)\d\d)?\b|\b\d{{1,2}}/\d{{1,2}}/(?:\d\d){{1,2}}\b"
_DRUGS = (
    "aspirin ibuprofen acetaminophen lisinopril metformin atenolol metoprolol amlodipine simvastatin prednisone "
    "insulin warfarin albuterol amoxicillin omeprazole furosemide gabapentin morphine codeine penicillin"
)
RULES = {
    Category.NAME: re.compile(r"(?<=\bMr\. |\bMs\. |\bDr\. )[A-Z][a-z]{2,}\b"),
    Category.AGE: re.compile(r"\b\d{2}(?=[- ]years?[- ]old)"),
    Category.DATE: re.compile(_DATE),
    Category.MEDICATION: re.compile(rf"\b(?:{'|'.join(_DRUGS.split())})\b", re.IGNORECASE),
}
_LISTED = re.compile(r"\b[A-Za-z][a-z]{4,}\b")  # in a list of medications, if no common word
_NO_DRUGS = (
    "inhaler inhalers psoriasis sinus hives ointment anymore multivitamin multivitamins dosage eczema atopic "
    "cream wrist hyperactivity enteric bites dictation psychiatrist hypertension rhinitis obstetrician "
    "gynecologist herbal allergic "
)
_LABELS = {
    Category.NAME: "PERSON PERSON_NAME",
    Category.DATE: "DATE_TIME DATE_OF_BIRTH",
    Category.AGE: "AGE",
    Category.PLACE: "GPE LOCATION_NAME",
    Category.ORGANISATION: "ORGANIZATION ORGANIZATION_NAME",
    Category.MEDICATION: "MEDICATION_NAME",
    Category.ID: "CREDIT_CARD IBAN_CODE US_SSN PHONE_NUMBER MEDICAL_RECORD_NUMBER NPI_NUMBER SOCIAL_SECURITY_NUMBER "
    "HEALTH_INSURANCE_ID",
    Category.FREE: "HEALTH_CONDITION JOB_TITLE PROCEDURE_NAME",
}
_OF_LABEL = {label: category for category, labels in _LABELS.items() for label in labels.split()}
_RESUMES = (
    "{name}, {free}. Born on {date} in {place}. Since 2016 with {organisation}, leading a team of six people.",
    "Curriculum vitae of {name}. Phone: {id}. From 2011 to 2015 {free} at {organisation}, {place}.",
    "I have worked at {organisation} in {place} since {date}. My last position was {free}. Yours sincerely, {name}",
    "References: {name}, {free} at {organisation}, phone {id}. I moved to {place} after my degree.",
    "Education: diploma awarded on {date} in {place}. Work: {free}, {organisation}. Contact: {name}, {id}.",
)
_ANY = re.compile("")
_FORMS = {"id": re.compile(r"[+(]?\d+[ )(-][\d ()x-]{5,}$"), "date": re.compile(r"\d+[-/]\d+[-/]\d+$")}  # of résumés


@dataclass(frozen=True, slots=True, repr=False)
class Case:
    source: str
    text: TaggedText


def one_secret(shared: Path | None, most: int) -> dict[Category, list[Case]]:
    """At most `most` texts of a category, each with one secret; SetupError where the data is not here."""
    found: dict[Category, dict[str, list[Case]]] = {category: {} for category in Category}
    for source, text in _all(shared):
        for span in text.spans:
            if (near := cut(text, (span,))) is not None:
                found[span.category].setdefault(source, []).append(Case(source, near))
    later: dict[Category, list[Case]] = {category: [] for category in Category}
    for text in clinical_notes(shared, LATER):
        for span in text.spans:
            later[span.category] += [Case("clinical", near)] if (near := cut(text, (span,))) is not None else ()
    return {
        category: list(islice(_unused(list(_in_turns(category, of)), later[category]), most))
        for category, of in found.items()
    }


def _unused(cases: list[Case], later: list[Case]) -> Iterator[Case]:
    known = {case.text.secret(span).casefold() for case in cases[:USED] for span in case.text.spans}
    return (case for case in (*cases[USED:], *later) if case.text.secret(case.text.spans[0]).casefold() not in known)


def several_secrets(shared: Path | None, most: int) -> list[Case]:
    """Two, three or four neighbours of different categories in a document or résumé."""
    found: list[Case] = []
    for number, (source, text) in enumerate(each for each in _all(shared) if each[0] in ("pii-anon", "résumé")):
        wanted = 2 + number % 3
        first = {span.category: span for span in reversed(text.spans[: wanted + 2])}
        spans = tuple(sorted(first.values())[:wanted])
        if len(spans) == wanted and (near := cut(text, spans)) is not None:
            found.append(Case(source, near))
    random.Random(SEED).shuffle(found)
    return found[USED : USED + most]


def cut(text: TaggedText, spans: tuple[Span, ...]) -> TaggedText | None:
    """None where the text names a secret within a longer word (an address of mail), which no mark could hide."""
    start, end = max(0, spans[0].start - BEFORE), min(len(text.text), spans[-1].end + AFTER)
    if start and (space := text.text.find(" ", start, spans[0].start)) > 0:
        start = space + 1
    if end < len(text.text) and (space := text.text.rfind(" ", spans[-1].end, end)) > 0:
        end = space
    said = text.text[start:end]
    for word in (word for span in spans for word in re.findall(r"\w{3,}", text.secret(span))):
        if len(re.findall(re.escape(word), said, re.IGNORECASE)) > len(re.findall(rf"\b{word}\b", said, re.IGNORECASE)):
            return None
    return TaggedText(said, tuple(Span(one.start - start, one.end - start, one.category) for one in spans))


def common_words(shared: Path | None) -> Counter[str]:
    """How often texts of other fields say a word: a book, encyclopedias, clinical dialogues."""
    folder = (shared or Path("shared")) / "data"
    books = ("pride_and_prejudice.txt", "wikitext2_raw_test.txt", "xquad_en.json")
    files = [*(folder / "longctx" / name for name in books)]
    return Counter(chain.from_iterable(re.findall(r"[a-z]+", _read(file).lower()) for file in files))


def other_notes(shared: Path | None) -> list[str]:
    """Notes that no case comes from."""
    return [note for number, _, note in _notes(shared) if number in _REACHED]


def _all(shared: Path | None) -> Iterator[tuple[str, TaggedText]]:
    presidio = list(_labelled(json.loads(_read(_data(shared, "presidio_synth_dataset_v2.json")))))
    documents = [
        json.loads(line)
        for name in ("clinical", "technology")
        for line in _read(_data(shared, f"pii_anon_test_{name}_250.jsonl")).splitlines()
    ]
    yield from (("clinical", text) for text in clinical_notes(shared))
    yield from (("presidio", text) for text in presidio[::2])
    yield from (("pii-anon", text) for text in _labelled(documents))
    yield from (("résumé", text) for text in _resumes([*presidio[1::2], *_labelled(documents)]))


def clinical_notes(shared: Path | None, file: str = NOTES) -> Iterator[TaggedText]:
    common = common_words(shared).keys() | set(_NO_DRUGS.split())
    for number, section, note in _notes(shared, file):
        if number not in _REACHED or file != NOTES:
            found = [Span(*match.span(), which) for which, rule in RULES.items() for match in rule.finditer(note)]
            if section == "MEDICATIONS":
                words = (
                    word for word in _LISTED.finditer(note) if not {word[0].lower(), word[0].lower()[:-1]} & common
                )
                found += [Span(*word.span(), Category.MEDICATION) for word in words]
            yield TaggedText(note, _apart(found))


def _labelled(rows: list[dict[str, Any]]) -> Iterator[TaggedText]:
    for row in rows:
        found = [
            Span(one.get("start_position", one.get("start")), one.get("end_position", one.get("end")), which)
            for one in row.get("spans", row.get("annotations", ()))
            if (which := _OF_LABEL.get(one["entity_type"])) and one.get("entity_value") != "nan"
        ]
        yield TaggedText(row.get("full_text") or row["text"], _apart(found))


def _resumes(texts: list[TaggedText]) -> Iterator[TaggedText]:
    draw = random.Random(SEED)
    values: dict[str, list[str]] = {}
    for text in texts:
        for span in text.spans:
            values.setdefault(str(span.category), []).append(text.secret(span))
    values = {slot: [each for each in those if _FORMS.get(slot, _ANY).match(each)] for slot, those in values.items()}
    values["free"] = list(read_words("values")["JOBS"])
    for number in range(300):
        said, spans = "", []
        for before, slot in re.findall(r"([^{]*)(?:\{(\w+)\})?", _RESUMES[number % len(_RESUMES)]):
            said += before
            if slot:
                value = draw.choice(values[slot])
                spans.append(Span(len(said), len(said) + len(value), Category(slot)))
                said += value
        yield TaggedText(said, tuple(spans))


def _in_turns(category: Category, sources: dict[str, list[Case]]) -> Iterator[Case]:
    draw, seen = random.Random(f"{SEED} {category}"), Counter[str]()
    for cases in sources.values():
        draw.shuffle(cases)
    for case in chain.from_iterable(zip_longest(*sources.values())):
        if case is not None and seen[value := case.text.secret(case.text.spans[0]).casefold()] < TWICE:
            seen[value] += 1
            yield case


def _apart(spans: list[Span]) -> tuple[Span, ...]:
    kept: list[Span] = []
    for span in sorted(spans):
        if not kept or span.start >= kept[-1].end:
            kept.append(span)
    return tuple(kept)


def _notes(shared: Path | None, file: str = NOTES) -> Iterator[tuple[int, str, str]]:
    with (_data(shared, file, "clinical")).open(newline="", encoding="utf-8") as opened:
        for number, row in enumerate(csv.DictReader(opened)):
            yield number, row["section_header"], " ".join(row["section_text"].split())


def _data(shared: Path | None, name: str, folder: str = "pii") -> Path:
    path = (shared or Path("shared")) / "data" / folder / name
    if not path.is_file():
        raise SetupError(f"There is no {path}.", hint="Say where the data is with --shared DIR.")
    return path


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
