"""Whole requests of several users at once, through the engine's runners: without HTTP, scheduler, sampler and seals.
`open` prefills many prompts in one pass. Elsewhere every prompt is computed alone, in turn, by one process."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch

from cloister.compute.base import KVCache, LinkAnswerer, LinkAsker
from cloister.compute.layout import Chunk, Layout, Remote, Wanted
from cloister.engine.graph_runner import runner_for
from cloister.errors import ServiceUnavailable
from cloister.levels import OPEN, PARTITIONED
from cloister.models.decoder import Decoder

Row = dict[str, Any]
PASS_TOKENS = 2048  # of prompts in one pass
RUNS = 4  # the first records and is not counted


@dataclass(frozen=True, slots=True)
class Partition:
    asker: LinkAsker
    vaults: list[tuple[KVCache, LinkAnswerer]]
    # of one attention process on the GPU beside its arenas, where these are the first
    process_bytes: float | None = None


class Answered(NamedTuple):
    seconds: float
    firsts: list[float]
    tokens: list[list[int]]


class Load:
    def __init__(self, decoder: Decoder, users: int, prompt: int, answer: int) -> None:
        self.decoder, self.users, self.prompt, self.answer = decoder, users, prompt, answer
        vocabulary = decoder.vocabulary
        self.prompts = [[(13 * user + 7 * t) % vocabulary for t in range(prompt)] for user in range(users)]
        self.layout = Layout(prompt=prompt, origin=0, rotation=prompt)
        self.held = self.layout.blocks(prompt)
        self.each = self.layout.blocks(prompt + answer)

    def blocks(self, user: int) -> range:
        return range(user * self.each, (user + 1) * self.each)

    def prompt_chunk(self, user: int, blocks: Sequence[int]) -> Chunk:
        return Chunk(self.prompts[user], 0, blocks, self.layout, Wanted.LAST)

    def token_chunk(self, user: int, token: int, step: int) -> Chunk:
        return Chunk([token], self.prompt + step, self.blocks(user), self.layout, Wanted.LAST)

    def cache(self) -> KVCache:
        return self.decoder.device.cache(self.decoder.cache_shape, self.users * self.each)


def _chosen(logits: torch.Tensor) -> list[int]:
    found: list[int] = logits.argmax(-1).tolist()
    return found


def local_requests(load: Load) -> Callable[[], Answered]:
    runner = runner_for(load.decoder, load.cache())
    prefilled = max(1, PASS_TOKENS // load.prompt)

    def answer() -> Answered:
        begun, firsts = perf_counter(), []
        tokens: list[list[int]] = [[] for _ in range(load.answer)]
        for start in range(0, load.users, prefilled):
            batch = range(load.users)[start : start + prefilled]
            tokens[0] += _chosen(runner.forward([load.prompt_chunk(user, load.blocks(user)) for user in batch]))
            firsts += [perf_counter() - begun] * len(batch)
        for step in range(load.answer - 1):
            chunks = [load.token_chunk(user, tokens[step][user], step) for user in range(load.users)]
            tokens[step + 1] += _chosen(runner.forward(chunks))
        return Answered(perf_counter() - begun, firsts, tokens)

    return answer


def partitioned_requests(load: Load, partition: Partition) -> Callable[[], Answered]:
    decoder = load.decoder
    own = Layout(prompt=0).blocks(load.answer)
    vaults = [(runner_for(decoder, cache), answerer) for cache, answerer in partition.vaults]
    cache = decoder.device.cache(decoder.cache_shape, load.users * own)
    service = runner_for(decoder, cache, partition.asker)
    layouts = [Layout(prompt=0, remote=Remote(user, 0)) for user in range(load.users)]
    blocks = [range(user * own, (user + 1) * own) for user in range(load.users)]

    def answer() -> Answered:
        begun, firsts = perf_counter(), []
        tokens: list[list[int]] = [[]]
        for user, (vault, answerer) in enumerate(vaults):
            held = range(load.held)
            tokens[0] += _chosen(vault.forward([load.prompt_chunk(user, held)]))
            firsts.append(perf_counter() - begun)
            answerer.expose(0, held, start=0, end=load.prompt, rotation=load.prompt)
        for step in range(load.answer - 1):
            chunks = [
                Chunk([token], step, blocks[user], layouts[user], Wanted.LAST) for user, token in enumerate(tokens[-1])
            ]
            tokens.append(_chosen(service.forward(chunks)))
        seconds = perf_counter() - begun
        for _, answerer in vaults:
            answerer.withdraw(0)
        if broken := partition.asker.broken():
            raise ServiceUnavailable(f"{len(broken)} of {load.users} vaults did not answer in time.")
        return Answered(seconds, firsts, tokens)

    return answer


def timed(load: Load, answer: Callable[[], Answered]) -> tuple[Row, list[list[int]]]:
    answer()
    middle = sorted((answer() for _ in range(RUNS - 1)), key=lambda one: one.seconds)[(RUNS - 1) // 2]
    rate = load.users * load.answer / middle.seconds
    row = {"tokens_per_s": rate, "seconds": middle.seconds, "ttft_ms": 1e3 * median(middle.firsts)}
    return {"answer": load.answer, **row}, middle.tokens


# for a number of processes, of users, and of blocks of each prompt
Partitions = Callable[[int, int, int], AbstractContextManager[Partition]]


def measure_requests(
    decoder: Decoder, partitions: Partitions, users: int, prompt: int, answer: int, settings: Sequence[int]
) -> Iterator[Row]:
    load = Load(decoder, users, prompt, answer)
    beside, right = timed(load, local_requests(load))
    yield {"design": OPEN, **beside}
    for count in settings:
        with partitions(count, users, load.held) as partition:
            row, tokens = timed(load, partitioned_requests(load, partition))
        row |= {"ratio": row["tokens_per_s"] / beside["tokens_per_s"], "same_tokens": tokens == right}
        yield {"design": PARTITIONED, "processes": count, **row}
