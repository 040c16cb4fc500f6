"""Calls of tools in an answer, in OpenAI's form."""

import secrets
import string
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

_LETTERS = string.ascii_letters + string.digits


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class CallPiece(NamedTuple):
    """Of the call `at` this place in an answer: `begins`, `ends`, or both where it comes whole."""

    at: int
    id: str
    name: str
    arguments: str
    begins: bool
    ends: bool


class FunctionDelta(msgspec.Struct):
    arguments: str
    name: str | msgspec.UnsetType = msgspec.UNSET


class ToolCallDelta(msgspec.Struct):
    index: int
    function: FunctionDelta
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: Literal["function"] | msgspec.UnsetType = msgspec.UNSET


class Delta(msgspec.Struct):
    """What is new in a message. Without a form a call comes whole: before its end it may turn out to be text."""

    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCallDelta] | msgspec.UnsetType = msgspec.UNSET


def new_id() -> str:
    """Nine letters and digits: Mistral's templates take no other id."""
    return "".join(secrets.choice(_LETTERS) for _ in range(9))


def whole(pieces: Sequence[CallPiece]) -> list[ToolCall]:
    return [ToolCall(piece.id, CalledFunction(piece.name, piece.arguments)) for piece in pieces]


def delta_of(content: str, reasoning: str, calls: Sequence[CallPiece]) -> Delta:
    deltas = [
        ToolCallDelta(call.at, FunctionDelta(call.arguments, call.name), call.id, "function")
        if call.begins
        else ToolCallDelta(call.at, FunctionDelta(call.arguments))
        for call in calls
    ]
    thought = reasoning or msgspec.UNSET
    unsaid = not content and (reasoning or calls)
    return Delta(thought, thought, msgspec.UNSET if unsaid else content, deltas or msgspec.UNSET)
