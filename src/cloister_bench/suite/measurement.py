"""Measures a suite part by part, keeping the others when one fails; sides in turn, so that other load hits them all."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from statistics import median
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

from cloister.errors import CloisterError
from cloister_bench.load import RunReport
from cloister_bench.suite.documents import Results, Row

Found = TypeVar("Found", bound=Results)


class Watcher(Protocol):
    def begin(self, part: str, total: int) -> None: ...

    def advance(self, what: str) -> None: ...

    def say(self, what: str) -> None: ...


class Measurement(Generic[Found]):
    """`save` is called whenever a part has ended, well or not."""

    foreseen: tuple[type[Exception], ...] = (CloisterError, OSError)

    def __init__(self, results: Found, watcher: Watcher, save: Callable[[], None] = lambda: None) -> None:
        self._results = results
        self._watcher = watcher
        self._save = save
        self._begun = monotonic()

    @property
    def _elapsed(self) -> float:
        return monotonic() - self._begun

    @contextmanager
    def _noting(self, part: str) -> Iterator[None]:
        """A part that fails is noted with its reason, so that the next one can be measured."""
        try:
            yield
        except self.foreseen as failure:
            self._failed(part, failure)
        finally:
            self._results.seconds = self._elapsed
            self._save()

    def _failed(self, part: str, failure: Exception) -> None:
        self._results.failed.append({"part": part, "reason": str(failure) or type(failure).__name__})


@dataclass(frozen=True, slots=True)
class Point:
    """One side of a comparison: `users` at a level, or of a server. With `session` every user keeps its vault."""

    level: str
    users: int
    input_tokens: int
    output_tokens: int
    requests: int = 1
    rounds: int = 1
    session: bool = False

    @property
    def side(self) -> str:
        return f"{self.level}, session" if self.session else self.level

    @property
    def load(self) -> tuple[int, int, int]:
        return self.users, self.input_tokens, self.output_tokens

    def labels(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("level", "users", "input_tokens", "output_tokens")}

    def __str__(self) -> str:
        users = f"{self.users} user{'s' if self.users > 1 else ''}"
        return f"{self.side}, {users}, {self.input_tokens} in, {self.output_tokens} out"


class Measures(Protocol):
    def measure(self, point: Point, seed: int) -> RunReport: ...


@dataclass(slots=True)
class Measured:
    """`rounds[point][round]` is one run; rounds a point took no part in are missing."""

    rounds: dict[Point, dict[int, RunReport]] = field(default_factory=dict)

    def add(self, point: Point, round: int, run: RunReport) -> None:
        self.rounds.setdefault(point, {})[round] = run

    def side(self, point: Point, level: str) -> Mapping[int, RunReport]:
        found = (runs for other, runs in self.rounds.items() if (other.level, other.load) == (level, point.load))
        return next(found, {})


def ratio(ours: Mapping[int, RunReport], theirs: Mapping[int, RunReport]) -> float | None:
    """Our throughput over theirs: the median over the rounds both took part in, each compared within itself."""
    pairs = [
        ours[round].output_tokens_per_s / run.output_tokens_per_s
        for round, run in theirs.items()
        if round in ours and run.output_tokens_per_s > 0
    ]
    return median(pairs) if pairs else None


def summary(point: Point, measured: Measured, *others: str) -> Row:
    """Medians over a side's rounds, and its throughput over that of other levels."""
    by_round = measured.rounds[point]
    runs = list(by_round.values())
    ratios = {level: ratio(by_round, measured.side(point, level)) for level in others}
    return {
        **point.labels(),
        "tokens_per_s": middle([run.output_tokens_per_s for run in runs]),
        "ttft_ms": middle([run.ttft_ms for run in runs]),
        **{f"ratio_to_{level}": None if value is None else round(value, 4) for level, value in ratios.items()},
        "answer_ms": middle([run.answer_ms for run in runs]),
        "between_tokens_ms": middle([run.itl_ms for run in runs]),
        "rounds": len(runs),
        **{name: sum(getattr(run, name) for run in runs) for name in ("requests", "errors", "prompt_tokens")},
    }


def middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(median(known), 3) if known else None


def in_turn(points: Sequence[Point], round: int) -> list[list[Point]]:
    """The sides of each comparison, one after the other; who begins changes from round to round."""
    groups = [list(group) for _, group in groupby(points, key=lambda point: point.load)]
    turned = [group[round % len(group) :] + group[: round % len(group)] for group in groups]
    taking_part = [[point for point in group if round < point.rounds] for group in turned]
    return [group for group in taking_part if group]


def measure_in_turn(
    server: Measures,
    points: Sequence[Point],
    measured: Measured,
    *,
    seconds: float,
    seed: int = 0,
    on_end: Callable[[Point], None] = lambda point: None,
    clock: Callable[[], float] = monotonic,
) -> None:
    """`measured` is kept if this fails. Each comparison is made once, and again if it fits."""
    end = clock() + seconds
    took: dict[tuple[int, int, int], float] = {}
    for round in range(max((point.rounds for point in points), default=0)):
        for group in in_turn(points, round):
            begun, load = clock(), group[0].load
            fits = not round or begun + took[load] <= end
            for point in group:
                if fits:
                    measured.add(point, round, server.measure(point, seed + round))
                on_end(point)
            if fits:
                took[load] = clock() - begun
