"""Uses every kernel once before a process is sealed: a driver loads kernels at their first call, from files."""

from collections.abc import Sequence
from contextlib import suppress

import torch

from cloister.compute.layout import BLOCK_TOKENS, Chunk, Wanted
from cloister.config import EngineSettings
from cloister.engine.base import EngineRequest
from cloister.engine.continuations import Continuations
from cloister.engine.graph_runner import GraphRunner
from cloister.engine.paged import PagedEngine
from cloister.engine.runner import Runner
from cloister.errors import PromptTooLong
from cloister.messages.generation import Failed
from cloister.messages.types import SamplingParams
from cloister.models.decoder import Decoder

PROMPT_TOKENS = 24
CHUNKS = (32, 64, 96, 128)  # lengths for which a device may have separate kernels
WAYS = (
    SamplingParams(max_tokens=3, temperature=0.0, presence_penalty=0.5, logit_bias={0: 1.0}),
    SamplingParams(max_tokens=3, top_p=0.9, top_k=3, min_p=0.01, repetition_penalty=1.1),
    SamplingParams(max_tokens=3, logprobs=2),
    SamplingParams(max_tokens=3, temperature=0.0, prompt_logprobs=1),
    SamplingParams(max_tokens=0, embed=True),
)


class IdleRunner(Runner):
    """For a process without the device: all tokens are equally likely."""

    block_tokens = BLOCK_TOKENS
    num_blocks = 64

    def __init__(self, decoder: Decoder) -> None:
        self.vocabulary, self.max_context, self.relative = decoder.vocabulary, decoder.max_context, decoder.relative
        self.width = decoder.width

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        wanted = [chunk for chunk in chunks if chunk.wanted is not Wanted.NONE]
        rows = sum(len(chunk.tokens) if chunk.wanted is Wanted.ALL else 1 for chunk in wanted)
        return torch.zeros(rows, self.vocabulary)

    def states(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        return torch.ones(sum(chunk.wanted is Wanted.LAST for chunk in chunks), self.width)

    def wipe(self, blocks: Sequence[int]) -> None:
        return None


def rehearse_sampling(model: Continuations) -> None:
    """With as many rows as will ever occur: a device uses other kernels, and more host memory, for many rows."""
    with suppress(PromptTooLong), model.branches([0] * BLOCK_TOKENS, temperature=0.5) as branches:
        for _ in branches.first():
            pass
        for _ in range(2):
            for _ in branches.grow([0] * model.rows, [[0]] * model.rows):
                pass


def rehearse_device(runner: Runner, settings: EngineSettings) -> None:
    """Run requests of every kind, alone and together. The runner's blocks are free and wiped afterwards."""
    engine = PagedEngine(runner, settings)
    length = max(1, min(PROMPT_TOKENS, engine.max_context - WAYS[0].max_tokens))
    for ways in (WAYS[:1], WAYS):
        for number, params in enumerate(ways):
            prompt = tuple(token % runner.vocabulary for token in range(length))
            reply = engine.submit(EngineRequest(number, "rehearsal", prompt, params))
            if isinstance(reply, Failed):
                raise RuntimeError("the device's rehearsal was refused")
        most = max(1, length // 2)  # so that a prompt comes in two chunks, the first of which wants no logits
        while engine.has_work:
            if any(isinstance(message, Failed) for message in engine.step(most)):
                raise RuntimeError("the device's rehearsal failed")
            most = settings.chunk_tokens
    if isinstance(runner, GraphRunner):
        longest = min(settings.chunk_tokens, engine.max_context, runner.num_blocks * BLOCK_TOKENS)
        blocks = range(-(-longest // BLOCK_TOKENS))
        for length in (*(few for few in CHUNKS if few < longest), longest):
            runner.forward([Chunk([0] * length, 0, blocks, wanted=Wanted.LAST)])
        runner.settle(settings.max_running)
        runner.wipe(blocks)
