"""POST /v1/completions: plain text or token ids in, text out; with echo, also the scoring of given text."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from starlette.responses import Response

from cloister.errors import InvalidRequest
from cloister.gateway.choice import Job
from cloister.gateway.completion_reply import CompletionReply
from cloister.gateway.front import AskedBy, front_of
from cloister.gateway.limits import MAX_CHOICES, answer_tokens
from cloister.gateway.openapi import generation_docs
from cloister.gateway.sampling import choice_seed, sampling_params
from cloister.gateway.schema import CompletionRequest

# OpenAI's own default.
DEFAULT_TOKENS = 16

router = APIRouter()


@router.post("/v1/completions", **generation_docs("CompletionRequest", "Completion"))
async def completions(request: Request, asked: AskedBy) -> Response:
    """Continue one or several prompts."""
    front = front_of(request)
    body = await front.read(request, CompletionRequest, asked)
    each = body.n or 1
    if each * len(body.prompt) > MAX_CHOICES:
        raise InvalidRequest(f"n times the number of prompts may be at most {MAX_CHOICES}.", param="n")
    ready = front.backend.ready
    jobs: list[Job] = []
    prompt_tokens = 0
    for given in body.prompt:
        prompt = await front.prompts.plain(given)
        prompt_tokens += len(prompt)
        echo = None
        if body.echo:
            echo = given if isinstance(given, str) else front.tokenizer.decode(prompt)
        for choice in range(each):
            params = sampling_params(
                body,
                max_tokens=answer_tokens(len(prompt), body.max_tokens, DEFAULT_TOKENS, ready.max_context),
                logprobs=body.logprobs,
                prompt_logprobs=body.logprobs if body.echo else None,
                vocabulary=ready.vocabulary,
                stop_tokens=front.tokenizer.stop_tokens,
                seed=choice_seed(body.seed, choice),
            )
            jobs.append(Job(len(jobs), prompt, params, echo))
    reply = CompletionReply(front.model, int(time.time()), front.tokenizer, include_usage=body.include_usage)
    return front.answer(asked, body, jobs, prompt_tokens, reply)
