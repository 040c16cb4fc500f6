"""The sizes of an arena: what a vault exposes in its slots, and its KV cache, as answer.cuh reads it (`exposed`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cloister.compute.layout import BLOCK_TOKENS

PAGE = 4096
BEFORE = 4  # words before the rotation: the length and three that are unused
MOST_GROUPS, GROUP_TOKENS = 255, 512  # a ticket counts the tasks of a prompt, four in each, in twelve bits (answer.cuh)


@dataclass(frozen=True, slots=True)
class ArenaShape:
    """Prompts may have blocks in common."""

    blocks: int
    dim: int
    block_bytes: int
    slots: int = 1

    @property
    def words(self) -> int:
        """Of a slot."""
        return BEFORE + 2 * self.dim + self.blocks

    @property
    def header(self) -> int:
        return -(-4 * self.words * self.slots // PAGE) * PAGE

    @property
    def size(self) -> int:
        return self.header + self.blocks * self.block_bytes

    @property
    def groups(self) -> int:
        """Of the longest prompt, at most."""
        return min(MOST_GROUPS, -(-self.blocks * BLOCK_TOKENS // GROUP_TOKENS))

    def written(
        self, blocks: Sequence[int], start: int, end: int, rotation: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """The words that expose positions start..end-1, which begin these blocks."""
        length = end - start
        fits = 1 <= length <= self.groups * GROUP_TOKENS and -(-length // BLOCK_TOKENS) <= len(blocks) <= self.blocks
        if not fits or not 0 <= min(blocks) <= max(blocks) < self.blocks:
            raise ValueError("the span does not lie in these blocks")
        words = torch.zeros(self.words, dtype=torch.int32)
        words[0] = length
        if len(rotation[0]):
            turned = torch.cat([each.flatten() for each in rotation]).float().cpu().contiguous()
            words[BEFORE : BEFORE + 2 * self.dim] = turned.view(torch.int32)
        words[BEFORE + 2 * self.dim :][: len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        return words
