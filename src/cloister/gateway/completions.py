"""POST /v1/completions: plain text or token ids in, text out; with echo, also the scoring of given text."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from starlette.responses import Response

from cloister.backend.base import OpenJob
from cloister.errors import InvalidRequest
from cloister.gateway.choice import Echo
from cloister.gateway.completion_reply import CompletionReply
from cloister.gateway.front import AskedBy, front_of
from cloister.gateway.generation import Order
from cloister.gateway.limits import MAX_CHOICES
from cloister.gateway.openapi import generation_docs
from cloister.gateway.sampling import choice_seed, sampling_params
from cloister.gateway.schema import COMPLETION
from cloister.gateway.text import Tokenizer
from cloister.messages.prompts import Prompt, SealedPrompt, TextPrompt
from cloister.prompts.confidential import parse_confidential

# OpenAI's own default.
DEFAULT_TOKENS = 16

router = APIRouter()


@router.post("/v1/completions", **generation_docs("CompletionRequest", "Completion"))
async def completions(request: Request, asked: AskedBy) -> Response:
    """Continue one or several prompts."""
    front = front_of(request)
    body, terms = await front.read(request, COMPLETION, asked)
    each = body.n or 1
    if each * len(terms.prompts) > MAX_CHOICES:
        raise InvalidRequest(f"n times the number of prompts may be at most {MAX_CHOICES}.", param="n")
    orders: list[Order] = []
    for number, prompt in enumerate(terms.prompts):
        job = await front.job(prompt, terms)
        max_tokens = front.answer_tokens(job, body.max_tokens, DEFAULT_TOKENS)
        echo = _echo(prompt, job, front.tokenizer) if body.echo and isinstance(job, OpenJob) else None
        for choice in range(each):
            params = sampling_params(
                body,
                max_tokens=max_tokens,
                logprobs=body.logprobs,
                prompt_logprobs=body.logprobs if echo else None,
                vocabulary=front.backend.ready.vocabulary,
                stop_tokens=front.tokenizer.stop_tokens,
                seed=choice_seed(body.seed, choice),
            )
            orders.append(Order(job, params, number, echo))
    reply = CompletionReply(front.model, int(time.time()), front.tokenizer, include_usage=body.include_usage)
    return front.answer(terms, body, orders, reply)


def _echo(prompt: Prompt | SealedPrompt, job: OpenJob, tokenizer: Tokenizer) -> Echo:
    """The prompt as it was read: without its tags, or as the text of its tokens."""
    if isinstance(prompt, TextPrompt):
        return Echo(parse_confidential(prompt.text, param="prompt").text, job.prompt)
    return Echo(tokenizer.decode(job.prompt), job.prompt)
