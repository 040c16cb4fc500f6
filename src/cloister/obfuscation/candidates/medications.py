"""Medications of one class, generic or brand names apart; with a dose those that are sold in it. Classes are of the
WHO's ATC (second level, small ones joined). Lists kept by hand: data/medications.txt, data/strengths.txt (mg)."""

import re

from cloister.obfuscation.candidates.base import Around, Pool
from cloister.obfuscation.candidates.cells import Cells, aligned, apart, side_by_side
from cloister.obfuscation.index import Prf

MAX_CHARACTERS = 80
MEDICATIONS, STRENGTHS = Cells("medications"), Cells("strengths")
_JOINED = re.compile(r"([^\W\d_]+)([-/]| and | ?/ ?)([^\W\d_]+)")
_DOSED = re.compile(
    r"(?P<drug>[A-Za-z]+)(?P<dose> (?:(?P<mg>[0-9]+(?:\.[0-9]+)?) ?mg|(?P<form>inhaler))"
    r"(?:,? (?:[0-9]|tablets?|tabs?|capsules?|po|orally|by mouth|once|twice|three times|daily|a day|per day|every"
    r"|[0-9]+ hours|bid|tid|qid|qd|qhs|prn|as needed|at bedtime|in the (?:morning|evening)|weekly|puffs?))*\.?)",
    re.IGNORECASE,
)


_PRESSURE = (
    "agents acting on the renin-angiotensin system",
    "beta blocking agents",
    "calcium channel blockers, vasodilators and other antihypertensives",
    "diuretics",
)  # one class where a dose must be the same: each alone has few


class Medications:
    def pool(self, secret: str, around: Around, draw: Prf) -> Pool | None:
        if len(secret) > MAX_CHARACTERS:
            return None
        if (slot := MEDICATIONS.slot(secret)) is not None:
            return Pool(slot.values, slot.kind)
        if found := _DOSED.fullmatch(secret):
            return _dosed(found)
        if (found := _JOINED.fullmatch(secret)) is None:
            return None
        slots = [aligned(slot) for word in (found[1], found[3]) if (slot := MEDICATIONS.slot(word)) is not None]
        both = [slot for slot in slots if slot is not None]
        if len(both) < 2:
            return None
        values = [found[2].join(member) for member in side_by_side(both)]
        return Pool(apart(values, secret), " + ".join(slot.kind for slot in both))


def _dosed(found: re.Match[str]) -> Pool | None:
    """The dose stays as it is written. None where no list says that the drug comes in it."""
    slot = MEDICATIONS.slot(found["drug"])
    spell = next(
        (each for each in (str.lower, str.capitalize, str.upper) if each(found["drug"]) == found["drug"]), None
    )
    if slot is None or spell is None:
        return None
    wanted = f"{float(found['mg']):g}" if found["mg"] else found["form"].lower()
    like = _PRESSURE if slot.kind in _PRESSURE else (slot.kind,)
    drugs = (drug for kind, cell in MEDICATIONS if kind in like for drug in cell if wanted in _strengths(drug))
    values = tuple(spell(drug) + found["dose"] for drug in drugs)
    return Pool(values, f"{slot.kind}, in this dose") if found[0] in values else None


def _strengths(drug: str) -> list[str]:
    text, name = STRENGTHS.load(), f"\n{drug.lower()}|".encode()
    at = text.find(name)
    return [] if at < 0 else text[at + len(name) : text.find(b"|\n", at)].decode().split("|")


def known_medications() -> frozenset[str]:
    """For `auto_redact`, which marks them."""
    return frozenset(name for _, cell in MEDICATIONS for name in cell)
