"""Both ends of a link on the GPU: whom a recorded step asks, and an attention process's answers for its users' prompts.

The words and the waiting are in link.cuh. Not yet behind the device's contract: docs/gpu.md says what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from cuda.bindings import driver

from cloister.compute.base import AttentionShape
from cloister.compute.gpu.cache import GpuCache
from cloister.compute.gpu.kernels import GROUP_TOKENS, PART, QUERIES, GpuDevice, GpuKernels, i32
from cloister.compute.gpu.mailbox import GATE_BYTES, MailboxShape
from cloister.compute.gpu.memory import SharedMemory
from cloister.compute.gpu.program import Argument
from cloister.errors import ModelUnsupported, SetupError

OPEN = 1
MOST_GROUPS = 255
"""A ticket counts them in eight bits (link.cuh)."""


def check_partition(model: AttentionShape) -> None:
    """Refuse models whose queries for one KV head do not fit a block's threads, or that look back a limited way."""
    if model.queries_per_kv_head * model.cache_shape.dim > 4 * 128 or any(model.windows):
        raise ModelUnsupported("This model's attention cannot be partitioned on a GPU.")


class Asking:
    """The service's end: row i of a recorded step asks the box at boxes[i]; 0 for none.

    A row whose answer is late by more than the patience is marked in `late` and asks no more; its result is void.
    """

    def __init__(
        self, model: AttentionShape, boxes: Sequence[int], mailboxes: Sequence[int], patience_ms: int = 200
    ) -> None:
        check_partition(model)
        self._layers, self._heads = model.cache_shape.layers, model.heads
        self._boxes, self._gates = (torch.tensor(each, dtype=torch.int64, device="cuda") for each in (boxes, mailboxes))
        self._steps = torch.zeros(1, dtype=torch.int32, device="cuda")
        self._started = torch.zeros(self._layers, dtype=torch.int32, device="cuda")
        self.late = torch.zeros(len(boxes), dtype=torch.int32, device="cuda")
        self._patience_ns = patience_ms * 1_000_000

    def posting(self, layer: int) -> tuple[Argument, ...]:
        """What `rotate_and_store` needs to post a layer's queries and to open the gates."""
        numbers = (i32(layer), i32(self._layers), self._started, self._gates, i32(len(self._gates)))
        return (self._boxes, self._steps, *numbers)

    def gathering(self, layer: int) -> tuple[Argument, ...]:
        """What `merge_with_vaults` needs to take the answers."""
        return (self._boxes, self._steps, i32(layer), i32(self._layers), self.late, self._patience_ns)

    def begin_step(self, kernels: GpuKernels) -> None:
        """Before anything else of a step: say which rows it asks."""
        rows, processes = i32(len(self._boxes)), i32(len(self._gates))
        numbers = (i32(self._layers), i32(self._heads))
        kernels.launch("begin_step", (1,), 64, self._boxes, rows, self._gates, processes, self._steps, *numbers)


@dataclass(frozen=True, slots=True)
class Exposed:
    """One user's prompt: its length, its blocks in the attention process's cache."""

    length: int
    blocks: Sequence[int]


class Answering:
    """An attention process's end: one recorded step answers every layer, launched before it is asked.

    Between layers its stream waits for a gate without holding a processor.
    """

    def __init__(
        self,
        device: GpuDevice,
        model: AttentionShape,
        cache: GpuCache,
        mailbox: SharedMemory,
        prompts: Sequence[Exposed],
        patience_ms: int = 200,
    ) -> None:
        check_partition(model)
        self._device, self._model, self._cache, self._mailbox = device, model, cache, mailbox
        self._patience_ns = patience_ms * 1_000_000
        kv_heads, dim, users = cache.shape.kv_heads, cache.shape.dim, len(prompts)
        width = max(len(prompt.blocks) for prompt in prompts)
        tables = torch.zeros(users, width, dtype=torch.int32)
        for user, prompt in enumerate(prompts):
            tables[user, : len(prompt.blocks)] = torch.tensor(prompt.blocks, dtype=torch.int32)
        if int(tables.max()) >= cache.blocks or int(tables.min()) < 0:
            raise IndexError("a block is outside the cache")
        self._tables, self._users = tables.cuda(), users
        self._lengths = torch.tensor([prompt.length for prompt in prompts], dtype=torch.int32, device="cuda")
        turns = [model.rotation(prompt.length) for prompt in prompts]
        self._cosine, self._sine = (torch.stack([turn[i] for turn in turns]).cuda().contiguous() for i in (0, 1))
        self._groups = max(-(-prompt.length // GROUP_TOKENS) for prompt in prompts)
        if self._groups > MOST_GROUPS:
            raise SetupError(
                f"A prompt of more than {MOST_GROUPS * GROUP_TOKENS} tokens cannot be partitioned on a GPU."
            )
        self._parts = torch.zeros(users * kv_heads * self._groups * QUERIES * (dim + PART), device="cuda")
        self._tickets = torch.zeros(users * kv_heads, dtype=torch.int32, device="cuda")
        shape = MailboxShape.of(model, users)
        self._boxes = torch.tensor(shape.boxes(mailbox.address), dtype=torch.int64, device="cuda")

    def record(self) -> Callable[[], None]:
        """One step's answers. Loads the kernel first, which finds nobody asked or gives up at once."""
        self._answer_layer(0, patience_ns=0)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for layer in range(self._model.cache_shape.layers):
                self._wait_for_gate(layer)
                self._answer_layer(layer, self._patience_ns)
        return graph.replay

    def _gate(self, layer: int) -> int:
        return self._mailbox.address + layer * GATE_BYTES

    def _wait_for_gate(self, layer: int) -> None:
        equal = int(driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ)
        stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
        (error,) = driver.cuStreamWaitValue32(stream, self._gate(layer), OPEN, equal)
        if error:
            raise SetupError(f"The GPU's streams cannot wait for memory ({error.name}).")

    def _answer_layer(self, layer: int, patience_ns: int) -> None:
        cache, model = self._cache, self._model
        kv_heads, grid = cache.shape.kv_heads, (self._users, cache.shape.kv_heads, self._groups)
        scale = np.float32(model.scales[layer] * math.log2(math.e))
        self._device.kernels.launch(
            *("answer", grid, 128, None, cache.layer(layer), None, self._lengths, None, None, self._tables, None, None),
            *(self._cosine, self._sine, self._parts, None, cache.block_stride),
            *map(i32, (self._tables.shape[1], 0, model.heads, kv_heads, 0, self._groups)),
            *(scale, self._boxes, self._mailbox.address, self._tickets),
            *(i32(layer), i32(model.cache_shape.layers), patience_ns),
            overlap=False,
        )
