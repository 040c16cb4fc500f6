"""An adversary that runs the sampler again for each of the λ+1 prompts, with the code, the model and all settings, but
not the request's secret. A score is the exact log-likelihood of the set if this prompt is real; −∞ rules it out."""

from __future__ import annotations

import math
from collections.abc import Sequence, Sized
from dataclasses import dataclass

from cloister.errors import CloisterError
from cloister.obfuscation.entities import add_mentions, entities_of
from cloister.obfuscation.gqs import Quantization, Sampled, finished
from cloister.obfuscation.infilling import Infilling
from cloister.obfuscation.language_model import LanguageModel, SamplingTokenizer, TokenShapes
from cloister.obfuscation.quantized import block_for, class_of
from cloister.obfuscation.tags import TaggedText

Values = tuple[str, ...]  # a prompt's secrets


@dataclass(frozen=True, slots=True)
class Rerun:
    model: LanguageModel
    tokenizer: SamplingTokenizer
    shapes: TokenShapes
    by: Quantization
    fakes: int

    def scores(self, prompts: Sequence[TaggedText]) -> list[float]:
        marked = [add_mentions([prompt]) for prompt in prompts]
        observed = {tuple(one.secret for one in entities_of(texts)) for texts in marked}
        return [self._score(texts, observed) for texts in marked]

    def _score(self, texts: Sequence[TaggedText], observed: set[Values]) -> float:
        try:
            infilling = Infilling(self.tokenizer, self.shapes, texts, entities_of(texts))
            found = finished(class_of(self.model, infilling, self.by))
        except CloisterError:
            return -math.inf
        return self.likelihood(found, infilling, observed)

    def likelihood(self, found: Sampled, infilling: Infilling, observed: set[Values]) -> float:
        block = {infilling.values(one.values) for one in block_for(found, infilling, self.fakes, self.by)}
        return log_likelihood(block, len(observed) - 1) if observed <= block else -math.inf


def log_likelihood(block: Sized, count: int) -> float:
    """ln of the probability that this set of `count` fakes is drawn from a block with the real one and these fakes."""
    return -math.log(math.comb(len(block) - 1, count))
