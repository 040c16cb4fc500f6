"""How a person is mentioned: full name, title and surname, first name, initials, "Thornburys'", "Last, First". Words of
one name are one person's wherever they stand, marked or not. A name beside a marked one is marked with it (`grown`)."""

import re
from collections.abc import Callable, Iterator, Sequence

from cloister.obfuscation.candidates.names import LISTS
from cloister.obfuscation.parts import (
    EMAIL,
    EVERYDAY,
    KEPT,
    SMALL,
    TITLES,
    Owners,
    Part,
    initials_in,
    key_of,
    outside,
    parts_of,
    words_in,
)
from cloister.obfuscation.tags import Category, Span, TaggedText

_TITLE_BEFORE = re.compile(rf"(?<!\w)(?:{'|'.join(sorted(TITLES))})\.? \Z", re.IGNORECASE)
_INITIAL_BEFORE = re.compile(r"(?<!\w)(?P<letter>[^\W\d_])(?P<gap>\.? )\Z")
_INITIAL_AFTER = re.compile(r"(?P<comma>,?) (?P<letter>[A-Z])\.(?!\w)")
_WORD_BEFORE = re.compile(r"(?<![\w'’-])(?P<word>[A-Z][\w'’-]+) \Z")
_WORD_AFTER = re.compile(r" (?P<word>[A-Z][\w'’-]+)(?![\w@])")
_MIDDLE = re.compile(r" [A-Z][\w'’-]+ ")
_NO_NAMES = frozenset(
    {"any", "daily", "female", "male", "patient", "nurse", "baby", "blood", "chief", "said", "see", "hello"}
)
_LETTER_GAPS = ("", ".", ". ", " ")


def after_title(text: str, start: int) -> bool:
    """Or after a given name."""
    if _TITLE_BEFORE.search(text, max(0, start - 12), start) is not None:
        return True
    before = _WORD_BEFORE.search(text, max(0, start - 32), start)
    return before is not None and is_given_name(before["word"])


def is_inflected(text: str, end: int) -> bool:
    """Whether a mention that ends here goes on as a plural or a possessive."""
    return text[end : end + 1] in ("'", "’") or (end > 0 and text[end - 1 : end + 1].isalpha() and end < len(text))


def link_parts(text: TaggedText, owners: Owners) -> TaggedText:
    """Words, initials and plurals that stand unmarked, and surely are of a name."""
    spans = list(text.spans)
    for start, piece in outside(text):
        for found in words_in(piece):
            begin, end = start + found.start(), start + found.end()
            titled = owners.part(found[0]) is not None and after_title(text.text, begin)
            if (category := owners.linked(found[0], titled)) is not None:
                spans.append(Span(begin, end, category))
            elif (stem := owners.plural_at(text.text, begin, end)) is not None:
                spans.append(stem)
        for mail in EMAIL.finditer(piece):
            at = start + mail.start()
            spans += [Span(at + a, at + b, Category.NAME) for a, b, _ in in_address(mail["local"], owners.name_part)]
        for found in initials_in(piece):
            if "." in found[0] and owners.initials(found[0]):
                letters = (start + letter.start() for letter in re.finditer("[A-Z]", piece[: found.end()]))
                spans += [Span(one, one + 1, Category.NAME) for one in letters if one >= start + found.start()]
    marked = TaggedText(text.text, tuple(sorted({(one.start, one.end): one for one in spans}.values())))
    initials = [span for span in marked.spans for span in _initials(marked, span, owners)]
    return TaggedText(text.text, tuple(sorted({*marked.spans, *initials})))


def in_address(local: str, find: Callable[[str], Part | None]) -> Iterator[tuple[int, int, Part]]:
    """The words and initials of names in an address: "ann.lee52", "alee", "annlee"."""
    runs = list(re.finditer(r"[^\W\d_]+", local))
    for number, run in enumerate(runs):
        word, start, end = run[0], run.start(), run.end()
        if (part := find(word)) is not None:
            yield start, end, part
            continue
        following = find(runs[number + 1][0]) if len(word) == 1 and number + 1 < len(runs) else None
        if following is not None and (first := _initial_of(word, following, parts_of(following.secret))) is not None:
            yield start, end, first
            continue
        for at in range(1, len(word) - 2):
            last = find(word[at:])
            before = None if last is None else find(word[:at]) or _initial_of(word[:at], last, parts_of(last.secret))
            if last is not None and before is not None and before.initial == (at == 1):
                yield start, start + at, before
                yield start + at, end, last
                break


def _initials(text: TaggedText, span: Span, owners: Owners) -> Iterator[Span]:
    part, start = owners.part(text.secret(span)), span.start
    since = max((one.end for one in text.spans if one.end <= start), default=0)
    until = min((one.start for one in text.spans if one.start >= span.end), default=len(text.text))
    if part is None:
        return
    found = _INITIAL_AFTER.match(text.text, span.end, until)
    if found and (found["comma"] or found.end() + 1 != until):  # not a middle name's: "Ann L. Lee"
        behind = -1 if found["comma"] else part.index
        if _initial_of(found["letter"], part, parts_of(part.secret), behind) is not None:
            yield Span(found.start("letter"), found.end("letter"), Category.NAME)
    while found := _INITIAL_BEFORE.search(text.text, since, start):
        if _initial_of(found["letter"], part, parts_of(part.secret)[: part.index]) is None:
            return
        start = found.start()
        yield Span(start, start + 1, Category.NAME)


def _initial_of(letter: str, part: Part, words: Sequence[str], behind: int = -1) -> Part | None:
    """Of these words of a name, that which the letter begins."""
    for index, word in enumerate(words):
        if index > behind and index != part.index and len(letter) == 1 and word[:1].casefold() == letter.casefold():
            return Part(part.secret, index, initial=True)
    return None


def part_at(text: TaggedText, number: int, owners: Owners) -> Part | None:
    """The part of a secret that span `number` of a text is; None if it is a secret itself, and not inflected."""
    span = text.spans[number]
    secret = text.secret(span)
    if (part := owners.part(secret)) is not None:
        own = part.secret == key_of(secret)
        return part if not own or text.text[span.end : span.end + 1].isalnum() else None
    if len(secret) != 1 or not secret.isalpha():
        return None
    first, last = number, number
    while first and _is_letter(text, first - 1) and _gap(text, first) in _LETTER_GAPS:
        first -= 1
    while last + 1 < len(text.spans) and _is_letter(text, last + 1) and _gap(text, last + 1) in _LETTER_GAPS:
        last += 1
    letters = "".join(text.secret(one) for one in text.spans[first : last + 1])
    after = last + 1 if last + 1 < len(text.spans) and _gap(text, last + 1) in (" ", ". ", "", ".", "_") else None
    if after is not None and (part := owners.part(text.secret(text.spans[after]))) is not None:
        return _initial_of(secret, part, parts_of(part.secret)[: part.index])
    gap = _gap(text, first) if first else ""
    alone = gap == " " and len(letters) == 1  # "Ann L."; else "Lee, A."
    if (alone or gap == ", ") and (part := owners.part(text.secret(text.spans[first - 1]))) is not None:
        return _initial_of(secret, part, parts_of(part.secret), part.index if alone else -1)
    of_one = owners.initials(letters.upper())
    return of_one[number - first] if of_one else None


def _is_letter(text: TaggedText, number: int) -> bool:
    secret = text.secret(text.spans[number])
    return len(secret) == 1 and secret.isalpha()


def _gap(text: TaggedText, number: int) -> str:
    return text.text[text.spans[number - 1].end : text.spans[number].start]


def grown(text: TaggedText, owners: Owners, is_given: Callable[[str], bool]) -> TaggedText:
    """Two marked names side by side are one name; so is a given name before a marked surname, and a middle name."""
    spans: list[Span] = []
    for span in text.spans:
        part = _of_name(text, span, owners)
        if part is None:
            spans.append(span)
            continue
        alone = len(parts_of(part.secret)) == 1
        before = _of_name(text, spans[-1], owners) if spans else None
        gap = text.text[spans[-1].end : span.start] if spans else ""
        both = before is not None and before.secret != part.secret and len(parts_of(before.secret)) == 1
        middle = before is not None and before.secret == part.secret and before.index < part.index
        word = _WORD_BEFORE.search(text.text, spans[-1].end if spans else 0, span.start)
        if (both and alone and gap == " ") or (middle and _MIDDLE.fullmatch(gap) and not _kept(gap)):
            spans[-1] = Span(spans[-1].start, span.end, Category.NAME)
        elif alone and word and is_given(word["word"]) and _is_surname(part.secret):
            spans.append(Span(word.start("word"), span.end, Category.NAME))
        else:
            spans.append(span)
    return TaggedText(text.text, tuple(spans))


def _kept(gap: str) -> bool:
    return gap.strip().casefold() in KEPT


def _of_name(text: TaggedText, span: Span, owners: Owners) -> Part | None:
    """Of a span that is one word, with a title or not, of a name."""
    words = parts_of(text.secret(span))
    if span.category not in (Category.NAME, Category.FREE) or len(words) != 1 or not words[0][:1].isupper():
        return None
    return owners.part(words[0])


def _is_surname(secret: str) -> bool:
    """Of a name of one word: after a title, or not mostly a given name."""
    first, *more = (found[0] for found in words_in(secret))
    if more and first in TITLES:
        return True
    slot = LISTS["single"].slot(secret.title())
    return slot is None or not slot.kind.startswith("given")


def is_given_name(word: str) -> bool:
    """Not where it is as likely a word of the language."""
    key = word.casefold()
    if len(key) < 3 or key in KEPT or key in SMALL or key in EVERYDAY or key in _NO_NAMES:
        return False
    slot = LISTS["given"].slot(word)
    return slot is not None and slot.kind.startswith("given")
