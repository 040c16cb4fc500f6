"""The provider's side: deals a model's weights to the parties, matrix by matrix, slab by slab.

What all parties hold already, of one dealing, is not dealt again. They know a matrix by a keyed digest only: a plain
one would tell anybody with a guess of the weights that the guess is right.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cloister.errors import PartyLost
from cloister.messages.mpc import AskShelf, Complete, Serving, ShareHead, Shelf, Stored, Weight, WeightPiece
from cloister.mpc.parties import Parties

Matrix = NDArray[np.float32]
OnMatrix = Callable[[str, bool], None]
"""Called after every matrix: its name, and whether it had to be dealt."""

SLAB_ELEMENTS = 1 << 20


def tag_key(provider_key: Path) -> bytes:
    """A key for tags, from the provider's own."""
    return hashlib.sha256(b"cloister weights' tags\0" + provider_key.read_bytes()).digest()


async def deal_weights(
    parties: Parties,
    model: str,
    shape: bytes,
    matrices: Iterable[tuple[str, Matrix]],
    key: bytes,
    on_matrix: OnMatrix | None = None,
) -> None:
    """Until all parties serve the model. `shape` is ModelShape's JSON; `key` makes the tags (see `tag_key`)."""
    held = await _held_by_all(parties)
    names = []
    for name, matrix in matrices:
        head = ShareHead(name, "float32", matrix.shape)
        tag = _tag(key, head, matrix)
        needed = held.get(name) != (head, tag)
        if needed:
            await _deal(parties, Weight(head, tag, secrets.token_bytes(16)), matrix)
        names.append(name)
        if on_matrix is not None:
            on_matrix(name, needed)
    parties.post(Complete(model, shape, tuple(names)))
    for rank in range(len(parties.lines)):
        await parties.next(rank, Serving)


async def _held_by_all(parties: Parties) -> dict[str, tuple[ShareHead, bytes]]:
    parties.post(AskShelf())
    shelves = [await parties.next(rank, Shelf) for rank in range(len(parties.lines))]
    common = set(shelves[0].weights).intersection(*(shelf.weights for shelf in shelves[1:]))
    return {weight.head.name: (weight.head, weight.tag) for weight in common}


async def _deal(parties: Parties, weight: Weight, matrix: Matrix) -> None:
    from cloister.mpc import wire

    try:
        for line in parties.lines:
            await line.send(weight)
        for slab in _slabs(matrix):
            for line, content in zip(parties.lines, parties.deal(slab), strict=True):
                for data in wire.pieces(content):
                    await line.send(WeightPiece(data))
    except OSError:
        raise PartyLost(
            "A party was lost while weights were dealt.", hint="Deal again; what arrived is kept."
        ) from None
    for rank in range(len(parties.lines)):
        await parties.next(rank, Stored)


def _slabs(matrix: Matrix) -> Iterator[Matrix]:
    """Rows, few enough that all parties' shares of them fit into little memory."""
    rows = max(1, SLAB_ELEMENTS // max(1, matrix[0].size))
    for start in range(0, len(matrix), rows):
        yield np.ascontiguousarray(matrix[start : start + rows])


def _tag(key: bytes, head: ShareHead, matrix: Matrix) -> bytes:
    tag = hmac.new(key, f"{head.name} {head.dtype} {head.dims}".encode(), hashlib.sha256)
    tag.update(np.ascontiguousarray(matrix).data.cast("B"))
    return tag.digest()
