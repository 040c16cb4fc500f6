"""Calls of tools in an answer, in OpenAI's form."""

import secrets
import string
from typing import Literal

import msgspec

from cloister.tools.base import Call

_LETTERS = string.ascii_letters + string.digits


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class ToolCallDelta(msgspec.Struct):
    index: int
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class Delta(msgspec.Struct):
    """What is new in a message. A call comes whole: before its end it may still turn out to be text."""

    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCallDelta] | msgspec.UnsetType = msgspec.UNSET


def new_call(call: Call) -> ToolCall:
    """Nine letters and digits: Mistral's templates take no other id."""
    return ToolCall("".join(secrets.choice(_LETTERS) for _ in range(9)), CalledFunction(*call))


def delta_of(content: str, reasoning: str, calls: list[ToolCall], first: int) -> Delta:
    """`first`: the number of the first of these calls."""
    deltas = [ToolCallDelta(at, call.id, call.function) for at, call in enumerate(calls, first)]
    thought = reasoning or msgspec.UNSET
    unsaid = not content and (reasoning or calls)
    return Delta(thought, thought, msgspec.UNSET if unsaid else content, deltas or msgspec.UNSET)
