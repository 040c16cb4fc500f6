"""What fills a template's slots: names of many languages and more made from their letters, numbers with valid check
digits, addresses, dates, secrets, all drawn at random. That a name is a real person's is chance.

`fill(slot, draw, language)` gives a text; `CLASS_OF[slot]` says what the tagger should call it.
"""

import random
import re
import string
from collections import defaultdict
from collections.abc import Callable

from cloister_bench.words import read_words

CLASSES = ("OTHER", "NAME", "PLACE", "ORG", "TIME", "TRAIT", "NUMBER", "ONLINE", "SECRET", "UNIT")
OTHER, NAME, PLACE, ORG, TIME, TRAIT, NUMBER, ONLINE, SECRET, UNIT = range(len(CLASSES))  # UNIT: of unknown kind

NAMES, WORDS, FORMS = (read_words(name) for name in ("names", "values", "forms"))
CLASS_OF = {slot: CLASSES.index(label) for slot, (label, _) in FORMS.items()}
PATTERNS = ("PHONES", "IDS", "KEYS", "ZIPS", "SWIFTS", "INITIALS", "CAPITALS")  # lists of what `like` fills
RANGES = {slot: tuple(bounds) for slot, bounds in WORDS["RANGES"].items()}  # least, most and digits of a number
SLOT = re.compile(r"\{(\w+)\}|\[\[|\]\]|\{\{|\}\}")
Text = tuple[str, list[tuple[int, int, int]]]  # with (start, end, class) of what is private; class −1: ignore


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


_GIVEN, _FAMILY = ({language: names.split() for language, names in NAMES[name].items()} for name in ("GIVEN", "FAMILY"))
_PLACES = NAMES["CITIES"] + NAMES["COUNTRIES"]
_MADE_GIVEN, _MADE_FAMILY = (
    {language: Letters(words) for language, words in names.items()} for names in (_GIVEN, _FAMILY)
)
_MADE_PLACES = Letters(_PLACES)
KNOWN = {
    name.lower()
    for names in (*_GIVEN.values(), *_FAMILY.values(), _PLACES, *(each.split() for each in NAMES["TWO_WORD_CITIES"]))
    for name in names
}


def _language(draw: random.Random, language: str | None) -> str:
    if language is None or language not in _GIVEN:
        return draw.choice(list(_GIVEN)) if draw.random() < 0.6 else "en"
    return language


def given(draw: random.Random, language: str | None = None) -> str:
    if language in NAMES["NATIVE_GIVEN"]:
        return draw.choice(NAMES["NATIVE_GIVEN"][language].split())
    language = _language(draw, language)
    return _MADE_GIVEN[language].word(draw) if draw.random() < 0.35 else draw.choice(_GIVEN[language])


def family(draw: random.Random, language: str | None = None) -> str:
    if language in NAMES["NATIVE_FAMILY"]:
        return draw.choice(NAMES["NATIVE_FAMILY"][language].split())
    language = _language(draw, language)
    name = _MADE_FAMILY[language].word(draw) if draw.random() < 0.4 else draw.choice(_FAMILY[language])
    if draw.random() < 0.06:
        particle = draw.choice(NAMES["PARTICLES"])
        name = particle + ("" if particle[-1] in "-'c" else " ") + name
    return name + "-" + draw.choice(_FAMILY[language]) if draw.random() < 0.03 else name


def place(draw: random.Random, language: str | None = None) -> str:
    if language in NAMES["NATIVE_CITIES"]:
        return draw.choice(NAMES["NATIVE_CITIES"][language])
    kind = draw.choices(("CITIES", "TWO_WORD_CITIES", "COUNTRIES", ""), (50, 12, 23, 15))[0]
    if kind:
        return draw.choice(NAMES[kind])
    tails = ("", "", "ville", "ton", "burg", "ford", " Heights", " Valley", "dorf", "ham")
    return _MADE_PLACES.word(draw) + draw.choice(tails)


def full(draw: random.Random, language: str | None = None) -> str:
    if language in NAMES["NATIVE_GIVEN"] and draw.random() < 0.8:
        if language in ("zh", "ja", "ko"):
            return family(draw, language) + draw.choice(("", "", " ")) + given(draw, language)
        return f"{given(draw, language)} {family(draw, language)}"
    return _formed("name", draw, language if language in _GIVEN else _language(draw, None))


def like(draw: random.Random, pattern: str) -> str:
    """# a digit, @ a capital, ? a small letter, * a digit or capital."""
    drawn = {"#": string.digits, "@": string.ascii_uppercase, "?": string.ascii_lowercase}
    drawn["*"] = drawn["#"] + drawn["@"]
    return "".join(draw.choice(drawn[each]) if each in drawn else each for each in pattern)


def _in_fours(text: str, mark: str) -> str:
    return mark.join(text[place : place + 4] for place in range(0, len(text), 4))


def card(draw: random.Random, _: str | None) -> str:
    body = (draw.choice(("4", "51", "55", "37", "6011", "35")) + like(draw, "#" * 14))[:15]
    total = sum(int(each) if place % 2 else sum(divmod(2 * int(each), 10)) for place, each in enumerate(body[::-1]))
    number = body + str(-total % 10)
    return _in_fours(number, draw.choice(" -")) if draw.random() < 0.5 else number


def iban(draw: random.Random, _: str | None) -> str:
    land, rest = like(draw, draw.choice(WORDS["IBANS"])).split(":")
    moved = "".join(str(int(each, 36)) for each in f"{rest}{land}00")
    whole = f"{land}{98 - int(moved) % 97:02d}{rest}"
    return _in_fours(whole, " ") if draw.random() < 0.4 else whole


def ip(draw: random.Random, _: str | None) -> str:
    if draw.random() < 0.8:
        return ".".join(str(draw.randint(1, 254)) for _ in range(4))
    return ":".join(f"{draw.randint(0, 65535):x}" for _ in range(8))


def _month(draw: random.Random, language: str | None) -> str:
    return draw.choice(WORDS["MONTHS_IN"].get(language or "", WORDS["MONTHS"]))


def _host(draw: random.Random, language: str | None) -> str:
    return family(draw).lower().replace(" ", "").replace("'", "")


_MADE: dict[str, Callable[[random.Random, str | None], str]] = {
    "name": full,
    "first": given,
    "last": family,
    "place": place,
    "card": card,
    "iban": iban,
    "ip": ip,
    "host": _host,
    "small": lambda draw, _: given(draw).lower(),
    "initial": lambda draw, _: given(draw)[0].lower(),
    "title": lambda draw, language: draw.choice(WORDS["TITLES"].get(language or "en", WORDS["TITLES"]["en"])),
    "named": _month,
    "short": lambda draw, language: _month(draw, language)[:3],
    "house": lambda draw, _: str(draw.randint(1, draw.choice((9999, 199)))),
    "mac": lambda draw, _: ":".join(f"{draw.randint(0, 255):02x}" for _ in range(6)),
    "hex": lambda draw, _: "".join(draw.choices("0123456789abcdef", k=32)),
    "scrambled": lambda draw, _: "".join(
        draw.choices(string.ascii_letters + string.digits + "!@#$%^&*", k=draw.randint(8, 16))
    ),
}


def fill(slot: str, draw: random.Random, language: str | None = None) -> str:
    if slot in _MADE:
        return _MADE[slot](draw, language)
    if slot in RANGES:
        least, most, digits = RANGES[slot]
        return f"{draw.randint(least, most):0{digits}d}"
    if slot in WORDS:
        word: str = draw.choice(WORDS[slot])
        return like(draw, word) if slot in PATTERNS else word
    if slot[0] == "d" and slot[1:].isdigit():
        return like(draw, "#" * int(slot[1:]))
    return _formed(slot, draw, language)


def _formed(slot: str, draw: random.Random, language: str | None) -> str:
    """By one of the slot's forms, which are equally likely or weighed."""
    _, forms = FORMS.get(f"{slot} {language}", FORMS[slot])
    form = draw.choices(list(forms), list(forms.values()))[0] if isinstance(forms, dict) else draw.choice(forms)
    return SLOT.sub(lambda found: fill(found[1], draw, language), form)


def filled(template: str, value_of: Callable[[str], str]) -> Text:
    """{slots}; [[…]] around words that identify a person."""
    text, spans, place, opened = "", [], 0, 0
    template = template.replace("\\n", "\n")
    for found in SLOT.finditer(template):
        text += template[place : found.start()]
        place = found.end()
        if found.group() == "[[":
            opened = len(text)
        elif found.group() == "]]":
            spans.append((opened, len(text), TRAIT))
        elif slot := found.group(1):
            value = value_of(slot)
            spans.append((len(text), len(text) + len(value), CLASS_OF.get(slot, OTHER)))
            text += value
        else:
            text += found.group()[0]
    return text + template[place:], spans
