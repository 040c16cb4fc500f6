"""E-mail addresses made of a person's name at a provider that anyone may use: another name, other digits."""

import re
from collections.abc import Iterator

from cloister.obfuscation.candidates.base import Pool
from cloister.obfuscation.candidates.cells import Slot, apart, block, side_by_side
from cloister.obfuscation.candidates.names import LISTS

_PROVIDERS = (
    "gmail yahoo hotmail outlook aol icloud fastmail protonmail proton live msn ymail googlemail comcast verizon att "
    "me mail gmx web mac sbcglobal bellsouth cox charter earthlink zoho yandex orange wanadoo free laposte t-online "
    "libero example"
)
PROVIDERS = frozenset(_PROVIDERS.split())
_TOKEN = re.compile(r"[a-z]+|[0-9]+|[._+-]", re.IGNORECASE)
_LETTERS = tuple("abcdefghjklmprst"), tuple("inouvwyz")
Reading = list[tuple[str, str]]  # (part, what it is)


def email_pool(secret: str) -> Pool | None:
    local, _, domain = secret.partition("@")
    read = _read(local)
    if domain.split(".")[0].lower() not in PROVIDERS or read is None:
        return None
    slots = [slot for part, kind in read if (slot := _slot(part, kind)) is not None]
    if not any(not slot.free for slot in slots):
        return None
    values = []
    for member in side_by_side(slots):
        words = iter(member)
        parts = [part if _slot(part, kind) is None else next(words) for part, kind in read]
        again = _read("".join(parts))
        if (
            again is not None
            and [kind for _, kind in again] == [kind for _, kind in read]
            and [part for part, _ in again] == parts
        ):
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


def _slot(part: str, kind: str) -> Slot | None:
    if kind == "digits":
        values = tuple(f"{number:0{len(part)}}" for number in range(10 ** min(len(part), 4)))
        return block(values, values.index(part)) if len(part) <= 4 else None
    if kind == "initial":
        letters = next((each for each in _LETTERS if part in each), (part,))
        return Slot(letters, letters.index(part), free=True)
    return LISTS[kind].slot(part) if kind else None
