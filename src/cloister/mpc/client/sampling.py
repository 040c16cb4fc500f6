"""How a token is chosen at the level `mpc`: on shares, or from logits opened to whoever holds the prompt.

On shares a token is the greatest of logits + noise, and the noise is dealt as a secret: temperature x Gumbel noise
draws by probability (the Gumbel-max trick), logit_bias and the penalties that add up are put on top. What else there is
(filters, a penalty that multiplies, logprobs) needs the logits themselves. Runs where the prompt is; knows no parties.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cloister.errors import InvalidRequest
from cloister.levels import LEVELS, MPC
from cloister.messages.generation import SamplingParams, Submit, TokenLogprob
from cloister.messages.mpc import Answer


class Chooser(ABC):
    """Chooses one answer's tokens, in order."""

    kind: Answer

    def noise(self, draft: Sequence[int]) -> NDArray[np.float32] | None:
        """What is to be added to the logits of the next tokens: a column for each, as if `draft` came true."""
        return None

    @abstractmethod
    def choose(self, opened: NDArray[np.generic], column: int) -> tuple[int, TokenLogprob | None]:
        """The next token out of what a pass opened, and its logprob where that was asked for."""


class OnShares(Chooser):
    """The parties chose; what was opened are the tokens' numbers, (n,)."""

    def __init__(self, params: SamplingParams, vocabulary: int) -> None:
        self._params = params
        self._vocabulary = vocabulary
        self._outputs: list[int] = []
        self._bias = np.zeros(vocabulary, dtype=np.float32)
        for token, bias in params.logit_bias.items():
            self._bias[token] = bias
        penalised = params.presence_penalty != 0 or params.frequency_penalty != 0
        self.kind = "sampled" if params.temperature > 0 or params.logit_bias or penalised else "token"

    def noise(self, draft: Sequence[int]) -> NDArray[np.float32] | None:
        if self.kind == "token":
            return None
        columns = [self._column([*self._outputs, *draft[:count]]) for count in range(len(draft) + 1)]
        return np.stack(columns, axis=1)

    def choose(self, opened: NDArray[np.generic], column: int) -> tuple[int, TokenLogprob | None]:
        token = int(opened[column])
        self._outputs.append(token)
        return token, None

    def _column(self, outputs: list[int]) -> NDArray[np.float32]:
        params, added = self._params, self._bias.copy()
        for token in set(outputs):
            added[token] -= params.presence_penalty + outputs.count(token) * params.frequency_penalty
        if params.temperature > 0:
            added += params.temperature * gumbel(params.seed, len(outputs), self._vocabulary)
        return added


class FromLogits(Chooser):
    """What was opened are the logits, (V, n): chosen as the engine chooses, by the same code."""

    kind = "logits"

    def __init__(self, prompt: Sequence[int], params: SamplingParams, vocabulary: int) -> None:
        from cloister.engine.sampler import Sampler
        from cloister.engine.sequence import Sequence as Tokens

        submit = Submit(0, "client", tuple(prompt), params)
        self._sequence = Tokens.of(submit, arrival=0, max_context=len(prompt) + params.max_tokens)
        self._sampler = Sampler(vocabulary)
        self._vocabulary = vocabulary

    def choose(self, opened: NDArray[np.generic], column: int) -> tuple[int, TokenLogprob | None]:
        import torch

        row = torch.from_numpy(np.array(opened[: self._vocabulary, column], dtype=np.float32))
        sampled = self._sampler.sample(row.unsqueeze(0), [self._sequence], [0])
        self._sequence.append(sampled.tokens[0])
        return sampled.tokens[0], sampled.logprobs[0]


def chooser_for(prompt: Sequence[int], params: SamplingParams, vocabulary: int) -> Chooser:
    """Whoever chooses as the parameters say; InvalidRequest for what cannot be done on shares."""
    if params.logit_bias and max(params.logit_bias) >= vocabulary:
        raise InvalidRequest(f"logit_bias has ids outside the vocabulary of {vocabulary}.", param="logit_bias")
    logits = params.mpc_reveal == "logits"
    LEVELS[MPC].refuse(params.wished, logits=logits)
    if logits:
        return FromLogits(prompt, params, vocabulary)
    return OnShares(params, vocabulary)


def gumbel(seed: int, index: int, count: int) -> NDArray[np.float32]:
    """Gumbel noise for the answer's token of this index: of (seed, index) and of nothing else."""
    uniform = np.random.Generator(np.random.Philox(key=[seed, index])).random(count)
    tiny = np.finfo(np.float64).tiny
    noise: NDArray[np.float32] = (-np.log(-np.log(uniform + tiny) + tiny)).astype(np.float32)
    return noise
