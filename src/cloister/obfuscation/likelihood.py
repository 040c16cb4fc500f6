"""How a model reads the prompt with each of several values in a secret's place: the text before, computed once, and for
each value the rest of a window, later mentions included."""

from collections.abc import Sequence

from cloister.obfuscation.entities import Entity, swapped
from cloister.obfuscation.language_model import SamplingTokenizer
from cloister.obfuscation.tags import Span, TaggedText

BEFORE = 2400  # characters read before the first mention, at most
BETWEEN = "\n\n"  # texts of one prompt


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
