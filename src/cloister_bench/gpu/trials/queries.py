"""What a service asks, through the real kernels: as long as it is honest its vaults compare the same, and after one
other number, one query more, less or twice they do not. Small models with random weights; steps are as a node's."""

import argparse
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from msgspec.structs import replace

from cloister.compute.base import KVCache
from cloister.compute.gpu.arena import ArenaAnswerer
from cloister.compute.gpu.find import fetch
from cloister.compute.gpu.kernels import Sums
from cloister.compute.gpu.queries import TIMES
from cloister.compute.layout import BLOCK_TOKENS, Chunk, Layout, Remote, Wanted
from cloister.engine.graph_runner import GraphRunner, runner_for
from cloister.engine.runner import ModelRunner
from cloister.models.decoder import RawParts
from cloister.models.fused import FusedDecoder
from cloister_bench.gpu.attention import AttentionProcesses, partitioned
from cloister_bench.gpu.model import DEFAULT_PROCESSES, MAX_CONTEXT, SHAPE, RandomWeights, opened_device
from cloister_bench.gpu.mps import mps
from cloister_bench.gpu.requests import Partition

Row = dict[str, Any]
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
MODELS = [
    replace(SHAPE, vocab_size=4096, head_dim=dim, **dict(zip(SIZES, sizes, strict=True)))
    for dim, sizes in ((128, (1024, 2048, 4, 8, 2)), (64, (576, 1536, 6, 9, 3)))
]
# attention processes, users, and lengths of their prompts in turn: short ones are answered by blocks that stay
CASES = (
    (1, 1, (64,)),
    (8, 8, (40, 300, 700, 1100)),
    (8, 16, (1500,)),
    (8, 24, (64, 2000)),
    (1, 64, (33, 900)),
)
ALTERED = 1  # the case whose service deviates in the end
CHUNK, CHUNKS = 16, 3


class Service:
    """Its users' answers so far, the greedy tokens; and their vaults."""

    def __init__(self, decoder: FusedDecoder, partition: Partition, prompts: list[int]) -> None:
        self.decoder, self.partition, self.prompts = decoder, partition, prompts
        own = -(-(CHUNK * (CHUNKS + 1)) // BLOCK_TOKENS)
        cache = decoder.device.cache(decoder.cache_shape, len(prompts) * own)
        self.runner = self._settled(runner_for(decoder, cache, partition.asker), len(prompts))
        self.blocks = [range(user * own, (user + 1) * own) for user in range(len(prompts))]
        self.answers, self.vaults = [], []
        for user, (length, (held, answerer)) in enumerate(zip(prompts, partition.vaults, strict=True)):
            answerer.start()
            self.vaults.append(self._vault(user, held))
            prompt = [(13 * user + 7 * at) % decoder.vocabulary for at in range(length)]
            layout = self.layout(user)
            chunk = Chunk(prompt, 0, range(layout.blocks(length)), layout, Wanted.LAST)
            self.answers.append(self.vaults[user].forward([chunk]).argmax(-1).tolist())
            answerer.expose(0, range(layout.blocks(length)), start=0, end=length, rotation=length)

    def _vault(self, user: int, held: KVCache) -> ModelRunner:
        """The first one's passes are recorded, as in a node."""
        return ModelRunner(self.decoder, held) if user else self._settled(runner_for(self.decoder, held), CHUNK)

    def _settled(self, runner: ModelRunner, rows: int) -> ModelRunner:
        """What is recorded later is computed twice at first."""
        assert isinstance(runner, GraphRunner)
        runner.settle(rows)
        return runner

    def layout(self, user: int) -> Layout:
        return Layout(prompt=self.prompts[user], origin=0, rotation=self.prompts[user])

    def ask(self, users: list[int], tokens: list[int], index: int) -> list[int]:
        chunks = [
            Chunk([token], index, self.blocks[user], Layout(prompt=0, remote=Remote(user, 0)), Wanted.LAST)
            for user, token in zip(users, tokens, strict=True)
        ]
        found: list[int] = self.runner.forward(chunks).argmax(-1).tolist()
        return found

    def step(self, index: int) -> None:
        users = list(range(len(self.prompts)))
        found = self.ask(users, [answer[index] for answer in self.answers], index)
        for answer, token in zip(self.answers, found, strict=True):
            answer.append(token)

    def same(self, user: int, start: int, end: int) -> tuple[bool, bool]:
        """Whether its vault found the queries from `start` to `end` the same; and the tokens."""
        layout, answer = self.layout(user), self.answers[user]
        blocks = range(layout.blocks(self.prompts[user] + end))
        chunk = Chunk(answer[start:end], self.prompts[user] + start, blocks, layout, Wanted.ALL)
        _, answerer = self.partition.vaults[user]
        with answerer.comparing([(0, index) for index in range(start, end)]) as same:
            logits = self.vaults[user].forward([chunk])
        tokens: list[int] = logits.argmax(-1).tolist()
        return same(), tokens == answer[start + 1 : end + 1]

    def asked(self, user: int) -> int | None:
        return self.partition.vaults[user][1].asked(0)


@contextmanager
def altering(decoder: FusedDecoder, factor: torch.Tensor) -> Iterator[None]:
    """One number that a query of the last layer is made of is multiplied; by 1, as long as the service is honest."""
    kernels: Any = decoder.kernels
    last, rotate = decoder.cache_shape.layers - 1, kernels._rotate

    def altered(sums: Sums, *given: Any) -> None:
        if kernels._asking is not None and given[-2] == last:
            sums.values.view(-1)[:1].mul_(factor)
        rotate(sums, *given)

    kernels._rotate = altered
    try:
        yield
    finally:
        kernels._rotate = rotate


def _honest(service: Service) -> Row:
    users = range(len(service.prompts))
    same = tokens = True
    for chunk in range(CHUNKS):
        for index in range(chunk * CHUNK, (chunk + 1) * CHUNK):
            service.step(index)
        found = [service.same(user, chunk * CHUNK, (chunk + 1) * CHUNK) for user in users]
        same, tokens = same and all(one for one, _ in found), tokens and all(one for _, one in found)
    ways = [0, 0]
    for _, answerer in service.partition.vaults:
        assert isinstance(answerer, ArenaAnswerer)
        for way in answerer._cache.records[0, :, 2].cpu().tolist():
            ways = [ways[0] + bool(way % 2**TIMES), ways[1] + bool(way >> TIMES)]
    asked = all(service.asked(user) == CHUNK * CHUNKS for user in users)
    return {"same": same, "tokens": tokens, "asked": asked, "as_tasks": ways[0], "as_groups": ways[1]}


def _altered(service: Service, factor: torch.Tensor) -> Row:
    """Each by another user; whether it is seen. An honest service may do two of them."""
    end = CHUNK * CHUNKS
    again = [service.answers[user][0] for user in range(8)]
    found: Row = {}
    service.ask([1], [again[1]], 0)
    found["the same again is honest"] = service.same(1, 0, 1)[0]
    service.ask([2], [again[2] ^ 1], 0)
    found["another one again"] = not service.same(2, 0, 1)[0]
    times: Any = service.partition.asker._aims._times  # type: ignore[attr-defined]
    service.ask([3], [again[3]], 0)
    times._next[:] = 0
    service.ask([3], [again[3]], 0)
    found["twice at one time"] = not service.same(3, 0, 1)[0]
    service.ask([4], [service.answers[4][end]], end)
    found["one more"] = service.asked(4) == end + 1
    found["one less"] = not service.same(5, end, end + 1)[0]
    factor.fill_(1.01)
    service.ask([0, 6], [service.answers[user][end] for user in (0, 6)], end)
    found["one number"] = not service.same(0, end, end + 1)[0]
    found["beside it all is honest"] = service.same(6, end, end + 1)[0] and service.same(7, 0, CHUNK)[0]
    return found


def _case(decoder: FusedDecoder, processes: AttentionProcesses, number: int) -> Row:
    count, users, lengths = CASES[number]
    prompts = [lengths[user % len(lengths)] for user in range(users)]
    blocks = -(-(max(lengths) + CHUNK * (CHUNKS + 1)) // BLOCK_TOKENS) + 2
    factor = torch.ones(1, device="cuda")
    with partitioned(processes, decoder, count, users, blocks) as partition, altering(decoder, factor):
        service = Service(decoder, partition, prompts)
        row = {"dim": decoder.cache_shape.dim, "processes": count, "users": users, **_honest(service)}
        if number == ALTERED:
            row["altered"] = _altered(service, factor)
        return {**row, "broken": len(partition.asker.broken())}


def queries(options: argparse.Namespace, note: Callable[[str, Any], None]) -> None:
    with mps() as there:
        if not there:
            raise SystemExit("NVIDIA's MPS is not there.")
        fetch()
        gc.disable()  # a recorded graph that is freed while another is recorded spoils that: each case collects
        processes = AttentionProcesses([1, DEFAULT_PROCESSES])  # before the GPU is open
        device, rows = opened_device(), list[Row]()
        for config in MODELS:
            weights = RawParts(RandomWeights(config), device.kernels)
            decoder = FusedDecoder(config, weights, device, MAX_CONTEXT)
            for number in range(len(CASES)):
                rows.append(_case(decoder, processes, number))
                note("queries", rows)
                gc.collect()
                torch.cuda.empty_cache()
