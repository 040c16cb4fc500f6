"""The controller's way to a vault host: takes the fork server's place where vaults are concerned."""

from __future__ import annotations

import asyncio
import socket
from typing import Literal

from cloister.config import ControllerSettings
from cloister.errors import ServiceUnavailable, SetupError
from cloister.link.memory import LinkShape
from cloister.link.network.address import Address
from cloister.link.network.credentials import credentials_from, read_secret
from cloister.link.network.handshake import digest_of, request_for
from cloister.messages.bridge import Connect, Credentials
from cloister.messages.frames import encode_frame
from cloister.process.child import Child, start_module
from cloister.process.hardening import WIPE_FREED_MEMORY

SERVER_BRIDGE = "cloister.link.network.server_bridge"


class Remote:
    """Each vault is a server bridge here, and a vault of its own behind it. It says that it is ready, or hangs up."""

    def __init__(self, order: Connect) -> None:
        self._order = order

    def spawn(self, role: Literal["service", "vault"], *descriptors: int) -> tuple[Child, socket.socket]:
        """Have a vault forked over there; it answers the link whose descriptors these are."""
        if role != "vault":
            raise ServiceUnavailable("A vault host has vaults only.")
        child, ours = start_module(SERVER_BRIDGE, **WIPE_FREED_MEMORY)
        socket.send_fds(ours, [encode_frame((self._order,))], list(descriptors))
        return child, ours


def check_remote_vaults(settings: ControllerSettings) -> tuple[Address, Credentials] | None:
    """Where the settings' vault host is and how to prove ourselves; None where vaults are to live on this machine."""
    if settings.outpost is None and settings.outpost_key is None:
        return None
    if settings.outpost is None or settings.outpost_key is None:
        raise SetupError(
            "A vault host needs its address and its key.", hint="Give both --outpost and --outpost-key, or neither."
        )
    return Address.parse(settings.outpost), credentials_from(read_secret(settings.outpost_key), "server")


async def reach_remote_vaults(settings: ControllerSettings, weights: int, shape: LinkShape) -> Remote | None:
    """The way to the vault host of the settings, for vaults that must have these weights."""
    if (found := check_remote_vaults(settings)) is None:
        return None
    address, credentials = found
    request = request_for(await asyncio.to_thread(digest_of, weights), shape)
    return Remote(Connect(str(address), credentials, request, settings.allow_degraded_sandbox))
