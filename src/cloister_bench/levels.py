"""The README's table: every level on one server in one run, as a plain call and with a named session, in turn; at last
`mpc`, whose parties take cores and memory."""

import shutil
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from time import monotonic, sleep
from typing import Any

from cloister.errors import ServiceUnavailable
from cloister.levels import LEVELS, MPC, OBFUSCATED, OPEN, Level, LevelName, default_of
from cloister.models.source import ModelFolder
from cloister_bench.load import Answer, BrokenAnswer, Workload, ask_once
from cloister_bench.peers import Comparison, InTurn, Point, answered
from cloister_bench.servers import OwnServer
from cloister_bench.suite.documents import Document, Row, Table, number
from cloister_bench.words import read_words

START_S, REQUEST_S = 120.0, 600.0
MPC_START_S = 900.0  # parties are dealt the weights, and compile
RETRY_S = 5.0
# One token each in the common vocabularies, with the blank before it.
WORDS: list[str] = read_words("load")["WORDS"]
SERVED: tuple[LevelName, ...] = tuple(level.name for level in LEVELS.values() if not level.slow)
FAKES = 7  # λ, the server's default
SECRET, OTHERS = "Ann", [[name] for name in ("Bob", "Eve", "Tom", "Joe", "Sam", "Max", "Ben")]  # given: none is sampled


@dataclass(frozen=True, slots=True)
class WordsLoad(Workload):
    """A text of one token a word, with one name in the middle: always the same name, so that a session keeps its
    substitutes. Warm-up answers are short: they only make vaults and substitutes."""

    def request(self, model: str, session: str | None, *names: object) -> bytes:
        asked = replace(self, output_tokens=2) if "warmup" in names else self
        return Workload.request(asked, model, session, *names)

    def _prompt(self, random: Random) -> dict[str, Any]:
        hidden = self.protection == OBFUSCATED
        words = random.choices(WORDS, k=self.input_tokens - 1)
        words.insert(len(words) // 2, f"<redacted>{SECRET}</redacted>" if hidden else SECRET)
        return {
            "prompt": " ".join(words),
            **({"obfuscation": {"fakes": FAKES, "substitutes": OTHERS}} if hidden else {}),
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """Beyond `few` users `obfuscated` (λ+1 sequences each) is left out."""

    users: tuple[int, ...] = (1, 8, 32)
    input_tokens: int = 64
    output_tokens: int = 64
    requests: int = 2
    rounds: int = 2
    few: int = 8
    mpc_tokens: int = 4

    def sides(self) -> list[Point]:
        """With and without a session where a vault can be kept."""
        return [
            self._side(level, users, session)
            for users in self.users
            for level in SERVED
            if level != OBFUSCATED or users <= self.few
            for session in ((False, True) if LEVELS[level].uses_vault else (False,))
        ]

    def _side(self, level: LevelName, users: int, session: bool) -> Point:
        asked = WordsLoad(self.input_tokens, self.output_tokens, self.requests, timeout_s=REQUEST_S)
        load = replace(asked, protection=level, sessions=session)
        return Point(f"{level}, session" if session else level, users, load)


HEADS = ("level", "the provider's service sees", "other tenants learn", "a plain call", "with a named session")
SEEN_MORE = {"obfuscated": " ([how](docs/obfuscation.md))"}  # the README's links behind a level's words
LEARNT_MORE = {"shared": " ([prefix cache](docs/prefix-cache.md))"}


@dataclass
class Results(Comparison):
    plan: Plan
    mpc: dict[str, Any] = field(default_factory=dict)

    def numbers(self) -> Document:
        return {**super().numbers(), "mpc": dict(self.mpc)}


def readme_table(document: Document) -> str:
    title = "{model}, {plan[input_tokens]} tokens in, {plan[output_tokens]} out, {cores} cores".format_map(document)
    return Table(title, HEADS, [_row(level, document) for level in LEVELS.values()]).markdown()


def _row(level: Level, document: Document) -> list[str]:
    default = " (default)" if level.name == default_of(LEVELS) else ""
    seen = level.service_sees + SEEN_MORE.get(level.name, "")
    learnt = level.others_learn + LEARNT_MORE.get(level.name, "")
    if level.name in SERVED:
        runs = [run for run in document["runs"] if run["level"] == level.name]
        plain, kept = (_cell([run for run in runs if run["session"] is session]) for session in (False, True))
        kept = kept if level.uses_vault else "the same"
    else:
        plain, kept = _mpc_cell(document["mpc"]), "–"
    return [f"`{level.name}`{default}", seen, learnt, plain, kept]


def _cell(runs: list[Row]) -> str:
    if not runs:
        return "not measured"
    is_open = runs[0]["level"] == OPEN
    rates = _each(runs, "tokens_per_s", ".3g") if is_open else _each(runs, "ratio", ".2f")
    what = f"{_each(runs, 'users', 'd')} users: {rates} {'tokens/s' if is_open else 'of `open`'}"
    return f"{what}; first token {_each(runs, 'ttft_ms', ',.0f')} ms"


def _each(runs: list[Row], key: str, form: str) -> str:
    return " / ".join("-" if run[key] is None else format(run[key], form) for run in runs)


def _mpc_cell(mpc: Row) -> str:
    if not mpc:
        return "not measured"
    each, first = (number(mpc[key]) for key in ("seconds_per_token", "first_token_s"))
    return f"1 user: {each} s for each token, {first} s for the first"


class Bench(InTurn[Results]):
    def run(self, folder: ModelFolder) -> None:
        """Warmed up: when the clock starts, a session has its vault and its substitutes."""
        plan, logs = self._results.plan, Path(mkdtemp(prefix="cloister-bench-"))  # stays if the server does not start
        with self._noting("server"):
            with OwnServer(folder.path, logs) as server:
                server.wait(START_S)
                for level in SERVED:
                    answered(server, Point(level, 1, WordsLoad(16, 4, 1, protection=level)), -1)
                self._in_turn(plan.sides(), plan.rounds, partial(answered, server))
                if MPC in server.levels:
                    with self._noting("mpc"):
                        self._on_shares(server)
            shutil.rmtree(logs)

    def _on_shares(self, server: OwnServer) -> None:
        """The first of two requests starts the parties and compiles; the second is what a user then waits for."""
        self._watcher.begin("mpc", 2)
        self._answered(server, 0)
        self._watcher.advance("the parties have started")
        answer = self._answered(server, 1)
        self._watcher.advance("1 user")
        seconds = {"first_token_s": answer.first_token - answer.sent, "seconds_per_token": answer.seconds_per_token}
        self._results.mpc = {name: round(value, 1) for name, value in seconds.items()}

    def _answered(self, server: OwnServer, seed: int) -> Answer:
        """To one request of token ids. Asks again while the parties start."""
        plan, begun = self._results.plan, monotonic()
        load = Workload(plan.input_tokens, plan.mpc_tokens, seed=seed, protection=MPC)
        while True:
            try:
                return ask_once(server.address, server.api_key, load.request(server.model, None), REQUEST_S)
            except BrokenAnswer as broken:
                if str(broken) not in ("HTTP 503", "timeout") or monotonic() - begun > MPC_START_S:
                    raise ServiceUnavailable(f"A request was not answered ({broken}).") from None
            sleep(RETRY_S)
