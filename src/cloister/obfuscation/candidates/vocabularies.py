"""The vocabulary of each category. `load` reads all lists: a process that is sealed later cannot open files."""

from collections.abc import Mapping

from cloister.obfuscation.candidates import ids, medications, names, organisations, places
from cloister.obfuscation.candidates.ages import Ages
from cloister.obfuscation.candidates.base import Vocabulary
from cloister.obfuscation.candidates.dates import Dates
from cloister.obfuscation.tags import Category

VOCABULARIES: Mapping[Category, Vocabulary] = {
    Category.NAME: names.Names(),
    Category.DATE: Dates(),
    Category.AGE: Ages(),
    Category.PLACE: places.Places(),
    Category.ORGANISATION: organisations.Organisations(),
    Category.MEDICATION: medications.Medications(),
    Category.ID: ids.Ids(),
}  # free text has none
_LISTS = (
    *names.LISTS.values(),
    *names.ALSO.values(),
    *(places.PLACES, places.TOWNS, places.ZIPS, places.STREETS, places.STATES),
    *(organisations.COMPANIES, organisations.HEADS, medications.MEDICATIONS, medications.STRENGTHS, ids.AREAS),
)


def load() -> None:
    for words in _LISTS:
        words.load()
