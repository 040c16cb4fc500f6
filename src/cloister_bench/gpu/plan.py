"""What is measured, and in which order: what the targets need comes first, since a GPU is often lent for minutes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from cloister_bench.gpu.shapes import LLAMA_3_8B, SHAPES

Part = Literal["floor", "steps", "requests", "transformers", "breakdown", "variants"]
PARTS: tuple[Part, ...] = get_args(Part)

PER_USER = 0  # attention processes: one for each user
DEFAULT_PROCESSES = 8
MOST_ISOLATED = 8  # users who decode alone, in turn: with more it takes as much longer
MOST_CLIENTS = 46  # of MPS, which has 48 (compute/gpu/mailbox.py)

Load = tuple[int, int]  # tokens of prompt and answer


@dataclass(frozen=True, slots=True)
class Case:
    """`processes`: the isolation settings at which prompts are partitioned."""

    shape: str
    part: Part
    users: int = 1
    prompt: int = 64
    answer: int = 64
    processes: tuple[int, ...] = ()
    lambdas: tuple[int, ...] = ()
    compiled: bool = False

    def settings(self) -> list[int]:
        """None twice: no more than users, and than there can be clients."""
        counts = (self.users if each == PER_USER else min(each, self.users) for each in self.processes)
        return [count for count in dict.fromkeys(counts) if count < MOST_CLIENTS]

    def labels(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("shape", "users", "prompt")}

    def __str__(self) -> str:
        users = f"{self.users} user{'s' if self.users > 1 else ''}"
        return self.part if self.part == "floor" else f"{self.part}, {users}, {self.prompt} tokens"


@dataclass(frozen=True, slots=True)
class Plan:
    """`minutes` bounds the run: no case begins later."""

    shapes: tuple[str, ...] = tuple(SHAPES)
    users: tuple[int, ...] = (1, 8, 32, 64)
    prompts: tuple[int, ...] = (64, 2048)
    processes: tuple[int, ...] = (DEFAULT_PROCESSES, 1, PER_USER)
    requests: tuple[Load, ...] = ((64, 64), (512, 128), (2048, 64))
    request_users: tuple[int, ...] = (8, 32)
    lambdas: tuple[int, ...] = (8, 64, 128)
    other_users: tuple[int, ...] = (1, 8, 32)
    parts: tuple[Part, ...] = PARTS
    minutes: float = 25.0

    def cases(self) -> list[Case]:
        """Those of a shape in a row, since its weights are made once; then what takes long and matters less."""
        cases = [case for shape in self.shapes for case in self._of(shape)]
        cases.append(Case(self.shapes[0], "transformers", self.request_users[0], compiled=True))  # takes a minute
        return [case for case in cases if case.part in self.parts]

    def _of(self, shape: str) -> Iterator[Case]:
        main = shape == LLAMA_3_8B or shape == self.shapes[0]
        yield Case(shape, "floor")
        if not main:
            yield from (Case(shape, "steps", users, processes=self.processes[:2]) for users in self.other_users)
            yield from (Case(shape, "requests", users, processes=self.processes[:1]) for users in self.other_users[1:2])
            return
        two, most = self.processes[:2], self.request_users[-1]
        yield from (Case(shape, "steps", users, processes=two) for users in self.users)
        yield Case(shape, "requests", most, *self.requests[0], two)
        yield Case(shape, "transformers", most)
        for prompt in self.prompts[1:]:
            yield from (Case(shape, "steps", users, prompt, processes=two) for users in self.users)
        yield from (Case(shape, "requests", most, *load, two) for load in self.requests[1:2])
        yield Case(shape, "breakdown", most, processes=two[:1])
        yield from (Case(shape, "transformers", users) for users in self.request_users[:-1])
        yield Case(shape, "variants", 8, processes=two[:1], lambdas=self.lambdas)
        yield Case(shape, "variants", 1, processes=two[:1], lambdas=self.lambdas)
        many = [users for users in self.users if self.processes[2:] and users > DEFAULT_PROCESSES]
        yield from (Case(shape, "steps", users, processes=self.processes[2:]) for users in many)
        for users in self.request_users[:-1]:
            yield Case(shape, "requests", users, *self.requests[0], two)
        yield from (Case(shape, "requests", self.request_users[0], *load, two) for load in self.requests[2:])


FULL = Plan()
QUICK = replace(
    FULL,
    shapes=(LLAMA_3_8B,),
    users=(1, 8),
    prompts=(64,),
    processes=(DEFAULT_PROCESSES, 1),
    requests=((64, 64),),
    request_users=(8,),
    minutes=4.0,
)
