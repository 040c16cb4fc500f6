"""C2SP tlog-tiles on disk: `tile/<level>/<index>[.p/<width>]` has up to 256 hashes, `tile/entries/…` entries, each
after its length in two bytes. Tiles beyond the size given are leftovers of a crash: overwritten, never read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from cloister.errors import EvidenceInvalid
from cloister.files import make_folder, write_whole
from cloister.transparency.merkle import HASH_BYTES, fold, leaf_hash, tree_root

TILE_HEIGHT = 8
TILE_WIDTH = 1 << TILE_HEIGHT
MAX_ENTRY_BYTES = 0xFFFF
_LENGTH_BYTES = 2
_ENTRIES = "entries"


def tile_path(level: int | str, index: int, width: int = TILE_WIDTH) -> str:
    """`tile/0/x001/x234/067.p/8`: three digits a folder, so that no folder grows too large."""
    digits = f"{index:03d}"
    digits = digits.zfill(-(-len(digits) // 3) * 3)
    groups = [digits[at : at + 3] for at in range(0, len(digits), 3)]
    path = "/".join(["tile", str(level), *(f"x{group}" for group in groups[:-1]), groups[-1]])
    return path if width == TILE_WIDTH else f"{path}.p/{width}"


def read_bundle(data: bytes, width: int) -> list[bytes]:
    entries: list[bytes] = []
    at = 0
    while at < len(data) and len(entries) < width:
        end = at + _LENGTH_BYTES + int.from_bytes(data[at : at + _LENGTH_BYTES], "big")
        if at + _LENGTH_BYTES > len(data) or end > len(data):
            raise EvidenceInvalid("A bundle of log entries is cut off.")
        entries.append(data[at + _LENGTH_BYTES : end])
        at = end
    if at != len(data) or len(entries) != width:
        raise EvidenceInvalid(f"A bundle of log entries does not hold exactly {width}.")
    return entries


def write_bundle(entries: Sequence[bytes]) -> bytes:
    return b"".join(len(entry).to_bytes(_LENGTH_BYTES, "big") + entry for entry in entries)


class Tiles:
    """The first `size` entries of the log in a folder."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder = folder
        self.size = size

    def root(self) -> bytes:
        return tree_root(self.subtree, self.size)

    def subtree(self, level: int, index: int) -> bytes:
        """The hash of a complete subtree, as merkle.Subtree has it."""
        tile_level, height = divmod(level, TILE_HEIGHT)
        first = index << height
        hashes = self.hashes(tile_level, first // TILE_WIDTH)
        start = first % TILE_WIDTH
        wanted = hashes[start : start + (1 << height)]
        if len(wanted) != 1 << height:
            raise EvidenceInvalid("The log has no such subtree.")
        return fold(wanted)

    def hashes(self, level: int, index: int) -> list[bytes]:
        width = self.width(level, index)
        data, stored = self._read(level, index, width, HASH_BYTES)
        if len(data) != stored * HASH_BYTES:
            raise EvidenceInvalid(f"The log's {tile_path(level, index, stored)} does not hold {stored} hashes.")
        return [data[at : at + HASH_BYTES] for at in range(0, width * HASH_BYTES, HASH_BYTES)]

    def bundle(self, index: int) -> list[bytes]:
        width = self.width(0, index)
        return read_bundle(*self._read(_ENTRIES, index, width, _LENGTH_BYTES + MAX_ENTRY_BYTES))[:width]

    def entry(self, index: int) -> bytes:
        if not 0 <= index < self.size:
            raise EvidenceInvalid(f"The log has no entry {index}: it has {self.size}.")
        return self.bundle(index // TILE_WIDTH)[index % TILE_WIDTH]

    def entries(self) -> Iterator[bytes]:
        for index in range(self.tile_count(0)):
            yield from self.bundle(index)

    def find(self, entry: bytes) -> int | None:
        wanted = leaf_hash(entry)
        for index in range(self.tile_count(0)):
            hashes = self.hashes(0, index)
            if wanted in hashes:
                return index * TILE_WIDTH + hashes.index(wanted)
        return None

    def tile_count(self, level: int) -> int:
        """How many tiles of this level the tree has, a partial one included."""
        return -(-(self.size >> (TILE_HEIGHT * level)) // TILE_WIDTH)

    def width(self, level: int, index: int) -> int:
        width = (self.size >> (TILE_HEIGHT * level)) - index * TILE_WIDTH
        if index < 0 or width <= 0:
            raise EvidenceInvalid("The log has no such tile.")
        return min(width, TILE_WIDTH)

    def extended(self, entries: Sequence[bytes]) -> Tiles:
        """Each file is on the disk before the next. They count only once a checkpoint covers them."""
        if any(len(entry) > MAX_ENTRY_BYTES for entry in entries):
            raise EvidenceInvalid(f"A log entry may have at most {MAX_ENTRY_BYTES} bytes.")
        longer = Tiles(self._folder, self.size + len(entries))
        first = self.size // TILE_WIDTH
        tail = self.bundle(first) if self.size % TILE_WIDTH else []
        for index, bundle in _in_tiles(first, tail + list(entries)):
            self._write(_ENTRIES, index, len(bundle), write_bundle(bundle))
        fresh = [leaf_hash(entry) for entry in entries]
        level = 0
        while fresh:
            count = self.size >> (TILE_HEIGHT * level)
            first = count // TILE_WIDTH
            hashes = (self.hashes(level, first) if count % TILE_WIDTH else []) + fresh
            fresh = []
            for index, tile in _in_tiles(first, hashes):
                self._write(level, index, len(tile), b"".join(tile))
                if len(tile) == TILE_WIDTH:
                    fresh.append(fold(tile))
            level += 1
        return longer

    def _write(self, level: int | str, index: int, width: int, data: bytes) -> None:
        path = self._folder / tile_path(level, index, width)
        make_folder(path.parent)
        write_whole(path, data)

    def _read(self, level: int | str, index: int, width: int, each: int) -> tuple[bytes, int]:
        """The file of this tile, or of the whole one that took its place, and its width; nothing oversized."""
        for stored in (width, TILE_WIDTH):
            path = tile_path(level, index, stored)
            try:
                with (self._folder / path).open("rb") as file:
                    data = file.read(stored * each + 1)
            except FileNotFoundError:
                continue
            except OSError as reason:
                raise EvidenceInvalid(f"The log's {path} cannot be read: {reason.strerror}.") from None
            if len(data) > stored * each:
                raise EvidenceInvalid(f"The log's {path} is too large.")
            return data, stored
        raise EvidenceInvalid(
            f"The log lacks {tile_path(level, index, width)}.", hint="Copy the log again, its checkpoint last."
        )


def _in_tiles(first: int, items: Sequence[bytes]) -> Iterator[tuple[int, Sequence[bytes]]]:
    for at in range(0, len(items), TILE_WIDTH):
        yield first + at // TILE_WIDTH, items[at : at + TILE_WIDTH]
