from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("jax", reason="generation on shares needs the distribution cloister-mpc")

from cloister.errors import ProtocolError
from cloister_bench.mpc.cost import LAN, WAN, Cost, read_profile, total, typical


def test_costs_are_summed() -> None:
    one, other = Cost(1.0, 30, 12, 5, 0.5), Cost(2.0, 3, 2, 1, 0.25)
    assert total([one, other, other]) == Cost(5.0, 36, 16, 7, 1.0)
    assert total([]) == Cost()


def test_repeats_have_the_middle_of_each_number() -> None:
    repeats = [Cost(seconds, sent, 8, 3, seconds) for seconds, sent in ((9.0, 10), (2.0, 30), (1.0, 20))]
    assert typical(repeats) == Cost(2.0, 20, 8, 3, 2.0)


def test_bandwidth_of_the_busiest_and_latency_of_each_message_are_added() -> None:
    cost = Cost(seconds=2.0, bytes=10**9, most_bytes=377_000_000, messages=100)
    assert cost.on(LAN) == pytest.approx(2.0 + 1.0 + 0.03)
    assert cost.on(WAN) == pytest.approx(2.0 + 9.425 + 4.0)
    assert Cost(seconds=1.5).on(LAN) == Cost(seconds=1.5).on(WAN) == 1.5


STAMP = "[2026-01-01 00:00:00.000] [info] [api.cc:1]"


def log(sent: int = 5120, messages: int = 14, seconds: str = "0.0108") -> str:
    """One party's."""
    return "\n".join(
        (
            f"{STAMP} [Profiling] SPU execution layer completed, input processing took 7.7e-06s, execution took "
            f"0.01s, output processing took 4e-06s, total time {seconds}s.",
            f"{STAMP} HLO profiling: total time 0.0075",
            f"{STAMP} - pphlo.less, executed 1 times, duration 0.004s, send bytes 2304 recv bytes 2304, "
            "send actions 8, recv actions 8",
            f"{STAMP} Link details: total send bytes {sent}, recv bytes 4352, send actions {messages}, recv actions 13",
            "",
        )
    )


WHOLE = log() + log(sent=4096, messages=20, seconds="2e-02") + log(sent=1, messages=0)


def test_parties_are_put_side_by_side() -> None:
    assert read_profile(WHOLE, 3.0) == Cost(0.02, 9217, 5120, 20, 1.0)


def test_half_a_profile_is_not_whole() -> None:
    for text in ("", log(), WHOLE.rsplit("Link details", 1)[0], WHOLE.replace("total time 2e-02", "")):
        assert read_profile(text, 1.0) is None


def test_more_than_one_run_is_refused() -> None:
    with pytest.raises(ProtocolError):
        read_profile(WHOLE + log(), 1.0)


@given(st.text(max_size=200) | st.sampled_from(WHOLE.split()).map(lambda word: WHOLE.replace(word, "", 1)))
def test_any_other_text_is_refused_or_read(text: str) -> None:
    with suppress(ProtocolError):
        cost = read_profile(text, 1.0)
        assert cost is None or cost.bytes >= cost.most_bytes >= 0
