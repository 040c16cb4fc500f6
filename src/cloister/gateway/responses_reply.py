"""The answers of /v1/responses. They do not repeat the request's instructions, tools, schema or metadata."""

import secrets
import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from cloister.gateway.answer import DONE, ChatReply, ChatTokenLogprob, Usage, comment, encode
from cloister.gateway.choice import Delta, Finish
from cloister.gateway.errors import describe
from cloister.gateway.schema import Body
from cloister.gateway.tool_calls import CallPiece
from cloister.messages.types import SamplingParams
from cloister.responses import renamed

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    text: str


class Reasoning(msgspec.Struct, tag_field="type", tag="reasoning"):
    id: str
    status: ItemStatus = "in_progress"
    summary: list[str] = []
    content: list[ReasoningText] = []


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str = ""
    annotations: list[str] = []
    logprobs: list[ChatTokenLogprob] = []


class OutputMessage(msgspec.Struct, tag_field="type", tag="message"):
    id: str
    status: ItemStatus = "in_progress"
    role: Literal["assistant"] = "assistant"
    content: list[OutputText] = []


class FunctionCall(msgspec.Struct, tag_field="type", tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str = ""
    status: ItemStatus = "in_progress"


Item = Reasoning | OutputMessage | FunctionCall


class InputDetails(msgspec.Struct):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails
    output_tokens_details: OutputDetails = OutputDetails()


class ResponseError(msgspec.Struct):
    code: str
    message: str


class Incomplete(msgspec.Struct):
    reason: str


class ResponseObject(msgspec.Struct):
    """Every field of Open Responses' ResponseResource. `tools` and `metadata` are always empty."""

    id: str
    created_at: int
    model: str
    status: Literal["in_progress", "completed", "incomplete", "failed"] = "in_progress"
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: Incomplete | None = None
    output: list[Item] = []
    usage: ResponseUsage | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    top_logprobs: int = 0
    max_output_tokens: int | None = None
    text: dict[str, Any] = {}
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    object: Literal["response"] = "response"
    store: bool = False
    background: bool = False
    truncation: str = "disabled"
    service_tier: str = "default"
    tools: list[str] = []
    metadata: dict[str, str] = {}
    reasoning: None = None
    instructions: None = None
    previous_response_id: None = None
    max_tool_calls: None = None
    safety_identifier: None = None
    prompt_cache_key: None = None


_CHOICES = ("auto", "none", "required")
_REASONS: dict[Finish, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}
_SCHEMA = {"name": "", "description": None, "schema": None, "strict": True}


class ResponsesReply(ChatReply):
    """Items come one after the other. The whole answer is made by the same steps as the events of a streamed one."""

    one_choice, ends_repeat = True, True

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.id = f"resp_{secrets.token_hex(12)}"
        self._response = ResponseObject(self.id, self.created, self.model)
        self._number = 0
        self._open: Item | None = None
        self._pieces: list[str] = []
        self._scores: list[ChatTokenLogprob] = []
        self._finish: Finish = "stop"

    def describe(self, body: Body, params: SamplingParams) -> None:
        form, choice = getattr(body, "response_format", None), getattr(body, "tool_choice", None)
        kind = form.get("type") if isinstance(form, dict) else getattr(form, "type", None)
        response = self._response
        response.text = {"format": {"type": kind or "text", **(_SCHEMA if kind == "json_schema" else {})}}
        response.tool_choice = choice if choice in _CHOICES else "auto" if choice is None else "required"
        response.parallel_tool_calls = getattr(body, "parallel_tool_calls", None) is not False
        response.max_output_tokens = body.token_limit
        response.top_logprobs = params.logprobs or 0
        for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
            setattr(response, name, getattr(params, name))

    def whole(self, deltas: Sequence[Delta], usage: Usage) -> bytes:
        for delta in deltas:
            self.events(0, delta)
        self.closing(usage)
        return encode(self._response)

    def opening(self, index: int) -> bytes:
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._event(kind, response=self._response) for kind in kinds)

    def quiet(self, index: int) -> bytes:
        return self._text(Delta("", None, None)) if isinstance(self._open, OutputMessage) else b": \n\n"

    def events(self, index: int, delta: Delta) -> bytes:
        events = b"" if delta.progress is None else comment(delta.progress)
        self._finish = delta.finish or self._finish
        if thought := getattr(delta, "reasoning", ""):
            events += self._opened(Reasoning, "rs") + self._said("response.reasoning_text.delta", thought)
        if delta.text or delta.scores:
            events += self._text(delta)
        calls: Sequence[CallPiece] = getattr(delta, "calls", ())
        return events + b"".join(map(self._called, calls))

    def closing(self, usage: Usage) -> bytes:
        response, reason = self._response, _REASONS.get(self._finish)
        events = b"" if self._open or response.output else self._opened(OutputMessage, "msg")
        events += self._end("completed" if reason is None else "incomplete")
        given, made = usage.prompt_tokens, usage.completion_tokens
        cached = InputDetails(usage.prompt_tokens_details.cached_tokens)
        response.usage = ResponseUsage(given, made, given + made, cached)
        if reason is None:
            response.status, response.completed_at = "completed", int(time.time())
        else:
            response.status, response.incomplete_details = "incomplete", Incomplete(reason)
        return events + self._event(f"response.{response.status}", response=response) + DONE

    def failure(self, error: Exception) -> bytes:
        status, reply = describe(renamed(error))
        code = "server_error" if status >= 500 else "rate_limit_exceeded" if status == 429 else "invalid_prompt"
        events = self._end("incomplete")
        self._response.status, self._response.error = "failed", ResponseError(code, reply.error.message)
        return events + self._event("response.failed", response=self._response)

    def _text(self, delta: Delta) -> bytes:
        events = self._opened(OutputMessage, "msg")
        scores = self._logprobs(delta.scores)
        found = [] if scores is None else scores.content
        self._scores += found
        return events + self._said("response.output_text.delta", delta.text, logprobs=found)

    def _called(self, call: CallPiece) -> bytes:
        events = b""
        if call.begins:
            events += self._end("completed")
            events += self._begin(FunctionCall(f"fc_{secrets.token_hex(12)}", call.id, call.name))
        if call.arguments:
            self._pieces.append(call.arguments)
            events += self._item_event("response.function_call_arguments.delta", delta=call.arguments)
        return events + (self._end("completed") if call.ends else b"")

    def _opened(self, kind: type[Reasoning] | type[OutputMessage], prefix: str) -> bytes:
        """The item under way is of this kind from now on."""
        if isinstance(self._open, kind):
            return b""
        return self._end("completed") + self._begin(kind(f"{prefix}_{secrets.token_hex(12)}"))

    def _said(self, kind: str, text: str, **more: Any) -> bytes:
        self._pieces.append(text)
        return self._part_event(kind, delta=text, **more)

    def _begin(self, item: Item) -> bytes:
        self._open = item
        events = self._item_event("response.output_item.added", item=item)
        if isinstance(item, OutputMessage):
            events += self._part_event("response.content_part.added", part=OutputText())
        return events

    def _end(self, status: ItemStatus) -> bytes:
        """End the item under way, if there is one."""
        item, text = self._open, "".join(self._pieces)
        if item is None:
            return b""
        item.status = status
        if isinstance(item, OutputMessage):
            part = OutputText(text, logprobs=self._scores)
            item.content = [part]
            events = self._part_event("response.output_text.done", text=text, logprobs=self._scores)
            events += self._part_event("response.content_part.done", part=part)
        elif isinstance(item, Reasoning):
            item.content = [ReasoningText(text)]
            events = self._part_event("response.reasoning_text.done", text=text)
        else:
            item.arguments = text
            events = self._item_event("response.function_call_arguments.done", arguments=text, name=item.name)
        events += self._item_event("response.output_item.done", item=item)
        self._response.output.append(item)
        self._open, self._pieces, self._scores = None, [], []
        return events

    def _part_event(self, kind: str, **more: Any) -> bytes:
        return self._item_event(kind, content_index=0, **more)

    def _item_event(self, kind: str, **more: Any) -> bytes:
        assert self._open is not None
        named = {} if "item" in more else {"item_id": self._open.id}
        return self._event(kind, **named, output_index=len(self._response.output), **more)

    def _event(self, kind: str, **more: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        data = encode({"type": kind, "sequence_number": number, **more})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
