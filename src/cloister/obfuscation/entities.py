"""Every mention of a secret is one, in any text and capitals, whole or in part (`people`): all get one substitute."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cloister.errors import TagsInvalid
from cloister.obfuscation.parts import Part, cut_shared, is_everyday, key_of, outside, owners_of, parts_of
from cloister.obfuscation.people import grown, is_given_name, link_parts, part_at
from cloister.obfuscation.tags import Category, Span, TaggedText, add_spans

MAX_SECRETS = 64  # of one prompt, however often each is mentioned
MAX_GROWN = 4  # rounds in which a name grows by a word: "Thornbury", "Ann Thornbury", "Mary Ann Thornbury"


@dataclass(frozen=True, slots=True)
class Mention:
    text: int
    span: Span


@dataclass(frozen=True, slots=True, repr=False)
class Entity:
    """First mention first. `secret` is spelt as that one, or as its substitutes are (`spelt_before`)."""

    secret: str
    category: Category
    mentions: tuple[Mention, ...]
    parts: tuple[tuple[Mention, Part], ...] = ()

    def everywhere(self) -> tuple[Mention, ...]:
        return (*self.mentions, *(mention for mention, _ in self.parts))


def add_mentions(texts: Sequence[TaggedText], known: Iterable[str] = ()) -> list[TaggedText]:
    """Also of `known` secrets, and parts of names. TagsInvalid beyond `MAX_SECRETS`. Whole words only: "Ann" is not
    mentioned by "Annual". A nickname is not found. Marks that share a word are cut."""
    known = list(known)
    marked = _linked(texts, known)
    for _ in range(MAX_GROWN):
        owners = owners_of(marked, known)
        larger = _linked([grown(text, owners, is_given_name) for text in marked], known)
        if larger == marked:
            break
        marked = larger
    return marked


def _linked(texts: Sequence[TaggedText], known: Sequence[str]) -> list[TaggedText]:
    texts = cut_shared(_whole(texts, known), known)
    texts = _whole(texts, known)  # of what was cut off
    owners = owners_of(texts, known)
    return [link_parts(text, owners) for text in texts]


def _whole(texts: Sequence[TaggedText], known: Iterable[str]) -> list[TaggedText]:
    said = [key_of(text.text) for text in texts]
    earlier = (key_of(secret) for secret in known)
    secrets = {secret: Category.FREE for secret in earlier if any(secret in each for each in said)}
    owners = owners_of(texts, known)
    for text in texts:
        for number, span in enumerate(text.spans):
            secret = text.secret(span)
            if (len(secret) > 1 and not is_everyday(secret)) or part_at(text, number, owners) is None:
                secrets[key_of(secret)] = span.category
    if not secrets:
        return list(texts)
    if len(secrets) > MAX_SECRETS:
        hint = "Mark fewer, send less at once, or use the level 'isolated'."
        raise TagsInvalid(f"There are {len(secrets)} secrets; {MAX_SECRETS} can be hidden in one prompt.", hint=hint)
    words = "|".join(re.escape(secret).replace("'", "['’]") for secret in sorted(secrets, key=len, reverse=True))
    pattern = re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE)

    def more(text: str) -> Iterable[Span]:
        for found in pattern.finditer(text):
            yield Span(*found.span(), secrets.get(key_of(found[0]), Category.FREE))

    return [add_spans(text, more(text.text)) for text in texts]


def entities_of(texts: Sequence[TaggedText], known: Iterable[str] = ()) -> list[Entity]:
    """By first mention; `known` ones mentioned in part come last. TagsInvalid where no word is outside the secrets."""
    mentions: dict[str, list[Mention]] = {}
    parts: dict[str, list[tuple[Mention, Part]]] = {}
    known = list(known)
    owners = owners_of(texts, known)
    for place, text in enumerate(texts):
        for number, span in enumerate(text.spans):
            if (part := part_at(text, number, owners)) is not None:
                parts.setdefault(part.secret, []).append((Mention(place, span), part))
            else:
                mentions.setdefault(key_of(text.secret(span)), []).append(Mention(place, span))
    for key in parts.keys() - mentions.keys() - {key_of(secret) for secret in known}:  # "Thornburys" alone
        mentions[key] = [parts[key].pop(0)[0]]
    if mentions and not any(each.isalnum() for text in texts for _, piece in outside(text) for each in piece):
        message = "The whole prompt is one secret: there is nothing by which a substitute could be chosen."
        hint = "Mark only the words that must stay secret, or use the level 'isolated'."
        raise TagsInvalid(message, hint=hint)
    spelt = {key_of(secret): secret for secret in known}
    found = []
    for key in dict.fromkeys((*mentions, *parts)):
        those = mentions.get(key, [])
        secret = _said(texts, those[0]) if those else spelt[key]
        one = Entity(secret, Category.FREE, tuple(those), tuple(parts.get(key, ())))
        named = (each.span.category for each in one.everywhere() if each.span.category is not Category.FREE)
        found.append(replace(one, category=next(named, Category.FREE)))
    return found


def spelt_before(entities: Sequence[Entity], spelling: Callable[[str], str]) -> list[Entity]:
    """The entities, each spelt as its substitutes are: mentions in other capitals get substitutes in those."""
    return [replace(one, secret=spelling(one.secret)) for one in entities]


def replaced(texts: Sequence[TaggedText], entities: Sequence[Entity], values: Sequence[str]) -> list[str]:
    """In capitals where a mention is."""
    return [text.text for text in swapped(texts, entities, values)]


def swapped(texts: Sequence[TaggedText], entities: Sequence[Entity], values: Sequence[str]) -> list[TaggedText]:
    """As `replaced`, with the values marked as the secrets were."""
    shown: dict[Mention, str] = {}
    for entity, value in zip(entities, values, strict=True):
        for mention in entity.mentions:
            shown[mention] = _cased(value, _said(texts, mention), entity.secret)
        for mention, part in entity.parts:
            own, other = (parts_of(words)[part.index] for words in (entity.secret, value))
            own, other = (own[:1], other[:1]) if part.initial else (own, other)
            shown[mention] = _cased(other, _said(texts, mention), own)
    return _put(texts, shown, marked=shown)


def blanked(texts: Sequence[TaggedText], entities: Sequence[Entity], blanks: Sequence[str]) -> list[str]:
    shown = {mention: blank for entity, blank in zip(entities, blanks, strict=True) for mention in entity.everywhere()}
    return [text.text for text in _put(texts, shown, marked=())]


def without(texts: Sequence[TaggedText], entities: Collection[Entity]) -> list[TaggedText]:
    """The texts with a word for the category in place of these entities, which then are not secret."""
    gone = {mention: f"[{entity.category}]" for entity in entities for mention in entity.everywhere()}
    kept = {Mention(place, span) for place, text in enumerate(texts) for span in text.spans} - gone.keys()
    return _put(texts, gone | {mention: _said(texts, mention) for mention in kept}, marked=kept)


def _put(texts: Sequence[TaggedText], shown: Mapping[Mention, str], marked: Collection[Mention]) -> list[TaggedText]:
    out = []
    for place, text in enumerate(texts):
        pieces: list[str] = []
        spans: list[Span] = []
        at = length = 0
        for span in text.spans:
            mention = Mention(place, span)
            pieces += [text.text[at : span.start], shown[mention]]
            start = length + span.start - at
            at, length = span.end, start + len(shown[mention])
            if mention in marked:
                spans.append(Span(start, length, span.category))
        out.append(TaggedText("".join((*pieces, text.text[at:])), tuple(spans)))
    return out


def _said(texts: Sequence[TaggedText], mention: Mention) -> str:
    return texts[mention.text].secret(mention.span)


def _cased(value: str, mention: str, secret: str) -> str:
    if mention == secret:
        return value
    if mention.isupper() or mention.islower():
        return value.upper() if mention.isupper() else value.lower()
    return value.title() if secret.isupper() or secret.islower() else value
