"""One generation as its dealer sees it: secrets go out as shares, shares of results come back and are put together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from cloister.errors import PartyLost, ProtocolError
from cloister.messages.mpc import Done, Piece, Progress, Put, Result, Run, ShareHead
from cloister.mpc.config import PartiesConfig
from cloister.mpc.line import Line

OnProgress = Callable[[int, int], None]
"""Called after every program: how many are done, of how many in this pass."""

M = TypeVar("M", bound=msgspec.Struct)


class Connections(Protocol):
    """The parties, as far as a session is concerned."""

    config: PartiesConfig
    lines: tuple[Line, ...]

    def post(self, message: msgspec.Struct) -> None: ...
    async def next(self, rank: int, kind: type[M], session: bytes | None = None) -> M: ...
    def deal(self, values: NDArray[np.generic]) -> list[bytes]: ...
    def join(self, head: ShareHead, kind: str, contents: Sequence[bytes]) -> NDArray[np.generic]: ...
    def forget(self, session: bytes) -> None: ...


class Session:
    """One generation. One thing at a time: deal, then run, then deal again."""

    def __init__(self, parties: Connections, name: bytes) -> None:
        self._parties = parties
        self._name = name
        self._runs = 0

    async def deal(self, name: str, values: NDArray[np.generic]) -> None:
        """A secret for the next run: int32 or float32, split into fresh shares."""
        from cloister.mpc import wire

        head = ShareHead(name, values.dtype.name, values.shape)  # type: ignore[arg-type]
        contents = await asyncio.to_thread(self._parties.deal, values)
        try:
            for line, content in zip(self._parties.lines, contents, strict=True):
                await line.send(Put(self._name, head))
                for data in wire.pieces(content):
                    await line.send(Piece(self._name, data))
        except OSError:
            raise PartyLost("A party was lost while it was dealt to.", hint="Try again.") from None

    async def prefill(self, on_progress: OnProgress | None = None) -> NDArray[np.generic]:
        """The prompt's pass; the answer is for us alone."""
        return await self._run(Run(self._name, self._runs, "prefill"), on_progress)

    async def step(self, at: int, columns: int = 1, on_progress: OnProgress | None = None) -> NDArray[np.generic]:
        """Generated tokens from position `at` on."""
        return await self._run(Run(self._name, self._runs, "step", at, columns), on_progress)

    def forget(self) -> None:
        """Over; the parties delete all of it."""
        self._parties.forget(self._name)

    async def _run(self, order: Run, on_progress: OnProgress | None) -> NDArray[np.generic]:
        from cloister.mpc import wire

        self._parties.post(order)
        results = []
        for rank in range(len(self._parties.lines)):
            while True:
                message = await self._parties.next(rank, Progress | Result, self._name)  # type: ignore[arg-type]
                if isinstance(message, Result):
                    break
                if rank == 0 and on_progress is not None:
                    on_progress(message.done, message.total)
            results.append((message, await self._content(rank, message)))
            await self._parties.next(rank, Done, self._name)
        self._runs += 1
        first = results[0][0]
        if any((each.head, each.storage) != (first.head, first.storage) for each, _ in results):
            raise PartyLost("The parties' shares of a result do not fit together.")
        wire.result_size(first.head, first.storage, self._parties.config.protocol)
        return self._parties.join(first.head, first.storage, [content for _, content in results])

    async def _content(self, rank: int, result: Result) -> bytes:
        from cloister.mpc import wire

        if result.size != wire.result_size(result.head, result.storage, self._parties.config.protocol):
            raise ProtocolError(f"Party {rank} announced a share of another size.")
        content = b""
        while len(content) < result.size:
            content += (await self._parties.next(rank, Piece, self._name)).data
        if len(content) != result.size:
            raise ProtocolError(f"Party {rank} sent more than it announced.")
        return content
