"""RFC 6962 Merkle trees: hashes, roots, and proofs made and checked, over a function from subtrees to hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

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
    """The root over these hashes, whatever their number."""
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
