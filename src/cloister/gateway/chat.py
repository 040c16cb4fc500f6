"""POST /v1/chat/completions, and the shape of its answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from cloister.gateway.api import AskedBy, api_of
from cloister.gateway.choice import Delta, Finish, ScoredToken
from cloister.gateway.generation import Order
from cloister.gateway.openapi import generation_docs
from cloister.gateway.reply import Reply, Usage, comment, encode, finite
from cloister.gateway.sampling import choice_seed, sampling_params
from cloister.gateway.schema import CHAT


class TopLogprob(msgspec.Struct):
    token: str
    bytes: list[int]
    logprob: float


class ChatTokenLogprob(msgspec.Struct):
    token: str
    bytes: list[int]
    logprob: float
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

    def _logprobs(self, scores: list[ScoredToken] | None) -> ChatLogprobs | None:
        if scores is None:
            return None
        return ChatLogprobs(
            [
                ChatTokenLogprob(
                    self.label(scored.token),
                    list(self.tokenizer.token_bytes(scored.token)),
                    finite(scored.logprob or 0.0),
                    [
                        TopLogprob(self.label(token), list(self.tokenizer.token_bytes(token)), finite(logprob))
                        for token, logprob in scored.top
                    ],
                )
                for scored in scores
            ]
        )


# An answer without a limit of its own may take the rest of the context, but not hold blocks for ever.
DEFAULT_TOKENS = 1024

router = APIRouter()


@router.post("/v1/chat/completions", **generation_docs("ChatRequest", "ChatCompletion"))
async def chat_completions(request: Request, asked: AskedBy) -> Response:
    """Continue a conversation."""
    api = api_of(request)
    body, terms = await api.read(request, CHAT, asked)
    [prompt] = terms.prompts
    job = await api.job(prompt, terms)
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    max_tokens = api.answer_tokens(job, limit, DEFAULT_TOKENS)
    orders = [
        Order(
            job,
            sampling_params(
                body,
                max_tokens=max_tokens,
                logprobs=(body.top_logprobs or 0) if body.logprobs else None,
                vocabulary=api.backend.ready.vocabulary,
                stop_tokens=api.tokenizer.stop_tokens,
                seed=choice_seed(body.seed, choice),
            ),
        )
        for choice in range(body.n or 1)
    ]
    reply = ChatReply(api.model, int(time.time()), api.tokenizer, include_usage=body.include_usage)
    return api.answer(terms, body, orders, reply)
