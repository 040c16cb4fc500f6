"""Secrets of one spelling, in whatever capitals, are one entity: all its mentions get one substitute."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from cloister.errors import TagsInvalid
from cloister.obfuscation.tags import Category, Span, TaggedText


@dataclass(frozen=True, slots=True)
class Mention:
    """Where an entity stands: in which text, and the characters."""

    text: int
    span: Span


@dataclass(frozen=True, slots=True)
class Entity:
    """One secret with all its mentions, the first one first. `secret` is spelt as that one is, or as it was when its
    substitutes were found (`spelt_before`)."""

    secret: str
    category: Category
    mentions: tuple[Mention, ...]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


def entities_of(texts: Sequence[TaggedText]) -> list[Entity]:
    """In the order of their first mentions. TagsInvalid where there is no word outside the secrets."""
    mentions: dict[str, list[Mention]] = {}
    for place, text in enumerate(texts):
        for span in text.spans:
            mentions.setdefault(text.secret(span).casefold(), []).append(Mention(place, span))
    if mentions and not any(character.isalnum() for text in texts for character in _outside(text)):
        raise TagsInvalid(
            "The whole prompt is one secret: there is nothing by which a substitute could be chosen.",
            hint="Mark only the words that must stay secret, or use the level 'isolated'.",
        )
    found = []
    for those in mentions.values():
        first = those[0]
        named = (one.span.category for one in those if one.span.category is not Category.FREE)
        secret = texts[first.text].secret(first.span)
        found.append(Entity(secret, next(named, Category.FREE), tuple(those)))
    return found


def spelt_before(entities: Sequence[Entity], spellings: Mapping[str, str]) -> list[Entity]:
    """The entities, each spelt as its substitutes are: mentions in other capitals get substitutes in those."""
    return [replace(one, secret=spellings.get(one.secret.casefold(), one.secret)) for one in entities]


def replaced(texts: Sequence[TaggedText], entities: Sequence[Entity], values: Sequence[str]) -> list[str]:
    """The texts with a value in place of each entity, everywhere; in capitals where a mention is."""
    by_place = {
        mention: (entity, value) for entity, value in zip(entities, values, strict=True) for mention in entity.mentions
    }
    out = []
    for place, text in enumerate(texts):
        pieces, at = [], 0
        for span in text.spans:
            entity, value = by_place[Mention(place, span)]
            pieces += [text.text[at : span.start], _cased(value, text.secret(span), entity.secret)]
            at = span.end
        out.append("".join((*pieces, text.text[at:])))
    return out


def _cased(value: str, mention: str, secret: str) -> str:
    if mention == secret:
        return value
    if mention.isupper() or mention.islower():
        return value.upper() if mention.isupper() else value.lower()
    return value.title() if secret.isupper() or secret.islower() else value


def without(texts: Sequence[TaggedText], entities: Collection[Entity]) -> list[TaggedText]:
    """The texts with a word for the category in place of these entities, which are no secrets of them any more."""
    gone = {mention: f"[{entity.category}]" for entity in entities for mention in entity.mentions}
    out = []
    for place, text in enumerate(texts):
        pieces: list[str] = []
        spans: list[Span] = []
        at = length = 0
        for span in text.spans:
            word = gone.get(Mention(place, span))
            before, shown = text.text[at : span.start], text.secret(span) if word is None else word
            start = length + len(before)
            at, length = span.end, start + len(shown)
            pieces += [before, shown]
            if word is None:
                spans.append(Span(start, length, span.category))
        out.append(TaggedText("".join((*pieces, text.text[at:])), tuple(spans)))
    return out


def _outside(text: TaggedText) -> str:
    pieces, at = [], 0
    for span in text.spans:
        pieces.append(text.text[at : span.start])
        at = span.end
    return "".join((*pieces, text.text[at:]))
