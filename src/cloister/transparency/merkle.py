"""RFC 6962 Merkle trees, C2SP tlog-tiles: `tile/<level>/<index>[.p/<width>]`, `tile/entries/…` (after two bytes of
length). Tiles beyond the size are leftovers of a crash: overwritten, never read."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cloister.errors import EvidenceInvalid
from cloister.files import make_folder, write_whole

HASH_BYTES = 32
MAX_SIZE = 1 << 62
EMPTY_ROOT = hashlib.sha256(b"").digest()
Subtree = Callable[[int, int], bytes]  # (level, index) → hash of the leaves [index·2^level, (index+1)·2^level).


def leaf_hash(entry: bytes) -> bytes:
    """RFC 6962 §2.1: the hash of one entry."""
    return hashlib.sha256(b"\0" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """RFC 6962 §2.1: the hash of two neighbours."""
    return hashlib.sha256(b"\1" + left + right).digest()


def fold(hashes: Sequence[bytes]) -> bytes:
    if not hashes:
        return EMPTY_ROOT
    row = list(hashes)
    while len(row) > 1:
        # An odd one out at the right rises unchanged: that is RFC 6962's "largest power of two" split, bottom up.
        paired = [node_hash(row[at], row[at + 1]) for at in range(0, len(row) - 1, 2)]
        row = paired + row[len(paired) * 2 :]
    return row[0]


def tree_root(subtree: Subtree, size: int) -> bytes:
    return _range_hash(subtree, 0, size) if size else EMPTY_ROOT


def inclusion_proof(subtree: Subtree, index: int, size: int) -> tuple[bytes, ...]:
    """RFC 6962 §2.1.1: the path from leaf `index` to the root of `size` leaves."""
    if not 0 <= index < size:
        raise ValueError("no such leaf")
    path: list[bytes] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            path.append(_range_hash(subtree, middle, end))
            end = middle
        else:
            path.append(_range_hash(subtree, start, middle))
            start = middle
    return tuple(reversed(path))


def consistency_proof(subtree: Subtree, old: int, size: int) -> tuple[bytes, ...]:
    """RFC 6962 §2.1.2: that the tree of `size` leaves begins with the tree of `old` leaves. Empty for 0 or `size`."""
    if not 0 <= old <= size:
        raise ValueError("no such tree")
    if old in (0, size):
        return ()
    path: list[bytes] = []
    start, end = 0, size
    while end != old:
        middle = start + _split(end - start)
        if old <= middle:
            path.append(_range_hash(subtree, middle, end))
            end = middle
        else:
            path.append(_range_hash(subtree, start, middle))
            start = middle
    if start:
        path.append(_range_hash(subtree, start, end))
    return tuple(reversed(path))


def verify_inclusion(index: int, size: int, leaf: bytes, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether `proof` leads from the leaf at `index` to the root of a tree of `size` leaves (RFC 9162 §2.1.3.2)."""
    if not 0 <= index < size <= MAX_SIZE or not _all_hashes(leaf, root, *proof):
        return False
    climbed = _climb(index, size - 1, leaf, proof)
    return climbed is not None and climbed[1] == root


def verify_rest(index: int, size: int, rest: Sequence[bytes], proof: Sequence[bytes]) -> bool:
    """Whether `rest` are all leaves after `index`. `proof`, verified before, is the leaf's inclusion."""
    if len(rest) != size - index - 1:
        return False
    path, start, end = list(proof), 0, size
    while end - start > 1 and path:
        middle, step = start + _split(end - start), path.pop()
        if index >= middle:
            start = middle
        elif fold(rest[middle - index - 1 : end - index - 1]) == step:
            end = middle
        else:
            return False
    return end - start == 1 and not path


def verify_consistency(old: int, size: int, old_root: bytes, root: bytes, proof: Sequence[bytes]) -> bool:
    """RFC 9162 §2.1.4.2. Nothing can be proved from an empty tree, so no proof of that is accepted."""
    if not 0 < old <= size <= MAX_SIZE:
        return False
    if old == size:
        return not proof and old_root == root
    # A complete old tree is itself the first node of the path, and is left out of the proof.
    path = [old_root, *proof] if old & (old - 1) == 0 else list(proof)
    if not proof or not _all_hashes(old_root, root, *proof):
        return False
    place, last = old - 1, size - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    return _climb(place, last, path[0], path[1:]) == (old_root, root)


def _climb(place: int, last: int, start: bytes, path: Sequence[bytes]) -> tuple[bytes, bytes] | None:
    """The roots of the trees that end at `place` and at `last`; None if the path is too long or too short."""
    before = after = start
    for step in path:
        if last == 0:
            return None
        if place & 1 or place == last:
            before, after = node_hash(step, before), node_hash(step, after)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            after = node_hash(after, step)
        place, last = place >> 1, last >> 1
    return (before, after) if last == 0 else None


def _split(count: int) -> int:
    """The largest power of two smaller than `count`."""
    return 1 << ((count - 1).bit_length() - 1)


def _range_hash(subtree: Subtree, start: int, end: int) -> bytes:
    """The hash of the leaves [start, end), where `start` is aligned as RFC 6962's splits leave it."""
    pieces: list[bytes] = []
    while start < end:
        level = (end - start).bit_length() - 1
        pieces.append(subtree(level, start >> level))
        start += 1 << level
    found = pieces.pop()
    while pieces:
        found = node_hash(pieces.pop(), found)
    return found


def _all_hashes(*values: bytes) -> bool:
    return all(len(value) == HASH_BYTES for value in values)


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
    def __init__(self, folder: Path, size: int) -> None:
        self._folder = folder
        self.size = size

    def root(self) -> bytes:
        return tree_root(self.subtree, self.size)

    def subtree(self, level: int, index: int) -> bytes:
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
        return -(-(self.size >> (TILE_HEIGHT * level)) // TILE_WIDTH)

    def width(self, level: int, index: int) -> int:
        width = (self.size >> (TILE_HEIGHT * level)) - index * TILE_WIDTH
        if index < 0 or width <= 0:
            raise EvidenceInvalid("The log has no such tile.")
        return min(width, TILE_WIDTH)

    def extended(self, entries: Sequence[bytes]) -> "Tiles":
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
        hint = "Copy the log again, its checkpoint last."
        raise EvidenceInvalid(f"The log lacks {tile_path(level, index, width)}.", hint=hint)


def _in_tiles(first: int, items: Sequence[bytes]) -> Iterator[tuple[int, Sequence[bytes]]]:
    for at in range(0, len(items), TILE_WIDTH):
        yield first + at // TILE_WIDTH, items[at : at + TILE_WIDTH]
