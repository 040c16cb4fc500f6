"""The words of secrets, and whose each is: sent unchanged, "Thornbury" tells which variant is Margaret Thornbury's.
A word of two secrets belongs to the one with more words or the first: "Ann Lee", "Tom Lee" are "Ann Lee", "Tom".
What may or may not be a part ("Will", "MT") is refused, with what to do. `people` finds the parts of names."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cloister.errors import TagsInvalid
from cloister.obfuscation.dates import Dated
from cloister.obfuscation.tags import Category, Span, TaggedText
from cloister.obfuscation.words import word_list

TITLES = frozenset(word_list("parts-titles"))
KEPT = TITLES | frozenset(word_list("parts-kept"))  # words that stay where a secret has others: they name no person
SMALL = frozenset(word_list("parts-small"))  # words that every text has
EVERYDAY = frozenset(word_list("parts-everyday"))  # in small letters taken for words of the language
ABBREVIATIONS = frozenset(word_list("parts-abbreviations"))  # in capitals no initials of a person, unless marked
_WORD = re.compile(r"(?:(?<!\w)[ODod]['’](?=[^\W\d_]{3}))?[^\W_]+")  # O'Brien is one word
_PLURAL = re.compile(r"(?P<the>[Tt]he )?(?P<word>[A-Z][\w'’-]*[a-z]s)(?!\w)(?P<own>['’](?!\w))?")
_THE = ("the ", "The ")
EMAIL = re.compile(r"(?P<local>[\w.+-]+)@[\w-]+(?:\.[\w-]+)+")
_LABEL = re.compile(r"[A-Za-z]{2,8}[-#:](?=[^@]*\d[^@]*\d[^@]*\Z)")
LETTERS = re.compile(r"(?:[A-Z]\. ?){1,4}[A-Z]\.?|[A-Z]{2,5}")


def key_of(secret: str) -> str:
    """The same for all its spellings: O'Brien, o’brien."""
    return secret.casefold().replace("’", "'")


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


def is_sibilant(word: str) -> bool:
    return word.casefold().endswith(("s", "x", "z", "ch", "sh"))


def is_everyday(word: str) -> bool:
    return word.casefold() in EVERYDAY


def gives_away(found: str, part: str, category: Category) -> bool:
    """Names in any capitals; other secrets and everyday words not where only the secret has a capital."""
    if key_of(found) != key_of(part) or not is_telling(part):
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
            key = key_of(secret)
            spelt.setdefault(key, secret)
            if categories.setdefault(key, category) is Category.FREE:
                categories[key] = category
        earlier = {key_of(secret): secret for secret in known}
        rest = [key for key in spelt if key not in earlier]
        self.keys = (*earlier, *sorted(rest, key=_by_words))
        self._words: dict[str, _Owned] = {}
        self._initials: dict[str, tuple[Part, ...]] = {}
        for key in self.keys:
            secret, category = spelt.get(key) or earlier[key], categories.get(key, Category.FREE)
            words = parts_of(secret)
            first = tuple(Part(key, index, initial=True) for index, word in enumerate(words) if word[0].isalpha())
            named = category is Category.NAME or (
                category is Category.FREE and all(word[0].isupper() for word in words)
            )
            if named and 1 < len(first) == len(words) < len("".join(words)):
                for those in (first, (first[0], first[-1])):
                    letters = "".join(words[part.index][0] for part in those).upper()
                    if self._initials.setdefault(letters, those) != those:
                        self._initials[letters] = ()
            mail = EMAIL.fullmatch(secret)  # a provider is no secret
            for index, word in enumerate(words if mail is None else parts_of(mail["local"])):
                if is_telling(word):
                    self._words.setdefault(key_of(word), _Owned(Part(key, index), word, category))

    def __iter__(self) -> Iterator[tuple[Part, str, Category]]:
        return ((one.part, one.word, one.category) for one in self._words.values())

    def part(self, word: str) -> Part | None:
        owned = self._words.get(key_of(word))
        return None if owned is None else owned.part

    def name_part(self, word: str) -> Part | None:
        owned = self._words.get(key_of(word))
        named = owned is not None and len(word) > 2 and owned.category in (Category.NAME, Category.FREE)
        return owned.part if owned is not None and named and owned.word[0].isupper() else None

    def initials(self, letters: str) -> tuple[Part, ...] | None:
        """Of "M.T." and "MT": the one name with these; () if two names do, None if none does."""
        return self._initials.get(re.sub(r"\W", "", letters))

    def elsewhere(self, secret: str) -> bool:
        """Whether a word of it belongs to another secret, or it is the initials of another."""
        key = key_of(secret)
        if self.spells_initials(secret):
            return True
        return any((part := self.part(word)) is not None and part.secret != key for word in parts_of(secret))

    def spells_initials(self, secret: str) -> bool:
        return LETTERS.fullmatch(secret) is not None and bool(self.initials(secret))

    def plural_at(self, text: str, start: int, end: int) -> Span | None:
        """The surname within "the Thornburys" or "Thornburys'", which may be another word's capital otherwise."""
        found, before = _PLURAL.match(text, start), text[max(0, start - 4) : start]
        if found is None or found.end("word") < end or not (found["own"] or found["the"] or before in _THE):
            return None
        word = found["word"]
        stem = word[:-2] if word.endswith("es") and is_sibilant(word[:-2]) else word[:-1]
        part = self.part(stem)
        if part is None or part.secret == key_of(text[start:end]) or is_sibilant(stem) == (len(word) - len(stem) == 1):
            return None
        if part.index != len(parts_of(part.secret)) - 1 or self.linked(stem, titled=True) is None:
            return None
        return Span(found.start("word"), found.start("word") + len(stem), Category.NAME)

    def linked(self, word: str, titled: bool = False) -> Category | None:
        """The category of the name that this unmarked word is surely a part of. `free` with a capital is a name, and an
        everyday word is one after a title."""
        owned = self._words.get(key_of(word))
        if owned is None or not gives_away(word, owned.word, owned.category):
            return None
        if is_everyday(owned.word) and not (titled and word[0].isupper()):
            return None
        named = owned.category is Category.NAME or (owned.category is Category.FREE and word[0].isupper())
        return owned.category if named else None


def _by_words(key: str) -> tuple[bool, int, int]:
    return EMAIL.fullmatch(key) is not None, -len(parts_of(key)), -len(words_in(key))


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
    for span in (_unlabelled(text, one) for one in text.spans):
        secret = text.secret(span)
        if (stem := owners.plural_at(text.text, span.start, span.end)) is not None:
            yield stem
            continue
        dated = span.category is Category.DATE and len(parts_of(secret)) > 1 and Dated.of(secret) is not None
        # Dates of one year move together, but may leave it; an address moves with the name that it says (`joint`).
        if dated or EMAIL.fullmatch(secret) or not owners.elsewhere(secret):
            yield span
            continue
        if owners.spells_initials(secret):
            for found in re.finditer("[A-Z]", secret):
                yield Span(span.start + found.start(), span.start + found.end(), Category.NAME)
            continue
        rest: list[re.Match[str]] = []
        for found in words_in(secret):
            part = owners.part(found[0])
            if part is None or part.secret == key_of(secret):
                rest += [found] if rest or found[0].casefold() not in KEPT else []
                continue
            yield from _joined(span, rest)
            rest = []
            yield Span(span.start + found.start(), span.start + found.end(), span.category)
        yield from _joined(span, rest)


def _unlabelled(text: TaggedText, span: Span) -> Span:
    """Without the letters before a number ("MRN-"), which every substitute keeps: the text may say them, too."""
    label = _LABEL.match(text.text, span.start, span.end) if span.category is Category.ID else None
    return span if label is None else Span(label.end(), span.end, span.category)


def _joined(span: Span, words: list[re.Match[str]]) -> Iterator[Span]:
    while words and words[-1][0].casefold() in KEPT:
        words = words[:-1]
    if words:
        yield Span(span.start + words[0].start(), span.start + words[-1].end(), span.category)


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
    return any(owners.initials(found[0]) is not None for piece in pieces for found in initials_in(piece))


def is_abbreviation(letters: str) -> bool:
    return re.sub(r"\W", "", letters).casefold() in ABBREVIATIONS


def initials_in(text: str) -> Iterator[re.Match[str]]:
    """Capitals with or without dots, abbreviations aside."""
    alone = rf"(?<![\w.])(?:{LETTERS.pattern})(?!\w)"
    return (found for found in re.finditer(alone, text) if not is_abbreviation(found[0]))


def outside(text: TaggedText) -> Iterator[tuple[int, str]]:
    at = 0
    for span in text.spans:
        yield at, text.text[at : span.start]
        at = span.end
    yield at, text.text[at:]
