"""One choice of every function a decoder needs. The decoder knows the bundle, never how its functions are computed.

Messages in the docstrings of this package are those of the party that sends most; bytes are all parties' together.
Both were measured on ABY3 in a ring of 64 bits with 18 of fraction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
from jax import Array

from cloister.mpc.cache.base import Softmax
from cloister.mpc.functions.gelu import gelu
from cloister.mpc.functions.rsqrt import rsqrt
from cloister.mpc.functions.silu import silu
from cloister.mpc.functions.softmax import LeanSoftmax, NaiveSoftmax, TunedSoftmax

Elementwise = Callable[[Array], Array]


@dataclass(frozen=True)
class Functions:
    """Attention's softmax, the norm's 1/sqrt of a mean square (eps included by the caller), the activations."""

    name: str
    softmax: Softmax
    rms_scale: Elementwise
    silu: Elementwise
    gelu: Elementwise


def _tanh_gelu(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=True)


LEAN = Functions("lean", LeanSoftmax(), rsqrt, silu, gelu)
TUNED = Functions("tuned", TunedSoftmax(), jax.lax.rsqrt, jax.nn.silu, _tanh_gelu)
NAIVE = Functions("naive", NaiveSoftmax(), jax.lax.rsqrt, jax.nn.silu, _tanh_gelu)

BUNDLES = {functions.name: functions for functions in (LEAN, TUNED, NAIVE)}
