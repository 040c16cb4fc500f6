"""What /metrics tells: totals over all tenants, in a registry of its own.

No tenant, no user content and no sign of cache hits is ever a label or a value here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from cloister.messages.generation import Stats

_FIRST_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_BETWEEN_TOKENS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


_GAUGES: dict[str, tuple[str, Callable[[Stats], float | None]]] = {
    "running": ("Sequences being computed", lambda stats: stats.running),
    "waiting": ("Sequences waiting", lambda stats: stats.waiting),
    "kv_blocks_used": ("Blocks of the KV cache in use", lambda stats: stats.blocks_total - stats.blocks_free),
    "kv_blocks_total": ("Blocks of the KV cache", lambda stats: stats.blocks_total),
    "vaults": ("Vaults that hold a prompt or wait for one", lambda stats: stats.vaults),
    "vault_ready_ms": ("From the order to fork the last vault until it was sealed", lambda stats: stats.vault_ready_ms),
    "vault_wait_ms": ("From the last new session until its vault was sealed", lambda stats: stats.vault_wait_ms),
}


class ServiceTotals:
    """What the service counts itself, from 0 again after each start. The gauges say NaN while it is away."""

    def __init__(self) -> None:
        self.stats: Stats | None = None

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        for name, (text, value) in _GAUGES.items():
            told = value(self.stats) if self.stats else None
            yield GaugeMetricFamily(f"cloister_{name}", text, float("nan") if told is None else told)
        text = "Time the service spent in steps, and in the phases of their layers"
        seconds = CounterMetricFamily("cloister_service_seconds", text, labels=("phase",))
        steps = CounterMetricFamily("cloister_service_steps", "Steps the service computed")
        if self.stats is not None and self.stats.up:
            for phase, spent in self.stats.seconds.items():
                seconds.add_metric((phase,), spent)
            steps.add_metric((), self.stats.steps)
        yield seconds
        yield steps


class Metrics:
    """Counts requests and tokens, and times generations."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "cloister_requests", "HTTP requests by route and status class", ("route", "status"), registry=registry
        )
        self._generations = Counter(
            "cloister_generations", "Requests for an answer by level of protection", ("level",), registry=registry
        )
        self._tokens_in = Counter("cloister_prompt_tokens", "Tokens read from prompts", registry=registry)
        self._tokens_out = Counter("cloister_output_tokens", "Tokens generated", registry=registry)
        self._first = Histogram(
            "cloister_time_to_first_token_seconds",
            "From the request's arrival at the queue to its first token",
            buckets=_FIRST_TOKEN_S,
            registry=registry,
        )
        self._between = Histogram(
            "cloister_inter_token_seconds",
            "Between one piece of an answer and the next",
            buckets=_BETWEEN_TOKENS_S,
            registry=registry,
        )
        self._service = ServiceTotals()
        registry.register(self._service)
        # When each live generation began or last progressed, and how many tokens it had then.
        self._last: dict[int, tuple[float, int]] = {}

    def answered(self, route: str, status: str) -> None:
        self._requests.labels(route, status).inc()

    def began(self, generation: object, level: str) -> None:
        self._last[id(generation)] = (time.perf_counter(), 0)
        self._generations.labels(level).inc()

    def progressed(self, generation: object, tokens: int) -> None:
        then, before = self._last[id(generation)]
        if tokens == before:
            return
        now = time.perf_counter()
        (self._between if before else self._first).observe(now - then)
        self._last[id(generation)] = (now, tokens)

    def ended(self, generation: object, prompt_tokens: int, output_tokens: int) -> None:
        self._last.pop(id(generation), None)
        self._tokens_in.inc(prompt_tokens)
        self._tokens_out.inc(output_tokens)

    def exposition(self, stats: Stats | None) -> bytes:
        """Prometheus's text format; without stats the service is away."""
        self._service.stats = stats
        return generate_latest(self._registry)
