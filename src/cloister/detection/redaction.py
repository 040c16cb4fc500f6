"""A text's secrets as spans, for obfuscation; keeps no text. Each costs λ substitutes, so a word must be `SURE`."""

import re
from codecs import lookup
from collections.abc import Iterator
from functools import cache

import numpy as np

from cloister.detection.folding import fold
from cloister.detection.known_prefixes import known_until
from cloister.detection.rules import Match, RuleSet, shipped_rules
from cloister.detection.tagger import CATEGORIES, Tagger, shipped_tagger
from cloister.messages.controller_detector import Category

SURE, LIKELY = 0.5, 0.25
PIECE, OVERLAP = 4096, 256  # characters of a piece of a long text, and of the neighbours that it overlaps with

Found = tuple[int, int, str]  # a secret's start and end in characters, and its category (`obfuscation.tags.Category`)

_NAMES = {
    Category.NAME: "name",
    Category.LOCATION: "place",
    Category.ORGANISATION: "organisation",
    Category.TIME: "date",
    Category.TRAIT: "free",
}  # all others are an `id`
_AGE = re.compile(r"\d{1,3}")
_NUMBER = re.compile(r"\d+(?=\D*\Z)")
_MONTH = (
    "(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    "|nov(?:ember)?|dec(?:ember)?)"
)
_DATE = re.compile(
    r"\b(?:(?:1[0-2]|0?[1-9])/(?:3[01]|[12]\d|0?[1-9])/\d\d|(?:3[01]|[12]\d|0?[1-9])\.(?:1[0-2]|0?[1-9])\.\d\d"
    rf"|{_MONTH}\.?,? (?:of )?(?:19|20)\d\d|{_MONTH}\.? (?:3[01]|[12]\d|0?[1-9])(?:st|nd|rd|th)?)\b(?![./]\d)",
    re.IGNORECASE,
)  # of less than a whole date with four digits for the year, which the rules have
_WORD = re.compile(r"[^\W_]+(?:-[^\W_]+)*")


class Redaction:
    """`medications`: names of one word, in small letters."""

    def __init__(self, rules: RuleSet, tagger: Tagger | None, medications: frozenset[str] = frozenset()) -> None:
        self._rules, self._tagger, self._medications = rules, tagger, medications
        self._parts = {rule.id: rule.secret for rule in rules.rules}

    def __call__(self, text: str) -> list[Found]:
        return [found for piece in self.pieces(text) for found in piece]

    def pieces(self, text: str) -> Iterator[list[Found]]:
        """A piece takes bounded time."""
        known = known_until(text)
        for start in range(0, len(text), PIECE):
            first = max(0, start - OVERLAP)
            found = self._found(text[first : start + PIECE + OVERLAP])
            yield [
                (first + begin, first + end, category)
                for begin, end, category in found
                if start <= first + begin < start + PIECE and first + end > known
            ]

    def _found(self, text: str) -> list[Found]:
        folded = fold(text)
        spans = [self._matched(folded.text, match) for match in self._rules.find(folded.text)]
        if self._tagger is not None:
            spans += _tagged(self._tagger, folded.text)
        dates = [(*found.span(), "date") for found in _DATE.finditer(folded.text)]
        drugs = [
            (*found.span(), "medication")
            for found in _WORD.finditer(folded.text)
            if found[0].casefold() in self._medications
        ]
        sure = [(start, end) for start, end, _ in (*dates, *drugs)]
        spans = [one for one in spans if not any(start <= one[0] and one[1] <= end for start, end in sure)]
        spans += [*dates, *drugs]
        whole = (_whole(folded.text, *span) for span in spans)
        return [(*folded.original(start, end), name) for start, end, name in whole if start < end]

    def _matched(self, text: str, match: Match) -> Found:
        start, end, name = match.start, match.end, _NAMES.get(match.category, "id")
        match self._parts.get(match.rule):
            case "end":
                while end < len(text) and not text[end].isspace():
                    end += 1
                start = max(text.rfind(space, 0, end) + 1 for space in " \t\n")
            case "number" if number := _NUMBER.search(text[start:end]):
                start, end, name = start + number.start(), start + number.end(), "age"
        return start, end, name


def _tagged(tagger: Tagger, text: str) -> list[Found]:
    """Runs of words that may be private, from the first sure word to the last. The surest word gives the category."""
    tags = tagger.tag(text)
    spans: list[Found] = []
    row: list[int] = []

    def end_row() -> None:
        if sure := [word for word in row if tags.scores[word] >= SURE]:
            start, end = int(tags.starts[sure[0]]), int(tags.ends[sure[-1]])
            surest = sure[int(np.argmax(tags.scores[sure]))]
            name = _NAMES.get(CATEGORIES[tags.classes[surest]], "id")
            spans.append((start, end, "age" if name == "free" and _AGE.fullmatch(text[start:end]) else name))
        row.clear()

    for word in np.flatnonzero(tags.scores >= LIKELY).tolist():
        if row and (word != row[-1] + 1 or text[tags.ends[row[-1]] : tags.starts[word]].strip(" ")):
            end_row()
        row.append(word)
    end_row()
    return spans


def _whole(text: str, start: int, end: int, name: str) -> Found:
    while start < end and not text[start].isalnum():
        start += 1
    while start < end and not text[end - 1].isalnum():
        end -= 1
    while start < end and start and text[start - 1].isalnum():
        start -= 1
    while start < end < len(text) and text[end].isalnum():
        end += 1
    return start, end, name


def preload_redaction() -> None:
    """Read all files that `shipped_redaction` needs, before a fork: sealed children cannot open files."""
    shipped_rules()
    shipped_tagger()
    lookup("utf-32-le")


@cache
def shipped_redaction(medications: frozenset[str] = frozenset()) -> Redaction:
    """To compile the rules takes half a second."""
    return Redaction(RuleSet(rule for rule in shipped_rules() if rule.secret), shipped_tagger(), medications)
