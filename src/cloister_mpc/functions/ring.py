"""Fixed-point numbers as integers of shares. A `fine` product is 2^18 times too large, to be added or compared, then
`settled` once (28 bytes, two messages an element on ABY3). Values stay far below 2^26."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

_on_shares: ContextVar[bool] = ContextVar("on_shares", default=False)


@contextmanager
def tracing_for_shares() -> Iterator[None]:
    token = _on_shares.set(True)
    try:
        yield
    finally:
        _on_shares.reset(token)


def on_shares() -> bool:
    """Whether what is being traced will run on shares, for code that is laid out differently there."""
    return _on_shares.get()


def reveal(value: Array) -> Array:
    """The value, known to all parties from here on. Every use stands in the table of docs/mpc.md."""
    if not _on_shares.get():
        return value
    from spu.experimental import reveal as open_to_all

    opened: Array = open_to_all(value)
    return opened


FRACTION_BITS = 18  # of the runtimes' fixed point and of tables; a product has twice as many until it is truncated


def integers(numbers: Array) -> Array:
    """On shares: the ring's elements that stand for fixed-point numbers. Nothing is sent."""
    return lax.bitcast_convert_type(numbers, jnp.int32) if on_shares() else numbers


def numbers(elements: Array) -> Array:
    """On shares: the fixed-point numbers that the ring's elements stand for."""
    return lax.bitcast_convert_type(elements, jnp.float32) if on_shares() else elements


def fine(settled: Array) -> Array:
    """A number as a fine one, to be added to such. Nothing is sent."""
    return numbers(integers(settled) * jnp.int32(2**FRACTION_BITS)) if on_shares() else settled


def settled(fine: Array) -> Array:
    """A fine number as an ordinary one: what a truncation costs."""
    if not on_shares():
        return fine
    # As a product of true matrices, two by two: where the compiler sees a number times a tiny constant, or makes
    # one of a product with a single element, SPU truncates more bits at once: more bytes, and wrong from 2,048 on.
    flat = fine.reshape(-1)
    even = jnp.concatenate([flat, flat[:1]]) if flat.size % 2 else flat
    lowered = even.reshape(-1, 2) @ (np.eye(2) * 2.0**-FRACTION_BITS).astype(np.float32)
    return lowered.reshape(-1)[: flat.size].reshape(fine.shape)
