"""What a vault does before it is sealed: take its memory, start its threads.

The vault itself is in `vault.py`; this module alone knows of the link.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from cloister.config import EngineSettings
from cloister.kernels.native import MAX_QUERIES, NativeKernels
from cloister.link.answering import Answerer
from cloister.link.shape import LinkShape
from cloister.models.decoder import Decoder
from cloister.prompts.reading import PromptReading
from cloister.vault.vault import Vault, VaultRunner


def partitionable(decoder: Decoder) -> bool:
    """Whether a vault can answer for this decoder's attention."""
    return isinstance(decoder.kernels, NativeKernels) and decoder.queries_per_kv_head <= MAX_QUERIES


def prepare(
    decoder: Decoder, reading: PromptReading, settings: EngineSettings, question_fd: int, answer_fd: int
) -> Vault:
    """Everything that needs more than a sealed process may do. The descriptors stay the caller's to close."""
    runner = VaultRunner(decoder, settings)
    if not partitionable(decoder):
        return Vault(decoder, reading, settings, runner, Unasked(), levels=("isolated",))
    shape = LinkShape(heads=decoder.heads, dim=decoder.cache_shape.dim, layers=decoder.cache_shape.layers)
    answerer = Answerer(decoder, runner.cache, shape, question_fd, answer_fd)
    answerer.start()
    return Vault(decoder, reading, settings, runner, answerer)


class Unasked:
    """The answering side of a vault that nobody can ask: it has no slot, and never ends."""

    verdict = ""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self._event

    def close(self) -> None:
        os.close(self._event)

    def free_slot(self) -> int | None:
        return None

    def expose(self, slot: int, blocks: Sequence[int], *, start: int, end: int, turn: int) -> None:
        raise NotImplementedError

    def withdraw(self, slot: int) -> None:
        raise NotImplementedError
