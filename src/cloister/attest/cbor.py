"""A reader of the little CBOR (RFC 8949) that attestation documents are made of: bounded, strict, and no writer.

Written here because the libraries of the field decode far more than is needed from a stranger's bytes (tags that become
dates, fractions, patterns or shared references), in compiled code. What is not listed here is refused: integers, byte
and text strings, arrays and maps (also of indefinite length, as AWS writes them), true, false and null; map keys are
integers or text, and no key comes twice; every length is written in its shortest form.
"""

from __future__ import annotations

from cloister.errors import EvidenceInvalid

MAX_DEPTH = 8
MAX_ITEMS = 1024

Cbor = int | bytes | str | bool | None | list["Cbor"] | dict[int | str, "Cbor"]

_BREAK = 0xFF
_SIMPLE: dict[int, bool | None] = {20: False, 21: True, 22: None}
_INDEFINITE = 31


def read_cbor(data: bytes) -> Cbor:
    """The one value these bytes are, or EvidenceInvalid."""
    reader = _Reader(data)
    value = reader.value(MAX_DEPTH)
    if reader.at != len(data):
        raise EvidenceInvalid(f"{len(data) - reader.at} bytes follow the CBOR value.")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._items = 0
        self.at = 0

    def value(self, depth: int) -> Cbor:
        self._items += 1
        if not depth or self._items > MAX_ITEMS:
            raise EvidenceInvalid(f"CBOR may nest {MAX_DEPTH} deep and have {MAX_ITEMS} values.")
        major, short = divmod(self._take(1)[0], 32)
        if major == 7:
            if short not in _SIMPLE:
                raise EvidenceInvalid("The CBOR has a value of a kind that no attestation document has.")
            return _SIMPLE[short]
        if short == _INDEFINITE and major in (4, 5):
            return self._array(None, depth) if major == 4 else self._map(None, depth)
        count = self._count(short)
        match major:
            case 0:
                return count
            case 1:
                return -1 - count
            case 2:
                return self._take(count)
            case 3:
                return self._text(count)
            case 4:
                return self._array(count, depth)
            case 5:
                return self._map(count, depth)
        raise EvidenceInvalid("The CBOR has a tag within it.")

    def _take(self, count: int) -> bytes:
        if count > len(self._data) - self.at:
            raise EvidenceInvalid("The CBOR ends within a value.")
        self.at += count
        return self._data[self.at - count : self.at]

    def _count(self, short: int) -> int:
        """The number in a value's head, which may fill the one, two, four or eight bytes after it."""
        if short < 24:
            return short
        if short > 27:
            raise EvidenceInvalid("The CBOR has a head without meaning.")
        size = 1 << short - 24
        count = int.from_bytes(self._take(size), "big")
        if count < 24 or (size > 1 and count < 1 << size * 4):
            raise EvidenceInvalid("The CBOR has a number in a longer form than it needs.")
        return count

    def _text(self, count: int) -> str:
        try:
            return self._take(count).decode()
        except UnicodeDecodeError:
            raise EvidenceInvalid("The CBOR has text that is not UTF-8.") from None

    def _more(self, count: int | None, have: int) -> bool:
        if count is not None:
            return have < count
        if self._data[self.at : self.at + 1] == bytes([_BREAK]):
            self.at += 1
            return False
        return True

    def _array(self, count: int | None, depth: int) -> list[Cbor]:
        found: list[Cbor] = []
        while self._more(count, len(found)):
            found.append(self.value(depth - 1))
        return found

    def _map(self, count: int | None, depth: int) -> dict[int | str, Cbor]:
        found: dict[int | str, Cbor] = {}
        while self._more(count, len(found)):
            key = self.value(depth - 1)
            if isinstance(key, bool) or not isinstance(key, int | str) or key in found:
                raise EvidenceInvalid("The CBOR has a map with a key twice, or one that is neither number nor text.")
            found[key] = self.value(depth - 1)
        return found
