"""Clean text that looks like names (products, works, fields, the long dead, headings, code, quantities), and requests.
No slot here is filled with personal data."""

import random
from collections.abc import Callable

from cloister_bench.tagger.values import filled
from cloister_bench.words import read_words

ASKS, WORDS = read_words("asks"), read_words("clean_text")
_LISTS: dict[str, list[str]] = {**WORDS["SLOTS"], "verb": ASKS["_TO"]}


def _some(draw: random.Random, common: list[str], least: int, most: int) -> list[str]:
    return [draw.choice(common) for _ in range(draw.randint(least, most))]


_MADE: dict[str, Callable[[random.Random, list[str]], str]] = {
    "title": lambda draw, common: " ".join(word.capitalize() for word in _some(draw, common, 2, 7)),
    "code": lambda draw, common: draw.choice("__-.").join(_some(draw, common, 1, 3)),
    "Camel": lambda draw, common: "".join(word.capitalize() for word in _some(draw, common, 1, 3)),
    "common": lambda draw, common: draw.choice(common),
    "Common": lambda draw, common: draw.choice(common).capitalize(),
    "CAPS": lambda draw, common: draw.choice(common).upper(),
    "count": lambda draw, _: str(draw.randint(2, 30)),
    "year": lambda draw, _: str(draw.randint(1700, 2035)),
    "number": lambda draw, _: draw.choice((f"{draw.randint(1, 999)}", f"{draw.randint(1, 9999) / 100}")),
}


def sentence(draw: random.Random, common: list[str]) -> str:
    return _filled(draw.choice(WORDS["SENTENCES"]), draw, common)


def asked(draw: random.Random, common: list[str]) -> str:
    """A request that is given whole, or one that is put together."""
    if draw.random() < 0.65:
        return _filled(draw.choice(ASKS["LINES"]), draw, common)
    adjective = draw.choice(ASKS["_ADJECTIVES"]) + " " if draw.random() < 0.6 else ""
    noun = adjective + draw.choice(ASKS["_GENRES"])
    noun = f"{{count}} {noun}s" if draw.random() < 0.12 else f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"
    parts = draw.choice(ASKS["_VERBS"]).strip(), noun, draw.choice(ASKS["_ABOUT"]), draw.choice(ASKS["_BOUNDS"])
    return _filled(" ".join(parts).strip() + draw.choice((".", ".", "", "?", "!", ":")), draw, common)


def _filled(template: str, draw: random.Random, common: list[str]) -> str:
    value = lambda slot: draw.choice(_LISTS[slot]) if slot in _LISTS else _MADE[slot](draw, common)  # noqa: E731
    return filled(template, value)[0]
