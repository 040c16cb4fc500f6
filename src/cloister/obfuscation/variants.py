"""λ+1 texts of which one is real, with substitutes that are sampled (`sampler`) or given (§3.3, offloaded sampling).
Given ones are checked for their shape alone."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol

from cloister.errors import ObfuscationRefused, TagsInvalid
from cloister.obfuscation.entities import Entity, add_mentions, entities_of, replaced, spelt_before, without
from cloister.obfuscation.parts import owners_of, parts_of, refuse_parts
from cloister.obfuscation.store import Kept, MemoryStore, Store
from cloister.obfuscation.tags import TaggedText

MAX_FAKES = 512
MAX_WORD_CHARACTERS = 512


@dataclass(frozen=True, slots=True, repr=False)
class Substitutes:
    """None is real. `logprobs` by the sampling model, and `likelihoods`, ln P(these were drawn | one is real) up to a
    common term, have the real one first; both are empty for given and kept ones. `methods`: of each secret; `kept`: how
    many secrets had theirs before."""

    values: tuple[tuple[str, ...], ...]
    logprobs: tuple[float, ...] = ()
    likelihoods: tuple[float, ...] = ()
    methods: tuple[str, ...] = ()
    kept: int = 0

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
    def substitutes(
        self, texts: Sequence[TaggedText], entities: Sequence[Entity], taken: Collection[str] = ()
    ) -> Substitutes:
        """`taken`: values of the prompt's other secrets, in small letters. In two variants they would be none's own."""


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
            "kept": found.kept,
            "secrets": [
                {"category": str(one.category), "mentions": len(one.everywhere()), "method": method}
                for one, method in zip(self.entities, found.methods or repeat("given"), strict=False)
            ],
        }


class Goal(Protocol):
    """λ, λ_min, and the method that draws."""

    @property
    def fakes(self) -> int: ...
    @property
    def least(self) -> int: ...
    @property
    def method(self) -> str: ...


class AsGiven:
    """However many there are, of unknown origin."""

    fakes, least, method = MAX_FAKES, 1, "given"


@dataclass(frozen=True, slots=True, repr=False)
class Missing:
    """The entities that have no substitutes yet, in texts without the others, and values that the others have."""

    texts: Sequence[TaggedText]
    entities: Sequence[Entity]
    taken: frozenset[str]


def missing(marked: Sequence[TaggedText], entities: Sequence[Entity], store: Store, goal: Goal) -> Missing:
    """A smaller set stays as it is: ObfuscationRefused if it has fewer than λ_min."""
    kept = {entity: one for entity in entities if (one := store.find(entity.secret)) is not None}
    _refuse_fewer(list(kept.values()), goal)
    store.refuse_more(len(entities) - len(kept))
    texts = without(marked, kept) if kept else marked
    asked = entities_of(texts) if len(kept) < len(entities) else []
    values = {value.casefold() for entity, one in kept.items() for value in (entity.secret, *one.values)}
    return Missing(texts, asked, frozenset(values))


def with_kept(
    entities: Sequence[Entity], drawn_for: Sequence[Entity], drawn: Substitutes, store: Store, goal: Goal
) -> Substitutes:
    """Keeps what was drawn. Another process may have been faster: what the store says goes out."""
    if drawn_for:
        check_shape(drawn.values, drawn_for)
        methods = drawn.methods or [goal.method] * len(drawn_for)
        columns = zip(drawn_for, zip(*drawn.values, strict=True), methods, strict=True)
        store.keep({entity.secret: Kept(values=own, method=method) for entity, own, method in columns})
    found = [store.find(entity.secret) for entity in entities]
    _refuse_fewer(found, goal)
    count = min(goal.fakes, *(len(one.values) for one in found if one))
    values = tuple(zip(*(one.values[:count] for one in found if one), strict=True))
    if values == drawn.values:
        return drawn
    methods = tuple(one.method for one in found if one)
    return Substitutes(values, methods=methods, kept=len(entities) - len(drawn_for))


def _refuse_fewer(kept: Sequence[Kept | None], goal: Goal) -> None:
    count = min((len(one.values) for one in kept if one is not None), default=goal.fakes)
    if count < goal.least:
        message = f"A secret went among {count} others before, and may not go among more now."
        hint = f"Ask for {count} fakes, or at least {count} (λ_min). A new set shares only the real value with the old."
        raise ObfuscationRefused(message, hint=hint)


def make_variants(
    texts: Sequence[TaggedText], by: Substituting, store: Store | None = None, goal: Goal | None = None
) -> Variants:
    """Without a secret there is one, the real one."""
    store = store or MemoryStore()
    known = store.recall(texts)
    marked = add_mentions(texts, known)
    entities = entities_of(marked, known)
    real = tuple(text.text for text in marked)
    if not entities:
        return Variants((real,), (), Substitutes(()))
    refuse_parts(marked, owners_of(marked, known))
    goal = goal or AsGiven()
    new = missing(marked, entities, store, goal)
    drawn = by.substitutes(new.texts, new.entities, new.taken) if new.entities else Substitutes(())
    found = with_kept(entities, new.entities, drawn, store, goal)
    spelt = spelt_before(entities, store.spelling)
    made = tuple(tuple(replaced(marked, spelt, values)) for values in found.values)
    return Variants((real, *made), tuple(entities), found)


class GivenSubstitutes:
    """For each entity, in order, one value for each variant."""

    def __init__(self, values: Sequence[Sequence[str]]) -> None:
        self._values = tuple(tuple(variant) for variant in values)

    def substitutes(
        self, texts: Sequence[TaggedText], entities: Sequence[Entity], taken: Collection[str] = ()
    ) -> Substitutes:
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
