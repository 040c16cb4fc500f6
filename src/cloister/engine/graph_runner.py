"""A runner for devices that replay recorded steps (CUDA graphs) at fixed sizes: a step is padded with copies of its
first row. Rows are batch-invariant: recorded or not, logits are the same, bit for bit. Only recorded steps query
vaults, one row a slot: tokens that query come one at a time, after all others."""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from cloister.compute.base import KVCache, LinkAsker
from cloister.compute.layout import ASKS, BLOCK_TOKENS, SEGMENTS, Batch, Chunk, Layout, Remote, Wanted, lay_out
from cloister.engine.runner import ModelRunner, wanted_rows
from cloister.models.decoder import Decoder

ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128)
WIDTHS = (32, 64, 128, 256, 512)  # blocks in a sequence's table; doubled further up to the longest context
SETTLED_WIDTHS = (32, 64)
ALIGNED = 16
NO_VAULT = Remote(link=-1, slot=0)

Place = Callable[[torch.Tensor], torch.Tensor]


class Staging:
    """Host memory from which batches are copied. Allocated once: a sealed process cannot pin more."""

    def __init__(self, rows: int, width: int, place: Place) -> None:
        self.memory = torch.zeros(_length(_sizes(rows, width, asks=True)), dtype=torch.uint8)
        self._copied: torch.cuda.Event | None = None
        if place(self.memory[:1]).is_cuda:
            self.memory, self._copied = self.memory.pin_memory(), torch.cuda.Event()  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()

    def copy(self, device: torch.Tensor) -> None:
        device.copy_(self.memory[: len(device)], non_blocking=True)
        if self._copied is not None:
            self._copied.record()


class Bucket:
    def __init__(
        self, rows: int, width: int, place: Place, staging: Staging | None = None, *, asks: bool = False
    ) -> None:
        self.rows, self.width = rows, width
        sizes = _sizes(rows, width, asks=asks)
        self._staging = Staging(rows, width, place) if staging is None else staging
        self._device = place(torch.zeros(_length(sizes), dtype=torch.uint8))
        self._on_host = _carved(self._staging.memory, sizes)
        each = torch.arange(rows, dtype=torch.int32)
        held: dict[str, Any] = dict(_carved(self._device, sizes))
        held |= {"span": place(each), "tile_row": place(each), "tile_rows": place(torch.ones_like(each))}
        self.batch = Batch(rows=rows, **held)
        self._filled = False

    def fill(self, batch: Batch) -> None:
        """Pads with the first row. Padding does not announce the query to the vault again."""
        used = batch.tables.shape[1]
        self._staging.wait()
        for name, to in self._on_host.items():
            given = getattr(batch, name)
            if name == "asks":
                to[:, : batch.rows] = given
                to[0, batch.rows :], to[1:, batch.rows :] = given[0, 0], 0
                continue
            into = to[:, :used] if name == "tables" else to
            into[: batch.rows] = given
            into[batch.rows :] = given[0]
        self._staging.copy(self._device)
        self._filled = True

    def wipe(self) -> None:
        if self._filled:
            self._staging.wait()
            self._staging.memory.zero_()
            self._device.zero_()
            self._filled = False


def _sizes(rows: int, width: int, *, asks: bool = False) -> dict[str, tuple[int, ...]]:
    each = dict.fromkeys(("tokens", "slots", "rotations", "positions", "counts"), (rows,))
    asking: dict[str, tuple[int, ...]] = {"asks": (ASKS, rows)} if asks else {}
    return {**each, "segments": (rows, SEGMENTS, 4), "tables": (rows, width), **asking}


def _length(sizes: dict[str, tuple[int, ...]]) -> int:
    return sum(_bytes(name, size) for name, size in sizes.items())


def _dtype(name: str) -> torch.dtype:
    return torch.int64 if name in ("tokens", "slots", "rotations", "asks") else torch.int32


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
    return (GraphRunner if decoder.device.records else ModelRunner)(decoder, cache, asker)


def each_alone(batch: Batch) -> Batch:
    each = torch.arange(batch.rows, dtype=torch.int32)
    per_span = {name: getattr(batch, name)[batch.span] for name in ("tables", "segments", "counts", "rotations")}
    return replace(batch, span=each, tile_row=each, tile_rows=torch.ones_like(each), **per_span)


Numbered = tuple[int, Chunk]


def rounds(chunks: Sequence[Chunk], most: int) -> tuple[list[Numbered], list[list[Numbered]]]:
    """Parts before chunks' first vault query; then rounds of single tokens, no slot twice. Others join the first."""
    quiet: list[Numbered] = []
    queues: list[deque[Numbered]] = []
    for index, chunk in enumerate(chunks):
        remote, length = chunk.layout.remote, len(chunk.tokens)
        first = length if remote is None else min(length, max(0, chunk.layout.prompt - chunk.start))
        if length == 1 and chunk.wanted is not Wanted.NONE and (remote is None or not first):
            queues.append(deque([(index, chunk)]))
            continue
        alone = deque[Numbered]()
        if first:
            wanted = chunk.wanted if first == length or chunk.wanted is Wanted.ALL else Wanted.NONE
            quiet.append((index, replace(chunk, tokens=chunk.tokens[:first], wanted=wanted)))
        for i in range(first, length):
            wanted = chunk.wanted if i == length - 1 or chunk.wanted is Wanted.ALL else Wanted.NONE
            alone.append((index, replace(chunk, tokens=[chunk.tokens[i]], start=chunk.start + i, wanted=wanted)))
        queues.append(alone)
    found: list[list[Numbered]] = []
    while queues := [queue for queue in queues if queue]:
        found += [[queue.popleft() for queue in queues[i : i + most]] for i in range(0, len(queues), most)]
    return quiet, found


class GraphRunner(ModelRunner):
    def __init__(self, decoder: Decoder, cache: KVCache, asker: LinkAsker | None = None) -> None:
        super().__init__(decoder, cache, asker)
        self._staging = Staging(ROWS[-1], self._widths()[-1], decoder.device.place)
        self._recorded: dict[tuple[int, int, bool], tuple[Bucket, Callable[[], torch.Tensor]]] = {}
        self._settled = False

    def settle(self, rows: int) -> None:
        """Record decoding before the seal: a sealed process cannot record. Other steps run unrecorded."""
        for width in SETTLED_WIDTHS:
            for count in ROWS[: 1 + bisect_left(ROWS, rows)]:
                for remote in (None, NO_VAULT)[: 1 + (self.asker is not None)]:
                    layout = Layout(prompt=0, remote=remote)
                    blocks = [0] * min(width, self._widths()[-1])
                    self.forward([Chunk([0], 0, blocks, layout, Wanted.LAST)] * count)
        if self.asker is not None:
            self.asker.broken()
        self._decoder.device.reserve()
        self._settled = True

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        if all(chunk.layout.remote is None for chunk in chunks):
            return self._forward(chunks)
        most = self.asker.most_rows if self.asker is not None else ROWS[-1]
        quiet, asking = rounds(chunks, max(rows for rows in ROWS if rows <= max(most, ROWS[0])))
        rows: list[list[torch.Tensor]] = [[] for _ in chunks]
        if quiet:
            logits, at = self._forward([chunk for _, chunk in quiet]), 0
            for index, chunk in quiet:
                count = {Wanted.NONE: 0, Wanted.LAST: 1, Wanted.ALL: len(chunk.tokens)}[chunk.wanted]
                rows[index].append(logits[at : (at := at + count)])
        for number, each in enumerate(asking):
            logits = self._repeat([chunk for _, chunk in each])
            for (index, chunk), row in zip(each, torch.split(logits, 1), strict=True):
                if chunk.wanted is not Wanted.NONE:  # the next round overwrites them
                    rows[index].append(row if number == len(asking) - 1 else row.clone())
        if not quiet and len(asking) == 1 and all(chunk.wanted is not Wanted.NONE for chunk in chunks):
            return logits
        kept: list[torch.Tensor] = []
        for chunk, found in zip(chunks, rows, strict=True):
            if chunk.wanted is not Wanted.NONE:
                kept += found if chunk.wanted is Wanted.ALL else found[-1:]
        return torch.cat(kept) if kept else torch.empty(0, self.vocabulary)

    def _forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        rows = sum(len(chunk.tokens) for chunk in chunks)
        if rows > ROWS[-1]:
            return super().forward(chunks)
        if rows == len(chunks) and all(chunk.wanted is not Wanted.NONE for chunk in chunks):
            return self._repeat(chunks)
        with lay_out(chunks, self._decoder.queries_per_kv_head) as batch:
            alone = each_alone(batch)
            if not self._settled or self._key(alone) in self._recorded:
                return self._repeated(alone)[wanted_rows(chunks)]
        return super().forward(chunks)

    def _repeat(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        with lay_out(chunks, self._decoder.queries_per_kv_head) as batch:
            return self._repeated(batch)

    def _repeated(self, batch: Batch) -> torch.Tensor:
        self._check(batch)
        if batch.remotes:
            if self.asker is None:
                raise ValueError("this runner has no link to vaults")
            batch = replace(batch, asks=self.asker.aim(batch.remotes, batch.rows))
        _, repeat = self._bucket(batch)
        return repeat()[: batch.rows]

    def wipe(self, blocks: Sequence[int]) -> None:
        super().wipe(blocks)
        for bucket, _ in self._recorded.values():
            bucket.wipe()

    def _bucket(self, batch: Batch) -> tuple[Bucket, Callable[[], torch.Tensor]]:
        key = self._key(batch)
        if key in self._recorded:
            self._recorded[key][0].fill(batch)
            return self._recorded[key]
        rows, width, _ = key
        bucket = Bucket(rows, width, self._decoder.device.place, self._staging, asks=batch.asks is not None)
        bucket.fill(batch)

        def run() -> torch.Tensor:
            return self._decoder.logits(self._decoder.hidden(bucket.batch, self.cache, self.asker))

        self._recorded[key] = (bucket, run if self._settled else self._decoder.device.record(run))
        return self._recorded[key]

    def _key(self, batch: Batch) -> tuple[int, int, bool]:
        rows = next(rows for rows in ROWS if rows >= batch.rows)
        width = next(width for width in self._widths() if width >= batch.tables.shape[1])
        return rows, width, batch.asks is not None

    def _widths(self) -> list[int]:
        widths, most = list(WIDTHS), self.max_context // BLOCK_TOKENS + SEGMENTS
        while widths[-1] < most:
            widths.append(2 * widths[-1])
        return widths

    def _check(self, batch: Batch) -> None:
        inside = int(batch.tables.min()) >= 0 and int(batch.tables.max()) < self.cache.blocks
        known = int(batch.tokens.min()) >= 0 and int(batch.tokens.max()) < self.vocabulary
        if not inside or not known:
            raise IndexError("a block or token is outside the cache or the vocabulary")
