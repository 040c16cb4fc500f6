import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.bench.mpc.cost import LAN, WAN, Cost, Tally, total, typical

counts = st.integers(0, 2**40)
tallies = st.builds(
    Tally, st.floats(0, 1e3).map(lambda x: round(x, 3)), st.tuples(counts, counts), st.tuples(counts, counts), counts
)
costs = st.builds(Cost, tallies, st.dictionaries(st.sampled_from(["dot", "less", "multiply"]), tallies))


@given(costs, st.integers(1, 5))
def test_so_many_times_is_so_many_sums(cost: Cost, times: int) -> None:
    summed, multiplied = total([cost] * times), cost * times
    assert summed.whole.sent == multiplied.whole.sent and summed.whole.messages == multiplied.whole.messages
    assert summed.operators.keys() == multiplied.operators.keys() == cost.operators.keys()
    assert all(summed.operators[name].sent == multiplied.operators[name].sent for name in cost.operators)


@given(costs, costs)
def test_operators_of_both_are_in_the_sum(left: Cost, right: Cost) -> None:
    both = left + right
    assert both.operators.keys() == left.operators.keys() | right.operators.keys()
    assert sum(each.bytes for each in both.operators.values()) == sum(
        each.bytes for cost in (left, right) for each in cost.operators.values()
    )


def test_parties_are_kept_apart_until_the_end() -> None:
    """Who sends most may change from program to program: the busiest of the sum, not the sum of the busiest."""
    both = Tally(1.0, (10, 1), (5, 2)) + Tally(1.0, (1, 10), (2, 5))
    assert (both.bytes, both.most_bytes, both.most_messages) == (22, 11, 7)


def test_repeats_have_the_middle_time_and_the_mean_counts() -> None:
    repeats = [
        Cost(Tally(seconds, (sent, 8), (1, 3), 1, (seconds, 1.0)), {"dot": Tally(1.0, (sent, 8), (1, 3), 2)})
        for seconds, sent in ((9.0, 10), (2.0, 20), (1.0, 30))
    ]
    assert typical(repeats).whole == Tally(2.0, (20, 8), (1, 3), 1, (2.0, 1.0))
    assert typical(repeats).operators["dot"].times == 2


def test_bandwidth_of_the_busiest_and_latency_of_each_message_are_added() -> None:
    tally = Tally(seconds=2.0, sent=(377_000_000, 1), messages=(100, 90))
    assert LAN.seconds(tally) == pytest.approx(2.0 + 1.0 + 0.03)
    assert WAN.seconds(tally) == pytest.approx(2.0 + 9.425 + 4.0)


def test_what_sends_nothing_takes_what_was_measured() -> None:
    assert LAN.seconds(Tally(seconds=1.5)) == WAN.seconds(Tally(seconds=1.5)) == 1.5
