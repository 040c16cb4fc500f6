"""What a client deals before a pass: which variables there are, one-hots of its tokens, permutations drawn at random.

For whoever deals them and for the engine that checks them. Knows no shares.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cloister.mpc.model.shape import FINE, ModelShape

if TYPE_CHECKING:
    from cloister.mpc.model.programs import Programs


def dealt(programs: Programs, columns: int | None = None) -> dict[str, tuple[tuple[int, ...], str]]:
    """What a client deals before a step of `columns`, or before the prefill: name without `{g}/` → shape, type."""
    shape, method = programs.shape, programs.method
    wide = columns or programs.outline.prompt_tokens
    needed = {"coarse": ((shape.coarse, wide), "int32"), "fine": ((FINE, wide), "int32")}
    if shape.positions:
        needed["places"] = ((shape.positions, wide), "int32")
    if programs.outline.answer == "sampled":
        needed["noise"] = ((shape.vocabulary, columns or 1), "float32")
    if columns and programs.ahead:
        heads = shape.kv_heads * len(programs.leaders)
        sizes = {f"ahead/shuffles/{at}": (heads, size) for at, size in enumerate(method.choose_shuffles)}
    else:
        per_layer = method.choose_shuffles if columns else method.evict_shuffles
        sizes = {
            f"{number}/shuffles/{at}": (shape.kv_heads, size)
            for number in programs.leaders
            for at, size in enumerate(per_layer)
        }
    return needed | {name: ((heads, size, size), "int32") for name, (heads, size) in sizes.items()}


def one_hots(shape: ModelShape, tokens: Sequence[int], columns: int, first: int = 0) -> dict[str, NDArray[np.int32]]:
    """What a client deals for its tokens, padded on the left to `columns`; `first` is the first token's position."""
    coarse = np.zeros((shape.coarse, columns), dtype=np.int32)
    fine = np.zeros((FINE, columns), dtype=np.int32)
    at = np.arange(columns - len(tokens), columns)
    numbers = np.asarray(tokens)
    coarse[numbers // FINE, at] = 1
    fine[numbers % FINE, at] = 1
    dealt = {"coarse": coarse, "fine": fine}
    if shape.positions:
        places = np.zeros((shape.positions, columns), dtype=np.int32)
        places[first + np.arange(len(tokens)), at] = 1
        dealt["places"] = places
    return dealt


def permutations(heads: int, size: int) -> NDArray[np.int32]:
    """(heads, size, size) permutation matrices, each drawn alone from the system's randomness."""
    draws = np.frombuffer(secrets.token_bytes(heads * size * 8), dtype=np.uint64).reshape(heads, size)
    rows: NDArray[np.int32] = (np.argsort(draws, axis=1)[:, :, None] == np.arange(size)).astype(np.int32)
    return rows
