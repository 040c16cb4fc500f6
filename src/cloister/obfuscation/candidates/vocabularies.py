"""The vocabulary of each category. `load` reads all lists: a process that is sealed later cannot open files."""

from collections.abc import Mapping

from cloister.obfuscation.candidates import ids, medications, names, organisations, places
from cloister.obfuscation.candidates.ages import Ages
from cloister.obfuscation.candidates.base import Around, Pool, Vocabulary
from cloister.obfuscation.candidates.cells import LISTS, Cells
from cloister.obfuscation.candidates.dates import Dates
from cloister.obfuscation.index import Prf
from cloister.obfuscation.tags import Category

JOBS, OCCUPATIONS = Cells("jobs"), Cells("occupations")  # found in titles; those that all know, kept by hand


class Jobs:
    def pool(self, secret: str, around: Around, draw: Prf) -> Pool | None:
        if (slot := OCCUPATIONS.slot(secret, around.wanted)) is not None:
            return Pool(slot.values, slot.kind)
        slot = JOBS.slot(secret, around.wanted)
        if slot is None:
            return None
        return Pool(tuple(value for value in slot.values if OCCUPATIONS.slot(value) is None), slot.kind)


class Anything:
    """What has no category: the first of these vocabularies that knows it, without what one before knows, too."""

    def __init__(self, *those: Vocabulary) -> None:
        self._those = those

    def pool(self, secret: str, around: Around, draw: Prf) -> Pool | None:
        for number, one in enumerate(self._those):
            if (found := one.pool(secret, around, draw)) is not None:
                before = self._those[:number]
                own = (value for value in found.values if not any(each.pool(value, around, draw) for each in before))
                return Pool(tuple(own), found.kind)
        return None


_LISTED: Mapping[Category, Vocabulary] = {
    Category.DATE: Dates(),
    Category.AGE: Ages(),
    Category.MEDICATION: medications.Medications(),
    Category.NAME: names.Names(),
    Category.PLACE: places.Places(),
    Category.ORGANISATION: organisations.Organisations(),
    Category.ID: ids.Ids(),
}
VOCABULARIES: Mapping[Category, Vocabulary] = {**_LISTED, Category.FREE: Anything(Jobs(), *_LISTED.values())}


def load() -> None:
    for words in LISTS:
        words.load()
