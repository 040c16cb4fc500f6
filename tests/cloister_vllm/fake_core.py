"""vLLM's core as the engine sees it, without vLLM: it answers a prompt with its own tokens, one a step."""

from __future__ import annotations

from collections.abc import Sequence

from cloister.messages.types import SamplingParams, TokenLogprob
from cloister_vllm.core import Core, Made


class EchoCore(Core):
    vocabulary, max_context, blocks, block_tokens = 300, 128, 64, 32

    def __init__(self) -> None:
        self.requests: dict[int, list[int]] = {}
        self.scored: dict[int, int | None] = {}
        self.order: list[int] = []
        self.broken = False

    def add(self, number: int, prompt: Sequence[int], params: SamplingParams, most: int) -> None:
        if params.seed == 13:
            raise ValueError("the prompt's words")
        self.requests[number] = [prompt[at % len(prompt)] for at in range(most)]
        self.order.append(number)
        self.scored[number] = params.logprobs

    def abort(self, number: int) -> None:
        self.requests.pop(number, None)

    def step(self) -> list[Made]:
        if self.broken:
            raise RuntimeError("the prompt's words")
        made = []
        for number, left in list(self.requests.items()):
            token = left.pop(0)
            if not left:
                del self.requests[number]
            wanted = self.scored[number]
            best = ((token, -0.5), (0, -1.5))[:wanted]
            scores = None if wanted is None else (TokenLogprob(-0.5, best),)
            made.append(Made(number, (token,), scores, None if left else "length"))
        return made
