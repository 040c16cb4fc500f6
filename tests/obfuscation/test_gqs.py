"""Greedy Quantized Sampling (Algorithm 1) finds exactly what stands in the bins, and nothing outside the bound."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import PromptTooLong, SetupError
from cloister.obfuscation.gqs import Slot, by_turns, sample
from cloister.obfuscation.quantization import Keep, Quantization
from tests.examples import examples
from tests.obfuscation.fake_model import RuleModel

VOCABULARY = 12
BEGINNING = (3, 1)


class Anything:
    """All tokens but one may stand anywhere; a whole value is not the secret."""

    def __init__(self, slots: list[Slot]) -> None:
        self._slots = slots

    def allowed(self, number: int, value: tuple[int, ...], last: bool) -> npt.NDArray[np.bool_]:
        mask = np.ones(VOCABULARY, dtype=np.bool_)
        mask[0] = False
        return mask

    def accept(self, number: int, value: tuple[int, ...], last: bool) -> bool:
        slot = self._slots[number]
        return not (slot.stem and value[0] == slot.target[0]) and (not last or value != slot.target)

    def stands(self, values: tuple[tuple[int, ...], ...]) -> bool:
        return True


def by_hand(model: RuleModel, target: tuple[int, ...], by: Quantization) -> set[tuple[int, ...]]:
    """Every sequence whose tokens are each in the reference's bin: Algorithm 1 without λ_max, line by line."""
    width = by.epsilon / len(target)
    p = [[math.exp(model.logprob((x,), (last,))) for x in range(VOCABULARY)] for last in range(VOCABULARY)]
    found: set[tuple[int, ...]] = {()}
    for place, token in enumerate(target):
        number = math.floor(p[(*BEGINNING, *target[:place])[-1]][token] / width)
        found = {
            (*before, x)
            for before in found
            for x in range(1, VOCABULARY)
            if number * width < p[(*BEGINNING, *before)[-1]][x] <= (number + 1) * width
        }
    return found - {target}


@pytest.mark.parametrize("keep", ["likeliest", "nearest", "around"])
@pytest.mark.parametrize(("target", "epsilon"), [((4,), 0.1), ((4, 7), 0.1), ((2, 9, 5), 0.2)])
def test_with_room_for_all_it_finds_what_the_algorithm_says(target: tuple[int, ...], epsilon: float, keep: str) -> None:
    model = RuleModel(VOCABULARY, seed=len(target))
    by = Quantization(epsilon, lambda_max=VOCABULARY**3, keep=keep, widen=False)  # type: ignore[arg-type]
    slots = [Slot(target)]
    found = sample(model, BEGINNING, slots, by, fitting=Anything(slots))
    assert {one.values[0] for one in found.candidates} == by_hand(model, target, by)
    assert found.reference == pytest.approx(model.logprob(target, BEGINNING), abs=1e-4)
    assert found.found == (len(found.candidates),)


@given(
    st.lists(st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=4), min_size=1, max_size=3),
    st.sampled_from([0.02, 0.1, 0.5, 1.0]),
    st.sampled_from(["absolute", "relative"]),
    st.sampled_from(["likeliest", "nearest", "around"]),
    st.integers(1, 40),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.integers(0, 5),
    st.booleans(),
)
@examples(25)
def test_theorem_5_1_holds_for_every_sample(
    targets: list[list[int]],
    epsilon: float,
    distance: str,
    keep: str,
    most: int,
    temperature: float,
    seed: int,
    widen: bool,
) -> None:
    """|P(fake) − P(real)| < ε for all secrets together, recomputed from the model; never a secret, never twice."""
    model = RuleModel(VOCABULARY, seed)
    by = Quantization(epsilon, most, temperature, distance, keep, widen)  # type: ignore[arg-type]
    slots = [Slot(tuple(target), (5, 5) if number else ()) for number, target in enumerate(targets)]
    found = sample(model, BEGINNING, slots, by, fitting=Anything(slots), lineages=8)

    def whole(values: tuple[tuple[int, ...], ...]) -> float:
        total, before = 0.0, BEGINNING
        for slot, value in zip(slots, values, strict=True):
            before = (*before, *slot.bridge)
            total += model.logprob(value, before, temperature)
            before = (*before, *value)
        return total

    real = whole(tuple(slot.target for slot in slots))
    assert len(found.candidates) <= most
    assert len({one.values for one in found.candidates}) == len(found.candidates)
    for one in found.candidates:
        fake = whole(one.values)
        assert one.logprob == pytest.approx(fake, abs=1e-3)
        gap = abs(fake - real) if distance == "relative" else abs(math.exp(fake) - math.exp(real))
        assert gap < epsilon + 1e-5
        assert all(value != slot.target for value, slot in zip(one.values, slots, strict=True))
        assert all(0 not in value for value in one.values)
    if len(slots) > 1:
        for column in zip(*(one.values for one in found.candidates), strict=True):
            assert len(set(column)) == len(column), "a value that comes once among values that repeat is the real one"


def test_a_sample_outside_the_bound_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should the bins ever be wrong, the check of the bound still holds."""
    monkeypatch.setattr(Quantization, "bin", lambda self, reference, tokens: (-math.inf, 0.0))
    model, slots = RuleModel(VOCABULARY, 2), [Slot((4,))]
    by = Quantization(0.02, lambda_max=100)
    found = sample(model, BEGINNING, slots, by, fitting=Anything(slots))
    probabilities = [abs(math.exp(one.logprob) - math.exp(found.reference)) for one in found.candidates]
    assert found.found[0] > len(found.candidates) and all(gap < 0.02 for gap in probabilities)


def test_a_long_secret_finds_substitutes_beyond_its_bins_and_the_bound_holds() -> None:
    model, slots = RuleModel(VOCABULARY, 2), [Slot((3, 8, 2, 9, 5, 7))]
    strict = sample(model, BEGINNING, slots, Quantization(0.02, 16, widen=False), fitting=Anything(slots))
    wider = sample(model, BEGINNING, slots, Quantization(0.02, 16), fitting=Anything(slots))
    assert len(strict.candidates) < 3 and len(wider.candidates) == 16
    assert all(abs(math.exp(one.logprob) - math.exp(wider.reference)) < 0.02 for one in wider.candidates)


@pytest.mark.parametrize("keep", ["likeliest", "nearest"])
def test_a_bin_that_holds_enough_is_not_left(keep: str) -> None:
    model, slots = RuleModel(VOCABULARY, 1), [Slot((4,))]
    inside = sample(model, BEGINNING, slots, Quantization(0.1, 100, widen=False), fitting=Anything(slots)).candidates
    most = len(inside) - 1
    assert most > 1
    by = Quantization(0.1, most, keep=keep)  # type: ignore[arg-type]
    some = sample(model, BEGINNING, slots, by, fitting=Anything(slots)).candidates
    assert len(some) == most and set(some) < set(inside)
    assert set(inside) <= set(
        sample(model, BEGINNING, slots, Quantization(0.1, 100), fitting=Anything(slots)).candidates
    )


@pytest.mark.parametrize("seed", range(4))
def test_no_two_candidates_begin_alike_where_stems_count(seed: int) -> None:
    model = RuleModel(VOCABULARY, seed)
    slots = [Slot((4, 7, 2), stem=True), Slot((5, 1), (6,), stem=True)]
    found = sample(model, BEGINNING, slots, Quantization(1.0, 40), fitting=Anything(slots), lineages=8).candidates
    assert len(found) > 3
    for slot, column in zip(slots, zip(*(one.values for one in found), strict=True), strict=True):
        stems = [slot.target[0], *(value[0] for value in column)]
        assert len(set(stems)) == len(stems)


def test_rows_may_come_one_by_one() -> None:
    model, slots = RuleModel(VOCABULARY, 1), [Slot((4, 7, 2))]
    together = sample(model, BEGINNING, slots, Quantization(0.5, 20), fitting=Anything(slots))
    model.batch = 1
    assert sample(model, BEGINNING, slots, Quantization(0.5, 20), fitting=Anything(slots)) == together


def test_the_likeliest_or_the_nearest_are_kept() -> None:
    model, slots = RuleModel(VOCABULARY, 1), [Slot((4, 7))]
    every = sample(model, BEGINNING, slots, Quantization(1.0, 10_000), fitting=Anything(slots))
    likeliest = sample(model, BEGINNING, slots, Quantization(1.0, 3, keep="likeliest"), fitting=Anything(slots))
    nearest = sample(model, BEGINNING, slots, Quantization(1.0, 3, keep="nearest"), fitting=Anything(slots))
    assert len(likeliest.candidates) == len(nearest.candidates) == 3 < len(every.candidates)
    assert sum(one.logprob for one in likeliest.candidates) > sum(one.logprob for one in nearest.candidates)

    def off(found: object) -> float:
        return max(abs(one.logprob - every.reference) for one in found.candidates)  # type: ignore[attr-defined]

    assert off(nearest) < off(likeliest)


def likely_word(model: RuleModel) -> tuple[int, ...]:
    """It begins with a token that is neither likely nor unlikely, and goes on as the model would: a rare right word."""

    def best(last: int) -> list[int]:
        return sorted(range(1, VOCABULARY), key=lambda token: -model.logprob((token,), (last,)))

    word = (best(BEGINNING[-1])[VOCABULARY // 2],)
    for _ in range(3):
        word = (*word, best(word[-1])[0])
    return word


def test_around_the_real_one_there_are_likelier_ones_too() -> None:
    """A word that is brought near at once ends below: with the nearest alone the real one is often the likeliest."""
    keeps: tuple[Keep, ...] = ("nearest", "around")
    likelier, without = dict.fromkeys(keeps, 0), dict.fromkeys(keeps, 0)
    for seed in range(24):
        model = RuleModel(VOCABULARY, seed)
        slots = [Slot(likely_word(model), stem=True)]
        for keep in keeps:
            by = Quantization(1.0, 12, keep=keep)
            found = sample(model, BEGINNING, slots, by, fitting=Anything(slots), lineages=6)
            above = sum(one.logprob > found.reference for one in found.candidates)
            likelier[keep] += above
            without[keep] += not above
    assert likelier["around"] > 1.2 * likelier["nearest"] and without["around"] < without["nearest"]


def test_a_likelier_one_is_kept_even_where_all_others_are_nearer() -> None:
    crowded = 0
    for seed in range(40):
        model = RuleModel(VOCABULARY, seed)
        logprob = {token: model.logprob((token,), BEGINNING) for token in range(1, VOCABULARY)}
        top, real, *_ = sorted(logprob, key=lambda token: -logprob[token])
        nearest = sorted(logprob, key=lambda token: abs(logprob[token] - logprob[real]))
        crowded += top not in nearest[:5]
        slots = [Slot((real,))]
        found = sample(model, BEGINNING, slots, Quantization(1.0, 2), fitting=Anything(slots)).candidates
        assert top in {one.values[0][0] for one in found} and len(found) == 2
    assert crowded > 3


def test_by_turns_one_of_either_side_comes_and_then_what_is_left() -> None:
    order = np.array([5, 3, 1, 4, 2, 0])
    likelier = np.array([False, True, False, False, False, True])  # 1 and 5
    assert by_turns(order, likelier).tolist() == [5, 3, 1, 4, 2, 0]
    assert by_turns(order[::-1], likelier).tolist() == [1, 0, 5, 2, 4, 3]
    assert by_turns(order[:0], likelier).tolist() == []


def test_a_higher_temperature_and_a_larger_epsilon_find_more() -> None:
    model, slots = RuleModel(VOCABULARY, 3), [Slot((4, 7))]

    def count(epsilon: float, temperature: float) -> int:
        by = Quantization(epsilon, 1000, temperature, widen=False)
        return len(sample(model, BEGINNING, slots, by, fitting=Anything(slots)).candidates)

    assert count(0.02, 1.0) <= count(0.1, 1.0) <= count(1.0, 1.0)
    assert count(0.02, 1.0) < count(1.0, 1.0) and count(0.05, 1.0) < count(0.05, 8.0)


def test_the_model_computes_a_row_for_each_candidate_and_one_for_the_real_text() -> None:
    model, slots = RuleModel(VOCABULARY, 1), [Slot((4, 7, 2))]
    sample(model, BEGINNING, slots, Quantization(1.0, 5), fitting=Anything(slots))
    assert model.begun == 1 and model.rows <= 1 + 2 * (5 + 1)


def test_nothing_is_sampled_beyond_the_model_s_context() -> None:
    model, slots = RuleModel(VOCABULARY, max_context=20), [Slot((4,) * 19)]
    with pytest.raises(PromptTooLong, match="21"):
        sample(model, BEGINNING, slots, Quantization(), fitting=Anything(slots))
    assert not model.begun


@pytest.mark.parametrize("wrong", [{"epsilon": 0.0}, {"epsilon": 1.5}, {"lambda_max": 0}, {"temperature": 0.0}])
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SetupError):
        Quantization(**wrong)  # type: ignore[arg-type]


@given(st.floats(-30, 0), st.integers(1, 12), st.sampled_from([0.01, 0.1, 1.0]))
def test_a_probability_is_in_its_own_bin_which_is_no_wider_than_it_may_be(
    reference: float, tokens: int, epsilon: float
) -> None:
    low, high = Quantization(epsilon).bin(reference, tokens)
    assert low < reference <= high + 1e-9 and math.exp(high) - math.exp(low) <= epsilon / tokens * 1.0001
    low, high = Quantization(epsilon, distance="relative").bin(reference, tokens)
    assert low <= reference <= high + 1e-9 and high - low <= epsilon / tokens * 1.0001


def test_lemma_9_1() -> None:
    """The bound of the proof, on a grid: products of factors that differ by less than ε/n differ by less than ε."""
    for a, b in itertools.product(itertools.product((0.0, 0.3, 0.95, 1.0), repeat=3), repeat=2):
        width = max(abs(x - y) for x, y in zip(a, b, strict=True))
        assert abs(math.prod(a) - math.prod(b)) <= 3 * width + 1e-12


SEALED = """
import sys
from tests.obfuscation.test_gqs import BEGINNING, VOCABULARY, Anything, Quantization, RuleModel, Slot, sample

class Sealed:
    def find_spec(self, name, path=None, target=None):
        raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Sealed())
for keep in ("likeliest", "nearest", "around"):
    slots = [Slot((4, 7), stem=True), Slot((2,), (5, 5))]
    by = Quantization(0.5, 40, 1.0, "absolute", keep, True)
    assert sample(RuleModel(VOCABULARY), BEGINNING, slots, by, fitting=Anything(slots), lineages=8).candidates
"""


def test_sampling_imports_nothing() -> None:
    """A sealed vault opens no file: numpy's `unique`, for one, imports a module when it is first called."""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", SEALED], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
