"""Three parties as threads of one process, over memory, as tests use them.

parties = ThreadParties(); parties.put("w/…", array); parties.each(lambda party: …); parties.join("g/answer")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from spu import Runtime

from cloister_bench.mpc.parties import Parties

T = TypeVar("T")


class Party(NamedTuple):
    rank: int
    runtime: Runtime


class ThreadParties(Parties):
    @property
    def parties(self) -> list[Party]:
        return [Party(*each) for each in enumerate(self.runtimes)]

    def put_all(self, values: Mapping[str, NDArray[np.generic]], prefix: str = "") -> None:
        for name, value in values.items():
            self.put(prefix + name, value)

    def each(self, work: Callable[[Party], T]) -> list[T]:  # type: ignore[override]
        return super().each(lambda rank: work(Party(rank, self.runtimes[rank])))
