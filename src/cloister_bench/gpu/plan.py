"""What is measured, and in which order: what the targets need comes first, since a GPU is often lent for minutes."""

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from cloister_bench.gpu.model import DEFAULT_PROCESSES

Part = Literal["floor", "steps", "requests", "transformers", "obfuscated"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True, slots=True)
class Case:
    part: Part
    users: int = 1
    prompt: int = 64
    answer: int = 64
    lambdas: tuple[int, ...] = ()
    compiled: bool = False

    def settings(self) -> list[int]:
        """Numbers of attention processes at which prompts are partitioned: no more than users."""
        return list(dict.fromkeys((min(DEFAULT_PROCESSES, self.users), 1)))

    def labels(self) -> dict[str, Any]:
        return {"users": self.users, "prompt": self.prompt}

    def __str__(self) -> str:
        users = f"{self.users} user{'s' if self.users > 1 else ''}"
        return self.part if self.part == "floor" else f"{self.part}, {users}, {self.prompt} tokens"


@dataclass(frozen=True, slots=True)
class Plan:
    """`minutes` bounds the run: no case begins later."""

    users: tuple[int, ...] = (1, 8, 32, 64)
    prompts: tuple[int, ...] = (64, 2048)
    requests: tuple[tuple[int, int], ...] = ((64, 64), (512, 128))  # tokens of prompt and answer
    request_users: tuple[int, ...] = (32, 8)
    lambdas: tuple[int, ...] = (8, 64)
    parts: tuple[Part, ...] = PARTS
    minutes: float = 25.0

    def cases(self) -> list[Case]:
        cases = [Case("floor"), *(Case("steps", users) for users in self.users)]
        cases += [Case("requests", self.request_users[0], *load) for load in self.requests]
        cases += [Case("steps", users, prompt) for prompt in self.prompts[1:] for users in self.users]
        cases += [Case("requests", users) for users in self.request_users[1:]]
        cases += [Case("obfuscated", users, lambdas=self.lambdas) for users in (8, 1)]
        cases += [Case("transformers", users) for users in self.request_users]
        cases.append(Case("transformers", 8, compiled=True))  # takes a minute
        return [case for case in cases if case.part in self.parts]


FULL = Plan()
QUICK = replace(FULL, users=(1, 8), prompts=(64,), requests=((64, 64),), request_users=(8,), minutes=4.0)
