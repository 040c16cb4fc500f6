"""How many of the labelled secrets `auto_redact` marks, by category of the marks: whole, in part, and named as what it
is. A secret half marked goes out half."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from cloister.errors import SetupError
from cloister.obfuscation.tags import Category
from cloister_bench.detection.data import TEST, UNKNOWN, Sample
from cloister_bench.obfuscation.texts import clinical_notes
from cloister_bench.suite.documents import Row, Table, rate_cell, rate_of

_KINDS = {
    Category.NAME: "PERSON PERSON_NAME",
    Category.DATE: "DATE_TIME DATE_OF_BIRTH TIMESTAMP",
    Category.AGE: "AGE",
    Category.PLACE: "GPE LOCATION STREET_ADDRESS ZIP_CODE",
    Category.ORGANISATION: "ORGANIZATION ORGANIZATION_NAME",
    Category.MEDICATION: "MEDICATION_NAME",
    Category.FREE: "UNIT HEALTH_CONDITION SALARY JOB_TITLE TITLE PROCEDURE_NAME NRP RELIGIOUS_BELIEF NATIONALITY "
    "ETHNICITY EDUCATION_LEVEL POLITICAL_OPINION",
}
CATEGORY = {kind: category for category, kinds in _KINDS.items() for kind in kinds.split()}  # all others are an id
Detector = Callable[[str], Iterable[tuple[int, int, str]]]


def clinical_samples(shared: Path) -> Iterator[Sample]:
    """What the rules of the obfuscation bench mark in clinical notes: nothing here was trained on them."""
    try:
        texts = [text for text in clinical_notes(shared) if text.spans]
    except SetupError:
        return
    for text in texts:
        spans = tuple((span.start, span.end, f"clinical {span.category}") for span in text.spans)
        yield Sample("mts_dialog", "en", TEST, text.text, spans)


def category_of(kind: str) -> Category:
    named = kind.removeprefix("clinical ")
    return Category(named) if named != kind else CATEGORY.get(kind, Category.ID)


class RedactionRecall:
    def __init__(self, detector: Detector) -> None:
        self._detector = detector
        self._secrets: dict[tuple[str, str], list[tuple[bool, bool, bool]]] = defaultdict(list)
        self._clean: dict[str, list[int]] = defaultdict(list)

    def add(self, sample: Sample) -> None:
        """A text without labels counts how many marks it gets."""
        found = list(self._detector(sample.text))
        if not sample.spans:
            self._clean[sample.dataset].append(len(found))
        for start, end, kind in sample.spans:
            if kind == UNKNOWN or not sample.text[start:end].strip():
                continue
            letters = [at for at in range(start, end) if sample.text[at].isalnum()] or [start]
            marked = [[name for begin, stop, name in found if begin <= at < stop] for at in letters]
            category = str(category_of(kind))
            named = any(category in names for names in marked)
            self._secrets[(category, sample.dataset)].append((all(marked), any(marked), named))

    def rows(self) -> list[Row]:
        """All sets together, then one by one; `clean`: marks in a text that has no labels."""
        by_category: dict[str, list[tuple[bool, bool, bool]]] = defaultdict(list)
        for (category, _), hits in self._secrets.items():
            by_category[category] += hits
        groups = [((category, "all"), hits) for category, hits in sorted(by_category.items())]
        groups += sorted(self._secrets.items())
        return [{"category": category, "set": dataset, **_rates(hits)} for (category, dataset), hits in groups]

    def clean(self) -> Row:
        return {
            name: {"texts": len(counts), "marked": rate_of(sum(map(bool, counts)), len(counts)), "marks": sum(counts)}
            for name, counts in sorted(self._clean.items())
        }


def _rates(hits: list[tuple[bool, bool, bool]]) -> dict[str, Any]:
    whole, touched, named = (sum(each) for each in zip(*hits, strict=True))
    return {
        "whole": rate_of(whole, len(hits)),
        "touched": rate_of(touched, len(hits)),
        "named": rate_of(named, len(hits)),
    }


def redaction_table(rows: list[Row]) -> Table:
    return Table.of(
        "Secrets that auto_redact marks",
        [row for row in rows if row["set"] == "all" or row["set"] == "mts_dialog"],
        {
            "": lambda row: row["category"] if row["set"] == "all" else f"{row['category']}, notes",
            "whole": lambda row: rate_cell(row["whole"]),
            "in part": lambda row: row["touched"]["share"],
            "as what it is": lambda row: row["named"]["share"],
            "of": lambda row: row["whole"]["of"],
        },
    )
