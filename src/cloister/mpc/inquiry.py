"""How all parties are, as one question: those that cannot be reached are in the answer too."""

from __future__ import annotations

import asyncio

import msgspec

from cloister.errors import CloisterError
from cloister.mpc.certificates import Credentials, client_tls
from cloister.mpc.config import PartiesConfig
from cloister.mpc.introduction import introduce


class PartyState(msgspec.Struct, frozen=True):
    """One party. `problem` is why it is not ready, in words."""

    rank: int
    address: str
    ready: bool
    problem: str = ""
    model: str = ""
    epoch: int = 0
    sessions: int = 0


async def ask_all(config: PartiesConfig, own: Credentials) -> list[PartyState]:
    """Every party's state."""
    tls = client_tls(config.path(config.authority), own)

    async def ask(rank: int) -> PartyState:
        address = config.party[rank].control
        try:
            line, said = await introduce(config, rank, tls)
        except CloisterError as reason:
            return PartyState(rank, address, False, reason.message)
        line.abort()
        return PartyState(rank, address, said.ready, said.missing, said.model, said.epoch, said.sessions)

    return list(await asyncio.gather(*(ask(rank) for rank in range(len(config.party)))))
