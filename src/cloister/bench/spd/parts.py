"""The small parts of the measurement, each over a server that is up: where a step's time goes, first tokens, vaults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from statistics import median
from typing import Any

from cloister.bench.spd import memory
from cloister.bench.spd.deployment import Deployment
from cloister.bench.spd.plan import Plan
from cloister.bench.spd.results import breakdown_entry
from cloister.errors import ServiceUnavailable
from cloister.levels import OPEN, PARTITIONED, ServedLevel

MB = 1e6
WEIGHTS = "memfd:cloister-weights"
SETTLE_S = 0.4
SHORT_PROMPT = 64
ONLY_ROOT = "only root may read the memory of sealed processes (/proc/PID/smaps_rollup)"

Advance = Callable[[str], None]


async def break_down(server: Deployment, plan: Plan, into: dict[str, Any], advance: Advance) -> None:
    """Figure 7: the service counts its own time; prompts are the vaults' work, so all its steps decode."""
    points = plan.breakdown_points()
    for unprotected, partitioned in zip(points[::2], points[1::2], strict=True):
        plain = await server.measure(unprotected, plan.seed)
        advance(str(unprotected))
        before = await server.counters()
        run = await server.measure(partitioned, plan.seed)
        after = await server.counters()
        spent = {phase: seconds - before.seconds.get(phase, 0.0) for phase, seconds in after.seconds.items()}
        into[str(partitioned.users)] = breakdown_entry(spent, after.steps - before.steps, run, plain)
        advance(str(partitioned))


async def time_first_tokens(server: Deployment, plan: Plan, into: dict[str, Any], advance: Advance) -> None:
    """One user's wait for the first token of a long prompt, at `open` and at `partitioned` in turn."""
    waits: dict[ServedLevel, list[float]] = {OPEN: [], PARTITIONED: []}
    order: tuple[ServedLevel, ...] = (OPEN, PARTITIONED)
    for sample in range(plan.ttft_samples):
        for level in order[:: 1 if sample % 2 else -1]:
            answer = await server.ask(level, plan.ttft_tokens, 2, seed=plan.seed + sample)
            waits[level].append(1000 * (answer.first_token - answer.sent))
        advance(f"first token, {plan.ttft_tokens} in")
    ratios = [ours / theirs for ours, theirs in zip(waits[PARTITIONED], waits[OPEN], strict=True)]
    into |= {
        "input_tokens": plan.ttft_tokens,
        "open_ms": round(median(waits[OPEN]), 3),
        "partitioned_ms": round(median(waits[PARTITIONED]), 3),
        "ratio": round(median(ratios), 4),
        "samples": plan.ttft_samples,
    }


async def time_spare_vaults(server: Deployment, plan: Plan, into: dict[str, Any], advance: Advance) -> None:
    """How long a new session waits for its vault when there are spare ones, as there are by default."""
    waits: list[float] = []
    for sample in range(plan.vault_samples):
        await asyncio.sleep(SETTLE_S)  # the one taken last is being replaced
        await server.ask(PARTITIONED, 16, 1, seed=plan.seed + sample)
        if (wait := (await server.counters()).vault_wait_ms) is not None:
            waits.append(wait)
        advance("a new user's vault")
    into |= {"with_spare_ms": _median(waits), "with_spare_worst_ms": _worst(waits)}


async def weigh_vaults(
    server: Deployment, plan: Plan, vaults: dict[str, Any], into: dict[str, Any], advance: Advance
) -> None:
    """Sessions that have been served once and wait, on a server without spare vaults: readiness and memory of each."""
    await asyncio.sleep(SETTLE_S)  # vaults of the warm-up are ending
    before = memory.descendants(server.pid)
    reason = None
    empty = 0
    try:
        empty = memory.total({server.pid, *before})
    except PermissionError:
        reason = ONLY_ROOT
    ready: list[float] = []
    weighed: dict[str, Any] = {}
    for number in range(plan.vault_samples if reason else plan.idle_vaults):
        await server.ask(PARTITIONED, SHORT_PROMPT, 1, seed=plan.seed + number, session=f"idle-{number}")
        if (took := (await server.counters()).vault_ready_ms) is not None:
            ready.append(took)
        if not reason and number + 1 == min(plan.mapped_vaults, plan.idle_vaults):
            weighed |= _weights(server, number + 1)
        advance("vaults that wait")
    vaults |= {"without_spare_ms": _median(ready), "without_spare_worst_ms": _worst(ready)}
    if reason:
        into |= dict.fromkeys(("beyond_kv_mb", "vault_private_mb", "idle_vaults_mb", "weights_pss_mb"))
        into["reason"] = reason
        return
    into |= weighed
    into |= await _weigh(server, plan, before, empty)


def _weights(server: Deployment, vaults: int) -> dict[str, Any]:
    everyone = memory.descendants(server.pid)
    counted, size = memory.proportional_of_mapping(everyone, WEIGHTS)
    return {
        "weights_mb": round(size / MB, 1),
        "weights_pss_mb": round(counted / MB, 1),
        "weights_pss_vaults": vaults,
    }


async def _weigh(server: Deployment, plan: Plan, before: set[int], empty: int) -> dict[str, Any]:
    await asyncio.sleep(SETTLE_S)
    idle = memory.descendants(server.pid) - before
    if len(idle) != plan.idle_vaults:
        raise ServiceUnavailable(f"{plan.idle_vaults} vaults should be waiting, and there are {len(idle)}.")
    together = memory.total({server.pid, *before, *idle}) - empty
    private = [memory.memory_of(pid).private for pid in idle]
    await server.ask(PARTITIONED, plan.ttft_tokens, 1, seed=plan.seed, session="long")
    (long,) = memory.descendants(server.pid) - before - idle
    long_private = memory.memory_of(long).private
    kv, long_kv = (memory.kv_bytes(server.folder.path, tokens) for tokens in (SHORT_PROMPT, plan.ttft_tokens))
    beyond = None if kv is None or long_kv is None else max(max(private) - kv, long_private - long_kv)
    return {
        "beyond_kv_mb": _mb(beyond),
        "vault_private_mb": _mb(median(private)),
        "vault_kv_mb": _mb(kv),
        "long_vault_private_mb": _mb(long_private),
        "long_vault_kv_mb": _mb(long_kv),
        "idle_vaults": plan.idle_vaults,
        "idle_vaults_mb": _mb(together),
        "reason": None,
    }


def _mb(value: float | None) -> float | None:
    return None if value is None else round(value / MB, 2)


def _median(values: list[float]) -> float | None:
    return round(median(values), 3) if values else None


def _worst(values: list[float]) -> float | None:
    return round(max(values), 3) if values else None
