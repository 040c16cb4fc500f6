"""Tier 1: patterns and words in one linear pass by Hyperscan (SafeKV §V-B.1), shipped or an operator's own, signed."""

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal, NamedTuple

import hyperscan
import msgspec
import numpy as np
from msgspec import Meta, Struct

from cloister.detection.checksums import CHECKS, kind_of_digits
from cloister.detection.folding import fold
from cloister.errors import SetupError
from cloister.messages.controller_detector import MAX_RULES_BYTES, Category

VERSION = 1
_FLAGS = hyperscan.HS_FLAG_CASELESS | hyperscan.HS_FLAG_SOM_LEFTMOST
_Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
_Word = Annotated[str, Meta(min_length=2, max_length=200)]


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """`run`: digits, by `checksums.kind_of_digits`. `secret`: the secret part of a match (`redaction`)."""

    id: _Name
    category: _Name
    pattern: Annotated[str, Meta(min_length=1, max_length=4096)] = ""
    words: Annotated[tuple[_Word, ...], Meta(max_length=10_000)] = ()
    check: str = ""
    digits: Annotated[int, Meta(ge=0, le=64)] = 0
    capital: bool = False
    run: bool = False
    secret: Literal["", "match", "end", "number"] = ""


class RuleFile(Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    rule: Annotated[tuple[Rule, ...], Meta(max_length=1024)] = ()


class Match(NamedTuple):
    start: int
    end: int
    category: Category
    rule: str


class RuleBroken(SetupError, code="setup_error"):
    """`wrong` and `rule` locate the error without quoting the file."""

    def __init__(self, message: str, wrong: str, rule: int = 0) -> None:
        super().__init__(message, hint="docs/detection.md says how rules are written. The rules before stay in force.")
        self.wrong = wrong
        self.rule = rule


def read_rules(text: str) -> tuple[Rule, ...]:
    if len(text.encode()) > MAX_RULES_BYTES:
        raise RuleBroken(f"A rule file may have {MAX_RULES_BYTES} bytes at most.", "form")
    try:
        read = msgspec.convert(tomllib.loads(text), RuleFile)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError) as wrong:
        raise RuleBroken(f"The rule file is not well formed: {wrong}.", "form") from None
    if read.version != VERSION:
        raise RuleBroken(f"The rule file has version {read.version}, and {VERSION} is known.", "form")
    for number, rule in enumerate(read.rule, 1):
        if bool(rule.pattern) == bool(rule.words):
            raise RuleBroken(f"Rule {number} ({rule.id}) needs either a pattern or words.", "form", number)
        if rule.check and rule.check not in CHECKS:
            raise RuleBroken(f"Rule {number} ({rule.id}) names an unknown check.", "form", number)
        if category_of(rule) is None:
            raise RuleBroken(f"Rule {number} ({rule.id}) names an unknown category.", "form", number)
    return read.rule


def category_of(rule: Rule) -> Category | None:
    name = rule.category.replace("-", "_").upper()
    return Category[name] if name in Category.__members__ and Category[name] < Category.INHERITED else None


@cache
def shipped_rules() -> tuple[Rule, ...]:
    return read_rules(files(__package__).joinpath("rules.toml").read_text(encoding="utf-8"))


class RuleSet:
    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        named = [category_of(rule) for rule in self.rules]
        self._categories = [Category.BLACKLIST if category is None else category for category in named]
        self._database = hyperscan.Database()
        patterns = [_pattern(rule) for rule in self.rules]
        try:
            self._compile(patterns)
        except hyperscan.error:
            raise self._first_wrong(patterns) from None

    def find(self, text: str) -> list[Match]:
        data = text.encode("utf-8", "replace")
        found: dict[tuple[int, int], list[int]] = {}

        def matched(rule: int, start: int, end: int, flags: int, context: object) -> None:
            found.setdefault((rule, start), []).append(end)

        self._database.scan(data, match_event_handler=matched)
        if not found:
            return []
        starts = None if len(data) == len(text) else np.flatnonzero((np.frombuffer(data, np.uint8) & 0xC0) != 0x80)
        matches = []
        for (number, start), ends in found.items():
            rule = self.rules[number]
            for end in reversed(ends) if rule.check else ends[-1:]:
                if (match := self._judged(number, data[start:end])) is not None:
                    first, last = (start, end) if starts is None else np.searchsorted(starts, (start, end)).tolist()
                    matches.append(Match(first, last, *match))
                    break
        return matches

    def _judged(self, number: int, data: bytes) -> tuple[Category, str] | None:
        rule = self.rules[number]
        if rule.run:
            kind = kind_of_digits(data.decode("utf-8", "replace"))
            return None if kind is None else (kind.category, kind.name)
        if rule.check and not CHECKS[rule.check](re.sub(rb"[^0-9A-Za-z+]", b"", data).decode()):
            return None
        if rule.digits and sum(48 <= each <= 57 for each in data) < rule.digits:
            return None
        if rule.capital and not data[-2:-1].isupper():
            return None
        return self._categories[number], rule.id

    def _compile(self, patterns: list[bytes]) -> None:
        count = len(patterns)
        self._database.compile(expressions=patterns, ids=list(range(count)), elements=count, flags=[_FLAGS] * count)

    def _first_wrong(self, patterns: list[bytes]) -> RuleBroken:
        for number, pattern in enumerate(patterns, 1):
            try:
                hyperscan.Database().compile(expressions=[pattern], ids=[0], elements=1, flags=[_FLAGS])
            except hyperscan.error:
                name = self.rules[number - 1].id
                return RuleBroken(f"Rule {number} ({name}) has a pattern that cannot be compiled.", "pattern", number)
        return RuleBroken("The rules are too many to be matched together.", "pattern")


def _pattern(rule: Rule) -> bytes:
    if rule.pattern:
        return rule.pattern.encode()
    spellings = {spelled for word in rule.words for spelled in _spellings(fold(word).text)}
    return b"(?:" + b"|".join(sorted(spellings)) + b")"


def _spellings(word: str) -> set[bytes]:
    """Hyperscan ignores the case of ASCII letters; of others there is one spelling for each case."""
    spellings = {word, word.lower(), word.capitalize(), word.upper()} if not word.isascii() else {word}
    edged = (r"\b" if word[0].isascii() and word[0].isalnum() else "", r"\b" if word[-1].isascii() else "")
    return {f"{edged[0]}{re.escape(each)}{edged[1]}".encode() for each in spellings}
