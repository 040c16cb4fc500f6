"""Secrets hidden together: each combination that goes out would have gone out with the same others."""

from __future__ import annotations

import itertools
import random
from collections.abc import Generator, Sequence
from math import exp

import pytest

from cloister.obfuscation.entities import Entity, entities_of
from cloister.obfuscation.goal import SamplingGoal
from cloister.obfuscation.gqs import finished
from cloister.obfuscation.index import Prf
from cloister.obfuscation.joint import Group, Values
from cloister.obfuscation.language_model import TokenShapes
from cloister.obfuscation.pool_draw import Drawn, PoolDraw
from cloister.obfuscation.sampler import Sampler
from cloister.obfuscation.tags import TaggedText, parse_redacted
from cloister.obfuscation.together import MOST, Together, class_of, part_of
from cloister.obfuscation.variants import make_variants
from cloister_bench.obfuscation.adversaries import right
from tests.obfuscation.fake_model import NAMES, TOWNS, RuleModel
from tests.obfuscation.test_sampler import TOKENIZER, groups

LAMBDA = 3
PAIRS = list(itertools.product(NAMES, TOWNS))


class Neighbours(RuleModel):
    """A name lives in the town of its number, less likely in one farther away. The last name and town count."""

    def __init__(self) -> None:
        super().__init__(TOKENIZER.vocabulary)
        self.scored = 0

    def belief(self, name: str, town: str) -> float:
        return -0.35 * abs(NAMES.index(name) * len(TOWNS) // len(NAMES) - TOWNS.index(town))

    def likelihoods(self, beginning: Sequence[int], rows: Sequence[Sequence[int]]) -> Generator[int, None, list[float]]:
        yield 1
        self.scored += len(rows)
        texts = [TOKENIZER.decode([*beginning, *row]).split() for row in rows]
        said = [([w for w in text if w in NAMES], [w for w in text if w in TOWNS]) for text in texts]
        return [self.belief(names[-1], towns[-1]) if names and towns else 0.0 for names, towns in said]


class Apart(Together):
    """The draw as it was: each secret without the others, in an order of its own."""

    def draw(self, groups: Sequence[Group]) -> Generator[int, None, Drawn]:
        columns = []
        for group in groups:
            one = yield from Together(self.texts, self.entities, self.by).draw([group])
            columns.append([value for (value,) in one.values])
        none = (0.0,) * len(columns[0])
        return Drawn(tuple(zip(*columns, strict=True)), none, none)


def prompt(values: Values) -> str:
    name, town = values
    return f'<redacted category="name">{name}</redacted> of <redacted category="place">{town}</redacted> writes'


def sent(values: Values, key: int, draw: type[Together] = Together) -> tuple[Values, ...]:
    """The real one first."""
    model, goal = Neighbours(), SamplingGoal(LAMBDA, 1)
    shapes = TokenShapes(TOKENIZER, TOKENIZER.vocabulary)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cloister.obfuscation.sampler.Together", draw)
        by = Sampler(model, TOKENIZER, goal, Prf(key.to_bytes(32, "big")), shapes, groups)
        found = make_variants([parse_redacted(prompt(values))], by)
    assert model.scored <= MOST + 200
    return values, *found.substitutes.values


def test_every_combination_that_goes_out_would_have_been_sent_with_the_same_others() -> None:
    """The adversary runs the sampler again, with the key, for each: it finds the same bands, and the same sets where a
    band has no more values than go out."""
    same = 0
    for key, real in enumerate(random.Random(3).sample(PAIRS, 6)):
        made = sent(real, key)
        again = [frozenset(sent(values, key)) for values in made]
        same += len({*again}) == 1
        columns = list(zip(*made, strict=True))
        assert all(len({*column}) == LAMBDA + 1 for column in columns), "no value is in two"
    assert same > 3


def test_the_pool_of_combinations_is_the_same_for_each_of_its_members() -> None:
    first, second = [(name,) for name in NAMES], [(town,) for town in TOWNS]
    for most in (0, 20, 70, 1000):
        for key in range(4):
            prf = Prf(key.to_bytes(32, "big"))
            seen: dict[tuple[Values, Values], None] = {}
            for one, other in itertools.product(first, second):
                if (one, other) in seen:
                    continue
                found = class_of(first, second, one, other, most, prf)
                assert (one, other) in found and not seen.keys() & {*found}
                seen |= dict.fromkeys(found)
                for pair in found[:3]:
                    assert class_of(first, second, *pair, most, prf) == found
            assert len(seen) == len(first) * len(second)


def test_a_part_of_a_pool_is_the_same_for_each_of_its_values() -> None:
    pool, prf = [(name,) for name in NAMES], Prf(bytes(32))
    parts = {tuple(part_of(pool, real, 7, prf)) for real in pool}
    assert sorted(value for part in parts for value in part) == sorted(pool), "each is in one"
    assert all(len(part) <= 7 for part in parts) and all(real in part_of(pool, real, 7, prf) for real in pool)
    assert part_of(pool, pool[0], 99, prf) == pool
    assert parts != {tuple(part_of(pool, real, 7, Prf(bytes([1]) * 32))) for real in pool}, "a key makes them"


def guessed(draw: type[Together], trials: int = 60) -> float:
    """How often the model's likeliest combination is the real one, which is drawn as the model believes."""
    chance, model, hits = random.Random(1), Neighbours(), []
    odds = [exp(4 * model.belief(*pair)) for pair in PAIRS]
    for trial in range(trials):
        [real] = chance.choices(PAIRS, odds)
        hits.append(right([model.belief(*values) for values in sent(real, trial, draw)]))
    return sum(hits) / trials


def test_what_secrets_tell_of_each_other_does_not_show_which_is_real() -> None:
    """The control: drawn apart, the only combination that fits together is the real one."""
    found = guessed(Apart), guessed(Together)
    assert found[0] > 0.45 and found[1] < 0.35, "chance is 0.25"


def test_many_secrets_are_hidden_and_few_combinations_are_scored() -> None:
    words = [NAMES[at] for at in range(0, 18, 2)]
    text = " and ".join(f'<redacted category="name">{name}</redacted>' for name in words)

    def grouped(texts: Sequence[TaggedText], entities: Sequence[Entity], prf: Prf, wanted: int) -> list[Group]:
        pools = {
            at: tuple((f"{name}{letter}",) for letter in ["", *"abcdefghijklmno"]) for at, name in enumerate(words)
        }
        return [Group(one.entities, pools[one.entities[0]]) for one in groups(texts, entities, prf, wanted)]

    by = Sampler(
        Neighbours(),
        TOKENIZER,
        SamplingGoal(LAMBDA, 1),
        Prf(bytes(32)),
        TokenShapes(TOKENIZER, TOKENIZER.vocabulary),
        grouped,
    )
    found = make_variants([parse_redacted(text)], by)
    values = [value for row in found.substitutes.values for value in row]
    assert len(found.entities) == 9 and len({*values, *words}) == 9 * (LAMBDA + 1)


def test_a_draw_without_a_model_is_even_and_apart() -> None:
    text = parse_redacted(prompt(PAIRS[7]))
    seen = set[Values]()
    for key in range(30):
        prf = Prf(key.to_bytes(32, "big"))
        entities = entities_of([text])
        by = Together([text], entities, PoolDraw(None, TOKENIZER, LAMBDA, prf))
        drawn = finished(by.draw(groups([text], entities, prf, 0)))
        assert all(len({*column}) == LAMBDA + 1 for column in zip(*drawn.values, strict=True))
        seen.update(drawn.values[1:])
    assert len(seen) > 60
