"""Guesses at the answer's next tokens, to be verified by the parties in one pass: prompt lookup.

What followed the last few tokens when they occurred before, in the prompt or in the answer, is likely to follow again.
Only whoever holds the prompt guesses; the parties learn that a pass was wide and how much of it was kept, not the
guesses. A wrong guess changes no token: each column's token is chosen as if it had been computed alone.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST, SHORTEST = 4, 2
"""How many of the last tokens must have occurred before: as many as possible; one alone says too little."""


def propose(tokens: Sequence[int], most: int) -> tuple[int, ...]:
    """At most so many tokens that may come next; none where the last ones are new."""
    if most < 1:
        return ()
    for length in range(min(LONGEST, len(tokens) - 1), SHORTEST - 1, -1):
        last = tuple(tokens[-length:])
        for start in range(len(tokens) - length - 1, -1, -1):
            if tuple(tokens[start : start + length]) == last:
                return tuple(tokens[start + length : start + length + most])
    return ()


class Drafts:
    """Guesses for one answer, of `width` tokens or none: passes of few widths, so few programs.

    After `PATIENCE` guesses in a row of which nothing was kept, it guesses no more for as many tokens as it is long.
    """

    PATIENCE = 2

    def __init__(self, width: int) -> None:
        self._width = width
        self._fruitless = 0
        self._resting = 0

    def propose(self, tokens: Sequence[int], room: int) -> tuple[int, ...]:
        """A guess for `width` tokens, the last ones repeated if fewer are known; none without room for all."""
        if self._resting or room < self._width:
            self._resting = max(0, self._resting - 1)
            return ()
        guess = propose(tokens, self._width)
        return guess and guess + guess[-1:] * (self._width - len(guess))

    def kept(self, count: int) -> None:
        """So much of the last guess was right."""
        self._fruitless = 0 if count else self._fruitless + 1
        if self._fruitless >= self.PATIENCE:
            self._fruitless, self._resting = 0, 4 * self._width
