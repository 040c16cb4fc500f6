"""E-mail addresses made of a person's name at a provider that anyone may use: another name, other digits."""

import re
from collections.abc import Iterator, Sequence

from cloister.obfuscation.candidates.base import Pool
from cloister.obfuscation.candidates.cells import Slot, apart, block, side_by_side
from cloister.obfuscation.candidates.names import LISTS, person_slots
from cloister.obfuscation.words import word_list

PROVIDERS = frozenset(word_list("emails-providers"))
_TOKEN = re.compile(r"[a-z]+|[0-9]+|[._+-]", re.IGNORECASE)
Reading = list[tuple[str, str]]  # (part, what it is)


def email_pool(secret: str, wanted: int = 0) -> Pool | None:
    local, _, domain = secret.partition("@")
    read = _read(local)
    if domain.split(".")[0].lower() not in PROVIDERS or read is None:
        return None
    kinds = [kind for _, kind in read]
    slots = _slots([part for part, _ in read], kinds, wanted)
    if slots is None or not any(slot is not None and not slot.free for slot in slots):
        return None
    changed = [slot for slot in slots if slot is not None]
    values = []
    for member in side_by_side(changed):
        words = iter(member)
        parts = [part if slot is None else next(words) for (part, _), slot in zip(read, slots, strict=True)]
        again = _read("".join(parts))
        same = again is not None and again == list(zip(parts, kinds, strict=True))
        if same and [slot and slot.values for slot in _slots(parts, kinds, wanted) or ()] == [
            slot and slot.values for slot in slots
        ]:
            values.append(f"{''.join(parts)}@{domain}")
    fixed = frozenset(re.findall(r"\w+", domain.lower()))
    return Pool(apart(values, secret, lambda word: word in fixed), "e-mail address of a person")


def _read(local: str) -> Reading | None:
    """Words are given names before the last, which is a surname; a word alone may hide an initial or a given name."""
    tokens = _TOKEN.findall(local)
    if "".join(tokens) != local:
        return None
    words = [place for place, token in enumerate(tokens) if token.isalpha()]
    read: Reading = []
    for place, token in enumerate(tokens):
        if not token.isalpha():
            read.append((token, "digits" if token.isdigit() else ""))
        elif len(words) > 1:
            kind = "initial" if len(token) == 1 else "surname" if place == words[-1] else "given"
            read.append((token, kind))
        else:
            found = next(_split(token), None)
            if found is None:
                return None
            read += found
    return read


def _split(word: str) -> Iterator[Reading]:
    if LISTS["single"].slot(word):
        yield [(word, "single")]
    for at in range(3, len(word) - 2):
        if LISTS["given"].slot(word[:at]) and LISTS["surname"].slot(word[at:]):
            yield [(word[:at], "given"), (word[at:], "surname")]
    if len(word) > 3 and LISTS["surname"].slot(word[1:]):
        yield [(word[:1], "initial"), (word[1:], "surname")]


def _slots(parts: Sequence[str], kinds: Sequence[str], wanted: int) -> list[Slot | None] | None:
    """None within: a part that stays. None: a name that no list has."""
    named = [(part, kind) for part, kind in zip(parts, kinds, strict=True) if kind not in ("", "digits")]
    names = person_slots([part for part, _ in named], [kind for _, kind in named], wanted)
    words = iter(names or ())
    slots = [
        next(words, None) if kind not in ("", "digits") else _digits(part)
        for part, kind in zip(parts, kinds, strict=True)
    ]
    return None if names is None else slots


def _digits(part: str) -> Slot | None:
    if not part.isdigit() or len(part) > 4:
        return None
    values = tuple(f"{number:0{len(part)}}" for number in range(10 ** len(part)))
    return block(values, values.index(part))
