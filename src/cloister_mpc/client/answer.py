"""One answer, pass by pass. Guesses by prompt lookup are verified in one pass: parties learn its width and how many
were kept. Chosen on shares (Gumbel-max), or from logits opened to the client."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from cloister.engine.drafts import propose
from cloister.errors import InvalidRequest
from cloister.levels import LEVELS, MPC
from cloister.messages.generation import Progress, Tokens
from cloister.messages.types import FinishReason, SamplingParams, TokenLogprob
from cloister_mpc.client.passes import TokenPasses
from cloister_mpc.messages import Answer

"""How many of the last tokens must have occurred before: as many as possible; one alone says too little."""

SECONDS_BETWEEN_NEWS = 0.5
_WEIGHT_OF_THE_LAST = 0.5


@dataclass(frozen=True, slots=True, repr=False)
class Request:
    id: int
    prompt: tuple[int, ...]
    params: SamplingParams
    chooser: "Chooser"


async def answer(request: Request, passes: TokenPasses, drafts: "Drafts", pace: "Pace") -> AsyncIterator[Tokens]:
    """The answer, as many tokens at a time as a pass gives; the last with `finish`."""
    prompt, params, chooser = request.prompt, request.params, request.chooser
    tokens = list(prompt)
    draft: tuple[int, ...] = ()
    while True:
        noise = chooser.noise(draft)
        pace.pass_begins()
        first = len(tokens) == len(prompt)
        if first:
            opened = await passes.prefill(prompt, noise)
        else:
            opened = await passes.step(len(tokens) - len(prompt) - 1, (tokens[-1], *draft), noise)
        given = _given(request, opened, draft, left=params.max_tokens - (len(tokens) - len(prompt)))
        tokens += given.tokens
        pace.pass_done(len(given.tokens), prompt=first)
        yield given
        if given.finish is not None:
            return
        if draft:
            drafts.kept(len(given.tokens) - 1)
        draft = drafts.propose(tokens, params.max_tokens - (len(tokens) - len(prompt)) - 1)


def _given(request: Request, opened: NDArray[np.generic], draft: Sequence[int], left: int) -> Tokens:
    """What a pass gave: a token for each column up to the first guess that was wrong."""
    params = request.params
    tokens: list[int] = []
    scores: list[TokenLogprob] = []
    finish: FinishReason | None = None
    for column in range(len(draft) + 1):
        token, score = request.chooser.choose(opened, column)
        tokens.append(token)
        if score is not None:
            scores.append(score)
        if token in params.stop_tokens:
            finish = "stop"
        elif len(tokens) == left:
            finish = "length"
        if finish is not None or column == len(draft) or token != draft[column]:
            break
    return Tokens(request.id, tuple(tokens), tuple(scores) if params.logprobs is not None else None, finish=finish)


class Drafts:
    """Guesses of `width` tokens or none: few widths, few programs. After PATIENCE vain ones it rests for 4 x width."""

    PATIENCE = 2

    def __init__(self, width: int) -> None:
        self._width = width
        self._fruitless = 0
        self._resting = 0

    def propose(self, tokens: Sequence[int], room: int) -> tuple[int, ...]:
        """A guess for `width` tokens, the last ones repeated if fewer are known; none without room for all."""
        if self._resting or room < self._width:
            self._resting = max(0, self._resting - 1)
            return ()
        guess = propose(tokens, self._width)
        return guess and guess + guess[-1:] * (self._width - len(guess))

    def kept(self, count: int) -> None:
        self._fruitless = 0 if count else self._fruitless + 1
        if self._fruitless >= self.PATIENCE:
            self._fruitless, self._resting = 0, 4 * self._width


class Pace:
    """How far an answer is and how long a token takes, measured. `before`: what earlier answers took, if any did."""

    def __init__(self, layers: int, before: float | None = None, clock: Callable[[], float] = monotonic) -> None:
        self._layers = layers
        self._clock = clock
        self._before = before
        self._measured: float | None = None
        self._token = 1
        self._begun = clock()
        self._reported = float("-inf")

    @property
    def seconds_per_token(self) -> float | None:
        """The recent tokens' seconds, the last counting half; those of earlier answers until there is one."""
        return self._before if self._measured is None else self._measured

    def pass_begins(self) -> None:
        self._begun = self._clock()

    def layer_done(self, done: int) -> Progress | None:
        now = self._clock()
        if now - self._reported < SECONDS_BETWEEN_NEWS:
            return None
        self._reported = now
        return Progress(self._token, min(done, self._layers), self._layers, self.seconds_per_token)

    def pass_done(self, tokens: int, *, prompt: bool = False) -> None:
        """The prompt's own pass is no measure of those that follow."""
        self._token += tokens
        if prompt or not tokens:
            return
        spent = (self._clock() - self._begun) / tokens
        if self._measured is None:
            self._measured = spent
        else:
            self._measured += _WEIGHT_OF_THE_LAST * (spent - self._measured)


class Chooser(ABC):
    kind: Answer

    def noise(self, draft: Sequence[int]) -> NDArray[np.float32] | None:
        """What is added to the logits of the next tokens: a column for each, as if `draft` came true."""

    @abstractmethod
    def choose(self, opened: NDArray[np.generic], column: int) -> tuple[int, TokenLogprob | None]:
        """The next token out of what a pass opened, and its logprob if asked for."""


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
            added += params.temperature * gumbel(params.known_seed, len(outputs), self._vocabulary)
        return added


class FromLogits(Chooser):
    """What was opened are the logits, (V, n): chosen as the engine chooses, by the same code."""

    kind = "logits"

    def __init__(self, prompt: Sequence[int], params: SamplingParams, vocabulary: int) -> None:
        from cloister.engine.base import EngineRequest
        from cloister.engine.sampler import Sampler
        from cloister.engine.sequence import Sequence as TokenSequence

        request = EngineRequest(0, "client", tuple(prompt), params)
        self._sequence = TokenSequence.of(request, arrival=0, max_context=len(prompt) + params.max_tokens)
        self._sampler = Sampler(vocabulary)
        self._vocabulary = vocabulary

    def choose(self, opened: NDArray[np.generic], column: int) -> tuple[int, TokenLogprob | None]:
        import torch

        row = torch.from_numpy(np.array(opened[: self._vocabulary, column], dtype=np.float32))
        sampled = self._sampler.sample(row.unsqueeze(0), [self._sequence], [0])
        self._sequence.append(sampled.tokens[0])
        return sampled.tokens[0], sampled.logprobs[0]


def chooser_for(prompt: Sequence[int], params: SamplingParams, vocabulary: int) -> Chooser:
    """InvalidRequest for what cannot be done on shares."""
    if params.logit_bias and max(params.logit_bias) >= vocabulary:
        raise InvalidRequest(f"logit_bias has ids outside the vocabulary of {vocabulary}.", param="logit_bias")
    logits = params.mpc_reveal == "logits"
    LEVELS[MPC].refuse(params.requested, logits=logits)
    if logits:
        return FromLogits(prompt, params, vocabulary)
    return OnShares(params, vocabulary)


def gumbel(seed: int, index: int, count: int) -> NDArray[np.float32]:
    """Gumbel noise for the answer's token of this index: depends on (seed, index) alone."""
    uniform = np.random.Generator(np.random.Philox(key=[seed, index])).random(count)
    tiny = np.finfo(np.float64).tiny
    noise: NDArray[np.float32] = (-np.log(-np.log(uniform + tiny) + tiny)).astype(np.float32)
    return noise
