"""Verified decoding on a GPU machine: what a vault's pass costs, what `--verify` costs a node whose vaults are there
already, and a million honest tokens over batches, chunks and restarts, none of which may raise an alarm."""

import argparse
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from threading import Lock
from time import perf_counter, sleep
from typing import Any

import msgspec
import torch

from cloister.addresses import HttpAddress
from cloister.compute.layout import BLOCK_TOKENS, Chunk, Layout, Wanted
from cloister.config import DEVELOPMENT_KEY
from cloister.engine.base import EngineRequest
from cloister.engine.graph_runner import GraphRunner
from cloister.engine.sampler import Sampler
from cloister.engine.sequence import Sequence
from cloister.errors import CloisterError
from cloister.messages.types import SamplingParams
from cloister.models.source import open_folder
from cloister_bench.connection import Connection, first_model
from cloister_bench.gpu.model import SHAPE, random_decoder
from cloister_bench.gpu.trials.serve import processes, served
from cloister_bench.random_model import write_random_model

Row = dict[str, Any]
Note = Callable[[str, Any], None]
MODES = ("off", "all", "sample:0.1", "late")
SESSIONS, ROUNDS = 32, 2  # one tenant keeps at most three quarters of the 44 vaults that one attention process allows
NODE = ("--attention-processes", "1", "--max-vaults", "44", "--spare-vaults", "33", "--max-running", "64")
PROMPT, ANSWER, REQUESTS = 32, 256, 3
COMPARED = 8
PASSES, PASS_START = (16, 32, 64, 128), 512
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
SMALL = dict(zip(SIZES, (512, 1536, 4, 8, 4), strict=True))
MILLION, MILLION_S, RESTARTS_S = 1_000_000, 170.0, (60.0, 110.0)


def passes(options: argparse.Namespace, note: Note) -> None:
    """Milliseconds: a vault computes n claimed tokens, then chooses n tokens, one by one, four and sixteen together."""
    decoder = random_decoder()
    blocks = range((PASS_START + PASSES[-1]) // BLOCK_TOKENS + 1)
    runner = GraphRunner(decoder, decoder.device.cache(decoder.cache_shape, len(blocks)))
    runner.settle(16)
    found: list[Row] = []
    for params in (SamplingParams(temperature=0.0), SamplingParams(temperature=0.9, top_p=0.9, logprobs=5)):
        for rows in PASSES:
            found.append(_pass(runner, params, blocks, rows))
            note("passes", found)


def _pass(runner: GraphRunner, params: SamplingParams, blocks: range, rows: int) -> Row:
    request = EngineRequest(0, "bench", (1,) * PASS_START, params)
    sequence = Sequence.of(request, arrival=0, max_context=runner.max_context)
    chunk = Chunk([5] * rows, PASS_START, blocks, Layout(prompt=PASS_START), Wanted.ALL)
    sampler, logits = Sampler(runner.vocabulary, runner.draw_rows), runner.forward([chunk]).clone()

    def choose(together: int) -> None:
        for start in range(0, rows, together):
            at = list(range(start, start + together))
            sampler.sample(logits, [sequence] * together, at, ahead=at)

    row: Row = {"rows": rows, "temperature": params.temperature, "forward_ms": _ms(lambda: runner.forward([chunk]))}
    return row | {f"choose_{together}_ms": _ms(partial(choose, together)) for together in (1, 4, 16)}


def _ms(run: Callable[[], object], count: int = 10) -> float:
    times = []
    for _ in range(count + 2):
        torch.cuda.synchronize()
        began = perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(1e3 * (perf_counter() - began))
    return sorted(times[2:])[count // 2]


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
        for users in (SESSIONS, 2 * SESSIONS):
            crowd.found.clear()
            seconds = crowd.together(users, each)
            rate = crowd.found.pop("tokens", 0) / seconds
            yield {"mode": mode, "users": users, "round": turn, "tokens_per_s": rate, "errors": dict(crowd.found)}


def verified(options: argparse.Namespace, note: Note) -> None:
    model = _model(
        options, "verified", {name: getattr(SHAPE, name) for name in (*SIZES, "vocab_size", "tie_word_embeddings")}
    )
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
