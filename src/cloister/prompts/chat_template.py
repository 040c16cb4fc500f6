"""A model's chat template, run in a sandbox. What people wrote must not pass for what it wrote (`Rendered`)."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any, NoReturn

import jinja2
import jinja2.debug  # jinja2 would load it when a template fails: too late in a sealed process
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cloister.errors import InvalidRequest, ModelUnsupported

_ROLE = re.compile(r"[A-Za-z_-]{1,64}")

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
        self._reserved = any_of(reserved)
        self._reserved_for_assistant = any_of(reserved_for_assistant)

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> Rendered:
        mark = free_mark([self._source, json.dumps(messages, ensure_ascii=False)])
        marked = [self._marked_message(message, mark) for message in messages]
        try:
            text = self._template.render(
                messages=marked, add_generation_prompt=add_generation_prompt, tools=None, **self._named_tokens
            )
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

    def _marked_message(self, message: Mapping[str, Any], mark: str) -> dict[str, Any]:
        role = message.get("role")
        if not isinstance(role, str) or not _ROLE.fullmatch(role):
            raise InvalidRequest("A message's role is not one a chat template knows.", param="messages")
        pattern = self._reserved_for_assistant if role == "assistant" else self._reserved
        words = {key: value for key, value in message.items() if key != "role"}
        return {"role": role, **_map_strings(words, lambda text: _marked(text, pattern, mark))}


def _marked(text: str, pattern: re.Pattern[str], mark: str) -> str:
    """Marks stand inside the outer whitespace, so that a template's `trim` still works."""
    words = text.strip()
    if not words:
        return text
    start = len(text) - len(text.lstrip())
    broken = pattern.sub(lambda found: found[0][0] + mark + found[0][1:], words)
    return f"{text[:start]}{mark}{broken}{mark}{text[start + len(words) :]}"


def free_mark(texts: Iterable[str]) -> str:
    used: set[str] = set().union(*texts)
    for code in chain(*_MARKS):
        if chr(code) not in used:
            return chr(code)
    raise InvalidRequest("The messages hold every private-use character there is.", param="messages")


def any_of(names: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def shared_length(one: Sequence[object], other: Sequence[object]) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _map_strings(item, change) for key, item in value.items()}
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


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise _Refused
