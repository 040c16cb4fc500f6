"""A message is taken once, and nothing is forgotten while the key lives."""

from __future__ import annotations

import secrets

import pytest

from cloister.channel.keys import ChannelKey, SeenMessages, address_to
from cloister.errors import ChannelKeyUnknown, MessageRepeated


def test_a_repeated_enc_is_refused_and_others_are_not() -> None:
    seen = SeenMessages(limit=10)
    node = ChannelKey.generate()
    first, second = (address_to(node.public)[0] for _ in range(2))
    seen.add(first)
    seen.add(second)
    for enc in (first, second, first):
        with pytest.raises(MessageRepeated):
            seen.add(enc)
    assert len(seen) == 2


def test_full_refuses_rather_than_forgets() -> None:
    seen = SeenMessages(limit=3)
    taken = [secrets.token_bytes(32) for _ in range(3)]
    for enc in taken:
        assert not seen.full
        seen.add(enc)
    assert seen.full
    with pytest.raises(ChannelKeyUnknown, match="Verify the node anew"):
        seen.add(secrets.token_bytes(32))
    with pytest.raises(MessageRepeated):
        seen.add(taken[0])
