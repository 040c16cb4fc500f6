"""The parties as a dealer sees them: connect to all, deal secrets, have them computed on, put results together.

    parties = await Parties.connect(config, credentials)
    session = await parties.open(Terms(prompt_tokens=64, new_tokens=32))
    await session.deal("coarse", one_hots)
    answer = await session.prefill()

Runs where the secrets are. Knows no tokens and no model; what to deal is `generation.dealt`'s to say.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from cloister.errors import (
    CloisterError,
    PartyLost,
    ProtocolError,
    ServiceUnavailable,
    error_from_code,
)
from cloister.messages.mpc import (
    AskStatus,
    Close,
    Open,
    Opened,
    Refused,
    ShareHead,
    Terms,
    Welcome,
)
from cloister.mpc.certificates import Credentials, client_tls
from cloister.mpc.config import PartiesConfig
from cloister.mpc.dealing import Session
from cloister.mpc.introduction import introduce
from cloister.mpc.line import Line

_POLL_S = 0.5

M = TypeVar("M", bound=msgspec.Struct)


class Parties:
    """Connections to all parties. When one is lost, all sessions are, and `closed` is true."""

    def __init__(self, config: PartiesConfig, lines: Sequence[Line], welcomes: Sequence[Welcome]) -> None:
        from cloister.mpc.sharing import Dealer

        self.config = config
        self.lines = tuple(lines)
        self._welcomes = list(welcomes)
        self._dealer = Dealer(config.protocol)
        self._inboxes: dict[bytes, tuple[asyncio.Queue[msgspec.Struct], ...]] = {}
        self.general = tuple(asyncio.Queue[msgspec.Struct]() for _ in lines)
        self._lost: CloisterError | None = None
        self._asking = asyncio.Lock()
        self._tasks = [asyncio.create_task(self._listen(rank)) for rank in range(len(lines))]

    @classmethod
    async def connect(cls, config: PartiesConfig, own: Credentials) -> Parties:
        """Connections to all; raises where one cannot be had or is not who it should be."""
        tls = client_tls(config.path(config.authority), own)
        tries = [introduce(config, rank, tls) for rank in range(len(config.party))]
        made = await asyncio.gather(*tries, return_exceptions=True)
        failures = [each for each in made if isinstance(each, BaseException)]
        good = [each for each in made if not isinstance(each, BaseException)]
        if failures:
            for line, _ in good:
                line.abort()
            raise failures[0]
        return cls(config, [line for line, _ in good], [welcome for _, welcome in good])

    @property
    def closed(self) -> bool:
        return self._lost is not None

    async def status(self) -> list[Welcome]:
        """What each says of itself now."""
        async with self._asking:
            self.post(AskStatus())
            self._welcomes = [await self.next(rank, Welcome) for rank in range(len(self.lines))]
        return self._welcomes

    async def wait_ready(self, patience_s: float, on_wait: Callable[[str], None] | None = None) -> None:
        """Until generations can begin."""
        try:
            async with asyncio.timeout(patience_s):
                while waiting := [each.missing for each in await self.status() if not each.ready]:
                    if on_wait is not None:
                        on_wait(waiting[0])
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise ServiceUnavailable(
                f"The parties are not ready: {waiting[0]}.", hint="`cloister mpc status` says more."
            ) from None

    async def open(self, terms: Terms) -> Session:
        """A new generation. Its programs are compiled by the parties when they first run."""
        name = secrets.token_bytes(16)
        if self._lost is not None:
            raise self._lost
        self._inboxes[name] = tuple(asyncio.Queue() for _ in self.lines)
        session = Session(self, name)
        try:
            self.post(Open(name, terms))
            epochs = {(await self.next(rank, Opened, name)).epoch for rank in range(len(self.lines))}
            if len(epochs) != 1:
                raise PartyLost("The parties are between two epochs.", hint="Try again.")
        except BaseException:
            session.forget()
            raise
        return session

    async def close(self) -> None:
        """Leave; the parties forget what was dealt."""
        self._lose(ServiceUnavailable("The connection to the parties was closed."))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(line.wait_closed() for line in self.lines))

    def post(self, message: msgspec.Struct) -> None:
        """To all parties."""
        for line in self.lines:
            line.post(message)

    async def next(self, rank: int, kind: type[M], session: bytes | None = None) -> M:
        """The next message of this party (for this session), which must be of this kind."""
        inbox = self._inboxes[session][rank] if session is not None else self.general[rank]
        if self._lost is not None and inbox.empty():
            raise self._lost
        message = await inbox.get()
        if isinstance(message, Refused):
            raise _error(message)
        if not isinstance(message, kind):
            raise ProtocolError(f"Party {rank} answered out of turn.")
        return message

    def deal(self, values: NDArray[np.generic]) -> list[bytes]:
        """Fresh shares, one for each party."""
        from cloister.mpc import wire

        return [wire.content_of(share) for share in self._dealer.deal(values)]

    def join(self, head: ShareHead, kind: str, contents: Sequence[bytes]) -> NDArray[np.generic]:
        """What the shares are shares of."""
        from cloister.mpc import wire

        return self._dealer.join([wire.share_of(head, kind, content) for content in contents])

    def forget(self, session: bytes) -> None:
        if self._inboxes.pop(session, None) is not None:
            self.post(Close(session))

    async def _listen(self, rank: int) -> None:
        lost: CloisterError = PartyLost(f"Party {rank} was lost.", hint="`cloister mpc status` says which are there.")
        try:
            while (message := await self.lines[rank].receive()) is not None:
                session = getattr(message, "session", None)
                if isinstance(message, Refused) and session is None:
                    lost = _error(message)
                    break
                if session is None:
                    self.general[rank].put_nowait(message)
                elif session in self._inboxes:
                    self._inboxes[session][rank].put_nowait(message)
                    if isinstance(message, Refused):  # whoever waits for another party of this session hears it too
                        for other, inbox in enumerate(self._inboxes[session]):
                            if other != rank:
                                inbox.put_nowait(message)
        except CloisterError:
            lost = PartyLost(f"Party {rank} said what it must not.", hint="Nothing was revealed to the others.")
        self._lose(lost)

    def _lose(self, reason: CloisterError) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        refusal = Refused(reason.code, reason.message, reason.hint or "")
        for inbox in (*self.general, *(each for inboxes in self._inboxes.values() for each in inboxes)):
            inbox.put_nowait(refusal)
        for line in self.lines:
            line.close()


def _error(refused: Refused) -> CloisterError:
    return error_from_code(refused.code, refused.message, hint=refused.hint or None)
