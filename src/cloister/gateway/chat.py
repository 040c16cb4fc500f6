"""POST /v1/chat/completions."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from starlette.responses import Response

from cloister.gateway.chat_reply import ChatReply
from cloister.gateway.front import AskedBy, front_of
from cloister.gateway.generation import Order
from cloister.gateway.openapi import generation_docs
from cloister.gateway.sampling import choice_seed, sampling_params
from cloister.gateway.schema import CHAT

# An answer without a limit of its own may take the rest of the context, but not hold blocks for ever.
DEFAULT_TOKENS = 1024

router = APIRouter()


@router.post("/v1/chat/completions", **generation_docs("ChatRequest", "ChatCompletion"))
async def chat_completions(request: Request, asked: AskedBy) -> Response:
    """Continue a conversation."""
    front = front_of(request)
    body, terms = await front.read(request, CHAT, asked)
    [prompt] = terms.prompts
    job = await front.job(prompt, terms)
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    max_tokens = front.answer_tokens(job, limit, DEFAULT_TOKENS)
    orders = [
        Order(
            job,
            sampling_params(
                body,
                max_tokens=max_tokens,
                logprobs=(body.top_logprobs or 0) if body.logprobs else None,
                vocabulary=front.backend.ready.vocabulary,
                stop_tokens=front.tokenizer.stop_tokens,
                seed=choice_seed(body.seed, choice),
            ),
        )
        for choice in range(body.n or 1)
    ]
    reply = ChatReply(front.model, int(time.time()), front.tokenizer, include_usage=body.include_usage)
    return front.answer(terms, body, orders, reply)
