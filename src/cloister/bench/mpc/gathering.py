"""Table 2: what gathering costs once it is known what to gather, token by token and cluster by cluster.

All ways take a quarter of the keys and values of a layer's heads out of T tokens: by secret indices made one-hot with
equality tests (Algorithm 2), or with rows of a secret permutation that are taken by public ranks, which costs nothing
but the product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cloister.bench.mpc.cost import Cost, typical
from cloister.bench.mpc.parties import Parties
from cloister.bench.mpc.signature import inputs_of

if TYPE_CHECKING:
    from jax import Array

    from cloister.mpc.model.shape import ModelShape

CLUSTERS = 64
SHARE = 4


def gatherings(shape: ModelShape, seq: int) -> dict[str, tuple[Callable[..., Any], list[Any]]]:
    """By name: a function and the types of its arguments."""
    import jax
    import jax.numpy as jnp

    heads, wide = shape.kv_heads, 2 * shape.head_size + 1  # keys, values, and the values' last column

    def by_index(indices: Array, tokens: Array) -> Array:
        rows = (indices[..., None] == jnp.arange(tokens.shape[1])).astype(jnp.int32)
        return jnp.stack([rows[head] @ tokens[head] for head in range(heads)])

    def by_row(rows: Array, tokens: Array) -> Array:
        return jnp.stack([rows[head] @ tokens[head] for head in range(heads)])

    struct: Any = jax.ShapeDtypeStruct

    def integers(*sizes: int) -> Any:
        return struct(sizes, jnp.int32)

    by_token = struct((heads, seq, wide), jnp.float32)
    by_cluster = struct((heads, CLUSTERS, seq // CLUSTERS * wide), jnp.float32)
    return {
        "token by token, equality tests": (by_index, [integers(heads, seq // SHARE), by_token]),
        "cluster by cluster, equality tests": (by_index, [integers(heads, CLUSTERS // SHARE), by_cluster]),
        "cluster by cluster, rows of a permutation": (
            by_row,
            [integers(heads, CLUSTERS // SHARE, CLUSTERS), by_cluster],
        ),
    }


def measure_function(parties: Parties, function: Callable[..., Any], types: list[Any], repeats: int) -> Cost:
    """A function of secret arguments, on random numbers."""
    from spu import libspu
    from spu.utils import frontend

    secret = [libspu.Visibility.VIS_SECRET] * len(types)
    names = [f"in/{number}" for number in range(len(types))]
    executable, _ = frontend.compile(
        frontend.Kind.JAX, function, types, {}, names, secret, lambda _: ["out/0"], copts=libspu.CompilerOptions()
    )
    executable.input_names = [parties.hold(kind) for kind in inputs_of(executable.code)]
    return typical(parties.run([executable] * repeats))
