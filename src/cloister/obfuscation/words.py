"""The words of a secret, and which of them give it away where they stand alone."""

from __future__ import annotations

import re

from cloister.obfuscation.tags import Category

KEPT = frozenset(
    {"dr", "mr", "mrs", "ms", "miss", "prof", "st", "sir"}
    | {"of", "the", "and", "for", "at", "in", "on", "by", "a", "an", "to", "am", "pm", "nd", "rd", "th"}
    | {"de", "la", "le", "les", "du", "des", "van", "von", "der", "den", "di", "da", "del", "el", "y"}
    | {"com", "org", "net", "edu"}
)
"""Words that stay where a secret has others: they name no person."""
_SMALL = (
    "is was are were be been has have had do does did not no or but so as if it its he she his her him they them their "
    "we us our you your my me i who what with from about into over after before this that these those there here "
    "when where how why all any some one two three four five six seven eight nine ten new old very more most"
)
SMALL = frozenset(_SMALL.split())
"""Words that every text has: they give nothing away."""
_EVERYDAY = (
    "april art august baker bank banks bell best bill black brook brown butcher chance chase christian church city "
    "clay college company cook county cross day dawn dean drew early email english faith field fields fisher forest "
    "fox frank french general gold good grace grant gray green grey hall hill home hope hospital house hunt hunter joy "
    "june king knight lane law light little long love major mark marsh may mail miller moon north page park parks "
    "pepper pope price prince rice rich ring rivers road rose royal rush school sharp short silver small smart snow "
    "south spring stone street strong summer swift university walker ward waters way wells west white will winter wise "
    "wood woods young"
)
EVERYDAY = frozenset(_EVERYDAY.split())
"""Words of names that are words of the language, too. In small letters they are taken for those."""
_WORD = re.compile(r"[^\W_]+")


def words_in(text: str) -> list[re.Match[str]]:
    return list(_WORD.finditer(text))


def parts_of(secret: str) -> tuple[str, ...]:
    """The words of a secret but those that stay; all of them where none would be left."""
    words = [found[0] for found in words_in(secret)]
    return tuple(word for word in words if word.casefold() not in KEPT) or tuple(words)


def is_telling(word: str) -> bool:
    """Whether a word says something of a secret: not a single letter, a small word or a number of one or two digits."""
    small = word.casefold() in KEPT or word.casefold() in SMALL
    return not small and len(word) >= (3 if word.isdigit() else 2)


def is_everyday(word: str) -> bool:
    return word.casefold() in EVERYDAY


def gives_away(found: str, part: str, category: Category) -> bool:
    """Whether a word of a text is this word of a secret. Of names in any capitals; of other secrets and of everyday
    words not where the secret has a capital and the text has none."""
    if found.casefold() != part.casefold() or not is_telling(part):
        return False
    if category is Category.NAME and not is_everyday(part):
        return True
    return found == part or found.isupper() or (part.islower() and not is_everyday(part))
