"""A vault's private layers: the memory in which the link's thread takes answers' tokens through them (start.h)."""

from ctypes import addressof
from typing import Any

import torch

from cloister.compute.base import Begun
from cloister.compute.cpu.library import AttentionStruct, BegunStruct, PackedStruct, StartingStruct, WorkspaceStruct
from cloister.compute.host_cache import HostCache
from cloister.compute.layer import Beginning
from cloister.compute.layout import SEGMENTS, Chunk, lay_out

ROWS = 16  # START_ROWS
SLOTS = 64
LANES, DEPTH = 16, 64


class Starting:
    """For each slot one span of a batch. Of fixed size and never freed, as the answerer's tables."""

    def __init__(self, beginning: Beginning, stack: Any, embedding: PackedStruct, cache: HostCache) -> None:
        layer, self.layers = beginning.layers[0], len(beginning.layers)
        shape, inner, hidden = layer.shape, layer.gate_up.width, layer.qkv.k
        rotary = beginning.cosine.shape[1]
        widest = -(-max(hidden, layer.out.k, inner) // DEPTH) * DEPTH
        floats = {"normed": hidden, "qkv": layer.qkv.columns, "gated": inner, "tiles": widest}
        floats |= {"attended": shape.heads * shape.dim, "x": hidden, "cosine": rotary, "sine": rotary}
        self._held = {name: torch.zeros(ROWS, width) for name, width in floats.items()}
        self._numbers = torch.zeros(
            6, ROWS, dtype=torch.int64
        )  # tokens, places, spans, positions, tiles and their rows
        self._tables = torch.zeros(SLOTS, cache.blocks, dtype=torch.int32)
        self._segments = torch.zeros(SLOTS, SEGMENTS, 4, dtype=torch.int32)
        self._counts = torch.zeros(SLOTS, dtype=torch.int32)
        self._rotations = torch.zeros(2, SLOTS, rotary)
        self._begun, self._phases = (BegunStruct * SLOTS)(), torch.zeros(8, dtype=torch.int64)
        self._beginning, self._stack, self._embedding = beginning, stack, embedding
        at = {name: held.data_ptr() for name, held in self._held.items()}
        token, place, span, position, tile_row, tile_rows = (row.data_ptr() for row in self._numbers)
        self._numbers[4].view(torch.int32)[:ROWS] = torch.arange(ROWS)
        self._numbers[5].view(torch.int32)[:ROWS] = 1
        self._space = WorkspaceStruct(at["normed"], at["qkv"], at["gated"], at["tiles"])
        self._job = AttentionStruct(
            q=at["qkv"], out=at["attended"], keys=cache.keys(0).data_ptr(), values=cache.values(0).data_ptr()
        )
        job = self._job
        job.tables, job.table_stride, job.span, job.position = self._tables.data_ptr(), cache.blocks, span, position
        job.tile_row, job.tile_rows = tile_row, tile_rows
        job.segments, job.counts = self._segments.data_ptr(), self._counts.data_ptr()
        job.rotation_cosine, job.rotation_sine = (each.data_ptr() for each in self._rotations)
        job.block, job.kv_heads, job.heads, job.dim = cache.block, shape.kv_heads, shape.heads, shape.dim
        job.q_stride, job.rotary, job.bf16 = layer.qkv.columns, rotary, int(cache.dtype == torch.bfloat16)
        self._struct = StartingStruct(
            addressof(stack), addressof(embedding), addressof(self._space), addressof(job), self._tables.data_ptr()
        )
        made = self._struct
        made.span, made.position, made.begun, made.token, made.place = (
            span,
            position,
            addressof(self._begun),
            token,
            place,
        )
        made.x, made.cosine, made.sine = at["x"], at["cosine"], at["sine"]
        made.cosines, made.sines = beginning.cosine.data_ptr(), beginning.sine.data_ptr()
        made.phases, made.hidden, made.rotary = self._phases.data_ptr(), hidden, rotary
        made.vocabulary, made.positions = beginning.embedding.columns, len(beginning.cosine)

    @property
    def address(self) -> int:
        return addressof(self._struct)

    def place(self, slot: int, begun: Begun, rotation: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Before the slot is exposed. `rotation`: from the answer's queries to the prompt's keys."""
        layout, blocks = begun.layout, begun.blocks
        fits = layout.blocks(layout.prompt + begun.limit) <= len(blocks) <= self._tables.shape[1]
        if not fits or not 0 <= min(blocks) <= max(blocks) < self._tables.shape[1] or begun.limit < 1:
            raise ValueError("the answer does not lie in these blocks")
        span = lay_out([Chunk([begun.first], layout.prompt, blocks, layout)], 1)
        self._tables[slot, : len(blocks)], self._segments[slot] = span.tables[0], span.segments[0]
        self._counts[slot], count = span.counts[0], int(span.counts[0])
        self._rotations[0, slot], self._rotations[1, slot] = rotation
        self._begun[slot] = BegunStruct(layout.origin, begun.limit, int(span.segments[0, count - 1, 0]))
