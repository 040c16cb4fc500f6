"""Private layers: a vault takes tokens through a model's first layers, bit for bit as one process would; and what the
service may not ask it then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from cloister.compute.base import Begun
from cloister.compute.cpu.library import find_compiler
from cloister.compute.cpu.link import CpuAnswerer, CpuAsker
from cloister.compute.cpu.native import CpuDevice, NativeKernels
from cloister.compute.host_cache import HostCache
from cloister.compute.layout import Chunk, Layout, Remote
from cloister.errors import SetupError
from cloister.link.memory import NUMBER_AT, ROWS_AT, LinkMemory, LinkShape, Mapping, wake
from cloister.models.decoder import Decoder
from tests.link.misbehaviour import eventually, lying_vault
from tests.link.test_link import DTYPES, PATIENCE_MS, Answer, tokens_of
from tests.link.vault_stand_in import BLOCKS, hidden_of
from tests.models.architectures import CONFIGS, random_decoder

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler on this machine")

START = 0xFFFFFFFF
PROMPTS = [(tokens_of(1, 5), 0), (tokens_of(2, 41), 0), (tokens_of(3, 37), 18), (tokens_of(4, 33), 32)]
ANSWER = tokens_of(9, 40)
FUSED = ("llama", "llama-with-biases", "llama-yarn", "mistral-window", "qwen2", "qwen3")


def private(name: str, dtype: str, layers: int, *, int8: bool = False) -> Decoder:
    decoder = random_decoder(CONFIGS[name], NativeKernels(DTYPES[dtype], threads=2, int8=int8))
    decoder.keep_private(layers)
    return decoder


def link_of(decoder: Decoder) -> LinkMemory:
    return LinkMemory(LinkShape(decoder.heads, decoder.cache_shape.dim, decoder.cache_shape.layers))


class Both:
    """A service and a vault with several prompts, in one process."""

    def __init__(self, decoder: Decoder, prompts: list[tuple[list[int], int]] = PROMPTS, limit: int = 40) -> None:
        self.decoder, self.link, self.limit = decoder, link_of(decoder), limit
        self.vault = HostCache(decoder.cache_shape, 2 * BLOCKS, decoder.kernels.dtype)
        self.service, self.open = (HostCache(decoder.cache_shape, BLOCKS, decoder.kernels.dtype) for _ in range(2))
        self.whole = [Answer(decoder, *prompt, None, 12 * slot) for slot, prompt in enumerate(prompts)]
        self.parted = [Answer(decoder, *prompt, Remote(7, slot), 12 * slot) for slot, prompt in enumerate(prompts)]
        answerer = decoder.device.answerer(decoder, self.vault, *self.link.vault_descriptors)
        assert isinstance(answerer, CpuAnswerer)
        self.answerer = answerer
        for slot, one in enumerate(self.whole):
            for cache in (self.vault, self.open):
                hidden_of(decoder, cache, one.prompt_run())
            self.expose(slot)
        answerer.start()
        self.asker = decoder.device.asker(decoder, PATIENCE_MS)
        assert isinstance(self.asker, CpuAsker)
        self.asker.attach(7, *self.link.service_descriptors)
        for one in self.parted:
            if chunks := one.prompt_run():
                hidden_of(decoder, self.service, chunks)

    def expose(self, slot: int, first: int = ANSWER[0]) -> None:
        """The answer's keys in private layers lie behind all others."""
        layout = self.whole[slot].layout
        blocks = self.whole[slot].blocks[: layout.blocks(layout.prompt)]
        own = [BLOCKS + 8 * slot + at for at in range(8)]
        self.answerer.begin(slot, Begun(layout, [*blocks, *own], first, self.limit))
        seen = blocks[layout.blocks(layout.public) :]
        rotation = layout.rotation
        self.answerer.expose(slot, seen, start=layout.public, end=layout.prompt, rotation=rotation)

    def step(self, tokens: list[int], index: int, *others: Chunk) -> torch.Tensor:
        chunks = [one.run(tokens, index) for one in self.parted]
        return hidden_of(self.decoder, self.service, [*others, *chunks], self.asker)

    def honest(self, tokens: list[int], index: int, *others: Chunk) -> torch.Tensor:
        return hidden_of(self.decoder, self.open, [*others, *(one.run(tokens, index) for one in self.whole)])

    def ask(self, layer: int, slot: int = 0, index: int = 0, token: int = ANSWER[0], rows: int = 1) -> int:
        """A question written straight into the memory; what the vault says of it."""
        question = Mapping(self.link.service_descriptors[0], self.link.shape.question_bytes, writable=True)
        answer = Mapping(self.link.service_descriptors[1], self.link.shape.answer_bytes, writable=False)
        question.word(NUMBER_AT + 4).value, question.word(NUMBER_AT + 8).value = layer, rows
        question.word(ROWS_AT).value, question.word(ROWS_AT + 4).value = slot % 2**32, index % 2**32
        question.word(ROWS_AT + 8 * self.link.shape.capacity).value = token % 2**32
        number = question.word(NUMBER_AT).value + 1
        question.word(NUMBER_AT).value = number
        wake(question)
        assert eventually(lambda: answer.word(NUMBER_AT).value == number)
        return answer.word(NUMBER_AT + 4).value


@pytest.fixture
def both() -> Iterator[Both]:
    both = Both(private("llama", "bf16", 1))
    yield both
    both.link.close()


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUSED)
def test_an_answer_with_private_layers_is_the_open_one(name: str, dtype: str, layers: int) -> None:
    """Step by step, several rows at once as after a preemption, and beside another user's open prompt."""
    both = Both(private(name, dtype, layers))
    neighbour, index = tokens_of(5, 40), 0
    for at, count in enumerate((1, 1, 1, 17, 1, 8, 1)):
        tokens = ANSWER[index : index + count]
        beside = Chunk(neighbour[5 * at : 5 * at + 5], 5 * at, [60, 61, 62])
        whole, parted = both.honest(tokens, index, beside), both.step(tokens, index, beside)
        assert both.asker.broken() == {}
        assert torch.equal(whole, parted)
        index += count
    both.link.close()


def test_int8_weights_have_private_layers() -> None:
    both = Both(private("llama", "bf16", 2, int8=True))
    assert torch.equal(both.honest(ANSWER[:3], 0), both.step(ANSWER[:3], 0))
    both.link.close()


def test_the_service_holds_nothing_of_an_answer_below_its_first_layer(both: Both) -> None:
    both.step(ANSWER[:20], 0)
    own = {block for one in both.parted for block in one.blocks[one.layout.blocks(len(one.known)) :]}
    assert all(not both.service.keys(0)[block].any() for block in own)
    assert any(both.service.keys(1)[block].any() for block in own)


def test_after_a_preemption_the_same_tokens_begin_again(both: Both) -> None:
    both.step(ANSWER[:6], 0)
    both.honest(ANSWER[:6], 0)
    both.step(ANSWER[:6], 0)
    assert both.asker.broken() == {}
    assert torch.equal(both.honest(ANSWER[6:7], 6), both.step(ANSWER[6:7], 6))


@pytest.mark.parametrize(
    ("what", "question"),
    [
        ("a contribution to a private layer", {"layer": 0}),
        ("a layer that does not exist", {"layer": 3}),
        ("a contribution to a row that was not begun", {"layer": 1, "index": 6}),
        ("another token for a row that was begun", {"layer": START, "index": 3, "token": ANSWER[3] + 1}),
        ("a row before those ahead of it", {"layer": START, "index": 7}),
        ("a row beyond the answer's end", {"layer": START, "index": 40}),
        ("a negative row", {"layer": START, "index": -1}),
        ("a token outside the vocabulary", {"layer": START, "index": 6, "token": 301}),
        ("a negative token", {"layer": START, "index": 6, "token": -1}),
        ("a slot that is not exposed", {"layer": START, "slot": 9}),
        ("a slot outside the table", {"layer": START, "slot": 64}),
        ("no rows", {"layer": START, "rows": 0}),
        ("more rows than the link carries", {"layer": START, "rows": 129}),
    ],
)
def test_what_the_service_may_not_ask_ends_the_link(both: Both, what: str, question: dict[str, int]) -> None:
    both.step(ANSWER[:6], 0)
    assert both.ask(START, index=5, token=ANSWER[5]) == 0
    assert both.ask(**question) == 3, what
    assert both.answerer.verdict == "link_malformed"


def test_the_first_token_is_the_vaults_own(both: Both) -> None:
    assert both.ask(START, token=ANSWER[0] + 1) == 3


def test_without_private_layers_no_row_is_begun() -> None:
    decoder = random_decoder(CONFIGS["llama"], NativeKernels(DTYPES["bf16"], threads=1))
    both = Both(decoder)
    assert both.ask(0) == 0
    assert both.ask(START) == 3
    both.link.close()


def test_an_answer_no_longer_than_its_limit(both: Both) -> None:
    for start in (0, 20):
        both.step(ANSWER[start : start + 20], start)
        assert both.asker.broken() == {}
    both.step([1], 40)
    assert both.asker.broken() == {7: "link_malformed"}


def test_a_slot_begins_anew_and_nothing_of_the_last_answer_counts(both: Both) -> None:
    both.step(ANSWER[:6], 0)
    both.answerer.withdraw(0)
    both.expose(0, first=17)
    assert both.answerer.asked(0) == 0
    assert both.ask(START, index=0, token=17) == 0
    assert both.ask(START, index=1, token=18) == 0


def test_verification_sees_other_tokens_and_other_queries(both: Both) -> None:
    """`started` compares tokens, `comparing` the queries of the layers that the service computes."""
    both.step(ANSWER[:6], 0)
    rows = [(0, index) for index in range(6)]
    assert both.answerer.started(rows, ANSWER[:6])
    assert not both.answerer.started(rows, [*ANSWER[:5], ANSWER[5] + 1])
    assert not both.answerer.started([(0, 6)], ANSWER[6:7])
    for tokens, expected in ((ANSWER[:6], True), ([*ANSWER[:5], ANSWER[5] + 1], False)):
        with both.answerer.comparing(rows) as same:
            hidden_of(both.decoder, both.vault, [both.whole[0].run(tokens, 0)])
        assert same() is expected


@pytest.mark.parametrize("nonsense", [float("nan"), float("inf")])
def test_a_state_that_is_no_number_ends_its_session_alone(nonsense: float) -> None:
    both = Both(private("llama", "bf16", 1))
    liar = link_of(both.decoder)
    both.asker.attach(8, *liar.service_descriptors)
    with lying_vault(liar, 3, nonsense):
        lie = Chunk(ANSWER[:1], 0, [55], Layout(0, 0, 0, 0, Remote(8, 0)))
        rows = both.step(ANSWER[:1], 0, lie)
    assert both.asker.broken() == {8: "link_malformed"}
    assert torch.equal(rows[1:], both.honest(ANSWER[:1], 0))
    for each in (liar, both.link):
        each.close()


def test_what_cannot_have_private_layers_says_so() -> None:
    kernels = NativeKernels(DTYPES["bf16"], threads=1)
    with pytest.raises(SetupError, match="3 layers"):
        random_decoder(CONFIGS["llama"], kernels).keep_private(3)
    with pytest.raises(SetupError, match="without private layers"):
        random_decoder(CONFIGS["gemma"], kernels).keep_private(1)
    narrow = random_decoder(CONFIGS["llama"], kernels)
    narrow.cache_shape = replace(narrow.cache_shape, dim=8)
    with pytest.raises(SetupError, match="without private layers"):
        narrow.keep_private(1)


def test_blocks_that_do_not_hold_the_answer_are_refused(both: Both) -> None:
    layout = Layout(20)
    for blocks, limit in (([0, 1], 5), ([0, 1, -1], 5), ([0, 1, 2 * BLOCKS], 5), ([0, 1, 2], 0), ([0, 1, 2], 17)):
        both.answerer.begin(9, Begun(layout, blocks, 1, limit))
        with pytest.raises(ValueError, match="does not lie"):
            both.answerer.expose(9, [0, 1], start=0, end=20, rotation=20)


def test_a_device_without_such_links_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = random_decoder(CONFIGS["llama"], NativeKernels(DTYPES["bf16"], threads=1))
    monkeypatch.setattr(CpuDevice, "partition_refusal", lambda *_: "No links.")
    with pytest.raises(SetupError, match="without private layers"):
        decoder.keep_private(1)
