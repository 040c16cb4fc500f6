"""Times on the GPU, by its own events; and the bandwidth of a copy, which is the floor's."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import median

import torch

COPIED = 1 << 32


def median_ms(run: Callable[[], object], warm: int = 5, count: int = 30) -> float:
    for _ in range(warm):
        run()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]  # type: ignore[no-untyped-call]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.current_stream().synchronize()
    return float(median(a.elapsed_time(b) for a, b in pairwise(events)))


def graphed(run: Callable[[], object]) -> Callable[[], object]:
    """Recorded, so that no launch is in the time."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def bandwidth() -> float:
    """Bytes read and written per second by a copy of 4 GiB."""
    a, b = (torch.empty(COPIED, dtype=torch.uint8, device="cuda").random_() for _ in range(2))
    return 2 * COPIED / (median_ms(lambda: b.copy_(a), 2, 8) / 1e3)
