"""Takes anonymous tokens for the node. Those that come together are checked in turn and written with one sync."""

import asyncio
import logging
from collections.abc import Callable
from time import time

from cloister.access.cloud import Cloud, read_cloud
from cloister.access.spent import SpentTokens
from cloister.access.tokens import Token, authenticate
from cloister.config import GatewaySettings, data_folder
from cloister.errors import CloisterError, QueueFull, ServiceUnavailable, TokenInvalid, where_raised

_log = logging.getLogger(__name__)
MOST_WAITING = 4096
Settled = Callable[[CloisterError | None], None]


class TokenGate:
    """`settle` answers when the disk has the token; the sync runs beside the event loop, which relays all answers."""

    def __init__(self, settings: GatewaySettings, clock: Callable[[], float] = time) -> None:
        self._settings, self._clock = settings, clock
        self._cloud: Cloud | None = None
        self._spent: SpentTokens | None = None
        self._waiting: list[tuple[Token, Settled]] = []
        self._writing: asyncio.Task[None] | None = None
        self._counting: set[bytes] | None = None
        if settings.cloud is not None:
            self._cloud = read_cloud(settings)
            self._spent = SpentTokens(settings.spent or data_folder() / "spent" / str(settings.node_name))

    @property
    def challenge(self) -> str:
        """For programs that show neither a key nor a token; empty where no tokens are taken."""
        return authenticate(self._cloud.token_keys.challenge) if self._cloud else ""

    def settle(self, data: bytes, settled: Settled) -> None:
        if self._cloud is None:
            settled(
                TokenInvalid("This node takes no tokens.", hint="Send an API key as `Authorization: Bearer <key>`.")
            )
            return
        try:
            if len(self._waiting) >= MOST_WAITING:
                raise QueueFull("Too many tokens wait to be taken.")
            token = Token.decode(data)
            self._cloud.check(token, str(self._settings.node_name), self._clock())
        except CloisterError as reason:
            settled(reason)
            return
        self._waiting.append((token, settled))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def close(self) -> None:
        if self._writing is not None:
            await self._writing
        if self._spent is not None:
            self._spent.close()

    async def _write(self) -> None:
        assert self._spent is not None and self._cloud is not None
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                self._forget_expired(self._spent)
                outcome = await asyncio.to_thread(self._spent.spend, [token for token, _ in batch])
            except Exception as failure:  # whatever failed, no call waits for ever, and none is served
                _log.error("Tokens could not be taken (%s).", where_raised(failure))
                outcome = [ServiceUnavailable("The token cannot be taken now.")] * len(batch)
            for (_, settled), reason in zip(batch, outcome, strict=True):
                settled(reason)
        self._writing = None

    def _forget_expired(self, spent: SpentTokens) -> None:
        assert self._cloud is not None
        counting = {key.id for key in self._cloud.token_keys.all if self._clock() < key.until}
        if counting != self._counting:
            spent.forget(counting)
            self._counting = counting
