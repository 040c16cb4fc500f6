"""The plain attacker over HTTP, against a server of each policy: two fresh tenants for each secret, by `cached_tokens`
and by first-token times."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx2

from cloister.keys import key_line
from cloister.levels import LEVELS
from cloister_bench.servers import OwnServer
from cloister_bench.sharing.attack_offline import ALL_SHARED_NAME, NO_GRID_NAME
from cloister_bench.sharing.attackers import Case, score
from cloister_bench.sharing.families import CANDIDATES, Family, Trial, trials
from cloister_bench.sharing.world import PAGE, Reader, Setting
from cloister_bench.streamed import events

HTTP_SETTINGS = ("counted", "partition", "safekv", "global", ALL_SHARED_NAME, NO_GRID_NAME)
LEVEL: str = next(level.name for level in LEVELS.values() if level.examined)
Rates = dict[str, list[float]]  # [trials, right] by signal


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


class AttackedNode(OwnServer):
    """Use it in a `with`. A tenant's name is its key, and every tenant is an account."""

    def __init__(self, setting: Setting, model: str | None, folder: Path, tenants: Sequence[str]) -> None:
        keys = folder / "keys.toml"
        keys.write_text("\n".join(["[keys]", *(key_line(name, name) for name in tenants)]))
        arguments = ["--keys", keys, "--mpc", "off", "--detector" if setting.veto else "--no-detector"]
        arguments += ["--shared-policy", setting.policy, "--quantise-ttft", setting.grid_ms]
        arguments += ["--share-epsilon", setting.epsilon, "--share-threshold", setting.threshold]
        super().__init__(model, folder, list(map(str, arguments)), api_key=tenants[0])

    def caller(self, tenant: str) -> Caller:
        return Caller(str(self.address), self.model, tenant, LEVEL)


def attack_over_http(
    setting: Setting, model: str | None, folder: Path, families: Sequence[Family], reader: Reader, count: int, seed: int
) -> Rates:
    """Secrets of all families in turn, each of a draw of its own."""
    rates: Rates = {}
    draw = random.Random(f"{seed} over http")
    names = [f"{role}-{number}" for number in range(count) for role in ("victim", "attacker")]
    with AttackedNode(setting, model, folder, names) as node:
        node.wait()
        for number in range(count):
            drawn = trials(families[number % len(families)], CANDIDATES, seed * 1000 + number)
            attack_one(node, reader, draw.choice(list(drawn)), number, rates)
    return rates


def attack_one(node: AttackedNode, reader: Reader, trial: Trial, number: int, rates: Rates) -> None:
    order = random.Random(number).sample(range(len(trial.candidates)), len(trial.candidates))
    case = Case.of(reader, trial, order)
    victim, attacker = node.caller(f"victim-{number}"), node.caller(f"attacker-{number}")
    attacker.ask(trial.other)  # from now on it has the common beginning of its own
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
