"""Labelled texts of public sets, read where they lie (`…/data`). A hash of what texts have in common cuts each set into
quarters: 0 and 1 train, 2 calibrates, 3 tests. Nothing is trained on `pii_anon` or `mt_bench`."""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cloister.errors import SetupError
from cloister_bench.records import records

TEST, CALIBRATION = 3, 2
UNKNOWN = "?"  # the type of a span


@dataclass(frozen=True, slots=True, repr=False)
class Sample:
    """Private parts are (start, end, type)."""

    dataset: str
    language: str
    quarter: int
    text: str
    spans: tuple[tuple[int, int, str], ...]


def quarter_of(key: object) -> int:
    return zlib.crc32(str(key).encode()) & 3


def read_sets(folder: Path) -> Iterator[Sample]:
    """SetupError if there are none."""
    data = folder / "data"
    if not (data / "pii").is_dir():
        raise SetupError(f"There is no data/pii in {folder}.", hint="Name the folder that has it: --data DIR.")
    for reader in (_presidio, _pii_anon, _pupa, _wnut, _prompts):
        try:
            yield from reader(data)
        except (OSError, ValueError, KeyError) as wrong:
            raise SetupError(f"A set of {data} cannot be read ({type(wrong).__name__}).") from None


def _presidio(data: Path) -> Iterator[Sample]:
    for row in records(data / "pii/presidio_synth_dataset_v2.json"):
        spans = tuple((each["start_position"], each["end_position"], each["entity_type"]) for each in row["spans"])
        yield Sample("presidio", "en", quarter_of(row["template_id"]), row["full_text"], spans)


def _pii_anon(data: Path) -> Iterator[Sample]:
    for part in ("de", "fr", "test_clinical", "test_technology"):
        for row in records(data / f"pii/pii_anon_{part}_250.jsonl"):
            spans = tuple((int(each["start"]), int(each["end"]), each["entity_type"]) for each in row["annotations"])
            quarter = CALIBRATION if quarter_of(row["record_id"]) == CALIBRATION else TEST
            dataset = f"pii_anon_{part.removeprefix('test_')}"
            yield Sample(dataset, row["language"], quarter, row["text"], spans)


def _pupa(data: Path) -> Iterator[Sample]:
    for row in records(data / "pii/pupa_tnb.csv"):
        spans = units_in(row["user_query"], row["pii_units"])
        yield Sample("pupa", "en", quarter_of(row["conversation_hash"]), row["user_query"], spans)


def units_in(text: str, units: str) -> tuple[tuple[int, int, str], ...]:
    return tuple(
        (found.start(), found.end(), "UNIT")
        for unit in sorted({unit.strip() for unit in units.split("||")})
        if len(unit) > 2
        for found in re.finditer(_whole(unit), text, re.IGNORECASE)
    )


def _whole(unit: str) -> str:
    """A pattern for the unit where a word begins, and if it is short, ends: "Ana" is not in "banana" or "Analysis"."""
    return r"(?<![a-z])" + re.escape(unit) + (r"(?![a-z])" if len(unit) < 5 else "")


_OF_WNUT = {"person": "PERSON", "location": "LOCATION", "group": "ORGANIZATION", "corporation": "ORGANIZATION"}


def _wnut(data: Path) -> Iterator[Sample]:
    for number, block in enumerate(records(data / "pii/wnut17_emerging.dev.conll").split("\n\n")):
        text, spans = "", []
        for line in block.splitlines():
            word, _, label = line.partition("\t")
            if not label:
                continue
            text += " " if text else ""
            if label != "O":
                spans.append((len(text), len(text) + len(word), _OF_WNUT.get(label[2:], UNKNOWN)))
            text += word
        if text:
            yield Sample("wnut17", "en", quarter_of(number), text, tuple(spans))


def _prompts(data: Path) -> Iterator[Sample]:
    seeds = records(data / "pii/nopii_self_instruct_seed_175.jsonl")
    texts = {
        "arena_hard": [row["prompt"] for row in records(data / "chat/arena_hard_v0.1_question.jsonl")],
        "mt_bench": [turn for row in records(data / "chat/mt_bench_question.jsonl") for turn in row["turns"]],
        "awesome": [row["prompt"] for row in records(data / "injection/awesome_chatgpt_prompts.csv")],
        "self_instruct": [f"{row['instruction']}\n{row['instances'][0]['input']}".strip() for row in seeds],
        "injecguard": [row["prompt"] for row in records(data / "injection/injecguard_valid.json")],
        "prompt_extraction": [row["instruction"] for row in records(data / "injection/prompt_extraction_dev.jsonl")],
    }
    for name, each in texts.items():
        for text in each:
            yield Sample(name, "en", TEST if name == "mt_bench" else quarter_of(text), text, ())
