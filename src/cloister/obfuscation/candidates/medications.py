"""Medications of one class, generic or brand names apart. Classes are of the WHO's ATC (second level, small ones
joined), kept by hand in data/medications.txt; data/strengths.txt: what is sold, the commonest strength first (FDA)."""

import re
from collections.abc import Sequence

from cloister.obfuscation.candidates.base import Around, Pool
from cloister.obfuscation.candidates.cells import Cells, Slot, aligned, apart, side_by_side
from cloister.obfuscation.index import Prf

MAX_CHARACTERS = 80
COMMON = 8  # values of a class at least, all about as common: a reader takes the drug that most people know
MEDICATIONS, STRENGTHS = Cells("medications"), Cells("strengths")
_JOINED = re.compile(r"([^\W\d_]+)([-/]| and | ?/ ?)([^\W\d_]+)")
_DOSE = re.compile(r" (?:(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<gap> ?)(?P<unit>mc?g)\b|inhaler\b)", re.IGNORECASE)
_DOSE_BEFORE = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?) ?(?P<unit>mc?g)(?: of)? \Z", re.IGNORECASE)
_FORM = re.compile(
    r" (?:ointment|cream|gel|lotion|drops?|patch(?:es)?|inj(?:ection)?|IV|nebuli[sz]er|spray|suppository|shots?|pump"
    r"|[0-9.]+ ?%|[0-9]+ units?|dos(?:es?|age|ing))(?!\w)",
    re.IGNORECASE,
)
_DAILY = re.compile(
    r"(?:,? (?:[0-9]|tablets?|tabs?|capsules?|po|orally|by mouth|once|twice|three times|daily|a day|per day|every"
    r"|[0-9]+ hours|bid|tid|qid|qd|qhs|prn|as needed|at bedtime|in the (?:morning|evening)|weekly|puffs?))*\.?",
    re.IGNORECASE,
)
_WITH_DOSES = (
    (
        "agents acting on the renin-angiotensin system",
        "beta blocking agents",
        "calcium channel blockers, vasodilators and other antihypertensives",
        "diuretics",
    ),
    ("corticosteroids and thyroid therapy", "sex hormones and urologicals"),
)  # one class where a dose stands: each alone has few


class Medications:
    def pool(self, secret: str, around: Around, draw: Prf) -> Pool | None:
        if len(secret) > MAX_CHARACTERS:
            return None
        if (slot := MEDICATIONS.slot(secret)) is not None:
            pool = _sold_in(slot, secret, around)
            return None if pool is None else Pool(_as_common(pool.values, secret, around), pool.kind)
        drug, _, _ = secret.partition(" ")
        found = _DOSE.match(secret, len(drug))
        if found and _DAILY.fullmatch(secret, found.end()):
            return _dosed(drug, found, around)
        if (joined := _JOINED.fullmatch(secret)) is None:
            return None
        slots = [aligned(slot) for word in (joined[1], joined[3]) if (slot := MEDICATIONS.slot(word)) is not None]
        both = [slot for slot in slots if slot is not None]
        if len(both) < 2:
            return None
        made = [joined[2].join(member) for member in side_by_side(both)]
        values = [value for value in made if MEDICATIONS.slot(value) is None]
        return Pool(apart(values, secret), " + ".join(slot.kind for slot in both))


def _as_common(values: Sequence[str], secret: str, around: Around) -> tuple[str, ...]:
    """The block in which the secret is; the commonest come first. No more than one band of what is wanted."""
    length = -(-len(values) // max(1, len(values) // max(COMMON, around.wanted // 2)))
    start = values.index(secret) // length * length
    return tuple(values[start : start + length])


def _sold_in(slot: Slot, secret: str, around: Around) -> Pool | None:
    """Where a dose stands beside it: the drugs that are sold in it. None for one that is not, or where a form of drug
    or a way into the body follows: it would fit hardly another."""
    found = _DOSE.match(around.after) or _DOSE_BEFORE.search(around.before)
    if found is None:
        return None if _FORM.match(around.after) else Pool(slot.values, slot.kind)
    spell = next((each for each in (str.lower, str.capitalize, str.upper) if each(secret) == secret), str)
    sold = tuple(spell(drug) for drug in _alike(slot.kind) if _strength(found) in _strengths(drug))
    return Pool(sold, f"{slot.kind}, with a dose") if secret in sold else None


def _dosed(drug: str, found: re.Match[str], around: Around) -> Pool | None:
    """Each drug in a strength as common as the secret's is among its own. None for one in which it is not sold."""
    slot = MEDICATIONS.slot(drug)
    spell = next((each for each in (str.lower, str.capitalize, str.upper) if each(drug) == drug), None)
    strengths = _strengths(drug)
    if slot is None or spell is None or (own := _strength(found)) not in strengths:
        return None
    drugs = _alike(slot.kind)
    made = [(other, each) for other in drugs for each in _strengths(other)]
    rank = _rank(strengths, own)
    values = [spell(other) + _written(each, found) for other, each in made if _rank(_strengths(other), each) == rank]
    return Pool(_as_common(values, found.string, around), f"{slot.kind}, with a dose")


def _alike(kind: str) -> list[str]:
    """Drugs of classes that are one where a dose stands, the commonest of each first."""
    like = next((those for those in _WITH_DOSES if kind in those), (kind,))
    return [
        drug
        for _, drug in sorted((at, drug) for own, cell in MEDICATIONS if own in like for at, drug in enumerate(cell))
    ]


def _strength(found: re.Match[str]) -> str:
    return f"{float(found['number']):g} {found['unit'].lower()}" if found["number"] else "inhaler"


def _rank(strengths: list[str], one: str) -> int:
    """An inhaler comes last in the list, and has its rank."""
    return -1 if one == "inhaler" else strengths.index(one)


def _written(strength: str, like: re.Match[str]) -> str:
    """With what follows the secret's dose."""
    number, _, unit = strength.partition(" ")
    rest = like.string[like.end() :]
    if strength == "inhaler":
        return like[0] + rest
    return f" {number}{like['gap']}{unit.upper() if like['unit'].isupper() else unit}{rest}"


def _strengths(drug: str) -> list[str]:
    text, name = STRENGTHS.load(), f"\n{drug.lower()}|".encode()
    at = text.find(name)
    return [] if at < 0 else text[at + len(name) : text.find(b"|\n", at)].decode().split("|")


def known_medications() -> frozenset[str]:
    """For `auto_redact`, which marks them."""
    return frozenset(name for kind, cell in MEDICATIONS if not kind.startswith("kinds of") for name in cell)
