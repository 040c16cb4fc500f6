"""Unproved connections at a listening socket, with their own limit, at which the oldest is dropped for the newest."""

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

from cloister.errors import CloisterError, where_raised

log = logging.getLogger(__name__)

MOST_UNPROVED = 64
PROOF_S = 5.0  # how long a peer may take to authenticate

SECONDS_BETWEEN_TRIES = 1.0
SECONDS_BETWEEN_REPORTS = 10.0

Peer = TypeVar("Peer")


class Door(Generic[Peer]):
    """`prove` authenticates a connection's peer, or raises; `admit` gets the result."""

    def __init__(
        self,
        listener: socket.socket,
        prove: Callable[[socket.socket], Coroutine[Any, Any, Peer]],
        admit: Callable[[Peer], None],
        *,
        most: int = MOST_UNPROVED,
        patience_s: float = PROOF_S,
        report: bool = True,
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._prove = prove
        self._admit = admit
        self._most = most
        self._patience_s = patience_s
        self._reports = report
        self._unproved: dict[asyncio.Task[Peer], None] = {}
        self._dropped = 0
        self._silent_until = 0.0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, _ = await loop.sock_accept(self._listener)
                except OSError as reason:  # out of descriptors, say: present connections stay
                    log.error("A connection cannot be accepted: %s.", type(reason).__name__)
                    await asyncio.sleep(SECONDS_BETWEEN_TRIES)
                    continue
                if len(self._unproved) >= self._most:
                    self._drop_oldest()
                connection.setblocking(False)
                task = loop.create_task(self._prove_in_time(connection))
                self._unproved[task] = None
                task.add_done_callback(partial(self._done, connection))
                await asyncio.sleep(0)  # accepting does not wait while more are queued: each has its turn first
        finally:
            while self._unproved:
                self._drop_oldest()

    async def _prove_in_time(self, connection: socket.socket) -> Peer:
        async with asyncio.timeout(self._patience_s):
            return await self._prove(connection)

    def _drop_oldest(self) -> None:
        oldest = next(iter(self._unproved))
        del self._unproved[oldest]
        oldest.cancel()

    def _done(self, connection: socket.socket, task: asyncio.Task[Peer]) -> None:
        self._unproved.pop(task, None)
        reason = None if task.cancelled() else task.exception()
        if reason is None and not task.cancelled():
            self._admit(task.result())
            return
        connection.close()
        if reason is not None and not isinstance(reason, (OSError, CloisterError)):
            log.error("A door failed: %s.", where_raised(reason))
        self._report()

    def _report(self) -> None:
        """One line for many: unproved connections must not fill a log."""
        self._dropped += 1
        now = asyncio.get_running_loop().time()
        if self._reports and now >= self._silent_until:
            log.warning("Connections that did not prove who they are: %d more.", self._dropped)
            self._dropped, self._silent_until = 0, now + SECONDS_BETWEEN_REPORTS
