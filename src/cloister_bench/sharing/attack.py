"""The plain attacker over HTTP, against a server of each policy: two fresh tenants for each secret, by `cached_tokens`
and by first-token times."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx2

from cloister_bench.sharing.attackers import ALL_SHARED_NAME, NO_GRID_NAME, Case, score
from cloister_bench.sharing.families import CANDIDATES, Family, Trial, trials
from cloister_bench.sharing.replay import Served
from cloister_bench.sharing.world import PAGE, Reader, Setting
from cloister_bench.streamed import events

HTTP_SETTINGS = ("counted", "partition", "safekv", "global", ALL_SHARED_NAME, NO_GRID_NAME)
Rates = dict[str, list[float]]  # [trials, right] by signal


@dataclass(frozen=True, slots=True)
class Probe:
    seconds: float
    cached: int
    tokens: int


class Caller:
    def __init__(self, url: str, model: str, level: str, key: str) -> None:
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


def attack_over_http(
    setting: Setting, model: str | None, folder: Path, families: Sequence[Family], reader: Reader, count: int, seed: int
) -> Rates:
    """Secrets of all families in turn, each from a new draw."""
    rates: Rates = {}
    draw = random.Random(f"{seed} over http")
    names = [f"{role}-{number}" for number in range(count) for role in ("victim", "attacker")]
    options = ["--detector" if setting.veto else "--no-detector", "--quantise-ttft", str(setting.grid_ms)]
    options += ["--share-epsilon", str(setting.epsilon), "--share-threshold", str(setting.threshold)]
    with Served(setting.policy, model, folder, names, options) as node:
        node.wait()
        ask_as = partial(Caller, str(node.address), node.model, node.level)
        for number in range(count):
            drawn = trials(families[number % len(families)], CANDIDATES, seed * 1000 + number)
            attack_one(ask_as, reader, draw.choice(list(drawn)), number, rates)
    return rates


def attack_one(ask_as: Callable[[str], Caller], reader: Reader, trial: Trial, number: int, rates: Rates) -> None:
    order = random.Random(number).sample(range(len(trial.candidates)), len(trial.candidates))
    case = Case.of(reader, trial, order)
    victim, attacker = ask_as(f"victim-{number}"), ask_as(f"attacker-{number}")
    attacker.ask(trial.other)  # from now on the common beginning is its own too
    victim.ask(trial.candidates[trial.true])
    found, speed = [0.0] * len(order), [0.0] * len(order)
    for one, prompt, own in case.in_order():
        probe = attacker.ask(trial.candidates[one])
        found[one] = max(0.0, probe.cached - PAGE * own)
        speed[one] = max(1, len(prompt) - PAGE * own) / probe.seconds
    for signal, weights in (("count", found), ("time", speed)):
        of, right = rates.get(signal, (0, 0.0))
        rates[signal] = [of + 1, right + score(weights, case.true, ())]
    for caller in (victim, attacker):
        caller.close()
