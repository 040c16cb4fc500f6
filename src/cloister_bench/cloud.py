"""What anonymity costs: one node behind a sealing proxy that goes direct, through a relay, with tokens, or both; and
how many tokens an issuer gives and a node takes in a second of one core."""

import asyncio
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from time import process_time, time
from typing import ClassVar

from cloister.access.batches import TOKENS
from cloister.access.cloud import Cloud, CloudNode
from cloister.access.issuing import MOST_AT_ONCE, Issuer
from cloister.access.tokens import PendingToken, Token
from cloister.addresses import HttpAddress
from cloister.config import DEVELOPMENT_KEY, GatewaySettings
from cloister.controller.token_gate import TokenGate
from cloister.errors import CloisterError
from cloister.keys import add_line, key_line, new_key
from cloister.models.source import ModelFolder
from cloister_bench.connection import on_free_port
from cloister_bench.load import Workload
from cloister_bench.peers import Comparison, InTurn, Point, answered
from cloister_bench.servers import OwnServer, Server, ServerProcess
from cloister_bench.suite.documents import Document, Table, Target, value_of

START_S, REQUEST_S = 300.0, 300.0
DIRECT, RELAY, TOKENS_SIDE, BOTH = "direct", "relay", "tokens", "relay and tokens"
NODE = "here"
TENANTS = 32
MOST_TOKENS = 1 << 30  # the issuer's day must not end a measurement


@dataclass(frozen=True, slots=True)
class Plan:
    users: tuple[int, ...] = (1, 8)
    input_tokens: int = 64
    output_tokens: int = 64
    requests: int = 2
    rounds: int = 3
    tokens: int = 512

    def sides(self) -> list[Point]:
        load = Workload(self.input_tokens, self.output_tokens, self.requests, timeout_s=REQUEST_S)
        return [Point(side, users, load) for users in self.users for side in (DIRECT, RELAY, TOKENS_SIDE, BOTH)]


@dataclass
class Results(Comparison):
    """`rates`: tokens a second of one core's processor time."""

    plan: Plan
    rates: dict[str, float] = field(default_factory=dict)

    targets: ClassVar[tuple[Target, ...]] = (
        Target("tokens issued a second and core", 500, value_of("rates", "issued")),
        Target("tokens redeemed a second and core", 2000, value_of("rates", "redeemed")),
        Target("throughput with both, 8 users", 0.95, value_of("runs", "ratio", side=BOTH, users=8)),
        Target("first token with both, 8 users", 1.15, value_of("runs", "first", side=BOTH, users=8), "at most"),
    )

    def numbers(self) -> Document:
        document = super().numbers()
        for run in document["runs"]:
            run["first"] = self._first(run["side"], run["users"])
        return {**document, "rates": dict(self.rates)}

    def _first(self, side: str, users: int) -> float | None:
        """The first token's time over the direct side's: the median over rounds, each compared within itself."""
        rounds = {point.side: runs for point, runs in self.measured.items() if point.users == users}
        ours, theirs = rounds[side], rounds.get(DIRECT, {})
        pairs = [(ours[each].ttft_ms, theirs[each].ttft_ms) for each in ours.keys() & theirs.keys()]
        ratios = [one / other for one, other in pairs if one and other]
        return round(median(ratios), 4) if ratios else None


def tables(document: Document) -> list[Table]:
    columns = {"side": "side", "users": "users", "tokens/s": "tokens_per_s", "of direct": "ratio"}
    columns |= {"first token, ms": "ttft_ms", "of direct's": "first", "errors": "errors"}
    runs = Table.of(f"{document['model']} behind a sealing proxy", document["runs"], columns)
    rates = {"issued": "issued", "redeemed": "redeemed"}
    return [runs, Table.of("tokens a second of one core", [document["rates"]], rates, labels=0)]


class Bench(InTurn[Results]):
    def run(self, folder: ModelFolder) -> None:
        plan, home = self._results.plan, Path(mkdtemp(prefix="cloister-bench-"))  # stays if a part does not start
        with self._noting("tokens"):
            self.measure_rates(home / "rates")
        with self._noting("cloud"), ExitStack() as running:
            ways = start(folder, home, running)
            self._in_turn(plan.sides(), plan.rounds, lambda point, seed: answered(ways[point.side], point, seed))
            running.close()
            shutil.rmtree(home)

    def measure_rates(self, home: Path) -> None:
        count = self._results.plan.tokens
        self._watcher.begin("tokens", 2)
        issuer = Issuer(home, "issuer", TOKENS, per_day=MOST_TOKENS)
        keys = issuer.keys
        pending = [PendingToken.draw(keys.current(time()).key, keys.challenge) for _ in range(count)]
        batches = [pending[at : at + MOST_AT_ONCE] for at in range(0, count, MOST_AT_ONCE)]
        begun = process_time()
        answers = [each for batch in batches for each in issuer.issue("bench", [one.request for one in batch])]
        self._results.rates["issued"] = round(count / (process_time() - begun), 1)
        self._watcher.advance("issued")
        tokens = [one.finish(answer) for one, answer in zip(pending, answers, strict=True)]
        path = home / "cloud.json"
        path.write_bytes(Cloud((CloudNode(NODE, "http://127.0.0.1:1"),), keys).encode())
        settings = GatewaySettings(cloud=path, node_name=NODE, spent=home / "spent")
        begun = process_time()
        refused = asyncio.run(_redeemed(settings, tokens))
        self._results.rates["redeemed"] = round(count / (process_time() - begun), 1)
        if refused:
            raise refused[0]
        self._watcher.advance("redeemed")


async def _redeemed(settings: GatewaySettings, tokens: Sequence[Token]) -> list[CloisterError]:
    """What was refused."""
    gate, refused = TokenGate(settings), list[CloisterError]()

    def settled(reason: CloisterError | None) -> None:
        refused.extend([reason] if reason else [])

    for token in tokens:
        gate.settle(token.encode(), settled)
    await gate.close()
    return refused


def start(folder: ModelFolder, home: Path, running: ExitStack) -> dict[str, Server]:
    """A proxy for each side, all of one node."""
    issuer_at, node_at = on_free_port(), on_free_port()
    issuer = Issuer(home / "issuer", "issuer", TOKENS, per_day=MOST_TOKENS)
    listed = home / "cloud.json"
    listed.write_bytes(Cloud((CloudNode(NODE, str(node_at)),), issuer.keys).encode())
    issuer.close()
    owners = {DEVELOPMENT_KEY: "user-0"} | {new_key(): f"user-{number}" for number in range(1, TENANTS)}
    for key, owner in owners.items():  # as with tokens, each user is a tenant
        add_line(home / "keys.toml", key_line(key, owner))
    spent = ("--cloud", str(listed), "--node-name", NODE, "--spent", str(home / "spent"), "--mpc", "off")
    node = OwnServer(folder.path, home, ("--port", str(node_at.port), "--keys", str(home / "keys.toml"), *spent))
    node.address = node_at
    words = ("--port", str(issuer_at.port), "--folder", str(home / "issuer"), "--per-day", str(MOST_TOKENS))
    part = _parts(home)
    running.enter_context(part("issuer", issuer_at, ("issuer", *words, "--period-days", "1")))
    running.enter_context(node).wait(START_S)
    relay_at = on_free_port()
    running.enter_context(part("relay", relay_at, ("relay", "--to", str(node_at), "--port", str(relay_at.port))))
    with_relay = ("--relay", str(relay_at))
    with_tokens = ("--issuer", str(issuer_at), "--cloud", str(listed))
    ways: dict[str, Server] = {}
    sides = {DIRECT: (), RELAY: with_relay, TOKENS_SIDE: with_tokens, BOTH: (*with_relay, *with_tokens)}
    for side, more in sides.items():
        at = on_free_port()
        proxied = ("proxy", str(node_at), "--allow-software-tee", "--port", str(at.port), *more)
        running.enter_context(proxy := part(side, at, proxied)).wait(START_S)
        proxy.user_keys = tuple(owners)
        ways[side] = proxy
    return ways


def _parts(home: Path) -> Callable[[str, HttpAddress, Sequence[str]], ServerProcess]:
    def part(name: str, at: HttpAddress, words: Sequence[str]) -> ServerProcess:
        command = [sys.executable, "-m", "cloister", *words]
        return ServerProcess(name, command, at, home / f"{name.replace(' ', '-')}.log", DEVELOPMENT_KEY)

    return part
