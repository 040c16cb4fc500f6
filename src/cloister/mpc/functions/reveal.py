"""Opening a value to all parties, inside a computation. Every use stands in the table of docs/mpc.md."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from jax import Array

_on_shares: ContextVar[bool] = ContextVar("on_shares", default=False)


@contextmanager
def tracing_for_shares() -> Iterator[None]:
    """While this lasts, what is traced will run on shares."""
    token = _on_shares.set(True)
    try:
        yield
    finally:
        _on_shares.reset(token)


def on_shares() -> bool:
    """Whether what is being traced will run on shares, for code that is laid out differently there."""
    return _on_shares.get()


def reveal(value: Array) -> Array:
    """The value, known to all parties from here on. On plain numbers it is known already."""
    if not _on_shares.get():
        return value
    from spu.experimental import reveal as open_to_all

    opened: Array = open_to_all(value)
    return opened
