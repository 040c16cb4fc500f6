"""A binary heap of runs in two columns, twelve bytes for each. Knows neither what a run is nor what its rank means."""

from __future__ import annotations

from array import array

NOWHERE = -1


class Heap:
    """Least rank first. `places` is a column of the caller's: where each run is in its heap, or NOWHERE; so a run is in
    one heap at most, and can be taken out of the middle."""

    __slots__ = ("_ranks", "_runs")

    def __init__(self) -> None:
        self._ranks = array("Q")
        self._runs = array("i")

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, run: int) -> bool:
        return run in self._runs

    @property
    def least(self) -> int:
        """The rank of the first."""
        return self._ranks[0]

    def push(self, rank: int, run: int, places: array[int]) -> None:
        self._ranks.append(rank)
        self._runs.append(run)
        self._rise(len(self._runs) - 1, rank, run, places)

    def pop(self, places: array[int]) -> tuple[int, int]:
        """The first's rank, and the run."""
        first = self._ranks[0], self._runs[0]
        self.remove(first[1], places)
        return first

    def remove(self, run: int, places: array[int]) -> None:
        at = places[run]
        places[run] = NOWHERE
        rank, last = self._ranks.pop(), self._runs.pop()
        if last != run:  # it takes the place that is free now
            self._rise(self._sink(at, rank, places), rank, last, places)

    def _sink(self, at: int, rank: int, places: array[int]) -> int:
        """Move up what belongs above this rank, from a free place on; the place that is free then."""
        ranks, runs = self._ranks, self._runs
        end = len(ranks)
        while (child := 2 * at + 1) < end:
            if child + 1 < end and ranks[child + 1] < ranks[child]:
                child += 1
            if ranks[child] >= rank:
                break
            ranks[at], runs[at] = ranks[child], runs[child]
            places[runs[at]] = at
            at = child
        return at

    def _rise(self, at: int, rank: int, run: int, places: array[int]) -> None:
        ranks, runs = self._ranks, self._runs
        while at and ranks[above := (at - 1) // 2] > rank:
            ranks[at], runs[at] = ranks[above], runs[above]
            places[runs[at]] = at
            at = above
        ranks[at], runs[at] = rank, run
        places[run] = at
