"""Substitutes by Greedy Quantized Sampling: λ of the candidates it finds, or an alert where there are too few (§5.1).

Of the candidates λ are drawn so that the real one's rank by probability among all λ+1 is drawn, too: otherwise the
least likely one would be the real one more often than not.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

from cloister.errors import SetupError, TooFewCandidates
from cloister.obfuscation.entities import Entity
from cloister.obfuscation.gqs import Candidate, Sampled, finished, sampling
from cloister.obfuscation.index import Prf
from cloister.obfuscation.infilling import Infilling
from cloister.obfuscation.language_model import LanguageModel, SamplingTokenizer
from cloister.obfuscation.quantization import Keep, Quantization
from cloister.obfuscation.shape import TokenShapes
from cloister.obfuscation.tags import TaggedText
from cloister.obfuscation.variants import MAX_FAKES, Substitutes


@dataclass(frozen=True, slots=True)
class Wish:
    """λ fakes are wanted; with fewer than `minimum` nothing is sent. `quantization` bounds how they may differ."""

    fakes: int = 7
    minimum: int | None = None
    quantization: Quantization = field(default_factory=Quantization)

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.fakes <= MAX_FAKES:
            raise SetupError(f"λ_min and λ are numbers with 1 ≤ λ_min ≤ λ ≤ {MAX_FAKES}.", hint="Try λ = 7.")

    @property
    def least(self) -> int:
        return self.fakes if self.minimum is None else self.minimum


class Sampler:
    """Substitutes by Greedy Quantized Sampling with a model. `prf` draws which candidates are taken; `shapes` of the
    model's tokens are made here where nobody has them."""

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: SamplingTokenizer,
        wish: Wish,
        prf: Prf,
        shapes: TokenShapes | None = None,
    ) -> None:
        self._model, self._tokenizer, self._wish, self._prf = model, tokenizer, wish, prf
        self._shapes = shapes or TokenShapes(tokenizer, model.vocabulary)

    def substitutes(self, texts: Sequence[TaggedText], entities: Sequence[Entity]) -> Substitutes:
        return finished(self.sampling(texts, entities))

    def sampling(self, texts: Sequence[TaggedText], entities: Sequence[Entity]) -> Generator[int, None, Substitutes]:
        """The same a piece at a time (`gqs.sampling`)."""
        wish, by = self._wish, self._wish.quantization
        infilling = Infilling(self._tokenizer, self._shapes, texts, entities)
        found = yield from candidates_for(self._model, infilling, wish.fakes, by)
        for slot, count in enumerate(found.found):
            if count < wish.least:
                raise _too_few(entities, infilling.entity_of(slot), count, wish)
        if len(found.candidates) < wish.least:
            raise _too_few(entities, len(entities) - 1, len(found.candidates), wish)
        context = "\0".join((*(entity.secret for entity in entities), *(text.text for text in texts))).encode()
        chosen = choose(found.candidates, found.reference, wish.fakes, self._prf, context)
        values = tuple(infilling.values(one.values) for one in chosen)
        gaps = tuple(by.gap(one.logprob, found.reference) for one in chosen)
        return Substitutes(values, by.epsilon, by.distance, gaps)


def candidates_for(
    model: LanguageModel, infilling: Infilling, fakes: int, by: Quantization
) -> Generator[int, None, Sampled]:
    """Candidates for so many fakes. Words that go on as the model would are more alike than others: where too few are
    left of those around the real one, the nearest are looked for, and what is more counts.

    Of the beginnings of a word only a few are gone on with: each is the better for several tries.
    """
    lineages = min(by.lambda_max, 4 * fakes)

    def search(keep: Keep) -> Generator[int, None, Sampled]:
        how = replace(by, keep=keep)
        return sampling(model, infilling.beginning, infilling.slots, how, fitting=infilling, lineages=lineages)

    found = yield from search(by.keep)
    if len(found.candidates) >= fakes or by.keep != "around":
        return found
    others = yield from search("nearest")
    return others if len(others.candidates) > len(found.candidates) else found


def choose(candidates: Sequence[Candidate], reference: float, count: int, prf: Prf, context: bytes) -> list[Candidate]:
    """`count` candidates around the real one: a drawn number of likelier ones, the others less likely, the nearest.

    Where one side has too few, the other side gives more; then the real one's rank is nearer that end than drawn.
    """
    likelier = sorted((one for one in candidates if one.logprob > reference), key=lambda one: one.logprob)
    others = sorted((one for one in candidates if one.logprob <= reference), key=lambda one: -one.logprob)
    above = prf.below(b"rank\0" + context, count + 1)
    above = max(min(above, len(likelier)), min(count, len(likelier) + len(others)) - len(others))
    return [*likelier[:above], *others[: count - above]]


def _too_few(entities: Sequence[Entity], number: int, found: int, wish: Wish) -> TooFewCandidates:
    category, by = entities[number].category, wish.quantization
    larger = "a larger ε" if by.distance == "relative" or by.epsilon < 1 else "a relative distance"
    return TooFewCandidates(
        f"Secret {number + 1} ({category}) has {found} plausible substitutes; at least {wish.least} were asked for. "
        "Sending the prompt could give it away, so nothing was sent.",
        span=number + 1,
        found=found,
        hint=f"Try {larger} (now {by.epsilon:g}), a larger λ_max (now {by.lambda_max}), a higher temperature (now "
        f"{by.temperature:g}), regular spelling, a shorter mark, a category, or a smaller λ_min.",
    )


def advantage_bound(wish: Wish, fakes: int) -> float:
    """How much better than 1/(λ+1) somebody with the sampling model can guess, at most, as the paper states it
    (§5.3: ε); for a relative distance what follows from the ratio of the probabilities: e^ε/(λ+e^ε) − 1/(λ+1)."""
    by = wish.quantization
    if by.distance == "absolute":
        return by.epsilon
    return math.exp(by.epsilon) / (fakes + math.exp(by.epsilon)) - 1 / (fakes + 1)
