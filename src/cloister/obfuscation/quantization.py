"""How near a substitute's probability must be to the secret's, and how that is measured (§5.1): ε, its bins, λ_max."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from cloister.errors import SetupError

Distance = Literal["absolute", "relative"]
Keep = Literal["likeliest", "nearest", "around"]


@dataclass(frozen=True, slots=True)
class Quantization:
    """ε and how it is measured; λ_max; the temperature the model's distribution is flattened with.

    `keep`: which λ_max of too many stay: the likeliest; those whose probability so far is nearest the real one's; or
    those `around` it, the nearest likelier one and the nearest other by turns. Below it there are more, and nearer, and
    most words that begin as likely as the right one go on less likely: with the nearest alone it would come first.
    `widen`: where a bin holds too few, take from beyond it; without, this is Algorithm 1 to the letter.
    """

    epsilon: float = 0.1
    lambda_max: int = 128
    temperature: float = 1.0
    distance: Distance = "absolute"
    keep: Keep = "around"
    widen: bool = True

    def __post_init__(self) -> None:
        if not self.epsilon > 0 or (self.distance == "absolute" and self.epsilon > 1):
            raise SetupError("ε must be above 0, and at most 1 for an absolute distance.", hint="Try 0.1.")
        if self.lambda_max < 1 or not 0 < self.temperature <= 10:
            raise SetupError("λ_max is at least 1, the temperature above 0 and at most 10.", hint="Try 128 and 1.")

    def bin(self, reference: float, tokens: int) -> tuple[float, float]:
        """The bounds (low, high] of the bin a log-probability is in, as log-probabilities. ε' is ε/tokens.

        Line 12's bounds; a probability on a bound counts to the bin below it, where line 12 lets it count to none.
        """
        width = self.epsilon / tokens
        if self.distance == "relative":
            number = math.ceil(reference / width)
            return (number - 1) * width, number * width
        number = max(1, math.ceil(math.exp(reference) / width))
        return math.log((number - 1) * width) if number > 1 else -math.inf, math.log(number * width)

    def holds(self, fake: float, real: float) -> bool:
        """Theorem 5.1 for one sample; its and the real one's log-probability."""
        return self.gap(fake, real) < self.epsilon

    def gap(self, fake: float, real: float) -> float:
        return abs(fake - real) if self.distance == "relative" else abs(math.exp(fake) - math.exp(real))
