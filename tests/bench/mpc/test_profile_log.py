from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.bench.mpc.profile_log import is_whole, merge, read_profile
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
            f"{STAMP} Link details: total send bytes {sent}, recv bytes 4352, send actions {messages}, recv actions 13",
            "",
        )
    )


def test_operators_and_totals_are_read() -> None:
    profile = read_profile(log())
    assert (profile.sent, profile.messages, profile.seconds) == (5120, 14, 0.0108)
    assert profile.operators["less"].messages == (8,) and profile.operators["less"].sent == (2304,)
    assert profile.operators["dot"].times == 2 and profile.operators["dot"].seconds == 1.5e-05


def test_the_last_run_counts_and_an_earlier_one_is_not_added() -> None:
    profile = read_profile(log(sent=1) + log(sent=2, seconds="3e-2"))
    assert profile.sent == 2 and profile.seconds == 0.03 and profile.operators["dot"].times == 2


def test_parties_are_put_side_by_side() -> None:
    cost = merge([read_profile(log()), read_profile(log(sent=4096, messages=12, seconds="0.02"))])
    assert cost.whole.sent == (5120, 4096) and cost.whole.messages == (14, 12) and cost.whole.seconds == 0.02
    assert cost.operators["less"].sent == (2304, 2304) and cost.operators["less"].times == 1


def test_half_a_profile_is_not_whole() -> None:
    half = log().rsplit("Link details", 1)[0]
    assert is_whole(log()) and not is_whole(half)
    with pytest.raises(ProtocolError):
        read_profile(half)


@given(st.text(max_size=200) | st.sampled_from(log().split()).flatmap(lambda word: st.just(log().replace(word, "", 1))))
def test_any_other_text_is_refused_or_read(text: str) -> None:
    with suppress(ProtocolError):
        assert read_profile(text).sent >= 0
