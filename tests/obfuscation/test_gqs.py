"""Greedy Quantized Sampling finds a class: every value of it finds the same values."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import PromptTooLong, SetupError
from cloister.obfuscation.gqs import Quantization, Sampled, Slot, finished, sampling
from tests.examples import examples
from tests.obfuscation.fake_model import RuleModel

VOCABULARY = 12
BEGINNING = (3, 1)
Targets = list[list[int]]


class Anything:
    """All tokens but one may stand anywhere. Some pairs of tokens do not stand in a row."""

    def __init__(self, apart: tuple[tuple[int, int], ...] = ()) -> None:
        self._apart = apart

    def allowed(self, number: int, value: tuple[int, ...], last: bool) -> npt.NDArray[np.bool_]:
        mask = np.ones(VOCABULARY, dtype=np.bool_)
        mask[0] = False
        return mask

    def accept(self, number: int, value: tuple[int, ...], last: bool) -> bool:
        return value[-2:] not in self._apart

    def stands(self, values: tuple[tuple[int, ...], ...]) -> bool:
        return sum(values[-1]) % 7 > 0


def found(
    model: RuleModel, targets: tuple[tuple[int, ...], ...], most: int, stems: list[bool], fitting: Anything
) -> Sampled:
    slots = [Slot(target, (5, 5) if at else (), stems[at]) for at, target in enumerate(targets)]
    return finished(sampling(model, BEGINNING, slots, Quantization(1.0, most), fitting=fitting))


targets_and_stems = st.lists(
    st.tuples(st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=4), st.booleans()), min_size=1, max_size=3
)


@given(targets_and_stems, st.integers(1, 40), st.integers(0, 5))
@examples(25)
def test_every_value_of_a_class_finds_the_same_class(drawn: list[tuple[list[int], bool]], most: int, seed: int) -> None:
    model, fitting = RuleModel(VOCABULARY, seed), Anything(((4, 7), (2, 2)))
    targets, stems = tuple(tuple(target) for target, _ in drawn), [stem for _, stem in drawn]
    first = found(model, targets, most, stems, fitting)
    for one in first.members:
        again = found(model, one.values, most, stems, fitting)
        assert again.members == first.members, "in one order, with the same probabilities"
        assert again.found == first.found and again.secret == one.values
    if first.members:
        assert targets in {one.values for one in first.members}
    assert len(first.members) <= most + 1


@given(targets_and_stems, st.integers(1, 40), st.integers(0, 5), st.sampled_from([0.5, 1.0, 2.0]))
@examples(25)
def test_probabilities_are_the_model_s_and_no_two_values_of_a_slot_are_alike(
    drawn: list[tuple[list[int], bool]], most: int, seed: int, temperature: float
) -> None:
    model = RuleModel(VOCABULARY, seed)
    slots = [Slot(tuple(target), (5, 5) if at else (), stem) for at, (target, stem) in enumerate(drawn)]
    members = finished(
        sampling(model, BEGINNING, slots, Quantization(1.0, most, temperature), fitting=Anything())
    ).members
    for one in members:
        total, before = 0.0, BEGINNING
        for slot, value in zip(slots, one.values, strict=True):
            assert len(value) == len(slot.target) and 0 not in value
            before = (*before, *slot.bridge)
            total += model.logprob(value, before, temperature)
            before = (*before, *value)
        assert one.logprob == pytest.approx(total, abs=1e-3)
    for at, slot in enumerate(slots):
        column = [one.values[at] for one in members]
        assert len(set(column)) == len(column), "a value that comes once among values that repeat is the real one"
        if slot.stem:
            assert len({value[0] for value in column}) == len(column)


def test_a_word_goes_on_with_tokens_of_the_real_one_s_rank() -> None:
    model = RuleModel(VOCABULARY, 1)

    def ranked(last: int) -> list[int]:
        return sorted(range(1, VOCABULARY), key=lambda token: (-model.logprob((token,), (last,)), token))

    target = (4, 9)
    members = found(model, (target,), 40, [True], Anything()).members
    rank = ranked(4).index(9)
    expected = {(stem, ranked(stem)[rank]) for stem in range(1, VOCABULARY)}
    assert {one.values[0] for one in members} == {value for value in expected if sum(value) % 7}


def test_cohorts_of_one_step_are_cut_by_rank() -> None:
    model = RuleModel(VOCABULARY, 1)
    fits = [token for token in range(1, VOCABULARY) if token != 7]
    cohorts = {
        frozenset(one.values[0][0] for one in found(model, ((token,),), 3, [True], Anything()).members)
        for token in fits
    }
    assert sorted(token for cohort in cohorts for token in cohort) == fits, "they are apart, and are all there is"
    assert all(len(cohort) <= 4 for cohort in cohorts)
    likely = sorted(range(1, VOCABULARY), key=lambda token: -model.logprob((token,), BEGINNING))
    assert frozenset(likely[:3]) - {7} in cohorts


def test_a_secret_that_may_not_stand_there_itself_has_no_class() -> None:
    model = RuleModel(VOCABULARY, 1)
    assert found(model, ((0,),), 9, [True], Anything()).members == ()
    assert found(model, ((4, 7),), 9, [True], Anything(((4, 7),))).members == ()
    assert found(model, ((3, 4),), 9, [True], Anything()) == Sampled(((3, 4),), (), (0,)), "it does not stand"


def test_rows_may_come_one_by_one() -> None:
    model = RuleModel(VOCABULARY, 1)
    together = found(model, ((4, 7, 2),), 20, [False], Anything())
    model.batch = 1
    assert found(model, ((4, 7, 2),), 20, [False], Anything()) == together


def test_the_model_computes_a_row_for_each_value_and_none_for_the_real_one_beside() -> None:
    model = RuleModel(VOCABULARY, 1)
    found(model, ((4, 7, 2),), 5, [False], Anything())
    assert model.begun == 1 and model.rows <= 1 + 2 * (5 + 1)


def test_nothing_is_sampled_beyond_the_model_s_context() -> None:
    model = RuleModel(VOCABULARY, max_context=20)
    with pytest.raises(PromptTooLong, match="21"):
        found(model, ((4,) * 19,), 9, [False], Anything())
    assert not model.begun


@pytest.mark.parametrize(
    "wrong", [{"epsilon": 0.0}, {"epsilon": 1.5, "distance": "absolute"}, {"lambda_max": 0}, {"temperature": 0.0}]
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SetupError):
        Quantization(**wrong)


SEALED = """
import sys
from tests.obfuscation.test_gqs import Anything, RuleModel, VOCABULARY, found

class Sealed:
    def find_spec(self, name, path=None, target=None):
        raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Sealed())
assert found(RuleModel(VOCABULARY), ((4, 8), (2,), (3, 5)), 40, [True, True, False], Anything()).members
"""


def test_sampling_imports_nothing() -> None:
    """A sealed vault opens no file: numpy's `unique`, for one, imports a module when it is first called."""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", SEALED], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
