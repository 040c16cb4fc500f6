"""Two processes and a link between them compute what one process computes, bit for bit; and every way it can break."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from cloister.compute.cpu.library import find_compiler
from cloister.compute.cpu.link import CpuAsker
from cloister.compute.cpu.native import NativeKernels
from cloister.compute.host_cache import HostCache
from cloister.compute.layout import Chunk, Layout, Remote
from cloister.errors import ProtocolError
from cloister.link.memory import NUMBER_AT, ROWS_AT, LinkMemory, LinkShape, Mapping, wake
from cloister.models.decoder import Decoder
from tests.link.misbehaviour import eventually, late_answers, lying_vault
from tests.link.vault_stand_in import BLOCKS, hidden_of, vault_of
from tests.models.architectures import CONFIGS, VOCABULARY, random_decoder

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler on this machine")

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PATIENCE_MS = 5000


def decoder_of(name: str, dtype: str) -> Decoder:
    decoder = random_decoder(CONFIGS[name], NativeKernels(DTYPES[dtype], threads=1))
    # The hooked decoder learns its layers' scales with its first step.
    hidden_of(decoder, HostCache(decoder.cache_shape, 1, decoder.kernels.dtype), [Chunk([1], 0, [0])])
    return decoder


def tokens_of(seed: int, count: int) -> list[int]:
    return torch.randint(0, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def link_of(decoder: Decoder) -> LinkMemory:
    return LinkMemory(LinkShape(decoder.heads, decoder.cache_shape.dim, decoder.cache_shape.layers, capacity=32))


class Answer:
    """One answer under generation, held by one process whole or with its private span in a vault."""

    def __init__(
        self, decoder: Decoder, prompt: list[int], public: int, remote: Remote | None, first_block: int
    ) -> None:
        length = len(prompt)
        origin, rotation = (0, length) if decoder.relative else (length, 0)
        self.known = prompt if remote is None else prompt[:public]
        self.layout = Layout(len(self.known), public, origin, rotation, remote)
        self.blocks = list(range(first_block, first_block + 12))

    def prompt_run(self) -> list[Chunk]:
        return [Chunk(self.known, 0, self.blocks, self.layout)] if self.known else []

    def run(self, tokens: list[int], index: int) -> Chunk:
        return Chunk(tokens, len(self.known) + index, self.blocks, self.layout)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_partitioned_answer_is_the_open_one(name: str, dtype: str) -> None:
    """Prompts shorter and longer than a block, with and without public spans, step by step and several rows at once."""
    decoder = decoder_of(name, dtype)
    prompts = [(tokens_of(1, 5), 0), (tokens_of(2, 41), 0), (tokens_of(3, 37), 18), (tokens_of(4, 33), 32)]
    answers = tokens_of(9, 24)
    link = link_of(decoder)
    caches = [HostCache(decoder.cache_shape, BLOCKS, decoder.kernels.dtype) for _ in range(2)]
    opened = [Answer(decoder, *prompt, None, 12 * i) for i, prompt in enumerate(prompts)]
    parted = [Answer(decoder, *prompt, Remote(7, i), 12 * i) for i, prompt in enumerate(prompts)]
    with vault_of(decoder, link, prompts):
        asker = CpuAsker(link.shape, PATIENCE_MS)
        asker.attach(7, *link.service_descriptors)
        for group, cache in ((opened, caches[0]), (parted, caches[1])):
            for answer in group:
                if chunks := answer.prompt_run():
                    hidden_of(decoder, cache, chunks)
        index = 0
        for count in (1, 1, 1, 8, 1, 7):  # one token each, as in decoding; several, as after a preemption
            step = answers[index : index + count]
            whole, part = (
                hidden_of(decoder, cache, [answer.run(step, index) for answer in group], asker)
                for group, cache in ((opened, caches[0]), (parted, caches[1]))
            )
            assert asker.broken() == {}
            assert torch.equal(whole, part)
            index += count
    link.close()


def test_the_service_need_not_know_how_long_the_prompt_is() -> None:
    """Without a public span neither position nor rotation depends on it: what the service is told is the same."""
    decoder = decoder_of("llama", "fp32")
    layouts = {Answer(decoder, tokens_of(1, n), 0, Remote(0, 0), 0).layout.origin for n in (3, 50)}
    assert layouts == {0}
    told = []
    for length in (3, 50):
        with vault_of(decoder, link := link_of(decoder), [(tokens_of(1, length), 0)]):
            asker = CpuAsker(link.shape, PATIENCE_MS)
            asker.attach(0, *link.service_descriptors)
            # A service that is told rotation 0 computes the same: only the vault rotates.
            layout = Layout(0, 0, 0, 0, Remote(0, 0))
            cache = HostCache(decoder.cache_shape, 4, decoder.kernels.dtype)
            told.append(hidden_of(decoder, cache, [Chunk([5], 0, [0], layout)], asker))
            full = Answer(decoder, tokens_of(1, length), 0, None, 0)
            alone = HostCache(decoder.cache_shape, BLOCKS, decoder.kernels.dtype)
            hidden_of(decoder, alone, full.prompt_run())
            assert torch.equal(told[-1], hidden_of(decoder, alone, [full.run([5], 0)]))
        link.close()
    assert not torch.equal(*told)


class Bench:
    """A service with two vaults, one of which is to misbehave."""

    def __init__(self, decoder: Decoder, links: list[LinkMemory], patience_ms: int = PATIENCE_MS) -> None:
        self.decoder = decoder
        self.asker = CpuAsker(links[0].shape, patience_ms)
        for number, link in enumerate(links):
            self.asker.attach(number, *link.service_descriptors)
        self.caches = [HostCache(decoder.cache_shape, 8, decoder.kernels.dtype) for _ in links]
        self.index = [0 for _ in links]

    def step(self, *numbers: int, slot: int = 0) -> torch.Tensor:
        """One token for each of the given vaults' answers, in one batch over one cache."""
        cache = self.caches[0]
        chunks = [
            Chunk([3], self.index[n], [2 * n, 2 * n + 1], Layout(0, 0, 0, 0, Remote(n, slot if n == 0 else 0)))
            for n in numbers
        ]
        for n in numbers:
            self.index[n] += 1
        return hidden_of(self.decoder, cache, chunks, self.asker)


@pytest.fixture
def llama() -> Decoder:
    return decoder_of("llama", "bf16")


def alone(decoder: Decoder, steps: int) -> list[torch.Tensor]:
    """What vault 1's answer is when nobody else is there."""
    link = link_of(decoder)
    other = link_of(decoder)
    with vault_of(decoder, link, [(tokens_of(2, 20), 0)]):
        bench = Bench(decoder, [other, link])
        rows = [bench.step(1)[0] for _ in range(steps)]
    link.close()
    other.close()
    return rows


def broken_how(bench: Bench, expected: list[torch.Tensor]) -> str:
    """Step both until vault 0 breaks; vault 1's rows stay exact throughout, also in the step in which 0 breaks."""
    while bench.index[1] < len(expected) - 1:
        both = bench.step(0, 1)
        assert torch.equal(both[1], expected[bench.index[1] - 1])
        if how := bench.asker.broken():
            assert set(how) == {0}
            assert torch.equal(bench.step(1)[0], expected[bench.index[1] - 1])
            assert bench.asker.broken() == {}
            return how[0]
    raise AssertionError("vault 0 never broke")


def test_a_killed_vault_costs_only_its_own(llama: Decoder) -> None:
    links, expected = [link_of(llama), link_of(llama)], alone(llama, 6)
    with vault_of(llama, links[0], [(tokens_of(1, 20), 0)]) as pid, vault_of(llama, links[1], [(tokens_of(2, 20), 0)]):
        bench = Bench(llama, links)
        assert torch.equal(bench.step(0, 1)[1], expected[0])
        os.kill(pid, signal.SIGSTOP)
        links[0].close_down()  # as the controller does when it sees a vault die
        assert broken_how(bench, expected) == "vault_lost"


def test_a_vault_that_stops_answering_is_late_and_the_others_are_not(llama: Decoder) -> None:
    links, expected = [link_of(llama), link_of(llama)], alone(llama, 4)
    with vault_of(llama, links[0], [(tokens_of(1, 20), 0)]) as pid, vault_of(llama, links[1], [(tokens_of(2, 20), 0)]):
        bench = Bench(llama, links, patience_ms=200)
        os.kill(pid, signal.SIGSTOP)
        assert broken_how(bench, expected) == "vault_timeout"


def test_what_a_vault_answers_while_it_is_killed_does_not_open_its_link_again(llama: Decoder) -> None:
    """The service would stand still for a vault that is gone, and all others with it."""
    link = link_of(llama)
    bench = Bench(llama, [link], patience_ms=200)
    link.close_down()
    Mapping(link.vault_descriptors[1], link.shape.answer_bytes, writable=True).word(NUMBER_AT).value = 0
    bench.step(0)
    assert bench.asker.broken() == {0: "vault_lost"}


def test_being_woken_in_vain_costs_a_vault_no_patience(llama: Decoder) -> None:
    """A bridge wakes whoever sleeps after every answer, also if it was seen already and the next is awaited."""
    link = link_of(llama)
    bench = Bench(llama, [link], patience_ms=2000)
    with late_answers(link, after_s=1.4, wake_every_s=0.01):
        bench.step(0)
    assert bench.asker.broken() == {}


def test_while_the_machine_stands_still_no_vault_is_late(llama: Decoder) -> None:
    """Service and vault are stopped together for longer than the deadline; the vault answers when both go on."""
    link = link_of(llama)
    told, tell = os.pipe()
    service = os.fork()
    if not service:
        try:
            bench = Bench(llama, [link], patience_ms=800)
            os.write(tell, b"!")
            bench.step(0)
            os._exit(0 if bench.asker.broken() == {} else 1)
        finally:
            os._exit(2)
    assert os.read(told, 1) == b"!"
    asked = Mapping(link.vault_descriptors[0], link.shape.question_bytes, writable=False)
    assert eventually(lambda: asked.word(NUMBER_AT).value == 1)
    os.kill(service, signal.SIGSTOP)
    time.sleep(1)
    os.kill(service, signal.SIGCONT)
    time.sleep(0.05)
    with late_answers(link):
        assert os.waitstatus_to_exitcode(os.waitpid(service, 0)[1]) == 0


def test_a_question_about_a_slot_that_is_not_exposed_ends_the_link(llama: Decoder) -> None:
    link = link_of(llama)
    with vault_of(llama, link, [(tokens_of(1, 20), 0)]):
        bench = Bench(llama, [link])
        bench.step(0)
        assert bench.asker.broken() == {}
        bench.step(0, slot=1)
        assert bench.asker.broken() == {0: "link_malformed"}
        bench.step(0)  # the vault answers nobody any more
        assert bench.asker.broken()


@pytest.mark.parametrize(
    ("what", "offset", "value"),
    [
        ("a layer that does not exist", NUMBER_AT + 4, 99),
        ("no rows", NUMBER_AT + 8, 0),
        ("more rows than the link carries", NUMBER_AT + 8, 33),
        ("a negative slot", ROWS_AT, 0xFFFFFFFF),
        ("a slot beyond the table", ROWS_AT, 4096),
        ("a negative index", ROWS_AT + 4, 0xFFFFFFFF),
        ("a number out of turn", NUMBER_AT, 5),
    ],
)
def test_a_malformed_question_is_refused_and_never_followed(llama: Decoder, what: str, offset: int, value: int) -> None:
    """Written straight into the memory, as a service gone mad would."""
    link = link_of(llama)
    with vault_of(llama, link, [(tokens_of(1, 20), 0)]):
        question = Mapping(link.service_descriptors[0], link.shape.question_bytes, writable=True)
        answer = Mapping(link.service_descriptors[1], link.shape.answer_bytes, writable=False)
        question.word(NUMBER_AT + 4).value, question.word(NUMBER_AT + 8).value = 0, 1
        question.word(offset).value = value
        number = value if offset == NUMBER_AT else 1
        question.word(NUMBER_AT).value = number
        wake(question)
        assert eventually(lambda: answer.word(NUMBER_AT).value == number), what
        assert answer.word(NUMBER_AT + 4).value == 3, what


@pytest.mark.parametrize("nonsense", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", ["attention", "top", "total"])
def test_an_answer_that_is_no_number_ends_its_session_alone(llama: Decoder, nonsense: float, where: str) -> None:
    links, expected = [link_of(llama), link_of(llama)], alone(llama, 3)
    at = {"attention": 3, "top": llama.cache_shape.dim, "total": llama.cache_shape.dim + 1}[where]
    with lying_vault(links[0], at, nonsense), vault_of(llama, links[1], [(tokens_of(2, 20), 0)]):
        assert broken_how(Bench(llama, links), expected) == "link_malformed"


def test_a_link_made_for_another_model_is_refused(llama: Decoder) -> None:
    link = link_of(llama)
    other = LinkShape(link.shape.heads, link.shape.dim, link.shape.layers + 1, link.shape.capacity)
    with pytest.raises(ProtocolError):
        CpuAsker(other, PATIENCE_MS).attach(0, *link.service_descriptors)
    shorter = LinkShape(link.shape.heads, link.shape.dim, link.shape.layers, link.shape.capacity - 1)
    with pytest.raises(ProtocolError):
        CpuAsker(shorter, PATIENCE_MS).attach(0, *link.service_descriptors)


def test_each_side_can_write_its_own_piece_only(llama: Decoder) -> None:
    link = link_of(llama)
    with pytest.raises(OSError):
        Mapping(link.service_descriptors[1], link.shape.answer_bytes, writable=True)
    with pytest.raises(OSError):
        Mapping(link.vault_descriptors[0], link.shape.question_bytes, writable=True)
    for descriptor in (link.service_descriptors[0], link.vault_descriptors[1]):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 0)
