"""A secret in every form it could have taken, and all of them looked for in one pass."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import hyperscan
import msgspec

FRAGMENT = 12
Bytes = bytes | bytearray | memoryview


class Needles:
    """Byte strings by their names."""

    def __init__(self, named: Mapping[str, bytes]) -> None:
        assert all(named.values()), "what is empty is everywhere"
        self._named = list(named.items())
        self._database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        self._database.compile(
            expressions=[b"".join(b"\\x%02x" % byte for byte in needle) for needle in named.values()],
            ids=list(range(len(named))),
            elements=len(named),
            flags=[hyperscan.HS_FLAG_DOTALL] * len(named),
        )

    def places(self, data: Bytes) -> list[tuple[int, int, str]]:
        """Where each occurrence begins and ends, and whose it is."""
        found: list[tuple[int, int, str]] = []

        def note(number: int, _begin: int, end: int, _flags: int, _context: object) -> None:
            name, needle = self._named[number]
            found.append((end - len(needle), end, name))

        if len(data):
            self._database.scan(data, match_event_handler=note)  # type: ignore[type-var]
        return sorted(found)


@dataclass(frozen=True)
class Secret:
    """A text and some token ids in a row that only it has.

    The text's halves stand for it, so that a copy whose beginning or end was overwritten is found too.
    """

    text: str
    tokens: tuple[int, ...]

    @property
    def forms(self) -> dict[str, bytes]:
        """What to look for; without zeros at the end, which memory is full of."""
        first, last = self.text[:FRAGMENT], self.text[-FRAGMENT:]
        forms = {
            "text, first half": first.encode(),
            "text, last half": last.encode(),
            "text, backwards": self.text[::-1][:FRAGMENT].encode(),
            "UTF-16, first half": first.encode("utf-16-le"),
            "UTF-16, last half": last.encode("utf-16-le"),
            "UTF-32, first half": first.encode("utf-32-le"),
            "UTF-32, last half": last.encode("utf-32-le"),
            "characters, 8 bytes each": struct.pack(f"<{len(last)}Q", *map(ord, last)),
            "tokens, packed": b"".join(msgspec.msgpack.encode(one) for one in self.tokens),
            "tokens, as text": ",".join(map(str, self.tokens)).encode(),
            "tokens, 4 bytes each": struct.pack(f"<{len(self.tokens)}i", *self.tokens),
            "tokens, 8 bytes each": struct.pack(f"<{len(self.tokens)}q", *self.tokens),
            "tokens, floats of 4 bytes": struct.pack(f"<{len(self.tokens)}f", *self.tokens),
            "tokens, floats of 8 bytes": struct.pack(f"<{len(self.tokens)}d", *self.tokens),
        }
        return {form: bare for form, needle in forms.items() if (bare := needle.rstrip(b"\0"))}

    @cached_property
    def _needles(self) -> Needles:
        return Needles(self.forms)

    def found_in(self, data: Bytes) -> list[str]:
        """In which forms these bytes hold it."""
        found = {form for _, _, form in self._needles.places(data)}
        return [form for form in self.forms if form in found]
