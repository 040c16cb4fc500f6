"""A model's chat template, run in a sandbox. What people wrote must not pass for what it wrote (`Rendered`)."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import chain
from typing import Any, NoReturn

import jinja2
import jinja2.debug  # jinja2 would load it when a template fails: too late in a sealed process
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cloister.errors import InvalidRequest, ModelUnsupported
from cloister.tools.fallback import as_text
from cloister.tools.families import has_tools

_ROLE = re.compile(r"[A-Za-z_-]{1,64}")
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# Names and values of tools and JSON schemas that templates look for.
_KNOWN = frozenset(
    (
        *("type", "function", "name", "description", "parameters", "properties", "required", "enum", "items", "id"),
        *("arguments", "default", "format", "title", "strict", "return", "response", "anyOf", "oneOf", "allOf"),
        *("additionalProperties", "nullable", "minimum", "maximum", "object", "string", "number", "integer", "boolean"),
        *("array", "null", "none", "minimal", "low", "medium", "high", "xhigh"),
    )
)
_NINE = re.compile(r"length\s*[!=]=\s*9\b")

# Characters no text needs: the private use areas. One that the request does not hold marks its words.
_MARKS = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


@dataclass(frozen=True, slots=True)
class Rendered:
    """`mark` is at both ends of people's words and inside token names there: an unmarked name is the template's."""

    text: str
    mark: str

    @property
    def plain(self) -> str:
        return self.text.replace(self.mark, "")

    def until(self, characters: int) -> "Rendered":
        pieces = []
        for piece in self.text.split(self.mark):
            if len(piece) >= characters:
                pieces.append(piece[:characters])
                break
            pieces.append(piece)
            characters -= len(piece)
        return Rendered(self.mark.join(pieces), self.mark)


class ChatTemplate:
    """Token names in `reserved` are the template's; an assistant may say some, no `reserved_for_assistant`."""

    def __init__(
        self,
        source: str,
        *,
        named_tokens: Mapping[str, str],
        reserved: Iterable[str],
        reserved_for_assistant: Iterable[str],
    ) -> None:
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as wrong:
            raise ModelUnsupported("The model's chat template is not valid Jinja.") from wrong
        self._source = source
        self._named_tokens = dict(named_tokens)
        names = list(reserved)
        self._reserved = any_of(names)
        # If no reserved name begins or ends with a letter, a word has a part in one only where it is inside.
        self._all_reserved = "\n".join(names)
        self._known = _KNOWN.difference(name.strip("<>|[]/ ") for name in names)
        self._wants_nine = bool(_NINE.search(source))
        self._names_are_free = not any(_WORD.fullmatch(each) for name in names if name for each in (name[0], name[-1]))
        self._reserved_for_assistant = any_of(reserved_for_assistant)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        words: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool = True,
    ) -> Rendered:
        """`words`: what the template gets besides: `tools` and a user's own."""
        words = words or {}
        called = any(each.get("role") == "tool" or "tool_calls" in each for each in messages)
        if (words.get("tools") or called) and not has_tools(self._source):
            messages = as_text(messages, words.get("tools") or (), system=self._has_system_role)
            words = {**words, "tools": None}
        mark = free_mark([self._source, json.dumps([messages, words], ensure_ascii=False)])
        marked = [self._marked_message(message, mark) for message in messages]
        given = {"tools": None} | {name: self._marked_words(value, mark) for name, value in words.items()}
        given |= {"messages": marked, "add_generation_prompt": add_generation_prompt, **self._named_tokens}
        try:
            # Where a template writes a value as Python does, or as ASCII, the mark is escaped.
            text = self._template.render(given).replace(ascii(mark)[1:-1], mark)
        except _Refused as refused:
            raise InvalidRequest(
                "The model's chat template refuses these messages.", param="messages", hint=refused.hint
            ) from None
        # A template may fail on any value; its message could quote the prompt, so it is not passed on.
        except Exception as wrong:
            raise InvalidRequest(
                f"The model's chat template cannot render these messages ({type(wrong).__name__}).",
                param="messages",
                hint="Check the roles, their order, and that each message has text.",
            ) from None
        return Rendered(text, mark)

    @cached_property
    def _has_system_role(self) -> bool:
        try:
            self.render([{"role": "system", "content": "a"}, {"role": "user", "content": "a"}])
        except InvalidRequest:
            return False
        return True

    def _marked_message(self, message: Mapping[str, Any], mark: str) -> dict[str, Any]:
        role = message.get("role")
        if not isinstance(role, str) or not _ROLE.fullmatch(role):
            raise InvalidRequest("A message's role is not one a chat template knows.", param="messages")
        pattern = self._reserved_for_assistant if role == "assistant" else self._reserved
        marked: dict[str, Any] = {"role": role}
        for key, value in message.items():
            if key == "tool_calls":
                marked[key] = [self._marked_words({**each, "id": self._id(each["id"])}, mark) for each in value]
            elif key == "tool_call_id":
                marked[key] = self._marked_words(self._id(value), mark)
            elif key != "role":
                marked[key] = _map_strings(value, lambda text: _marked(text, pattern, mark))
        return marked

    def _marked_words(self, value: Any, mark: str) -> Any:
        """Templates compare names and sort by them: one that can be no part of a reserved name stays as it is."""

        def changed(text: str) -> str:
            if text in self._known:
                return text
            if not self._names_are_free or not _WORD.fullmatch(text):
                return _marked(text, self._reserved, mark)
            return text + mark if text in self._all_reserved else text

        return _map_strings(value, changed)

    def _id(self, given: str) -> str:
        """A call's id as the template takes it: Mistral's refuse all but nine letters and digits."""
        if not self._wants_nine or re.fullmatch(r"[A-Za-z0-9]{9}", given):
            return given
        return hashlib.sha256(given.encode("utf-8", "replace")).hexdigest()[:9]


def _marked(text: str, pattern: re.Pattern[str], mark: str) -> str:
    """Marks stand inside the outer whitespace, so that a template's `trim` still works."""
    words = text.strip()
    if not words:
        return text
    start = len(text) - len(text.lstrip())
    broken = pattern.sub(lambda found: found[0][0] + mark + found[0][1:], words)
    return f"{text[:start]}{mark}{broken}{mark}{text[start + len(words) :]}"


def free_mark(texts: Iterable[str]) -> str:
    texts = list(texts)
    used: set[str] = set().union(*texts)
    for code in chain(*_MARKS):
        if chr(code) not in used and not any(ascii(chr(code))[1:-1] in text for text in texts):
            return chr(code)
    raise InvalidRequest("The messages hold every private-use character there is.", param="messages")


def any_of(names: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def shared_length(one: Sequence[object], other: Sequence[object]) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Keys as well: a tool's are its user's."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _map_strings(item, change) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_map_strings(item, change) for item in value]
    return value


class _Refused(Exception):
    """The template called raise_exception. Its text may be built from a prompt: not shown."""

    hint = "Many templates want user and assistant to take turns, with one system message first or none."


def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja as transformers sets it up for chat templates, so that published templates render the same."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise _Refused
