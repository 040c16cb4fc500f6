"""The shared data as labelled texts: (text, spans), a span being (start, end, class); class −1 says "unknown, ignore".

Read where they lie, never copied; licences are in the folder's SOURCES.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from tagger import names
from tagger.values import NAME, NUMBER, ONLINE, ORG, PLACE, SECRET, TIME, TRAIT

from cloister.bench.detection.data import prompts, quarter_of, read_sets

Span = tuple[int, int, int]
Text = tuple[str, list[Span]]

KINDS = {
    NAME: "PERSON PERSON_NAME TITLE UNIT",
    PLACE: "GPE STREET_ADDRESS ZIP_CODE LOCATION LOCATION_NAME LATITUDE_LONGITUDE",
    ORG: "ORGANIZATION ORG ORGANIZATION_NAME BANK",
    TIME: "DATE_TIME TIMESTAMP DATE_OF_BIRTH EVENT",
    TRAIT: """AGE NRP JOB_TITLE HEALTH_CONDITION MEDICATION_NAME PROCEDURE_NAME RELIGIOUS_BELIEF NATIONALITY ETHNICITY
    EDUCATION_LEVEL POLITICAL_OPINION BIOMETRIC_ID MISC SYSTEM""",
    ONLINE: "EMAIL EMAIL_ADDRESS DOMAIN_NAME URL IP_ADDRESS MAC_ADDRESS USERNAME USERID USER_ID SOCIAL_MEDIA_HANDLE",
    SECRET: "PASSWORD API_KEY",
}
KIND_OF = {label: kind for kind, labels in KINDS.items() for label in labels.split()}
"""All other labels are numbers."""


TRAINED_ON = (0, 1)
"""Quarters of each set."""


def labelled(folder: Path) -> dict[str, list[Text]]:
    """What may be trained on of the labelled sets, by set."""
    sets: dict[str, list[Text]] = {}
    for sample in read_sets(folder):
        if sample.quarter in TRAINED_ON and sample.dataset not in PROMPTS:
            spans = [(start, end, _kind(label)) for start, end, label in sample.spans]
            sets.setdefault(sample.dataset, []).append((sample.text, spans))
    return sets


def _kind(label: str) -> int:
    return -1 if label == "?" else KIND_OF.get(label, NUMBER)


PROMPTS = ("arena_hard", "mt_bench", "awesome", "self_instruct", "injecguard", "prompt_extraction")


def unlabelled(folder: Path) -> list[str]:
    """Prompts that may be trained on."""
    found = prompts(folder / "data")
    return [
        text for name, texts in found.items() if name != "mt_bench" for text in texts if quarter_of(text) in TRAINED_ON
    ]


def presidio_templates(folder: Path) -> list[str]:
    """Sentences of presidio's with slots, of the same quarters."""
    rows = json.loads((folder / "data/pii/presidio_synth_dataset_v2.json").read_text(encoding="utf-8"))
    return sorted({row["masked"] for row in rows if quarter_of(row["template_id"]) in TRAINED_ON})


CHARACTERS = frozenset(
    """Elizabeth Darcy Bingley Jane Wickham Collins Bennet Lydia Charlotte Gardiner Lucas Phillips Forster Kitty Mary
    Hurst Fitzwilliam Georgiana Reynolds Bourgh Catherine Lizzy Maria William Denny Caroline Louisa Hill King
    Annesley""".split()  # noqa: SIM905
)
PLACES = frozenset(
    """Longbourn Netherfield Meryton Pemberley Rosings Hunsford London Hertfordshire Derbyshire Brighton Lambton Kent
    Ramsgate Bromley Newcastle Lakes Cheapside Oakham Epsom Clapham Barnet Gretna""".split()  # noqa: SIM905
)


def novel(folder: Path) -> Iterator[Text]:
    """Sentences of a novel in the public domain, its people and places labelled by its own cast."""
    text = (folder / "data/longctx/pride_and_prejudice.txt").read_text(encoding="utf-8-sig")
    body = text[text.index("truth universally acknowledged") - 20 : text.rindex("End of")]
    for paragraph in body.split("\n\n"):
        line = " ".join(paragraph.split()).replace("_", "")
        if not len(line) > 30 or line.startswith("Chapter"):
            continue
        spans = []
        for word in re.finditer(r"[A-Z][a-z]+", line):
            if word.group() in CHARACTERS:
                spans.append((word.start(), word.end(), NAME))
            elif word.group() in PLACES:
                spans.append((word.start(), word.end(), PLACE))
        yield line, spans


def doubtful(text: str, common: set[str]) -> list[Span]:
    """Of an unlabelled text: what might be an entity, to be ignored in training."""
    spans = []
    for word in re.finditer(r"[^\W\d_]+|\d[\d.,:/-]{3,}\d|\S+@\S+", text):
        found, low = word.group(), word.group().lower()
        if found[0].isdigit() or "@" in found or (found[0].isupper() and (low not in common or low in names.KNOWN)):
            spans.append((word.start(), word.end(), -1))
    return spans
