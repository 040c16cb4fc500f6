"""The node's oblivious gateway resource (RFC 9458, RFC 9540): what an encapsulated request holds goes to the API as if
it had come by itself, but from no address. Cloister's clients have a sealed request inside, which stays sealed here."""

from types import SimpleNamespace
from urllib.parse import unquote

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cloister.channel import bhttp, ohttp
from cloister.channel.ohttp import encapsulation
from cloister.channel.ohttp.chunks import ChunkOpener, ChunkSealer
from cloister.channel.ohttp.encapsulation import ExchangeKeys, Form, Header
from cloister.errors import ChannelBroken, ChannelKeyUnknown, CloisterError, MessageRepeated
from cloister.gateway.api import api_of
from cloister.gateway.errors import error_response
from cloister.gateway.guard import Guard, read_body
from cloister.gateway.sealed import carrier_of
from cloister.messages.controller_gateway import MAX_SEALED_BYTES

MAX_WHOLE_BYTES = 16 << 20  # of an answer that may not come in chunks
_ROOM_BYTES = 1 << 17  # for what encapsulation adds
_OF_CONNECTIONS = frozenset(
    ("connection", "content-length", "transfer-encoding", "expect", "upgrade", "te", "keep-alive", "trailer")
)
_FORMS = {ohttp.REQUEST_TYPE: Form.WHOLE, ohttp.CHUNKED_REQUEST_TYPE: Form.CHUNKED}
_SCORE_CHUNK = 63 - encapsulation.TAG_BYTES
SCORE_PATH = "/score"  # where ohttpy, the client of Azure's confidential inferencing, sends to
PATHS = (ohttp.GATEWAY_PATH, SCORE_PATH)
_NO_STORE = {"Cache-Control": "no-store"}


class Oblivious:
    """Answers at PATHS. `inside` gets what encapsulated requests hold."""

    def __init__(self, inside: ASGIApp, app: FastAPI) -> None:
        api = app.state.api
        self._inside, self._app = inside, app
        self._guarded = Guard(self._answer, api.metrics, app.state.drain, local_only=api.settings.keys_file is None)
        self._route = SimpleNamespace(path=ohttp.GATEWAY_PATH)  # for metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"], scope["route"] = self._app, self._route
        await self._guarded(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            if request.method == "POST":
                exchange = await _open(request)
                await exchange.run(self._inside)
                return
            if request.method not in ("GET", "HEAD"):
                response = Response(status_code=405, headers={"Allow": "GET, POST"})
            else:
                document = await carrier_of(request).key_configurations()
                response = Response(document, headers=_NO_STORE, media_type=ohttp.KEYS_TYPE)
        except MessageRepeated as repeated:
            response = error_response(repeated)
        except (ChannelKeyUnknown, ChannelBroken):
            response = _key_problem()
        except CloisterError as refusal:
            response = error_response(refusal)
        await response(scope, receive, send)


def _key_problem() -> Response:
    """§5.3. A request that does not open may be for a key of before whose id is the same: the client looks again."""
    problem = {"type": ohttp.KEY_PROBLEM, "title": "The key is unknown, or does not open the request."}
    return Response(msgspec.json.encode(problem), 400, _NO_STORE, ohttp.PROBLEM_TYPE)


async def _open(request: Request) -> "_Exchange":
    settings = api_of(request).settings
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    wanted, at_score = kind if kind in _FORMS else ohttp.REQUEST_TYPE, request.url.path == SCORE_PATH
    limit = min(2 * settings.max_body_bytes + (1 << 18), MAX_SEALED_BYTES) + _ROOM_BYTES
    data = await read_body(request, settings, wanted, limit)
    header = Header.decode(data)
    form = Form.WHOLE if at_score else _FORMS[wanted]
    opened = await carrier_of(request).open_exchange(header.encode(), chunked=form is Form.CHUNKED)
    keys = ExchangeKeys(opened.request_key, opened.base_nonce, opened.response_secret)
    if form is Form.WHOLE:
        message = encapsulation.open_request(header, keys, data)
    else:
        opener = ChunkOpener(lambda begins: encapsulation.request_chain(header, keys), encapsulation.HEADER_BYTES)
        message = opener.feed(data) + opener.finish()
    if at_score:
        return _ScoreExchange(request, header, keys, Form.CHUNKED, message)
    return _Exchange(request, header, keys, form, message)


class _Exchange:
    """One encapsulated request. Its answer goes out chunk by chunk as it is made, or, unless in chunks, at its end."""

    def __init__(self, outer: Request, header: Header, keys: ExchangeKeys, form: Form, message: bytes) -> None:
        self._outer, self._header, self._keys = outer, header, keys
        self._message: bytes | None = message
        self._body: bytes | None = None
        self._head: bhttp.ResponseHead | None = None
        self._whole: bytearray | None = bytearray() if form is Form.WHOLE else None
        self._sealer: ChunkSealer | None = None
        self._ended = False

    async def run(self, inside: ASGIApp) -> None:
        """An answer that `inside` breaks off stays without its last chunk, and without HTTP's own end."""
        try:
            scope = self._scope()
        except ChannelBroken as wrong:
            await error_response(wrong)({"type": "http"}, self._receive, self._send)
            return
        await inside(scope, self._receive, self._send)
        if self._whole is not None and (not self._ended or len(self._whole) > MAX_WHOLE_BYTES):
            raise CloisterError("The answer broke off.")

    def _scope(self) -> Scope:
        data, self._message = self._message, None
        assert data is not None
        message = bhttp.decode(data, len(data))
        del data
        if not isinstance(head := message.head, bhttp.RequestHead) or not head.path.startswith("/"):
            raise ChannelBroken("This is not an HTTP request.")
        self._body = message.content
        path, _, query = head.path.partition("?")
        fields = [(name, value) for name, value in head.headers if name not in _OF_CONNECTIONS]
        if head.authority:
            fields = [("host", head.authority), *(field for field in fields if field[0] != "host")]
        if message.content or head.method in ("POST", "PUT", "PATCH"):
            fields.append(("content-length", str(len(message.content))))
        return {
            **{"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1"},
            **{"scheme": "http", "root_path": "", "client": None, "server": None},
            **{"method": head.method, "path": unquote(path), "raw_path": path.encode("ascii")},
            **{"query_string": query.encode("ascii"), "state": self._outer.scope.get("state", {})},
            "headers": [(name.encode("ascii"), value.encode("latin-1")) for name, value in fields],
        }

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        while (message := await self._outer.receive())["type"] != "http.disconnect":
            pass
        return message

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            pairs = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in message["headers"]]
            fields = tuple((name, value.strip()) for name, value in pairs if name not in _OF_CONNECTIONS)
            self._head = bhttp.ResponseHead(message["status"], fields)
        elif message["type"] == "http.response.body":
            self._ended = not message.get("more_body", False)
            body = message.get("body", b"")
            await (self._send_chunk(body) if self._whole is None else self._send_whole(body))

    async def _send_chunk(self, data: bytes) -> None:
        assert self._head is not None
        begins = b""
        if self._sealer is None:
            nonce = encapsulation.response_nonce(self._header)
            self._sealer = ChunkSealer(encapsulation.response_chain(self._header, self._keys, nonce), nonce)
            begins = bhttp.begin(self._head)
            await self._start(ohttp.CHUNKED_RESPONSE_TYPE, ohttp.INCREMENTAL)
        sealed = self._sealed(self._sealer, begins, data)
        await self._outer._send({"type": "http.response.body", "body": sealed, "more_body": not self._ended})

    def _sealed(self, sealer: ChunkSealer, begins: bytes, data: bytes) -> bytes:
        content = begins + bhttp.chunk(data)
        return sealer.end(content + bhttp.end()) if self._ended else sealer.seal(content)

    async def _send_whole(self, data: bytes) -> None:
        assert self._whole is not None and self._head is not None
        if len(self._whole) <= MAX_WHOLE_BYTES:
            self._whole += data
        if self._ended and len(self._whole) <= MAX_WHOLE_BYTES:
            message = bhttp.encode(bhttp.Message(self._head, bytes(self._whole)))
            await self._start(ohttp.RESPONSE_TYPE)
            sealed = encapsulation.seal_response(self._header, self._keys, message)
            await self._outer._send({"type": "http.response.body", "body": sealed})

    async def _start(self, kind: str, *more: tuple[str, str]) -> None:
        headers = Response(None, headers={**_NO_STORE, "X-Accel-Buffering": "no", **dict(more)}, media_type=kind)
        del headers.headers["content-length"]
        status = self._outer_status
        await self._outer._send({"type": "http.response.start", "status": status, "headers": headers.raw_headers})

    @property
    def _outer_status(self) -> int:
        return 200


class _ScoreExchange(_Exchange):
    """ohttpy's dialect: a whole request; content in chunks without a head, its status outside, and an empty end."""

    def _sealed(self, sealer: ChunkSealer, begins: bytes, data: bytes) -> bytes:
        # It reads lengths in base 128, which agree with QUIC's below 64: so its chunks are small.
        cuts = range(0, len(data), _SCORE_CHUNK)
        sealed = b"".join(sealer.seal(data[cut : cut + _SCORE_CHUNK]) for cut in cuts)
        return sealed + (sealer.end() if self._ended else b"")

    @property
    def _outer_status(self) -> int:
        assert self._head is not None
        return self._head.status
