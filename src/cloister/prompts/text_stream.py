"""The text of one answer as its tokens come; all pieces, joined, are the text of all tokens decoded at once."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Container, Sequence
from typing import TypeAlias

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
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


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte, reversed."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    characters = {chr(byte): byte for byte in printable}
    return characters | {chr(256 + place): byte for place, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def byte_level_bytes(entry: str) -> bytes:
    """Each character is a byte in GPT-2's alphabet; an entry with any other character is literal text."""
    try:
        return bytes([_ALPHABET[character] for character in entry])
    except KeyError:
        return entry.encode()


def sentencepiece_bytes(entry: str) -> bytes:
    """▁ is a space and <0x0A> is a byte."""
    if found := _BYTE_FALLBACK.fullmatch(entry):
        return bytes([int(found[1], 16)])
    return entry.replace("▁", " ").encode()
