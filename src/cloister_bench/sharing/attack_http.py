"""The plain attacker over HTTP: two fresh tenants for each secret, against a server of each policy. It reads
`cached_tokens`, first-token times, and how much a probe slows another stream of its own (throughput)."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from threading import Event, Thread
from time import perf_counter
from typing import Self

from cloister.keys import key_line
from cloister.levels import LEVELS
from cloister_bench.servers import OwnServer
from cloister_bench.sharing.attack import Caller
from cloister_bench.sharing.attack_offline import ALL_SHARED_NAME, NO_GRID_NAME
from cloister_bench.sharing.attackers import Case, score
from cloister_bench.sharing.families import Family, Trial, trials
from cloister_bench.sharing.world import PAGE, Reader, Setting

HTTP_SETTINGS = ("counted", "partition", "safekv", "global", ALL_SHARED_NAME, NO_GRID_NAME)
LEVEL: str = next(level.name for level in LEVELS.values() if level.examined)
WATCHER = "watcher"
STREAM_TOKENS = 256
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

    def caller(self, tenant: str, max_tokens: int = 1) -> Caller:
        return Caller(str(self.address), self.model, tenant, LEVEL, max_tokens)


class Stream:
    """One tenant's stream without end, and when its tokens came: a stall of it is another request's computing."""

    def __init__(self, caller: Caller) -> None:
        self._caller, self._ended = caller, Event()
        self._came: list[float] = []
        self._thread = Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._caller.close()

    def stalled(self, since: float, until: float) -> float:
        """Seconds by which tokens came late in this time."""
        came = self._came[max(0, bisect_left(self._came, since) - 1) : bisect_left(self._came, until) + 1]
        gaps = [later - one for one, later in pairwise(came)]
        return sum(max(0.0, gap - median(gaps)) for gap in gaps)

    def _read(self) -> None:
        while not self._ended.is_set():
            self._caller.ask(f"Story {len(self._came)}:", lambda: self._came.append(perf_counter()))


def attack_over_http(
    setting: Setting, model: str | None, folder: Path, families: Sequence[Family], reader: Reader, count: int, seed: int
) -> Rates:
    """Secrets of all families in turn; half as many again beside a stream."""
    beside = -(-count // 2)
    names = [f"{role}-{number}" for number in range(count + beside) for role in ("victim", "attacker")]
    rates: Rates = {}
    with AttackedNode(setting, model, folder, [WATCHER, *names]) as node:
        node.wait()
        for number in range(count):
            attack(node, reader, _trial(families, number, seed), number, rates)
        with Stream(node.caller(WATCHER, STREAM_TOKENS)) as stream:
            for number in range(count, count + beside):
                attack(node, reader, _trial(families, number, seed), number, rates, stream)
    return rates


def _trial(families: Sequence[Family], number: int, seed: int) -> Trial:
    """Of a draw of its own."""
    drawn = list(trials(families[number % len(families)], 4, seed * 1000 + number))
    return random.Random(f"{seed} {number}").choice(drawn)


def attack(
    node: AttackedNode, reader: Reader, trial: Trial, number: int, rates: Rates, stream: Stream | None = None
) -> None:
    order = random.Random(number).sample(range(len(trial.candidates)), len(trial.candidates))
    case = Case.of(reader, trial.candidates, trial.true, trial.other, order)
    victim, attacker = node.caller(f"victim-{number}"), node.caller(f"attacker-{number}")
    attacker.ask(trial.other)  # from now on it has the common beginning of its own
    victim.ask(trial.candidates[trial.true])
    weights: dict[str, list[float]] = {}
    for one, prompt, own in case.in_order():
        sent, probe = perf_counter(), attacker.ask(trial.candidates[one])
        to_compute = max(1, len(prompt) - PAGE * own)
        if stream is not None:
            seen = {"throughput": -stream.stalled(sent, perf_counter()) / to_compute}
        else:
            seen = {"count": max(0.0, probe.cached - PAGE * own), "time": -probe.seconds / to_compute}
        for signal, much in seen.items():
            weights.setdefault(signal, [0.0] * len(order))[one] = much
    for signal, each in weights.items():
        row = rates.setdefault(signal, [0.0, 0])
        row[0] += score(each, case.true, ())
        row[1] += 1
    for caller in (victim, attacker):
        caller.close()
