"""What one step computes: a piece of each sequence that is scheduled."""

from __future__ import annotations

from dataclasses import dataclass

from cloister.engine.runner import Piece, Wanted
from cloister.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Work:
    """One sequence's share of a step; `samples` says that its last row yields the next token."""

    sequence: Sequence
    piece: Piece
    samples: bool

    @property
    def end(self) -> int:
        """Positions that are computed once this is done."""
        return self.piece.start + len(self.piece.tokens)

    @property
    def asked_rows(self) -> int:
        """Rows whose queries go over the sequence's link, once per layer: those of generated tokens."""
        layout = self.piece.layout
        return max(0, self.end - max(self.piece.start, layout.prompt)) if layout.remote else 0

    @property
    def rows(self) -> int:
        """Rows of logits this brings."""
        if self.piece.wanted is Wanted.ALL:
            return len(self.piece.tokens)
        return 1 if self.piece.wanted is Wanted.LAST else 0
