"""A prompt's substitutes, by method: values that exist, drawn so that the secret is exchangeable with them or evenly
(`dictionary`), or made up by the model (`gqs`). All secrets of a prompt are drawn together (`together`)."""

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, replace

from cloister.errors import ObfuscationRefused, TooFewCandidates
from cloister.obfuscation.candidates.vocabularies import VOCABULARIES
from cloister.obfuscation.entities import Entity
from cloister.obfuscation.goal import SamplingGoal
from cloister.obfuscation.gqs import finished
from cloister.obfuscation.index import Prf
from cloister.obfuscation.joint import Group, groups_of
from cloister.obfuscation.language_model import LanguageModel, SamplingTokenizer, TokenShapes
from cloister.obfuscation.pool_draw import Drawn, PoolDraw
from cloister.obfuscation.quantized import QuantizedSampler
from cloister.obfuscation.tags import Category, TaggedText
from cloister.obfuscation.together import SECRETS, Together
from cloister.obfuscation.variants import Substitutes

SHAPES_LIKE_TOKENS = 16  # to look at the whole vocabulary, once
BANDS = 2  # of λ+1 values: the least size of a pool, where its list has that. Values of a larger one differ more
Grouping = Callable[[Sequence[TaggedText], Sequence[Entity], Prf, int], list[Group]]


def with_lists(texts: Sequence[TaggedText], entities: Sequence[Entity], prf: Prf, wanted: int) -> list[Group]:
    return groups_of(texts, entities, prf, VOCABULARIES, wanted)


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
        if self.goal.method == "gqs":
            if not self.shapes.ready:
                yield SHAPES_LIKE_TOKENS
            quantized = QuantizedSampler(self.model, self.tokenizer, self.goal, self.prf, self.shapes)
            return replace((yield from quantized.sampling(texts, entities)), methods=("gqs",) * len(entities))
        groups = self.grouping(texts, entities, self.prf, BANDS * (self.goal.fakes + 1))
        if (unknown := next((group for group in groups if group.pool is None), None)) is not None:
            raise _unknown(entities, unknown.entities[0])
        drawn: list[tuple[tuple[int, ...], Drawn]] = []
        for first in range(0, len(groups), SECRETS):
            # A value that another secret has, really or in a variant, would be in two of the prompts.
            others = {value.casefold() for _, each in drawn for values in each.values for value in values}
            drawn.append(
                (yield from self._from_pools(texts, entities, groups[first : first + SECRETS], others.union(taken)))
            )
        fewest = min(len(each.values) for _, each in drawn) - 1
        if any(len(each.values) - 1 > fewest for _, each in drawn):
            goal = replace(self.goal, fakes=fewest, minimum=self.goal.least)
            return (yield from replace(self, goal=goal).sampling(texts, entities, taken))
        return _joined(drawn, [self.goal.method] * len(entities))

    def _from_pools(
        self, texts: Sequence[TaggedText], entities: Sequence[Entity], groups: Sequence[Group], taken: set[str]
    ) -> Generator[int, None, tuple[tuple[int, ...], Drawn]]:
        places = sorted(place for group in groups for place in group.entities)
        taken |= {entity.secret.casefold() for at, entity in enumerate(entities) if at not in places}
        if (known := next((at for at in places if entities[at].secret.casefold() in taken), None)) is not None:
            raise _taken(known)
        free = []
        for group in groups:
            pool = (values for values in group.pool or () if not any(value.casefold() in taken for value in values))
            free.append(replace(group, pool=tuple(pool)))
        model = self.model if self.goal.method == "exchangeable" else None
        by = PoolDraw(model, self.tokenizer, self.goal.fakes, self.prf)
        found = yield from Together(texts, entities, by).draw(free)
        if len(found.values) <= self.goal.least or found.believable < self.goal.believable:
            raise _too_few(entities, places, min(found.believable, len(found.values) - 1), self.goal)
        return tuple(places), found


def _joined(drawn: Sequence[tuple[tuple[int, ...], Drawn]], methods: Sequence[str]) -> Substitutes:
    """The k-th of each together: they are independent, so logarithms add up."""
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
    what = "text" if category is Category.FREE else category
    message = f"Secret {number + 1} is no {what} that the lists of real values have. Among real ones it would show"
    hint = "Spell it as usual, mark the whole of it and nothing else, name another category, or give substitutes."
    made_up = "With the method 'gqs' a model makes substitutes up, which a reader mostly sees through."
    return TooFewCandidates(f"{message}, so nothing was sent.", span=number + 1, found=0, hint=f"{hint} {made_up}")


def _too_few(entities: Sequence[Entity], places: Sequence[int], found: int, goal: SamplingGoal) -> TooFewCandidates:
    named = ", ".join(f"{place + 1} ({entities[place].category})" for place in places)
    who = f"Secret {named} has" if len(places) == 1 else f"Secrets {named} together have"
    has = f"{who} {found} believable substitutes here; {goal.believable} are needed."
    message = f"{has} The text around tells too much, so nothing was sent."
    hint = "Mark also the words around it that give it away, leave them out, or ask for a smaller λ_min."
    return TooFewCandidates(message, span=places[0] + 1, found=found, hint=hint)
