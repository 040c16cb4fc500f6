"""The totals of /metrics. With a keys file they change every COARSE_S, in large steps: no single request shows."""

import time
from collections.abc import Awaitable, Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from cloister.messages.generation import Reuse, Stats

_FIRST_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_BETWEEN_TOKENS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

COARSE_S = 10.0
COARSE_TOKENS = 1000
COARSE_REQUESTS = 50
COARSE_PAGES = 100
_COARSE_SHARE = 16  # number of steps in which blocks in use are reported

_GAUGES: dict[str, tuple[str, Callable[[Stats], float | None]]] = {
    "running": ("Sequences being computed", lambda stats: stats.running),
    "waiting": ("Sequences waiting", lambda stats: stats.waiting),
    "kv_blocks_used": ("Blocks of the KV cache in use", lambda stats: stats.blocks_total - stats.blocks_free),
    "kv_blocks_total": ("Blocks of the KV cache", lambda stats: stats.blocks_total),
    "vaults": ("Vaults that hold a prompt or wait for one", lambda stats: stats.vaults),
    "vault_ready_ms": ("From the order to fork the last vault until it was sealed", lambda stats: stats.vault_ready_ms),
    "vault_wait_ms": ("From the last new session until its vault was sealed", lambda stats: stats.vault_wait_ms),
}
# Of the prefix cache: what it is, its coarse step, and where it is found.
_BY_POLICY: dict[str, tuple[str, int, Callable[[Reuse], int]]] = {
    "prefix_hits": ("Requests that found something computed", COARSE_REQUESTS, lambda reuse: reuse.hits),
    "prefix_misses": ("Requests that found nothing", COARSE_REQUESTS, lambda reuse: reuse.misses),
    "prefix_tokens_reused": ("Prompt tokens found computed", COARSE_TOKENS, lambda reuse: reuse.tokens),
}


class Totals:
    """The service's counts, from 0 after each of its starts (gauges are NaN while it is away), and all tokens."""

    def __init__(self, *, coarse: bool) -> None:
        self.stats: Stats | None = None
        self.tokens_in = self.tokens_out = 0
        self._coarse = coarse

    def collect(self) -> Iterator[Metric]:
        read, made = (self._rounded(tokens, COARSE_TOKENS) for tokens in (self.tokens_in, self.tokens_out))
        yield CounterMetricFamily("cloister_prompt_tokens", "Tokens read from prompts", read)
        yield CounterMetricFamily("cloister_output_tokens", "Tokens generated", made)
        for name, (text, value) in _GAUGES.items():
            number = value(self.stats) if self.stats else None
            if self._coarse and self.stats and name == "kv_blocks_used" and number:
                share = max(1, self.stats.blocks_total // _COARSE_SHARE)
                number = -(-number // share) * share
            yield GaugeMetricFamily(f"cloister_{name}", text, float("nan") if number is None else number)
        text = "Time the service spent in steps, and in the phases of their layers"
        seconds = CounterMetricFamily("cloister_service_seconds", text, labels=("phase",))
        steps = CounterMetricFamily("cloister_service_steps", "Steps the service computed")
        if self.stats is not None and self.stats.up:
            for phase, spent in self.stats.seconds.items():
                seconds.add_metric((phase,), spent)
            steps.add_metric((), self.stats.steps)
        yield seconds
        yield steps
        yield from self._prefixes()

    def _prefixes(self) -> Iterator[Metric]:
        stats = self.stats if self.stats is not None and self.stats.up else Stats(up=False)
        for name, (text, step, value) in _BY_POLICY.items():
            metric = CounterMetricFamily(f"cloister_{name}", text, labels=("policy",))
            for policy, reuse in sorted(stats.reuse.items()):
                metric.add_metric((policy,), self._rounded(value(reuse), step))
            yield metric
        evictions = CounterMetricFamily("cloister_prefix_evictions", "Pages evicted for room")
        if stats.up:
            evictions.add_metric((), self._rounded(stats.evictions, COARSE_PAGES))
        yield evictions

    def _rounded(self, number: int, step: int) -> int:
        return number // step * step if self._coarse else number


class Metrics:
    def __init__(self, *, coarse: bool = False) -> None:
        self._registry = registry = CollectorRegistry()
        self._kept_s = COARSE_S if coarse else 0.0
        self._shown: tuple[float, bytes] | None = None
        by_route, by_level = "HTTP requests by route and status class", "Requests for an answer by level of protection"
        self._requests = Counter("cloister_requests", by_route, ("route", "status"), registry=registry)
        self._generations = Counter("cloister_generations", by_level, ("level",), registry=registry)
        name, text = "cloister_time_to_first_token_seconds", "From the arrival at the queue to the first token"
        self._first = Histogram(name, text, buckets=_FIRST_TOKEN_S, registry=registry)
        name, text = "cloister_inter_token_seconds", "Between one piece of an answer and the next"
        self._between = Histogram(name, text, buckets=_BETWEEN_TOKENS_S, registry=registry)
        self._totals = Totals(coarse=coarse)
        registry.register(self._totals)
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
        self._totals.tokens_in += prompt_tokens
        self._totals.tokens_out += output_tokens

    async def exposition(self, ask: Callable[[], Awaitable[Stats | None]]) -> bytes:
        """Prometheus's text format. `ask` returns None while the service is away. Coarse totals are kept a while."""
        now = time.monotonic()
        if self._shown is None or now - self._shown[0] >= self._kept_s:
            self._totals.stats = await ask()
            self._shown = (now, generate_latest(self._registry))
        return self._shown[1]
