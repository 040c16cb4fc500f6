"""The texts of a prompt that may say secrets, and the prompt with others in their place: messages, what tools are
described by, and what calls were made with. Names, keys and numbers stay, so they may say none."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from cloister.messages.prompts import ChatPrompt, Prompt, PromptCall, PromptMessage, TextPrompt, TokenPrompt
from cloister.obfuscation.tags import parse_redacted
from cloister.tools.base import Call, Parsed
from cloister.tools.offered import arguments_of, read_offered, read_words

_MADE = "\0"  # before an answer that is more than its content


class Said(NamedTuple):
    """`message`: its number, with its role; tools come before all."""

    text: str
    public: bool = False
    role: str | None = None
    message: int = -1


def said_in(prompt: ChatPrompt | TextPrompt) -> list[Said]:
    if isinstance(prompt, TextPrompt):
        return [Said(prompt.text, prompt.public, message=0)]
    said = [Said(text) for text in _strings(_tools(prompt))]
    for at, message in enumerate(prompt.messages):
        said.append(Said(message.content, message.public, message.role, at))
        called = (text for call in message.calls for text in _strings(_arguments(call)))
        said += [Said(text, False, message.role, at) for text in called]
    return said


def with_texts(
    prompt: ChatPrompt | TextPrompt, texts: Sequence[str], answers: Mapping[int, str] | None = None
) -> ChatPrompt | TextPrompt:
    """Without its secrets. `answers`: what stands in the place of whole messages, by number."""
    if isinstance(prompt, TextPrompt):
        return replace(prompt, text=texts[0], hidden=None)
    following = iter(texts)

    def other(value: Any) -> Any:
        return _changed(value, lambda _: next(following))

    tools = json.dumps(other(_tools(prompt)), ensure_ascii=False) if prompt.tools else ""
    messages = []
    for at, message in enumerate(prompt.messages):
        content = next(following)
        calls = [replace(call, arguments=_written(other(_arguments(call)))) for call in message.calls]
        given = replace(message, content=content, calls=tuple(calls))
        messages.append(given if answers is None or at not in answers else _answering(given, answers[at]))
    return replace(prompt, messages=tuple(messages), tools=tools, hidden=None)


def without_marks(prompt: Prompt) -> Prompt:
    """Asked for at `obfuscated`, but read alone: without tags around its secrets. Others stay as they are."""
    if isinstance(prompt, TokenPrompt) or prompt.hidden is None:
        return prompt
    param = "prompt" if isinstance(prompt, TextPrompt) else "messages"
    texts = [parse_redacted(said.text, param=param).text for said in said_in(prompt)]
    return replace(with_texts(prompt, texts), form=parse_redacted(prompt.form, param="response_format").text)


def fixed_in(prompt: ChatPrompt | TextPrompt) -> Iterator[tuple[str, str]]:
    """What stays the same in all variants, with its field."""
    if isinstance(prompt, TextPrompt):
        return
    yield from (("tools", text) for text in _fixed(_tools(prompt)))
    words = read_words(prompt.template) if prompt.template else {}
    yield from (("chat_template_kwargs", text) for text in (*_strings(words), *_fixed(words)))
    for message in prompt.messages:
        yield "messages", message.call_id
        for call in message.calls:
            yield from (("messages", text) for text in (call.id, call.name, *_fixed(_arguments(call))))


def turns_of(prompt: ChatPrompt | TextPrompt) -> list[tuple[str | None, str]]:
    if isinstance(prompt, TextPrompt):
        return [(None, prompt.text)]
    return [(message.role, _made(message.content, message.calls, "")) for message in prompt.messages]


class ReadAs(NamedTuple):
    """How the process that speaks HTTP reads the answer."""

    tools: bool = False
    parallel: bool = True
    thinks: bool | None = None


def read_as_of(prompt: ChatPrompt | TextPrompt) -> ReadAs:
    if isinstance(prompt, TextPrompt):
        return ReadAs()
    offered = read_offered(prompt.tools) if prompt.tools else None
    words = read_words(prompt.template) if prompt.template else {}
    thinks = (words.get(name) for name in ("enable_thinking", "thinking"))
    switch = next((one for one in thinks if isinstance(one, bool)), None)
    return ReadAs(offered is not None, offered is None or offered.parallel, switch)


def given_back(parsed: Parsed) -> str:
    """What names an answer that comes back: its user may leave the reasoning out."""
    return _made(parsed.content, parsed.calls, "")


def made_of(parsed: Parsed) -> str:
    return _made(parsed.content, parsed.calls, parsed.reasoning)


def _made(content: str, calls: Sequence[Call | PromptCall], reasoning: str) -> str:
    if not calls and not reasoning:
        return content
    named = [(call.name, _written(arguments_of(call.arguments))) for call in calls]
    return _MADE + json.dumps([content.strip(), named, reasoning])


def _answering(given: PromptMessage, answer: str) -> PromptMessage:
    """The ids are the real call's, so that results find theirs."""
    if not answer.startswith(_MADE):
        return replace(given, content=answer, calls=(), reasoning="")
    content, named, reasoning = json.loads(answer[len(_MADE) :])
    ids = [call.id for call in given.calls]
    calls = tuple(PromptCall(ids[at] if at < len(ids) else f"call{at}", *call) for at, call in enumerate(named))
    return replace(given, content=content, calls=calls, reasoning=reasoning if given.reasoning else "")


def _tools(prompt: ChatPrompt) -> Any:
    if prompt.tools:
        read_offered(prompt.tools)  # refuses what is none
    return json.loads(prompt.tools or "null")


def _arguments(call: PromptCall) -> dict[str, Any]:
    return arguments_of(call.arguments)


def _written(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _changed(each, change) for name, each in value.items()}
    return [_changed(each, change) for each in value] if isinstance(value, list) else value


def _strings(value: Any) -> list[str]:
    """In the order in which `_changed` meets them."""
    found: list[str] = []
    _changed(value, lambda text: found.append(text) or text)  # type: ignore[func-returns-value]
    return found


def _fixed(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from _fixed(each)
    elif isinstance(value, list):
        for each in value:
            yield from _fixed(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
