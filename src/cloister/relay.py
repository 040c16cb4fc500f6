"""An oblivious relay (RFC 9458 §6.2): it sees addresses and ciphertext. It holds no key, logs nothing, and passes no
header on that could tell users apart. Bodies stream both ways; all users share the connections to a node."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from time import monotonic

import httpx2
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cloister.addresses import HttpAddress
from cloister.channel import ohttp
from cloister.channel.ohttp.keys import MAX_DOCUMENT_BYTES, read_keys
from cloister.config import GatewaySettings
from cloister.errors import CloisterError, InvalidRequest, RequestTimeout, ServiceUnavailable, SetupError
from cloister.gateway.errors import BodyTimeout, BodyTooLarge, WrongMedia, error_response
from cloister.gateway.server import serve

MOST_BYTES = 16 << 20  # of one encapsulated request
REFUSAL_BYTES = 64 * 1024
BODY_S = 60.0  # in which a request's body has to come
ANSWER_S = 660.0  # between two pieces of an answer: a node may think as long as its own deadline
KEYS_S = 5.0  # all users get the same key configurations, asked for once in this time
TYPES = {ohttp.REQUEST_TYPE: ohttp.RESPONSE_TYPE, ohttp.CHUNKED_REQUEST_TYPE: ohttp.CHUNKED_RESPONSE_TYPE}
_IDLE_S = 2.0  # less than nodes keep connections open
_ERRORS = (ohttp.PROBLEM_TYPE, "application/json")
_NO_STORE = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class _Node:
    """Where one resource leads to. Its connections serve all users in turn."""

    def __init__(self, address: HttpAddress) -> None:
        self._url = address.url(ohttp.GATEWAY_PATH)
        self._wire = httpx2.AsyncHTTPTransport(limits=httpx2.Limits(keepalive_expiry=_IDLE_S))
        self._keys, self._until = b"", 0.0
        self._asking = asyncio.Lock()

    async def keys(self) -> bytes:
        async with self._asking:
            if monotonic() >= self._until:
                answer = await self.send("GET", {"Accept": ohttp.KEYS_TYPE}, None)
                try:
                    document = await _bounded(answer, MAX_DOCUMENT_BYTES)
                finally:
                    await answer.aclose()
                if answer.status_code != 200:
                    raise ServiceUnavailable("The node shows no key configurations.")
                read_keys(document)
                self._keys, self._until = document, monotonic() + KEYS_S
            return self._keys

    async def send(self, method: str, headers: dict[str, str], body: AsyncIterator[bytes] | None) -> httpx2.Response:
        timeout = httpx2.Timeout(ANSWER_S, connect=5.0, write=BODY_S, pool=5.0).as_dict()
        request = httpx2.Request(method, self._url, headers=headers, content=body, extensions={"timeout": timeout})
        return await self._wire.handle_async_request(request)

    async def aclose(self) -> None:
        await self._wire.aclose()


class ObliviousRelay:
    """The ASGI application. Only the nodes that its operator named are reached."""

    def __init__(self, nodes: Sequence[HttpAddress]) -> None:
        self._addresses = {node.resource: node for node in nodes}
        self._nodes: dict[str, _Node] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        request = Request(scope, receive, send)
        try:
            await self._pass_on(request, send)
        except CloisterError as refusal:
            await error_response(refusal)(scope, receive, send)
        except TimeoutError:
            await error_response(RequestTimeout("The node did not answer in time."))(scope, receive, send)
        except httpx2.RequestError:
            await error_response(ServiceUnavailable("The node does not answer."))(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        self._nodes = {path: _Node(address) for path, address in self._addresses.items()}
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for node in self._nodes.values():
            await node.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _pass_on(self, request: Request, send: Send) -> None:
        node = self._nodes.get(request.scope["path"])
        if node is None:
            raise InvalidRequest("This relay passes nothing on to there.")
        if request.method == "GET":
            answer = Response(await node.keys(), headers=_NO_STORE, media_type=ohttp.KEYS_TYPE)
            await answer(request.scope, request.receive, send)
            return
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if request.method != "POST" or kind not in TYPES:
            raise WrongMedia(f"A relay takes POST of {' or '.join(TYPES)}.")
        length = request.headers.get("content-length", "")
        if length and int(length) > MOST_BYTES:
            raise _too_large()
        headers = {"Content-Type": kind, "Accept": TYPES[kind]}  # and no other of the user's
        headers |= dict((ohttp.INCREMENTAL,)) if kind == ohttp.CHUNKED_REQUEST_TYPE else {}
        headers |= {"Content-Length": length} if length else {}
        body = _Body(request)
        work = asyncio.create_task(self._exchange(node, headers, body, kind, send))
        gone = asyncio.create_task(body.gone())
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
        finally:
            for task in (work, gone):
                task.cancel()
                with suppress(BaseException):
                    await task

    async def _exchange(self, node: _Node, headers: dict[str, str], body: "_Body", kind: str, send: Send) -> None:
        answer = await node.send("POST", headers, body.pieces())
        try:
            given = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
            if answer.status_code != 200 or given != TYPES[kind]:
                await _refuse(answer, given, send)
                return
            chunked = kind == ohttp.CHUNKED_REQUEST_TYPE
            response = Response(None, 200, _NO_STORE | dict((ohttp.INCREMENTAL,) if chunked else ()), TYPES[kind])
            del response.headers["content-length"]
            await send({"type": "http.response.start", "status": 200, "headers": response.raw_headers})
            try:
                async for piece in answer.aiter_raw():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            except httpx2.RequestError:
                return  # the user's answer stays without HTTP's end, too
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await answer.aclose()


class _Body:
    """A request's body as it comes, no faster than the node takes it."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._read = asyncio.Event()

    async def pieces(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async with asyncio.timeout(BODY_S):
                async for piece in self._request.stream():
                    size += len(piece)
                    if size > MOST_BYTES:
                        raise _too_large()
                    yield piece
        except TimeoutError:
            raise BodyTimeout(f"The request's body did not arrive within {BODY_S:g} s.") from None
        except ClientDisconnect:
            raise ServiceUnavailable("The user has left.") from None
        finally:
            self._read.set()

    async def gone(self) -> None:
        """Return when the user has left."""
        await self._read.wait()
        while (await self._request.receive())["type"] != "http.disconnect":
            pass


async def _refuse(answer: httpx2.Response, kind: str, send: Send) -> None:
    """Pass a refusal on: its status, its text if it is JSON, and when to try again."""
    text = await _bounded(answer, REFUSAL_BYTES) if kind in _ERRORS else b""
    status = answer.status_code if 400 <= answer.status_code <= 599 else 502
    later = answer.headers.get("retry-after", "")
    more = {"Retry-After": later} if later.isascii() and later.isdigit() and len(later) < 4 else {}
    response = Response(text, status, _NO_STORE | more, kind if kind in _ERRORS else None)
    await send({"type": "http.response.start", "status": status, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": text})


async def _bounded(answer: httpx2.Response, most: int) -> bytes:
    text = b""
    async for piece in answer.aiter_raw():
        text += piece
        if len(text) > most:
            raise ServiceUnavailable("The node's answer is too long.")
    return text


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"An encapsulated request may have at most {MOST_BYTES} bytes.")


async def run_relay(nodes: Sequence[HttpAddress], settings: GatewaySettings, on_ready: Callable[[str], None]) -> None:
    """Serve until a signal comes."""
    if len({node.resource for node in nodes}) != len(nodes):
        raise SetupError("Two nodes have one address.", hint="Name each with --to once.")
    await serve(ObliviousRelay(nodes), settings, on_ready)
