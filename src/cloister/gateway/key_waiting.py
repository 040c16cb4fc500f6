"""Key waiting: `python -m cloister.gateway.key_waiting FD` listens in the gateway's place until the weights' key comes.

It shows the node's evidence and takes the provider's sealed key to the controller; it cannot open it, and says to all
others that there is nothing to be served yet.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
from collections.abc import Callable
from typing import Annotated

import msgspec
from fastapi import FastAPI
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from cloister.channel.envelope import CONTENT_TYPE
from cloister.config import GatewaySettings
from cloister.errors import CloisterError, InvalidRequest, ServiceUnavailable, WaitingForKey
from cloister.gateway.errors import BodyTooLarge, handle_cloister_error
from cloister.gateway.server import serve as serve_http
from cloister.messages.controller_gateway import AskEvidence, Evidence, Listening
from cloister.messages.controller_key_waiting import (
    MAX_MESSAGE_BYTES,
    KeyTaken,
    OfferKey,
    StartKeyWaiting,
    ToKeyWaiting,
)
from cloister.messages.generation import Failed
from cloister.messages.lifecycle import raised, start_failed
from cloister.process.endpoint import Endpoint
from cloister.process.hardening import begin_child
from cloister.process.sandbox.confinement import confine_or_refuse

BODY_S = 10.0
ANSWER_S = 60.0


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client asks evidence with."""

    nonce: Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{64}\Z")]
    since: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0


class KeyClient:
    """The key-waiting process's end of the socket to the controller: questions in, answers out."""

    def __init__(self, controller: socket.socket) -> None:
        self.opened: asyncio.Future[StartKeyWaiting] = asyncio.get_running_loop().create_future()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Evidence | KeyTaken]] = {}
        # Without its controller a key-waiting process leads nowhere.
        self._endpoint = Endpoint(controller, ToKeyWaiting, self._hear, lambda: signal.raise_signal(signal.SIGTERM))
        self.send = self._endpoint.send

    async def ask(self, question: Callable[[int], msgspec.Struct]) -> Evidence | KeyTaken:
        """What the controller answers; the error it answers with is raised."""
        number = next(self._numbers)
        answer: asyncio.Future[Evidence | KeyTaken] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self.send(question(number))
            async with asyncio.timeout(ANSWER_S):
                return await answer
        except TimeoutError:
            raise ServiceUnavailable("The server did not answer in time.") from None
        finally:
            del self._waiting[number]

    def _hear(self, message: StartKeyWaiting | Evidence | KeyTaken | Failed) -> None:
        if isinstance(message, StartKeyWaiting):
            self.opened.set_result(message)
        elif (answer := self._waiting.get(message.request_id)) is None or answer.done():
            return
        elif isinstance(message, Failed):
            answer.set_exception(raised(message))
        else:
            answer.set_result(message)


def create_key_waiting(client: KeyClient) -> FastAPI:
    """What is answered while the key is awaited."""

    async def evidence(request: Request) -> Response:
        try:
            asked = msgspec.json.decode(await _body(request), type=Question)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise InvalidRequest("The body must be a nonce of 32 bytes in hex, and `since`.", param="nonce") from None
        answer = await client.ask(lambda number: AskEvidence(number, bytes.fromhex(asked.nonce), asked.since))
        assert isinstance(answer, Evidence)
        return Response(answer.document, headers={"Cache-Control": "no-store"}, media_type="application/json")

    async def take_key(request: Request) -> Response:
        message = await _body(request)
        answer = await client.ask(lambda number: OfferKey(number, message))
        assert isinstance(answer, KeyTaken)
        return Response(answer.answer, media_type=CONTENT_TYPE)

    async def not_yet(request: Request) -> Response:
        raise WaitingForKey(
            "This server waits for the key of its weights.",
            hint="Its provider releases it: `cloister weights release`.",
        )

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.add_exception_handler(CloisterError, handle_cloister_error)
    app.add_route("/v1/evidence", evidence, methods=["POST"])
    app.add_route("/v1/weights/key", take_key, methods=["POST"])
    app.add_route("/{path:path}", not_yet, methods=["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
    return app


async def _body(request: Request) -> bytes:
    body = b""
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_MESSAGE_BYTES:
                    raise BodyTooLarge(f"The request's body exceeds the limit of {MAX_MESSAGE_BYTES} bytes.")
    except TimeoutError:
        raise InvalidRequest(f"The request's body did not arrive within {BODY_S:g} s.") from None
    return body


async def serve(controller: socket.socket) -> None:
    """Serve until SIGTERM, or until the controller hangs up."""
    client = KeyClient(controller)
    start = await client.opened
    settings = GatewaySettings.model_validate_json(start.settings)

    def listens(url: str) -> None:
        confine_or_refuse("process that waits for the key", allow_degraded=start.allow_degraded)
        client.send(Listening(url))

    try:
        await serve_http(create_key_waiting(client), settings, listens)
    except CloisterError as reason:
        client.send(start_failed(reason, "The server cannot wait for its key"))


ROLE = "key-waiting"


def main(control: socket.socket) -> None:
    asyncio.run(serve(control))


if __name__ == "__main__":
    main(begin_child(ROLE))
