"""At which levels a request is served now: those that were rehearsed (controller.rehearsal) and whose processes are
up."""

from collections.abc import Callable, Iterable

from cloister.controller.routes.base import Node
from cloister.controller.vaults import Vaults
from cloister.errors import CloisterError, ServiceUnavailable
from cloister.levels import LEVELS, Decodes, LevelName, Reader
from cloister.messages.controller_frontend import Serving

UNTRIED = ServiceUnavailable("The service is restarting.", hint="Try again in a few seconds.")
FAILED = ServiceUnavailable(
    "The server's own test of this level failed.",
    hint="Its operator finds the reason in the server's output. Try again later, or choose another level.",
)


class Availability:
    """Only the frontend `rehearser` may ask at a closed level."""

    def __init__(self, node: Node, vaults: Vaults, serving: Callable[[], Serving]) -> None:
        self._node, self._vaults, self._serving = node, vaults, serving
        self.closed: dict[str, CloisterError] = {}
        self.rehearser = 0

    @property
    def now(self) -> tuple[LevelName, ...]:
        try:
            offered = self._serving().levels
        except ServiceUnavailable:
            return ()
        return tuple(name for name in offered if name not in self.closed and self._has_processes(name))

    def check(self, level: str, frontend: int) -> None:
        if frontend != self.rehearser and (reason := self.closed.get(level)) is not None:
            raise reason

    def close(self, levels: Iterable[str], reason: CloisterError = UNTRIED) -> None:
        self.closed |= dict.fromkeys(levels, reason)

    def open(self, level: str) -> None:
        self.closed.pop(level, None)

    def _has_processes(self, name: str) -> bool:
        level = LEVELS[name]
        needs_service, needs_vaults = level.decodes is Decodes.SERVICE, level.reader is Reader.VAULT
        return (self._node.service is not None or not needs_service) and (self._vaults.can_be_had or not needs_vaults)
