"""What operators ask: /health and /metrics."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Request, Security
from fastapi.security import HTTPAuthorizationCredentials
from starlette.responses import Response

from cloister.errors import CloisterError, ServiceUnavailable
from cloister.gateway.api import Api, api_of, bearer, caller_of
from cloister.gateway.keys import is_loopback
from cloister.gateway.openapi import errors, replies
from cloister.messages.generation import Stats

_STATS_S = 5.0
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Health(msgspec.Struct):
    status: Literal["ok"] = "ok"


router = APIRouter()


@router.get("/health", **replies("Health", 503))
async def health(request: Request) -> Response:
    """Whether a request would be served now; needs no key."""
    stats = await _stats(api_of(request))
    if stats is None or not stats.up:
        raise ServiceUnavailable("The service does not answer.")
    return Response(msgspec.json.encode(Health()), media_type="application/json")


@router.get("/metrics", responses={200: {"description": "OK", "content": {"text/plain": {}}}, **errors(401)})
async def metrics(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)]
) -> Response:
    """Totals for Prometheus; from another machine only with a key."""
    if request.client is None or not is_loopback(request.client.host):
        caller_of(request, credentials)
    api = api_of(request)
    return Response(api.metrics.exposition(await _stats(api)), media_type=_TEXT)


async def _stats(api: Api) -> Stats | None:
    """The service's totals; None when it is away, or so busy that it seems so."""
    try:
        async with asyncio.timeout(_STATS_S):
            return await api.backend.stats()
    except (CloisterError, TimeoutError):
        return None
