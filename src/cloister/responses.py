"""A body of POST /v1/responses (OpenAI's Responses, Open Responses) as the body of the chat it asks for, and back.
Gateway and client share this: no text is read here that a chat would not hold. Nothing is stored on either side."""

import json
import re
from typing import Any, TypeVar, cast

from cloister.errors import InvalidRequest
from cloister.request_fields import refuse_repeated_names

PATH = "/v1/responses"
Fields = dict[str, Any]
Error = TypeVar("Error", bound=Exception)

_NAMES = {"input": "messages", "max_output_tokens": "max_completion_tokens", "text": "response_format"}
_BACK = {theirs: ours for ours, theirs in _NAMES.items()}
# A chat's fields that have another name here, or no meaning.
_OF_CHATS = {**_BACK, "max_tokens": "max_output_tokens", "functions": "tools", "function_call": "tool_choice", "n": ""}
_STATELESS = "This server stores no answers. A kept session (`session`) and the history in `input` do the same."
_ASKS_NOTHING: dict[str, tuple[tuple[object, ...], str]] = {
    "store": ((None, False), f"Leave it out, or send false. {_STATELESS}"),
    "previous_response_id": ((None,), _STATELESS),
    "conversation": ((None,), _STATELESS),
    "background": ((None, False), "An answer comes to the request that asks for it."),
    "prompt": ((None,), "This server has no prompts of yours. Send the text itself."),
    "context_management": ((None, []), "Nothing is left out of an input here."),
    "truncation": ((None, "disabled"), "Nothing is left out of an input here. Shorten it yourself."),
}
_DROPPED = ("max_tool_calls", "stream_options")  # of tools that OpenAI runs; how it pads events
_LOGPROBS = "message.output_text.logprobs"
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


def chat_body(raw: bytes) -> bytes:
    """InvalidRequest where the fields of the body ask for what no chat does. The chat's own checks come after."""
    refuse_repeated_names(raw)
    return json.dumps(chat_fields(read_fields(raw))).encode()


def read_fields(raw: bytes) -> Fields:
    """Read by Python's own parser: msgspec's keeps short names of fields, which may be the user's words."""
    try:
        fields = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise InvalidRequest("The body is not a JSON object.")
    return fields


def _refuse_constant(name: str) -> None:
    raise ValueError("JSON has neither NaN nor Infinity")


def chat_fields(given: Fields) -> Fields:
    """What is already in a chat's form, such as the number of sealed prompts, stays as it is."""
    fields = dict(given)
    for name in _OF_CHATS.keys() & fields:
        hint = f"Is {_OF_CHATS[name]!r} meant?" if _OF_CHATS[name] else "Leave it out."
        raise InvalidRequest(f"The field {name!r} is not one of {PATH}.", param=name, hint=hint)
    for name in _ASKS_NOTHING.keys() & fields:
        accepted, why = _ASKS_NOTHING[name]
        if fields.pop(name) not in accepted:
            raise InvalidRequest(f"{name}: This is not supported.", param=name, hint=why)
    for name in _DROPPED:
        fields.pop(name, None)
    chat: Fields = {}
    _add_text(fields, chat)
    _add_tools(fields, chat)
    if effort := _object(fields, "reasoning").get("effort"):
        chat["reasoning_effort"] = effort
    if _LOGPROBS in _list(fields, "include") or fields.get("top_logprobs"):
        chat["logprobs"] = True
    if "input" in fields or fields.get("instructions") is not None:
        chat["messages"] = _messages(fields.pop("input", []), fields.get("instructions"))
    fields.pop("instructions", None)
    if "max_output_tokens" in fields:
        chat["max_completion_tokens"] = fields.pop("max_output_tokens")
    return fields | chat


def responses_fields(chat: Fields) -> Fields:
    """The fields of a chat whose prompt is sealed, as this path takes them; `chat_fields` gives them back."""
    fields = {_BACK.get(name, name): value for name, value in chat.items()}
    if "text" in fields:
        fields["text"] = {"format": fields["text"]}
    return fields


def renamed(error: Error) -> Error:
    """A chat's refusal in the words of this path. Its number of a message would not be the item's."""
    name = _BACK.get(error.param or "") if isinstance(error, InvalidRequest) else None
    if isinstance(error, InvalidRequest) and name is not None:
        said = re.sub(rf"^{error.param}(\[\d+\])?:", f"{name}:", error.message)
        if said != error.message:
            error.message, error.param = said, name
    return error


def _messages(items: Any, instructions: Any) -> Any:
    if isinstance(items, dict):
        if instructions is not None:
            raise InvalidRequest("instructions: In a sealed request these are sealed.", param="instructions")
        return items
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    if not isinstance(items, str | list):
        raise InvalidRequest("input: This must be a string or a list of items.", param="input")
    for number, item in enumerate([{"role": "user", "content": items}] if isinstance(items, str) else items):
        _add_item(number, item, messages)
    return messages


def _add_item(number: int, item: Any, messages: list[dict[str, Any]]) -> None:
    """Calls join the assistant's message before them, as one turn of a chat."""
    kind = None if not isinstance(item, dict) else item.get("type") or ("message" if "role" in item else "reference")
    if kind == "message":
        public = {"public": item["public"]} if "public" in item else {}
        messages.append({"role": item.get("role"), "content": _content(item.get("content")), **public})
    elif kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant"})
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        output = _content(item.get("output"))
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
    elif kind != "reasoning":  # what a model thought is not for the next turn
        hint = _STATELESS if kind in ("reference", "item_reference") else None
        raise InvalidRequest(f"input[{number}]: No such item is supported.", param="input", hint=hint)


def _content(content: Any) -> Any:
    return [_part(each) for each in content] if isinstance(content, list) else content


def _part(part: Any) -> Any:
    """Of a part that is no text its type alone, by which a chat refuses it."""
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in _TEXTS:
        return {"type": kind}
    return {"type": "text", "text": part.get(_TEXTS[kind])}


def _add_text(fields: Fields, chat: Fields) -> None:
    text = _object(fields, "text")
    if text.keys() - {"format", "verbosity"}:
        raise InvalidRequest("text: It may have 'format' and 'verbosity'.", param="text")
    if text.get("verbosity") is not None:
        chat["verbosity"] = text["verbosity"]
    if (form := text.get("format")) is None:
        return
    if isinstance(form, dict) and form.get("type") == "json_schema" and "json_schema" not in form:
        form = {"type": "json_schema", "json_schema": {name: form[name] for name in form if name != "type"}}
    chat["response_format"] = form


def _add_tools(fields: Fields, chat: Fields) -> None:
    """Of `allowed_tools` only those allowed go on."""
    tools, choice = fields.get("tools"), fields.get("tool_choice")
    if isinstance(tools, list):
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            named = choice.get("tools")
            allowed = [each.get("name") for each in named if isinstance(each, dict)] if isinstance(named, list) else []
            tools = [each for each in tools if isinstance(each, dict) and each.get("name") in allowed]
            choice = choice.get("mode")
        chat["tools"] = [_nested(each, "tools") for each in tools]
    if isinstance(choice, dict) and "function" not in choice:
        choice = _nested(choice, "tool_choice")
    if "tool_choice" in fields:
        chat["tool_choice"] = choice


def _nested(function: Any, param: str) -> dict[str, Any]:
    if not isinstance(function, dict) or function.get("type") != "function":
        raise InvalidRequest(f"{param}: Only functions are supported, no tools that a server runs.", param=param)
    return {"type": "function", "function": {name: function[name] for name in function if name != "type"}}


def _object(fields: Fields, name: str) -> dict[str, Any]:
    return cast(dict[str, Any], _of_kind(fields, name, dict, "an object"))


def _list(fields: Fields, name: str) -> list[Any]:
    return cast(list[Any], _of_kind(fields, name, list, "a list"))


def _of_kind(fields: Fields, name: str, kind: type[Any], said: str) -> Any:
    given = fields.pop(name, None)
    if given is not None and not isinstance(given, kind):
        raise InvalidRequest(f"{name}: This must be {said}.", param=name)
    return given or kind()
