"""A runner for devices that repeat a recorded step in one launch: decoding at fixed numbers of rows and table widths.

A step in which every sequence computes one token is padded to the next bucket with copies of its first row, which
compute the same values into the same places, and is copied into the bucket's own tensors; then the recording is
repeated. Every other step runs as on any device. Rows are batch-invariant, so both give the same logits, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cloister.compute.base import KVCache, LinkAsker
from cloister.compute.layout import BLOCK_TOKENS, SEGMENTS, Batch, Chunk, Wanted, lay_out
from cloister.engine.runner import ModelRunner
from cloister.models.decoder import Decoder

ROWS = (1, 2, 4, 8, 16, 32, 64)
WIDTHS = (32, 64, 128, 256, 512)
"""Blocks in a sequence's table; wider ones up to the longest context double on."""
ALIGNED = 16


Place = Callable[[torch.Tensor], torch.Tensor]


class Staging:
    """Memory of the host from which batches are copied to the device, one at a time: enough for the largest bucket.

    A sealed process can pin no more, so it is taken once.
    """

    def __init__(self, rows: int, width: int, place: Place) -> None:
        self.memory = torch.zeros(_length(_sizes(rows, width)), dtype=torch.uint8)
        self._copied: torch.cuda.Event | None = None
        if place(self.memory[:1]).is_cuda:
            self.memory, self._copied = self.memory.pin_memory(), torch.cuda.Event()  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Until the last copy is done."""
        if self._copied is not None:
            self._copied.synchronize()

    def copy(self, device: torch.Tensor) -> None:
        device.copy_(self.memory[: len(device)], non_blocking=True)
        if self._copied is not None:
            self._copied.record()


class Bucket:
    """One batch of a fixed shape in the device's memory, filled from the host in one copy."""

    def __init__(self, rows: int, width: int, place: Place, staging: Staging | None = None) -> None:
        self.rows, self.width = rows, width
        sizes = _sizes(rows, width)
        self._staging = Staging(rows, width, place) if staging is None else staging
        self._device = place(torch.zeros(_length(sizes), dtype=torch.uint8))
        self._on_host = _carved(self._staging.memory, sizes)
        each = torch.arange(rows, dtype=torch.int32)
        held: dict[str, Any] = dict(_carved(self._device, sizes))
        held |= {"span": place(each), "tile_row": place(each), "tile_rows": place(torch.ones_like(each))}
        self.batch = Batch(rows=rows, **held)

    def fill(self, batch: Batch) -> None:
        """Take over a batch of single rows, and its first row for all places that are left."""
        used = batch.tables.shape[1]
        self._staging.wait()
        for name, to in self._on_host.items():
            given = getattr(batch, name)
            into = to[:, :used] if name == "tables" else to
            into[: batch.rows] = given
            into[batch.rows :] = given[0]
        self._staging.copy(self._device)

    def wipe(self) -> None:
        self._staging.wait()
        self._staging.memory.zero_()
        self._device.zero_()


def _sizes(rows: int, width: int) -> dict[str, tuple[int, ...]]:
    each = dict.fromkeys(("tokens", "slots", "rotations", "positions", "counts"), (rows,))
    return {**each, "segments": (rows, SEGMENTS, 4), "tables": (rows, width)}


def _length(sizes: dict[str, tuple[int, ...]]) -> int:
    return sum(_bytes(name, size) for name, size in sizes.items())


def _dtype(name: str) -> torch.dtype:
    return torch.int64 if name in ("tokens", "slots", "rotations") else torch.int32


def _bytes(name: str, size: tuple[int, ...]) -> int:
    length = torch.Size(size).numel() * _dtype(name).itemsize
    return -(-length // ALIGNED) * ALIGNED


def _carved(memory: torch.Tensor, sizes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    found, at = {}, 0
    for name, size in sizes.items():
        length = torch.Size(size).numel() * _dtype(name).itemsize
        found[name] = memory[at : at + length].view(_dtype(name)).view(size)
        at += _bytes(name, size)
    return found


def runner_for(decoder: Decoder, cache: KVCache, asker: LinkAsker | None = None) -> ModelRunner:
    """The runner that suits the decoder's device."""
    return (GraphRunner if decoder.device.records else ModelRunner)(decoder, cache, asker)


class GraphRunner(ModelRunner):
    """Records a step for each bucket when it is first needed."""

    def __init__(self, decoder: Decoder, cache: KVCache, asker: LinkAsker | None = None) -> None:
        super().__init__(decoder, cache, asker)
        self._staging = Staging(ROWS[-1], self._widths()[-1], decoder.device.place)
        self._recorded: dict[tuple[int, int], tuple[Bucket, Callable[[], torch.Tensor]]] = {}

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        if len(chunks) > ROWS[-1] or any(len(c.tokens) != 1 or c.wanted is Wanted.NONE for c in chunks):
            return super().forward(chunks)
        batch = lay_out(chunks, self._decoder.queries_per_kv_head)
        if batch.remotes:
            return super().forward(chunks)
        self._check(batch)
        _, repeat = self._bucket(batch)
        return repeat()[: batch.rows]

    def wipe(self, blocks: Sequence[int]) -> None:
        super().wipe(blocks)
        for bucket, _ in self._recorded.values():
            bucket.wipe()

    def _bucket(self, batch: Batch) -> tuple[Bucket, Callable[[], torch.Tensor]]:
        """The bucket of this batch, filled, and what computes its logits."""
        rows = next(rows for rows in ROWS if rows >= batch.rows)
        width = next(width for width in self._widths() if width >= batch.tables.shape[1])
        if (rows, width) in self._recorded:
            self._recorded[rows, width][0].fill(batch)
            return self._recorded[rows, width]
        bucket = Bucket(rows, width, self._decoder.device.place, self._staging)
        bucket.fill(batch)

        def run() -> torch.Tensor:
            return self._decoder.logits(self._decoder.hidden(bucket.batch, self.cache))

        self._recorded[rows, width] = (bucket, self._decoder.device.record(run))
        return self._recorded[rows, width]

    def _widths(self) -> list[int]:
        widths, most = list(WIDTHS), self.max_context // BLOCK_TOKENS + SEGMENTS
        while widths[-1] < most:
            widths.append(2 * widths[-1])
        return widths

    def _check(self, batch: Batch) -> None:
        """What the kernels check of a batch on the host, they cannot of one that is in the device's memory."""
        inside = int(batch.tables.min()) >= 0 and int(batch.tables.max()) < self.cache.blocks
        known = int(batch.tokens.min()) >= 0 and int(batch.tokens.max()) < self.vocabulary
        if not inside or not known:
            raise IndexError("a block or token is outside the cache or the vocabulary")
