"""The C structures of native.c, field for field."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_float, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
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
        *((name, c_void_p) for name in ("q", "out", "keys", "values", "tables", "span", "position")),
        *((name, c_void_p) for name in ("tile_row", "tile_rows", "segments", "counts")),
        *((name, c_void_p) for name in ("rotation_cosine", "rotation_sine", "remote", "parts")),
        ("block", c_size_t),
        *((name, c_int) for name in ("tiles", "heads", "kv_heads", "dim", "q_stride", "table_stride")),
        *((name, c_int) for name in ("window", "bf16", "rotary")),
        ("scale", c_float),
    ]


class AskedStruct(Structure):
    """struct asked"""

    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("question", "reply", "row", "ask")),
        *((name, c_uint32) for name in ("number", "rows", "capacity", "verdict")),
        ("patience_ns", c_uint64),
    ]


class AskingStruct(Structure):
    """struct asking"""

    _fields_: ClassVar = [("links", POINTER(POINTER(AskedStruct))), ("count", c_int), ("asked_ns", c_uint64)]


class SlotStruct(Structure):
    """struct slot"""

    _fields_: ClassVar = [
        *((name, c_int32) for name in ("exposed", "length", "ahead", "rotated")),
        *((name, c_void_p) for name in ("blocks", "cosine", "sine")),
    ]


class AnsweringStruct(Structure):
    """struct answering"""

    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("question", "reply", "slots", "keys", "values")),
        *((name, c_size_t) for name in ("cache_bytes_per_layer", "block")),
        *((name, c_void_p) for name in ("scale", "window")),
        *((name, c_int) for name in ("slot_count", "heads", "kv_heads", "dim", "layers", "capacity", "rotary", "bf16")),
        ("event", c_int),
        *((name, c_uint32) for name in ("number", "verdict", "started")),
    ]


class DrawStruct(Structure):
    """struct draw"""

    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("logits", "temperature", "min_p", "top_p", "u", "top_k", "token")),
        *((name, c_void_p) for name in ("probabilities", "ranked")),
        *((name, c_int) for name in ("rows", "width")),
    ]
