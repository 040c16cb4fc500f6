"""How a prompt with secrets is read. Variants of one prompt have one skeleton, or an adversary could rule one out: a
value that also stands in the text around would be marked there, too."""

from collections.abc import Sequence
from dataclasses import dataclass

from cloister.errors import TagsInvalid
from cloister.obfuscation.entities import Entity, Mention, add_mentions, entities_of, swapped
from cloister.obfuscation.parts import is_everyday, is_telling, outside, owners_of, parts_of, says_part
from cloister.obfuscation.tags import Category, TaggedText


@dataclass(frozen=True, slots=True, repr=False)
class _Mark:
    """A mention: the number of its secret, and what part of it. `linked`: whether the part would have been found."""

    entity: int
    part: tuple[int, bool] | None = None
    linked: tuple[bool, bool] | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Skeleton:
    """Whatever the values are."""

    around: tuple[tuple[str, ...], ...]
    marks: tuple[tuple[_Mark, ...], ...]
    says: tuple[bool, ...]
    categories: tuple[Category, ...]


def skeleton_of(texts: Sequence[TaggedText]) -> Skeleton:
    """TagsInvalid where the texts cannot be marked so."""
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


def reads_alike(texts: Sequence[TaggedText], entities: Sequence[Entity], values: Sequence[str], as_: Skeleton) -> bool:
    """Whether the texts with these values, of as many words as the secrets, have the skeleton."""
    pairs = zip(values, entities, strict=True)
    if any(len(parts_of(value)) != len(parts_of(entity.secret)) for value, entity in pairs):
        return False
    try:
        return skeleton_of(swapped(texts, entities, values)) == as_
    except TagsInvalid:
        return False
