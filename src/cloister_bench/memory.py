"""Memory of a server's processes, from /proc: only root may read that of sealed ones."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

PROC = Path("/proc")
BLOCK_TOKENS = 16
_KB = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Memory:
    private: int  # bytes


def descendants(pid: int) -> set[int]:
    children: dict[int, set[int]] = {}
    for stat in PROC.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # The name, in parentheses, may hold anything; the parent is the second field behind it.
            parent = int(stat.read_text(errors="replace").rsplit(")", 1)[1].split()[1])
            children.setdefault(parent, set()).add(int(stat.parent.name))
    found: set[int] = set()
    new = {pid}
    while new:
        new = {child for parent in new for child in children.get(parent, ())} - found
        found |= new
    return found


def memory_of(pid: int) -> Memory:
    """PermissionError where only root may read it."""
    rollup = {name: int(kb) * 1024 for name, kb in _KB.findall((PROC / str(pid) / "smaps_rollup").read_text())}
    return Memory(rollup["Private_Clean"] + rollup["Private_Dirty"] + rollup.get("Private_Hugetlb", 0))


def kv_bytes(config: Mapping[str, Any], tokens: int) -> int | None:
    """In bf16; None where config.json does not say the model's shape."""
    try:
        heads = config["num_attention_heads"]
        dim = config.get("head_dim") or config["hidden_size"] // heads
        width = (config.get("num_key_value_heads") or heads) * dim
        return int(2 * 2 * config["num_hidden_layers"] * width * BLOCK_TOKENS * ceil(tokens / BLOCK_TOKENS))
    except (KeyError, TypeError):
        return None
