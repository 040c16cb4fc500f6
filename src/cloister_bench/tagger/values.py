# ruff: noqa: E501 (patterns, one a line)
# fmt: off
"""What fills a template's slots: numbers with valid check digits, addresses, dates, secrets, all drawn at random.

`fill(slot, draw, language)` gives a text; `CLASS_OF[slot]` says what the tagger should call it.
"""

import random
import string
from collections.abc import Callable

from cloister_bench.tagger import names
from cloister_bench.words import read_words

OTHER, NAME, PLACE, ORG, TIME, TRAIT, NUMBER, ONLINE, SECRET = range(9)
UNIT = 9  # private, of unknown kind

WORDS = read_words("values")


def digits(draw: random.Random, count: int) -> str:
    return "".join(draw.choice(string.digits) for _ in range(count))


def like(draw: random.Random, pattern: str) -> str:
    """# a digit, @ a capital, ? a small letter, * a digit or capital."""
    drawn = {"#": string.digits, "@": string.ascii_uppercase, "?": string.ascii_lowercase}
    drawn["*"] = drawn["#"] + drawn["@"]
    return "".join(draw.choice(drawn[each]) if each in drawn else each for each in pattern)


def weighed(draw: random.Random, forms: dict[str, int]) -> str:
    return draw.choices(list(forms), list(forms.values()))[0]


NAME_FORMS = {
    "{first} {last}": 50, "{first} {capital}. {last}": 8, "{first} {second} {last}": 5, "{last}, {first}": 5,
    "{title} {first} {last}": 4, "{title} {last}": 6, "{first[0]}. {last}": 2, "{first}": 12, "{last}": 8,
}  # and how many of a hundred


def full(draw: random.Random, language: str | None) -> str:
    if language in names.NATIVE_GIVEN and draw.random() < 0.8:
        one, other = names.NATIVE_GIVEN[language].split(), names.NATIVE_FAMILY[language].split()
        if language in ("zh", "ja", "ko"):
            return draw.choice(other) + draw.choice(("", "", " ")) + draw.choice(one)
        return f"{draw.choice(one)} {draw.choice(other)}"
    if language not in names.LANGUAGES:
        language = draw.choice(names.LANGUAGES) if draw.random() < 0.6 else "en"
    first, last = names.given(draw, language), names.family(draw, language)
    title = draw.choice(WORDS["TITLES"].get(language or "en", WORDS["TITLES"]["en"]))
    capital, second = draw.choice(string.ascii_uppercase), names.given(draw, language)
    return weighed(draw, NAME_FORMS).format(first=first, last=last, title=title, capital=capital, second=second)


def luhn(body: str) -> str:
    total = sum(
        int(each) if place % 2 else sum(divmod(2 * int(each), 10)) for place, each in enumerate(reversed(body), 0)
    )
    return body + str(-total % 10)


def card(draw: random.Random) -> str:
    number = luhn(draw.choice(("4", "51", "55", "37", "6011", "35")) + digits(draw, 14))[:16]
    number = luhn(number[:15])
    if draw.random() < 0.5:
        mark = draw.choice(" -")
        return mark.join(number[place : place + 4] for place in range(0, 16, 4))
    return number


def iban(draw: random.Random) -> str:
    body = like(draw, draw.choice(WORDS["IBANS"]))
    land, rest = body.split(":")
    moved = "".join(str(int(each, 36)) for each in f"{rest}{land}00")
    whole = f"{land}{98 - int(moved) % 97:02d}{rest}"
    return " ".join(whole[place : place + 4] for place in range(0, len(whole), 4)) if draw.random() < 0.4 else whole


def user_name(draw: random.Random) -> str:
    first, last = names.given(draw).lower(), names.family(draw).lower().replace(" ", "")
    return draw.choice(
        (f"{first}{last}{digits(draw, 2)}", f"{first}_{last}", f"{first[0]}{last}", f"@{first}{digits(draw, 3)}",
         f"{first}-{digits(draw, 4)}", f"{first}.{last}", f"xx{last}xx", f"@{first}_{last}")
    )  # fmt: skip


def email(draw: random.Random) -> str:
    return f"{user_name(draw).strip('@')}@{draw.choice(WORDS['MAIL']) if draw.random() < 0.7 else names.family(draw).lower().replace(' ', '') + draw.choice(('.com', '.net', '.org', '.io', '.co.uk', '.edu', '.de', '.fr'))}"


def password(draw: random.Random) -> str:
    if draw.random() < 0.5:
        return "".join(draw.choice(string.ascii_letters + string.digits + "!@#$%^&*") for _ in range(draw.randint(8, 16)))
    return draw.choice(("Summer", "Winter", "Hunter", "Dragon", names.given(draw), "Passw0rd", "qwerty")) + draw.choice(("!", "#", "@", "")) + digits(draw, draw.randint(2, 4))


def organisation(draw: random.Random) -> str:
    form = weighed(draw, {"{org} {tail}": 35, "{org}": 20, "{family} {tail}": 25, "{family} and {other}": 8, "University of {place}": 7, "{capitals}": 5})
    org, tail, capitals = draw.choice(WORDS["ORGS"]), draw.choice(WORDS["ORG_TAILS"]), like(draw, "@" * draw.randint(3, 4))
    return form.format(org=org, tail=tail, family=names.family(draw), other=names.family(draw), place=names.place(draw), capitals=capitals)


def street(draw: random.Random, language: str | None) -> str:
    number, name = str(draw.randint(1, 9999 if draw.random() < 0.5 else 199)), names.family(draw)
    if language == "de" or (language is None and draw.random() < 0.1):
        line = draw.choice((f"{name}straße {number}", f"{name}weg {number}", f"Am {name}platz {number}", f"{name}str. {number}"))
    elif language in ("fr", "es", "it", "pt") or (language is None and draw.random() < 0.15):
        way = draw.choice(("rue de", "avenue", "place du", "Calle", "Avenida", "Via", "Piazza", "Rua", "Plaza", "boulevard"))
        line = draw.choice((f"{number} {way} {name}", f"{way} {name}, {number}", f"{way} {name} {number}"))
    else:
        tree = draw.choice(WORDS["TREES"])
        line = f"{number} {tree if draw.random() < 0.5 else name} {draw.choice(WORDS['STREETS'])}"
    if draw.random() < 0.2:
        line += draw.choice((f" Apt. {digits(draw, 3)}", f", Suite {digits(draw, 3)}", f" Unit {digits(draw, 2)}"))
    if draw.random() < 0.55:
        tail = draw.choice((f"{draw.choice(WORDS['STATES'])} {digits(draw, 5)}", digits(draw, 5), names.place(draw), f"{names.place(draw)} {digits(draw, 5)}"))
        line += f"{draw.choice((', ', chr(10), ' '))}{names.place(draw)}{draw.choice((', ', ' ', chr(10)))}{tail}"
    return line


def date(draw: random.Random, language: str | None) -> str:
    year, month, day = draw.randint(1930, 2027), draw.randint(1, 12), draw.randint(1, 28)
    word = WORDS["MONTHS_IN"].get(language or "", WORDS["MONTHS"])[month - 1]
    return draw.choice(
        (
            f"{year}-{month:02d}-{day:02d}", f"{day:02d}/{month:02d}/{year}", f"{month}/{day}/{year}", f"{day:02d}.{month:02d}.{year}",
            f"{word} {day}, {year}", f"{day} {word} {year}", f"{word} {year}", f"{word} {day}", f"{day}. {word} {year}",
            f"{year}-{month:02d}-{day:02d}T{draw.randint(0, 23):02d}:{draw.randint(0, 59):02d}:00Z", f"{day} {word[:3]} {year}",
            f"{month:02d}/{day:02d}/{year % 100:02d}", f"{year}{month:02d}{day:02d}", str(year), f"{year}年{month}月{day}日" if language in ("zh", "ja") else f"{day} de {word} de {year}" if language in ("es", "pt") else f"the {day}th of {word}",
        )
    )  # fmt: skip


_FILL: dict[str, tuple[int, Callable[[random.Random, str | None], str]]] = {
    "name": (NAME, full),
    "first": (NAME, lambda draw, language: draw.choice(names.NATIVE_GIVEN[language].split()) if language in names.NATIVE_GIVEN else names.given(draw, language)),
    "last": (NAME, lambda draw, language: draw.choice(names.NATIVE_FAMILY[language].split()) if language in names.NATIVE_FAMILY else names.family(draw, language)),
    "place": (PLACE, lambda draw, language: draw.choice(names.NATIVE_CITIES[language]) if language in names.NATIVE_CITIES else names.place(draw)),
    "street": (PLACE, street),
    "zip": (PLACE, lambda draw, _: like(draw, draw.choice(("#####", "#####-####", "@@# #@@", "@# #@@", "#### @@", "@#@ #@#")))),
    "org": (ORG, lambda draw, _: organisation(draw)),
    "date": (TIME, date),
    "age": (TRAIT, lambda draw, _: str(draw.randint(2, 99))),
    "job": (TRAIT, lambda draw, _: draw.choice(WORDS["JOBS"])),
    "ill": (TRAIT, lambda draw, _: draw.choice(WORDS["ILLS"])),
    "drug": (TRAIT, lambda draw, _: f"{draw.choice(WORDS['DRUGS'])} {draw.choice((5, 10, 25, 50, 100, 300))}mg"),
    "nation": (TRAIT, lambda draw, _: draw.choice(WORDS["NATIONS"])),
    "money": (NUMBER, lambda draw, _: draw.choice(("$", "€", "£", "USD ")) + f"{draw.randint(20, 400)},000"),
    "phone": (NUMBER, lambda draw, _: like(draw, draw.choice(WORDS["PHONES"]))),
    "card": (NUMBER, lambda draw, _: card(draw)),
    "iban": (NUMBER, lambda draw, _: iban(draw)),
    "swift": (NUMBER, lambda draw, _: like(draw, draw.choice(("@@@@@@@@", "@@@@@@**", "@@@@@@##***")))),
    "id": (NUMBER, lambda draw, _: like(draw, draw.choice(WORDS["IDS"]))),
    "email": (ONLINE, lambda draw, _: email(draw)),
    "url": (ONLINE, lambda draw, _: draw.choice(("http://www.", "https://", "www.", "")) + names.family(draw).lower().replace(" ", "").replace("'", "") + draw.choice((".com", ".org", ".net", ".info", ".biz", ".de", ".io/profile"))),
    "ip": (ONLINE, lambda draw, _: ".".join(str(draw.randint(1, 254)) for _ in range(4)) if draw.random() < 0.8 else ":".join(f"{draw.randint(0, 65535):x}" for _ in range(8))),
    "mac": (ONLINE, lambda draw, _: ":".join(f"{draw.randint(0, 255):02x}" for _ in range(6))),
    "user": (ONLINE, lambda draw, _: user_name(draw)),
    "password": (SECRET, lambda draw, _: password(draw)),
    "key": (SECRET, lambda draw, _: like(draw, draw.choice(WORDS["KEYS"]))),
    "hex": (SECRET, lambda draw, _: "".join(draw.choice("0123456789abcdef") for _ in range(32))),
}  # fmt: skip
CLASS_OF = {slot: label for slot, (label, _) in _FILL.items()}


def fill(slot: str, draw: random.Random, language: str | None = None) -> str:
    return _FILL[slot][1](draw, language)
