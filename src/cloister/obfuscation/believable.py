"""Substitutes that exist: fakes come from a pool of real values (`candidates`), drawn so that the secret and they are
exchangeable under the sampling model, which reads the whole prompt (`exchangeable`)."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from cloister.errors import TagsInvalid
from cloister.obfuscation.entities import Entity, swapped
from cloister.obfuscation.exchangeable import band_with, drawn, log_likelihoods
from cloister.obfuscation.index import Prf
from cloister.obfuscation.infilling import skeleton_of
from cloister.obfuscation.language_model import LanguageModel, SamplingTokenizer
from cloister.obfuscation.likelihood import Window
from cloister.obfuscation.tags import TaggedText

NEAR, FAR = 48, 400  # characters read after a secret: by all candidates, and by those of one band
BAND = 3  # times λ+1 values in a band, where the pool has them
MUCH_LESS = 4.0  # ln: a value that is less likely than the secret by more is not believable

Values = tuple[str, ...]  # of the entities that are drawn together


@dataclass(frozen=True, slots=True, repr=False)
class Drawn:
    """The real values first. `logprobs`: by the sampling model. `likelihoods`: ln P(these were drawn | one is real)."""

    values: tuple[Values, ...]
    logprobs: tuple[float, ...]
    likelihoods: tuple[float, ...]
    believable: int


@dataclass(frozen=True, slots=True)
class PoolDraw:
    """Without a model all values of the pool are equally likely: a dictionary's substitutes."""

    model: LanguageModel | None
    tokenizer: SamplingTokenizer
    fakes: int
    prf: Prf

    def draw(
        self, texts: Sequence[TaggedText], entities: Sequence[Entity], pool: Sequence[Values]
    ) -> Generator[int, None, Drawn]:
        """A piece at a time. The texts mark these entities alone."""
        real = tuple(entity.secret for entity in entities)
        fitting = [values for values in pool if values == real or _reads_alike(texts, entities, values)]
        band = fitting
        if self.model is not None and len(fitting) > (size := BAND * (self.fakes + 1)):
            near = yield from self._scores(Window(texts, entities, NEAR), fitting)
            band = [fitting[at] for at in band_with(fitting.index(real), near, size)]
        weights = yield from self._scores(Window(texts, entities, FAR), band)
        place = band.index(real)
        context = "\0".join((*real, *(text.text for text in texts))).encode()
        chosen = drawn(weights, place, self.fakes, self.prf.uniforms(b"substitutes\0" + context))
        members = [place, *self.prf.order(b"substitutes\0" + context, len(chosen)).shuffled(chosen)]
        return Drawn(
            tuple(band[at] for at in members),
            tuple(weights[at] for at in members),
            tuple(log_likelihoods(weights, members)),
            sum(weight >= weights[place] - MUCH_LESS for at, weight in enumerate(weights) if at != place),
        )

    def _scores(self, window: Window, candidates: Sequence[Values]) -> Generator[int, None, list[float]]:
        if self.model is None:
            return [0.0] * len(candidates)
        beginning, rows = window.rows(self.tokenizer, candidates, self.model.max_context)
        return (yield from self.model.likelihoods(beginning, rows))


def _reads_alike(texts: Sequence[TaggedText], entities: Sequence[Entity], values: Values) -> bool:
    """Whether a prompt with these values would be marked as this one is: else one variant could be ruled out."""
    try:
        return skeleton_of(swapped(texts, entities, values)) == skeleton_of(texts)
    except TagsInvalid:
        return False
