"""A local OpenAI endpoint that sends every prompt with secrets among made-up ones: to a verified node under seal, or to
any server in the clear. It knows HTTP; `client/exchange.py` knows what may be handed over and when, `client/callers.py`
whose secrets are remembered.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import httpx2

from cloister.addresses import HttpAddress
from cloister.channel.envelope import InnerHead
from cloister.client.callers import Callers
from cloister.client.downstream import Downstream, Request
from cloister.client.message import HOP_BY_HOP, Refusal
from cloister.client.obfuscated import AsyncObfuscatingTransport, plain_wire, raw_pieces
from cloister.client.proxy import LocalEndpoint
from cloister.client.sealed import AsyncSealedTransport
from cloister.client.verification import VerifiedNode
from cloister.errors import ServiceUnavailable
from cloister.obfuscation.requests import Obfuscation

_LEFT_OUT = HOP_BY_HOP | {"host", "content-length", "expect"}
_TIMEOUT = httpx2.Timeout(600.0, connect=10.0)


class _OfCallers(AsyncObfuscatingTransport):
    """Obfuscates each request by what its own caller said before."""

    def __init__(self, wire: httpx2.AsyncBaseTransport, like: Obfuscation) -> None:
        super().__init__(wire, like)
        self._callers = Callers(like)

    def _memory(self, request: httpx2.Request) -> AbstractContextManager[Obfuscation]:
        return self._callers.asking(request.headers.multi_items())


class ObfuscatingProxy(LocalEndpoint):
    """Answers local programs with the answers to their real prompts. `server` is a node, or any server's URL. How
    prompts are obfuscated `obfuscation` says; what is remembered is each caller's own."""

    def __init__(self, server: VerifiedNode | str, obfuscation: Obfuscation) -> None:
        super().__init__()
        wire: httpx2.AsyncBaseTransport
        if isinstance(server, str):
            self._address, wire = HttpAddress.parse(server), plain_wire(server)
        else:
            self._address, wire = server.address, AsyncSealedTransport(server)
        self._transport = _OfCallers(wire, obfuscation)

    async def _exchange(self, request: Request, downstream: Downstream) -> Refusal | None:
        headers = [(name, value) for name, value in request.headers if name.lower() not in _LEFT_OUT]
        outer = httpx2.Request(
            request.method,
            self._address.url(request.path),
            headers=headers,
            content=request.body,
            extensions={"timeout": _TIMEOUT.as_dict()},
        )
        try:
            answer = await self._transport.handle_async_request(outer)
            downstream.begin(InnerHead(answer.status_code, tuple(answer.headers.multi_items())))
            try:
                async for piece in raw_pieces(answer):
                    downstream.opened(piece, ended=False)
            finally:
                await answer.aclose()
        except httpx2.RequestError as wrong:
            raise ServiceUnavailable(f"No proper answer came from {self._address} ({type(wrong).__name__}).") from None
        downstream.opened(b"", ended=True)
        return None

    async def _close(self) -> None:
        await self._transport.aclose()
