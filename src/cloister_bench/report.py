"""What a run amounts to: throughput and percentiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cloister_bench.messages import Answer


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds; None where nothing was measured."""

    p50: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of_seconds(cls, samples: Sequence[float]) -> Percentiles:
        import numpy as np

        if not samples:
            return NOTHING
        return cls(*(round(1000 * float(each), 3) for each in np.percentile(samples, (50, 95, 99))))


NOTHING = Percentiles(None, None, None)


@dataclass(frozen=True, slots=True)
class RunReport:
    """`answer_ms`: from asking to an answer's last token."""

    users: int
    output_tokens_per_s: float
    ttft_ms: Percentiles
    itl_ms: Percentiles
    errors: int
    errors_by_kind: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    short_answers: int = 0
    wall_s: float = 0.0
    answer_ms: Percentiles = NOTHING


def summarise(users: int, answers: Sequence[Answer], errors: Counter[str], wanted_tokens: int) -> RunReport:
    """Throughput is every whole answer's tokens over the time from the first request sent to the last token."""
    wall = max((a.last_token for a in answers), default=0.0) - min((a.sent for a in answers), default=0.0)
    tokens = sum(a.output_tokens for a in answers)
    return RunReport(
        users=users,
        output_tokens_per_s=round(tokens / wall, 3) if wall > 0 else 0.0,
        ttft_ms=Percentiles.of_seconds([a.first_token - a.sent for a in answers]),
        itl_ms=Percentiles.of_seconds([gap for a in answers for gap in a.gaps]),
        errors=errors.total(),
        errors_by_kind=dict(errors),
        requests=len(answers) + errors.total(),
        prompt_tokens=sum(a.prompt_tokens for a in answers),
        output_tokens=tokens,
        short_answers=sum(a.output_tokens < wanted_tokens for a in answers),
        wall_s=round(wall, 3),
        answer_ms=Percentiles.of_seconds([a.last_token - a.sent for a in answers]),
    )


def kinds_of_errors(runs: Iterable[RunReport]) -> str:
    totals = sum((Counter(run.errors_by_kind) for run in runs), Counter[str]())
    return ", ".join(f"{count} × {kind}" for kind, count in totals.items())
