"""What is measured, with which numbers. Nothing is measured here."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from cloister.levels import ISOLATED, OPEN, PARTITIONED, LevelName
from cloister_bench.suite.measurement import Point

LEVELS: tuple[LevelName, ...] = (OPEN, PARTITIONED, ISOLATED)  # their tokens are the same

Part = Literal["users", "lengths", "breakdown", "ttft", "vaults", "model", "memory"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True, slots=True)
class Plan:
    """`seconds` bounds the run by parts. Where vaults decode alone, time grows with users: that is measured once."""

    users: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    input_tokens: int = 64
    output_tokens: int = 64
    requests: int = 2
    rounds: int = 3
    isolated_users: int = 32
    lengths: tuple[tuple[int, int], ...] = ((64, 64), (128, 128), (256, 256), (512, 512), (512, 64), (64, 512))
    isolated_output: int = 128
    shared_users: int = 8
    breakdown_users: tuple[int, ...] = (8, 32)
    ttft_tokens: int = 512
    ttft_samples: int = 9
    vault_samples: int = 9
    idle_vaults: int = 64
    seconds: float = 510.0
    seed: int = 0

    def seconds_of(self, part: Part) -> float:
        """A part's share; what is left is for starting servers and for the small parts."""
        return self.seconds * {"users": 0.48, "lengths": 0.22, "model": 0.14}.get(part, 1.0)

    def points(self, part: Part) -> list[Point]:
        """Figures 4 (`users`), 5 (`model`: one load of those, on another model) and 6 (`lengths`)."""
        return [point for point in self._every(part) if not self._too_long(part, point)]

    def breakdown_points(self) -> list[Point]:
        """Figure 7: where a partitioned step's time goes; `open` beside it, for the whole of its step."""
        tokens = (self.input_tokens, self.output_tokens)
        return [Point(level, users, *tokens) for users in self.breakdown_users for level in LEVELS if level != ISOLATED]

    def left_out(self) -> Iterator[tuple[Part, Point, str]]:
        why = "the vaults decode in turn: it would take minutes"
        parts: tuple[Part, ...] = ("users", "lengths")
        yield from ((part, point, why) for part in parts for point in self._every(part) if self._too_long(part, point))

    def _every(self, part: Part) -> list[Point]:
        tokens = (self.input_tokens, self.output_tokens)
        loads = {"users": [(users, *tokens) for users in self.users], "model": [(self.shared_users, *tokens)]}
        loads["lengths"] = [(self.shared_users, *each) for each in self.lengths]
        return [self._point(part, level, *load) for load in loads[part] for level in LEVELS]

    def _point(self, part: Part, level: LevelName, users: int, input_tokens: int, output_tokens: int) -> Point:
        load = (users, input_tokens, output_tokens)
        if part == "lengths":
            return Point(level, *load, optional=level == ISOLATED)
        if level != ISOLATED:
            return Point(level, *load, self.requests, self.rounds)
        rounds = 1 if part == "model" or users > 8 else min(self.rounds, 2)
        return Point(level, *load, 1, rounds, optional=users > self.shared_users)

    def _too_long(self, part: Part, point: Point) -> bool:
        beyond = {"users": point.users > self.isolated_users, "lengths": point.output_tokens > self.isolated_output}
        return point.level == ISOLATED and beyond.get(part, False)


FULL = Plan()
QUICK = Plan(  # to see that all works, and about how it stands
    users=(1, 8, 32),
    requests=1,
    rounds=1,
    isolated_users=8,
    lengths=((64, 64), (512, 64)),
    isolated_output=64,
    ttft_samples=3,
    vault_samples=3,
    seconds=120.0,
)
