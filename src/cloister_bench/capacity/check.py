"""Compares the simulation with real nodes. Three nodes run on one machine: while one replays its share of a trace, the
others are stopped, so that each has the cores as if it were alone. A node is measured right before and after its
share, and simulated with the mean."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from statistics import mean
from time import perf_counter, sleep
from typing import Any

from msgspec import structs

from cloister.keys import add_line, key_line, new_key
from cloister.levels import LevelName
from cloister_bench.capacity.machine import Machine, mean_profile
from cloister_bench.capacity.measure import Series, measure
from cloister_bench.capacity.plan import percentile
from cloister_bench.capacity.simulation import Results, Scenario, Simulation
from cloister_bench.capacity.traces import Request, Trace
from cloister_bench.connection import Connection
from cloister_bench.load import Answer, BrokenAnswer, Workload, ask
from cloister_bench.servers import OwnServer, Server

NODES, TENANTS, START_S, REQUEST_S = 3, 32, 300.0, 300.0
PROCESSES = 64  # requests at once from here, at most
TARGET = 0.15
UNMEASURED = (3600.0, 3600.0)  # rates of tokens: here users have keys


@dataclass(frozen=True, slots=True)
class Share:
    """One node's: measured, and simulated with the mean of the profiles measured right before and after."""

    machine: Machine
    answers: Sequence[Answer]
    broken: Sequence[str]
    simulated: Results
    begins: float


@dataclass
class Check:
    level: LevelName
    trace: Trace
    shares: list[Share] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        real = [one.first_token - one.sent for share in self.shares for one in share.answers]
        whole = [one.last_token - one.sent for share in self.shares for one in share.answers]
        first = [each for share in self.shares for each in share.simulated.first_s]
        wholes = [each for share in self.shares for each in share.simulated.whole_s]
        made = sum(one.output_tokens for share in self.shares for one in share.answers)
        seconds = sum(_took(share.answers) for share in self.shares)
        simulated_s = sum(share.simulated.ended_s - share.begins for share in self.shares)
        rows = [
            _row("first token, mean", mean(real), mean(first)),
            *(_row(f"first token, p{at}", percentile(real, at), percentile(first, at)) for at in (50, 90, 99)),
            _row("whole answer, mean", mean(whole), mean(wholes)),
            _row(
                "tokens a second",
                made / seconds,
                sum(share.simulated.tokens_made for share in self.shares) / simulated_s,
            ),
        ]
        return {
            "level": self.level,
            "nodes": len(self.shares),
            "requests": len(real),
            "broken": [each for share in self.shares for each in share.broken],
            "busy_simulated": round(mean(share.simulated.utilisation for share in self.shares), 3),
            "rows": rows,
            "within_target": all(abs(row["ratio"] - 1) <= TARGET for row in rows),
            "noise": [share.machine.noise for share in self.shares],
        }


def _row(name: str, real: float, simulated: float) -> dict[str, Any]:
    return {"name": name, "real": round(real, 4), "simulated": round(simulated, 4), "ratio": round(simulated / real, 4)}


def _between(before: Machine, after: Machine, level: LevelName) -> Machine:
    profile = mean_profile(before.profile(level), after.profile(level))
    start_s = (before.vault_start_s + after.vault_start_s) / 2
    return structs.replace(
        after, levels={level: profile}, vault_start_s=start_s, noise=f"{before.noise}; {after.noise}"
    )


def _say_of(say: Callable[[str], None], node: int, what: str) -> None:
    say(f"node {node}: {what}")


def _took(answers: Sequence[Answer]) -> float:
    return max(one.last_token for one in answers) - min(one.sent for one in answers)


def run(
    model: str | Path | None,
    home: Path,
    level: LevelName,
    trace: Trace,
    series: Series,
    say: Callable[[str], None],
    arguments: Sequence[str] = (),
) -> Check:
    """`home`: for logs and the nodes' keys."""
    keys = [new_key() for _ in range(TENANTS)]
    for number, key in enumerate(keys):
        add_line(home / "keys.toml", key_line(key, f"user-{number}", operator=number == 0))
    check, random = Check(level, trace), Random("check")
    shares: list[list[Request]] = [[] for _ in range(NODES)]
    for request in trace.requests:
        random.choice(shares).append(request)
    with ExitStack() as running:
        nodes: list[OwnServer] = []
        for number in range(NODES):
            say(f"start of node {number + 1}")
            words = ("--keys", str(home / "keys.toml"), "--mpc", "off", "--verify", "off", *arguments)
            node = running.enter_context(OwnServer(model, home, words, api_key=keys[0]))
            node.wait(START_S)
            node.user_keys = tuple(keys)
            node.pause()
            nodes.append(node)
        for number, (node, share) in enumerate(zip(nodes, shares, strict=True), 1):
            node.resume()
            measured = partial(measure, node, [level], series, partial(_say_of, say, number), rates=UNMEASURED)
            machine = measured()
            say(f"node {number}: {len(share)} requests")
            sleep(1.0)
            answers, broken = replay(node, level, share)
            machine = _between(machine, measured(), level)
            check.shares.append(Share(machine, answers, broken, simulate(machine, level, share), share[0].at))
            node.pause()
        for node in nodes:
            node.resume()
    return check


def simulate(machine: Machine, level: LevelName, share: Sequence[Request]) -> Results:
    return Simulation(machine, Scenario(1, {level: 1.0}, tokens=False, verified=0.0)).run(share)


def replay(node: Server, level: LevelName, share: Sequence[Request]) -> tuple[list[Answer], list[str]]:
    """Each request at its time, by another tenant than the last, however long others take."""
    begun = perf_counter() - share[0].at + 0.5
    broken: list[str] = []

    def send(number: int) -> Answer | None:
        request = share[number]
        load = Workload(request.prompt, request.output, timeout_s=REQUEST_S, seed=number, protection=level)
        body = load.request(node.model, None, "replay", number)
        connection = Connection(node.address, node.user_keys[number % len(node.user_keys)], REQUEST_S)
        sleep(max(0.0, begun + request.at - perf_counter()))
        try:
            return ask(connection, body)
        except BrokenAnswer as why:
            broken.append(str(why))
            return None
        finally:
            connection.close()

    with ThreadPoolExecutor(min(PROCESSES, len(share))) as threads:
        return [answer for answer in threads.map(send, range(len(share))) if answer is not None], broken
