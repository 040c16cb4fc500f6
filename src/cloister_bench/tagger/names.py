"""Given names, family names and places of many languages, and more made from their letters. A real person is chance."""

import random
from collections import defaultdict

from cloister_bench.words import read_words

WORDS = read_words("names")
NATIVE_GIVEN, NATIVE_FAMILY, NATIVE_CITIES = (WORDS[f"NATIVE_{name}"] for name in ("GIVEN", "FAMILY", "CITIES"))
CITIES, TWO_WORD_CITIES, COUNTRIES = (WORDS[name] for name in ("CITIES", "TWO_WORD_CITIES", "COUNTRIES"))


class Letters:
    def __init__(self, words: list[str]) -> None:
        self._after: dict[str, list[str]] = defaultdict(list)
        for word in words:
            padded = f"^^{word.lower()}$"
            for place in range(2, len(padded)):
                self._after[padded[place - 2 : place]].append(padded[place])

    def word(self, draw: random.Random) -> str:
        for _ in range(50):
            made = "^^"
            while made[-1] != "$" and len(made) < 14:
                made += draw.choice(self._after[made[-2:]])
            if 3 <= len(word := made[2:].rstrip("$")) <= 11:
                return word.capitalize()
        return "Ada"


_GIVEN, _FAMILY = ({language: names.split() for language, names in WORDS[name].items()} for name in ("GIVEN", "FAMILY"))
LANGUAGES = tuple(_GIVEN)
_MADE = {language: (Letters(_GIVEN[language]), Letters(_FAMILY[language])) for language in LANGUAGES}


def given(draw: random.Random, language: str | None = None) -> str:
    language = language if language in _GIVEN else draw.choice(LANGUAGES if draw.random() < 0.6 else ("en",))
    return _MADE[language][0].word(draw) if draw.random() < 0.35 else draw.choice(_GIVEN[language])


def family(draw: random.Random, language: str | None = None) -> str:
    language = language if language in _FAMILY else draw.choice(LANGUAGES if draw.random() < 0.6 else ("en",))
    name = _MADE[language][1].word(draw) if draw.random() < 0.4 else draw.choice(_FAMILY[language])
    if draw.random() < 0.06:
        particle = draw.choice(WORDS["PARTICLES"])
        name = particle + ("" if particle[-1] in "-'c" else " ") + name
    if draw.random() < 0.03:
        name += "-" + draw.choice(_FAMILY[language])
    return name


def place(draw: random.Random) -> str:
    chance = draw.random()
    if chance < 0.5:
        return draw.choice(CITIES)
    if chance < 0.62:
        return draw.choice(TWO_WORD_CITIES)
    if chance < 0.85:
        return draw.choice(COUNTRIES)
    made = Letters_of_places.word(draw)
    return made + draw.choice(("", "", "ville", "ton", "burg", "ford", " Heights", " Valley", "dorf", "ham"))


Letters_of_places = Letters(CITIES + COUNTRIES)
KNOWN = {
    name.lower()
    for names in (*_GIVEN.values(), *_FAMILY.values(), CITIES, COUNTRIES, *(each.split() for each in TWO_WORD_CITIES))
    for name in names
}
