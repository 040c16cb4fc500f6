"""A request's tools as the prompt's reader gets them: {"tools": […], "choice": …, "parallel": …}; and the
words for the template. Both are checked where they are read, and errors have none of their words."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cloister.errors import InvalidRequest
from cloister.messages.prompts import MOST_BESIDE

MOST_TOOLS, _MOST_VALUES, _DEEPEST = 128, 20_000, 32
TOOL_NAME = r"[A-Za-z0-9_-]{1,64}"
_NAME = re.compile(TOOL_NAME)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_MOST_WORDS, _LONGEST_WORD = 32, 4096
_NOT_FOR_USERS = frozenset(("messages", "tools", "documents", "add_generation_prompt", "continue_final_message"))


@dataclass(frozen=True, slots=True, repr=False)
class Offered:
    """`choice`: "auto", "required", or ":" and the name of the function that must be called, once."""

    tools: Sequence[dict[str, Any]]
    choice: str = "auto"
    parallel: bool = True

    @property
    def required(self) -> Sequence[dict[str, Any]]:
        """Those of which one must be called; none where the model decides."""
        return [tool for tool in self.tools if self.choice in ("required", f":{tool['function']['name']}")]


def read_offered(text: str) -> Offered | None:
    """None where the model may call nothing."""
    given = _loaded(text, "tools")
    tools, choice = given.get("tools"), given.get("choice")
    try:
        checked = check_tools(tools) or []
    except ValueError as wrong:
        raise InvalidRequest(f"tools: {wrong}.", param="tools") from None
    try:
        named = check_choice(choice, checked)
    except ValueError as wrong:
        raise InvalidRequest(f"tool_choice: {wrong}.", param="tool_choice") from None
    parallel = given.get("parallel") is not False and not named.startswith(":")
    return Offered(checked, named, parallel) if checked and named != "none" else None


def check_tools(tools: Any) -> list[dict[str, Any]] | None:
    """ValueError unless all are functions with different names, small enough to be read."""
    if tools is None:
        return None
    if not isinstance(tools, list) or len(tools) > MOST_TOOLS:
        raise ValueError(f"At most {MOST_TOOLS} tools are a list of functions")
    names = [_name_of(tool) for tool in tools]
    if len(set(names)) < len(names):
        raise ValueError("Two tools have one name")
    check_json(tools)
    return tools


def check_choice(choice: Any, tools: Sequence[dict[str, Any]] | None) -> str:
    if choice is None or choice in ("auto", "none"):
        return choice or "auto"
    named = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = named.get("name") if isinstance(named, dict) else None
    if choice != "required" and not isinstance(name, str):
        raise ValueError("The choice is 'auto', 'none', 'required' or a function")
    if not tools:
        raise ValueError("A call is required, but no tools are given")
    if name is not None and all(tool["function"]["name"] != name for tool in tools):
        raise ValueError("The function that must be called is not among the tools")
    return "required" if name is None else f":{name}"


def check_json(value: Any) -> None:
    """ValueError where it is too deep, has too many values, or a number that JSON has not."""
    waiting, seen = [(value, 0)], 0
    while waiting:
        one, depth = waiting.pop()
        seen += 1
        if seen > _MOST_VALUES or depth > _DEEPEST:
            raise ValueError(f"This has more than {_MOST_VALUES} values, or is deeper than {_DEEPEST}")
        if isinstance(one, float) and not math.isfinite(one):
            raise ValueError("A number is not finite")
        if isinstance(one, dict | list):
            waiting += [(each, depth + 1) for each in (one.values() if isinstance(one, dict) else one)]


def written(tools: Any, choice: Any, parallel: Any) -> str:
    """Empty where no tool is offered; ValueError where the text is too long."""
    if not tools or choice == "none":
        return ""
    text = json.dumps({"tools": tools, "choice": choice, "parallel": parallel is not False}, ensure_ascii=False)
    if len(text) > MOST_BESIDE["tools"]:
        raise ValueError(f"Tools have at most {MOST_BESIDE['tools']} characters")
    return text


def read_words(text: str) -> dict[str, Any]:
    """What the template gets besides."""
    try:
        return check_words(_loaded(text, "chat_template_kwargs")) or {}
    except ValueError as wrong:
        raise InvalidRequest(f"chat_template_kwargs: {wrong}.", param="chat_template_kwargs") from None


def check_words(words: Any) -> dict[str, Any] | None:
    """ValueError unless these are a few texts, numbers and switches under names that are free."""
    if words is None:
        return None
    if not isinstance(words, dict) or len(words) > _MOST_WORDS:
        raise ValueError(f"This is an object of at most {_MOST_WORDS} values")
    for name, value in words.items():
        if not _WORD.fullmatch(name) or name in _NOT_FOR_USERS or name.endswith("_token"):
            raise ValueError("A name is not one that a request may set")
        if not isinstance(value, str | int | float | bool | None) or len(str(value)) > _LONGEST_WORD:
            raise ValueError(f"A value is a text of at most {_LONGEST_WORD} characters, a number, true, false or null")
    check_json(words)
    return words


def written_words(words: dict[str, Any] | None, thinks: bool | None, effort: str | None = None) -> str:
    """Empty where there are none; ValueError where they contradict each other or are too long."""
    given = dict(words or {})
    for name, value in (("enable_thinking", thinks), ("reasoning_effort", effort)):
        if value is not None and given.setdefault(name, value) != value:
            raise ValueError(f"{name} and chat_template_kwargs say different things")
    text = json.dumps(given, ensure_ascii=False) if given else ""
    if len(text) > MOST_BESIDE["template"]:
        raise ValueError(f"Words for the template have at most {MOST_BESIDE['template']} characters")
    return text


def arguments_of(text: str) -> dict[str, Any]:
    """Of a call in an earlier answer; ValueError where they are no object."""
    try:
        arguments = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise ValueError("A call's arguments are the JSON text of an object")
    check_json(arguments)
    return arguments


def _name_of(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError("A tool is a function with a name of letters, digits, _ and -, at most 64")
    if not isinstance(function.get("description", ""), str | None):  # type: ignore[union-attr]
        raise ValueError("A function's description is a text")
    if not isinstance(function.get("parameters", {}), dict | None):  # type: ignore[union-attr]
        raise ValueError("A function's parameters are a JSON schema")
    return name


def _loaded(text: str, param: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{param}: This is not a JSON object.", param=param)
    return value
