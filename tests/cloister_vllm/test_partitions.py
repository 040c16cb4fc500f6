"""The plugin's attention against plain attention over prompt and answer together, with real links and no vLLM."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from cloister.compute.base import AttentionShape, CacheShape
from cloister.compute.cpu.library import find_compiler
from cloister.compute.cpu.link import CpuAnswerer
from cloister.compute.cpu.native import NativeKernels
from cloister.compute.host_cache import HostCache
from cloister.compute.layout import Chunk, Layout, Remote, lay_out
from cloister.link.memory import LinkMemory, LinkShape
from cloister_vllm.partitions import Asking, Partitions, Rows

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler on this machine")
HEADS, KV_HEADS, DIM, LAYERS, BLOCKS, SIZE = 4, 2, 32, 2, 8, 32
SHAPE = CacheShape(LAYERS, KV_HEADS, DIM)
SCALE = DIM**-0.5
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


class Model(AttentionShape):
    cache_shape = SHAPE
    queries_per_kv_head = HEADS // KV_HEADS
    scales: list[float] = [SCALE] * LAYERS
    windows: list[int] = [0] * LAYERS


def drawn(seed: int, *size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16).float()


@dataclass
class Vault:
    """A prompt's keys and values of every layer, behind a link in this process."""

    kernels: NativeKernels
    prompt: int
    seed: int
    link: LinkMemory = field(default_factory=lambda: LinkMemory(LinkShape(HEADS, DIM, LAYERS)))

    def __post_init__(self) -> None:
        self.cache = HostCache(SHAPE, 8, self.kernels.dtype)
        batch = lay_out([Chunk([0] * self.prompt, 0, list(range(8)), Layout(prompt=self.prompt))], HEADS // KV_HEADS)
        for layer in range(LAYERS):
            self.kernels.store(self.keys(layer), self.values(layer), layer, batch, self.cache)
        ends = self.link.vault_descriptors
        self.answerer = CpuAnswerer(self.kernels.library, Model(), self.cache, self.link.shape, *ends)
        self.answerer.expose(0, list(range(8)), start=0, end=self.prompt, rotation=0)
        self.answerer.start()

    def keys(self, layer: int) -> torch.Tensor:
        return drawn(self.seed + layer, self.prompt, KV_HEADS, DIM)

    def values(self, layer: int) -> torch.Tensor:
        return drawn(self.seed + 50 + layer, self.prompt, KV_HEADS, DIM)


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One row's heads over all keys, in double precision."""
    k, v = (each.double().repeat_interleave(HEADS // KV_HEADS, 1) for each in (k, v))
    weights = torch.softmax(torch.einsum("hd,thd->ht", q.double(), k) * SCALE, -1)
    return torch.einsum("ht,thd->hd", weights, v).float()


def attended(partitions: Partitions, asking: Asking, layer: int, states: tuple[torch.Tensor, ...]) -> torch.Tensor:
    out = torch.full((len(states[0]), HEADS, DIM), 7.0)
    partitions.attend(asking, layer, states, out, SCALE, 0)
    return out


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rows_that_ask_get_attention_over_prompt_and_answer(dtype: torch.dtype) -> None:
    """Forty steps, over more than one of vLLM's blocks, beside a row that asks no vault and keeps what it had."""
    kernels = NativeKernels(dtype, threads=1)
    vaults = {1: Vault(kernels, 41, 100), 2: Vault(kernels, 3, 200)}
    partitions = Partitions(SHAPE, HEADS, BLOCKS, SIZE, kernels, patience_ms=5000)
    for number, vault in vaults.items():
        partitions.asker.attach(number, *vault.link.service_descriptors)
        partitions.expect(number, Remote(number, 0))
    past: dict[tuple[int, int], list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for step in range(40):
        rows = [Rows(1, 0, 1, step, [5, 2][: step // SIZE + 1]), Rows(9, 1, 1, 0, [7]), Rows(2, 2, 1, step, [0, 6])]
        asking = partitions.begin(rows, total=3)
        assert asking is not None and not asking.whole
        for layer in range(LAYERS):
            q = drawn(1000 * step + layer, 3, HEADS, DIM)
            k, v = (drawn(1000 * step + at + layer, 3, KV_HEADS, DIM) for at in (300, 600))
            out = attended(partitions, asking, layer, (q, k, v))
            assert (out[1] == 7).all()
            for number, row in ((1, 0), (2, 2)):
                mine = past.setdefault((number, layer), [])
                mine.append((k[row], v[row]))
                keys = torch.cat((vaults[number].keys(layer), torch.stack([one for one, _ in mine])))
                values = torch.cat((vaults[number].values(layer), torch.stack([one for _, one in mine])))
                torch.testing.assert_close(out[row], plain(q[row], keys, values), atol=TOLERANCE[dtype], rtol=1e-3)
        assert partitions.asker.broken() == {}


def test_without_a_request_of_a_vault_nothing_is_asked() -> None:
    partitions = Partitions(SHAPE, HEADS, BLOCKS, SIZE, NativeKernels(torch.float32, 1), patience_ms=100)
    assert not partitions and partitions.begin([Rows(1, 0, 1, 0, [0])], 1) is None
    partitions.expect(1, Remote(5, 0))
    assert partitions and 1 in partitions


def test_an_ended_answers_keys_are_wiped() -> None:
    kernels = NativeKernels(torch.float32, threads=1)
    vault = Vault(kernels, 5, 300)
    partitions = Partitions(SHAPE, HEADS, BLOCKS, SIZE, kernels, patience_ms=5000)
    partitions.asker.attach(1, *vault.link.service_descriptors)
    partitions.expect(1, Remote(1, 0))
    asking = partitions.begin([Rows(1, 0, 1, 0, [3])], 1)
    assert asking is not None and asking.whole
    attended(partitions, asking, 0, tuple(drawn(at, 1, heads, DIM) for at, heads in enumerate((HEADS, 2, 2))))
    assert partitions._cache.keys(0).any()
    partitions.forget(1)
    assert not partitions._cache.keys(0).any() and not partitions._cache.values(0).any() and not partitions


def test_a_vault_that_does_not_answer_breaks_its_link_and_gives_nothing() -> None:
    partitions = Partitions(SHAPE, HEADS, BLOCKS, SIZE, NativeKernels(torch.float32, 1), patience_ms=50)
    link = LinkMemory(LinkShape(HEADS, DIM, LAYERS))
    partitions.asker.attach(1, *link.service_descriptors)
    partitions.expect(1, Remote(1, 0))
    asking = partitions.begin([Rows(1, 0, 1, 0, [3])], 1)
    assert asking is not None
    out = attended(partitions, asking, 0, tuple(drawn(at, 1, heads, DIM) for at, heads in enumerate((HEADS, 2, 2))))
    assert partitions.asker.broken() == {1: "vault_timeout"} and not out.any()
    link.close()


def test_blocks_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="several of our own"):
        Partitions(SHAPE, HEADS, BLOCKS, 24, NativeKernels(torch.float32, 1), patience_ms=50)
