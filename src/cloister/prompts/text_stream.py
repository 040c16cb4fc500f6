"""Tokens to text, as they come."""

import codecs
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TypeAlias

REPLACEMENT = "\ufffd"

# A character has at most four bytes. A longer run without text is noise, and holding it would cost ever more.
_LONGEST_HELD = 32


class ByteStream:
    """For vocabularies whose tokens are plain byte strings, as byte-level BPE's are."""

    def __init__(self, table: Sequence[bytes]) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, tokens: Sequence[int]) -> str:
        table = self._table
        return self._decoder.decode(b"".join([table[token] for token in tokens if token < len(table)]))

    def finish(self) -> str:
        """The rest, when no token will follow: an unfinished character becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)


class WindowStream:
    """A token's text depends on its neighbours here: new ones are decoded after the last few, at a constant cost."""

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


TextStream: TypeAlias = ByteStream | WindowStream


class MarkedStream:
    """Some special tokens are text as well: parsers of answers look for their names."""

    def __init__(self, make: Callable[[], TextStream], names: Mapping[int, str]) -> None:
        self._make, self._names = make, names
        self._stream = make()

    def push(self, tokens: Sequence[int]) -> str:
        if self._names.keys().isdisjoint(tokens):
            return self._stream.push(tokens)
        pieces = []
        for token in tokens:
            if (name := self._names.get(token)) is None:
                pieces.append(self._stream.push((token,)))
            else:
                pieces += (self._stream.finish(), name)
                self._stream = self._make()
        return "".join(pieces)

    def finish(self) -> str:
        return self._stream.finish()
