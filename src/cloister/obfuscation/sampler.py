"""A prompt's substitutes, by method: values that exist, drawn so that the secret is exchangeable with them or evenly
(`dictionary`), or made up by the model (`gqs`, and what is marked `free`). Secrets without relation are drawn apart,
the others blanked; those that must agree are drawn together."""

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, replace

from cloister.errors import ObfuscationRefused, TooFewCandidates
from cloister.obfuscation.candidates.vocabularies import VOCABULARIES
from cloister.obfuscation.entities import Entity, entities_of, without
from cloister.obfuscation.goal import SamplingGoal
from cloister.obfuscation.gqs import finished
from cloister.obfuscation.index import Prf
from cloister.obfuscation.joint import Group, groups_of
from cloister.obfuscation.language_model import LanguageModel, SamplingTokenizer, TokenShapes
from cloister.obfuscation.pool_draw import Drawn, PoolDraw
from cloister.obfuscation.quantized import QuantizedSampler
from cloister.obfuscation.tags import Category, TaggedText
from cloister.obfuscation.variants import Substitutes

SHAPES_LIKE_TOKENS = 16  # to look at the whole vocabulary, once


Grouping = Callable[[Sequence[TaggedText], Sequence[Entity], Prf], list[Group]]


def with_lists(texts: Sequence[TaggedText], entities: Sequence[Entity], prf: Prf) -> list[Group]:
    return groups_of(texts, entities, prf, VOCABULARIES)


@dataclass(frozen=True, slots=True)
class Sampler:
    """`prf` draws which candidates are taken."""

    model: LanguageModel
    tokenizer: SamplingTokenizer
    goal: SamplingGoal
    prf: Prf
    shapes: TokenShapes
    grouping: Grouping = with_lists

    def substitutes(
        self, texts: Sequence[TaggedText], entities: Sequence[Entity], taken: Collection[str] = ()
    ) -> Substitutes:
        return finished(self.sampling(texts, entities, taken))

    def sampling(
        self, texts: Sequence[TaggedText], entities: Sequence[Entity], taken: Collection[str] = ()
    ) -> Generator[int, None, Substitutes]:
        """A piece at a time."""
        groups = [] if self.goal.method == "gqs" else self.grouping(texts, entities, self.prf)
        for group in groups:
            if group.pool is None and any(entities[at].category is not Category.FREE for at in group.entities):
                raise _unknown(entities, group.entities[0])
        pooled = {at for group in groups if group.pool is not None for at in group.entities}
        drawn: list[tuple[tuple[int, ...], Drawn]] = []
        if made_up := tuple(at for at in range(len(entities)) if at not in pooled):
            drawn.append((made_up, (yield from self._made_up(texts, entities, made_up))))
        for group in groups:
            if group.pool is not None:
                # A value that another secret has, really or in a variant, would be in two of the prompts.
                others = {value.casefold() for _, each in drawn for values in each.values for value in values}
                found = yield from self._from_pool(texts, entities, group, others.union(taken))
                drawn.append((group.entities, found))
        fewest = min(len(each.values) for _, each in drawn) - 1
        if any(len(each.values) - 1 > fewest for _, each in drawn):
            goal = replace(self.goal, fakes=fewest, minimum=self.goal.least)
            return (yield from replace(self, goal=goal).sampling(texts, entities, taken))
        methods = [self.goal.method if at in pooled else "gqs" for at in range(len(entities))]
        return _joined(drawn, methods)

    def _made_up(
        self, texts: Sequence[TaggedText], entities: Sequence[Entity], those: tuple[int, ...]
    ) -> Generator[int, None, Drawn]:
        texts, asked = _alone(texts, entities, those)
        if not self.shapes.ready:
            yield SHAPES_LIKE_TOKENS
        quantized = QuantizedSampler(self.model, self.tokenizer, self.goal, self.prf, self.shapes)
        found = yield from quantized.sampling(texts, asked)
        real = tuple(entity.secret for entity in asked)
        return Drawn((real, *found.values), found.logprobs, found.likelihoods)

    def _from_pool(
        self,
        texts: Sequence[TaggedText],
        entities: Sequence[Entity],
        group: Group,
        taken: set[str],
    ) -> Generator[int, None, Drawn]:
        texts, asked = _alone(texts, entities, group.entities)
        taken |= {entity.secret.casefold() for at, entity in enumerate(entities) if at not in group.entities}
        if any(entity.secret.casefold() in taken for entity in asked):
            raise _taken(group.entities[0])
        pool = [values for values in group.pool or () if not any(value.casefold() in taken for value in values)]
        model = self.model if self.goal.method == "exchangeable" else None
        found = yield from PoolDraw(model, self.tokenizer, self.goal.fakes, self.prf).draw(texts, asked, pool)
        if len(found.values) <= self.goal.least or found.believable < self.goal.believable:
            raise _too_few(entities, group.entities[0], min(found.believable, len(found.values) - 1), self.goal)
        return found


def _alone(
    texts: Sequence[TaggedText], entities: Sequence[Entity], those: Sequence[int]
) -> tuple[list[TaggedText], list[Entity]]:
    """The texts with these entities alone marked, all others blanked."""
    others = [entity for at, entity in enumerate(entities) if at not in those]
    left = without(texts, others) if others else list(texts)
    return left, entities_of(left) if others else list(entities)


def _joined(drawn: Sequence[tuple[tuple[int, ...], Drawn]], methods: Sequence[str]) -> Substitutes:
    """The k-th of each group together: groups are independent, so logarithms add up."""
    columns: dict[int, list[str]] = {}
    for places, each in drawn:
        columns |= {place: [values[at] for values in each.values] for at, place in enumerate(places)}
    _, *fakes = zip(*(columns[place] for place in range(len(methods))), strict=True)
    logprobs, likelihoods = (
        tuple(map(sum, zip(*those, strict=True)))
        for those in ([each.logprobs for _, each in drawn], [each.likelihoods for _, each in drawn])
    )
    return Substitutes(tuple(fakes), logprobs, likelihoods, tuple(methods))


def _taken(number: int) -> ObfuscationRefused:
    """Its fakes avoid the others' values and it does not: of all its values it alone would be among them."""
    message = f"Secret {number + 1} is a made-up value of another secret of this prompt, drawn earlier."
    return ObfuscationRefused(message, hint="Say them in separate prompts, or begin a new session or store.")


def _unknown(entities: Sequence[Entity], number: int) -> TooFewCandidates:
    category = entities[number].category
    message = f"Secret {number + 1} is no {category} that the lists of real values have. Among real ones it would show"
    hint = "Spell it as usual, mark the whole of it and nothing else, name another category, or give substitutes."
    free = "With the category 'free' a model makes substitutes up, which a reader often sees through."
    return TooFewCandidates(f"{message}, so nothing was sent.", span=number + 1, found=0, hint=f"{hint} {free}")


def _too_few(entities: Sequence[Entity], number: int, found: int, goal: SamplingGoal) -> TooFewCandidates:
    category = entities[number].category
    has = f"Secret {number + 1} ({category}) has {found} believable substitutes here; {goal.believable} are needed."
    message = f"{has} The text around it tells too much, so nothing was sent."
    hint = "Mark also the words around it that give it away, leave them out, or ask for a smaller λ_min."
    return TooFewCandidates(message, span=number + 1, found=found, hint=hint)
