"""A sealed request is good for a little while, by the node's clock."""

from __future__ import annotations

import pytest

from cloister.channel.envelope import BYTES_PER_S, CLOCKS_MAY_DIFFER_S, MOST_VALID_S, VALID_S, InnerRequest, Validity
from cloister.errors import MessageExpired

NOW = 1_800_000_000_000


def ms(seconds: float) -> int:
    return int(1000 * seconds)


def test_one_that_was_withheld_for_twenty_seconds_is_refused() -> None:
    validity = Validity.beginning(NOW, 1000)
    validity.check(NOW)
    validity.check(NOW + ms(VALID_S))
    with pytest.raises(MessageExpired, match="too old") as raised:
        validity.check(NOW + ms(20))
    assert "verify the node" in (raised.value.hint or "")


def test_clocks_may_differ_by_so_much_and_no_more() -> None:
    validity = Validity.beginning(NOW, 0)
    for fine in (-CLOCKS_MAY_DIFFER_S, VALID_S + CLOCKS_MAY_DIFFER_S):
        validity.check(NOW + ms(fine))
    for wrong in (-CLOCKS_MAY_DIFFER_S - 0.01, VALID_S + CLOCKS_MAY_DIFFER_S + 0.01):
        with pytest.raises(MessageExpired):
            validity.check(NOW + ms(wrong))


def test_a_large_one_has_longer_and_nobody_for_ever() -> None:
    Validity.beginning(NOW, 10 * BYTES_PER_S).check(NOW + ms(VALID_S + 10))
    assert Validity.beginning(NOW, 1 << 40).for_ms == ms(MOST_VALID_S)
    with pytest.raises(MessageExpired):
        Validity(NOW, ms(10 * MOST_VALID_S)).check(NOW + ms(MOST_VALID_S + CLOCKS_MAY_DIFFER_S + 1))


def test_a_request_that_says_nothing_has_expired() -> None:
    with pytest.raises(MessageExpired):
        InnerRequest.decode(InnerRequest("GET", "/").encode()).validity.check(NOW)
