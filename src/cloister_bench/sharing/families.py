"""Secrets in families: templates with free slots (words/secrets.json). Written as people write and drawn by a seed
alone: no detector has a part in the choice."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from cloister_bench.words import read_words

CANDIDATES = 4
COMMON = "*"  # the family whose slots all others may use
BEFORE = "You are a helpful assistant.\nAnswer briefly, and ask if something is unclear.\n"
AFTER = (  # fills the page in which the secret ends, and one more
    "\nWhat would you do in my place? Answer in two or three sentences, in my own language, and begin with the step "
    "that matters most. Do not repeat what I wrote."
)
_SLOT = re.compile(r"\{(\w+)\}")
_DIGITS = re.compile(r"d(\d)")


@dataclass(frozen=True, slots=True)
class Family:
    """`slots`: what may stand for {slot} in a template or in another slot; {d4} are four digits."""

    name: str
    templates: list[str]
    slots: dict[str, list[str]]

    def secrets(self, draw: random.Random, count: int) -> list[str]:
        """`count` that are equally plausible at one place."""
        template, found = draw.choice(self.templates), dict[str, None]()
        while len(found) < count:
            found[self._filled(template, draw).replace("{{", "{").replace("}}", "}")] = None
        return list(found)

    def _filled(self, text: str, draw: random.Random) -> str:
        known: dict[str, str] = {}

        def value(match: re.Match[str]) -> str:
            slot = match[1]
            if digits := _DIGITS.fullmatch(slot):
                return f"{draw.randrange(10 ** int(digits[1])):0{digits[1]}d}"
            if slot not in known:
                known[slot] = self._filled(draw.choice(self.slots[slot]), draw)
            return known[slot]

        return _SLOT.sub(value, text)


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
        *candidates, other = (before + secret + AFTER for secret in family.secrets(draw, CANDIDATES + 1))
        for true in range(min(CANDIDATES, count - CANDIDATES * number)):
            yield Trial(tuple(candidates), true, other)


def read_families() -> list[Family]:
    found = read_words("secrets")
    common = found.pop(COMMON)["slots"]
    return [Family(name, one["templates"], {**common, **one["slots"]}) for name, one in found.items()]
