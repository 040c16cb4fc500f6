"""The real one's place is drawn from a secret: evenly, always the same, and unlike other requests' places."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter

import pytest

from cloister.obfuscation.index import Order, Prf, new_secret

SECRET = bytes(range(32))


def test_the_same_secret_and_context_give_the_same_order_and_others_do_not() -> None:
    order = Prf(SECRET).order(b"one", 9)
    assert order == Prf(SECRET).order(b"one", 9) and sorted(order.places) == list(range(9))
    orders = {Prf(SECRET).order(b"%d" % number, 9) for number in range(50)}
    assert len(orders) > 45
    assert Prf(new_secret()).order(b"one", 9) != order or Prf(new_secret()).order(b"one", 9) != order


def test_every_place_is_as_likely() -> None:
    prf = Prf(SECRET)
    counted = Counter(prf.order(b"%d" % number, 5).authentic for number in range(2000))
    assert set(counted) == set(range(5)) and all(320 < count < 480 for count in counted.values())


def test_the_key_is_derived_as_hkdf_has_it() -> None:
    """RFC 5869: extract with a salt, then expand, here for the first word of the numbers drawn."""
    extracted = hmac.new(b"cloister obfuscation index v1", SECRET, hashlib.sha256).digest()
    info = b"order\0" + hashlib.sha256(b"context").digest()
    expanded = hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()
    word = hmac.new(expanded, bytes(8), hashlib.sha256).digest()[:8]
    last = Prf(SECRET).order(b"context", 1000).places[-1]
    assert last == int.from_bytes(word, "big") % 1000, "the first draw chooses the last place"


def test_shuffling_and_winnowing_are_each_other_s_reverse() -> None:
    order = Order((2, 0, 1))
    assert order.shuffled(["real", "fake", "other"]) == ["other", "real", "fake"]
    assert order.winnow(order.shuffled(["real", "fake", "other"])) == "real" and order.authentic == 1
    with pytest.raises(ValueError, match="as many answers"):
        order.winnow(["real"])
    with pytest.raises(ValueError, match="32 bytes"):
        Prf(b"short")


def test_an_order_does_not_show_in_logs() -> None:
    assert "2, 0, 1" not in repr(Order((2, 0, 1)))
