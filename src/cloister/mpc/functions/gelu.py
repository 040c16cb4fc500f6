"""x * Phi(x) in GPT-2's tanh form = x/2 + E(x), E even: a polynomial in x^2 within +-2.95, tails outside."""

from __future__ import annotations

from jax import Array

from cloister.mpc.functions.tails import with_tails

EDGE = 2.95


def gelu(x: Array) -> Array:
    """x * Phi(x), elementwise, for any x: within 0.0045, and within 0.0012 for |x| < 1.

    E is a polynomial of degree 4 in v = (x/4)^2, built of two products with constants found by search (weighted
    minimax); sums cost nothing. 22 messages, 512 bytes an element on ABY3, where the library's takes 64 and 1,108
    and is off by up to 0.08.
    """
    quarter = x * (1 / 4)
    v = quarter * quarter
    z = v * (v - 0.385877)
    twice = z + z
    inner = twice + twice - v
    even = _AT_ZERO - (inner - v + 2.145651) * (inner - 0.098699) + v + v + twice
    return with_tails(x, quarter + quarter + even, EDGE)


_AT_ZERO = 2.145651 * -0.098699
