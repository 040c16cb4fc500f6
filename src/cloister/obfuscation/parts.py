"""Parts of a secret that stand alone: "Dr Thornbury" for Margaret Thornbury. Sent unchanged, they tell the real one.

* A word of two secrets belongs to the one with more words or the first: "Ann Lee", "Tom Lee" are "Ann Lee", "Tom".
* A word of a name that stands alone, unmarked, is marked as its part. So is its initial before a later part.
* Every other word of a secret outside the marks ("Will", initials alone) is refused, with what to do.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cloister.errors import TagsInvalid
from cloister.obfuscation.tags import Category, Span, TaggedText

KEPT = frozenset(
    {"dr", "mr", "mrs", "ms", "miss", "prof", "st", "sir"}
    | {"of", "the", "and", "for", "at", "in", "on", "by", "a", "an", "to", "am", "pm", "nd", "rd", "th"}
    | {"de", "la", "le", "les", "du", "des", "van", "von", "der", "den", "di", "da", "del", "el", "y"}
    | {"com", "org", "net", "edu"}
)  # words that stay where a secret has others: they name no person
_SMALL = (
    "is was are were be been has have had do does did not no or but so as if it its he she his her him they them their "
    "we us our you your my me i who what with from about into over after before this that these those there here "
    "when where how why all any some one two three four five six seven eight nine ten new old very more most"
)
SMALL = frozenset(_SMALL.split())  # words that every text has
_EVERYDAY = (
    "april art august baker bank banks bell best bill black brook brown butcher chance chase christian church city "
    "clay college company cook county cross day dawn dean drew early email english faith field fields fisher forest "
    "fox frank french general gold good grace grant gray green grey hall hill home hope hospital house hunt hunter joy "
    "june king knight lane law light little long love major mark marsh may mail miller moon north page park parks "
    "pepper pope price prince rice rich ring rivers road rose royal rush school sharp short silver small smart snow "
    "south spring stone street strong summer swift university walker ward waters way wells west white will winter wise "
    "wood woods young"
)
EVERYDAY = frozenset(_EVERYDAY.split())  # in small letters taken for words of the language
_WORD = re.compile(r"[^\W_]+")
_INITIAL_BEFORE = re.compile(r"(?<!\w)(?P<letter>[^\W\d_])(?P<gap>\.? )\Z")


def words_in(text: str) -> list[re.Match[str]]:
    return list(_WORD.finditer(text))


def parts_of(secret: str) -> tuple[str, ...]:
    """All words where none but KEPT would be left."""
    words = [found[0] for found in words_in(secret)]
    return tuple(word for word in words if word.casefold() not in KEPT) or tuple(words)


def is_telling(word: str) -> bool:
    """Not a single letter, a small word or a number of one or two digits."""
    small = word.casefold() in KEPT or word.casefold() in SMALL
    return not small and len(word) >= (3 if word.isdigit() else 2)


def is_everyday(word: str) -> bool:
    return word.casefold() in EVERYDAY


def gives_away(found: str, part: str, category: Category) -> bool:
    """Names in any capitals; other secrets and everyday words not where only the secret has a capital."""
    if found.casefold() != part.casefold() or not is_telling(part):
        return False
    if category is Category.NAME and not is_everyday(part):
        return True
    return found == part or found.isupper() or (part.islower() and not is_everyday(part))


@dataclass(frozen=True, slots=True, repr=False)
class Part:
    """A word of a secret, or its first letter. `secret` is in small letters."""

    secret: str
    index: int
    initial: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class _Owned:
    part: Part
    word: str
    category: Category


class Owners:
    """A telling word belongs to a `known` secret, then to the one with the most words, then to the first."""

    def __init__(self, known: Iterable[str], marked: Iterable[tuple[str, Category]]) -> None:
        categories: dict[str, Category] = {}
        spelt: dict[str, str] = {}
        for secret, category in marked:
            key = secret.casefold()
            spelt.setdefault(key, secret)
            if categories.setdefault(key, category) is Category.FREE:
                categories[key] = category
        earlier = {secret.casefold(): secret for secret in known}
        rest = [key for key in spelt if key not in earlier]
        self.keys = (*earlier, *sorted(rest, key=lambda key: (-len(parts_of(key)), -len(words_in(key)))))
        self._words: dict[str, _Owned] = {}
        for key in self.keys:
            secret, category = spelt.get(key) or earlier[key], categories.get(key, Category.FREE)
            for index, word in enumerate(parts_of(secret)):
                if is_telling(word):
                    self._words.setdefault(word.casefold(), _Owned(Part(key, index), word, category))

    def __iter__(self) -> Iterator[tuple[Part, str, Category]]:
        return ((one.part, one.word, one.category) for one in self._words.values())

    def part(self, word: str) -> Part | None:
        owned = self._words.get(word.casefold())
        return None if owned is None else owned.part

    def elsewhere(self, secret: str) -> bool:
        key = secret.casefold()
        return any((part := self.part(word)) is not None and part.secret != key for word in parts_of(secret))

    def linked(self, word: str) -> Category | None:
        """The category of the name that this unmarked word is surely a part of. `free` with a capital is a name."""
        owned = self._words.get(word.casefold())
        if owned is None or is_everyday(owned.word) or not gives_away(word, owned.word, owned.category):
            return None
        named = owned.category is Category.NAME or (owned.category is Category.FREE and word[0].isupper())
        return owned.category if named else None


def owners_of(texts: Sequence[TaggedText], known: Iterable[str] = ()) -> Owners:
    return Owners(known, ((text.secret(span), span.category) for text in texts for span in text.spans))


def cut_shared(texts: Sequence[TaggedText], known: Iterable[str] = ()) -> list[TaggedText]:
    """The same texts; a mark that shares a word with another secret is cut into that word and the rest."""
    known = list(known)
    while True:
        owners = owners_of(texts, known)
        cut = [TaggedText(text.text, tuple(_cut(text, owners))) for text in texts]
        if cut == list(texts):
            return cut
        texts = cut


def _cut(text: TaggedText, owners: Owners) -> Iterator[Span]:
    for span in text.spans:
        secret = text.secret(span)
        if not owners.elsewhere(secret):
            yield span
            continue
        rest: list[re.Match[str]] = []
        for found in words_in(secret):
            part = owners.part(found[0])
            if part is None or part.secret == secret.casefold():
                rest += [found] if rest or found[0].casefold() not in KEPT else []
                continue
            yield from _joined(span, rest)
            rest = []
            yield Span(span.start + found.start(), span.start + found.end(), span.category)
        yield from _joined(span, rest)


def _joined(span: Span, words: list[re.Match[str]]) -> Iterator[Span]:
    while words and words[-1][0].casefold() in KEPT:
        words = words[:-1]
    if words:
        yield Span(span.start + words[0].start(), span.start + words[-1].end(), span.category)


def link_parts(text: TaggedText, owners: Owners) -> TaggedText:
    spans = list(text.spans)
    for start, piece in outside(text):
        for found in words_in(piece):
            category = owners.linked(found[0])
            if category is not None:
                spans.append(Span(start + found.start(), start + found.end(), category))
    marked = TaggedText(text.text, tuple(sorted(spans)))
    initials = [span for span in marked.spans for span in _initials(marked, span, owners)]
    return TaggedText(text.text, tuple(sorted({*marked.spans, *initials})))


def _initials(text: TaggedText, span: Span, owners: Owners) -> Iterator[Span]:
    part, start = owners.part(text.secret(span)), span.start
    since = max((one.end for one in text.spans if one.end <= start), default=0)
    while part is not None and (found := _INITIAL_BEFORE.search(text.text, since, start)):
        if _initial_of(found["letter"], part) is None:
            return
        start = found.start()
        yield Span(start, start + 1, span.category)


def _initial_of(letter: str, part: Part) -> Part | None:
    """Of a name's words before this one, that which the letter begins."""
    for index, word in enumerate(parts_of(part.secret)[: part.index]):
        if word[:1].casefold() == letter.casefold():
            return Part(part.secret, index, initial=True)
    return None


def part_at(text: TaggedText, number: int, owners: Owners) -> Part | None:
    """The part of another secret that span `number` of a text is; None if it is a secret itself."""
    span = text.spans[number]
    secret = text.secret(span)
    if (part := owners.part(secret)) is not None and part.secret != secret.casefold():
        return part
    after = number
    while len(secret) == 1 and secret.isalpha() and (after := after + 1) < len(text.spans):
        if text.text[text.spans[after - 1].end : text.spans[after].start] not in (" ", ". "):
            return None
        following = text.secret(text.spans[after])
        if (part := owners.part(following)) is not None:
            return _initial_of(secret, part)
        if len(following) > 1:
            return None
    return None


def refuse_parts(texts: Iterable[TaggedText], owners: Owners) -> None:
    """TagsInvalid where a word of a secret, or the initials of a name, stand outside the marks."""
    if any(says_part(text, owners) for text in texts):
        message = "A word of a secret stands outside the marks. It would be in all variants, and tell the real one."
        mark = "Mark that word, too, where it means the secret: it is then replaced by the matching part of each"
        raise TagsInvalid(message, hint=f"{mark} substitute. Where it means something else, use another word.")


def says_part(text: TaggedText, owners: Owners) -> bool:
    pieces = [piece for _, piece in outside(text)]
    words = {found[0] for piece in pieces for found in words_in(piece)}
    if any(gives_away(word, part, category) for _, part, category in owners for word in words):
        return True
    for secret in owners.keys:  # "M.T." and "M. T." for Margaret Thornbury
        letters = [word[0].upper() for word in parts_of(secret) if word[0].isalpha()]
        alone = r"(?<!\w)" + r"\. ?".join(letters) + r"\."
        if len(letters) > 1 and any(re.search(alone, piece) for piece in pieces):
            return True
    return False


def outside(text: TaggedText) -> Iterator[tuple[int, str]]:
    at = 0
    for span in text.spans:
        yield at, text.text[at : span.start]
        at = span.end
    yield at, text.text[at:]
