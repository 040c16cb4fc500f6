"""The seven parts of the paper's Figure 7, made of kernels that were timed alone, so they take longer than together.
Q, K and V are one product, shared out by columns. The kernel that waits also merges: both count as waiting."""

from __future__ import annotations

from collections.abc import Mapping

PHASES = (
    "q_projection",
    "kv_projection",
    "output_attention",
    "waiting_for_input_attention",
    "merge",
    "output_projection_and_mlp",
    "other",
)  # by the names of `bench spd`; `other`: norms, head and choice of a token


def phases(us: Mapping[str, float], layers: int, queries: float, step_ms: float, *, asks: bool) -> dict[str, float]:
    """In ms of a step. `queries`: the share of Q in the product. The rest is waiting where it asks, else `other`."""
    ms = layers / 1e3
    parts = dict.fromkeys(PHASES, 0.0)
    parts["q_projection"] = us["qkv"] * queries * ms
    parts["kv_projection"] = (us["qkv"] * (1 - queries) + us["rotate"]) * ms
    parts["output_attention"] = us["attend"] * ms
    parts["output_projection_and_mlp"] = (us["out"] + us["gate_up"] + us["down"]) * ms
    parts["other"] = 2 * us["norm"] * ms + (us["head"] + us["greatest"]) / 1e3
    rest = step_ms - sum(parts.values())
    parts["waiting_for_input_attention" if asks else "other"] += max(0.0, rest)
    return parts
