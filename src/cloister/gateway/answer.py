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
from cloister.gateway.schema import Body
from cloister.gateway.tool_calls import ToolCall, delta_of, whole
from cloister.messages.generation import Progress
from cloister.messages.types import SamplingParams
from cloister.prompts.tokenizer import Tokenizer
from cloister.request_fields import SEQUENCES_HEADER

EVENT_BYTES = 1024  # what an answer makes in a beat fits, unless it has log-probabilities
_END_BYTES = 4 * EVENT_BYTES  # of an end that repeats the text, without the text
_COMMENT = b": \n\n"


class Beat:
    """On the loop's clock. 0 s: none, and nothing is padded."""

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self._number = self._sent = 0
        self._begun = asyncio.get_running_loop().time()

    def __bool__(self) -> bool:
        return self.every_s > 0

    async def wait(self) -> None:
        """Until the next beat; one that was missed is not made up for."""
        passed = asyncio.get_running_loop().time() - self._begun
        self._number = max(self._number, int(passed / self.every_s)) + 1
        await asyncio.sleep(self._number * self.every_s - passed)

    def sized(self, opening: bytes, events: bytes, *, last: bool) -> bytes:
        """Padded so that sizes say no more than the number of beats; `last`: an end that says the whole text again."""
        if not self:
            return opening + events
        # A long opening is padded by itself, so that the first words fit the beat's size beside it.
        head = padded(opening) if len(opening) > EVENT_BYTES // 2 else b""
        events = events if head else opening + events
        self._sent += len(head)
        rest = padded(events, self._sent + _END_BYTES if last else EVENT_BYTES)
        self._sent += len(rest)
        return head + rest


def padded(events: bytes, unit: int = EVENT_BYTES) -> bytes:
    """With a comment line that readers of events skip (HTML standard, §9.2.6), up to a multiple of `unit`."""
    missing = -(len(events) + len(_COMMENT)) % unit
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
    one_choice = False  # whether it cannot show several
    ends_repeat = False  # whether its end says the text again, and is as long as all before

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

    def describe(self, body: Body, params: SamplingParams) -> None:
        """Take the settings of the request that are shown with its answer."""

    def closing(self, usage: Usage) -> bytes:
        return self.usage_event(usage) + DONE if self.include_usage else DONE

    def usage_event(self, usage: Usage) -> bytes:
        return b"".join((self._head, b',"choices":[],"usage":', encode(usage), b"}\n\n"))

    def quiet(self, index: int) -> bytes:
        """An event without news."""
        return self.event(index, self.nothing, b"null", b"null")

    def failure(self, error: Exception) -> bytes:
        return b"data: %b\n\n" % encode(describe(error)[1])

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
        return cls(content, reasoning_content=thought, reasoning=thought, tool_calls=whole(new.calls) or msgspec.UNSET)


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
            new = delta_of(delta.text, delta.reasoning, delta.calls)
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
            opening = b""
            if not self._started:
                self._started = True
                self._add_sequences_header()
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                opening = b"".join(reply.opening(index) for index, _ in enumerate(generation.shown))
            pieces = [self._events(index, delta) for index, delta in generation.taken(concerned)]
            if generation.done:
                pieces.append(reply.closing(usage_of(generation)))
            if events := self._beat.sized(opening, b"".join(pieces), last=generation.done and reply.ends_repeat):
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
        return self._reply.quiet(index)

    async def fail(self, error: Exception, send: Send) -> None:
        """The status is out already: send the error as an event and end the stream."""
        if not self._started:
            raise error
        if not isinstance(error, CloisterError):
            log_unexpected(error)
        event = self._beat.sized(b"", self._reply.failure(error), last=self._reply.ends_repeat)
        # A client that reads nothing must not hold the connection beyond the deadline.
        with suppress(TimeoutError):
            async with asyncio.timeout(_ERROR_EVENT_S):
                await send({"type": "http.response.body", "body": event, "more_body": False})
