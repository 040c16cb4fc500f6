"""Stop strings: find them in text that arrives in pieces, and never let a part of one through.

Each string is followed with the Knuth-Morris-Pratt automaton, so the work per character does not depend on how long the
strings are or on how the text was cut. This module knows nothing of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence


class _Pattern:
    """One stop string and, for each matched length, the length to fall back to on a mismatch."""

    __slots__ = ("fallback", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.fallback = [0] * (len(text) + 1)
        matched = 0
        for position in range(1, len(text)):
            while matched and text[position] != text[matched]:
                matched = self.fallback[matched]
            if text[position] == text[matched]:
                matched += 1
            self.fallback[position + 1] = matched

    def advance(self, matched: int, character: str) -> int:
        """The length of the pattern's longest prefix that now ends the text."""
        while matched and character != self.text[matched]:
            matched = self.fallback[matched]
        return matched + 1 if character == self.text[matched] else 0


class StopStrings:
    """The stop strings of one request."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._patterns = tuple(_Pattern(string) for string in strings)

    def watch(self) -> StopWatch | None:
        """A watch over one choice's text; None when there is nothing to look for."""
        return StopWatch(self._patterns) if self._patterns else None


class StopWatch:
    """Lets text through up to the first stop string to be completed (the longest, if several end together)."""

    __slots__ = ("_held", "_matched", "_patterns", "hit")

    def __init__(self, patterns: tuple[_Pattern, ...]) -> None:
        self._patterns = patterns
        self._matched = [0] * len(patterns)
        self._held = ""
        self.hit = False

    def push(self, text: str) -> str:
        """Take the next piece; give what can no longer be part of a stop string."""
        if self.hit:
            return ""
        held = self._held + text
        matched = self._matched
        for end, character in enumerate(text, start=len(self._held) + 1):
            longest = 0
            for which, pattern in enumerate(self._patterns):
                length = matched[which] = pattern.advance(matched[which], character)
                if length == len(pattern.text):
                    longest = max(longest, length)
            if longest:
                self.hit = True
                self._held = ""
                return held[: end - longest]
        keep = max(matched)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def finish(self) -> str:
        """The text has ended: what was held back was no stop string after all."""
        rest, self._held = self._held, ""
        return rest
