import torch
from hypothesis import given
from hypothesis import strategies as st

from cloister.engine.probabilities import best


@given(st.integers(0, 10**6), st.sampled_from([1, 5, 20, 40, 128]), st.sampled_from([128, 4096, 16384]), st.booleans())
def test_best_is_the_head_of_a_stable_sort(seed, count, width, many_ties):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(3, width, generator=generator)
    if many_ties:
        rows = (rows * 2).round() / 2
        rows[rows == 0] *= torch.where(torch.rand(int((rows == 0).sum()), generator=generator) < 0.5, 1.0, -1.0)
    expected = torch.sort(rows, dim=-1, descending=True, stable=True).indices[:, :count]
    assert torch.equal(best(rows, count), expected)


def test_minus_infinity_comes_last():
    rows = torch.full((1, 128), float("-inf"))
    rows[0, 100] = -1e30
    assert best(rows, 3).tolist() == [[100, 0, 1]]
