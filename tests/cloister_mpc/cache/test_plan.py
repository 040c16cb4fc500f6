from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.config import MpcCache, MpcSettings
from cloister_mpc.cache.methods import make_method, sizes_of
from cloister_mpc.cache.plan import PLANS, CachePlan, PlanError

WRONG: list[dict[str, object]] = [
    {"budget": 0.0},
    {"budget": 1.5},
    {"cluster": 0},
    {"cluster": 1024},
    {"granularity": 0},
    {"granularity": 3, "cluster": 16},
    {"pinned_first": -1},
]


@pytest.mark.parametrize("settings", WRONG, ids=str)
def test_what_cannot_be_computed_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(PlanError):
        CachePlan(**settings)  # type: ignore[arg-type]


def test_a_wrong_plan_in_a_message_is_a_malformed_message() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"budget": 2.0}), type=CachePlan)


def test_plans_survive_the_wire() -> None:
    plan = CachePlan(cluster=32, granularity=1)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=CachePlan) == plan


@pytest.mark.parametrize("method", ["snapkv", "h2o", ""])
def test_a_party_refuses_methods_that_it_does_not_know(method: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode({"method": method}), type=CachePlan)


def test_a_short_prompt_is_read_whole() -> None:
    assert type(make_method(CachePlan(), 64, 8)).__name__ == "FullCache"


def test_the_faster_plan_is_served_unless_the_other_is_asked_for() -> None:
    assert set(PLANS) == set(get_args(MpcCache))
    context = MpcSettings().max_context
    served, other = (make_method(PLANS[name], context, 16) for name in (MpcSettings().cache, "mpcache"))
    assert (type(served).__name__, type(other).__name__) == ("FullCache", "MPCache")
    assert not served.choose_shuffles and other.choose_shuffles, "where nothing is selected no rank is revealed"


@given(
    tokens=st.integers(1, 128).map(lambda sixteens: 16 * sixteens),
    budget=st.floats(0.02, 1),
    keep=st.floats(0.05, 1),
    always=st.floats(0, 1),
    granularity=st.sampled_from((1, 2, 4, 8, 16)),
    cluster=st.sampled_from((2, 4, 8, 16, 32)),
    pinned=st.integers(0, 32),
)
def test_sizes_fit_together_and_the_budget_is_kept(
    tokens: int, budget: float, keep: float, always: float, granularity: int, cluster: int, pinned: int
) -> None:
    settings = CachePlan(
        budget=budget,
        at_least=0,
        window=0.2,
        static_keep=keep,
        granularity=granularity,
        always=always,
        pinned_first=pinned,
        pinned_last=pinned,
        cluster=cluster,
    )
    sizes = sizes_of(settings, tokens)
    if sizes is None:
        return
    assert sizes.read <= round(budget * tokens) + granularity
    assert sizes.first + (sizes.middle.stop - sizes.middle.start) + sizes.last == tokens
    assert sizes.always + sizes.body <= sizes.middle.stop - sizes.middle.start
    assert sizes.body % granularity == 0 and sizes.candidates * cluster == sizes.body
    assert 1 <= sizes.count <= sizes.candidates
