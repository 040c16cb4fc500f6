"""Fakes from a pool of values that exist (`candidates`), drawn so that the secret and they are exchangeable under the
sampling model, which reads the whole prompt (`exchangeable`)."""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from cloister.obfuscation.entities import Entity, swapped
from cloister.obfuscation.exchangeable import Design, band_with
from cloister.obfuscation.index import Prf
from cloister.obfuscation.joint import Values
from cloister.obfuscation.language_model import LanguageModel, SamplingTokenizer
from cloister.obfuscation.skeleton import reads_alike, skeleton_of
from cloister.obfuscation.tags import Span, TaggedText
from cloister.obfuscation.variants import posterior

BEFORE = 2400  # characters read before the first mention, at most
BETWEEN = "\n\n"  # texts of one prompt
NEAR, FAR = 48, 400  # characters read after a secret: by all candidates, and by those of one band


@dataclass(frozen=True, slots=True, repr=False)
class Drawn:
    """The real values first. `logprobs`: by the sampling model. `likelihoods`: ln P(these were drawn | one is real)."""

    values: tuple[Values, ...]
    logprobs: tuple[float, ...]
    likelihoods: tuple[float, ...]

    @property
    def believable(self) -> int:
        """As many equally likely substitutes would leave the secret as likely as it is to the sampling model."""
        return math.floor(1 / posterior(self.logprobs, self.likelihoods)[0] + 0.01) - 1


class Window:
    """`after`: characters read after the first mention's end."""

    def __init__(self, texts: Sequence[TaggedText], entities: Sequence[Entity], after: int) -> None:
        self._texts, self._entities = texts, entities
        spans = _joined(texts).spans
        first = min(_moved(texts, mention.text, mention.span) for one in entities for mention in one.everywhere())
        self._start, end = max(0, first.start - BEFORE), first.end + after
        # A mention that would be cut in two is read whole.
        self._end = next((span.end for span in spans if span.start < end < span.end), end)
        self._spans = spans

    def text(self, values: Sequence[str]) -> str:
        said = _joined(swapped(self._texts, self._entities, values))
        longer = sum(
            (new.end - new.start) - (old.end - old.start)
            for new, old in zip(said.spans, self._spans, strict=True)
            if old.end <= self._end
        )
        return said.text[self._start : self._end + longer]


def split_rows(tokenizer: SamplingTokenizer, texts: Sequence[str], most: int) -> tuple[list[int], list[list[int]]]:
    """What all have in common, and the rest of each; together at most `most` tokens, half of them the rest."""
    # Some models predict hardly anything without the token that a text begins with.
    encoded = [tokenizer.encode(BETWEEN + text, True) for text in texts]
    shared, shortest = 0, min(map(len, encoded)) - 1
    while shared < shortest and all(row[shared] == encoded[0][shared] for row in encoded):
        shared += 1
    rows = [row[shared : shared + most // 2] for row in encoded]
    return encoded[0][:shared][-(most - max(map(len, rows))) :], rows


def _joined(texts: Sequence[TaggedText]) -> TaggedText:
    spans = [_moved(texts, number, span) for number, text in enumerate(texts) for span in text.spans]
    return TaggedText(BETWEEN.join(text.text for text in texts), tuple(spans))


def _moved(texts: Sequence[TaggedText], number: int, span: Span) -> Span:
    by = sum(len(text.text) + len(BETWEEN) for text in texts[:number])
    return Span(span.start + by, span.end + by, span.category)


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
        skeleton = skeleton_of(texts)
        fitting = [values for values in pool if values == real or reads_alike(texts, entities, values, skeleton)]
        band = fitting
        if self.model is not None and len(fitting) > (size := self.fakes + 1):
            near = yield from self._scores(Window(texts, entities, NEAR), fitting)
            band = [fitting[at] for at in band_with(fitting.index(real), near, size)]
        weights = yield from self._scores(Window(texts, entities, FAR), band)
        place = band.index(real)
        context = "\0".join((*real, *(text.text for text in texts))).encode()
        design = Design.proportional(weights, self.fakes + 1)
        chosen = design.drawn(place, self.prf.uniforms(b"substitutes\0" + context))
        members = [place, *self.prf.order(b"substitutes\0" + context, len(chosen)).shuffled(chosen)]
        logprobs = tuple(weights[at] for at in members)
        return Drawn(tuple(band[at] for at in members), logprobs, tuple(design.log_likelihoods(members)))

    def _scores(self, window: Window, candidates: Sequence[Values]) -> Generator[int, None, list[float]]:
        if self.model is None:
            return [0.0] * len(candidates)
        beginning, rows = split_rows(self.tokenizer, list(map(window.text, candidates)), self.model.max_context)
        return (yield from self.model.likelihoods(beginning, rows))
