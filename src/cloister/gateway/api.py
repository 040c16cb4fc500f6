"""What every endpoint has at hand, and who is asking. The one object behind a running gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeVar, cast

import msgspec
from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import ValidationError
from starlette.responses import Response

from cloister.backend.base import Backend, OpenJob, VaultJob
from cloister.config import GatewaySettings
from cloister.errors import ModelNotFound
from cloister.gateway.answer import Answer, Reply, StreamedAnswer
from cloister.gateway.choice import Choice, Echo, StopStrings
from cloister.gateway.generation import Generation, Order, WatchedAnswer, WatchedAnswers
from cloister.gateway.guard import read_body
from cloister.gateway.jobs import PromptReader, answer_tokens, choice_seed, for_vault, sampling_params
from cloister.gateway.keys import Caller, KeyRing
from cloister.gateway.metrics import Metrics
from cloister.gateway.schema import Forms, GenerationRequest, prompts_of, sealed_request_of
from cloister.gateway.terms import LEVEL_HEADER, SESSION_HEADER, Levels, Session, choose_session
from cloister.levels import LEVELS, ConfidedLevel, Level
from cloister.messages.prompts import Prompt, SealedPrompt
from cloister.prompts.json_prompt import invalid_from
from cloister.prompts.tokenizer import Tokenizer

Body = TypeVar("Body", bound=GenerationRequest)
bearer = HTTPBearer(auto_error=False, description="An API key of this server.")


@dataclass(frozen=True, slots=True)
class Asked:
    """Who asks, until when, and what the headers say of protection and session."""

    caller: Caller
    deadline: float
    protection: str | None
    session: str | None


@dataclass(frozen=True, slots=True)
class Terms:
    """For whom, at which level and in which session which prompts are served."""

    caller: Caller
    deadline: float
    level: Level
    session: Session
    prompts: Sequence[Prompt | SealedPrompt] = field(repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """What an answer says of the terms it was made under."""
        named = {SESSION_HEADER: self.session.name} if self.session.keep else {}
        return {LEVEL_HEADER: self.level.name, **named}


@dataclass(frozen=True)
class Api:
    """The parts of one gateway."""

    backend: Backend
    tokenizer: Tokenizer
    prompts: PromptReader
    model: str
    created: int
    settings: GatewaySettings
    keys: KeyRing
    levels: Levels
    watched: WatchedAnswers
    metrics: Metrics

    async def read(self, request: Request, forms: Forms[Body], asked: Asked) -> tuple[Body, Terms]:
        """The request's body, checked, and its terms: a level this server offers and can do all of this at."""
        raw = await read_body(request, self.settings)
        sealed = sealed_request_of(request)
        kind = forms.sealed if sealed is not None and sealed.counts_prompts(raw, forms.field) else forms.plain
        try:
            body = kind.model_validate_json(raw)
        except ValidationError as wrong:
            raise invalid_from(wrong) from None
        if body.model != self.model:
            raise ModelNotFound("The model asked for is not served here.", hint=f"This server has {self.model!r}.")
        level = self.levels.choose(body.protection, asked.protection)
        level.refuse(body.wished, logits=body.mpc_reveal == "logits")
        prompts = prompts_of(body.prompts, forms.field, level, sealed)
        session = choose_session(body.session, asked.session)
        return body, Terms(asked.caller, asked.deadline, level, session, prompts)

    async def job(self, prompt: Prompt | SealedPrompt, terms: Terms) -> OpenJob | VaultJob:
        """The prompt as the backend wants it: read here where the level has this process read it, unread otherwise."""
        if not terms.level.confides and not isinstance(prompt, SealedPrompt):
            read = await self.prompts.read(prompt)
            return OpenJob(read.tokens, read.public)
        level = cast(ConfidedLevel, terms.level.name)
        unread = prompt if isinstance(prompt, SealedPrompt) else for_vault(prompt)
        return VaultJob(level, terms.session.name, terms.session.keep, unread, terms.caller.trust_group)

    def answer_tokens(self, job: OpenJob | VaultJob, asked: int | None, default: int) -> int:
        """How many tokens the answer to this job may have, as far as that is known here."""
        prompt_tokens = len(job.prompt) if isinstance(job, OpenJob) else None
        if isinstance(job, VaultJob) and (short := LEVELS[job.level].default_tokens) is not None:
            default = min(default, short)
        return answer_tokens(prompt_tokens, asked, default, self.backend.ready.max_context)

    def orders(
        self,
        body: GenerationRequest,
        job: OpenJob | VaultJob,
        max_tokens: int,
        logprobs: int | None,
        prompt: int = 0,
        echo: Echo | None = None,
    ) -> list[Order]:
        """One order for each choice the body asks for; they differ in their seeds alone."""
        params = sampling_params(
            body,
            max_tokens=max_tokens,
            logprobs=logprobs,
            prompt_logprobs=logprobs if echo else None,
            vocabulary=self.backend.ready.vocabulary,
            stop_tokens=self.tokenizer.stop_tokens,
        )
        seeds = [choice_seed(body.seed, choice) for choice in range(body.n or 1)]
        return [Order(job, msgspec.structs.replace(params, seed=seed), prompt, echo) for seed in seeds]

    def answer(self, terms: Terms, body: GenerationRequest, orders: Sequence[Order], reply: Reply) -> Answer:
        """The response that will generate what was ordered and send it as the body wishes."""
        stops = StopStrings(body.stop_strings)
        choices = [
            Choice(index, order.params, self.tokenizer, stops, prompt=order.prompt, echo=order.echo)
            for index, order in enumerate(orders)
        ]
        watched = WatchedAnswer(reply.id, terms.caller.tenant, terms.level.name)
        jobs = [order.job for order in orders]
        generation = Generation(self.backend, watched, choices, jobs, self.watched, self.metrics)
        kind = StreamedAnswer if body.stream else Answer
        return kind(generation, reply, terms.deadline, terms.headers)


def json_response(value: msgspec.Struct, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), headers=headers, media_type="application/json")


def api_of(request: Request) -> Api:
    api = request.app.state.api
    assert isinstance(api, Api)
    return api


def caller_of(request: Request, credentials: HTTPAuthorizationCredentials | None) -> Caller:
    """Whose key came with the request; Unauthorized otherwise."""
    return api_of(request).keys.caller(credentials.credentials if credentials else None)


async def _asked(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)]
) -> Asked:
    timeout = api_of(request).settings.request_timeout_s
    deadline = asyncio.get_running_loop().time() + timeout
    headers = request.headers
    return Asked(caller_of(request, credentials), deadline, headers.get(LEVEL_HEADER), headers.get(SESSION_HEADER))


AskedBy = Annotated[Asked, Depends(_asked)]
