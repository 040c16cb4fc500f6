"""Recorded steps: the same logits as unrecorded ones, whatever the bucket; and nothing left in it after a wipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from cloister.compute.host_cache import HostCache
from cloister.compute.layout import Chunk, Layout, Wanted, lay_out
from cloister.compute.reference import ReferenceDevice, ReferenceKernels
from cloister.engine.continuations import Continuations
from cloister.engine.graph_runner import ROWS, Bucket, GraphRunner, Staging, runner_for
from cloister.engine.rehearsal import IdleRunner, rehearse_device, rehearse_sampling
from cloister.engine.runner import ModelRunner, reserve_cache
from tests.compute.on_fake_device import SETTINGS, VOCABULARY, decoder_on

PROMPT = 20


class Recorder(ReferenceDevice):
    """Counts what is recorded and how often it is repeated."""

    def __init__(self) -> None:
        super().__init__(ReferenceKernels(torch.float32))
        self.recorded = self.repeated = 0

    def record(self, run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        self.recorded += 1

        def repeat() -> torch.Tensor:
            self.repeated += 1
            return run()

        return repeat


def prompt_of(i: int) -> Chunk:
    return Chunk([(i + 3 * t) % VOCABULARY for t in range(PROMPT)], 0, blocks_of(i), layout(), Wanted.LAST)


def layout() -> Layout:
    return Layout(prompt=PROMPT, public=16, origin=PROMPT)


def blocks_of(i: int) -> range:
    return range(8 * i, 8 * i + 4)


def answers(sequences: Sequence[int], step: int = 0) -> list[Chunk]:
    return [Chunk([7 + i], PROMPT + step, blocks_of(i), layout(), Wanted.LAST) for i in sequences]


@pytest.fixture
def device() -> Recorder:
    return Recorder()


@pytest.fixture
def runners(device: Recorder) -> tuple[ModelRunner, GraphRunner]:
    """Over one cache, so that one may go on where the other stopped."""
    decoder = decoder_on(device)
    cache = reserve_cache(decoder, 2)
    plain, recorded = ModelRunner(decoder, cache), GraphRunner(decoder, cache)
    plain.forward([prompt_of(i) for i in range(5)])
    return plain, recorded


def test_recorded_steps_give_the_same_logits_in_every_bucket(
    runners: tuple[ModelRunner, GraphRunner], device: Recorder
) -> None:
    plain, recorded = runners
    for sequences in ([0], [3, 1], [0, 1, 2, 3, 4], [4, 2, 0]):
        right = plain.forward(answers(sequences))
        assert torch.equal(recorded.forward(answers(sequences)), right)
    assert device.recorded == 4  # of 1, 2, 8 and 4 rows
    recorded.forward(answers([2], step=1))
    assert (device.recorded, device.repeated) == (4, 5)


def test_a_short_prompts_tokens_are_rows_of_a_recorded_step(
    runners: tuple[ModelRunner, GraphRunner], device: Recorder
) -> None:
    """With other tokens beside it, in two chunks of which the first wants nothing, and with all its logits."""
    plain, recorded = runners
    tokens, blocks = prompt_of(1).tokens, blocks_of(1)
    whole = plain.forward([replace(prompt_of(1), wanted=Wanted.ALL)])
    held = plain.cache.keys(1).clone(), plain.cache.values(1).clone()
    plain.wipe(blocks)
    nothing = recorded.forward([Chunk(tokens[:17], 0, blocks[:2], layout(), Wanted.NONE)])
    assert nothing.shape == (0, VOCABULARY) and device.recorded == 1
    together = recorded.forward([*answers([0]), Chunk(tokens[17:], 17, blocks, layout(), Wanted.ALL), *answers([2])])
    assert (device.recorded, device.repeated) == (2, 2)
    assert torch.equal(together[1:4], whole[17:])
    assert torch.equal(together[[0, 4]], plain.forward(answers([0, 2])))
    assert torch.equal(recorded.forward([replace(prompt_of(1), wanted=Wanted.ALL)]), whole)
    plain.forward(answers([0, 2]))
    assert torch.equal(plain.cache.keys(1)[8:12], held[0][8:12]) and torch.equal(
        plain.cache.values(1)[8:12], held[1][8:12]
    )


def test_a_long_prompt_is_computed_as_it_comes_and_so_is_what_was_not_recorded_in_time(
    runners: tuple[ModelRunner, GraphRunner], device: Recorder
) -> None:
    plain, recorded = runners
    long = Chunk([1] * (ROWS[-1] + 1), 0, range(9), wanted=Wanted.LAST)
    assert torch.equal(recorded.forward([long]), plain.forward([long])) and device.recorded == 0
    recorded.settle(2)
    before = device.recorded
    assert torch.equal(recorded.forward([prompt_of(1)]), plain.forward([prompt_of(1)]))
    assert device.recorded == before and (32, 32, False) not in recorded._recorded, "no twenty rows later"


def test_a_block_or_token_that_does_not_exist_is_refused(runners: tuple[ModelRunner, GraphRunner]) -> None:
    _, recorded = runners
    outside = Chunk([7], PROMPT, [0, 1, recorded.num_blocks], layout(), Wanted.LAST)
    unknown = Chunk([VOCABULARY], PROMPT, blocks_of(0), layout(), Wanted.LAST)
    for chunk in (outside, unknown):
        with pytest.raises(IndexError):
            recorded.forward([chunk])


def test_a_bucket_holds_the_batch_and_copies_of_its_first_row() -> None:
    batch = lay_out(answers([0, 3, 4]), 2)
    bucket = Bucket(4, 32, lambda tensor: tensor)
    bucket.fill(batch)
    for name in ("tokens", "slots", "positions", "counts", "rotations", "segments"):
        held, given = getattr(bucket.batch, name), getattr(batch, name)
        assert torch.equal(held, torch.cat((given, given[:1]))), name
    assert torch.equal(bucket.batch.tables[:, : batch.tables.shape[1]], batch.tables[[0, 1, 2, 0]])
    assert torch.equal(bucket.batch.span, torch.arange(4, dtype=torch.int32))


def test_a_wipe_leaves_no_tokens_in_a_bucket(runners: tuple[ModelRunner, GraphRunner]) -> None:
    _, recorded = runners
    for _ in range(2):  # one that was wiped is filled again
        recorded.forward(answers([0, 1]))
        recorded.forward(answers([2]))
        (two, _), (one, _) = (recorded._recorded[rows, 32, False] for rows in (2, 1))
        assert two.batch.tokens.tolist() == [7, 8] and one.batch.tokens.tolist() == [9]
        recorded.wipe([0])
        for bucket in (one, two):
            assert not any(getattr(bucket.batch, name).any() for name in ("tokens", "slots", "tables", "positions"))
        assert not recorded._staging.memory.any()


def test_buckets_share_the_hosts_memory_and_keep_their_own_on_the_device() -> None:
    staging = Staging(8, 64, torch.clone)
    small, large = (Bucket(rows, 64, torch.clone, staging) for rows in (2, 8))
    small.fill(lay_out(answers([1, 2]), 2))
    large.fill(lay_out(answers([3]), 2))
    assert small.batch.tokens.tolist() == [8, 9] and large.batch.tokens.tolist() == [10] * 8


class Closed(Recorder):
    """A device that no decoder can be forked on; until it is open, what it places stays where it was."""

    survives_fork, records = False, True

    def __init__(self) -> None:
        super().__init__()
        self.placed = 0

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        self.placed += 1
        return tensor.clone()


def test_a_product_on_its_device_is_a_copy_that_computes_the_same(device: Recorder) -> None:
    closed, packed = Closed(), device.kernels.pack(torch.randn(8, 16), torch.randn(8))
    placed = closed.place_product(packed)
    assert closed.placed == 2 and placed.data is not packed.data and placed.bias is not packed.bias
    x = torch.randn(3, 16)
    assert torch.equal(closed.kernels.linear(x, placed), device.kernels.linear(x, packed))


def test_a_rehearsal_leaves_the_runner_free_and_empty() -> None:
    closed = Closed()
    decoder = decoder_on(closed)
    cache = reserve_cache(decoder, 2)
    runner = runner_for(decoder, cache)
    rehearse_device(runner, SETTINGS)
    assert isinstance(runner, GraphRunner) and closed.recorded and closed.repeated > closed.recorded
    assert isinstance(cache, HostCache) and not cache.keys(0).any() and not cache.values(1).any()


def test_sampling_is_rehearsed_with_copies_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sealed process on a GPU can call no kernel for the first time."""
    decoder, copied = decoder_on(Closed()), list[int]()
    cache = reserve_cache(decoder, 2)
    copy = type(cache).copy
    monkeypatch.setattr(type(cache), "copy", lambda self, a, b: (copied.append(len(a)), copy(self, a, b))[1])
    rehearse_sampling(Continuations(decoder, cache, rows=4))
    assert isinstance(cache, HostCache) and max(copied) == 3, "all that may be copied at once"
    assert not cache.keys(0).any() and not cache.values(1).any()
    rehearse_sampling(Continuations(decoder, decoder.device.cache(decoder.cache_shape, 1), rows=2))


def test_all_buckets_up_to_the_one_that_holds_the_rows_are_recorded(device: Recorder) -> None:
    decoder = decoder_on(device)
    runner = GraphRunner(decoder, decoder.device.cache(decoder.cache_shape, 64))
    runner.settle(3)
    assert {rows for rows, _, _ in runner._recorded} == {1, 2, 4}


def test_who_cannot_open_the_device_plays_every_request_on_nothing() -> None:
    rehearse_device(IdleRunner(decoder_on(Closed())), SETTINGS)
