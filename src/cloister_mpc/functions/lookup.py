"""Tables looked up by all edges at once: ten messages, 140 bytes an edge and element on ABY3. For few elements."""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from cloister_mpc.functions.ring import FRACTION_BITS


@dataclass(frozen=True)
class Table:
    """`columns` (c, n + 1): values between `edges` (n,). Precise where values grow to the first one."""

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
    """Columns a, b of a + b x: as few as keep a convex positive function within a relative error, slopes rounded."""
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
    """Within 5e-4 relative for [2^-12, 2^11], finite outside. 13 messages, 30 kB an element (library: 48, 1.5 kB)."""
    level, slope = _CHORDS.look_up(mean_square)
    scale: Array = level + slope * mean_square
    return scale
