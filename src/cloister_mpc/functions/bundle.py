"""One choice of every function a decoder needs. Messages in docstrings of this package are those of the party that
sends most, bytes all parties' together, measured on ABY3 in a ring of 64 bits with 18 of fraction."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
from jax import Array

from cloister_mpc.cache.base import Softmax
from cloister_mpc.functions import softmax
from cloister_mpc.functions.activations import GATES_ARE_DIVIDED_BY, RESULTS_ARE_MULTIPLIED_BY, ordered_silu, times
from cloister_mpc.functions.lookup import rsqrt


@dataclass(frozen=True)
class Functions:
    """Attention's softmax, the norm's 1/sqrt of a mean square (eps included by the caller), the activation."""

    softmax: Softmax
    rms_scale: Callable[[Array], Array]
    ordered_silu: Callable[[Array, int], Array]  # 4 silu(8 t) for rows t (activations.ordered_silu)


def _exact_silu(gates: Array, calm: int) -> Array:
    del calm
    return times(RESULTS_ARE_MULTIPLIED_BY, jax.nn.silu(times(GATES_ARE_DIVIDED_BY, gates)))


LEAN = Functions(softmax.LEAN, rsqrt, ordered_silu)  # what parties compute
EXACT = Functions(softmax.EXACT, jax.lax.rsqrt, _exact_silu)  # the library's, for plain numbers and comparisons
