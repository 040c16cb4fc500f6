"""Medications of one class, generic or brand names apart. The classes are those of the WHO's ATC (second level, small
ones joined); the list is kept by hand, in data/medications.txt."""

import re

from cloister.obfuscation.candidates.base import Around, Pool
from cloister.obfuscation.candidates.cells import Cells, aligned, apart, side_by_side
from cloister.obfuscation.index import Prf

MAX_CHARACTERS = 80
MEDICATIONS = Cells("medications")
_JOINED = re.compile(r"([^\W\d_]+)([-/]| and | ?/ ?)([^\W\d_]+)")


class Medications:
    def pool(self, secret: str, around: Around, draw: Prf) -> Pool | None:
        """None for a name with a dose: few other medications have the same. Both are one joint secret."""
        if len(secret) > MAX_CHARACTERS:
            return None
        if (slot := MEDICATIONS.slot(secret)) is not None:
            return Pool(slot.values, slot.kind)
        if (found := _JOINED.fullmatch(secret)) is None:
            return None
        slots = [aligned(slot) for word in (found[1], found[3]) if (slot := MEDICATIONS.slot(word)) is not None]
        both = [slot for slot in slots if slot is not None]
        if len(both) < 2:
            return None
        values = [found[2].join(member) for member in side_by_side(both)]
        return Pool(apart(values, secret), " + ".join(slot.kind for slot in both))


def known_medications() -> frozenset[str]:
    """For `auto_redact`, which marks them."""
    return frozenset(name for _, cell in MEDICATIONS for name in cell)
