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

    def users_points(self) -> list[Point]:
        """Figure 4: latency against the number of users."""
        tokens = (self.input_tokens, self.output_tokens)
        return [
            self._point(level, users, *tokens, isolated_once=users > 8)
            for users in self.users
            for level in LEVELS
            if level != ISOLATED or users <= self.isolated_users
        ]

    def length_points(self) -> list[Point]:
        """Figure 6: latency per token against the lengths of prompts and answers."""
        return [
            Point(level, self.shared_users, *tokens, optional=level == ISOLATED)
            for tokens in self.lengths
            for level in LEVELS
            if level != ISOLATED or tokens[1] <= self.isolated_output
        ]

    def model_points(self) -> list[Point]:
        """Figure 5: the same load on another model."""
        tokens = (self.input_tokens, self.output_tokens)
        return [self._point(level, self.shared_users, *tokens, isolated_once=True) for level in LEVELS]

    def breakdown_points(self) -> list[Point]:
        """Figure 7: where a partitioned step's time goes; `open` beside it, for the whole of its step."""
        tokens = (self.input_tokens, self.output_tokens)
        return [Point(level, users, *tokens) for users in self.breakdown_users for level in LEVELS if level != ISOLATED]

    def left_out(self) -> Iterator[tuple[Part, Point, str]]:
        why = "the vaults decode in turn: it would take minutes"
        for users in self.users:
            if users > self.isolated_users:
                yield "users", self._point(ISOLATED, users, self.input_tokens, self.output_tokens), why
        for tokens in self.lengths:
            if tokens[1] > self.isolated_output:
                yield "lengths", Point(ISOLATED, self.shared_users, *tokens), why

    def _point(
        self, level: LevelName, users: int, input_tokens: int, output_tokens: int, isolated_once: bool = False
    ) -> Point:
        if level == ISOLATED:
            rounds = 1 if isolated_once else min(self.rounds, 2)
            return Point(level, users, input_tokens, output_tokens, 1, rounds, optional=users > self.shared_users)
        return Point(level, users, input_tokens, output_tokens, self.requests, self.rounds)


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
