"""How an answer is sent. On a beat events have one size: sizes and moments tell its duration alone ("Whisper Leak")."""

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal, Self

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cloister.errors import CloisterError, RequestTimeout
from cloister.gateway.choice import Choice, Delta, Finish, ScoredToken
from cloister.gateway.errors import describe, log_unexpected
from cloister.gateway.generation import ClientGone, Generation
from cloister.gateway.tool_calls import ToolCall, delta_of
from cloister.messages.generation import Progress
from cloister.prompts.tokenizer import Tokenizer
from cloister.request_fields import SEQUENCES_HEADER

EVENT_BYTES = 1024  # what an answer makes in a beat fits, unless it has log-probabilities
_COMMENT = b": \n\n"


class Beat:
    """On the loop's clock. 0 s: none, and nothing is padded."""

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self._number = 0
        self._begun = asyncio.get_running_loop().time()

    def __bool__(self) -> bool:
        return self.every_s > 0

    async def wait(self) -> None:
        """Until the next beat; one that was missed is not made up for."""
        passed = asyncio.get_running_loop().time() - self._begun
        self._number = max(self._number, int(passed / self.every_s)) + 1
        await asyncio.sleep(self._number * self.every_s - passed)


def padded(events: bytes) -> bytes:
    """With a comment line that readers of events skip (HTML standard, §9.2.6), up to a multiple of EVENT_BYTES."""
    missing = -(len(events) + len(_COMMENT)) % EVENT_BYTES
    return b"".join((b": ", b"0" * missing, b"\n\n", events))


encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"
_FILTERED = encode("content_filter")


class PromptTokensDetails(msgspec.Struct):
    """Prompt tokens whose keys and values were in the cache for this caller."""

    cached_tokens: int


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def usage_of(generation: Generation) -> Usage:
    given, made = generation.prompt_tokens, generation.output_tokens
    return Usage(given, made, given + made, PromptTokensDetails(generation.cached_tokens))


def finite(logprob: float) -> float:
    """JSON has no infinity; OpenAI writes -9999.0 for a token that cannot come."""
    return max(logprob, -9999.0)


def comment(progress: Progress) -> bytes:
    """The progress of a slow answer, as a comment line that readers of events skip (HTML standard, §9.2.6)."""
    pace = progress.seconds_per_token
    # The first pass reads the whole prompt and takes longer than the estimate.
    later = " after the first" if progress.token == 1 else ""
    estimate = "" if pace is None else f", about {pace:.{0 if pace >= 10 else 1}f} s per token{later}"
    return f": token {progress.token}, layer {progress.layer} of {progress.layers}{estimate}\n\n".encode()


Note = dict[str, str] | msgspec.UnsetType
_STOPPED = {"stopped": "recitation"}


def note_of(finish: Finish | None) -> Note:
    return _STOPPED if finish == "content_filter" else msgspec.UNSET


class Reply(ABC):
    id_prefix: str
    chunk_object: str
    first: bytes  # what comes before a choice's first text
    nothing: bytes

    def __init__(self, model: str, created: int, tokenizer: Tokenizer, *, include_usage: bool) -> None:
        self.id = f"{self.id_prefix}-{secrets.token_hex(12)}"
        self.model, self.created, self.tokenizer, self.include_usage = model, created, tokenizer, include_usage
        head = {"id": self.id, "object": self.chunk_object, "created": created, "model": model}
        self._head = b"data: " + encode(head)[:-1]
        self._choice_head = self._head + b',"choices":[{"index":'
        self._choice_tail = b'}],"usage":null}\n\n' if include_usage else b"}]}\n\n"

    @abstractmethod
    def whole(self, deltas: Sequence[Delta], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""

    @abstractmethod
    def events(self, index: int, delta: Delta) -> bytes:
        """The events that carry what is new in a choice; possibly none."""

    def opening(self, index: int) -> bytes:
        return self.event(index, self.first, b"null", b"null") if self.first else b""

    def usage_event(self, usage: Usage) -> bytes:
        return b"".join((self._head, b',"choices":[],"usage":', encode(usage), b"}\n\n"))

    def event(self, index: int, content: bytes, scores: bytes, finish: bytes) -> bytes:
        head, tail = self._choice_head, self._choice_tail
        if finish == _FILTERED:
            finish += b',"cloister":' + encode(_STOPPED)
        return b'%b%d,%b,"logprobs":%b,"finish_reason":%b%b' % (head, index, content, scores, finish, tail)

    def label(self, token: int) -> str:
        """A token as text; one that is no whole character is spelt in bytes, as OpenAI does."""
        raw = self.tokenizer.token_bytes(token)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class TopLogprob(msgspec.Struct):
    token: str
    bytes: list[int]
    logprob: float


class ChatTokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatTokenLogprob]
    refusal: None = None


class AssistantMessage(msgspec.Struct):
    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def of(cls, new: Delta) -> Self:
        thought = new.reasoning or msgspec.UNSET
        content = new.text or (None if new.calls else "")
        return cls(content, reasoning_content=thought, reasoning=thought, tool_calls=new.calls or msgspec.UNSET)


class ChatChoice(msgspec.Struct):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    cloister: Note = msgspec.UNSET


class ChatCompletion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"


class ChatReply(Reply):
    id_prefix, chunk_object = "chatcmpl", "chat.completion.chunk"
    first, nothing = b'"delta":{"role":"assistant","content":""}', b'"delta":{}'

    def whole(self, deltas: Sequence[Delta], usage: Usage) -> bytes:
        choices = [
            ChatChoice(
                at, AssistantMessage.of(new), self._logprobs(new.scores), new.finish or "stop", note_of(new.finish)
            )
            for at, new in enumerate(deltas)
        ]
        return encode(ChatCompletion(self.id, self.created, self.model, choices, usage))

    def events(self, index: int, delta: Delta) -> bytes:
        events = b"" if delta.progress is None else comment(delta.progress)
        if delta.text or delta.scores or delta.reasoning or delta.calls:
            scores = b"null" if delta.scores is None else encode(self._logprobs(delta.scores))
            new = delta_of(delta.text, delta.reasoning, delta.calls, delta.first_call)
            events += self.event(index, b'"delta":%b' % encode(new), scores, b"null")
        if delta.finish is not None:
            events += self.event(index, b'"delta":{}', b"null", encode(delta.finish))
        return events

    def _logprobs(self, scores: list[ScoredToken] | None) -> ChatLogprobs | None:
        if scores is None:
            return None
        content = []
        for scored in scores:
            top = [TopLogprob(*self._label_bytes_logprob(token, logprob)) for token, logprob in scored.top]
            content.append(ChatTokenLogprob(*self._label_bytes_logprob(scored.token, scored.logprob or 0.0), top))
        return ChatLogprobs(content)

    def _label_bytes_logprob(self, token: int, logprob: float) -> tuple[str, list[int], float]:
        return self.label(token), list(self.tokenizer.token_bytes(token)), finite(logprob)


class CompletionLogprobs(msgspec.Struct):
    """Parallel lists, one entry per token; offsets count characters of this choice's `text`."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish
    cloister: Note = msgspec.UNSET


class Completion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    object: Literal["text_completion"] = "text_completion"


class CompletionReply(Reply):
    id_prefix, chunk_object = "cmpl", "text_completion"
    first, nothing = b"", b'"text":""'

    def whole(self, deltas: Sequence[Delta], usage: Usage) -> bytes:
        choices = [
            CompletionChoice(at, new.text, self._logprobs(new.scores), new.finish or "stop", note_of(new.finish))
            for at, new in enumerate(deltas)
        ]
        return encode(Completion(self.id, self.created, self.model, choices, usage))

    def events(self, index: int, delta: Delta) -> bytes:
        events = b"" if delta.progress is None else comment(delta.progress)
        if not (delta.text or delta.scores or delta.finish):
            return events
        scores = b"null" if delta.scores is None else encode(self._logprobs(delta.scores))
        return events + self.event(index, b'"text":%b' % encode(delta.text), scores, encode(delta.finish))

    def _logprobs(self, scores: list[ScoredToken] | None) -> CompletionLogprobs | None:
        if scores is None:
            return None
        tokens = [self.label(scored.token) for scored in scores]
        logprobs = [None if scored.logprob is None else finite(scored.logprob) for scored in scores]
        return CompletionLogprobs(tokens, logprobs, [*map(self._top, scores)], [scored.offset for scored in scores])

    def _top(self, scored: ScoredToken) -> dict[str, float] | None:
        """The alternatives and, even if it is not among the best, the token itself."""
        if scored.logprob is None:
            return None
        top = {self.label(token): finite(logprob) for token, logprob in scored.top}
        top.setdefault(self.label(scored.token), finite(scored.logprob))
        return top


_ERROR_EVENT_S = 2.0


class Answer(Response):
    """Runs a generation while the response is sent, until the deadline (in the loop's time) at most."""

    media_type = "application/json"

    def __init__(self, generation: Generation, reply: Reply, deadline: float, headers: Mapping[str, str]) -> None:
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._generation, self._reply, self._deadline = generation, reply, deadline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit = asyncio.timeout_at(self._deadline)
        try:
            async with limit, self._generation.running(receive):
                await self.generate(send)
        except ClientGone:
            return
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                error = RequestTimeout("The request ran longer than this server allows.")
            await self.fail(error, send)

    async def generate(self, send: Send) -> None:
        generation = self._generation
        while not generation.done:
            await generation.news()
        deltas = [delta for _, delta in generation.taken(generation.choices)]
        body = self._reply.whole(deltas, usage_of(generation))
        self._add_sequences_header()
        self.headers["content-length"] = str(len(body))
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": body})

    def _add_sequences_header(self) -> None:
        if (among := self._generation.hidden_among) is not None:
            self.headers[SEQUENCES_HEADER] = str(among)

    async def fail(self, error: Exception, send: Send) -> None:
        """Nothing was sent yet: the error handler can still choose the status."""
        raise error


class StreamedAnswer(Answer):
    """Server-sent events. The response starts with the first news, so that an earlier error has its own status."""

    media_type = "text/event-stream"

    def __init__(
        self, generation: Generation, reply: Reply, deadline: float, headers: Mapping[str, str], beat_s: float = 0.0
    ) -> None:
        unbuffered = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(generation, reply, deadline, {**headers, **unbuffered})
        self._started = False
        self._beat = Beat(beat_s)

    async def generate(self, send: Send) -> None:
        generation, reply = self._generation, self._reply
        while not generation.done:
            concerned = await self._news()
            pieces = [self._events(index, delta) for index, delta in generation.taken(concerned)]
            if not self._started:
                self._started = True
                self._add_sequences_header()
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                pieces[:0] = [reply.opening(index) for index, _ in enumerate(generation.shown)]
            if generation.done:
                if reply.include_usage:
                    pieces.append(reply.usage_event(usage_of(generation)))
                pieces.append(DONE)
            events = padded(b"".join(pieces)) if self._beat else b"".join(pieces)
            if events:
                await send({"type": "http.response.body", "body": events, "more_body": not generation.done})

    async def _news(self) -> list[Choice]:
        """On a beat, once there is a first token: possibly none, and then padding is sent."""
        if not self._beat:
            return await self._generation.news()
        if not self._started:
            await self._generation.arrival()
        await self._beat.wait()
        return self._generation.read()

    def _events(self, index: int, delta: Delta) -> bytes:
        """Where one of several streams is real, all have an event whenever one has: an observer sees no difference."""
        events = self._reply.events(index, delta)
        if events or self._generation.hidden_among is None:
            return events
        return self._reply.event(index, self._reply.nothing, b"null", b"null")

    async def fail(self, error: Exception, send: Send) -> None:
        """The status is out already: send the error as an event and end the stream."""
        if not self._started:
            raise error
        if not isinstance(error, CloisterError):
            log_unexpected(error)
        event = b"data: %b\n\n" % msgspec.json.encode(describe(error)[1])
        event = padded(event) if self._beat else event
        # A client that reads nothing must not hold the connection beyond the deadline.
        with suppress(TimeoutError):
            async with asyncio.timeout(_ERROR_EVENT_S):
                await send({"type": "http.response.body", "body": event, "more_body": False})
