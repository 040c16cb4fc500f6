"""People's names: words of the US census of 2020 (with share of culture and gender) and of Faker's European locales.
Cells keep culture, gender, frequency and capitals. Titles, suffixes and particles stay."""

import re
from collections.abc import Sequence

from cloister.obfuscation.candidates.base import Around, Pool
from cloister.obfuscation.candidates.cells import Cells, Slot, side_by_side
from cloister.obfuscation.index import Prf
from cloister.obfuscation.words import word_list

MAX_CHARACTERS = 100
NEIGHBOURS = 16  # names at least that are walked: neighbours in frequency
TURNS = 2  # of a full name's words against each other: no two that are drawn share one (`pool_draw`)
TITLES, SUFFIXES, PARTICLES = (frozenset(word_list(f"names-{kind}")) for kind in ("titles", "suffixes", "particles"))
_TOKEN = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?|[^\w]+|.", re.DOTALL)
_POSSESSIVE = re.compile(r"['’]s?\Z")
_INITIALS = tuple("ABCDEFGHJKLMPRST"), tuple("INOUVWYZ")
LISTS = {"given": Cells("given"), "surname": Cells("surname"), "single": Cells("alone")}
_CULTURES = "spanish french german italian portuguese slavic dutch nordic turkish south-asian east-asian american"
CULTURES = tuple(_CULTURES.split())
ALSO = {
    (kind, culture): Cells("origins", f"also {label} {culture}")
    for kind, label in (("given", "given name"), ("surname", "surname"))
    for culture in CULTURES
}  # names that more people have of another culture


class Names:
    def pool(self, secret: str, around: Around, draw: Prf) -> Pool | None:
        if len(secret) > MAX_CHARACTERS:
            return None
        body, end = _without_possessive(secret)
        tokens = _TOKEN.findall(body)
        kinds = _kinds(tokens)
        if kinds is None:
            return None
        named = [kind for kind in kinds if kind]
        words = [token for token, kind in zip(tokens, kinds, strict=True) if kind]
        slots = person_slots(words, named, around.wanted)
        if not slots:
            return None
        values = []
        for member in side_by_side(slots, TURNS, max(NEIGHBOURS, 2 * around.wanted - 1)):
            others = iter(member)
            spelt = [next(others) if kind else token for token, kind in zip(tokens, kinds, strict=True)]
            if _kinds(spelt) == kinds and same_slots(
                slots, member, named, around.wanted
            ):  # "Major" is a given name, and a title
                values.append("".join(spelt) + end)
        return Pool(tuple(dict.fromkeys(values)), _shown(slots))


def _without_possessive(secret: str) -> tuple[str, str]:
    found = _POSSESSIVE.search(secret)
    return (secret[: found.start()], found[0]) if found else (secret, "")


def _kinds(tokens: list[str]) -> list[str] | None:
    """What each token is: given, surname, single, initial, or "" for what stays. None where this is no name."""
    kinds = [
        "" if not token[0].isalpha() or _stays(token, place, tokens) else "name" for place, token in enumerate(tokens)
    ]
    if any(not (token[0].isalpha() or set(token) <= set(" .,-'’()\"\n\t")) for token in tokens):
        return None
    kinds = ["initial" if kind and len(token) == 1 else kind for token, kind in zip(tokens, kinds, strict=True)]
    words = [place for place, kind in enumerate(kinds) if kind == "name"]
    comma = next((place for place, token in enumerate(tokens) if "," in token), None)
    if comma is not None and not (any(place < comma for place in words) and any(place > comma for place in words)):
        comma = None
    for number, place in enumerate(words):
        joined = place > 0 and "-" in tokens[place - 1] and kinds[place - 2] in ("given", "surname")
        if comma is not None:
            kinds[place] = "surname" if place < comma else "given"
        elif joined:
            kinds[place] = kinds[place - 2]
        elif len(words) == 1:
            alone = not any(kinds[:place]) and not any(token.lower() in TITLES for token in tokens[:place])
            kinds[place] = "single" if alone else "surname"
        else:
            left = [other for other in words[number:] if tokens[other - 1].strip() != "-" or other == place]
            kinds[place] = "surname" if len(left) == 1 and number else "given"
    return kinds


def _stays(token: str, place: int, tokens: list[str]) -> bool:
    low = token.lower()
    if low in TITLES:
        return place == 0 or (place <= 3 and tokens[0].lower() in TITLES)
    if low in SUFFIXES:
        return place > 0 and len(token) > 1
    return token.islower() and low in PARTICLES and place + 1 < len(tokens)


def person_slots(words: Sequence[str], kinds: Sequence[str], wanted: int = 0) -> list[Slot] | None:
    """Of one culture, the first that all words have; else each word has its own (an American given name, a Chinese
    surname). None where a word is in no list."""
    slots = [
        _initial(word) if kind == "initial" else LISTS[kind].slot(word, wanted)
        for word, kind in zip(words, kinds, strict=True)
    ]
    known = [slot for slot in slots if slot is not None]
    return _of_one_culture(known, words, kinds, wanted) if len(known) == len(slots) else None


def _of_one_culture(own: list[Slot], words: Sequence[str], kinds: Sequence[str], wanted: int) -> list[Slot]:
    cultures = [_culture(slot) for slot in own if not slot.free]
    if len(cultures) < 2 or len({*cultures}) == 1:
        return own
    for culture in CULTURES:
        shared = [
            slot if slot.free or _culture(slot) == culture else ALSO[kind, culture].slot(word, wanted)
            for slot, word, kind in zip(own, words, kinds, strict=True)
        ]
        if None not in shared:
            return [slot for slot in shared if slot is not None]
    return own


def same_slots(slots: Sequence[Slot], member: Sequence[str], kinds: Sequence[str], wanted: int) -> bool:
    """Whether the words of a member, one of each slot, get these slots again."""
    own = [
        LISTS[kind].slot(word, wanted) if slot.kind.startswith("also") else slot
        for slot, word, kind in zip(slots, member, kinds, strict=True)
    ]
    known = [slot for slot in own if slot is not None]
    read = _of_one_culture(known, member, kinds, wanted) if len(known) == len(own) else ()
    return [one.values for one in read] == [one.values for one in slots]


def _culture(slot: Slot) -> str:
    return next(culture for culture in slot.kind.split() if culture in CULTURES)


def _initial(token: str) -> Slot:
    for letters in _INITIALS:
        for spelt in (letters, tuple(map(str.lower, letters))):
            if token in spelt:
                return Slot(spelt, spelt.index(token), free=True)
    return Slot((token,), 0, free=True)


def _shown(slots: list[Slot]) -> str:
    return " + ".join(dict.fromkeys(slot.kind for slot in slots if slot.kind)).replace("also ", "") or "initials"
