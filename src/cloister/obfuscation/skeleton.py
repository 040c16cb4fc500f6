"""How a prompt is read, whatever its values are. Variants of one prompt have one skeleton, or an adversary could rule
one out: a value that also stands in the text around would be marked there, too."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cloister.errors import TagsInvalid
from cloister.obfuscation.entities import Entity, Mention, add_mentions, entities_of, swapped
from cloister.obfuscation.parts import (
    is_abbreviation,
    is_everyday,
    is_sibilant,
    is_telling,
    outside,
    owners_of,
    parts_of,
    says_part,
)
from cloister.obfuscation.people import after_title, is_inflected
from cloister.obfuscation.tags import Category, Span, TaggedText

_ARTICLE = re.compile(r"(?<!\w)an? \Z", re.IGNORECASE)
_VOWEL = re.compile(r"(?!eu|uni|use|one)[aeiou]|hono|hour|heir|8|1[18](?!\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, repr=False)
class _Mark:
    """A mention: the number of its secret, and what part of it. `linked`: whether the part would have been found.
    `agrees`: with an article before it ("an 80-year-old"), and with a plural or possessive after it ("Collins'")."""

    entity: int
    part: tuple[int, bool] | None
    linked: tuple[bool, bool] | None
    agrees: tuple[bool | None, bool | None]


@dataclass(frozen=True, slots=True, repr=False)
class Skeleton:
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
        for mention in entity.mentions:
            marks[mention] = _Mark(number, None, None, _agrees(texts[mention.text], mention.span))
        for mention, part in entity.parts:
            words, text = parts_of(entity.secret), texts[mention.text]
            everyday = is_everyday(words[part.index]) and not after_title(text.text, mention.span.start)
            short = part.initial and is_abbreviation("".join(word[0] for word in words))
            linked = (is_telling(words[part.index]), everyday or short)
            marks[mention] = _Mark(number, (part.index, part.initial), linked, _agrees(text, mention.span))
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


def _agrees(text: TaggedText, span: Span) -> tuple[bool | None, bool | None]:
    value = text.secret(span)
    article = _ARTICLE.search(text.text, max(0, span.start - 4), span.start)
    vowel = None if article is None else _VOWEL.match(value) is not None
    return vowel, is_sibilant(value) if is_inflected(text.text, span.end) else None
