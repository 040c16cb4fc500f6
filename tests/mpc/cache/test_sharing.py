from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloister.mpc.cache.plan import CachePlan
from cloister.mpc.cache.sharing import leader, leads


def test_pairs_share_but_for_the_first_two_layers() -> None:
    assert [leader(layer, CachePlan(shared_layers=2)) for layer in range(8)] == [0, 1, 2, 2, 4, 4, 6, 6]


@given(layer=st.integers(0, 60), shared=st.integers(1, 8))
def test_a_leader_comes_before_whom_it_leads_and_leads_itself(layer: int, shared: int) -> None:
    plan = CachePlan(shared_layers=shared)
    found = leader(layer, plan)
    assert leads(found, plan) and layer - shared < found <= layer


def test_no_other_method_shares() -> None:
    assert leader(7, CachePlan(method="snapkv", shared_layers=2)) == 7
