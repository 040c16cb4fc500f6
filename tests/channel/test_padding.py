"""Buckets: never too small, never shrinking, few, and not wasteful."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloister.channel.sealing import FINE_BYTES, SMALLEST_BYTES, padded


@given(st.integers(0, 1 << 26))
def test_a_bucket_holds_its_length_and_is_its_own_bucket(length: int) -> None:
    size = padded(length)
    assert size >= max(length, SMALLEST_BYTES)
    assert padded(size) == size


@given(st.integers(0, 1 << 26), st.integers(0, 1 << 26))
def test_longer_is_never_smaller(one: int, other: int) -> None:
    assert (one <= other) <= (padded(one) <= padded(other))


@given(st.integers(SMALLEST_BYTES, 1 << 26))
def test_padding_costs_at_most_a_doubling_or_a_step(length: int) -> None:
    assert padded(length) < 2 * length or padded(length) == SMALLEST_BYTES
    assert padded(length) - length < FINE_BYTES


def test_there_are_few_buckets() -> None:
    assert {padded(length) for length in range(1 << 16)} == {1 << power for power in range(9, 17)}
