from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from cloister.prefix.heap import NOWHERE, Heap

RUNS = 12
STEPS = st.lists(st.tuples(st.integers(0, RUNS - 1), st.sampled_from((0, 1, 5, (1 << 64) - 1))), max_size=60)


@given(STEPS)
def test_least_first_whatever_is_taken_out_of_the_middle(steps: list[tuple[int, int]]) -> None:
    """A run that is named again leaves; places always say where each is."""
    heap, places, expected = Heap(), array("i", [NOWHERE]) * RUNS, dict[int, int]()
    for run, rank in steps:
        if expected.pop(run, None) is None:
            heap.push(rank, run, places)
            expected[run] = rank
        else:
            heap.remove(run, places)
        assert len(heap) == len(expected)
        assert {run: heap._runs[place] for run, place in enumerate(places) if place != NOWHERE} == {
            run: run for run in expected
        }
    popped = []
    while heap:
        assert heap.least == min(expected.values())
        rank, run = heap.pop(places)
        assert expected.pop(run) == rank
        popped.append(rank)
    assert popped == sorted(popped) and set(places) == {NOWHERE}
