"""Which tokens the form of one answer allows next, on the row of logits from which a token is chosen."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from cloister.errors import FormRefused
from cloister.grammar.compiled import compiled, words

# What is added to the logits of eight tokens, by a byte of the mask. Without branches: faster than a masked fill.
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_ADDED = np.where(_BITS == 1, 0.0, -np.inf).astype(np.float32)


_WORD = 64  # tokens
_FEW = 4  # where no more than every fourth word has a token, only those are added, and all others filled


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
        self._room = np.zeros((len(self._bits), 8), dtype=np.float32)
        self._size = known.of.vocabulary

    def note(self, token: int) -> None:
        if self.failed or self.complete or token in self._ends:
            return
        self.failed = not self._matcher.consume_token(token)
        self.complete = not self.failed and self._matcher.is_stopped()

    def apply(self, row: torch.Tensor, held: Sequence[int] = ()) -> None:
        """Of what is allowed, `held` tokens wait as long as there is another one."""
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
        if row.device.type == "cpu" and row.dtype == torch.float32:
            self._add(row.numpy(), bits)
            return
        added = torch.from_numpy(_ADDED.take(bits, axis=0).ravel()[: len(row)])
        row[: len(added)] += added.to(row.device)
        row[len(added) :] = float("-inf")

    def _add(self, row: NDArray[np.float32], bits: NDArray[np.uint8]) -> None:
        """The same bits as above, in place and without new memory of the row's size."""
        size = min(len(row), self._room.size)
        some = np.flatnonzero(bits.view(np.uint64)[: size // _WORD])
        if size % _WORD == 0 and _FEW * len(some) < size // _WORD:
            words = row[:size].reshape(-1, _WORD)
            kept = words[some] + _ADDED[bits.reshape(-1, _WORD // 8)[some]].reshape(-1, _WORD)
            row.fill(-np.inf)
            words[some] = kept
            return
        _ADDED.take(bits, axis=0, out=self._room, mode="clip")
        np.add(row[:size], self._room.reshape(-1)[:size], out=row[:size])
        row[size:] = -np.inf

    def forget(self) -> None:
        if not self.failed:
            self._bits.fill(0)
            self._room.fill(0)
            del self._matcher
            self.failed = True
