"""The front's handle on the service process: starts it, carries requests to it, starts it again when it dies.

When the process is gone every open request fails with ServiceUnavailable at once; new ones do until it is back.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any

import msgspec

from cloister.config import EngineSettings
from cloister.errors import CloisterError, ProtocolError, ServiceUnavailable, error_from_code
from cloister.messages.frames import FrameReader, encode_frame
from cloister.messages.generation import (
    VERSION,
    Accepted,
    AskStats,
    Cancel,
    Failed,
    Ready,
    SamplingParams,
    Stats,
    Submit,
    Tokens,
)
from cloister.messages.lifecycle import AnyFromService, Start, StartFailed
from cloister.models.source import ModelFolder
from cloister.service.stream import Event, TokenStream, raised

log = logging.getLogger(__name__)

RECEIVE_BYTES = 1 << 20
SECONDS_BETWEEN_RESTARTS = (0.0, 0.5, 1.0, 2.0, 5.0)


class ServiceHandle:
    """Talks to the service over a socket pair that only the two processes hold."""

    def __init__(self, folder: ModelFolder, settings: EngineSettings) -> None:
        self._folder = folder
        self._settings = settings
        self._ids = itertools.count(1)
        self._open: dict[int, asyncio.Queue[Event]] = {}
        self._accepting: dict[int, asyncio.Future[None]] = {}
        self._stats: list[asyncio.Future[Stats]] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._ready: Ready | None = None
        self._keeper: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, folder: ModelFolder, settings: EngineSettings) -> ServiceHandle:
        """The handle of a service that is ready to serve."""
        handle = cls(folder, settings)
        reader, frames, rest = await handle._launch()
        handle._keeper = asyncio.create_task(handle._keep(reader, frames, rest))
        return handle

    @property
    def ready(self) -> Ready:
        if self._ready is None:
            raise ServiceUnavailable("The service is not up yet.")
        return self._ready

    @property
    def up(self) -> bool:
        return self._writer is not None

    @property
    def pid(self) -> int | None:
        """The service's process, for those who watch it."""
        return self._process.pid if self._process and self.up else None

    async def generate(self, tenant: str, prompt: tuple[int, ...], params: SamplingParams) -> TokenStream:
        request_id = next(self._ids)
        events: asyncio.Queue[Event] = asyncio.Queue()
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._send(Submit(request_id, tenant, prompt, params))
        self._open[request_id], self._accepting[request_id] = events, accepted
        try:
            await accepted
        except BaseException:
            self._abandon(request_id)
            raise
        return TokenStream(request_id, len(prompt), events, lambda: self._abandon(request_id))

    async def stats(self) -> Stats:
        answer: asyncio.Future[Stats] = asyncio.get_running_loop().create_future()
        self._send(AskStats())
        self._stats.append(answer)
        return await answer

    async def close(self) -> None:
        if self._keeper:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        await self._hang_up(ServiceUnavailable("The server is shutting down."))

    def _send(self, message: msgspec.Struct) -> None:
        if self._writer is None:
            raise ServiceUnavailable("The service is restarting.", hint="Try again in a few seconds.")
        self._writer.write(encode_frame((message,)))

    def _abandon(self, request_id: int) -> None:
        self._accepting.pop(request_id, None)
        if self._open.pop(request_id, None) is not None:
            with suppress(ServiceUnavailable):
                self._send(Cancel(request_id))

    async def _launch(self) -> tuple[asyncio.StreamReader, FrameReader[msgspec.Struct], list[msgspec.Struct]]:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "cloister.service", str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours)
        start = Start(VERSION, self._folder.name, str(self._folder.path), self._settings.model_dump_json().encode())
        writer.write(encode_frame((start,)))
        frames: FrameReader[msgspec.Struct] = FrameReader(AnyFromService)
        messages: list[msgspec.Struct] = []
        try:
            while not messages:
                data = await reader.read(RECEIVE_BYTES)
                if not data:
                    raise ServiceUnavailable("The service process ended while it started.")
                messages = frames.feed(data)
            first = messages.pop(0)
            if isinstance(first, StartFailed):
                raise error_from_code(first.code, first.message, hint=first.hint)
            if not isinstance(first, Ready) or first.version != VERSION:
                raise ProtocolError("The service speaks another version.")
        except BaseException:
            writer.close()
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
            raise
        self._ready, self._writer = first, writer
        return reader, frames, messages

    async def _keep(
        self, reader: asyncio.StreamReader, frames: FrameReader[msgspec.Struct], messages: list[msgspec.Struct]
    ) -> None:
        while True:
            try:
                await self._relay(reader, frames, messages)
            except (ProtocolError, OSError) as wrong:
                log.error("The service's stream broke: %s.", type(wrong).__name__)
            await self._hang_up(ServiceUnavailable("The service process ended.", hint="Try again in a few seconds."))
            reader, frames, messages = await self._launch_again()

    async def _launch_again(
        self,
    ) -> tuple[asyncio.StreamReader, FrameReader[msgspec.Struct], list[msgspec.Struct]]:
        for attempt in itertools.count():
            await asyncio.sleep(SECONDS_BETWEEN_RESTARTS[min(attempt, len(SECONDS_BETWEEN_RESTARTS) - 1)])
            log.warning("The service process ended; starting it again.")
            try:
                return await self._launch()
            except (CloisterError, OSError) as reason:
                log.error("The service does not start: %s.", type(reason).__name__)
        raise AssertionError("unreachable")

    async def _relay(
        self, reader: asyncio.StreamReader, frames: FrameReader[msgspec.Struct], messages: list[msgspec.Struct]
    ) -> None:
        while True:
            for message in messages:
                self._dispatch(message)
            data = await reader.read(RECEIVE_BYTES)
            if not data:
                return
            messages = frames.feed(data)

    def _dispatch(self, message: msgspec.Struct) -> None:
        match message:
            case Tokens(request_id=request_id):
                self._deliver(request_id, message, ended=message.finish is not None)
            case Failed(request_id=request_id):
                accepting = self._accepting.pop(request_id, None)
                if accepting and not accepting.done():
                    self._open.pop(request_id, None)
                    accepting.set_exception(raised(message))
                else:
                    self._deliver(request_id, message, ended=True)
            case Accepted(request_id=request_id):
                accepting = self._accepting.pop(request_id, None)
                if accepting and not accepting.done():
                    accepting.set_result(None)
            case Stats():
                waiting = self._stats.pop(0)
                if not waiting.done():
                    waiting.set_result(message)
            case _:
                raise ProtocolError("The service sent a message out of turn.")

    def _deliver(self, request_id: int, event: Event, *, ended: bool) -> None:
        events = self._open.pop(request_id, None) if ended else self._open.get(request_id)
        if events is not None:
            events.put_nowait(event)

    async def _hang_up(self, reason: ServiceUnavailable) -> None:
        if self._writer:
            self._writer.close()
            self._writer = None
        futures: list[asyncio.Future[Any]] = [*self._accepting.values(), *self._stats]
        for future in futures:
            if not future.done():
                future.set_exception(reason)
        for events in self._open.values():
            events.put_nowait(reason)
        self._open.clear()
        self._accepting.clear()
        self._stats.clear()
        if self._process:
            try:
                await asyncio.to_thread(self._process.wait, 5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                await asyncio.to_thread(self._process.wait)
