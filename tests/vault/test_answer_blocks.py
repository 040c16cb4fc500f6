"""Blocks for answers' keys in private layers: for all their tokens or for none, given back and overwritten."""

from __future__ import annotations

import pytest

from cloister.compute.base import Begun
from cloister.compute.host_cache import HostCache
from cloister.engine.base import EngineRequest
from cloister.engine.runner import ModelRunner
from cloister.engine.sequence import Sequence
from cloister.errors import PromptTooLong
from cloister.messages.types import SamplingParams
from cloister.models.decoder import Decoder
from cloister.prefix.base import BlockPool
from cloister.vault.answer_blocks import AnswerBlocks
from cloister.vault.partitioned import Partitioned, SessionMemory
from tests.vault.node import SETTINGS, FakeAnswerer

PROMPTS, ANSWERS = 6, 8


class Noting(FakeAnswerer):
    def __init__(self) -> None:
        super().__init__()
        self.begun: dict[int, Begun] = {}

    def begin(self, slot: int, begun: Begun) -> None:
        assert slot not in self.exposed, "before it is exposed"
        self.begun[slot] = begun


class Vault:
    def __init__(self, decoder: Decoder) -> None:
        self.cache = HostCache(decoder.cache_shape, PROMPTS + ANSWERS, decoder.kernels.dtype)
        runner = ModelRunner(decoder, self.cache)
        runner.num_blocks = PROMPTS
        found = AnswerBlocks.behind(runner, 1)
        assert found is not None
        self.answers, self.answerer, memory = found, Noting(), SessionMemory()
        self.partitioned = Partitioned(runner, SETTINGS, memory, self.answerer, self.answers)
        memory.attach(BlockPool(PROMPTS, runner.wipe), 16)

    def ask(self, number: int, tokens: int, count: int = 1) -> None:
        params = SamplingParams(max_tokens=tokens, temperature=0)
        self.partitioned.add(*(EngineRequest(number, "t", tuple(range(3, 23)), params) for _ in range(count)))

    def serve(self) -> list[int]:
        done = []
        while (number := self.partitioned.next_request) is not None:
            if self.partitioned.work(number, 64) is not None:
                done.append(number)
        return done


@pytest.fixture
def vault(llama: Decoder) -> Vault:
    return Vault(llama)


def test_an_answer_has_blocks_behind_the_prompts_for_all_its_tokens(vault: Vault) -> None:
    vault.ask(1, 33)
    assert vault.serve() == [1]
    [begun] = vault.answerer.begun.values()
    assert begun.limit == 33 and begun.layout.prompt == 20
    prompt, own = begun.blocks[:2], begun.blocks[2:]
    assert max(prompt) < PROMPTS <= min(own) and len(set(own)) == 3
    vault.answerer.close()


def test_a_request_waits_for_anothers_blocks(vault: Vault) -> None:
    vault.ask(1, 65)
    vault.ask(2, 60)
    assert vault.serve() == [1], "five of eight blocks are taken, and the second needs four"
    vault.partitioned.drop(1)
    assert vault.serve() == [2]
    vault.partitioned.drop(2)
    vault.ask(3, 128)
    assert vault.serve() == [3]
    vault.answerer.close()


def test_what_never_fits_is_refused(vault: Vault) -> None:
    for tokens, count in ((129, 1), (65, 2)):
        with pytest.raises(PromptTooLong, match="answer so long"):
            vault.ask(1, tokens, count)
    vault.answerer.close()


def test_given_back_the_private_layers_are_overwritten_and_no_others_touched(vault: Vault) -> None:
    vault.ask(1, 16)
    vault.serve()
    own = vault.answerer.begun[0].blocks[-1]
    for layer in (0, 1):
        vault.cache.keys(layer)[own] = vault.cache.values(layer)[own] = 1
    vault.partitioned.drop(1)
    assert not vault.cache.keys(0)[own].any() and not vault.cache.values(0)[own].any()
    assert vault.cache.keys(1)[own].all() and vault.cache.values(1)[own].all()
    vault.answerer.close()


def test_sequences_of_one_request_have_their_own(vault: Vault) -> None:
    several = [
        Sequence.of(
            EngineRequest(1, "t", (1, 2), SamplingParams(max_tokens=20, temperature=0)), arrival=0, max_context=64
        )
        for _ in range(2)
    ]
    assert vault.answers.hold(several) and vault.answers.hold(several)
    for slot, one in enumerate(several):
        one.append(5)
        vault.answers.begin(one, slot, vault.answerer)
    blocks = [block for begun in vault.answerer.begun.values() for block in begun.blocks]
    assert len(blocks) == len(set(blocks)) == 4
    vault.answerer.close()
