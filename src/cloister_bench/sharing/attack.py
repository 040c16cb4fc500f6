"""The plain attacker over HTTP, against a server of each policy: two fresh tenants for each secret, by `cached_tokens`
and by first-token times."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from cloister.keys import key_line
from cloister_bench.load import Answer, ask_once
from cloister_bench.servers import OwnServer
from cloister_bench.sharing.attackers import ALL_SHARED_NAME, NO_GRID_NAME, Case, score
from cloister_bench.sharing.families import CANDIDATES, Family, Trial, trials
from cloister_bench.sharing.world import PAGE, Reader, Setting

HTTP_SETTINGS = ("counted", "partition", "global", ALL_SHARED_NAME, NO_GRID_NAME)
Rates = dict[str, list[float]]  # [trials, right] by signal
Ask = Callable[[str, str], Answer]  # a tenant's prompt
ASKED = {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 1}


class Served(OwnServer):
    """At the level `shared` under one policy. A tenant's name is its key."""

    def __init__(
        self, policy: str, model: str | None, folder: Path, tenants: Sequence[str], options: Sequence[str]
    ) -> None:
        keys = folder / "keys.toml"
        keys.write_text("\n".join(["[keys]", *(key_line(name, name) for name in tenants)]))
        arguments = ["--keys", str(keys), "--mpc", "off", "--shared-policy", policy, *options]
        super().__init__(model, folder, arguments, api_key=tenants[0])

    def complete(self, tenant: str, prompt: str) -> Answer:
        """The first token after a plain prompt."""
        asked = {**ASKED, "model": self.model, "protection": "shared", "prompt": prompt}
        return ask_once(self.address, tenant, msgspec.json.encode(asked))


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
        for number in range(count):
            drawn = trials(families[number % len(families)], CANDIDATES, seed * 1000 + number)
            attack_one(node.complete, reader, draw.choice(list(drawn)), number, rates)
    return rates


def attack_one(ask: Ask, reader: Reader, trial: Trial, number: int, rates: Rates) -> None:
    order = random.Random(number).sample(range(len(trial.candidates)), len(trial.candidates))
    case = Case.of(reader, trial, order)
    attacker = f"attacker-{number}"
    ask(attacker, trial.other)  # from now on the common beginning is its own too
    ask(f"victim-{number}", trial.candidates[trial.true])
    found, speed = [0.0] * len(order), [0.0] * len(order)
    for one, prompt, own in case.in_order():
        answer = ask(attacker, trial.candidates[one])
        found[one] = max(0.0, answer.cached_tokens - PAGE * own)
        speed[one] = max(1, len(prompt) - PAGE * own) / (answer.first_token - answer.sent)
    for signal, weights in (("count", found), ("time", speed)):
        of, right = rates.get(signal, (0, 0.0))
        rates[signal] = [of + 1, right + score(weights, case.true, ())]
