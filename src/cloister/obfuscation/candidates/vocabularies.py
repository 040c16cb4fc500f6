"""The vocabulary of each category. `load` reads all lists: a process that is sealed later cannot open files."""

from collections.abc import Mapping

from cloister.obfuscation.candidates.ages import Ages
from cloister.obfuscation.candidates.base import Vocabulary
from cloister.obfuscation.candidates.dates import Dates
from cloister.obfuscation.candidates.ids import AREAS, Ids
from cloister.obfuscation.candidates.names import LISTS, Names
from cloister.obfuscation.tags import Category

VOCABULARIES: Mapping[Category, Vocabulary] = {
    Category.NAME: Names(),
    Category.DATE: Dates(),
    Category.AGE: Ages(),
    Category.ID: Ids(),
}  # free text has none


def load() -> None:
    for words in (*LISTS.values(), AREAS):
        words.load()
