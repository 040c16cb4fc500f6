"""Hospitals, schools, companies: the words that say what it is stay, the town or people it is named after change.
Those of no such form are in a list: companies, and well-known others (agencies, universities, charities, shops,
companies of examples and fiction), by kind and kept by hand in data/bodies.txt."""

import re

from cloister.obfuscation.candidates.base import Around, Pool
from cloister.obfuscation.candidates.cells import Cells, Slot, apart, side_by_side
from cloister.obfuscation.candidates.names import LISTS
from cloister.obfuscation.candidates.places import PLACES
from cloister.obfuscation.index import Prf
from cloister.obfuscation.parts import words_in
from cloister.obfuscation.words import word_list

MAX_CHARACTERS = 100
COMPANIES, BODIES = Cells("companies"), Cells("bodies")
PUBLIC, PRIVATE = (frozenset(word_list(f"organisations-{kind}")) for kind in ("public", "private"))
_FIXED = frozenset(word[0] for word in words_in(" ".join(PUBLIC | PRIVATE)))
_SAINTS = frozenset(("st", "st.", "saint"))
_TOKEN = re.compile(r"[^\W\d_]+(?:['’.](?:s\b|[^\W\d_]+\.?))?\.?|\s+|[^\w\s]|.", re.DOTALL)


class Organisations:
    def pool(self, secret: str, around: Around, draw: Prf) -> Pool | None:
        if len(secret) > MAX_CHARACTERS:
            return None
        if (slot := BODIES.slot(secret)) is not None:
            return Pool(slot.values, slot.kind)
        wanted = 2 * around.wanted  # half of them share a word with another
        if (slot := COMPANIES.slot(secret, wanted)) is not None:
            own = tuple(value for value in slot.values if BODIES.slot(value) is None)
            return Pool(apart(own, secret, _FIXED.__contains__), slot.kind)
        read = _read(secret, wanted)
        if read is None:
            return None
        slots = [slot for _, slot in read if slot is not None]
        if len(slots) > 1 and any(len(slot.values).bit_count() > 1 for slot in slots):
            return None  # of the states, which are fifty, alone
        values = []
        for member in side_by_side(slots):
            words = iter(member)
            value = "".join(text if slot is None else next(words) for text, slot in read)
            if _kinds(_read(value, wanted)) == _kinds(read) and _is_new(value):
                values.append(value)
        if secret not in values:
            return None
        kept = apart(values, secret, _FIXED.__contains__)
        return Pool(kept, f"organisation named after a {' + '.join(dict.fromkeys(slot.kind for slot in slots))}")


def _is_new(value: str) -> bool:
    return COMPANIES.slot(value) is None and BODIES.slot(value) is None


Reading = list[tuple[str, Slot | None]]


def _kinds(read: Reading | None) -> list[str | tuple[str, ...]]:
    return [] if read is None else [text if slot is None else slot.values for text, slot in read]


def _read(secret: str, wanted: int) -> Reading | None:
    """Runs of words that do not say its kind are a place or people. None where these are unknown, or no word does."""
    tokens = _TOKEN.findall(secret)
    words = [token.lower() for token in tokens if not token.isspace()]
    public = any(word in PUBLIC for word in words)
    if not public and not any(word in PRIVATE - {"of", "the", "for", "at", "de", "la"} for word in words):
        people = _people(tokens, wanted)  # "Reed Elsevier"
        return people if people is not None and len(tokens) > 1 and tokens[0][0].isupper() else None
    read: Reading = []
    run: list[str] = []
    for token in (*tokens, ""):
        kept = not token or token.isspace() or token.lower() in PUBLIC or token.lower() in PRIVATE
        if not kept or (token.isspace() and run):
            run.append(token)
            continue
        if run:
            space = run.pop() if run[-1].isspace() else ""
            saint = len(read) > 1 and read[-2][0].lower() in _SAINTS
            found = _saint(run[0], wanted) if saint and len(run) == 1 else _named(run, public, wanted)
            if found is None or not any(slot for _, slot in found):
                return None
            read += [*found, *([(space, None)] if space else [])]
            run = []
        read += [(token, None)] if token else []
    return read if 0 < sum(slot is not None for _, slot in read) < 4 else None


def _saint(name: str, wanted: int) -> Reading:
    body, end = (name[:-2], name[-2:]) if name[-2:] in ("'s", "’s") else (name, "")
    return [(body, LISTS["given"].slot(body, wanted)), *([(end, None)] if end else [])]


def _named(run: list[str], public: bool, wanted: int) -> Reading | None:
    """The whole run a place (first for what is public), or people. For companies first a word that many have in their
    names ("Summit"), or of fiction: all know "Wayne Enterprises", and "Amazon Web Services", which has no like."""
    if not public and len(run) == 1 and (known := BODIES.slot(run[0])) is not None and known.kind.startswith("company"):
        return [(run[0], known)] if known.kind.startswith("company of") else None
    place, people = PLACES.slot("".join(run), wanted), _people(run, wanted)
    if place is not None and (public or people is None):
        return [("".join(run), place)]
    return people


def _people(run: list[str], wanted: int) -> Reading | None:
    """At most two surnames, or a given name before one."""
    people: Reading = [(token, None if token.isspace() else LISTS["surname"].slot(token, wanted)) for token in run]
    if len(run) == 3 and (given := LISTS["given"].slot(run[0], wanted)) is not None:
        people[0] = run[0], given
    known = all(token.isspace() or slot is not None for token, slot in people) and len(run) <= 3
    return people if known and run else None
