"""Decode steps: `open` and `partitioned` at each isolation setting, of the same prompts, and the same bits.
Keys and values of prompts are drawn at random, not computed: a step takes as long."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from cloister.compute.base import LinkAsker
from cloister.compute.gpu.cache import GpuCache, on_gpu
from cloister.compute.gpu.kernels import GpuKernels
from cloister.compute.gpu.memory import SharedMemory
from cloister.compute.gpu.program import i32
from cloister.compute.layout import Batch, Chunk, Layout, Remote, Wanted, lay_out
from cloister.engine.graph_runner import ROWS, Bucket
from cloister.levels import OPEN, PARTITIONED
from cloister.models.decoder import Decoder
from cloister_bench.gpu.attention import AttentionProcesses, partitioned, prompt_blocks

Row = dict[str, Any]
COPIED = 1 << 32
ANSWER_BLOCKS = 8
COMPARED, WARM, TIMED = 8, 5, 48
# steps whose logits are compared, and that are timed: as many as the answer's blocks have room for
WIDTHS = (32, 64, 128, 256, 512)


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


def bandwidth() -> float:
    """Bytes read and written per second by a copy of 4 GiB."""
    a, b = (torch.empty(COPIED, dtype=torch.uint8, device="cuda").random_() for _ in range(2))
    return 2 * COPIED / (median_ms(lambda: b.copy_(a), 2, 8) / 1e3)


def greatest(kernels: GpuKernels, logits: torch.Tensor) -> torch.Tensor:
    """The lowest index among equals."""
    rows, columns = logits.shape
    chosen = torch.empty(rows, dtype=torch.int64, device="cuda")
    kernels.launch("greatest", (rows,), 1024, logits, i32(logits.stride(0)), i32(columns), chosen)
    return chosen


def advance(kernels: GpuKernels, logits: torch.Tensor, batch: Batch) -> None:
    """Take every row's greatest logit as its next token, in place. Every table must have room for one token more."""
    rows = len(logits)
    given = (greatest(kernels, logits), batch.tokens, batch.positions, batch.slots, batch.tables)
    sizes = (i32(batch.tables.shape[1]), batch.segments, batch.counts, i32(rows))
    kernels.launch("advance", (-(-rows // 64),), 64, *given, *sizes)


def prompts_in_cache(decoder: Decoder, users: int, prompt: int) -> tuple[GpuCache, list[range]]:
    """The last blocks are for the answer."""
    each = prompt_blocks(prompt) + ANSWER_BLOCKS
    cache = on_gpu(decoder.device.cache(decoder.cache_shape, users * each))
    cache._held.normal_()
    return cache, [range(user * each, (user + 1) * each) for user in range(users)]


class Recorded:
    """One recorded step, as a service pads it, that feeds every row the greatest of its last logits, on the device."""

    def __init__(
        self,
        decoder: Decoder,
        cache: GpuCache,
        chunks: Sequence[Chunk],
        asker: LinkAsker | None = None,
        asks: torch.Tensor | None = None,
    ) -> None:
        width = next(width for width in WIDTHS if width >= len(chunks[0].blocks))
        self._rows, padded = len(chunks), next(rows for rows in ROWS if rows >= len(chunks))
        bucket = self._bucket = Bucket(padded, width, decoder.device.place, asks=asker is not None)  # for the recorded
        bucket.fill(replace(lay_out(chunks, decoder.queries_per_kv_head), asks=asks))

        def run() -> torch.Tensor:
            logits = decoder.logits(decoder.hidden(bucket.batch, cache, asker))
            assert isinstance(decoder.kernels, GpuKernels)
            advance(decoder.kernels, logits, bucket.batch)
            return logits

        self.step = decoder.device.record(run)

    def logits(self) -> torch.Tensor:
        return torch.stack([self.step()[: self._rows].clone() for _ in range(COMPARED)])

    def ms(self, count: int = TIMED) -> float:
        return median_ms(self.step, WARM, count)


def open_chunks(users: int, prompt: int, blocks: Sequence[Sequence[int]]) -> list[Chunk]:
    layout = Layout(prompt=prompt, rotation=prompt)
    return [Chunk([7 + user], prompt, blocks[user], layout, Wanted.LAST) for user in range(users)]


def remote_chunks(users: int, variants: int = 1) -> list[Chunk]:
    return [
        Chunk(
            [7 + row],
            0,
            range(row * ANSWER_BLOCKS, (row + 1) * ANSWER_BLOCKS),
            Layout(prompt=0, remote=Remote(*divmod(row, variants))),
            Wanted.LAST,
        )
        for row in range(users * variants)
    ]


def measure_steps(
    decoder: Decoder,
    processes: AttentionProcesses,
    users: int,
    prompt: int,
    settings: Sequence[int],
    *,
    silent: bool = False,
) -> Iterator[Row]:
    """With `silent` the last user's vault never answers, and the others' bits do not change."""
    held, blocks = prompts_in_cache(decoder, users, prompt)
    chunks = open_chunks(users, prompt, blocks)
    beside = Recorded(decoder, held, chunks)
    right, open_ms = beside.logits(), beside.ms()
    yield {"design": OPEN, "ms": open_ms}
    for count in settings:
        with partitioned(processes, decoder, count, users, prompt_blocks(prompt)) as partition:
            for (lent, answerer), own in zip(partition.vaults, blocks, strict=True):
                cache = on_gpu(lent)
                cache._held.copy_(held._held[own.start :][: cache.blocks])
                answerer.expose(0, range(cache.blocks), start=0, end=prompt, rotation=prompt)
            yield from _asking(decoder, partition.asker, users, right, open_ms, count, silent=silent)
            if partition.process_bytes is not None:
                yield {"processes": count, "mb": partition.process_bytes / 1e6}


def _asking(
    decoder: Decoder, asker: Any, users: int, right: torch.Tensor, open_ms: float, count: int, *, silent: bool
) -> Iterator[Row]:
    cache = on_gpu(decoder.device.cache(decoder.cache_shape, users * ANSWER_BLOCKS))
    chunks = remote_chunks(users)
    asks, asked = asker.aim(lay_out(chunks, decoder.queries_per_kv_head).remotes, users), users
    if silent:  # the last asks a box that no process answers
        asked, unread = users - 1, SharedMemory.create(asker.shape.size)
        asks[0, -1], asks[2, -1] = asker.shape.boxes(unread.address)[0], 0
    recorded = Recorded(decoder, cache, chunks, asker, asks)
    logits, ms = recorded.logits(), recorded.ms()
    row = {"design": PARTITIONED, "processes": count, "ms": ms, "open_ms": open_ms, "ratio": ms / open_ms}
    row |= {"same_bits": torch.equal(logits[:, :asked], right[:, :asked])}
    yield {**row, "late": asker.state.late.nonzero().flatten().tolist()}
