"""CUDA graphs of what a function launches, recorded without waiting for other streams."""

from __future__ import annotations

from collections.abc import Callable

import torch


def capture(run: Callable[[], None]) -> Callable[[], None]:
    """A CUDA graph of what `run` launches. `torch.cuda.graph` would wait for the whole device, on which another stream
    may wait for another process; this waits for the current stream."""
    torch.cuda.current_stream().synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            run()
        finally:
            graph.capture_end()
    return graph.replay
