"""Secrets in families: templates with free slots (words/secrets.json, or a file from elsewhere), and passages of real
texts. Written as people write and drawn by a seed alone: no detector has a part in the choice."""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from cloister.errors import SetupError
from cloister.files import needed
from cloister_bench.records import records
from cloister_bench.words import read_words

CANDIDATES = 4
COMMON = "*"  # the family whose slots all others may use
BEFORE = "You are a helpful assistant.\nAnswer briefly, and ask if something is unclear.\n"
AFTER = (  # fills the page in which the secret ends, and one more
    "\nWhat would you do in my place? Answer in two or three sentences, in my own language, and begin with the step "
    "that matters most. Do not repeat what I wrote."
)
PASSAGE_CHARACTERS = 240
MAX_DEPTH = 4  # of slots in slots
_SLOT = re.compile(r"\{(\w+)\}")
_DIGITS = re.compile(r"d(\d)")


@dataclass(frozen=True, slots=True)
class Family:
    """`draw` gives `count` secrets that are equally plausible at one place."""

    name: str
    draw: Callable[[random.Random, int], list[str]]


@dataclass(frozen=True, slots=True)
class Trial:
    """Whole prompts. The attackers know all but which one is the victim's; `other` is none of them."""

    candidates: tuple[str, ...]
    true: int
    other: str


def trials(family: Family, count: int, seed: int) -> Iterator[Trial]:
    """Each draw serves four times, with every candidate as the true one; every second draw has a common beginning."""
    draw = random.Random(f"{seed} {family.name}")
    for number in range(-(-count // CANDIDATES)):
        before = BEFORE if number % 2 else ""
        *candidates, other = (before + secret + AFTER for secret in family.draw(draw, CANDIDATES + 1))
        for true in range(min(CANDIDATES, count - CANDIDATES * number)):
            yield Trial(tuple(candidates), true, other)


class Templates(msgspec.Struct, forbid_unknown_fields=True):
    slots: dict[str, Annotated[list[str], msgspec.Meta(min_length=1)]]
    templates: list[str]


def read_families(file: Path | None = None) -> list[Family]:
    """SetupError where the file is of another form."""
    try:
        with needed(f"{file} cannot be read"):
            found = read_words("secrets") if file is None else msgspec.json.decode(file.read_bytes())
        named = msgspec.convert(found, dict[str, Templates])
    except msgspec.MsgspecError:
        named = {}
    common = named.pop(COMMON, Templates({}, [])).slots
    if not named or not all(one.templates for one in named.values()):
        hint = 'Like: {"plans": {"templates": ["We sell {what}."], "slots": {"what": ["a", "b", "c", "d", "e"]}}}'
        raise SetupError(f"{file} does not hold families of secrets.", hint=hint)
    return [_templated(name, one.templates, {**common, **one.slots}) for name, one in named.items()]


def _templated(name: str, templates: Sequence[str], slots: dict[str, list[str]]) -> Family:
    def fill(draw: random.Random, text: str, known: dict[str, str], depth: int = 0) -> str:
        def value(match: re.Match[str]) -> str:
            slot = match[1]
            if digits := _DIGITS.fullmatch(slot):
                return f"{draw.randrange(10 ** int(digits[1])):0{digits[1]}d}"
            if slot not in slots or depth == MAX_DEPTH:
                raise SetupError(f"Family {name!r} has no slot {slot!r}.", hint="Every {slot} needs a list of words.")
            if slot not in known:
                known[slot] = fill(draw, draw.choice(slots[slot]), {}, depth + 1)
            return known[slot]

        return _SLOT.sub(value, text)

    def secrets(draw: random.Random, count: int) -> list[str]:
        template, found = draw.choice(templates), dict[str, None]()
        for _ in range(100 * count):
            found[fill(draw, template, {}).replace("{{", "{").replace("}}", "}")] = None
            if len(found) == count:
                return list(found)
        raise SetupError(f"A template of {name!r} has fewer than {count} values.", hint="Give its slots more words.")

    return Family(name, secrets)


def free_families(data: Path) -> list[Family]:
    """Passages of texts that others wrote, of the files that are there; all of one trial from one file."""
    found = []
    for name, files in _TEXTS.items():
        if sources := [_texts(data / path, field) for path, field in files.items() if (data / path).is_file()]:
            found.append(Family(name, partial(_passages, sources)))
    return found


def _passages(sources: Sequence[Sequence[str]], draw: random.Random, count: int) -> list[str]:
    texts, found = draw.choice(sources), dict[str, None]()
    while len(found) < count:
        words = draw.choice(texts).split()
        start = draw.randrange(max(1, len(words) - 30))
        if len(words) > 12:
            found[" ".join(words[start : start + 45])[:PASSAGE_CHARACTERS]] = None
    return list(found)


def _texts(path: Path, field: str) -> list[str]:
    found = records(path)
    values = [row[field] for row in found] if field else found.splitlines()
    return [text for one in values for text in (one if isinstance(one, list) else [one or ""])]


_TEXTS = {  # a file, and which field of it
    "texts": {
        "chat/mt_bench_question.jsonl": "turns",
        "chat/arena_hard_v0.1_question.jsonl": "prompt",
        "injection/awesome_chatgpt_prompts.csv": "prompt",
        "longctx/wikitext2_raw_test.txt": "",
    },
    "private chats": {"pii/pupa_tnb.csv": "user_query", "clinical/mts_dialog_train.csv": "dialogue"},
}
