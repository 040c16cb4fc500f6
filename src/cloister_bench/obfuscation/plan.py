"""What is measured, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Part = Literal["curves", "latency", "distinguisher", "decoding"]
PARTS: tuple[Part, ...] = ("curves", "latency", "distinguisher", "decoding")


@dataclass(frozen=True, slots=True)
class Plan:
    """`secrets` of each category; ε and λ_max of the curves and of the latency; λ, ε and λ_max of the distinguisher;
    users and λ of the decoding, from 0, which is `partitioned`."""

    secrets: int = 20
    epsilons: tuple[float, ...] = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
    lambda_max: int = 512
    latency_lambdas: tuple[int, ...] = (64, 128, 256, 512)
    latency_epsilons: tuple[float, ...] = (1 / 32, 1 / 4)
    latency_tokens: int = 8
    fakes: int = 7
    bet_epsilon: float = 0.1
    bet_lambda_max: int = 128
    trials: int = 100
    users: tuple[int, ...] = (1, 8)
    decoded: tuple[int, ...] = (0, 2, 4, 8, 16)
    tokens: int = 32
    rounds: int = 2
    temperature: float = 1.0
    seconds: float = 3600.0


FULL = Plan()
QUICK = Plan(
    secrets=3,
    epsilons=(1 / 32, 1 / 4),
    lambda_max=64,
    latency_lambdas=(64, 128, 256, 512),
    latency_epsilons=(1 / 8,),
    fakes=3,
    trials=60,
    users=(1,),
    decoded=(0, 8),
    rounds=1,
    seconds=600.0,
)
