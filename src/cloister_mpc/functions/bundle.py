"""One choice of every function a decoder needs. Messages in docstrings of this package are those of the party that
sends most, bytes all parties' together, measured on ABY3 in a ring of 64 bits with 18 of fraction."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
from jax import Array

from cloister_mpc.cache.base import Softmax
from cloister_mpc.functions import softmax
from cloister_mpc.functions.activations import (
    GATES_ARE_DIVIDED_BY,
    RESULTS_ARE_MULTIPLIED_BY,
    gelu,
    ordered_silu,
    silu,
    times,
)
from cloister_mpc.functions.lookup import rsqrt

Elementwise = Callable[[Array], Array]
OfOrderedGates = Callable[[Array, int], Array]
"""4 silu(8 t) for rows t, of which the first n stay small (see activations.ordered_silu)."""


@dataclass(frozen=True)
class Functions:
    """Attention's softmax, the norm's 1/sqrt of a mean square (eps included by the caller), the activations."""

    name: str
    softmax: Softmax
    rms_scale: Elementwise
    silu: Elementwise
    ordered_silu: OfOrderedGates
    gelu: Elementwise


def _tanh_gelu(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=True)


def _ordered_silu(gates: Array, calm: int) -> Array:
    """The library's, at the library's price: the sums around it are free."""
    del calm
    return times(RESULTS_ARE_MULTIPLIED_BY, jax.nn.silu(times(GATES_ARE_DIVIDED_BY, gates)))


LEAN = Functions("lean", softmax.LEAN, rsqrt, silu, ordered_silu, gelu)
TUNED = Functions("tuned", softmax.TUNED, jax.lax.rsqrt, jax.nn.silu, _ordered_silu, _tanh_gelu)
NAIVE = Functions("naive", softmax.NAIVE, jax.lax.rsqrt, jax.nn.silu, _ordered_silu, _tanh_gelu)

BUNDLES = {functions.name: functions for functions in (LEAN, TUNED, NAIVE)}
