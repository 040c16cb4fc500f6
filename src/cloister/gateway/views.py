"""GET /v1/requests/{id}/view: what the provider's process has received of one's own request, by its own account."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec
from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from cloister.errors import ServiceUnavailable
from cloister.gateway.api import AskedBy, api_of
from cloister.gateway.openapi import replies
from cloister.gateway.text import Tokenizer
from cloister.messages.service import View

_VIEW_S = 5.0


class SeenTokens(msgspec.Struct):
    """Tokens the provider's process holds, and what they spell."""

    tokens: tuple[int, ...]
    text: str


class ChoiceView(msgspec.Struct):
    """What the provider's process has of one choice. `known` is false where it has nothing (or nothing any more).

    Rows are one query, or one contribution, of one layer. The contributions themselves are not told to anybody.
    """

    index: int
    known: bool
    prompt: SeenTokens
    output: SeenTokens
    asked_rows: int
    asked_bytes: int
    answered_rows: int
    answered_bytes: int
    layers: int


class RequestView(msgspec.Struct):
    id: str
    protection: str
    running: bool
    choices: list[ChoiceView]
    object: Literal["request.view"] = "request.view"


router = APIRouter()


@router.get("/v1/requests/{request_id}/view", **replies("RequestView", 401, 404, 503))
async def view_request(request: Request, request_id: str, asked: AskedBy) -> Response:
    """What the provider sees of a request of the caller's own, while it runs and for a short while after."""
    api = api_of(request)
    answer = api.watched.find(request_id, asked.caller.tenant)
    if answer is None:
        raise HTTPException(404)
    try:
        async with asyncio.timeout(_VIEW_S):
            choices = [
                _choice(index, await api.backend.view(number), api.tokenizer)
                for index, number in sorted(answer.requests.items())
            ]
    except TimeoutError:
        raise ServiceUnavailable("The service does not answer.") from None
    body = msgspec.json.encode(RequestView(request_id, answer.level, answer.ended is None, choices))
    return Response(body, headers={"Cache-Control": "no-store"}, media_type="application/json")


def _choice(index: int, view: View, tokenizer: Tokenizer) -> ChoiceView:
    return ChoiceView(
        index,
        view.known,
        SeenTokens(view.prompt, tokenizer.decode(view.prompt)),
        SeenTokens(view.output, tokenizer.decode(view.output)),
        view.asked_rows,
        view.asked_bytes,
        view.answered_rows,
        view.answered_bytes,
        view.layers,
    )
