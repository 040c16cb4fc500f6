"""Tokens to text, as they come: never half a character, and no token decoded twice.

Knows bytes and UTF-8; which bytes a token stands for is the tokenizer's affair.
"""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence

REPLACEMENT = "\ufffd"

# A character has four bytes at most. A longer run without text is noise, and waiting on would cost ever more.
_LONGEST_HELD = 32


class TextStream(ABC):
    """The text of one answer. All pushes and the finish, joined, are the text of all tokens decoded at once."""

    @abstractmethod
    def push(self, tokens: Sequence[int]) -> str:
        """Take the next tokens; give the text that is now certain."""

    @abstractmethod
    def finish(self) -> str:
        """The rest, when no token will follow: an unfinished character becomes U+FFFD."""


class ByteStream(TextStream):
    """For vocabularies whose tokens are plain byte strings, as byte-level BPE's are."""

    def __init__(self, table: Sequence[bytes]) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, tokens: Sequence[int]) -> str:
        table = self._table
        return self._decoder.decode(b"".join([table[token] for token in tokens if token < len(table)]))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowStream(TextStream):
    """For vocabularies where a token's text depends on its neighbours: decodes new tokens after those given out last.

    Those few are the context that keeps the new ones from being taken for the start of a text; the cost per token
    does not grow with the answer.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], skipped: Container[int]) -> None:
        self._decode = decode
        self._skipped = skipped
        self._context: list[int] = []
        self._context_text = ""
        self._held: list[int] = []

    def push(self, tokens: Sequence[int]) -> str:
        return "".join([self._push_one(token) for token in tokens if token not in self._skipped])

    def finish(self) -> str:
        return self._give_out(self._decode(self._context + self._held))

    def _push_one(self, token: int) -> str:
        self._held.append(token)
        text = self._decode(self._context + self._held)
        unfinished = text.endswith(REPLACEMENT) or len(text) <= len(self._context_text)
        if unfinished and len(self._held) < _LONGEST_HELD:
            return ""
        return self._give_out(text)

    def _give_out(self, text: str) -> str:
        new = text[len(self._context_text) :]
        self._context, self._held = self._held, []
        self._context_text = self._decode(self._context)
        return new
