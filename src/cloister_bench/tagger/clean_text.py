# ruff: noqa: E501 (patterns, one a line)
# fmt: off
"""Clean text that looks like names (products, works, fields, the long dead, headings, code, quantities), sentences to
put them in, and requests to a model. No slot here is filled with personal data.
"""

import random
import re

from cloister_bench.words import read_words

ASKS = read_words("asks")
WORDS = read_words("clean_text")
_SLOT = re.compile(r"\{(\w+)\}|\{\{|\}\}")


def _choices(name: str) -> list[str]:
    return [each.strip() for each in "".join(WORDS[name]).split(";")]


_CHOICES = {
    "product": _choices("PRODUCTS"), "work": _choices("WORKS"), "dead": _choices("THE_DEAD"), "field": _choices("FIELDS"),
    "event": _choices("EVENTS"), "language": WORDS["LANGUAGES"], "heading": _choices("HEADINGS"), "role": _choices("ROLES"), "acronym": WORDS["ACRONYMS"],
}  # fmt: skip


def ask(draw: random.Random) -> str:
    if draw.random() < 0.65:
        return draw.choice(ASKS["LINES"])
    verb, end = draw.choice(ASKS["_VERBS"]).strip(), draw.choice((".", ".", "", "?", "!", ":"))
    what = draw.choice(ASKS["_GENRES"])
    adjective = draw.choice(ASKS["_ADJECTIVES"]) + " " if draw.random() < 0.6 else ""
    article = "an" if (adjective or what)[0].lower() in "aeiou" else "a"
    number = "{count} " if draw.random() < 0.12 else ""
    noun = f"{number}{adjective}{what}s" if number else f"{article} {adjective}{what}"
    return f"{verb} {noun} {draw.choice(ASKS['_ABOUT'])} {draw.choice(ASKS['_BOUNDS'])}".strip() + end


def sentence(draw: random.Random, common: list[str]) -> str:
    return _SLOT.sub(lambda found: _filled(found, draw, common), draw.choice(WORDS["SENTENCES"]))


def asked(draw: random.Random, common: list[str]) -> str:
    return _SLOT.sub(lambda found: _filled(found, draw, common), ask(draw).replace("\\n", "\n"))


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
        return draw.choice(ASKS["_TO"])
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
