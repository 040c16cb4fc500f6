"""Measures a suite part by part, keeping the others when one fails."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Generic, Protocol, TypeVar

from cloister.errors import CloisterError
from cloister_bench.suite.documents import Results

Found = TypeVar("Found", bound=Results)


class Watcher(Protocol):
    def begin(self, part: str, total: int) -> None: ...

    def advance(self, what: str) -> None: ...

    def say(self, what: str) -> None: ...


class Measurement(Generic[Found]):
    """`save` is called whenever a part has ended, well or not."""

    foreseen: tuple[type[Exception], ...] = (CloisterError, OSError)

    def __init__(self, results: Found, watcher: Watcher, save: Callable[[], None] = lambda: None) -> None:
        self._results = results
        self._watcher = watcher
        self._save = save
        self._begun = monotonic()

    @property
    def _elapsed(self) -> float:
        return monotonic() - self._begun

    @contextmanager
    def _noting(self, part: str) -> Iterator[None]:
        """A part that fails is noted with its reason, so that the next one can be measured."""
        try:
            yield
        except self.foreseen as failure:
            self._failed(part, failure)
        finally:
            self._results.seconds = self._elapsed
            self._save()

    def _failed(self, part: str, failure: Exception) -> None:
        self._results.failed.append({"part": part, "reason": str(failure) or type(failure).__name__})
