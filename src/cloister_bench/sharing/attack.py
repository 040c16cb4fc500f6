"""SafeKV's attacker (§III-B) takes the candidate whose first token came soonest; a second one reads `cached_tokens`. A
candidate is sent once: from then on its sender has it cached too."""

from __future__ import annotations

import random
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import httpx2

from cloister_bench.sharing.prompts import AFTER, BEFORE, Trial, make_trial
from cloister_bench.streamed import events


@dataclass(frozen=True, slots=True)
class Probe:
    seconds: float
    cached: int
    tokens: int


class Caller:
    def __init__(self, url: str, model: str, key: str, level: str) -> None:
        self._http = httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=300)
        self._body = {"model": model, "max_tokens": 1, "temperature": 0, "protection": level, "stream": True}
        self._body["stream_options"] = {"include_usage": True}

    def ask(self, prompt: str) -> Probe:
        first = 0.0
        usage: dict[str, Any] = {}
        sent = perf_counter()
        for event in events(self._http, "/v1/completions", {**self._body, "prompt": prompt}):
            first = first or perf_counter() - sent
            usage = event.get("usage") or usage
        found = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return Probe(first, int(found), int(usage.get("prompt_tokens", 0)))

    def close(self) -> None:
        self._http.close()


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
