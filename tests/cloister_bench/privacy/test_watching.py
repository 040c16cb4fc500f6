"""What a watch costs is a ratio of times in the same round: a machine that slows down for all of them changes none."""

from __future__ import annotations

from cloister_bench.privacy.watching import NODES, SHOWN, WAYS, rows_of


def test_ratios_are_of_one_round() -> None:
    slower = [1.0, 4.0, 2.0, 8.0, 1.0]
    factors = dict(zip(WAYS, (10, 12, 15, 18, 10), strict=True))
    rows = list(rows_of({way: [factor * each for each in slower] for way, factor in factors.items()}, 8))
    assert [(row["gets"], row["low"], row["high"]) for row in rows[:2]] == [(1.2, 1.2, 1.2), (1.5, 1.5, 1.5)]
    assert [row["gets"] for row in rows[2:]] == [1.25, 1.8, 1.0]
    assert {row["of"] for row in rows} == {5} and rows[1]["ms_a_token"] == 30


def test_one_uneven_round_widens_the_interval() -> None:
    times = {way: [10.0, 10.0, 10.0] for way in WAYS} | {"letters": [10.0, 11.0, 30.0]}
    row = list(rows_of(times, 1))[1]
    assert (row["gets"], row["low"], row["high"]) == (1.1, 1.0, 3.0)


def test_what_is_compared_is_measured() -> None:
    assert {way for pair in SHOWN for way in pair} == set(WAYS) and {node for node, _ in WAYS.values()} == set(NODES)
