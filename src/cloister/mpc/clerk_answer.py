"""One answer at the level `mpc`: prompt in, tokens out, pass by pass.

Knows tokens, drafts and when an answer ends. It knows neither shares nor sockets: the parties are behind `Passes`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cloister.messages.generation import FinishReason, SamplingParams, TokenLogprob
from cloister.mpc.drafts import Drafts
from cloister.mpc.estimate import Pace
from cloister.mpc.sampling import Chooser


class Passes(Protocol):
    """One generation at the parties. What a pass opens is for us alone: tokens (n,) or logits (V, n)."""

    async def prefill(self, prompt: Sequence[int], noise: NDArray[np.float32] | None) -> NDArray[np.generic]:
        """Compute the whole prompt; what follows its last token, n = 1."""

    async def step(self, at: int, tokens: Sequence[int], noise: NDArray[np.float32] | None) -> NDArray[np.generic]:
        """Compute these tokens, of which the first is the answer's token of number `at`; what follows each of them.

        What was computed before for `at` and beyond is forgotten: guesses that were wrong.
        """


@dataclass(frozen=True, slots=True, repr=False)
class Piece:
    """Tokens of an answer that one pass gave, and their logprobs where they were asked for."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish: FinishReason | None


async def answer(
    passes: Passes, prompt: Sequence[int], params: SamplingParams, chooser: Chooser, drafts: Drafts, pace: Pace
) -> AsyncGenerator[Piece, None]:
    """The answer's pieces, the last with `finish`."""
    tokens = list(prompt)
    draft: tuple[int, ...] = ()
    first = True
    while True:
        noise = chooser.noise(draft)
        pace.pass_begins()
        if first:
            opened = await passes.prefill(prompt, noise)
        else:
            opened = await passes.step(len(tokens) - len(prompt) - 1, (tokens[-1], *draft), noise)
        piece = _piece(opened, draft, chooser, params, left=params.max_tokens - (len(tokens) - len(prompt)))
        tokens += piece.tokens
        pace.pass_done(len(piece.tokens), prompt=first)
        yield piece
        if piece.finish is not None:
            return
        if draft:
            drafts.kept(len(piece.tokens) - 1)
        first = False
        draft = drafts.propose(tokens, params.max_tokens - (len(tokens) - len(prompt)) - 1)


def _piece(
    opened: NDArray[np.generic], draft: Sequence[int], chooser: Chooser, params: SamplingParams, left: int
) -> Piece:
    """What a pass gave: a token for each column up to the first guess that was wrong."""
    tokens: list[int] = []
    scores: list[TokenLogprob] = []
    finish: FinishReason | None = None
    for column in range(len(draft) + 1):
        token, score = chooser.choose(opened, column)
        tokens.append(token)
        if score is not None:
            scores.append(score)
        if token in params.stop_tokens:
            finish = "stop"
        elif len(tokens) == left:
            finish = "length"
        if finish is not None or column == len(draft) or token != draft[column]:
            break
    return Piece(tuple(tokens), tuple(scores) if params.logprobs is not None else None, finish)
