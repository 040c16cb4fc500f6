"""The controller's way to an outpost: takes the fork server's seat where vaults are concerned."""

from __future__ import annotations

import asyncio
import socket
from typing import Literal

from cloister.config import ControllerSettings
from cloister.errors import ServiceUnavailable, SetupError
from cloister.link.network.address import Address
from cloister.link.network.hail import digest_of, hail_of
from cloister.link.network.secret import read_secret
from cloister.link.shape import LinkShape
from cloister.messages.bridge import Cross, Hail
from cloister.messages.frames import encode_frame
from cloister.process.child import Child, start_module
from cloister.process.hardening import WIPE_FREED_MEMORY

NEAR = "cloister.link.network.near"


class Remote:
    """Each vault is a near bridge here, and a vault of its own behind it. It says that it is ready, or hangs up."""

    def __init__(self, address: Address, secret: bytes, hail: Hail, *, allow_degraded: bool = False) -> None:
        self._order = Cross(str(address), secret, hail, allow_degraded)

    def spawn(self, role: Literal["service", "vault"], *descriptors: int) -> tuple[Child, socket.socket]:
        """Have a vault forked over there; it answers the link whose descriptors these are."""
        if role != "vault":
            raise ServiceUnavailable("An outpost has vaults only.")
        child, ours = start_module(NEAR, **WIPE_FREED_MEMORY)
        socket.send_fds(ours, [encode_frame((self._order,))], list(descriptors))
        return child, ours


def check_outpost(settings: ControllerSettings) -> tuple[Address, bytes] | None:
    """Where the settings' outpost is and the key to it; None where vaults are to live on this machine."""
    if settings.outpost is None and settings.outpost_key is None:
        return None
    if settings.outpost is None or settings.outpost_key is None:
        raise SetupError(
            "An outpost needs its address and its key.", hint="Give both --outpost and --outpost-key, or neither."
        )
    return Address.parse(settings.outpost), read_secret(settings.outpost_key)


async def reach_outpost(settings: ControllerSettings, weights: int, shape: LinkShape) -> Remote | None:
    """The way to the outpost of the settings, for vaults that must have these weights."""
    if (found := check_outpost(settings)) is None:
        return None
    address, secret = found
    hail = hail_of(await asyncio.to_thread(digest_of, weights), shape)
    return Remote(address, secret, hail, allow_degraded=settings.allow_degraded_sandbox)
