"""What a vault does before it is sealed: take its memory, start its threads.

The vault itself is in `vault.py`; this module alone joins it to its end of the link.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from cloister.compute.base import LinkAnswerer
from cloister.config import EngineSettings
from cloister.engine.runner import ModelRunner, reserve_cache
from cloister.levels import ISOLATED
from cloister.models.decoder import Decoder
from cloister.prompts.reading import PromptReading
from cloister.vault.vault import Vault


def partitionable(decoder: Decoder) -> bool:
    """Whether a vault can answer for this decoder's attention."""
    return not decoder.device.partition_refusal(decoder)


def prepare(
    decoder: Decoder, reading: PromptReading, settings: EngineSettings, question_fd: int, answer_fd: int
) -> Vault:
    """Everything that needs more than a sealed process may do. The descriptors stay the caller's to close.

    The link answers from the cache that the vault's prompts are computed into.
    """
    cache = reserve_cache(decoder, settings.vault_kv_mib)
    runner = ModelRunner(decoder, cache)
    if not partitionable(decoder):
        return Vault(decoder, reading, settings, runner, Unasked(), levels=(ISOLATED,))
    answerer = decoder.device.answerer(decoder, cache, question_fd, answer_fd)
    answerer.start()
    return Vault(decoder, reading, settings, runner, answerer)


class Unasked(LinkAnswerer):
    """The answering end of a vault that nobody can ask: it has no slot, and never ends."""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def start(self) -> None:
        return None

    def fileno(self) -> int:
        return self._event

    @property
    def verdict(self) -> str:
        return ""

    def close(self) -> None:
        os.close(self._event)

    def free_slot(self) -> int | None:
        return None

    def expose(self, slot: int, blocks: Sequence[int], *, start: int, end: int, rotation: int) -> None:
        raise NotImplementedError

    def withdraw(self, slot: int) -> None:
        raise NotImplementedError
