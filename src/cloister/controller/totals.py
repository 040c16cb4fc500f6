"""The totals for frontends: by the controller's own count; the service's numbers are limited to plausible ones."""

from collections.abc import Collection

from msgspec.structs import replace

from cloister.controller.requests import Requests
from cloister.controller.vaults import Vaults
from cloister.levels import LevelName
from cloister.messages.generation import Reuse, Stats

MOST_BLOCKS = 1 << 24
MOST_STEPS = 1 << 40
COUNTERS = ("preemptions", "evictions")


class Totals:
    def __init__(self, requests: Requests, vaults: Vaults) -> None:
        self._requests, self._vaults = requests, vaults
        self.not_counted = Stats()

    def of(self, stats: Stats, waiting: int, sessions: int, levels: Collection[LevelName]) -> Stats:
        held = len(self._requests.held_by("service"))
        there = min(max(stats.waiting, 0), held)
        total = min(max(stats.blocks_total, 0), MOST_BLOCKS)
        before = self.not_counted
        return Stats(
            running=len(self._requests) - there,
            waiting=there + waiting,
            blocks_total=total,
            blocks_free=min(max(stats.blocks_free, 0), total),
            steps=_counted(stats.steps - before.steps),
            prompt_tokens=self._requests.prompt_tokens,
            output_tokens=self._requests.output_tokens,
            reuse={policy: _since(now, before.reuse.get(policy, Reuse())) for policy, now in stats.reuse.items()},
            **{name: _counted(getattr(stats, name)) for name in COUNTERS},
            vaults=sessions,
            up=stats.up,
            seconds={
                phase: _plausible(spent - before.seconds.get(phase, 0.0)) for phase, spent in stats.seconds.items()
            },
            levels=tuple(levels),
            vault_ready_ms=self._vaults.ready_ms,
            vault_wait_ms=self._vaults.wait_ms,
        )

    def forget_rehearsal(self, stats: Stats) -> None:
        self.not_counted = replace(stats, reuse=dict(stats.reuse), seconds=dict(stats.seconds))


def _since(now: Reuse, before: Reuse) -> Reuse:
    return Reuse(
        _counted(now.hits - before.hits), _counted(now.misses - before.misses), _counted(now.tokens - before.tokens)
    )


def _counted(number: int) -> int:
    return min(max(number, 0), MOST_STEPS)


def _plausible(seconds: float) -> float:
    return round(seconds, 1) if 0 <= seconds < MOST_STEPS else 0.0
