"""What compact virtual prompts (`vault/compact.py`, §5.2) cost and change, in a vault's own code without a link:
answers beside the exact ones, and which prompt a service picks where only the fakes are compact, as in the paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from statistics import mean

import torch

from cloister.compute.base import LinkAnswerer
from cloister.compute.host_cache import HostCache, on_host
from cloister.compute.layout import BLOCK_TOKENS, Chunk, Layout, Wanted
from cloister.compute.reference import part_of
from cloister.config import EngineSettings
from cloister.engine.base import EngineRequest
from cloister.engine.runner import ModelRunner, reserve_cache
from cloister.messages.types import SamplingParams
from cloister.models.decoder import Decoder
from cloister.prefix.base import BlockPool
from cloister.vault.partitioned import Partitioned, SessionMemory
from cloister_bench.suite.documents import Row

QUERIES, HARD = 16, 40.0  # of the curious service: so long that a head sees a single key

Prompts = list[tuple[int, ...]]


@dataclass(frozen=True, slots=True, repr=False)
class Held:
    """A prompt as its vault exposes it, and the first token of its answer."""

    layout: Layout
    blocks: list[int]
    first: int


@dataclass(frozen=True, slots=True, repr=False)
class Prefill:
    prompts: list[Held]
    blocks: int


class _Answerer(LinkAnswerer):
    def __init__(self) -> None:
        super().__init__(slots=1024)
        self.exposed: dict[int, tuple[Layout, list[int]]] = {}

    def _write(self, slot: int, blocks: Sequence[int], start: int, end: int, rotation: int) -> None:
        self.exposed[slot] = (Layout(prompt=end - start, rotation=rotation), list(blocks))


class CompactLab:
    def __init__(self, decoder: Decoder, mib: int) -> None:
        cache = reserve_cache(decoder, mib)
        self._cache, self.block_bytes = on_host(cache), cache.shape.block_bytes(cache.dtype)
        self._runner = ModelRunner(decoder, cache)
        self._memory, self._answerer, self._numbers = SessionMemory(), _Answerer(), count(1)
        self._pool = BlockPool(cache.blocks, self._runner.wipe)
        self._memory.attach(self._pool, BLOCK_TOKENS)
        self._vault = Partitioned(self._runner, EngineSettings(), self._memory, self._answerer)
        self._heads = decoder.heads

    @contextmanager
    def prefilled(self, prompts: Prompts, *, compact: bool) -> Iterator[Prefill]:
        """By a vault that remembers nothing."""
        number, before = next(self._numbers), self._pool.free
        params = SamplingParams(temperature=0.0, max_tokens=256)
        self._vault.add(
            *(EngineRequest(number, "lab", prompt, params, policy="partition", compact=compact) for prompt in prompts)
        )
        done = None
        while done is None:
            assert self._vault.next_request == number, "the lab's memory is too small"
            done = self._vault.work(number, EngineSettings().chunk_tokens)
        held = [Held(*self._answerer.exposed[one.slot], one.token) for one in done.sequences]
        try:
            yield Prefill(held, before - self._pool.free)
        finally:
            self._vault.drop(number)
            self._memory.make_room(before)

    def answers(self, prompts: Sequence[Held], tokens: int) -> list[list[int]]:
        """Greedy."""
        own = [self._pool.allocate(-(-tokens // BLOCK_TOKENS)) or [] for _ in prompts]
        said = [[one.first] for one in prompts]
        for step in range(tokens - 1):
            rows = zip(prompts, own, said, strict=True)
            chunks = [
                Chunk(words[-1:], one.layout.prompt + step, [*one.blocks, *blocks], one.layout, Wanted.LAST)
                for one, blocks, words in rows
            ]
            for words, token in zip(said, self._runner.forward(chunks).argmax(-1).tolist(), strict=True):
                words.append(token)
        for blocks in own:
            self._pool.release(blocks)
        return said

    def contributions(self, prompts: Sequence[Held], layer: int, seed: int) -> torch.Tensor:
        """What the vault answers to one query that the service sends for every prompt, [prompts, heads, dim]."""
        kv_heads, dim = self._cache.shape.kv_heads, self._cache.shape.dim
        query = HARD * torch.randn(
            kv_heads, self._heads // kv_heads, dim, generator=torch.Generator().manual_seed(seed)
        )
        parts = [part_of(query * dim**-0.5, *_held(self._cache, layer, one)) for one in prompts]
        return torch.stack([part.attended.reshape(self._heads, dim) for part in parts])

    @property
    def layers(self) -> int:
        return self._cache.shape.layers


def _held(cache: HostCache, layer: int, prompt: Held) -> tuple[torch.Tensor, torch.Tensor]:
    length, shape = prompt.layout.prompt, (cache.shape.kv_heads, -1, cache.shape.dim)
    blocks = torch.tensor(prompt.blocks)
    keys = cache.keys(layer)[blocks].float().permute(1, 0, 3, 2).reshape(shape)
    values = cache.values(layer)[blocks].float().permute(1, 0, 2, 3).reshape(shape)
    return keys[:, :length], values[:, :length]


def odd_one_out(views: Sequence[torch.Tensor], real: int) -> float:
    """Whether the prompt that shares fewest vectors with the others, bit for bit, is the real one; a tie is a draw."""
    shares = torch.zeros(len(views[0]))
    for view in views:
        shares += (view[:, None] == view[None]).all(-1).sum((1, 2)).float()
    least = shares == shares.min()
    return float(least[real]) / int(least.sum())


def measure_case(lab: CompactLab, prompts: Prompts, tokens: int) -> Row:
    """`prompts`: the real one first. Each is taken for the real one in turn, so that values give nothing away."""
    with lab.prefilled(prompts, compact=False) as exact, lab.prefilled(prompts, compact=True) as compact:
        said = lab.answers([*exact.prompts, *compact.prompts], tokens)
        seeds = [(layer, seed) for layer in (lab.layers // 3, lab.layers - 1) for seed in range(QUERIES)]
        seen = [[lab.contributions(side.prompts, *one) for one in seeds] for side in (exact, compact)]
    theirs, ours = said[: len(prompts)], said[len(prompts) :]
    return {
        "tokens": len(prompts[0]),
        "equal": theirs[0] == ours[0],
        "first_equal": theirs[0][0] == ours[0][0],
        "paper_equal_vectors": mean(_paper(seen, real) for real in range(len(prompts))),
        "ours_equal_vectors": mean(odd_one_out(seen[1], real) for real in range(len(prompts))),
    }


def _paper(seen: Sequence[Sequence[torch.Tensor]], real: int) -> float:
    views = [compact.clone() for compact in seen[1]]
    for view, exact in zip(views, seen[0], strict=True):
        view[real] = exact[real]
    return odd_one_out(views, real)
