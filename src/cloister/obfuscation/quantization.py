"""How near the probabilities of variants must be to each other, and how that is measured (§5.1): ε, λ_max."""

import math
from dataclasses import dataclass
from typing import Literal

from cloister.errors import SetupError

Distance = Literal["absolute", "relative"]


@dataclass(frozen=True, slots=True)
class Quantization:
    """λ_max: candidates kept at each step. Distance: |P(fake) − P(real)| < ε as in the paper, or of ln P."""

    epsilon: float = 0.1
    lambda_max: int = 128
    temperature: float = 1.0
    distance: Distance = "absolute"

    def __post_init__(self) -> None:
        if not self.epsilon > 0 or (self.distance == "absolute" and self.epsilon > 1):
            raise SetupError("ε must be above 0, and at most 1 for an absolute distance.", hint="Try 0.1.")
        if self.lambda_max < 1 or not 0 < self.temperature <= 10:
            raise SetupError("λ_max is at least 1, the temperature above 0 and at most 10.", hint="Try 128 and 1.")

    def holds(self, one: float, other: float) -> bool:
        """Theorem 5.1 for two log-probabilities."""
        return self.gap(one, other) < self.epsilon

    def gap(self, one: float, other: float) -> float:
        return abs(one - other) if self.distance == "relative" else abs(math.exp(one) - math.exp(other))
