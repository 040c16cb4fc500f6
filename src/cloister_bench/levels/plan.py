"""Which sides are measured with which load. All sides get the same words; at `obfuscated` one of them is marked."""

from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal, get_args

from cloister.levels import ISOLATED, LEVELS, OBFUSCATED, LevelName
from cloister_bench.messages import WORDS, Workload
from cloister_bench.suite.measurement import Point

Part = Literal["levels", "mpc"]
PARTS: tuple[Part, ...] = get_args(Part)
SERVED: tuple[LevelName, ...] = tuple(level.name for level in LEVELS.values() if not level.slow)
FAKES = 7  # λ, the server's default
SECRET = "Ann"


@dataclass(frozen=True, slots=True)
class WordsLoad(Workload):
    """A text of one token a word, with one name in the middle: always the same name, so that a session keeps its
    substitutes. Warm-up answers are short: they only make vaults and substitutes."""

    def request(self, model: str, session: str | None, *names: object) -> bytes:
        asked = replace(self, output_tokens=2) if "warmup" in names else self
        return Workload.request(asked, model, session, *names)

    def _prompt(self, random: Random) -> dict[str, Any]:
        hidden = self.protection == OBFUSCATED
        words = random.choices(WORDS, k=self.input_tokens - 1)
        words.insert(len(words) // 2, f"<redacted>{SECRET}</redacted>" if hidden else SECRET)
        return {"prompt": " ".join(words), **({"obfuscation": {"fakes": FAKES}} if hidden else {})}


@dataclass(frozen=True, slots=True)
class Plan:
    """Beyond `few` users `obfuscated` (λ+1 sequences each) is left out, and `isolated`, whose vaults decode in turn, is
    measured once. After `seconds` no further round begins."""

    users: tuple[int, ...] = (1, 8, 32)
    input_tokens: int = 64
    output_tokens: int = 64
    requests: int = 2
    rounds: int = 3
    few: int = 8
    mpc_tokens: int = 4
    seconds: float = 1500.0
    seed: int = 0

    def sides(self) -> list[Point]:
        """With and without a session where a vault can be kept."""
        tokens, often = (self.input_tokens, self.output_tokens), (self.requests, self.rounds)
        return [
            Point(
                level, users, *tokens, *(often if users <= self.few or level != ISOLATED else (1, 1)), session=session
            )
            for users in self.users
            for level in SERVED
            if level != OBFUSCATED or users <= self.few
            for session in ((False, True) if LEVELS[level].uses_vault else (False,))
        ]


FULL = Plan()
QUICK = Plan(users=(1, 8), output_tokens=16, requests=1, rounds=1, mpc_tokens=2, seconds=120.0)
