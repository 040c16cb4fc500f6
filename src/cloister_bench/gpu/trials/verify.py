"""Verified decoding on a GPU machine: what `--verify` costs a node whose vaults are there already, and a million honest
tokens over batches, chunks and restarts, none of which may raise an alarm. And vaults that come and go under load."""

import argparse
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Lock
from time import perf_counter, sleep
from typing import Any

import msgspec

from cloister.addresses import HttpAddress
from cloister.config import DEVELOPMENT_KEY
from cloister.errors import CloisterError
from cloister.models.source import open_folder
from cloister_bench.connection import Connection, first_model
from cloister_bench.gpu.model import SHAPE
from cloister_bench.gpu.trials.serve import processes, served
from cloister_bench.random_model import write_random_model

Row = dict[str, Any]
Note = Callable[[str, Any], None]
MODES = ("off", "all", "sample:0.1", "late")
# one tenant keeps at most three quarters of the 40 vaults that one attention process allows beside those that end
SESSIONS, ROUNDS, USERS = 30, 2, (32, 64)
CHURNED, CHURN_S = 40, 120.0  # sessions, of which new ones end others
NODE = ("--attention-processes=1", "--max-vaults=44", "--spare-vaults=33", "--max-running=64", "--kv-cache-mib=4096")
PROMPT, ANSWER, REQUESTS = 32, 256, 3
COMPARED = 8
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
BIG = {name: getattr(SHAPE, name) for name in (*SIZES, "vocab_size", "tie_word_embeddings")}
SMALL = dict(zip(SIZES, (512, 1536, 4, 8, 4), strict=True))
MILLION, MILLION_S, RESTARTS_S = 1_000_000, 170.0, (60.0, 110.0)


@dataclass
class Crowd:
    """Users of one node; `sessions` of them have a vault each, the others share those."""

    address: HttpAddress
    model: str
    found: Counter[str] = field(default_factory=Counter)

    lock: Lock = field(default_factory=Lock)

    def note(self, what: str, count: int = 1) -> None:
        with self.lock:
            self.found[what] += count

    def ask(self, connection: Connection, session: str, **more: Any) -> Row | None:
        asked = {"model": self.model, "session": session, "protection": "partitioned", "ignore_eos": True, **more}
        exchange = connection.exchange("POST", "/v1/completions", msgspec.json.encode(asked))
        answer: Row = msgspec.json.decode(exchange.body)
        if exchange.status != 200:
            self.note(f"error {answer['error'].get('code')}")
            return None
        self.note("tokens", answer["usage"]["completion_tokens"])
        return answer

    def together(self, users: int, each: Callable[[int, Connection], None]) -> float:
        """Seconds."""
        connections = [Connection(self.address, DEVELOPMENT_KEY) for _ in range(users)]
        began = perf_counter()
        with ThreadPoolExecutor(users) as threads:
            try:
                list(threads.map(each, range(users), connections))
            finally:
                for connection in connections:
                    connection.close()
        return perf_counter() - began


def _crowd(url: str) -> Crowd:
    address = HttpAddress.parse(url)
    return Crowd(address, first_model(address, DEVELOPMENT_KEY)["id"])


def _prompt(draw: Random, length: int) -> list[int]:
    return [draw.randrange(1000, 20000) for _ in range(length)]


def _model(options: argparse.Namespace, name: str, sizes: Row) -> Path:
    if not options.like:
        return Path(options.model)
    return write_random_model(options.json.parent / name, sizes, open_folder(options.like, options.like.name)).path


def _greedy(crowd: Crowd) -> list[str | None]:
    """Answers of a few prompts, together: the same in every mode."""
    texts: list[str | None] = [None] * COMPARED

    def each(user: int, connection: Connection) -> None:
        prompt = _prompt(Random(f"same {user}"), PROMPT)
        answer = crowd.ask(connection, f"s{user}", prompt=prompt, max_tokens=64, temperature=user % 2, seed=user)
        texts[user] = None if answer is None else answer["choices"][0]["text"]

    crowd.together(COMPARED, each)
    return texts


def _rates(crowd: Crowd, mode: str) -> Iterator[Row]:
    """The first round opens sessions and is not counted: the vaults of the others are there."""

    def each(user: int, connection: Connection) -> None:
        for turn in range(1 if crowd.found["opening"] else REQUESTS):
            draw = Random(f"{user} {turn} {mode}")
            crowd.ask(connection, f"s{user % SESSIONS}", prompt=_prompt(draw, PROMPT), max_tokens=ANSWER, temperature=0)

    crowd.found["opening"] = 1
    crowd.together(SESSIONS, each)
    for turn in range(ROUNDS):
        for users in USERS:
            crowd.found.clear()
            seconds = crowd.together(users, each)
            rate = crowd.found.pop("tokens", 0) / seconds
            yield {"mode": mode, "users": users, "round": turn, "tokens_per_s": rate, "errors": dict(crowd.found)}


def verified(options: argparse.Namespace, note: Note) -> None:
    model = _model(options, "verified", BIG)
    rows: list[Row] = []
    right: list[str | None] = []
    for mode in MODES:
        log = options.json.with_name(f"verified-{mode.partition(':')[0]}.log")
        with served(model, log, *NODE, "--verify", mode) as (url, seconds):
            crowd = _crowd(url)
            texts = _greedy(crowd)
            right = right or texts
            note(f"up {mode}", round(seconds, 1))
            note(f"same {mode}", sum(one == other is not None for one, other in zip(texts, right, strict=True)))
            for row in _rates(crowd, mode):
                beside = [one for one in rows if one["mode"] == "off" and one["users"] == row["users"]]
                ratio = row["tokens_per_s"] * len(beside) / sum(one["tokens_per_s"] for one in beside) if beside else 1
                rows.append({**row, "ratio": ratio})
                note("verified", rows)


def churn(options: argparse.Namespace, note: Note) -> None:
    """More kept sessions than one tenant may keep: each new one ends another's vault while the others decode."""
    model = _model(options, "churned", BIG)
    with served(model, options.json.with_suffix(".node.log"), *NODE, "--verify", "off") as (url, _):
        crowd, began = _crowd(url), perf_counter()

        def each(user: int, connection: Connection) -> None:
            draw = Random(f"churn {user}")
            while perf_counter() - began < CHURN_S:
                session = f"c{user % CHURNED}"
                crowd.ask(connection, session, prompt=_prompt(draw, PROMPT), max_tokens=ANSWER, temperature=0)

        seconds = crowd.together(USERS[-1], each)
        note("churn", {**crowd.found, "seconds": seconds})


def million(options: argparse.Namespace, note: Note) -> None:
    """`all`, with requests of every kind; the service is killed on the way. An alarm is a deviation."""
    model, log = _model(options, "million", SMALL), options.json.with_suffix(".node.log")
    with served(model, log, *NODE, "--verify", "all") as (url, _):
        crowd, began = _crowd(url), perf_counter()

        def each(user: int, connection: Connection) -> None:
            draw = Random(f"million {user}")
            while crowd.found["tokens"] < MILLION and perf_counter() - began < MILLION_S:
                try:
                    crowd.ask(connection, f"m{user % SESSIONS}", **_any_request(draw))
                except (OSError, CloisterError):
                    crowd.note("lost")
                    sleep(0.2)

        def kill() -> None:
            for after in RESTARTS_S:
                sleep(max(0.0, began + after - perf_counter()))
                for pid in processes("service"):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                crowd.note("kills")

        def each_user(user: int, connection: Connection) -> None:
            kill() if user == 0 else each(user, connection)

        seconds = crowd.together(1 + 2 * SESSIONS, each_user)
        sleep(1)
        alarms = len(log.read_text(errors="replace").split("The service deviated")) - 1
        note("million", {**crowd.found, "seconds": seconds, "alarms": alarms})


def _any_request(draw: Random) -> Row:
    return {
        "prompt": _prompt(draw, draw.randrange(4, 100)),
        "max_tokens": draw.choice((1, 2, 15, 16, 17, 33, 200, 300)),
        "temperature": draw.choice((0, 0.7, 1.3)),
        "n": draw.choice((1, 1, 2, 3)),
        "seed": draw.choice((None, None, draw.randrange(1 << 40))),
        "logprobs": draw.choice((None,) * 9 + (5,)),
        "frequency_penalty": draw.choice((0,) * 19 + (0.5,)),
    }
