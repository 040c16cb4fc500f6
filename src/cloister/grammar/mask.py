"""Which tokens the form of one answer allows next, on the row of logits from which a token is chosen."""

from collections.abc import Sequence

import numpy as np
import torch

from cloister.errors import FormRefused
from cloister.grammar.compiled import compiled, words


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
        self._words = np.zeros(-(-known.tokens.vocab_size // 32), dtype=np.int32)
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
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        if self._matcher.is_error():
            self.failed = True
            return
        bits = np.unpackbits(self._words.view(np.uint8), count=self._size, bitorder="little")
        allowed = np.zeros(len(row), dtype=np.bool_)
        allowed[: self._size] = bits[: len(row)]
        if self._matcher.is_accepting():
            allowed[self._ends] = True
        if held:
            others = allowed.copy()
            others[list(held)] = False
            allowed = others if others.any() else allowed
        row.masked_fill_(torch.from_numpy(~allowed).to(row.device), float("-inf"))

    def forget(self) -> None:
        if not self.failed:
            self._words.fill(0)
            del self._matcher
            self.failed = True
