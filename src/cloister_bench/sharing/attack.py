"""SafeKV's attacker (§III-B) takes the candidate whose first token came soonest; a second one reads `cached_tokens`. A
candidate is sent once: from then on its sender has it cached too."""

from __future__ import annotations

import random
from dataclasses import dataclass

from cloister_bench.sharing.attack_http import Caller as Caller
from cloister_bench.sharing.attack_http import Probe as Probe
from cloister_bench.sharing.prompts import AFTER, BEFORE, Trial, make_trial


@dataclass(frozen=True, slots=True)
class Guess:
    by_time: bool
    by_count: bool


def attack(victim: Caller, attacker: Caller, trial: Trial, draw: random.Random) -> Guess:
    victim.ask(trial.candidates[trial.true])
    order = list(range(len(trial.candidates)))
    draw.shuffle(order)
    probes = {one: attacker.ask(trial.candidates[one]) for one in order}
    soonest = min(order, key=lambda one: probes[one].seconds)
    most = max(order, key=lambda one: probes[one].cached)  # the first in a random order among equals
    return Guess(soonest == trial.true, most == trial.true)


def attacks(victim: Caller, attacker: Caller, trials: int, candidates: int, seed: int) -> list[Guess]:
    """The attacker's own prompts warm what is common to all."""
    draw = random.Random(seed)
    for caller in (victim, attacker):
        caller.ask(BEFORE + AFTER)
    return [attack(victim, attacker, make_trial(draw, candidates), draw) for _ in range(trials)]


def reuse(writer: Caller, reader: Caller, seed: int, patience: int = 50) -> tuple[Probe, Probe]:
    """The writer's first answer to a clean prompt, and another tenant's after it, once a detector has read it."""
    draw = random.Random(seed)
    for _ in range(patience):
        words = " ".join(draw.choices(("river", "stone", "garden", "winter", "letter", "window"), k=6))
        prompt = f"Write a story with these words: {words}." + AFTER
        first, then = writer.ask(prompt), reader.ask(prompt)
        if then.cached:
            break
    return first, then
