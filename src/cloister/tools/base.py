"""Reads an answer as it comes: its content, its reasoning, and the calls of tools in it."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

NAME = r"[A-Za-z0-9_.-]{1,64}"
_NAME = re.compile(NAME)
_SURROGATE = re.compile("[\ud800-\udfff]")


class Call(NamedTuple):
    """`arguments`: the JSON text of an object."""

    name: str
    arguments: str


@dataclass(slots=True, repr=False)
class Parsed:
    """`ahead`: the call under way and its arguments so far, where a parser shows it early."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    ahead: Call | None = None

    def add(self, other: "Parsed") -> "Parsed":
        self.content += other.content
        self.reasoning += other.reasoning
        self.calls += other.calls
        self.ahead = other.ahead
        return self


class Parser(ABC):
    """Takes text in pieces that may be cut anywhere. A call that is not well-formed is content: nothing raises."""

    markers: ClassVar[tuple[str, ...]] = ()
    """Names of tokens which it looks for."""
    early = False
    """Show calls before their end: only where the answer's form makes them well-formed. Arguments stay as written."""

    @abstractmethod
    def push(self, text: str) -> Parsed: ...

    @abstractmethod
    def finish(self) -> Parsed:
        """The rest, when no text will follow."""


class Plain(Parser):
    def push(self, text: str) -> Parsed:
        return Parsed(text)

    def finish(self) -> Parsed:
        return Parsed()


class Between(Parser):
    """Calls stand between two markers. White space before a call, and at the end behind one, is no content."""

    ends: ClassVar[dict[str, str]]
    """From what begins a call to what ends it; "": the answer's end."""
    bare: ClassVar[str] = ""
    """An answer that begins with this character may be a call as a whole."""
    quote: ClassVar[re.Pattern[str]] = re.compile(r'\\.|"', re.DOTALL)
    head: ClassVar[re.Pattern[str] | None] = None
    """What stands before a call's arguments, where they are JSON and its last part."""

    def __init__(self) -> None:
        self._held, self._spaces = "", ""
        self._begun: str | None = None
        self._searched, self._in_string = 0, False
        self._fresh, self._after_call = True, False

    @abstractmethod
    def read(self, body: str) -> list[Call] | None:
        """None where this is no call."""

    def push(self, text: str) -> Parsed:
        self._held += text
        found = Parsed()
        while self._outside(found) if self._begun is None else self._inside(found):
            pass
        found.ahead = self._ahead()
        return found

    def _ahead(self) -> Call | None:
        """Without what may belong to the call's end."""
        head = self.head.match(self._held) if self.early and self.head and self._begun else None
        if head is None:
            return None
        given = self._held[head.end() :]
        kept = unfinished(given, [*self.ends.values()])
        return Call(head[1], given[: len(given) - kept].rstrip("} \r\n\t"))

    def _as_written(self, calls: list[Call] | None, body: str) -> list[Call] | None:
        head = self.head.match(body) if self.early and self.head else None
        if head is None or not calls or len(calls) > 1:
            return calls
        given = body[head.end() :].rstrip().removesuffix("}").rstrip()
        return [Call(calls[0].name, given)] if isinstance(load(given), dict) else calls

    def finish(self) -> Parsed:
        found = Parsed()
        if self._begun is not None:
            self._close(found, self._held, "")
        else:
            self._say(found, self._held)
        if not self._after_call:
            found.content += self._spaces
        self._held = self._spaces = ""
        return found

    def _outside(self, found: Parsed) -> bool:
        if self._fresh and self.bare:
            if not (begin := self._held.lstrip()[:1]):
                return False
            self._fresh = False
            if begin == self.bare:
                self._begin("")
                return True
        places = [(at, marker) for marker in self.ends if marker and (at := self._held.find(marker)) >= 0]
        if places:
            at, marker = min(places)
            self._say(found, self._held[:at])
            self._held = self._held[at + len(marker) :]
            self._begin(marker)
            return True
        kept = unfinished(self._held, self.ends)
        self._say(found, self._held[: len(self._held) - kept])
        self._held = self._held[len(self._held) - kept :]
        return False

    def _begin(self, marker: str) -> None:
        self._begun, self._searched, self._in_string = marker, 0, False

    def _inside(self, found: Parsed) -> bool:
        end = self.ends.get(self._begun or "", "")
        at = self._held.find(end, self._searched) if end else -1
        if at < 0:
            return False
        for each in self.quote.finditer(self._held, self._searched, at):
            self._in_string ^= not each[0].startswith("\\")
        self._searched = at + len(end)
        if not self._in_string:  # in a string this marker is only a word
            self._close(found, self._held[:at], end)
            self._held = self._held[self._searched :]
        return True

    def _close(self, found: Parsed, body: str, end: str) -> None:
        ahead = self._ahead()
        marker, self._begun = self._begun or "", None
        if calls := self._as_written(self.read(body), body):
            found.calls += calls
            self._spaces, self._after_call = "", True
        elif ahead is None:
            self._say(found, marker + body + end)
        else:  # it was cut off, and its beginning is out
            found.ahead = ahead

    def _say(self, found: Parsed, text: str) -> None:
        text = self._spaces + text
        said = text.rstrip()
        self._spaces = text[len(said) :]
        if said:
            found.content += said
            self._after_call = False


def unfinished(text: str, markers: Sequence[str] | dict[str, str]) -> int:
    """How many characters at the text's end may begin a marker."""
    longest = min(len(text), max(map(len, markers), default=1) - 1)
    return next((n for n in range(longest, 0, -1) if any(each.startswith(text[-n:]) for each in markers)), 0)


def load(text: str) -> Any:
    """None for what is not JSON."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None


def load_several(text: str, between: str) -> list[Any]:
    """Values that signs of `between` separate; empty where one is not JSON."""
    decoder, values, at = json.JSONDecoder(parse_constant=_no_number), [], 0
    try:
        while text := text[at:].lstrip(between):
            value, at = decoder.raw_decode(text)
            values.append(value)
    except (ValueError, RecursionError):
        return []
    return values


def calls_of(values: Any, *keys: str) -> list[Call] | None:
    """Each value must name a function, and its arguments by one of these keys."""
    calls = [_call_of(value, keys) for value in values] if isinstance(values, list) else []
    return [call for call in calls if call] if calls and all(calls) else None


def call(name: Any, arguments: Any) -> Call | None:
    """`arguments`: an object, or its JSON text; none are no arguments."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return None
    if isinstance(arguments, str):
        arguments = load(arguments) if arguments.strip() else {}
    elif arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return None
    try:
        text = json.dumps(arguments, ensure_ascii=False)
        return Call(name, json.dumps(arguments) if _SURROGATE.search(text) else text)
    except (ValueError, RecursionError):
        return None


def _call_of(value: Any, keys: Sequence[str]) -> Call | None:
    if not isinstance(value, dict):
        return None
    given = next((value[key] for key in keys if key in value), None)
    return call(value.get("name"), given)


def _no_number(name: str) -> None:
    raise ValueError(name)
