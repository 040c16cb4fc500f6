"""Which tokens a layer lets a token see: all before it, or the nearest ones. transformers describes a mask as a
function of two positions: we call it at chosen ones, however long the prompt."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

FAR = 1 << 20  # beyond any window: a window this long sees all

Sees = Callable[[int, int], bool]


@dataclass(frozen=True, slots=True)
class Window:
    """In place of a mask: how many positions back a layer looks, 0 for all; None if neither causal nor sliding."""

    length: int | None


class Windows:
    """Takes the place of transformers' mask makers; each kind of mask is looked at once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Window] = {}

    def mask(self, *, mask_function: Callable[..., torch.Tensor], local_size: int | None = None, **_: Any) -> Window:
        key = (_identity(mask_function), local_size)
        if key not in self._known:
            self._known[key] = Window(_length_of(_positions(mask_function)))
        return self._known[key]


def _identity(value: Any) -> Any:
    """A mask function's code with the numbers and functions that it encloses: windows of different lengths share code.
    Tensors do not count: they hold the batch's padding, of which we have none."""
    if isinstance(value, torch.Tensor):
        return torch.Tensor
    if isinstance(value, tuple | list):
        return tuple(map(_identity, value))
    cells = getattr(value, "__closure__", None) or ()
    return (getattr(value, "__code__", value), *(_identity(cell.cell_contents) for cell in cells))


def _positions(mask_function: Callable[..., torch.Tensor]) -> Sees:
    zero = torch.tensor(0)
    return lambda at, seen: bool(mask_function(zero, zero, torch.tensor(at), torch.tensor(seen)))


def _length_of(sees: Sees) -> int | None:
    """0 where all is seen; None where the mask has another shape."""
    if sees(FAR, 0):
        window = 0
    else:  # the least distance at which nothing is seen
        window, beyond = 0, FAR
        while beyond - window > 1:
            middle = (window + beyond) // 2
            window, beyond = (middle, beyond) if sees(FAR, FAR - middle) else (window, middle)
        window = beyond
    # Chunks look like windows from some positions and not from others.
    for at in (0, 1, 7, FAR // 3, FAR, FAR + 1, FAR + window // 2):
        edges = {0, 1, at // 2, at - window, at - window + 1, at - 1, at, at + 1, at + 2}
        for seen in (edge for edge in edges if edge >= 0):
            if sees(at, seen) != (seen <= at and (window == 0 or seen > at - window)):
                return None
    return window
