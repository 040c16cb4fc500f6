"""Turns of a chat at `open` and `shared`: the next finds the last one's answer, and has the bits it has without.

Through a node: test_sharing.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import count, product
from typing import Any

import pytest
import torch

from cloister.compute.base import Kernels
from cloister.compute.cpu.native import NativeKernels
from cloister.compute.layout import BLOCK_TOKENS, Chunk, Layout
from cloister.compute.reference import ReferenceKernels
from cloister.config import EngineSettings
from cloister.engine.base import EngineRequest
from cloister.engine.paged import PagedEngine
from cloister.engine.runner import ModelRunner, reserve_cache
from cloister.messages.generation import Failed
from cloister.messages.types import SamplingParams
from cloister.models.decoder import Decoder
from cloister.prefix.radix import RadixCache
from tests.caches import bytes_of
from tests.models.architectures import CONFIGS, random_decoder
from tests.serving.conftest import Answer

KERNELS: dict[str, Callable[[torch.dtype], Kernels]] = {
    "reference": ReferenceKernels,
    "native": lambda dtype: NativeKernels(dtype, threads=1),
}
PROMPT = tuple(random.Random(1).randrange(300) for _ in range(2 * BLOCK_TOKENS))
SAID = tuple(random.Random(2).randrange(300) for _ in range(2 * BLOCK_TOKENS))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def _computing() -> Iterator[Any]:
    """The slow kernels in fp32 with one architecture; before a release with all, and in bf16."""
    for kernels, dtype, name in product(KERNELS, (torch.float32, torch.bfloat16), ARCHITECTURES):
        later = kernels == "reference" and (dtype, name) != (torch.float32, "llama")
        marks = [pytest.mark.release] if later else []
        yield pytest.param(name, kernels, dtype, id=f"{name}-{kernels}-{str(dtype)[6:]}", marks=marks)


ARCHITECTURES = ("llama", "mistral-window", "gpt-neox")
COMPUTING = tuple(_computing())
CASES = ("architecture", "kernels", "dtype")


@pytest.fixture
def decoder(architecture: str, kernels: str, dtype: torch.dtype) -> Decoder:
    return random_decoder(CONFIGS[architecture], KERNELS[kernels](dtype))


def runner_of(decoder: Decoder) -> ModelRunner:
    return ModelRunner(decoder, reserve_cache(decoder, 4))


def pages(decoder: Decoder, layout: Layout, first: int, *sizes: int) -> list[bytes]:
    """Keys and values of PROMPT and SAID, computed in chunks of these sizes; both are whole pages."""
    runner, tokens, at = runner_of(decoder), [*PROMPT, *SAID], 0
    blocks = list(range(first, first + 4))
    for size in sizes:
        end = at + size
        runner.forward([Chunk(tokens[at:end], at, blocks[: layout.blocks(end)], layout)])
        at = end
    assert at == len(tokens)
    return [bytes_of(runner.cache, block) for block in blocks]


@pytest.mark.parametrize(CASES, COMPUTING)
def test_an_answer_has_other_bits_than_the_same_words_in_a_prompt(decoder: Decoder) -> None:
    """Why an answer's own blocks are not inserted as they are, and why what is computed again may be."""
    in_prompt = pages(decoder, Layout(64), 0, 64)
    answer = Layout(32, rotation=32) if decoder.relative else Layout(32, origin=32)
    decoded = pages(decoder, answer, 0, 32, *[1] * 16, 16)
    assert decoded[:2] == in_prompt[:2], "the prompt's are equal"
    assert decoded[2:] != in_prompt[2:] or not decoder.relative, "an answer is rotated from 0 on"
    for sizes in ((32, 32), (16, 7, 9, 20, 1, 11)):
        assert pages(decoder, Layout(64), 5, *sizes) == in_prompt, sizes


class Chats:
    def __init__(self, decoder: Decoder, *, reuse: bool) -> None:
        self.engine = PagedEngine(runner_of(decoder), EngineSettings(), RadixCache())
        self._policy, self._numbers = ("partition" if reuse else "none"), count()

    def ask(self, prompt: tuple[int, ...], params: SamplingParams, public: int) -> tuple[Answer, int]:
        number, answer, cached = next(self._numbers), Answer(), 0
        self.engine.submit(
            EngineRequest(number, "ann", prompt, params, public=public, policy=self._policy)  # type: ignore[arg-type]
        )
        while self.engine.has_work:
            for message in self.engine.step():
                assert not isinstance(message, Failed), message.message
                answer.tokens += message.tokens
                answer.logprobs += message.logprobs or ()
                cached += message.cached
        return answer, cached


WAYS = (
    SamplingParams(max_tokens=30, temperature=0, logprobs=3),
    SamplingParams(max_tokens=23, temperature=0.9, top_p=0.9, seed=5, logprobs=1),
    SamplingParams(max_tokens=37, temperature=0.7, seed=6, logprobs=2, presence_penalty=0.7, repetition_penalty=1.2),
)


@pytest.mark.parametrize(CASES, COMPUTING)
@pytest.mark.parametrize("rounds", [1, pytest.param(2, marks=pytest.mark.release)])
@pytest.mark.parametrize("public", [0, 21])
def test_every_turn_is_the_same_with_and_without_reuse(decoder: Decoder, public: int, rounds: int) -> None:
    with_reuse, without = Chats(decoder, reuse=True), Chats(decoder, reuse=False)
    chat = PROMPT[:29]
    known = 0
    for turn, params in enumerate(WAYS * rounds):
        answer, cached = with_reuse.ask(chat, params, public)
        expected, none = without.ask(chat, params, public)
        assert answer == expected and none == 0
        assert cached == public * (turn > 0) + (known - public * (turn > 0)) // BLOCK_TOKENS * BLOCK_TOKENS
        chat = (*chat, *answer.tokens)
        known = len(chat)
        chat = (*chat, *SAID[: turn + 3])
