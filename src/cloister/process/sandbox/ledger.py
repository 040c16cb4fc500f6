"""Which layers this process holds so far. A forked child inherits the list as it inherits most of the layers."""

from __future__ import annotations

from collections.abc import Iterable

from cloister.process.sandbox.layers import Layer

_held: set[Layer] = set()


def record(*layers: Layer) -> None:
    _held.update(layers)


def forget(layers: Iterable[Layer]) -> None:
    """A child that shall have its own does not count its parent's."""
    _held.difference_update(layers)


def held() -> frozenset[Layer]:
    return frozenset(_held)
