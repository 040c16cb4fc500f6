"""`<redacted>…</redacted>` marks a secret within a text (§5.1); `<redacted category="name">` says what it is. Tags are
exact, come in pairs and do not nest; others are refused. A detector only adds secrets. `redacted` wraps a text safely:
a pasted `</redacted>` would end the mark early."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from cloister.errors import TagsInvalid


class Category(StrEnum):
    NAME = "name"
    DATE = "date"
    AGE = "age"
    PLACE = "place"
    ORGANISATION = "organisation"
    MEDICATION = "medication"
    ID = "id"
    FREE = "free"


OPENING, CLOSING = "<redacted>", "</redacted>"
_TAG = re.compile(r'<redacted(?: category="(?P<category>[^"<>]{0,64})")?>|</redacted>')
_LIKE_A_TAG = re.compile(r"<\s*/?\s*redact\w*", re.IGNORECASE)
_HINT = f'Write {OPENING} before and {CLOSING} after each secret, without nesting; <redacted category="name"> helps.'


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Characters start..end-1 of a text."""

    start: int
    end: int
    category: Category = Category.FREE


Detector = Callable[[str], Iterable[tuple[int, int, str]]]  # (start, end, category)


@dataclass(frozen=True, slots=True, repr=False)
class TaggedText:
    """The text without tags; secrets in order, apart from each other, none empty."""

    text: str
    spans: tuple[Span, ...] = ()

    def secret(self, span: Span) -> str:
        return self.text[span.start : span.end]


def redacted(text: str, category: Category | str = Category.FREE) -> str:
    """The text, marked as a secret. TagsInvalid if it is empty or has tags."""
    if not text.strip():
        raise TagsInvalid("There is nothing to redact.", hint="Mark at least one word.")
    if _LIKE_A_TAG.search(text):
        raise TagsInvalid("The text to redact holds a tag itself.", hint="Take it out first.")
    known = _category(str(category), "text")
    opening = OPENING if known is Category.FREE else f'<redacted category="{known}">'
    return f"{opening}{text}{CLOSING}"


def parse_redacted(text: str, *, param: str = "prompt") -> TaggedText:
    """Take the tags out of a text. `param` names the request's field in the errors, which say no word of the text."""
    pieces: list[str] = []
    spans: list[Span] = []
    opened: tuple[int, Category] | None = None
    length = at = 0
    for found in _TAG.finditer(text):
        piece = text[at : found.start()]
        pieces.append(piece)
        length += len(piece)
        at = found.end()
        if found[0] != CLOSING:
            if opened is not None:
                raise _refusal(param, f"{OPENING} inside another.")
            opened = length, _category(found["category"], param)
        elif opened is None:
            raise _refusal(param, f"{CLOSING} without {OPENING} before it.")
        else:
            start, category = opened
            if not piece.strip():
                raise _refusal(param, f"Secret {len(spans) + 1} is empty.")
            spans.append(Span(start, length, category))
            opened = None
    if opened is not None:
        raise _refusal(param, f"{OPENING} without {CLOSING} after it.")
    plain = "".join((*pieces, text[at:]))
    if _LIKE_A_TAG.search(plain):
        raise _refusal(param, "Something is spelt almost like a tag, or a tag is split by other tags.")
    return TaggedText(plain, _trimmed(plain, spans))


def add_spans(tagged: TaggedText, found: Iterable[Span]) -> TaggedText:
    """The same text with more secrets. What overlaps becomes one secret of the first one's category."""
    joined: list[Span] = []
    more: list[Span] = []
    for span in found:
        if not 0 <= span.start < span.end <= len(tagged.text):
            raise TagsInvalid("A detector names characters that the text does not have.", hint="Mend the detector.")
        more += _trimmed(tagged.text, [span]) if tagged.secret(span).strip() else ()
    for span in sorted((*tagged.spans, *more)):
        if joined and span.start < joined[-1].end:
            last = joined.pop()
            category = last.category if last.category is not Category.FREE else span.category
            joined.append(Span(last.start, max(last.end, span.end), category))
        else:
            joined.append(span)
    return TaggedText(tagged.text, tuple(joined))


def auto_redact(tagged: TaggedText, found: Iterable[tuple[int, int, str]]) -> TaggedText:
    """Where both overlap, all of both is one secret."""
    names = {str(category): category for category in Category}
    return add_spans(tagged, (Span(start, end, names.get(name, Category.FREE)) for start, end, name in found))


def _trimmed(text: str, spans: Iterable[Span]) -> tuple[Span, ...]:
    """White space at a secret's edges is not a secret: it would make no candidate fit."""
    out = []
    for span in spans:
        words = text[span.start : span.end]
        start = span.start + len(words) - len(words.lstrip())
        out.append(Span(start, start + len(words.strip()), span.category))
    return tuple(out)


def _category(name: str | None, param: str) -> Category:
    if name is None:
        return Category.FREE
    try:
        return Category(name)
    except ValueError:
        hint = f"Categories: {', '.join(Category)}."
        raise TagsInvalid(f"{param}: There is no such category of secrets.", param=param, hint=hint) from None


def _refusal(param: str, what: str) -> TagsInvalid:
    return TagsInvalid(f"{param}: {what}", param=param, hint=_HINT)


_PROPER = frozenset((Category.NAME, Category.PLACE))
_SMALL = frozenset(("of", "the", "and", "de", "da", "von", "van", "der", "la", "le", "del", "di", "du", "in", "upon"))
_MONTHS = re.compile(
    r"\b(?:january|february|march|april|may|june|july|august|september|october|november|december"
    r"|monday|tuesday|wednesday|thursday|friday|saturday|sunday)\b",
    re.IGNORECASE,
)


def regularise(tagged: TaggedText) -> TaggedText:
    """An odd spelling has few substitutes: capitals and spaces are made regular (§7.1). Misspelt words stay."""
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
        first, *rest = words.split(" ")
        return " ".join((_capital(first), *(w.lower() if w.lower() in _SMALL else _capital(w) for w in rest)))
    if category is Category.DATE:
        return _MONTHS.sub(lambda found: found[0].capitalize(), words)
    if category is Category.MEDICATION and words.isupper():
        return words.lower()
    return words


def _capital(word: str) -> str:
    return "-".join(part[:1].upper() + part[1:].lower() for part in word.split("-"))
