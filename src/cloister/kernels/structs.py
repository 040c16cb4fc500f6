"""The C structures of native.c, field for field."""

from __future__ import annotations

from ctypes import Structure, c_float, c_int, c_void_p
from typing import ClassVar


class PackedStruct(Structure):
    """struct packed"""

    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("data", "bias", "scale")),
        *((name, c_int) for name in ("columns", "k", "epilogue", "format")),
    ]


class LayerStruct(Structure):
    """struct layer"""

    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("attention_norm", "q_norm", "k_norm", "mlp_norm")),
        *((name, PackedStruct) for name in ("qkv", "out", "gate_up", "down")),
        *((name, c_int) for name in ("index", "hidden", "heads", "kv_heads", "dim", "rotary", "window")),
        *((name, c_float) for name in ("epsilon", "scale")),
    ]


class WorkspaceStruct(Structure):
    """struct workspace"""

    _fields_: ClassVar = [(name, c_void_p) for name in ("normed", "qkv", "gated", "tiles")]


class AttentionStruct(Structure):
    """struct attention"""

    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("q", "out", "lse", "keys", "values", "tables")),
        *((name, c_void_p) for name in ("sequence", "position", "tile_row", "tile_rows")),
        *(
            (name, c_int)
            for name in ("tiles", "heads", "kv_heads", "dim", "q_stride", "table_stride", "window", "bf16")
        ),
        ("scale", c_float),
    ]


class DrawStruct(Structure):
    """struct draw"""

    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("logits", "temperature", "min_p", "top_p", "u", "top_k", "token")),
        *((name, c_void_p) for name in ("probabilities", "ranked")),
        *((name, c_int) for name in ("rows", "width")),
    ]
