"""The attacks on private layers succeed on a small random model, and their baseline; other states give nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cloister_bench.privacy.contributions import right
from cloister_bench.privacy.network import Network, continued
from cloister_bench.privacy.reconstruction import Search, seen_by_service
from cloister_bench.privacy.states import FirstStates, StateSearch, states_seen
from tests.cloister_bench.privacy.test_reconstruction import SECRET, model

__all__ = ["model"]
STEPS = 12


def begun(model: Any, layer: int, *, bf16: bool = False) -> tuple[Network, Search, torch.Tensor, list[int]]:
    network = Network(model, bf16=bf16)
    answer = continued(network, SECRET.prompt, STEPS)
    views = seen_by_service(network, SECRET.prompt, answer)
    search = Search(network, views[layer], SECRET.before, SECRET.after, len(SECRET.secret))
    return network, search, states_seen(network, SECRET.prompt, answer, layer), answer


@pytest.mark.parametrize("bf16", [False, True])
def test_states_before_layer_one_give_the_prompt_away(model: Any, bf16: bool) -> None:
    network, search, states, answer = begun(model, 1, bf16=bf16)
    assert FirstStates(network, search, states, answer).run() == SECRET.secret


@pytest.mark.parametrize("with_parts", [False, True])
def test_deeper_states_are_searched_with_all_that_follows_computed(model: Any, with_parts: bool) -> None:
    network, search, states, answer = begun(model, 2)
    sought = StateSearch(network, search, 2, states, answer, seed=1)
    sought.with_parts = with_parts
    assert sought.run() == SECRET.secret


def test_a_right_guess_leaves_no_residue(model: Any) -> None:
    network, search, states, answer = begun(model, 2)
    sought = StateSearch(network, search, 2, states, answer, seed=1)
    with torch.no_grad():
        rows = torch.tensor([[*SECRET.secret, *SECRET.after], [*SECRET.secret[::-1], *SECRET.after]])
        true, other = sought.loss(network.embed(rows)).tolist()
    assert true < 1e-3 * other


def test_states_that_are_another_prompts_give_nothing(model: Any) -> None:
    network, search, _, answer = begun(model, 1)
    other = states_seen(network, [*SECRET.before, 7, 8, 9, *SECRET.after], answer, 1)
    assert right(FirstStates(network, search, other, answer).run(), SECRET.secret) == 0


@pytest.mark.parametrize("layer", [1, 2])
def test_the_baseline_succeeds(model: Any, layer: int) -> None:
    network, search, states, answer = begun(model, layer)
    rows = states_seen(network, SECRET.before, SECRET.secret, layer)
    assert StateSearch(network, search, layer, states, answer, seed=1).run_with_rows(rows) == SECRET.secret
