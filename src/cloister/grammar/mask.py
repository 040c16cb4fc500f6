"""Which tokens the form of one answer allows next, on the row of logits from which a token is chosen."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from cloister.errors import FormRefused
from cloister.grammar.compiled import compiled, words

# What is added to the logits of eight tokens, by a byte of the mask.
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_ADDED = np.where(_BITS == 1, 0.0, -np.inf).astype(np.float32)
MaskRow = Callable[[torch.Tensor, NDArray[np.uint8]], None]
_WORD = 64  # tokens


def _set(bits: NDArray[np.uint8], tokens: Sequence[int], value: bool) -> None:
    places = bits.data  # its numbers are faster than an array's
    for token in tokens:
        if token < 8 * len(places):
            one = 1 << (token & 7)
            places[token >> 3] = places[token >> 3] | one if value else places[token >> 3] & (255 ^ one)


class Mask:
    """`ends`: tokens that end the answer; they are allowed where the form is complete, and no other special token is,
    unless the form names it. `complete`: the form allows nothing more. `failed`: it cannot be followed; a mask raises
    nothing, as it stands in a step of many answers."""

    def __init__(self, form: str, ends: Sequence[int]) -> None:
        self.complete = self.failed = False
        try:
            self._matcher, known = compiled(form), words()
        except FormRefused:
            self.failed = True
            return
        self._ends = [token for token in ends if token in known.special]
        size = known.tokens.vocab_size
        self._bits = np.zeros(-(-size // _WORD) * _WORD // 8, dtype=np.uint8)
        self._written = self._bits.ctypes.data, -(-size // 32) * 4
        self._size = known.of.vocabulary

    def note(self, token: int) -> None:
        if self.failed or self.complete or token in self._ends:
            return
        self.failed = not self._matcher.consume_token(token)
        self.complete = not self.failed and self._matcher.is_stopped()

    def apply(self, row: torch.Tensor, held: Sequence[int] = (), mask_row: MaskRow | None = None) -> None:
        """Of what is allowed, `held` tokens wait as long as there is another one. `mask_row`: the kernels' own."""
        if self.failed:
            return
        self._matcher.unsafe_compute_mask_ptr(*self._written)
        if self._matcher.is_error():
            self.failed = True
            return
        bits = self._bits
        _set(bits, (self._size,), False)  # the library's own end
        if self._matcher.is_accepting():
            _set(bits, self._ends, True)
        if held:
            others = bits.copy()
            _set(others, held, False)
            bits = others if others.any() else bits
        if mask_row is not None:
            mask_row(row, bits)
            return
        added = torch.from_numpy(_ADDED.take(bits, axis=0).ravel()[: len(row)])
        row[: len(added)] += added.to(row.device)
        row[len(added) :] = float("-inf")

    def forget(self) -> None:
        if not self.failed:
            self._bits.fill(0)
            del self._matcher
            self.failed = True
