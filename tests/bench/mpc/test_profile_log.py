from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.bench.mpc.profile_log import count_profiles, merge, read_profiles
from cloister.errors import ProtocolError

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
    assert (profile.sent, profile.messages, profile.seconds) == (5120, 14, 0.0108)
    assert profile.operators["less"].messages == (8,) and profile.operators["less"].sent == (2304,)
    assert set(profile.operators) == {"less", "dot", "mhlo.topk"}
    assert profile.operators["dot"].times == 2 and profile.operators["dot"].seconds == 1.5e-05


def test_runs_are_kept_apart() -> None:
    first, second = read_profiles(log(sent=1) + log(sent=2, seconds="3e-2"))
    assert (first.sent, second.sent, second.seconds) == (1, 2, 0.03)
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
        assert all(profile.sent >= 0 for profile in read_profiles(text))
