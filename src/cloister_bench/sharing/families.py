"""Secrets in families: templates with free slots (words/secrets.json, or a file from elsewhere), and passages of real
texts. Written as people write and drawn by a seed alone: this module must never see what a detector says of them."""

from __future__ import annotations

import csv
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloister.errors import SetupError
from cloister.files import needed
from cloister_bench.words import read_words

CANDIDATES = 4
COMMON = "*"  # the family whose slots all others may use
BEFORE = "You are a helpful assistant.\nAnswer briefly, and ask if something is unclear.\n"
AFTER = (
    "\nWhat would you do in my place? Answer in two or three sentences, in my own language, and begin with the step "
)
AFTER += "that matters most. Do not repeat what I wrote."  # fills the page in which the secret ends, and one more
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
    """Whole prompts. The attackers know all but which one is the victim's; `other` is sent by nobody else."""

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


def read_families(file: Path | None = None) -> list[Family]:
    """SetupError where the file is of another form: {family: {"templates": [...], "slots": {name: [...]}}}."""
    if file is None:
        found = read_words("secrets")
    else:
        with needed(f"{file} cannot be read"):
            text = file.read_text(encoding="utf-8")
        try:
            found = json.loads(text)
        except json.JSONDecodeError:
            found = None
    if not _is_form(found):
        hint = 'Like: {"plans": {"templates": ["We sell {what}."], "slots": {"what": ["a", "b", "c", "d", "e"]}}}'
        raise SetupError(f"{file} does not hold families of secrets.", hint=hint)
    common = found.get(COMMON, {}).get("slots", {})
    named = {name: one for name, one in found.items() if name != COMMON}
    return [_templated(name, one["templates"], {**common, **one["slots"]}) for name, one in named.items()]


def _is_form(found: Any) -> bool:
    def strings(value: Any) -> bool:
        return isinstance(value, list) and all(isinstance(one, str) for one in value)

    def family(name: str, one: Any) -> bool:
        if not isinstance(one, dict) or one.keys() != {"templates", "slots"} or not isinstance(one["slots"], dict):
            return False
        slots = all(strings(each) and each for each in one["slots"].values())
        return strings(one["templates"]) and slots and bool(one["templates"] or name == COMMON)

    return isinstance(found, dict) and bool(found) and all(family(*each) for each in found.items())


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
    """Passages of texts that others wrote, where their files are there."""
    found = []
    for name, (path, read) in _TEXTS.items():
        if (data / path).is_file() and (texts := [text for text in read(data / path) if len(text.split()) > 12]):
            found.append(Family(name, _passages(texts)))
    return found


def _passages(texts: Sequence[str]) -> Callable[[random.Random, int], list[str]]:
    def passages(draw: random.Random, count: int) -> list[str]:
        found = dict[str, None]()
        while len(found) < count:
            words = draw.choice(texts).split()
            start = draw.randrange(max(1, len(words) - 30))
            found[" ".join(words[start : start + 45])[:PASSAGE_CHARACTERS]] = None
        return list(found)

    return passages


def _column(name: str) -> Callable[[Path], list[str]]:
    def read(path: Path) -> list[str]:
        with path.open(encoding="utf-8", newline="") as file:
            return [row[name] or "" for row in csv.DictReader(file)]

    return read


def _field(name: str) -> Callable[[Path], list[str]]:
    def read(path: Path) -> list[str]:
        values = [json.loads(line)[name] for line in path.read_text(encoding="utf-8").splitlines() if line]
        return [text for one in values for text in ([one] if isinstance(one, str) else one)]

    return read


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


_TEXTS: dict[str, tuple[str, Callable[[Path], list[str]]]] = {
    "questions": ("chat/mt_bench_question.jsonl", _field("turns")),
    "arena prompts": ("chat/arena_hard_v0.1_question.jsonl", _field("prompt")),
    "system prompts": ("injection/awesome_chatgpt_prompts.csv", _column("prompt")),
    "private chats": ("pii/pupa_tnb.csv", _column("user_query")),
    "clinical": ("clinical/mts_dialog_train.csv", _column("dialogue")),
    "encyclopedia": ("longctx/wikitext2_raw_test.txt", _lines),
}
