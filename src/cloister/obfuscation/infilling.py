"""From marked texts to slots of tokens, and the prompt that asks a model to fill them in (§5.1, `Format`, {F_i}).

A secret is sampled word by word. No word, nor how one begins, is in two of the λ+1 prompts: what most had in common
would be the real one's. All of this is the same for every value of a class, or the search would differ (`gqs`).
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from cloister.errors import CloisterError, TagsInvalid
from cloister.obfuscation.entities import Entity, blanked
from cloister.obfuscation.gqs import Slot
from cloister.obfuscation.language_model import SamplingTokenizer, TokenShapes, shape_of
from cloister.obfuscation.parts import KEPT, is_telling, words_in
from cloister.obfuscation.skeleton import reads_alike, skeleton_of
from cloister.obfuscation.tags import Category, Span, TaggedText

NEAR = 160  # characters written out before a secret, and looked at beside it, at most
MAX_BRIDGE = 48
_ASK = (
    "Here is a text with blanks. Write the text again, word for word, and put something that fits into each blank.\n\n"
)


class Infilling:
    def __init__(
        self,
        tokenizer: SamplingTokenizer,
        shapes: TokenShapes,
        texts: Sequence[TaggedText],
        entities: Sequence[Entity],
    ) -> None:
        self._tokenizer, self._shapes, self._texts, self.entities = tokenizer, shapes, texts, tuple(entities)
        self._places = [_Place.of(tokenizer, texts, entity) for entity in entities]
        self._skeleton = skeleton_of(texts)
        self._words = [word for number, place in enumerate(self._places) for word in place.words(number)]
        self.before = self._beginning()  # all before the first secret
        self.beginning = [*self.before, *self._words[0].glue]
        self.slots = [self._slot(number) for number in range(len(self._words))]

    def allowed(self, number: int, value: tuple[int, ...], last: bool) -> npt.NDArray[np.bool_]:
        return self._shapes.following(self._tokenizer.decode(value), self._words[number].shape, last)

    def accept(self, number: int, value: tuple[int, ...], last: bool) -> bool:
        """Whether the value is cut into the tokens it is made of."""
        return tuple(self._tokenizer.encode(self._tokenizer.decode(value))) == value

    def stands(self, values: tuple[tuple[int, ...], ...]) -> bool:
        """If a secret ends with the last of these: whether it is cut into words and tokens as the secret is."""
        number = self._words[len(values) - 1].entity
        if len(values) < len(self._words) and self._words[len(values)].entity == number:
            return True
        return self._places[number].fits(self._tokens(number, values))

    def same_shape(self, candidate: Sequence[tuple[int, ...]]) -> bool:
        """Whether a prompt with these values would be read as this one is (`skeleton`)."""
        return reads_alike(self._texts, self.entities, self.values(candidate), self._skeleton)

    def words(self, candidate: Sequence[tuple[int, ...]]) -> frozenset[str]:
        """In small letters: no two variants may have one of these in common."""
        values = self.values(candidate)
        words = (found[0] for value in values for found in words_in(value) if is_telling(found[0]))
        return frozenset(each.casefold() for each in (*values, *words))

    def entity_of(self, slot: int) -> int:
        return self._words[slot].entity

    def target(self, number: int) -> list[int]:
        return self._places[number].target

    def values(self, candidate: Sequence[tuple[int, ...]]) -> tuple[str, ...]:
        return tuple(
            self._tokenizer.decode(self._tokens(number, candidate)).removeprefix(place.lead)
            for number, place in enumerate(self._places)
        )

    def _tokens(self, number: int, values: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        tokens: list[int] = []
        for word, value in zip(self._words, values, strict=False):
            if word.entity == number:
                tokens += (*word.glue, *value)
        return (*tokens, *self._places[number].tail)

    def _slot(self, number: int) -> Slot:
        word = self._words[number]
        bridge = word.glue if number else ()
        if number and self._words[number - 1].entity != word.entity:
            text = self._tokenizer.encode(self._bridge(word.entity))
            bridge = (*self._places[word.entity - 1].tail, *text, *word.glue)
        return Slot(word.target, bridge, word.stem)

    def _beginning(self) -> list[int]:
        blanks = [f"[{number}: {_asked(entity)}]" for number, entity in enumerate(self.entities, 1)]
        shown = "\n\n".join(blanked(self._texts, self.entities, blanks))
        written = self._written_before(0)
        try:
            asked = self._tokenizer.render_chat([{"role": "user", "content": _ASK + shown}])
        except CloisterError:  # no chat template, or one that wants something else
            asked = self._tokenizer.encode(f"{_ASK}{shown}\n\nThe text with the blanks filled in:\n\n")
        return [*asked, *self._tokenizer.encode(written)]

    def _written_before(self, number: int) -> str:
        """The words right before an entity's first mention, since the last secret or a little way back."""
        mention = self.entities[number].mentions[0]
        text = self._texts[mention.text]
        since = max((span.end for span in text.spans if span.end <= mention.span.start), default=0)
        return _tail(text.text[since : self._places[number].start])

    def _bridge(self, number: int) -> str:
        """From the last secret to this one: the text between them, or a gap and the words before this one."""
        before, mention = self.entities[number - 1].mentions[0], self.entities[number].mentions[0]
        start = self._places[number].start
        text = self._texts[mention.text]
        if before.text == mention.text:
            between = text.text[before.span.end : start]
            alone = not any(before.span.end <= span.start < mention.span.start for span in text.spans)
            if alone and len(between) <= NEAR and len(self._tokenizer.encode(between)) <= MAX_BRIDGE:
                return between
        return f"\n…\n{self._written_before(number)}"


@dataclass(frozen=True, slots=True, repr=False)
class _Word:
    entity: int
    glue: tuple[int, ...]
    target: tuple[int, ...]
    shape: str
    stem: bool


@dataclass(frozen=True, slots=True, repr=False)
class _Place:
    tokenizer: SamplingTokenizer
    secret: str
    lead: str
    start: int
    target: list[int]
    cut: list[tuple[tuple[int, ...], tuple[int, ...]]]  # its words, each after the tokens that stay
    tail: tuple[int, ...]
    first: tuple[str, str]
    others: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, tokenizer: SamplingTokenizer, texts: Sequence[TaggedText], entity: Entity) -> Self:
        mention = entity.mentions[0]
        text, span = texts[mention.text].text, mention.span
        lead = " " if text[: span.start].endswith(" ") else ""
        target = tokenizer.encode(lead + entity.secret)
        others = tuple(_beside(texts[each.text].text, each.span) for each in entity.mentions[1:4])
        secret, start = entity.secret, span.start - len(lead)
        place = cls(tokenizer, secret, lead, start, target, *words_of(tokenizer, target), _beside(text, span), others)
        if not place.in_place(target):
            hint = "Mark whole words, without the punctuation around them."
            raise TagsInvalid("A secret begins or ends within a word, or runs into what stands beside it.", hint=hint)
        return place

    def words(self, entity: int) -> list[_Word]:
        texts = [self.tokenizer.decode(word) for _, word in self.cut]
        return [
            _Word(entity, glue, word, shape_of(text), not text.strip()[:1].isdigit())
            for (glue, word), text in zip(self.cut, texts, strict=True)
        ]

    def fits(self, value: tuple[int, ...]) -> bool:
        """Whether a value is cut into tokens, and these into words, as the secret is."""
        words = self.tokenizer.decode(value)
        if tuple(self.tokenizer.encode(words)) != value or not words.startswith(self.lead):
            return False
        cut, tail = words_of(self.tokenizer, value)
        same = [(glue, len(word)) for glue, word in cut] == [(glue, len(word)) for glue, word in self.cut]
        return same and tail == self.tail and self.in_place(value)

    def in_place(self, value: Sequence[int]) -> bool:
        """Whether the tokenizer cuts the text around the value as if each part stood alone."""
        words = self.tokenizer.decode(value)
        encode = self.tokenizer.encode
        before, after = self.first
        before = before[: len(before) - len(self.lead)]
        if encode(before + words + after) != [*encode(before), *value, *encode(after)]:
            return False
        bare = words.removeprefix(self.lead)
        for before, after in self.others:
            lead = " " if before.endswith(" ") else ""
            before = before[: len(before) - len(lead)]
            if encode(before + lead + bare + after) != [*encode(before), *encode(lead + bare), *encode(after)]:
                return False
        return True


def words_of(
    tokenizer: SamplingTokenizer, target: Sequence[int]
) -> tuple[list[tuple[tuple[int, ...], tuple[int, ...]]], tuple[int, ...]]:
    """A secret's words, each after the tokens that stay before it, and what stays after the last. At least one word."""
    runs: list[tuple[bool, list[int]]] = []
    for token in target:
        text = tokenizer.decode((token,))
        sign = all(each.isspace() or unicodedata.category(each)[0] == "P" or each in "+$<=>^`|~" for each in text)
        if not runs or sign or runs[-1][0] or text[:1].isspace():
            runs.append((sign, []))
        runs[-1][1].append(token)
    words: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    glue: tuple[int, ...] = ()
    for sign, tokens in runs:
        if sign or tokenizer.decode(tokens).strip().casefold() in KEPT:
            glue = (*glue, *tokens)
        else:
            words.append((glue, tuple(tokens)))
            glue = ()
    return (words, glue) if words else ([((), tuple(target))], ())


def _beside(text: str, span: Span) -> tuple[str, str]:
    """A few words before and after: how a word is cut does not depend on those farther away."""
    return _tail(text[: span.start], 40), _head(text[span.end :], 40)


def _tail(text: str, most: int = NEAR) -> str:
    if len(text) <= most:
        return text
    cut = text[-most:]
    return cut[cut.find(" ") :] if " " in cut.rstrip(" ") else cut


def _head(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    cut = text[:most]
    return cut[: cut.rfind(" ")] if " " in cut.lstrip(" ") else cut


def _asked(entity: Entity) -> str:
    return "blank" if entity.category is Category.FREE else str(entity.category)
