"""Decode steps: `open`, `isolated`, `partitioned` and `obfuscated`, of the same prompts, and the same bits. Keys and
values of prompts are drawn at random, not computed: a step takes as long."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from cloister.compute.base import LinkAsker
from cloister.compute.gpu.cache import GpuCache, on_gpu
from cloister.compute.gpu.kernels import GpuKernels
from cloister.compute.gpu.mailbox import EXPOSED, most_rows
from cloister.compute.gpu.memory import SharedMemory
from cloister.compute.gpu.program import i32
from cloister.compute.layout import Batch, Chunk, Layout, Remote, Wanted, lay_out
from cloister.engine.graph_runner import ROWS, Bucket
from cloister.levels import ISOLATED, OBFUSCATED, OPEN, PARTITIONED
from cloister.models.decoder import Decoder
from cloister_bench.gpu.attention import AttentionProcesses, partitioned, prompt_blocks

Row = dict[str, Any]
COPIED = 1 << 32
ANSWER_BLOCKS = 8
COMPARED, WARM, TIMED = 8, 5, 48
IN_TURN = 6
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


def graphed(run: Callable[[], object]) -> Callable[[], object]:
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


def tables(variants: int, blocks: int) -> tuple[int, list[list[int]]]:
    """How many blocks a vault has, and those of each of its prompts. Half of a prompt's blocks are common to all."""
    common = blocks // 2
    own = blocks - common
    firsts = (common + variant * own for variant in range(variants))
    return common + variants * own, [[*range(common), *range(first, first + own)] for first in firsts]


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


class Prompts:
    """Of each user one prompt or, as at `obfuscated`, several variants with one beginning; and the step of `open`."""

    def __init__(self, decoder: Decoder, users: int, prompt: int, variants: int = 1) -> None:
        self._decoder, self._users, self._prompt, self._variants = decoder, users, prompt, variants
        self.rows = users * variants
        self._each, self._tables = tables(variants, prompt_blocks(prompt))
        self._held = self._cache(users * self._each + self.rows * ANSWER_BLOCKS)
        self._held._held.normal_()
        self._beside = Recorded(decoder, self._held, self._chunks())
        self._right, self.open_ms = self._beside.logits(), self._beside.ms()

    def _cache(self, blocks: int) -> GpuCache:
        return on_gpu(self._decoder.device.cache(self._decoder.cache_shape, blocks))

    def _chunks(self) -> list[Chunk]:
        blocks = []
        for row in range(self.rows):
            user, variant = divmod(row, self._variants)
            answer = self._users * self._each + row * ANSWER_BLOCKS
            held = (user * self._each + block for block in self._tables[variant])
            blocks.append([*held, *range(answer, answer + ANSWER_BLOCKS)])
        return open_chunks(self.rows, self._prompt, blocks)

    def isolated_ms(self) -> float:
        alone = [Recorded(self._decoder, self._held, [chunk]) for chunk in self._chunks()]
        return median_ms(lambda: [one.step() for one in alone], 1, IN_TURN)

    def partitioned(
        self, processes: AttentionProcesses, count: int, *, silent: bool = False
    ) -> tuple[Row, float | None]:
        """And the bytes of an attention process. With `silent` the last user's vault never answers, and the others'
        bits do not change."""
        slots = max(EXPOSED, self._variants)
        with partitioned(processes, self._decoder, count, self._users, self._each, slots) as partition:
            for user, (lent, answerer) in enumerate(partition.vaults):
                on_gpu(lent)._held.copy_(self._held._held[user * self._each : (user + 1) * self._each])
                for variant, table in enumerate(self._tables):
                    answerer.expose(variant, table, start=0, end=self._prompt, rotation=self._prompt)
            return {"processes": count, **self._asking(partition.asker, silent=silent)}, partition.process_bytes

    def _asking(self, asker: Any, *, silent: bool) -> Row:
        chunks, asked = remote_chunks(self._users, self._variants), self.rows
        asks = asker.aim(lay_out(chunks, self._decoder.queries_per_kv_head).remotes, self.rows)
        if silent:  # the last asks a box that no process answers
            asked, unread = self.rows - 1, SharedMemory.create(asker.shape.size)
            asks[0, -1], asks[2, -1] = asker.shape.boxes(unread.address)[0], 0
        recorded = Recorded(self._decoder, self._cache(self.rows * ANSWER_BLOCKS), chunks, asker, asks)
        logits, ms = recorded.logits(), recorded.ms()
        same, late = torch.equal(logits[:, :asked], self._right[:, :asked]), asker.state.late.nonzero().flatten()
        return {"ms": ms, "open_ms": self.open_ms, "same_bits": same, "late": late.tolist()}


def measure_steps(
    decoder: Decoder,
    processes: AttentionProcesses,
    users: int,
    prompt: int,
    settings: Sequence[int],
    *,
    isolated: bool = True,
    silent: bool = False,
) -> Iterator[Row]:
    prompts = Prompts(decoder, users, prompt)
    open_ms = prompts.open_ms
    yield {"design": OPEN, "ms": open_ms}
    for count in settings:
        row, process_bytes = prompts.partitioned(processes, count, silent=silent)
        yield {"design": PARTITIONED, **row, "ratio": row["ms"] / open_ms}
        if process_bytes is not None:
            yield {"part": "memory", "processes": count, "mb": process_bytes / 1e6}
    if isolated:
        ms = prompts.isolated_ms()
        yield {"design": ISOLATED, "ms": ms, "open_ms": open_ms, "ratio": ms / open_ms}


def measure_variants(
    decoder: Decoder, processes: AttentionProcesses, count: int, users: int, prompt: int, lambdas: Sequence[int]
) -> Iterator[Row]:
    """Steps of `obfuscated`, a row for each λ, 0 first, which is `partitioned`."""
    most, plain = most_rows(decoder.cache_shape.kv_heads), 0.0
    for fakes in (0, *lambdas):
        rows = users * (fakes + 1)
        if rows > most:
            reason = f"a step that asks has {most} rows at most, not {rows}"
            yield {"part": "not offered", "what": f"{OBFUSCATED}, λ = {fakes}, {users} users", "reason": reason}
            continue
        row, _ = Prompts(decoder, users, prompt, fakes + 1).partitioned(processes, count)
        plain = plain or row["ms"]
        yield {"lambda": fakes, "rows": rows, **row, "ratio": row["ms"] / plain}
