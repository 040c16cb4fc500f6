"""Measures a machine from a live node, by a short series of requests. It needs a node that does nothing else."""

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from secrets import token_hex
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

from cloister.addresses import HttpAddress
from cloister.controller.core_lease import SHORT_STEPS
from cloister.errors import ProtocolError, ServiceUnavailable
from cloister.fairness import LEAST_SHORT_S, LINGER_S, LONG_S
from cloister.fairness import SHORT_STEPS as SERVICE_SHORT_STEPS
from cloister.gateway.metrics import COARSE_S
from cloister.levels import LevelName
from cloister_bench import cloud
from cloister_bench.capacity.machine import LevelProfile, Limits, Machine, Memory, Step, reads_in_vault
from cloister_bench.connection import Connection
from cloister_bench.load import Answer, BrokenAnswer, Workload, ask
from cloister_bench.servers import Server

ROWS = (1, 2, 4, 8, 16)
SHORT, LONG = 16, 256  # tokens of a prompt
TIMEOUT_S = 300.0
METRICS_TRIES = 6
TRIES = 3
_VAULT = re.compile(rb"^cloister_vault_ready_ms ([0-9.]+)$", re.MULTILINE)
_PAGES = re.compile(r"^(?:Pss|SwapPss): +(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Series:
    """How much is asked. `tokens`: of an answer whose steps are measured."""

    rows: Sequence[int] = ROWS
    repeats: int = 5
    tokens: int = 48
    crowd: int = 4
    turns: int = 6


USUAL, DEFAULTS = Series(), Limits()


class Measuring:
    """`keys`: of several tenants where there are, as in use: turns are short then."""

    def __init__(self, server: Server, series: Series, say: Callable[[str], None] = lambda _: None) -> None:
        self._server, self._series, self._say = server, series, say
        self._random, self._run = Random(token_hex(8)), token_hex(4)
        self._busy = False

    def level(self, level: LevelName) -> LevelProfile:
        series, vaults = self._series, reads_in_vault(level)
        self._say(f"{level}: prompts")
        if self._busy:
            sleep(LINGER_S)  # else others would count as active, and turns be short
        self._busy = True
        shorts = [self._ask(level, SHORT, 2) for _ in range(series.repeats)]
        longs = [self._ask(level, LONG, 2) for _ in range(series.repeats)]
        short, long = (median(each.first_token - each.sent for each in group) for group in (shorts, longs))
        alone = max((long - short) / (LONG - SHORT), 1e-6)
        steps = []
        for rows in series.rows:
            self._say(f"{level}: {rows} rows")
            answers = self.crowd(level, rows, SHORT, series.tokens, kept=vaults)
            steps.append(Step(rows, median(each.seconds_per_token for each in answers)))
        one = steps[0].seconds
        self._say(f"{level}: prompts in short turns")
        self._ask(level, SHORT, 1, user=1)  # another tenant: active for LINGER_S
        others = [self._ask(level, size, 2) for _ in range(series.repeats) for size in (SHORT, LONG)]
        waits = [each.first_token - each.sent for each in others]
        beside = max((median(waits[1::2]) - median(waits[::2])) / (LONG - SHORT), alone)
        piece_s, token_s = split(alone, beside, one, vaults)
        self._say(f"{level}: what a request costs beside the model")
        model_s = piece_s + SHORT * token_s
        request_s = self._each(level, kept=vaults) - model_s
        vault_s = self._each(level, kept=False) - model_s - max(request_s, 0.0) if vaults else 0.0
        request_s, vault_s = max(request_s, 0.0), max(vault_s, 0.0)
        first_s = max(short - model_s - request_s - vault_s, 0.0)
        rising = [Step(step.rows, round(step.seconds, 6)) for step in steps]
        return LevelProfile(
            round(first_s, 6),
            round(piece_s, 6),
            round(token_s, 8),
            tuple(rising),
            request_s=round(request_s, 6),
            vault_s=round(vault_s, 6),
        )

    def vault_start_s(self) -> float:
        """As the node reports it at /metrics, some seconds later; only an operator's key opens that."""
        for _ in range(METRICS_TRIES):
            with suppress(OSError, ProtocolError):
                exchange = self._connection().exchange("GET", "/metrics")
                if exchange.status == 200 and (found := _VAULT.search(exchange.body)):
                    return round(float(found[1]) / 1000, 4)
            sleep(COARSE_S / 2)  # the last vault was not sealed when these numbers were taken
        hint = "Give the key of an operator: --api-key-file, or CLOISTER_API_KEY."
        raise ServiceUnavailable("The node does not show how long a vault's start takes.", hint=hint)

    def forget_sessions(self) -> None:
        self._run = token_hex(4)

    def _each(self, level: LevelName, kept: bool) -> float:
        """Seconds for each of many short requests, a few users at a time; a user's next follows its last."""
        users, turns = self._series.crowd, self._series.turns
        names = self._names(users, kept)

        def ask_in_turn(user: int) -> None:
            for _ in range(turns):
                self._ask(level, SHORT, 1, names[user], user)

        with ThreadPoolExecutor(users) as threads:
            begun = perf_counter()
            list(threads.map(ask_in_turn, range(users)))
        return (perf_counter() - begun) / (turns * users)

    def _names(self, users: int, kept: bool) -> list[str | None]:
        return [f"plan-{self._run}-{user}" if kept else None for user in range(users)]

    def _ask(self, level: LevelName, prompt: int, output: int, session: str | None = None, user: int = 0) -> Answer:
        """A token that is half a character shows no text: such an answer is asked for again, with another prompt."""
        why = ""
        for _ in range(TRIES):
            load = Workload(prompt, output, timeout_s=TIMEOUT_S, protection=level, seed=self._random.getrandbits(40))
            connection = self._connection(user)
            try:
                return ask(connection, load.request(self._server.model, session, user))
            except BrokenAnswer as broken:
                why = str(broken)
            finally:
                connection.close()
        raise ServiceUnavailable(f"A request was not answered ({why}).", hint="See the node's log.")

    def crowd(self, level: LevelName, users: int, prompt: int, output: int, kept: bool) -> list[Answer]:
        """All at once. Kept sessions have their vaults before."""
        names = self._names(users, kept)
        with ThreadPoolExecutor(users) as threads:
            if kept:
                list(threads.map(lambda user: self._ask(level, 2, 1, names[user], user), range(users)))
            return list(threads.map(lambda user: self._ask(level, prompt, output, names[user], user), range(users)))

    def _connection(self, user: int = 0) -> Connection:
        keys = self._server.user_keys
        return Connection(self._server.address, keys[user % len(keys)], TIMEOUT_S)


def split(alone: float, beside: float, one: float, in_vault: bool) -> tuple[float, float]:
    """What a piece and each of its tokens take, from a token's time in long turns, of a lone tenant, and in short ones,
    beside others (fairness.Pace). A piece of a prompt computes no logits: it takes less than a step of one token.
    Where all turns are as long, it counts as 0."""
    low, high = 0.0, min(one, LONG_S / 4)
    for _ in range(50):
        piece_s = (low + high) / 2
        token_s = _token_s(alone, piece_s, piece_s if in_vault else one)
        turn_s = max(LEAST_SHORT_S, (SHORT_STEPS if in_vault else SERVICE_SHORT_STEPS) * one)
        tokens = min(max(1.0, (turn_s - (piece_s if in_vault else one)) / token_s), Limits().chunk_tokens)
        low, high = (piece_s, high) if token_s + piece_s / tokens < beside else (low, piece_s)
    return low, _token_s(alone, low, low if in_vault else one)


def _token_s(slope: float, piece_s: float, counted_s: float) -> float:
    """Of pieces that Pace sizes for LONG_S, of which it counts `counted_s` as the piece's own; 512 tokens at most."""
    most = Limits().chunk_tokens
    tokens = (LONG_S + piece_s - counted_s) / slope
    return max((LONG_S - counted_s) / tokens if tokens < most else slope - piece_s / most, slope / 4)


def measure(
    server: Server,
    levels: Sequence[LevelName],
    series: Series = USUAL,
    say: Callable[[str], None] = lambda _: None,
    pid: int | None = None,
    limits: Limits = DEFAULTS,
    rates: tuple[float, float] | None = None,
) -> Machine:
    """`pid`: of a node on this machine, whose memory is measured, too. `rates`: tokens issued and redeemed."""
    measuring = Measuring(server, series, say)
    idle = 0 if pid is None else resident_bytes(pid)
    profiles = {level: measuring.level(level) for level in levels}
    start_s = measuring.vault_start_s() if any(reads_in_vault(level) for level in levels) else 0.0
    memory = None
    if pid is not None:
        say("memory")
        memory = _memory(measuring, idle, pid, levels)
    issued, redeemed = rates or token_rates()
    begun = os.getloadavg()
    return Machine(
        "cloister-machine/v1",
        server.model,
        _processor(),
        len(os.sched_getaffinity(0)),
        datetime.now(UTC).date().isoformat(),
        "cloister plan measure",
        f"load average {begun[0]:.1f} (1 min), {begun[1]:.1f} (5 min) at the end",
        profiles,
        start_s,
        memory,
        limits,
        redeemed,
        issued,
    )


def _memory(measuring: Measuring, idle: int, pid: int, levels: Sequence[LevelName]) -> Memory:
    """By what four kept vaults take, and what their prompts add."""
    kept = [level for level in levels if reads_in_vault(level)]
    if not kept:
        return Memory(idle, 0, 0)
    users = 4
    before = resident_bytes(pid)
    measuring.forget_sessions()
    measuring.crowd(kept[0], users, 2, 1, kept=True)
    small = resident_bytes(pid)
    measuring.crowd(kept[0], users, LONG * 4, 1, kept=True)
    large = resident_bytes(pid)
    return Memory(idle, max(0, small - before) // users, max(0, large - small) // (users * LONG * 4))


def resident_bytes(pid: int) -> int:
    """Of a process and its children, each shared page counted once (proportional set size)."""
    total = 0
    for each in _tree(pid):
        try:
            found = _PAGES.findall(Path(f"/proc/{each}/smaps_rollup").read_text())
        except OSError:
            continue  # it ended, or is another user's
        total += 1024 * sum(map(int, found))
    return total


def _tree(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [each for child in task.read_text().split() for each in _tree(int(child))]
        except OSError:
            continue
    return found


def token_rates(count: int = 128) -> tuple[float, float]:
    """Tokens that one core issues and redeems in a second, here."""
    results = cloud.Results(cloud.Plan(tokens=count), "")
    with TemporaryDirectory(prefix="cloister-plan-") as home:
        cloud.Bench(results, _Quiet()).measure_rates(Path(home) / "rates")
    return results.rates["issued"], results.rates["redeemed"]


class _Quiet:
    def begin(self, part: str, total: int) -> None: ...

    def advance(self, what: str) -> None: ...

    def say(self, what: str) -> None: ...


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        named = re.search(r"^model name\s*:\s*(.+)$", file.read(), re.MULTILINE)
    return named[1] if named else os.uname().machine


def server_at(url: str, keys: Sequence[str | None]) -> Server:
    server = Server(url, HttpAddress.parse(url), keys[0])
    server.user_keys = tuple(keys)
    server.wait()
    return server
