"""Requests to a model without personal data: put together from parts, problems, code, and instructions. `{common}` and
the like are filled as in `clean_text`.
"""

from __future__ import annotations

import random

from cloister_bench.tagger.words import read_words

WORDS = read_words("asks")
_VERBS = WORDS["_VERBS"]
_ADJECTIVES = WORDS["_ADJECTIVES"]
_GENRES = WORDS["_GENRES"]
_ABOUT = WORDS["_ABOUT"]
_BOUNDS = WORDS["_BOUNDS"]
_TO = WORDS["_TO"]

LINES = WORDS["LINES"]


def ask(draw: random.Random) -> str:
    """A sentence with slots."""
    if draw.random() < 0.65:
        return draw.choice(LINES)
    verb, end = draw.choice(_VERBS).strip(), draw.choice((".", ".", "", "?", "!", ":"))
    what = draw.choice(_GENRES)
    adjective = draw.choice(_ADJECTIVES) + " " if draw.random() < 0.6 else ""
    article = "an" if (adjective or what)[0].lower() in "aeiou" else "a"
    number = "{count} " if draw.random() < 0.12 else ""
    noun = f"{number}{adjective}{what}s" if number else f"{article} {adjective}{what}"
    return f"{verb} {noun} {draw.choice(_ABOUT)} {draw.choice(_BOUNDS)}".strip() + end


def verb(draw: random.Random) -> str:
    return draw.choice(_TO)
