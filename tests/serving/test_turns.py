"""Turns of a chat at `open` and `shared`: the next finds the last one's answer, and has the bits it has without."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import openai
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
from cloister.keys import key_line
from cloister.messages.generation import Failed
from cloister.messages.types import SamplingParams
from cloister.models.decoder import Decoder
from cloister.models.source import ModelFolder
from cloister.prefix.radix import RadixCache
from cloister.prompts.tokenizer import Tokenizer
from tests.caches import bytes_of
from tests.models.architectures import CONFIGS, random_decoder
from tests.served import running_server
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


@pytest.fixture(params=["llama", "mistral-window", "gpt-neox"])
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["fp32", "bf16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return {"fp32": torch.float32, "bf16": torch.bfloat16}[request.param]


@pytest.fixture(params=KERNELS)
def decoder(request: pytest.FixtureRequest, architecture: str, dtype: torch.dtype) -> Decoder:
    return random_decoder(CONFIGS[architecture], KERNELS[request.param](dtype))


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


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, short_folder: ModelFolder) -> Iterator[openai.OpenAI]:
    folder = tmp_path_factory.mktemp("turns")
    (folder / "keys").write_text(f"[keys]\n{key_line('ann', 'ann')}\n")
    how = ("--detector", "--prefix-policy", "partition", "--model", str(short_folder.path))
    with running_server(folder / "log", *how, "--keys", str(folder / "keys")) as server:
        yield openai.OpenAI(base_url=f"{server.url()}/v1", api_key="ann", max_retries=0)


QUESTIONS = ("Who keeps the lighthouse?", "Where does tea grow?", "Why is the sea salt?", "How do bees find home?")


@pytest.mark.slow
@pytest.mark.parametrize("level", [pytest.param("open", marks=pytest.mark.release), "shared"])
def test_a_real_clients_next_turn_finds_all_but_the_last_page(
    client: openai.OpenAI, short_folder: ModelFolder, level: str
) -> None:
    """After a pause in which the node had time. This model's words may be other tokens when read again: then another
    chat is begun."""
    tokenizer = Tokenizer(short_folder)

    def ask(messages: list[Any], most: int) -> Any:
        more = {"protection": level, "ignore_eos": True}
        return client.chat.completions.create(
            model=short_folder.name, messages=messages, max_tokens=most, temperature=0, extra_body=more, logprobs=True
        )

    for pause, question in zip((1, 4, 10, 30), QUESTIONS, strict=True):
        chat: list[Any] = [{"role": "user", "content": f"At {level}, in a few words: {question}"}]
        read, found = [], []
        for number in range(3):
            before = len(tokenizer.render_chat(chat))
            reply = ask(chat, 50)
            usage = reply.usage
            found.append(usage.prompt_tokens_details.cached_tokens)
            assert usage.prompt_tokens == before
            chat.append({"role": "assistant", "content": reply.choices[0].message.content})
            read.append((before + usage.completion_tokens) // BLOCK_TOKENS * BLOCK_TOKENS)
            chat.append({"role": "user", "content": f"And why number {number}?"})
            if len(tokenizer.encode(chat[-2]["content"])) != usage.completion_tokens:
                break
            time.sleep(pause)
        if found[1:] == read[: len(found) - 1] and len(found) == 3:
            return
    pytest.fail(f"found {found} of {read} after {pause} s")
