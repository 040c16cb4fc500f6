"""The gateway's end of the socket to the controller: beside tokens it carries sealed requests and their answers.

It never looks into a sealed byte. How much of an answer waits here is bounded: what the user has not taken is not made.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec

from cloister.backend.base import Carrier, SealedAnswer
from cloister.backend.client import ControllerClient
from cloister.errors import CloisterError, ServiceUnavailable
from cloister.messages.controller_frontend import BytesTaken, CancelSealed, SealedPart
from cloister.messages.controller_gateway import AskEvidence, Evidence, Sealed, ToGateway
from cloister.messages.generation import Failed
from cloister.messages.lifecycle import raised

TELL_TAKEN_BYTES = 1 << 16
"""The sealed API may be further ahead than this (sealed_api.exchange.WINDOW_BYTES), so it need not wait for it."""


class GatewayClient(ControllerClient, Carrier):
    """A Backend and a Carrier."""

    receives = ToGateway

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._sealed: dict[int, CarriedAnswer] = {}
        super().__init__(reader, writer)

    async def evidence(self, nonce: bytes, since: int) -> bytes:
        request_id = next(self._ids)
        self.send(AskEvidence(request_id, nonce, since))
        try:
            return (await self._answer(Evidence, request_id)).document
        finally:
            self._awaited.pop((Evidence, request_id), None)

    def carry(self, envelope: bytes) -> CarriedAnswer:
        request_id = next(self._ids)
        self.send(Sealed(request_id, envelope))
        answer = self._sealed[request_id] = CarriedAnswer(request_id, self)
        return answer

    def forget(self, request_id: int) -> None:
        self._sealed.pop(request_id, None)

    def _dispatch(self, message: msgspec.Struct) -> None:
        match message:
            case SealedPart():
                if answer := self._sealed.get(message.request_id):
                    answer.put(message)
            case Evidence():
                self._answered(Evidence, message.request_id, message)
            case Failed() if answer := self._sealed.get(message.request_id):
                answer.put(raised(message))
            case Failed() if self._answered(Evidence, message.request_id, raised(message)):
                pass
            case _:
                super()._dispatch(message)

    def _hang_up(self) -> None:
        super()._hang_up()
        for answer in list(self._sealed.values()):
            answer.put(ServiceUnavailable("The server is shutting down."))


class CarriedAnswer(SealedAnswer):
    """One sealed answer on its way through."""

    def __init__(self, request_id: int, client: GatewayClient) -> None:
        self._request_id = request_id
        self._client = client
        self._parts: list[SealedPart] = []
        self._failed: CloisterError | None = None
        self._news = asyncio.Event()
        self._untold = 0
        self._ended = False

    def put(self, part: SealedPart | CloisterError) -> None:
        if isinstance(part, SealedPart):
            self._parts.append(part)
        else:
            self._failed = part
        if not isinstance(part, SealedPart) or part.end:
            self._end()
        self._news.set()

    async def next(self) -> tuple[bytes, bool]:
        await self._news.wait()
        if self._parts:
            parts, self._parts = self._parts, []
            if self._failed is None and not parts[-1].end:
                self._news.clear()
            return b"".join([part.data for part in parts]), parts[-1].end
        raise self._failed or ServiceUnavailable("The answer has ended.")

    def taken(self, count: int) -> None:
        self._untold += count
        if self._untold >= TELL_TAKEN_BYTES and not self._ended:
            with suppress(ServiceUnavailable):
                self._client.send(BytesTaken(self._request_id, self._untold))
            self._untold = 0

    def leave(self) -> None:
        if not self._ended:
            self._end()
            with suppress(ServiceUnavailable):
                self._client.send(CancelSealed(self._request_id))
            self.put(ServiceUnavailable("Nobody waits for this answer any more."))

    def _end(self) -> None:
        self._ended = True
        self._client.forget(self._request_id)
