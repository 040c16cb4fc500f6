"""The shared data as labelled texts: (text, spans), a span being (start, end, class); class −1 says "unknown, ignore".

Read where they lie (`CLOISTER_SHARED`/data), never copied. Which may be trained on, and by which quarters, is decided in
`train_tagger.py`; licences are in the folder's SOURCES.md.
"""

from __future__ import annotations

import csv
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from tagger import names
from tagger.values import NAME, NUMBER, ONLINE, ORG, PLACE, SECRET, TIME, TRAIT

Span = tuple[int, int, int]
Text = tuple[str, list[Span]]

KINDS = {
    NAME: "PERSON PERSON_NAME TITLE person",
    PLACE: "GPE STREET_ADDRESS ZIP_CODE LOCATION LOCATION_NAME LATITUDE_LONGITUDE location",
    ORG: "ORGANIZATION ORG ORGANIZATION_NAME BANK corporation group",
    TIME: "DATE_TIME TIMESTAMP DATE_OF_BIRTH EVENT",
    TRAIT: """AGE NRP JOB_TITLE HEALTH_CONDITION MEDICATION_NAME PROCEDURE_NAME RELIGIOUS_BELIEF NATIONALITY ETHNICITY
    EDUCATION_LEVEL POLITICAL_OPINION BIOMETRIC_ID MISC SYSTEM""",
    ONLINE: "EMAIL EMAIL_ADDRESS DOMAIN_NAME URL IP_ADDRESS MAC_ADDRESS USERNAME USERID USER_ID SOCIAL_MEDIA_HANDLE",
    SECRET: "PASSWORD API_KEY",
}
KIND_OF = {label: kind for kind, labels in KINDS.items() for label in labels.split()}
"""All other labels are numbers."""


def quarter(key: object) -> int:
    """0 to 3, for ever the same: which quarter of a set something belongs to."""
    return zlib.crc32(str(key).encode()) & 3


def presidio(folder: Path) -> Iterator[tuple[Text, int]]:
    """With the quarter its template belongs to."""
    for row in json.loads((folder / "pii/presidio_synth_dataset_v2.json").read_text()):
        spans = [
            (each["start_position"], each["end_position"], KIND_OF.get(each["entity_type"], NUMBER))
            for each in row["spans"]
        ]
        yield (row["full_text"], spans), quarter(row["template_id"])


def pii_anon(folder: Path, part: str) -> Iterator[tuple[Text, str]]:
    """With its language."""
    for line in (folder / f"pii/pii_anon_{part}_250.jsonl").read_text().splitlines():
        row = json.loads(line)
        spans = [(each["start"], each["end"], KIND_OF.get(each["entity_type"], NUMBER)) for each in row["annotations"]]
        yield (row["text"], spans), row["language"]


def nannigalaxy(folder: Path) -> Iterator[Text]:
    for row in json.loads((folder / "pii/nannigalaxy_pii_syn_nano_en.json").read_text()):
        text, spans = row["text"], []
        for each in row["NER"]:
            kind = KIND_OF.get(each["label"], NUMBER)
            spans += [(found.start(), found.end(), kind) for found in re.finditer(re.escape(each.get("entity") or each["="]), text)]
        yield text, spans


def pupa(folder: Path) -> Iterator[tuple[Text, int]]:
    with (folder / "pii/pupa_tnb.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            text, spans = row["user_query"], []
            for unit in row["pii_units"].split("||"):
                if len(unit := unit.strip()) > 2:
                    spans += [(found.start(), found.end(), NAME) for found in re.finditer(re.escape(unit), text, re.I)]
            yield (text, spans), quarter(row["conversation_hash"])


def wnut(folder: Path) -> Iterator[tuple[Text, int]]:
    for number, block in enumerate((folder / "pii/wnut17_emerging.dev.conll").read_text().split("\n\n")):
        text, spans = "", []
        for line in block.splitlines():
            if "\t" not in line:
                continue
            word, label = line.split("\t")[:2]
            text += " " if text else ""
            kind = label[2:]
            if label != "O":
                known = KIND_OF[kind] if kind in ("person", "location", "group", "corporation") else -1
                spans.append((len(text), len(text) + len(word), known))
            text += word
        if text:
            yield (text, spans), quarter(number)


def prompts(folder: Path) -> dict[str, list[str]]:
    """Unlabelled prompts and instructions, by set."""
    read = (folder / "chat/arena_hard_v0.1_question.jsonl").read_text().splitlines()
    arena = [json.loads(line)["prompt"] for line in read]
    read = (folder / "chat/mt_bench_question.jsonl").read_text().splitlines()
    mt_bench = [turn for line in read for turn in json.loads(line)["turns"]]
    with (folder / "injection/awesome_chatgpt_prompts.csv").open(newline="") as file:
        awesome = [row["prompt"] for row in csv.DictReader(file)]
    read = (folder / "pii/nopii_self_instruct_seed_175.jsonl").read_text().splitlines()
    self_instruct = []
    for line in read:
        row = json.loads(line)
        self_instruct.append("\n".join([row["instruction"], row["instances"][0]["input"]]).strip())
    injecguard = [row["prompt"] for row in json.loads((folder / "injection/injecguard_valid.json").read_text())]
    read = (folder / "injection/prompt_extraction_dev.jsonl").read_text().splitlines()
    extraction = [json.loads(line)["instruction"] for line in read]
    return {
        "arena_hard": arena,
        "mt_bench": mt_bench,
        "awesome": awesome,
        "self_instruct": self_instruct,
        "injecguard": injecguard,
        "prompt_extraction": extraction,
    }


CHARACTERS = set(
    "Elizabeth Darcy Bingley Jane Wickham Collins Bennet Lydia Charlotte Gardiner Lucas Phillips Forster Kitty Mary "
    "Hurst Fitzwilliam Georgiana Reynolds Bourgh Catherine Lizzy Maria William Denny Caroline Louisa Hill King Annesley".split()
)
PLACES = set(
    "Longbourn Netherfield Meryton Pemberley Rosings Hunsford London Hertfordshire Derbyshire Brighton Lambton Kent "
    "Ramsgate Bromley Newcastle Lakes Cheapside Oakham Epsom Clapham Barnet Gretna".split()
)


def novel(folder: Path) -> Iterator[Text]:
    """Sentences of a novel in the public domain, its people and places labelled by its own cast."""
    text = (folder / "longctx/pride_and_prejudice.txt").read_text(encoding="utf-8-sig")
    body = text[text.index("truth universally acknowledged") - 20 : text.rindex("End of")]
    for paragraph in body.split("\n\n"):
        line = " ".join(paragraph.split()).replace("_", "")
        if not 30 < len(line) or line.startswith("Chapter"):
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
        if found[0].isdigit() or "@" in found:
            spans.append((word.start(), word.end(), -1))
        elif found[0].isupper() and (low not in common or low in names.KNOWN):
            spans.append((word.start(), word.end(), -1))
    return spans
