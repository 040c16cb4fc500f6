"""The end of a node in order: requests that run go on to their ends, new ones get 503 and go elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cloister.errors import ServiceUnavailable

ALWAYS = ("/health", "/metrics")  # the node is still there, and its operator watches it end


class Drain:
    def __init__(self) -> None:
        self._active = 0
        self._when_idle: Callable[[], None] | None = None

    @property
    def begun(self) -> bool:
        return self._when_idle is not None

    def begin(self, when_idle: Callable[[], None]) -> None:
        self._when_idle = when_idle
        self._look()

    @contextmanager
    def request(self, path: str) -> Iterator[None]:
        """While it is answered. ServiceUnavailable once the end has begun."""
        if self.begun and path not in ALWAYS:
            hint = "Send the request to another node, or again in a while."
            raise ServiceUnavailable("This node is about to stop.", hint=hint)
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1
            self._look()

    def _look(self) -> None:
        if self._when_idle is not None and not self._active:
            self._when_idle()
