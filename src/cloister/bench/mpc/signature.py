"""What a compiled program takes in, read from its own text: sizes, types and who may know them. Runs nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloister.errors import ProtocolError

if TYPE_CHECKING:
    import numpy as np

_MAIN = re.compile(r"func\.func @main\((.*?)\) -> ", re.DOTALL)
_INPUT = re.compile(r"%arg\d+: tensor<((?:\d+x)*)(!pphlo\.secret<)?([a-z]+\d+)>")
_TYPES = {"f32": "float32", "i32": "int32", "i64": "int64", "ui32": "uint32", "i1": "bool"}


@dataclass(frozen=True, slots=True)
class Input:
    """One array. What has the same type costs the same, so that one random array can stand for all of a type."""

    shape: tuple[int, ...]
    dtype: str
    public: bool

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.shape)) or "scalar"
        return f"{'public' if self.public else 'secret'} {sizes} {self.dtype}"

    def draw(self) -> np.ndarray[Any, Any]:
        """Random numbers of the type, small enough for any product of theirs to stay within the ring."""
        import numpy as np

        random = np.random.default_rng()
        if self.dtype == "float32":
            return (0.02 * random.standard_normal(self.shape, dtype=np.float32)).astype(np.float32)
        return random.integers(0, 2, self.shape).astype(self.dtype)


def inputs_of(code: bytes) -> list[Input]:
    """In order. ProtocolError where the text is not a program of SPU's."""
    main = _MAIN.search(code.decode("utf-8", "replace"))
    if main is None:
        raise ProtocolError("A compiled program does not name its inputs.", hint="Is this another version of SPU?")
    found = _INPUT.findall(main[1])
    if len(found) != main[1].count("%arg") or any(kind not in _TYPES for _, _, kind in found):
        raise ProtocolError("A compiled program has inputs of unknown types.")
    return [
        Input(tuple(int(size) for size in sizes.split("x")[:-1]), _TYPES[kind], not secret)
        for sizes, secret, kind in found
    ]
