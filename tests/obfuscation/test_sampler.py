"""Substitutes from pools: exchangeable with the real value under the model that draws them, and an alert where the text
around tells too much."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import log

import numpy as np
import pytest

from cloister.errors import ObfuscationRefused, TooFewCandidates
from cloister.obfuscation.entities import Entity
from cloister.obfuscation.goal import Method, SamplingGoal
from cloister.obfuscation.index import Prf
from cloister.obfuscation.joint import Group
from cloister.obfuscation.language_model import TokenShapes
from cloister.obfuscation.pool_draw import tempered
from cloister.obfuscation.sampler import Sampler
from cloister.obfuscation.store import MemoryStore
from cloister.obfuscation.tags import Category, TaggedText, parse_redacted
from cloister.obfuscation.variants import Variants, make_variants
from tests.obfuscation.fake_model import FAMILIES, NAMES, TOWNS, RuleModel, WordTokenizer

POOLS = {Category.NAME: NAMES, Category.PLACE: TOWNS}
TOKENIZER = WordTokenizer()


def groups(texts: Sequence[TaggedText], entities: Sequence[Entity], prf: Prf, wanted: int) -> list[Group]:
    found = []
    for at, entity in enumerate(entities):
        pool = POOLS.get(entity.category, [])
        found.append(Group((at,), tuple((value,) for value in pool) if entity.secret in pool else None))
    return found


class Believer(RuleModel):
    """Some names are much likelier than others, by the same factor after every word."""

    def __init__(self, spread: float, peak: int | None = None) -> None:
        super().__init__(TOKENIZER.vocabulary)
        likely = np.zeros(TOKENIZER.vocabulary)
        for at, name in enumerate(NAMES):
            likely[TOKENIZER.encode(" " + name)] = -spread * at
        if peak is not None:
            likely[TOKENIZER.encode(" " + NAMES[peak])] = 12.0
        self._table = np.tile(likely - log(np.exp(likely).sum()), (TOKENIZER.vocabulary + 1, 1))

    def logprob(self, tokens: Sequence[int], beginning: Sequence[int], temperature: float = 1.0) -> float:
        """Only the first counts: a value said twice is not believed twice."""
        return super().logprob(tokens[:1], beginning, temperature)


def sampler(
    model: RuleModel, method: Method = "exchangeable", fakes: int = 3, key: int = 0, least: int | None = None
) -> Sampler:
    goal = SamplingGoal(fakes, least, method=method)
    shapes = TokenShapes(TOKENIZER, TOKENIZER.vocabulary)
    return Sampler(model, TOKENIZER, goal, Prf(key.to_bytes(32, "big")), shapes, groups)


def made(text: str, by: Sampler) -> Variants:
    return make_variants([parse_redacted(text)], by)


def letter(name: str) -> str:
    return f'Dear <redacted category="name">{name}</redacted>, hello. Yours, {name}'


def guessed(method: Method, spread: float, trials: int = 100) -> float:
    """How often the model's own likeliest prompt is the real one, whose name is drawn as the model believes."""
    model, draw, right = Believer(spread), random.Random(1), 0
    odds = [float(np.exp(-spread * at)) for at in range(len(NAMES))]
    for trial in range(trials):
        [name] = draw.choices(NAMES, odds)
        found = made(letter(name), sampler(model, method, key=trial, least=1)).substitutes
        by_model = [-NAMES.index(value) for (value,) in ((name,), *found.values)]
        right += max(range(4), key=by_model.__getitem__) == 0
    return right / trials


def test_the_real_one_is_exchangeable_under_the_model_and_not_in_a_dictionary() -> None:
    """The test adversary wins where exchangeability is switched off."""
    assert guessed("dictionary", 0.25) > 0.45
    assert guessed("exchangeable", 0.25) < 0.4  # chance is 0.25; a band of four differs by its spread


def test_every_variant_says_a_value_of_the_pool_wherever_the_secret_is() -> None:
    text = letter(NAMES[4]) + f' of <redacted category="place">{TOWNS[2]}</redacted>'
    found = made(text, sampler(Believer(0.1)))
    for (said,), (name, town) in zip(found.texts[1:], found.substitutes.values, strict=True):
        assert said == f"Dear {name}, hello. Yours, {name} of {town}" and name in NAMES and town in TOWNS
    names, towns = zip(*found.substitutes.values, strict=True)
    assert len({NAMES[4], *names}) == len({TOWNS[2], *towns}) == 4
    assert found.report()["posterior_of_likeliest"] < 0.5 and found.substitutes.methods == ("exchangeable",) * 2


def test_the_posterior_is_what_another_model_s_belief_makes_of_it() -> None:
    found = made(letter(NAMES[4]), sampler(Believer(0.1))).substitutes
    assert found.posterior == pytest.approx((0.25,) * 4, abs=0.06)
    knows = [0.0, -9.0, -9.0, -9.0]
    assert found.posterior_by(knows)[0] > 0.99


def test_a_text_that_tells_the_secret_is_an_alert_with_what_to_change() -> None:
    with pytest.raises(TooFewCandidates, match=r"Secret 1 \(name\) has 0 believable") as alert:
        made(letter(NAMES[4]), sampler(Believer(0.1, peak=4)))
    assert "words around it" in str(alert.value.hint) and NAMES[4] not in str(alert.value)


def test_a_value_that_no_list_has_is_an_alert_unless_a_model_may_make_it_up() -> None:
    with pytest.raises(TooFewCandidates, match="no name that the lists") as alert:
        made(letter(FAMILIES[0]), sampler(Believer(0.1)))
    assert "'gqs'" in str(alert.value.hint) and FAMILIES[0] not in str(alert.value)
    by = sampler(RuleModel(TOKENIZER.vocabulary), "gqs", least=1)
    assert made(letter(FAMILIES[0]), by).substitutes.methods == ("gqs",)


def test_where_one_secret_has_fewer_values_all_have_as_many_and_the_posterior_is_theirs() -> None:
    text = letter(NAMES[4]) + f' of <redacted category="place">{TOWNS[2]}</redacted>'
    found = made(text, sampler(Believer(0.01), fakes=15, least=5))
    assert len(found.substitutes.values) == len(TOWNS) - 1 and sum(found.substitutes.posterior) == pytest.approx(1)


def test_no_value_stands_for_two_secrets() -> None:
    text = letter(NAMES[4]) + f' and <redacted category="name">{NAMES[5]}</redacted>'
    for key in range(20):
        names = [name for values in made(text, sampler(Believer(0.05), key=key)).substitutes.values for name in values]
        assert len({NAMES[4], NAMES[5], *names}) == 8


def test_a_secret_that_stood_in_for_another_one_is_refused() -> None:
    """Of all values in its place it alone would be one of the other's."""
    by, store = sampler(Believer(0.05)), MemoryStore()
    first = make_variants([parse_redacted(letter(NAMES[4]))], by, store, by.goal)
    [[fake], *_] = first.substitutes.values
    both = letter(NAMES[4]) + f' and <redacted category="name">{fake}</redacted>'
    with pytest.raises(ObfuscationRefused, match="made-up value of another") as refused:
        make_variants([parse_redacted(both)], by, store, by.goal)
    assert fake not in str(refused.value)


def test_the_same_key_and_prompt_draw_the_same() -> None:
    draws = [made(letter(NAMES[4]), sampler(Believer(0.1), key=key)).texts for key in (0, 0, 1, 2, 3)]
    assert draws[0] == draws[1] and len(set(draws)) > 2


def test_where_a_band_has_more_values_than_go_out_the_draw_evens_what_the_model_is_trusted() -> None:
    """Twenty names in bands of three or four, of which three go out: π_i ∝ p_i to the power of `CERTAINTY`."""
    for name in NAMES[:10]:
        found = made(letter(name), sampler(Believer(0.1), fakes=2, least=1)).substitutes
        even = found.posterior_by(tempered(found.logprobs)) == pytest.approx((1 / 3,) * 3, abs=0.004)
        assert even or len(set(found.likelihoods)) == 1, "a band of three has no draw"
    assert len(set(found.likelihoods)) > 1


def test_what_is_refused_depends_on_the_band_and_not_on_which_of_it_is_real() -> None:
    """Else who sees a value that would have been refused knows that it is not the real one."""
    bands: dict[frozenset[str], set[bool]] = {}
    for name in NAMES:
        served = made(letter(name), sampler(Believer(0.1))).substitutes
        bands.setdefault(frozenset((name, *(value for (value,) in served.values))), set())
    assert len(bands) == 5 and all(len(band) == 4 for band in bands)
    peaked = sampler(Believer(0.0, peak=0))
    for name in NAMES:
        [own] = (band for band in bands if name in band)
        try:
            sent = {name, *(value for (value,) in made(letter(name), peaked).substitutes.values)}
        except TooFewCandidates:
            sent = set()
        bands[own].add(bool(sent))
        assert NAMES[0] not in sent
    assert bands[next(band for band in bands if NAMES[0] in band)] == {False}
    assert {True} in bands.values()
