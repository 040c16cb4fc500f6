"""The plain attacker over HTTP, against a server of each policy: two fresh tenants for each secret, by `cached_tokens`
and by first-token times."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from cloister.keys import key_line
from cloister.levels import LEVELS
from cloister_bench.servers import OwnServer
from cloister_bench.sharing.attack import Caller
from cloister_bench.sharing.attack_offline import ALL_SHARED_NAME, NO_GRID_NAME
from cloister_bench.sharing.attackers import Case, score
from cloister_bench.sharing.families import CANDIDATES, Family, Trial, trials
from cloister_bench.sharing.world import PAGE, Reader, Setting

HTTP_SETTINGS = ("counted", "partition", "safekv", "global", ALL_SHARED_NAME, NO_GRID_NAME)
LEVEL: str = next(level.name for level in LEVELS.values() if level.examined)
Rates = dict[str, list[float]]  # [right, trials] by signal


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
    rates: Rates = {"count": [0.0, 0], "time": [0.0, 0]}
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
        rates[signal][0] += score(weights, case.true, ())
        rates[signal][1] += 1
    for caller in (victim, attacker):
        caller.close()
