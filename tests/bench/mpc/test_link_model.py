import pytest

from cloister.bench.mpc.cost import Tally
from cloister.bench.mpc.link_model import LAN, WAN


def test_bandwidth_of_the_busiest_and_latency_of_each_message_are_added() -> None:
    tally = Tally(seconds=2.0, sent=(377_000_000, 1), messages=(100, 90))
    assert LAN.seconds(tally) == pytest.approx(2.0 + 1.0 + 0.03)
    assert WAN.seconds(tally) == pytest.approx(2.0 + 9.425 + 4.0)


def test_what_sends_nothing_takes_what_was_measured() -> None:
    assert LAN.seconds(Tally(seconds=1.5)) == WAN.seconds(Tally(seconds=1.5)) == 1.5
