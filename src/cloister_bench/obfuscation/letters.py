"""A model of letters, counted from texts: which follow the four before them. It knows a field's words and names without
any network, and without the sampling model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import log

ORDER = 4
_LESS = 0.4
"""What a shorter context counts for (stupid backoff)."""


class Letters:
    def __init__(self, texts: Iterable[str]) -> None:
        self._counts: Counter[str] = Counter()
        for text in texts:
            for length in range(1, ORDER + 2):
                self._counts.update(text[at : at + length] for at in range(len(text) - length + 1))
        self._total = sum(count for run, count in self._counts.items() if len(run) == 1)

    def logprob(self, before: str, words: str, after: str) -> float:
        """Of the words and what follows them."""
        text = before[-ORDER:] + words + after
        return sum(
            self._letter(text[max(0, at - ORDER) : at], text[at]) for at in range(len(before[-ORDER:]), len(text))
        )

    def _letter(self, context: str, letter: str) -> float:
        less = 0.0
        while context:
            if (seen := self._counts[context + letter]) > 0:
                return less + log(seen / self._counts[context])
            context, less = context[1:], less + log(_LESS)
        return less + log((self._counts[letter] + 0.5) / (self._total + 1))
