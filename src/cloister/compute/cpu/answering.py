"""A vault's end of its link on the CPU: a thread in C that answers, and the spans of prompts it may answer for.

What a span says is in the vault's cache; this module knows blocks and lengths only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from ctypes import CDLL, addressof, byref

import torch

from cloister.compute.base import AttentionShape, LinkAnswerer
from cloister.compute.cpu.asking import VERDICTS
from cloister.compute.cpu.structs import AnsweringStruct, SlotStruct
from cloister.compute.host_cache import HostCache
from cloister.compute.layout import BLOCK_TOKENS
from cloister.errors import SetupError
from cloister.link.mapping import Mapping
from cloister.link.shape import NUMBER_AT, LinkShape

SLOTS = 64


class CpuAnswerer(LinkAnswerer):
    """Answers the service's questions about this vault's spans."""

    def __init__(
        self, library: CDLL, model: AttentionShape, cache: HostCache, shape: LinkShape, question: int, answer: int
    ) -> None:
        self._library, self._model = library, model
        self._question = Mapping(question, shape.question_bytes, writable=False)
        self._answer = Mapping(answer, shape.answer_bytes, writable=True)
        for half in (self._question, self._answer):
            shape.check(half.read(0, NUMBER_AT))
        self._cache = cache
        self._scales = torch.tensor(model.scales, dtype=torch.float32)
        self._windows = torch.tensor(model.windows, dtype=torch.int32)
        self._slots = (SlotStruct * SLOTS)()
        # Of fixed size and never freed: a question that comes as a slot is withdrawn reads old numbers, not old memory.
        self._tables = torch.zeros(SLOTS, cache.blocks, dtype=torch.int32)
        rotary = model.rotation(0)[0].numel()
        self._rotations = torch.zeros(2, SLOTS, rotary)
        for slot, one in enumerate(self._slots):
            one.blocks = self._tables[slot].data_ptr()
            one.cosine, one.sine = self._rotations[0, slot].data_ptr(), self._rotations[1, slot].data_ptr()
        self._taken: set[int] = set()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._struct = AnsweringStruct(
            question=self._question.address,
            reply=self._answer.address,
            slots=addressof(self._slots),
            keys=cache.keys(0).data_ptr(),
            values=cache.values(0).data_ptr(),
            cache_bytes_per_layer=cache.bytes_per_layer,
            block=cache.block,
            scale=self._scales.data_ptr(),
            window=self._windows.data_ptr(),
            slot_count=SLOTS,
            heads=shape.heads,
            kv_heads=cache.shape.kv_heads,
            dim=shape.dim,
            layers=shape.layers,
            capacity=shape.capacity,
            rotary=rotary,
            bf16=int(cache.dtype == torch.bfloat16),
            event=self._event,
            number=self._question.word(NUMBER_AT).value,
        )

    def start(self) -> None:
        if self._library.cloister_answer(byref(self._struct)):
            raise SetupError("The vault cannot start the thread that answers its link.")

    def fileno(self) -> int:
        return self._event

    @property
    def verdict(self) -> str:
        return VERDICTS.get(self._struct.verdict, "")

    def free_slot(self) -> int | None:
        return next((slot for slot in range(SLOTS) if slot not in self._taken), None)

    def expose(self, slot: int, blocks: Sequence[int], *, start: int, end: int, rotation: int) -> None:
        if not 0 <= slot < SLOTS or slot in self._taken:
            raise ValueError("the slot is taken or does not exist")
        length = end - start
        fits = length >= 1 and -(-length // BLOCK_TOKENS) <= len(blocks) <= self._cache.blocks
        if not fits or not 0 <= min(blocks) <= max(blocks) < self._cache.blocks:
            raise ValueError("the span does not lie in these blocks")
        self._taken.add(slot)
        self._tables[slot, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        self._rotations[0, slot], self._rotations[1, slot] = self._model.rotation(rotation)
        one = self._slots[slot]
        one.length, one.ahead, one.rotated = length, length, int(rotation != 0)
        one.exposed = 1

    def withdraw(self, slot: int) -> None:
        self._slots[slot].exposed = 0
        self._taken.discard(slot)
