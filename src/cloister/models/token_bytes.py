"""Which bytes a vocabulary entry stands for, in the two spellings vocabularies use."""

from __future__ import annotations

import re

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte, reversed."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    characters = {chr(byte): byte for byte in printable}
    return characters | {chr(256 + place): byte for place, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def byte_level_bytes(entry: str) -> bytes:
    """Each character is a byte in GPT-2's alphabet; an entry with any other character stands for itself."""
    try:
        return bytes([_ALPHABET[character] for character in entry])
    except KeyError:
        return entry.encode()


def sentencepiece_bytes(entry: str) -> bytes:
    """▁ is a space and <0x0A> is a byte."""
    if found := _BYTE_FALLBACK.fullmatch(entry):
        return bytes([int(found[1], 16)])
    return entry.replace("▁", " ").encode()
