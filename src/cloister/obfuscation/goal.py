"""How many substitutes a user wants, and by which method."""

from dataclasses import dataclass, field
from typing import Literal

from cloister.errors import SetupError
from cloister.obfuscation.gqs import Quantization
from cloister.obfuscation.variants import MAX_FAKES

Method = Literal["exchangeable", "dictionary", "gqs"]


@dataclass(frozen=True, slots=True)
class SamplingGoal:
    """With fewer than `minimum` believable ones nothing is sent."""

    fakes: int = 7
    minimum: int | None = None
    quantization: Quantization = field(default_factory=Quantization)
    method: Method = "exchangeable"

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.fakes <= MAX_FAKES:
            raise SetupError(f"λ_min and λ are numbers with 1 ≤ λ_min ≤ λ ≤ {MAX_FAKES}.", hint="Try λ = 7.")

    @property
    def least(self) -> int:
        return self.fakes if self.minimum is None else self.minimum

    @property
    def believable(self) -> int:
        """The real value may be as likely as one of this many and itself, to the sampling model."""
        return self.fakes // 2 if self.minimum is None else self.minimum
