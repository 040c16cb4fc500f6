"""POST /v1/chat/completions and POST /v1/completions, and the shapes of their answers.

Plain completions take text or token ids; with echo, they also score given text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from cloister.gateway.answer import Reply, Usage, comment, encode, finite
from cloister.gateway.api import AskedBy, api_of
from cloister.gateway.choice import Delta, Finish, ScoredToken
from cloister.gateway.openapi import generation_docs
from cloister.gateway.schema import CHAT, COMPLETION

router = APIRouter()


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
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ChatCompletion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"


class ChatReply(Reply):
    id_prefix = "chatcmpl"
    chunk_object = "chat.completion.chunk"

    def whole(self, deltas: Sequence[Delta], usage: Usage) -> bytes:
        choices = [
            ChatChoice(index, AssistantMessage(delta.text), self._logprobs(delta.scores), delta.finish or "stop")
            for index, delta in enumerate(deltas)
        ]
        return encode(ChatCompletion(self.id, self.created, self.model, choices, usage))

    def opening(self, index: int) -> bytes:
        return self.event(index, b'"delta":{"role":"assistant","content":""}', b"null", b"null")

    def events(self, index: int, delta: Delta) -> bytes:
        events = b"" if delta.progress is None else comment(delta.progress)
        if delta.text or delta.scores:
            scores = b"null" if delta.scores is None else encode(self._logprobs(delta.scores))
            events += self.event(index, b'"delta":{"content":%b}' % encode(delta.text), scores, b"null")
        if delta.finish is not None:
            events += self.event(index, b'"delta":{}', b"null", encode(delta.finish))
        return events

    def silence(self, index: int) -> bytes:
        return self.event(index, b'"delta":{}', b"null", b"null")

    def _logprobs(self, scores: list[ScoredToken] | None) -> ChatLogprobs | None:
        if scores is None:
            return None
        content = []
        for scored in scores:
            top = [TopLogprob(*self._scored(token, logprob)) for token, logprob in scored.top]
            content.append(ChatTokenLogprob(*self._scored(scored.token, scored.logprob or 0.0), top))
        return ChatLogprobs(content)

    def _scored(self, token: int, logprob: float) -> tuple[str, list[int], float]:
        return self.label(token), list(self.tokenizer.token_bytes(token)), finite(logprob)


@router.post("/v1/chat/completions", **generation_docs("ChatRequest", "ChatCompletion"))
async def chat_completions(request: Request, asked: AskedBy) -> Response:
    """Continue a conversation."""
    return await api_of(request).answer(request, asked, CHAT, ChatReply)


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


class Completion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    object: Literal["text_completion"] = "text_completion"


class CompletionReply(Reply):
    id_prefix = "cmpl"
    chunk_object = "text_completion"

    def whole(self, deltas: Sequence[Delta], usage: Usage) -> bytes:
        choices = [
            CompletionChoice(index, delta.text, self._logprobs(delta.scores), delta.finish or "stop")
            for index, delta in enumerate(deltas)
        ]
        return encode(Completion(self.id, self.created, self.model, choices, usage))

    def opening(self, index: int) -> bytes:
        return b""

    def events(self, index: int, delta: Delta) -> bytes:
        events = b"" if delta.progress is None else comment(delta.progress)
        if not (delta.text or delta.scores or delta.finish):
            return events
        scores = b"null" if delta.scores is None else encode(self._logprobs(delta.scores))
        return events + self.event(index, b'"text":%b' % encode(delta.text), scores, encode(delta.finish))

    def silence(self, index: int) -> bytes:
        return self.event(index, b'"text":""', b"null", b"null")

    def _logprobs(self, scores: list[ScoredToken] | None) -> CompletionLogprobs | None:
        if scores is None:
            return None
        return CompletionLogprobs(
            [self.label(scored.token) for scored in scores],
            [None if scored.logprob is None else finite(scored.logprob) for scored in scores],
            [self._top(scored) for scored in scores],
            [scored.offset for scored in scores],
        )

    def _top(self, scored: ScoredToken) -> dict[str, float] | None:
        """The alternatives and, even if it is not among the best, the token itself."""
        if scored.logprob is None:
            return None
        top = {self.label(token): finite(logprob) for token, logprob in scored.top}
        top.setdefault(self.label(scored.token), finite(scored.logprob))
        return top


@router.post("/v1/completions", **generation_docs("CompletionRequest", "Completion"))
async def completions(request: Request, asked: AskedBy) -> Response:
    """Continue one or several prompts."""
    return await api_of(request).answer(request, asked, COMPLETION, CompletionReply)
