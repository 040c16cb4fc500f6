"""The kernel's account of processes' memory, from /proc. Knows nothing of what the processes do.

Of sealed processes, which are not dumpable, only root may read it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

PROC = Path("/proc")
BLOCK_TOKENS = 16
_KB = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ ")


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes: what a process has for itself, its share of everything, and the kernel's tables for it."""

    private: int
    proportional: int
    tables: int


def descendants(pid: int) -> set[int]:
    """All living processes below this one."""
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
    """One process's memory. PermissionError where that is not ours to know."""
    rollup = _fields((PROC / str(pid) / "smaps_rollup").read_text())
    status = _fields((PROC / str(pid) / "status").read_text())
    private = rollup["Private_Clean"] + rollup["Private_Dirty"] + rollup.get("Private_Hugetlb", 0)
    return Memory(private, rollup["Pss"], status.get("VmPTE", 0))


def total(pids: Iterable[int]) -> int:
    """What they cost together: each page counted once, and the kernel's tables."""
    each = [memory_of(pid) for pid in pids]
    return sum(one.proportional + one.tables for one in each)


def proportional_of_mapping(pids: Iterable[int], name: str) -> tuple[int, int]:
    """How much of the file of this name is counted over all these processes, and how large it is in any of them.

    The two are the same if there is one copy for all.
    """
    counted = largest = 0
    for pid in pids:
        size, inside = 0, False
        for line in (PROC / str(pid) / "smaps").read_text().splitlines():
            if _MAPPING.match(line):
                inside = name in line
            elif inside and line.startswith("Size:"):
                size += int(line.split()[1]) * 1024
            elif inside and line.startswith("Pss:"):
                counted += int(line.split()[1]) * 1024
        largest = max(largest, size)
    return counted, largest


def kv_bytes(folder: Path, tokens: int) -> int | None:
    """What keys and values of so many tokens take in bf16; None where config.json does not say the model's shape."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    try:
        heads = config["num_attention_heads"]
        dim = config.get("head_dim") or config["hidden_size"] // heads
        width = (config.get("num_key_value_heads") or heads) * dim
        return int(2 * 2 * config["num_hidden_layers"] * width * BLOCK_TOKENS * ceil(tokens / BLOCK_TOKENS))
    except (KeyError, TypeError):
        return None


def _fields(text: str) -> dict[str, int]:
    return {name: int(kb) * 1024 for name, kb in _KB.findall(text)}
