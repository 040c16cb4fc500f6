"""λ+1 texts of which one is real, with substitutes that are sampled (`sampler`) or given (§3.3, offloaded sampling).
Given ones are checked for their shape alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol

from cloister.errors import TagsInvalid
from cloister.obfuscation.entities import Entity, add_mentions, entities_of, replaced
from cloister.obfuscation.parts import owners_of, parts_of, refuse_parts
from cloister.obfuscation.tags import TaggedText

MAX_FAKES = 512
MAX_WORD_CHARACTERS = 512


@dataclass(frozen=True, slots=True, repr=False)
class Substitutes:
    """None is real. `logprobs` by the sampling model, and `likelihoods`, ln P(these were drawn | one is real) up to a
    common term, have the real one first; both are empty for substitutes given by hand. `methods`: of each secret."""

    values: tuple[tuple[str, ...], ...]
    logprobs: tuple[float, ...] = ()
    likelihoods: tuple[float, ...] = ()
    methods: tuple[str, ...] = ()

    @property
    def posterior(self) -> tuple[float, ...]:
        """That each is the real one, the real one first, for an adversary with the sampling model."""
        return self.posterior_by(self.logprobs)

    def posterior_by(self, prior: Sequence[float]) -> tuple[float, ...]:
        """For one with any other model's log-probabilities of the λ+1 prompts."""
        return tuple(posterior(prior, self.likelihoods)) if self.likelihoods else ()


def posterior(prior: Sequence[float], likelihoods: Sequence[float]) -> list[float]:
    """Bayes' rule: both are logarithms, up to a term that all have."""
    logs = [believed + likely for believed, likely in zip(prior, likelihoods, strict=True)]
    odds = [math.exp(each - max(logs)) for each in logs]
    return [each / sum(odds) for each in odds]


class Substituting(Protocol):
    def substitutes(self, texts: Sequence[TaggedText], entities: Sequence[Entity]) -> Substitutes: ...


@dataclass(frozen=True, slots=True, repr=False)
class Variants:
    """The first is the real one. `entities` are the secrets they differ in."""

    texts: tuple[tuple[str, ...], ...]
    entities: tuple[Entity, ...]
    substitutes: Substitutes

    def __len__(self) -> int:
        return len(self.texts)

    def report(self) -> dict[str, Any]:
        found = self.substitutes
        return {
            "lambda": len(found.values),
            "posterior_of_likeliest": max(found.posterior, default=None),
            "posterior_of_real": found.posterior[0] if found.posterior else None,
            "secrets": [
                {"category": str(one.category), "mentions": len(one.everywhere()), "method": method}
                for one, method in zip(self.entities, found.methods or repeat("given"), strict=False)
            ],
        }


def make_variants(texts: Sequence[TaggedText], by: Substituting) -> Variants:
    """Without a secret there is one, the real one."""
    marked = add_mentions(texts)
    entities = entities_of(marked)
    real = tuple(text.text for text in marked)
    if not entities:
        return Variants((real,), (), Substitutes(()))
    refuse_parts(marked, owners_of(marked))
    found = by.substitutes(marked, entities)
    check_shape(found.values, entities)
    made = tuple(tuple(replaced(marked, entities, values)) for values in found.values)
    return Variants((real, *made), tuple(entities), found)


class GivenSubstitutes:
    """For each entity, in order, one value for each variant."""

    def __init__(self, values: Sequence[Sequence[str]]) -> None:
        self._values = tuple(tuple(variant) for variant in values)

    def substitutes(self, texts: Sequence[TaggedText], entities: Sequence[Entity]) -> Substitutes:
        return Substitutes(self._values)


def check_shape(values: Sequence[Sequence[str]], entities: Sequence[Entity]) -> None:
    """A value for each secret in each variant; each a short text without tags, no value twice, none the secret."""
    if not 1 <= len(values) <= MAX_FAKES:
        raise TagsInvalid(f"There must be 1 to {MAX_FAKES} variants.", hint="Give fewer, or some.")
    if any(len(variant) != len(entities) for variant in values):
        message = f"Every variant needs a substitute for each of the {len(entities)} secrets, in their order."
        hint = "Count every spelling once: mentions of one secret share a substitute."
        raise TagsInvalid(message, hint=hint)
    for number, entity in enumerate(entities, 1):
        column = [variant[number - 1] for variant in values]
        if not all(isinstance(value, str) and _is_short_text(value) for value in column):
            hint = f"Give 1 to {MAX_WORD_CHARACTERS} printable characters, without tags or spaces around them."
            raise TagsInvalid(f"A substitute for secret {number} is empty, too long or no plain text.", hint=hint)
        if len({value.casefold() for value in (*column, entity.secret)}) != len(column) + 1:
            hint = "The one value that is nowhere repeated would be the real one: give each once."
            raise TagsInvalid(f"A substitute for secret {number} comes twice, or is the secret itself.", hint=hint)
        words = len(parts_of(entity.secret))
        if entity.parts and any(len(parts_of(value)) != words for value in column):
            message = f"Parts of secret {number} stand alone, and a substitute for it has not {words} words as it has."
            hint = "Give substitutes of as many words, titles and words like “of” aside."
            raise TagsInvalid(message, hint=hint)


def _is_short_text(value: str) -> bool:
    if not 0 < len(value) <= MAX_WORD_CHARACTERS or value != value.strip():
        return False
    tagged = "<redacted" in value or "</redacted" in value
    return not tagged and all(each.isprintable() or each in "\n\t" for each in value)
