"""A device of plain torch and pipes: the reference kernels, and links whose two ends speak over pipes and a thread.

It knows no C, no shared memory and nothing of the CPU's package: what runs on it runs on the contracts alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import numpy as np
import torch

from cloister.compute.base import AttentionShape, CacheShape, Device, KVCache, LinkAnswerer, LinkAsker, Step
from cloister.compute.host_cache import HostCache
from cloister.compute.reference import Part, ReferenceKernels, merged, part_in, parts_of, rotated_on

SLOTS = 4


def send(fd: int, *tensors: torch.Tensor) -> None:
    """The tensors' bytes, after their sizes."""
    data = [tensor.contiguous().numpy().tobytes() for tensor in tensors]
    message = np.array([len(data), *map(len, data)], dtype=np.int64).tobytes() + b"".join(data)
    while message:
        message = message[os.write(fd, message) :]


def receive(fd: int) -> list[bytes] | None:
    """What `send` sent; None once the other end is closed."""
    if (count := _read(fd, 8)) is None:
        return None
    sizes = [_number(_read(fd, 8)) for _ in range(_number(count))]
    return [_read(fd, size) or b"" for size in sizes]


def _number(data: bytes | None) -> int:
    return int(np.frombuffer(data or b"", dtype=np.int64)[0])


def _read(fd: int, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        if not (more := os.read(fd, size - len(data))):
            return None
        data += more
    return data


class FakeAsker(LinkAsker):
    """Asks one vault after another, and counts its questions."""

    capacity = 8

    def __init__(self, model: AttentionShape) -> None:
        self._shape = (model.cache_shape.kv_heads, model.queries_per_kv_head, model.cache_shape.dim)
        self._links: dict[int, tuple[int, int]] = {}
        self.questions = 0

    def attach(self, link: int, question: int, answer: int) -> None:
        self._links[link] = (os.dup(question), os.dup(answer))

    def detach(self, link: int) -> None:
        for fd in self._links.pop(link, ()):
            os.close(fd)

    def broken(self) -> dict[int, str]:
        return {}

    def ask(self, link: int, layer: int, asks: torch.Tensor, q: torch.Tensor) -> list[Part]:
        self.questions += 1
        question, answer = self._links[link]
        send(question, torch.tensor([layer]), asks, q)
        told = receive(answer)
        assert told is not None and len(told) == 3 * len(q)
        tensors = [torch.from_numpy(np.frombuffer(one, dtype=np.float32).copy()) for one in told]
        kv_heads, group, dim = self._shape
        return [
            Part(a.view(kv_heads, group, dim), m.view(kv_heads, group), g.view(kv_heads, group))
            for a, m, g in zip(tensors[::3], tensors[1::3], tensors[2::3], strict=True)
        ]


class FakeAnswerer(LinkAnswerer):
    """Answers in a thread of Python."""

    slots = SLOTS

    def __init__(self, model: AttentionShape, cache: KVCache, question: int, answer: int) -> None:
        self._model, self._cache = model, cache
        self._question, self._answer = os.dup(question), os.dup(answer)
        self._exposed: dict[int, tuple[torch.Tensor, int, int]] = {}
        self._ended, self._end = os.pipe()

    def start(self) -> None:
        threading.Thread(target=self._serve, daemon=True).start()

    def fileno(self) -> int:
        return self._ended

    @property
    def verdict(self) -> str:
        return ""

    def free_slot(self) -> int | None:
        return next((slot for slot in range(SLOTS) if slot not in self._exposed), None)

    def expose(self, slot: int, blocks: Sequence[int], *, start: int, end: int, rotation: int) -> None:
        self._exposed[slot] = (torch.tensor(blocks), end - start, rotation)

    def withdraw(self, slot: int) -> None:
        del self._exposed[slot]

    def _serve(self) -> None:
        while (asked := receive(self._question)) is not None:
            layer, asks = (
                np.frombuffer(one, dtype=kind) for one, kind in zip(asked, (np.int64, np.int32), strict=False)
            )
            rows = torch.from_numpy(np.frombuffer(asked[2], dtype=np.float32).copy())
            queries = rows.view(-1, self._model.heads, self._model.cache_shape.dim)
            parts = [self._part(q, int(layer[0]), *ask) for q, ask in zip(queries, asks.reshape(-1, 2), strict=True)]
            send(self._answer, *(each for part in parts for each in (part.attended, part.top, part.total)))
        os.write(self._end, b"!")

    def _part(self, q: torch.Tensor, layer: int, slot: int, index: int) -> Part:
        table, length, rotation = self._exposed[int(slot)]
        if rotation:
            q = rotated_on(q, *self._model.rotation(rotation))
        place = int(index) + length
        scaled = q * self._model.scales[layer]
        return part_in(scaled, layer, table, length, place, self._cache, self._model.windows[layer])


class FakeKernels(ReferenceKernels):
    """The reference kernels, which can ask."""

    name = "fake"

    def attention(self, q: torch.Tensor, layer: int, step: Step, scale: float, window: int = 0) -> torch.Tensor:
        found = [parts_of(q[row], row, layer, step, scale, window) for row in range(len(q))]
        for remote in step.batch.remotes:
            assert isinstance(step.asker, FakeAsker)
            told = step.asker.ask(remote.link, layer, torch.tensor(remote.asks, dtype=torch.int32), q[remote.rows])
            for row, part in zip(remote.rows, told, strict=True):
                found[row].insert(-1, part)  # after the public span, before the generated one
        return torch.stack([merged(parts).reshape(-1) for parts in found])


class FakeDevice(Device):
    """`askers` and `answerers` are the ends made so far."""

    def __init__(self) -> None:
        self.kernels = FakeKernels(torch.float32)
        self.askers: list[FakeAsker] = []
        self.answerers: list[FakeAnswerer] = []

    def cache(self, shape: CacheShape, blocks: int) -> KVCache:
        return HostCache(shape, blocks, self.kernels.dtype)

    def partition_refusal(self, model: AttentionShape) -> str:
        return ""

    def asker(self, model: AttentionShape, patience_ms: int) -> FakeAsker:
        self.askers.append(FakeAsker(model))
        return self.askers[-1]

    def answerer(self, model: AttentionShape, cache: KVCache, question: int, answer: int) -> FakeAnswerer:
        self.answerers.append(FakeAnswerer(model, cache, question, answer))
        return self.answerers[-1]
