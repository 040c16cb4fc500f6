"""Optional (§7.1): an odd spelling has few substitutes, so a secret's capitals and spaces are made regular before
sampling. Misspelt words stay (the paper asks a hosted model, which a secret must not reach). The answer may change."""

import re

from cloister.obfuscation.tags import Category, Span, TaggedText

_PROPER = frozenset((Category.NAME, Category.PLACE))
_SMALL = frozenset(("of", "the", "and", "de", "da", "von", "van", "der", "la", "le", "del", "di", "du", "in", "upon"))
_MONTHS = re.compile(
    r"\b(?:january|february|march|april|may|june|july|august|september|october|november|december"
    r"|monday|tuesday|wednesday|thursday|friday|saturday|sunday)\b",
    re.IGNORECASE,
)


def regularise(tagged: TaggedText) -> TaggedText:
    pieces: list[str] = []
    spans: list[Span] = []
    at = length = 0
    for span in tagged.spans:
        before, secret = tagged.text[at : span.start], _regular(tagged.secret(span), span.category)
        start = length + len(before)
        spans.append(Span(start, start + len(secret), span.category))
        pieces += [before, secret]
        at, length = span.end, start + len(secret)
    return TaggedText("".join((*pieces, tagged.text[at:])), tuple(spans))


def _regular(secret: str, category: Category) -> str:
    words = " ".join(secret.split())
    if category in _PROPER and (words.islower() or words.isupper()):
        return " ".join(
            word.lower() if place and word.lower() in _SMALL else _capital(word)
            for place, word in enumerate(words.split(" "))
        )
    if category is Category.DATE:
        return _MONTHS.sub(lambda found: found[0].capitalize(), words)
    if category is Category.MEDICATION and words.isupper():
        return words.lower()
    return words


def _capital(word: str) -> str:
    return "-".join(part[:1].upper() + part[1:].lower() for part in word.split("-"))
