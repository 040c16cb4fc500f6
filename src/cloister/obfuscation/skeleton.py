"""What of marked texts stays when other values stand in the marks: the words around them, and which mark is which
secret's, or which part of it.

Variants of one prompt have one skeleton, or an adversary could rule a variant out: a prompt with this value would have
been read, and searched for, otherwise. For example, a value that also stands in the text around would be marked there,
too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cloister.obfuscation.entities import Mention, entities_of
from cloister.obfuscation.mentions import add_mentions
from cloister.obfuscation.parts import outside, owners_of, says_part
from cloister.obfuscation.tags import Category, TaggedText
from cloister.obfuscation.words import is_everyday, is_telling, parts_of


@dataclass(frozen=True, slots=True, repr=False)
class _Mark:
    """A mention: the number of its secret, and what part of it. `linked`: whether the part would have been found."""

    entity: int
    part: tuple[int, bool] | None = None
    linked: tuple[bool, bool] | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Skeleton:
    """For each text: the pieces around the marks, the marks, and whether it says a part of a secret outside them."""

    around: tuple[tuple[str, ...], ...]
    marks: tuple[tuple[_Mark, ...], ...]
    says: tuple[bool, ...]
    categories: tuple[Category, ...]


def skeleton_of(texts: Sequence[TaggedText]) -> Skeleton:
    """The skeleton of texts with these marks. TagsInvalid where they cannot be marked so."""
    texts = add_mentions(texts)
    entities, owners = entities_of(texts), owners_of(texts)
    marks: dict[Mention, _Mark] = {}
    for number, entity in enumerate(entities):
        marks |= {mention: _Mark(number) for mention in entity.mentions}
        for mention, part in entity.parts:
            word = parts_of(entity.secret)[part.index]
            marks[mention] = _Mark(number, (part.index, part.initial), (is_telling(word), is_everyday(word)))
    in_order = sorted(marks, key=lambda mention: (mention.text, mention.span))
    return Skeleton(
        tuple(tuple(piece for _, piece in outside(text)) for text in texts),
        tuple(tuple(marks[one] for one in in_order if one.text == place) for place in range(len(texts))),
        tuple(says_part(text, owners) for text in texts),
        tuple(entity.category for entity in entities),
    )
