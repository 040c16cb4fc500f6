"""Listens in the gateway's place until the weights' key comes: takes it to the controller, and cannot open it."""

import asyncio
import itertools
import signal
import socket
from collections.abc import Callable

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from cloister.certificate import ServerTls
from cloister.channel.envelope import CONTENT_TYPE
from cloister.config import GatewaySettings
from cloister.errors import CloisterError, ServiceUnavailable, WaitingForKey
from cloister.gateway.errors import handle_cloister_error
from cloister.gateway.guard import read_body
from cloister.gateway.sealed import evidence_response, read_question
from cloister.gateway.server import serve as serve_http
from cloister.messages.controller_gateway import AskEvidence, Evidence, Listening
from cloister.messages.controller_key_waiting import MAX_MESSAGE_BYTES, KeyTaken, OfferKey, ToKeyWaiting
from cloister.messages.controller_key_waiting import StartKeyWaiting as Start
from cloister.messages.generation import Failed
from cloister.messages.lifecycle import raised, start_failed
from cloister.process.endpoint import Endpoint
from cloister.process.hardening import begin_child
from cloister.process.sandbox.confinement import confine_or_refuse

ANSWER_S = 60.0


class KeyClient:
    def __init__(self, controller: socket.socket) -> None:
        self.opened: asyncio.Future[Start] = asyncio.get_running_loop().create_future()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Evidence | KeyTaken]] = {}
        # Without its controller this process has no use.
        self._endpoint = Endpoint(controller, ToKeyWaiting, self._handle, lambda: signal.raise_signal(signal.SIGTERM))
        self.send = self._endpoint.send

    async def ask(self, question: Callable[[int], msgspec.Struct]) -> Evidence | KeyTaken:
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

    def _handle(self, message: Start | Evidence | KeyTaken | Failed) -> None:
        if isinstance(message, Start):
            self.opened.set_result(message)
        elif (answer := self._waiting.get(message.request_id)) is None or answer.done():
            return
        elif isinstance(message, Failed):
            answer.set_exception(raised(message))
        else:
            answer.set_result(message)


def create_key_waiting(client: KeyClient, settings: GatewaySettings) -> FastAPI:
    async def evidence(request: Request) -> Response:
        asked = await read_question(request, settings, MAX_MESSAGE_BYTES)
        answer = await client.ask(lambda number: AskEvidence(number, asked.nonce_bytes, asked.since))
        assert isinstance(answer, Evidence)
        return evidence_response(answer.document)

    async def take_key(request: Request) -> Response:
        message = await read_body(request, settings, CONTENT_TYPE, MAX_MESSAGE_BYTES)
        answer = await client.ask(lambda number: OfferKey(number, message))
        assert isinstance(answer, KeyTaken)
        return Response(answer.answer, media_type=CONTENT_TYPE)

    async def not_yet(request: Request) -> Response:
        hint = "Its provider releases it: `cloister weights release`."
        raise WaitingForKey("This server waits for the key of its weights.", hint=hint)

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.add_exception_handler(CloisterError, handle_cloister_error)
    app.add_route("/v1/evidence", evidence, methods=["POST"])
    app.add_route("/v1/weights/key", take_key, methods=["POST"])
    app.add_route("/{path:path}", not_yet, methods=["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
    return app


async def serve(controller: socket.socket) -> None:
    client = KeyClient(controller)
    start = await client.opened
    settings = GatewaySettings.model_validate_json(start.settings)
    tls = ServerTls() if start.certificate else None
    if tls and start.certificate:
        tls.show(start.certificate)

    def listens(url: str) -> None:
        confine_or_refuse("process that waits for the key", allow_degraded=start.allow_degraded)
        client.send(Listening(url))

    try:
        await serve_http(create_key_waiting(client, settings), settings, listens, tls)
    except CloisterError as reason:
        client.send(start_failed(reason, "The server cannot wait for its key"))


ROLE = "key-waiting"


def main(control: socket.socket) -> None:
    asyncio.run(serve(control))


if __name__ == "__main__":
    main(begin_child(ROLE))
