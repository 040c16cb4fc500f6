"""The sealed API: reads its files, rehearses, leaves the host, seals itself off, and answers until the end."""

import asyncio
import logging
import os
import socket
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec.structs import replace

from cloister.backend.base import Backend, Job, OpenJob
from cloister.backend.client import ControllerClient
from cloister.backend.stream import Mailbox, TokenStream
from cloister.channel.envelope import InnerRequest, Validity
from cloister.channel.sealing import seal_request
from cloister.config import DEVELOPMENT_KEY, GatewaySettings
from cloister.errors import ChannelBroken, ProtocolError, QueueFull, where_raised
from cloister.gateway.app import create_api
from cloister.keys import KeyRing, load_keys
from cloister.levels import OPEN, Needs, served
from cloister.messages.controller_frontend import BytesTaken, CancelSealed, Serving, StartFrontend, View
from cloister.messages.controller_sealed_api import ErrorKind, ErrorReport, SealedApiReady, Serve, ToSealedApi
from cloister.messages.frames import MAX_FRAME_BYTES, FrameReader, encode_frame
from cloister.messages.generation import Stats, Tokens
from cloister.messages.lifecycle import start_failed
from cloister.messages.types import SamplingParams, TokenLogprob
from cloister.models.source import open_folder
from cloister.process.sandbox.credentials import give_up_powers
from cloister.process.sandbox.layers import Profile
from cloister.process.sandbox.namespaces import empty_root, leave_host
from cloister.process.sandbox.seal import seal
from cloister.process.sandbox.seccomp import filter_program
from cloister.prompts.tokenizer import Tokenizer
from cloister.responses import PATH as RESPONSES
from cloister.sealed_api.exchange import Exchange, Exchanges, now_ms

MEMORY_BYTES = 1 << 30  # its limit after the seal: every answer under way is bounded, and so is their number

_LENGTH = struct.Struct("<I")


class SealedApiClient(ControllerClient):
    """This process's end of the socket to the controller: a Backend. `handle_sealed` takes sealed requests."""

    receives = ToSealedApi
    beat_s = 0.15

    handle_sealed: Callable[[Serve | BytesTaken | CancelSealed], None] | None = None

    def _dispatch(self, message: msgspec.Struct) -> None:
        if isinstance(message, Serve | BytesTaken | CancelSealed) and self.handle_sealed is not None:
            self.handle_sealed(message)
        else:
            super()._dispatch(message)


def serve(control: socket.socket) -> None:
    try:
        start = _first_message(control)
        if start is None:
            return
        settings = GatewaySettings.model_validate_json(start.settings)
        tokenizer = Tokenizer(open_folder(Path(start.path), start.name))
        tokenizer.warm()
        asyncio.run(rehearse(tokenizer, start.name, settings))
        filter_program(receives_descriptors=False, own_pid=1, futexes=None)
        leave_host()
        empty_root()
        give_up_powers(())
        asyncio.run(_serve(control, start, settings, tokenizer))
    except Exception as wrong:
        control.setblocking(True)
        control.sendall(encode_frame((start_failed(wrong, "The sealed API cannot start"),)))


async def _serve(control: socket.socket, start: StartFrontend, settings: GatewaySettings, tokenizer: Tokenizer) -> None:
    client = await SealedApiClient.connect(control)
    keys = KeyRing(start.keys)
    client.when_keys_change(keys.admit)
    gone = asyncio.Event()
    client.when_gone(gone.set)
    await client.serving
    app = create_api(client, tokenizer, start.name, settings, start.created, keys)
    app.state.prompts.start()
    exchanges = Exchanges(app, client.send)
    client.handle_sealed = exchanges.handle
    logging.getLogger().addHandler(_Reporter(client))
    seal(Profile("sealed_api", _needed_descriptors(), MEMORY_BYTES, allow_degraded=start.allow_degraded))
    client.send(SealedApiReady())
    await gone.wait()
    os._exit(0)


def _first_message(control: socket.socket) -> StartFrontend | None:
    """The controller's first message, without a byte of the next: the event loop reads those. None at the end."""
    head = control.recv(_LENGTH.size, socket.MSG_WAITALL)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise ProtocolError("The controller's first message is too long.")
    body = control.recv(length, socket.MSG_WAITALL)
    messages = FrameReader[StartFrontend](StartFrontend).feed(head + body)
    [message] = messages
    return message


def _needed_descriptors() -> set[int]:
    """Sockets (the control socket, the loop's own) and the loop's epoll. There is no /proc here to list them."""
    found: set[int] = set()
    for number in range(3, 256):
        with suppress(OSError):
            if stat.S_IFMT(os.fstat(number).st_mode) in (stat.S_IFSOCK, 0):  # an epoll has no file type
                found.add(number)
    return found


class _Reporter(logging.Handler):
    """Reports each log record to the controller by its kind alone: this process cannot write anywhere."""

    def __init__(self, client: SealedApiClient) -> None:
        super().__init__(logging.WARNING)
        self._client = client

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("cloister"):
            return  # libraries put their input into their messages
        named = record.getMessage().removeprefix("Unexpected ").split(" ", 1)[0].rstrip(".")
        self._client.send(ErrorReport(next((kind for kind in get_args(ErrorKind) if kind == named), "other")))


CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
SEALED: dict[str, Any] = {"sealed": 1}
SPOKEN: list[dict[str, Any]] = [{"role": "user", "content": "a <confidential>b</confidential>", "public": True}]


async def rehearse(tokenizer: Tokenizer, model: str, settings: GatewaySettings) -> None:
    serving = Serving(tokenizer.vocabulary, 1024, 1, 16, "none", 2, levels=served(Needs.LINKS))
    local = settings.model_copy(update={"keys_file": None, "host": "127.0.0.1", "beat_ms": min(settings.beat_ms, 1)})
    app = create_api(_RehearsalBackend(serving), tokenizer, model, local, 0, load_keys(local))
    for request in _requests(model, serving):
        key, enc = bytearray(32), bytes(32)
        sealed = seal_request(key, enc, replace(request, validity=Validity.beginning(now_ms(), 0)).encode())
        exchange = Exchange(Serve(1, enc, sealed, 1, key, bytearray(32)), Exchange.flush)
        await asyncio.wait_for(exchange.run(app), 30)
        if not exchange.begun or not exchange.ended:
            raise RuntimeError("the rehearsal failed")
    late = seal_request(bytes(32), bytes(32), InnerRequest("GET", "/health").encode())
    for refused in (bytes(600), late):
        try:
            await Exchange(Serve(1, bytes(32), refused, 1, bytearray(32), bytearray(32)), Exchange.flush).run(app)
        except ChannelBroken as expected:
            where_raised(expected)
    app.state.prompts.close(wait=True)  # the seal wants one thread


def _requests(model: str, serving: Serving) -> list[InnerRequest]:
    key = ("authorization", f"Bearer {DEVELOPMENT_KEY}")
    asked: list[tuple[str, Any]] = []
    for level in serving.levels:
        is_open = level == OPEN
        for more in ({}, {"stream": True, "stream_options": {"include_usage": True}}):
            common = {"model": model, "protection": level, "max_tokens": 2, "stop": ["zz"], "seed": 1, **more}
            chat = {"messages": SPOKEN if is_open else SEALED, "logprobs": True, "top_logprobs": 2}
            plain = {"prompt": "a" if is_open else SEALED, "logprobs": 2, "echo": is_open}
            asked += [(CHAT, {**common, **chat}), (COMPLETIONS, {**common, **plain})]
            asked.append((CHAT, {**common, "messages": chat["messages"], "temperature": 0}))
            response = {"input": chat["messages"], "include": ["message.output_text.logprobs"], "max_output_tokens": 2}
            asked.append((RESPONSES, {name: common[name] for name in common if name != "max_tokens"} | response))
            form = {"response_format": {"type": "json_object"}} if is_open else {"constrained": True}
            asked.append((CHAT, {**common, "messages": chat["messages"], **form}))
        for more in ({"encoding_format": "base64", "dimensions": 1}, {}):
            given = {"model": model, "protection": level, "input": "a" if is_open else SEALED}
            asked.append((EMBEDDINGS, {**given, **more}))
    asked += [(CHAT, {}), (CHAT, {"messages": 1}), (COMPLETIONS, {"model": model, "prompt": 1}), (CHAT, [])]
    as_json = (key, ("content-type", "application/json"))
    requests = [InnerRequest("POST", path, as_json, msgspec.json.encode(body)) for path, body in asked]
    requests.append(InnerRequest("POST", CHAT, as_json, b"{"))
    requests.append(InnerRequest("POST", CHAT, (key, ("content-type", "text/plain")), b"a"))
    for method, path in (
        *(("GET", "/v1/models"), ("GET", f"/v1/models/{model}"), ("GET", "/v1/models/none"), ("GET", "/health")),
        *(("GET", "/metrics"), ("GET", "/openapi.json"), ("GET", "/v1/requests/none/view"), ("GET", "/nothing?a=b")),
        *(("DELETE", "/v1/sessions/a"), ("DELETE", "/v1/models"), ("OPTIONS", "/v1/models")),
    ):
        requests += [InnerRequest(method, path, (key,)), InnerRequest(method, path)]
    return requests


class _RehearsalBackend(Backend):
    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    @property
    def ready(self) -> Serving:
        return self._serving

    async def generate(self, tenant: str, job: Job, params: SamplingParams) -> TokenStream:
        if params.temperature == 0:
            raise QueueFull("A rehearsal has an end.")
        prompt_tokens = len(job.prompt) if isinstance(job, OpenJob) else 1
        scored = (TokenLogprob(-1.0, ((0, -1.0), (1, -2.0))),)
        events = Mailbox()
        if params.embed:
            events.put(Tokens(1, finish="length", vector=struct.pack("<2f", 0.6, 0.8)))
            return TokenStream(1, prompt_tokens, events, lambda: None)
        if params.prompt_logprobs is not None:
            events.put(Tokens(1, prompt_logprobs=scored * (prompt_tokens - 1)))
        events.put(Tokens(1, (0,), scored))
        # The second token comes by itself, when the first has been read.
        asyncio.get_running_loop().call_soon(events.put, Tokens(1, (1,), scored, finish="length"))
        return TokenStream(1, prompt_tokens, events, lambda: None)

    async def stats(self) -> Stats:
        return Stats()

    async def view(self, request_id: int) -> View:
        return View(request_id, known=True, prompt=(0,), output=(0,))
