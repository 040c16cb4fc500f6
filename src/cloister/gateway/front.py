"""What every endpoint has at hand, and who is asking. The one object behind a running gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import ValidationError

from cloister.config import GatewaySettings
from cloister.errors import ModelNotFound
from cloister.gateway.answer import Answer, StreamedAnswer
from cloister.gateway.choice import Choice, Job
from cloister.gateway.errors import invalid_from
from cloister.gateway.generation import Generation
from cloister.gateway.keys import KeyRing
from cloister.gateway.limits import read_body
from cloister.gateway.metrics import Metrics
from cloister.gateway.prompts import PromptReader
from cloister.gateway.protection import HEADER, choose_level
from cloister.gateway.reply import Reply
from cloister.gateway.schema import GenerationRequest
from cloister.gateway.stops import StopStrings
from cloister.gateway.text import Tokenizer
from cloister.service.base import Backend

Body = TypeVar("Body", bound=GenerationRequest)
bearer = HTTPBearer(auto_error=False, description="An API key of this server.")


@dataclass(frozen=True)
class Front:
    """The parts of one gateway."""

    backend: Backend
    tokenizer: Tokenizer
    prompts: PromptReader
    model: str
    created: int
    settings: GatewaySettings
    keys: KeyRing
    metrics: Metrics

    async def read(self, request: Request, kind: type[Body], asked: Asked) -> Body:
        """The request's body, checked: for the model this server has and a level of protection it offers."""
        raw = await read_body(request, self.settings)
        try:
            body = kind.model_validate_json(raw)
        except ValidationError as wrong:
            raise invalid_from(wrong) from None
        if body.model != self.model:
            raise ModelNotFound("The model asked for is not served here.", hint=f"This server has {self.model!r}.")
        choose_level(body.protection, asked.protection)
        return body

    def answer(
        self, asked: Asked, body: GenerationRequest, jobs: Sequence[Job], prompt_tokens: int, reply: Reply
    ) -> Answer:
        """The response that will generate the jobs' choices and send them as the body wishes."""
        stops = StopStrings(body.stop_strings)
        choices = [Choice(job, self.tokenizer, stops) for job in jobs]
        generation = Generation(self.backend, asked.tenant, choices, prompt_tokens, self.metrics)
        level = choose_level(body.protection, asked.protection)
        if body.stream:
            return StreamedAnswer(generation, reply, asked.deadline, level, include_usage=body.include_usage)
        return Answer(generation, reply, asked.deadline, level)


@dataclass(frozen=True, slots=True)
class Asked:
    """Who asks, until when, and under which protection (as the header says)."""

    tenant: str
    deadline: float
    protection: str | None


def front_of(request: Request) -> Front:
    front = request.app.state.front
    assert isinstance(front, Front)
    return front


def tenant_of(request: Request, credentials: HTTPAuthorizationCredentials | None) -> str:
    """The tenant whose key came with the request; Unauthorized otherwise."""
    return front_of(request).keys.tenant(credentials.credentials if credentials else None)


async def _asked(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)]
) -> Asked:
    timeout = front_of(request).settings.request_timeout_s
    deadline = asyncio.get_running_loop().time() + timeout
    return Asked(tenant_of(request, credentials), deadline, request.headers.get(HEADER))


AskedBy = Annotated[Asked, Depends(_asked)]
