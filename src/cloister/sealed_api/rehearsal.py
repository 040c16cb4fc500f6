"""One small request of each kind, put to the application before the seal: a sealed process cannot import code later."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec.structs import replace

from cloister.backend.base import Backend, OpenJob, VaultJob
from cloister.backend.stream import Mailbox, TokenStream
from cloister.channel.envelope import InnerRequest
from cloister.channel.sealing import seal_request
from cloister.channel.validity import Validity
from cloister.config import DEVELOPMENT_KEY, GatewaySettings
from cloister.errors import ChannelBroken, QueueFull, where_raised
from cloister.gateway.app import create_api
from cloister.keys import load_keys
from cloister.levels import OPEN, Needs, served
from cloister.messages.controller_frontend import Serving, View
from cloister.messages.controller_sealed_api import Serve
from cloister.messages.generation import Stats, Tokens
from cloister.messages.types import VERSION, SamplingParams, TokenLogprob
from cloister.prompts.tokenizer import Tokenizer
from cloister.sealed_api.exchange import Exchange, now_ms

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SEALED: dict[str, Any] = {"sealed": 1}
SPOKEN: list[dict[str, Any]] = [{"role": "user", "content": "a <confidential>b</confidential>", "public": True}]


async def rehearse(tokenizer: Tokenizer, model: str, settings: GatewaySettings) -> None:
    serving = Serving(VERSION, tokenizer.vocabulary, 1024, 1, 16, "none", levels=served(Needs.LINKS, Needs.WIDE_LINKS))
    local = settings.model_copy(update={"keys_file": None, "host": "127.0.0.1"})
    app = create_api(_RehearsalBackend(serving), tokenizer, model, local, 0, load_keys(local))
    for request in _requests(model, serving):
        key, enc = bytearray(32), bytes(32)
        sealed = seal_request(key, enc, replace(request, validity=Validity.beginning(now_ms(), 0)).encode())
        exchange = Exchange(Serve(1, enc, sealed, 1, key, bytearray(32)), _flush)
        await asyncio.wait_for(exchange.run(app), 30)
        if not exchange.begun or not exchange.ended:
            raise RuntimeError("the rehearsal failed")
    late = seal_request(bytes(32), bytes(32), InnerRequest("GET", "/health").encode())
    for refused in (bytes(600), late):
        try:
            await Exchange(Serve(1, bytes(32), refused, 1, bytearray(32), bytearray(32)), _flush).run(app)
        except ChannelBroken as expected:
            where_raised(expected)
    app.state.prompts.close()


def _flush(exchange: Exchange) -> None:
    exchange.flush()


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
    asked += [(CHAT, {}), (CHAT, {"messages": 1}), (COMPLETIONS, {"model": model, "prompt": 1}), (CHAT, [])]
    requests = [
        InnerRequest("POST", path, (key, ("content-type", "application/json")), msgspec.json.encode(body))
        for path, body in asked
    ]
    requests.append(InnerRequest("POST", CHAT, (key, ("content-type", "application/json")), b"{"))
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

    async def generate(self, tenant: str, job: OpenJob | VaultJob, params: SamplingParams) -> TokenStream:
        if params.temperature == 0:
            raise QueueFull("A rehearsal has an end.")
        prompt_tokens = len(job.prompt) if isinstance(job, OpenJob) else 1
        scored = (TokenLogprob(-1.0, ((0, -1.0), (1, -2.0))),)
        events = Mailbox()
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

    async def end_session(self, tenant: str, session: str, group: str = "", *, private: bool = False) -> None:
        pass

    async def close(self) -> None:
        pass
