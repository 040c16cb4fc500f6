"""Three parties as threads of one process, over memory: for tests and probes, never for serving (they share a memory).

parties = ThreadParties(); parties.put("w/…", array); parties.each(lambda party: …); parties.join("g/answer")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import NamedTuple, TypeVar
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray
from spu import Runtime, libspu

from cloister_mpc.config import PARTIES
from cloister_mpc.shares import Dealer, runtime_config

T = TypeVar("T")


class Party(NamedTuple):
    rank: int
    runtime: Runtime
    link: libspu.link.Context


class ThreadParties:
    """Each in a thread of its own."""

    def __init__(self, config: libspu.RuntimeConfig | None = None) -> None:
        self.dealer = Dealer()
        count = PARTIES
        self._pool = ThreadPoolExecutor(count)
        described = libspu.link.Desc()
        described.id = uuid4().hex  # links in memory are found by this name
        for rank in range(count):
            described.add_party(f"party{rank}", f"thread:{rank}")
        config = config or runtime_config()

        def open_party(rank: int) -> Party:
            link = libspu.link.create_mem(described, rank)
            return Party(rank, Runtime(link, config), link)

        self.parties = list(self._pool.map(open_party, range(count)))

    def put(self, name: str, values: NDArray[np.generic]) -> None:
        """Deal secret shares of the values."""
        for party, share in zip(self.parties, self.dealer.deal(values), strict=True):
            party.runtime.set_var(name, share)

    def put_all(self, values: Mapping[str, NDArray[np.generic]], prefix: str = "") -> None:
        for name, value in values.items():
            self.put(prefix + name, value)

    def each(self, work: Callable[[Party], T]) -> list[T]:
        """Let all parties work at once; the first failure is raised, after all have ended."""
        waiting = [self._pool.submit(work, party) for party in self.parties]
        failures = [failure for future in waiting if (failure := future.exception()) is not None]
        if failures:
            raise failures[0]
        return [future.result() for future in waiting]

    def join(self, name: str) -> NDArray[np.generic]:
        """A variable's plain values."""
        return self.dealer.join([party.runtime.get_var(name) for party in self.parties])

    def close(self) -> None:
        self.parties.clear()  # runtimes have no way to forget, but end with their last holder
        self._pool.shutdown()

    def __enter__(self) -> ThreadParties:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
