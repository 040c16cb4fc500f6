"""Tables looked up by comparing with all edges at once: ten messages, however long the table.

Wide and shallow: 140 bytes for each edge and element on ABY3 (108 the comparison, 32 its bit made arithmetic), and not
one multiplication, since bits are integers and the table is public. Made for few elements: norms, denominators. `rsqrt`
is one: a table of chords.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from cloister_mpc.functions.ring import FRACTION_BITS


@dataclass(frozen=True)
class Table:
    """`columns` (c, n + 1) of values in the n + 1 intervals between `edges` (n,), and below and above them.

    Values of a column that grow towards the first interval keep their precision: it is there that the sum of
    differences is longest.
    """

    edges: NDArray[np.float64]
    columns: NDArray[np.float64]

    def look_up(self, x: Array) -> Array:
        """(c, …): each column's value in the interval where x lies, exactly the rounded one on shares."""
        below = (x.reshape(1, -1) < self.edges.astype(np.float32)[:, None]).astype(jnp.float32)
        rounded = on_grid(self.columns)
        steps = (rounded[:, :-1] - rounded[:, 1:]).astype(np.float32)
        found = jnp.asarray(steps) @ below + rounded[:, -1:].astype(np.float32)
        return found.reshape(len(self.columns), *x.shape)


def on_grid(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rounded to fixed point, and large ones to 16 bits, so that differences of neighbours are exact as float32."""
    step = np.exp2(np.floor(np.log2(np.maximum(np.abs(values), 2.0**-FRACTION_BITS))) - 15)
    step = np.maximum(step, 2.0**-FRACTION_BITS)
    rounded: NDArray[np.float64] = np.round(values / step) * step
    return rounded


def chords(function: Callable[[float], float], lowest: float, highest: float, error: float) -> Table:
    """Columns a and b of a + b x, as few as keep within a relative error of a convex positive function.

    Each interval is as long as the rounded slope allows: where slopes are a few units of the last place, intervals
    are short, and rounding costs edges instead of accuracy.
    """
    starts, lines = [lowest], []
    ratio = 1.5
    while starts[-1] < highest:
        start = starts[-1]
        while (line := _chord(function, start, start * ratio, error)) is None:
            ratio = 1 + (ratio - 1) * 0.95
        lines.append(line)
        starts.append(start * ratio)
        ratio = 1 + (ratio - 1) * 1.2
    return Table(np.array(starts[1:-1]), np.array(lines).T)


def _chord(function: Callable[[float], float], start: float, end: float, error: float) -> tuple[float, float] | None:
    slope = (function(end) - function(start)) / (end - start)
    slope = float(on_grid(np.array(slope)))
    within = np.linspace(start, end, 33)
    left = np.array([function(x) for x in within]) - slope * within
    level = float(on_grid((left.max() + left.min()) / 2))
    if np.any(np.abs(left - level) > error * (left + slope * within)):
        return None
    return level, slope


LOWEST = 2.0**-12
HIGHEST = 2.0**11
_CHORDS = chords(lambda x: x**-0.5, LOWEST, HIGHEST, 5e-4)


def rsqrt(mean_square: Array) -> Array:
    """1/sqrt(x), elementwise, within 5e-4 relative and two units of fixed point for x in [2^-12, 2^11].

    Outside it goes on along the outermost chords: finite, but not accurate. 13 messages, 30 kB an element on ABY3;
    the library's takes 48 and 1.5 kB.
    """
    level, slope = _CHORDS.look_up(mean_square)
    scale: Array = level + slope * mean_square
    return scale
