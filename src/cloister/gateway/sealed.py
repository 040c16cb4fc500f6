"""POST /v1/sealed and POST /v1/evidence: the secure channel as it passes the HTTP edge, as bytes of some length."""

import asyncio
from contextlib import suppress
from typing import Annotated

import msgspec
from fastapi import APIRouter, Request
from msgspec import Meta, Struct
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cloister.backend.base import Carrier, SealedAnswer
from cloister.channel.envelope import CONTENT_TYPE
from cloister.config import GatewaySettings
from cloister.errors import CloisterError, InvalidRequest, RequestTimeout, ServiceUnavailable
from cloister.gateway.api import api_of
from cloister.gateway.errors import error_response
from cloister.gateway.guard import read_body
from cloister.gateway.openapi import errors
from cloister.messages.controller_gateway import MAX_SEALED_BYTES

PATH = "/v1/sealed"
EVIDENCE_S = 20.0
GRACE_S = 5.0  # the sealed API keeps the deadline of the settings; this process waits a little longer for the end

_BYTES = {CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}}}
_NONCE = {"type": "string", "pattern": "^[0-9a-fA-F]{64}$"}
_SINCE = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_QUESTION = {"type": "object", "properties": {"nonce": _NONCE, "since": _SINCE}, "required": ["nonce"]}
_DOCUMENT = {"application/json": {"schema": {"type": "object"}}}


class EvidenceRequest(Struct, frozen=True):
    nonce: Annotated[str, Meta(pattern=r"\A[0-9a-fA-F]{64}\Z")]
    since: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0

    @property
    def nonce_bytes(self) -> bytes:
        return bytes.fromhex(self.nonce)


router = APIRouter()


async def read_question(request: Request, settings: GatewaySettings, limit: int | None = None) -> EvidenceRequest:
    try:
        return msgspec.json.decode(await read_body(request, settings, limit=limit), type=EvidenceRequest)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        message = 'The body must be {"nonce": "<64 hex digits>", "since": <size of the log last seen, or 0>}.'
        raise InvalidRequest(message, param="nonce") from None


def evidence_response(document: bytes) -> Response:
    return Response(document, headers={"Cache-Control": "no-store"}, media_type="application/json")


@router.post(
    "/v1/evidence",
    responses={200: {"description": "OK", "content": _DOCUMENT}, **errors(400, 408, 413, 415, 429, 500, 503)},
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _QUESTION}}}},
)
async def evidence(request: Request) -> Response:
    """This node's evidence over the caller's 32 random bytes; needs no key."""
    asked = await read_question(request, api_of(request).settings)
    try:
        async with asyncio.timeout(EVIDENCE_S):
            document = await carrier_of(request).evidence(asked.nonce_bytes, asked.since)
    except TimeoutError:
        raise ServiceUnavailable("The machine does not give its evidence in time.") from None
    return evidence_response(document)


@router.post(
    PATH,
    responses={200: {"description": "OK", "content": _BYTES}, **errors(400, 408, 409, 413, 415, 429, 500, 503, 504)},
    openapi_extra={"requestBody": {"required": True, "content": _BYTES}},
)
async def sealed(request: Request) -> Response:
    """A request of this API, sealed to this node's channel key; the answer is sealed, too."""
    settings = api_of(request).settings
    deadline = asyncio.get_running_loop().time() + settings.request_timeout_s + GRACE_S
    # Padding at most doubles a body; the rest is room for the overhead of many small prompts.
    limit = min(2 * settings.max_body_bytes + (1 << 18), MAX_SEALED_BYTES)
    envelope = await read_body(request, settings, CONTENT_TYPE, limit)
    return PassedOn(carrier_of(request).carry(envelope), deadline)


class PassedOn(Response):
    """Passes sealed bytes on. An answer that breaks off lacks its last chunk, and its authenticated end."""

    media_type = CONTENT_TYPE

    def __init__(self, answer: SealedAnswer, deadline: float) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._answer = answer
        self._deadline = deadline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = asyncio.create_task(self._watch(receive))
        begun = False
        try:
            async with asyncio.timeout_at(self._deadline):
                ended = False
                while not ended:
                    data, ended = await self._answer.next()
                    if not begun:
                        begun = True
                        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    await send({"type": "http.response.body", "body": data, "more_body": not ended})
                    self._answer.taken(len(data))
        except TimeoutError:
            if not begun:
                raise RequestTimeout("The request ran longer than this server allows.") from None
        except CloisterError:
            if not begun and not watcher.done():  # else the client has gone
                raise
        finally:
            self._answer.leave()
            watcher.cancel()
            with suppress(asyncio.CancelledError):
                await watcher

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._answer.leave()


async def answer_sealed(scope: Scope, receive: Receive, send: Send) -> None:
    try:
        await (await sealed(Request(scope, receive, send)))(scope, receive, send)
    except CloisterError as refusal:
        await error_response(refusal)(scope, receive, send)


def carrier_of(request: Request) -> Carrier:
    carrier = request.app.state.carrier
    assert isinstance(carrier, Carrier)
    return carrier
