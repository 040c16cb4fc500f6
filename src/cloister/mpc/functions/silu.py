"""x * sigmoid(x) = x/2 + E(x), E even: a polynomial in x^2 within +-7, tails outside."""

from __future__ import annotations

from jax import Array

from cloister.mpc.functions.tails import with_tails

EDGE = 7.0


def silu(x: Array) -> Array:
    """x * sigmoid(x), elementwise, for any x: within 0.0073, and within 0.0013 for |x| < 1, where most gates are.

    E is a polynomial of degree 8 in v = (x/6)^2, built of three products with constants found by search (weighted
    minimax); sums cost nothing. 25 messages, 564 bytes an element on ABY3, where the library's takes
    78 and 1,800.
    """
    sixth = x * (1 / 6)
    v = sixth * sixth
    z = v * (v - 2.581145)
    w = (z + 2.161927) * (z + v - 0.749229)
    inner = w + z
    product = (inner + v + v + 4.420032) * (inner + 2.166064)
    even = _AT_ZERO - product + inner + z + v + v + v
    return with_tails(x, sixth + sixth + sixth + even, EDGE)


_W_AT_ZERO = 2.161927 * -0.749229
_AT_ZERO = (_W_AT_ZERO + 4.420032) * (_W_AT_ZERO + 2.166064) - _W_AT_ZERO
