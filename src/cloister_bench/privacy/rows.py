"""One attack's result in one setting: what the attacker gets, beside a baseline that must succeed."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloister_bench.suite.documents import Row


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is attacked; `layers` are the model's, prompts are of `tokens` tokens, streams of two topics."""

    layers: tuple[int, ...]
    tokens: tuple[int, ...]
    prompts: int
    steps: int
    secrets: int
    trials: int
    streams: int
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


Attack = Callable[[Victim], Iterable[Row]]  # rows as they are found


def row(attack: str, level: str, setting: str, gets: Row, baseline: float | None, unit: str, **more: Any) -> Row:
    """`gets`: a share with its interval, as `rate_of` makes it."""
    found = {"attack": attack, "level": level, "setting": setting, "gets": gets["share"], "baseline": baseline}
    return {**found, "unit": unit, **{name: gets[name] for name in ("of", "low", "high")}, **more}
