"""Machines with round numbers, for tests. No such machine was measured."""

from __future__ import annotations

from typing import Any

from cloister.levels import LevelName
from cloister_bench.capacity.machine import LevelProfile, Limits, Machine, Memory, Step

STEPS = (Step(1, 0.03), Step(8, 0.09), Step(32, 0.28))
OPEN: LevelName = "open"
PARTITIONED: LevelName = "partitioned"


def profile(**more: Any) -> LevelProfile:
    return LevelProfile(**{"first_s": 0.05, "piece_s": 0.02, "token_s": 0.004, "steps": STEPS, **more})


def machine(levels: dict[LevelName, LevelProfile] | None = None, **more: Any) -> Machine:
    made = levels or {OPEN: profile(), PARTITIONED: profile(request_s=0.01, vault_s=0.1)}
    about = {"model": "toy", "processor": "none", "cores": 2, "measured": "never", "source": "a test", "noise": "none"}
    fields = {"vault_start_s": 0.5, "memory": Memory(1000, 100, 10), "limits": Limits(), **more}
    return Machine("cloister-machine/v1", levels=made, **about, **fields)  # type: ignore[arg-type]
