"""Recorded steps that ask vaults, on a fake device: the same logits as open ones, whoever joins, leaves or is late."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from cloister.compute.base import KVCache, LinkAsker, Step
from cloister.compute.layout import ASKS, Chunk, Layout, Remote, RemoteRows, Wanted
from cloister.compute.reference import ReferenceDevice, ReferenceKernels, merged, part_in, parts_of, rotated_on
from cloister.engine.graph_runner import NO_VAULT, GraphRunner, rounds
from cloister.engine.rehearsal import rehearse_device
from cloister.engine.runner import ModelRunner, reserve_cache
from cloister.models.fused import FusedDecoder
from tests.compute.on_fake_device import SETTINGS, VOCABULARY, decoder_on

LENGTHS = (5, 40, 21)
STEPS = 4


class Boxes(LinkAsker):
    """Each slot of each link has a number; what a vault exposes there is looked up when a recorded step asks."""

    capacity = 4

    def __init__(self) -> None:
        self.exposed: dict[int, tuple[KVCache, torch.Tensor, int]] = {}
        self.silent: set[int] = set()
        self.aimed: list[list[int]] = []
        self._failed: dict[int, str] = {}

    def number(self, link: int, slot: int) -> int:
        return 100 * link + slot + 1

    def attach(self, link: int, question: int, answer: int) -> None:
        raise AssertionError

    def detach(self, link: int) -> None:
        raise AssertionError

    def aim(self, remotes: Sequence[RemoteRows], rows: int) -> torch.Tensor:
        asks = torch.zeros(ASKS, rows, dtype=torch.int64)
        for remote in remotes:
            for row, (slot, _) in zip(remote.rows, remote.asks, strict=True):
                number = self.number(remote.link, slot)
                assert number not in asks[0].tolist(), "a slot is asked twice in one step"
                asks[0, row] = number if number in self.exposed and remote.link not in self.silent else -1
                if remote.link in self.silent or number not in self.exposed:
                    self._failed[remote.link] = "vault_timeout"
            asks[1, remote.rows[0]] = remote.link + 1
        self.aimed.append(asks[0].tolist())
        return asks

    def broken(self) -> dict[int, str]:
        failed, self._failed = self._failed, {}
        return failed


class AskingKernels(ReferenceKernels):
    """The reference kernels, which take a row's part from the box its number names."""

    model: FusedDecoder

    def attention(self, q: torch.Tensor, layer: int, step: Step, scale: float, window: int = 0) -> torch.Tensor:
        found = [parts_of(q[row], row, layer, step, scale, window) for row in range(len(q))]
        if step.batch.asks is not None:
            assert isinstance(step.asker, Boxes)
            for row, number in enumerate(step.batch.asks[0].tolist()):
                if number > 0:
                    cache, table, length = step.asker.exposed[number]
                    turned = rotated_on(q[row], *self.model.rotation(length)) * scale
                    found[row].insert(-1, part_in(turned, layer, table, length, length, cache, window))
        return torch.stack([merged(parts).reshape(-1) for parts in found])


class Recorder(ReferenceDevice):
    survives_fork, records, shared = False, True, True

    def __init__(self) -> None:
        super().__init__(AskingKernels(torch.float32))
        self.recorded = self.reserved = 0

    def record(self, run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        self.recorded += 1
        return run

    def reserve(self) -> None:
        self.reserved += 1


class Scene:
    """Prompts in one vault's cache each, the same prompts open, and a service that asks."""

    def __init__(self) -> None:
        self.device = Recorder()
        self.decoder = self.device.kernels.model = decoder_on(self.device)  # type: ignore[attr-defined]
        self.asker = Boxes()
        self.service = GraphRunner(self.decoder, reserve_cache(self.decoder, 2), self.asker)
        self.open = ModelRunner(self.decoder, reserve_cache(self.decoder, 2))
        self.prompts = [[(3 * u + 5 * t) % VOCABULARY for t in range(n)] for u, n in enumerate(LENGTHS)]
        self.tokens = [[7 + user] for user in range(len(LENGTHS))]
        for user, prompt in enumerate(self.prompts):
            self.open.forward([self.open_chunk(user, prompt, 0)])

    def open_chunk(self, user: int, tokens: list[int], start: int) -> Chunk:
        layout = Layout(prompt=LENGTHS[user], rotation=LENGTHS[user])
        return Chunk(tokens, start, range(8 * user, 8 * user + 8), layout, Wanted.LAST)

    def asking_chunk(self, user: int, tokens: list[int], start: int, wanted: Wanted = Wanted.LAST) -> Chunk:
        layout = Layout(prompt=0, remote=Remote(user, 0))
        return Chunk(tokens, start, range(2 * user, 2 * user + 2), layout, wanted)

    def expose(self, user: int) -> None:
        vault = ModelRunner(self.decoder, cache := reserve_cache(self.decoder, 2))
        vault.forward([Chunk(self.prompts[user], 0, range(4), Layout(prompt=LENGTHS[user]), Wanted.LAST)])
        self.asker.exposed[self.asker.number(user, 0)] = (cache, torch.arange(4), LENGTHS[user])

    def step(self, *users: int) -> None:
        """The next token of these users: alike at both levels."""
        at = [len(self.tokens[user]) - 1 for user in users]
        asked = [self.asking_chunk(u, self.tokens[u][-1:], n) for u, n in zip(users, at, strict=True)]
        opened = [self.open_chunk(u, self.tokens[u][-1:], LENGTHS[u] + n) for u, n in zip(users, at, strict=True)]
        found = self.service.forward(asked)
        assert torch.equal(found, self.open.forward(opened))
        for user, row in zip(users, found, strict=True):
            self.tokens[user].append(int(row.argmax()))


@pytest.fixture(scope="module")
def prepared() -> Scene:
    scene = Scene()
    for user in range(len(LENGTHS)):
        scene.expose(user)
    return scene


def test_prompts_in_slots_of_one_vault_that_share_blocks_have_the_logits_of_open_ones() -> None:
    """λ+1 prompts of a request: the common beginning is computed and held once, and each answers as if alone."""
    scene, variants, common = Scene(), 3, 32
    prompts = [[*range(common), *((v + 5 * t) % VOCABULARY for t in range(8 + v))] for v in range(variants)]
    vault = ModelRunner(scene.decoder, cache := reserve_cache(scene.decoder, 2))
    vault.forward([Chunk(prompts[0][:common], 0, [9, 4], wanted=Wanted.LAST)])
    asked, opened = [], []
    for v, prompt in enumerate(prompts):
        table, rotated = [9, 4, 6 + v], Layout(prompt=len(prompt), rotation=len(prompt))
        vault.forward([Chunk(prompt[common:], common, table, Layout(prompt=len(prompt)), Wanted.LAST)])
        scene.asker.exposed[scene.asker.number(0, v)] = (cache, torch.tensor(table), len(prompt))
        blocks = range(20 + 5 * v, 25 + 5 * v)
        scene.open.forward([Chunk(prompt, 0, blocks, rotated, Wanted.LAST)])
        opened.append(Chunk([v], len(prompt), blocks, rotated, Wanted.LAST))
        asked.append(Chunk([v], 0, [v], Layout(prompt=0, remote=Remote(0, v)), Wanted.LAST))
    assert torch.equal(scene.service.forward(asked), scene.open.forward(opened))
    assert len(scene.asker.aimed) == 1, "in one step"
    scene.asker.most_rows = 3
    assert torch.equal(scene.service.forward(asked), scene.open.forward(opened))
    assert [len(rows) for rows in scene.asker.aimed] == [3, 2, 1], "no more rows ask at once than may"


def test_users_join_and_leave_between_steps_and_all_have_the_logits_of_open_prompts() -> None:
    scene = Scene()
    scene.expose(0)
    scene.step(0)
    scene.expose(2)
    scene.step(0, 2)
    scene.expose(1)
    scene.step(2, 0, 1)
    del scene.asker.exposed[scene.asker.number(0, 0)]
    scene.step(1, 2)
    assert scene.asker.broken() == {}


def test_rows_that_fill_a_bucket_up_ask_what_the_first_asks(prepared: Scene) -> None:
    """Else they would compute other values into the first row's places."""
    prepared.service.forward([prepared.asking_chunk(user, [9], 0) for user in range(3)])
    bucket, _ = prepared.service._recorded[4, 32, True]
    asks = bucket.batch.asks
    assert asks is not None and asks[0].tolist() == [1, 101, 201, 1] and asks[1].tolist() == [1, 2, 3, 0]


def test_a_late_vault_fails_its_own_link_and_the_others_keep_their_bits(prepared: Scene) -> None:
    both = [prepared.asking_chunk(user, [9], 0) for user in range(2)]
    right = prepared.service.forward(both)
    prepared.asker.silent.add(1)
    found = prepared.service.forward(both)
    assert prepared.asker.broken() == {1: "vault_timeout"}
    assert torch.equal(found[0], right[0]) and not torch.equal(found[1], right[1])
    prepared.asker.silent.clear()


def test_several_tokens_of_one_answer_are_asked_one_after_the_other(prepared: Scene) -> None:
    """As after a preemption, where the answer so far is computed again, beside somebody's next token."""
    answer = [11, 12, 13]
    for number, token in enumerate(answer):
        right = prepared.service.forward([prepared.asking_chunk(0, [token], number)])
    other = prepared.service.forward([prepared.asking_chunk(1, [9], 0)])
    chunks = [prepared.asking_chunk(0, answer, 0), prepared.asking_chunk(1, [9], 0)]
    assert torch.equal(prepared.service.forward(chunks), torch.cat((right, other)))
    unwanted = [prepared.asking_chunk(0, answer, 0, Wanted.NONE), prepared.asking_chunk(1, [9], 0)]
    assert torch.equal(prepared.service.forward(unwanted), other)


def test_open_rows_and_prompts_beside_rows_that_ask_keep_their_bits(prepared: Scene) -> None:
    asking, prompt = prepared.asking_chunk(2, [9], 0), Chunk([1, 2, 3], 0, [10], wanted=Wanted.LAST)
    decoding = Chunk([4], 3, [10], wanted=Wanted.LAST)
    each = [prepared.service.forward([chunk]).clone() for chunk in (prompt, decoding, asking)]
    assert torch.equal(prepared.service.forward([decoding, asking]), torch.cat((each[1], each[2])))
    assert torch.equal(prepared.service.forward([asking, prompt]), torch.cat((each[2], each[0])))


def test_a_public_span_asks_nobody_and_a_round_takes_no_more_than_there_is_room_for() -> None:
    layout = Layout(prompt=4, public=4, remote=Remote(0, 0))
    mixed = Chunk([1, 2, 3, 4, 5, 6], 0, range(2), layout, Wanted.LAST)
    quiet, asking = rounds([mixed, *[Chunk([1], 0, [5], wanted=Wanted.LAST)] * 3], most=3)
    assert [(index, list(chunk.tokens), chunk.wanted) for index, chunk in quiet] == [(0, [1, 2, 3, 4], Wanted.NONE)]
    told = [[(index, chunk.start, list(chunk.tokens)) for index, chunk in each] for each in asking]
    assert told == [[(0, 4, [5]), (1, 0, [1]), (2, 0, [1])], [(3, 0, [1])], [(0, 5, [6])]]


def test_after_the_rehearsal_nothing_more_is_recorded_and_all_is_computed() -> None:
    """On a device that gives a sealed process no more memory: what was not foreseen runs unrecorded."""
    scene = Scene()
    rehearse_device(scene.service, SETTINGS.model_copy(update={"max_running": 2}))
    before = scene.device.recorded
    assert scene.device.reserved == 1 and (2, 32, True) in scene.service._recorded
    for user in range(3):
        scene.expose(user)
    scene.step(0, 1, 2)
    scene.step(1)
    assert scene.device.recorded == before
    scene.service.forward([Chunk([0], 0, [0], Layout(prompt=0, remote=NO_VAULT), Wanted.LAST)])
    assert scene.asker.broken() == {-1: "vault_timeout"}


def test_the_last_token_of_a_public_beginning_asks_nobody() -> None:
    layout = Layout(prompt=3, public=3, remote=Remote(0, 0))
    last, first = (Chunk([1], start, [0, 1], layout, Wanted.LAST) for start in (2, 3))
    quiet, asking = rounds([last], most=4)
    assert [chunk.start for _, chunk in quiet] == [2] and not asking
    assert rounds([first], most=4) == ([], [[(0, first)]])


def test_of_an_answer_that_is_computed_again_the_last_tokens_logits_alone_are_wanted() -> None:
    """A preempted answer of 256 tokens kept 256 rows of a vocabulary: more than a sealed process has on a device."""
    layout = Layout(prompt=0, remote=Remote(0, 0))
    for wanted, right in ((Wanted.LAST, [Wanted.NONE, Wanted.NONE, Wanted.LAST]), (Wanted.ALL, [Wanted.ALL] * 3)):
        _, asking = rounds([Chunk([1, 2, 3], 0, [0], layout, wanted)], most=4)
        assert [chunk.wanted for each in asking for _, chunk in each] == right
