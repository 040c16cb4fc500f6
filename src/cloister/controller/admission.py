"""The API keys: read at the start, and again on SIGHUP. Requests that a revoked key has under way are answered."""

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from typing import Protocol

from cloister.config import GatewaySettings
from cloister.errors import CloisterError
from cloister.keys import load_keys
from cloister.messages.controller_frontend import KeyEntry

log = logging.getLogger(__name__)


class Admits(Protocol):
    def admit(self, keys: tuple[KeyEntry, ...]) -> None: ...


class Admission:
    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._frontends: Sequence[Admits] = ()
        self._has_terminal = _has_terminal()
        self.keys = load_keys(settings).entries

    def watch(self, *frontends: Admits) -> None:
        self._frontends = frontends
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.hung_up)

    def hung_up(self) -> None:
        """An unusable file changes nothing. A terminal that is closed sends SIGHUP too; then this process must end."""
        if self._has_terminal and not _has_terminal():
            os.kill(os.getpid(), signal.SIGTERM)
            return
        if self._settings.keys_file is None:
            log.warning("There is no keys file to read again: `cloister serve --keys FILE`.")
            return
        try:
            self.keys = load_keys(self._settings).entries
        except CloisterError as wrong:
            log.error("The keys stay as they were. %s", wrong)
            return
        for frontend in self._frontends:
            frontend.admit(self.keys)
        log.warning("The keys file was read again; keys it admits: %d.", len(self.keys))


def _has_terminal() -> bool:
    """Whether this process belongs to an open terminal (tty(4))."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
