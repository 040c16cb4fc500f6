"""One attack's result in one setting: what the attacker gets, beside a baseline that must succeed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloister_bench.suite.documents import Row, wilson


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is attacked; `layers` are the model's, prompts are of `tokens` tokens; system prompts are recited."""

    layers: tuple[int, ...]
    tokens: tuple[int, ...]
    prompts: int
    steps: int
    secrets: int
    trials: int
    recitals: int
    seed: int


@dataclass(frozen=True, slots=True)
class Victim:
    """What every attack may use. `say` shows progress; `model` is transformers', in fp32, loaded once by `load`."""

    plan: Plan
    model: str | None
    obfuscation: Path
    tokenizer: Any
    load: Callable[[], Any]
    say: Callable[[str], None] = lambda what: None
    data: Path = Path("data")
    texts: Sequence[Row] = ()  # prompts to attack: `text`; for traffic also `topic`, 0 or 1, and `group`, never divided


def rate_of_prompts(hits: Sequence[int], each: int) -> Row:
    """Hits of `each` in every prompt. A prompt counts once in the interval (Wilson): its tokens hang together."""
    low, high = wilson(sum(hits) / each, len(hits))
    return {"share": round(sum(hits) / max(1, each * len(hits)), 4), "of": each * len(hits), "low": low, "high": high}


Attack = Callable[[Victim], Iterable[Row]]  # rows as they are found


def row(attack: str, level: str, setting: str, gets: Row, baseline: float | None, unit: str, **more: Any) -> Row:
    """`gets`: a share with its interval, as `rate_of` makes it."""
    found = {"attack": attack, "level": level, "setting": setting, "gets": gets["share"], "baseline": baseline}
    return {**found, "unit": unit, **{name: gets[name] for name in ("of", "low", "high")}, **more}
