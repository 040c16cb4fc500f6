from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import ProtocolError
from cloister_bench.mpc.cost import LAN, WAN, Cost, Tally, count_profiles, merge, read_profiles, total, typical

counts = st.integers(0, 2**40)
tallies = st.builds(
    Tally, st.floats(0, 1e3).map(lambda x: round(x, 3)), st.tuples(counts, counts), st.tuples(counts, counts), counts
)
costs = st.builds(Cost, tallies, st.dictionaries(st.sampled_from(["dot", "less", "multiply"]), tallies))


@given(costs, st.integers(1, 5))
def test_so_many_times_is_so_many_sums(cost: Cost, times: int) -> None:
    summed = total([cost] * times)
    assert summed.operators.keys() == cost.operators.keys()
    for one, several in (
        (cost.whole, summed.whole),
        *((cost.operators[n], summed.operators[n]) for n in cost.operators),
    ):
        assert several.sent == tuple(times * each for each in one.sent)
        assert several.messages == tuple(times * each for each in one.messages)


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


STAMP = "[2026-01-01 00:00:00.000] [info] [api.cc:1]"


def log(sent: int = 5120, messages: int = 14, seconds: str = "0.0108") -> str:
    return "\n".join(
        (
            f"{STAMP} [Profiling] SPU execution layer completed, input processing took 7.7e-06s, execution took "
            f"0.01s, output processing took 4e-06s, total time {seconds}s.",
            f"{STAMP} HLO profiling: total time 0.0075",
            f"{STAMP} - pphlo.less, executed 1 times, duration 0.004s, send bytes 2304 recv bytes 2304, "
            "send actions 8, recv actions 8",
            f"{STAMP} - pphlo.dot, executed 2 times, duration 1.5e-05s, send bytes 1280 recv bytes 1536, "
            "send actions 3, recv actions 4",
            f"{STAMP} - pphlo.custom_call: mhlo.topk, executed 1 times, duration 0.03s, send bytes 4237 "
            "recv bytes 3213, send actions 30, recv actions 28",
            f"{STAMP} Link details: total send bytes {sent}, recv bytes 4352, send actions {messages}, recv actions 13",
            "",
        )
    )


def test_operators_and_totals_are_read() -> None:
    (profile,) = read_profiles(log())
    assert profile.whole == Tally(0.0108, (5120,), (14,), 1)
    assert profile.operators["less"].messages == (8,) and profile.operators["less"].sent == (2304,)
    assert set(profile.operators) == {"less", "dot", "mhlo.topk"}
    assert profile.operators["dot"].times == 2 and profile.operators["dot"].seconds == 1.5e-05


def test_runs_are_kept_apart() -> None:
    first, second = read_profiles(log(sent=1) + log(sent=2, seconds="3e-2"))
    assert (first.whole.sent, second.whole.sent, second.whole.seconds) == ((1,), (2,), 0.03)
    assert first.operators["dot"].times == second.operators["dot"].times == 2


def test_parties_are_put_side_by_side() -> None:
    cost = merge(read_profiles(log() + log(sent=4096, messages=12, seconds="0.02")))
    assert cost.whole.sent == (5120, 4096) and cost.whole.messages == (14, 12) and cost.whole.seconds == 0.02
    assert cost.operators["less"].sent == (2304, 2304) and cost.operators["less"].times == 1


def test_half_a_profile_is_not_whole() -> None:
    half = log().rsplit("Link details", 1)[0]
    assert count_profiles(log()) == 1 and count_profiles(log() + half) == 1 and count_profiles(half) == 0
    for text in (half, log() + half):
        with pytest.raises(ProtocolError):
            read_profiles(text)


@given(st.text(max_size=200) | st.sampled_from(log().split()).flatmap(lambda word: st.just(log().replace(word, "", 1))))
def test_any_other_text_is_refused_or_read(text: str) -> None:
    with suppress(ProtocolError):
        assert all(profile.whole.bytes >= 0 for profile in read_profiles(text))
