# ruff: noqa: E501 (patterns, one a line)
# fmt: off
"""Clean text that looks like names: products, works, fields, the long dead, headings, code, quantities; and sentences
to put them in. No slot here is filled with personal data.
"""

from __future__ import annotations

import random
import re

from cloister_bench.tagger import asks
from cloister_bench.tagger.words import read_words

WORDS = read_words("clean_text")
PRODUCTS = "\n".join(WORDS["PRODUCTS"])
WORKS = "\n".join(WORDS["WORKS"])
THE_DEAD = "\n".join(WORDS["THE_DEAD"])
FIELDS = "\n".join(WORDS["FIELDS"])
EVENTS = "\n".join(WORDS["EVENTS"])
LANGUAGES = WORDS["LANGUAGES"]
HEADINGS = "\n".join(WORDS["HEADINGS"])
ROLES = "\n".join(WORDS["ROLES"])

SENTENCES = "\n".join(WORDS["SENTENCES"])

ACRONYMS = WORDS["ACRONYMS"]
CLEAN_ELSEWHERE = WORDS["CLEAN_ELSEWHERE"]

_SLOT = re.compile(r"\{(\w+)\}|\{\{|\}\}")


def _choices(words: str) -> list[str]:
    return [each.strip() for each in words.replace("\n", "").split(";")]


_CHOICES = {
    "product": _choices(PRODUCTS), "work": _choices(WORKS), "dead": _choices(THE_DEAD), "field": _choices(FIELDS),
    "event": _choices(EVENTS), "language": LANGUAGES, "heading": _choices(HEADINGS), "role": _choices(ROLES), "acronym": ACRONYMS,
}  # fmt: skip
LINES = SENTENCES.splitlines()


def sentence(draw: random.Random, common: list[str]) -> str:
    """A clean sentence; `common` are words in small letters that name no person."""
    return _SLOT.sub(lambda found: _filled(found, draw, common), draw.choice(LINES))


def asked(draw: random.Random, common: list[str]) -> str:
    """A request or a part of one, just as clean."""
    return _SLOT.sub(lambda found: _filled(found, draw, common), asks.ask(draw).replace("\\n", "\n"))


def _filled(found: re.Match[str], draw: random.Random, common: list[str]) -> str:
    slot = found.group(1)
    if slot is None:
        return found.group()[0]
    if slot in _CHOICES:
        return draw.choice(_CHOICES[slot])
    if slot == "title":
        small = draw.random() < 0.3
        words = [draw.choice(common) for _ in range(draw.randint(2, 7))]
        return " ".join(word.capitalize() if place == 0 or not small or len(word) > 4 else word for place, word in enumerate(words))
    if slot == "code":
        joint = draw.choice(("_", "_", "-", "."))
        words = [draw.choice(common) for _ in range(draw.randint(1, 3))]
        return joint.join(words) if draw.random() < 0.6 else words[0] + "".join(word.capitalize() for word in words[1:])
    if slot == "Camel":
        return "".join(draw.choice(common).capitalize() for _ in range(draw.randint(1, 3)))
    if slot == "verb":
        return asks.verb(draw)
    if slot == "common":
        return draw.choice(common)
    if slot == "Common":
        return draw.choice(common).capitalize()
    if slot == "CAPS":
        return draw.choice(common).upper()
    if slot == "count":
        return str(draw.randint(2, 30))
    if slot == "year":
        return str(draw.randint(1700, 2035))
    return draw.choice((str(draw.randint(1, 999)), f"{draw.randint(1, 999)},{draw.randint(0, 999):03d}", f"{draw.randint(1, 99)}.{draw.randint(0, 99)}"))
