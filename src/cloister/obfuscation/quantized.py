"""Substitutes by Greedy Quantized Sampling: λ values that would each have found the others and the secret, or an alert
where there are too few (§5.1). The same secret and prompt give the same substitutes in the same order."""

from collections.abc import Collection, Generator, Sequence

from cloister.errors import TooFewCandidates
from cloister.obfuscation.blocks import Block, block_with, drawn
from cloister.obfuscation.entities import Entity
from cloister.obfuscation.goal import SamplingGoal
from cloister.obfuscation.gqs import Quantization, Sampled, finished, sampling
from cloister.obfuscation.index import Prf
from cloister.obfuscation.infilling import Infilling
from cloister.obfuscation.language_model import LanguageModel, SamplingTokenizer, TokenShapes
from cloister.obfuscation.tags import TaggedText
from cloister.obfuscation.variants import Substitutes


class QuantizedSampler:
    """`prf` draws which candidates are taken."""

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: SamplingTokenizer,
        goal: SamplingGoal,
        prf: Prf,
        shapes: TokenShapes,
    ) -> None:
        self._model, self._tokenizer, self._goal, self._prf, self._shapes = model, tokenizer, goal, prf, shapes

    def substitutes(
        self, texts: Sequence[TaggedText], entities: Sequence[Entity], taken: Collection[str] = ()
    ) -> Substitutes:
        return finished(self.sampling(texts, entities))

    def sampling(self, texts: Sequence[TaggedText], entities: Sequence[Entity]) -> Generator[int, None, Substitutes]:
        """A piece at a time (`gqs.sampling`)."""
        goal, by = self._goal, self._goal.quantization
        infilling = Infilling(self._tokenizer, self._shapes, texts, entities)
        found = yield from class_of(self._model, infilling, by)
        for slot, count in enumerate(found.found):
            if count < goal.least:
                raise _too_few(entities, infilling.entity_of(slot), count, goal)
        block = block_for(found, infilling, goal.fakes, by)
        if len(block) <= goal.least:
            raise _too_few(entities, len(entities) - 1, max(0, len(block) - 1), goal)
        context = "\0".join((*(entity.secret for entity in entities), *(text.text for text in texts))).encode()
        chosen = drawn(found.secret, block, goal.fakes, self._prf, context)
        real = next(one for one in block if one.values == found.secret)
        logprobs = tuple(one.logprob for one in (real, *chosen))
        values = tuple(infilling.values(one.values) for one in chosen)
        return Substitutes(values, logprobs, (0.0,) * len(logprobs), ("gqs",) * len(entities))


def class_of(model: LanguageModel, infilling: Infilling, by: Quantization) -> Generator[int, None, Sampled]:
    """The class of the secrets, without the values that a prompt would be read otherwise with."""
    found = yield from sampling(model, infilling.beginning, infilling.slots, by, fitting=infilling)
    members = tuple(one for one in found.members if infilling.same_shape(one.values))
    return Sampled(found.secret, members, found.found)


def block_for(found: Sampled, infilling: Infilling, fakes: int, by: Quantization) -> Block:
    return block_with(found.secret, found.members, by, fakes + 1, infilling.words)


def _too_few(entities: Sequence[Entity], number: int, found: int, goal: SamplingGoal) -> TooFewCandidates:
    category, by = entities[number].category, goal.quantization
    larger = "a larger ε" if by.distance == "relative" or by.epsilon < 1 else "a relative distance"
    has = f"Secret {number + 1} ({category}) has {found} plausible substitutes; at least {goal.least} were asked for."
    message = f"{has} Sending the prompt could give it away, so nothing was sent."
    tries = f"Try {larger} (now {by.epsilon:g}), a larger λ_max (now {by.lambda_max}), a higher temperature"
    hint = f"{tries} (now {by.temperature:g}), regular spelling, a shorter mark, a category, or a smaller λ_min."
    return TooFewCandidates(message, span=number + 1, found=found, hint=hint)
