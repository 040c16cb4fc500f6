"""Decode steps: `open` beside `partitioned` at each isolation setting and `obfuscated`, of the same prompts and bits.
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
from cloister.compute.gpu.mailbox import EXPOSED
from cloister.compute.gpu.memory import SharedMemory
from cloister.compute.gpu.program import i32
from cloister.compute.layout import BLOCK_TOKENS, Batch, Chunk, Layout, Remote, Wanted, lay_out
from cloister.engine.graph_runner import ROWS, Bucket
from cloister.levels import OPEN, PARTITIONED
from cloister.models.decoder import Decoder
from cloister_bench.gpu.attention import AttentionProcesses, partitioned

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


def tables(variants: int, blocks: int) -> tuple[int, list[list[int]]]:
    """How many blocks a vault has, and those of each of its prompts. Half of a prompt's blocks are common to all."""
    common = blocks // 2
    own = blocks - common
    firsts = (common + variant * own for variant in range(variants))
    return common + variants * own, [[*range(common), *range(first, first + own)] for first in firsts]


class Opened:
    """The steps of `open` over every user's prompts, which have one beginning, and the same steps behind links."""

    def __init__(self, decoder: Decoder, users: int, prompt: int, variants: int = 1) -> None:
        self._decoder, self._users, self._prompt, self._rows = decoder, users, prompt, users * variants
        self._each, self._own = tables(variants, -(-prompt // BLOCK_TOKENS))
        answers = users * self._each
        self._held = on_gpu(decoder.device.cache(decoder.cache_shape, answers + self._rows * ANSWER_BLOCKS))
        self._held._held.normal_()
        blocks = []
        for row in range(self._rows):
            user, variant = divmod(row, variants)
            answer = answers + row * ANSWER_BLOCKS
            prompt_at = (user * self._each + block for block in self._own[variant])
            blocks.append([*prompt_at, *range(answer, answer + ANSWER_BLOCKS)])
        self._beside = Recorded(decoder, self._held, open_chunks(self._rows, prompt, blocks))
        self._right, self.ms = self._beside.logits(), self._beside.ms()

    def asking(self, processes: AttentionProcesses, count: int, *, silent: bool = False) -> Iterator[Row]:
        """Behind `count` attention processes. With `silent` the last row asks a box that no process answers."""
        decoder, rows, each = self._decoder, self._rows, self._each
        slots = max(EXPOSED, len(self._own))
        with partitioned(processes, decoder, count, self._users, each, slots) as partition:
            for user, (lent, answerer) in enumerate(partition.vaults):
                on_gpu(lent)._held.copy_(self._held._held[user * each : (user + 1) * each])
                for variant, table in enumerate(self._own):
                    answerer.expose(variant, table, start=0, end=self._prompt, rotation=self._prompt)
            asker: Any = partition.asker
            chunks = remote_chunks(self._users, len(self._own))
            asks, asked = asker.aim(lay_out(chunks, decoder.queries_per_kv_head).remotes, rows), rows
            if silent:
                asked, unread = rows - 1, SharedMemory.create(asker.shape.size)
                asks[0, -1], asks[2, -1] = asker.shape.boxes(unread.address)[0], 0
            cache = on_gpu(decoder.device.cache(decoder.cache_shape, rows * ANSWER_BLOCKS))
            recorded = Recorded(decoder, cache, chunks, asker, asks)
            logits, ms = recorded.logits(), recorded.ms()
            row = {"processes": count, "ms": ms, "open_ms": self.ms, "ratio": ms / self.ms}
            row |= {"same_bits": torch.equal(logits[:, :asked], self._right[:, :asked])}
            yield {**row, "late": asker.state.late.nonzero().flatten().tolist()}
            if partition.process_bytes is not None:
                yield {"processes": count, "mb": partition.process_bytes / 1e6}


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
    beside = Opened(decoder, users, prompt)
    yield {"design": OPEN, "ms": beside.ms}
    for count in settings:
        for row in beside.asking(processes, count, silent=silent):
            yield row if "mb" in row else {"design": PARTITIONED, **row}


def measure_variants(
    decoder: Decoder, processes: AttentionProcesses, count: int, users: int, prompt: int, lambdas: Sequence[int]
) -> Iterator[Row]:
    """Steps of `obfuscated`: every user has λ+1 prompts in slots of one vault. A row for each λ, 0 (which is
    `partitioned`) first."""
    plain = 0.0
    for fakes in (0, *lambdas):
        row, *_ = Opened(decoder, users, prompt, fakes + 1).asking(processes, count)
        plain = plain or row["ms"]
        yield {"lambda": fakes, "rows": users * (fakes + 1), **row, "ratio": row["ms"] / plain}
