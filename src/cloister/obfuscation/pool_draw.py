"""Fakes from a pool of values that exist (`candidates`), drawn so that the secret and they are exchangeable under the
sampling model, which reads the whole prompt (`exchangeable`)."""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from cloister.obfuscation.entities import Entity, swapped
from cloister.obfuscation.exchangeable import Design, band_with, bands_apart
from cloister.obfuscation.index import Prf
from cloister.obfuscation.joint import Values
from cloister.obfuscation.language_model import LanguageModel, SamplingTokenizer
from cloister.obfuscation.parts import is_telling, words_in
from cloister.obfuscation.skeleton import reads_alike, skeleton_of
from cloister.obfuscation.tags import Category, Span, TaggedText
from cloister.obfuscation.variants import posterior

BEFORE = 2400  # characters read before the first mention, at most
BETWEEN = "\n\n"  # texts of one prompt
GAP = "\n…\n"  # for what is not read between two secrets
NEAR, FAR = 48, 400  # characters read after a secret: by all candidates, and by those of one band
# What a difference of the model's logarithms is worth among values that exist. It is far too sure: 51 development
# secrets in pools of 16 cost 5.26 nats each at 1, 2.76 at 0. Best is 0.03 (95%: 0 to 0.11).
CERTAINTY = 0.1


@dataclass(frozen=True, slots=True, repr=False)
class Drawn:
    """The real values first. `logprobs`: by the sampling model. `likelihoods`: ln P(these were drawn | one is real)."""

    values: tuple[Values, ...]
    logprobs: tuple[float, ...]
    likelihoods: tuple[float, ...]

    @property
    def believable(self) -> int:
        """As many equally likely substitutes would leave the likeliest of these values as likely as it is. Which is
        real does not matter: else a value that would have been refused could be known from the real one."""
        return math.floor(1 / max(posterior(tempered(self.logprobs), self.likelihoods)) + 0.01) - 1


def tempered(logprobs: Sequence[float]) -> list[float]:
    return [CERTAINTY * each for each in logprobs]


class Window:
    """What is read around the first mention of each entity, counted in characters outside all marks: values of any
    length are read with the same text around them."""

    def __init__(self, texts: Sequence[TaggedText], entities: Sequence[Entity], around: int) -> None:
        self._texts, self._entities = texts, entities
        spans = _joined(texts).spans
        lengths = accumulate((span.end - span.start for span in spans), initial=0)
        places = {span: span.start - before for span, before in zip(spans, lengths, strict=False)}
        firsts = sorted(min(places[_moved(texts, *each)] for each in _mentions(one)) for one in entities)
        parts = [(max(0, firsts[0] - BEFORE), firsts[0] + around)]
        for at in firsts[1:]:
            start, end = parts[-1]
            parts[-1:] = [(start, at + around)] if at - around <= end else [parts[-1], (at - around, at + around)]
        self._parts = parts
        self.length = sum(end - start for start, end in parts) - min(BEFORE, firsts[0])  # from the first mention on

    def text(self, values: Sequence[str]) -> str:
        said = _joined(swapped(self._texts, self._entities, values))
        return GAP.join(_cut(said, *part) for part in self._parts)


def _mentions(entity: Entity) -> list[tuple[int, Span]]:
    return [(mention.text, mention.span) for mention in entity.everywhere()]


def _cut(text: TaggedText, start: int, end: int) -> str:
    """From one place to another, counted outside the marks; marks at both are whole."""
    pieces, read, since = [], 0, 0
    for span in (*text.spans, None):
        between = text.text[since : None if span is None else span.start]
        pieces.append(between[max(0, start - read) : max(0, end - read)])
        read += len(between)
        if span is not None:
            pieces += [text.secret(span)] if start <= read <= end else []
            since = span.end
    return "".join(pieces)


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


def _words(entities: Sequence[Entity], pool: Sequence[Values]) -> list[frozenset[str]]:
    """What no two may share: values, and names' words but those that all have."""
    found = []
    for values in pool:
        own = {value.casefold() for value in values}
        for entity, value in zip(entities, values, strict=True):
            if entity.category in (Category.NAME, Category.FREE):
                own |= {word for each in words_in(value) if is_telling(word := each[0].casefold())}
        found.append(own)
    common = set.intersection(*found) if len(found) > 1 else set()
    return [frozenset(own - common) for own in found]


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
        return (yield from self.chosen(texts, entities, (yield from self.band(texts, entities, pool, self.fakes + 1))))

    def band(
        self,
        texts: Sequence[TaggedText],
        entities: Sequence[Entity],
        pool: Sequence[Values],
        size: int,
        around: int = NEAR,
    ) -> Generator[int, None, list[Values]]:
        """At least `size` values as likely as the real one, if the pool has more. None shares a word with another."""
        real, skeleton = tuple(entity.secret for entity in entities), skeleton_of(texts)
        fitting = [each for each in pool if each == real or reads_alike(texts, entities, each, skeleton)]
        words = _words(entities, fitting)
        apart = len(frozenset[str]().union(*words)) == sum(map(len, words))
        if apart and (self.model is None or len(fitting) <= size):
            return fitting
        near = yield from self._scores(Window(texts, entities, around), fitting)
        at = fitting.index(real)
        if not apart:
            chosen = next(band for band in bands_apart(near, words, size) if at in band)
        else:
            chosen = band_with(at, near, size)
        return [fitting[each] for each in chosen]

    def chosen(
        self, texts: Sequence[TaggedText], entities: Sequence[Entity], band: Sequence[Values]
    ) -> Generator[int, None, Drawn]:
        real = tuple(entity.secret for entity in entities)
        weights = yield from self._scores(Window(texts, entities, FAR), band)
        place = band.index(real)
        context = "\0".join((*real, *(text.text for text in texts))).encode()
        design = Design.proportional(tempered(weights), self.fakes + 1)
        chosen = design.drawn(place, self.prf.uniforms(b"substitutes\0" + context))
        members = [place, *self.prf.order(b"substitutes\0" + context, len(chosen)).shuffled(chosen)]
        logprobs = tuple(weights[at] for at in members)
        return Drawn(tuple(band[at] for at in members), logprobs, tuple(design.log_likelihoods(members)))

    def _scores(self, window: Window, candidates: Sequence[Values]) -> Generator[int, None, list[float]]:
        if self.model is None:
            return [0.0] * len(candidates)  # the order of the pool, which has no meaning
        beginning, rows = split_rows(self.tokenizer, list(map(window.text, candidates)), self.model.max_context)
        return (yield from self.model.likelihoods(beginning, rows))
