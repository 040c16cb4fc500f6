"""Deals weights, slab by slab; what all hold is not dealt again. By keyed digests: plain ones would confirm a guess."""

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cloister.errors import PartyLost
from cloister.models.source import ModelFolder
from cloister_mpc.certificates import Credentials
from cloister_mpc.client.parties import Parties
from cloister_mpc.config import PartiesConfig
from cloister_mpc.messages import AskWeights, Complete, HeldWeights, Serving, ShareHead, Stored, Weight, WeightPiece

Matrix = NDArray[np.float32]
OnMatrix = Callable[[str, bool], None]  # called after every matrix: its name, and whether it had to be dealt

PATIENCE_S = 60.0
SLAB_ELEMENTS = 1 << 20


async def serve_weights(config: PartiesConfig, own: Credentials, folder: ModelFolder, console: Console) -> None:
    from cloister_mpc.provider.calibration import prepare

    with console.status("Folding the model's weights…"):
        shape, weights = await asyncio.to_thread(prepare, folder)
    matrices = list(weights.named())
    with console.status("Waiting for the parties…"):
        parties = await Parties.connect(config, own, PATIENCE_S)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    try:
        with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
            dealing = progress.add_task("Dealing weights", total=len(matrices) + 1)
            advance = partial(progress.advance, dealing)
            encoded = msgspec.json.encode(shape)
            await deal_weights(parties, folder.name, encoded, matrices, tag_key(own.key), lambda *_: advance())
            advance()
    finally:
        await parties.close()


def tag_key(provider_key: Path) -> bytes:
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
    await parties.next_of_all(Serving)


async def _held_by_all(parties: Parties) -> dict[str, tuple[ShareHead, bytes]]:
    parties.post(AskWeights())
    held = await parties.next_of_all(HeldWeights)
    common = set(held[0].weights).intersection(*(each.weights for each in held[1:]))
    return {weight.head.name: (weight.head, weight.tag) for weight in common}


async def _deal(parties: Parties, weight: Weight, matrix: Matrix) -> None:
    try:
        await parties.deal(weight, _slabs(matrix), WeightPiece)
    except OSError:
        raise PartyLost(
            "A party was lost while weights were dealt.", hint="Deal again; what arrived is kept."
        ) from None
    await parties.next_of_all(Stored)


def _slabs(matrix: Matrix) -> Iterator[Matrix]:
    """Rows, few enough that all parties' shares of them take little memory."""
    rows = max(1, SLAB_ELEMENTS // max(1, matrix[0].size))
    for start in range(0, len(matrix), rows):
        yield np.ascontiguousarray(matrix[start : start + rows])


def _tag(key: bytes, head: ShareHead, matrix: Matrix) -> bytes:
    tag = hmac.new(key, f"{head.name} {head.dtype} {head.dims}".encode(), hashlib.sha256)
    tag.update(np.ascontiguousarray(matrix).data.cast("B"))
    return tag.digest()
